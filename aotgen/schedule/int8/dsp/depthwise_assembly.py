"""Depthwise convolution of one channel on the DSP extension, as the text of one assembly function:
what ``int8_dsp_depthwise_rows`` describes.

How a sum becomes an output: ``aotgen.schedule.int8.dsp.operands``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from aotgen.schedule.int8.dsp.depthwise_rows import PARAMETERS, REGISTERS, DepthwiseRows, Pair

GEOMETRY = {
    "y_pixel": "bytes from output pixel to pixel",
    "y_row": "bytes from output row to row",
    "column_bytes": "from one pair of columns of the plane to the next",
    "loop_bytes": "of the plane's rows that whole blocks of a column begin with",
    "odd_row": "whether a row is left behind them",
    "pairs": "of output columns",
    "odd_column": "whether a column is left behind them",
    "lo": "lower clamp",
    "hi": "upper clamp",
}
"""What the fields of the struct mean that the function gets, all int32."""

_SLOTS = (*PARAMETERS, *GEOMETRY, "plane", "y", "at", "end", "weights", "weights_end", "sign")
"""Words on the stack: a column's places in plane and output; where the next block is, in the output
or, of streamed weights, the plane; where blocks end; by how much a sum is shifted to its sign."""

STACK_BYTES = 4 * len(_SLOTS) + 36

_SETUP, _COLUMN = 24, 21
"""Instructions of a call and of a pair of columns besides blocks, about."""


def text(rows: DepthwiseRows) -> str:
    """The function's assembly, a line an instruction."""
    return "\n".join(_writer(rows).function())


@cache
def instructions(rows: DepthwiseRows, high: int, wide: int) -> int:
    """Executed for one channel of so many outputs, about."""
    writer = _writer(rows)
    pairs, odd = divmod(wide, 2)
    blocks, odd_row = divmod(high, rows.rows)

    def column(width: int) -> int:
        whole = writer.count(rows.rows, width) + 3
        return _COLUMN + blocks * whole + (writer.count(1, width) if odd_row else 0)

    return _SETUP + pairs * column(2) + (column(1) if odd else 0)


def _slot(name: str) -> str:
    """Where a word of ``_SLOTS`` lies."""
    return f"[sp, #{4 * _SLOTS.index(name)}]"


def _writer(rows: DepthwiseRows) -> _Writer:
    return _Resident(rows) if rows.is_resident else _Streamed(rows)


