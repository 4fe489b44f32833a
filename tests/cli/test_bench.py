"""``aotgen bench``: what it prints, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import models
import pytest

import aotgen
from aotgen.bench import BenchOptions, measure
from aotgen.bench_result import BenchInterrupted
from aotgen.cli.main import call
from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import DEFAULT_TIMEOUT_S, Argument, RunResult
from aotgen.runner.local import LocalRunner
from aotgen.runner.output import LineReader
from support import require_tool
from tests.sysfs_tree import SysfsTree

START = (
    '{"number":5,"threads":1,"cpus":[],"cooled_s":0,'
    '"governor":{"cpus":1,"set":1,"before":"schedutil","busy":false,"error":""},'
    '"before":{"clocks":[{"cpu":0,"khz":1800000}],"temperature_mc":45000}}'
)
REPEATS = ('{"repeat":0,"ms":1.5}', '{"repeat":1,"ms":2.5}')
END = '{"times_ms":[1.5,2.5],"governor_restored":true,"peak_bytes":1000000}'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    require_tool("cmake")
    folder = tmp_path_factory.mktemp("bench")
    model = folder / "two.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    return aotgen.compile(model, output=folder / "two", threads=2)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path / "root")
    for cpu in range(2):
        tree.cpu(cpu)
    tree.zone(0, 45.0, trip=80.0)
    return tree


class Told(LocalRunner):
    """Prints lines instead of running a program, then fails if it is to."""

    def __init__(self, lines: Sequence[str], fails: bool = False, stderr: str = "") -> None:
        super().__init__()
        self.lines = lines
        self.fails = fails
        self.stderr = stderr
        self.words: list[str] = []

    def run(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: LineReader | None = None,
    ) -> RunResult:
        self.words = [str(word) for word in arguments]
        for line in self.lines:
            if on_line is not None:
                on_line(line)
        if self.fails:
            raise BoardError("the link was lost", remedy="plug it in")
        return RunResult("\n".join(self.lines), self.stderr, 1.0)


def test_the_table(
    project: aotgen.Project, tree: SysfsTree, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", str(project.folder), "--threads", "1,2", "--number", "50", "--repeat", "3"]
    assert call([*words, "--profile", "--sysfs-root", str(tree.root)]) == 0
    out, err = capsys.readouterr()
    assert "warning" not in err
    lines = out.splitlines()
    header = next(line for line in lines if line.startswith("name "))
    names = ["name", "threads", "min", "median", "max", "mean", "std", "ms", "GFLOP/s"]
    assert header.split()[:9] == names
    rows = [line.split() for line in lines if line.startswith("two ")]
    assert [row[1] for row in rows] == ["1", "2"]
    for _, _, least, median, most, *_ in rows:
        assert 0 < float(least) <= float(median) <= float(most)
    assert sum(line.startswith("layer  name") for line in lines) == 2
    assert "before: 1800 MHz, 45.0 C; after: 1800 MHz, 45.0 C; governor" in out
    assert "governor performance (was schedutil)" in out
    assert lines[-1].startswith("Mean inference time (std dev): ")
    assert tree.governors() == ["schedutil"] * 2


def test_json(project: aotgen.Project, tree: SysfsTree, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(project.folder), "--threads", "2,1", "--repeat", "3", "--json"]
    assert call([*words, "--number", "50", "--profile", "--sysfs-root", str(tree.root)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [run["threads"] for run in data["runs"]] == [2, 1]
    last = data["runs"][-1]
    assert {key: data[key] for key in last} == last
    assert data["min_ms"] <= data["median_ms"] <= data["max_ms"]
    macs = 2 * (8 * 16 + 16 * 4)
    assert data["macs"] == macs
    assert data["gops"] == pytest.approx(2 * macs / data["median_ms"] / 1e6)
    assert sum(layer["macs"] for layer in data["layers"]) == macs
    (cluster,) = aotgen.load_board("host").clusters
    assert (data["peak_gops"] or 0) == pytest.approx(1.8 * cluster.flops_per_cycle)
    assert data["peak_bytes"] > 100_000
    assert data["before"]["temperature_c"] == 45.0
    assert data["governor"]["restored"] is True
    assert (data["throttled"], data["warnings"]) == (False, [])


def test_no_share_without_a_clock(project: aotgen.Project, tmp_path: Path) -> None:
    result = project.bench(number=1, repeat=1, sysfs_root=str(tmp_path))
    assert (result.peak_gops, result.peak_share) == (0.0, None)


def test_a_throttled_run_is_said(
    project: aotgen.Project, tree: SysfsTree, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.zone(0, 84.0, trip=80.0)
    tree.cpu(1, mhz=600)
    words = ["bench", str(project.folder), "--number", "1", "--repeat", "1"]
    assert call([*words, "--sysfs-root", str(tree.root)]) == 0
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
    assert "the run was throttled" in warning
    assert "reached 84 C" in warning and "CPU 1 fell to 600 of 1800 MHz" in warning


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--threads", "4"], "compile the model with --threads 4"),
        (["--threads", "0"], "at least 1"),
        (["--threads", "1,,2"], "malformed"),
        (["--threads", "-1"], "malformed"),
        (["--threads", "two"], "malformed"),
        (["--cores", "medium"], "use one of big, little, all"),
        (["--repeat", "0"], "repeat must be at least 1"),
        (["--number", "0"], "number must be at least 1"),
        (["--cooldown", "-1"], "cooldown must be 0 to 86400 s"),
        (["--cooldown", "nan"], "cooldown must be 0 to 86400 s"),
    ],
)
def test_mistakes(
    words: list[str], says: str, project: aotgen.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["bench", str(project.folder), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Illegal instruction"],
        ["[1, 2]"],
        [START, '{"times_ms":[]}'],
        [START, '{"times_ms":["fast"]}'],
        [START, '{"times_ms":[NaN]}'],
        [START, '{"times_ms":[-1]}'],
        [START, '{"times_ms":3}'],
        [END],  # no start
        ['{"number":5}', END],
        [START.replace("1800000", '"x"'), END],
        [START, END[:-1] + ',"layers":[{"layer":7,"ms":1}]}'],
        [START, END[:-1] + ',"layers":[3]}'],
        [START, END[:-1] + ',"worst":[]}'],
    ],
)
def test_garbage(lines: list[str], project: aotgen.Project) -> None:
    with pytest.raises(BoardError, match=r"printed (no result|a result that makes no sense)"):
        project.bench(runner=Told(lines))


def test_noise_between_the_lines(project: aotgen.Project) -> None:
    noise = ("motd: welcome", "{", '{"a":1}')
    result = project.bench(runner=Told([*noise, START, *noise, *REPEATS, *noise, END]))
    assert (result.times_ms, result.number, result.complete) == ((1.5, 2.5), 5, True)
    assert result.peak_bytes == 1_000_000


def test_what_the_program_complains_of_is_a_warning(project: aotgen.Project) -> None:
    place = Told([START, *REPEATS, END], stderr="\nthe system refused CPU 7\n")
    assert project.bench(runner=place).warnings == ("the system refused CPU 7",)


@pytest.mark.parametrize(
    ("board", "cores", "given"),
    [("rk3399", None, "all"), ("rk3399", "little", "little"), ("rpi4", None, None)],
)
def test_a_thread_does_not_wander_between_kinds_of_cores(
    board: str, cores: Literal["little"] | None, given: str | None, project: aotgen.Project
) -> None:
    place, options = Told([START, *REPEATS, END]), BenchOptions(cores=cores)
    program = project.folder / "unused"
    list(measure(project.info, aotgen.load_board(board), place, program, (), [1], options))
    said = dict(zip(place.words, place.words[1:], strict=False)).get("--cores")
    assert said == given


def test_a_lost_link_costs_only_the_rest(
    project: aotgen.Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Told([START, *REPEATS], fails=True)
    with pytest.raises(BenchInterrupted, match="the link was lost after 2 of 10 repeats") as caught:
        project.bench(runner=place)
    (result,) = caught.value.results
    assert (result.times_ms, result.complete) == ((1.5, 2.5), False)
    assert result.before.temperature_c == 45.0
    with pytest.raises(BoardError, match="the link was lost; plug it in"):
        project.bench(runner=Told([], fails=True))

    monkeypatch.setattr("aotgen.runner.select.place_for", lambda *_: place)
    assert call(["bench", str(project.folder), "--runner", "pi"]) == 3
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "Mean inference time (std dev): 2.00 ms (0.50 ms)"
    assert err.splitlines()[-1].startswith("aotgen: error: the link was lost after 2 of 10")


def test_options_are_checked_before_the_build(project: aotgen.Project) -> None:
    with pytest.raises(UsageError, match="3 threads are more than the 2"):
        project.bench_each([1, 3], BenchOptions())


@pytest.mark.parametrize("weights", ["c", "bin"])
def test_where_the_weights_are(weights: str, project: aotgen.Project, tmp_path: Path) -> None:
    model = project.folder / "test/model.onnx"
    other = aotgen.compile(model, output=tmp_path / "p", weights=weights)  # type: ignore[arg-type]
    assert other.bench(number=1, repeat=1, governor=False).median_ms > 0


def test_a_board_that_is_not_here(
    project: aotgen.Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pi = aotgen.load_board("rpi4")
    if pi.runs_here:
        pytest.skip("this computer is one")
    require_tool(f"{pi.triple}-gcc", pi.emulator[0])
    folder = str(tmp_path / "pi")
    aotgen.compile(project.folder / "test/model.onnx", board="rpi4", output=folder)
    assert call(["bench", folder, "--runner", "local"]) == 2
    assert "cannot run programs of board rpi4" in capsys.readouterr().err
    assert call(["bench", folder, "--number", "1", "--repeat", "1"]) == 0
    out, err = capsys.readouterr()
    assert "times under QEMU say nothing about the board" in err
    assert "of peak" not in out
