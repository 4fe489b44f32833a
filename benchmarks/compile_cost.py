"""What `aotgen compile` costs a fresh process for each network: time and peak memory.

Ends with status 1 when a network is over its limit.

usage: python benchmarks/compile_cost.py [NAME...] [--board host]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure
import networks

LIMITS = {"resnet50": (10.0, 1000.0), "vgg16": (40.0, 3000.0)}
"""Seconds and megabytes."""


def cost(model: Path, board: str, folder: Path) -> tuple[float, float, float]:
    """(seconds, seconds of processor time, peak MB) of one compilation."""
    command = [sys.executable, "-m", "aotgen", "compile", str(model), "--board", board]
    command += ["-o", str(folder)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"compiling {model.name} failed")
    seconds = time.perf_counter() - start
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def export(name: str, folder: Path) -> Path:
    """Like networks.export, in a process of its own.

    Linux counts the memory of the process that starts another into the other's peak, so this one
    must stay small.
    """
    command = [sys.executable, str(measure.HERE / "export_networks.py"), str(folder), name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / f"{name}.onnx"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks (default: all)")
    parser.add_argument("--board", default="host")
    options = parser.parse_args()
    over = []
    print(f"{measure.machine()}\n")
    print("| network | seconds | CPU seconds | peak MB | limit |")
    print("| --- | --: | --: | --: | --: |")
    for name in options.names or networks.NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            model = export(name, Path(folder))
            seconds, busy, peak = cost(model, options.board, Path(folder) / "project")
        limit = LIMITS.get(name)
        text = f"{limit[0]:.0f} s, {limit[1]:.0f} MB" if limit else ""
        print(f"| {name} | {seconds:.2f} | {busy:.2f} | {peak:.0f} | {text} |", flush=True)
        if limit and (seconds > limit[0] or peak > limit[1]):
            over.append(name)
    print(f"\nover their limit: {', '.join(over) or 'none'}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
