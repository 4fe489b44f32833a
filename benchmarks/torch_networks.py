"""The benchmark networks as PyTorch modules, exported by torch.onnx: a cross-check of networks.py.

Needs the `bench` extra. torch.onnx folds BatchNorm into the convolutions when it exports for
inference; do_constant_folding=False and TrainingMode.PRESERVE keep it a node of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
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


class MobileNetV1(nn.Module):
    """MobileNet, width 1.0."""

    def __init__(self) -> None:
        super().__init__()
        layers = self._conv(3, 32, 3, 2)
        cin = 32
        rows = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
        for cout, stride in [*rows, *[(512, 1)] * 5, (1024, 2), (1024, 1)]:
            layers += self._conv(cin, cin, 3, stride, cin) + self._conv(cin, cout, 1)
            cin = cout
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(1024, 1000)

    @staticmethod
    def _conv(cin: int, cout: int, k: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        conv = nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(cout), nn.ReLU6()]

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.adaptive_avg_pool2d(self.features(x), 1)
        result: Tensor = self.fc(torch.flatten(pooled, 1))
        return result


class FcAutoencoder(nn.Sequential):
    """Anomaly-detection autoencoder of MLPerf Tiny."""

    def __init__(self) -> None:
        widths = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128)
        layers: list[nn.Module] = []
        for cin, cout in pairwise(widths):
            layers += [nn.Linear(cin, cout), nn.BatchNorm1d(cout, eps=1e-3), nn.ReLU()]
        super().__init__(*layers, nn.Linear(128, 640))


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


def _torchvision(name: str, **options: bool) -> Callable[[], nn.Module]:
    def construct() -> nn.Module:
        import torchvision.models as models

        found = getattr(models, name, None) or getattr(models.video, name)
        module: nn.Module = found(weights=None, **options)
        return module

    return construct


_TORCHVISION = ("resnet18", "resnet50", "r3d_18", "mobilenet_v2", "mobilenet_v3_small")
_TORCHVISION += ("squeezenet1_1", "vgg16", "densenet121")

MODULES: dict[str, Callable[[], nn.Module]] = {
    **{name: _torchvision(name) for name in _TORCHVISION},
    "inception_v3": _torchvision("inception_v3", aux_logits=False, init_weights=False),
    "mobilenet_v1": MobileNetV1,
    "ds_cnn": DsCnn,
    "fc_autoencoder": FcAutoencoder,
    "transformer": lambda: nn.Sequential(*(EncoderLayer() for _ in range(4))),
}


def calibrate(module: nn.Module, x: Tensor) -> None:
    """Draw BatchNorm's parameters; take its statistics from one pass over `x` and perturb them."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    norms = [layer for layer in module.modules() if isinstance(layer, kinds)]
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
        batch = 256 if len(shape) == 2 else 1
        calibrate(module, torch.randn(batch, *shape[1:]))
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
