"""3x3 conv of stride 1 by Winograd's minimal filtering F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3): 2.25
and 4 times fewer products than the direct method, for transforms of inputs and outputs and for 1.8
and 4 times larger weights. Of a conv with three spatial axes the two inner ones are computed so;
depth taps add up in the transformed domain.

Inputs are transformed block by block of tiles into scratch, then every point of the transform is a
matrix product with the dense register tile (``winograd_writer``). Rounding errors grow, more so for
F(4 x 4, 3 x 3): how much is estimated from the weights, and too much rules a tile size out.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from aotgen.ir.graph import Group, Value
from aotgen.schedule.base import (
    Alias,
    Config,
    Kernel,
    Knob,
    Layout,
    Need,
    ScheduleError,
    Template,
    Views,
)
from aotgen.schedule.conv.conv2d_direct import alias, why_not
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.problem import DenseConfig
from aotgen.schedule.dense.tiles import (
    MAX_PIXELS,
    check_tile,
    registers,
    split_channels,
    split_even,
    usable_registers,
)
from aotgen.schedule.features import common_features
from aotgen.schedule.fused import fused_needs
from aotgen.schedule.layouts import Y_LAYOUT, in_layout, laid_out, layout_choices, layout_of
from aotgen.schedule.packing import F32
from aotgen.schedule.winograd.cost import (
    MAX_VECTORS,
    best,
    depth_blocks,
    fits,
    predicted_seconds,
    tile_blocks,
)
from aotgen.schedule.winograd.features import winograd_features
from aotgen.schedule.winograd.tiling import Tiling
from aotgen.schedule.winograd.transform import SIZES, expected_error, transform_weights
from aotgen.schedule.winograd.writer import WinogradWriter
from aotgen.target.target import Target

MAX_ERROR = 1e-5
"""Expected error of a layer, relative to its largest output: a tenth of what a whole network may
differ by. Errors of layers add up like independent ones, and most layers have less.
"""

_errors: WeakKeyDictionary[Value, dict[int, float]] = WeakKeyDictionary()


class Conv2dWinograd(Template):
    """3x3 convolution, one group, stride and dilation 1."""

    name = "conv2d_winograd"
    streams = False  # blocks of tiles

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not(group, target)
        if reason is not None:
            return reason
        shape = ConvShape.of(group.nodes[0])
        ones = (1, 1, 1)
        if shape.axes == 1 or shape.kernel[1:] != (3, 3) or shape.groups != 1:
            return "needs a kernel of 3x3, or of 3x3 frames, and one group"
        if shape.stride != ones or shape.dilation != ones:
            return "needs stride 1 and dilation 1"
        if target.bare:
            return "transformed weights and tiles are large for a microcontroller"
        if target.optimize != "speed":
            return f"transformed weights and tiles are large, and --optimize is {target.optimize}"
        if not self._sizes(group):
            return f"expects rounding errors above {MAX_ERROR:g} of the largest output"
        return None

    def _sizes(self, group: Group) -> tuple[int, ...]:
        """Tile sizes that are accurate enough."""
        return tuple(m for m in SIZES if self._error(group, m) <= MAX_ERROR)

    def _error(self, group: Group, m: int) -> float:
        value = group.nodes[0].input(1)
        known = _errors.setdefault(value, {})
        if m not in known:
            known[m] = expected_error(_weights(group), m)
        return known[m]

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        shape = ConvShape.of(group.nodes[0])
        sizes = self._sizes(group)
        vectors = range(1, min(MAX_VECTORS, -(-shape.outputs // target.vl)) + 1)
        limit = usable_registers(target)
        widths = [v for v in vectors if registers(1, v, target, target.has_neon) <= limit]
        steps = shape.kernel[0] * shape.channels
        knobs = [
            Knob("wino_m", "ordinal", sizes, "outputs of a tile along an axis"),
            Knob("tile_block", "ordinal", self._tile_blocks(group), "tiles"),
            Knob("mr", "ordinal", tuple(range(1, MAX_PIXELS + 1)), "tiles"),
            Knob("nr", "ordinal", tuple(v * target.vl for v in widths), "channels"),
            Knob("order", "categorical", ("tiles", "panels"), "outer loop of a product"),
            Knob("kc", "ordinal", (0, *(n for n in (128, 256, 512) if n < steps)), "steps, 0: all"),
            Knob("k_unroll", "ordinal", (4, 8), "steps"),
            Knob("next_lines", "ordinal", (0, 1, 2, 4), "cache lines a round"),
        ]
        if shape.axes == 3:
            depths = tuple(depth_blocks(shape))
            knobs.insert(2, Knob("depth_block", "ordinal", depths, "output frames"))
        return tuple(knobs)

    def _tile_blocks(self, group: Group) -> tuple[int, ...]:
        """Tiles of a block, of any size of tile."""
        shape = ConvShape.of(group.nodes[0])
        return tuple(sorted({n for m in self._sizes(group) for n in tile_blocks(shape, m)}))

    def default(self, group: Group, target: Target) -> Config:
        shape = ConvShape.of(group.nodes[0])
        tiling, c = best(shape, target, self._sizes(group))
        depth = {"depth_block": tiling.depth_block} if shape.axes == 3 else {}
        return Config.of(
            wino_m=tiling.m,
            tile_block=tiling.tile_block,
            **depth,
            mr=c.oh_tile,
            nr=c.vectors * target.vl,
            order="panels" if c.block else "tiles",
            kc=c.kc,
            k_unroll=c.k_unroll,
            next_lines=c.next_lines,
        )

    def check(self, group: Group, target: Target, config: Config) -> None:
        if config.int("wino_m") not in self._sizes(group):
            raise ScheduleError(f"F({config['wino_m']}, 3) loses too many digits of this layer")
        t = self._tiling(group, target, config)
        mr, vectors = config.int("mr"), config.int("nr") // target.vl
        check_tile(min(mr, t.rows), vectors, target, target.has_neon)
        if config.int("next_lines") and config["order"] == "tiles":
            raise ScheduleError("only panels that stay leave time to prefetch the next one")
        if not fits(t, target):
            raise ScheduleError(f"a block of {t.rows} tiles is far larger than L2")

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        t = self._tiling(group, target, config)
        panels = split_channels(t.outputs, target.vl, config.int("nr") // target.vl)
        same = [n for n in self._tile_blocks(group) if split_even(t.total, n) == t.tile_runs]
        knobs = config.as_dict() | {
            "tile_block": max(same, default=t.tile_block),
            "mr": split_even(t.rows, config.int("mr"))[0].size,
            "nr": panels[0].vectors * target.vl,
        }
        if t.shape.axes == 3:
            knobs["depth_block"] = t.frames
        if config.int("kc"):  # passes run a panel at a time
            knobs["order"] = "panels"
        elif sum(p.count for p in panels) == 1:
            knobs |= {"order": "tiles", "next_lines": 0}
        return Config.of(**knobs)

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        same = self.canonical(group, target, config)
        tiling = self._tiling(group, target, same)
        return {
            **common_features(self, group, target, same),
            **winograd_features(tiling, _dense_config(same, target), target),
        }

    def _tiling(self, group: Group, target: Target, config: Config) -> Tiling:
        shape = ConvShape.of(group.nodes[0])
        depth = config.int("depth_block") if shape.axes == 3 else 1
        m, tile_block = config.int("wino_m"), config.int("tile_block")
        return Tiling(shape, m, tile_block, depth, target.vl, target.has_neon)

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        """Zeros around the input as far as the last tiles read, also where the map ends before."""
        node = group.nodes[0]
        shape, t = ConvShape.of(node), self._tiling(group, target, config)
        border = list(shape.border())
        for axis in (1, 2):
            last = t.grid[axis - 1] * t.m + 1 - shape.begin[axis]
            behind = max(0, last - (shape.size[axis] - 1))
            border[axis - 3 - 1] = (shape.begin[axis], behind)
        asked = tuple(border) if any(b != (0, 0) for b in border) else ()
        needs = {**fused_needs(group), node.input(0).name: Need(border=asked, unit_inner=True)}
        return laid_out(needs, group, config, target)

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return in_layout(Need(unit_inner=True), layout_of(config, Y_LAYOUT), target)

    def layouts(self, group: Group, target: Target) -> list[tuple[Layout, Layout]]:
        return layout_choices(group, target)

    def may_alias(self, group: Group, value: Value) -> Alias:
        return alias(group, value)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        tiling = self._tiling(group, target, config)
        return predicted_seconds(tiling, _dense_config(config, target), target)

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        tiling = self._tiling(group, target, config)
        writer = WinogradWriter(group, target, tiling, _dense_config(config, target), views)
        return writer.kernel(transform_weights(_weights(group), tiling.m))


def _dense_config(config: Config, target: Target) -> DenseConfig:
    """The register tile's knobs."""
    return DenseConfig(
        oh_tile=config.int("mr"),
        ow_tile=1,
        vectors=config.int("nr") // target.vl,
        block=1 if config["order"] == "panels" else 0,
        kc=config.int("kc"),
        k_unroll=config.int("k_unroll"),
        next_lines=config.int("next_lines"),
    )


def _weights(group: Group) -> F32:
    """The weights as [outputs, kernel depth, 3, 3, channels]."""
    w = group.nodes[0].input(1).const
    assert w is not None
    return np.asarray(w, np.float32).reshape(w.shape[0], -1, 3, 3, w.shape[-1])
