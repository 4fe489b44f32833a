"""``aotgen tune`` on microcontrollers: candidates run in images that QEMU emulates, over its serial
line; scores are instructions, the same in each run. With all that goes wrong with candidates,
boards and lines, nothing is lost but the candidate at fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import UsageError
from aotgen.runner.qemu_system import EMULATOR
from aotgen.runner.serial import QemuBoard
from aotgen.runner.serial_link import SerialLink
from aotgen.runner.serial_port import SerialPort
from aotgen.target.board import Board, load_board
from aotgen.tune import network
from aotgen.tune.firmware import FirmwareBuilder
from aotgen.tune.firmware_measurer import FirmwareMeasurer
from aotgen.tune.measure import BundleMeasurer, MeasureOptions, make_measurer
from aotgen.tune.outcome import Candidate, Outcome
from tests.kernels.harness import WARNINGS
from tests.runner.serial_boards import Faults, FaultyLine, FlashedBoard, int8_model
from tests.support import require_shared, require_tool
from tests.tune.planted import BODIES, STATUS, conv_task, default_candidates, planted, planted_task

M4 = load_board("mps2-an386")
TASK = planted_task(M4.target())
QUICK = MeasureOptions(timeout=0.5, batch=32)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache of objects for all tests."""
    require_tool("arm-none-eabi-gcc", EMULATOR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.tflite"
    path.write_bytes(int8_model())
    return path


def measured(measurer: BundleMeasurer, candidates: Sequence[Candidate]) -> dict[str, Outcome]:
    """Outcomes by body."""
    with contextlib.closing(measurer):
        return {
            str(o.candidate.point.config["body"]): o for o in measurer.measure(list(candidates))
        }


def facts(outcomes: dict[str, Outcome]) -> dict[str, tuple[Any, ...]]:
    return {b: (o.status, o.seconds, o.message, dict(o.conditions)) for b, o in outcomes.items()}


def records(journal: Path) -> list[dict[str, Any]]:
    """All but the dates."""
    found = [json.loads(line) for line in journal.read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != "date"} for record in found]


# ---- candidates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mps2-an386", "mps2-an500", "mps3-an547"])
def test_faults(name: str) -> None:
    """Each costs one candidate and is told by its name."""
    board = load_board(name)
    measurer = make_measurer(board, None, QUICK)
    assert measurer.kind == "modelled"
    assert isinstance(measurer, FirmwareMeasurer)
    found = measured(measurer, planted(planted_task(board.target()), *BODIES))
    assert {body: o.status for body, o in found.items()} == STATUS
    for outcome in found.values():
        ok = outcome.status == "ok"
        assert ok == (outcome.seconds is not None) == bool(outcome.times)
        assert ok != bool(outcome.message) and "\n" not in outcome.message
        assert len(outcome.kernel) == 16 and outcome.kind == "modelled"
    assert found["hang"].message == "stopped in the check"
    assert "stack" in found["stack"].message and "cut at" in found["cut"].message
    assert "vector table" in found["crash"].message and "nowhere" in found["unknown"].message
    # A loop of 20000 turns, of some instructions each: exactly what a turn takes more of them.
    more = [found[b].conditions["instructions"] for b in ("right", "slower")]
    assert 4 * 20000 < more[1] - more[0] < 10 * 20000
    assert found["right"].seconds == pytest.approx(more[0] * 1e-8, rel=1e-12)


def test_faults_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """An undefined instruction, and memory that is not there."""
    monkeypatch.setitem(BODIES, "undefined", '__asm__ volatile("udf #0");' + BODIES["right"])
    monkeypatch.setitem(BODIES, "nowhere", "*(volatile int *)0xF0000000u = 1;" + BODIES["right"])
    found = measured(make_measurer(M4, None, QUICK), planted(TASK, "undefined", "nowhere", "right"))
    assert found["undefined"].status == found["nowhere"].status == "crash"
    assert "undefined instruction" in found["undefined"].message
    assert "bus fault at address 0x" in found["nowhere"].message
    assert found["right"].status == "ok"


