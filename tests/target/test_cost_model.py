"""The table cost_model of board.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotgen.errors import UsageError
from aotgen.target.board import load_board
from aotgen.target.cost_model import CLASSES

TABLE = (
    "\n[clusters.cost_model]\nissue_width = 2\noverlap = 0.5\nl1_miss = 3.5\nl2_miss = 10\n"
    "[clusters.cost_model.cycles]\n" + "".join(f"{name} = 1\n" for name in CLASSES)
)


def board_toml(folder: Path, table: str) -> Path:
    cluster = (
        'isa = "neon"\n[[clusters]]\ncore = "mine"\ncount = 1\nclock_mhz = 1000\n'
        "l1_bytes = 32768\nl2_bytes = 262144\nl2_ways = 8\nline_bytes = 32\n"
    )
    path = folder / "board.toml"
    path.write_text(cluster + table)
    return path


def test_a_table_is_read(tmp_path: Path) -> None:
    (cluster,) = load_board(board_toml(tmp_path, TABLE)).clusters
    model = cluster.cost_model
    assert model is not None
    assert (model.issue_width, model.overlap, model.l1_miss, model.l2_miss) == (2, 0.5, 3.5, 10)
    assert model.cycles == dict.fromkeys(CLASSES, 1.0)
    assert (cluster.l2_ways, cluster.line_bytes) == (8, 32)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("fma = 1\n", "", "cost_model of mine: cycles: fma missing"),
        ("fma = 1\n", "fma = 1\nfmla = 1\n", "cycles: fmla unknown; it has fma, dot"),
        ("fma = 1\n", "fma = -1\n", "fma must be a number of at least 0, not -1"),
        ("fma = 1\n", "fma = true\n", "fma must be a number"),
        ("l1_miss = 3.5\n", "", "l1_miss missing"),
        ("l1_miss = 3.5\n", "l1_miss = nan\n", "l1_miss must be a number"),
        ("overlap = 0.5", "overlap = 1.5", "overlap must be at most 1"),
        ("issue_width = 2", "issue_width = 0", "issue_width must be more than 0"),
        ("[clusters.cost_model.cycles]", "[clusters.cost_model.cycle]", "cycles must be a table"),
        (TABLE, "cost_model = 3\n", "cost_model must be a dict"),
    ],
)
def test_what_is_wrong_with_a_table(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = board_toml(tmp_path, TABLE.replace(old, new))
    with pytest.raises(UsageError, match=words):
        load_board(path)


@pytest.mark.parametrize("name", ["rk3399", "rpi4", "rpi5"])
def test_peaks_are_those_of_the_board(name: str) -> None:
    """A core that multiplies and adds four floats a time reaches its flops_per_cycle."""
    board = load_board(name)
    model = board.clusters[0].cost_model
    assert model is not None
    assert 8 / model.cycles["fma"] == board.clusters[0].flops_per_cycle


def test_in_order_cores_have_none() -> None:
    assert load_board("rk3399").clusters[1].cost_model is None
    assert load_board("rpi3b").clusters[0].cost_model is None
