"""Real int8 models on the emulated microcontroller boards: the models, what they are fed, and what
the tflite-micro wheel makes of it.

They run in two ways: in the firmware that a project brings, over its serial line, as users have it;
and in the measuring firmware of ``benchmarks/mcu``, which holds its inputs and costs far less.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from aotgen.builder import BuildType, build_project
from aotgen.manifest import Manifest
from aotgen.project import Project
from aotgen.target.board import load_board
from benchmarks.mcu import measure
from tests.oracles import tflm
from tests.support import require_module, require_shared, require_tool

INT8_MODELS = (
    "kws_ref_model",
    "pretrainedResnet_quant",
    "vww_96_int8",
    "ad01_int8",
    "str_ww_ref_model",
    "person_detect",
    "micro_speech_quantized",
)

BOARDS = measure.BOARDS
"""With a Cortex-M4, M7 and M55."""

LEVELS: dict[str, tuple[BuildType, str]] = {"O3": ("Release", "-O3"), "Os": ("MinSizeRel", "")}
"""CMake's build type and, where that takes the project's own flags, those instead of them."""

RANDOM_INPUTS = 2


def require_emulator() -> None:
    """Skip the test without compiler, emulator or the reference's wheel."""
    require_tool("arm-none-eabi-gcc", "qemu-system-arm", "cmake", "ninja")
    require_module("tflite_micro")


def model_file(name: str) -> Path:
    return require_shared(f"models/mlperf_tiny/{name}.tflite")


@cache
def fed(name: str) -> np.ndarray:
    """The stored inputs of one of ``INT8_MODELS`` and random ones: int8 or uint8 [n, ...]."""
    file = model_file(name)
    stored, _ = measure.references(file)
    random = np.random.default_rng(len(name)).integers(
        0, 256, (RANDOM_INPUTS, stored.shape[1]), np.uint8
    )
    return np.concatenate([stored, random])


@cache
def wheel(name: str) -> tuple[bytes, ...]:
    """The output's bytes for each input of ``fed``, by the tflite-micro wheel."""
    data = model_file(name).read_bytes()
    (shape, dtype) = _input_type(data)
    outputs = (tflm(data, [row.view(dtype).reshape(shape)]) for row in fed(name))
    return tuple(output.tobytes() for (output,) in outputs)


def _input_type(model: bytes) -> tuple[tuple[int, ...], str]:
    """Shape and type of a .tflite file's only input."""
    import tflite

    graph = tflite.Model.GetRootAsModel(model, 0).Subgraphs(0)
    tensor = graph.Tensors(graph.Inputs(0))
    types = {tflite.TensorType.INT8: "int8", tflite.TensorType.UINT8: "uint8"}
    return tuple(int(n) for n in tensor.ShapeAsNumpy()), types[tensor.Type()]


def firmware(project: Project, level: str) -> Path:
    """A project's firmware built at one of ``LEVELS``, with warnings as errors."""
    prefix = project.info.prefix
    build_type, flags = LEVELS[level]
    definitions = [f"{prefix.upper()}_WERROR=ON"]
    if flags:
        definitions.append(f"{prefix.upper()}_RELEASE_FLAGS={flags}")
    build = build_project(
        project.info,
        project.board,
        build_type,
        definitions=definitions,
        targets=(f"{prefix}_firmware",),
    )
    return build.program("firmware")


def steps(project: Project, inputs: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Inputs as bytes [n, size] as the project takes them."""
    (tensor,) = project.info.inputs
    return [{tensor.name: row.view(tensor.numpy).reshape(tensor.shape)} for row in inputs]


def measured_outputs(
    manifest: Manifest, board: str, level: str, inputs: np.ndarray, folder: Path
) -> list[bytes]:
    """The output for each input in the measuring firmware, which is compiled with all warnings as
    errors.

    Args:
        manifest: of a project with one input and one output.
        board: its name.
        level: "-O1" and so on.
        inputs: bytes [n, size].
        folder: for the build.
    """
    folder.mkdir(parents=True, exist_ok=True)
    image = measure.build(manifest, load_board(board), level, inputs, folder, False)
    return [bytes.fromhex(v) for k, v in measure.run(image, load_board(board)) if k == "out"]


def wrong(got: Sequence[bytes], expected: Sequence[bytes]) -> list[int]:
    """Numbers of the inputs whose outputs differ."""
    assert len(got) == len(expected)
    return [n for n, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
