"""Damages a model on purpose: valid protobuf that breaks the rules of ONNX somewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

EXTREMES = (0, 1, -1, 2, 3, 7, -5, 127, 10**6, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))


class Mutator:
    """Random changes of one model, the same for the same seed."""

    def __init__(self, model: onnx.ModelProto, rng: np.random.Generator) -> None:
        self.model = model
        self.graph = model.graph
        self.rng = rng

    def pick(self, items: Any) -> Any:
        items = list(items)
        return items[int(self.rng.integers(len(items)))] if items else None

    def mutate(self) -> None:
        """Apply one to three changes."""
        for _ in range(int(self.rng.integers(1, 4))):
            self.pick(CHANGES)(self)

    def node(self) -> onnx.NodeProto:
        return self.pick(self.graph.node) or self.graph.node.add()

    def attribute_value(self) -> None:
        attribute = self.pick([a for n in self.graph.node for a in n.attribute])
        if attribute is None:
            return
        if attribute.type == AttributeProto.INTS:
            values = list(attribute.ints)
            form = int(self.rng.integers(4))
            if form == 0 and values:
                values[int(self.rng.integers(len(values)))] = self.pick(EXTREMES)
            elif form == 1:
                values.append(self.pick(EXTREMES))
            elif form == 2:
                values = values[:-1]
            else:
                values = []
            attribute.ClearField("ints")
            attribute.ints.extend(values)
        elif attribute.type == AttributeProto.INT:
            attribute.i = self.pick(EXTREMES)
        elif attribute.type == AttributeProto.FLOAT:
            attribute.f = self.pick((0.0, -1.0, float("nan"), float("inf"), 1e38))
        elif attribute.type == AttributeProto.STRING:
            attribute.s = self.pick((b"", b"\xff\xfe", b"VALID", b"nonsense", b"%s%n"))

    def attribute_type(self) -> None:
        attribute = self.pick([a for n in self.graph.node for a in n.attribute])
        if attribute is not None:
            name = attribute.name
            value = self.pick((1, 1.5, "text", [1, 2], [1.0], ["a"], float("nan")))
            attribute.CopyFrom(helper.make_attribute(name, value))

    def attribute_name(self) -> None:
        node = self.node()
        if node.attribute and self.rng.random() < 0.6:
            if self.rng.random() < 0.5:
                del node.attribute[int(self.rng.integers(len(node.attribute)))]
            else:
                self.pick(node.attribute).name = self.pick(("", "axis", "axes", "bogus"))
        else:
            node.attribute.append(helper.make_attribute(self.pick(("axis", "perm", "to")), 3))

    def inputs_of_node(self) -> None:
        node = self.node()
        names = list(node.input)
        everything = [v for n in self.graph.node for v in (*n.input, *n.output)]
        form = int(self.rng.integers(5))
        if form == 0:
            names = names[:-1]
        elif form == 1:
            names.append(self.pick(everything) or "")
        elif form == 2 and names:
            names[int(self.rng.integers(len(names)))] = self.pick(everything) or ""
        elif form == 3 and names:
            names[int(self.rng.integers(len(names)))] = self.pick(("", "no such tensor"))
        else:
            names.reverse()
        node.ClearField("input")
        node.input.extend(names)

    def outputs_of_node(self) -> None:
        node = self.node()
        form = int(self.rng.integers(4))
        if form == 0:
            node.output.append("extra")
        elif form == 1 and node.output:
            node.output[0] = self.pick([o for n in self.graph.node for o in n.output] or [""])
        elif form == 2:
            node.ClearField("output")
        elif node.output:
            node.output[0] = ""

    def operator(self) -> None:
        node = self.node()
        node.op_type = self.pick([n.op_type for n in self.graph.node] + ["", "Loop", "If", "Conv"])
        if self.rng.random() < 0.2:
            node.domain = self.pick(("ai.onnx", "com.microsoft", "x"))

    def nodes(self) -> None:
        form = int(self.rng.integers(3))
        if not self.graph.node:
            return
        if form == 0:
            del self.graph.node[int(self.rng.integers(len(self.graph.node)))]
        elif form == 1:
            self.graph.node.add().CopyFrom(self.node())
        else:
            order = [self.graph.node[i] for i in self.rng.permutation(len(self.graph.node))]
            copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in order]
            self.graph.ClearField("node")
            self.graph.node.extend(copies)

    def type_of_io(self) -> None:
        value = self.pick([*self.graph.input, *self.graph.output])
        if value is None:
            return
        tensor = value.type.tensor_type
        form = int(self.rng.integers(5))
        if form == 0:
            tensor.elem_type = int(self.rng.integers(0, 25))
        elif form == 1 and tensor.shape.dim:
            self.pick(tensor.shape.dim).dim_value = self.pick(EXTREMES)
        elif form == 2:
            tensor.ClearField("shape")
        elif form == 3:
            tensor.shape.dim.add().dim_value = self.pick((1, 2, -1))
        else:
            value.ClearField("type")

    def names_of_io(self) -> None:
        values = self.pick([self.graph.input, self.graph.output])
        if values and self.rng.random() < 0.5:
            values[0].name = self.pick(("", "ghost", values[-1].name))
        elif values:
            copy = onnx.ValueInfoProto.FromString(values[0].SerializeToString())
            values.append(copy)

    def tensor(self) -> None:
        tensor = self.pick(self.graph.initializer)
        if tensor is None:
            return
        form = int(self.rng.integers(7))
        if form == 0:
            tensor.data_type = int(self.rng.integers(0, 25))
        elif form == 1 and tensor.dims:
            tensor.dims[int(self.rng.integers(len(tensor.dims)))] = self.pick(EXTREMES)
        elif form == 2:
            tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
        elif form == 3:
            tensor.dims.append(self.pick((1, 2, 0)))
        elif form == 4:
            tensor.name = self.pick(("", "ghost", self.graph.initializer[0].name))
        elif form == 5 and tensor.data_type == TensorProto.INT64 and tensor.raw_data:
            values = np.frombuffer(tensor.raw_data, np.int64).copy()
            values[int(self.rng.integers(len(values)))] = self.pick(EXTREMES)
            tensor.raw_data = values.tobytes()
        else:
            tensor.ClearField("raw_data")

    def versions(self) -> None:
        form = int(self.rng.integers(4))
        if form == 0 and self.model.opset_import:
            self.model.opset_import[0].version = self.pick((0, 1, 6, 7, 9, 11, 12, 99, -1))
        elif form == 1:
            self.model.ClearField("opset_import")
        elif form == 2:
            self.model.ir_version = self.pick((0, 1, 3, 99, 2**40))
        else:
            self.model.opset_import.add(domain="", version=self.pick((7, 13, 17)))


CHANGES: tuple[Callable[[Mutator], None], ...] = (
    Mutator.attribute_value,
    Mutator.attribute_value,
    Mutator.attribute_type,
    Mutator.attribute_name,
    Mutator.inputs_of_node,
    Mutator.inputs_of_node,
    Mutator.outputs_of_node,
    Mutator.operator,
    Mutator.nodes,
    Mutator.type_of_io,
    Mutator.type_of_io,
    Mutator.names_of_io,
    Mutator.tensor,
    Mutator.tensor,
    Mutator.tensor,
    Mutator.versions,
)


def damaged_structure(model: onnx.ModelProto, seed: int) -> bytes:
    """A serialized copy of ``model`` with one to three changes of its structure."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    Mutator(copy, np.random.default_rng(seed)).mutate()
    return copy.SerializeToString()


def damaged_bytes(data: bytes, seed: int) -> bytes:
    """A copy of ``data`` with a few bytes flipped, removed, inserted or copied from elsewhere."""
    rng = np.random.default_rng(seed)
    out = bytearray(data)
    form = int(rng.integers(5))
    for _ in range(int(rng.integers(1, 5))):
        i = int(rng.integers(len(out)))
        if form == 0:
            out[i] ^= 1 << int(rng.integers(8))
        elif form == 1:
            out[i] = int(rng.choice([0, 255, 127, 128, int(rng.integers(256))]))
        elif form == 2:
            del out[i : i + int(rng.integers(1, 9))]
        elif form == 3:
            out[i:i] = rng.integers(0, 256, int(rng.integers(1, 9))).astype(np.uint8).tobytes()
        else:
            j, length = int(rng.integers(len(out))), int(rng.integers(1, 40))
            out[i : i + length] = out[j : j + length]
    return bytes(out)
