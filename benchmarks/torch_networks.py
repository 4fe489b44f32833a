"""The benchmark networks as PyTorch modules, exported by torch.onnx: a cross-check of networks.py.

Needs the `bench` extra. torch.onnx folds BatchNorm into the convolutions when it exports for
inference; do_constant_folding=False and TrainingMode.PRESERVE keep it a node of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import networks
import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional


class DsCnn(nn.Module):
    """Keyword-spotting DS-CNN of MLPerf Tiny."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 64, (10, 4), 2, (5, 1)), nn.BatchNorm2d(64)]
        for _ in range(4):
            layers += [nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64)]
            layers += [nn.ReLU(), nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64)]
        self.features = nn.Sequential(*layers, nn.ReLU())
        self.fc = nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.adaptive_avg_pool2d(self.features(x), 1)
        return functional.softmax(self.fc(torch.flatten(pooled, 1)), dim=1)


class EncoderLayer(nn.Module):
    """Post-norm encoder layer with exact GELU."""

    def __init__(self, width: int = 256, heads: int = 4, hidden: int = 1024) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, 128, self.heads, 256 // self.heads)
        q = self.q(x).reshape(shape).transpose(1, 2)
        k = self.k(x).reshape(shape).permute(0, 2, 3, 1)
        v = self.v(x).reshape(shape).transpose(1, 2)
        attention = functional.softmax(torch.matmul(q, k) * shape[-1] ** -0.5, dim=-1)
        y = torch.matmul(attention, v).transpose(1, 2).reshape(1, 128, 256)
        x = self.norm1(x + self.out(y))
        y = self.linear2(functional.gelu(self.linear1(x)))
        result: Tensor = self.norm2(x + y)
        return result


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def construct() -> nn.Module:
        import torchvision.models as models

        module: nn.Module = getattr(models, name)(weights=None)
        return module

    return construct


MODULES: dict[str, Callable[[], nn.Module]] = {
    "resnet18": _torchvision("resnet18"),
    "mobilenet_v2": _torchvision("mobilenet_v2"),
    "squeezenet1_1": _torchvision("squeezenet1_1"),
    "ds_cnn": DsCnn,
    "transformer": lambda: nn.Sequential(*(EncoderLayer() for _ in range(4))),
}


def calibrate(module: nn.Module, x: Tensor) -> None:
    """Draw BatchNorm's parameters; take its statistics from one pass over `x` and perturb them."""
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in norms:
        nn.init.uniform_(layer.weight, 0.5, 1.5)
        nn.init.uniform_(layer.bias, -0.3, 0.3)
        layer.momentum = 1.0
    module.train()(x)
    for layer in norms:
        assert layer.running_mean is not None and layer.running_var is not None
        deviation = layer.running_var.sqrt()
        layer.running_mean += 0.1 * torch.randn_like(deviation) * deviation
        layer.running_var *= torch.empty_like(deviation).uniform_(0.8, 1.25)
    module.eval()


def export(name: str, folder: Path) -> Path:
    """As networks.export, with PyTorch's output as the reference."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(networks.SEED)
    path = folder / f"{name}.onnx"
    shape = networks.NETWORKS[name].input_shape
    with torch.no_grad():
        module = MODULES[name]()
        calibrate(module, torch.randn(*shape))
        x = torch.from_numpy(networks.sample_input(name))
        y = module(x).numpy()
        torch.onnx.export(
            module,
            (x,),
            str(path),
            opset_version=networks.OPSET,
            dynamo=False,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            input_names=[networks.INPUT],
            output_names=[networks.OUTPUT],
        )
    onnx.checker.check_model(str(path), full_check=True)
    np.savez(folder / f"{name}.npz", input=x.numpy(), output=y)
    return path
