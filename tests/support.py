"""What the tests share: tools and packages that a test needs and a machine may lack."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest


def require_tool(*names: str) -> None:
    """Skip the test when a program is not installed; on CI (environment variable CI) fail."""
    _require([name for name in names if shutil.which(name) is None])


def require_module(*names: str) -> None:
    """Skip the test when a Python package is not installed; on CI fail."""
    _require([name for name in names if importlib.util.find_spec(name) is None])


def require(condition: bool, what: str) -> None:
    """Skip the test when ``what`` is not there; on CI fail."""
    _require([] if condition else [what])


def _require(missing: Sequence[str]) -> None:
    if not missing:
        return
    reason = f"not installed: {', '.join(missing)}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Tools and data that several checkouts share: a folder beside this one."""


def require_shared(name: str) -> Path:
    """A file or folder of ``SHARED``; skip the test when it is not there, on CI fail."""
    path = SHARED / name
    require(path.exists(), str(path))
    return path
