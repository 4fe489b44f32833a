"""What the tests share: tools and packages that a test needs and a machine may lack."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
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


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of its own that all may write to; needs root.

    Args:
        size: as mount has it: "2m".
    """
    place = Path(tempfile.mkdtemp(prefix="small-"))
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "none", str(place)]
    try:
        mounted = subprocess.run(argv, capture_output=True).returncode == 0
        require(mounted, "the right to mount a tmpfs")
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
    finally:
        place.rmdir()
