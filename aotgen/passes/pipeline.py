"""The passes in order, and the loop that runs them (frontend -> passes -> Groups -> plan).

The first passes feed one another, so they are repeated until none of them changes anything; then
the nodes are partitioned into groups and the groups put in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from aotgen.errors import UsageError
from aotgen.ir.graph import Graph
from aotgen.ir.printer import print_graph
from aotgen.ir.verifier import verify as verify_graph
from aotgen.options import Optimize
from aotgen.passes.base import Pass
from aotgen.passes.canonicalize_cast import CanonicalizeCast
from aotgen.passes.canonicalize_ops import CanonicalizeOps
from aotgen.passes.combine_parallel_batch_matmul import CombineParallelBatchMatmul
from aotgen.passes.combine_parallel_conv2d import CombineParallelConv2d
from aotgen.passes.combine_parallel_dense import CombineParallelDense
from aotgen.passes.constant_channels import FLASH_MULTIPLE, ConstantChannels
from aotgen.passes.dead_code import DeadCode
from aotgen.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from aotgen.passes.fast_math import FastMath
from aotgen.passes.fold_constant import FoldConstant
from aotgen.passes.fold_scale_axis import FoldScaleAxis
from aotgen.passes.fuse_ops import FuseOps, single_groups
from aotgen.passes.legalize_f16 import LegalizeF16
from aotgen.passes.order_groups import OrderGroups
from aotgen.passes.quantize_canonicalize import QuantizeCanonicalize
from aotgen.passes.simplify_inference import SimplifyInference
from aotgen.passes.sink_transposes import SinkTransposes
from aotgen.passes.unwrap_dilation import UnwrapDilation

SIMPLIFICATIONS: tuple[Pass, ...] = (
    UnwrapDilation(),
    LegalizeF16(),
    SimplifyInference(),
    SinkTransposes(),
    QuantizeCanonicalize(),
    FoldConstant(),
    CanonicalizeCast(),
    CanonicalizeOps(),
    FoldScaleAxis(),
    EliminateCommonSubexpr(),
    DeadCode(),
)
"""Repeated until nothing changes."""

PASSES: tuple[Pass, ...] = (
    *SIMPLIFICATIONS,
    ConstantChannels(),
    CombineParallelConv2d(),
    CombineParallelDense(),
    CombineParallelBatchMatmul(),
    FastMath(),
    FuseOps(),
    OrderGroups(),
)
"""All passes, in the order in which they run."""

FLASH_PASSES: dict[str, Pass] = {ConstantChannels.name: ConstantChannels(FLASH_MULTIPLE)}
"""Those that ``--optimize flash`` has in place of the ones of the same name."""

PLAN_STEPS: dict[str, int] = {"fuse_rows": 3, "alter_op_layout": 3}
"""Steps with an opt level that belong to plan, since they look at time: ``disabled`` takes their
names, too.
"""

MAX_ROUNDS = 10
"""Each round only sees what the one before uncovered; two or three are usual."""

Observer = Callable[[str, str, str], None]
"""Called with a pass's name and the printed graph before and after it, whenever the pass changed
the graph."""


def pass_names() -> list[str]:
    """The names that ``disabled`` takes, in the order in which the passes run."""
    return [*(p.name for p in PASSES), *PLAN_STEPS]


def runs_plan_step(name: str, opt_level: int, disabled: Collection[str]) -> bool:
    """Whether plan takes a step of ``PLAN_STEPS``."""
    return PLAN_STEPS[name] <= opt_level and name not in disabled


def run_passes(
    graph: Graph,
    *,
    opt_level: int = 3,
    disabled: Collection[str] = (),
    optimize: Optimize = "speed",
    on_pass: Observer | None = None,
    verify: bool = False,
) -> Graph:
    """Rewrite ``graph`` in place and partition it into groups; returns it.

    Args:
        opt_level: 0 to 4; a pass runs at its own level and above.
        disabled: names of passes to leave out.
        optimize: what to prefer where passes have a choice.
        on_pass: sees the graph before and after each pass that changed it (``--show-passes``).
        verify: check the IR's invariants after each pass.

    Raises:
        UsageError: a name in ``disabled`` is no pass.
        InternalError: ``verify`` found a broken invariant.
    """
    enabled = _enabled(opt_level, disabled)
    simplify(graph, opt_level=opt_level, disabled=disabled, on_pass=on_pass, verify=verify)
    for step in enabled:
        if step not in SIMPLIFICATIONS:
            chosen = FLASH_PASSES.get(step.name, step) if optimize == "flash" else step
            _run(chosen, graph, on_pass, verify)
    if graph.groups is None:
        single_groups(graph)
    return graph


def simplify(
    graph: Graph,
    *,
    opt_level: int = 3,
    disabled: Collection[str] = (),
    on_pass: Observer | None = None,
    verify: bool = False,
) -> None:
    """The passes of ``run_passes`` before the nodes are partitioned; arguments are the same."""
    repeated = [p for p in _enabled(opt_level, disabled) if p in SIMPLIFICATIONS]
    for _ in range(MAX_ROUNDS):
        if not any([_run(step, graph, on_pass, verify) for step in repeated]):
            break


def _enabled(opt_level: int, disabled: Collection[str]) -> list[Pass]:
    unknown = sorted(set(disabled) - set(pass_names()))
    if unknown:
        raise UsageError(
            f"there is no pass {', '.join(repr(n) for n in unknown)}",
            remedy=f"the passes are {', '.join(pass_names())}",
        )
    return [p for p in PASSES if p.level <= opt_level and p.name not in disabled]


def _run(step: Pass, graph: Graph, on_pass: Observer | None, verify: bool) -> bool:
    before = print_graph(graph) if on_pass else ""
    # Infinities and NaN in a model's constants are the model's affair, not numpy's to warn of.
    with np.errstate(all="ignore"):
        modified = step.run(graph)
    if verify:
        verify_graph(graph)
    if modified and on_pass:
        on_pass(step.name, before, print_graph(graph))
    return modified
