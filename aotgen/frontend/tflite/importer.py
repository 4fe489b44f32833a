"""The conversion itself: a sound model in, a typed static Graph and the list of problems out.

Every operator that an output needs is converted even after the first failure: the outputs of one
that is not supported become opaque values of the type that the file declares, so that later
operators are still checked. Values computed only from constants and shapes are folded while
reading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aotgen.errors import ModelError, Problem
from aotgen.frontend.emitter import Emitter, drop_unused, name_outputs, one_line
from aotgen.frontend.tflite.binding import bind_inputs
from aotgen.frontend.tflite.node import Mode, Output, Refused, TfliteNode
from aotgen.frontend.tflite.reader import Model, Operator, Subgraph
from aotgen.frontend.tflite.registry import converter_of, refusal
from aotgen.frontend.tflite.tensors import Tensor
from aotgen.ir.graph import Graph, State, Value
from aotgen.ir.types import Array, DType, Quant, TensorType

_PLUMBING = ("transpose", "reshape", "cast", "concat", "slice")
"""Ops that surround an operator's main op; they do not take over its name."""

_FOLDED = ("reshape", "cast", "transpose", "dequantize")
"""Ops that make weights from what the file stores; over constants they are always computed."""

_EFFECTS = ("ASSIGN_VARIABLE", "CALL_ONCE")
"""Operators that do something although nothing reads an output of theirs."""


@dataclass(eq=False)
class Scope:
    """The values of one subgraph while it is converted.

    Attributes:
        subgraph: which.
        names: of its tensors, unique in the model.
        values: what its tensors mean so far, by number.
        unknown: tensors that an earlier problem leaves without a value.
        states: of its variable tensors.
        used: tensors that something reads.
        operators: those that an output depends on, or that have an effect, in order.
    """

    subgraph: Subgraph
    names: Mapping[int, str]
    used: set[int]
    operators: Sequence[Operator]
    values: dict[int, Output] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    states: dict[int, State] = field(default_factory=dict)


