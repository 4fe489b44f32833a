"""The reduction of the float32 register tile on Cortex-M, as the text of one asm statement.

Cores with a scalar FPU (``dsp``) have 32 registers of one float, the M55 (``mve``) eight of four
floats and a product of a vector with a core register. From C, GCC keeps neither pointers nor sums
in place: 1.7 to 1.9 instructions per product on an M4 against 1.25 to 1.35 here, 0.73 against 0.42
on an M55. Every pixel has a pointer, which its loads move on; on an M4 weights are loaded by VLDM,
as many as the tile is wide. Sums are formed in the order of the C tile, so results are the same.

The statement leaves the sums in the registers of C variables; the epilogue stays C.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from aotgen.schedule.dense.asm_tile import MAX_OPERANDS, AsmTile, Reduction
from aotgen.target.target import Target

MAX_SUMS = 25
"""Accumulators of a tile: every one is an operand, of which GCC takes 30; two pointers that are
moved count twice, the bias once.
"""

MAX_COUNTED_SUMS = MAX_OPERANDS - 6
"""The same of a tile that is told the rounds of its outermost loop."""

_FREE = ("r4", "r5", "r6", "r8", "r9", "r10", "r11", "r12", "lr")
"""Core registers for pointers and counters. r7 is the frame pointer of unoptimised code; r0 to r3
are left for the operands.
"""

_FAR = 1 << 20
"""Bytes: what two additions move a pointer by."""

UNROLL = 2
"""Steps of a round: a loop's two instructions are few beside those of two steps."""


def registers(pixels: int, vectors: int, target: Target) -> int:
    """Registers of floats that a tile needs; more than there are where it is too large for a
    statement.
    """
    needed = pixels * vectors + vectors + 1
    if target.isa == "mve":  # weights are loaded one by one
        needed = pixels * vectors + min(vectors, 2)
    fits = pixels * vectors <= MAX_SUMS and pixels <= max_pixels(target)
    return needed if fits else max(needed, target.vector_registers + 1)


def max_pixels(target: Target) -> int:
    """Pixels that have a register for their pointer, beside counters of three loops."""
    return 6 if target.isa == "mve" else 7


def step_instructions(pixels: int, vectors: int, target: Target) -> float:
    """Instructions of one reduction step, with its share of the loop. A load of several registers
    counts as one, and a quarter for each that it loads.
    """
    products = pixels * vectors
    if target.isa == "mve":
        return products + vectors + pixels / 2 + 0.5
    return products + pixels + 1 + vectors / 4 + 2 / UNROLL


def asm_tile(r: Reduction, target: Target) -> AsmTile | None:
    """The statement, or None where the C tile is to be used: where the reduction is cut into
    passes, the innermost loop steps over inputs, or pixels and loops need more registers than there
    are.
    """
    pixels = len(r.offsets)
    if r.split is not None or r.levels[-1][1] != 1:
        return None
    if registers(pixels, r.vectors, target) > target.vector_registers:
        return None
    far = max(4 * r.skipped, *(abs(4 * n * stride) for n, stride in r.levels))
    if max(far, *(4 * abs(at - r.offsets[0]) for at in r.offsets)) >= _FAR:
        return None
    writer = _Mve(r) if target.isa == "mve" else _Vfp(r)
    return writer.write() if writer.fits() else None


