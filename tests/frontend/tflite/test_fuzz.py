"""Damaged files end in a graph or in one clear error, in bounded time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

COUNT = 2000
FAST = 200


def complaints(first: int, count: int) -> str:
    script = Path(__file__).parent / "mutants.py"
    done = subprocess.run(
        [sys.executable, str(script), str(first), str(count)],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::RuntimeWarning"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_damaged_files() -> None:
    assert complaints(0, FAST) == ""


@pytest.mark.slow
def test_many_damaged_files() -> None:
    assert complaints(FAST, COUNT - FAST) == ""
