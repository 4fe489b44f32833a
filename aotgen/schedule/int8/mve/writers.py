"""The constants and C text of ``int8_mve_dense``: products of one row, and of rows in memory or in
patches.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.schedule.base import Arg, Kernel, PackedConst, Routine, View
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.problem import Axis, collapse
from aotgen.schedule.int8.mve.fields import DENSE, described
from aotgen.schedule.int8.mve.operands import (
    LANES,
    Channels,
    Scaling,
    channels_of,
    input_zero,
    scaling_of,
)
from aotgen.schedule.int8.quantized import as_conv, group_count, title
from aotgen.schedule.intrinsics import S8_VMLADAV

STEP = S8_VMLADAV.steps
"""Products of one instruction."""

WIDEST = 8
"""Channels of a panel of one row: the sums that general registers hold."""

FARTHEST = (1 << 16) - LANES
"""Elements between two outputs of a tile, whose store has offsets of 16 bits."""

_KINDS = {"qconv": "int8 convolution", "qmatmul": "int8 product of matrices"}
"""Titles of kernels that serve any shape."""


def rounded(depth: int) -> int:
    """``depth`` up to whole steps."""
    return -(-depth // STEP) * STEP


def panels_of(outputs: int) -> tuple[int, int]:
    """(channels of a panel, panels) for one row: equal panels of at most ``WIDEST``."""
    panels = -(-outputs // WIDEST)
    width = -(-outputs // panels)
    return width, -(-outputs // width)


def rows_in_memory(node: Node, x: View, y: View) -> list[Axis] | None:
    """Loops over the output's pixels whose rows lie in the input itself, merged, outermost first,
    with the strides of x and y; None where rows have to be put together.
    """
    if node.op == "qmatmul":
        count = math.prod(node.output.shape[:-1])
        return [Axis(count, {"x": x.row_stride, "y": y.row_stride})]
    shape = ConvShape.of(as_conv(node))
    xs, ys = shape.spatial_strides(x), shape.spatial_strides(y)
    run = shape.channels // shape.groups
    for i in (2, 1):
        if shape.kernel[i] > 1 and xs[i] * shape.dilation[i] != run:
            return None
        run *= shape.kernel[i]
        if shape.inside(i) != (0, shape.out[i]):
            return None
    axes = [Axis(shape.batch, {"x": x.strides[0], "y": y.strides[0]})]
    axes += [Axis(shape.out[i], {"x": xs[i] * shape.stride[i], "y": ys[i]}) for i in (1, 2)]
    return collapse(axes)


def _steps_kind(steps: int, flash: bool) -> str:
    if flash:
        return "any"
    return "odd" if steps % 2 else "even"


def _stored(scaling: Scaling, flash: bool) -> Scaling:
    """The scaling as kernels do it: for flash one arithmetic serves layers with any activation."""
    if flash and scaling.kind == "relu":
        return Scaling("linear", scaling.zero, scaling.lo, scaling.hi)
    return scaling


def _parameters(channels: Channels, index: npt.NDArray[np.intp], kind: str, uniform: bool) -> bytes:
    """Of the channels at ``index``, in this order; lists of four each after the other."""
    parts: list[npt.NDArray[Any]] = [channels.bias]
    if not uniform:
        parts += [channels.multiplier, channels.right.astype(np.int8)]
        if kind == "any":
            parts += [channels.left.astype(np.int8), channels.ties.astype(np.int8)]
    return b"".join(part[index].tobytes() for part in parts)


def padded_rows(weights: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """[channels, reduction] with zeros up to whole steps."""
    wide = np.zeros((len(weights), rounded(weights.shape[1])), np.int8)
    wide[:, : weights.shape[1]] = weights
    return wide


class RowWriter:
    """A product of one row."""

    def __init__(self, node: Node, flash: bool) -> None:
        self.node, self.flash = node, flash
        self.channels = channels_of(node)
        self.scaling = scaling_of(node)
        self.uniform = self.channels.is_uniform
        if not (self.uniform and self.scaling.kind == "any"):
            self.scaling = _stored(self.scaling, flash)
        self.outputs, self.bytes = self.channels.weights.shape
        self.depth = rounded(self.bytes)
        self.width, self.panels = panels_of(self.outputs)

    def stream(self) -> tuple[npt.NDArray[np.int8], int]:
        """(weights and parameters of all panels, bytes of one)."""
        weights = padded_rows(self.channels.weights)
        places = np.arange(8 if self.width > 4 else 4)
        if self.width > 4:  # even channels, then odd ones
            places = np.concatenate([places[0::2], places[1::2]])
        made: list[bytes] = []
        for panel in range(self.panels):
            index = np.minimum(panel * self.width + np.arange(self.width), self.outputs - 1)
            made.append(S8_VMLADAV.pack(weights[index]).tobytes())
            index = np.minimum(panel * self.width + places, self.outputs - 1)
            made.append(_parameters(self.channels, index, self.scaling.kind, self.uniform))
        data = b"".join(made)
        return np.frombuffer(data, np.int8), len(data) // self.panels

    def kernel(self, group: Group) -> Kernel:
        node, scaling = self.node, self.scaling
        weights, panel = self.stream()
        steps = _steps_kind(self.depth // STEP, self.flash)
        tile = [self.depth, scaling.zero, scaling.lo, scaling.hi]
        names = ["depth", "zero", "low", "high"]
        if self.uniform:
            of = self.channels
            tile += [int(v[0]) for v in (of.multiplier, of.right, of.left)]
            names += ["multiplier", "right", "left"]
        routine = Routine(
            f"mve_row_{self.width}",
            "void @ROUTINE@(const int8_t *x, const int8_t *w, int8_t *y, int32_t outputs,"
            " const int32_t *tile)",
            render(
                "kernels/int8_mve_panel.c.j2", dot=S8_VMLADAV, kind=scaling.kind,
                clamps=scaling.clamps, width=self.width, uniform=self.uniform, steps=steps,
            ),
        )  # fmt: skip
        extents = {"outputs": self.outputs, "bytes": self.bytes, "panel": panel}
        ragged = self.bytes % STEP != 0
        args = [Arg("x", "const int8_t *", value=node.input(0))]
        args.append(Arg("w", "const int8_t *", const=PackedConst("w", weights, node.input(1))))
        if ragged:
            args.append(Arg("a", "int8_t *", scratch_bytes=self.depth))
        return _kernel(
            f"{node.op}_i8_mve_1x{self.width}", "kernels/int8_mve_row.c.j2", group, args,
            dict(zip(names, tile, strict=True)), extents, self.flash, self.panels, (routine,),
            by_rows=False, row=routine.name, ragged=ragged, width=self.width,
        )  # fmt: skip


class TileWriter:
    """A product of several rows."""

    def __init__(self, node: Node, x: View, y: View, block: int, flash: bool) -> None:
        self.node, self.x, self.y, self.flash = node, x, y, flash
        self.channels = channels_of(node)
        self.scaling = _stored(scaling_of(node), flash)
        self.groups = group_count(node)
        self.outputs = len(self.channels.weights) // self.groups
        self.bytes = self.channels.weights.shape[1]
        self.depth = rounded(self.bytes)
        self.rows = rows_in_memory(node, x, y)
        self.shape = ConvShape.of(as_conv(node)) if node.op == "qconv" else None
        self.block = block

    def stream(self) -> tuple[npt.NDArray[np.int8], int]:
        """(weights and parameters, bytes of a group)."""
        weights = self.stored_weights()
        made: list[bytes] = []
        for group in range(self.groups):
            own = group * self.outputs
            for first in range(0, self.outputs, LANES):
                index = own + np.minimum(first + np.arange(LANES), self.outputs - 1)
                made.append(S8_VMLADAV.pack(weights[index]).tobytes())
                made.append(_parameters(self.channels, index, self.scaling.kind, uniform=False))
        data = b"".join(made)
        return np.frombuffer(data, np.int8), len(data) // self.groups

    def stored_weights(self) -> npt.NDArray[np.int8]:
        """[channels, whole steps]."""
        return padded_rows(self.channels.weights)

    def routine(self, steps: str, **values: int) -> Routine:
        """The loop over tiles."""
        return Routine(
            "mve_tile_2x4",
            "void @ROUTINE@(const int8_t *x, int32_t x_step, const int8_t *w, int8_t *y,"
            " int32_t y_step, int32_t pixels, const int32_t *tile)",
            render(
                "kernels/int8_mve_tile.c.j2", dot=S8_VMLADAV, kind=self.scaling.kind,
                clamps=self.scaling.clamps, steps=steps, **values,
            ),
        )  # fmt: skip

    def kernel(self, group: Group) -> Kernel:
        node, scaling = self.node, self.scaling
        weights, group_w = self.stream()
        steps = self.depth // STEP
        kind = _steps_kind(steps, self.flash)
        if steps == 1 and not self.flash and scaling.kind != "any":
            kind = "one"
        routine = self.routine(kind)
        tile = {
            "depth": self.depth, "outputs": self.outputs, "zero": scaling.zero, "low": scaling.lo,
            "high": scaling.hi,
        }  # fmt: skip
        extents = {
            "bytes": self.bytes, "groups": self.groups, "group_w": group_w,
            "group_x": node.input(0).shape[-1] // self.groups, "group_y": self.outputs,
        }  # fmt: skip
        ragged = False
        if self.rows is not None:
            ragged = self.bytes % STEP != 0
            walk, more, units = self._walk_memory(self.rows)
        else:
            walk, more, units = self._walk_patches()
        args = [Arg("x", "const int8_t *", value=node.input(0))]
        args.append(Arg("w", "const int8_t *", const=PackedConst("w", weights, node.input(1))))
        copied = 2 if ragged else 0 if self.rows is not None else self.block
        if copied:
            args.append(Arg("a", "int8_t *", scratch_bytes=copied * self.depth))
        return _kernel(
            f"{node.op}_i8_mve_2x4", "kernels/int8_mve_dense.c.j2", group, args, tile,
            extents | more, self.flash, units, (routine,), gemm=routine.name, ragged=ragged,
            by_rows=self.shape is None or units % (self.shape.batch * self.shape.out[1]) == 0,
            copies=copied > 0, patches=self.rows is None, grouped=self.groups > 1, **walk,
        )  # fmt: skip

    def _walk_memory(self, rows: list[Axis]) -> tuple[dict[str, Any], dict[str, int], int]:
        """(template values, extents, units) of rows that lie in the input."""
        *outer, span = rows
        if span.stride("y") > FARTHEST:
            outer, span = [*outer, span], Axis(1, {"x": 1})
        last = sum((n - 1) * s for n, s in zip(self.x.shape, self.x.strides, strict=True))
        more = {
            "x_step": span.stride("x") or 1, "y_step": span.stride("y"), "x_end": last + 1,
            "span": span.extent,
        }  # fmt: skip
        texts = {"spans_x": "", "spans_y": ""}
        for i, axis in enumerate(outer):
            inside = math.prod(a.extent for a in outer[i + 1 :])
            index = "r"
            if inside > 1:
                index, more[f"inside_{i}"] = f"r / {{inside_{i}}}", inside
            if i > 0:
                index, more[f"extent_{i}"] = f"{index} % {{extent_{i}}}", axis.extent
            for name in ("x", "y"):
                texts[f"spans_{name}"] += f" + (ptrdiff_t)({index}) * {{{name}_{i}}}"
                more[f"{name}_{i}"] = axis.stride(name)
        units = math.prod(axis.extent for axis in outer) if outer else span.extent
        return {"spans": bool(outer), "batch": False, "padded": False, **texts}, more, units

    def _walk_patches(self) -> tuple[dict[str, Any], dict[str, int], int]:
        """(template values, extents, units) of rows that are put together."""
        shape = self.shape
        assert shape is not None
        xs, ys = shape.spatial_strides(self.x), shape.spatial_strides(self.y)
        channels = shape.channels // shape.groups
        merged = shape.kernel[2] == 1 or (shape.dilation[2] == 1 and xs[2] == channels)
        reach = [shape.reach(i) for i in range(3)]
        inside = [max(0, shape.size[i] - reach[i] + 1) for i in range(3)]
        padded = any(shape.inside(i) != (0, shape.out[i]) for i in (1, 2))
        pixels = collapse(
            [
                Axis(shape.batch, {"y": self.y.strides[0]}),
                *(Axis(shape.out[i], {"y": ys[i]}) for i in (1, 2)),
            ]
        )
        even = len(pixels) == 1
        y_step = pixels[0].stride("y") if even else ys[2]
        if y_step > FARTHEST:
            self.block = 1
        more = {
            "x_row": xs[1], "x_pixel": xs[2], "x_batch": self.x.strides[0], "channels": channels,
            "run": channels * (shape.kernel[2] if merged else 1), "pad": input_zero(self.node),
            "x_down": xs[1] * shape.dilation[1], "x_right": xs[2] * shape.dilation[2],
            "rows_inside": inside[1], "columns_inside": inside[2], "block": self.block,
            "y_step": y_step, "y_row": ys[1], "y_batch": self.y.strides[0],
        }  # fmt: skip
        for name, values in (
            ("in", shape.size),
            ("out", shape.out),
            ("kernel", shape.kernel),
            ("stride", shape.stride),
            ("dilation", shape.dilation),
            ("begin", shape.begin),
        ):
            more |= {f"{name}_h": values[1], f"{name}_w": values[2]}
        text = " + (ptrdiff_t)r0 * {y_step}"
        if not even:
            text = " + (ptrdiff_t)r * {y_row}"
            if shape.batch > 1:
                text = (
                    " + (ptrdiff_t)(r / {out_h}) * {y_batch} + (ptrdiff_t)(r % {out_h}) * {y_row}"
                )
        walk = {
            "spans": not even, "spans_y": text, "batch": shape.batch > 1, "padded": padded,
            "merged": merged, "fits": self.flash or (inside[1] > 0 and inside[2] > 0),
        }  # fmt: skip
        units = shape.batch * shape.out[1] * (1 if not even else shape.out[2])
        return walk, more, units


def _kernel(
    name: str,
    template: str,
    group: Group,
    args: list[Arg],
    tile: dict[str, int],
    extents: dict[str, int],
    flash: bool,
    units: int,
    routines: tuple[Routine, ...],
    by_rows: bool,
    **values: Any,
) -> Kernel:
    """The kernel of a template whose extents are constants or, for flash, fields of an argument
    that begins with those of ``tile``.
    """
    every = tile | extents
    names = {key: f"g->{key}" if flash else str(value) for key, value in every.items()}
    for key in ("spans_x", "spans_y"):
        if key in values:
            values[key] = values[key].format(**names)
    output = Arg("y", "int8_t *", value=group.output, is_output=True)

    def text(fields: list[str], *more: Arg) -> str:
        shown = [f"{a.ctype}restrict {a.name}" for a in (*args, *more, output)]
        return render(
            template, **values, d=names, fields=described(fields, DENSE), tile=list(tile.values()),
            title=_KINDS[group.nodes[0].op] if flash else title(group),
            params=", ".join([*shown, "int32_t r0", "int32_t r1"]),
        )  # fmt: skip

    if not flash:
        every_arg = (*args, output)
        return Kernel(name, text([]), every_arg, units, by_rows=by_rows, routines=routines)
    used = set(re.findall(r"g->(\w+)", text(["zero"])))
    fields = [*tile, *(key for key in extents if key in used)]
    array = np.asarray([every[key] for key in fields], np.int32)
    shape = Arg("shape", "const int32_t *", const=PackedConst("shape", array))
    body, every_arg = text(fields, shape), (*args, shape, output)
    return Kernel(name, body, every_arg, units, by_rows=by_rows, routines=routines)
