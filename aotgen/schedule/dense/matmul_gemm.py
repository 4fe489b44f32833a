"""matmul: a [.., M, K] times b [.., K, N] (or [.., N, K] with trans_b), numpy broadcasting over the
leading axes.

``MatmulGemm`` has constant b, packed at compile time: rows of all batch entries form one long axis
where strides allow. ``MatmulBatch`` has an activation b (attention): read in place when its columns
lie next to each other and few rows use it (knob pack_b), else packed into panels in scratch, once
per batch entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.schedule.base import Arg, Config, Kernel, Knob, Need, PackedConst, View, Views
from aotgen.schedule.conv.conv2d_direct import DenseTemplate
from aotgen.schedule.dense.blocking import Problem, dense_config
from aotgen.schedule.dense.problem import Axis, Block, Dense, collapse
from aotgen.schedule.dense.writer import DenseWriter, dense_kernel
from aotgen.schedule.fused import Fused, fused_needs, make_fused
from aotgen.schedule.packing import pack_panels, pad_channels, panel_floats
from aotgen.target.target import Target
from aotgen.te.epilogue import row_stage


@dataclass(frozen=True)
class MatmulShape:
    """Extents of a matmul node.

    Attributes:
        batch: leading axes of the output.
        m, k, n: of each product.
        trans_b: b is [.., N, K].
    """

    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    trans_b: bool

    @classmethod
    def of(cls, node: Node) -> MatmulShape:
        a, y = node.input(0).shape, node.output.shape
        return cls(y[:-2], y[-2], a[-1], y[-1], bool(node.attrs["trans_b"]))

    @property
    def macs(self) -> int:
        return prod(self.batch) * self.m * self.k * self.n


def matmul_anchor(group: Group, target: Target) -> Node | str:
    """The f32 matmul that a template may implement, or why there is none."""
    node = group.anchor
    if target.device != "cpu":
        return "needs a CPU"
    if node is None or node.op != "matmul" or group.prologue:
        return "needs a matmul without prologue"
    if any(v.dtype is not DType.F32 for n in group.nodes for v in [*n.args, *n.outputs]):
        return "needs f32"
    if any(0 in v.shape for v in [*node.args, node.output]):
        return "needs tensors with elements"
    if len(node.input(0).shape) < 2 or len(node.input(1).shape) < 2:
        return "needs operands of at least two axes"
    bias = node.optional(2)
    if bias is not None and (not bias.is_const or bias.shape != (node.output.shape[-1],)):
        return "needs a constant bias of one value a column"
    return node


def broadcast_strides(
    strides: tuple[int, ...], shape: tuple[int, ...], rank: int
) -> tuple[int, ...]:
    """Strides of an operand's leading axes along the output's ``rank`` leading axes; 0 where it is
    broadcast.
    """
    own = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
    return (0,) * (rank - len(own)) + own


def operand_view(value: Value, views: Views) -> View:
    """An operand's view; constants are dense."""
    return View.dense(value.shape, value.dtype) if value.is_const else views[value]


def batch_axes(
    group: Group, shape: MatmulShape, views: Views, fused: Fused
) -> tuple[list[Axis], Axis]:
    """(leading axes, row axis) with strides of x, y and the epilogue's pixel inputs."""
    node = group.nodes[0]
    a, y = operand_view(node.input(0), views), views[group.output]
    rank = len(shape.batch)
    own = broadcast_strides(a.strides[:-2], a.shape[:-2], rank)
    axes = []
    for i, extent in enumerate(shape.batch):
        strides = {"x": own[i], "y": y.strides[i]}
        strides.update({e.name: e.strides[i] for e in fused.inputs if e.kind == "pixel"})
        axes.append(Axis(extent, strides))
    row = {"x": a.strides[-2], "y": y.strides[-2]}
    row.update({e.name: e.strides[-2] for e in fused.inputs if e.kind == "pixel"})
    return axes, Axis(shape.m, row)


def matmul_title(node: Node) -> str:
    a, b = node.input(0).shape, node.input(1).shape
    transposed = " transposed" if node.attrs["trans_b"] else ""
    return f"matmul a {list(a)}, b {list(b)}{transposed} -> y {list(node.output.shape)}"


