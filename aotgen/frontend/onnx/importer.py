"""The conversion itself: a sound ModelProto in, a typed static Graph and the list of problems out.

Every node is converted even after the first failure: the outputs of an unsupported node become
opaque values with the type that onnx's shape inference finds, so that later nodes are still
checked. Values computed only from constants and shapes are folded while reading, with the canonical
op's own numpy semantics; large ones only when an operator must know them (the fold_constant pass
does the rest).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import checker, defs

from aotgen.errors import ModelError, Problem
from aotgen.frontend.emitter import Emitter, Refused, drop_unused, name_outputs, one_line
from aotgen.frontend.onnx.binding import Inputs
from aotgen.frontend.onnx.inference import infer_types
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.reader import ModelFile, node_label, reads
from aotgen.frontend.onnx.registry import converter, refusal
from aotgen.frontend.onnx.tensors import (
    element_type,
    to_array,
    type_name,
    type_remedy,
)
from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import Array, TensorType

_PLUMBING = ("transpose", "reshape", "cast", "concat", "slice")
"""Ops that surround an ONNX node's main op; they do not take over its name."""

_STANDARD = ("", "ai.onnx")

_CONTROL = ("If", "Loop", "Scan")
"""Operators whose bodies are converted in their place, node by node."""


class Importer:
    """Holds the state of one import. Use: ``Importer(...).run()``, then read ``graph`` and
    ``problems``.
    """

    def __init__(self, file: ModelFile, inputs: Inputs, name: str) -> None:
        self.problems: list[Problem] = list(inputs.problems)
        self.graph = Graph(name, [], [], [])
        # Integer weights stay integers: quantize_canonicalize looks for them.
        self.emitter = Emitter(self.graph, fold_never=("dequantize",))
        self._file = file
        self._proto = file.proto.graph
        self._input_types = inputs.types
        self._values: dict[str, Value | None] = {"": None}
        self._unknown: set[str] = {p.node for p in inputs.problems}
        self._named: set[Value] = set()
        self._taken: set[str] = set()
        self._node_names: set[str] = set()
        self._inferred: Mapping[str, TensorType] | None = None
        self.written_out = 0
        self._live = _live_nodes(self._proto)
        self._read = {n for node in self._live for n in reads(node)}
        self._used = {v.name for v in self._proto.output} | self._read
        self._checker = checker.C.CheckerContext()
        # The checker takes C ints; a version that it does not know says nothing against the nodes.
        version = file.proto.ir_version
        self._checker.ir_version = version if 0 < version <= onnx.IR_VERSION else onnx.IR_VERSION
        self._checker.opset_imports = dict(file.opsets)

    # the journey

    def run(self) -> None:
        """Convert everything that an output needs."""
        self._reserve_names(self._proto)
        for name, tensor_type in self._input_types.items():
            value = Value("", tensor_type)
            self._bind(name, value)
            self.graph.inputs.append(value)
        for tensor in self._proto.initializer:
            if tensor.name in self._used:
                self._read_initializer(tensor)
        for sparse in self._proto.sparse_initializer:
            self._unsupported(
                sparse.values.name, "sparse initializer", "sparse tensors are not supported"
            )
        for proto in self._live:
            self._convert(proto)
        self._finish()

    def _reserve_names(self, graph: onnx.GraphProto) -> None:
        """Let no generated name take one of the file's."""
        used = self.graph.used_names
        for node in graph.node:
            for name in (*node.output, node_label(node)):
                used.setdefault(name, 0)
        for value in (*graph.input, *graph.initializer):
            used.setdefault(value.name, 0)

    def _read_initializer(self, tensor: onnx.TensorProto) -> None:
        dtype = element_type(tensor.data_type)
        if dtype is None:
            reason = f"element type {type_name(tensor.data_type)} is not supported"
            remedy = type_remedy(tensor.data_type)
            self._unsupported(tensor.name, "initializer", reason, remedy)
            return
        array = to_array(tensor, self._file.folder)
        value = Value("", TensorType(dtype, tuple(array.shape)), const=array)
        self._bind(tensor.name, value)

    def _bind(self, name: str, value: Value) -> None:
        """``name`` means ``value`` from here on, and is its name unless it has one already."""
        self._values[name] = value
        if value not in self._named:
            # Only the branches of an If may use a name again.
            value.name = name if name not in self._taken else self.graph.unique_name(name)
            self._named.add(value)
            self._taken.add(name)

    def _unsupported(self, name: str, what: str, reason: str, remedy: str = "") -> None:
        self.problems.append(Problem(name, what, reason, remedy))
        self._unknown.add(name)

    def _convert(self, proto: onnx.NodeProto) -> None:
        label = node_label(proto)
        start = len(self.graph.nodes)
        try:
            outputs = self._call_converter(proto, label)
            self._expect_outputs(proto, outputs)
        except Refused as refused:
            self._refuse(proto, label, refused.reason, refused.remedy, start)
        except ModelError as error:
            self._refuse(proto, label, _without_label(one_line(error)), "", start)
        except (ValueError, IndexError, TypeError, KeyError, OverflowError, MemoryError) as error:
            reason = f"its inputs or attributes do not fit together: {one_line(error)}"
            self._refuse(proto, label, reason, "check the model with onnx.checker", start)
        else:
            if outputs is None:
                self._unknown.update(o for o in proto.output if o)
            else:
                self._bind_outputs(proto, label, outputs, start)

    def _expect_outputs(
        self, proto: onnx.NodeProto, outputs: Sequence[Value | None] | None
    ) -> None:
        """Refuse a node that something wants more outputs of than its converter gives."""
        if outputs is None:
            return
        for index, name in enumerate(proto.output):
            if index >= len(outputs) and self.is_used(name):
                raise Refused(f"it has no output {index} ({name!r})", "export the model again")

    def _refuse(
        self, proto: onnx.NodeProto, label: str, reason: str, remedy: str, start: int
    ) -> None:
        domain = "" if proto.domain in _STANDARD else f"{proto.domain}."
        op = "".join(c if c.isprintable() else "?" for c in f"{domain}{proto.op_type}")
        self.problems.append(Problem(label, op, reason, remedy))
        del self.graph.nodes[start:]
        for name in proto.output:
            if name:
                self._make_opaque(name)

    def _make_opaque(self, name: str) -> None:
        """A stand-in for a value that could not be converted, typed when onnx's inference knows its
        type.
        """
        if name not in self._read:
            self._unknown.add(name)
            return
        if self._inferred is None:
            self._inferred = infer_types(self._file.proto, self._input_types)
        tensor_type = self._inferred.get(name)
        if tensor_type is None:
            self._unknown.add(name)
        else:
            self._values[name] = Value(name, tensor_type)

    def _call_converter(self, proto: onnx.NodeProto, label: str) -> Sequence[Value | None] | None:
        """The node's outputs; None when its inputs are unknown because of an earlier problem."""
        domain = "" if proto.domain in _STANDARD else str(proto.domain)
        opset = self._file.opsets.get(domain)
        if opset is None:
            raise Refused(
                f"its domain {domain!r} is not among the model's opset imports",
                "the model is malformed: export it again",
            )
        function = converter(domain, proto.op_type, opset)
        if function is None:
            raise Refused(*_why_unsupported(domain, proto, opset))
        if domain == "" and proto.op_type not in ("Constant", *_CONTROL):
            self._check(proto)
        if any(name in self._unknown for name in proto.input):
            return None
        inputs = [self._values[name] for name in proto.input]
        result = function(OnnxNode(self, proto, label, opset, inputs))
        return [result] if isinstance(result, Value) else list(result)

    def _check(self, proto: onnx.NodeProto) -> None:
        if not defs.has(proto.op_type):  # onnxruntime writes some of its own without a domain
            return
        try:
            checker.check_node(proto, self._checker)
        except checker.ValidationError as error:
            if "deprecated" in str(error):  # still well defined, and files have it
                return
            reason = f"it breaks the operator's schema: {one_line(error)}"
            raise Refused(reason, "the model is malformed: export it again") from None

    def _bind_outputs(
        self, proto: onnx.NodeProto, label: str, outputs: Sequence[Value | None], start: int
    ) -> None:
        fresh = [] if proto.op_type in _CONTROL else self.graph.nodes[start:]
        for name, value in zip(proto.output, outputs, strict=False):
            if not name:
                continue
            if value is None:
                self._unknown.add(name)
                continue
            self._bind(name, value)
        for name in proto.output[len(outputs) :]:
            self._unknown.add(name)
        main = next((n for n in fresh if n.op not in _PLUMBING), fresh[-1] if fresh else None)
        if main is not None and label not in self._node_names:
            self._node_names.add(label)
            main.name = label

    def _finish(self) -> None:
        """Outputs by name, then drop what folding has left unused."""
        for output in self._proto.output:
            value = self._values.get(output.name)
            if output.name in self._unknown or value is None:
                continue
            self.graph.outputs.append(value)
            self.graph.output_names.append(output.name)
        name_outputs(self.graph)
        drop_unused(self.graph)

    # for OnnxNode

    @property
    def is_converted(self) -> bool:
        return self._file.converted

    def is_used(self, name: str) -> bool:
        return bool(name) and name in self._used

    def inline(self, graph: onnx.GraphProto, inputs: Sequence[Value] = ()) -> list[Value | None]:
        """Convert the nodes of a subgraph in place of its caller, for these inputs; its outputs."""
        self.written_out += max(len(graph.node), 1)
        self._reserve_names(graph)
        for formal, value in zip(graph.input, inputs, strict=True):
            self._values[formal.name] = value
        inner = {o.name for o in graph.output} | {r for n in graph.node for r in reads(n)}
        self._read |= inner
        self._used |= inner
        for tensor in graph.initializer:
            self._read_initializer(tensor)
        for proto in _live_nodes(graph):
            self._convert(proto)
        return [self._values.get(output.name) for output in graph.output]

    def array(self, tensor: onnx.TensorProto) -> Array:
        """The values of an attribute's tensor."""
        if element_type(tensor.data_type) is None:
            reason = f"element type {type_name(tensor.data_type)} is not supported"
            raise Refused(reason, type_remedy(tensor.data_type))
        return to_array(tensor, self._file.folder)

    def constant(self, array: Array, base: str) -> Value:
        return self.graph.constant(array, base)


def _live_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that an output depends on, in order."""
    needed = {v.name for v in graph.output}
    live: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if any(o in needed for o in node.output if o):
            live.append(node)
            needed.update(reads(node))
    return live[::-1]


def _why_unsupported(domain: str, proto: onnx.NodeProto, opset: int) -> tuple[str, str]:
    """Reason and remedy for an operator without a converter."""
    op = proto.op_type
    told = refusal(domain, op)
    if told is not None:
        return told
    if any(
        a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in proto.attribute
    ):
        return "control flow is not supported", "export the model with the branch or loop resolved"
    if domain:
        how = " (without onnxruntime's optimizer)" if domain == "com.microsoft" else ""
        return (
            f"the operator is not supported (domain {domain!r})",
            f"export the model with standard ONNX operators only{how}",
        )
    if not onnx.defs.has(op):
        return "ONNX has no such operator", "check the exporter, or remove the node"
    return f"the operator is not supported (opset {opset})", "replace it with supported operators"


def _without_label(text: str) -> str:
    """An error text of the type rules without the node that Problem names anyway."""
    return re.sub(r"^\S+ node '.*?': ", "", text)
