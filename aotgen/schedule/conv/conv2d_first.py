"""The first conv of a network: few input channels, in any memory order (an NCHW image above all).

The register tile broadcasts single pixels, so it reads an image plane by plane as well as
channels-last: the reduction runs over (channel, kernel row, kernel column) and two output pixels
are ``stride`` floats apart. Rows of a strip of output rows are copied, with zeros around them, to
scratch that stays in L1 or L2; the image itself needs no border. It comes from far away: where the
knob prefetch_image says so (on x86 by default) the tiles of a strip prefetch the rows that the next
one copies, some cache lines each.

On a microcontroller a strip is small, and rows of a channels-last image stay as they are: a copy is
a run of bytes, and the innermost loop of the reduction has all channels of a kernel row.
"""

from __future__ import annotations

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group
from aotgen.schedule.base import Arg, Config, Kernel, Knob, Layout, Need, ScheduleError, Views
from aotgen.schedule.conv.conv2d_direct import (
    DenseTemplate,
    channel_steps,
    conv_args,
    conv_title,
    group_weights,
    output_axes,
    why_not,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.blocking import Problem, dense_config
from aotgen.schedule.dense.problem import (
    LINE_FLOATS,
    Axis,
    Block,
    Dense,
    collapse_reduction,
    loop,
    terms,
)
from aotgen.schedule.dense.writer import DenseWriter, dense_kernel
from aotgen.schedule.features import log2_ratio
from aotgen.schedule.fused import fused_needs, make_fused
from aotgen.schedule.layouts import laid_out, layout_choices
from aotgen.target.target import Target

MAX_CHANNELS = 4


class Conv2dFirst(DenseTemplate):
    """Convolution of at most four input channels with any strides of its input."""

    name = "conv2d_first"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not(group, target)
        if reason is not None:
            return reason
        shape = ConvShape.of(group.nodes[0])
        if shape.axes == 3 or shape.groups != 1 or shape.channels > MAX_CHANNELS:
            return f"needs at most two spatial axes, one group, {MAX_CHANNELS} input channels"
        return None

    def problem(self, group: Group, target: Target) -> Problem:
        shape = ConvShape.of(group.nodes[0])
        strip = shape.channels * shape.kernel[1] * (shape.size[2] + shape.begin[2] + shape.end[2])
        return Problem(
            rows=shape.out[1],
            cols=shape.out[2],
            outer=shape.batch,
            groups=1,
            channels=shape.outputs,
            reduction=shape.reduction,
            inner=shape.kernel[2] * (shape.channels if target.bare else 1),
            passes=1,
            x_bytes=4 * strip,
            lane_step=target.has_neon and 1 < shape.kernel[2] <= 16 and shape.dilation[2] == 1,
        )

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        known = {k.name: k for k in super().space(group, target)}
        columns = known.get("ow_tile", Knob("ow_tile", "ordinal", (1,), "columns"))
        rows = ConvShape.of(group.nodes[0]).out[1]
        most = sorted({min(n, rows) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)})
        return (
            columns,
            known["nr"],
            known["oc_block"],
            known["k_unroll"],
            Knob("strip_rows", "ordinal", tuple(most), "output rows"),
            Knob("prefetch_image", "boolean", (False, True)),
        )

    def default(self, group: Group, target: Target) -> Config:
        """Strips of as many rows as half of L1 holds, at most eight; of one where RAM is dear."""
        shape = ConvShape.of(group.nodes[0])
        found = super().default(group, target).as_dict()
        rows = 1
        while (
            rows < (1 if target.bare else 8)
            and rows * 2 <= shape.out[1]
            and _strip_floats(shape, rows * 2) * 4 <= target.l1_bytes // 2
        ):
            rows *= 2
        return Config.of(
            ow_tile=found.get("ow_tile", 1),
            nr=found["nr"],
            oc_block=found["oc_block"],
            k_unroll=found["k_unroll"],
            strip_rows=rows,
            prefetch_image=target.isa in ("avx2", "avx512"),
        )

    def by_rows(self, group: Group, target: Target, config: Config) -> Config | None:
        """Strips of one row."""
        if config.int("strip_rows") == 1:
            return None
        return Config.of(**{**config.as_dict(), "strip_rows": 1})

    def knobs_of(self, config: Config) -> Config:
        return _all_knobs(config)

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        shape = ConvShape.of(group.nodes[0])
        strip = 4 * _strip_floats(shape, config.int("strip_rows"))
        return {
            **super().features(group, target, config),
            "strip_by_l1": log2_ratio(strip, target.l1_bytes),
            "strip_by_l2": log2_ratio(strip, target.l2_bytes),
            "copied_again": _strip_lines(shape, config.int("strip_rows"))
            / (config.int("strip_rows") * shape.stride[1]),
        }

    def check(self, group: Group, target: Target, config: Config) -> None:
        super().check(group, target, config)
        size = 4 * _strip_floats(ConvShape.of(group.nodes[0]), config.int("strip_rows"))
        if config.int("strip_rows") > 1 and size > target.l2_bytes // 2:
            raise ScheduleError(f"a strip of {size} bytes does not stay in L2")

    def cost(self, group: Group, target: Target, config: Config) -> float:
        return super().cost(group, target, _all_knobs(config))

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return laid_out(fused_needs(group), group, config, target)

    def layouts(self, group: Group, target: Target) -> list[tuple[Layout, Layout]]:
        return [pair for pair in layout_choices(group, target) if pair[0] == "strided"]

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        shape = ConvShape.of(node)
        cfg = dense_config(_all_knobs(config), target)
        strip_rows = min(config.int("strip_rows"), shape.out[1])
        fused = make_fused(group, target, views)
        x = views[node.input(0)]
        batch, _, row, col = output_axes(group, shape, views, fused)
        lines, width = _strip_lines(shape, strip_rows), _strip_width(shape)
        image = _copy_context(shape, x.strides, lines, width)
        packed = target.bare and (image["channel_stride"], image["pixel_stride"]) == (
            1,
            shape.channels,
        )
        weights = group_weights(node, shape)
        if packed:
            image = _packed_context(image, shape)
            width, pixel = image["width"], shape.channels
            taps = [
                (shape.kernel[1], shape.dilation[1] * width),
                (shape.kernel[2], shape.dilation[2] * pixel),
                (shape.channels, 1),
            ]
        else:
            pixel = 1
            taps = [
                (shape.channels, lines * width),
                (shape.kernel[1], shape.dilation[1] * width),
                (shape.kernel[2], shape.dilation[2]),
            ]
            planes = weights.reshape(1, shape.outputs, shape.taps, shape.channels)
            weights = np.ascontiguousarray(planes.swapaxes(2, 3)).reshape(weights.shape)
        dense = Dense(
            outer=(Axis(shape.batch, {**batch, "x": x.strides[0]}),) if shape.batch > 1 else (),
            row=Axis(strip_rows, {**row, "x": width * shape.stride[1]}),
            col=Axis(shape.out[2], {**col, "x": shape.stride[2] * pixel}),
            reduce=collapse_reduction(taps) if packed else tuple(taps),
            channels=shape.outputs,
            overread=shape.kernel[2] <= 16 and not packed,
            channel_steps=channel_steps(group, views, fused),
        )
        writer = DenseWriter(dense, cfg, target, fused, bias=node.optional(2) is not None)
        writer.bases["x"] = "strip"
        for name in ["y", *(i.name for i in fused.inputs if i.kind == "pixel")]:
            writer.extra[name] = (("first", row[name]),)
        writer.row_range = ("0", "rows")
        args = conv_args(group, shape, writer, weights)
        floats = lines * width * image["channels"]
        args.append(Arg("strip", "float *", scratch_bytes=4 * floats))
        strips = -(-shape.out[1] // strip_rows)
        ahead: list[Block] = []
        if config["prefetch_image"]:
            ahead = _prefetch(shape, image, strip_rows, writer, target)
        writer.before_tile = ahead
        body = writer.wrap(
            [
                loop(
                    "s",
                    "r0",
                    "r1",
                    self._strip(
                        shape,
                        strip_rows,
                        writer,
                        x.strides[0],
                        image["row_stride"] if ahead else 0,
                    ),
                )
            ]
        )
        copy = render("kernels/strip.c.j2", **image)
        return dense_kernel(
            f"conv2d_f32_first_{writer.tile_text}",
            conv_title(shape),
            [f"r0, r1 count strips of {strip_rows} output rows"],
            writer,
            args,
            helpers=[copy.strip("\n")],
            body=body,
            rows=strips,
            includes=frozenset({"string.h"}),
        )

    def _strip(
        self, shape: ConvShape, strip_rows: int, writer: DenseWriter, image: int, ahead: int
    ) -> list[Block]:
        """One strip: copy its input rows, then all its tiles. ``image``: floats of one; ``ahead``:
        from row to row of what is prefetched, 0 for nothing.
        """
        out = shape.out[1]
        rows = f"{strip_rows}"
        if out % strip_rows:
            rows = f"{out} - first < {strip_rows} ? {out} - first : {strip_rows}"
        x = f"x + (ptrdiff_t)i0 * {image}" if shape.batch > 1 else "x"
        top = (
            f"first * {shape.stride[1]} - {shape.begin[1]}"
            if shape.begin[1]
            else f"first * {shape.stride[1]}"
        )
        following = []
        if ahead:
            below = _strip_lines(shape, strip_rows)
            following = [
                "/* the rows that the next strip adds */",
                f"const float *ahead = {x} + (ptrdiff_t)({top} + {below}) * {ahead};",
            ]
        return [
            f"const int32_t first = s * {strip_rows};",
            f"const int32_t rows = {rows};",
            f"@KERNEL@_strip({x}, strip, {top});",
            *following,
            *writer.nests(),
        ]


def _all_knobs(config: Config) -> Config:
    """The knobs of a dense kernel: tiles of one row, the reduction in one pass, no prefetch."""
    fixed = {"oh_tile": 1, "kc": 0, "next_lines": 0, "prefetch_bytes": 0}
    return Config.of(**{**fixed, **config.as_dict()})


def _strip_lines(shape: ConvShape, rows: int) -> int:
    """Input rows behind ``rows`` output rows."""
    return shape.reach(1, rows)


def _strip_width(shape: ConvShape) -> int:
    """Floats of a strip's line: everything a row of outputs reads, in whole cache lines."""
    reach = shape.reach(2, shape.out[2])
    return -(-(max(reach, shape.begin[2]) + 3) // LINE_FLOATS) * LINE_FLOATS


def _strip_floats(shape: ConvShape, rows: int) -> int:
    return _strip_lines(shape, rows) * _strip_width(shape) * shape.channels


def _prefetch(
    shape: ConvShape, image: dict[str, int], strip_rows: int, writer: DenseWriter, target: Target
) -> list[Block]:
    """What a tile prefetches of the rows that the next strip adds: an equal share of their cache
    lines from ``ahead`` on, in every plane. Nothing where the whole image is small or its rows lie
    far apart.
    """
    apart = image["row_stride"]
    span = (image["columns"] - 1) * image["pixel_stride"] + 1
    planar = image["channel_stride"] >= span
    planes = shape.channels if planar else 1
    strips = -(-shape.out[1] // strip_rows)
    far = 4 * planes * shape.size[1] * apart > target.l2_bytes // 4
    if strips < 2 or not far or apart > 2 * span:
        return []
    floats = strip_rows * shape.stride[1] * apart
    tiles = strip_rows * sum(c.count for c in writer.cols) * sum(p.count for p in writer.panels)
    share = -(-planes * floats // LINE_FLOATS // (planes * tiles))
    near = 4 * planes * floats <= target.l1_bytes // 3
    word = "AOT_PREFETCH" if near else "AOT_PREFETCH_L2"
    lines: list[Block] = [
        f"{word}({terms('ahead', offset=c * image['channel_stride'])});" for c in range(planes)
    ]
    if share == 1:
        return [*lines, f"ahead += {LINE_FLOATS};"]
    head = f"for (int32_t k = 0; k < {share}; k++, ahead += {LINE_FLOATS}) {{"
    return [{"head": head, "body": lines}]


def _copy_context(
    shape: ConvShape, strides: tuple[int, ...], lines: int, width: int
) -> dict[str, int]:
    """What strip.c.j2 prints: extents, strides of the image, where its columns land in a line."""
    spatial = (0,) * (3 - shape.axes) + strides[1 : 1 + shape.axes]
    left = shape.begin[2]
    return {
        "channels": shape.channels,
        "lines": lines,
        "width": width,
        "left": left,
        "height": shape.size[1],
        "columns": min(shape.size[2], width - left),
        "channel_stride": strides[-1],
        "row_stride": spatial[1],
        "pixel_stride": spatial[2],
    }


def _packed_context(image: dict[str, int], shape: ConvShape) -> dict[str, int]:
    """The same for lines of whole pixels: as of an image of one channel and wider rows."""
    n = shape.channels
    reach = max(shape.reach(2, shape.out[2]), shape.begin[2])
    left = n * image["left"]
    return {
        **image,
        "channels": 1,
        "width": n * reach,
        "left": left,
        "columns": min(n * shape.size[2], n * reach - left),
        "pixel_stride": 1,
    }
