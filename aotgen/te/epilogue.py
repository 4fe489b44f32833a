"""Epilogues of anchor templates: the nodes behind a conv, matmul or pool as C functions of the
register tile.

``epilogue`` prints the element-wise part as an inline function of one vector; ``row_epilogue``
prints a softmax or norm over the last axis, and what follows it, as a function that works in place
on finished rows. Both print the same compute definitions that nests are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from aotgen.errors import InternalError
from aotgen.ir.graph import Group, Value
from aotgen.ir.types import DType
from aotgen.ops.norm import ROW_OPS
from aotgen.schedule.base import Arg, PackedConst, View
from aotgen.target.target import Target
from aotgen.te.c_printer import CPrinter
from aotgen.te.compute import Tensor, compute, memory, placeholder
from aotgen.te.deep import deep
from aotgen.te.definition import definition
from aotgen.te.emit import Emitter, Lanes, bare, render_block
from aotgen.te.expr import Buffer, Expr, Param, const
from aotgen.te.index import Axis, Index
from aotgen.te.lower import Lowering, Options
from aotgen.te.stage import build


@dataclass(frozen=True)
class EpilogueInput:
    """A further argument of an epilogue function.

    Attributes:
        value: the tensor it comes from.
        kind: "pixel": same shape as the output; "channel": one number a channel (the last axis);
            "scalar": one number of an activation, to load once and broadcast. Scalar constants are
            printed as literals and are not listed.
        name: of the C parameter.
    """

    value: Value
    kind: Literal["pixel", "channel", "scalar"]
    name: str


@dataclass(frozen=True)
class Epilogue:
    """The element-wise part behind an anchor.

    Attributes:
        function: C text of ``AOT_INLINE vf @KERNEL@_epilogue(vf x, vf <name>...)``; empty when
            ``is_identity``. inputs: parallel to the parameters after x. math: functions of
            simd/math that it calls. is_identity: there is nothing to do, and no function.
    """

    function: str
    inputs: tuple[EpilogueInput, ...]
    math: frozenset[str]
    is_identity: bool


@dataclass(frozen=True)
class RowEpilogue:
    """A softmax or norm over finished rows, in place.

    Attributes:
        function: C text of ``static void @KERNEL@_rows(float *restrict y, <args>..., int32_t r0,
            int32_t r1)``; y points at row 0 of the matrix (of its batch entry); rows are those of
            the view's last but one axis, or of all leading axes together where they are contiguous.
        args: what is passed between y and r0, in order.
        math: functions of simd/math that it calls.
        origin: names of the nodes it computes.
    """

    function: str
    args: tuple[Arg, ...]
    math: frozenset[str]
    origin: tuple[str, ...]


def row_stage(group: Group) -> int | None:
    """Position in ``group.epilogue`` of the first node that works on rows, None without one."""
    for position, node in enumerate(group.epilogue):
        if node.op in ROW_OPS:
            return position
    return None


@deep
def epilogue(group: Group, target: Target) -> Epilogue:
    """The nodes behind the anchor, up to a row stage, as one function of a vector of results.

    Raises:
        InternalError: a node there is not element-wise or an operand does not broadcast to the
        output.
    """
    anchor = group.anchor
    if anchor is None:
        raise InternalError("a Group without an anchor has no epilogue")
    nodes = group.epilogue[: row_stage(group)]
    lane = Axis("lane", max(target.vl, 2))
    varies = frozenset((lane,))
    x = Param("x", DType.F32, varies)
    known: dict[int, Tensor] = {id(anchor.output): _anywhere(anchor.output, x)}
    inputs: list[EpilogueInput] = []
    for node in nodes:
        operands = [
            None if v is None else _operand(v, known, inputs, anchor.output, varies)
            for v in node.inputs
        ]
        known[id(node.output)] = definition(node, operands)[0]
    last = nodes[-1].output if nodes else anchor.output
    result = known[id(last)](*(Index((), 0) for _ in last.shape))
    if result == x:
        return Epilogue("", (), frozenset(), True)
    printer = CPrinter()
    emitter = Emitter(printer, {})
    emitter.vl = target.vl
    emitter.count_uses(result)
    emitter.open("", (lane,))
    emitter.lanes = Lanes(lane)
    text = emitter.vector(result)
    emitter.line(f"return {bare(text)};")
    body = emitter.scopes[-1].block[1:]
    parameters = ", ".join(["vf x", *(f"vf {i.name}" for i in inputs)])
    function = render_block([f"AOT_INLINE vf @KERNEL@_epilogue({parameters}) {{", body, "}"])
    return Epilogue(function + "\n", tuple(inputs), frozenset(printer.math), False)


def _anywhere(value: Value, expr: Expr) -> Tensor:
    """A tensor that is ``expr`` at every index."""
    return compute(value.shape, value.dtype, lambda *_: expr)


def _operand(
    value: Value,
    known: dict[int, Tensor],
    inputs: list[EpilogueInput],
    output: Value,
    varies: frozenset[Axis],
) -> Tensor:
    if id(value) not in known:
        if value.const is not None and value.const.size == 1:
            literal = const(value.const.reshape(-1)[0].item(), value.dtype)
            known[id(value)] = _anywhere(value, literal)
        else:
            kind = operand_kind(value.shape, output.shape)
            if kind is None:
                raise InternalError(f"epilogue operand {value.name!r} does not fit the output")
            name = f"{kind[0]}{len(inputs)}"
            inputs.append(EpilogueInput(value, kind, name))
            known[id(value)] = _anywhere(value, Param(name, value.dtype, varies))
    return known[id(value)]


def operand_kind(
    shape: tuple[int, ...], output: tuple[int, ...]
) -> Literal["pixel", "channel", "scalar"] | None:
    """How an operand of ``shape`` meets an output: None when no epilogue can take it."""
    if int(np.prod(shape)) == 1:
        return "scalar"
    if shape == output:
        return "pixel"
    if len(shape) <= len(output) and shape[-1] == output[-1] and int(np.prod(shape)) == shape[-1]:
        return "channel"
    return None


@deep
def row_epilogue(group: Group, target: Target, view: View) -> RowEpilogue | None:
    """The row stage of a Group and the nodes behind it, on an output of ``view``; None when there
    is no row stage.
    """
    at = row_stage(group)
    if at is None:
        return None
    nodes = group.epilogue[at:]
    first = group.epilogue[at - 1].output if at else group.anchor.output  # type: ignore[union-attr]
    shape, strides = _row_view(first.shape, view)
    rows = memory("y", shape, first.dtype)
    assert rows.buffer is not None
    pointers: dict[Buffer, str] = {rows.buffer: "y"}
    args: list[Arg] = []
    known: dict[int, Tensor] = {id(first): _reshaped(rows, first.shape)}
    all_strides: dict[Buffer, tuple[int, ...]] = {rows.buffer: strides}
    for node in nodes:
        operands: list[Tensor | None] = []
        for value in node.inputs:
            if value is not None and id(value) not in known:
                tensor = placeholder(value)
                known[id(value)] = tensor
                if tensor.buffer is not None:
                    if value.const is None or operand_kind(value.shape, first.shape) != "channel":
                        raise InternalError(
                            f"row epilogue operand {value.name!r} is no constant per channel"
                        )
                    name = f"p{len(args)}"
                    pointers[tensor.buffer] = name
                    all_strides[tensor.buffer] = View.dense(value.shape, value.dtype).strides
                    packed = PackedConst(name, np.ascontiguousarray(value.const).reshape(-1), value)
                    args.append(Arg(name, "const float *", const=packed))
            operands.append(None if value is None else known[id(value)])
        known[id(node.output)] = definition(node, operands)[0]
    last = known[id(nodes[-1].output)]
    final = Tensor(shape, last.dtype, _row_reader(last), names=("m", "n"))
    nest = build(final, strides, all_strides)
    printer = CPrinter()
    lowering = Lowering(nest, Options(target.vl), printer, pointers)
    block = lowering.emit()
    parameters = ["float *restrict y", *(f"const float *restrict {a.name}" for a in args)]
    header = f"static void @KERNEL@_rows({', '.join([*parameters, 'int32_t r0', 'int32_t r1'])}) {{"
    text = render_block([header, block, "}"]) + "\n"
    origin = tuple(dict.fromkeys(name for n in nodes for name in n.origin))
    return RowEpilogue(text, tuple(args), frozenset(printer.math), origin)


def _row_view(shape: tuple[int, ...], view: View) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rows, columns) and strides of an output as a matrix.

    Raises:
        InternalError: the rows are not evenly spaced, which ``Need.even_rows`` rules out.
    """
    if not view.has_even_rows:
        raise InternalError("a row epilogue needs an output whose rows are evenly spaced")
    axes = [s for n, s in zip(shape[:-1], view.strides[:-1], strict=True) if n != 1]
    stride = axes[-1] if axes else shape[-1]
    return (int(np.prod(shape[:-1])), shape[-1]), (stride, view.strides[-1])


def _reshaped(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The matrix of rows as the anchor's output; only the last two indices count, rows carry the
    others.
    """
    return Tensor(shape, rows.dtype, lambda *i: rows(i[-2], i[-1]), rows.buffer)


def _row_reader(tensor: Tensor) -> Callable[[Index, Index], Expr]:
    return lambda m, n: tensor(*(Index((), 0) for _ in tensor.shape[:-2]), m, n)
