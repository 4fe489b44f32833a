"""Pools and means over spatial axes of 8-bit integers: vectors over channels.

Maxima stay bytes. Sums grow in lanes of 16 bits, over the whole window where it is small enough or
else a row of it, and end in lanes of 32 bits, where they are divided or scaled.

For a microcontroller's flash extents are fields of a struct among the weights, so that pools of a
kind are one function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType
from aotgen.ops.fixed_point import limits
from aotgen.schedule.base import (
    Arg,
    Config,
    Kernel,
    Knob,
    Need,
    PackedConst,
    Template,
    View,
    Views,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.window_features import window_features
from aotgen.schedule.dense.problem import affine, terms
from aotgen.schedule.dense.tiles import core_model
from aotgen.schedule.features import common_features
from aotgen.target.target import Target

MODES = {"max_pool": "max", "qavg_pool": "average", "qreduce_sum": "sum"}

ELEMENTS = {DType.I8: ("s8", 255), DType.U8: ("u8", 128)}
"""Name of an element type in simd's words, and how many elements 16 bits can add up."""

MOST_CELLS = 4096
"""Largest window whose average is exact by a float32 product: see ``_finish`` of the template."""

VECTORS = (1, 2, 4)

BYTES = {"avx512": 64, "avx2": 32, "neon": 16, "neon_armv7": 16, "scalar": 1, "dsp": 4, "mve": 16}
"""VB of simd's words for bytes."""


@dataclass(frozen=True)
class _Sums:
    """Words of 16-bit sums of bytes: type, zero, the beginning of the word that adds a vector of
    bytes, and formats of the int32 vectors that they are made of, in order; of number k, where that
    may be a variable.
    """

    type: str
    zero: str
    add: str
    parts: tuple[str, ...]
    any_part: str = ""


_PAIRS = _Sums("vp", "vpzero()", "vpacc", ("vplow(%s)", "vphigh(%s)"))

_WORDS = _Sums(
    "vs", "vszero()", "vsacc", tuple(f"vspart(%s, {k})" for k in range(4)), "vspart(%s, k)"
)
"""Of the DSP extension: four sums in two words."""


@dataclass(frozen=True)
class _Window:
    """The window in the last two spatial axes, (height, width), with the strides of its operands.

    Attributes:
        shape: extents; of a sum the window is the whole image and the output has one pixel.
        x, y: elements from image to image, row to row, pixel to pixel.
    """

    shape: ConvShape
    x: tuple[int, int, int]
    y: tuple[int, int, int]

    @classmethod
    def of(cls, node: Node, x: View, y: View) -> _Window:
        shape = _shape(node)
        xs = shape.spatial_strides(x)
        if node.op == "qreduce_sum":
            return cls(shape, (x.strides[0], xs[1], xs[2]), (y.strides[0], 0, 0))
        ys = shape.spatial_strides(y)
        return cls(shape, (x.strides[0], xs[1], xs[2]), (y.strides[0], ys[1], ys[2]))


def _shape(node: Node) -> ConvShape:
    if node.op != "qreduce_sum":
        return ConvShape.of(node)
    x = node.input(0).shape
    size = (1,) * (5 - len(x)) + x[1:-1]
    one, none = (1, 1, 1), (0, 0, 0)
    triple = size[0], size[1], size[2]
    return ConvShape(x[0], triple, one, triple, one, one, none, none, x[-1], x[-1], 1, len(x) - 2)


