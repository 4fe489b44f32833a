"""Instructions, flash and RAM of models on microcontrollers against those of TFLite Micro with
CMSIS-NN (``benchmarks/mcu/rivals.json``). Instructions are counted by the emulator, not timed: they
are the same in every run.
"""

from __future__ import annotations

from functools import cache

import pytest

from aotgen.target.board import load_board
from benchmarks.mcu import measure
from tests.mcu_models import model_file
from tests.support import require_tool

M4, M7, M55 = measure.BOARDS

INSTRUCTIONS: dict[str, tuple[float, float]] = {
    "kws_ref_model": (0.42, 0.45),
    "pretrainedResnet_quant": (0.42, 0.52),
    "vww_96_int8": (0.25, 0.26),
    "ad01_int8": (0.47, 0.32),
    "person_detect": (0.45, 0.45),
    "str_ww_ref_model": (0.45, 0.45),
    "micro_speech_quantized": (0.5, 0.5),
}
"""The most instructions that an inference may take, as a share of the rival's: on the M4 and M7,
and on the M55.
"""

FLOAT_INSTRUCTIONS = {"pretrainedResnet": 0.7, "vww_96_float": 0.7}
"""The same of float models on the M4, where the better of two rivals counts."""

FLASH_BYTES = {
    "kws_ref_model": 36_000,
    "pretrainedResnet_quant": 88_000,
    "vww_96_int8": 62_000,
    "ad01_int8": 274_000,
}
"""With ``--optimize flash`` at -Os on the M4; rivals take 106, 148, 385 and 304 KB."""

FLASH_INSTRUCTIONS = 0.6
"""The share of the rival's instructions that such an image may take."""

IO_BYTES = {"ad01_int8": 1280}
"""Input and output of a model where they are more than all that is alive at once."""

RAM_MODELS = (
    "vww_96_int8",
    "person_detect",
    "pretrainedResnet_quant",
    "pretrainedResnet",
    "vww_96_float",
)
"""Whose arena under ``--optimize ram`` takes at most ``RAM_SHARE`` of the peak of live activations,
the caller's input and output aside.
"""

RAM_SHARE = 0.42


@cache
def measured(model: str, board: str, optimize: str, level: str) -> measure.Measured:
    require_tool("arm-none-eabi-gcc", "qemu-system-arm")
    found = measure.measure(
        model_file(model), load_board(board), optimize, level, layers=False, registers=False
    )
    assert found.equal is not False
    return found


def rival(model: str, board: str) -> int:
    return int(measure.RIVALS["models"][model]["instructions"][board])


def peak_live(model: str) -> int:
    return int(measure.RIVALS["models"][model]["peak_live"])


def check_instructions(model: str, board: str) -> None:
    limit = INSTRUCTIONS[model][board == M55]
    found = measured(model, board, "speed", "-O2")
    assert found.instructions <= limit * rival(model, board)


def check_flash(model: str) -> None:
    found = measured(model, M4, "flash", "-Os")
    assert found.flash <= FLASH_BYTES[model]
    assert found.instructions <= FLASH_INSTRUCTIONS * rival(model, M4)


def check_ram(model: str, board: str) -> None:
    """All but the stack: the arena with the model's input and output, the context, tables."""
    found = measured(model, board, "speed", "-O2")
    assert found.ram <= 1.05 * peak_live(model) + 1024 + IO_BYTES.get(model, 0)


def test_keyword_spotting() -> None:
    check_instructions("kws_ref_model", M4)
    check_ram("kws_ref_model", M4)
    check_flash("kws_ref_model")


@pytest.mark.slow
@pytest.mark.parametrize("board", measure.BOARDS)
@pytest.mark.parametrize("model", INSTRUCTIONS)
def test_instructions(model: str, board: str) -> None:
    check_instructions(model, board)


@pytest.mark.slow
@pytest.mark.parametrize("model", FLOAT_INSTRUCTIONS)
def test_instructions_of_float_models(model: str) -> None:
    found = measured(model, M4, "speed", "-O2")
    assert found.instructions <= FLOAT_INSTRUCTIONS[model] * rival(model, M4)


@pytest.mark.slow
@pytest.mark.parametrize("model", FLASH_BYTES)
def test_flash(model: str) -> None:
    check_flash(model)


@pytest.mark.slow
@pytest.mark.parametrize("board", measure.BOARDS)
@pytest.mark.parametrize("model", [*INSTRUCTIONS, *FLOAT_INSTRUCTIONS])
def test_ram(model: str, board: str) -> None:
    check_ram(model, board)


@pytest.mark.slow
@pytest.mark.parametrize("board", measure.BOARDS)
@pytest.mark.parametrize("model", RAM_MODELS)
def test_least_ram(model: str, board: str) -> None:
    """The price in instructions is what ``benchmarks/mcu`` prints."""
    found = measured(model, board, "ram", "-O2")
    assert found.own <= RAM_SHARE * peak_live(model)