class _Writer(ABC):
    """Writes one statement, instruction by instruction, in the order that it runs."""

    constraint: str
    """Of the accumulators' registers."""

    reuses_bias: bool
    """Whether the bias's core register counts a loop once it is read."""

    def __init__(self, r: Reduction) -> None:
        self.r, self.pixels, self.nv = r, len(r.offsets), r.vectors
        self.outer, self.inner = r.levels[:-1], r.levels[-1][0]
        self.rounds, self.rest = divmod(self.inner, UNROLL)
        self.free = list(_FREE)
        self.used: list[str] = []
        self.lines: list[str] = []
        self.pointers: list[str] = []

    def fits(self) -> bool:
        """Whether the core registers suffice, and the operands are not too many."""
        operands = self.pixels * self.nv + 4 + self.r.bias * (1 + self.reuses_bias)
        if self.r.counted and operands >= MAX_OPERANDS:
            return False
        return len(self.outer) + 1 + self.pixels - 1 <= len(_FREE)

    @abstractmethod
    def sum(self, pixel: int, vector: int) -> str:
        """Register of an accumulator."""

    @abstractmethod
    def loaded(self) -> list[str]:
        """Registers of operands."""

    @abstractmethod
    def start(self) -> None:
        """Accumulators from the bias, or zero."""

    @abstractmethod
    def steps(self, count: int) -> None:
        """So many reduction steps."""

    def take(self, name: str = "") -> str:
        """A core register: this one, or the next free one."""
        name = name or self.free[0]
        self.free.remove(name)
        self.used.append(name)
        return name

    def counter(self) -> str:
        return self.take()

    def emit(self, *lines: str) -> None:
        self.lines += lines

    def move(self, register: str, value: int) -> None:
        """register = value, below 2^32."""
        self.emit(f"movw {register}, #{value & 0xFFFF}")
        if value >> 16:
            self.emit(f"movt {register}, #{value >> 16}")

    def add(self, to: str, register: str, value: int) -> None:
        """to = register + value, below 2^20."""
        op, size = ("add", value) if value >= 0 else ("sub", -value)
        high, low = size & ~0xFFF, size & 0xFFF
        if high:
            self.emit(f"{op} {to}, {register}, #{high}")
            register = to
        if low or to != register:
            self.emit(f"{op} {to}, {register}, #{low}")

    def write(self) -> AsmTile:
        self.pointers = ["%[x]"]
        for at in self.r.offsets[1:]:
            self.pointers.append(self.take())
            self.add(self.pointers[-1], "%[x]", 4 * (at - self.r.offsets[0]))
        self.start()
        self._levels(0)
        sums = tuple((i, n, self.sum(i, n)) for i in range(self.pixels) for n in range(self.nv))
        bias = ["bias"] if self.r.bias else []
        moved = ["x", "w", *(bias if self.reuses_bias else [])]
        read = [*([] if self.reuses_bias else bias), *(["taps"] if self.r.counted else [])]
        return AsmTile(
            tuple(self.lines),
            sums,
            (
                *(f'"=&{self.constraint}"({v})' for _, _, v in sums),
                *(f'[{name}] "+&r"({name})' for name in moved),
            ),
            tuple(f'[{name}] "r"({name})' for name in read),
            (*self.loaded(), *self.used, "cc", "memory"),
            0,
            "",
            None,
            0,
        )

    def _levels(self, depth: int) -> int:
        """The loops from ``depth`` on; returns the bytes that they move the pointers on."""
        label = str(depth + 1)
        if depth == len(self.outer):
            return self._innermost(label)
        extent, stride = self.outer[depth]
        counter = self.counter()
        if depth == 0 and self.r.counted:
            self.emit(f"mov {counter}, %[taps]")
        else:
            self.move(counter, extent)
        self.emit(f"{label}:")
        moved = self._levels(depth + 1)
        if depth == 0 and self.r.skipped:
            self.add("%[w]", "%[w]", 4 * self.r.skipped)
        if moved != 4 * stride:
            for pointer in self.pointers:
                self.add(pointer, pointer, 4 * stride - moved)
        self.emit(f"subs {counter}, {counter}, #1", f"bne {label}b")
        return 4 * stride * extent

    def _innermost(self, label: str) -> int:
        """All steps of the innermost loop."""
        if self.rounds > 1:
            self.loop(label)
        elif self.rounds:
            self.steps(UNROLL)
        if self.rest:
            self.steps(self.rest)
        return 4 * self.inner

    def loop(self, label: str) -> None:
        """``rounds`` rounds."""
        counter = self.counter()
        self.move(counter, self.rounds)
        self.emit(f"{label}:")
        self.steps(UNROLL)
        self.emit(f"subs {counter}, {counter}, #1", f"bne {label}b")


class _Vfp(_Writer):
    """Single registers, lowest first: weights, one or two pixels, accumulators pixel by pixel."""

    constraint, reuses_bias = "t", False

    def __init__(self, r: Reduction) -> None:
        super().__init__(r)
        self.first_sum = 32 - self.pixels * self.nv
        self.held = min(2, self.first_sum - self.nv)

    def sum(self, pixel: int, vector: int) -> str:
        return f"s{self.first_sum + pixel * self.nv + vector}"

    def loaded(self) -> list[str]:
        return [f"s{n}" for n in range(self.nv + self.held)]

    def start(self) -> None:
        if self.r.bias:
            for i in range(self.pixels):
                self.emit(f"vldmia %[bias], {self._list(self.first_sum + i * self.nv)}")
            return
        self.emit(f"mov {self.free[0]}, #0")
        for i in range(self.pixels):
            self.emit(*(f"vmov {self.sum(i, n)}, {self.free[0]}" for n in range(self.nv)))
        if self.free[0] not in self.used:
            self.used.append(self.free[0])

    def _list(self, first: int) -> str:
        return "{" + f"s{first}" + (f"-s{first + self.nv - 1}" if self.nv > 1 else "") + "}"

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.emit(f"vldmia %[w]!, {self._list(0)}", self._pixel(0))
            for i in range(self.pixels):
                if self.held > 1 and i + 1 < self.pixels:
                    self.emit(self._pixel(i + 1))
                x = f"s{self.nv + i % self.held}"
                self.emit(*(f"vfma.f32 {self.sum(i, n)}, s{n}, {x}" for n in range(self.nv)))
                if self.held == 1 and i + 1 < self.pixels:
                    self.emit(self._pixel(i + 1))

    def _pixel(self, i: int) -> str:
        return f"vldmia {self.pointers[i]}!, {{s{self.nv + i % self.held}}}"


