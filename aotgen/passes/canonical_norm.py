"""Rules of canonicalize_ops about normalisation over pixels.

    reshape(instance_norm(reshape(x, [N, G, -1])), shape of x) = group_norm(x)
    reshape(instance_norm(reshape(x, [N, -1, C])), shape of x) = instance_norm(x)
    group_norm(x) * c, instance_norm(x) + c = the same with other parameters

The first is how frameworks export group normalisation for opsets that lack it. Written with
channels last, it needs no transposes between convolutions.
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Node
from aotgen.passes.canonical_math import channel_vector, constant_array
from aotgen.passes.pattern import Const, Match, Op, Rule, Var
from aotgen.passes.rewrite import Rewriter, constant_like, is_f32

_SWAP = (0, 2, 1)


def _group_norm(rw: Rewriter, match: Match) -> str | None:
    """x [N,C,*S] normalised as [N,G,L], an instance a group of channels."""
    node, x, norm, split = match.root, match["x"], match.node("norm"), match.node("split")
    if node.output.type != x.type or not is_f32(x):
        return "the result has another shape than x, or is not f32"
    if x.type.rank < 3 or any(n.attrs["perm"] != _SWAP for n in _swaps(match)):
        return "not groups of the channels of images"
    batch, channels = x.shape[:2]
    groups = norm.output.shape[-1]
    if split.output.shape != (batch, *_grouped(match, groups, x.type.numel // (batch * groups))):
        return "does not split the channels"
    if channels % groups:
        return "groups do not divide the channels"
    if not _swaps(match) and 1 not in norm.output.shape[1:]:
        return "the elements of a group are not neighbours"
    last = x.type.rank - 1
    parameters = [
        constant_like(rw.graph, np.repeat(array, channels // groups), f"{norm.name}.{name}")
        for name in ("scale", "bias")
        for array in [constant_array(match, name)]
    ]
    source = rw.insert_before(
        node, "transpose", [x], perm=(0, *range(2, last + 1), 1), origin=split.origin
    )
    attrs = {"groups": groups, "eps": norm.attrs["eps"]}
    value = rw.insert_before(
        node, "group_norm", [source, *parameters], name=norm.name, origin=norm.origin, **attrs
    )
    perm = (0, last, *range(1, last))
    rw.replace(node, "transpose", [value], {"perm": perm}, absorbed=match.inner)
    return None


def _over_pixels(rw: Rewriter, match: Match) -> str | None:
    """x [N,*S,C] normalised as [N,prod S,C]: instance_norm needs no reshape."""
    node, x, norm, split = match.root, match["x"], match.node("norm"), match.node("split")
    if node.output.type != x.type or x.type.rank < 3:
        return "the result has another shape than x"
    ends = (x.shape[0], x.shape[-1])
    if (split.output.shape[0], split.output.shape[-1]) != ends:
        return "pixels are not all that is joined"
    inputs = [x, *norm.inputs[1:]]
    rw.replace(node, "instance_norm", inputs, norm.attrs, absorbed=match.inner, name=norm.name)
    return None


def _swaps(match: Match) -> list[Node]:
    """The transposes of [N,G,L] around the norm."""
    return [match.node(name) for name in ("before", "behind") if name in match.values]


def _grouped(match: Match, groups: int, rest: int) -> tuple[int, int]:
    """Shape of the split tensor behind the batch. Without swaps it is channels last: groups of
    channels only where there is one group, or one element in each.
    """
    return (groups, rest) if _swaps(match) else (rest, groups)


def _affine(rw: Rewriter, match: Match) -> str | None:
    """A constant per channel behind the norm is its scale or its bias."""
    node, norm = match.root, match.node("norm")
    if node.output.type != norm.output.type:
        return "broadcasts the result"
    factor = channel_vector(match["c"], norm.output.shape[-1])
    if factor is None:
        return "not one number per channel"
    scale, bias = constant_array(match, "scale"), constant_array(match, "bias")
    if node.op == "mul":
        scale, bias = scale * factor, bias * factor
    else:
        bias = bias + factor
    values = [
        constant_like(rw.graph, array, f"{norm.name}.{name}")
        for name, array in (("scale", scale), ("bias", bias))
    ]
    inputs = [norm.input(0), *values]
    rw.replace(node, norm.op, inputs, norm.attrs, absorbed=[norm], name=norm.name)
    return None


def _norm(op: str | tuple[str, ...], x: Op | Var) -> Op:
    return Op(op, x, Const("scale"), Const("bias"), name="norm")


_split = Op("reshape", Var("x"), name="split")
NORM_RULES = (
    Rule(
        "group_norm",
        Op(
            "reshape",
            Op(
                "transpose",
                _norm("instance_norm", Op("transpose", _split, name="before")),
                name="behind",
            ),
        ),
        _group_norm,
    ),
    Rule("instance_norm", Op("reshape", _norm("instance_norm", _split)), _over_pixels),
    Rule("group_norm", Op("reshape", _norm("instance_norm", _split)), _group_norm),
    Rule(
        "norm affine",
        Op(("mul", "add"), _norm(("group_norm", "instance_norm"), Var("x")), Const("c")),
        _affine,
    ),
)
