"""Instructions of a project's run under an emulator, and the time that a core's model gives them.

The project's bench program runs the model once to warm up and once between the markers that the
emulator counts (``runner/qemu_plugin.py``). Modelled times rank kernels and tell the size of a
network's time where no board is at hand; they are no measurements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import Argument, json_line
from aotgen.runner.qemu import QemuRunner
from aotgen.runner.qemu_plugin import Counts, modelled_seconds
from aotgen.target.board import Cluster


@dataclass(frozen=True)
class LayerCost:
    """What one layer of a run executed.

    Attributes:
        instructions: executed ones; some hundred of them are the trace hook's, which reads a clock.
        modelled_ms: by the core's model; None where it has none.
    """

    instructions: int
    modelled_ms: float | None


@dataclass(frozen=True)
class RunCost:
    """What one run of a model executed, one thread, caches warm.

    Attributes:
        counts: of the run.
        core: whose caches and weights they were counted with.
        modelled_ms: milliseconds by the core's model, not measured; None where it has none.
        layers: one for each kernel call; empty where they were not counted.
        caches: whether they were simulated; else only instructions were counted.
    """

    counts: Counts
    core: str
    modelled_ms: float | None
    layers: tuple[LayerCost, ...] = ()
    caches: bool = True

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        if not self.caches:
            return {"instructions": self.counts.instructions}
        return {
            "instructions": self.counts.instructions,
            "operations": dict(self.counts.operations),
            "l1_misses": self.counts.l1_misses,
            "l2_misses": self.counts.l2_misses,
            "modelled_ms": self.modelled_ms,
            "modelled_core": self.core,
        }

    def __str__(self) -> str:
        counts = self.counts
        if not self.caches:
            return f"{counts.instructions / 1e6:.3f} M instructions a run"
        text = (
            f"{counts.instructions / 1e6:.3f} M instructions, {counts.l1_misses / 1e6:.3f} M L1 and"
            f" {counts.l2_misses / 1e6:.3f} M L2 misses a run"
        )
        if self.modelled_ms is None:
            return f"{text}; no cost model for {self.core}"
        return f"{text}; modelled, not measured: {self.modelled_ms:.2f} ms on {self.core}"


def whole_instructions(ticks: Sequence[int], tick_ns: float, instruction_ns: float) -> int:
    """How many instructions a piece of a program has, from the ticks of a clock that several runs
    of it took, where each instruction takes the same time.

    A run of n instructions takes n * ``instruction_ns`` / ``tick_ns`` ticks, rounded down or up
    depending on where in a tick it began. So each run leaves few numbers; of those that all runs
    leave it is the one nearest to their mean. A piece that is measured in parts may leave none.
    """
    mean = statistics.fmean(ticks) * tick_ns / instruction_ns
    near = range(max(math.floor(mean) - 2, 0), math.ceil(mean) + 3)
    left = [n for n in near if all(abs(n * instruction_ns - t * tick_ns) < tick_ns for t in ticks)]
    return min(left, key=lambda n: abs(n - mean), default=round(mean))


def count_run(
    place: QemuRunner,
    program: Path,
    weights: Sequence[Argument],
    cluster: Cluster,
    timeout: float,
    layers: bool = False,
) -> RunCost:
    """Count a run of a project's model.

    Args:
        place: where ``program`` was deployed.
        program: the project's bench program.
        weights: arguments that pass the weights.
        cluster: whose core to count for.
        timeout: seconds, of each of the program's two runs.
        layers: also count each layer, in a run of its own.

    Raises:
        BoardError: the program fails, or its regions are not as expected.
        ToolchainError: the emulator cannot count.
        UsageError: the cluster's caches are no caches.
    """
    words: list[Argument] = ["--count", "--no-board", *weights]
    counts = place.count(program, words, timeout, cluster)
    return RunCost(
        counts,
        cluster.core,
        _ms(counts, place, cluster),
        tuple(_layers(place, program, words, cluster, timeout)) if layers else (),
    )


def _layers(
    place: QemuRunner, program: Path, words: list[Argument], cluster: Cluster, timeout: float
) -> list[LayerCost]:
    with place.counting(cluster) as log:
        stdout = place.run(program, [*words, "--profile"], timeout).stdout
        regions = log.regions()
    calls = [int(n) for n in json_line(stdout, program.name).get("calls", ())]
    # The trace hook ends a region for each output; the last one is the way out of run().
    if len(regions) != sum(calls) + 1:
        raise BoardError(
            f"{program.name} ended {len(regions)} regions to count, not {sum(calls) + 1}"
        )
    found, first = [], 0
    for count in calls:
        own = regions[first : first + count]
        times = [_ms(counts, place, cluster) for counts in own]
        known = [ms for ms in times if ms is not None]
        found.append(
            LayerCost(
                sum(counts.instructions for counts in own),
                sum(known) if len(known) == count else None,
            )
        )
        first += count
    return found


def _ms(counts: Counts, place: QemuRunner, cluster: Cluster) -> float | None:
    try:
        return 1e3 * modelled_seconds(counts, place.board, cluster)
    except UsageError:  # counts are of use without a model
        return None
