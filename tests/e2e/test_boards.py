"""Every network on every board: builds without a warning, and agrees with onnxruntime."""

from __future__ import annotations

import pytest

from benchmarks import networks
from support import require_tool
from tests.e2e.conftest import difference

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1", "ds_cnn", "transformer")
BOARDS = ("host", "host-avx2", "host-scalar", "rpi4")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("board", BOARDS)
def test_agrees_with_onnxruntime(name: str, board: str, network, compiled) -> None:
    require_tool("cmake", "gcc")
    if board == "rpi4":
        require_tool("aarch64-linux-gnu-gcc", "qemu-aarch64")
    _, x, reference = network(name)
    project = compiled(name, board)
    got = project.run({networks.INPUT: x})[networks.OUTPUT]
    assert got.shape == reference.shape
    assert difference(got, reference) <= 1e-4
