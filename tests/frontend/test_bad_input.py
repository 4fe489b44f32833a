"""Everything that can be wrong with a model file: one error and one line each, exit code 2."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend.models import model, node, ramp
from onnx import TensorProto, helper, numpy_helper

from aotgen.errors import AotgenError, ModelError, ShapeError, UnsupportedError, UsageError
from aotgen.frontend.onnx import check, load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify


def fails(kind: type[AotgenError], source: object, *words: str, **options: object) -> str:
    """``load`` raises exactly ``kind`` with a one-line message that has ``words``; returns it."""
    with pytest.raises(AotgenError) as caught:
        load(source, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert caught.value.exit_code == 2
    assert "\n" not in message and len(message) < 700
    for word in words:
        assert word in message
    return message


def relu() -> onnx.ModelProto:
    return model([node("Relu", "x")], {"x": [2, 3]})


def conv() -> onnx.ModelProto:
    return model(
        [node("Conv", "x w", pads=[1, 1, 1, 1])],
        {"x": [1, 2, 4, 4]},
        constants={"w": ramp(3, 2, 3, 3)},
    )


# the file


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["is empty"]),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(range(256)) * 4, ["JPEG"]),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), ["PNG"]),
        (b"PK\x03\x04" + bytes(100), ["zip"]),
        (b"hello, this is a text file\n" * 20, ["text file"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ["LFS"]),
        (b"<!DOCTYPE html><html></html>", ["text file"]),
        (bytes(1000), ["model.onnx"]),
        (b"\x1c\x00\x00\x00TFL3" + bytes(64), ["TFLite"]),
    ],
    ids=["empty", "jpeg", "png", "zip", "text", "lfs", "html", "zeros", "tflite"],
)
def test_other_formats(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    fails(ModelError, path, "model.onnx", *words)


def test_truncated_anywhere(tmp_path: Path) -> None:
    data = conv().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(1, len(data), 7):
        path.write_bytes(data[:length])
        fails(ModelError, path)


def test_flipped_bytes_never_end_in_a_traceback() -> None:
    data = conv().SerializeToString()
    rng = np.random.default_rng(7)
    for _ in range(300):
        broken = bytearray(data)
        broken[rng.integers(len(data))] = rng.integers(256)
        try:
            load(bytes(broken), shapes=None)
        except AotgenError as error:
            assert "\n" not in str(error)
            assert error.exit_code == 2


def test_missing_file_and_folder(tmp_path: Path) -> None:
    fails(UsageError, tmp_path / "none.onnx", "none.onnx", "No such file")
    fails(UsageError, tmp_path, "is a folder")
    fails(UsageError, Path("a\0b"), "cannot read")


def test_larger_than_protobuf_allows(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # sparse: takes no room on disk
    fails(ModelError, path, "2 GiB", "external data")


# the graph


def test_cycle() -> None:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b")]
    fails(ModelError, model(nodes, {"x": [2]}), "cycle", "'Add:a'")


def test_self_loop() -> None:
    fails(ModelError, model([node("Add", "x y")], {"x": [2]}), "cycle")


def test_nodes_in_any_order_are_sorted() -> None:
    graph = load(model([node("Exp", "a"), node("Neg", "x", "a")], {"x": [2]}))
    assert [n.op for n in graph.nodes] == ["neg", "exp"]


def test_undefined_tensor() -> None:
    fails(ModelError, model([node("Add", "x nowhere")], {"x": [2]}), "undefined", "'nowhere'")


def test_output_that_nothing_computes() -> None:
    fails(ModelError, model([node("Relu", "x")], {"x": [2]}, ["z"]), "output 'z'")


def test_no_outputs() -> None:
    fails(ModelError, model([node("Relu", "x")], {"x": [2]}, []), "no outputs")


def test_tensor_defined_twice() -> None:
    nodes = [node("Relu", "x", "a"), node("Neg", "x", "a"), node("Exp", "a")]
    fails(ModelError, model(nodes, {"x": [2]}), "'a'", "second time")
    over = model([node("Relu", "x", "x"), node("Exp", "x")], {"x": [2]})
    fails(ModelError, over, "'x'", "second time")


def test_initializer_or_input_defined_twice() -> None:
    twice = conv()
    twice.graph.initializer.append(twice.graph.initializer[0])
    fails(ModelError, twice, "initializer 'w' is defined twice")
    twice = conv()
    twice.graph.input.append(twice.graph.input[0])
    fails(ModelError, twice, "graph input 'x' is defined twice")


def test_nameless_input() -> None:
    nameless = relu()
    nameless.graph.input[0].name = ""
    fails(ModelError, nameless, "without a name")


def test_input_without_a_type() -> None:
    untyped = relu()
    untyped.graph.input[0].ClearField("type")
    fails(ModelError, untyped, "'x' has no type")


def test_opsets() -> None:
    newest = onnx.defs.onnx_opset_version()
    load(model([node("Relu", "x")], {"x": [2]}, opset=newest))
    fails(ModelError, model([node("Relu", "x")], {"x": [2]}, opset=newest + 1), f"up to {newest}")
    missing = relu()
    del missing.opset_import[:]
    fails(ModelError, missing, "opset")


# initializers


def initializer_model(tensor: TensorProto) -> onnx.ModelProto:
    proto = model([node("Add", "x w")], {"x": [1]})
    tensor.name = "w"
    proto.graph.initializer.append(tensor)
    return proto


def test_wrong_initializer_size() -> None:
    raw = TensorProto(data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(12))
    fails(ModelError, initializer_model(raw), "'w'", "16 bytes", "12")
    typed = TensorProto(data_type=TensorProto.FLOAT, dims=[4], float_data=[1, 2, 3])
    fails(ModelError, initializer_model(typed), "'w'", "4 elements", "3")
    empty = TensorProto(data_type=TensorProto.FLOAT, dims=[4])
    fails(ModelError, initializer_model(empty), "'w'")


def test_negative_dimension() -> None:
    bad = TensorProto(data_type=TensorProto.FLOAT, dims=[-1, 4], raw_data=bytes(16))
    fails(ModelError, initializer_model(bad), "negative")


def test_string_initializer() -> None:
    text = TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
    fails(UnsupportedError, initializer_model(text), "string", "'w'")


@pytest.mark.parametrize("dims", [[1 << 40], [1 << 62, 1 << 62], [100000, 100000, 10]])
def test_huge_claims_are_refused_before_any_memory_is_asked_for(dims: list[int]) -> None:
    claim = TensorProto(data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(16))
    tracemalloc.start()
    fails(ModelError, initializer_model(claim), "claims", "limit")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("ConstantOfShape", "s")], {"s": np.array([1 << 40], np.int64)}),
        ([node("Expand", "c s")], {"c": ramp(1), "s": np.array([1 << 20, 1 << 20], np.int64)}),
        ([node("Tile", "c s")], {"c": ramp(1), "s": np.array([1 << 40], np.int64)}),
        (
            [node("Range", "a b c")],
            {k: np.array(v, np.int64) for k, v in (("a", 0), ("b", 1 << 40), ("c", 1))},
        ),
        ([node("Pad", "c s")], {"c": ramp(1), "s": np.array([0, 1 << 40], np.int64)}),
        # A byte more than an int32_t counts.
        ([node("Expand", "c s")], {"c": ramp(1), "s": np.array([1 << 14, 1 << 15], np.int64)}),
        (
            [node("ConstantOfShape", "s", "c"), node("NonZero", "c")],
            {"s": np.array([1 << 31, 1 << 10], np.int64)},
        ),
        (
            [node("ConstantOfShape", "s", "c"), node("NonZero", "c")],
            {"s": np.array([1 << 14, 1 << 14], np.int64)},
        ),
    ],
    ids=[
        "ConstantOfShape",
        "Expand",
        "Tile",
        "Range",
        "Pad",
        "OneTooMany",
        "NonZero",
        "NonZeroBelow",
    ],
)
def test_huge_results_are_refused(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]
) -> None:
    tracemalloc.start()
    fails(UnsupportedError, model(nodes, {}, constants=constants))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


# external data


@pytest.fixture
def external(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model whose weight lies outside the .onnx file; entries can be overridden."""

    def write(data: bytes | None = None, **entries: str) -> Path:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        weight = ramp(4)
        (folder / "w.bin").write_bytes(weight.tobytes() if data is None else data)
        tensor = TensorProto(
            name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
        )
        for key, value in ({"location": "w.bin"} | entries).items():
            tensor.external_data.add(key=key, value=value)
        path = folder / "m.onnx"
        path.write_bytes(initializer_model(tensor).SerializeToString())
        return path

    return write


