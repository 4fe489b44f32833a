"""Convolutions without zeros around their input: each window is clipped to what lies inside.

Outputs whose windows have the same taps inside form strips: most of a map is one strip of rows and
one of columns, and what lies at its edges are a few narrow ones with less to compute. A template
that clips asks for no border in memory (``Need.border``). That border costs a microcontroller up to
a half of a small map, keeps a map from being written over another, and keeps layers from computing
by rows together; code for the edges costs flash.

The knob ``border`` is "clipped" or absent. No ``Template.space`` lists it: what a border costs is
not a question about one Group (``codegen.less_memory``).
"""

from __future__ import annotations

from dataclasses import dataclass

from aotgen.ir.graph import Group
from aotgen.schedule.base import Config, Need
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.fused import fused_needs
from aotgen.schedule.layouts import X_LAYOUT, laid_out, layout_of
from aotgen.target.target import Target

BORDER = "border"
CLIPPED = "clipped"


def is_clipped(config: Config) -> bool:
    """Whether the config asks for clipped windows."""
    return config.get(BORDER, "") == CLIPPED


def conv_needs(group: Group, target: Target, config: Config) -> dict[str, Need]:
    """What a convolution asks of the views of its input and of its epilogue's operands."""
    node = group.nodes[0]
    need = Need(unit_inner=True) if is_clipped(config) else ConvShape.of(node).need()
    return laid_out({**fused_needs(group), node.input(0).name: need}, group, config, target)


@dataclass(frozen=True)
class Strip:
    """Outputs [start, end) along an axis whose windows have taps [first, first + taps) inside."""

    start: int
    end: int
    first: int
    taps: int

    @property
    def extent(self) -> int:
        return self.end - self.start


def strips(shape: ConvShape, axis: int) -> tuple[Strip, ...]:
    """The strips of an axis (0: depth, 1: height, 2: width), in order."""
    stride, dilation = shape.stride[axis], shape.dilation[axis]
    size, taps = shape.size[axis], shape.kernel[axis]
    made: list[Strip] = []
    for output in range(shape.out[axis]):
        at = output * stride - shape.begin[axis]
        inside = [k for k in range(taps) if 0 <= at + k * dilation < size]
        first = inside[0] if inside else 0
        if made and (made[-1].first, made[-1].taps) == (first, len(inside)):
            made[-1] = Strip(made[-1].start, output + 1, first, len(inside))
        else:
            made.append(Strip(output, output + 1, first, len(inside)))
    return tuple(made)


def can_clip(shape: ConvShape, config: Config) -> bool:
    """Whether a convolution needs a border that its template could do without."""
    return any(b != (0, 0) for b in shape.border()) and has_taps(shape, config)


def has_taps(shape: ConvShape, config: Config) -> bool:
    """Whether a convolution can be computed with clipped windows: of rows and columns, of a
    channels-last input, where every window has some tap inside.
    """
    if shape.axes == 3 or layout_of(config, X_LAYOUT) != "strided":
        return False
    return all(s.taps for axis in (1, 2) for s in strips(shape, axis))
