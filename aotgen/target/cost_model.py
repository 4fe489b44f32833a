"""What an instruction costs in a core: the table ``cost_model`` of a cluster in board.toml.

A throughput model for out-of-order cores, in the manner of llvm-mca and of the ECM model (Treibig
and Hager 2010): each operation takes time of the front end and of one execution unit. A basic block
takes as long as its busiest one, and a part of the others' time that does not overlap with it; each
cache miss adds what of its latency is not hidden. Latencies of dependent operations, branch
prediction and prefetchers are not in it, so it holds for kernels that are scheduled well. An
in-order core is none of these: there, which instructions stand next to each other decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aotgen.errors import UsageError

UNITS: Mapping[str, tuple[str, ...]] = {
    "vector": ("fma", "dot", "vector_mul", "vector_float", "vector", "vector_div", "float"),
    "load": ("vector_load", "load", "prefetch"),
    "store": ("vector_store", "store"),
    "integer": ("alu", "mul", "div", "system"),
    "branch": ("branch",),
}
"""Execution units, and the classes of operations that each executes.

``fma`` is multiplies and multiply-adds of vectors of floats, ``vector_float`` their additions,
comparisons and conversions, ``vector_mul`` products of vectors of integers, ``dot`` dot products,
``float`` arithmetic of single floats; ``vector`` is all else in vector registers. A load or store
is as many operations as it moves registers.
"""

CLASSES = tuple(name for names in UNITS.values() for name in names)


@dataclass(frozen=True)
class CostModel:
    """Weights of one kind of core.

    Attributes:
        issue_width: operations that the front end takes in a cycle.
        overlap: share, 0 to 1, of the shorter units' time that hides behind the longest one's.
        l1_miss: cycles that a miss of the L1 data cache adds, on average.
        l2_miss: cycles that a miss of the L2 cache adds to that.
        cycles: of its unit, that one operation of each of ``CLASSES`` takes.
    """

    issue_width: float
    overlap: float
    l1_miss: float
    l2_miss: float
    cycles: Mapping[str, float] = field(hash=False)


def parse_cost_model(data: Mapping[str, Any], where: str) -> CostModel:
    """The model that a table of board.toml describes.

    Args:
        data: keys are the fields of ``CostModel``.
        where: file and table, for messages.

    Raises:
        UsageError: a key is missing or unknown, or a value is no number that makes sense.
    """
    scalars = ("issue_width", "overlap", "l1_miss", "l2_miss")
    table = data.get("cycles")
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: cycles must be a table of the cycles of each class")
    _check_names(data, (*scalars, "cycles"), where)
    _check_names(table, CLASSES, f"{where}: cycles")
    width, overlap, l1_miss, l2_miss = (_number(data, key, where) for key in scalars)
    if width == 0:
        raise UsageError(f"{where}: issue_width must be more than 0")
    if overlap > 1:
        raise UsageError(f"{where}: overlap must be at most 1")
    cycles = {name: _number(table, name, f"{where}: cycles") for name in CLASSES}
    return CostModel(width, overlap, l1_miss, l2_miss, cycles)


def _check_names(data: Mapping[str, Any], wanted: tuple[str, ...], where: str) -> None:
    missing = [name for name in wanted if name not in data]
    if missing:
        raise UsageError(f"{where}: {', '.join(missing)} missing")
    unknown = sorted(set(data) - set(wanted))
    if unknown:
        raise UsageError(
            f"{where}: {', '.join(unknown)} unknown", remedy=f"it has {', '.join(wanted)}"
        )


def _number(data: Mapping[str, Any], key: str, where: str) -> float:
    value = data[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise UsageError(f"{where}: {key} must be a number of at least 0, not {value!r}")
    return float(value)
