"""Residual networks: two-dimensional ones for images, R3D for clips."""

from __future__ import annotations

from .layers import Extents, Layers


def _conv_bn(
    net: Layers,
    x: str,
    names: tuple[str, str],
    channels: tuple[int, int],
    kernel: Extents,
    stride: Extents = 1,
) -> str:
    """Convolution that keeps the image's size (over its stride), then BatchNorm."""
    half = tuple(k // 2 for k in kernel) if isinstance(kernel, tuple) else kernel // 2
    return net.batch_norm(
        net.conv(x, names[0], channels, kernel, stride, half), names[1], channels[1]
    )


def resnet18(net: Layers, x: str) -> str:
    """ResNet-18 (He et al., 2015), basic blocks of two 3x3 convolutions."""
    x = net.relu(_conv_bn(net, x, ("conv1", "bn1"), (3, 64), 7, 2), "relu")
    x = net.max_pool(x, "maxpool", pad=1)
    cin = 64
    for stage, cout in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            s = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = _conv_bn(net, x, (s + ".conv1", s + ".bn1"), (cin, cout), 3, stride)
            y = _conv_bn(net, net.relu(y, s + ".relu"), (s + ".conv2", s + ".bn2"), (cout, cout), 3)
            if stride != 1:
                names = (s + ".downsample.0", s + ".downsample.1")
                x = _conv_bn(net, x, names, (cin, cout), 1, stride)
            x = net.relu(net.node("Add", s, y, x), s + ".relu")
            cin = cout
    return net.gemm(net.pooled_features(x), "fc", (512, 1000))


def resnet50(net: Layers, x: str) -> str:
    """ResNet-50 as torchvision has it: bottlenecks, the stride in their 3x3 convolution (v1.5)."""

    def block(x: str, s: str, cin: int, width: int, stride: int) -> str:
        cout = 4 * width
        y = _conv_bn(net, x, (s + ".conv1", s + ".bn1"), (cin, width), 1)
        y = net.relu(y, s + ".relu")
        y = _conv_bn(net, y, (s + ".conv2", s + ".bn2"), (width, width), 3, stride)
        y = net.relu(y, s + ".relu")
        y = _conv_bn(net, y, (s + ".conv3", s + ".bn3"), (width, cout), 1)
        if cin != cout:
            names = (s + ".downsample.0", s + ".downsample.1")
            x = _conv_bn(net, x, names, (cin, cout), 1, stride)
        return net.relu(net.node("Add", s, y, x), s + ".relu")

    x = net.relu(_conv_bn(net, x, ("conv1", "bn1"), (3, 64), 7, 2), "relu")
    x = net.max_pool(x, "maxpool", pad=1)
    cin = 64
    for stage, (width, repeats) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for index in range(repeats):
            stride = 2 if stage > 1 and index == 0 else 1
            x = block(x, f"layer{stage}.{index}", cin, width, stride)
            cin = 4 * width
    return net.gemm(net.pooled_features(x), "fc", (2048, 1000))


def r3d_18(net: Layers, x: str) -> str:
    """R3D-18 (Tran et al., 2018): ResNet-18 with 3x3x3 convolutions, 400 classes of actions."""
    cube, one = (3, 3, 3), (1, 1, 1)
    x = _conv_bn(net, x, ("stem.0", "stem.1"), (3, 64), (3, 7, 7), (1, 2, 2))
    x = net.relu(x, "stem.2")
    cin = 64
    for stage, cout in enumerate((64, 128, 256, 512), 1):
        for index in range(2):
            s = f"layer{stage}.{index}"
            stride = (2, 2, 2) if stage > 1 and index == 0 else one
            y = _conv_bn(net, x, (s + ".conv1.0", s + ".conv1.1"), (cin, cout), cube, stride)
            y = net.relu(y, s + ".conv1.2")
            y = _conv_bn(net, y, (s + ".conv2.0", s + ".conv2.1"), (cout, cout), cube)
            if cin != cout:
                names = (s + ".downsample.0", s + ".downsample.1")
                x = _conv_bn(net, x, names, (cin, cout), one, stride)
            x = net.relu(net.node("Add", s, y, x), s + ".relu")
            cin = cout
    return net.gemm(net.pooled_features(x), "fc", (512, 400))
