"""Which rows of its inputs a Group's output rows read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotgen.ir.graph import Group, Node, Value
from aotgen.ops.registry import OpPattern, op_def

_CONVOLUTIONS = frozenset({"conv", "qconv"})
_WINDOWED = _CONVOLUTIONS | {"max_pool", "avg_pool", "qavg_pool"}


@dataclass(frozen=True)
class Window:
    """Rows of an input that output row r reads: [r * stride - pad, r * stride - pad + reach)."""

    stride: int
    pad: int
    reach: int

    def through(self, inner: Window) -> Window:
        """Rows that ``inner`` reads of its input for the rows that this window reads of its
        output.
        """
        return Window(
            self.stride * inner.stride,
            self.pad * inner.stride + inner.pad,
            (self.reach - 1) * inner.stride + inner.reach,
        )


SAME_ROW = Window(1, 0, 1)


def windows_of(group: Group) -> Mapping[Value, tuple[Window, ...]] | None:
    """By activation, the windows through which a Group's output reads it: several where, say, a sum
    adds to a convolution's output what the convolution reads. None where they are not known, where
    an output row is not a row of the input's map, or where an activation is no map of one image.
    """
    tensors = (*group.activations, group.output)
    if len(group.outputs) != 1 or any(len(v.shape) < 3 or v.shape[0] != 1 for v in tensors):
        return None
    read: dict[Value, set[Window]] = {group.output: {SAME_ROW}}
    for node in reversed(group.nodes):
        through = _window(node)
        if through is None:
            return None
        wanted = {w.through(through) for v in node.outputs for w in read.get(v, ())}
        for value in node.args:
            if not value.is_const:
                read.setdefault(value, set()).update(wanted)
    order = {v: sorted(read[v], key=lambda w: (w.stride, w.pad, w.reach)) for v in tensors[:-1]}
    return {value: tuple(windows) for value, windows in order.items()}


def _window(node: Node) -> Window | None:
    """Of a node's activations."""
    if node.op in _WINDOWED:
        return _convolution(node)
    if node.op == "pad":
        return _pad(node)
    maps = {v.shape[1] for v in (*node.args, *node.outputs) if not v.is_const and len(v.shape) >= 3}
    alike = len(maps) == 1 and op_def(node.op).pattern in (
        OpPattern.ELEMENTWISE,
        OpPattern.BROADCAST,
    )
    return SAME_ROW if alike else None


def _pad(node: Node) -> Window | None:
    """Rows above the input are a pad of the window; what other modes repeat may be any row."""
    pads, rank = node.attrs["pads"], len(node.output.shape)
    above, below = int(pads[1]), int(pads[rank + 1])
    if (above, below) != (0, 0) and node.attrs["mode"] != "constant":
        return None
    return Window(1, above, 1)


def _convolution(node: Node) -> Window | None:
    attrs = node.attrs
    if not node.op.startswith("q") and len(node.output.shape) != 4:
        return None  # rows of float kernels are those of the height, not of another axis
    taps = node.input(1).shape[1] if node.op in _CONVOLUTIONS else attrs["kernel"][0]
    reach = (int(taps) - 1) * int(attrs["dilations"][0]) + 1
    return Window(int(attrs["strides"][0]), int(attrs["pads"][0]), reach)
