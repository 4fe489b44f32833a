"""tree_ensemble: the nodes of all trees in one table of structs in flash, walked tree by tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import Array
from aotgen.ops.trees import LEAF, MODES, NAN_IS_TRUE
from aotgen.schedule.base import Arg, Config, Kernel, PackedConst, Views
from aotgen.schedule.opaque.single_op import SingleOp
from aotgen.schedule.operands import operand, operand_view, times
from aotgen.target.target import Target

_TESTS = {"leq": "<=", "lt": "<", "gte": ">=", "gt": ">", "eq": "==", "neq": "!="}

_MODE_BITS = 4
"""Bits of a mode: three for the test and one for missing values."""


class TreeEnsemble(SingleOp):
    """Decision trees over rows of f32 or f64 features."""

    name = "tree_ensemble"

    def why_not(self, node: Node) -> str | None:
        if not all(v.is_const for v in node.args[1:]):
            return "needs constant trees"
        return "a tensor has no elements" if 0 in node.input(0).shape else None

    def cost(self, group: Group, target: Target, config: Config) -> float:
        """A dependent load and a mispredicted branch every other level of each tree."""
        node = group.nodes[0]
        trees = node.input(5).shape[0]
        depth = max(node.input(1).shape[0] // max(trees, 1), 1).bit_length()
        return 8e-9 * trees * depth * node.output.shape[0]

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = node.input(0), node.output
        table = _table(node)
        own, scores = operand_view(x, views), views[y]
        ctype, targets = x.dtype.c, y.shape[1]
        hits = node.outputs[1] if len(node.outputs) > 1 else None
        single = node.optional(6) is None
        roots = _narrow(_const(node.input(5)))
        args = [
            operand("x", x),
            Arg("nodes", "const void *", const=PackedConst("nodes", table.array, node.input(1))),
            _array("roots", roots, node.input(5)),
        ]
        lists: dict[str, Any] = {"start_type": "", "target_type": "", "regular": False}
        if not single:
            lists = _lists(node, targets)
            args += lists.pop("args")
        args.append(Arg("y", f"{ctype} *", value=y, is_output=True))
        if hits is not None:
            args.append(Arg("hits", "uint8_t *", value=hits, is_output=True))
        shape = "x".join(map(str, x.shape))
        body = render(
            "kernels/tree_ensemble.c.j2",
            title=f"{len(roots)} trees of {table.array.size} nodes over {shape} {x.dtype.value}: "
            f"{node.attrs['aggregate']} of their leaves for {targets} targets.",
            ctype=ctype,
            aggregate=node.attrs["aggregate"],
            single=single,
            one=single and targets == 1,
            targets=targets,
            trees=len(roots),
            hits=hits is not None,
            params=", ".join([*(f"{a.ctype}restrict {a.name}" for a in args)])
            + ", int32_t r0, int32_t r1",
            x_row=own.strides[0],
            y_row=scores.strides[0],
            hits_row=views[hits].strides[0] if hits is not None else 0,
            leaf_text=_leaf_text(table.context["leaf"], single, targets),
            at_score=times("k", scores.strides[1]),
            at_seen=times("k", views[hits].strides[1]) if hits is not None else "",
            at_feature=times("node->feature", own.strides[1]),
            at_feature_bits=times(f"(node->feature & {table.mask})", own.strides[1]),
            **table.context,
            **lists,
        )
        return Kernel(f"tree_ensemble_{x.dtype.value}", body, tuple(args), x.shape[0])


@dataclass(frozen=True, eq=False)
class _Table:
    """The node table and how the template reads it."""

    array: Array
    mask: str
    context: dict[str, Any]


def _table(node: Node) -> _Table:
    """Structs {value, skip, feature} with the padding that C gives them.

    When all branches have one test, it is in the code; else the test is in the top bits of the
    feature.
    """
    values, features, skips, modes = (_const(node.input(i)) for i in range(1, 5))
    branch = features != LEAF
    used = sorted({int(m) for m in modes[branch]}) or [0]
    mixed = len(used) > 1
    bits = _MODE_BITS if mixed else 0
    top = int(features.max(initial=0))
    wide = top >= (1 << (16 - bits)) - 1
    feature_type = np.uint32 if wide else np.uint16
    shift = (32 if wide else 16) - bits
    leaf = int(np.iinfo(feature_type).max)
    skip_type = np.uint32 if int(skips.max(initial=0)) > 0xFFFF else np.uint16
    layout = np.dtype(
        [("value", values.dtype), ("skip", skip_type), ("feature", feature_type)], align=True
    )
    array = np.zeros(len(values), layout)
    array["value"], array["skip"] = values, skips
    coded = features.astype(np.int64)
    if mixed:
        numbers = {m: i for i, m in enumerate(used)}
        coded = coded | np.array([numbers.get(int(m), 0) for m in modes], np.int64) << shift
    array["feature"] = np.where(branch, coded, leaf)
    suffix = "u" if wide else ""
    context = {
        "leaf": f"{leaf}{suffix}",
        "skip_type": _ctype(skip_type),
        "feature_type": _ctype(feature_type),
        "step": "1u" if skip_type is np.uint32 else "1",
        "leaf_target": "(int32_t)leaf->skip" if skip_type is np.uint32 else "leaf->skip",
        "mode_bits": bits,
        "mode_shift": shift,
        "modes": [{"number": i, "test": _test(m)} for i, m in enumerate(used)],
        "modes_text": ", ".join(f"{i} {_test(m)}" for i, m in enumerate(used)),
    }
    return _Table(array, f"{(1 << shift) - 1}{suffix}", context)


def _leaf_text(leaf: str, single: bool, targets: int) -> str:
    """What the members of a leaf mean, for the reader of the C."""
    text = f"A leaf, whose feature is {leaf}, "
    if not single:
        return f"{text}has in `skip` its number among the leaves."
    return f"{text}has its score in `value`{', for target `skip`' if targets > 1 else ''}."


def _test(mode: int) -> str:
    """C condition of a branch over feature ``v`` and threshold ``t``."""
    text = f"v {_TESTS[MODES[mode & 7]]} t"
    missing = mode & NAN_IS_TRUE and MODES[mode & 7] != "neq"  # a NaN equals nothing
    return f"({text} || v != v)" if missing else text


def _lists(node: Node, targets: int) -> dict[str, Any]:
    """Arguments and names for leaves of several numbers; regular when each leaf speaks of all."""
    starts, entries = _const(node.input(6)), _const(node.input(7))
    weights = operand("weights", node.input(8))
    leaves = len(starts) - 1
    regular = (
        len(entries) == leaves * targets
        and bool((starts == np.arange(leaves + 1) * targets).all())
        and bool((entries == np.tile(np.arange(targets), leaves)).all())
    )
    args = [weights]
    if not regular:
        args = [
            _array("starts", _narrow(starts), node.input(6)),
            _array("entries", _narrow(entries), node.input(7)),
            weights,
        ]
    return {
        "args": args,
        "regular": regular,
        "start_type": _ctype(_narrow(starts).dtype),
        "target_type": _ctype(_narrow(entries).dtype),
    }


def _const(value: Value) -> Array:
    assert value.const is not None
    return value.const


def _narrow(array: Array) -> Array:
    """Numbers from 0 on in 16 bits where they fit."""
    return array.astype(np.uint32 if int(array.max(initial=0)) > 0xFFFF else np.uint16)


def _array(name: str, array: Array, source: Value) -> Arg:
    return Arg(name, f"const {_ctype(array.dtype)} *", const=PackedConst(name, array, source))


def _ctype(dtype: Any) -> str:
    return f"{np.dtype(dtype).name}_t"
