"""pairwise_coupling: a small fixed-point iteration per row."""

from __future__ import annotations

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group
from aotgen.ops.coupling import LIMIT, ROUNDS, TOLERANCE
from aotgen.schedule.base import Arg, Config, Kernel, Views
from aotgen.schedule.opaque.single_op import SingleOp
from aotgen.schedule.operands import operand, operand_view, times
from aotgen.target.target import Target


class PairwiseCoupling(SingleOp):
    """Class probabilities from pairwise ones."""

    name = "pairwise_coupling"

    def cost(self, group: Group, target: Target, config: Config) -> float:
        """Some five rounds of two passes over the matrix."""
        count, classes = group.output.shape
        return 1e-9 * count * 10 * classes * classes

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        x, y = group.nodes[0].input(0), group.output
        own, result = operand_view(x, views), views[y]
        count, classes = y.shape
        body = render(
            "kernels/pairwise_coupling.c.j2",
            title=f"Probabilities of {classes} classes from those of each pair, {count} rows.",
            classes=classes,
            rounds=ROUNDS,
            tolerance=TOLERANCE,
            limit=LIMIT,
            x_row=own.strides[0],
            y_row=result.strides[0],
            at_k=times("k", own.strides[1]),
            at_i=times("i", result.strides[1]),
            at_j=times("j", result.strides[1]),
        )
        args = (
            operand("x", x),
            Arg("q", "float *", scratch_bytes=4 * classes * classes),
            Arg("slope", "float *", scratch_bytes=4 * classes),
            Arg("y", "float *", value=y, is_output=True),
        )
        return Kernel("pairwise_coupling_f32", body, args, count)