class MatmulTemplate(DenseTemplate):
    """What both matrix products share."""

    def problem(self, group: Group, target: Target) -> Problem:
        shape = MatmulShape.of(group.nodes[0])
        rows = self.rows(group, shape)
        return Problem(
            rows=rows,
            cols=1,
            outer=1,
            groups=shape.m * prod(shape.batch) // rows,
            channels=shape.n,
            reduction=shape.k,
            inner=shape.k,
            passes=shape.k,
            x_bytes=4 * rows * shape.k,
            lane_step=target.has_neon,
        )

    def rows(self, group: Group, shape: MatmulShape) -> int:
        """Rows that share one right operand."""
        raise NotImplementedError

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        found = fused_needs(group)
        a = group.nodes[0].input(0)
        return found if a.is_const else {**found, a.name: Need(unit_inner=True)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        """A row epilogue counts rows over all leading axes together."""
        return Need(unit_inner=True, even_rows=row_stage(group) is not None)


class MatmulGemm(MatmulTemplate):
    """Product with a constant right operand, packed in panels."""

    name = "matmul_gemm"

    def applies(self, group: Group, target: Target) -> str | None:
        node = matmul_anchor(group, target)
        if isinstance(node, str):
            return node
        if not node.input(1).is_const or node.input(0).is_const:
            return "needs a constant right operand"
        return None

    def rows(self, group: Group, shape: MatmulShape) -> int:
        leading = group.nodes[0].input(1).shape[:-2]
        return shape.m if prod(leading) > 1 else shape.m * prod(shape.batch)

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        shape = MatmulShape.of(node)
        fused = make_fused(group, target, views, rows=True)
        leading, row = batch_axes(group, shape, views, fused)
        cfg = dense_config(config, target)
        b = node.input(1)
        assert b.const is not None
        w = np.asarray(b.const, np.float32)
        w = w if shape.trans_b else w.swapaxes(-1, -2)
        packed_size = -(-shape.n // target.vl) * target.vl * shape.k
        leading = _with_weights(leading, w.shape[:-2], packed_size)
        # A product of one row keeps its own row axis when the row epilogue counts rows of a
        # product, or when the weights change along the batch: a row axis has no stride in w.
        own_weights = any(a.strides.get("w") for a in leading)
        lone_row = shape.m == 1 and (fused.rows is not None or own_weights)
        merged = [*collapse(leading), row] if lone_row and leading else collapse([*leading, row])
        outer = tuple(a for a in merged[:-1] if a.extent > 1)
        dense = Dense(outer, merged[-1], Axis(1, {}), ((shape.k, 1),), shape.n)
        bias = node.optional(2)
        writer = DenseWriter(dense, cfg, target, fused, bias=bias is not None)
        packed = pack_panels(w.reshape(-1, shape.n, shape.k), writer.panels, target.vl)
        args = [
            Arg("x", "const float *", value=node.input(0)),
            Arg("w", "const float *", const=PackedConst("w", packed, b)),
        ]
        args += _bias_args(node, shape.n, target)
        args += [i.arg for i in fused.inputs] + list(fused.row_args)
        args.append(Arg("y", "float *", value=group.output, is_output=True))
        return dense_kernel(
            f"matmul_f32_gemm_{writer.tile_text}", matmul_title(node), [], writer, args
        )


class MatmulBatch(MatmulTemplate):
    """Product of two activations, or of a constant and an activation."""

    name = "matmul_batch"

    def applies(self, group: Group, target: Target) -> str | None:
        node = matmul_anchor(group, target)
        if isinstance(node, str):
            return node
        if node.input(0).is_const or node.input(1).is_const:
            return "needs activations as operands"
        return None

    def rows(self, group: Group, shape: MatmulShape) -> int:
        return shape.m

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return (*super().space(group, target), Knob("pack_b", "boolean", (False, True)))

    def default(self, group: Group, target: Target) -> Config:
        found = super().default(group, target).as_dict()
        found.update(kc=0, next_lines=0)
        found["pack_b"] = MatmulShape.of(group.nodes[0]).m > 2 * int(found["mr"])
        return Config.of(**found)

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        shape = MatmulShape.of(node)
        fused = make_fused(group, target, views, rows=True)
        leading, row = batch_axes(group, shape, views, fused)
        cfg = dense_config(config, target)
        b = operand_view(node.input(1), views)
        k_stride, n_stride = b.strides[-2:][::-1] if shape.trans_b else b.strides[-2:]
        own = broadcast_strides(b.strides[:-2], b.shape[:-2], len(shape.batch))
        leading = [Axis(a.extent, {**a.strides, "w": s}) for a, s in zip(leading, own, strict=True)]
        in_place = n_stride == 1 and not config["pack_b"]
        outer = collapse(leading) if leading else []
        dense = Dense(
            tuple(a for a in outer if a.extent > 1),
            row,
            Axis(1, {}),
            ((shape.k, 1),),
            shape.n,
            w_step=k_stride if in_place else 0,
        )
        writer = DenseWriter(dense, cfg, target, fused, bias=node.optional(2) is not None)
        args = [_operand("x", node, 0), _operand("w", node, 1)]
        args += _bias_args(node, shape.n, target)
        args += [i.arg for i in fused.inputs] + list(fused.row_args)
        args.append(Arg("y", "float *", value=group.output, is_output=True))
        title = matmul_title(node)
        name = f"matmul_f32_batch_{writer.tile_text}"
        if in_place:
            return dense_kernel(name, title, [], writer, args)
        writer.bases["w"] = "packed"
        size = panel_floats(writer.panels, shape.k, target.vl)
        args.append(Arg("packed", "float *", scratch_bytes=4 * size))
        call: Block = f"@KERNEL@_pack({writer.pointer('w')}, packed);"
        pack = render("kernels/pack_b.c.j2", **pack_context(writer, shape, k_stride, n_stride))
        return dense_kernel(
            name,
            title,
            [],
            writer,
            args,
            helpers=[pack.strip("\n")],
            body=writer.wrap([call, *writer.nests()]),
        )


def _operand(name: str, node: Node, index: int) -> Arg:
    value = node.input(index)
    if value.const is not None:
        return Arg(name, "const float *", const=PackedConst(name, value.const.reshape(-1), value))
    return Arg(name, "const float *", value=value)


def _bias_args(node: Node, n: int, target: Target) -> list[Arg]:
    bias = node.optional(2)
    if bias is None or bias.const is None:
        return []
    return [
        Arg(
            "bias",
            "const float *",
            const=PackedConst("bias", pad_channels(bias.const, 1, n, target.vl), bias),
        )
    ]


def _with_weights(axes: list[Axis], leading: tuple[int, ...], size: int) -> list[Axis]:
    """The batch axes with strides of the packed weights, whose own leading axes are ``leading``."""
    strides, step = [], size
    for extent in reversed(leading):
        strides.append(0 if extent == 1 else step)
        step *= extent
    own = (0,) * (len(axes) - len(leading)) + tuple(reversed(strides))
    return [Axis(a.extent, {**a.strides, "w": s}) for a, s in zip(axes, own, strict=True)]


def pack_context(
    writer: DenseWriter, shape: MatmulShape, k_stride: int, n_stride: int
) -> dict[str, object]:
    """What pack_b.c.j2 prints."""
    vl = writer.vl
    panels = []
    for p in writer.panels:
        width = p.vectors * vl
        loads = []
        for v in range(p.vectors):
            masked = p.lanes and v == p.vectors - 1
            source = f"from + {v * vl}" if v else "from"
            loads.append(
                {
                    "to": v * vl,
                    "load": f"vload_n({source}, {p.lanes})" if masked else f"vload({source})",
                }
            )
        panels.append(
            {
                "count": p.count,
                "width": width,
                "start": p.channel * n_stride,
                "step": width * n_stride,
                "loads": loads,
                "columns": width - vl + p.lanes if p.lanes else width,
            }
        )
    return {
        "k": shape.k,
        "n": shape.n,
        "k_stride": k_stride,
        "n_stride": n_stride,
        "panels": panels,
        "widths": " or ".join(str(p["width"]) for p in panels),
    }
