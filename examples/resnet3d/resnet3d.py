"""A residual network with 3-D convolutions for video clips, as a PyTorch module.

R3D of Tran et al., "A Closer Look at Spatiotemporal Convolutions for Action Recognition" (2018):
the basic blocks of He et al. (2015) with 3x3x3 convolutions, stages that halve time and image and
double the channels. Parameters have the names that torchvision's r3d_18 gives them, so its state
dict can be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def conv_norm(cin: int, cout: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps the clip's extents (over its stride), and its normalization."""
    conv = nn.Conv3d(cin, cout, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm3d(cout)]


class BasicBlock(nn.Module):
    """Two 3x3x3 convolutions beside a shortcut, which is a 1x1x1 convolution where shapes change.

    float32 [N, cin, T, H, W] -> [N, cout, T/stride, H/stride, W/stride]
    """

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(*conv_norm(cin, cout, 3, stride), nn.ReLU())
        self.conv2 = nn.Sequential(*conv_norm(cout, cout, 3))
        same = stride == 1 and cin == cout
        self.downsample = None if same else nn.Sequential(*conv_norm(cin, cout, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.conv2(self.conv1(x)) + shortcut)


class ResNet3d(nn.Module):
    """float32 clips [N, 3, T, H, W], any T, H, W, to logits [N, classes].

    Args:
        width: channels of the stem and of the first stage; 64 in the paper.
        blocks: of each stage; two each make 18 layers with weights.
        classes: of actions; 400 in the data set Kinetics.
    """

    def __init__(
        self, width: int = 64, blocks: Sequence[int] = (2, 2, 2, 2), classes: int = 400
    ) -> None:
        super().__init__()
        stem = nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), padding=(1, 3, 3), bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm3d(width), nn.ReLU())
        cin = width
        for stage, count in enumerate(blocks):
            cout = width << stage
            first = BasicBlock(cin, cout, 1 if stage == 0 else 2)
            rest = [BasicBlock(cout, cout, 1) for _ in range(count - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *rest))
            cin = cout
        self.avgpool = nn.AdaptiveAvgPool3d(1)
        self.fc = nn.Linear(cin, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, clip: Tensor) -> Tensor:
        x = clip
        for name, module in self.named_children():
            if name != "fc":
                x = module(x)
        logits: Tensor = self.fc(torch.flatten(x, 1))
        return logits
