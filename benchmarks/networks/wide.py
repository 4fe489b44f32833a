"""Larger image classifiers: VGG-16, DenseNet-121, Inception v3."""

from __future__ import annotations

from .layers import Extents, Layers

POOLED_GAIN = 1.0
"""The gain of a convolution behind max pooling, which about doubles the power of its input."""


def vgg16(net: Layers, x: str) -> str:
    """VGG-16 (Simonyan and Zisserman, 2014), torchvision's without BatchNorm."""
    cin, index, pooled = 3, 0, False
    for cout, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x = net.conv(
                *(x, f"features.{index}", (cin, cout), 3),
                pad=1,
                bias=True,
                gain=POOLED_GAIN if pooled else 2.0,
            )
            x = net.relu(x, f"features.{index + 1}")
            cin, index, pooled = cout, index + 2, False
        x = net.max_pool(x, f"features.{index}", kernel=2)
        index, pooled = index + 1, True
    x = net.average_pool(x, "avgpool", 1, 1)  # AdaptiveAvgPool2d(7) of a 7x7 image
    x = net.node("Flatten", "", x, axis=1)
    x = net.relu(net.gemm(x, "classifier.0", (512 * 7 * 7, 4096)), "classifier.1")
    x = net.relu(net.gemm(x, "classifier.3", (4096, 4096)), "classifier.4")
    return net.gemm(x, "classifier.6", (4096, 1000))