def test_external_data_is_read(external: Callable[..., Path]) -> None:
    graph = load(external())
    got = run(graph, {"x": np.zeros(1, np.float32)})["y"]
    np.testing.assert_array_equal(got, ramp(4))
    shifted = external(b"12345678" + ramp(4).tobytes(), offset="8", length="16")
    np.testing.assert_array_equal(run(load(shifted), {"x": np.zeros(1, np.float32)})["y"], ramp(4))


def test_external_data_of_onnx_itself(tmp_path: Path) -> None:
    proto = conv()
    path = tmp_path / "m.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="w.data", size_threshold=0)
    x = {"x": ramp(1, 2, 4, 4)}
    want = run(load(conv()), x)["y"]
    np.testing.assert_array_equal(run(load(path), x)["y"], want)


def test_external_file_missing(external: Callable[..., Path]) -> None:
    fails(ModelError, external(location="gone.bin"), "'gone.bin'", "No such file", "beside")


@pytest.mark.parametrize(
    "location", ["../secret.bin", "sub/../../secret.bin", "/etc/hostname", "", "a\0b"]
)
def test_external_path_outside_the_folder(
    external: Callable[..., Path], tmp_path: Path, location: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    fails(ModelError, external(location=location), "'w'")


def test_external_link_out_of_the_folder(external: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    path = external(location="link.bin")
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    fails(ModelError, path, "outside")


def test_external_location_is_a_folder(external: Callable[..., Path]) -> None:
    path = external(location="sub")
    (path.parent / "sub").mkdir()
    fails(ModelError, path, "not a regular file")


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "4"},
        {"offset": "-4"},
        {"offset": "x"},
        {"length": "12"},
        {"length": "1000000000000"},
        {"offset": "99999999999999999999"},
    ],
)
def test_external_offset_and_length(external: Callable[..., Path], entries: dict[str, str]) -> None:
    fails(ModelError, external(**entries), "'w'")


