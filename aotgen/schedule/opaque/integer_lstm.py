"""integer_lstm: TFLite's integer LSTM as a loop over time.

The recurrent products are int16 pairs times packed int8 weights, a vector of units at a time; what
follows is unit by unit, since tables and fixed-point division have no vector form worth their code.
Rows of the batch do not depend on each other: they are the kernel's rows.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.ir.requant import reduced_multiplier
from aotgen.ir.types import Array, DType
from aotgen.ops.fixed_point16 import CONSTANTS, EXPONENTS
from aotgen.ops.quantized_recurrent import tanh_scale
from aotgen.ops.quantized_tables import sigmoid_table
from aotgen.schedule.base import Arg, Config, Kernel, Need, PackedConst, Views
from aotgen.schedule.intrinsics import I16_PAIRS
from aotgen.schedule.opaque.single_op import SingleOp
from aotgen.schedule.operands import operand
from aotgen.target.target import Target

VECTORS = 4
"""Vectors of units whose sums are in registers together."""


class IntegerLstm(SingleOp):
    """A layer of TFLite's integer LSTM, one direction."""

    name = "integer_lstm"

    def why_not(self, node: Node) -> str | None:
        if not node.input(1).is_const:
            return "needs constant recurrent weights"
        return super().why_not(node)

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {v.name: Need(dense=True) for v in group.activations}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(dense=True)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        gates = group.nodes[0].input(0)
        work = gates.type.numel * group.nodes[0].input(1).shape[1]
        return work / (1.5e9 * target.vl) + 8e-9 * gates.type.numel

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        attrs, gates = node.attrs, node.input(0)
        steps, rows, width = gates.shape
        units, vl = node.input(1).shape[1], target.vl
        tflm, wide = attrs["mode"] == "tflm", bool(attrs["wide"])
        lanes, depth = units % vl, units + units % 2
        tiles = units // (VECTORS * vl) * VECTORS * vl
        info = np.iinfo(attrs["dtype"].numpy)
        args = _arguments(node, depth, vl)
        factors = attrs["gate_scale"]
        if wide:
            factors = [(reduced_multiplier(m), 15 - s) for m, s in factors]
        title = (
            f"TFLite's integer LSTM ({attrs['mode']}): {units} units, steps {steps}, rows {rows}."
        )
        body = render(
            "kernels/integer_lstm.c.j2",
            title=title,
            params=", ".join([f"{a.ctype}{a.name}" for a in args] + ["int32_t r0, int32_t r1"]),
            tflm=tflm,
            wide=wide,
            coupled=width == 3 * units,
            units=units,
            steps=steps,
            rows=rows,
            width=width,
            depth=depth,
            lanes=lanes,
            vectors=VECTORS,
            tiles=tiles,
            singles=units - lanes if units - lanes > tiles else 0,
            panels=-(-units // vl) * vl * depth,
            multipliers=[m for m, _ in factors],
            shifts=[s for _, s in factors],
            htype=attrs["dtype"].c,
            low=info.min,
            high=info.max,
            dot=I16_PAIRS,
            zero=_literal(attrs["zero_point"]),
            power=attrs["cell_power"],
            clip=attrs["cell_clip"],
            tanh_args=_tanh_arguments(tflm, attrs["cell_power"]),
            hidden_multiplier=attrs["hidden_scale"][0],
            hidden_shift=attrs["hidden_scale"][1],
            has_y="y" in attrs["results"],
            factors=[factor for _, factor in EXPONENTS],
            fixed={k: _literal(v) for k, v in asdict(CONSTANTS).items()},
        )
        return Kernel(
            f"integer_lstm_{attrs['dtype'].value}_{attrs['mode']}",
            body,
            tuple(args),
            rows,
            frozenset({"int8", "requantize"}),
            frozenset({"string.h"}),
        )


def _literal(value: int) -> str:
    """``value`` as an operand in C."""
    return f"({value})" if value < 0 else str(value)


def _tanh_arguments(tflm: bool, power: int) -> str:
    """Of the call that gives tanh of the cell."""
    if not tflm:
        return f"cell, {15 + power}"
    multiplier, right = tanh_scale(power)
    return f"table, cell, {multiplier}, {right}"


def _packed(r: Array, units: int, depth: int, vl: int) -> npt.NDArray[np.int8]:
    """Weights [G * H, H] as [G][panels][depth / 2][vl][2]."""
    gates, panels = len(r) // units, -(-units // vl)
    full = np.zeros((gates, panels * vl, depth), np.int8)
    full[:, :units, :units] = r.reshape(gates, units, units)
    return np.concatenate([I16_PAIRS.pack(p) for p in full.reshape(-1, vl, depth)])


def _arguments(node: Node, depth: int, vl: int) -> list[Arg]:
    attrs, r = node.attrs, node.input(1)
    assert r.const is not None
    rows, units = node.input(2).shape
    stored = r.const.reshape(-1) if attrs["wide"] else _packed(r.const, units, depth, vl)
    args = [
        operand("gates", node.input(0)),
        Arg("r", "const int8_t *", const=PackedConst("r", stored, r)),
        operand("h0", node.input(2)),
        operand("c0", node.input(3)),
    ]
    if attrs["mode"] == "tflm":
        table = sigmoid_table().astype(np.uint16)
        args.append(Arg("table", "const uint16_t *", const=PackedConst("sigmoid", table)))
    results = dict(zip(attrs["results"], node.outputs, strict=True))
    for name, dtype in (("y", attrs["dtype"]), ("h", attrs["dtype"]), ("c", DType.I16)):
        ctype = f"{dtype.c} *"
        if name in results:
            args.append(Arg(name, ctype, value=results[name], is_output=True))
        elif name != "y":
            args.append(Arg(name, ctype, scratch_bytes=rows * units * dtype.size))
    args.append(Arg("hidden", "int16_t *", scratch_bytes=2 * depth))
    args.append(Arg("sums", "int16_t *", scratch_bytes=2 * node.input(0).shape[2]))
    return args
