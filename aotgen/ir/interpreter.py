"""Runs a Graph in numpy: the oracle for every pass, template and board.

Each node's result is what the ``numpy`` rule of its op says. Nothing here knows an op. ``run`` is
one step from the initial state; an ``Instance`` keeps the state from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from aotgen.errors import InternalError, ModelError, UsageError
from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import Array, Sym
from aotgen.ops.registry import op_def

Observer = Callable[[Value, Array], None]
"""Called once for every node output, in execution order, with its value."""


class Instance:
    """A model that is run step by step; its state variables carry over.

    Attributes:
        graph: verified; it must not change as long as the instance is used.
        state: what each variable holds, by its name; the arrays are never written to.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.state: dict[str, Array] = {}
        self.reset()

    def reset(self) -> None:
        """Let every variable hold its initial value: the next step is the first one."""
        self.state = {s.value.name: s.initial for s in self.graph.states}

    def step(
        self, inputs: Mapping[str, Array], *, observe: Observer | None = None
    ) -> dict[str, Array]:
        """One run; see ``run``. The state changes when it has ended without an error."""
        graph = self.graph
        env = _bind_inputs(graph, inputs)
        env.update({s.value: self.state[s.value.name] for s in graph.states})
        names = graph.output_names or [value.name for value in graph.outputs]
        _execute(graph.nodes, env, keep=graph.results, observe=observe)
        found = {n: _result(env, v) for n, v in zip(names, graph.outputs, strict=True)}
        self.state = {s.value.name: _result(env, s.update) for s in graph.states}
        return found


def run(
    graph: Graph, inputs: Mapping[str, Array], *, observe: Observer | None = None
) -> dict[str, Array]:
    """The outputs of ``graph`` for ``inputs``, from its initial state.

    Args:
        graph: verified; groups are ignored.
        inputs: by name of graph input, in the input's dtype and shape (the model file's layout). An
            axis with a symbol takes any extent up to the symbol's maximum, the same wherever it
            appears.
        observe: is shown every intermediate value, before it is freed.

    Returns:
        by ``graph.output_names`` (by value name where the graph has none), in that order.

    Raises:
        UsageError: an input is missing, unknown, or of another dtype or shape.
        ModelError: a value that only shows when the model runs is wrong, such as an index.
    """
    return Instance(graph).step(inputs, observe=observe)


def run_drawn(
    model: Graph | Instance, feeds: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(feeds, outputs) of a step with inputs that were drawn at random: where the model refuses
    one of them, an integer that is an index into an axis of one element, all integers become 0.
    """
    instance = model if isinstance(model, Instance) else Instance(model)
    try:
        return dict(feeds), instance.step(feeds)
    except ModelError:
        small = {k: v if v.dtype.kind == "f" else np.zeros_like(v) for k, v in feeds.items()}
        return small, instance.step(small)


def run_values(
    graph: Graph, inputs: Mapping[str, Array], wanted: Iterable[str]
) -> dict[str, Array]:
    """The values named ``wanted``, of any node, input or constant; computes only what they need.

    Raises:
        UsageError: as ``run``, and when a name is no value of the graph.
    """
    table = {value.name: value for value in graph.values()}
    names = list(wanted)
    for name in names:
        if name not in table:
            raise UsageError(f"graph {graph.name!r} has no value {name!r}")
    keep = [table[name] for name in names]
    env = _bind_inputs(graph, inputs)
    env.update({s.value: s.initial for s in graph.states})
    _execute(_needed(graph, keep), env, keep=keep, observe=None)
    return {v.name: _result(env, v) for v in keep}


def evaluate(node: Node, arrays: list[Array | None]) -> list[Array]:
    """One node's outputs for these inputs, checked against the node's types.

    Raises:
        InternalError: the op's semantics and its type rule disagree.
    """
    with np.errstate(all="ignore"):
        results = op_def(node.op).numpy(node, arrays)
    if len(results) != len(node.outputs):
        raise InternalError(f"{node.op} node {node.name!r} gave {len(results)} outputs")
    for array, value in zip(results, node.outputs, strict=True):
        fits = array.dtype == value.dtype.numpy and array.ndim == value.type.rank
        if not fits or (value.type.is_static and array.shape != value.shape):
            raise InternalError(
                f"{node.op} node {node.name!r} gave {array.dtype}{list(array.shape)} for {value!r}"
            )
    return results


def _bind_inputs(graph: Graph, inputs: Mapping[str, Array]) -> dict[Value, Array]:
    known = {value.name: value for value in graph.inputs}
    for name in inputs:
        if name not in known:
            raise UsageError(
                f"the model has no input {name!r}", remedy=f"its inputs are {', '.join(known)}"
            )
    env: dict[Value, Array] = {}
    extents: dict[str, int] = {}
    for name, value in known.items():
        if name not in inputs:
            raise UsageError(f"input {name!r} is missing")
        env[value] = _check_input(value, np.asarray(inputs[name]), extents)
    return env


def _check_input(value: Value, array: Array, extents: dict[str, int]) -> Array:
    if array.dtype != value.dtype.numpy:
        raise UsageError(f"input {value.name!r} is {array.dtype}, must be {value.dtype.numpy}")
    wrong = UsageError(
        f"input {value.name!r} has shape {'x'.join(map(str, array.shape)) or 'scalar'}, "
        f"must be {'x'.join(map(str, value.type.shape)) or 'scalar'}"
    )
    if array.ndim != value.type.rank:
        raise wrong
    for dim, have in zip(value.type.shape, array.shape, strict=True):
        if isinstance(dim, Sym):
            if have > dim.max:
                raise wrong
            if extents.setdefault(dim.name, have) != have:
                raise UsageError(
                    f"input {value.name!r} has {dim.name} = {have}, "
                    f"another input has {dim.name} = {extents[dim.name]}"
                )
        elif dim != have:
            raise wrong
    return array


def _needed(graph: Graph, wanted: Iterable[Value]) -> list[Node]:
    """The nodes that ``wanted`` depend on, in execution order."""
    live = set(wanted)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if any(value in live for value in node.outputs):
            live.update(node.args)
            nodes.append(node)
    return nodes[::-1]


def _execute(
    nodes: list[Node], env: dict[Value, Array], *, keep: Iterable[Value], observe: Observer | None
) -> None:
    """Run ``nodes``, dropping every array after its last reader."""
    last: dict[Value, int] = {}
    for index, node in enumerate(nodes):
        for value in (*node.args, *node.outputs):
            last[value] = index
    kept = set(keep)
    dying: list[list[Value]] = [[] for _ in nodes]
    for value, index in last.items():
        if value not in kept:
            dying[index].append(value)
    for node, dead in zip(nodes, dying, strict=True):
        arrays = [None if value is None else _result(env, value) for value in node.inputs]
        for value, array in zip(node.outputs, evaluate(node, arrays), strict=True):
            env[value] = array
            if observe is not None:
                observe(value, array)
        for value in dead:
            env.pop(value, None)


def _result(env: dict[Value, Array], value: Value) -> Array:
    if value.const is not None:
        return value.const
    try:
        return env[value]
    except KeyError:
        raise InternalError(f"%{value.name} is read before it is computed") from None
