"""unwrap_dilation: a convolution between space-to-batch and batch-to-space is a dilated one.

TensorFlow writes a convolution of dilation b as: pad, put position p of every block of b into a
batch of its own (reshape, transpose, reshape), convolve, interleave the batches again and crop. The
convolution then sees every b-th element, and so does one of dilation b on the padded input, whose
own pads and dilations grow by the same factor. What the crop drops is not padded in the first
place. Exact for floats and integers: each output is the same sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aotgen.ir.graph import Graph, Node, Value
from aotgen.ops.registry import OpPattern, op_def
from aotgen.passes.base import Pass
from aotgen.passes.canonical_shape import BROADCAST
from aotgen.passes.rewrite import Rewriter, merged_origin

_ANCHORS = ("conv", "qconv")


class UnwrapDilation(Pass):
    """See the module's docstring."""

    name = "unwrap_dilation"
    level = 2

    def run(self, graph: Graph) -> bool:
        rw = Rewriter(graph)
        for node in rw.nodes():
            if node.op in _ANCHORS and set(node.attrs["strides"]) == {1}:
                wrapped = _find(rw, node)
                if wrapped is not None:
                    _unwrap(rw, wrapped)
        return rw.modified


@dataclass(frozen=True)
class _Wrapped:
    """What was found around a convolution.

    Attributes:
        source: [N, s*b, ..., C], before the blocks are taken apart.
        conv: the convolution of [N*b..., s, ..., C], maybe with axes of 1 more.
        chain: nodes behind it that work element by element.
        joined: [N, t*b, ..., C], the batches interleaved again.
        axes: for each axis of blocks the convolution's spatial axis.
        block: sizes, parallel to ``axes``.
        parts: all nodes that go away.
    """

    source: Value
    conv: Node
    chain: tuple[Node, ...]
    joined: Value
    axes: tuple[int, ...]
    block: tuple[int, ...]
    parts: tuple[Node, ...]


def _apart(count: int, rank: int) -> tuple[int, ...]:
    """[N, s, b, ..., C] -> [b, ..., N, s, ..., C]."""
    blocks, inner = range(2, 2 * count + 1, 2), range(1, 2 * count, 2)
    return (*blocks, 0, *inner, *range(2 * count + 1, rank))


def _together(count: int, rank: int) -> tuple[int, ...]:
    """[b, ..., N, s, ..., C] -> [N, s, b, ..., C]."""
    pairs = (axis for i in range(count) for axis in (count + 1 + i, i))
    return (count, *pairs, *range(2 * count + 1, rank))


def _find(rw: Rewriter, conv: Node) -> _Wrapped | None:
    if not all(v.type.is_static for v in (*conv.args, conv.output)):
        return None
    before, reshapes_in = _through_reshapes_up(conv.input(0))
    apart = before.producer
    if apart is None or apart.op != "transpose":
        return None
    split = apart.input(0).producer
    if split is None or split.op != "reshape":
        return None
    shape = split.output.shape
    count = (len(shape) - 2) // 2
    if len(shape) != 2 * count + 2 or count < 1 or apart.attrs["perm"] != _apart(count, len(shape)):
        return None
    inner, block = shape[1:-1:2], shape[2:-1:2]
    source = split.input(0)
    joint = tuple(s * b for s, b in zip(inner, block, strict=True))
    if source.shape != (shape[0], *joint, shape[-1]):
        return None
    axes = _spatial_axes(conv.input(0).shape, inner)
    if axes is None:
        return None
    chain, value = _chain(rw, conv)
    value, reshapes_out = _through_reshapes_down(rw, value)
    together = rw.sole_user(value)
    if together is None or together.op != "transpose":
        return None
    back = rw.sole_user(together.output)
    rank = len(value.shape)
    if back is None or back.op != "reshape" or together.attrs["perm"] != _together(count, rank):
        return None
    channels = conv.output.shape[-1]
    outer = value.shape[count + 1 : 2 * count + 1]
    whole = tuple(s * b for s, b in zip(outer, block, strict=True))
    if value.shape != (*block, shape[0], *outer, channels):
        return None
    if back.output.shape != (shape[0], *whole, channels):
        return None
    # The axes of 1 that the input has more, the output must have as well.
    if conv.output.shape[1:-1] != _with_ones(outer, axes, len(conv.output.shape) - 2):
        return None
    parts = (split, apart, *reshapes_in, conv, *chain, *reshapes_out, together, back)
    return _Wrapped(source, conv, chain, back.output, axes, block, parts)


def _through_reshapes_up(value: Value) -> tuple[Value, list[Node]]:
    """What ``value`` is a reshape of, and the reshapes."""
    nodes: list[Node] = []
    while value.producer is not None and value.producer.op == "reshape":
        nodes.append(value.producer)
        value = value.producer.input(0)
    return value, nodes


def _through_reshapes_down(rw: Rewriter, value: Value) -> tuple[Value, list[Node]]:
    nodes: list[Node] = []
    while (user := rw.sole_user(value)) is not None and user.op == "reshape":
        nodes.append(user)
        value = user.output
    return value, nodes


