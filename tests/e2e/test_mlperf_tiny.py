"""MLPerf Tiny's int8 models, person detection and micro speech in firmware, over the serial line of
emulated boards: the bytes of TFLite Micro, and a changed bit is found where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import aotgen
from aotgen.project import Project
from aotgen.runner.serial import QemuBoard
from tests.mcu_models import (
    BOARDS,
    INT8_MODELS,
    LEVELS,
    fed,
    firmware,
    model_file,
    require_emulator,
    steps,
    wheel,
    wrong,
)

Compiled = Callable[[str, str, str], Project]

QUICK = {
    ("kws_ref_model", "mps2-an386", "O3"),
    ("str_ww_ref_model", "mps2-an500", "Os"),
    ("ad01_int8", "mps3-an547", "Os"),
    ("micro_speech_quantized", "mps3-an547", "O3"),
}
"""What every run of the tests takes; the sweep takes all."""

M4 = "mps2-an386"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """(model, board, what to optimise for) -> its project, compiled once."""
    require_emulator()
    root = tmp_path_factory.mktemp("firmware")

    @cache
    def get(model: str, board: str, optimize: str = "speed") -> Project:
        folder = root / f"{model}_{board}_{optimize}"
        return aotgen.compile(model_file(model), board, folder, optimize=optimize)

    return get


def matrix() -> list[object]:
    cases = product(INT8_MODELS, BOARDS, LEVELS)
    return [pytest.param(*c, marks=[] if c in QUICK else pytest.mark.slow) for c in cases]


@pytest.mark.parametrize(("model", "board", "level"), matrix())
def test_bytes_over_the_serial_line(model: str, board: str, level: str, compiled: Compiled) -> None:
    project = compiled(model, board, "speed")
    with QemuBoard(firmware(project, level)) as place:
        outputs = project.run_steps(steps(project, fed(model)), place)
    got = [array.tobytes() for output in outputs for array in output.values()]
    assert wrong(got, wheel(model)) == []


@contextmanager
def edited(path: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """A file that is another one meanwhile."""
    before = path.read_bytes()
    path.write_bytes(change(before))
    try:
        yield
    finally:
        path.write_bytes(before)


def off_by_one(layer: int) -> Callable[[bytes], bytes]:
    """The generated C with the lowest bit of an element of a layer's result flipped; where it
    computes by rows, of an element of each piece.
    """

    def change(source: bytes) -> bytes:
        text, found = re.subn(
            rf"^( *)(TRACE\({layer}, \d+, (.*)\);)$",
            r"\1*(int8_t *)(uintptr_t)(\3) ^= 1;\n\1\2",
            source.decode(),
            flags=re.MULTILINE,
        )
        # ROWS gives where row 0 would be; its last argument is the bytes of a row.
        text, of_rows = re.subn(
            rf"^( *)(TRACE_ROWS\({layer}, \d+, (ROWS\(.*, (\d+)\))\);)$",
            r"\1*(int8_t *)(uintptr_t)(\3 + r0 * \4) ^= 1;\n\1\2",
            text,
            flags=re.MULTILINE,
        )
        assert found + of_rows == 1
        return text.encode()

    return change


def first_weight(project: Project, layer: int) -> int | None:
    """Where a layer's weights begin in the weights' file; None when it has none."""
    header = (project.folder / "src/weights.h").read_text()
    found = re.search(rf"#define W_L{layer:02d}_\w+ (\d+)u", header)
    return int(found[1]) if found and project.info.layers[layer].weights_crc else None


def flipped(offset: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]

    return change


def check_result_of(project: Project, layer: int) -> None:
    source = project.folder / "src" / f"{project.info.prefix}.c"
    with edited(source, off_by_one(layer)):
        report = project.validate(per_layer=True, runner="qemu")
    bad = report.first_bad_layer
    assert bad is not None and bad.index == layer
    assert bad.difference is not None and bad.difference.max_abs == 1


def check_weight_of(project: Project, layer: int) -> None:
    offset = first_weight(project, layer)
    assert offset is not None
    with edited(project.folder / "src/weights.bin", flipped(offset)):
        report = project.validate(per_layer=True, runner="qemu")
    bad = report.first_bad_layer
    assert bad is not None and bad.index == layer and bad.weights_ok is False
    assert [c.index for c in report.layers if c.weights_ok is False] == [layer]


def test_a_changed_bit_is_named(compiled: Compiled) -> None:
    project = compiled("kws_ref_model", M4, "speed")
    check_result_of(project, 3)
    check_weight_of(project, 6)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["kws_ref_model", "pretrainedResnet_quant"])
def test_a_changed_bit_of_any_layer_is_named(model: str, compiled: Compiled) -> None:
    project = compiled(model, M4, "speed")
    layers = range(len(project.info.layers))
    for layer in layers:
        check_result_of(project, layer)
    weighted = [layer for layer in layers if first_weight(project, layer) is not None]
    assert len(weighted) >= 8
    for layer in weighted:
        check_weight_of(project, layer)
    assert project.validate(per_layer=True, runner="qemu").ok


def check_pieces(project: Project) -> None:
    """Layers that compute by rows to save RAM tell of their results in pieces."""
    report = project.validate(per_layer=True, runner="qemu")
    assert report.ok, report.first_bad_layer
    assert all(d.max_abs == 0 for d in report.outputs)


def test_layers_that_compute_by_rows(compiled: Compiled) -> None:
    project = compiled("str_ww_ref_model", M4, "ram")
    check_pieces(project)
    assert project.info.layers[1].by_rows
    check_result_of(project, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "board"), list(product(INT8_MODELS, BOARDS)))
def test_all_models_layers_by_rows(model: str, board: str, compiled: Compiled) -> None:
    check_pieces(compiled(model, board, "ram"))
