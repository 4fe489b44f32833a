"""The 3-D ResNet example: the paper's network, and the same numbers in C as in PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest

import aotgen
from support import require_module, require_tool

if TYPE_CHECKING:
    import resnet3d
    import torch

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "resnet3d"
sys.path.insert(0, str(EXAMPLE))

PARAMETERS = 33_371_472
"""Of r3d_18, by torchvision's documentation."""


@pytest.fixture(autouse=True)
def needs_torch() -> None:
    require_module("torch", "onnxscript")


def difference(got: np.ndarray, wanted: np.ndarray) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def small() -> resnet3d.ResNet3d:
    """Eight channels; batch norms that do something."""
    import export
    import torch

    model = export.build(width=8, classes=7, seed=1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm3d):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 1.5)
            for tensor in (module.bias.data, module.running_mean):
                tensor.uniform_(-0.5, 0.5)
    return model


def clip() -> torch.Tensor:
    """An odd number of frames, and an image that is no square."""
    import torch

    return torch.randn(1, 3, 5, 24, 20)


def test_it_has_the_published_parameters() -> None:
    import export

    model = export.build()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS
    names = model.state_dict()
    assert names["stem.0.weight"].shape == (64, 3, 3, 7, 7)
    assert names["layer1.0.conv2.0.weight"].shape == (64, 64, 3, 3, 3)
    assert names["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1, 1)
    assert names["fc.weight"].shape == (400, 512)


def test_weights_of_a_state_dict(tmp_path: Path) -> None:
    import export
    import torch

    torch.save(small().state_dict(), tmp_path / "small.pth")
    again = export.build(width=8, classes=7, seed=2, weights=tmp_path / "small.pth")
    frames = clip()
    with torch.no_grad():
        assert torch.equal(again(frames), small()(frames))


def test_the_project_computes_what_pytorch_does(tmp_path: Path) -> None:
    require_tool("cmake")
    import export

    path = tmp_path / "small.onnx"
    wanted = export.export(small(), clip(), path).numpy()
    onnx.checker.check_model(str(path), full_check=True)
    with (
        np.load(tmp_path / "small_clip.npz") as inputs,
        np.load(tmp_path / "small_scores.npz") as outputs,
    ):
        frames = inputs["clip"]
        assert np.array_equal(outputs["scores"], wanted)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert difference(session.run(None, {"clip": frames})[0], wanted) <= 1e-4

    project = aotgen.compile(path, board="host", output=tmp_path / "small")
    assert [layer["macs"] > 0 for layer in project.manifest["layers"]].count(True) == 21
    assert difference(project.run({"clip": frames})["scores"], wanted) <= 1e-4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_so_does_one_of_the_older_exporter(tmp_path: Path) -> None:
    """It needs no onnxscript, and names and folds otherwise."""
    require_tool("cmake")
    import torch

    model, frames = small(), clip()
    path = tmp_path / "older.onnx"
    torch.onnx.export(model, (frames,), str(path), input_names=["clip"], dynamo=False)
    with torch.no_grad():
        wanted = model(frames).numpy()
    project = aotgen.compile(path, board="host", output=tmp_path / "older")
    (scores,) = project.run({"clip": frames.numpy()}).values()
    assert difference(scores, wanted) <= 1e-4
