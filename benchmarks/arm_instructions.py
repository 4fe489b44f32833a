#!/usr/bin/env python3
"""Executed instructions an inference of float32 and int8 networks on emulated ARM cores.

usage: arm_instructions.py [--float] [--layers N] [--folder F] [--compiler C] [--journal J]
                           [--networks NAME ...] [BOARD ...]

Boards: rpi4 (Cortex-A72), rpi5 (Cortex-A76, dot product). --float takes the float32 networks.
--layers also lists the N layers of most instructions. Misses are of the board's caches, simulated;
times are those of its cost model, no measurements.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import int8_networks
import networks

import aotgen
from aotgen.builder import build_project
from aotgen.counting import RunCost, count_run
from aotgen.manifest import read_manifest
from aotgen.runner.qemu import QemuRunner
from aotgen.target.board import load_board

TIMEOUT_S = 3600.0

# Millions of instructions an inference, one thread, counted the same way on the same emulated
# cores: int8 LiteRT 2.3 with XNNPACK, float32 ncnn 1.0.20261020.
INT8_RIVAL = {
    "rpi4": {"mobilenet_v1": 174.6, "mobilenet_v2": 113.7, "resnet18": 578.4},
    "rpi5": {"mobilenet_v1": 64.0, "mobilenet_v2": 49.2, "resnet18": 171.5},
}
FLOAT_RIVAL = {"rpi4": {"mobilenet_v1": 173.2, "mobilenet_v2": 101.6, "resnet18": 239.6}}


def measure(
    model: Path,
    board_name: str,
    folder: Path,
    compiler: str,
    layers: bool,
    journal: str | None = None,
) -> tuple[RunCost, list[str]]:
    """What one run executes, and descriptions of the layers; ``journal`` as for ``compile``."""
    board = load_board(board_name)
    project = folder / f"{model.stem}_{board_name}"
    aotgen.compile(model, board, project, journal=journal, force=True)
    manifest = read_manifest(project)
    program = build_project(
        manifest, board, compiler=compiler, targets=[f"{manifest.prefix}_bench"]
    )
    place = QemuRunner(board)
    bench = program.program("bench")
    cost = count_run(place, bench, [], board.clusters[0], TIMEOUT_S, layers)
    return cost, [_describe(layer) for layer in manifest.data["layers"]]


def _describe(layer: dict[str, Any]) -> str:
    shape = "x".join(str(n) for n in layer["shape"])
    return f"{layer['name']} {layer['op']} to {shape}: {layer['kernel']}"


def model_file(name: str, folder: Path, is_float: bool) -> Path:
    """A network's file in ``folder``, written where there is none."""
    model = folder / f"{name}{'.onnx' if is_float else '.tflite'}"
    if not model.is_file():
        if is_float:
            networks.export(name, folder)
        else:
            int8_networks.export(name, folder)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("boards", nargs="*", metavar="BOARD")
    parser.add_argument("--networks", nargs="+", default=list(int8_networks.NETWORKS))
    parser.add_argument("--float", action="store_true", help="float32 networks")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--compiler", default="gcc", choices=("gcc", "clang"))
    parser.add_argument("--journal", help="as for `aotgen compile`; none: untuned")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print("| board | network | aotgen, M | rival, M | ratio | L1, M | L2, M misses | modelled ms |")
    print("|---|---|---|---|---|---|---|---|")
    rivals = FLOAT_RIVAL if options.float else INT8_RIVAL
    for board in options.boards or rivals:
        for name in options.networks:
            model = model_file(name, folder, options.float)
            cost, names = measure(
                model, board, folder, options.compiler, options.layers > 0, options.journal
            )
            rival = rivals[board][name]
            millions = cost.counts.instructions / 1e6
            misses = f"{cost.counts.l1_misses / 1e6:.2f} | {cost.counts.l2_misses / 1e6:.2f}"
            ratio = f"{millions:.1f} | {rival} | {millions / rival:.3f}"
            print(f"| {board} | {name} | {ratio} | {misses} | {cost.modelled_ms or 0.0:.1f} |")
            rows = [
                (layer.instructions, text) for layer, text in zip(cost.layers, names, strict=False)
            ]
            for n, text in sorted(rows, key=lambda row: -row[0])[: options.layers]:
                print(f"    {n / 1e6:8.3f}  {text}")


if __name__ == "__main__":
    main()
