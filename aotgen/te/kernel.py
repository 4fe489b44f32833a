"""From a nest to a ``Kernel``: pointer arguments, packed constants, the function around the loops,
for C and OpenCL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType
from aotgen.schedule.base import Arg, Kernel, PackedConst, View, dense_strides
from aotgen.target.target import Target
from aotgen.te.c_printer import CPrinter
from aotgen.te.cl_printer import ClLowering, ClPrinter
from aotgen.te.compute import Tensor
from aotgen.te.emit import Block, render_block
from aotgen.te.expr import Buffer, Expr, FromIndex, Load, Row, RowLoad
from aotgen.te.index import Index, flatten
from aotgen.te.lower import UNROLL, Lowering, Options
from aotgen.te.simplify import Rewriter, walk
from aotgen.te.stage import Nest, build, output_axes

LINE = 64
"""Bytes of a cache line, and no fewer elements than any vector has."""


@dataclass(frozen=True, eq=False)
class Output:
    """One output of a nest kernel: what to compute, and the view to write it to."""

    tensor: Tensor
    value: Value | None
    view: View


@dataclass(frozen=True, eq=False)
class Request:
    """What ``nest_kernel`` makes a kernel of.

    Attributes:
        name: base of the C name.
        purpose: the comment's first line.
        outputs: one, or the several of a split.
        views: of the activations that are read, by value.
        inplace: the activation that the output overwrites.
    """

    name: str
    purpose: str
    outputs: tuple[Output, ...]
    views: dict[Value, View]
    inplace: Value | None = None


def packed_array(array: Array, perm: tuple[int, ...]) -> Array:
    """A constant with its axes in the order ``perm``, flat; truth values as bytes."""
    moved = np.ascontiguousarray(np.transpose(array, perm)).reshape(-1)
    return moved.astype(np.uint8) if moved.dtype == np.bool_ else moved


def nest_kernel(request: Request, target: Target) -> Kernel:
    """The kernel of one or more outputs."""
    strides = _Strides(request.views)
    nests = [build(o.tensor, o.view.strides, strides.of(o.tensor)) for o in request.outputs]
    if target.device == "gpu":
        nests = [recompute_rows(nest) for nest in nests]
    buffers = _buffers(nests)
    names = _names(buffers, request.inplace)
    inputs: list[Arg] = []
    for buffer in buffers:
        if buffer.value is not None and buffer.value is request.inplace:
            continue
        inputs.append(_argument(buffer, names[buffer], nests))
    scratch = _scratch(nests)
    several = len(request.outputs) > 1
    outputs = [
        Arg(f"y{k}" if several else "y", f"{o.tensor.dtype.c} *", value=o.value, is_output=True)
        for k, o in enumerate(request.outputs)
    ]
    args = (*inputs, *scratch, *outputs)
    if target.device == "gpu":
        return _cl_kernel(request, nests[0], names, args)
    return _c_kernel(request, nests, names, args, target)


class _Strides:
    """Strides of the buffers that a tensor reads; constants are left to the nest."""

    def __init__(self, views: dict[Value, View]) -> None:
        self._views = views

    def of(self, tensor: Tensor) -> dict[Buffer, tuple[int, ...]]:
        _, indices = output_axes(tensor)
        found: dict[Buffer, tuple[int, ...]] = {}
        for node in walk(tensor(*indices)):
            if isinstance(node, Load) and node.buffer.value is not None:
                view = self._views.get(node.buffer.value)
                if view is not None:
                    found[node.buffer] = view.strides
        return found


def _buffers(nests: Sequence[Nest]) -> list[Buffer]:
    """The buffers that nests read, those in store offsets included, in order."""
    found: dict[Buffer, None] = {}
    for nest in nests:
        for expr in (*(s.expr for s in nest.stages), FromIndex(nest.store, DType.I32)):
            for node in walk(expr):
                if isinstance(node, Load):
                    found.setdefault(node.buffer)
    return list(found)


def scatter_kernel(request: Request, target: Target) -> Kernel:
    """A copy of the data, then the updates over it, in order; one thread does both."""
    output = request.outputs[0]
    tensor, view = output.tensor, output.view
    scatter = tensor.scatter
    assert scatter is not None
    base = Tensor(tensor.shape, tensor.dtype, tensor.fn)
    strides = _Strides(request.views)
    memory = Buffer("y", tensor.shape, tensor.dtype, output.value, written=True)

    def element(*i: Index) -> Expr:
        new = scatter.updates(*i)
        if scatter.combine is None:
            return new
        return scatter.combine(Load(memory, scatter.where(*i)), new)

    def place(*i: Index) -> Index:
        return flatten(scatter.where(*i), view.strides)

    updates = Tensor(scatter.updates.shape, tensor.dtype, element)
    _, indices = output_axes(updates)
    found = {memory: view.strides, **strides.of(updates)}
    for node in walk(FromIndex(place(*indices), DType.I32)):
        if isinstance(node, Load) and node.buffer not in found:
            known = request.views.get(node.buffer.value) if node.buffer.value else None
            found[node.buffer] = known.strides if known else dense_strides(node.buffer.shape)
    nests = [
        build(base, view.strides, strides.of(base)),
        build(updates, view.strides, found, place),
    ]
    buffers = [b for b in _buffers(nests) if b is not memory]
    names = {**_names(buffers, None), memory: "y"}
    args = (
        *(_argument(b, names[b], nests) for b in buffers),
        Arg("y", f"{tensor.dtype.c} *", value=output.value, is_output=True),
    )
    return _c_kernel(request, nests, names, args, target)


def _names(buffers: Sequence[Buffer], inplace: Value | None) -> dict[Buffer, str]:
    """C names: x0, x1 for activations (x alone), p0, p1 for constants."""
    activations = [
        b for b in buffers if b.const is None and (b.value is None or b.value is not inplace)
    ]
    constants = [b for b in buffers if b.const is not None]
    names = {b: f"x{k}" if len(activations) > 1 else "x" for k, b in enumerate(activations)}
    names.update({b: f"p{k}" if len(constants) > 1 else "p" for k, b in enumerate(constants)})
    names.update({b: "y" for b in buffers if b not in names})
    return names


def _argument(buffer: Buffer, name: str, nests: Sequence[Nest]) -> Arg:
    ctype = f"const {buffer.dtype.c} *"
    if buffer.const is None:
        return Arg(name, ctype, value=buffer.value)
    dense = tuple(range(len(buffer.shape)))
    perm = next((n.layouts[buffer] for n in nests if buffer in n.layouts), dense)
    packed = PackedConst(name, packed_array(buffer.const, perm), buffer.value)
    return Arg(name, ctype, const=packed)


def _scratch(nests: Sequence[Nest]) -> list[Arg]:
    args: list[Arg] = []
    for nest in nests:
        for stage in nest.stages:
            if stage.row is not None and stage.row != nest.row_in_output:
                size = math.prod(a.extent for a in stage.axes) * stage.expr.dtype.size
                args.append(Arg(f"row{len(args)}", f"{stage.expr.dtype.c} *", scratch_bytes=size))
    return args


def _c_kernel(
    request: Request,
    nests: Sequence[Nest],
    names: dict[Buffer, str],
    args: tuple[Arg, ...],
    target: Target,
) -> Kernel:
    printer = CPrinter(saturates=target.isa == "dsp")
    scratch = iter([a.name for a in args if a.scratch_bytes])
    outputs = [a.name for a in args if a.is_output]
    outputs = outputs * (len(nests) // len(outputs))
    blocks: list[Block] = []
    several = len(nests) > 1
    for nest, output in zip(nests, outputs, strict=True):
        flash = target.optimize == "flash"
        options = Options(target.vl, not flash, several, 1 if flash else UNROLL)
        own = [
            next(scratch) for s in nest.stages if s.row is not None and s.row != nest.row_in_output
        ]
        lowering = Lowering(nest, options, printer, names, output, own)
        blocks.append(lowering.emit())
    rows = 1 if several else nests[0].rows
    # Where rows are elements, threads cut between whole cache lines, and no vector is cut in two.
    grain = LINE if rows > 1 and lowering.rows_are_elements else 1
    body: Block = list(blocks[0])
    if several:
        body = [part for block in blocks for part in ("{", block, "}")]
    if not _mentions(render_block(body), "r0"):
        body = ["(void)r0;", "(void)r1;", *body]
    parameters = [f"{a.ctype}restrict {a.name}" for a in args] + ["int32_t r0", "int32_t r1"]
    comment = f"/* {request.purpose} */"
    function: Block = [comment, f"static void @KERNEL@({', '.join(parameters)}) {{", body, "}"]
    return Kernel(
        request.name,
        render_block(function) + "\n",
        args,
        rows,
        math=frozenset(printer.math),
        grain=grain,
    )


def _mentions(text: str, word: str) -> bool:
    return any(word in part for part in text.replace("(", " ").replace(";", " ").split())


def recompute_rows(nest: Nest) -> Nest:
    """The same nest without rows in scratch memory: work items have none, so that readers compute
    the values again.
    """
    table: dict[Row, Row] = {}

    def inline(node: Expr) -> Expr:
        if isinstance(node, RowLoad) and node.row in table:
            row = table[node.row]
            return Rewriter(dict(zip(row.axes, node.indices, strict=True)))(row.body)
        return node

    stages = []
    for stage in nest.stages:
        rewritten = replace(stage, expr=Rewriter(leaf=inline)(stage.expr))
        if stage.row is not None and stage.row != nest.row_in_output:
            table[stage.row] = Row(stage.row.axes, rewritten.expr)
            continue
        stages.append(rewritten)
    return replace(nest, stages=tuple(stages))


def _cl_kernel(
    request: Request, nest: Nest, names: dict[Buffer, str], args: tuple[Arg, ...]
) -> Kernel:
    printer = ClPrinter()
    lowering = ClLowering(nest, Options(1, False), printer, names)
    block, size = lowering.emit_items()
    parameters = []
    for arg in args:
        ctype = ("const " if not arg.is_output else "") + printer.ctype_of(arg.ctype)
        parameters += [f"__global {ctype} *{arg.name}_base", f"int {arg.name}_off"]
    setup: Block = []
    for arg in args:
        ctype = ("const " if not arg.is_output else "") + printer.ctype_of(arg.ctype)
        setup.append(f"__global {ctype} *{arg.name} = {arg.name}_base + {arg.name}_off;")
    text = render_block(block)
    head: list[str | Block] = [f"/* {request.purpose} */"]
    if "double" in text or any("double" in p for p in parameters):
        head.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
    function: Block = [
        *head,
        f"__kernel void @KERNEL@({', '.join(parameters)}) {{",
        [*setup, *block],
        "}",
    ]
    return Kernel(
        request.name,
        render_block(function) + "\n",
        args,
        1,
        math=frozenset(printer.math),
        global_size=size,
    )
