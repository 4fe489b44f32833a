"""max_pool and avg_pool with one or two spatial axes: vectors over channels, borders split off.

Rows and columns whose window lies inside the input run with constant extents; the others are
clipped beforehand. Inside, a tile of neighbouring outputs first reduces every column of input down
the window's rows, once for all the windows that share it, then each window's columns. Where the
input lies in blocks of channels, the loop over channels goes around all pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.schedule.base import (
    Alias,
    Arg,
    Config,
    Kernel,
    Knob,
    Layout,
    Need,
    ScheduleError,
    Template,
    Views,
)
from aotgen.schedule.conv.conv2d_direct import alias, channel_steps, output_axes
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.pool_loops import PoolLoops
from aotgen.schedule.conv.window_features import window_features
from aotgen.schedule.dense.cache_model import layout_cycles
from aotgen.schedule.dense.problem import kernel_params, terms
from aotgen.schedule.dense.tiles import core_model, split_even, usable_registers
from aotgen.schedule.features import common_features
from aotgen.schedule.fused import fused_needs, make_fused
from aotgen.schedule.layouts import (
    Y_LAYOUT,
    in_layout,
    laid_out,
    layout_of,
    planewise_layouts,
)
from aotgen.target.target import Target

POOLS = ("max_pool", "avg_pool")
VECTORS, TILES = (1, 2, 4, 8), (1, 2, 3, 4, 6, 8)
MOST_RESULTS = 12
"""Vectors of results of a default tile: larger ones were slower, even with registers to spare."""


@dataclass(frozen=True)
class Tile:
    """Neighbouring outputs of a row, from the columns of input that their windows share.

    Attributes:
        columns: input columns that any window reads, counted from the first.
        windows: for each output, the indices of its columns in ``columns``.
    """

    columns: tuple[int, ...]
    windows: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shape: ConvShape, outputs: int) -> Tile:
        """The tile of so many outputs, whose windows lie inside the input."""
        taps = range(0, shape.kernel[2] * shape.dilation[2], shape.dilation[2])
        reads = [[t * shape.stride[2] + tap for tap in taps] for t in range(outputs)]
        columns = sorted({c for window in reads for c in window})
        return cls(tuple(columns), tuple(tuple(columns.index(c) for c in w) for w in reads))

    def registers(self, vectors: int) -> int:
        """Vector registers: every column's reduction, two loads and a constant."""
        return vectors * len(self.columns) + 3

    def steps(self, rows: int) -> float:
        """Loads with the operation on each, and operations between columns, an output."""
        across = sum(len(w) - 1 for w in self.windows)
        return (rows * len(self.columns) + 0.5 * across) / len(self.windows)


