"""max_pool and avg_pool with one or two spatial axes: vectors over channels, borders split off.

Rows and columns whose window lies inside the input run with constant extents; the others are
clipped beforehand.
"""

from __future__ import annotations

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.schedule.base import (
    Alias,
    Arg,
    Config,
    Kernel,
    Knob,
    Need,
    ScheduleError,
    Template,
    Views,
)
from aotgen.schedule.conv2d_direct import alias, output_axes
from aotgen.schedule.conv_shape import ConvShape
from aotgen.schedule.dense import Block, kernel_params, loop, terms
from aotgen.schedule.fused import fused_needs, make_fused
from aotgen.schedule.tiles import core_model
from aotgen.target.target import Target

POOLS = ("max_pool", "avg_pool")


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
        return (Knob("vectors", "ordinal", (1, 2, 4, 8), "vectors"),)

    def default(self, group: Group, target: Target) -> Config:
        vectors = 4
        while vectors > 1 and vectors * target.vl > group.output.shape[-1]:
            vectors //= 2
        return Config.of(vectors=vectors)

    def check(self, group: Group, target: Target, config: Config) -> None:
        if config.int("vectors") + 4 > target.vector_registers:
            raise ScheduleError("more vectors of channels than registers")

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {**fused_needs(group), group.nodes[0].input(0).name: Need(unit_inner=True)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def may_alias(self, group: Group, value: Value) -> Alias:
        return alias(group, value)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        shape = ConvShape.of(group.nodes[0])
        core = core_model(target)
        vectors = -(-shape.outputs // target.vl)
        cells = shape.batch * shape.out[1] * shape.out[2] * (shape.taps + 2)
        return cells * vectors / core.loads / core.ghz * 1e-9

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        shape = ConvShape.of(node)
        fused = make_fused(group, target, views)
        x = views[node.input(0)]
        xs = shape.spatial_strides(x)
        batch, _, row, col = output_axes(group, shape, views, fused)
        is_max = node.op == "max_pool"
        vl, channels = target.vl, shape.channels
        vectors = config.int("vectors")
        full = channels // vl * vl
        inputs = [i.name for i in fused.inputs]

        def store(n: int, lanes: int) -> str:
            at = f"c + {n * vl}" if n else "c"
            value = f"acc{n}"
            if fused.function:
                loads = fused.load({i: i for i in [*inputs, "y"]}, at, lanes)
                value = f"@KERNEL@_epilogue({value}{loads})"
            return (
                f"vstore_n(y + {at}, {value}, {lanes});" if lanes else f"vstore(y + {at}, {value});"
            )

        pointers = ["const float *x", *(f"const float *{i}" for i in inputs), "float *y"]
        extents = ["int32_t kh", "int32_t kw", *([] if is_max else ["float count"])]
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
        text = render(
            "kernels/pool2d.c.j2",
            epilogue=fused.function,
            is_max=is_max,
            vl=vl,
            vectors=vectors,
            full=full,
            wide=full // (vectors * vl) * vectors * vl,
            lanes=channels % vl,
            row_step=shape.dilation[1] * xs[1],
            col_step=shape.dilation[2] * xs[2],
            stores=[store(n, 0) for n in range(vectors)],
            tail_store=store(0, channels % vl),
            cell_params=", ".join(pointers + extents),
            title=pool_title(node),
            params=kernel_params(args, fused),
            body=_Body(node, shape, strides, xs, ["x", *inputs, "y"], is_max).rows(),
        )
        name = f"{node.op}_f32_{shape.kernel[1]}x{shape.kernel[2]}"
        return Kernel(name, text, tuple(args), shape.out[1], fused.math)


def pool_title(node: Node) -> str:
    kernel = "x".join(str(k) for k in node.attrs["kernel"])
    return f"{node.op} {kernel}, x {list(node.input(0).shape)} -> y {list(node.output.shape)}"


class _Body:
    """The loops over output rows and columns, borders split off."""

    def __init__(
        self,
        node: Node,
        shape: ConvShape,
        strides: dict[str, tuple[int, int, int]],
        xs: tuple[int, int, int],
        names: list[str],
        is_max: bool,
    ) -> None:
        self.node, self.shape, self.strides, self.xs, self.names = node, shape, strides, xs, names
        self.is_max = is_max
        extra = tuple(node.attrs.get("ceil_extra", (0,) * shape.axes))
        self.extra = (0,) * (3 - shape.axes) + extra
        self.include = not is_max and bool(node.attrs["count_include_pad"])

    def inside(self, axis: int) -> tuple[int, int]:
        """The range of outputs along an axis whose window lies inside the input."""
        s = self.shape
        reach = (s.kernel[axis] - 1) * s.dilation[axis]
        low = -(-s.begin[axis] // s.stride[axis])
        high = (s.size[axis] - 1 + s.begin[axis] - reach) // s.stride[axis] + 1
        low = min(low, s.out[axis])
        return low, max(low, min(high, s.out[axis]))

    def rows(self) -> list[Block]:
        low, high = self.inside(1)
        inner = self._row("kh0", "khn", "rows_counted" if self._counts else "")
        lines: list[Block] = [*self._clip(1, "r", "kh0", "khn", "rows_counted"), *inner]
        if low == 0 and high == self.shape.out[1]:
            lines = self._row("0", str(self.shape.kernel[1]), str(self.shape.kernel[1]))
        elif low < high:
            test = " && ".join(
                t
                for t in (
                    f"r >= {low}" if low else "",
                    f"r < {high}" if high < self.shape.out[1] else "",
                )
                if t
            )
            whole = self._row("0", str(self.shape.kernel[1]), str(self.shape.kernel[1]))
            lines = [{"head": f"if ({test}) {{", "body": whole}, {"head": "else {", "body": lines}]
        nest: list[Block] = [loop("r", "r0", "r1", lines)]
        return [loop("i0", "0", str(self.shape.batch), nest)] if self.shape.batch > 1 else nest

    @property
    def _counts(self) -> bool:
        return not self.is_max

    def _clip(self, axis: int, var: str, first: str, count: str, counted: str) -> list[Block]:
        """Clip a window along one axis: its first tap inside, taps inside, cells that avg_pool
        counts.
        """
        s = self.shape
        k, d, size = s.kernel[axis], s.dilation[axis], s.size[axis]
        at = f"{first}_at"
        lines: list[Block] = [
            f"const int32_t {at} = {terms(f'{var} * {s.stride[axis]}', offset=-s.begin[axis])};"
        ]
        low = f"({d - 1} - {at}) / {d}" if d > 1 else f"-{at}"
        lines.append(f"const int32_t {first} = {at} < 0 ? {low} : 0;")
        lines += _taps_before(f"{count}_end", f"{size} - {at}", d, k)
        lines.append(f"const int32_t {count} = {count}_end > {first} ? {count}_end - {first} : 0;")
        if self._counts:
            if self.include:
                lines += _taps_before(
                    counted, f"{size + s.end[axis] - self.extra[axis]} - {at}", d, k
                )
            else:
                lines.append(f"const int32_t {counted} = {count};")
        return lines

    def _row(self, kh0: str, kh: str, counted: str) -> list[Block]:
        """All columns of output row r, whose window has rows kh0 .. kh0 + kh inside."""
        s = self.shape
        low, high = self.inside(2)
        made: list[Block] = []
        for start, end, whole in ((0, low, False), (low, high, True), (high, s.out[2], False)):
            if start >= end:
                continue
            if whole:
                body = [self._call(kh0, kh, counted, "0", str(s.kernel[2]), str(s.kernel[2]))]
            else:
                body = [
                    *self._clip(2, "t", "kw0", "kwn", "columns_counted"),
                    self._call(kh0, kh, counted, "kw0", "kwn", "columns_counted"),
                ]
            made.append(loop("t", str(start), str(end), body))
        return made

    def _call(self, kh0: str, kh: str, rows: str, kw0: str, kw: str, columns: str) -> Block:
        s = self.shape
        args = []
        for name in self.names:
            batch, row, col = self.strides[name]
            parts = [("i0", batch)] if s.batch > 1 else []
            offset = 0
            if name == "x":
                row, col = self.xs[1] * s.stride[1], self.xs[2] * s.stride[2]
                parts += [(kh0, s.dilation[1] * self.xs[1]), (kw0, s.dilation[2] * self.xs[2])]
                offset = -(s.begin[1] * self.xs[1] + s.begin[2] * self.xs[2])
            args.append(terms(name, *parts, ("r", row), ("t", col), offset=offset))
        args += [kh, kw]
        if self._counts:
            both_known = rows.isdigit() and columns.isdigit()
            args.append(
                f"{int(rows) * int(columns)}.0f" if both_known else f"(float)({rows} * {columns})"
            )
        return f"@KERNEL@_cells({', '.join(args)});"


def _taps_before(name: str, distance: str, dilation: int, kernel: int) -> list[Block]:
    """``name`` = how many of ``kernel`` taps, ``dilation`` apart, lie before ``distance``."""
    taps = f"({distance} + {dilation - 1}) / {dilation}" if dilation > 1 else distance
    return [
        f"const int32_t {name}_most = {taps};",
        f"const int32_t {name} = "
        f"{name}_most < 0 ? 0 : {name}_most < {kernel} ? {name}_most : {kernel};",
    ]
