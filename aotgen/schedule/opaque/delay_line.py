"""delay_line: one move of memory to a lower address, which may overlap."""

from __future__ import annotations

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group
from aotgen.ops.common import product
from aotgen.schedule.base import Arg, Config, Kernel, Need, Views
from aotgen.schedule.opaque.single_op import SingleOp
from aotgen.schedule.operands import operand
from aotgen.target.target import Target

BLOCK = 32
"""Bytes that a Cortex-M moves in a turn of its loop, four registers at a time, so that a debug
build has registers left. newlib's memmove goes byte by byte where it is built for size."""

BYTES_PER_SECOND = 5e8
"""Of such a core, as other templates count: an instruction 10 ns, six a block."""


class DelayLine(SingleOp):
    """The rows that a window keeps move to its front."""

    name = "delay_line"

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {v.name: Need(dense=True) for v in group.activations}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(dense=True)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        rate = BYTES_PER_SECOND if target.bare else 8e9
        return group.output.type.nbytes / rate

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = node.input(0), node.output
        row = product(x.shape[int(node.attrs["axis"]) + 1 :]) * x.dtype.size
        # Variables and tensors are aligned; so is every row of whole words.
        words = target.isa in ("dsp", "mve") and row % 4 == 0
        body = render(
            "kernels/delay_line.c.j2",
            ctype=x.dtype.c,
            rows=y.type.numel * x.dtype.size // row,
            row=row,
            skip=int(node.attrs["rows"]) * row // x.dtype.size,
            bytes=y.type.nbytes,
            words=words,
            blocks=y.type.nbytes // BLOCK,
            rest=y.type.nbytes % BLOCK // 4,
        )
        args = (operand("x", x), Arg("y", f"{x.dtype.c} *", value=y, is_output=True))
        name, includes = f"delay_line_{x.dtype.value}", frozenset({"string.h"})
        return Kernel(name, body, args, 1, includes=includes, by_rows=False)
