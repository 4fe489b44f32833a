"""Constants in the memory order that kernels read them in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aotgen.schedule.dense.tiles import Panels, padded
from aotgen.schedule.intrinsics import F32_BROADCAST, Intrinsic

F32 = npt.NDArray[np.float32]


def pack_panels(
    weights: F32, panels: Sequence[Panels], vl: int, intrinsic: Intrinsic = F32_BROADCAST
) -> F32:
    """Pack weights [groups, channels, reduction] panel by panel in the order of ``intrinsic``,
    channels zero-padded to whole vectors: [group][panel][reduction][vectors * VL] in fp32.

    Args:
        weights: one row of reduction weights per output channel, the reduction in the order the
            kernel walks it.
        panels: from ``split_channels`` for one group.
        vl: floats a vector.

    Returns:
        The packed weights, one-dimensional.
    """
    groups, channels, reduction = weights.shape
    wide = np.zeros((groups, padded(channels, vl), reduction), np.float32)
    wide[:, :channels] = weights
    parts: list[F32] = []
    for group in range(groups):
        for p in panels:
            width = p.vectors * vl
            block = wide[group, p.channel : p.channel + p.count * width]
            panel = block.reshape(p.count, width, reduction)
            parts.extend(intrinsic.pack(channels) for channels in panel)
    return np.concatenate(parts)


def panel_floats(panels: Sequence[Panels], reduction: int, vl: int) -> int:
    """Floats of one group's packed weights."""
    return sum(p.count * p.vectors for p in panels) * vl * reduction


def pad_channels(values: npt.NDArray[np.generic], groups: int, channels: int, vl: int) -> F32:
    """A per-channel constant [groups * channels] with every group padded to whole vectors, one-
    dimensional.
    """
    wide = np.zeros((groups, padded(channels, vl)), np.float32)
    wide[:, :channels] = np.broadcast_to(
        np.asarray(values, np.float32).reshape(-1), (groups * channels,)
    ).reshape(groups, channels)
    return wide.reshape(-1)
