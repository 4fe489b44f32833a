"""The journal: appended, locked, mended, ranked."""

from __future__ import annotations

import json
import lzma
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from aotgen.errors import UsageError
from aotgen.tune.journal import Journal, Record, by_task, merged, read_journal, skipped_text
from aotgen.tune.ranking import ranked


def record(mr: int = 4, seconds: float | None = 1e-6, **more: object) -> Record:
    made = Record(
        "0123456789abcdef",
        "matmul_gemm",
        {"mr": mr, "order": "mn", "packed": True},
        "ok" if seconds is not None else "crash",
        seconds,
        kernel="ffff",
        features={"log2_macs": 12.5},
        date="2026-01-01T00:00:00+00:00",
    )
    return replace(made, **more)  # type: ignore[arg-type]


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    assert journal.records() == []
    first, second = record(), record(6, None, message='a "quoted" line, é')
    journal.append([first])
    journal.append([])
    journal.append([second])
    assert journal.records() == [first, second]
    assert journal.records()[0].point.config["packed"] is True
    lines = journal.path.read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["ok", "crash"]


def test_fields_of_other_versions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    data = {**json.loads(record().line()), "voltage": 1.1}
    path.write_text(json.dumps(data) + "\n")
    (found,) = Journal(path).records()
    assert found.extra == {"voltage": 1.1}
    assert json.loads(found.line()) == data


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
def test_a_torn_tail_is_cut_off(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.append([record(4), record(6)])
    data = journal.path.read_bytes()
    journal.path.write_bytes(data[:-cut])
    # Without its newline alone a record is whole.
    kept = [4, 6] if cut == 1 else [4]
    assert [r.config["mr"] for r in journal.records()] == kept
    assert journal.skipped == ()
    journal.append([record(8)])
    assert [r.config["mr"] for r in journal.records()] == [*kept, 8]
    assert journal.path.read_bytes().endswith(b"\n")


def test_lines_that_are_no_records_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    lines = [record().line(), "{broken", '{"task": 5}', record(6).line()]
    path.write_text("\n".join(lines) + "\n")
    records, skipped = read_journal(path)
    assert [r.config["mr"] for r in records] == [4, 6]
    assert skipped == (2, 3)
    assert skipped_text(path, skipped) == (
        f"{path}: 2 lines are no record and not used, the first is line 2"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": None},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"seconds": 10**400},
        {"seconds": 5e-324},
        {"seconds": True},
        {"times": [10**400]},
        {"times": [None]},
        {"status": "crash"},
        {"status": "odd"},
        {"kind": "guessed"},
        {"config": {"mr": [1]}},
        {"config": {"mr": 2**63}},
        {"macs": "many"},
        {"macs": 10**400},
        {"features": {"log2_macs": "many"}},
        {"features": {"log2_macs": float("inf")}},
        {"conditions": {"drift": None}},
        {"title": "\ud800"},
    ],
)
def test_records_that_make_no_sense(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Record.parse(json.dumps({**json.loads(record().line()), **change}))


def test_a_line_that_is_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(f"{'[' * 100_000}\n{record().line()}\n")
    assert read_journal(path) == ([record()], (1,))


def test_what_editors_do_to_a_file(tmp_path: Path) -> None:
    """A byte order mark, other ends of lines, none at the last one."""
    journal = Journal(tmp_path / "j.jsonl")
    text = f"\ufeff{record(4).line()}\r\n{record(6).line()}"
    for data in (text, text[: text.index("\r")]):
        journal.path.write_bytes(data.encode())
        count = len(journal.records())
        journal.append([record(8)])
        assert [r.config["mr"] for r in journal.records()] == [*[4, 6][:count], 8]
        assert journal.skipped == ()


def test_a_knob_of_any_name() -> None:
    point = Record.parse(record(config={"cls": 1, "a": 2}).line()).point
    assert point.config.as_dict() == {"a": 2, "cls": 1}


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "."])
def test_what_is_no_file(path: str) -> None:
    with pytest.raises(UsageError, match=r"no regular file|a folder"):
        read_journal(Path(path))
    with pytest.raises(UsageError, match=r"no regular file|a folder"):
        Journal(Path(path)).append([record()])
    with pytest.raises(UsageError, match="cannot read journal"):
        read_journal(Path("x" * 300))