def test_real_kernels_have_the_same_score_again() -> None:
    """Every template's default is right; what waits for bytes in between does not count."""
    scores = []
    for _ in range(2):
        with contextlib.closing(make_measurer(M4, None, QUICK)) as measurer:
            outcomes = list(measurer.measure(default_candidates(conv_task(M4.target()))))
        assert all(o.status == "ok" for o in outcomes), outcomes
        assert all(o.conditions["error"] < 1e-5 for o in outcomes)
        scores.append({o.candidate.point.template: o.seconds for o in outcomes})
    assert scores[0] == scores[1] and scores[0]


def test_what_the_project_prefers_counts() -> None:
    """A project for little flash is compiled for size, and so are its candidates: the same C takes
    other instructions.
    """
    found = []
    for target in (M4.target(optimize="speed"), M4.target(optimize="flash")):
        candidates = planted(planted_task(target), "right", "slower")
        found.append(measured(make_measurer(M4, None, QUICK), candidates))
    for body, outcome in found[0].items():
        other = found[1][body]
        assert outcome.status == other.status == "ok" and outcome.kernel == other.kernel
        assert outcome.conditions["instructions"] != other.conditions["instructions"]


def test_no_warnings(tmp_path: Path) -> None:
    for name in ("mps2-an386", "mps3-an547"):
        board = load_board(name)
        builder = FirmwareBuilder(board, cache=tmp_path / "cache")
        folder = tmp_path / name
        folder.mkdir()
        texts = builder._device_texts()
        for file, text in texts.items():
            (folder / file).write_text(text)
        sources = [file for file in texts if file.endswith(".c")]
        argv = [*builder.argv, *builder.flags, *WARNINGS, "-c", *sources]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:2000]


# ---- boards and lines ----------------------------------------------------------------------------


class Sleepless(FirmwareBuilder):
    """For a board without a watchdog."""

    def _device_texts(self) -> dict[str, str]:
        texts = super()._device_texts()
        texts["hal.c"] = texts["hal.c"].replace("aot_hal_watchdog", "board_watchdog")
        texts["mps.h"] += "\nvoid board_watchdog(uint32_t milliseconds);\n"
        return texts


def test_a_board_without_a_watchdog() -> None:
    """It is restarted from here, and remembers what hung."""
    options = MeasureOptions(timeout=0.1, batch=32)
    builder = Sleepless(M4)
    measurer = FirmwareMeasurer(M4, QemuBoard(), options, builder)
    found = measured(measurer, planted(TASK, "hang", "wrong", "right"))
    assert {b: o.status for b, o in found.items()} == {b: STATUS[b] for b in found}
    assert found["hang"].message == "stopped in the check"


