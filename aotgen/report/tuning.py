"""What people see of a tuning run: a line a task in the form that AutoTVM made known, and one for
the whole run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from aotgen.report.picture import save
from aotgen.report.text import digits


@dataclass(frozen=True)
class TaskLine:
    """How far a task is.

    Attributes:
        index: from 1.
        of: number of tasks.
        ops: arithmetic operations of one call, 0 when it has none to speak of.
        integer: whether they are of integers.
        current: seconds of the best candidate of the last round, None when none worked.
        best: of all.
        trials: candidates so far.
        limit: how many there may be.
        elapsed: seconds spent on the task.
        done: whether nothing more will come.
        pending: whether its round is still going on.
    """

    index: int
    of: int
    ops: float
    integer: bool
    current: float | None
    best: float | None
    trials: int
    limit: int
    elapsed: float
    done: bool = False
    pending: bool = False

    def __str__(self) -> str:
        width = len(str(self.of))
        text = (
            f"[Task {self.index:>{width}}/{self.of}]  Current/Best: {self._rate(self.current)}/"
            f"{self._rate(self.best)} {self.unit} | Progress: ({self.trials}/{self.limit})"
            f" | {self.elapsed:.2f} s"
        )
        return f"{text} Done." if self.done else text

    @property
    def unit(self) -> str:
        """Of the two numbers; a task without operations has its time."""
        if not self.ops:
            return "us"
        return "GOPS" if self.integer else "GFLOPS"

    def _rate(self, seconds: float | None) -> str:
        if seconds is None:
            return f"{0.0:7.2f}" if self.ops else "      -"
        return f"{1e-9 * self.ops / seconds:7.2f}" if self.ops else f"{1e6 * seconds:7.2f}"


@dataclass(frozen=True)
class TotalLine:
    """How far the run is.

    Attributes:
        trials: candidates so far, those that a journal knew included.
        limit: how many there may be.
        elapsed: seconds.
        left: seconds that it may still take; None when that is not known.
        before: seconds of one run of the model's tasks with their defaults.
        after: the same with the best candidates.
        stage: what else is going on; empty for the search.
    """

    trials: int
    limit: int
    elapsed: float
    left: float | None = None
    before: float | None = None
    after: float | None = None
    stage: str = ""

    def __str__(self) -> str:
        text = f"[Total] Progress: ({self.trials}/{self.limit}) | {time_text(self.elapsed)}"
        if self.left is not None:
            text += f", about {time_text(self.left)} left"
        if self.before and self.after:
            text += f" | tasks {digits(1e3 * self.before)} -> {digits(1e3 * self.after)} ms"
        return f"{text} | {self.stage}" if self.stage else text


def time_text(seconds: float) -> str:
    """A duration for people."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


class TuneDisplay:
    """Told how a run goes; this one shows nothing."""

    def task(self, line: TaskLine) -> None:
        """A task has got further."""

    def total(self, line: TotalLine) -> None:
        """The run has got further."""

    def note(self, text: str) -> None:
        """Something that should not be missed."""

    def close(self) -> None:
        """The run is over. May be called twice."""


class LineDisplay(TuneDisplay):
    """Shows a run on stderr: on a terminal the tasks' lines and a total that change in place, else
    a line a round.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True)
        self._lines: dict[int, TaskLine] = {}  # what changed last stands last
        self._total: TotalLine | None = None
        self._live: Live | None = None
        if self._console.is_terminal:
            # Redrawn when something happens and not by a thread, which would disturb what is timed.
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, screen=False
            )
            self._live.start()

    def task(self, line: TaskLine) -> None:
        self._lines.pop(line.index, None)
        self._lines[line.index] = line
        if self._live is not None:
            self._redraw()
        elif not line.pending:
            self._print(str(line))

    def total(self, line: TotalLine) -> None:
        self._total = line
        if self._live is not None:
            self._redraw()

    def note(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(Text(f"aotgen: {text}"))
        else:
            self._print(f"aotgen: {text}")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            for index in sorted(self._lines):
                self._print(str(self._lines[index]))
        if self._total is not None:
            self._print(str(self._total))
            self._total = None

    def _redraw(self) -> None:
        assert self._live is not None
        room = max(1, self._console.size.height - 2)
        shown = sorted(list(self._lines)[-room:])
        rows = [Text(str(self._lines[i]), no_wrap=True, overflow="ellipsis") for i in shown]
        if self._total is not None:
            rows.append(Text(str(self._total), no_wrap=True, overflow="ellipsis"))
        self._live.update(Group(*rows), refresh=True)

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def plot_history(
    series: Mapping[str, Sequence[float]], path: str, title: str, units: Mapping[str, str]
) -> None:
    """Draw how the best of each task improved.

    Args:
        series: by the task's title: the best so far behind each trial.
        path: of the picture; its suffix (.png, .svg, .pdf) is its format.
        title: above the plots.
        units: of each task's numbers.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it knows no such format.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    columns = min(3, max(1, len(series)))
    rows = -(-max(1, len(series)) // columns)
    # No pyplot: it has a state, and opens windows.
    figure = Figure(figsize=(5 * columns, 3 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.suptitle(title)
    places = [axis for row in axes for axis in row]
    for axis, (name, values) in zip(places, series.items(), strict=False):
        axis.step(range(1, len(values) + 1), values, where="post")
        axis.set_title(name, fontsize=8)
        axis.set_xlabel("trials")
        axis.set_ylabel(units[name])
        axis.grid(True, alpha=0.3)
    for axis in places[len(series) :]:
        axis.set_visible(False)
    save(figure, path)
