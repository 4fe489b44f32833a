"""Which channels of a node's inputs and outputs are one and the same: what removing channels needs.

The channels of a value are the indices of its last axis. A node that computes each output channel
from certain channels of its inputs alone, as element-wise ops, pools, depthwise convolutions and
most movements of elements do, can do without any of them as long as it loses them on both sides;
``links`` says which belong together, ``without_channels`` gives the node's new attributes. Products
that sum over channels (``integer_product``) link nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Node, Value
from aotgen.passes.layout import broadcasts

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
"""By channel, whether it is kept."""

MOST_CHANNELS = 1 << 14
"""Values with more are left as they are: flattened images of models that have no channels."""


@dataclass(frozen=True, eq=False)
class Link:
    """Channel ``inputs[i]`` of input ``source`` and ``outputs[i]`` of output ``target`` are one."""

    source: int
    target: int
    inputs: Indices
    outputs: Indices


@dataclass(frozen=True)
class Links:
    """How the channels of a node hang together.

    Attributes:
        pairs: what belongs together. Channels of an activation that are in no pair are not read by
            the node, those of an output depend on none.
        whole: inputs that are read whole, whatever becomes of the output's channels.
    """

    pairs: list[Link]
    whole: list[int] = field(default_factory=list)


def channels(value: Value) -> int:
    """The extent of the last axis; 1 of a scalar."""
    return value.shape[-1] if value.shape else 1


def links(node: Node) -> Links | None:
    """How the channels of ``node`` hang together; None when it must keep them all."""
    values = [v for v in (*node.args, *node.outputs) if not v.is_const]
    if not all(v.type.is_static and v.shape and 0 < channels(v) <= MOST_CHANNELS for v in values):
        return None
    if any(v.type.quant is not None and v.type.quant.axis is not None for v in values):
        return None
    if broadcasts(node):
        return _element_wise(node)
    rule = _RULES.get(node.op)
    return None if rule is None else rule(node)


def without_channels(node: Node, kept: Mapping[Value, Mask]) -> dict[str, Any]:
    """The attributes of ``node``, which has ``links``, when its values keep these channels alone.

    Args:
        kept: of every activation that it reads and of its outputs.
    """
    attrs, change = dict(node.attrs), _CHANGES.get(node.op)
    if change is not None:
        change(node, attrs, kept)
    return attrs


def _same(node: Node) -> Links:
    """Channel by channel, every input with every output."""
    index, targets = np.arange(channels(node.output)), range(len(node.outputs))
    return Links([Link(i, j, index, index) for i in range(len(node.inputs)) for j in targets])


def _element_wise(node: Node) -> Links | None:
    """Inputs with one channel are repeated: activations are read whole, constants stay."""
    quant = node.attrs.get("quant")
    if quant is not None and quant.axis is not None:
        return None
    index, found = np.arange(channels(node.output)), Links([])
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        if value.shape and channels(value) == len(index):
            found.pairs.append(Link(i, 0, index, index))
        elif not value.is_const:
            found.whole.append(i)
    return found


def _grouped(node: Node) -> Links | None:
    """A convolution loses whole groups. One group is a product over all channels."""
    groups = int(node.attrs["groups"])
    if groups == 1 or any(v is not None and not v.is_const for v in node.inputs[1:]):
        return None
    first = np.arange(groups)
    x, y = channels(node.input(0)), channels(node.output)
    inputs = np.concatenate([np.arange(x), np.repeat(first * (x // groups), y // groups)])
    outputs = np.concatenate([np.repeat(first * (y // groups), x // groups), np.arange(y)])
    return Links([Link(0, 0, inputs, outputs)])


def _without_groups(node: Node, attrs: dict[str, Any], kept: Mapping[Value, Mask]) -> None:
    mask = kept[node.input(0)]
    attrs["groups"] = int(mask.sum()) // (len(mask) // int(attrs["groups"]))


def _reshape(node: Node) -> Links | None:
    """The last axis stays, or merges with whole axes, or is parted into such."""
    a, b = channels(node.input(0)), channels(node.output)
    if b % a == 0:
        return Links([Link(0, 0, np.arange(b) % a, np.arange(b))])
    if a % b == 0:
        return Links([Link(0, 0, np.arange(a), np.arange(a) % b)])
    return None


def _reshaped(node: Node, attrs: dict[str, Any], kept: Mapping[Value, Mask]) -> None:
    attrs["shape"] = (*attrs["shape"][:-1], int(kept[node.output].sum()))


def _transpose(node: Node) -> Links | None:
    rank = node.input(0).type.rank
    return _same(node) if node.attrs["perm"][-1] == rank - 1 else None


def _concat(node: Node) -> Links:
    if node.attrs["axis"] != node.output.type.rank - 1:
        return _same(node)
    pairs, first = [], 0
    for i, value in enumerate(node.args):
        index = np.arange(channels(value))
        pairs.append(Link(i, 0, index, index + first))
        first += len(index)
    return Links(pairs)


def _split(node: Node) -> Links:
    if node.attrs["axis"] != node.input(0).type.rank - 1:
        return _same(node)
    pairs, first = [], 0
    for j, value in enumerate(node.outputs):
        index = np.arange(channels(value))
        pairs.append(Link(0, j, index + first, index))
        first += len(index)
    return Links(pairs)


def _divided(node: Node, attrs: dict[str, Any], kept: Mapping[Value, Mask]) -> None:
    if attrs["axis"] == node.input(0).type.rank - 1:
        attrs["sizes"] = tuple(int(kept[value].sum()) for value in node.outputs)


def _slice(node: Node) -> Links | None:
    if node.attrs["steps"][-1] != 1:
        return None
    index = np.arange(channels(node.output))
    return Links([Link(0, 0, index + node.attrs["starts"][-1], index)])


def _cut(node: Node, attrs: dict[str, Any], kept: Mapping[Value, Mask]) -> None:
    start = int(kept[node.input(0)][: attrs["starts"][-1]].sum())
    attrs["starts"] = (*attrs["starts"][:-1], start)
    attrs["ends"] = (*attrs["ends"][:-1], start + int(kept[node.output].sum()))


def _last_pads(node: Node) -> tuple[int, int]:
    rank = node.input(0).type.rank
    return int(node.attrs["pads"][rank - 1]), int(node.attrs["pads"][2 * rank - 1])


def _pad(node: Node) -> Links | None:
    before, after = _last_pads(node)
    if min(before, after) < 0 or (max(before, after) > 0 and node.attrs["mode"] != "constant"):
        return None
    index = np.arange(channels(node.input(0)))
    return Links([Link(0, 0, index, index + before)])


def _padded(node: Node, attrs: dict[str, Any], kept: Mapping[Value, Mask]) -> None:
    (before, _), rank, mask = _last_pads(node), node.input(0).type.rank, kept[node.output]
    pads = list(attrs["pads"])
    pads[rank - 1] = int(mask[:before].sum())
    pads[2 * rank - 1] = int(mask[before + channels(node.input(0)) :].sum())
    attrs["pads"] = tuple(pads)


def _reduce(node: Node) -> Links | None:
    rank = node.input(0).type.rank
    return None if {-1, rank - 1} & set(node.attrs["axes"]) else _same(node)


def _resize(node: Node) -> Links | None:
    attrs = node.attrs
    same = attrs["sizes"][-1] == channels(node.input(0)) and attrs["scales"][-1] == 1
    return _same(node) if same and attrs["coord"] != "tf_crop_and_resize" else None


def _resized(node: Node, attrs: dict[str, Any], kept: Mapping[Value, Mask]) -> None:
    attrs["sizes"] = (*attrs["sizes"][:-1], int(kept[node.output].sum()))


_RULES: dict[str, Callable[[Node], Links | None]] = {
    "qconv": _grouped,
    "reshape": _reshape,
    "transpose": _transpose,
    "concat": _concat,
    "split": _split,
    "slice": _slice,
    "pad": _pad,
    "resize": _resize,
    **dict.fromkeys(("max_pool", "avg_pool", "qavg_pool", "resize_bilinear_int"), _same),
    **dict.fromkeys(
        ("qreduce_sum", "qreduce_prod", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min"),
        _reduce,
    ),
}

_CHANGES: dict[str, Callable[[Node, dict[str, Any], Mapping[Value, Mask]], None]] = {
    "qconv": _without_groups,
    "reshape": _reshaped,
    "split": _divided,
    "slice": _cut,
    "pad": _padded,
    "resize": _resized,
}
