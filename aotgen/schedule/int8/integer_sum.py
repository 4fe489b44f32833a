"""Sums and differences of 8-bit tensors of one shape on Cortex-M and in plain C: two products of
int32 an element, with the coefficients of ``aotgen.ops.integer_sum``.

Where there are none, which is rare, the te nest computes them in float32 or in fixed point.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType
from aotgen.ops.fixed_point import limits
from aotgen.ops.quantized_elementwise import integer_coefficients
from aotgen.schedule.base import INSTRUCTION_SECONDS, Config, Kernel, PackedConst, Routine, Views
from aotgen.schedule.dense.tiles import core_model
from aotgen.schedule.int8.neon.sum import TYPES, SumTemplate, sum_kernel
from aotgen.target.target import Target

INSTRUCTIONS = {"scalar": 10.0, "dsp": 7.5, "mve": 2.4}
"""Of an element, about."""


class Int8IntegerSum(SumTemplate):
    """``qadd`` and ``qsub`` of two tensors of the output's type and shape."""

    name = "int8_integer_sum"

    def applies(self, group: Group, target: Target) -> str | None:
        if target.device != "cpu" or target.isa not in INSTRUCTIONS:
            return "needs a Cortex-M or plain C"
        return super().applies(group, target)

    def why_not(self, node: Node) -> str | None:
        if integer_coefficients(node) is None:
            return "has no coefficients that make its sums exact"
        return super().why_not(node)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        steps = group.output.type.numel * INSTRUCTIONS[target.isa]
        return (
            steps * INSTRUCTION_SECONDS
            if target.bare
            else steps / 2 / core_model(target).ghz * 1e-9
        )

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        found = integer_coefficients(node)
        assert found is not None  # applies
        names = ("first", "second", "constant", "shift", "lo", "hi")
        numbers = (
            *(*found.factors, found.constant, found.shift),
            *(node.attrs["lo"], node.attrs["hi"]),
        )
        # Optimised for flash, sums of all layers share one text, their numbers are a table.
        table = None
        if target.optimize == "flash":
            table = PackedConst("sum", np.asarray(numbers, np.int32))
        texts = {
            name: f"s[{i}]" if table else (str(number) if number >= 0 else f"({number})")
            for i, (name, number) in enumerate(zip(names, numbers, strict=True))
        }
        saturates = numbers[-2:] == limits(node.output.dtype)
        words = {
            "isa": target.isa,
            "sum": texts,
            "lo": texts["lo"],
            "hi": texts["hi"],
            "saturates": saturates,
            "table": table is not None,
        }
        made = sum_kernel(group, views, self.name, "integer", words, table)
        if target.isa != "mve":
            return made
        return replace(made, routines=(_mve_routine(node.output.dtype),), includes=frozenset())


def _mve_routine(dtype: DType) -> Routine:
    kind, c = TYPES[dtype], dtype.c
    return Routine(
        f"mve_sum_{kind}",
        f"void @ROUTINE@(const {c} *a, const {c} *b, {c} *to, int32_t count, const int32_t *s)",
        render("kernels/int8_mve_sum.c.j2", kind=kind, ctype=c),
    )
