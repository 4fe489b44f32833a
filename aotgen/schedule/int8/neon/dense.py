"""qconv and qmatmul of 8-bit integers on NEON: packed patches, then register tiles of products.

The patches of a block of pixels are copied into scratch in the order the tile reads them, so that
one tile serves pointwise, k x k, strided and dilated convolutions of any channels and matrix
products. Copying costs two instructions for 16 elements, which even a layer of few channels hardly
notices.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.schedule.base import (
    Arg,
    Config,
    Kernel,
    Knob,
    PackedConst,
    ScheduleError,
    View,
    Views,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.problem import affine
from aotgen.schedule.dense.tiles import core_model, split_even
from aotgen.schedule.int8.integer_features import BLOCK_BYTES, check_block, integer_features
from aotgen.schedule.int8.neon.operands import (
    LANES,
    input_zero,
    parameters,
    scaling,
    weights_of,
    why_not_neon,
)
from aotgen.schedule.int8.neon.tiles import (
    CHUNK,
    SUMS,
    SdotTile,
    SmlalTile,
    VmlalTile,
    pairs_fit,
)
from aotgen.schedule.int8.quantized import (
    ConstantWeights,
    as_conv,
    group_count,
    known_zero,
    reduction,
    title,
)
from aotgen.schedule.intrinsics import (
    S8_SDOT,
    S8_SMULL_SMLAL,
    S8_VMULL_VMLAL,
    Intrinsic,
    intrinsics_for,
)
from aotgen.target.target import Target

MIN_CHANNELS = 3
"""Fewer input channels of a group leave most of every product to padding, unless the filter has
several taps."""

_LEAST_BLOCK = 16 * 1024
"""Bytes of packed patches that half of any L1 holds."""

_BLOCK_BYTES = {"speed": 256 * 1024, "ram": 16 * 1024, "flash": 64 * 1024}
"""Most packed patches in scratch together: weights stream past once a block."""


class Int8NeonDense(ConstantWeights):
    """Convolutions and matrix products of 8-bit integers on NEON."""

    name = "int8_neon_dense"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not_neon(group, target)
        if reason is not None:
            return reason
        node = group.nodes[0]
        if node.attrs["requant"].kind == "real" and target.isa != "neon":
            return "needs vectors of float64"
        if node.op == "qconv":
            shape = ConvShape.of(as_conv(node))
            if shape.axes > 2:
                return "needs at most two spatial axes"
            if shape.groups > 1 and shape.channels // shape.groups < MIN_CHANNELS:
                return f"needs {MIN_CHANNELS} input channels a group"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        found = _tiles(group.nodes[0], target)
        return (
            Knob("pixels", "ordinal", tuple(sorted({t[0] for t in found})), "pixels"),
            Knob("vectors", "ordinal", tuple(sorted({t[1] for t in found})), "vectors"),
            Knob("block_bytes", "ordinal", BLOCK_BYTES, "bytes of input, 0: as many as of weights"),
        )

    def default(self, group: Group, target: Target) -> Config:
        """The tile of the fewest instructions for this layer."""
        node = group.nodes[0]
        pixels, vectors = min(_tiles(node, target), key=lambda t: _instructions(node, target, *t))
        return Config.of(pixels=pixels, vectors=vectors, block_bytes=0)

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        node = group.nodes[0]
        pixels, vectors = config.int("pixels"), config.int("vectors")
        live = pixels * vectors + pixels + vectors
        cycles = _instructions(node, target, pixels, vectors) / core_model(target).fma
        return integer_features(group, target, config, live=live, cycles=cycles)

    def check(self, group: Group, target: Target, config: Config) -> None:
        tile = config.int("pixels"), config.int("vectors")
        if tile not in _tiles(group.nodes[0], target):
            raise ScheduleError(f"a tile of {tile[0]} x {tile[1]} vectors does not fit")
        check_block(target, config)

    def products(self, target: Target) -> float:
        return 8.0 if _dot(target) is S8_SDOT else 4.0

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = views[node.input(0)], views[group.output]
        writer = _Writer(node, target, config, x, y)
        weights, table = writer.constants()
        args = [
            Arg("x_", f"const {x.dtype.c} *", value=node.input(0)),
            Arg("w", "const int8_t *", const=PackedConst("w", weights, node.input(1))),
            Arg("q", "const int32_t *", const=PackedConst("q", table)),
            Arg("a", "int8_t *", scratch_bytes=writer.scratch_bytes),
            *writer.sums(),
            Arg("y", f"{y.dtype.c} *", value=group.output, is_output=True),
        ]
        parameter_list = [f"{a.ctype}restrict {a.name}" for a in args]
        text = render(
            "kernels/int8_neon_dense.c.j2",
            **writer.context(),
            title=title(group),
            params=", ".join([*parameter_list, "int32_t r0", "int32_t r1"]),
        )
        name = f"{node.op}_{x.dtype.value}_{writer.family}_{writer.pixels}x{4 * writer.vectors}"
        return Kernel(name, text, tuple(args), writer.units)


_FAMILIES = {S8_SDOT: "sdot", S8_SMULL_SMLAL: "smlal", S8_VMULL_VMLAL: "vmlal"}
"""Which of the tiles of ``int8_neon_tiles`` an instruction has."""


def _dot(target: Target) -> Intrinsic:
    """The best dot product of bytes that a target's cores have."""
    return intrinsics_for(target, S8_SDOT.dtypes)[0]