def _chain(rw: Rewriter, conv: Node) -> tuple[tuple[Node, ...], Value]:
    """Nodes behind ``conv`` that do the same to each element of a channel, and the last result."""
    nodes: list[Node] = []
    value = conv.output
    while (user := rw.sole_user(value)) is not None and _is_pointwise(user, value):
        nodes.append(user)
        value = user.output
    return tuple(nodes), value


def _is_pointwise(node: Node, value: Value) -> bool:
    others = [v for v in node.args if v is not value]
    if len(node.outputs) != 1 or node.output.shape != value.shape:
        return False
    if any(v.type.quant is not None and v.type.quant.axis is not None for v in node.outputs):
        return False
    if not others:
        return op_def(node.op).pattern is OpPattern.ELEMENTWISE and node.args.count(value) == 1
    return node.op in BROADCAST and all(
        v.is_const and all(d == 1 for d in v.shape[:-1]) for v in others
    )


def _spatial_axes(shape: Sequence[int], inner: Sequence[int]) -> tuple[int, ...] | None:
    """The axis among ``shape``'s spatial ones of each of ``inner``; the others must be 1."""
    axes: list[int] = []
    for axis, extent in enumerate(shape[1:-1]):
        left = len(shape) - 2 - axis
        wanted = len(inner) - len(axes)
        if wanted and extent == inner[len(axes)] and (extent != 1 or wanted == left):
            axes.append(axis)
        elif extent != 1:
            return None
    return tuple(axes) if len(axes) == len(inner) else None


def _with_ones(inner: Sequence[int], axes: Sequence[int], count: int) -> tuple[int, ...]:
    extents = [1] * count
    for axis, extent in zip(axes, inner, strict=True):
        extents[axis] = extent
    return tuple(extents)


def _unwrap(rw: Rewriter, found: _Wrapped) -> None:
    conv, spatial = found.conv, len(found.conv.output.shape) - 2
    origin = merged_origin(*found.parts)
    block = _with_ones(found.block, found.axes, spatial)
    joined, source, removed = _without_cropped_pads(rw, found)
    place = found.joined.producer if removed is None else removed
    assert place is not None
    extents = _with_ones(source.shape[1:-1], found.axes, spatial)
    x = source
    if (shape := (x.shape[0], *extents, x.shape[-1])) != x.shape:
        x = _like(rw.insert_before(place, "reshape", [x], origin=origin, shape=shape), x)
    attrs = dict(conv.attrs)
    attrs["dilations"] = tuple(d * b for d, b in zip(attrs["dilations"], block, strict=True))
    attrs["pads"] = tuple(p * b for p, b in zip(attrs["pads"], (*block, *block), strict=True))
    y = rw.insert_before(place, conv.op, [x, *conv.inputs[1:]], origin=origin, **attrs)
    fresh, old = [_like(y, conv.output)], conv.output
    for node in found.chain:
        inputs = [y if v is old else v for v in node.inputs]
        y = rw.insert_before(place, node.op, inputs, origin=node.origin, **node.attrs)
        fresh.append(_like(y, node.output))
        old = node.output
    if y.shape != joined.shape:
        y = _like(rw.insert_before(place, "reshape", [y], origin=origin, shape=joined.shape), y)
    rw.redirect(joined, y)
    y.name = joined.name
    for value, node in zip(fresh, (conv, *found.chain), strict=True):
        if value.producer is not None:
            value.producer.name = node.name


def _like(value: Value, old: Value) -> Value:
    """``value`` with the quantization of ``old``, whose elements it has."""
    value.type = replace(value.type, quant=old.type.quant)
    return value


def _without_cropped_pads(rw: Rewriter, found: _Wrapped) -> tuple[Value, Value, Node | None]:
    """(the value to replace, the convolution's input, the slice that goes away).

    Where a slice behind crops no more than a pad before has added, that is the slice's result, of a
    smaller pad.
    """
    nothing = (found.joined, found.source, None)
    crop, pad = rw.sole_user(found.joined), found.source.producer
    if crop is None or crop.op != "slice" or pad is None or pad.op != "pad":
        return nothing
    if set(crop.attrs["steps"]) != {1} or any(found.conv.attrs["pads"]):
        return nothing
    rank = len(found.source.shape)
    begins = crop.attrs["starts"]
    ends = tuple(n - e for n, e in zip(found.joined.shape, crop.attrs["ends"], strict=True))
    pads = tuple(p - c for p, c in zip(pad.attrs["pads"], (*begins, *ends), strict=True))
    channels = (begins[0], ends[0], begins[-1], ends[-1])
    if any(channels) or pad.attrs["mode"] != "constant" or min(pads) < 0:
        return nothing
    x = pad.input(0)
    if any(pads):
        attrs = {**pad.attrs, "pads": pads}
        x = rw.insert_before(crop, "pad", [x], name=pad.name, origin=pad.origin, **attrs)
        _like(x, found.source)
    assert len(pads) == 2 * rank
    return crop.output, x, crop
