"""Resource variables: VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE, and CALL_ONCE, which sets them
first.

A variable is a state of the graph. Its initial value is what the subgraph of CALL_ONCE assigns,
which must be known while compiling. Within a run a read sees the assignment before it; what the
last one assigned is what the next run begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotgen.frontend.tflite.node import Output, Resource, TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import State, Value
from aotgen.ir.types import Array, TensorType

_INITIALISING = "variables: inside of CALL_ONCE"


@dataclass
class _Variable:
    """A variable while the model is read.

    Attributes:
        initial: what CALL_ONCE assigned, with its type; None when it assigned nothing.
        state: in the graph, once something reads the initial value or sets another.
        current: what a read finds now; None before the first assignment of a run.
    """

    initial: tuple[TensorType, Array] | None = None
    state: State | None = None
    current: Value | None = None


def _variable(node: TfliteNode) -> tuple[Resource, _Variable]:
    resource = node.resource(0)
    key = ("variable", resource)
    found: _Variable = node.importer.memory.setdefault(key, _Variable())
    return resource, found


def _state(node: TfliteNode, resource: Resource, variable: _Variable) -> State | None:
    """The variable's state; None for one without an initial value, which lives within a run."""
    if variable.state is None and variable.initial is not None:
        kind, array = variable.initial
        name = resource.name or f"{node.name}.variable"
        variable.state = node.importer.graph.add_state(name, kind, array)
    return variable.state


@converter("VAR_HANDLE")
def var_handle(node: TfliteNode) -> Output:
    """The resource of a container and a name."""
    options = node.options
    return Resource(str(options["container"] or ""), str(options["shared_name"] or ""))


@converter("READ_VARIABLE")
def read_variable(node: TfliteNode) -> Output:
    """What the variable holds here."""
    resource, variable = _variable(node)
    if variable.current is None:
        if node.importer.memory.get(_INITIALISING):
            if variable.initial is not None:
                kind, array = variable.initial
                return node.constant(array, "initial", kind.quant)
            node.refuse(f"variable {resource.name!r} is read before it is set")
        state = _state(node, resource, variable)
        if state is None:
            node.refuse(
                f"variable {resource.name!r} is read before anything sets it",
                "initialise it in the subgraph that CALL_ONCE calls",
            )
        variable.current = state.value
    return variable.current


@converter("ASSIGN_VARIABLE")
def assign_variable(node: TfliteNode) -> Sequence[Output | None]:
    """Let the variable hold input 1 from here on."""
    resource, variable = _variable(node)
    value = node.input(1)
    if node.importer.memory.get(_INITIALISING):
        array = node.const(1, f"the initial value of variable {resource.name!r}")
        kind = TensorType(value.dtype, value.shape, value.type.quant)
        variable.initial = (kind, np.ascontiguousarray(array))
        return []
    state = _state(node, resource, variable)
    if state is not None:
        held = state.value
        if (held.dtype, held.shape) != (value.dtype, value.shape):
            node.refuse(
                f"variable {resource.name!r} of type {held.type} is set to {value.type}",
                "a variable must keep its element type and shape: export it so",
            )
        state.update = value
    variable.current = value
    return []


@converter("CALL_ONCE")
def call_once(node: TfliteNode) -> Sequence[Output | None]:
    """Run the subgraph that initialises variables now, while compiling."""
    importer = node.importer
    variables = [v for v in importer.memory.values() if isinstance(v, _Variable)]
    if any(v.current is not None for v in variables):
        node.refuse(
            "CALL_ONCE comes after an operator that uses a variable",
            "initialise all variables first",
        )
    importer.memory[_INITIALISING] = True
    try:
        importer.import_subgraph(int(node.options["init_subgraph_index"]))
    finally:
        importer.memory[_INITIALISING] = False
    return []
