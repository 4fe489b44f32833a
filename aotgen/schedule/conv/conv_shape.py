"""A convolution or pool node read into one form: three spatial axes, missing ones of extent 1."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aotgen.ir.graph import Node
from aotgen.schedule.base import Need, View

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class ConvShape:
    """Extents of a convolution or pool; spatial triples are (depth, height, width).

    Attributes:
        batch: images.
        size, out: input and output extents.
        kernel, stride, dilation: of the window.
        begin, end: padding.
        channels, outputs: input and output channels, of all groups together.
        groups: 1 for a pool.
        axes: spatial axes the node really has.
    """

    batch: int
    size: Triple
    out: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    begin: Triple
    end: Triple
    channels: int
    outputs: int
    groups: int
    axes: int

    @classmethod
    def of(cls, node: Node) -> ConvShape:
        """The shape of a conv, conv_transpose, max_pool or avg_pool node with one to three spatial
        axes.
        """
        x, y = node.input(0).shape, node.output.shape
        axes = len(x) - 2
        pads = tuple(node.attrs["pads"])
        conv = node.op in ("conv", "conv_transpose")
        kernel = node.input(1).shape[1:-1] if conv else tuple(node.attrs["kernel"])
        return cls(
            batch=x[0],
            size=_triple(x[1:-1], 1),
            out=_triple(y[1:-1], 1),
            kernel=_triple(kernel, 1),
            stride=_triple(node.attrs["strides"], 1),
            dilation=_triple(node.attrs["dilations"], 1),
            begin=_triple(pads[:axes], 0),
            end=_triple(pads[axes:], 0),
            channels=x[-1],
            outputs=y[-1],
            groups=int(node.attrs["groups"]) if conv else 1,
            axes=axes,
        )

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == (1, 1, 1)

    @property
    def maps_pixels(self) -> bool:
        """Whether every output pixel depends on the input pixel of its own place alone, all of
        them in order: a product of matrices, of one group or several.
        """
        stays = self.stride == (1, 1, 1) and not any((*self.begin, *self.end))
        return self.is_pointwise and stays

    def inside(self, axis: int) -> tuple[int, int]:
        """The range of outputs along an axis whose window lies inside the input."""
        reach = (self.kernel[axis] - 1) * self.dilation[axis]
        low = -(-self.begin[axis] // self.stride[axis])
        high = (self.size[axis] - 1 + self.begin[axis] - reach) // self.stride[axis] + 1
        low = min(low, self.out[axis])
        return low, max(low, min(high, self.out[axis]))

    def reach(self, axis: int, outputs: int = 1) -> int:
        """Inputs along an axis from the first to the last that so many neighbouring outputs read,
        those between dilated taps included.
        """
        window = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        return (outputs - 1) * self.stride[axis] + window

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.channels == self.outputs

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1] * self.kernel[2]

    @property
    def reduction(self) -> int:
        """Products summed per output."""
        return self.taps * (self.channels // self.groups)

    @property
    def macs(self) -> int:
        return self.batch * self.out[0] * self.out[1] * self.out[2] * self.outputs * self.reduction

    def border(self) -> tuple[tuple[int, int], ...]:
        """Zeros that must surround the input of a conv or pool, per axis of the node's own input
        (batch, spatial, channels).
        """
        spatial = []
        for i in range(3 - self.axes, 3):
            last = (
                (self.out[i] - 1) * self.stride[i]
                + (self.kernel[i] - 1) * self.dilation[i]
                - self.begin[i]
            )
            spatial.append((self.begin[i], max(0, last - (self.size[i] - 1))))
        return ((0, 0), *spatial, (0, 0))

    def need(self, unit_inner: bool = True) -> Need:
        """What a kernel without bounds tests asks of its input."""
        border = self.border()
        return Need(
            border=border if any(b != (0, 0) for b in border) else (), unit_inner=unit_inner
        )

    def exchanged(self) -> ConvShape:
        """The shape with height and width exchanged."""

        def turned(triple: Triple) -> Triple:
            depth, height, width = triple
            return depth, width, height

        return replace(
            self,
            size=turned(self.size),
            out=turned(self.out),
            kernel=turned(self.kernel),
            stride=turned(self.stride),
            dilation=turned(self.dilation),
            begin=turned(self.begin),
            end=turned(self.end),
        )

    def spatial_strides(self, view: View) -> Triple:
        """Elements between neighbours along (depth, height, width); 0 for axes the node lacks."""
        return _triple(view.strides[1 : 1 + self.axes], 0)


def _triple(values: tuple[int, ...], missing: int) -> Triple:
    padded = (missing,) * (3 - len(values)) + tuple(int(v) for v in values)
    return padded[0], padded[1], padded[2]
