"""Times a project with its bench program, and says what the times are worth.

The program measures, reads the board and sets its governor by itself (``templates/project/
bench.c.j2``): nothing else of ours runs there. It prints a line of JSON for each repeat, so that a
link that breaks costs only the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotgen.bench_result import BenchResult, Cores, LayerTime, as_cores
from aotgen.conditions import Governor, Reading
from aotgen.counting import count_run
from aotgen.errors import BoardError, ToolchainError, UsageError
from aotgen.runner.base import DEFAULT_TIMEOUT_S, Argument, Runner, Timing
from aotgen.runner.qemu import QemuRunner
from aotgen.target.board import Board, Cluster

if TYPE_CHECKING:
    from aotgen.manifest import Manifest

COOL_MARGIN_C = 2.0
"""The board counts as cool again when it is this close to where it started."""

MOST_RUNS = 1_000_000
"""Of a repeat, before it, and repeats: what asks for more is a slip, and would not end."""

MOST_COOLDOWN_S = 24 * 3600.0

_RUNS_PER_TIMEOUT = 100
"""Slow boards get the runner's usual time for so many runs of a model."""

_INTEGER_OPS = frozenset({"qconv", "qmatmul", "integer_lstm"})


@dataclass(frozen=True)
class BenchOptions:
    """How to measure; see ``Project.bench``."""

    number: int | None = None
    repeat: int = 10
    warmup: int = 2
    cores: Cores | None = None
    profile: bool = False
    cooldown: float = 0.0
    governor: bool = True
    sysfs_root: str | None = None

    def check(self, threads: Sequence[int], most: int) -> None:
        """
        Args:
            threads: numbers of them to measure with.
            most: that the project was compiled for.

        Raises:
            UsageError: one of the options makes no sense.
        """
        counts = {"number": self.number, "repeat": self.repeat, "warmup": self.warmup}
        for name, value in counts.items():
            least = 0 if name == "warmup" else 1
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, not {value}")
            if value is not None and value > MOST_RUNS:
                raise UsageError(f"{name} must be at most {MOST_RUNS}, not {value}")
        if not 0 <= self.cooldown <= MOST_COOLDOWN_S:
            raise UsageError(f"cooldown must be 0 to {MOST_COOLDOWN_S:g} s, not {self.cooldown:g}")
        if self.cores is not None:
            as_cores(self.cores)
        for count in threads:
            if count < 1:
                raise UsageError(f"threads must be at least 1, not {count}")
            if count > most:
                raise UsageError(
                    f"{count} threads are more than the {most} that the project was compiled for",
                    remedy=f"use fewer, or compile the model with --threads {max(threads)}",
                )


def measure(
    info: Manifest,
    board: Board,
    place: Runner,
    program: Path,
    weights: Sequence[Argument],
    threads: Sequence[int],
    options: BenchOptions,
) -> Iterator[BenchResult]:
    """Measure with one number of threads after the other.

    Args:
        info: of the project.
        board: that it was compiled for.
        place: where ``program`` was deployed.
        program: the project's bench program.
        weights: arguments that pass the weights.
        threads: numbers of threads.
        options: checked.

    Yields:
        A result for each; an incomplete one, and then the error, where the measurement broke off.

    Raises:
        BoardError: see ``Runner.run``; or the program printed no result.
    """
    emulated = place.emulates(board.machine)
    goal: float | None = None  # to cool down to before the next one
    for count in threads:
        seen = _Seen()
        try:
            timing = place.time(
                program,
                number=options.number or 0,
                repeat=options.repeat,
                warmup=options.warmup,
                profile=options.profile,
                arguments=[*_words(board, emulated, count, goal, options), *weights],
                timeout=timeout_s(options),
                on_line=seen.line,
            )
            result = _result(info, board, place, emulated, count, options, seen, timing)
            if isinstance(place, QemuRunner):
                result = _counted(info, board, place, program, weights, options, result)
        except BoardError:
            if seen.times:
                yield _result(info, board, place, emulated, count, options, seen, None)
            raise
        if goal is None and result.before.temperature_c is not None:
            goal = result.before.temperature_c + COOL_MARGIN_C
        yield result


def _counted(
    info: Manifest,
    board: Board,
    place: QemuRunner,
    program: Path,
    weights: Sequence[Argument],
    options: BenchOptions,
    result: BenchResult,
) -> BenchResult:
    """``result`` with its instructions, which can be counted of one thread on a CPU."""
    if result.threads > 1 or info.data["device"] != "cpu":
        return result
    cluster = cores_in_use(board, (), 1, options.cores)[0]
    timeout = timeout_s(options)
    try:
        cost = count_run(place, program, weights, cluster, timeout, options.profile)
    except ToolchainError as error:
        return replace(result, messages=(*result.messages, f"instructions not counted: {error}"))
    return replace(result, cost=cost)


class _Seen:
    """What the bench program has printed so far."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.start: dict[str, Any] = {}
        self.times: list[float] = []
        self.end: dict[str, Any] = {}

    def line(self, text: str) -> None:
        """Takes a line; what is none of the program's is passed over."""
        if not text.startswith("{"):
            return
        try:
            data = json.loads(text)
        except ValueError:
            return
        if not isinstance(data, dict):
            return
        if "number" in data:
            self._forget()  # a runner may have started it again
            self.start = data
        elif "repeat" in data and _is_time(data.get("ms")):
            self.times.append(float(data["ms"]))
        elif "times_ms" in data:
            self.end = data


