"""What timing a project gives: times of a run and of its layers, and what they are worth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

from aotgen.conditions import Governor, Reading, governor_problems, throttling
from aotgen.counting import RunCost
from aotgen.errors import BoardError, UsageError

Cores = Literal["big", "little", "all"]
"""Which of a board's cores a run uses."""


def as_cores(text: str) -> Cores:
    """``text`` as a value of the cores option; UsageError when it is none."""
    if text not in get_args(Cores):
        raise UsageError(
            f"cores {text!r} does not exist", remedy=f"use one of {', '.join(get_args(Cores))}"
        )
    return cast(Cores, text)


@dataclass(frozen=True)
class LayerTime:
    """Median time of one kernel call.

    Attributes:
        layer: its number.
        name: of its Group.
        ms: milliseconds.
        macs: multiply-accumulates, 0 for what has none.
        integer: whether they are of integers.
        peak_gops: what the cores in use could do at best, in 10^9 operations a second; 0 when
            unknown.
    """

    layer: int
    name: str
    ms: float
    macs: int = 0
    integer: bool = False
    peak_gops: float = 0.0

    @property
    def gops(self) -> float:
        """10^9 operations a second; a multiply-accumulate is two."""
        return _gops(self.macs, self.ms)

    @property
    def peak_share(self) -> float | None:
        """Of ``peak_gops``; None when unknown, or where there is nothing to multiply."""
        return self.gops / self.peak_gops if self.peak_gops and self.macs else None


@dataclass(frozen=True)
class BenchResult:
    """How long one run of the model takes.

    Attributes:
        times_ms: means of ``number`` runs each.
        number: runs per repeat.
        runner: where it ran.
        layers: with profiling, the time of every kernel call.
        name: of the model.
        threads: of a run.
        cores: which were asked for; None when the choice was left to the program.
        cpus: that the threads stayed on; empty where the system placed them.
        macs: multiply-accumulates of a run.
        integer: whether most of them are of integers.
        peak_gops: of the cores in use, 10^9 operations a second, by the clocks of board.toml or, on
            this computer, those that it told; 0 when unknown.
        peak_bytes: most memory of the bench program at a time; None when unknown.
        stack_bytes: most of a microcontroller's stack that a run used, the protocol included; None
            when unknown.
        before: what the board told before the first run.
        worst: the worst that it told meanwhile.
        after: what it told behind the last repeat.
        governor: what became of the frequency governor; None when it was left alone.
        cooled_s: seconds that the board needed to cool down before.
        messages: what the program complained of, such as a CPU that it may not use.
        emulated: the times say nothing about the board.
        complete: False when the link broke before the last repeat.
        cost: under an emulator, what a run executes and how long that takes by the core's model;
            None where it was not counted: with several threads, or by an emulator that cannot.
    """

    times_ms: tuple[float, ...]
    number: int
    runner: str
    layers: tuple[LayerTime, ...] = ()
    name: str = ""
    threads: int = 1
    cores: Cores | None = None
    cpus: tuple[int, ...] = ()
    macs: int = 0
    integer: bool = False
    peak_gops: float = 0.0
    peak_bytes: int | None = None
    stack_bytes: int | None = None
    before: Reading = field(default_factory=Reading)
    worst: Reading = field(default_factory=Reading)
    after: Reading = field(default_factory=Reading)
    governor: Governor | None = None
    cooled_s: int = 0
    messages: tuple[str, ...] = ()
    emulated: bool = False
    complete: bool = True
    cost: RunCost | None = None

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def min_ms(self) -> float:
        return min(self.times_ms)

    @property
    def max_ms(self) -> float:
        return max(self.times_ms)

    @property
    def mean_ms(self) -> float:
        return statistics.fmean(self.times_ms)

    @property
    def std_ms(self) -> float:
        return statistics.pstdev(self.times_ms)

    @property
    def gops(self) -> float:
        """10^9 operations a second by the median; a multiply-accumulate is two."""
        return _gops(self.macs, self.median_ms)

    @property
    def peak_share(self) -> float | None:
        """Of the cores' peak; None when that is unknown or the times are not the board's."""
        return self.gops / self.peak_gops if self.peak_gops and not self.emulated else None

    @property
    def unit(self) -> str:
        """Of ``gops``, as people call it."""
        return "GOP/s" if self.integer else "GFLOP/s"

    @property
    def throttled(self) -> bool:
        """Whether the board ran slower than it can."""
        return any(throttling(self.before, self.worst, self.after, self.governor))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the times doubtful, one text each."""
        slow = list(throttling(self.before, self.worst, self.after, self.governor))
        found = [f"the run was throttled: {'; '.join(slow)}"] if slow else []
        return (*self.messages, *governor_problems(self.governor), *found)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        costs = self.cost.layers if self.cost else ()
        return {
            "name": self.name,
            "threads": self.threads,
            "cores": self.cores,
            "cpus": list(self.cpus),
            "median_ms": self.median_ms,
            "min_ms": self.min_ms,
            "max_ms": self.max_ms,
            "mean_ms": self.mean_ms,
            "std_ms": self.std_ms,
            "number": self.number,
            "repeat": len(self.times_ms),
            "runner": self.runner,
            "emulated": self.emulated,
            "complete": self.complete,
            "times_ms": list(self.times_ms),
            "macs": self.macs,
            "unit": self.unit,
            "gops": self.gops,
            "peak_gops": self.peak_gops or None,
            "peak_share": self.peak_share,
            "peak_bytes": self.peak_bytes,
            "stack_bytes": self.stack_bytes,
            "before": asdict(self.before),
            "worst": asdict(self.worst),
            "after": asdict(self.after),
            "governor": asdict(self.governor) if self.governor else None,
            "cooled_s": self.cooled_s,
            "throttled": self.throttled,
            "warnings": list(self.warnings),
            "layers": [
                {
                    **asdict(layer),
                    "gops": layer.gops,
                    "peak_share": layer.peak_share,
                    **(asdict(costs[layer.layer]) if costs else {}),
                }
                for layer in self.layers
            ],
            **(self.cost.as_dict() if self.cost else {}),
        }

    def __str__(self) -> str:
        return f"Mean inference time (std dev): {self.mean_ms:.2f} ms ({self.std_ms:.2f} ms)"


class BenchInterrupted(BoardError):
    """A measurement broke off; ``results`` has what was measured before, the last one in part."""

    def __init__(self, error: BoardError, results: Sequence[BenchResult], repeat: int) -> None:
        """``repeat``: how many there should have been with each number of threads."""
        done = (
            ""
            if results[-1].complete
            else f" after {len(results[-1].times_ms)} of {repeat} repeats"
        )
        super().__init__(f"{error.args[0]}{done}", remedy=error.remedy)
        self.results = tuple(results)


def _gops(macs: int, ms: float) -> float:
    return 2 * macs / ms / 1e6 if ms > 0 else 0.0
