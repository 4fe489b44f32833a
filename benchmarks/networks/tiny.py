"""Networks for microcontrollers: two of MLPerf Tiny (Banbury et al., 2021)."""

from __future__ import annotations

from itertools import pairwise

from .layers import Layers


def ds_cnn(net: Layers, x: str) -> str:
    """Keyword-spotting DS-CNN of MLPerf Tiny: 49 frames of 10 MFCCs."""

    def conv_bn_relu(
        x: str,
        index: int,
        cin: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        pad: int | tuple[int, int] = 0,
        group: int = 1,
    ) -> str:
        x = net.conv(x, f"features.{index}", (cin, 64), kernel, stride, pad, group, bias=True)
        x = net.batch_norm(x, f"features.{index + 1}", 64)
        return net.relu(x, f"features.{index + 2}")

    x = conv_bn_relu(x, 0, 1, (10, 4), 2, (5, 1))
    for block in range(4):
        x = conv_bn_relu(x, 3 + 6 * block, 64, 3, pad=1, group=64)
        x = conv_bn_relu(x, 6 + 6 * block, 64, 1)
    logits = net.gemm(net.pooled_features(x), "fc", (64, 12))
    return net.node("Softmax", "", logits, axis=1)


def fc_autoencoder(net: Layers, x: str) -> str:
    """Anomaly-detection autoencoder of MLPerf Tiny: 5 frames of 128 mel bands, 8 in the middle."""
    widths = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128)
    for index, features in enumerate(pairwise(widths)):
        x = net.gemm(x, f"layers.{3 * index}", features)
        x = net.batch_norm(x, f"layers.{3 * index + 1}", features[1], epsilon=1e-3)
        x = net.relu(x, f"layers.{3 * index + 2}")
    return net.gemm(x, f"layers.{3 * len(widths) - 3}", (128, 640))