def _words(
    board: Board, emulated: bool, threads: int, goal: float | None, options: BenchOptions
) -> list[str]:
    words = ["--threads", str(threads)]
    if options.cores is not None:
        words += ["--cores", options.cores]
    elif len(board.clusters) > 1 and not emulated:
        words += ["--cores", "all"]  # one thread, too, shall not wander between kinds of cores
    if options.cooldown:
        words += ["--cooldown", str(math.ceil(options.cooldown))]
        if goal is not None:
            words += ["--cool-to", str(round(goal * 1000))]
    if options.sysfs_root is not None:
        words += ["--sysfs-root", options.sysfs_root]
    elif emulated:
        words.append("--no-board")
    if not options.governor:
        words.append("--no-governor")
    return words


def timeout_s(options: BenchOptions) -> float:
    """Seconds after which a bench program with these options has hung."""
    runs = options.repeat * (options.number or 1)
    return DEFAULT_TIMEOUT_S * max(1.0, runs / _RUNS_PER_TIMEOUT) + options.cooldown


def _result(
    info: Manifest,
    board: Board,
    place: Runner,
    emulated: bool,
    threads: int,
    options: BenchOptions,
    seen: _Seen,
    timing: Timing | None,
) -> BenchResult:
    """The result; without ``timing``, from what was seen before the measurement broke off.

    Raises:
        BoardError: what the program printed makes no sense.
    """
    try:
        macs = layer_macs(info)
        cpus = tuple(int(cpu) for cpu in seen.start["cpus"])
        after = Reading.of(seen.end.get("after", {"clocks": []}))
        cores = cores_in_use(board, cpus, threads, options.cores)
        if not board.triple:
            cores = [replace(core, clock_mhz=_clock_mhz(after)) for core in cores]
        on_cpu = info.data["device"] == "cpu"
        integer = 2 * sum(n for n, whole in macs.values() if whole) > _total(macs)
        restored = seen.end.get("governor_restored")
        governor = seen.start.get("governor")
        peak = {whole: peak_gops(cores, whole) if on_cpu else 0.0 for whole in (False, True)}
        return BenchResult(
            times_ms=timing.times_ms if timing else tuple(seen.times),
            number=int(seen.start["number"]),
            runner=place.name,
            layers=tuple(_layers(info, timing, macs, peak)) if timing else (),
            name=info.prefix,
            threads=threads,
            cores=options.cores,
            cpus=cpus,
            macs=_total(macs),
            integer=integer,
            peak_gops=peak[integer],
            peak_bytes=None if emulated else int(seen.end.get("peak_bytes", 0)) or None,
            before=Reading.of(seen.start["before"]),
            worst=Reading.of(seen.end.get("worst", {"clocks": []})),
            after=after,
            governor=Governor.of(governor, restored) if governor else None,
            cooled_s=int(seen.start["cooled_s"]),
            # An emulator lacks the board's CPUs.
            messages=timing.messages if timing and not emulated else (),
            emulated=emulated,
            complete=timing is not None,
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BoardError(
            f"{info.prefix}_bench printed a result that makes no sense ({error!r})"
        ) from error


def _layers(
    info: Manifest, timing: Timing, macs: dict[int, tuple[int, bool]], peak: dict[bool, float]
) -> Iterator[LayerTime]:
    for entry in timing.layers:
        index = int(entry["layer"])
        count, integer = macs[index]
        if not _is_time(entry["ms"]):
            raise ValueError(entry["ms"])
        name = info.layers[index].name
        yield LayerTime(index, name, float(entry["ms"]), count, integer, peak[integer])


def layer_macs(info: Manifest) -> dict[int, tuple[int, bool]]:
    """By layer: multiply-accumulates, and whether they are of integers."""
    return {
        int(e["index"]): (int(e["macs"]), not _INTEGER_OPS.isdisjoint(str(e["op"]).split("+")))
        for e in info.data["layers"]
    }


def _total(macs: dict[int, tuple[int, bool]]) -> int:
    return sum(count for count, _ in macs.values())


def cores_in_use(
    board: Board, cpus: Sequence[int], threads: int, cores: Cores | None
) -> list[Cluster]:
    """The cluster of each core that a run uses, the fastest first where the system placed it."""
    every = [(cpu, cluster) for cluster in board.clusters for cpu in cluster.cpus]
    if cpus:
        return [cluster for cpu in cpus for own, cluster in every if own == cpu]
    allowed = list(board.clusters)
    if cores == "big":
        allowed = allowed[:1]
    elif cores == "little":
        allowed = allowed[-1:]
    return [cluster for cluster in allowed for _ in range(cluster.count)][:threads]


def peak_gops(cores: Sequence[Cluster], integer: bool) -> float:
    """Of all of them; 0 when that of one is unknown."""
    each = [
        c.clock_mhz * (c.int8_ops_per_cycle if integer else c.flops_per_cycle) / 1000 for c in cores
    ]
    return sum(each) if all(each) else 0.0


def _clock_mhz(reading: Reading) -> int:
    """Of this computer, whose board.toml has none: as Linux tells right after a load; 0 where it
    does not, as /proc/cpuinfo has a number that many a processor exceeds.
    """
    return round(max((clock.mhz for clock in reading.clocks), default=0.0))


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf
