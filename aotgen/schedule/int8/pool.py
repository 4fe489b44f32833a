"""Pools and means over spatial axes of 8-bit integers: vectors over channels.

Maxima stay bytes. Sums grow in lanes of 16 bits, over the whole window where it is small enough or
else a row of it, and end in lanes of 32 bits, where they are divided or scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType
from aotgen.ops.fixed_point import limits
from aotgen.schedule.base import Arg, Config, Kernel, Knob, Need, Template, View, Views
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
    bytes, and formats of the int32 vectors that they are made of, in order.
    """

    type: str
    zero: str
    add: str
    parts: tuple[str, ...]


_PAIRS = _Sums("vp", "vpzero()", "vpacc", ("vplow(%s)", "vphigh(%s)"))

_WORDS = _Sums("vs", "vszero()", "vsacc", tuple(f"vspart(%s, {k})" for k in range(4)))
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
        if target.bare and target.optimize == "flash":
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
        step = config.int("vectors") * lanes
        args = (
            Arg("x", f"const {x.dtype.c} *", value=x),
            Arg("y", f"{y.dtype.c} *", value=y, is_output=True),
        )
        params = ", ".join([*(f"{a.ctype}restrict {a.name}" for a in args), *ROWS])
        border = shape.border()[1:-1]
        clipped = any(pads != (0, 0) for pads in border)
        text = render(
            "kernels/int8_pool.c.j2",
            title=f"{node.op} {shape.kernel[1]}x{shape.kernel[2]}, x {list(x.shape)} -> y "
            f"{list(y.shape)}",
            params=params,
            mode=mode,
            ctype=x.dtype.c,
            kind=kind,
            lowest=limits(x.dtype)[0],
            by_rows=mode != "max" and shape.taps > most,
            extra=", cells" if mode == "average" else "",
            **_finish(node, shape),
            vectors=config.int("vectors"),
            sums=_sums(target),
            vl=target.vl,
            lanes=lanes,
            blocks=channels // step * step,
            part=channels if channels < lanes else 0,
            channels=channels,
            batch=shape.batch,
            clipped=clipped,
            **_places(window, clipped),
            kernel=shape.kernel[1:],
            dilation=shape.dilation[1:],
            size=shape.size[1:],
            out=shape.out[1:],
        )
        words = {"int8", "bytes"} | ({"requantize"} if mode == "sum" else set())
        name = f"{node.op}_{x.dtype.value}_{shape.kernel[1]}x{shape.kernel[2]}"
        return Kernel(name, text, args, shape.out[1], frozenset(words))


ROWS = ("int32_t r0", "int32_t r1")


def _places(window: _Window, clipped: bool) -> dict[str, Any]:
    """C text of where windows and output pixels lie, for output row r and column t of image n."""
    shape = window.shape
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
        "top": affine(("r", down), offset=-shape.begin[1]),
        "left": affine(("t", across), offset=-shape.begin[2]),
        "first_cell": terms("x", *x, *inside, *skipped, offset=-start),
        "whole_window": terms("x", *x, *inside),
        "to": terms("y", *y, *pixel),
        "row_step": shape.dilation[1] * row,
        "column_step": shape.dilation[2] * column,
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


def _finish(node: Node, shape: ConvShape) -> dict[str, Any]:
    """What the template prints of the arithmetic behind the sums."""
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