class Wired(QemuBoard):
    """Behind a line that damages what passes."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults
        self._line: FaultyLine | None = None

    def reopen(self) -> SerialLink:
        super().reopen()
        assert self.machine is not None and self.machine.port is not None
        self._wire = os.dup(self.machine.port._fd)  # type: ignore[attr-defined]
        self._line = FaultyLine(self._wire, self._wire, self._faults)
        return SerialLink(SerialPort(self._line.device, 115200))

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            os.close(self._wire)
        self._line = None
        super().close()


def test_a_bad_line() -> None:
    """Results are the same."""
    bodies = ("right", "slower", "wrong", "hang", "crash", "abort")
    clean = measured(make_measurer(M4, None, QUICK), planted(TASK, *bodies))
    faults = Faults(drop=400, flip=400, double=400, late=400, seed=3)
    found = measured(FirmwareMeasurer(M4, Wired(faults), QUICK), planted(TASK, *bodies))
    told, expected = facts(found), facts(clean)
    # The frame that tells of a fault is sent once: without it all that is known is the restart.
    for body in ("hang", "abort"):
        assert told.pop(body)[0] in ("crash", "timeout")
        expected.pop(body)
    assert told == expected


def test_an_emulator_that_dies_costs_nothing() -> None:
    """What was sent is not measured again."""

    class Mortal(QemuBoard):
        starts = 0

        def reopen(self) -> SerialLink:
            link = super().reopen()
            Mortal.starts += 1
            if Mortal.starts == 1:
                write, sent = link.port.write, 0

                def killing(data: bytes) -> None:
                    nonlocal sent
                    sent += 1
                    if sent == 4 and self.machine is not None:  # hello, one candidate, its report
                        assert self.machine._process is not None
                        self.machine._process.kill()
                        self.machine._process.wait()
                    write(data)

                link.port.write = killing  # type: ignore[method-assign]
            return link

    found = measured(FirmwareMeasurer(M4, Mortal(), QUICK), planted(TASK, "wrong", "right", "half"))
    assert {b: o.status for b, o in found.items()} == {b: STATUS[b] for b in found}
    assert len(found) == 3 and Mortal.starts == 2


def small_board(folder: Path, flash: str, more: str = "") -> Board:
    """MPS2 with less flash."""
    script = (M4.folder / "linker.ld").read_text()
    sections = (M4.folder / "../mps/sections.ld").resolve()
    script = script.replace("../mps/sections.ld", str(sections)).replace("4M - 1K", flash, 1)
    assert flash in script
    folder.mkdir(exist_ok=True)
    (folder / "linker.ld").write_text(script)
    (folder / "board.toml").write_text(
        f'description = "small"\nextends = "{M4.name}"\n{more}\n[firmware]\n'
        'linker_script = "linker.ld"\n'
    )
    return load_board(folder)


def test_candidates_that_do_not_fit_together(tmp_path: Path) -> None:
    """They are in several images; what fits in none is too large."""
    sizes = (16, 24, 32, 256)
    candidates = [c for n in sizes for c in default_candidates(conv_task(M4.target(), n))]
    board = small_board(tmp_path / "small", "64K")
    measurer = FirmwareMeasurer(board, QemuBoard(), QUICK)
    images: list[tuple[int, ...]] = []
    build = measurer._builder.build_images

    def counted(*args: Any) -> Any:
        built = build(*args)
        images.extend(b.cases for b in built if b.program is not None)
        return built

    measurer._builder.build_images = counted  # type: ignore[method-assign]
    with contextlib.closing(measurer):
        outcomes = list(measurer.measure(candidates))
    large = [o for o in outcomes if o.status == "memory"]
    assert len(images) > 1 and len(outcomes) == len(candidates)
    assert all(o.status in ("ok", "memory") for o in outcomes) and large
    assert all("FLASH" in o.message for o in large)
    assert all(o.candidate.task.key == f"{256:016x}" for o in large)


FLASH = "[flash]\ncommand = ['flash', '{hex}', '{elf}']"


def test_a_real_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are flashed, and times are measured."""
    stand_in = FlashedBoard(monkeypatch)
    board = small_board(tmp_path / "real", "4M - 2K", FLASH)
    options = MeasureOptions(timeout=2.0, batch=32, repeat=5, min_repeat_ms=2)
    measurer = make_measurer(board, "serial:/dev/ttyNOWHERE", options)
    assert measurer.kind == "measured" and isinstance(measurer, FirmwareMeasurer)
    try:
        found = measured(measurer, planted(TASK, "right", "slower", "hang", "wrong", "scratch"))
    finally:
        stand_in.close()
    assert {b: o.status for b, o in found.items()} == {b: STATUS[b] for b in found}, found["hang"]
    right, slower = found["right"], found["slower"]
    assert right.seconds is not None and slower.seconds is not None
    assert 1e-6 < right.seconds < slower.seconds < 0.1 and len(right.times) == 5
    assert right.seconds == min(right.times) and right.conditions["number"] >= 2
    assert [Path(word).suffix for word in stand_in.flashed[0]] == ["", ".hex", ".elf"]


