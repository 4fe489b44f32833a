"""Convolutions and transposed convolutions as direct convolutions over views.

A transposed convolution of stride s is s direct convolutions of stride 1 an axis (sub-pixel
decomposition): output o sums the taps k with k * dilation = o + pad (mod s), so all outputs with
one remainder read the same taps, and neighbours among them, s apart, read neighbouring inputs. Such
a ``Phase`` differs from a convolution only in the stride of its output view.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from aotgen.ir.graph import Node
from aotgen.schedule.base import Border, Need
from aotgen.schedule.conv.conv_shape import ConvShape, Triple
from aotgen.schedule.packing import F32


@dataclass(frozen=True, eq=False)
class Phase:
    """A direct convolution along (depth, height, width).

    Output q (of ``out``) lies at ``y_first`` + q * ``y_step`` and sums, over taps t (of ``taps``),
    the inputs at ``x_first`` + q * ``stride`` + t * ``dilation``; those may lie outside the input.

    Attributes:
        weights: [groups, outputs a group, *taps, inputs a group].
    """

    out: Triple
    taps: Triple
    stride: Triple
    dilation: Triple
    x_first: Triple
    y_first: Triple
    y_step: Triple
    weights: F32

    @property
    def geometry(self) -> tuple[Triple, ...]:
        """What two phases with the same loops have in common."""
        return self.out, self.taps, self.stride, self.dilation, self.y_step

    @property
    def reduction(self) -> int:
        """Products summed per output."""
        return math.prod(self.taps) * int(self.weights.shape[-1])

    @property
    def macs(self) -> int:
        """Of one image."""
        return math.prod((*self.out, *self.weights.shape))


def conv_phase(node: Node, shape: ConvShape) -> Phase:
    """A conv node as its only phase."""
    return Phase(
        out=shape.out,
        taps=shape.kernel,
        stride=shape.stride,
        dilation=shape.dilation,
        x_first=(-shape.begin[0], -shape.begin[1], -shape.begin[2]),
        y_first=(0, 0, 0),
        y_step=(1, 1, 1),
        weights=_weights(node, shape),
    )


def transposed_phases(node: Node, shape: ConvShape) -> list[Phase] | None:
    """The phases of a conv_transpose node, those of one row of outputs next to each other; None
    where the outputs of a phase have no tap at all (a kernel smaller than the stride).
    """
    weights = _weights(node, shape)
    axes = [_axis_phases(shape, i) for i in range(3)]
    if any(p is None for phases in axes for p in phases):
        return None
    found = []
    for d, h, w in itertools.product(*axes):
        assert d is not None and h is not None and w is not None
        picked = weights[:, :, d.taps][:, :, :, h.taps][:, :, :, :, w.taps]
        found.append(
            Phase(
                out=(d.out, h.out, w.out),
                taps=(len(d.taps), len(h.taps), len(w.taps)),
                stride=(1, 1, 1),
                dilation=(d.dilation, h.dilation, w.dilation),
                x_first=(d.x_first, h.x_first, w.x_first),
                y_first=(d.y_first, h.y_first, w.y_first),
                y_step=shape.stride,
                weights=np.ascontiguousarray(picked),
            )
        )
    return found


@dataclass(frozen=True)
class _AxisPhase:
    """A phase along one axis; ``taps`` are the kernel's, in the order of the inputs they read."""

    out: int
    taps: list[int]
    dilation: int
    x_first: int
    y_first: int


def _axis_phases(shape: ConvShape, axis: int) -> list[_AxisPhase | None]:
    """The phases along one axis; None for one without taps."""
    s, d, begin = shape.stride[axis], shape.dilation[axis], shape.begin[axis]
    extent, kernel = shape.out[axis], shape.kernel[axis]
    found: list[_AxisPhase | None] = []
    for first in range(min(s, extent)):
        taps = [k for k in range(kernel) if (first + begin - k * d) % s == 0]
        if not taps:
            found.append(None)
            continue
        taps.reverse()  # a later tap reads an earlier input
        out = -(-(extent - first) // s)
        x_first = (first + begin - taps[0] * d) // s
        found.append(_AxisPhase(out, taps, d // math.gcd(s, d), x_first, first))
    return found


def merge_columns(phases: list[Phase]) -> list[Phase] | None:
    """The phases of a row of outputs as one with stride times the channels: (phase, channel) are
    neighbours in memory where pixels are. None unless they read the same inputs, have as many
    outputs, and there is one group.
    """
    merged: list[Phase] = []
    for _, row in itertools.groupby(phases, key=lambda p: (p.y_first[:2], p.x_first[:2])):
        members = list(row)
        first = members[0]
        same = all((p.geometry, p.x_first) == (first.geometry, first.x_first) for p in members)
        step = first.y_step[2]
        if not same or len(members) != step or first.weights.shape[0] != 1 or step == 1:
            return None
        weights = np.concatenate([p.weights for p in members], axis=1)
        merged.append(replace(first, weights=weights))
    return merged


def phase_text(phase: Phase) -> str:
    """Extents of a phase, for comments."""
    pixels = "x".join(str(n) for i, n in enumerate(phase.out) if n > 1 or i == 2)
    taps = "x".join(str(n) for i, n in enumerate(phase.taps) if n > 1 or i == 2)
    return f"{pixels} pixels of {phase.weights.shape[1]} outputs a group, {taps} taps"


def phases_border(phases: list[Phase], shape: ConvShape) -> Border:
    """Zeros that must surround the input, per axis of the node's own input (batch, spatial,
    channels).
    """
    spatial = []
    for i in range(3 - shape.axes, 3):
        first = min(p.x_first[i] for p in phases)
        last = max(
            p.x_first[i] + (p.out[i] - 1) * p.stride[i] + (p.taps[i] - 1) * p.dilation[i]
            for p in phases
        )
        spatial.append((max(0, -first), max(0, last - (shape.size[i] - 1))))
    return ((0, 0), *spatial, (0, 0))


def phases_need(phases: list[Phase], shape: ConvShape) -> Need:
    """What kernels without bounds tests ask of the input."""
    border = phases_border(phases, shape)
    return Need(border=border if any(b != (0, 0) for b in border) else (), unit_inner=True)


def _weights(node: Node, shape: ConvShape) -> F32:
    """The node's weights as [groups, outputs a group, kd, kh, kw, inputs a group]."""
    w = node.input(1).const
    assert w is not None
    per_group = shape.outputs // shape.groups
    return np.asarray(w, np.float32).reshape(shape.groups, per_group, *shape.kernel, -1)
