"""What `aotgen compile` costs: seconds and peak memory of a fresh process, for each network.

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

import networks


def cost(model: Path, board: str, folder: Path) -> tuple[float, float]:
    """(wall seconds, peak MB) of one compilation."""
    command = [sys.executable, "-m", "aotgen", "compile", str(model), "--board", board]
    start = time.perf_counter()
    command += ["-o", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"compiling {model.name} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(networks.NETWORKS), metavar="NAME")
    parser.add_argument("--board", default="host")
    options = parser.parse_args()
    print("| network | seconds | peak MB |\n| --- | --: | --: |")
    for name in options.names:
        model = networks.export(name, networks.cache_folder())
        with tempfile.TemporaryDirectory() as folder:
            seconds, peak = cost(model, options.board, Path(folder) / name)
        print(f"| {name} | {seconds:.2f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