def _family(target: Target) -> str:
    return _FAMILIES[_dot(target)]


def _tile(family: str, rows: int, vectors: int) -> SdotTile | SmlalTile | VmlalTile:
    if family == "sdot":
        return SdotTile.of(rows, vectors)
    return SmlalTile.of(rows) if family == "smlal" else VmlalTile.of(rows)


def _pixels(node: Node) -> int:
    return math.prod(node.output.shape[:-1])


def _tiles(node: Node, target: Target) -> list[tuple[int, int]]:
    """(pixels, vectors of channels) of the tiles that fit the registers; none needs more pixels
    than exist.
    """
    if target.isa == "neon_armv7":
        return [(n, 1) for n in (1, 2) if n <= _pixels(node)]
    if _dot(target) is not S8_SDOT:
        return [(n, 1) for n in (1, 2, 3, 4) if n <= _pixels(node)]
    return [
        (rows, vectors)
        for vectors in (1, 2, 3, 4)
        for rows in range(1, 9)
        if rows <= _pixels(node) and SdotTile.fits(rows, vectors)
    ]


def _instructions(node: Node, target: Target, pixels: int, vectors: int) -> float:
    """Executed by all tiles of a layer."""
    groups = group_count(node)
    outputs = -(-(node.output.shape[-1] // groups) // LANES)
    depth = reduction(node)
    whole, tail = divmod(_pixels(node), pixels)
    total = 0.0
    for rows, count in ((pixels, whole), (tail, 1)):
        if rows == 0:
            continue
        for run in split_even(outputs, vectors):
            tile = _tile(_family(target), rows, run.size)
            total += groups * count * run.count * tile.instructions(depth)
    return total


class _Writer:
    """One layer's constants and template values."""

    def __init__(self, node: Node, target: Target, config: Config, x: View, y: View) -> None:
        self.node, self.x, self.y = node, x, y
        self.pixels, self.vectors = config.int("pixels"), config.int("vectors")
        self.dot, self.family = _dot(target), _family(target)
        self.scaling = scaling(node)
        self.weights = weights_of(node)
        self.groups = group_count(node)
        self.depth = self.weights.stored.shape[1]
        self.rounded = -(-self.depth // CHUNK) * CHUNK
        self.outputs = len(self.weights.stored) // self.groups
        self.runs = split_even(-(-self.outputs // LANES), self.vectors)
        self.shape = ConvShape.of(as_conv(node)) if node.op == "qconv" else None
        self.even = self.shape is None or y.has_even_rows
        self.batch = self.shape.batch if self.shape else 1
        rows = self.batch * self.shape.out[1] if self.shape else 1
        self.span = _pixels(node) if self.even or self.shape is None else self.shape.out[2]
        self.tiles_in_span = -(-self.span // self.pixels)
        self.units = self.tiles_in_span if self.even else rows
        # As many bytes of patches as of weights: then neither streams past the other for long.
        limit = min(_BLOCK_BYTES[target.optimize], target.l2_bytes // 2)
        limit = min(limit, max(_LEAST_BLOCK, self.weights.stored.size // self.groups))
        limit = int(config.get("block_bytes", 0)) or limit
        fitting = max(1, limit // (self.pixels * self.rounded))
        self.block = min(self.tiles_in_span, fitting)
        self.pack = self._pack()

    @property
    def scratch_bytes(self) -> int:
        patch: int = self.rounded if self.pack["taps"] == "bytes" else 0
        size: int = self.block * self.pixels * self.rounded + patch
        return size

    def sums(self) -> list[Arg]:
        """Scratch for the sum of every packed pixel, where weights leave a share to it."""
        if self.weights.share is None:
            return []
        return [Arg("sums", "int32_t *", scratch_bytes=self.block * SUMS * 4)]

    def panels(self) -> list[tuple[int, int]]:
        """(first channel, vectors) of every panel of a group, in execution order."""
        return [
            ((run.start + i * run.size) * LANES, run.size)
            for run in self.runs
            for i in range(run.count)
        ]

    def constants(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
        """(weights, bias and parameters) panel by panel."""
        weights: list[npt.NDArray[np.int8]] = []
        table: list[npt.NDArray[np.int32]] = []
        wide = -(-self.outputs // LANES) * LANES
        for group in range(self.groups):
            own = slice(group * self.outputs, (group + 1) * self.outputs)
            params = parameters(self.node, self.outputs, own.start)
            if self.weights.share is not None:
                share = np.zeros(wide, np.int32)
                share[: self.outputs] = self.weights.share[own]
                params = np.concatenate([share.reshape(-1, 1, LANES), params], axis=1)
            block = np.zeros((wide, self.depth), np.int8)
            block[: self.outputs] = self.weights.stored[own]
            bias = np.zeros(wide, np.int32)
            bias[: self.outputs] = self.weights.bias[own]
            for channel, vectors in self.panels():
                end = channel + vectors * LANES
                weights.append(self.dot.pack(block[channel:end]))
                table.append(bias[channel:end])
                table.append(params[channel // LANES : end // LANES].reshape(-1))
        return np.concatenate(weights), np.concatenate(table)

    def context(self) -> dict[str, Any]:
        """What the template reads."""
        tail = self.span % self.pixels
        row_counts = [n for n in (self.pixels if self.span >= self.pixels else 0, tail) if n]
        widths = sorted({run.size for run in self.runs}, reverse=True)
        kinds = [(rows, v) for rows in row_counts for v in widths]
        sdot = self.family == "sdot"
        tiles = [_tile(self.family, rows, v) for rows, v in kinds]
        ragged = self.outputs % LANES
        rest = self.depth % CHUNK
        half = 0 < rest <= 8 and not sdot
        quads = -(-rest // 4) if sdot else 0
        whole = self.depth // CHUNK
        if quads == 4 or (rest and not sdot and not half):
            whole, quads = whole + 1, 0
        last = self.runs[-1].size
        w_channel = -(-self.depth // 4) * 4 if sdot else self.rounded
        shared = self.weights.share is not None
        q_vector = LANES * (1 + self.scaling.vectors + shared)
        vectors = -(-self.outputs // LANES)
        return {
            "family": self.family, "scaling": self.scaling, "pack": self.pack,
            "flip": self.x.dtype.value == "u8", "depth": self.depth, "rounded": self.rounded,
            "rounds": whole, "rest": quads, "half": half,
            "paired": self._paired(), "shared": shared,
            "tiles": tiles, "row_counts": row_counts, "pixels": self.pixels, "tail": tail,
            "panels": self._panel_loops(ragged, w_channel, q_vector),
            "ragged": self.outputs - (vectors - last) * LANES if ragged else 0,
            "last": {"channels": last * LANES}, "block": self.block, "span": self.span,
            "tiles_in_span": self.tiles_in_span, "even": self.even, "batch": self.batch,
            "x_pixel": self.pack["x_pixel"], "y_pixel": self.y.row_stride,
            "y_row": self.y.strides[-3] if len(self.y.strides) > 2 else 0,
            "y_batch": self.y.strides[0],
            "out_rows": self.shape.out[1] if self.shape else 1,
            "groups": self.groups, "ytype": self.y.dtype.c,
            "group_steps": {
                "x": self.node.input(0).shape[-1] // self.groups, "y": self.outputs,
                "w": vectors * LANES * w_channel, "q": vectors * q_vector,
            },
        }  # fmt: skip

    def _panel_loops(self, ragged: int, w_channel: int, q_vector: int) -> list[dict[str, int]]:
        """Panels of equal width; the last one, where it is not whole, by itself."""
        found: list[dict[str, int]] = []
        for run in self.runs:
            count = run.count - (1 if ragged and run is self.runs[-1] else 0)
            steps = {
                "channels": run.size * LANES,
                "w_step": run.size * LANES * w_channel,
                "q_step": run.size * q_vector,
            }
            if count:
                found.append({"channel": run.start * LANES, "count": count, "ragged": 0, **steps})
        if ragged:
            last = self.runs[-1]
            start = (last.start + (last.count - 1) * last.size) * LANES
            found.append({"channel": start, "count": 1, "ragged": 1, **steps})
        return found

    def _paired(self) -> bool:
        wide = np.zeros((len(self.weights.stored), self.rounded), np.int8)
        wide[:, : self.depth] = self.weights.stored
        return pairs_fit(wide.reshape(-1, CHUNK))

    def _pack(self) -> dict[str, Any]:
        """How patches are read."""
        if self.shape is None:
            return {"taps": "pixel", "flat": True, "x_pixel": self.x.row_stride}
        shape = self.shape
        strides = shape.spatial_strides(self.x)
        channels = shape.channels // shape.groups
        inside, padded = _inside(shape)
        plain = shape.is_pointwise and not padded
        flat = plain and shape.stride == (1, 1, 1) and self.x.has_even_rows
        merged = shape.dilation[2] == 1 and strides[2] == channels
        return {
            "taps": "pixel" if plain else "vectors" if channels % CHUNK == 0 else "bytes",
            "flat": flat, "padded": padded, "merged": merged, "inside": inside,
            "x_pixel": self.x.row_stride if flat else strides[2], "x_row": strides[1],
            "x_batch": self.x.strides[0], "batch": shape.batch, "channels": channels,
            "kernel": shape.kernel[1:], "dilation": shape.dilation[1:], "size": shape.size[1:],
            "top": affine(("oh", shape.stride[1]), offset=-shape.begin[1]),
            "left": affine(("ow", shape.stride[2]), offset=-shape.begin[2]),
            "kh": affine(("kh", shape.dilation[1])), "kw": affine(("kw", shape.dilation[2])),
            "out": shape.out[1:], "pad": input_zero(self.node),
            "raw_pad": int(known_zero(self.node, 3)[0]),
        }  # fmt: skip


def _inside(shape: ConvShape) -> tuple[str, bool]:
    """(C condition of the output pixels whose window lies inside the input, whether any does not);
    the condition is empty where no pixel fulfils it, "1" where all do.
    """
    tests = []
    for i, name in ((1, "oh"), (2, "ow")):
        first, end = shape.inside(i)
        if first >= end:
            return "", True
        if first > 0:
            tests.append(f"{name} >= {first}")
        if end < shape.out[i]:
            tests.append(f"{name} < {end}")
    return " && ".join(tests) or "1", bool(tests)