def test_the_network_on_a_real_board(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each project is flashed once, and its layers are timed by the board's counter."""
    stand_in = FlashedBoard(monkeypatch)
    monkeypatch.setattr(network, "NEAR", 10.0)  # of so few candidates none come close
    board = small_board(tmp_path / "real", "4M - 2K", FLASH)
    words = ["--runner", "serial:/dev/ttyNOWHERE", "--tasks", "1-2", "--trials", "6"]
    words += ["--min-repeat-ms", "2", "--repeat", "2"]
    try:
        assert tune(model, tmp_path / "j.jsonl", *words, board=str(board.folder)) == 0
    finally:
        stand_in.close()
    out, err = capsys.readouterr()
    assert "warning" not in err
    result = json.loads(out)
    found = records(tmp_path / "j.jsonl")
    alone = [r for r in found if r["kind"] == "measured"]
    inside = [r for r in found if r["kind"] == "network"]
    assert len(alone) == 6 and inside == found[6:] and len(inside) >= 2
    times = {(r["task"], r["template"], str(r["config"])): r["seconds"] for r in alone}
    for record in inside:
        assert "instructions" not in record["conditions"]
        same = times[record["task"], record["template"], str(record["config"])]
        assert record["seconds"] == pytest.approx(same, rel=0.05)
    # As many images as networks come last, each of a folder of its own.
    networks = [Path(argv[-1]) for argv in stand_in.flashed if argv[-1].endswith("_firmware.elf")]
    assert 2 <= len(networks) == len(result["network_ms"]) == len({p.parent for p in networks})


@pytest.mark.parametrize(
    ("board", "runner", "message"),
    [
        ("mps2-an386", "ssh://pi@somewhere", "is a microcontroller, which runner"),
        ("mps2-an386", "local", "is a microcontroller, which runner"),
        ("mps2-an386", "serial:/dev/ttyUSB7", "no .flash. command"),
        ("cortex-m4", "serial:/dev/ttyUSB7", "no .flash. command"),
        ("cortex-m4", None, "which serial port"),
        ("cortex-m4", "qemu", "has no emulator"),
    ],
)
def test_no_place_to_measure(board: str, runner: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_measurer(load_board(board), runner, QUICK)


def test_a_board_without_start_up_code() -> None:
    with pytest.raises(UsageError, match="no start-up code and linker script"):
        FirmwareBuilder(load_board("cortex-m4"))


# ---- models --------------------------------------------------------------------------------------


def tune(model: Path, journal: Path, *words: str, board: str = M4.name) -> int:
    return call(
        ["tune", str(model), "--board", board, "--journal", str(journal), "--tuner", "random"]
        + [*words, "--json"]
    )


def test_keyword_spotting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs write the same journal, and compile takes the best from it."""
    model = require_shared("models/mlperf_tiny/kws_ref_model.tflite")
    journals = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for journal in journals:
        assert tune(model, journal, "--tasks", "1-2", "--trials", "6") == 0
    result = json.loads(capsys.readouterr().out.split("\n}\n")[0] + "\n}")
    assert records(journals[0]) == records(journals[1])
    assert {r["kind"] for r in records(journals[0])} == {"modelled", "network"}
    assert all(task["seconds"] <= task["default_seconds"] for task in result["tasks"])
    found = [r for r in records(journals[0]) if r["kind"] == "network"]
    assert len({r["task"] for r in found}) == 2 and 2 <= len(result["network_ms"]) <= 3
    alone = {(r["task"], r["template"], str(r["config"])): r for r in records(journals[0])[:6]}
    for record in found:
        assert record["conditions"]["instructions"] == pytest.approx(record["seconds"] / 1e-8)
        # The same kernel on the same extents: what the trace hook adds is little.
        same = alone[record["task"], record["template"], str(record["config"])]
        assert 0 <= record["seconds"] - same["seconds"] < 400e-8
    assert min(result["network_ms"]) < 2.87e6 * 1e-5
    project = aotgen.compile(
        model, board=M4.name, journal=str(journals[0]), output=tmp_path / "project"
    )
    assert project.manifest["tuning"]["tuned"] == 2


def test_vector_extension(tmp_path: Path, model: Path) -> None:
    journal = tmp_path / "j.jsonl"
    assert tune(model, journal, "--trials", "6", "--tasks", "1-3", board="mps3-an547") == 0
    found = records(journal)
    assert len(found) == 6 and {r["status"] for r in found} == {"ok"}
    assert any(r["template"].startswith("int8_mve") for r in found)


KILLED = """
import os, signal, sys
from aotgen.cli.main import call
from aotgen.tune.journal import Journal

append = Journal.append

def last(journal, records):
    append(journal, records)
    os.kill(os.getpid(), signal.SIGKILL)

Journal.append = last
sys.exit(call(sys.argv[1:]))
"""
"""``aotgen`` that is killed when a first part is in the journal."""


def test_a_run_that_was_killed_goes_on(tmp_path: Path, model: Path) -> None:
    whole, journal = tmp_path / "whole.jsonl", tmp_path / "j.jsonl"
    words = ("--trials", "10", "--tasks", "1-2")
    assert tune(model, whole, *words) == 0
    argv = [sys.executable, "-c", KILLED, "tune", str(model), "--board", M4.name]
    argv += ["--journal", str(journal), "--tuner", "random", *words, "--quiet"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert 0 < len(records(journal)) < 10
    assert tune(model, journal, *words) == 0
    assert records(journal) == records(whole)