class Int8Pool(Template):
    """Maxima, averages and sums of windows of 8-bit integers."""

    name = "int8_pool"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if target.device != "cpu":
            return "needs a CPU"
        if len(group.nodes) != 1 or node.op not in MODES or node.input(0).is_const:
            return "needs a max_pool, qavg_pool or qreduce_sum of an activation, alone"
        x, y = node.input(0), node.output
        if x.dtype not in ELEMENTS or y.dtype is not x.dtype:
            return "needs 8-bit elements of one type"
        if len(x.shape) not in (3, 4) or 0 in (*x.shape, *y.shape):
            return "needs one or two spatial axes, and tensors with elements"
        if node.op == "qreduce_sum" and tuple(node.attrs["axes"]) != tuple(
            range(1, len(x.shape) - 1)
        ):
            return "needs a sum over all spatial axes"
        shape = _shape(node)
        if node.op == "max_pool" and _may_be_empty(shape):
            return "a window may lie within its pads alone"
        if node.op == "max_pool":
            return None
        if shape.kernel[2] > ELEMENTS[x.dtype][1]:
            return "rows of the window are too long for sums of 16 bits"
        if node.op == "qavg_pool" and shape.taps > MOST_CELLS:
            return "the window is too large for an exact average"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        node = group.nodes[0]
        fitting = [v for v in VECTORS if v * _lanes(node, target) <= node.input(0).shape[-1]]
        return (Knob("vectors", "ordinal", tuple(fitting) or (1,), "vectors"),)

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        shape, vectors = _shape(group.nodes[0]), config.int("vectors")
        return {
            **common_features(self, group, target, config),
            **window_features(
                shape,
                target,
                (1, 1),
                vectors=vectors,
                live=min(target.vector_registers, vectors + 4),
                operations=float(shape.taps * vectors),
                loads=float(shape.taps * vectors),
                size=1,
            ),
        }

    def default(self, group: Group, target: Target) -> Config:
        node = group.nodes[0]
        fitting = [v for v in VECTORS if v * _lanes(node, target) <= node.input(0).shape[-1]]
        if _in_table(target):
            fitting = fitting[:1]
        return Config.of(vectors=max(fitting, default=1))

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {group.nodes[0].input(0).name: Need(unit_inner=True)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        node = group.nodes[0]
        shape, core = _shape(node), core_model(target)
        vectors = -(-shape.channels // _lanes(node, target))
        pixels = shape.batch * shape.out[1] * shape.out[2]
        finish = 2 if node.op == "max_pool" else 20
        return pixels * vectors * (shape.taps + finish) / core.loads / core.ghz * 1e-9

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = node.input(0), group.output
        window = _Window.of(node, views[x], views[y])
        shape, mode = window.shape, MODES[node.op]
        kind, most = ELEMENTS[x.dtype]
        lanes, channels = _lanes(node, target), shape.channels
        in_table = _in_table(target) and channels >= lanes
        fields = _fields(node, window) if in_table else {}
        step = config.int("vectors") * lanes
        args = [
            Arg("x", f"const {x.dtype.c} *", value=x),
            Arg("y", f"{y.dtype.c} *", value=y, is_output=True),
        ]
        if fields:
            values = np.asarray([value for value, _ in fields.values()], np.int32)
            args.insert(1, Arg("shape", "const int32_t *", const=PackedConst("shape", values)))
        params = ", ".join([*(f"{a.ctype}restrict {a.name}" for a in args), *ROWS])
        high, wide = shape.kernel[1:]
        text = render(
            "kernels/int8_pool.c.j2",
            title=f"{_WHAT[mode]} of windows of 8-bit elements"
            if fields
            else f"{node.op} {high}x{wide}, x {list(x.shape)} -> y {list(y.shape)}",
            params=params,
            fields=fields,
            mode=mode,
            ctype=x.dtype.c,
            kind=kind,
            lowest=limits(x.dtype)[0],
            by_rows=mode != "max" and shape.taps > most,
            extra=", cells" if mode == "average" else "",
            vectors=config.int("vectors"),
            sums=_sums(target),
            vl=target.vl,
            lanes=lanes,
            blocks=0 if fields else channels // step * step,
            part=channels if channels < lanes else 0,
            batch=shape.batch,
            clipped=_is_clipped(shape),
            dilation=shape.dilation[1:],
            **(_named(fields, window, lanes) if fields else _literal(node, window, lanes)),
        )
        words = {"int8", "bytes"} | ({"requantize"} if mode == "sum" else set())
        name = f"{node.op}_{x.dtype.value}" + ("" if fields else f"_{high}x{wide}")
        return Kernel(name, text, tuple(args), shape.out[1], frozenset(words))


_WHAT = {"max": "Maxima", "average": "Averages", "sum": "Scaled sums"}

ROWS = ("int32_t r0", "int32_t r1")


def _in_table(target: Target) -> bool:
    """Whether extents come from a table rather than being part of the code."""
    return target.bare and target.optimize == "flash"


def _is_clipped(shape: ConvShape) -> bool:
    """Whether windows reach over the border."""
    return any(pads != (0, 0) for pads in shape.border()[1:-1])


def _fields(node: Node, window: _Window) -> dict[str, tuple[int, str]]:
    """The struct of extents: by name the value and what it means, in order."""
    shape = window.shape
    image, row, column = window.x
    (down, across), (high, wide) = shape.stride[1:], shape.kernel[1:]
    found = {
        "channels": (shape.channels, "of input and output"),
        "out_w": (shape.out[2], "columns of the output"),
        "high": (high, "rows of a window"),
        "wide": (wide, "columns of a window"),
        "row_step": (shape.dilation[1] * row, "elements from row to row of a window"),
        "column_step": (shape.dilation[2] * column, "and from column to column"),
        "x_down": (down * row, "elements from window to window, downwards"),
        "x_across": (across * column, "and along a row"),
        "y_row": (window.y[1], "elements from output row to row"),
        "y_pixel": (window.y[2], "and from pixel to pixel"),
    }
    if shape.batch > 1:
        found |= {
            "x_image": (image, "elements from image to image"),
            "y_image": (window.y[0], "and from output image to image"),
        }
    if _is_clipped(shape):
        found |= {
            "in_h": (shape.size[1], "rows of the input"),
            "in_w": (shape.size[2], "columns of the input"),
            "down": (down, "rows from window to window"),
            "across": (across, "columns from window to window"),
            "top": (shape.begin[1], "rows of padding above the input"),
            "left": (shape.begin[2], "columns of padding before the input"),
            "x_start": (shape.begin[1] * row + shape.begin[2] * column, "elements of that padding"),
        }
    meanings = {
        "total_zero": "the input's zero point times the cells",
        "multiplier": "to the output's scale",
        "shift": "and behind it",
        "zero_point": "of the output",
        "lo": "lower clamp",
        "hi": "upper clamp",
    }
    return found | {name: (value, meanings[name]) for name, value in _finish(node, shape).items()}


def _named(fields: dict[str, tuple[int, str]], window: _Window, lanes: int) -> dict[str, Any]:
    """C text of extents that are fields of the struct, and of what is computed of them."""
    batch, clipped = window.shape.batch > 1, "in_h" in fields
    image = {"x": "n * s->x_image + ", "y": "n * s->y_image + "} if batch else {"x": "", "y": ""}
    inside = f"x + {image['x']}r * s->x_down + t * s->x_across"
    skipped = "i0 * s->row_step + j0 * s->column_step"
    return {
        **{name: f"s->{name}" for name in fields},
        "last": f"s->channels - {lanes}",
        "top": "r * s->down - s->top" if clipped else "",
        "left": "t * s->across - s->left" if clipped else "",
        "first_cell": f"{inside} - s->x_start + {skipped}" if clipped else "",
        "whole_window": inside,
        "to": f"y + {image['y']}r * s->y_row + t * s->y_pixel",
        "kernel": ("s->high", "s->wide"),
        "size": ("s->in_h", "s->in_w"),
        "columns": "s->out_w",
    }


def _literal(node: Node, window: _Window, lanes: int) -> dict[str, Any]:
    """Extents as C text, and where windows and output pixels lie, for output row r and column t of
    image n.
    """
    shape = window.shape
    clipped = _is_clipped(shape)
    down, across = (shape.stride[a] for a in (1, 2))
    image, row, column = window.x
    inside, pixel = [("r", down * row)], [("r", window.y[1])]
    if clipped or shape.out[2] > 1:
        inside.append(("t", across * column))
        pixel.append(("t", window.y[2]))
    skipped = [
        (name, shape.dilation[a] * step)
        for a, name, step in ((1, "i0", row), (2, "j0", column))
        if shape.begin[a]
    ]
    start = shape.begin[1] * row + shape.begin[2] * column
    x, y = [("n", image)] if shape.batch > 1 else [], [("n", window.y[0])] * (shape.batch > 1)
    return {
        **_finish(node, shape),
        "channels": shape.channels,
        "last": shape.channels - lanes,
        "top": affine(("r", down), offset=-shape.begin[1]),
        "left": affine(("t", across), offset=-shape.begin[2]),
        "first_cell": terms("x", *x, *inside, *skipped, offset=-start),
        "whole_window": terms("x", *x, *inside),
        "to": terms("y", *y, *pixel),
        "row_step": shape.dilation[1] * row,
        "column_step": shape.dilation[2] * column,
        "kernel": shape.kernel[1:],
        "size": shape.size[1:],
        "columns": shape.out[2],
    }


def _lanes(node: Node, target: Target) -> int:
    """Channels of a vector."""
    if node.op == "max_pool":
        return BYTES[target.isa]
    return len(_sums(target).parts) * target.vl


def _sums(target: Target) -> _Sums:
    return _WORDS if target.isa == "dsp" else _PAIRS


def _may_be_empty(shape: ConvShape) -> bool:
    """Whether a window can have no cell inside the input."""
    for i in (1, 2):
        reach = shape.kernel[i] * shape.dilation[i]
        last = (shape.out[i] - 1) * shape.stride[i] - shape.begin[i]
        if shape.begin[i] >= reach or last >= shape.size[i] or shape.dilation[i] >= shape.size[i]:
            return True
    return False


def _finish(node: Node, shape: ConvShape) -> dict[str, int]:
    """The numbers of the arithmetic behind the sums."""
    attrs = node.attrs
    if node.op == "max_pool":
        return {}
    if node.op == "qavg_pool":
        return {"lo": attrs["lo"], "hi": attrs["hi"]}
    lo, hi = limits(attrs["dtype"])
    return {
        "total_zero": attrs["zero"] * shape.taps,
        "multiplier": attrs["multiplier"],
        "shift": attrs["shift"],
        "zero_point": attrs["zero_point"],
        "lo": lo,
        "hi": hi,
    }