def test_external_data_without_a_folder(external: Callable[..., Path]) -> None:
    fails(ModelError, external().read_bytes(), "without a folder", "by its path")


# operators


def test_all_problems_at_once() -> None:
    proto = model(
        [
            node("Foo", "x", "a", name="first"),
            node("Relu", "a", "b"),
            helper.make_node("Bar", ["x"], ["c"], domain="my.domain", name="second"),
            node("MaxPool", "x", "d unused", name="third", kernel_shape=[9, 9]),
            node("Gather", "x s", "e", name="fourth", axis=7),
            node("MaxRoiPool", "x k", "f", name="fifth", pooled_shape=[2, 2]),
            node("Concat", "f x", "h", name="sixth", axis=0),
        ],
        {"x": [1, 2, 4, 4]},
        ["b", "c", "d", "e", "h"],
        {"s": np.array([0], np.int64), "k": np.zeros((1, 5), np.float32)},
    )
    proto.opset_import.add(domain="my.domain", version=1)
    problems = check(proto)
    assert [(p.node, p.op) for p in problems] == [
        ("first", "Foo"),
        ("second", "my.domain.Bar"),
        ("third", "MaxPool"),
        ("fourth", "Gather"),
        ("fifth", "MaxRoiPool"),
        # its output is known by onnx's inference ([1, 2, 2, 2]), so this one is still found
        ("sixth", "Concat"),
    ]
    assert all(p.reason for p in problems)
    message = fails(UnsupportedError, proto, "'first'", "5 more")
    assert "\n" not in message
    with pytest.raises(UnsupportedError) as caught:
        load(proto)
    assert list(caught.value.problems) == problems


