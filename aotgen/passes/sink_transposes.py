"""sink_transposes: transposes move towards the outputs and cancel; none is left in a CNN.

    op(transpose(x)) = transpose(op'(x))            element-wise, concat, slice, pad, reduce, ...
    transpose(transpose(x, p), q) = transpose(x, p o q)
    reshape(transpose(x)) = transpose(reshape'(x))  where whole blocks of axes stay together
    matmul(reshape(transpose(x)), W) = matmul(reshape(x), W')   rows of the constant W permuted
    matmul(a, transpose(b)) = matmul(a, b, trans_b)

What does not cancel on its way down is tried upwards, and moves when that leaves fewer transposes.
Runs at every level: the frontend brackets every convolution with transposes and relies on this
pass. All steps are exact.
"""

from __future__ import annotations

from typing import Any

from aotgen.ir.graph import Graph, Node, Value
from aotgen.ops.registry import OpPattern, op_def
from aotgen.passes import layout
from aotgen.passes.base import Pass
from aotgen.passes.layout import Perm
from aotgen.passes.matmul_operands import fold_flatten, use_trans_b
from aotgen.passes.rewrite import Rewriter, is_movable_node, merged_origin

_DEPTH = 64
"""How many ops up a transpose may move."""


class SinkTransposes(Pass):
    """Move transposes down, cancel them, then try the rest upwards."""

    name = "sink_transposes"
    level = 0

    def run(self, graph: Graph) -> bool:
        if not any(n.op in ("transpose", "matmul") for n in graph.nodes):
            return False
        rw = Rewriter(graph)
        while _sweep(rw) or _hoist_one(rw):
            pass
        for node in rw.nodes():
            if node.op == "transpose":
                _as_reshape(rw, node)
        return rw.modified


def _sweep(rw: Rewriter) -> bool:
    """One pass over the nodes, in order; True when anything moved."""
    moved = False
    seen: dict[tuple[Value, Perm], Node] = {}
    for node in rw.nodes():
        if not rw.alive(node) or not is_movable_node(node):
            continue
        if node.op == "transpose":
            moved |= _simplify(rw, node) or _share(rw, node, seen)
        elif node.op == "matmul":
            moved |= use_trans_b(rw, node) or fold_flatten(rw, node)
        elif node.op == "reshape":
            moved |= _sink_reshape(rw, node)
        else:
            moved |= _sink(rw, node)
    return moved


def perm_of(value: Value) -> Perm | None:
    """The permutation of the transpose that computes ``value``, None when another op does."""
    node = value.producer
    return node.attrs["perm"] if node is not None and node.op == "transpose" else None


def _simplify(rw: Rewriter, node: Node) -> bool:
    """Identity, constant operand, transpose of a transpose."""
    source, perm = node.input(0), node.attrs["perm"]
    if layout.is_identity(perm):
        rw.redirect(node.output, source)
        return True
    if source.const is not None:
        array = source.const.transpose(perm).copy(order="C")
        rw.redirect(node.output, rw.graph.constant(array, source.name))
        return True
    inner = perm_of(source)
    if inner is None or source.producer is None:
        return False
    merged, origin = layout.compose(inner, perm), [source.producer]
    if layout.is_identity(merged):
        rw.redirect(node.output, source.producer.input(0))
    else:
        rw.replace(node, "transpose", [origin[0].input(0)], {"perm": merged}, absorbed=origin)
    return True


def _share(rw: Rewriter, node: Node, seen: dict[tuple[Value, Perm], Node]) -> bool:
    """Two equal transposes of one value are one."""
    first = seen.setdefault((node.input(0), node.attrs["perm"]), node)
    if first is node or not rw.alive(first):
        seen[node.input(0), node.attrs["perm"]] = node
        return False
    first.origin = merged_origin(first, node)
    rw.redirect(node.output, first.output)
    return True


def _sink(rw: Rewriter, node: Node) -> bool:
    """op(transpose(x), ...) = transpose(op'(x, ...))."""
    data = _data_inputs(node)
    perms = [p for p in (perm_of(v) for v in data) if p is not None]
    if not perms:
        return False
    perm = perms[0]
    step = layout.permuted(node, perm)
    if step is None or not all(_can_undo(v, perm) for v in data):
        return False
    source = next(v.producer.input(0) for v in data if v.producer and perm_of(v) == perm)
    if layout.is_identity(perm):
        return False
    if source.producer is None and layout.broadcasts(node) and _reaches_anchor(rw, node.output):
        return False
    inputs = list(node.inputs)
    moved = [v.producer for v in data if v.producer is not None and perm_of(v) == perm]
    for index, value in enumerate(node.inputs):
        if value is not None and any(v is value for v in data):
            inputs[index] = _undone(rw, node, value, perm)
    rw.compute_through(
        node, inputs, step.attrs, "transpose", {"perm": step.out}, origin=merged_origin(*moved)
    )
    return True


