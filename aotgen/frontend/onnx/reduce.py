"""Reductions. Their axes moved from an attribute to an input: ReduceSum in opset 13, the others in
18.
"""

from __future__ import annotations

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value

_REDUCTIONS = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceL1": "reduce_l1",
    "ReduceL2": "reduce_l2",
    "ReduceSumSquare": "reduce_sum_square",
    "ReduceLogSumExp": "reduce_log_sum_exp",
    "ReduceLogSum": "reduce_sum",
}


@converts(*_REDUCTIONS)
def reduction(n: OnnxNode) -> Value:
    x = n.x()
    rank = len(x.shape)
    given = n.ints_input_or_attr("axes", 1, 13 if n.op == "ReduceSum" else 18)
    if not given and n.get_int("noop_with_empty_axes", 0):
        y = _no_axes(n, x)
    else:
        axes = range(rank) if not given else (n.normalise_axis(a, rank) for a in given)
        y = n.emit(
            _REDUCTIONS[n.op],
            [x],
            axes=tuple(sorted(set(axes))),
            keepdims=bool(n.get_int("keepdims", 1)),
        )
    return n.emit("log", [y]) if n.op == "ReduceLogSum" else y


def _no_axes(n: OnnxNode, x: Value) -> Value:
    """Each element is its own reduction (noop_with_empty_axes)."""
    if n.op in ("ReduceL1", "ReduceL2"):
        return n.emit("abs", [x])
    return n.emit("mul", [x, x]) if n.op == "ReduceSumSquare" else x


@converts("ArgMax", "ArgMin")
def arg_reduction(n: OnnxNode) -> Value:
    x = n.x()
    return n.emit(
        n.op.lower(),
        [x],
        axis=n.axis("axis", 0, len(x.shape)),
        keepdims=bool(n.get_int("keepdims", 1)),
        select_last=bool(n.get_int("select_last_index", 0)),
    )