def test_nodes_after_an_untyped_one_are_checked_for_their_operator() -> None:
    nodes = [node("Foo", "x", "a"), node("Relu", "a", "b"), node("Nope", "b")]
    assert [p.op for p in check(model(nodes, {"x": [2]}))] == ["Foo", "Nope"]


def test_check_of_a_good_model() -> None:
    assert check(conv()) == []


def test_dead_nodes_are_not_converted() -> None:
    graph = load(model([node("Foo", "x", "a"), node("Relu", "x")], {"x": [2]}))
    assert [n.op for n in graph.nodes] == ["relu"]


def test_control_flow() -> None:
    branch = helper.make_graph(
        [node("Relu", "x", "z")], "g", [], [helper.make_tensor_value_info("z", 1, [2])]
    )
    proto = model(
        [node("If", "c", then_branch=branch, else_branch=branch)],
        {"x": [2], "c": []},
        dtypes={"c": TensorProto.BOOL},
    )
    fails(UnsupportedError, proto, "If", "control flow")


def test_schema_violations() -> None:
    fails(UnsupportedError, model([node("Relu", "x", wrong=1)], {"x": [2]}), "wrong")
    fails(UnsupportedError, model([node("Add", "x")], {"x": [2]}), "Add")
    fails(UnsupportedError, model([node("Concat", "x x")], {"x": [2]}), "axis")
    fails(UnsupportedError, model([node("Concat", "x x", axis=1.5)], {"x": [2]}), "axis")


def test_attribute_values_that_are_not_supported() -> None:
    cases: list[tuple[onnx.NodeProto, str]] = [
        (node("Conv", "x w", auto_pad="ODD"), "auto_pad"),
        (node("Conv", "x w", group=3), "group"),
        (node("Conv", "x w", strides=[0, 1]), "strides"),
        (node("Conv", "x w", kernel_shape=[5, 5]), "kernel_shape"),
        (node("Pad", "x p", mode="bounce"), "mode"),
        (node("Transpose", "x", perm=[0, 0, 1, 2]), "perm"),
        (node("Reshape", "x p"), "reshape"),
        (node("MaxPool", "x", kernel_shape=[2]), "kernel_shape"),
        (node("Resize", "x - q", mode="spline"), "mode"),
        (node("Softmax", "x", axis=9), "axis"),
        (node("Cast", "x", to=TensorProto.BFLOAT16), "bfloat16"),
        (node("Cast", "x", to=9999), "9999"),
    ]
    constants = {
        "w": ramp(4, 2, 3, 3),
        "p": np.array([3, 1, 1, 1, 1, 1, 1, 1], np.int64),
        "q": np.array([1, 1, 2, 2], np.float32),
    }
    for bad, word in cases:
        fails(UnsupportedError, model([bad], {"x": [1, 2, 8, 8]}, constants=constants), word)


def test_shapes_that_do_not_fit() -> None:
    wide = {"a": ramp(5), "w": ramp(3, 9, 3, 3)}
    for bad in (node("Add", "x a"), node("Conv", "x w"), node("MatMul", "x a")):
        message = fails(UnsupportedError, model([bad], {"x": [1, 2, 8, 8]}, constants=wide))
        assert bad.op_type in message