class Importer:
    """One import. Use: ``Importer(...).run()``, then read ``graph`` and ``problems``.

    Attributes:
        model: the file.
        graph: what has been built.
        emitter: adds to it.
        mode: whose integer arithmetic the model gets.
        problems: all that cannot be compiled, in the file's order.
        memory: what converters keep from operator to operator, by a key of their own; they store
            resources' states here.
    """

    def __init__(
        self,
        model: Model,
        *,
        shapes: Mapping[str, tuple[int, ...]],
        dims: Mapping[str, int],
        mode: Mode = "tflm",
        name: str | None = None,
    ) -> None:
        self.model = model
        self.mode: Mode = mode
        self.problems: list[Problem] = []
        self.graph = Graph(name or model.stem, [], [], [])
        self.emitter = Emitter(self.graph, fold_always=_FOLDED)
        self.memory: dict[Any, Any] = {}
        self._node_names: set[str] = set()
        self._named: set[Value] = set()
        self._taken: set[str] = set()
        self._names = _tensor_names(model)
        self._inputs = bind_inputs(model, self._names[0], shapes, dims)
        for names in self._names:
            for text in names.values():
                self.graph.used_names.setdefault(text, 0)
        self._scopes: list[Scope] = []

    # the journey

    def run(self) -> None:
        """Convert everything that an output needs."""
        self._check_entry_points()
        main = self.model.subgraphs[0]
        scope = self._open(main)
        for number, shape in self._inputs.shapes.items():
            tensor = main.tensors[number]
            name = scope.names[number]
            if tensor.trouble is not None or tensor.dtype is None:
                reason, remedy = tensor.trouble or (
                    f"its type ({tensor.type}) is not supported",
                    "",
                )
                self.problems.append(Problem(name, "graph input", reason, remedy))
                scope.unknown.add(number)
                continue
            value = self._name(Value("", TensorType(tensor.dtype, shape, tensor.quant)), name)
            scope.values[number] = value
            self.graph.inputs.append(value)
        self._convert_all(scope)
        self._finish(scope)
        self._scopes.pop()

    def _check_entry_points(self) -> None:
        entries = {s.subgraph for s in self.model.signatures}
        for signature in self.model.signatures:
            if signature.subgraph != 0 or len(entries) > 1:
                reason = "several signatures, or one of a further subgraph, are not supported yet"
                self.problems.append(
                    Problem(signature.key, "signature", reason, "export one signature a file")
                )
                return

    def _open(self, subgraph: Subgraph) -> Scope:
        live = _live_operators(subgraph)
        used = {i for o in live for i in o.inputs if i is not None} | set(subgraph.outputs)
        scope = Scope(subgraph, self._names[subgraph.index], used, live)
        self._scopes.append(scope)
        return scope

    def _convert_all(self, scope: Scope) -> None:
        for operator in scope.operators:
            self._convert(scope, operator)

    def import_subgraph(self, index: int, inputs: Sequence[Value] = ()) -> list[Output | None]:
        """Convert the operators of another subgraph in place of the one that calls it.

        Args:
            index: of the subgraph.
            inputs: for its inputs.

        Returns:
            Its outputs, None for one that could not be converted.

        Raises:
            Refused: there is no such subgraph, it is being converted already, or takes other
                inputs.
        """
        if not 0 <= index < len(self.model.subgraphs):
            raise Refused(f"subgraph {index} does not exist", "the model is malformed")
        subgraph = self.model.subgraphs[index]
        if any(scope.subgraph is subgraph for scope in self._scopes):
            raise Refused(f"subgraph {index} calls itself", "the model is malformed")
        if len(inputs) != len(subgraph.inputs):
            raise Refused(f"subgraph {index} takes {len(subgraph.inputs)} inputs")
        scope = self._open(subgraph)
        scope.values.update(zip(subgraph.inputs, inputs, strict=True))
        try:
            self._convert_all(scope)
            return [self._value(scope, o) for o in subgraph.outputs]
        finally:
            self._scopes.pop()

    # one operator

    def _convert(self, scope: Scope, operator: Operator) -> None:
        label = self._label(scope, operator)
        start = len(self.graph.nodes)
        try:
            outputs = self._call_converter(scope, operator, label)
            if outputs is not None:
                outputs = self._fit(scope, operator, outputs, label)
        except Refused as refused:
            self._refuse(scope, operator, label, refused.reason, refused.remedy, start)
        except ModelError as error:
            self._refuse(scope, operator, label, _without_label(one_line(error)), "", start)
        except (ValueError, IndexError, TypeError, KeyError, ArithmeticError, MemoryError) as error:
            reason = f"its inputs or options do not fit together: {one_line(error)}"
            self._refuse(scope, operator, label, reason, "export the model again", start)
        else:
            if outputs is None:
                scope.unknown.update(operator.outputs)
            else:
                self._bind_outputs(scope, operator, label, outputs, start)

    def _label(self, scope: Scope, operator: Operator) -> str:
        """The name of the first output, unique; else of what it is and reads."""
        if operator.outputs:
            return scope.names[operator.outputs[0]]
        return scope.subgraph.label(operator)

    def _call_converter(
        self, scope: Scope, operator: Operator, label: str
    ) -> list[Output | None] | None:
        """The operator's outputs; None when an earlier problem leaves its inputs unknown."""
        custom = f"CUSTOM:{operator.custom_code}"
        function = converter_of(custom if operator.op == "CUSTOM" else operator.op)
        if function is None:
            raise Refused(*_why_unsupported(operator))
        tensors = scope.subgraph.tensors
        for number in (*operator.inputs, *operator.outputs):
            trouble = None if number is None else tensors[number].trouble
            if trouble is not None:
                raise Refused(f"tensor {tensors[number or 0].name!r}: {trouble[0]}", trouble[1])
        if any(number in scope.unknown for number in operator.inputs):
            return None
        inputs = [None if n is None else self._value(scope, n) for n in operator.inputs]
        described = (
            [None if n is None else tensors[n] for n in operator.inputs],
            [tensors[n] for n in operator.outputs],
        )
        result = function(TfliteNode(self, operator, label, inputs, described))
        return [result] if not isinstance(result, Sequence) else list(result)

    def _fit(
        self, scope: Scope, operator: Operator, outputs: list[Output | None], label: str
    ) -> list[Output | None]:
        """The outputs with the quantization that the file declares for them.

        Raises:
            Refused: one has another element type than the file declares, or one is missing.
        """
        fitted: list[Output | None] = []
        for index, number in enumerate(operator.outputs):
            tensor = scope.subgraph.tensors[number]
            value = outputs[index] if index < len(outputs) else None
            if value is None and number in scope.used:
                raise Refused(f"it has no output {index} ({tensor.name!r})", "export it again")
            if isinstance(value, Value):
                if value.dtype is not tensor.dtype:
                    raise Refused(
                        f"its output {index} is {value.dtype.value}, but the file declares "
                        f"{tensor.type.lower()}",
                        "the model is malformed: export it again",
                    )
                value = self._with_quant(value, tensor.quant, label)
            fitted.append(value)
        return fitted

    def _with_quant(self, value: Value, quant: Quant | None, label: str) -> Value:
        """``value`` as a tensor of quantization ``quant``: the elements stay what they are."""
        if value.type.quant == quant:
            return value
        kind = replace(value.type, quant=quant)
        if value.const is not None:
            return self.graph.constant(value.const, label, kind)
        if value in self._named:  # another tensor of the file, which keeps its own
            value = self.emitter.emit("reshape", [value], label, {"shape": value.shape})[0]
        value.type = kind
        return value

    def _refuse(
        self, scope: Scope, operator: Operator, label: str, reason: str, remedy: str, start: int
    ) -> None:
        op = operator.custom_code or operator.op or f"operator {operator.code}"
        op = "".join(c if c.isprintable() else "?" for c in op)
        self.problems.append(Problem(label, op, reason, remedy))
        del self.graph.nodes[start:]
        for number in operator.outputs:
            self._make_opaque(scope, number)

    def _make_opaque(self, scope: Scope, number: int) -> None:
        """A stand-in for a tensor that could not be converted, of the type that the file declares,
        unless other input shapes than the file's are bound.
        """
        tensor = scope.subgraph.tensors[number]
        # Writers declare no shape, or 1, for what is known only when the model runs; a batch of 1
        # is what the inputs have.
        is_open = not tensor.shape or -1 in (tensor.signature or ())[1:]
        if tensor.dtype is None or is_open or self._inputs.changed:
            scope.unknown.add(number)
            return
        kind = TensorType(tensor.dtype, tensor.shape, tensor.quant)
        scope.values[number] = self._name(Value("", kind), scope.names[number])

    def _name(self, value: Value, name: str) -> Value:
        """``value`` with a tensor's name, made unique: a subgraph may be converted twice."""
        value.name = self.graph.unique_name(name) if name in self._taken else name
        self._taken.add(name)
        self._named.add(value)
        return value

    def _bind_outputs(
        self,
        scope: Scope,
        operator: Operator,
        label: str,
        outputs: Sequence[Output | None],
        start: int,
    ) -> None:
        for number, value in zip(operator.outputs, outputs, strict=False):
            if value is None:
                scope.unknown.add(number)
                continue
            scope.values[number] = value
            if isinstance(value, Value) and value not in self._named:
                self._name(value, scope.names[number])
        fresh = self.graph.nodes[start:]
        main = next((n for n in fresh if n.op not in _PLUMBING), fresh[-1] if fresh else None)
        if main is not None and label not in self._node_names:
            self._node_names.add(label)
            main.name = label

    # tensors

    def _value(self, scope: Scope, number: int) -> Output | None:
        """What a tensor means here; None for one that is unknown."""
        if number in scope.values:
            return scope.values[number]
        tensor = scope.subgraph.tensors[number]
        if number in scope.unknown or tensor.trouble is not None or tensor.dtype is None:
            return None
        kind = TensorType(tensor.dtype, tensor.shape, tensor.quant)
        name = scope.names[number]
        if tensor.is_variable:
            state = self.graph.add_state(name, kind, _reset_value(tensor, kind))
            scope.states[number] = state
            value = state.value
        else:
            array = (
                tensor.array
                if tensor.data is not None
                else np.empty(tensor.shape, kind.dtype.numpy)
            )
            value = Value("", kind, const=array)
        scope.values[number] = self._name(value, name)
        return value

    def set_variable(self, number: int, value: Value) -> None:
        """Let a variable tensor of the current subgraph hold ``value`` from here on.

        Raises:
            Refused: its type or shape is another.
        """
        scope = self._scopes[-1]
        self._value(scope, number)
        state = scope.states[number]
        if (value.dtype, value.shape) != (state.value.dtype, state.value.shape):
            raise Refused(f"variable {state.value.name!r} is set to {value.type}")
        state.update = value
        scope.values[number] = value

    def dtype(self, tensor: Tensor) -> DType:
        """The element type of a tensor.

        Raises:
            Refused: the IR has none.
        """
        if tensor.dtype is None:
            raise Refused(f"element type {tensor.type.lower()} is not supported here")
        return tensor.dtype

    # the end

    def _finish(self, scope: Scope) -> None:
        """Outputs by name, then drop what folding has left unused."""
        for number in scope.subgraph.outputs:
            value = self._value(scope, number)
            tensor = scope.subgraph.tensors[number]
            if tensor.trouble is not None:
                reason, remedy = tensor.trouble
                self.problems.append(Problem(scope.names[number], "graph output", reason, remedy))
            if not isinstance(value, Value):
                continue
            name = scope.names[number]
            if name in self.graph.output_names:  # a file may list a tensor twice
                name = self.graph.unique_name(name)
            self.graph.outputs.append(value)
            self.graph.output_names.append(name)
        name_outputs(self.graph)
        drop_unused(self.graph)


