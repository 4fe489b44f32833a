"""Networks for phones: depthwise convolutions, squeeze-and-excitation, fire modules."""

from __future__ import annotations

from .layers import Layers


def mobilenet_v1(net: Layers, x: str) -> str:
    """MobileNet (Howard et al., 2017), width 1.0: pairs of depthwise and pointwise convolutions."""

    def conv_bn(x: str, index: int, cin: int, cout: int, k: int, stride: int, group: int) -> str:
        x = net.conv(x, f"features.{index}", (cin, cout), k, stride, k // 2, group)
        x = net.batch_norm(x, f"features.{index + 1}", cout)
        return net.relu6(x, f"features.{index + 2}")

    x = conv_bn(x, 0, 3, 32, 3, 2, 1)
    cin, index = 32, 3
    for cout, stride, repeats in (
        (64, 1, 1),
        (128, 2, 1),
        (128, 1, 1),
        (256, 2, 1),
        (256, 1, 1),
        (512, 2, 1),
        (512, 1, 5),
        (1024, 2, 1),
        (1024, 1, 1),
    ):
        for _ in range(repeats):
            x = conv_bn(x, index, cin, cin, 3, stride, group=cin)
            x = conv_bn(x, index + 3, cin, cout, 1, 1, 1)
            cin, index = cout, index + 6
    return net.gemm(net.pooled_features(x), "fc", (1024, 1000))


V2_BLOCKS = (
    # expansion, out, repeats, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(net: Layers, x: str) -> str:
    """MobileNetV2 (Sandler et al., 2018), width 1.0."""

    def conv_bn(
        x: str, s: str, cin: int, cout: int, k: int, stride: int = 1, group: int = 1
    ) -> str:
        x = net.conv(x, s + ".0", (cin, cout), k, stride, k // 2, group)
        return net.relu6(net.batch_norm(x, s + ".1", cout), s + ".2")

    x = conv_bn(x, "features.0", 3, 32, 3, 2)
    cin, index = 32, 1
    for expand, cout, repeats, first_stride in V2_BLOCKS:
        for repeat in range(repeats):
            s, stride = f"features.{index}.conv", first_stride if repeat == 0 else 1
            hidden, y, step = cin * expand, x, 0
            if expand != 1:
                y, step = conv_bn(y, f"{s}.{step}", cin, hidden, 1), 1
            y = conv_bn(y, f"{s}.{step}", hidden, hidden, 3, stride, group=hidden)
            y = net.conv(y, f"{s}.{step + 1}", (hidden, cout), 1)
            y = net.batch_norm(y, f"{s}.{step + 2}", cout)
            residual = stride == 1 and cin == cout
            x = net.node("Add", f"features.{index}", x, y) if residual else y
            cin, index = cout, index + 1
    x = conv_bn(x, "features.18", 320, 1280, 1)
    return net.gemm(net.pooled_features(x), "classifier.1", (1280, 1000))


_V3_SMALL = (
    # kernel, hidden, out, squeeze-and-excitation, hard swish, stride
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def _multiple_of_8(channels: int) -> int:
    """The paper's rounding of a channel count: to the nearest, but never down by more than 10%."""
    rounded = max(8, (channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def mobilenet_v3_small(net: Layers, x: str) -> str:
    """MobileNetV3-Small (Howard et al., 2019), width 1.0."""

    def conv_bn(
        x: str, s: str, cin: int, cout: int, k: int, stride: int = 1, group: int = 1
    ) -> str:
        x = net.conv(x, s + ".0", (cin, cout), k, stride, k // 2, group)
        return net.batch_norm(x, s + ".1", cout, epsilon=1e-3, momentum=0.99)

    def activated(x: str, s: str, hard_swish: bool) -> str:
        return net.hard_swish(x, s + ".2") if hard_swish else net.relu(x, s + ".2")

    def squeeze_excite(x: str, s: str, channels: int) -> str:
        squeezed = _multiple_of_8(channels // 4)
        y = net.node("GlobalAveragePool", s + ".avgpool", x)
        y = net.relu(net.conv(y, s + ".fc1", (channels, squeezed), 1, bias=True), s + ".activation")
        y = net.conv(y, s + ".fc2", (squeezed, channels), 1, bias=True)
        scale = net.node("HardSigmoid", s + ".scale_activation", y, alpha=1 / 6)
        return net.node("Mul", s, scale, x)

    x = activated(conv_bn(x, "features.0", 3, 16, 3, 2), "features.0", True)
    cin = 16
    for index, (k, hidden, cout, squeeze, hard_swish, stride) in enumerate(_V3_SMALL, 1):
        s, y, step = f"features.{index}.block", x, 0
        if hidden != cin:
            y = activated(conv_bn(y, f"{s}.{step}", cin, hidden, 1), f"{s}.{step}", hard_swish)
            step += 1
        y = conv_bn(y, f"{s}.{step}", hidden, hidden, k, stride, group=hidden)
        y = activated(y, f"{s}.{step}", hard_swish)
        if squeeze:
            step += 1
            y = squeeze_excite(y, f"{s}.{step}", hidden)
        y = conv_bn(y, f"{s}.{step + 1}", hidden, cout, 1)
        x = net.node("Add", f"features.{index}", y, x) if stride == 1 and cin == cout else y
        cin = cout
    x = activated(conv_bn(x, "features.12", cin, 576, 1), "features.12", True)
    x = net.gemm(net.pooled_features(x), "classifier.0", (576, 1024))
    return net.gemm(net.hard_swish(x, "classifier.1"), "classifier.3", (1024, 1000))


def squeezenet1_1(net: Layers, x: str) -> str:
    """SqueezeNet 1.1 (Iandola et al., 2016)."""

    def conv_relu(x: str, conv: str, act: str, cin: int, cout: int, k: int, **kw: int) -> str:
        return net.relu(net.conv(x, conv, (cin, cout), k, bias=True, **kw), act)

    def fire(x: str, s: str, cin: int, squeeze: int, expand: int) -> str:
        x = conv_relu(x, s + ".squeeze", s + ".squeeze_activation", cin, squeeze, 1)
        wide = [
            conv_relu(
                x,
                f"{s}.expand{k}x{k}",
                f"{s}.expand{k}x{k}_activation",
                squeeze,
                expand,
                k,
                pad=k // 2,
            )
            for k in (1, 3)
        ]
        return net.concat(s, *wide)

    x = conv_relu(x, "features.0", "features.1", 3, 64, 3, stride=2)
    cin = 64
    for index, (squeeze, expand) in {
        3: (16, 64),
        4: (16, 64),
        6: (32, 128),
        7: (32, 128),
        9: (48, 192),
        10: (48, 192),
        11: (64, 256),
        12: (64, 256),
    }.items():
        if index in (3, 6, 9):
            x = net.max_pool(x, f"features.{index - 1}", ceil=True)
        x = fire(x, f"features.{index}", cin, squeeze, expand)
        cin = 2 * expand
    return net.pooled_features(conv_relu(x, "classifier.1", "classifier.2", cin, 1000, 1))