def _reaches_anchor(rw: Rewriter, value: Value) -> bool:
    """A chain of element-wise ops leads from ``value`` into an anchor, which no transpose passes.

    Then the transpose of a graph input is better in front of the chain: ops in the anchor's own
    layout can be folded into its weights.
    """
    user = rw.sole_user(value)
    while user is not None and layout.broadcasts(user):
        user = rw.sole_user(user.output)
    return user is not None and op_def(user.op).pattern is OpPattern.ANCHOR


def _from_input(rw: Rewriter, value: Value, perm: Perm) -> bool:
    """``value`` is computed from a graph input and constants by a chain of element-wise ops."""
    while value.producer is not None:
        node = value.producer
        data = [v for v in dict.fromkeys(node.args) if not v.is_const]
        if not layout.broadcasts(node) or len(data) != 1 or not _hoistable(rw, node, perm):
            return False
        value = data[0]
    return True


def _data_inputs(node: Node) -> list[Value]:
    """The inputs that have the layout of the data; scales, indices and the like have not."""
    if layout.broadcasts(node) or node.op == "concat":
        return node.args
    return [node.input(0)] if node.inputs and node.inputs[0] is not None else []


def _can_undo(value: Value, perm: Perm) -> bool:
    """The inverse of ``perm`` costs nothing on ``value``, which is broadcast to the rank of
    ``perm``."""
    if value.is_const or _before_transpose(value, perm) is not None:
        return True
    shape = (1,) * (len(perm) - value.type.rank) + value.shape
    return layout.moves_only_units(shape, layout.inverse(perm))


def _before_transpose(value: Value, perm: Perm) -> Value | None:
    """x where ``value`` is its transpose by ``perm``, but for axes of extent 1."""
    inner = perm_of(value)
    if inner is None or value.producer is None or len(inner) != len(perm):
        return None
    source = value.producer.input(0)
    rest = layout.compose(inner, layout.inverse(perm))
    return source if layout.moves_only_units(source.shape, rest) else None


def _undone(rw: Rewriter, place: Node, value: Value, perm: Perm) -> Value:
    """``value`` transposed by the inverse of ``perm``, for free (see ``_can_undo``)."""
    if perm_of(value) == perm and value.producer is not None:
        return value.producer.input(0)
    back = layout.inverse(perm)
    shape = (1,) * (len(perm) - value.type.rank) + value.shape
    if all(n == 1 for n in shape) and value.type.rank <= 1:
        return value
    target = tuple(shape[a] for a in back)
    value = _before_transpose(value, perm) or value
    if value.const is not None:
        array = value.const.reshape(shape).transpose(back)
        while array.ndim > value.type.rank and array.shape[0] == 1:
            array = array[0]
        if array.shape == value.shape and value.const.size <= max(array.shape, default=1):
            return value
        return rw.graph.constant(array.copy(order="C"), value.name)
    if target == value.shape:
        return value
    return rw.insert_before(place, "reshape", [value], origin=place.origin, shape=target)


def _sink_reshape(rw: Rewriter, node: Node) -> bool:
    """reshape(transpose(x)): what can be undone behind the reshape moves there."""
    transposed = node.input(0)
    perm = perm_of(transposed)
    if perm is None or transposed.producer is None:
        return False
    x = transposed.producer.input(0)
    split = layout.split_reshape(x.shape, perm, node.output.shape)
    if split is None or layout.is_identity(split.after):
        return _reshape_of_units(rw, node, x, perm)
    source = x
    if not layout.moves_only_units(x.shape, split.before):
        # A real transpose stays in front; a second one behind must find its counterpart.
        if not _absorbed(rw, node.output, split.after, 8):
            return False
        source = rw.insert_before(
            node, "transpose", [x], origin=transposed.producer.origin, perm=split.before
        )
    origin = merged_origin(transposed.producer)
    attrs = {"shape": split.inner}
    rw.compute_through(node, [source], attrs, "transpose", {"perm": split.after}, origin=origin)
    return True


def _reshape_of_units(rw: Rewriter, node: Node, x: Value, perm: Perm) -> bool:
    """A transpose that moves nothing in memory vanishes in the reshape behind it."""
    if not layout.moves_only_units(x.shape, perm):
        return False
    rw.replace(node, "reshape", [x], node.attrs)
    return True


def _absorbed(rw: Rewriter, value: Value, perm: Perm, depth: int) -> bool:
    """All that reads ``value`` is a transpose, or lets one by ``perm`` pass that comes to it."""
    if rw.is_output(value) or depth == 0:
        return False
    for user in rw.users(value):
        if user.op == "transpose":
            continue
        behind = _behind(user, value, perm)
        if behind is None:
            return False
        if not all(_absorbed(rw, out, behind, depth - 1) for out in user.outputs):
            return False
    return True


