"""Softmax of rows of 8-bit integers on microcontrollers.

The exponentials of the 256 possible differences are a table of 1 KB, or, optimised for flash,
computed where they are needed. On larger cores the te nest does the same with a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.ops import exp_tables
from aotgen.schedule.base import (
    INSTRUCTION_SECONDS,
    Alias,
    Arg,
    Config,
    Kernel,
    Need,
    PackedConst,
    Views,
)
from aotgen.schedule.opaque.single_op import SingleOp
from aotgen.target.target import Target

MOST_NEAR = 255
"""Elements up to which the quotient never moves by more than 31 bits."""


class Int8Softmax(SingleOp):
    """``qsoftmax`` from 8 bits to 8 bits."""

    name = "int8_softmax"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if target.device != "cpu" or not target.bare:
            return "needs a microcontroller"
        if len(group.nodes) > 1 or node.op != "qsoftmax" or node.input(0).is_const:
            return "needs a qsoftmax of an activation, alone"
        return self.why_not(node)

    def why_not(self, node: Node) -> str | None:
        if node.output.dtype not in (DType.I8, DType.U8):
            return "needs an output of 8 bits"
        return super().why_not(node)

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {group.nodes[0].input(0).name: Need(dense=True)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(dense=True)

    def may_alias(self, group: Group, value: Value) -> Alias:
        """Row by row: an element is written when all but its own exponential are done with."""
        same = value.dtype is group.output.dtype
        return "same_index" if same and value is group.nodes[0].input(0) else "none"

    def cost(self, group: Group, target: Target, config: Config) -> float:
        per_element = 160 if target.optimize == "flash" else 32
        rows = group.output.type.numel // group.output.shape[-1]
        return (group.output.type.numel * per_element + rows * 150) * INSTRUCTION_SECONDS

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node, y = group.nodes[0], group.output
        x, attrs = node.input(0), node.attrs
        extent, inplace = y.shape[-1], views.inplace == x.name
        computes = target.optimize == "flash"
        fields: dict[str, Any] = {"extent": extent}
        if computes:
            fields |= {k: attrs[k] for k in ("multiplier", "shift", "lowest")}
            numbers = np.asarray(list(fields.values()), np.int32)
            table = Arg("shape", "const int32_t *", const=PackedConst("shape", numbers))
        else:
            powers = exp_tables.exp_of_differences(
                attrs["multiplier"], attrs["shift"], attrs["lowest"]
            )
            table = Arg("p", "const int32_t *", const=PackedConst("exp", powers.astype(np.int32)))
        args = [
            *([] if inplace else [Arg("x", f"const {x.dtype.c} *", value=x)]),
            table,
            Arg("y", f"{y.dtype.c} *", value=y, is_output=True),
        ]
        params = [f"{a.ctype}restrict {a.name}" for a in args]
        text = render(
            "kernels/int8_softmax.c.j2",
            title="softmax" if computes else f"softmax of {list(y.shape)}",
            params=", ".join([*params, "int32_t r0", "int32_t r1"]),
            fields=fields,
            computes=computes,
            factors=exp_tables.FACTORS,
            far=extent > MOST_NEAR,
            ctype=x.dtype.c,
            out=y.dtype.c,
            signed=y.dtype is DType.I8,
            source="y" if inplace else "x",
        )
        words = frozenset({"requantize", "fixed_math"})
        return Kernel(
            f"qsoftmax_{x.dtype.value}_{y.dtype.value}",
            text,
            tuple(args),
            y.type.numel // extent,
            words,
        )