def test_a_journal_is_replaced_while_another_process_waits_to_append(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.append([record(4)])
    with ThreadPoolExecutor(1) as pool:
        with journal.locked():
            late = pool.submit(Journal(journal.path).append, [record(8)])
            time.sleep(0.1)
            assert journal.records() == [record(4)]
            other = tmp_path / "other"
            other.write_text(f"{record(6).line()}\n")
            other.replace(journal.path)
        late.result()
    assert [r.config["mr"] for r in journal.records()] == [6, 8]


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF")
    with pytest.raises(UsageError, match=r"photo\.jpg is no journal"):
        Journal(path).records()
    with pytest.raises(UsageError, match=r"photo\.jpg is no journal"):
        Journal(path).append([record()])
    assert path.read_bytes() == b"\xff\xd8\xff\xe0\0\x10JFIF"
    with pytest.raises(UsageError, match="there is no journal"):
        read_journal(tmp_path / "gone.jsonl")
    with pytest.raises(UsageError, match="cannot write journal"):
        Journal(path / "j.jsonl").append([record()])
    Journal(tmp_path / "new" / "folder" / "j.jsonl").append([record()])
    assert len(read_journal(tmp_path / "new" / "folder" / "j.jsonl")[0]) == 1


def test_compressed_journals_are_read_only(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl.xz"
    path.write_bytes(lzma.compress(f"{record().line()}\n".encode()))
    assert Journal(path).records() == [record()]
    with pytest.raises(UsageError, match="can only be read"):
        Journal(path).append([record()])


def _append_many(path: Path, first: int) -> None:
    journal = Journal(path)
    for i in range(40):
        journal.append([record(first + i, message="x" * (17 * i)), record(first + i)])


def test_two_processes_append(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(path, first)) for first in (0, 1000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    journal = Journal(path)
    found = [r.config["mr"] for r in journal.records()]
    assert journal.skipped == ()
    assert sorted(found) == sorted([*range(40), *range(1000, 1040)] * 2)
    # One append is one piece.
    assert all(a == b for a, b in zip(found[::2], found[1::2], strict=True))


def test_measured_times_go_before_modelled_ones() -> None:
    emulated = record(8, 1e-12, kind="emulated")
    modelled = record(4, 1e-9, kind="modelled")
    measured = record(6, 2e-6)
    assert [r.record for r in ranked([emulated])] == [emulated]
    assert [r.record for r in ranked([emulated, modelled])] == [modelled]
    assert [r.record for r in ranked([modelled, measured, emulated])] == [measured]


def test_times_in_the_network_decide() -> None:
    alone = [record(4, 1.0e-6), record(6, 1.1e-6), record(8, 1.2e-6), record(12, 0.9e-6)]
    inside = [record(4, 2.0e-6, kind="network"), record(6, 1.9e-6, kind="network")]
    found = ranked([*alone, *inside])
    # 8 and 12 never ran there: by the ratio of those that did, the upper median of 1.73 and 2.
    assert [r.record.config["mr"] for r in found] == [12, 6, 4, 8]
    assert found[0].seconds == pytest.approx(0.9e-6 * 2)
    assert found[1].seconds == 1.9e-6
    assert found[1].alone == 1.1e-6


def test_what_an_emulator_counts_in_the_network_is_modelled() -> None:
    """It decides between modelled times, and is nothing beside those of a board."""
    alone = [record(4, 1.0e-6, kind="modelled"), record(6, 1.1e-6, kind="modelled")]
    counts = {"instructions": 100.0}
    inside = [
        record(4, 2.0e-6, kind="network", conditions=counts),
        record(6, 1.9e-6, kind="network", conditions=counts),
    ]
    assert {r.source for r in (*alone, *inside)} == {"modelled"}
    assert [r.record for r in ranked([*alone, *inside])] == inside[::-1]
    emulated = record(8, 1e-12, kind="emulated")
    assert [r.record for r in ranked([*inside, emulated])] == inside[::-1]
    measured = record(12, 1e-3)
    assert measured.source == "measured"
    assert [r.record for r in ranked([*alone, *inside, measured])] == [measured]
    timed = record(16, 1e-3, kind="network")
    assert [r.record for r in ranked([*alone, *inside, timed])] == [timed]


def test_a_changed_kernel_replaces_its_times() -> None:
    old, new = record(4, 1e-6, kernel="a"), record(4, 3e-6, kernel="b")
    inside = record(4, 2e-6, kernel="a", kind="network")
    assert [r.record for r in ranked([old, inside, new])] == [new]
    assert [r.record.seconds for r in ranked([new, replace(new, seconds=2e-6)])] == [2e-6]


def test_merging_does_not_depend_on_the_order() -> None:
    late = record(4, date="2026-02-01T00:00:00+00:00")
    early, other = record(6), record(8, task="00")
    assert merged([[late, early], [other, early]]) == merged([[early, other], [late]])
    assert merged([[late, early], [other]]) == [other, early, late]
    assert list(by_task([late, other, early])) == [late.task, "00"]