class _Mve(_Writer):
    """Vector registers, lowest first: weights, accumulators pixel by pixel. Two steps of a pixel
    are a pair of core registers, loaded at once where there are enough.
    """

    constraint, reuses_bias = "w", True

    def __init__(self, r: Reduction) -> None:
        super().__init__(r)
        self.first_sum = 8 - self.pixels * self.nv
        counters = max(0, len(self.outer) - int(r.bias)) + 1
        self.spare = len(_FREE) - (self.pixels - 1) - counters
        """Core registers for pixels."""
        self.pairs = self.spare >= self._scalars(True)
        self.scalars: list[str] = []
        self.spare_bias = r.bias

    def _holds(self, steps: int) -> bool:
        """Whether the weights of so many steps are held, and pixels come one after the other."""
        return steps * self.nv <= self.first_sum

    def _scalars(self, pairs: bool) -> int:
        """Core registers for the pixels of one or two steps."""
        steps = 1 + pairs
        return steps if self._holds(steps) else steps * self.pixels

    def fits(self) -> bool:
        return super().fits() and self.spare >= self._scalars(self.pairs)

    def sum(self, pixel: int, vector: int) -> str:
        return f"q{self.first_sum + pixel * self.nv + vector}"

    def loaded(self) -> list[str]:
        return [f"q{n}" for n in range(self.first_sum)]

    def counter(self) -> str:
        """The bias's register is free behind the start."""
        if self.spare_bias:
            self.spare_bias = False
            return "%[bias]"
        return self.take()

    def start(self) -> None:
        for n in range(self.nv):
            for i in range(self.pixels):
                text = f"vmov.i32 {self.sum(i, n)}, #0"
                if self.r.bias:
                    text = f"vldrw.u32 {self.sum(i, n)}, [%[bias], #{16 * n}]"
                self.emit(text)
        self.take("lr")
        self.scalars = [self.take() for _ in range(self._scalars(self.pairs))]

    def loop(self, label: str) -> None:
        self.move("lr", self.rounds)
        self.emit("dls lr, lr", f"{label}:")
        self.steps(UNROLL)
        self.emit(f"le lr, {label}b")

    def steps(self, count: int) -> None:
        if count == 2 and self.pairs:
            self._pair()
            return
        for _ in range(count):
            if self._holds(1):
                self._weights(range(self.nv))
                for i, pointer in enumerate(self.pointers):
                    x = self.scalars[i % len(self.scalars)]
                    self.emit(f"ldr {x}, [{pointer}], #4")
                    self.emit(*(self._product(i, n, n, x) for n in range(self.nv)))
                continue
            scalars = self.scalars[: self.pixels]
            for x, pointer in zip(scalars, self.pointers, strict=True):
                self.emit(f"ldr {x}, [{pointer}], #4")
            self._by_vector(scalars)

    def _pair(self) -> None:
        if self._holds(2):
            self._weights(range(2 * self.nv))
            a, b = self.scalars
            for i, pointer in enumerate(self.pointers):
                self.emit(f"ldrd {a}, {b}, [{pointer}], #8")
                for k, x in enumerate((a, b)):
                    self.emit(*(self._product(i, n, k * self.nv + n, x) for n in range(self.nv)))
            return
        firsts, seconds = self.scalars[::2], self.scalars[1::2]
        for a, b, pointer in zip(firsts, seconds, self.pointers, strict=True):
            self.emit(f"ldrd {a}, {b}, [{pointer}], #8")
        self._by_vector(firsts)
        self._by_vector(seconds)

    def _by_vector(self, scalars: Sequence[str]) -> None:
        """One step, weights loaded as they are used."""
        for n in range(self.nv):
            q = n % self.first_sum
            self._weights([q])
            self.emit(*(self._product(i, n, q, x) for i, x in enumerate(scalars)))

    def _weights(self, into: Sequence[int]) -> None:
        self.emit(*(f"vldrw.u32 q{q}, [%[w]], #16" for q in into))

    def _product(self, pixel: int, vector: int, weight: int, x: str) -> str:
        return f"vfma.f32 {self.sum(pixel, vector)}, q{weight}, {x}"
