#!/usr/bin/env python3
"""Executed instructions an inference of float32 and int8 networks on emulated ARM cores.

usage: arm_instructions.py [--float] --plugin LIBRARY [--layers N] [--folder F] [--compiler C]
                           [--networks NAME ...] [BOARD ...]

LIBRARY is a plugin for qemu-aarch64 that counts instructions between `hint #0x50` and `hint #0x51`
and writes a JSON object a line with `region` and `insns` (options json=on, out=FILE). Boards: rpi4
(Cortex-A72), rpi5 (Cortex-A76, dot product). --float takes the float32 networks. --layers also
lists the N layers of most instructions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import int8_networks
import networks

import aotgen
from aotgen.builder import build_project
from aotgen.manifest import read_manifest
from aotgen.target.board import load_board

# Millions of instructions an inference, one thread, counted the same way on the same emulated
# cores: int8 LiteRT 2.3 with XNNPACK, float32 ncnn 1.0.20261020.
INT8_RIVAL = {
    "rpi4": {"mobilenet_v1": 174.6, "mobilenet_v2": 113.7, "resnet18": 578.4},
    "rpi5": {"mobilenet_v1": 64.0, "mobilenet_v2": 49.2, "resnet18": 171.5},
}
FLOAT_RIVAL = {"rpi4": {"mobilenet_v1": 173.2, "mobilenet_v2": 101.6, "resnet18": 239.6}}

DRIVER = r"""
#include "tool.h"
#define START() __asm__ volatile("hint #0x50" ::: "memory")
#define STOP() __asm__ volatile("hint #0x51" ::: "memory")
static void layer_done(void *user, int32_t layer, const @P@_view *view, uint64_t ticks)
{
    (void)user, (void)layer, (void)view, (void)ticks;
    STOP();
    START();
}
int main(int argc, char **argv)
{
    static @P@_ctx ctx;
    uint32_t seed = 1;
    (void)argv;
    if (!tool_open(&ctx, NULL, NULL, NULL)) return 1;
    for (size_t i = 0; i < TOOL_INPUT_BYTES; i++) {
        seed = seed * 1664525u + 1013904223u;
        tool_input_block()[i] = (unsigned char)(seed >> 24);
    }
    if (tool_run(&ctx)) return 1;
    if (argc > 1 && !tool_open(&ctx, NULL, layer_done, NULL)) return 1;
    START();
    if (tool_run(&ctx)) return 1;
    STOP();
    return 0;
}
"""


@dataclass
class Count:
    """Instructions of a run, and of each of its layers by name."""

    total: int
    layers: list[tuple[str, int]]


def measure(model: Path, board_name: str, folder: Path, plugin: Path, compiler: str) -> Count:
    """Compile, build and count one network."""
    board = load_board(board_name)
    project = folder / f"{model.stem}_{board_name}"
    aotgen.compile(model, board, project, force=True)
    manifest = read_manifest(project)
    built = build_project(manifest, board, compiler=compiler)
    driver = built.folder / "count.c"
    driver.write_text(DRIVER.replace("@P@", manifest.prefix))
    program = built.folder / "count"
    macro = manifest.prefix.upper()
    cc = f"{board.triple}-gcc"
    subprocess.run(
        [
            cc, "-O2", "-std=gnu99", *board.cflags("gcc"), f"-D{macro}_TRACE",
            f'-D{macro}_VECTORS="{project}/test/vectors.bin"',
            f'-D{macro}_WEIGHTS_PATH="{project}/src/weights.bin"',
            f"-I{project}/include", f"-I{project}/src", f"-I{project}/test",
            str(driver), *map(str, sorted((project / "test").glob("tool*.c"))),
            str(built.folder / f"lib{manifest.prefix}_trace.a"), str(built.library),
            "-o", str(program), "-lm",
        ],
        check=True,
    )  # fmt: skip
    total = _run(board.emulator, program, plugin, [])
    layers = _run(board.emulator, program, plugin, ["layers"])
    names = [_describe(layer) for layer in manifest.data["layers"]]
    # What runs behind the last layer's record is the way out of the function.
    return Count(total[0], list(zip(names, layers[:-1], strict=True)))


def _describe(layer: dict[str, Any]) -> str:
    shape = "x".join(str(n) for n in layer["shape"])
    return f"{layer['name']} {layer['op']} to {shape}: {layer['kernel']}"


def _run(emulator: tuple[str, ...], program: Path, plugin: Path, arguments: list[str]) -> list[int]:
    """Instructions of every marked region."""
    report = program.with_suffix(".json")
    report.unlink(missing_ok=True)
    loaded = f"{plugin},json=on,out={report}"
    argv = [emulator[0], "-plugin", loaded, *emulator[1:], str(program), *arguments]
    subprocess.run(argv, check=True)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    return [int(line["insns"]) for line in lines if line["region"] != "run"]


def _model(name: str, folder: Path, is_float: bool) -> Path:
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
    parser.add_argument("--plugin", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--compiler", default="gcc", choices=("gcc", "clang"))
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print("| board | network | aotgen, M | rival, M | ratio |")
    print("|---|---|---|---|---|")
    rivals = FLOAT_RIVAL if options.float else INT8_RIVAL
    for board in options.boards or rivals:
        for name in options.networks:
            model = _model(name, folder, options.float)
            count = measure(model, board, folder, options.plugin, options.compiler)
            rival = rivals[board][name]
            millions = count.total / 1e6
            print(f"| {board} | {name} | {millions:.1f} | {rival} | {millions / rival:.3f} |")
            for text, n in sorted(count.layers, key=lambda x: -x[1])[: options.layers]:
                print(f"    {n / 1e6:8.3f}  {text}")


if __name__ == "__main__":
    main()
