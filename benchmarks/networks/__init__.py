"""Benchmark networks with seeded weights, built from onnx.helper and numpy alone.

Each network has the nodes that an exporter writes for the published architecture (opset 17, batch
1, static shapes; BatchNormalization kept as a node, Clip bounds and Reshape shapes as Constant
nodes), so neither a training framework nor a download is needed to compile, test or time it.

Weights: He initialisation (He et al., 2015) in convolutions, 1 / sqrt(fan_in) in linear layers.
BatchNorm's gamma and beta are drawn; its running statistics are those of one pass over seeded
noise, then perturbed, so that none is trivial and activations neither vanish nor saturate.

Use: `build("resnet18")` gives an onnx.ModelProto, `sample_input("resnet18")` its seeded input.
A further network is one function and one row of NETWORKS.
"""

from __future__ import annotations

from .registry import (
    INPUT,
    IR_VERSION,
    NETWORKS,
    OPSET,
    OUTPUT,
    SEED,
    Network,
    build,
    cache_folder,
    export,
    sample_input,
    session,
    skeleton,
)

__all__ = [
    "NETWORKS",
    "Network",
    "build",
    "skeleton",
    "sample_input",
    "export",
    "session",
    "cache_folder",
    "INPUT",
    "IR_VERSION",
    "OUTPUT",
    "OPSET",
    "SEED",
]
