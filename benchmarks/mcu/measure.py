#!/usr/bin/env python3
"""Models on emulated Cortex-M boards: instructions an inference, flash, RAM and stack, and whether
the output is TFLite Micro's, beside what TFLite Micro with CMSIS-NN takes there.

usage: measure.py [--board B]... [--optimize O] [-O LEVEL] [--layers] [--registers] [--json F]
                  [--folder MODELS] [MODEL or FILE ...]

Counts are executed instructions under QEMU's -icount, not cycles: exact, the same in every run.
Flash and RAM are those of the linked image less those of the same firmware without a model; RAM has
the arena with the input and output, not the stack. ``--registers`` also counts LDM, STM, VLDM,
VSTM, LDRD and STRD once for each register that they move.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aotgen
from aotgen.codegen.environment import render
from aotgen.manifest import Manifest, read_manifest
from aotgen.resources import board_support_dir
from aotgen.runner.qemu_plugin import plugin_words, read_log
from aotgen.runner.qemu_system import EMULATOR
from aotgen.target.board import Board, load_board
from aotgen.target.toolchain import require_tool

HERE = Path(__file__).parent
FIRMWARE = HERE / "firmware"
RIVALS = json.loads((HERE / "rivals.json").read_text())
MODELS = tuple(RIVALS["models"])
BOARDS = ("mps2-an386", "mps2-an500", "mps3-an547")
TICKS_PER_INSTRUCTION = {"mps2-an386": 1.6, "mps2-an500": 1.6, "mps3-an547": 1.28}
"""``-icount shift=6``: an instruction takes 64 ns; the counters run at 25 and 20 MHz."""

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror")
SHARED_FILES = (
    "firmware/aot_core.c",
    "firmware/aot_core.h",
    "firmware/aot_hal.h",
    "runtime/count_region.h",
)
SECTIONS = ("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")


@dataclass
class Measured:
    """One model on one board; sizes in bytes.

    Attributes:
        instructions: of the first input's inference.
        by_register: the same with transfers of several registers counted by register; 0: unknown.
        flash: image less the firmware's own.
        code: of ``flash`` what is no constant of the model.
        ram: likewise, without the stack; the arena is in it, with slots for input and output.
        own: of the arena, what is needed where the caller has memory for those.
        layers: instructions by layer; empty unless asked for.
        equal: whether every input's output is the reference's, None without a reference.
    """

    model: str
    board: str
    optimize: str
    level: str
    instructions: int
    by_register: int
    flash: int
    code: int
    ram: int
    arena: int
    own: int
    stack: int
    layers: list[tuple[str, int]]
    equal: bool | None


def build(
    manifest: Manifest, board: Board, level: str, inputs: np.ndarray, folder: Path, trace: bool
) -> Path:
    """The measuring firmware around a project, ``level`` of optimisation for all C of it."""
    p, project = manifest.prefix, manifest.folder
    text = (FIRMWARE / "model.c.in").read_text()
    sizes = (manifest.inputs[0].nbytes, manifest.outputs[0].nbytes)
    for key, value in {"@p@": p, "@P@": p.upper(), "@input_bytes@": str(sizes[0])}.items():
        text = text.replace(key, value)
    (folder / "model.c").write_text(text.replace("@output_bytes@", str(sizes[1])))
    sources = [
        *sorted(s for s in (project / "src").glob("*.c") if s.name != "aot_clock.c"),
        *(project / "src").glob("*.S"),
        folder / "model.c",
    ]
    more = [
        f"-I{project / 'include'}",
        f"-I{project / 'src'}",
        f'-D{p.upper()}_WEIGHTS_FILE="{project / "src/weights.bin"}"',
        *([f"-D{p.upper()}_TRACE"] if trace else []),
    ]
    return link(board, level, inputs, folder, sources, more)


def link(
    board: Board,
    level: str,
    inputs: np.ndarray,
    folder: Path,
    sources: Sequence[Path],
    more: Sequence[str] = (),
) -> Path:
    """main.c around sources that define model_api.h."""
    rows = ",\n".join("{" + ",".join(map(str, row)) + "}" for row in inputs.tolist())
    (folder / "inputs.h").write_text(
        "#include <stdint.h>\n"
        f"enum {{ INPUTS = {len(inputs)}, INPUT_BYTES = {inputs.shape[1]} }};\n"
        f"static const uint8_t inputs[INPUTS][INPUT_BYTES] = {{\n{rows}}};\n"
    )
    return link_image(board, level, folder, [*sources, FIRMWARE / "main.c"], more)


def link_image(
    board: Board, level: str, folder: Path, sources: Sequence[Path], more: Sequence[str] = ()
) -> Path:
    """firmware.elf in ``folder``: the sources behind the board's own start-up code."""
    image = folder / "firmware.elf"
    own = folder / "board"
    own.mkdir(exist_ok=True)
    texts = {name.rpartition("/")[2]: render(f"{name}.j2") for name in SHARED_FILES}
    for name, text in {**texts, **board.firmware.texts()}.items():
        (own / name).write_text(text)
    board_sources = [*sorted(own.glob("*.c")), board_support_dir() / "mps/semihosting.c"]
    command = [
        "arm-none-eabi-gcc",
        *board.cflags(),
        level,
        *WARNINGS,
        *SECTIONS,
        *(f"-I{place}" for place in (folder, own, FIRMWARE)),
        *more,
        *(str(s) for s in (*sources, FIRMWARE / "measure.c", *board_sources)),
        *("-nostartfiles", "--specs=nano.specs", "--specs=nosys.specs"),
        *("-T", str(own / "linker.ld"), "-o", str(image), "-lm"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stderr[:3000]}\n{image} does not build")
    return image


def sizes(image: Path) -> tuple[int, int]:
    """(flash, RAM without the stack) of an image."""
    done = subprocess.run(
        ["arm-none-eabi-size", "-A", str(image)], capture_output=True, text=True, check=True
    )
    found: dict[str, int] = {}
    for words in map(str.split, done.stdout.splitlines()):
        if len(words) == 3 and words[0].startswith("."):
            found[words[0]] = int(words[1])
    kept = (".vectors", ".text", ".ARM.extab", ".ARM.exidx", ".data")
    return sum(found.get(s, 0) for s in kept), found.get(".data", 0) + found.get(".bss", 0)


def run(image: Path, board: Board, plugin: Path | None = None) -> list[tuple[str, str]]:
    """(key, value) of each line printed; ``plugin`` is the counting plugin's log."""
    command = [
        *(EMULATOR, "-M", board.emulated_machine, "-display", "none", "-monitor", "none"),
        *("-serial", "stdio", "-semihosting-config", "enable=on,target=native"),
        *("-kernel", str(image)),
    ]
    if plugin is None:
        command += ["-icount", "shift=6"]
    else:
        emulator = str(require_tool(EMULATOR, EMULATOR).path)
        command[1:1] = plugin_words(emulator, board.clusters[0], plugin)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800
    )
    if done.returncode != 0:
        sys.exit(f"{image}: status {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return [(key, value) for key, _, value in pairs]


def references(model: Path) -> tuple[np.ndarray, list[bytes] | None]:
    """Inputs as bytes [n, size], and the reference's outputs where they lie beside the model."""
    refs = model.parent / "refs"
    fed = refs / f"{model.stem}.in.bin"
    if not fed.is_file():
        return np.zeros((0, 0), np.uint8), None
    n = 3
    raw = np.fromfile(fed, np.uint8).reshape(n, -1)
    for suffix in (".ref214.bin", ".ref.bin"):  # 2.14's reference kernels equal TFLite Micro's
        path = refs / f"{model.stem}{suffix}"
        if path.is_file():
            data = path.read_bytes()
            return raw, [data[i * len(data) // n : (i + 1) * len(data) // n] for i in range(n)]
    return raw, None


def measure(
    model: Path, board: Board, optimize: str, level: str, layers: bool, registers: bool
) -> Measured:
    inputs, expected = references(model)
    with tempfile.TemporaryDirectory(prefix="mcu-") as name:
        folder = Path(name)
        aotgen.compile(model, board, folder / "project", optimize=optimize)
        manifest = read_manifest(folder / "project")
        if not len(inputs):
            rng = np.random.default_rng(1)
            inputs = rng.integers(0, 256, (1, manifest.inputs[0].nbytes)).astype(np.uint8)
        image = build(manifest, board, level, inputs, folder, False)
        lines = run(image, board)
        rate = TICKS_PER_INSTRUCTION[board.name]
        ticks = [round(int(v) / rate) for k, v in lines if k == "ticks"]
        got = [bytes.fromhex(v) for k, v in lines if k == "out"]
        stack = max(int(v) for k, v in lines if k == "stack")
        flash, ram = sizes(image)
        by_register = 0
        if registers:
            log = folder / "counts.jsonl"
            run(image, board, log)
            by_register = read_log(log, board, board.clusters[0])[0].instructions
        each: list[tuple[str, int]] = []
        if layers:
            traced = run(build(manifest, board, level, inputs, folder, True), board)
            counts = [round(int(v) / rate) for k, v in traced if k == "layer"]
            each = [
                (_describe(layer), count)
                for layer, count in zip(manifest.data["layers"], counts, strict=False)
            ]
        null = link(board, level, inputs, folder, [FIRMWARE / "null_model.c"])
        own_flash, own_ram = sizes(null)
        weights = int(manifest.data["weights_bytes"])
        equal = None if expected is None else _equal(got, expected, manifest)
        return Measured(
            model.stem, board.name, optimize, level, ticks[0], by_register, flash - own_flash,
            flash - own_flash - weights, ram - own_ram, int(manifest.data["arena_bytes"]),
            int(manifest.data["arena_own_bytes"]), stack,
            each, equal,
        )  # fmt: skip


def _equal(got: list[bytes], expected: list[bytes], manifest: Manifest) -> bool:
    if manifest.outputs[0].numpy.kind != "f":
        return got == expected
    pairs = zip(got, expected, strict=True)
    arrays = [(np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)) for a, b in pairs]
    return all(np.abs(a - b).max() <= 1e-4 * np.abs(b).max() for a, b in arrays)


def _describe(layer: dict[str, Any]) -> str:
    shape = "x".join(str(n) for n in layer["shape"])
    return f"{layer['op']} to {shape} ({layer['macs']} MACs) {layer['template']}"


def row(m: Measured) -> str:
    rival = RIVALS["models"].get(m.model, {})
    theirs = rival.get("instructions", {}).get(m.board)
    ratio = f"{m.instructions / theirs:.3f}" if theirs else ""
    macs = rival.get("macs")
    bound = rival.get("peak_live")
    limit = f" ({round(1.05 * bound + 1024)})" if bound else ""
    equal = {None: "", True: "yes", False: "NO"}[m.equal]
    cells = [
        m.model,
        m.board,
        f"{m.optimize} {m.level}",
        f"{m.instructions / 1e6:.4f}",
        f"{m.by_register / 1e6:.4f}" if m.by_register else "",
        f"{m.instructions / macs:.2f}" if macs else "",
        f"{theirs / 1e6:.4f}" if theirs else "",
        ratio,
        m.flash,
        m.code,
        f"{m.ram}{limit}",
        m.arena,
        f"{m.own} ({round(0.6 * bound)})" if bound else m.own,
        m.stack,
        equal,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--board", action="append", choices=BOARDS)
    parser.add_argument("--optimize", default="speed", choices=("speed", "ram", "flash"))
    parser.add_argument("-O", dest="level", default="2")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--registers", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, required=False)
    given = parser.parse_args()
    folder = given.folder or HERE.parents[2] / "shared/models/mlperf_tiny"
    print(
        "| model | board | built | M instructions | by register | a MAC | TFLM + CMSIS-NN | ratio |"
        " flash | code | RAM (limit) | arena | own (limit) | stack | equal |\n" + "|---" * 15 + "|"
    )
    found = []
    for name in given.models:
        path = Path(name) if Path(name).suffix else folder / f"{name}.tflite"
        for board in given.board or BOARDS:
            m = measure(
                path, load_board(board), given.optimize, f"-O{given.level}", given.layers,
                given.registers,
            )  # fmt: skip
            found.append(m)
            print(row(m), flush=True)
            for text, count in m.layers:
                print(f"    {count:10d}  {text}", flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(m) for m in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
