"""``aotgen compare``: in turns, the lowest times, their ratios; counts under an emulator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import models
import pytest

import aotgen
from aotgen.bench import timeout_s
from aotgen.cli.main import call
from aotgen.comparison import INSTRUCTIONS, MIN_MS, Comparison, Entry, compare
from aotgen.errors import UsageError
from aotgen.runner.base import DEFAULT_TIMEOUT_S, Argument, RunResult
from aotgen.runner.local import LocalRunner
from aotgen.runner.output import LineReader
from support import require_tool


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("comparison") / "two.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


@pytest.fixture(scope="module")
def pair(model: Path) -> list[aotgen.Project]:
    require_tool("cmake")
    return [
        aotgen.compile(model, board="host-scalar", output=model.parent / name, threads=threads)
        for name, threads in (("one", 1), ("other", 2))
    ]


class Clock(LocalRunner):
    """Prints what a bench program would: the given milliseconds for each call, in this order."""

    def __init__(self, times: Sequence[float], number: int = 5) -> None:
        super().__init__()
        self.times = list(times)
        self.number = number
        self.calls: list[tuple[str, str]] = []

    def run(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: LineReader | None = None,
    ) -> RunResult:
        words = [str(word) for word in arguments]
        wanted = words[words.index("--number") + 1]
        self.calls.append((program.parent.parent.parent.name, wanted))
        # Found by the program itself, as in one call more than there are rounds.
        ms = 100.0 if wanted == "0" else self.times.pop(0)
        lines = [
            f'{{"number":{self.number},"threads":1,"cpus":[],"cooled_s":0,"governor":null,'
            '"before":{"clocks":[]}}',
            f'{{"repeat":0,"ms":{ms}}}',
            f'{{"times_ms":[{ms}],"peak_bytes":1}}',
        ]
        for line in lines:
            if on_line is not None:
                on_line(line)
        return RunResult("\n".join(lines), "", 1.0)


def test_rounds_take_turns_and_the_lowest_counts(pair: list[aotgen.Project]) -> None:
    # In the second round the other one comes first: 4 and 3 are its times.
    clock = Clock([2.0, 4.0, 3.0, 1.5])
    found = compare(pair, clock, rounds=2)
    first, other = found.entries
    assert (first.times_ms, other.times_ms) == ((2.0, 1.5), (4.0, 3.0))
    assert (first.min_ms, other.min_ms, other.median_ms) == (1.5, 3.0, 3.5)
    assert (found.by, found.ratios, found.spread(1)) == (MIN_MS, (1.0, 2.0), (2.0, 2.0))
    numbers = [number for _, number in clock.calls]
    assert numbers == ["0", "5", "0", "5", "5", "5"]
    folders = [folder for folder, number in clock.calls if number != "0"]
    assert folders[0] == folders[3] != folders[1] == folders[2]


def test_ratio_of_rounds_is_of_pairs() -> None:
    """1.0 against 1.1 while the clock was high, 2.0 against 1.9 while it was low."""
    entries = (Entry("a", "m", "b", (1.0, 2.0)), Entry("c", "m", "b", (1.1, 1.9)))
    found = Comparison(entries, "local", 1, MIN_MS)
    assert found.ratios == (1.0, pytest.approx(1.1))
    assert found.spread(1) == (pytest.approx(0.95), pytest.approx(1.1))
    assert found.rounds == 2


def test_the_table(pair: list[aotgen.Project], capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(project.folder) for project in pair]
    words = ["compare", *folders, "--rounds", "2", "--number", "20", "--no-governor"]
    assert call(words) == 0
    out, err = capsys.readouterr()
    header, one, other, _, told, _, last = out.splitlines()
    assert "warning" not in err
    assert header.split() == ["project", "min", "ms", "median", "ms", "ratio", "of", "a", "round"]
    assert one.split()[0] == folders[0] and one.split()[-1] == "1.000"
    ratio = other.split()[3]
    assert other.split()[0] == folders[1] and other.split()[-2] == "to"
    assert told == "2 rounds, 1 thread, local"
    assert last == f"{folders[1]}: {ratio}x the time of {folders[0]}"


def test_json(pair: list[aotgen.Project], capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(project.folder) for project in pair]
    words = ["compare", *folders, "--rounds", "3", "--number", "20", "--no-governor", "--json"]
    assert call(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["by"], data["rounds"], data["runner"]) == (MIN_MS, 3, "local")
    one, other = data["projects"]
    assert [one["folder"], other["folder"]] == folders
    assert one["ratio"] == 1.0 and one["ratio_of_rounds"] == [1.0, 1.0]
    assert other["ratio"] == min(other["times_ms"]) / min(one["times_ms"])
    assert [p["number"] for p in data["projects"]] == [20, 20]


def test_under_an_emulator_runs_are_counted(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_tool("aarch64-linux-gnu-gcc", "qemu-aarch64")
    folders = []
    for name, passes in (("fused", ()), ("plain", ("fuse_ops",))):
        folder = model.parent / f"arm_{name}"
        aotgen.compile(model, board="rpi4", output=folder, disabled_passes=passes)
        folders.append(str(folder))
    assert call(["compare", *folders, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    fused, plain = data["projects"]
    assert (data["by"], data["rounds"], fused["times_ms"]) == ("modelled_ms", 0, [])
    assert fused["instructions"] < plain["instructions"]
    cost = aotgen.Project(folders[1]).bench(number=1, repeat=1).cost
    assert cost is not None and cost.modelled_ms is not None
    assert plain["instructions"] == cost.counts.instructions
    assert plain["ratio"] == plain["modelled_ms"] / fused["modelled_ms"]
    assert plain["modelled_ms"] == pytest.approx(cost.modelled_ms, rel=0.02)

    assert call(["compare", *folders, "--cores", "big"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["project", "M", "instr"]
    assert lines[-1] == f"{folders[1]}: {plain['ratio']:.3f}x the modelled time of {folders[0]}"

    # board.toml has no model of the Cortex-A53.
    for name in ("a53", "a53_again"):
        aotgen.compile(model, board="rpi3b", output=model.parent / name)
    small = [aotgen.Project(model.parent / name) for name in ("a53", "a53_again")]
    found = compare(small)
    assert (found.by, found.ratios) == (INSTRUCTIONS, (1.0, 1.0))
    with pytest.raises(UsageError, match="emulator for rpi3b"):
        compare([small[0], aotgen.Project(folders[0])])


def test_mistakes(pair: list[aotgen.Project], model: Path) -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compare(pair[:1])
    with pytest.raises(UsageError, match="rounds must be at least 1"):
        compare(pair, rounds=0)
    with pytest.raises(UsageError, match="number must be at least 1"):
        compare(pair, number=0)
    with pytest.raises(UsageError, match="compile the model with --threads 2"):
        compare(pair, threads=2)
    with pytest.raises(UsageError, match="use one of big, little, all"):
        compare(pair, cores="medium")  # type: ignore[arg-type]


def test_boards_of_several_architectures(pair: list[aotgen.Project], model: Path) -> None:
    foreign = "rpi4" if pair[0].board.machine != "aarch64" else "rpi3b-armv7"
    other = aotgen.compile(model, board=foreign, output=model.parent / "foreign")
    with pytest.raises(UsageError, match=f"{foreign}.*no board runs both"):
        compare([pair[0], other])


def test_exit_codes(
    pair: list[aotgen.Project], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["compare", str(pair[0].folder)]) == 2
    assert "name two or more" in capsys.readouterr().err
    assert call(["compare", str(pair[0].folder), str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert call(["compare"]) == 2


def test_timeout_grows_with_the_runs() -> None:
    from aotgen.bench import BenchOptions

    assert timeout_s(BenchOptions(repeat=1)) == DEFAULT_TIMEOUT_S
    assert timeout_s(BenchOptions(number=1000, repeat=3)) == 30 * DEFAULT_TIMEOUT_S