def densenet121(net: Layers, x: str) -> str:
    """DenseNet-121 (Huang et al., 2016): growth 32, each layer reads all before it in its block."""
    growth, bottleneck = 32, 128

    def norm_relu(x: str, s: str, number: str, channels: int) -> str:
        return net.relu(net.batch_norm(x, f"{s}.norm{number}", channels), f"{s}.relu{number}")

    x = net.conv(x, "features.conv0", (3, 64), 7, 2, 3)
    x = net.max_pool(norm_relu(x, "features", "0", 64), "features.pool0", pad=1)
    channels = 64
    for block, repeats in enumerate((6, 12, 24, 16), 1):
        s, features = f"features.denseblock{block}", [x]
        for index in range(1, repeats + 1):
            t = f"{s}.denselayer{index}"
            y = norm_relu(net.concat(t, *features), t, "1", channels)
            y = net.conv(y, t + ".conv1", (channels, bottleneck), 1)
            y = net.conv(
                norm_relu(y, t, "2", bottleneck), t + ".conv2", (bottleneck, growth), 3, pad=1
            )
            features.append(y)
            channels += growth
        x = net.concat(s, *features)
        if block < 4:
            s = f"features.transition{block}"
            y = net.relu(net.batch_norm(x, s + ".norm", channels), s + ".relu")
            x = net.average_pool(
                net.conv(y, s + ".conv", (channels, channels // 2), 1), s + ".pool", 2, 2
            )
            channels //= 2
    x = net.relu(net.batch_norm(x, "features.norm5", channels), "")
    return net.gemm(net.pooled_features(x), "classifier", (channels, 1000))


class _Inception:
    """The modules of Inception v3 (Szegedy et al., 2015), under torchvision's names."""

    def __init__(self, net: Layers) -> None:
        self.net = net

    def conv(
        self, x: str, s: str, cin: int, cout: int, k: Extents, stride: int = 1, pad: Extents = 0
    ) -> str:
        y = self.net.conv(x, s + ".conv", (cin, cout), k, stride, pad)
        return self.net.relu(self.net.batch_norm(y, s + ".bn", cout, epsilon=1e-3), s)

    def chain(
        self, x: str, s: str, cin: int, *steps: tuple[str, int, Extents], last_stride: int = 1
    ) -> str:
        """Convolutions (name, channels out, kernel) in a row, padded unless they stride."""
        for index, (name, cout, k) in enumerate(steps):
            stride = last_stride if index == len(steps) - 1 else 1
            half = tuple(e // 2 for e in k) if isinstance(k, tuple) else k // 2
            x = self.conv(x, s + name, cin, cout, k, stride, 0 if stride > 1 else half)
            cin = cout
        return x

    def pooled(self, x: str, s: str, cin: int, cout: int) -> str:
        return self.conv(self.net.average_pool(x, s, 3, 1, 1), s + ".branch_pool", cin, cout, 1)

    def a(self, x: str, s: str, cin: int, pool_features: int) -> str:
        b = s + ".branch"
        return self.net.concat(
            s,
            self.chain(x, b, cin, ("1x1", 64, 1)),
            self.chain(x, b, cin, ("5x5_1", 48, 1), ("5x5_2", 64, 5)),
            self.chain(x, b + "3x3dbl", cin, ("_1", 64, 1), ("_2", 96, 3), ("_3", 96, 3)),
            self.pooled(x, s, cin, pool_features),
        )

    def b(self, x: str, s: str, cin: int) -> str:
        b = s + ".branch3x3"
        steps = ("dbl_1", 64, 1), ("dbl_2", 96, 3), ("dbl_3", 96, 3)
        return self.net.concat(
            s,
            self.chain(x, b, cin, ("", 384, 3), last_stride=2),
            self.chain(x, b, cin, *steps, last_stride=2),
            self.net.max_pool(x, s),
        )

    def c(self, x: str, s: str, cin: int, width: int) -> str:
        b, wide, tall = s + ".branch", (1, 7), (7, 1)
        return self.net.concat(
            s,
            self.chain(x, b, cin, ("1x1", 192, 1)),
            self.chain(x, b + "7x7", cin, ("_1", width, 1), ("_2", width, wide), ("_3", 192, tall)),
            self.chain(
                *(x, b + "7x7dbl", cin, ("_1", width, 1), ("_2", width, tall)),
                *(("_3", width, wide), ("_4", width, tall), ("_5", 192, wide)),
            ),
            self.pooled(x, s, cin, 192),
        )

    def d(self, x: str, s: str, cin: int) -> str:
        b = s + ".branch"
        steps = ("_1", 192, 1), ("_2", 192, (1, 7)), ("_3", 192, (7, 1)), ("_4", 192, 3)
        return self.net.concat(
            s,
            self.chain(x, b + "3x3", cin, ("_1", 192, 1), ("_2", 320, 3), last_stride=2),
            self.chain(x, b + "7x7x3", cin, *steps, last_stride=2),
            self.net.max_pool(x, s),
        )

    def e(self, x: str, s: str, cin: int) -> str:
        def split(x: str, b: str, cin: int, number: str) -> str:
            wide = self.chain(x, b, cin, (f"_{number}a", 384, (1, 3)))
            return self.net.concat(s, wide, self.chain(x, b, cin, (f"_{number}b", 384, (3, 1))))

        b = s + ".branch"
        one = self.chain(x, b, cin, ("1x1", 320, 1))
        three = split(self.chain(x, b + "3x3", cin, ("_1", 384, 1)), b + "3x3", 384, "2")
        double = self.chain(x, b + "3x3dbl", cin, ("_1", 448, 1), ("_2", 384, 3))
        double = split(double, b + "3x3dbl", 384, "3")
        return self.net.concat(s, one, three, double, self.pooled(x, s, cin, 192))


def inception_v3(net: Layers, x: str) -> str:
    """Inception v3, torchvision's in evaluation: without the auxiliary classifier."""
    modules = _Inception(net)
    x = modules.conv(x, "Conv2d_1a_3x3", 3, 32, 3, 2)
    x = modules.conv(x, "Conv2d_2a_3x3", 32, 32, 3)
    x = modules.conv(x, "Conv2d_2b_3x3", 32, 64, 3, 1, 1)
    x = net.max_pool(x, "maxpool1")
    x = modules.conv(x, "Conv2d_3b_1x1", 64, 80, 1)
    x = modules.conv(x, "Conv2d_4a_3x3", 80, 192, 3)
    x = net.max_pool(x, "maxpool2")
    x = modules.a(x, "Mixed_5b", 192, 32)
    x = modules.a(x, "Mixed_5c", 256, 64)
    x = modules.a(x, "Mixed_5d", 288, 64)
    x = modules.b(x, "Mixed_6a", 288)
    for letter, width in zip("bcde", (128, 160, 160, 192), strict=True):
        x = modules.c(x, "Mixed_6" + letter, 768, width)
    x = modules.d(x, "Mixed_7a", 768)
    x = modules.e(x, "Mixed_7b", 1280)
    x = modules.e(x, "Mixed_7c", 2048)
    return net.gemm(net.pooled_features(x), "fc", (2048, 1000))