def _behind(user: Node, value: Value, perm: Perm) -> Perm | None:
    """What a transpose of ``value`` by ``perm`` becomes behind its reader; None when it stays."""
    if user.op == "reshape":
        source = tuple(value.shape[i] for i in layout.inverse(perm))
        split = layout.split_reshape(source, perm, user.output.shape)
        if split is None or not layout.moves_only_units(source, split.before):
            return None
        return None if layout.is_identity(split.after) else split.after
    step = layout.permuted(user, perm)
    others = [v for v in _data_inputs(user) if v is not value]
    if step is None or not all(_can_undo(v, perm) for v in others):
        return None
    return step.out


def _hoist_one(rw: Rewriter) -> bool:
    """Move one transpose up through the ops that compute its input, if fewer transposes are left
    then."""
    for node in rw.nodes():
        if node.op != "transpose" or not is_movable_node(node):
            continue
        inner, perm = node.input(0).producer, node.attrs["perm"]
        if inner is None or not _hoistable(rw, inner, perm):
            continue
        if layout.moves_only_units(node.input(0).shape, perm):
            continue
        cost = _hoist_cost(rw, node.input(0), perm, _DEPTH)
        at_anchor = _reaches_anchor(rw, node.output)
        if cost < 1 or (cost == 1 and at_anchor and _from_input(rw, node.input(0), perm)):
            inputs, attrs = _hoisted_operands(rw, inner, perm, _DEPTH)
            rw.replace(node, inner.op, inputs, attrs, absorbed=[inner], name=inner.name)
            return True
    return False


def _hoist_cost(rw: Rewriter, value: Value, perm: Perm, depth: int) -> int:
    """How many more transposes there are when ``value`` is wanted transposed by ``perm``."""
    if value.is_const or layout.moves_only_units(value.shape, perm):
        return 0
    inner = perm_of(value)
    if inner is not None:
        cancels = layout.is_identity(layout.compose(inner, perm))
        return int(not cancels) - int(rw.sole_user(value) is not None)
    node = value.producer
    if node is None or depth == 0 or not _hoistable(rw, node, perm):
        return 1
    return sum(_hoist_cost(rw, v, perm, depth - 1) for v in dict.fromkeys(_data_inputs(node)))


def _hoistable(rw: Rewriter, node: Node, perm: Perm) -> bool:
    """transpose(node(...), perm) = node'(transpose(..., perm)), and nothing else reads the node."""
    if len(node.outputs) != 1 or rw.sole_user(node.output) is None or not is_movable_node(node):
        return False
    data = _data_inputs(node)
    if not data or any(v.type.rank != len(perm) and not v.is_const for v in data):
        return False
    step = layout.permuted(node, layout.inverse(perm))
    return step is not None and step.out == layout.inverse(perm)


def _hoisted(rw: Rewriter, place: Node, value: Value, perm: Perm, depth: int) -> Value:
    """``value`` transposed by ``perm``, by the moves that ``_hoist_cost`` counts; new nodes precede
    ``place``."""
    if value.is_const or layout.moves_only_units(value.shape, perm):
        return _undone(rw, place, value, layout.inverse(perm))
    node = value.producer
    inner = perm_of(value)
    if inner is not None and node is not None:
        merged = layout.compose(inner, perm)
        if layout.is_identity(merged):
            return node.input(0)
        return rw.insert_before(
            place, "transpose", [node.input(0)], origin=node.origin, perm=merged
        )
    if node is None or depth == 0 or not _hoistable(rw, node, perm):
        return rw.insert_before(place, "transpose", [value], origin=place.origin, perm=perm)
    inputs, attrs = _hoisted_operands(rw, node, perm, depth)
    return rw.insert_before(node, node.op, inputs, name=node.name, origin=node.origin, **attrs)


def _hoisted_operands(
    rw: Rewriter, node: Node, perm: Perm, depth: int
) -> tuple[list[Value | None], dict[str, Any]]:
    """Inputs and attributes with which ``node`` computes its output transposed by ``perm``."""
    step = layout.permuted(node, layout.inverse(perm))
    assert step is not None
    moved = {
        value: _hoisted(rw, node, value, perm, depth - 1)
        for value in dict.fromkeys(_data_inputs(node))
    }
    return [v if v is None else moved.get(v, v) for v in node.inputs], step.attrs


def _as_reshape(rw: Rewriter, node: Node) -> None:
    """A transpose that moves no element in memory is a reshape."""
    if is_movable_node(node) and layout.moves_only_units(node.input(0).shape, node.attrs["perm"]):
        rw.replace(node, "reshape", [node.input(0)], {"shape": node.output.type.shape})
