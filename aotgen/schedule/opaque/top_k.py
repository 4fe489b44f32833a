"""top_k on any views: a heap of the best k per line."""

from __future__ import annotations

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType
from aotgen.schedule.base import Arg, Config, Kernel, View, Views
from aotgen.schedule.opaque.copy import NAMES
from aotgen.schedule.opaque.single_op import SingleOp
from aotgen.schedule.operands import operand, operand_view, times
from aotgen.target.target import Target


class TopK(SingleOp):
    """The k largest or smallest of every line along an axis, and their positions."""

    name = "top_k"

    def why_not(self, node: Node) -> str | None:
        halves = node.input(0).dtype is DType.F16
        return "fp16 arithmetic is not supported" if halves else super().why_not(node)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        node = group.nodes[0]
        steps = max(int(node.attrs["k"]).bit_length(), 1)
        return 2e-9 * steps * node.input(0).type.numel

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, (values, indices) = node.input(0), node.outputs
        axis, k = int(node.attrs["axis"]), int(node.attrs["k"])
        dtype, n = x.dtype, x.shape[axis]
        own = operand_view(x, views)
        loops = [a for a in range(len(x.shape)) if a != axis and x.shape[a] > 1]
        names = dict(zip(loops, NAMES[1:], strict=False))  # the template's own loops are over i

        def line(view: View) -> list[str]:
            return [times(names[a], view.strides[a]) for a in loops if view.strides[a]]

        def place(view: View, position: str) -> str:
            return " + ".join([*line(view), times(position, view.strides[axis])])

        def within(position: str) -> str:
            return times(position, own.strides[axis])

        shape = "x".join(map(str, x.shape))
        extreme = "largest" if node.attrs["largest"] else "smallest"
        body = render(
            "kernels/top_k.c.j2",
            title=f"The {k} {extreme} along axis {axis} of {shape} {dtype.value}, and where they "
            "stood.",
            ctype=dtype.c,
            is_float=dtype.is_float,
            largest=bool(node.attrs["largest"]),
            loops=[
                {
                    "name": names[a],
                    "first": "r0" if i == 0 else 0,
                    "last": "r1" if i == 0 else x.shape[a],
                }
                for i, a in enumerate(loops)
            ],
            k=k,
            n=n,
            line="".join(f" + {part}" for part in line(own)),
            at_a=within("a"),
            at_b=within("b"),
            at_top=within("heap[0]"),
            at_value=place(views[values], "i"),
            at_index=place(views[indices], "i"),
        )
        args = (
            operand("x", x),
            Arg("heap", "int32_t *", scratch_bytes=4 * k),
            Arg("values", f"{dtype.c} *", value=values, is_output=True),
            Arg("indices", "int64_t *", value=indices, is_output=True),
        )
        return Kernel(f"top_k_{dtype.value}", body, args, x.shape[loops[0]] if loops else 1)
