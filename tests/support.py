"""What the tests share: tools and packages that a test needs and a machine may lack."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def require_tool(*names: str) -> None:
    """Skip the test when a program is not installed; on CI (environment variable CI) fail."""
    _require([name for name in names if shutil.which(name) is None])


def require_module(*names: str) -> None:
    """Skip the test when a Python package is not installed; on CI fail."""
    _require([name for name in names if importlib.util.find_spec(name) is None])


@functools.cache
def _links_sanitizers(compiler: str, sanitizers: str) -> bool:
    argv = [compiler, f"-fsanitize={sanitizers}", "-x", "c", "-", "-o", "/dev/null"]
    return (
        subprocess.run(argv, input=b"int main(void) { return 0; }", capture_output=True).returncode
        == 0
    )


def require_sanitizers(compiler: str, sanitizers: str = "address,undefined") -> None:
    """Skip the test when a compiler or the libraries of its sanitizers, which some distributions
    have in a package of their own, are not installed; on CI fail.

    Args:
        sanitizers: as ``-fsanitize=`` has them.
    """
    require_tool(compiler)
    require(_links_sanitizers(compiler, sanitizers), f"the sanitizers of {compiler}")


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


SANITIZE_ALL = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

SANITIZE = (
    *SANITIZE_ALL,
    *("-fno-sanitize=null,object-size,pointer-overflow",),
    *("--param", "asan-instrumentation-with-call-threshold=0"),
)
"""GCC's flags for long programs of kernels. Without those three of the checks, whose errors the
address sanitizer sees at the access, and with its own checks in calls, compiling takes a third of
the time.
"""


def share(cases: Sequence[T], part: int, of: int = 2) -> list[T]:
    """One of ``of`` parts of the cases, in their order: drawn, so that it goes through all that the
    lists of cases loop over, and the same in each run.
    """
    order = list(range(len(cases)))
    random.Random(of).shuffle(order)
    return [cases[i] for i in sorted(order[part::of])]


def halves(first: str, second: str) -> list[Any]:
    """Parameters (place, part of ``share``) of two places that are alike: each has half of the
    cases, and the other half in the long sweeps.
    """
    return [
        pytest.param(name, part, marks=[pytest.mark.slow] if part != own else [])
        for own, name in enumerate([first, second])
        for part in range(2)
    ]


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
