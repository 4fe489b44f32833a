"""svdf: one loop over rows, units and filters; the memory may be replaced in place."""

from __future__ import annotations

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group
from aotgen.schedule.base import Arg, Config, Kernel, Need, Views
from aotgen.schedule.opaque.single_op import SingleOp
from aotgen.schedule.operands import operand
from aotgen.target.target import Target


class Svdf(SingleOp):
    """The memory of an SVDF layer and its weighted sums."""

    name = "svdf"

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {v.name: Need(dense=True) for v in group.activations}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(dense=True)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        return 1e-9 * group.nodes[0].input(3).type.numel

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        feature, time, bias = node.input(0), node.input(1), node.optional(2)
        rows, filters = feature.shape
        memory, units = time.shape[1], int(node.attrs["units"])
        rule, dtype = node.attrs["requant"], node.attrs["dtype"]
        args = [operand("feature", feature), operand("time", time)]
        if bias is not None:
            args.append(operand("bias", bias))
        args += [
            operand("state", node.input(3)),
            Arg("y", f"{dtype.c} *", value=node.outputs[0], is_output=True),
            Arg("memory", f"{feature.dtype.c} *", value=node.outputs[1], is_output=True),
        ]
        requant = None
        if rule is not None:
            requant = {
                "multiplier": rule.multiplier[0],
                "shift": rule.shift[0],
                "low": rule.lo - rule.zero_point,
                "high": rule.hi - rule.zero_point,
                "zero": f"({rule.zero_point})" if rule.zero_point < 0 else rule.zero_point,
            }
        body = render(
            "kernels/svdf.c.j2",
            title=f"SVDF: {filters} filters of {units} units, the last {memory} values of each.",
            params=", ".join([f"{a.ctype}{a.name}" for a in args] + ["int32_t r0, int32_t r1"]),
            has_bias=bias is not None,
            units=units,
            rank=filters // units,
            filters=filters,
            memory=memory,
            ctype=feature.dtype.c,
            time_type=time.dtype.c,
            sum_type="float" if rule is None else "uint32_t",
            y_type=dtype.c,
            requant=requant,
        )
        math = frozenset() if rule is None else frozenset({"requantize"})
        name, includes = f"svdf_{feature.dtype.value}", frozenset({"string.h"})
        return Kernel(name, body, tuple(args), rows, math, includes)
