"""GridSample: an image read at coordinates that are data, by gathers on the channels-last image.

Coordinates and weights are computed once a pixel; each tap is one gather of a pixel's channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import DType

_CUBIC = -0.75
"""The parameter a of the cubic kernel, which the operator fixes."""

Tap = tuple[Value, Value | None, Value | None]
"""Along one axis: int64 position inside the image, whether it is (None: always), weight (None: 1),
each [N, *O].
"""


@converts("GridSample", since=16)
def grid_sample(n: OnnxNode) -> Value:
    """x [N, C, *S], grid [N, *O, D] with the last spatial axis first: [N, C, *O]."""
    x, grid = n.x(0), n.x(1)
    n.need_float(x)
    spatial = len(x.shape) - 2
    if spatial < 1 or len(grid.shape) != spatial + 2 or grid.shape[-1] != spatial:
        n.refuse(f"input {list(x.shape)} and grid {list(grid.shape)} do not fit")
    mode = n.get_str("mode", "bilinear" if n.opset < 20 else "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode not in ("nearest", "linear", "cubic") or (mode == "cubic" and spatial != 2):
        n.refuse(f"mode={mode!r} with {spatial} spatial axes is not known")
    padding = n.get_str("padding_mode", "zeros")
    if padding not in ("zeros", "border", "reflection"):
        n.refuse(f"padding_mode={padding!r} is not known")
    axes = [
        _Axis(n, x.shape[2 + k], padding, bool(n.get_int("align_corners", 0)))
        for k in range(spatial)
    ]
    outer = grid.shape[:-1]
    taps = []
    for k, axis in enumerate(axes):
        part = n.cut(grid, spatial + 1, spatial - 1 - k, spatial - k)
        taps.append(axis.taps(n.cast(n.reshape(part, outer), DType.F32), mode))
    image = n.to_channels_last(x)
    total: Value | None = None
    for combination in itertools.product(*taps):
        pixel = _pixel(n, image, combination)
        total = pixel if total is None else n.emit("add", [total, pixel])
    assert total is not None
    return n.to_channels_first(total)


def _pixel(n: OnnxNode, image: Value, taps: Sequence[Tap]) -> Value:
    """The weighted pixel [N, *O, C] at one combination of taps."""
    shape = (*taps[0][0].shape, 1)
    columns = [n.reshape(position, shape) for position, _, _ in taps]
    indices = n.concat(columns, len(shape) - 1)
    pixel = n.emit("gather_nd", [image, indices], batch_dims=1)
    factor: Value | None = None
    for _, _, weight in taps:
        if weight is not None:
            factor = weight if factor is None else n.emit("mul", [factor, weight])
    if factor is not None:
        factor = n.cast(n.reshape(factor, shape), image.dtype)
        pixel = n.emit("mul", [pixel, factor])
    valid: Value | None = None
    for _, one, _ in taps:
        if one is not None:
            valid = one if valid is None else n.emit("and", [valid, one])
    if valid is None:
        return pixel
    return n.emit("where", [n.reshape(valid, shape), pixel, n.scalar(0.0, pixel)])


class _Axis:
    """One spatial axis of ``size`` pixels."""

    def __init__(self, n: OnnxNode, size: int, padding: str, align: bool) -> None:
        self.n, self.size, self.padding, self.align = n, size, padding, align
        self.low, self.high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)

    def taps(self, grid: Value, mode: str) -> list[Tap]:
        """What is read for coordinates in -1..1, [N, *O]."""
        n, add = self.n, self._op
        if self.align:
            x = add("mul", add("add", grid, 1.0), (self.size - 1) / 2)
        else:
            x = add("mul", add("sub", add("mul", add("add", grid, 1.0), self.size), 1.0), 0.5)
        if mode == "nearest":
            return [(*self._place(n.emit("round", [x])), None)]
        if mode == "linear":
            x = self._padded(x)
        base = n.emit("floor", [x])
        t = n.emit("sub", [x, base])
        if mode == "linear":
            weights = [add("sub", 1.0, t), t]
            offsets = [0.0, 1.0]
        else:
            weights, offsets = self._cubic(t), [-1.0, 0.0, 1.0, 2.0]
        return [
            (*self._place(add("add", base, offset)), weight)
            for offset, weight in zip(offsets, weights, strict=True)
        ]

    def _op(self, op: str, a: Value | float, b: Value | float) -> Value:
        like = a if isinstance(a, Value) else b
        assert isinstance(like, Value)
        both = [v if isinstance(v, Value) else self.n.scalar(v, like) for v in (a, b)]
        return self.n.emit(op, both)

    def _cubic(self, t: Value) -> list[Value]:
        """Weights of the pixels at -1, 0, 1, 2 from floor(x); t = x - floor(x)."""
        a, op = _CUBIC, self._op

        def near(d: Value) -> Value:  # |d| <= 1: ((a + 2) d - (a + 3)) d^2 + 1
            inner = op("sub", op("mul", d, a + 2), a + 3)
            return op("add", op("mul", op("mul", inner, d), d), 1.0)

        def far(d: Value) -> Value:  # 1 < |d| < 2: ((a d - 5 a) d + 8 a) d - 4 a
            inner = op("add", op("mul", op("sub", op("mul", d, a), 5 * a), d), 8 * a)
            return op("sub", op("mul", inner, d), 4 * a)

        rest = op("sub", 1.0, t)
        return [far(op("add", t, 1.0)), near(t), near(rest), far(op("add", rest, 1.0))]

    def _padded(self, x: Value) -> Value:
        """A coordinate brought back into the image; with zeros it stays outside."""
        if self.padding == "border":
            return self.n.emit("clip", [x], lo=0.0, hi=self.size - 1.0)
        return self._reflected(x) if self.padding == "reflection" else x

    def _reflected(self, x: Value) -> Value:
        """Mirrored at both ends until it is inside: a triangle wave."""
        n, op, span = self.n, self._op, self.high - self.low
        if span == 0:
            return op("mul", x, 0.0)
        away = op("sub", x, self.low)
        waves = n.emit("floor", [op("mul", away, 1 / (2 * span))])
        phase = op("sub", away, op("mul", waves, 2 * span))
        mirrored = op("minimum", phase, op("sub", 2 * span, phase))
        return op("add", mirrored, self.low)

    def _place(self, x: Value) -> tuple[Value, Value | None]:
        """A whole coordinate as a position inside the image, and whether it was inside.

        A NaN must not become an address: it is read at 0.
        """
        n, op = self.n, self._op
        valid: Value | None = None
        if self.padding == "zeros":
            above = op("greater_equal", x, 0.0)
            valid = n.emit("and", [above, op("less_equal", x, self.size - 1.0)])
        elif self.padding == "reflection":
            x = self._reflected(x)
        inside = n.emit("clip", [x], lo=0.0, hi=self.size - 1.0)
        inside = n.emit("where", [n.emit("isnan", [x]), n.scalar(0.0, x), inside])
        return n.cast(inside, DType.I64), valid