class _Writer(ABC):
    """What both ways share.

    Attributes:
        sums: registers of a block's sums, those of its first row first.
        x: two registers for words of the plane.
        out: register of the output's pointer; "" where it is on the stack.
        spare: a register that is free when sums are scaled; "" for none.
    """

    sums: Sequence[str]
    x: tuple[str, str]
    out: str
    spare: str

    def __init__(self, shape: DepthwiseRows) -> None:
        self.shape = shape

    @abstractmethod
    def start(self) -> list[str]:
        """Weights, to which r1 points, to where blocks find them."""

    @abstractmethod
    def column_start(self) -> list[str]:
        """Pointers to a column's first block; flags: whether there are no whole blocks."""

    @abstractmethod
    def block(self, rows: int, width: int) -> list[str]:
        """A block of outputs, pointers moved on."""

    @abstractmethod
    def more(self) -> list[str]:
        """Flags: whether whole blocks are done."""

    def count(self, rows: int, width: int) -> int:
        """Instructions that a block takes."""
        return len(self.block(rows, width))

    def function(self) -> list[str]:
        """Pairs of columns of outputs, one after the other, then one that is left."""
        a = self.sums[0]
        return [
            *self._enter(),
            *self.start(),
            f"ldr {a}, {_slot('pairs')}",
            f"cmp {a}, #0",
            "beq 5f",
            "1: // a pair of columns",
            *self._column(2, "2", "3", "4"),
            *self._next_column(),
            f"ldr {a}, {_slot('pairs')}",
            f"subs {a}, #1",
            f"str {a}, {_slot('pairs')}",
            "bne 1b",
            "5:",
            f"ldr {a}, {_slot('odd_column')}",
            f"cmp {a}, #0",
            "beq 9f // else one column",
            *self._column(1, "6", "7", "8"),
            "9:",
            f"add sp, #{4 * len(_SLOTS)}",
            "pop {r4-r11, pc}",
        ]

    def _enter(self) -> list[str]:
        """Arguments (plane, channel, y, geometry) to the stack."""
        sign = [
            "cmp r7, #0",
            "ite eq",
            "moveq r7, #32",
            "movne r7, #31",
            f"str r7, {_slot('sign')}",
        ]
        return [
            "push {r4-r11, lr}",
            f"sub sp, #{4 * len(_SLOTS)}",
            "ldm r1!, {r4-r7} // bias, multiplier, constant, shift",
            "stm sp, {r4-r7}",
            *(sign if self.shape.kind == "any" else []),
            "ldm r3, {r4-r12} // geometry",
            f"add r3, sp, #{4 * len(PARAMETERS)}",
            "stm r3, {r4-r12}",
            f"strd r0, r2, {_slot('plane')}",
        ]

    def _column(self, width: int, whole: str, rest: str, done: str) -> list[str]:
        """All blocks of a pair of columns or of a single one; the others are labels."""
        rows = self.shape.rows
        lines = [*self.column_start(), f"beq {rest}f", f"{whole}: // a block"]
        lines += [*self.block(rows, width), *self.more(), f"bne {whole}b", f"{rest}:"]
        if rows == 1:
            return lines
        return [
            *lines,
            f"ldr {self.sums[0]}, {_slot('odd_row')}",
            f"cmp {self.sums[0]}, #0",
            f"beq {done}f // else one row",
            *self.block(1, width),
            f"{done}:",
        ]

    def _next_column(self) -> list[str]:
        plane, y, step = self.sums[0], self.sums[1], self.x[0]
        return [
            f"ldrd {plane}, {y}, {_slot('plane')}",
            f"ldr {step}, {_slot('column_bytes')}",
            *_apart(plane, plane, step, self.shape.along),
            f"ldr {step}, {_slot('y_pixel')}",
            f"add {y}, {y}, {step}, lsl #1",
            f"strd {plane}, {y}, {_slot('plane')}",
        ]

    def scale(self, rows: int, width: int) -> list[str]:
        """Sums to outputs, and those to memory."""
        a, b = self.x
        kind = self.shape.kind
        sums = [self.sums[2 * q + c] for q in range(rows) for c in range(width)]
        lines = [f"ldrd {a}, {b}, {_slot('multiplier')}"]
        for s in sums:
            constant = b if kind == "relu" else self.spare
            if kind == "linear":
                lines.append(f"add {constant}, {b}, {s}, asr #31")
            elif kind == "any":
                lines += [
                    f"ldr {constant}, {_slot('sign')}",
                    f"lsr {constant}, {s}, {constant}",
                    f"sub {constant}, {b}, {constant}",
                ]
            lines.append(f"smmlar {s}, {s}, {a}, {constant}")
        lines.append(f"ldr {a}, {_slot('shift')}")
        lines += [f"asr {s}, {s}, {a}" for s in sums]
        lines += [f"ssat {s}, #8, {s}" for s in sums]
        if kind == "any":
            lines.append(f"ldrd {a}, {b}, {_slot('lo')}")
            for s in sums:
                lines += [f"cmp {s}, {a}", "it lt", f"movlt {s}, {a}"]
                lines += [f"cmp {s}, {b}", "it gt", f"movgt {s}, {b}"]
        return lines + self._store(rows, width)

    def _store(self, rows: int, width: int) -> list[str]:
        a, pixel = self.x
        out, row = self.out or a, self.sums[0]
        lines = [] if self.out else [f"ldr {out}, {_slot('at')}"]
        lines += [f"strb {self.sums[0]}, [{out}]", f"ldrd {pixel}, {row}, {_slot('y_pixel')}"]
        for q in range(rows):
            left, right = self.sums[2 * q], self.sums[2 * q + 1]
            if q:
                lines += [f"add {out}, {out}, {row}", f"strb {left}, [{out}]"]
            if width == 2:
                lines.append(f"strb {right}, [{out}, {pixel}]")
        lines.append(f"add {out}, {out}, {row}")
        return lines if self.out else [*lines, f"str {out}, {_slot('at')}"]


def _apart(pointer: str, before: str, step: str, count: int) -> list[str]:
    """``pointer`` is to be ``count`` times ``step`` behind ``before``; all but ``step`` may be one
    register.
    """
    if count & (count - 1) == 0:
        shift = count.bit_length() - 1
        return [f"add {pointer}, {before}, {step}{f', lsl #{shift}' if shift else ''}"]
    return [f"add {pointer}, {before}, {step}", *[f"add {pointer}, {step}"] * (count - 1)]


