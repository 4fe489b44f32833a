"""The journals that boards ship: modelled, for the core they were modelled for, and used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.options import CompileOptions
from aotgen.resources import board_support_dir
from aotgen.target.board import Board, load_board
from aotgen.tune.apply import BOARD_JOURNALS, open_journal
from aotgen.tune.journal import Record, by_task
from aotgen.tune.run import Tunable
from aotgen.tune.schedules import holds
from benchmarks.networks import NETWORKS, build

BOARDS = ("rk3399", "rpi4")
TUNED = ("mobilenet_v1", "mobilenet_v2", "resnet18")


def records_of(board: Board) -> list[Record]:
    found = open_journal(None, board)
    assert found is not None and found.skipped == 0
    return list(found.records)


def model_file(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    path.write_bytes(build(name).SerializeToString())
    return path


@pytest.fixture(scope="module")
def cheap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_file("mobilenet_v1", tmp_path_factory.mktemp("networks"))


@pytest.mark.parametrize("name", BOARDS)
def test_records_are_of_the_core_and_modelled(name: str) -> None:
    board = load_board(name)
    records = records_of(board)
    core = board.target().core
    assert core == "cortex-a72"
    for record in records:
        assert (record.status, record.kind, record.board) == ("ok", "modelled", name)
        assert record.core == core and f"target neon {core} " in record.text
        assert hashlib.sha256(record.text.encode()).hexdigest()[:16] == record.task
        assert record.seconds is not None and record.kernel
        # An instruction multiplies four floats at most, and saves no more than Winograd's F(4x4).
        assert record.conditions["instructions"] > record.macs / 4 / 4
    places = [(r.task, r.point) for r in records]
    assert len(set(places)) == len(places)
    assert all(len(own) <= 2 for own in by_task(records).values())


def test_only_boards_with_a_cost_model_have_one() -> None:
    for folder in sorted(p for p in board_support_dir().iterdir() if (p / "board.toml").is_file()):
        ships = any((folder / name).is_file() for name in BOARD_JOURNALS)
        assert ships == (folder.name in BOARDS)
        if ships:
            assert load_board(folder.name).clusters[0].cost_model is not None


def test_both_boards_have_the_same_configs() -> None:
    first, second = ({(r.task, r.point) for r in records_of(load_board(n))} for n in BOARDS)
    assert first == second


@pytest.mark.parametrize("name", BOARDS)
def test_tasks_are_those_of_a_network(cheap: Path, name: str) -> None:
    board = load_board(name)
    titles = {r.task: r.title for r in records_of(board)}
    tasks = {t.key: t.title for t in Tunable(cheap, board, CompileOptions()).tasks}
    shared = titles.keys() & tasks.keys()
    assert shared and all(titles[key] == tasks[key] for key in shared)


def test_compile_uses_it_and_says_so(
    cheap: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", str(cheap), "--board", "rpi4", "--force", "-o", str(tmp_path / "out")]
    assert call(words) == 0
    first = capsys.readouterr().out.splitlines()[0]
    tuning = aotgen.Project(tmp_path / "out").manifest["tuning"]
    assert tuning["tuned"] == tuning["modelled"] > 0
    assert first.startswith(f"tuned {tuning['tuned']} (modelled), transferred ")
    assert call([*words, "--journal", "none"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert aotgen.Project(tmp_path / "out").manifest["tuning"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", BOARDS)
def test_no_record_is_stale(tmp_path: Path, name: str) -> None:
    board = load_board(name)
    records = by_task(records_of(board))
    stale: list[str] = []
    seen: set[str] = set()
    for network in TUNED:
        assert network in NETWORKS
        for task in Tunable(model_file(network, tmp_path), board, CompileOptions()).tasks:
            if task.key not in seen:
                seen.add(task.key)
                own = records.get(task.key, [])
                stale += [f"{task.title}: {r.template}" for r in own if not holds(task, r)]
    gone = sorted(records.keys() - seen)
    assert not gone, f"{len(gone)} of {len(records)} tasks are no network's any more"
    total = sum(map(len, records.values()))
    assert not stale, (
        f"{len(stale)} of {total} records are stale, which compile passes over:"
        f" run benchmarks/board_journals.py record\n" + "\n".join(stale)
    )
