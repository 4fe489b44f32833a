"""How each op computes the new rows of its output from the new rows of its inputs.

A rule gives the step's values and their tracks, or None where a row of the output depends on more
than a fixed number of rows: then ``convert.py`` keeps the whole window. All axes are the original
node's.
"""

from __future__ import annotations

from aotgen.ops.registry import OpPattern, op_def
from aotgen.streaming import row_rules, time_rules
from aotgen.streaming.context import Context, Results, Rule


def apply(context: Context) -> Results:
    """The rule of the node's op.

    Raises:
        StrideError: the step's new rows are no whole number behind a stride.
    """
    op = context.node.op
    rule = RULES.get(op)
    if rule is None and op_def(op).pattern in (OpPattern.ELEMENTWISE, OpPattern.BROADCAST):
        rule = row_rules.broadcast
    return rule(context) if rule is not None else None


RULES: dict[str, Rule] = {
    "transpose": row_rules.transpose,
    "reshape": time_rules.reshape,
    "concat": row_rules.concat,
    "slice": time_rules.slice_,
    "split": time_rules.split,
    "pad": time_rules.pad,
    **dict.fromkeys(("conv", "qconv", "max_pool", "avg_pool", "qavg_pool"), time_rules.window),
    **dict.fromkeys(("matmul", "qmatmul"), row_rules.matmul),
    **dict.fromkeys(
        (
            *("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_l1"),
            *("reduce_l2", "reduce_sum_square", "reduce_log_sum_exp"),
            *("qreduce_sum", "qreduce_prod"),
        ),
        row_rules.reduce,
    ),
    **dict.fromkeys(("argmax", "argmin"), row_rules.arg),
    **dict.fromkeys(("softmax", "log_softmax", "lp_norm"), row_rules.along_axis),
    **dict.fromkeys(("layer_norm", "rms_norm"), row_rules.from_axis),
    **dict.fromkeys(
        ("qsoftmax", "qlog_softmax", "qsoftmax_i16", "ql2_norm", "lrn"), row_rules.last_axis
    ),
    "gather": row_rules.gather,
    **dict.fromkeys(("lstm", "gru", "rnn"), time_rules.recurrent),
}
"""Of ops that are neither element-wise nor windows of the whole time."""