def _tensor_names(model: Model) -> list[dict[int, str]]:
    """A name for every tensor of every subgraph, no two alike: the file's own where it can be.

    Inputs and outputs of the main subgraph come first; one without a name takes the signature's.
    """
    taken: set[str] = set()
    found: list[dict[int, str]] = []
    counts: dict[str, int] = {}

    def unique(base: str) -> str:
        name = base
        while name in taken:
            counts[base] = counts.get(base, 0) + 1
            name = f"{base}_{counts[base]}"
        taken.add(name)
        return name

    for subgraph in model.subgraphs:
        names: dict[int, str] = {}
        signature: dict[int, str] = {}
        for entry in model.signatures:
            if entry.subgraph == subgraph.index:
                signature.update({**entry.inputs, **entry.outputs})
        ends = [*subgraph.inputs, *subgraph.outputs]
        for number in dict.fromkeys([*ends, *range(len(subgraph.tensors))]):
            text = subgraph.tensors[number].name or signature.get(number, "")
            names[number] = unique(text or f"tensor_{number}")
        found.append(names)
    return found


def _live_operators(subgraph: Subgraph) -> list[Operator]:
    """The operators that an output or a variable depends on, in order."""
    needed = set(subgraph.outputs)
    live: list[Operator] = []
    for operator in reversed(subgraph.operators):
        reads = [i for i in operator.inputs if i is not None]
        if (
            operator.op in _EFFECTS
            or any(o in needed for o in operator.outputs)
            or any(subgraph.tensors[i].is_variable for i in reads)
        ):
            live.append(operator)
            needed.update(reads)
    return live[::-1]


def _reset_value(tensor: Tensor, kind: TensorType) -> Array:
    """What a variable tensor holds after a reset: 0, which for int8 is its zero point."""
    zero = kind.quant.zero_point[0] if kind.quant is not None and kind.dtype is DType.I8 else 0
    return np.full(kind.max_shape, zero, kind.dtype.numpy)


def _why_unsupported(operator: Operator) -> tuple[str, str]:
    """Reason and remedy for an operator without a converter."""
    if operator.op == "CUSTOM":
        known = refusal(operator.custom_code)
        return known or (
            f"custom operator {operator.custom_code!r} is not supported",
            "export the model with builtin operators only",
        )
    if not operator.op:
        return (
            f"operator code {operator.code} is not known to the installed tflite package",
            "update the tflite package, or export with operators that it knows",
        )
    return refusal(operator.op) or (
        f"the operator is not supported (version {operator.version})",
        "replace it with supported operators",
    )


def _without_label(text: str) -> str:
    """An error text of the type rules without the node that Problem names anyway."""
    return re.sub(r"^\S+ node '.*?': ", "", text)
