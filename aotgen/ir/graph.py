"""The Graph: nodes over typed values, in execution order.

A value is a constant (``const`` is its array), a graph input, what a state variable holds when a
run begins, or the output of one node.
Activations of convolutions and pools are channels-last (NWC, NHWC, NDHWC). Values and nodes compare
by identity. After ``fuse_ops`` the graph carries ``groups``: a partition of its nodes, each the
work of one kernel call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aotgen.ir.types import Array, DType, TensorType

Attrs = dict[str, Any]
"""Attributes of a node: int, float, str, bool, None, or tuples of these; never lists, so that equal
nodes hash equal.
"""


@dataclass(eq=False)
class Value:
    """A tensor. ``name`` is unique in its graph; graph inputs and outputs keep the model file's own
    names.
    """

    name: str
    type: TensorType
    const: Array | None = None
    producer: Node | None = None

    @property
    def is_const(self) -> bool:
        return self.const is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with every symbol at its maximum."""
        return self.type.max_shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(eq=False)
class Node:
    """One canonical op.

    Attributes:
        op: name in the op registry (``aotgen.ops``).
        inputs: None stands for an optional input that is absent.
        outputs: at least one.
        attrs: see ``Attrs``.
        name: unique in the graph; from the model file where it has one.
        origin: names of the model file's nodes that this one does the work of, in order.
    """

    op: str
    inputs: list[Value | None]
    outputs: list[Value]
    attrs: Attrs = field(default_factory=dict)
    name: str = ""
    origin: tuple[str, ...] = ()

    @property
    def output(self) -> Value:
        return self.outputs[0]

    @property
    def args(self) -> list[Value]:
        """The inputs that are present."""
        return [v for v in self.inputs if v is not None]

    def input(self, index: int) -> Value:
        """Input ``index``, which must be present."""
        value = self.inputs[index]
        if value is None:
            raise IndexError(f"{self.op} node {self.name!r} has no input {index}")
        return value

    def optional(self, index: int) -> Value | None:
        """Input ``index``, or None when it is absent or left out at the end."""
        return self.inputs[index] if index < len(self.inputs) else None

    def __repr__(self) -> str:
        ins = ", ".join("none" if v is None else f"%{v.name}" for v in self.inputs)
        outs = ", ".join(repr(v) for v in self.outputs)
        return f"{outs} = {self.op}({ins}) {self.attrs}"


@dataclass(eq=False)
class Group:
    """Nodes that one kernel call computes.

    Attributes:
        nodes: in execution order; all but the last ``output``'s values stay inside the group.
        anchor: the conv, matmul or pool that an anchor template implements; None for a te nest
            alone. Nodes before it are its prologue, nodes after it its epilogue. Of a chain of
            convolutions (fuse_rows) the last one.
        name: unique, from the anchor or the last node.
    """

    nodes: list[Node]
    anchor: Node | None
    name: str

    @property
    def inputs(self) -> list[Value]:
        """Values from outside, constants included, in order of first use, each once."""
        inside = {id(v) for n in self.nodes for v in n.outputs}
        seen: dict[int, Value] = {}
        for node in self.nodes:
            for value in node.args:
                if id(value) not in inside:
                    seen.setdefault(id(value), value)
        return list(seen.values())

    @property
    def activations(self) -> list[Value]:
        """The inputs that are not constants."""
        return [v for v in self.inputs if not v.is_const]

    @property
    def outputs(self) -> list[Value]:
        """The last node's outputs: the only values that leave the group."""
        return self.nodes[-1].outputs

    @property
    def output(self) -> Value:
        return self.nodes[-1].outputs[0]

    @property
    def prologue(self) -> list[Node]:
        return [] if self.anchor is None else self.nodes[: self.nodes.index(self.anchor)]

    @property
    def epilogue(self) -> list[Node]:
        return [] if self.anchor is None else self.nodes[self.nodes.index(self.anchor) + 1 :]

    @property
    def origin(self) -> tuple[str, ...]:
        seen: dict[str, None] = {}
        for node in self.nodes:
            for name in node.origin:
                seen.setdefault(name)
        return tuple(seen)


@dataclass(eq=False)
class State:
    """A variable that keeps a tensor from run to run.

    Attributes:
        value: what it holds when a run begins; no node computes it. Its name is the variable's.
        initial: what it holds before the first run and after a reset; of ``value``'s type.
        update: what it holds when a run has ended, of ``value``'s element type and shape; ``value``
            itself when nothing sets it.
    """

    value: Value
    initial: Array
    update: Value


@dataclass(frozen=True)
class StreamOutput:
    """What a step of a streaming model gives of one output.

    Attributes:
        axis: along which new rows are; None for an output that is there as a whole in each step.
        rows: new ones in each step.
        frames_per_row: of the input.
        delay: row j of the stream is row j - delay of the model on the whole recording.
        latency: frames that the output is late because the model looks ahead (padding at the end).
            Below 0 for one that is there as a whole before its window's last frames, which the
            model does not read.
    """

    axis: int | None
    rows: int | None
    frames_per_row: float | None
    delay: int | None
    latency: float


