"""The registry of networks, their weights' calibration, and writing them to disk."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from .layers import Layers, Shapes
from .mobile import mobilenet_v1, mobilenet_v2, mobilenet_v3_small, squeezenet1_1
from .residual import r3d_18, resnet18, resnet50
from .tiny import ds_cnn, fc_autoencoder
from .transformer import transformer
from .wide import densenet121, inception_v3, vgg16

OPSET = 17
IR_VERSION = 8
SEED = 1234
INPUT, OUTPUT = "input", "output"


@dataclass(frozen=True)
class Network:
    """A row of the registry: the builder and the shapes of its one input and one output."""

    layers: Callable[[Layers, str], str]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]


_IMAGE, _CLASSES = (1, 3, 224, 224), (1, 1000)
NETWORKS: dict[str, Network] = {
    "resnet18": Network(resnet18, _IMAGE, _CLASSES),
    "mobilenet_v2": Network(mobilenet_v2, _IMAGE, _CLASSES),
    "squeezenet1_1": Network(squeezenet1_1, _IMAGE, _CLASSES),
    "resnet50": Network(resnet50, _IMAGE, _CLASSES),
    "mobilenet_v1": Network(mobilenet_v1, _IMAGE, _CLASSES),
    "mobilenet_v3_small": Network(mobilenet_v3_small, _IMAGE, _CLASSES),
    "vgg16": Network(vgg16, _IMAGE, _CLASSES),
    "densenet121": Network(densenet121, _IMAGE, _CLASSES),
    "inception_v3": Network(inception_v3, (1, 3, 299, 299), _CLASSES),
    "r3d_18": Network(r3d_18, (1, 3, 16, 112, 112), (1, 400)),
    "ds_cnn": Network(ds_cnn, (1, 1, 49, 10), (1, 12)),
    "fc_autoencoder": Network(fc_autoencoder, (1, 640), (1, 640)),
    "transformer": Network(transformer, (1, 128, 256), (1, 128, 256)),
}


def build(name: str, seed: int = SEED) -> onnx.ModelProto:
    """The network `name` of NETWORKS; fp32, one input `input`, one output `output`.

    Raises KeyError when there is no such network.
    """
    network = NETWORKS[name]
    net = Layers(seed + zlib.crc32(name.encode()))
    _append_layers(net, network)
    shape = network.input_shape
    if len(shape) == 2:  # without spatial axes the statistics come from a batch
        shape = (256, *shape[1:])
    _calibrate(net, name, net.rng.standard_normal(shape, np.float32))
    return _model(name, net.nodes, [_output(network)], network.input_shape, net.weights)


def skeleton(name: str) -> onnx.ModelProto:
    """The nodes and shapes of `build(name)` without its data: the weights are graph inputs."""
    network = NETWORKS[name]
    net = Shapes(SEED)
    _append_layers(net, network)
    model = _model(name, net.nodes, [_output(network)], network.input_shape, {})
    model.graph.input.extend(
        helper.make_tensor_value_info(key, TensorProto.FLOAT, array.shape)
        for key, array in net.weights.items()
    )
    return model


def _append_layers(net: Layers, network: Network) -> None:
    result = network.layers(net, INPUT)
    last = net.nodes[-1]
    assert list(last.output) == [result]
    last.output[0] = OUTPUT


def _output(network: Network) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, network.output_shape)


def _model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    input_shape: Sequence[int],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, input_shape)],
        outputs,
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    return helper.make_model(
        graph,
        ir_version=IR_VERSION,
        producer_name="aotgen-benchmarks",
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def _calibrate(net: Layers, name: str, x: np.ndarray) -> None:
    """Set BatchNorm's running statistics to those that `x` gives, perturbed.

    `x` is [1, C, spatial...] or [N, C]. One pass over the graph with each BatchNorm in training
    mode gives the input of each as it is with all those before it calibrated. The perturbation
    shift, spread (mean + shift * deviation, variance * spread) is part of that pass, as a change of
    gamma and beta, and so does not add up from layer to layer.
    """
    norms = [node for node in net.nodes if node.op_type == "BatchNormalization"]
    if not norms:
        return
    perturbed, probed = {}, dict(net.weights)
    for node in norms:
        gamma, beta = node.input[1:3]
        shift = 0.1 * net.rng.standard_normal(net.weights[gamma].shape)
        spread = net.rng.uniform(0.8, 1.25, shift.shape)
        perturbed[node.input[0]] = shift, spread
        scale = net.weights[gamma] / np.sqrt(spread)
        probed[gamma] = scale.astype(np.float32)
        probed[beta] = (net.weights[beta] - shift * scale).astype(np.float32)
    probe = [part for node in net.nodes for part in _in_training(node, x.ndim)]
    inner = [helper.make_tensor_value_info(n.input[0], TensorProto.FLOAT, None) for n in norms]
    model = _model(name, probe, inner, x.shape, probed)
    for node, value in zip(norms, session(model).run(None, {INPUT: x}), strict=True):
        shift, spread = perturbed[node.input[0]]
        axes = tuple(axis for axis in range(value.ndim) if axis != 1)
        mean = value.mean(axis=axes, dtype=np.float64)
        variance = value.astype(np.float64).var(axis=axes)
        net.weight(node.input[3], mean + shift * np.sqrt(variance))
        net.weight(node.input[4], variance * spread)


def _in_training(node: onnx.NodeProto, rank: int) -> Iterator[onnx.NodeProto]:
    """BatchNorm in training mode, which onnxruntime does not run, in operators that it does.

    In a batch of one it is instance normalisation. A batch of vectors is turned into one instance
    whose only spatial axis is the batch: [N, C] -> [1, C, N].
    """
    if node.op_type != "BatchNormalization":
        yield node
        return
    (x, gamma, beta, *_), y = node.input, node.output[0]
    epsilon = next(a.f for a in node.attribute if a.name == "epsilon")
    if rank > 2:
        yield helper.make_node("InstanceNormalization", [x, gamma, beta], [y], epsilon=epsilon)
        return
    axes = y + "/axes"
    tensor = numpy_helper.from_array(np.array([0], np.int64))
    yield helper.make_node("Constant", [], [axes], value=tensor)
    yield helper.make_node("Transpose", [x], [y + "/channels_first"], perm=[1, 0])
    yield helper.make_node("Unsqueeze", [y + "/channels_first", axes], [y + "/instance"])
    yield helper.make_node(
        "InstanceNormalization", [y + "/instance", gamma, beta], [y + "/norm"], epsilon=epsilon
    )
    yield helper.make_node("Squeeze", [y + "/norm", axes], [y + "/squeezed"])
    yield helper.make_node("Transpose", [y + "/squeezed"], [y], perm=[1, 0])


def session(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    """A single-threaded onnxruntime session, the reference for these networks' outputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    source = os.fspath(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def sample_input(name: str, seed: int = SEED) -> np.ndarray:
    """Seeded standard normal input of network `name`, fp32, in the network's own shape."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return rng.standard_normal(NETWORKS[name].input_shape, np.float32)


def cache_folder() -> Path:
    """$AOTGEN_CACHE/networks, by default ~/.cache/aotgen/networks."""
    root = os.environ.get("AOTGEN_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "aotgen") / "networks"


def export(name: str, folder: Path) -> Path:
    """Write `<name>.onnx` and `<name>.npz` (`input` and onnxruntime's `output`).

    Returns the path of the former; raises onnx.checker.ValidationError for an invalid graph.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, x = build(name), sample_input(name)
    onnx.checker.check_model(model, full_check=True)
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    np.savez(folder / f"{name}.npz", input=x, output=session(model).run(None, {INPUT: x})[0])
    return path
