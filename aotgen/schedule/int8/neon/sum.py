"""Sums and differences of 8-bit tensors of one shape on NEON: sixteen elements at a time.

What a residual connection is made of. In float32, with the coefficients of
``aotgen.ops.float_sum``; the te nest computes the same four elements at a time, and in fixed point
where there are no coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aotgen.codegen import literals
from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.ops.fixed_point import limits
from aotgen.ops.quantized_elementwise import sum_coefficients
from aotgen.schedule.base import Alias, Arg, Config, Kernel, Need, PackedConst, View, Views
from aotgen.schedule.dense.tiles import core_model
from aotgen.schedule.opaque.single_op import SingleOp
from aotgen.schedule.operands import times
from aotgen.target.target import Target

TYPES = {DType.I8: "s8", DType.U8: "u8"}

OPERATIONS = ("qadd", "qsub")

ELEMENTS = 16
"""In a step."""

INSTRUCTIONS = 50
"""Of a step, about."""

_LARGEST = 32767
"""What the kernel makes of larger sums than an int16 holds is wrong."""


class SumTemplate(SingleOp):
    """What templates of ``qadd`` and ``qsub`` of two tensors have in common."""

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if len(group.nodes) > 1 or node.op not in OPERATIONS or len(node.inputs) != 2:
            return "needs a qadd or qsub of two inputs, alone"
        y = node.output
        if y.dtype not in TYPES or any(
            x.is_const or x.dtype is not y.dtype or x.shape != y.shape for x in node.args
        ):
            return "needs 8-bit activations of one type and shape"
        return self.why_not(node)

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {x.name: Need(unit_inner=True) for x in group.nodes[0].args}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def may_alias(self, group: Group, value: Value) -> Alias:
        return "same_index"


class Int8Sum(SumTemplate):
    """``qadd`` and ``qsub`` of two tensors of the output's type and shape."""

    name = "int8_sum"

    def applies(self, group: Group, target: Target) -> str | None:
        if target.device != "cpu" or not target.has_neon:
            return "needs NEON"
        return super().applies(group, target)

    def why_not(self, node: Node) -> str | None:
        found = sum_coefficients(node)
        if found is None:
            return "has no coefficients that make its float32 sums exact"
        first, second, constant = map(abs, found)
        if 255 * (first + second) + constant > _LARGEST:
            return "its sums leave 16 bits"
        return super().why_not(node)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        steps = group.output.type.numel / ELEMENTS
        return steps * INSTRUCTIONS / 2 / core_model(target).ghz * 1e-9

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        coefficients = [literals.f32(v) for v in sum_coefficients(node) or ()]
        words = {"elements": ELEMENTS, "coefficients": coefficients, **_clamp(node)}
        return sum_kernel(group, views, "int8_sum", "neon", words)


def sum_kernel(
    group: Group,
    views: Views,
    template: str,
    method: str,
    words: Mapping[str, Any],
    table: PackedConst | None = None,
) -> Kernel:
    """A kernel that visits all elements in loops around runs of neighbours.

    Args:
        template: name of the template of the kernel.
        method: what the kernel's name ends in.
        words: of its context, beside the loops.
        table: int32 numbers that the kernel reads by the name of ``s`` instead of printing them.
    """
    node, y = group.nodes[0], group.output
    tensors = [*node.args, y]
    loops = _loops([views[t] for t in tensors])
    names = _pointers(node, views)
    *outer, (extent, _) = loops
    text = render(
        f"kernels/{template}.c.j2",
        title=node.op if table else f"{node.op} of {list(y.shape)} {y.dtype.value}",
        params=", ".join(
            [
                *(f"const {y.dtype.c} *restrict {n}" for n in dict.fromkeys(names) if n != "y"),
                *(["const int32_t *restrict s"] if table else []),
                f"{y.dtype.c} *restrict y",
                "int32_t r0",
                "int32_t r1",
            ]
        ),
        ctype=y.dtype.c,
        kind=TYPES[y.dtype],
        **words,
        loops=[
            {
                "name": f"i{n}",
                "first": "r0" if n == 0 else "0",
                "last": "r1" if n == 0 else str(count),
            }
            for n, (count, _) in enumerate(outer)
        ],
        # The places of both inputs and of the output in the loops around a run.
        places=[
            " + ".join([name, *(times(f"i{n}", s[k]) for n, (_, s) in enumerate(outer) if s[k])])
            for k, name in enumerate([*names, "y"])
        ],
        first="0" if outer else "r0",
        last=str(extent) if outer else "r1",
    )
    args = {
        name: Arg(name, f"const {y.dtype.c} *", value=x)
        for name, x in zip(names, node.args, strict=True)
        if name != "y"
    }
    if table:
        args["s"] = Arg("s", "const int32_t *", const=table)
    output = Arg("y", f"{y.dtype.c} *", value=y, is_output=True)
    return Kernel(
        f"{node.op}_{y.dtype.value}_{method}",
        text,
        (*args.values(), output),
        loops[0][0],
        includes=frozenset({"string.h"}),
    )


def _pointers(node: Node, views: Views) -> list[str]:
    """The C names of both inputs: "y" for the one that is overwritten."""
    first = node.input(0)
    names = ["x0", "x0" if node.input(1) is first else "x1"]
    return ["y" if x.name == views.inplace else n for x, n in zip(node.args, names, strict=True)]


def _loops(views: Sequence[View]) -> list[tuple[int, list[int]]]:
    """(extent, strides of each view) of the fewest loops that visit all elements, the last one
    over neighbours in all views.
    """
    axes = [(n, [v.strides[a] for v in views]) for a, n in enumerate(views[0].shape) if n != 1] or [
        (1, [1] * len(views))
    ]
    merged = [axes[0]]
    for n, strides in axes[1:]:
        count, wide = merged[-1]
        if all(w == n * s for w, s in zip(wide, strides, strict=True)):
            merged[-1] = (count * n, strides)
        else:
            merged.append((n, strides))
    if any(s != 1 for s in merged[-1][1]):
        merged.append((1, [1] * len(views)))
    return merged


def _clamp(node: Node) -> dict[str, int | None]:
    """The output's bounds, None where they are its type's own."""
    attrs, (lo, hi) = node.attrs, limits(node.output.dtype)
    return {
        "lo": None if attrs["lo"] <= lo else attrs["lo"],
        "hi": None if attrs["hi"] >= hi else attrs["hi"],
    }
