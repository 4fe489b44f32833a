#!/usr/bin/env python3
"""Several models as one bundle on an emulated Cortex-M board: the code of all, the instructions of
each, and whether the outputs are the reference's while the models take turns in one arena.

usage: bundle.py [--board B] [--optimize O] [-O LEVEL] [--symbols] [--folder MODELS] [MODEL ...]

Code is the linked image less that of the same firmware without models, less the weights.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import aotgen
from aotgen.manifest import Manifest
from aotgen.options import as_optimize
from aotgen.target.board import Board, load_board

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.mcu.measure import (  # noqa: E402
    BOARDS,
    FIRMWARE,
    TICKS_PER_INSTRUCTION,
    link_image,
    references,
    run,
    sizes,
)

MODELS = ("kws_ref_model", "pretrainedResnet_quant", "vww_96_int8", "ad01_int8")


def table(manifests: Sequence[Manifest], inputs: Sequence[np.ndarray], folder: Path) -> Path:
    """bundle_table.c: the models and their inputs; bundle_inputs.h beside it."""
    (folder / "bundle_inputs.h").write_text(f"enum {{ INPUTS = {len(inputs[0])} }};\n")
    text, rows = '#include "bundled_model.h"\n', []
    for manifest, fed in zip(manifests, inputs, strict=True):
        p = manifest.prefix
        data = ",".join(map(str, fed.reshape(-1).tolist()))
        text += (
            f"int {p}_bundled_init(void);\nint {p}_bundled_run(void);\n"
            f"uint8_t *{p}_bundled_input(void);\nconst uint8_t *{p}_bundled_output(void);\n"
            f"static const uint8_t {p}_inputs[{fed.size}] = {{{data}}};\n"
        )
        rows.append(
            f'{{"{p}", {p}_bundled_init, {p}_bundled_run, {p}_bundled_input, {p}_bundled_output,'
            f" {p}_inputs, {manifest.inputs[0].nbytes}u, {manifest.outputs[0].nbytes}u}}"
        )
    text += f"const bundled_model bundled_models[] = {{{', '.join(rows)}}};\n"
    text += f"const uint32_t bundled_count = {len(rows)}u;\n"
    path = folder / "bundle_table.c"
    path.write_text(text)
    return path


def adapters(manifests: Sequence[Manifest], kind: str, folder: Path) -> list[Path]:
    """A file for each model from bundle_<kind>.c.in."""
    found = []
    for manifest in manifests:
        text = (FIRMWARE / f"bundle_{kind}.c.in").read_text()
        words = {
            "@p@": manifest.prefix,
            "@P@": manifest.prefix.upper(),
            "@input_bytes@": str(manifest.inputs[0].nbytes),
            "@output_bytes@": str(manifest.outputs[0].nbytes),
        }
        for word, value in words.items():
            text = text.replace(word, value)
        found.append(folder / f"{kind}_{manifest.prefix}.c")
        found[-1].write_text(text)
    return found


def build(
    bundle: aotgen.Bundle,
    board: Board,
    level: str,
    folder: Path,
    sources: Sequence[Path],
) -> Path:
    """The image of all models."""
    name = str(bundle.manifest["bundle"])
    arena = folder / "arena.c"
    arena.write_text(
        f'#include "{name}.h"\nconst void *bundle_arena(void);\n'
        f"static unsigned char arena[{name.upper()}_ARENA_BYTES] {name.upper()}_ALIGNED;\n"
        "const void *bundle_arena(void)\n{\n    return arena;\n}\n"
    )
    source = bundle.folder / "src"
    more = [f"-I{bundle.folder / 'include'}", f"-I{source}", f"-Wa,-I{source}"]
    own = [*sorted(source.glob("*.c")), *sorted(source.glob("*.S")), arena]
    return link_image(board, level, folder, [*own, *sources], more)


def symbols(image: Path, without: Path, names: Sequence[str]) -> list[tuple[str, int]]:
    """Functions and constants of an image that another one lacks, the largest first; no weights."""

    def all_of(path: Path) -> dict[str, int]:
        argv = ["arm-none-eabi-nm", "-S", str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        rows = [line.split() for line in done.stdout.splitlines()]
        return {r[3]: int(r[1], 16) for r in rows if len(r) == 4 and r[2] in "tTrRdDwW"}

    known = all_of(without)
    weights = {f"{name}_weights" for name in names}
    found = [(n, s) for n, s in all_of(image).items() if n not in known and n not in weights]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


@dataclass
class MeasuredBundle:
    """A bundle in one image; sizes in bytes.

    Attributes:
        flash: image less the firmware's own.
        code: of it what is no constant of a model.
        arena: of all models.
        instructions: of each model's first inference.
        equal: whether all outputs of each model are the reference's.
        symbols: functions and constants that the models brought.
    """

    flash: int
    code: int
    arena: int
    instructions: dict[str, int]
    equal: dict[str, bool]
    symbols: list[tuple[str, int]]


def measure(files: Sequence[Path], board: Board, optimize: str, level: str) -> MeasuredBundle:
    """Compile, build and run the models of ``files``, each of which has a reference."""
    fed = [references(file) for file in files]
    with tempfile.TemporaryDirectory(prefix="mcu-bundle-") as name:
        folder = Path(name)
        options = aotgen.CompileOptions(optimize=as_optimize(optimize))
        made = aotgen.bundle(files, board, folder / "bundle", share_arena=True, options=options)
        manifests = [made.project(model).info for model in made.models]
        listed = table(manifests, [inputs for inputs, _ in fed], folder)
        common = [listed, FIRMWARE / "bundle_main.c"]
        models = [*common, *adapters(manifests, "model", folder)]
        image = build(made, board, level, folder, models).rename(folder / "bundle.elf")
        null = link_image(board, level, folder, [*common, *adapters(manifests, "null", folder)])
        flash = sizes(image)[0] - sizes(null)[0]
        instructions: dict[str, int] = {}
        outputs: dict[str, list[bytes]] = {}
        model = ""
        for key, value in run(image, board):
            if key == "model":
                model = value
            elif key == "ticks":
                count = round(int(value) / TICKS_PER_INSTRUCTION[board.name])
                instructions.setdefault(model, count)
            elif key == "out":
                outputs.setdefault(model, []).append(bytes.fromhex(value))
        equal = {
            model: outputs[model] == expected
            for model, (_, expected) in zip(made.models, fed, strict=True)
        }
        return MeasuredBundle(
            flash,
            flash - int(made.manifest["weights_bytes"]),
            int(made.manifest["arena_bytes"]),
            instructions,
            equal,
            symbols(image, null, made.models),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--board", default="mps2-an386", choices=BOARDS)
    parser.add_argument("--optimize", default="flash", choices=("speed", "ram", "flash"))
    parser.add_argument("-O", dest="level", default="s")
    parser.add_argument("--symbols", action="store_true")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or HERE.parents[2] / "shared/models/mlperf_tiny"
    files = [folder / f"{name}.tflite" for name in given.models]
    for file in files:
        if references(file)[1] is None:
            sys.exit(f"{file} has no reference in refs/")
    m = measure(files, load_board(given.board), given.optimize, f"-O{given.level}")
    print(f"{given.board}, --optimize {given.optimize}, -O{given.level}: {len(files)} models")
    print(f"  flash {m.flash}, weights {m.flash - m.code}, code {m.code}, arena {m.arena}")
    for model, count in m.instructions.items():
        verdict = "equal" if m.equal[model] else "DIFFERENT"
        print(f"  {model}: {count / 1e6:.4f} M instructions, outputs {verdict}")
    for symbol, size in m.symbols if given.symbols else []:
        print(f"    {size:6d}  {symbol}")


if __name__ == "__main__":
    main()