def test_integer_types_that_do_not_match() -> None:
    proto = model([node("Add", "x a")], {"x": [2]}, constants={"a": np.arange(2)})
    fails(UnsupportedError, proto, "Add", "type")


def test_element_types_come_with_what_to_do() -> None:
    for kind, word, remedy in [
        (TensorProto.BFLOAT16, "bfloat16", "use float32"),
        (TensorProto.STRING, "string", "encode strings"),
    ]:
        proto = model([node("Identity", "x")], {"x": [2]}, dtypes={"x": kind})
        fails(UnsupportedError, proto, word, remedy)
    proto = model([node("DequantizeLinear", "w s")], {}, constants={"s": ramp(1).reshape(())})
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [2], [1, -1]))
    fails(UnsupportedError, proto, "int4", "quantize to 8 or 16 bits")


def test_sparse_and_sequence() -> None:
    sequence = model([node("SequenceAt", "s i")], {"i": []}, dtypes={"i": TensorProto.INT64})
    sequence.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2]))
    fails(UnsupportedError, sequence, "sequence_type", "'s'")


# dimensions


def symbolic() -> onnx.ModelProto:
    return model([node("Add", "a b")], {"a": ["batch", 3, None, 4], "b": ["batch", 1, 1, "width"]})


def test_unbound_dimensions_are_named_with_the_option_that_binds_them() -> None:
    message = fails(ShapeError, symbolic(), "'a'", "'batch'", "--shape a=?x3x?x4", "'b'")
    assert "2" in message  # the unnamed dimension, by number
    fails(ShapeError, symbolic(), "--shape a=1x3x?x4", dims={"batch": 1, "width": 4})
    assert "--dim batch=? --dim width=? or --shape b=?x1x1x?" in message
    batch = model([node("Relu", "x")], {"x": [None, 3]})
    assert "--dim" not in fails(ShapeError, batch, "--shape x=?x3")
    spaced = model([node("Relu", "x")], {"x": ["batch size", 3]})
    fails(ShapeError, spaced, "add --dim 'batch size'=? or --shape x=?x3")


def test_binding() -> None:
    graph = load(symbolic(), shapes={"a": (2, 3, 5, 4)}, dims={"width": 4})
    assert [v.type.shape for v in graph.inputs] == [(2, 3, 5, 4), (2, 1, 1, 4)]


@pytest.mark.parametrize(
    ("shapes", "dims", "words"),
    [
        ({"a": (2, 3, 5)}, {}, ["rank"]),
        ({"a": (2, 4, 5, 4)}, {}, ["dimension 1", "3", "4"]),
        ({"c": (1,)}, {}, ["'c'", "'a'", "'b'"]),
        ({}, {"height": 2}, ["'height'", "'batch'"]),
        ({"a": (2, 3, 5, 4)}, {"batch": 1}, ["'batch'", "2", "1"]),
        ({"a": (2, 3, 5, 4), "b": (3, 1, 1, 4)}, {}, ["'batch'"]),
        ({"a": (-2, 3, 5, 4)}, {}, ["negative"]),
        ({}, {"batch": -1}, ["negative"]),
        ({"a": (1 << 20, 3, 1 << 20, 4), "b": (1 << 20, 1, 1, 4)}, {}, ["bytes"]),
    ],
)
def test_bindings_that_do_not_fit(
    shapes: dict[str, tuple[int, ...]], dims: dict[str, int], words: list[str]
) -> None:
    fails(ShapeError, symbolic(), *words, shapes=shapes, dims=dims)


def test_input_without_a_shape() -> None:
    proto = relu()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    fails(ShapeError, proto, "--shape x=")
    assert load(proto, shapes={"x": (2, 2)}).inputs[0].shape == (2, 2)


# names

HOSTILE = [
    "int",
    "a b",
    "../x",
    'q"uote',
    "ünï→",
    "1",
    "_",
    "x" * 5000,
    "\n",
    "%s",
    "a.b",
    "a_b",
    "%",
]


