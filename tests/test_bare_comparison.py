"""``aotgen compare`` of microcontrollers: exact counts under QEMU; at serial ports times in turns
on several boards, or one after the other on one. QEMU stands for real boards, whose clock is its
own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import aotgen
from aotgen.bare_comparison import SEQUENCE_WARNING
from aotgen.cli.main import call
from aotgen.comparison import INSTRUCTIONS, MIN_MS, Comparison, compare
from aotgen.counting import whole_instructions
from aotgen.errors import UsageError
from aotgen.runner.qemu_system import EMULATOR, INSTRUCTION_NS, QemuMachine
from aotgen.target.board import load_board
from support import require_tool
from tests.runner.serial_boards import FlashedBoard, int8_model

BOARD = "mps2-an386"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[aotgen.Project]:
    """The same model for speed and for little flash."""
    require_tool("cmake", "arm-none-eabi-gcc", EMULATOR)
    folder = tmp_path_factory.mktemp("bare")
    (folder / "m.tflite").write_bytes(int8_model(channels=16))
    return [
        aotgen.compile(folder / "m.tflite", board=BOARD, output=folder / name, optimize=name)
        for name in ("speed", "flash")
    ]


@pytest.fixture(scope="module")
def counted(pair: list[aotgen.Project]) -> Comparison:
    return compare(pair)


def instructions(found: Comparison) -> list[int]:
    return [entry.cost.counts.instructions for entry in found.entries if entry.cost]


def test_counts_are_exact(pair: list[aotgen.Project], counted: Comparison) -> None:
    """The same in each run, to the instruction, in whatever order."""
    assert (counted.by, counted.runner, counted.rounds) == (INSTRUCTIONS, "qemu", 0)
    fast, small = instructions(counted)
    assert 10_000 < fast < small
    assert counted.ratios == (1.0, small / fast)
    again = compare([pair[1], pair[0], pair[1]], "qemu")
    assert instructions(again) == [small, fast, small]


@pytest.mark.parametrize("tick_ns", [40, 50])
def test_ticks_tell_instructions(tick_ns: int) -> None:
    """All phases in which a run may begin: what a clock that is read before and behind tells."""
    for count in range(1000, 1200):
        ends = [(phase, phase + count * INSTRUCTION_NS) for phase in range(0, tick_ns, 2)]
        ticks = [end // tick_ns - start // tick_ns for start, end in ends]
        assert whole_instructions(ticks, tick_ns, INSTRUCTION_NS) == count


def test_the_command_line(
    pair: list[aotgen.Project], counted: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(project.folder) for project in pair]
    assert call(["compare", *folders]) == 0
    header, fast, small, _, told, _, last = capsys.readouterr().out.splitlines()
    assert header.split() == ["project", "M", "instr", "ratio"]
    millions = [f"{count / 1e6:.3f}" for count in instructions(counted)]
    ratio = f"{counted.ratios[1]:.3f}"
    assert [fast.split(), small.split()] == [
        [folders[0], millions[0], "1.000"],
        [folders[1], millions[1], ratio],
    ]
    assert told == "one run counted on cortex-m4, qemu; instructions, no cycles"
    assert last == f"{folders[1]}: {ratio}x the instructions of {folders[0]}"
    assert call(["compare", *folders, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["by"] == INSTRUCTIONS
    assert [p["instructions"] for p in data["projects"]] == instructions(counted)


@pytest.fixture
def boards(pair: list[aotgen.Project]) -> Iterator[list[str]]:
    """A board for each project, at a serial port of its own, which runs its firmware."""
    machines = [QemuMachine(p.board, p.firmware().program("firmware")) for p in pair]
    try:
        specs = []
        for machine in machines:
            assert machine.port is not None
            specs.append(f"serial:{machine.port.name}")
            machine.port.close()
        yield specs
    finally:
        for machine in machines:
            machine.close()


def test_a_board_for_each_project(
    pair: list[aotgen.Project], boards: list[str], counted: Comparison
) -> None:
    found = compare(pair, ",".join(boards), rounds=2, number=1)
    assert (found.by, found.rounds, found.in_turns, found.warnings) == (MIN_MS, 2, True, ())
    assert found.runner == ",".join(boards)
    for entry, count in zip(found.entries, instructions(counted), strict=True):
        assert entry.min_ms == pytest.approx(count * INSTRUCTION_NS * 1e-6, rel=1e-3)
    spread = found.spread(1)
    assert spread is not None and spread[0] == pytest.approx(counted.ratios[1], rel=1e-3)


def test_ports_in_the_wrong_order_are_told(
    pair: list[aotgen.Project], boards: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(project.folder) for project in pair]
    assert call(["compare", *folders, "--runner", ",".join(reversed(boards))]) == 3
    assert "not the firmware of" in capsys.readouterr().err


def with_flash(project: aotgen.Project, *command: str) -> aotgen.Project:
    board = replace(load_board(BOARD), flash_command=command)
    return aotgen.Project(project.folder, board)


def test_one_board_is_flashed_with_each(
    pair: list[aotgen.Project], counted: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each, and that they were not timed in turns is told."""
    board = FlashedBoard(monkeypatch)
    projects = [with_flash(p, "flash", "--port={port}", "{elf}") for p in pair]
    try:
        found = compare(projects, "serial:/dev/ttyNOWHERE", rounds=3, number=1)
    finally:
        board.close()
    assert (found.rounds, found.in_turns, found.spread(1)) == (3, False, None)
    assert found.warnings == (SEQUENCE_WARNING,)
    assert found.ratios[1] == pytest.approx(counted.ratios[1], rel=1e-3)
    assert found.as_dict()["in_turns"] is False
    elves = [p.firmware().program("firmware") for p in pair]
    assert board.flashed == [["flash", "--port=/dev/ttyNOWHERE", str(elf)] for elf in elves]


