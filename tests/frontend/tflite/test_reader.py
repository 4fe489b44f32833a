"""Reading .tflite files: the schema, what is refused and how, names, shapes, constants."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
import tflite

import aotgen
from aotgen.cli.main import call
from aotgen.errors import AotgenError, ModelError, ShapeError, UnsupportedError, UsageError
from aotgen.frontend import check, load
from aotgen.frontend.tflite.reader import read
from aotgen.frontend.tflite.schema import ENUMS, SCALARS, TABLES, UNIONS, options_table
from aotgen.ir.interpreter import run
from aotgen.ir.types import DType, Quant
from tests.oracles import litert
from tests.tflite_builder import ModelBuilder, write_table

F = "float32"


def camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


# the schema


@pytest.mark.parametrize("table", [t for t in TABLES if hasattr(tflite, t)])
def test_the_tflite_package_reads_every_field_that_is_written(table: str) -> None:
    accessor = getattr(tflite, table)
    for field in TABLES[table]:
        name = camel(field.name)
        if name == "BuiltinCode":  # the package mends this one, see below
            continue
        if field.kind not in ("scalar", "scalars", "string") or not hasattr(accessor, name):
            continue
        value: Any = {"scalar": 1, "scalars": [1, 0, 1], "string": "text"}[field.kind]
        if field.kind == "scalar" and field.default == 1:
            value = 0
        b = flatbuffers.Builder(64)
        b.Finish(write_table(b, table, {field.name: value}))
        found = accessor.GetRootAs(b.Output())
        if field.kind == "scalars":
            assert getattr(found, name + "AsNumpy")().tolist() == value, field
        else:
            expected = value.encode() if isinstance(value, str) else value
            assert getattr(found, name)() == expected, field
    b = flatbuffers.Builder(64)
    b.Finish(write_table(b, table, {}))
    empty = accessor.GetRootAs(b.Output())
    for field in TABLES[table]:
        if field.kind == "scalar" and hasattr(accessor, camel(field.name)):
            assert getattr(empty, camel(field.name))() == field.default, field


@pytest.mark.parametrize("enum", [e for e in ENUMS if hasattr(tflite, e)])
def test_enums_are_those_of_the_tflite_package(enum: str) -> None:
    members = {k: v for k, v in vars(getattr(tflite, enum)).items() if not k.startswith("_")}
    assert {name: ENUMS[enum].index(name) for name in members} == members


@pytest.mark.parametrize("union", UNIONS)
def test_unions_are_those_of_the_tflite_package(union: str) -> None:
    members = {k: v for k, v in vars(getattr(tflite, union)).items() if not k.startswith("_")}
    del members["NONE"]
    assert {name: UNIONS[union].index(name) for name in members} == members


def test_every_options_table_belongs_to_an_operator() -> None:
    names = [n for n in vars(tflite.BuiltinOperator) if not n.startswith("_")]
    used = {options_table(name) for name in names}
    unused = {t for t in TABLES if t.endswith("Options")} - used
    # of operators that never came, and newer than the package
    assert unused <= {"StablehloCaseOptions"}, unused
    assert options_table("RELU") == ""


# small models


def adder(**fields: Any) -> ModelBuilder:
    """y = relu6(x + c) of 1x4 floats; ``fields`` are further fields of the operator."""
    b = ModelBuilder()
    x = b.input("x", (1, 4), F)
    c = b.const("c", np.arange(4, dtype=F).reshape(1, 4))
    options = {"fused_activation_function": "RELU6"}
    b.output(b.op("ADD", [x, c], out=("y", (1, 4), F), options=options, **fields))
    return b


def fails(error: type[AotgenError], source: bytes, *words: str, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        load(source, **kwargs)
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


def test_options_have_names_and_defaults() -> None:
    operator = read(adder().finish()).subgraphs[0].operators[0]
    assert operator.op == "ADD" and operator.version == 1
    assert dict(operator.options) == {
        "fused_activation_function": "RELU6",
        "pot_scale_int16": True,
    }
    bare = adder()
    del bare.main.operators[0]["builtin_options"]
    operator = read(bare.finish()).subgraphs[0].operators[0]
    assert operator.options["fused_activation_function"] == "NONE"
    cast = ModelBuilder()
    x = cast.input("x", (2,), F)
    options = {"in_data_type": F, "out_data_type": "BFLOAT16"}
    cast.output(cast.op("CAST", [x], out=("y", (2,), "int8"), options=options))
    found = read(cast.finish()).subgraphs[0].operators[0].options
    assert found == {"in_data_type": DType.F32, "out_data_type": None}


def test_both_fields_of_an_operator_code_are_read() -> None:
    gelu = tflite.BuiltinOperator.GELU
    assert gelu > 127
    for deprecated, code, name in (
        (127, gelu, "GELU"),
        (tflite.BuiltinOperator.RELU, 0, "RELU"),
        (0, tflite.BuiltinOperator.RELU, "RELU"),
        (tflite.BuiltinOperator.RELU, tflite.BuiltinOperator.RELU, "RELU"),
        (127, 9999, ""),
    ):
        model = {
            "version": 3,
            "operator_codes": [{"deprecated_builtin_code": deprecated, "builtin_code": code}],
            "buffers": [{}],
            "subgraphs": [
                {
                    "tensors": [{"name": n, "shape": [2], "type": F} for n in "xy"],
                    "inputs": [0],
                    "outputs": [1],
                    "operators": [{"inputs": [0], "outputs": [1]}],
                }
            ],
        }
        b = flatbuffers.Builder(256)
        b.Finish(write_table(b, "Model", model), file_identifier=b"TFL3")
        data = bytes(b.Output())
        assert read(data).subgraphs[0].operators[0].op == name
        if not name:
            fails(UnsupportedError, data, "operator code 9999", "update the tflite package")


# malformed files


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    for data, words in ((b"", ["empty"]), (b"garbage!" * 9, ["not a TFLite model"])):
        path.write_bytes(data)
        with pytest.raises(ModelError) as caught:
            load(path)
        assert all(word in str(caught.value) for word in (*words, str(path)))
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "none.tflite")
    folder = tmp_path / "folder.tflite"
    folder.mkdir()
    with pytest.raises(UsageError, match="folder"):
        load(folder)


def test_the_content_says_what_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(adder().finish())
    assert load(path).output_names == ["y"]
    with pytest.raises(UsageError, match="litert"):
        load(Path(__file__).with_suffix(".onnx"), requant="litert")


@pytest.mark.parametrize("keep", [8, 20, 60, 200])
def test_a_truncated_file(keep: int) -> None:
    fails(ModelError, adder().finish()[:keep], "the model is malformed or truncated")


def test_the_command_line_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(adder().finish()[:-30])
    assert call(["check", str(path)]) == 2


def test_a_string_that_is_not_text() -> None:
    data = adder().finish().replace(b"made for a test", b"made for \xff test")
    fails(ModelError, data, "description", "UTF-8")


def test_parts_that_are_shared_too_many_times() -> None:
    """Three levels of a thousand each: a billion tensors in 20 kB."""
    b = flatbuffers.Builder(1 << 16)
    tensor = write_table(b, "Tensor", {"name": "t", "shape": [1]})

    def thousand(item: int) -> int:
        b.StartVector(4, 1000, 4)
        for _ in range(1000):
            b.PrependUOffsetTRelative(item)
        return int(b.EndVector())

    tensors = thousand(tensor)
    b.StartObject(len(TABLES["SubGraph"]))
    b.PrependUOffsetTRelativeSlot(0, tensors, 0)
    subgraphs = thousand(int(b.EndObject()))
    b.StartObject(len(TABLES["Model"]))
    b.PrependUint32Slot(0, 3, 0)
    b.PrependUOffsetTRelativeSlot(2, subgraphs, 0)
    b.Finish(b.EndObject(), file_identifier=b"TFL3")
    start = time.process_time()
    fails(ModelError, bytes(b.Output()), "shared too many times")
    assert time.process_time() - start < 5


def spoil(what: str) -> bytes:
    """A sound FlatBuffer of an unsound model."""
    b = adder()
    tensors, operator = b.main.tensors, b.main.operators[0]
    if what == "version":
        return b.finish().replace(struct.pack("<I", 3), struct.pack("<I", 2), 1)
    if what == "code":
        operator["opcode_index"] = 7
    elif what == "reads":
        operator["inputs"] = [0, 9]
    elif what == "writes":
        operator["outputs"] = [-1]
    elif what == "buffer":
        tensors[0]["buffer"] = 99
    elif what == "bytes":
        tensors[1]["shape"] = [1, 5]
    elif what == "negative":
        tensors[0]["shape"] = [1, -4]
    elif what == "options":
        operator["builtin_options"] = ("Conv2DOptions", {})
    elif what == "enum":
        operator["builtin_options"] = ("AddOptions", {"fused_activation_function": 99})
    elif what == "twice":
        operator["outputs"] = [1]
    elif what == "order":
        operator["inputs"] = [0, 2]
    elif what == "input":
        b.main.inputs = [0, 0]
    elif what == "output":
        b.main.outputs = [5]
    elif what == "none":
        b.main.outputs = []
    elif what == "undefined":
        b.main.inputs = []
    elif what == "variable":
        tensors[1]["is_variable"] = True
    elif what == "scales":
        tensors[1].update(type="INT32", quantization={"scale": [1.0, 2.0], "zero_point": [0]})
    elif what == "axis":
        tensors[1].update(type="INT32")
        tensors[1]["quantization"] = {"scale": [1.0, 2.0], "zero_point": [0, 0]}
    elif what == "scale":
        tensors[1].update(type="INT32", quantization={"scale": [-1.0], "zero_point": [0]})
    elif what == "zero":
        tensors[0].update(type="INT8", quantization={"scale": [1.0], "zero_point": [200]})
    elif what == "signature":
        b.signature("main", {"x": 77}, {})
    elif what == "outside":
        b.buffer(b"")
        tensors[1]["buffer"] = 2
    return b.finish()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("version", "schema version"),
        ("code", "operator code 7"),
        ("reads", "reads tensor 9"),
        ("writes", "tensor -1 among its outputs"),
        ("buffer", "buffer 99"),
        ("bytes", "needs 20 bytes"),
        ("negative", "negative dimension"),
        ("options", "options of another operator"),
        ("enum", "fused_activation_function of 99"),
        ("twice", "defined before"),
        ("order", "not computed before"),
        ("input", "input twice"),
        ("output", "tensor 5 among its outputs"),
        ("none", "no outputs"),
        ("undefined", "not computed before"),
        ("variable", "a variable and a constant"),
        ("scales", "2 scales and 1 zero points"),
        ("axis", "2 scales, which do not fit axis 0"),
        ("scale", "negative or not finite"),
        ("zero", "zero point 200"),
        ("signature", "tensor 77"),
        ("outside", "not computed before"),
    ],
)
def test_unsound_models(what: str, words: str) -> None:
    fails(ModelError, spoil(what), words)


# buffers behind the FlatBuffer, as in models of more than 2 GB


def with_outer_buffer(offset: int | None, size: int) -> bytes:
    b = adder()
    weights = np.arange(4, dtype=F).tobytes()
    length = len(b.finish())
    model_bytes = 0
    for _ in range(3):  # the length depends on the fields, and they on the length
        model_bytes = (length + 15) // 16 * 16
        outer = {"offset": model_bytes if offset is None else offset, "size": size}
        values = {
            "version": 3,
            "operator_codes": [{"deprecated_builtin_code": 0, "builtin_code": 0}],
            "buffers": [{}, outer],
            "subgraphs": [
                {
                    "tensors": b.main.tensors,
                    "inputs": b.main.inputs,
                    "outputs": b.main.outputs,
                    "operators": b.main.operators,
                }
            ],
        }
        builder = flatbuffers.Builder(1 << 10)
        builder.Finish(write_table(builder, "Model", values), file_identifier=b"TFL3")
        data = bytes(builder.Output())
        length = len(data)
    return data + bytes(model_bytes - length) + weights


def test_a_buffer_behind_the_flatbuffer() -> None:
    graph = load(with_outer_buffer(None, 16))
    y = run(graph, {"x": np.ones((1, 4), F)})["y"]
    np.testing.assert_array_equal(y, [[1, 2, 3, 4]])
    fails(ModelError, with_outer_buffer(None, 17), "buffer 1 takes bytes")
    fails(ModelError, with_outer_buffer(1 << 40, 16), "buffer 1 takes bytes")
    fails(ModelError, with_outer_buffer(2**64 - 8, 16), "buffer 1 takes bytes")


# names, shapes, constants


def test_names_are_the_files_and_unique() -> None:
    b = ModelBuilder()
    x, y = b.input("", (2,), F), b.input("in", (2,), F)
    a = b.op("ADD", [x, y], out=("in", (2,), F))
    c = b.op("MUL", [a, a], out=("", (2,), F))
    b.output(c, a)
    b.signature("serving_default", {"first": x, "second": y}, {"result": c, "sum": a})
    graph = load(b.finish())
    assert [v.name for v in graph.inputs] == ["first", "in"]
    assert graph.output_names == ["result", "in_1"]
    assert [n.name for n in graph.nodes] == ["in_1", "result"]
    assert [n.origin for n in graph.nodes] == [("in_1",), ("result",)]


def flexible() -> bytes:
    """[n, 2, 3] -> [n, 6] by SHAPE, STRIDED_SLICE, PACK and RESHAPE, as Keras writes Flatten."""
    b = ModelBuilder()
    x = b.input("x", (1, 2, 3), F, signature=(-1, 2, 3))
    shape = b.op("SHAPE", [x], out=("shape", (3,), "int32"), options={"out_type": "int32"})
    bounds = [b.const(n, np.array([v], np.int32)) for n, v in (("b", 0), ("e", 1), ("s", 1))]
    batch = b.op("STRIDED_SLICE", [shape, *bounds], out=("batch", (), "int32"),
                 options={"shrink_axis_mask": 1})  # fmt: skip
    six = b.const("six", np.array(6, np.int32))
    size = b.op("PACK", [batch, six], out=("size", (2,), "int32"), options={"values_count": 2})
    b.output(b.op("RESHAPE", [x, size], out=("y", (1, 6), F)))
    return b.finish()


def test_open_dimensions_keep_the_files_size_or_are_bound() -> None:
    graph = load(flexible())
    assert (graph.inputs[0].shape, graph.outputs[0].shape) == ((1, 2, 3), (1, 6))
    assert [n.op for n in graph.nodes] == ["reshape"]
    graph = load(flexible(), shapes={"x": (5, 2, 3)})
    assert (graph.inputs[0].shape, graph.outputs[0].shape) == ((5, 2, 3), (5, 6))
    x = np.arange(30, dtype=F).reshape(5, 2, 3)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], litert(flexible(), [x])[0])


@pytest.mark.parametrize(
    ("shapes", "dims", "words"),
    [
        ({"x": (1, 2, 4)}, {}, "dimension 2 is 3 in the model"),
        ({"x": (1, 2)}, {}, "rank 3 (?x2x3)"),
        ({"x": (-1, 2, 3)}, {}, "negative"),
        ({"z": (1, 2, 3)}, {}, "inputs are: 'x'"),
        ({"x": (1 << 40, 2, 3)}, {}, "bytes"),
        ({}, {"n": 4}, "names no dimensions"),
    ],
)
def test_bindings_that_do_not_fit(
    shapes: dict[str, tuple[int, ...]], dims: dict[str, int], words: str
) -> None:
    fails(ShapeError, flexible(), words, shapes=shapes, dims=dims)


def test_quantization_is_part_of_the_type() -> None:
    b = ModelBuilder()
    x = b.input("x", (2, 6), "int8", 0.5, 3)
    new = b.const("new", np.array([3, 4], np.int32))
    y = b.op("RESHAPE", [x, new], out=("y", (3, 4), "int8", 0.25, -1))
    same = b.op("RESHAPE", [y, new], out=("same", (3, 4), "int8", 0.125, 0))
    b.output(y, same)
    graph = load(b.finish())
    quants = [v.type.quant for v in (*graph.inputs, *graph.outputs)]
    assert quants == [Quant((0.5,), (3,)), Quant((0.25,), (-1,)), Quant((0.125,), (0,))]
    assert graph.output_names == ["y", "same"]


def test_quantized_uint16_is_refused() -> None:
    """No runtime computes with it; without scales it is a plain integer."""
    b = ModelBuilder()
    x, z = b.input("x", (2, 6), "uint16", 0.5, 3), b.input("z", (2, 6), "uint16")
    b.output(b.op("ADD", [x, x], out=("y", (2, 6), "uint16", 0.5, 3)))
    b.output(b.op("RESHAPE", [z, b.const("new", np.array([3, 4], np.int32))],
                  out=("r", (3, 4), "uint16")))  # fmt: skip
    problems = check(b.finish())
    assert problems and all("quantized to uint16" in p.reason for p in problems)
    assert "z" not in {p.node for p in problems}


def test_half_precision_weights_are_floats_at_once() -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 300), F)
    half = b.const("half", np.linspace(-2, 2, 300).astype(np.float16).reshape(1, 300))
    w = b.op("DEQUANTIZE", [half], out=("w", (1, 300), F))
    b.output(b.op("MUL", [x, w], out=("y", (1, 300), F)))
    graph = load(b.finish())
    assert [n.op for n in graph.nodes] == ["mul"]
    assert graph.nodes[0].input(1).dtype is DType.F32


def test_a_bias_keeps_its_axis_where_writers_left_that_of_the_filter() -> None:
    b = ModelBuilder()
    x = b.input("x", (4,), "int32")
    c = b.const("c", np.arange(4, dtype=np.int32), [0.1] * 4, [0] * 4, 3)
    b.output(b.op("ADD", [x, c], out=("y", (4,), "int32")))
    tensor = read(b.finish()).subgraphs[0].tensors[c]
    assert tensor.quant is not None and tensor.quant.axis == 0


# what is not supported


def test_check_lists_everything_at_once() -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 4), F)
    c = b.const("c", np.ones((1, 4), np.float32))
    a = b.op("CUSTOM", [x], out=("a", (1, 4), F), custom_code="MyOp")
    boxes = b.op("CUSTOM", [a], out=("boxes", (1, 4), F),
                 custom_code="TFLite_Detection_PostProcess")  # fmt: skip
    w = b.tensor("w", (1, 4), "INT4", data=b"\x12\x34")
    d = b.op("ADD", [boxes, w], out=("d", (1, 4), F))
    sparse = b.tensor("sparse", (1, 4), F, data=c_bytes(), sparsity={"traversal_order": [0, 1]})
    e = b.op("MUL", [d, sparse], out=("e", (1, 4), F))
    loop = b.op("WHILE", [e], outs=[("loop", (1, 4), F)],
                options={"cond_subgraph_index": 0, "body_subgraph_index": 0})[0]  # fmt: skip
    back = b.op("BIDIRECTIONAL_SEQUENCE_RNN", [loop], out=("back", (1, 4), F))
    bad = b.op("SQUEEZE", [back], out=("bad", (4,), F), options={"squeeze_dims": [1]})
    b.output(b.op("ADD", [bad, c], out=("y", (1, 4), F)))
    problems = check(b.finish())
    assert [(p.node, p.op) for p in problems] == [
        ("a", "MyOp"),
        ("boxes", "TFLite_Detection_PostProcess"),
        ("d", "ADD"),
        ("e", "MUL"),
        ("loop", "WHILE"),
        ("back", "BIDIRECTIONAL_SEQUENCE_RNN"),
        ("bad", "SQUEEZE"),
    ]
    assert all(p.reason for p in problems)
    assert sum("not supported yet" in p.reason for p in problems) == 5
    assert "custom operator 'MyOp'" in problems[0].reason


def c_bytes() -> bytes:
    return np.ones((1, 4), np.float32).tobytes()


def test_several_signatures_are_refused() -> None:
    b = adder()
    other = b.subgraph("other")
    z = other.input("z", (2,), F)
    other.output(other.op("RELU", [z], out=("r", (2,), F)))
    b.signature("first", {"x": 0}, {"y": 2})
    assert check(b.finish()) == []
    b.signature("second", {"z": 0}, {"r": 1}, subgraph=1)
    (problem,) = check(b.finish())
    assert "several signatures" in problem.reason and "not supported yet" in problem.reason


def test_what_nothing_reads_is_not_converted() -> None:
    b = adder()
    b.op("CUSTOM", [0], out=("aside", (1, 4), F), custom_code="MyOp")
    assert check(b.finish()) == []


def test_strings_are_refused_at_their_input() -> None:
    b = ModelBuilder()
    x = b.input("words", (2,), "STRING")
    b.output(b.op("SHAPE", [x], out=("y", (1,), "int32"), options={"out_type": "int32"}))
    problems = check(b.finish())
    assert problems[0].node == "words" and "string" in problems[0].reason


# the project


def test_a_project_keeps_the_model_file(tmp_path: Path) -> None:
    """Also one that mentions a word by which ONNX files with external data are known."""
    path = tmp_path / "model.tflite"
    b = adder()
    b.description = "location"
    path.write_bytes(b.finish())
    project = aotgen.compile(path, output=tmp_path / "project")
    kept = project.folder / "test/model.tflite"
    assert kept.read_bytes() == path.read_bytes()


def test_every_scalar_of_the_schema_has_a_size() -> None:
    for fields in TABLES.values():
        for field in fields:
            if field.kind in ("scalar", "scalars"):
                assert struct.calcsize("<" + SCALARS[field.type][0]) == SCALARS[field.type][1]
