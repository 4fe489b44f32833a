"""onnx's own shape inference, used in two places only: to type the outputs of unsupported nodes, so
that the nodes after them are still checked, and to write out standard operators that onnx defines
as functions. The types of a Graph never come from here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import onnx
from onnx import inliner

from aotgen.frontend.onnx.registry import converter
from aotgen.frontend.onnx.tensors import element_type
from aotgen.ir.types import TensorType

INFER_SECONDS = 60
KEEP_BYTES = 4096
"""Larger initializers say nothing about shapes and are not handed to onnx."""


def infer_types(proto: onnx.ModelProto, inputs: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """Static types that onnx's inference finds, by tensor name; empty when it fails."""
    slim = _slim(with_bound_inputs(proto, inputs))
    inferred = _infer_elsewhere(slim)
    if inferred is None:  # without types less can be checked
        return {}
    found: dict[str, TensorType] = {}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        tensor = value.type.tensor_type
        dtype = element_type(tensor.elem_type)
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
        if dtype is not None and tensor.HasField("shape") and all(d >= 0 for d in dims):
            found[value.name] = TensorType(dtype, tuple(dims))
    return found


_CHILD = """
import sys
from onnx import shape_inference
inferred = shape_inference.infer_shapes(sys.stdin.buffer.read(), data_prop=True)
sys.stdout.buffer.write(inferred.SerializeToString())
"""


def _infer_elsewhere(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """onnx's inference in a process of its own: it does not survive every malformed model (axis
    2^62 of a LayerNormalization is a segmentation fault). None when it fails.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD],
            input=proto.SerializeToString(),
            capture_output=True,
            timeout=INFER_SECONDS,
            check=True,
        )
        inferred = onnx.ModelProto()
        inferred.ParseFromString(done.stdout)
        return inferred
    except Exception:  # of the child, or protobuf's own, which is not typed
        return None


def with_bound_inputs(proto: onnx.ModelProto, inputs: Mapping[str, TensorType]) -> onnx.ModelProto:
    """A copy whose graph inputs have their bound shapes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in copy.graph.input:
        if value.name in inputs:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for size in inputs[value.name].max_shape:
                shape.dim.add().dim_value = size
    return copy


def _slim(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` with large initializers turned into graph inputs."""
    graph = proto.graph
    declared = {v.name for v in graph.input}
    kept = []
    for tensor in graph.initializer:
        if tensor.ByteSize() <= KEEP_BYTES and not tensor.external_data:
            kept.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    small = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
    del graph.initializer[:]
    graph.initializer.extend(small)
    return proto


def write_out_functions(
    proto: onnx.ModelProto, opset: int, inputs: Mapping[str, TensorType]
) -> onnx.ModelProto:
    """``proto`` with standard operators that have no converter, but a definition by others,
    replaced by it.
    """
    for _ in range(3):  # a definition may use a further one
        wanted = sorted(
            {
                n.op_type
                for n in proto.graph.node
                if n.domain in ("", "ai.onnx") and _is_function(n.op_type, opset)
            }
        )
        if not wanted:
            break
        bound = with_bound_inputs(proto, inputs)
        # The inliner asks for the type of inputs that are absent, too: those of name "".
        bound.graph.value_info.add(name="").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        try:
            proto = inliner.inline_selected_functions(
                bound,
                [("", op) for op in wanted],
                inline_schema_functions=True,
            )
        except Exception:  # the operator is then reported as unsupported
            break
    return proto


def _is_function(op: str, opset: int) -> bool:
    if converter("", op, opset) is not None:
        return False
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return False
    return any(getattr(schema, kind) for kind in ("has_function", "has_context_dependent_function"))