def test_mistakes(pair: list[aotgen.Project], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds one image, and board mps2-an386 has no \[flash\]"):
        compare(pair, "serial:/dev/ttyNOWHERE")
    with pytest.raises(UsageError, match="names 3 places for 2 projects"):
        compare(pair, "serial:/dev/a,serial:/dev/b,serial:/dev/c")
    with pytest.raises(UsageError, match="names 2 places"):
        compare(pair, "serial:/dev/a,qemu")
    with pytest.raises(UsageError, match="names a board twice"):
        compare(pair, "serial:/dev/a,serial:/dev/a")
    with pytest.raises(UsageError, match="microcontroller, which runner 'local' does not reach"):
        compare(pair, "local")
    with pytest.raises(UsageError, match="compiled for"):
        compare(pair, threads=2)
    with pytest.raises(UsageError, match="rounds must be at most 1000000"):
        compare(pair, rounds=1 << 32)
    (tmp_path / "m.tflite").write_bytes(int8_model())
    for name in ("mps3-an547", "rpi3b-armv7"):
        other = aotgen.compile(tmp_path / "m.tflite", board=name, output=tmp_path / name)
        with pytest.raises(UsageError, match=f"for {name}"):
            compare([pair[0], other])


@pytest.mark.parametrize("number", ["4294967295", "1000001", "0", "-1"])
def test_senseless_numbers_end_before_anything_runs(
    number: str, pair: list[aotgen.Project], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing listens at this port."""
    folder = str(pair[0].folder)
    for words in (["bench", folder], ["compare", folder, str(pair[1].folder)]):
        words += ["--runner", "serial:/dev/ttyNOWHERE", "--number", number]
        assert call(words) == 2
        limit = "at least 1" if int(number) < 1 else "at most 1000000"
        assert f"number must be {limit}, not {number}" in capsys.readouterr().err


def test_long_repeats_are_asked_for_in_pieces(
    pair: list[aotgen.Project], boards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request takes some seconds at most, and their sum is the repeat's time."""
    from aotgen.runner import serial_model

    whole = pair[0].bench(number=25, repeat=1, runner=boards[0])
    monkeypatch.setattr(serial_model, "_REQUEST_S", 4 * whole.min_ms / 1e3)
    pieces = pair[0].bench(number=25, repeat=1, runner=boards[0])
    assert pieces.min_ms == pytest.approx(whole.min_ms, rel=1e-4)
