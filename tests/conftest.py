"""Shared by all tests: says in pytest's header which tools outside Python are missing, and lets
ccache know that equal files in different folders of tests are equal.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest

TOOLS = (
    "cmake",
    "ninja",
    "gcc",
    "clang",
    "aarch64-linux-gnu-gcc",
    "qemu-aarch64",
    "arm-linux-gnueabihf-gcc",
    "qemu-arm",
)

CCACHE = {
    "CCACHE_BASEDIR": tempfile.gettempdir(),
    "CCACHE_NOHASHDIR": "1",
    "CCACHE_SLOPPINESS": "include_file_ctime,include_file_mtime",  # headers were just written
}


def pytest_configure() -> None:
    for name, value in CCACHE.items():
        os.environ.setdefault(name, value)


def pytest_report_header() -> str:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"tools missing: {', '.join(missing) or 'none'}"


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Programs that the test starts are ended by SIGINT and SIGHUP, also where this process was
    told to ignore them, as by nohup or a shell's ``&``.
    """
    numbers = (signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(n) for n in numbers]
    for number, handler in zip(numbers, before, strict=True):
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