def test_hostile_names_are_kept() -> None:
    nodes, previous = [], "in put"
    for name in HOSTILE:
        nodes.append(helper.make_node("Neg", [previous], [name], name=name))
        previous = name
    nodes.append(helper.make_node("Relu", [previous], ["out/../put"], name="int"))
    proto = model(nodes, {"in put": [2]}, ["out/../put"])
    graph = load(proto)
    verify(graph)
    assert [v.name for v in graph.inputs] == ["in put"]
    assert graph.output_names == ["out/../put"]
    assert [n.output.name for n in graph.nodes] == [*HOSTILE, "out/../put"]
    assert len({n.name for n in graph.nodes}) == len(graph.nodes)
    assert [n.origin for n in graph.nodes] == [(n,) for n in [*HOSTILE, "int"]]


def test_generated_names_give_way_to_those_of_the_file() -> None:
    proto = model(
        [node("Conv", "x w", "conv.out", name="conv"), node("Relu", "conv.out", "conv.conv")],
        {"x": [1, 2, 4, 4]},
        ["conv.conv"],
        {"w": ramp(3, 2, 3, 3)},
    )
    graph = load(proto)
    verify(graph)
    assert {"conv.out", "conv.conv", "x"} <= {v.name for v in graph.values()}


def test_nodes_without_names_are_called_by_operator_and_output() -> None:
    assert load(relu()).nodes[0].name == "Relu:y"


# inputs and outputs


def test_initializer_also_listed_as_input_is_a_constant() -> None:
    proto = conv()
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, [3, 2, 3, 3]))
    assert [v.name for v in load(proto).inputs] == ["x"]


def test_outputs_that_are_inputs_constants_or_doubled() -> None:
    proto = model(
        [node("Identity", "x", "a"), node("Identity", "w", "b"), node("Relu", "x", "c")],
        {"x": [2]},
        ["a", "b", "c", "x"],
        {"w": ramp(2)},
    )
    graph = load(proto)
    verify(graph)
    x = np.array([-1, 1], np.float32)
    got = run(graph, {"x": x})
    assert list(got) == ["a", "b", "c", "x"]
    np.testing.assert_array_equal(got["a"], x)
    np.testing.assert_array_equal(got["b"], ramp(2))
    np.testing.assert_array_equal(got["x"], x)


def test_optional_inputs_and_unused_outputs() -> None:
    proto = model(
        [
            node("Clip", "x - hi", "a"),
            node("Dropout", "a", "d mask"),
            node("BatchNormalization", "d s b m v"),
        ],
        {"x": [1, 2, 3]},
        constants={"hi": np.float32(0.5), **{k: np.ones(2, np.float32) for k in "sbmv"}},
    )
    graph = load(proto)
    assert [n.op for n in graph.nodes] == ["clip", "batch_norm"]


def test_model_local_functions_are_inlined() -> None:
    body = helper.make_function(
        "my", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 17)]
    )
    proto = model(
        [helper.make_node("Twice", ["x"], ["y"], domain="my")], {"x": [2]}, functions=[body]
    )
    proto.opset_import.add(domain="my", version=1)
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(run(load(proto), {"x": x})["y"], 2 * x)


def test_initializers_of_all_element_types() -> None:
    for dtype in ("f4", "f8", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"):
        array = np.array([0, 1, 3], dtype)
        tensor = numpy_helper.from_array(array, "w")
        typed = helper.make_tensor("w", tensor.data_type, [3], array.tolist())
        for t in (tensor, typed):
            graph = load(_constant(t))
            np.testing.assert_array_equal(graph.outputs[0].const, array)


def _constant(tensor: TensorProto) -> onnx.ModelProto:
    proto = model([node("Identity", "w")], {})
    proto.graph.initializer.append(tensor)
    return proto
