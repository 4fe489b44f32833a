"""What a dense kernel computes and how it is cut: the input of ``schedule.dense.writer``.

A convolution or a matrix product is ``Dense``: axes with every operand's strides, and a reduction.
``DenseConfig`` is a template's knobs. Conv2d direct, pointwise, first and matmul differ only in the
Dense they make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aotgen.schedule.base import Arg
from aotgen.schedule.dense.tiles import Run
from aotgen.schedule.fused import Fused

Block = str | dict[str, Any]
Calls = Callable[[Run, Run, str], list[Block]]
"""What to do at one tile: (its run of rows, its run of columns, C name of the column tile's index).
"""
LINE_FLOATS = 16
"""Floats in a 64-byte cache line."""


@dataclass(frozen=True)
class Axis:
    """A loop over the output: its extent and each operand's stride ("x", "w", "bias", "y", epilogue
    inputs) in elements.
    """

    extent: int
    strides: Mapping[str, int]

    def stride(self, operand: str) -> int:
        return self.strides.get(operand, 0)


@dataclass(frozen=True)
class Taps:
    """Which part of a convolution's packed weights a Dense multiplies with: all channels of some
    taps, those whose input lies inside the map.

    Attributes:
        packed: reduction steps that a panel of weights has.
        first: steps before the first one that is taken.
        skipped: steps behind each round of the outermost loop that are left out.
        row: steps of a kernel row, where the kernel computes which rows are taken: ``taps`` rounds
            of the outermost loop, from kernel row ``tap0`` on. 0: as ``Dense.reduce`` says.
    """

    packed: int
    first: int = 0
    skipped: int = 0
    row: int = 0


@dataclass(frozen=True)
class Dense:
    """What is computed.

    Attributes:
        outer: loops around everything: batch, groups, output depth.
        row, col: the two axes that a tile may span.
        reduce: (extent, stride of x) of the reduction's loops, innermost last; weights are packed
            in this order.
        channels: output channels (of one group).
        offset: elements from the x argument to what the first output reads first (negative inside a
            border).
        overread: three elements behind any that is read may be read, too.
        channel_steps: by operand ("y", epilogue inputs), elements between two of its channels a
            whole number of vectors apart, per channel (``View.channel_step``); 1 where absent.
        w_step: elements between two reduction steps of unpacked weights; 0 when they are packed in
            panels.
        taps: what is left out of the packed weights; None for nothing.
    """

    outer: tuple[Axis, ...]
    row: Axis
    col: Axis
    reduce: tuple[tuple[int, int], ...]
    channels: int
    offset: int = 0
    w_step: int = 0
    overread: bool = False
    channel_steps: Mapping[str, int] = field(default_factory=dict)
    taps: Taps | None = None

    def channel_step(self, operand: str) -> int:
        return self.channel_steps.get(operand, 1)

    @property
    def reduction(self) -> int:
        n = 1
        for extent, _ in self.reduce:
            n *= extent
        return n

    @property
    def packed(self) -> int:
        """Reduction steps that a panel of weights has."""
        return self.reduction if self.taps is None else self.taps.packed

    @property
    def counts_taps(self) -> bool:
        """Whether the rounds of the outermost loop are known at run time only."""
        return self.taps is not None and self.taps.row > 0

    @property
    def pixels(self) -> int:
        return self.row.extent * self.col.extent


@dataclass(frozen=True)
class DenseConfig:
    """How it is cut.

    Attributes:
        oh_tile, ow_tile: most rows and columns of a register tile.
        vectors: most vectors of output channels of a register tile.
        block: panels that share a pass over the pixels; 0 for all (weights stream, pixels stay).
        kc: reduction steps of a pass; 0 for all in one pass.
        k_unroll: reduction steps in one round of the innermost loop.
        next_lines: cache lines of the weights to come that a round prefetches into L2.
        ahead: floats the weights are prefetched ahead into L1; 0 for not.
    """

    oh_tile: int
    ow_tile: int
    vectors: int
    block: int = 0
    kc: int = 0
    k_unroll: int = 4
    next_lines: int = 0
    ahead: int = 0


@dataclass(frozen=True)
class Split:
    """The reduction cut into passes: loop ``level`` of ``reduce`` runs ``size`` steps a pass."""

    level: int
    size: int
    passes: int


def split_reduction(dense: Dense, kc: int, unroll: int) -> Split | None:
    """Cut the outermost reduction loop with more than one step so that a pass has about ``kc``
    steps; None for one pass.
    """
    total = dense.reduction
    if kc <= 0 or kc >= total:
        return None
    level = next(i for i, (extent, _) in enumerate(dense.reduce) if extent > 1)
    extent = dense.reduce[level][0]
    inside = total // extent
    passes = min(extent, -(-total // kc))
    if level == len(dense.reduce) - 1:
        size = -(-extent // passes)
        size = -(-size // unroll) * unroll
    else:
        while extent % passes:  # kernel rows: an uneven last pass would waste the prefetch
            passes += 1
        size = extent // passes
    passes = -(-extent // size)
    return Split(level, size, passes) if passes > 1 and inside else None


def terms(base: str, *parts: tuple[str, int], offset: int = 0) -> str:
    """A C expression base + sum of var * stride + offset; zero strides vanish, literal variables
    fold.
    """
    text = base
    for var, stride in parts:
        if stride and var != "0":
            text += f" + (ptrdiff_t){var} * {stride}" if stride != 1 else f" + {var}"
    if offset:
        text += f" {'+' if offset > 0 else '-'} {abs(offset)}"
    return text


def affine(*terms: tuple[str, int], offset: int = 0) -> str:
    """C text of the sum of name * factor, plus ``offset``."""
    parts = [name if factor == 1 else f"{name} * {factor}" for name, factor in terms if factor]
    text = " + ".join(parts) or "0"
    return text if not offset else f"{text} {'-' if offset < 0 else '+'} {abs(offset)}"


def collapse(axes: Sequence[Axis]) -> list[Axis]:
    """Merge neighbouring axes, outermost first, where every operand steps over them as over one."""
    made: list[Axis] = []
    for axis in axes:
        if axis.extent == 1 and len(axes) > 1:
            continue
        if made:
            outer = made[-1]
            names = sorted({*outer.strides, *axis.strides})
            if all(outer.stride(n) == axis.extent * axis.stride(n) for n in names):
                made[-1] = Axis(outer.extent * axis.extent, axis.strides)
                continue
        made.append(axis)
    return made or [Axis(1, {})]


def collapse_reduction(loops: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Reduction loops (extent, stride of x), outermost first, with neighbours merged where x steps
    over them as over one; loops of one step are left out, except the innermost.
    """
    made: list[tuple[int, int]] = [loops[-1]]
    for extent, stride in reversed(loops[:-1]):
        inner, step = made[0]
        if extent == 1:
            continue
        if stride == inner * step:
            made[0] = (extent * inner, step)
        elif inner == 1 and len(made) == 1:
            made[0] = (extent, stride)
        else:
            made.insert(0, (extent, stride))
    return tuple(made)


def loop(var: str, start: str, end: str, body: list[Block]) -> Block:
    """for (var = start; var < end; var++)"""
    return {"head": f"for (int32_t {var} = {start}; {var} < {end}; {var}++) {{", "body": body}


def kernel_params(args: Sequence[Arg], fused: Fused) -> str:
    """C parameters: restrict except where the output may be written over an epilogue input."""
    shared = {i.name for i in fused.inputs if i.kind == "pixel"} if fused.aliased else set()
    if shared:
        shared.add("y")
    parts = [f"{a.ctype}{'' if a.name in shared else 'restrict '}{a.name}" for a in args]
    return ", ".join([*parts, "int32_t r0", "int32_t r1"])