class Pool2d(Template):
    """Pooling of f32 channels-last activations."""

    name = "pool2d"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.anchor
        if target.device != "cpu":
            return "needs a CPU"
        if node is None or node.op not in POOLS or group.prologue or node.input(0).is_const:
            return "needs a max_pool or avg_pool of an activation, without prologue"
        if any(v.dtype is not DType.F32 for n in group.nodes for v in [*n.args, *n.outputs]):
            return "needs f32"
        if any(0 in v.shape for v in [*node.args, node.output]):
            return "needs tensors with elements"
        return None if len(node.input(0).shape) in (3, 4) else "needs one or two spatial axes"

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        shape = ConvShape.of(group.nodes[0])
        default = self.default(group, target)
        most = max(1, shape.channels // target.vl)
        vectors = {1, *(v for v in (2, 3, 4, 6, 8) if v <= most), default.int("vectors")}
        widths = {_inside(shape, t) for t in range(1, 13)} | {default.int("ow_tile")}
        return (
            Knob("vectors", "ordinal", tuple(sorted(vectors)), "vectors"),
            Knob("ow_tile", "ordinal", tuple(sorted(widths)), "columns"),
        )

    def default(self, group: Group, target: Target) -> Config:
        """The fewest steps an output among the tiles whose columns fit the registers. Narrow pieces
        of pixels come slower from L2, which counts most where neighbouring tiles read them again.
        """
        shape = ConvShape.of(group.nodes[0])
        widest = max(1, min(4, shape.channels // target.vl))
        best = (float("inf"), 0, 0)
        for vectors in (v for v in VECTORS if v <= widest):
            for outputs in (t for t in TILES if t <= max(1, shape.out[2])):
                tile = Tile.of(shape, outputs)
                fits = tile.registers(vectors) <= usable_registers(target)
                if outputs > 1 and not (fits and outputs * vectors <= MOST_RESULTS):
                    continue
                # a tile of one output runs the loop over its taps, vector by vector
                steps = tile.steps(shape.kernel[1]) if outputs > 1 else 1.5 * shape.taps
                narrow = (4.0 if shape.stride[2] == 1 else 1.0) / vectors if target.vl > 1 else 0.0
                best = min(best, (steps + narrow, -vectors, outputs))
        return Config.of(vectors=-best[1], ow_tile=best[2])

    def check(self, group: Group, target: Target, config: Config) -> None:
        vectors, outputs = config.int("vectors"), config.int("ow_tile")
        need = vectors + 4
        if outputs > 1:
            need = max(need, Tile.of(ConvShape.of(group.nodes[0]), outputs).registers(vectors))
        if need > target.vector_registers:
            raise ScheduleError(
                f"a tile of {outputs} columns x {vectors} vectors of channels needs {need} "
                f"registers of {target.vector_registers}"
            )

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        """Tiles as wide as windows inside are cut to."""
        width = _inside(ConvShape.of(group.nodes[0]), config.int("ow_tile"))
        return Config.of(**{**config.as_dict(), "ow_tile": width})

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        shape, vectors = ConvShape.of(group.nodes[0]), config.int("vectors")
        config = self.canonical(group, target, config)
        tile = Tile.of(shape, config.int("ow_tile"))
        outputs = len(tile.windows)
        several = outputs > 1
        columns = len(tile.columns) * shape.kernel[1] if several else shape.taps
        across = sum(len(w) - 1 for w in tile.windows) if several else 0
        return {
            **common_features(self, group, target, config),
            **window_features(
                shape,
                target,
                (1, outputs),
                vectors=vectors,
                live=tile.registers(vectors) if several else vectors + 4,
                operations=float(vectors * (columns + across)),
                loads=float(vectors * columns),
            ),
        }

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        needs = {**fused_needs(group), group.nodes[0].input(0).name: Need(unit_inner=True)}
        return laid_out(needs, group, config, target)

    def layouts(self, group: Group, target: Target) -> list[tuple[Layout, Layout]]:
        return planewise_layouts(group, target)

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return in_layout(Need(unit_inner=True), layout_of(config, Y_LAYOUT), target)

    def may_alias(self, group: Group, value: Value) -> Alias:
        return alias(group, value)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        shape = ConvShape.of(group.nodes[0])
        core = core_model(target)
        vectors = -(-shape.outputs // target.vl)
        outputs = config.int("ow_tile")
        steps = Tile.of(shape, outputs).steps(shape.kernel[1]) if outputs > 1 else shape.taps
        cells = shape.batch * shape.out[1] * shape.out[2] * (steps + 2)
        layouts = layout_cycles(shape, 1, 1, target, config)
        return (cells * vectors / core.loads + layouts) / core.ghz * 1e-9

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        shape = ConvShape.of(node)
        fused = make_fused(group, target, views)
        x = views[node.input(0)]
        xs = shape.spatial_strides(x)
        batch, _, row, col = output_axes(group, shape, views, fused)
        is_max = node.op == "max_pool"
        vl, channels = target.vl, shape.channels
        outside = x.layout == "nchwc"
        vectors = 1 if outside else config.int("vectors")
        full = channels // vl * vl
        inputs = [i.name for i in fused.inputs]
        steps = {"x": x.channel_step, **channel_steps(group, views, fused)}
        moving = {i.name: steps.get(i.name, 1) for i in fused.inputs if i.kind != "scalar"}

        def store(n: int, lanes: int, value: str, output: int = 0) -> str:
            """Statement that stores vector ``n`` of channels of the tile's ``output``."""

            def channel(step: int) -> str:
                if outside:
                    return "0"
                return terms("", ("c", step), offset=n * vl * step).removeprefix(" + ")

            pointers = {
                i: terms(i, offset=output * strides[i][2]) for i in [*inputs, "y"] if i in strides
            }
            at = pointers["y"] if outside else f"{pointers['y']} + {channel(steps['y'])}"
            return fused.store(value, at, pointers, channel, lanes)

        pointers = ["const float *x", *(f"const float *{i}" for i in inputs), "float *y"]
        extents = ["int32_t kh", "int32_t kw", *([] if is_max else ["float count"])]
        guard = is_max and guards_nan(target)
        args = [
            Arg("x", "const float *", value=node.input(0)),
            *(i.arg for i in fused.inputs),
            Arg("y", "float *", value=group.output, is_output=True),
        ]
        strides = {"x": (x.strides[0], 0, 0), "y": (batch["y"], row["y"], col["y"])}
        for i in fused.inputs:
            strides[i.name] = (
                (batch[i.name], row[i.name], col[i.name]) if i.kind == "pixel" else (0, 0, 0)
            )
        body = PoolLoops(node, shape, strides, xs, ["x", *inputs, "y"], is_max)
        if outside:
            body.channels = {"x": steps["x"], **moving, "y": steps["y"]}
            body.vl = vl
        op = "vadd" if not is_max else "vmax" if guard else "vmax_nan"
        sizes = body.tile_inside(config.int("ow_tile"))
        if guard and sizes and full and not outside:
            extents.append("int32_t from")
            body.from_channel = True

        def part(tile: Tile, count: int, lanes: int) -> dict[str, Any]:
            """What the template prints of a tile with ``count`` vectors, the last of ``lanes``."""
            loads = [
                {"name": f"{j}_{n}", "load": _load(column * xs[2] + n * vl, lanes)}
                for j, column in enumerate(tile.columns)
                for n in range(count)
            ]
            return {
                "pairs": [loads[i : i + 2] for i in range(0, len(loads), 2)],
                "results": [
                    {
                        "name": f"{t}_{n}",
                        "value": _across(op, window, n),
                        "store": store(n, lanes, f"acc{t}_{n}", t),
                    }
                    for t, window in enumerate(tile.windows)
                    for n in range(count)
                ],
                "vectors": count,
                "lanes": lanes,
            }

        tiles = []
        for size in sizes:
            tile = Tile.of(shape, size)
            tiles.append(
                {
                    "outputs": size,
                    "again": ", ".join(
                        ["x", *inputs, "y", str(size), *(["c"] if body.from_channel else [])]
                    ),
                    "wide": part(tile, vectors, 0),
                    "one": part(tile, 1, 0),
                    "rest": part(tile, 1, channels % vl),
                }
            )
        text = render(
            "kernels/pool2d.c.j2",
            epilogue=fused.function,
            is_max=is_max,
            vl=vl,
            vectors=vectors,
            outside=outside,
            full=0 if outside else full,
            wide=0 if outside else full // (vectors * vl) * vectors * vl,
            lanes=channels % vl,
            row_step=shape.dilation[1] * xs[1],
            col_step=shape.dilation[2] * xs[2],
            channel="" if outside else " + c",
            stores=[store(n, 0, f"acc{n}") for n in range(vectors)],
            tail_store=store(0, channels % vl, "acc0"),
            cell_params=", ".join(pointers + extents),
            tile_params=", ".join(pointers),
            tiles=tiles,
            op=op,
            guard=guard,
            first_channel="from" if body.from_channel else "",
            kernel_rows=shape.kernel[1],
            count=f"{shape.taps}.0f",
            again={
                "params": ", ".join([*pointers, "int32_t outputs", *extents[2:]]),
                "args": body.again(inputs),
            },
            title=pool_title(node),
            params=kernel_params(args, fused),
            body=body.rows(),
        )
        name = f"{node.op}_f32_{shape.kernel[1]}x{shape.kernel[2]}"
        return Kernel(name, text, tuple(args), shape.out[1], fused.math)


def _inside(shape: ConvShape, outputs: int) -> int:
    """Columns of the larger tiles that windows inside the input are cut to."""
    low, high = shape.inside(2)
    rows = shape.inside(1)
    return split_even(high - low, outputs)[0].size if low < high and rows[0] < rows[1] else 1


def guards_nan(target: Target) -> bool:
    """Whether ``vmax`` loses a NaN that ``vmax_nan`` keeps at two more instructions: a tile then
    looks for NaN once and starts over where it finds one.
    """
    return target.isa in ("avx2", "avx512")


def _load(offset: int, lanes: int) -> str:
    pointer = terms("p", offset=offset)
    return f"vload_n({pointer}, {lanes})" if lanes else f"vload({pointer})"


def _across(op: str, window: Sequence[int], n: int) -> str:
    """C expression of a window's columns, vector ``n`` of channels."""
    return reduce(lambda value, j: f"{op}(col{j}_{n}, {value})", window[1:], f"col{window[0]}_{n}")


def pool_title(node: Node) -> str:
    kernel = "x".join(str(k) for k in node.attrs["kernel"])
    return f"{node.op} {kernel}, x {list(node.input(0).shape)} -> y {list(node.output.shape)}"
