"""Pads, strides and output sizes of sliding windows: convolutions and pools share ONNX's rules for
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotgen.frontend.onnx.node import OnnxNode


@dataclass(frozen=True)
class Window:
    """Per spatial axis; ``pads`` are all begins, then all ends, and include ``ceil_extra``.

    Attributes:
        ceil_extra: how much of an end pad exists only because the output size was rounded up.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil_extra: tuple[int, ...]


def window(n: OnnxNode, size: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of ``n`` over spatial ``size``, with auto_pad and ceil_mode resolved."""
    axes = len(size)
    if len(kernel) != axes:
        n.refuse(f"kernel_shape {list(kernel)} does not fit {axes} spatial axes")
    strides = n.get_ints("strides") or (1,) * axes
    dilations = n.get_ints("dilations") or (1,) * axes
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if min((*strides, *dilations, *kernel)) < 1:
        n.refuse("strides, dilations and kernel sizes must be at least 1")
    ceil = bool(n.get_int("ceil_mode", 0))
    auto = n.get_str("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_pads(size, spans, strides, upper=auto == "SAME_UPPER")
        ceil = False
    elif auto == "VALID":
        pads = [0] * (2 * axes)
    elif auto in ("NOTSET", ""):
        pads = list(n.get_ints("pads") or (0,) * (2 * axes))
    else:
        n.refuse(f"auto_pad={auto!r} is not known", "give explicit pads")
    if len(pads) != 2 * axes:
        n.refuse(f"pads {pads} do not fit {axes} spatial axes")
    if min(pads) < 0:
        n.refuse(f"negative pads {pads} are not supported", "slice the input instead")
    extra = _ceil_extra(size, spans, strides, pads) if ceil else (0,) * axes
    for axis in range(axes):
        pads[axes + axis] += extra[axis]
        if size[axis] + pads[axis] + pads[axes + axis] < spans[axis]:
            n.refuse(
                f"its window ({spans[axis]} with dilation) is larger than the padded input "
                f"({size[axis] + pads[axis] + pads[axes + axis]}) on spatial axis {axis}",
                "check the input shape given with --shape",
            )
    return Window(tuple(kernel), tuple(strides), tuple(pads), tuple(dilations), extra)


def _same_pads(
    size: Sequence[int], spans: Sequence[int], strides: Sequence[int], *, upper: bool
) -> list[int]:
    """Pads for ceil(size / stride) outputs; an odd cell goes to the end (upper) or begin."""
    total = [
        max(0, ((s + t - 1) // t - 1) * t + k - s)
        for s, k, t in zip(size, spans, strides, strict=True)
    ]
    small = [t // 2 for t in total]
    large = [t - s for t, s in zip(total, small, strict=True)]
    return [*small, *large] if upper else [*large, *small]


def _ceil_extra(
    size: Sequence[int], spans: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> tuple[int, ...]:
    """End pads that make room for the last, partial window; one that starts beyond the begin-padded
    input is dropped.
    """
    found = []
    axes = len(size)
    for axis, (s, span, stride) in enumerate(zip(size, spans, strides, strict=True)):
        padded = s + pads[axis] + pads[axes + axis]
        count = -((span - padded) // stride) + 1
        if (count - 1) * stride >= s + pads[axis]:
            count -= 1
        found.append(max(0, (count - 1) * stride + span - padded))
    return tuple(found)
