"""Threads in a project: which layers they share, where they have to meet, which cores they get.

Each thread computes a part of a shared layer's rows. Sharing costs a meeting of all threads before
and behind the layer, and the caches of other cores hold what it reads: layers that take less time
than that are the first thread's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from aotgen.codegen.program import Layer, Program
from aotgen.schedule.plan import Plan
from aotgen.target.board import Cluster
from aotgen.target.target import Target

SHARED_SECONDS = 4e-6
"""Layers of less modelled time are not shared: two meetings take about one microsecond, and a row
that another core wrote comes from its cache."""

BYTES_PER_SECOND = 4e9
"""Of layout copies, for want of a better model."""

POOL_BYTES = 1024
"""Of a pool besides its threads: a mutex, a condition variable and a CPU set of the systems that we
know, with room to spare; aot_threads.c checks it."""

POOL_THREAD_BYTES = 64


def is_shared(layer: Layer, plan: Plan, target: Target) -> bool:
    """Whether the threads of a run share the layer."""
    if target.threads == 1 or target.device == "gpu" or layer.kernel.units < 2:
        return False
    return modelled_seconds(layer, plan, target) >= SHARED_SECONDS


def modelled_seconds(layer: Layer, plan: Plan, target: Target) -> float:
    """What a layer takes one thread, by its template's model; infinite where it has none."""
    if layer.group is None:
        return 2 * layer.output.type.nbytes / BYTES_PER_SECOND
    choice = plan.choices[layer.group.name]
    return choice.template.cost(layer.group, target, choice.config)


def meetings(layers: Sequence[Layer]) -> list[bool]:
    """Whether all threads meet behind each layer: not where the first one did both it and the next,
    nor behind the last one, where the run ends with a meeting.
    """
    return [*(a.shared or b.shared for a, b in pairwise(layers)), *([False] if layers else [])]


def threads_of(program: Program) -> int:
    """Most threads of a run; a GPU's run has one."""
    return 1 if program.target.device == "gpu" else program.target.threads


def pool_bytes(threads: int) -> int:
    """Memory of a pool of so many threads; 0 where there is none."""
    return POOL_BYTES + POOL_THREAD_BYTES * threads if threads > 1 else 0


def core_table(clusters: Sequence[Cluster]) -> list[dict[str, Any]]:
    """The kinds of cores: name, number of the kind, CPUs, and the rate of one core by its peak, or
    by its clock where its arithmetic is unknown.
    """
    by_peak = all(c.peak_gflops for c in clusters)
    return [
        {
            "core": c.core,
            "kind": kind,
            "cpus": c.cpus or tuple(range(c.count)),
            "rate": max(round(c.peak_gflops * 1000) if by_peak else c.clock_mhz, 1),
        }
        for kind, c in enumerate(clusters)
    ]
