"""qmatmul of two activations: both are packed as int16 less their zero points, then a register tile
over pairs of reduction steps.
"""

from __future__ import annotations

import math

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.schedule.base import Arg, Config, Kernel, Knob, Need, Template, View, Views
from aotgen.schedule.dense.matmul_gemm import broadcast_strides, operand_view
from aotgen.schedule.dense.problem import affine
from aotgen.schedule.dense.tiles import padded
from aotgen.schedule.int8.integer_features import check_integer_tile, integer_features
from aotgen.schedule.int8.quantized import (
    BYTES,
    Operands,
    channel_args,
    is_wide,
    known_zero,
    reduction,
    requant_text,
    requant_words,
    title,
)
from aotgen.schedule.int8.quantized_dense import live_registers, tile_of, tile_step
from aotgen.schedule.intrinsics import I16_PAIRS
from aotgen.schedule.operands import operand
from aotgen.target.target import Target


class QuantizedBatch(Template):
    """Products of two activations of 8 bits, each with batch axes that broadcast."""

    name = "quantized_batch"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if target.device != "cpu":
            return "needs a CPU"
        if len(group.nodes) != 1 or node.op != "qmatmul":
            return "needs a qmatmul alone"
        x, w = node.input(0), node.input(1)
        if w.is_const and len(w.shape) == 2:
            return "a constant matrix is packed while compiling"
        if x.dtype not in BYTES or w.dtype not in BYTES:
            return "needs operands of 8 bits"
        if is_wide(node):
            return "needs sums of 32 bits"
        for value in (node.optional(2), node.optional(3), node.optional(4)):
            if value is not None and not value.is_const:
                return "needs a constant bias and constant zero points"
        if known_zero(node, 4).size > 1:
            return "needs one zero point of the second operand"
        if len(x.shape) < 2 or any(0 in v.shape for v in (*node.args, node.output)):
            return "needs matrices with elements"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return (
            Knob("pixels", "ordinal", (1, 2, 3, 4, 5, 6, 7, 8), "rows"),
            Knob("vectors", "ordinal", (1, 2, 3, 4), "vectors"),
        )

    def default(self, group: Group, target: Target) -> Config:
        m, n = group.output.shape[-2:]
        pixels, vectors = tile_of(target, m, n)
        return Config.of(pixels=pixels, vectors=vectors)

    def check(self, group: Group, target: Target, config: Config) -> None:
        pixels, vectors = config.int("pixels"), config.int("vectors")
        check_integer_tile(group, target, pixels, vectors, live_registers(pixels, vectors))

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        node = group.nodes[0]
        pixels, vectors = config.int("pixels"), config.int("vectors")
        m, n = node.output.shape[-2:]
        panels = -(-n // (vectors * target.vl))
        pairs = math.prod(node.output.shape[:-2]) * -(-m // pixels) * panels * reduction(node) / 2
        return integer_features(
            group,
            target,
            config,
            live=live_registers(pixels, vectors),
            cycles=pairs * tile_step(pixels, vectors, target),
            size=2,
        )

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        x = group.nodes[0].input(0)
        return {} if x.is_const else {x.name: Need(unit_inner=True)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        node = group.nodes[0]
        macs = node.output.type.numel * node.input(0).shape[-1]
        return macs / (1.5e9 * target.vl) + node.input(1).type.numel / 1e9

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, w = (operand_view(node.input(i), views) for i in (0, 1))
        y = views[group.output]
        m, n, products = *y.shape[-2:], x.shape[-1]
        pixels, vectors = config.int("pixels"), config.int("vectors")
        panel, depth = vectors * target.vl, products + products % 2
        bias = node.optional(2)
        sums = None if bias is None or bias.const is None else bias.const.astype(np.int32)
        operands = Operands(np.zeros((0, 0), np.int8), sums, None, 0, 0)
        tables = channel_args(node, operands, 1, padded(n, panel))
        k_step, n_step = w.strides[-2:][::-1] if node.attrs["trans_b"] else w.strides[-2:]
        args = [operand("x_", node.input(0)), operand("w_", node.input(1)), *tables]
        args += [
            Arg("a", "int16_t *", scratch_bytes=padded(m, pixels) * depth * 2),
            Arg("b", "int16_t *", scratch_bytes=depth * panel * 2),
            Arg("y_", f"{y.dtype.c} *", value=group.output, is_output=True),
        ]
        parameters = [f"{a.ctype}restrict {a.name}" for a in args]
        text = render(
            "kernels/quantized_batch.c.j2",
            dot=I16_PAIRS,
            title=title(group),
            params=", ".join([*parameters, "int32_t r0", "int32_t r1"]),
            tile_params="".join(f", {a.ctype}{a.name}" for a in tables),
            per_channel=[a.name for a in tables],
            bias=sums is not None,
            requant=requant_text(node),
            lines=_pointers(node, x, w, y),
            types=[v.dtype.c for v in (x, w, y)],
            bits=y.dtype.size * 8,
            zeros=[int(known_zero(node, i)[0]) for i in (3, 4)],
            rows=m,
            columns=n,
            reduction=products,
            depth=depth,
            x_row=x.strides[-2],
            y_row=y.strides[-2],
            w_step=(k_step, n_step),
            pixels=pixels,
            vectors=vectors,
        )
        name = f"qmatmul_{x.dtype.value}_batch_{pixels}x{vectors}"
        units = math.prod(y.shape[:-2])
        return Kernel(name, text, tuple(args), units, requant_words(node))


def _pointers(node: Node, x: View, w: View, y: View) -> list[str]:
    """C lines that declare x, w and y of matrix r of the output."""
    batch = y.shape[:-2]
    lines, names = [], []
    for axis, extent in enumerate(batch):
        inner = math.prod(batch[axis + 1 :])
        names.append(f"i{axis}")
        if extent > 1:
            text = "r" if inner == 1 else f"r / {inner}"
            text += f" % {extent}" if axis and math.prod(batch[:axis]) > 1 else ""
            lines.append(f"const int32_t i{axis} = {text};")
    for name, view in (("x", x), ("w", w), ("y", y)):
        strides = broadcast_strides(view.strides[:-2], view.shape[:-2], len(batch))
        terms = [(i, s) for i, s, n in zip(names, strides, batch, strict=True) if n > 1]
        constant = "" if name == "y" else "const "
        offset = affine((f"{name}_", 1), *terms)
        lines.append(f"{constant}{view.dtype.c} *restrict {name} = {offset};")
    used = " ".join(lines)
    return [t for t in lines if not t.startswith("const int32_t") or used.count(t.split()[2]) > 1]