@dataclass(frozen=True)
class StreamInfo:
    """Of a model that ``aotgen.streaming`` turned into one that runs step by step.

    Attributes:
        frames: new ones in each step.
        window: frames that the original model reads at once.
        outputs: parallel to the graph's.
    """

    frames: int
    window: int
    outputs: tuple[StreamOutput, ...]


@dataclass(eq=False)
class Graph:
    """A model. ``nodes`` are in an order in which they can run.

    Attributes:
        name: of the model, as its file is called.
        inputs: in the model file's order; the file's own layout (NCHW for ONNX).
        outputs: in the model file's order; a value may be an input, a constant, or appear twice.
        output_names: the model file's names of the outputs, parallel to ``outputs``.
        groups: after fuse_ops, a partition of ``nodes`` in execution order; None before.
        states: what the model keeps from one run to the next. All are set at once when a run ends.
        stream: of a model that was compiled to run on a few new frames at a time, else None.
    """

    name: str
    inputs: list[Value]
    outputs: list[Value]
    nodes: list[Node]
    output_names: list[str] = field(default_factory=list)
    groups: list[Group] | None = None
    states: list[State] = field(default_factory=list)
    stream: StreamInfo | None = None
    used_names: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def sources(self) -> list[Value]:
        """What exists before the first node: the inputs, and what the states hold."""
        return [*self.inputs, *(state.value for state in self.states)]

    @property
    def results(self) -> list[Value]:
        """What a run is for: the outputs, and what the states are set to."""
        return [*self.outputs, *(state.update for state in self.states)]

    def redirect_results(self, old: Value, new: Value) -> None:
        """Let every output and state that takes ``old`` take ``new``."""
        self.outputs = [new if v is old else v for v in self.outputs]
        for state in self.states:
            if state.update is old:
                state.update = new

    def values(self) -> Iterator[Value]:
        """Every value once: inputs and states, then by node its constants and outputs."""
        seen: set[int] = set()

        def fresh(values: Iterable[Value | None]) -> Iterator[Value]:
            for value in values:
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    yield value

        yield from fresh(self.sources)
        for node in self.nodes:
            yield from fresh(node.inputs)
            yield from fresh(node.outputs)
        yield from fresh(self.results)

    def constants(self) -> Iterator[Value]:
        return (v for v in self.values() if v.is_const)

    def users(self) -> dict[Value, list[Node]]:
        """For every value the nodes that read it, in order, a node once; graph outputs and states
        do not count.
        """
        table: dict[Value, list[Node]] = {value: [] for value in self.values()}
        for node in self.nodes:
            for value in dict.fromkeys(node.args):
                table[value].append(node)
        return table

    def unique_name(self, base: str) -> str:
        """``base``, or ``base_1``, ``base_2``, ...: not yet used for a value or node of this
        graph.
        """
        if not self.used_names:
            for value in self.values():
                self.used_names.setdefault(value.name, 0)
            for node in self.nodes:
                self.used_names.setdefault(node.name, 0)
        if base not in self.used_names:
            self.used_names[base] = 0
            return base
        while True:
            self.used_names[base] += 1
            name = f"{base}_{self.used_names[base]}"
            if name not in self.used_names:
                self.used_names[name] = 0
                return name

    def constant(self, array: Array, base: str = "const", type: TensorType | None = None) -> Value:
        """A new constant value; its type is the array's unless ``type`` adds quantization."""
        tensor = type or TensorType(DType.of(array.dtype), tuple(array.shape))
        return Value(self.unique_name(base), tensor, const=array)

    def make(
        self,
        op: str,
        inputs: Sequence[Value | None],
        *,
        name: str | None = None,
        origin: tuple[str, ...] = (),
        types: Sequence[TensorType] | None = None,
        output_names: Sequence[str] | None = None,
        **attrs: Any,
    ) -> Node:
        """A new node with typed outputs, not yet placed in ``nodes``.

        The output types come from the op's own type rule unless ``types`` gives them.

        Raises:
            ModelError: the type rule refuses the inputs.
        """
        from aotgen.ops.registry import op_def

        label = self.unique_name(name or op)
        node = Node(op, list(inputs), [], dict(attrs), label, origin)
        found = list(types) if types is not None else op_def(op).infer(node)
        bases = list(output_names) if output_names is not None else [label] * len(found)
        node.outputs = [
            Value(
                self.unique_name(b) if b != label else self.unique_name(f"{label}.out"),
                t,
                producer=node,
            )
            for b, t in zip(bases, found, strict=True)
        ]
        return node

    def add_state(self, name: str, type: TensorType, initial: Array) -> State:
        """A new state variable that nothing sets yet; ``name`` is made unique."""
        value = Value(self.unique_name(name), type)
        state = State(value, initial, value)
        self.states.append(state)
        return state

    def add(self, op: str, inputs: Sequence[Value | None], **kwargs: Any) -> Value:
        """``make`` a node, append it, and return its first output. Arguments are those of
        ``make``.
        """
        node = self.make(op, inputs, **kwargs)
        self.nodes.append(node)
        return node.output
