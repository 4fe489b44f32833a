"""Shared by all tests: says in pytest's header which tools outside Python are missing."""

from __future__ import annotations

import shutil

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


def pytest_report_header() -> str:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"tools missing: {', '.join(missing) or 'none'}"
