"""The te nest as a template: every Group whose ops have compute definitions, on any views, for C
and OpenCL.

It is the only template of element-wise chains, reductions, softmax, norms and data movement, and
the fallback for anchors that no other template takes. Layout copies and border fills are nests too.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotgen.errors import InternalError
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Alias, Config, Kernel, Knob, Template, Views, dense_strides
from aotgen.schedule.opaque.copy import border_fill, copy_nest, scan_kernel
from aotgen.target.target import Target
from aotgen.te.compute import Tensor, placeholder
from aotgen.te.deep import deep
from aotgen.te.definition import definition
from aotgen.te.expr import Buffer, Load
from aotgen.te.index import Index, of_atom
from aotgen.te.kernel import Output, Request, nest_kernel, scatter_kernel
from aotgen.te.simplify import Rewriter, walk
from aotgen.te.stage import Nest, Stage, build, output_axes

SEQUENTIAL = frozenset(["cumsum", "cumprod", "scatter_nd", "scatter_elements"])
"""Ops whose elements depend on the order in which they are written."""

BYTES_PER_SECOND = 8e9
"""What one core moves to and from memory, for the cost model; only ratios matter."""


class NestTemplate(Template):
    """Loops written by te for a whole Group."""

    name = "te_nest"

    def applies(self, group: Group, target: Target) -> str | None:
        for node in group.nodes:
            if op_def(node.op).compute is None:
                on_gpu = f"{node.op} runs on a CPU only: compile for the CPU"
                no_rule = f"op {node.op} has no compute definition"
                return on_gpu if target.device == "gpu" else no_rule
            halves = any(v.dtype is DType.F16 for v in (*node.args, *node.outputs))
            if halves and node.op not in ("cast", "identity"):
                return "fp16 arithmetic is not supported; the pass legalize_f16 removes it"
            if any(0 in v.shape for v in (*node.args, *node.outputs)):
                return "a tensor has no elements"
            if node.op in SEQUENTIAL and len(group.nodes) > 1:
                return f"{node.op} is a Group of its own"
            if node.op.startswith("scatter") and target.device == "gpu":
                return "updates are written one after the other, which an OpenCL kernel does not do"
        if len(group.outputs) > 1 and target.device == "gpu":
            return "an OpenCL kernel has one output"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return ()

    def default(self, group: Group, target: Target) -> Config:
        return Config()

    @deep
    def may_alias(self, group: Group, value: Value) -> Alias:
        output = group.output
        same = value.shape == output.shape and value.dtype is output.dtype
        if not same or len(group.outputs) > 1 or group.nodes[-1].op in SEQUENTIAL:
            return "none"
        tensors = group_tensors(group)
        strides = {b: dense_strides(b.shape) for b in _activations(tensors[0])}
        nest = build(tensors[0], dense_strides(output.shape), strides)
        return "same_index" if _safe_in_place(nest, value) else "none"

    def cost(self, group: Group, target: Target, config: Config) -> float:
        """Memory traffic, or arithmetic at a tenth of the vector peak, whichever is longer."""
        moved = sum(v.type.nbytes for v in (*group.inputs, *group.outputs))
        work = sum((op_def(n.op).macs or _elements)(n) for n in group.nodes)
        return max(moved / BYTES_PER_SECOND, work / (2e8 * target.vl))

    @deep
    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        tensors = group_tensors(group, scratch=target.device != "gpu")
        name, purpose = _name(group), _purpose(group)
        inplace = next((v for v in group.activations if v.name == views.inplace), None)
        if tensors[0].scan is not None:
            source = group.nodes[0].input(0)
            if source.is_const:
                raise InternalError("a running sum of a constant should have been folded")
            return scan_kernel(
                tensors[0].scan, source, group.output, views[source], views[group.output], target
            )
        outputs = tuple(Output(t, v, views[v]) for t, v in zip(tensors, group.outputs, strict=True))
        request = Request(name, purpose, outputs, {v: views[v] for v in group.activations}, inplace)
        if tensors[0].scatter is not None:
            return scatter_kernel(request, target)
        return nest_kernel(request, target)


def group_tensors(group: Group, *, scratch: bool = True) -> tuple[Tensor, ...]:
    """The Group's outputs as functions of its inputs: every definition applied to its producers'
    tensors; ``scratch``: whether rows can be kept in scratch memory.
    """
    known: dict[Value, Tensor] = {v: placeholder(v) for v in group.inputs}
    for node in group.nodes:
        operands = [None if v is None else known[v] for v in node.inputs]
        made = definition(node, operands, scratch=scratch)
        known.update(zip(node.outputs, made, strict=True))
    return tuple(known[v] for v in group.outputs)


def _elements(node: Node) -> int:
    return node.output.type.numel


def _activations(tensor: Tensor) -> list[Buffer]:
    _, indices = output_axes(tensor)
    found: dict[Buffer, None] = {}
    for node in walk(tensor(*indices)):
        if isinstance(node, Load) and node.buffer.const is None:
            found.setdefault(node.buffer)
    return list(found)


def _safe_in_place(nest: Nest, value: Value) -> bool:
    """Whether no element of ``value`` is read after the output's element at the same place was
    written.

    The nest was built with dense strides, so that equal flat indices are equal places.
    """
    written = False
    for stage in nest.stages:
        place = _target(nest, stage)
        loads = [
            node.indices[0]
            for node in walk(stage.expr, rows=False)
            if isinstance(node, Load) and node.buffer.value is value
        ]
        if loads and written:
            return False
        if place is not None:
            written = True
            if any(index != place for index in loads):
                return False
        elif not all(_same_iteration(nest, stage, index) for index in loads):
            return False
    return True


def _target(nest: Nest, stage: Stage) -> Index | None:
    """Where in the output a stage writes: None when it does not."""
    if stage.kind == "output":
        return nest.store
    if stage.row is None or stage.row != nest.row_in_output:
        return None
    place = nest.store
    own = nest.stages[-1].axes
    table = {a: of_atom(b) for a, b in zip(own, stage.row.axes, strict=True)}
    return Rewriter(table).index(place)


def _same_iteration(nest: Nest, stage: Stage, index: Index) -> bool:
    """Whether a load touches only what its own outer iteration writes."""
    for axis in nest.outer:
        if index.coefficient(axis) != nest.store.coefficient(axis):
            return False
    same = _extents(index, nest.outer) == _extents(nest.store, nest.outer)
    return same and index.const == nest.store.const


def _extents(index: Index, outer: Sequence[object]) -> list[tuple[int, int]]:
    """(stride, extent) of every axis that is not an outer one; contiguous ones joined."""
    found = sorted(
        ((c, getattr(a, "extent", -1)) for a, c in index.terms if a not in outer), reverse=True
    )
    joined: list[tuple[int, int]] = []
    for stride, extent in found:
        if joined and joined[-1][0] == stride * extent:
            joined[-1] = (stride, joined[-1][1] * extent)
        else:
            joined.append((stride, extent))
    return joined


def _name(group: Group) -> str:
    ops = [n.op for n in group.nodes]
    shown = ops if len(ops) <= 3 else [ops[0], ops[1], "etc", ops[-1]]
    return f"{'_'.join(shown)}_{group.output.dtype.value}"


def _purpose(group: Group) -> str:
    ops = " + ".join(n.op for n in group.nodes)
    shape = "x".join(str(n) for n in group.output.shape) or "scalar"
    return f"{ops}: writes {shape} {group.output.dtype.value}."


__all__ = ["NestTemplate", "border_fill", "copy_nest", "group_tensors"]
