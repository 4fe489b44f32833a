"""Direct convolution row by row with clipped windows (``schedule.conv.clipping``).

Each strip of columns has a writer of its own, whose reduction has the taps of a kernel row that lie
inside; which kernel rows do is computed once for each row of outputs, so one tile serves all rows.
"""

from __future__ import annotations

from dataclasses import replace

from aotgen.schedule.base import Config
from aotgen.schedule.conv.clipping import BORDER, CLIPPED, Strip, strips
from aotgen.schedule.conv.conv_shape import ConvShape, Triple
from aotgen.schedule.dense.blocking import Problem, size_factor, tile_cycles, tile_sizes
from aotgen.schedule.dense.cortex_m_tile import MAX_COUNTED_SUMS
from aotgen.schedule.dense.problem import (
    Block,
    Dense,
    DenseConfig,
    Taps,
    collapse_reduction,
    loop,
)
from aotgen.schedule.dense.tiles import MAX_PIXELS, registers, split_channels, usable_registers
from aotgen.schedule.dense.writer import DenseWriter
from aotgen.schedule.fused import Fused
from aotgen.target.target import Target


def clipped_config(
    shape: ConvShape, problem: Problem, config: Config, target: Target
) -> Config | None:
    """The tile of one row with the least modelled time over all strips of columns; None where maps
    are one column wide, whose tiles have to span rows.
    """
    if problem.cols == 1:
        return None
    columns = strips(shape, 2)
    most = -(-problem.channels // target.vl)
    best: tuple[float, int, int, int] | None = None
    for vectors in range(1, min(8, most) + 1):
        if split_channels(problem.channels, target.vl, vectors)[0].vectors != vectors:
            continue
        for pixels in range(1, min(MAX_PIXELS, problem.cols) + 1):
            if registers(pixels, vectors, target, problem.lane_step) > usable_registers(target):
                continue
            if target.has_dsp and pixels * vectors > MAX_COUNTED_SUMS:
                continue
            cut = DenseConfig(1, pixels, vectors)
            parts = [_part(problem, shape, s) for s in columns]
            cycles = sum(tile_cycles(part, cut, target) for part in parts)
            # Strips of as many taps and columns have the same tiles.
            alike = {
                (p.reduction, p.cols): tile_sizes(replace(p, rows=1), cut, target) for p in parts
            }
            cycles *= size_factor(sum(alike.values()), target)
            entry = (cycles, -pixels * vectors, pixels, vectors)
            best = entry if best is None else min(best, entry)
    if best is None:
        return None
    knobs = config.as_dict()
    knobs.update(oh_tile=1, ow_tile=best[2], nr=best[3] * target.vl, oc_block=0, kc=0)
    knobs.update(next_lines=0, prefetch_bytes=0)
    return Config.of(**knobs, **{BORDER: CLIPPED})


def _part(problem: Problem, shape: ConvShape, strip: Strip) -> Problem:
    """A strip of columns as a problem of its own."""
    kernel = shape.kernel[2]
    return replace(
        problem,
        cols=strip.extent,
        reduction=problem.reduction * strip.taps // kernel,
        inner=max(1, problem.inner * strip.taps // kernel),
    )


def clipped_writers(
    shape: ConvShape,
    dense: Dense,
    xs: Triple,
    config: DenseConfig,
    target: Target,
    fused: Fused,
    *,
    bias: bool,
) -> list[DenseWriter]:
    """A writer for each strip of columns, the widest first.

    Args:
        dense: of the whole convolution.
        xs: strides of the input along the spatial axes.
    """
    height, width = shape.kernel[1:]
    channels = shape.channels // shape.groups
    counted = _is_counted(shape)
    writers = []
    for strip in sorted(strips(shape, 2), key=lambda s: -s.extent):
        reduce = dense.reduce
        taps = None
        if counted or strip.taps < width:
            inner = [(strip.taps, shape.dilation[2] * xs[2]), (channels, 1)]
            reduce = ((height, shape.dilation[1] * xs[1]), *collapse_reduction(inner))
            taps = Taps(
                packed=dense.reduction,
                first=strip.first * channels,
                skipped=(width - strip.taps) * channels,
                row=width * channels if counted else 0,
            )
        part = replace(
            dense,
            col=replace(dense.col, extent=strip.extent),
            reduce=reduce,
            offset=dense.offset + strip.first * shape.dilation[2] * xs[2],
            taps=taps,
        )
        writer = DenseWriter(part, config, target, fused, bias=bias)
        writer.cols = tuple(replace(run, start=run.start + strip.start) for run in writer.cols)
        if counted:
            writer.extra["x"] = (("tap0", shape.dilation[1] * xs[1]),)
        if strip.taps < width:
            writer.tag = f"{strip.taps}taps_"
        writers.append(writer)
    return writers


def _is_counted(shape: ConvShape) -> bool:
    """Whether some windows have rows outside, so that each row of outputs counts its own."""
    return any(strip.taps < shape.kernel[1] for strip in strips(shape, 1))


def clipped_body(shape: ConvShape, writers: list[DenseWriter]) -> list[Block]:
    """Rows [r0, r1) of the output."""
    row: list[Block] = kernel_rows(shape) if _is_counted(shape) else []
    for writer in sorted(writers, key=lambda w: w.cols[0].start):
        row += writer.row()
    row += writers[0].row_end()
    return writers[0].wrap([loop("r", "r0", "r1", row)])


def kernel_rows(shape: ConvShape) -> list[Block]:
    """C that computes ``taps`` and ``tap0`` of output row r: how many kernel rows lie inside the
    input, and the first of them.
    """
    stride, dilation = shape.stride[1], shape.dilation[1]
    size, taps, begin = shape.size[1], shape.kernel[1], shape.begin[1]
    at = "r" if stride == 1 else f"r * {stride}"
    lines: list[Block] = [f"const int32_t top = {at}{f' - {begin}' if begin else ''};"]
    above, below = "-top", f"{size} - top"
    if dilation > 1:
        above, below = (
            f"({dilation - 1} - top) / {dilation}",
            f"({size + dilation - 1} - top) / {dilation}",
        )
    lines += [
        f"const int32_t tap0 = top < 0 ? {above} : 0;" if begin else "const int32_t tap0 = 0;",
        f"const int32_t below = {below};",
        f"const int32_t taps = (below < {taps} ? below : {taps}) - tap0;",
    ]
    return lines
