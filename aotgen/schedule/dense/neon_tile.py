"""The reduction of the float32 register tile on AArch64, as the text of one asm statement.

From C both compilers load more than they must and move accumulators about: 1.3 instructions per
vector FMA against 1.07 to 1.13 here. The statement starts the accumulators, walks the reduction
and leaves the sums in the registers of C variables; the epilogue stays C.

Registers, lowest first: four steps of every pixel (eight where a pixel's next eight are loaded at
once), weights, accumulators pixel by pixel up to v31. Four next steps of a pixel are one vector and
are multiplied by element. Sums are formed in the order of the C tile, so results are the same.

``neon_tile_cost`` names the ways to load pixels and counts instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotgen.schedule.dense.asm_tile import MAX_OPERANDS, AsmTile, Reduction
from aotgen.schedule.dense.neon_tile_cost import REGISTERS, Way, quad_instructions

STRAIGHT_QUADS = 4
"""So many quads of a reduction are written out instead of looped over."""

_SCRATCH = tuple(f"x{n}" for n in (8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24))
"""General registers for pointers and counters, those that no caller keeps first."""

_FAR = 1 << 22
"""Floats: what two instructions add to a pointer."""


def asm_tile(r: Reduction) -> AsmTile | None:
    """The statement, or None where the C tile is to be used: where the innermost loop steps over
    inputs, a pass is no whole number of quads, or pixels need more pointers than there are.
    """
    pixels = len(r.offsets)
    if r.levels[-1][1] != 1 or pixels * r.vectors + pixels + 1 > REGISTERS:
        return None
    writer = _Writer(r)
    return writer.write() if writer.fits() else None


@dataclass(frozen=True)
class _Operands:
    """Names of C variables: those that the statement moves on, those that it reads."""

    moved: list[str]
    read: list[str]


class _Writer:
    """Writes one statement, instruction by instruction, in the order that it runs."""

    def __init__(self, r: Reduction) -> None:
        self.r, self.pixels, self.nv = r, len(r.offsets), r.vectors
        levels = list(r.levels)
        blocks = len(levels) > 1 and levels[-1][0] == 4
        # Quads of one innermost loop, bytes from one to the next, steps behind the last quad.
        if blocks:
            (self.quads, stride), self.rest = levels[-2], 0
            self.quad_step = 4 * stride
            self.outer = levels[:-2]
        else:
            self.quads, self.rest = divmod(levels[-1][0], 4)
            self.quad_step = 16
            self.outer = levels[:-1]
        self.innermost_split = r.split is not None and r.split >= len(self.outer)
        self.per_quad = 1 if blocks else 4
        self.sizes = tuple(n // self.per_quad for n in r.sizes) if self.innermost_split else ()
        self.whole = not self.innermost_split or all(n % self.per_quad == 0 for n in r.sizes)
        self.unroll = max(1, r.unroll // 4)
        if self.innermost_split:
            self.rest = 0
            if any(n % self.unroll for n in self.sizes):
                self.unroll = 1
        quads = self.sizes[0] if self.innermost_split else self.quads
        self.counted = self.innermost_split and len(set(self.sizes)) > 1
        self.looped = self.counted or quads > STRAIGHT_QUADS
        self.indexed = self.looped and r.lines == 1
        self.part = r.split is not None
        self.at_run_time = len(set(r.sizes)) > 1
        self.way = self._way()
        self.loaded = self.pixels * (2 if self.way == "ldp" else 1)
        self.first_sum = REGISTERS - self.pixels * self.nv
        self.group = min(4, self.first_sum - self.loaded)
        self.free = list(_SCRATCH)
        self.used: list[str] = []
        self.bases = self._bases()
        self.lines: list[str] = []
        self.next = ""

    def _way(self) -> Way:
        steps = {b - a for a, b in zip(self.r.offsets, self.r.offsets[1:], strict=False)}
        if self.rest == 0 and steps <= {4}:
            return "ld1"
        if self.quad_step != 16 or self.unroll != 2 or self.quads < 2:
            return "ldr"
        if not self.innermost_split and self.quads % 2:
            return "ldr"
        ways: tuple[Way, ...] = ("ldp", "ldr")
        return min(ways, key=lambda way: quad_instructions(self.pixels, self.nv, way))

    def _bases(self) -> list[list[tuple[int, int]]]:
        """Pixels by pointer: (pixel, bytes behind the pointer), the first at 0."""
        if self.way == "ld1":
            return [[(i, 4 * at) for i, at in enumerate(self.r.offsets)]]
        made: list[list[tuple[int, int]]] = []
        starts: list[int] = []
        for i, offset in enumerate(self.r.offsets):
            at = 4 * offset
            for start, members in zip(starts, made, strict=True):
                if self._in_reach(at - start):
                    members.append((i, at - start))
                    break
            else:
                starts.append(at)
                made.append([(i, 0)])
        return made

    def _in_reach(self, offset: int) -> bool:
        """Whether a load can have this offset."""
        if self.way == "ldp":
            return False
        if -256 <= offset <= 255:
            return True
        widest = 65520
        if self.rest and not self.r.overread:
            widest = 16380 if self.rest != 2 else 32760
        return offset % 16 == 0 and 0 <= offset <= widest

    def fits(self) -> bool:
        counters = len(self.outer) + 1
        spare = 5  # the step of ld1, where prefetching goes on, copies of three pointers
        few = len(self.bases) - 1 + counters + spare <= len(_SCRATCH)
        far = max(*map(abs, self.r.offsets), *(abs(n * stride) for n, stride in self.r.levels))
        return self.whole and few and far < _FAR

    def take(self) -> str:
        self.used.append(self.free.pop(0))
        return self.used[-1]

    def emit(self, *lines: str) -> None:
        self.lines += lines

    def move(self, register: str, value: int) -> None:
        """register = value, below 2^32."""
        size = abs(value)
        if size < 65536:
            self.emit(f"mov {register}, #{value}")
            return
        self.emit(f"movz {register}, #{size & 0xFFFF}")
        self.emit(f"movk {register}, #{size >> 16}, lsl #16")
        if value < 0:
            self.emit(f"neg {register}, {register}")

    def add(self, to: str, register: str, value: int) -> None:
        """to = register + value, below 2^24."""
        op, size = ("add", value) if value >= 0 else ("sub", -value)
        high, low = size >> 12, size & 0xFFF
        if high:
            self.emit(f"{op} {to}, {register}, #{high}, lsl #12")
            register = to
        if low or to != register:
            self.emit(f"{op} {to}, {register}, #{low}")

    def write(self) -> AsmTile:
        r = self.r
        operands = self._operands()
        self.pointers = [self.x]
        for members in self.bases[1:]:
            pointer = self.take()
            self.add(pointer, self.x, 4 * (r.offsets[members[0][0]] - r.offsets[0]))
            self.pointers.append(pointer)
        self.step = ""
        if self.way == "ld1":
            last = self.pixels - (self.pixels - 1) // 4 * 4
            on = self.quad_step - 16 * (self.pixels - last)
            if on != 16 * last:
                self.step = self.take()
                self.move(self.step, on)
        step = self._start()
        self._levels(0)
        sums = tuple(
            (i, n, f"v{self._sum(i, n)}") for i in range(self.pixels) for n in range(self.nv)
        )
        outputs = [f'"=&w"({v})' for _, _, v in sums]
        moved = [f'[{name}] "+&r"({name})' for name in operands.moved]
        inputs = [f'[{name}] "r"({name})' for name in operands.read]
        clobbers = [f"v{n}" for n in range(self.loaded + self.group)]
        return AsmTile(
            tuple(self.lines),
            sums,
            (*outputs, *moved),
            tuple(inputs),
            (*clobbers, *self.used, "cc", "memory"),
            4 * self.nv if self.part and not r.bias else 0,
            self._rounds(),
            step,
            self._prefetching(),
        )

    def _operands(self) -> _Operands:
        """The statement's operands; pointers that are moved on are copied where they would be too
        many, for what is read and written counts twice.
        """
        moved = ["x", "w", *(["start"] if self.part else [])]
        read = []
        if self.part:
            read += ["step", *(["rounds"] if self.at_run_time else [])]
        elif self.r.bias:
            read.append("bias")
        if self.r.lines:
            read.append("next")
        names = {name: f"%[{name}]" for name in moved}
        copied = self.pixels * self.nv + 2 * len(moved) + len(read) > MAX_OPERANDS
        for name in [*(moved if copied else []), *(["next"] if self.r.lines else [])]:
            names[name] = self.take()
            if name == "next" and self.indexed:  # the count of rounds to go, at least 1, is added
                self.add(names[name], "%[next]", -64)
            else:
                self.emit(f"mov {names[name]}, %[{name}]")
        self.x, self.w, self.start = names["x"], names["w"], names.get("start", "")
        self.next = names.get("next", "")
        return _Operands([], [*moved, *read]) if copied else _Operands(moved, read)

    def _rounds(self) -> str:
        """C text of the count operand: rounds (times ``_scale``), or steps of an outer loop."""
        if not self.at_run_time:
            return ""
        if not self.innermost_split:
            return "steps"
        times, per_round = self._scale, self.unroll * self.per_quad
        if times >= per_round:
            return "steps" if times == per_round else f"steps * {times // per_round}"
        return f"steps / {per_round // times}"

    @property
    def _scale(self) -> int:
        """What the count of rounds goes down by: an eighth of a line where it is an index."""
        return 8 if self.indexed else 1

    def _sum(self, pixel: int, vector: int) -> int:
        return self.first_sum + pixel * self.nv + vector

    def _start(self) -> tuple[int, int] | None:
        """Accumulators from the bias, zero, or the sums of the pass before."""
        pieces = [(n, min(4, self.nv - n)) for n in range(0, self.nv, 4)]
        before = sum(16 * size for _, size in pieces[:-1])
        for i in range(self.pixels):
            first = self._sum(i, 0)
            if self.part:
                for n, size in pieces:
                    on = f"#{16 * size}" if (n, size) != pieces[-1] else "%[step]"
                    self.emit(f"ld1 {_list(first + n, size)}, [{self.start}], {on}")
            elif not self.r.bias:
                self.emit(*(f"movi v{first + n}.2d, #0" for n in range(self.nv)))
            elif self.nv <= 4:
                self.emit(f"ld1 {_list(first, self.nv)}, [%[bias]]")
            else:
                for n in range(0, self.nv - 1, 2):
                    self.emit(f"ldp q{first + n}, q{first + n + 1}, [%[bias], #{16 * n}]")
                if self.nv % 2:
                    n = self.nv - 1
                    self.emit(f"ldr q{first + n}, [%[bias], #{16 * n}]")
        return (-before, 16 * self.nv - before) if self.part else None

    def _levels(self, depth: int) -> int:
        """The loops from ``depth`` on; returns the bytes that they move the pointers on."""
        if depth == len(self.outer):
            return self._innermost(str(depth + 1))
        extent, stride = self.outer[depth]
        at_run_time = self.r.split == depth and self.at_run_time
        counter, label = self.take(), str(depth + 1)
        if at_run_time:
            self.emit(f"mov {counter}, %[rounds]")
        else:
            self.move(counter, self.r.sizes[0] if self.r.split == depth else extent)
        self.emit(f"{label}:")
        moved = self._levels(depth + 1)
        if moved != 4 * stride:
            for pointer in self.pointers:
                self.add(pointer, pointer, 4 * stride - moved)
        self.emit(f"subs {counter}, {counter}, #1", f"b.ne {label}b")
        return 4 * stride * extent

    def _innermost(self, label: str) -> int:
        """All quads, and the steps behind the last."""
        quads = self.sizes[0] if self.innermost_split else self.quads
        rounds = quads // self.unroll if self.looped else 0
        if self.looped:
            counter = self.take()
            if self.counted:
                self.emit(f"mov {counter}, %[rounds]")
            else:
                self.move(counter, rounds * self._scale)
            self.emit(f"{label}:")
            self._round(self.unroll, counter)
            self.emit(f"subs {counter}, {counter}, #{self._scale}", f"b.ne {label}b")
            if self.indexed and self.outer:
                self.add(self.next, self.next, 64 * rounds)
        left = 0 if self.counted else quads - rounds * self.unroll
        while left:
            now = min(left, self.unroll)
            self._round(now)
            left -= now
        moved = self.quads * self.quad_step
        if self.rest and self.r.overread:
            self._quad("q", self.rest)
            return moved + 16
        if self.rest & 2:
            self._quad("d", 2)
        if self.rest & 1:
            self._quad("s", 1)
        return moved + 4 * self.rest

    def _round(self, quads: int, counter: str = "") -> None:
        """Quads one after another; in a loop, ``counter`` is the count of rounds to go."""
        if self.indexed and counter:
            self.emit(f"prfm pldl2keep, [{self.next}, {counter}, lsl #3]")
        elif self.r.lines and quads == self.unroll:
            for i in range(self.r.lines):
                self.emit(f"prfm pldl2keep, [{self.next}, #{64 * i}]")
            self.add(self.next, self.next, 64 * self.r.lines)
        if self.way == "ldp":
            for (pixel, _), pointer in zip((m[0] for m in self.bases), self.pointers, strict=True):
                v = 2 * pixel
                self.emit(f"ldp q{v}, q{v + 1}, [{pointer}], #32")
            for quad in range(quads):
                self._products(4, [2 * i + quad for i in range(self.pixels)])
            return
        for _ in range(quads):
            self._quad("q", 4)

    def _quad(self, size: str, steps: int) -> None:
        """Load the next steps of every pixel, as vectors of this size, and multiply."""
        if self.way == "ld1":
            for first in range(0, self.pixels, 4):
                count = min(4, self.pixels - first)
                last = first + count == self.pixels
                on = self.step if last and self.step else f"#{16 * count}"
                self.emit(f"ld1 {_list(first, count)}, [{self.x}], {on}")
        else:
            moved = self.quad_step if steps == 4 else {"q": 16, "d": 8, "s": 4}[size]
            for members, pointer in zip(self.bases, self.pointers, strict=True):
                self._load_members(members, pointer, size, moved)
        self._products(steps, list(range(self.pixels)))

    def _load_members(
        self, members: list[tuple[int, int]], pointer: str, size: str, moved: int
    ) -> None:
        width = {"q": 16, "d": 8, "s": 4}[size]
        for pixel, at in members[1:]:
            op = "ldr" if at >= 0 and at % width == 0 else "ldur"
            self.emit(f"{op} {size}{pixel}, [{pointer}, #{at}]")
        pixel = members[0][0]
        if moved <= 255:
            self.emit(f"ldr {size}{pixel}, [{pointer}], #{moved}")
        else:
            self.emit(f"ldr {size}{pixel}, [{pointer}]")
            self.add(pointer, pointer, moved)

    def _products(self, steps: int, loaded: Sequence[int]) -> None:
        """``steps`` steps of weights times the elements of the pixels' registers ``loaded``."""
        vectors = steps * self.nv
        at = 0
        while at < vectors:
            count = min(self.group, vectors - at)
            if self.r.ahead:
                self.emit(f"prfm pldl1keep, [{self.w}, #{4 * self.r.ahead}]")
            if count == 1:
                self.emit(f"ldr q{self.loaded}, [{self.w}], #16")
            else:
                self.emit(f"ld1 {_list(self.loaded, count)}, [{self.w}], #{16 * count}")
            for u in range(count):
                k, n = divmod(at + u, self.nv)
                self.emit(
                    *(
                        f"fmla v{self._sum(i, n)}.4s, v{self.loaded + u}.4s, v{v}.s[{k}]"
                        for i, v in enumerate(loaded)
                    )
                )
            at += count

    def _prefetching(self) -> int:
        """Rounds with prefetches that one call runs: a larger pass where it is split."""
        quads = self.sizes[0] if self.innermost_split else self.quads
        rounds = quads // self.unroll
        for level, (extent, _) in enumerate(self.outer):
            rounds *= self.r.sizes[0] if level == self.r.split else extent
        return rounds


def _list(first: int, count: int) -> str:
    return "{" + ", ".join(f"v{first + n}.4s" for n in range(count)) + "}"
