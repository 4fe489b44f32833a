"""qconv and qmatmul of 8-bit integers on x86, without im2col.

A register tile of pixels x vectors of output channels takes four reduction steps at once. A 1x1
convolution and a matrix product read their input in place; other windows read a copy of some input
rows in scratch, which has the pads in it, so that no loop tests a bound and a window's row is one
run of bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group
from aotgen.ir.types import DType
from aotgen.schedule.base import (
    Arg,
    Config,
    Kernel,
    Knob,
    PackedConst,
    ScheduleError,
    View,
    Views,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.int8.integer_features import (
    BLOCK_BYTES,
    check_block,
    check_vectors,
    integer_features,
)
from aotgen.schedule.int8.quantized import (
    ConstantWeights,
    as_conv,
    is_flat,
    reduction,
    tiled_pixels,
    title,
)
from aotgen.schedule.int8.x86.operands import (
    I8,
    I32,
    CopiedRows,
    Epilogue,
    epilogue_of,
    lane_channels,
    reach,
    table,
    take,
    weights_and_bias,
    why_not,
    words,
)
from aotgen.schedule.intrinsics import U8S8_DOT4
from aotgen.target.target import Target

_SCRATCH = 32 * 1024
"""Bytes of copied rows that stay in L1 beside the weights in use."""

_LARGE_SCRATCH = 160 * 1024
"""The same where the weights are large: they stream from L2 once a block, the copy stays there."""

_SLACK = 64
"""Bytes behind the copy that the last group of four may touch."""

_IN_L1 = 24 * 1024
"""Packed weights up to which pixels need no blocks."""


@dataclass(frozen=True)
class Source:
    """Where the tile reads.

    Attributes:
        kind: "flat" (pixels evenly apart, in place), "patch" (the same, copied), "rows".
        copy: whether rows are copied to scratch.
        segments: [(extent, bytes apart)] of runs of bytes that make a pixel's patch.
        run: bytes of a segment.
        x_pixel: bytes between the patches of neighbouring outputs.
    """

    kind: str
    copy: bool
    segments: tuple[tuple[int, int], ...]
    run: int
    x_pixel: int

    @property
    def steps(self) -> int:
        """Groups of four of a segment."""
        return -(-self.run // 4)


def has_vnni(target: Target) -> bool:
    """Whether one instruction makes four products of a lane."""
    return target.isa == "avx512" and "avx512_vnni" in target.features


def _most_pixels(vectors: int, target: Target) -> int:
    """Pixels whose accumulators leave registers for weights and an input."""
    if has_vnni(target):
        # One register is for an input; a spilled accumulator costs a quarter of the speed.
        return min(16, (target.vector_registers - 1 - vectors) // vectors)
    # Weights and the input are two registers each, a constant one.
    return max(0, (target.vector_registers - 3 - 2 * vectors) // vectors)


class Int8Dense(ConstantWeights):
    """Convolutions of one group and matrix products."""

    name = "int8_dense"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if node.op == "qconv" and node.attrs["groups"] != 1:
            return "needs one group"
        if node.op == "qconv" and len(node.input(0).shape) > 4:
            return "needs one or two spatial axes"
        return why_not(group, target)

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        most = max(_most_pixels(v, target) for v in (1, 2, 4))
        return (
            Knob("pixels", "ordinal", tuple(range(1, most + 1)), "pixels"),
            Knob("vectors", "ordinal", (1, 2, 4), "vectors"),
            Knob("block_bytes", "ordinal", BLOCK_BYTES, "bytes of input, 0: by the weights' size"),
        )

    def default(self, group: Group, target: Target) -> Config:
        """Least cycles by a model of two dot products and two loads a cycle."""
        width, total = tiled_pixels(group.nodes[0]), -(-group.output.shape[-1] // target.vl)
        best, found = math.inf, (1, 1)
        for vectors in (4, 2, 1):
            if vectors > 1 and vectors // 2 >= total:
                continue
            for pixels in range(1, min(width, _most_pixels(vectors, target)) + 1):
                tiles = -(-width // pixels)
                cycles = sum(_cycles(v, pixels, target) * n for v, n in split(total, vectors))
                cycles *= tiles
                if cycles < best * 0.999:
                    best, found = cycles, (pixels, vectors)
        return Config.of(pixels=found[0], vectors=found[1], block_bytes=0)

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        node = group.nodes[0]
        pixels, vectors = config.int("pixels"), config.int("vectors")
        total = -(-group.output.shape[-1] // target.vl)
        step = sum(_cycles(v, pixels, target) * n for v, n in split(total, vectors))
        rows = math.prod(group.output.shape[:-1]) / tiled_pixels(node)
        tiles = rows * -(-tiled_pixels(node) // pixels)
        own = 1 if has_vnni(target) else 2
        live = pixels * vectors + own * vectors + own
        cycles = step * tiles * reduction(node) / 4
        return integer_features(group, target, config, live=live, cycles=cycles)

    def check(self, group: Group, target: Target, config: Config) -> None:
        pixels, vectors = config.int("pixels"), config.int("vectors")
        if pixels > max(1, _most_pixels(vectors, target)):
            raise ScheduleError(f"{pixels} x {vectors} accumulators do not fit the registers")
        if pixels > tiled_pixels(group.nodes[0]):
            raise ScheduleError(f"a row has fewer than {pixels} pixels")
        check_vectors(group, target, vectors)
        check_block(target, config)

    def products(self, target: Target) -> float:
        return 6.0 if has_vnni(target) else 3.0

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = views[node.input(0)], views[group.output]
        pixels, vl = config.int("pixels"), target.vl
        epilogue = epilogue_of(node)
        columns = 1 + len(epilogue.columns)
        parts, bias = weights_and_bias(node)
        outputs, weights = len(bias), np.concatenate(parts, axis=1)
        if is_flat(node, x, y):
            source = _flat_source(x)
            context = _flat_context(x, y)
            units = math.prod(x.shape[:-1])
            spatial, taps = [pixels, 1], 1
        else:
            shape = ConvShape.of(as_conv(node))
            source = _rows_source(shape, x)
            context, units = _rows_context(shape, source, x, y), shape.batch * shape.out[1]
            context["r"] = CopiedRows.of(node, shape, x)
            pixels = min(pixels, shape.out[2])
            spatial, taps = [pixels], math.prod(n for n, _ in source.segments)
        if len(parts) > 1:
            passes = (len(parts), 0)
            source = replace(source, segments=(passes, *source.segments))
            taps *= len(parts)
        widest = min(config.int("vectors"), 1 << (-(-outputs // vl) - 1).bit_length())
        packed, tables, panels = _pack(weights, bias, epilogue, taps, source.steps, widest, vl)
        again = len(packed) if outputs > widest * vl else 0
        room = int(config.get("block_bytes", 0))
        room = room or (_SCRATCH if again <= _IN_L1 else _LARGE_SCRATCH)
        context["block"] = _block(context, source, again, pixels, room)
        args = [
            Arg("x_", f"const {x.dtype.c} *", value=node.input(0)),
            Arg("w", "const int8_t *", const=PackedConst("w", packed, node.input(1))),
            Arg("t", "const int32_t *", const=PackedConst("t", tables)),
        ]
        if source.copy:
            rows = int(context["block"])
            if source.kind == "rows":
                rows = (rows - 1) * int(context["stride_h"]) + context["r"].span
            stride = int(context["x_row"]) if source.kind == "rows" else source.x_pixel
            args.append(Arg("a", "uint8_t *", scratch_bytes=rows * stride + _SLACK))
        args.append(Arg("y_", f"{y.dtype.c} *", value=group.output, is_output=True))
        parameters = [f"{a.ctype}restrict {a.name}" for a in args]
        flip = x.dtype is DType.I8
        text = render(
            "kernels/int8_dense.c.j2",
            **context,
            source=source.kind,
            copy=source.copy,
            flip=flip,
            dot=U8S8_DOT4,
            set="vqa_set1_flip" if flip and not source.copy else "vqa_set1",
            title=title(group),
            params=", ".join([*parameters, "int32_t r0", "int32_t r1"]),
            loops=[
                {"var": f"s{i}", "extent": n, "stride": stride}
                for i, (n, stride) in enumerate(source.segments)
                if n > 1
            ],
            steps=source.steps,
            offsets=[p * source.x_pixel for p in range(pixels)],
            x_pixel=source.x_pixel,
            pixels=pixels,
            tile_pixels=sorted(set(spatial)),
            widths=sorted({int(p["vectors"]) for p in panels}),
            panels=panels,
            columns=columns,
            e=epilogue,
            vl=vl,
            ytype=y.dtype.c,
            to={DType.I8: "s8", DType.U8: "u8"}[y.dtype],
        )
        name = f"{node.op}_{x.dtype.value}_dot4_{pixels}x{widest}"
        includes = frozenset({"string.h"}) if source.copy else frozenset[str]()
        return Kernel(name, text, tuple(args), units, words(epilogue), includes)


def split(total: int, vectors: int) -> list[tuple[int, int]]:
    """(vectors of a panel, panels): ``total`` vectors as panels of ``vectors`` and halves of it."""
    parts: list[tuple[int, int]] = []
    left = total
    while left > 0:
        count, left = divmod(left, vectors)
        if count:
            parts.append((vectors, count))
        if left and vectors // 2 < left:
            # More than half a panel is left: one more of them, in part in vain, costs no more.
            parts.append((vectors, 1))
            left = 0
        vectors = max(1, vectors // 2)
    merged: dict[int, int] = {}
    for width, count in parts:
        merged[width] = merged.get(width, 0) + count
    return list(merged.items())


def _cycles(vectors: int, pixels: int, target: Target) -> float:
    """Of a step of the tile: dot products and loads two a cycle, a dot product's latency four;
    the least surplus of loads decides between equals. Without VNNI three instructions a cycle: four
    a dot product, two or three to make int16 of an operand.
    """
    sums, loads = pixels * vectors, pixels + vectors
    if not has_vnni(target):
        return (4 * sums + 2 * pixels + 3 * vectors) / 3
    return max(sums / 2, loads / 2, 4.5) + loads / 100


def _flat_source(x: View) -> Source:
    depth = x.shape[-1]
    if depth % 4 == 0:
        return Source("flat", False, (), depth, x.row_stride)
    return Source("patch", True, (), depth, -(-depth // 4) * 4)


def _flat_context(x: View, y: View) -> dict[str, Any]:
    return {
        "from_pixel": x.row_stride,
        "y_pixel": y.row_stride,
        "depth": x.shape[-1],
        "rows_in_all": math.prod(x.shape[:-1]),
    }


def _rows_source(shape: ConvShape, x: View) -> Source:
    xs = shape.spatial_strides(x)
    channels = shape.channels
    span_w = reach(shape, 2)
    pads = any((*shape.begin, *shape.end))
    inside = span_w <= shape.size[2] and not pads
    in_place = inside and channels % 4 == 0
    pixel = xs[2] if in_place else channels
    row = xs[1] if in_place else span_w * channels
    segments = [(shape.kernel[1], row * shape.dilation[1])]
    run = channels
    if shape.dilation[2] == 1 and pixel == channels:
        run *= shape.kernel[2]
    else:
        segments.append((shape.kernel[2], pixel * shape.dilation[2]))
    return Source("rows", not in_place, tuple(segments), run, pixel * shape.stride[2])


def _rows_context(shape: ConvShape, source: Source, x: View, y: View) -> dict[str, Any]:
    ys = shape.spatial_strides(y)
    row = reach(shape, 2) * shape.channels
    return {
        "out_rows": shape.out[1],
        "width": shape.out[2],
        "stride_h": shape.stride[1],
        "x_batch": x.strides[0],
        "x_row": row if source.copy else shape.spatial_strides(x)[1],
        "y_batch": y.strides[0],
        "y_row": ys[1],
        "y_pixel": ys[2],
    }


def _block(
    context: dict[str, Any], source: Source, weight_bytes: int, pixels: int, room: int
) -> int:
    """Rows (of "flat": pixels) that all panels of weights pass before the next ones come.

    Args:
        weight_bytes: of panels that take turns, 0 for a single one.
        room: bytes of input, about.
    """
    if source.kind != "rows":
        in_all = int(context["rows_in_all"])
        if weight_bytes <= _IN_L1 and not source.copy:
            return in_all
        return min(in_all, max(1, room // (source.run * pixels)) * pixels)
    if not source.copy:
        each = int(context["width"]) * source.x_pixel * int(context["stride_h"])
        return int(min(context["out_rows"], max(1, room // max(1, each))))
    stride, row = int(context["stride_h"]), int(context["x_row"])
    rows = (room // row - context["r"].span) // stride + 1
    return int(min(context["out_rows"], max(1, rows)))


def _pack(
    weights: I8, bias: I32, epilogue: Epilogue, taps: int, steps: int, widest: int, vl: int
) -> tuple[I8, I32, list[dict[str, int]]]:
    """(weights, tables, panels) as the template has them."""
    outputs = len(weights)
    run = weights.shape[1] // taps
    padded = np.zeros((outputs, taps, steps * 4), np.int8)
    padded[:, :, :run] = weights.reshape(outputs, taps, run)
    rows = padded.reshape(outputs, -1)
    packed: list[I8] = []
    tables: list[I32] = []
    panels: list[dict[str, int]] = []
    start, w_at, t_at = 0, 0, 0
    for vectors, count in split(-(-outputs // vl), widest):
        step = vectors * vl
        end = start + count * step
        panels.append(
            {
                "vectors": vectors, "start": start, "end": end, "step": step, "w": w_at,
                "w_channel": taps * steps * 4, "t": t_at,
                "short": outputs - (end - step) if end > outputs else 0,
            }
        )  # fmt: skip
        for first in range(start, end, step):
            channels = first + lane_channels(vectors, vl)
            packed.append(U8S8_DOT4.pack(take(rows, channels.reshape(-1)).astype(np.int8)))
            tables.append(table(bias, epilogue, channels))
            w_at += packed[-1].size
            t_at += tables[-1].size
        start = end
    return np.concatenate(packed), np.concatenate(tables), panels