@dataclass(frozen=True)
class _Product:
    """A multiplication: of ``x``, a word of the plane, with a word of weights or half of one, into
    the sum ``total``.
    """

    total: int
    x: str
    opcode: str
    word: int


class _Resident(_Writer):
    """Weights in registers, a pointer to every pair of columns of the plane."""

    def __init__(self, shape: DepthwiseRows) -> None:
        super().__init__(shape)
        sums = 2 * shape.rows
        self.sums = REGISTERS[:sums]
        # LDM takes the weights to ascending registers.
        pool = [*REGISTERS[4:], *REGISTERS[sums:4]]

        def take(count: int) -> list[str]:
            taken, pool[:] = pool[:count], pool[count:]
            return taken

        self.words = take(len(shape.pairs))
        first, second = take(2)
        self.x = first, second
        self.pointers = take(len(shape.read))
        # Where all registers are taken the last pointer makes room when sums are scaled.
        self.lends = shape.kind != "relu" and not pool
        self.spare = ""
        if shape.kind != "relu":
            self.spare = self.pointers[-1] if self.lends else take(1)[0]
        self.out = take(1)[0] if pool else ""

    def start(self) -> list[str]:
        return [f"ldm r1, {{{', '.join(self.words)}}} // weights"]

    def column_start(self) -> list[str]:
        p, (step, end), y = self.pointers, self.sums[:2], self.x[0]
        lines = [
            f"ldrd {p[0]}, {y}, {_slot('plane')}",
            f"ldrd {step}, {end}, {_slot('column_bytes')}",
        ]
        lines.append(f"mov {self.out}, {y}" if self.out else f"str {y}, {_slot('at')}")
        places = self.shape.read
        for j in range(1, len(p)):
            lines += _apart(p[j], p[j - 1], step, places[j] - places[j - 1])
        return [*lines, f"add {end}, {p[0]}", f"str {end}, {_slot('end')}", f"cmp {end}, {p[0]}"]

    def more(self) -> list[str]:
        return [f"ldr {self.x[0]}, {_slot('end')}", f"cmp {self.pointers[0]}, {self.x[0]}"]

    def block(self, rows: int, width: int) -> list[str]:
        lines = self._return_pointer() if self.lends else []
        body = [
            item
            for pointer, column in zip(self.pointers, self.shape.read, strict=True)
            for item in self._plane_words(pointer, column, rows, width)
        ]
        # The bias is in the sum that is met last, until then.
        met = list(dict.fromkeys(item.total for item in body if isinstance(item, _Product)))
        holder = self.sums[met[-1]]
        lines.append(f"ldr {holder}, {_slot('bias')}")
        started: set[int] = set()
        for item in body:
            if isinstance(item, str):
                lines.append(item)
                continue
            s = self.sums[item.total]
            before = s if item.total in started else holder
            started.add(item.total)
            lines.append(f"{item.opcode} {s}, {item.x}, {self.words[item.word]}, {before}")
        return lines + self.scale(rows, width)

    def _return_pointer(self) -> list[str]:
        """The pointer that was lent, from the one before."""
        before, pointer = self.pointers[-2:]
        count = self.shape.read[-1] - self.shape.read[-2]
        lines = [f"ldr {pointer}, {_slot('column_bytes')}"]
        if count & (count - 1):
            lines += [f"mov {self.x[0]}, #{count}", f"mul {pointer}, {pointer}, {self.x[0]}"]
            count = 1
        return lines + _apart(pointer, before, pointer, count)

    def _plane_words(
        self, pointer: str, column: int, rows: int, width: int
    ) -> list[str | _Product]:
        """Loads of a pair of columns, two rows at a time, and what their words are multiplied with;
        the first two rows come last and move the pointer on.
        """
        shape, (a, b) = self.shape, self.x
        total = (rows - 1) * shape.down + shape.high
        items: list[str | _Product] = []
        for t in range((total - 1) // 2 * 2, -1, -2):
            one = self._products(t, a, column, rows, width)
            two = self._products(t + 1, b, column, rows, width)
            last = t == 0
            if not one and not two and not last:
                continue
            address = f"[{pointer}], #{4 * rows * shape.down}" if last else f"[{pointer}, #{4 * t}]"
            if two and (one or last):
                items.append(f"ldrd {a}, {b}, {address}")
            elif one or last:
                items.append(f"ldr {a}, {address}")
            else:
                items.append(f"ldr {b}, [{pointer}, #{4 * t + 4}]")
            items += [*one, *two]
        return items if any(isinstance(item, _Product) for item in items) else []

    def _products(self, t: int, x: str, column: int, rows: int, width: int) -> list[_Product]:
        """What row ``t`` of a pair of columns gives a block."""
        found = []
        for q in range(rows):
            row = t - q * self.shape.down
            if 0 <= row < self.shape.high:
                for c in range(width):
                    product = self._product(2 * q + c, x, self.shape.taps(c, column, row))
                    found += [product] if product is not None else []
        return found

    def _product(self, total: int, x: str, pair: Pair) -> _Product | None:
        """The instruction for a word of the plane and the taps on its halves."""
        lo, hi = pair
        pairs = self.shape.pairs
        if lo is None and hi is None:
            return None
        if lo is not None and hi is not None:
            return _Product(total, x, "smlad", pairs.index(pair))
        tap, half = (lo, "b") if hi is None else (hi, "t")
        word = next(i for i, p in enumerate(pairs) if tap in p)
        return _Product(total, x, f"smla{half}{'b' if pairs[word][0] == tap else 't'}", word)


class _Streamed(_Writer):
    """Weights from memory, one pointer that moves from one pair of columns of the plane to the
    next: r4-r7 weights of this row and the one before, r10 plane, r11 weights, r12 step.
    """

    def __init__(self, shape: DepthwiseRows) -> None:
        super().__init__(shape)
        self.sums = REGISTERS[: 2 * shape.rows]
        self.x = "r8", "r9"
        self.out, self.spare = "lr", "r4"
        self.weights = (("r4", "r5"), ("r6", "r7"))

    def start(self) -> list[str]:
        size = 4 * len(self.shape.pairs)
        return [
            f"str r1, {_slot('weights')}",
            f"add r1, #{size}",
            f"str r1, {_slot('weights_end')}",
        ]

    def column_start(self) -> list[str]:
        return [
            f"ldrd r0, lr, {_slot('plane')}",
            f"ldrd r12, r1, {_slot('column_bytes')}",
            "add r1, r0",
            f"strd r0, r1, {_slot('at')}",
            "cmp r1, r0",
        ]

    def more(self) -> list[str]:
        return [f"ldrd r8, r9, {_slot('at')}", "cmp r8, r9"]

    def block(self, rows: int, width: int) -> list[str]:
        high = self.shape.high
        sums = [self.sums[2 * q + c] for q in range(rows) for c in range(width)]
        lines = [
            f"ldr r10, {_slot('at')}",
            f"ldr r11, {_slot('weights')}",
            f"ldr r0, {_slot('bias')}",
            *(f"mov {s}, r0" for s in sums[1:]),
            "0: // a pair of columns of the plane",
        ]
        total = high + rows - 1
        for t in range(total):
            if t % 2 == 0:
                both = t + 1 < total
                lines.append(f"{'ldrd r8, r9' if both else 'ldr r8'}, [r10, #{4 * t}]")
            if t < high:
                left, right = self.weights[t % 2]
                lines.append(f"ldrd {left}, {right}, [r11], #8")
            for q in range(rows):
                if 0 <= t - q < high:
                    taken = self.weights[(t - q) % 2]
                    for s, w in zip(self.sums[2 * q :], taken[:width], strict=False):
                        lines.append(f"smlad {s}, {self.x[t % 2]}, {w}, {s}")
        if self.shape.columns > 1:
            lines += [f"ldr r8, {_slot('weights_end')}", "add r10, r12", "cmp r11, r8", "bne 0b"]
        lines += self.scale(rows, width)
        step = 4 * rows * self.shape.down
        return [*lines, f"ldr r8, {_slot('at')}", f"add r8, #{step}", f"str r8, {_slot('at')}"]

    def count(self, rows: int, width: int) -> int:
        lines = self.block(rows, width)
        if "bne 0b" not in lines:
            return len(lines) - 1
        start = next(i for i, line in enumerate(lines) if line.startswith("0:"))
        size = lines.index("bne 0b") - start
        return len(lines) - 1 + size * (self.shape.columns - 1)
