"""``--io-type float`` and the quantization parameters in the header, against the runtimes' own
QUANTIZE and DEQUANTIZE.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import models
import numpy as np
import onnx
import pytest

import aotgen
from aotgen.errors import UsageError
from aotgen.options import RequantMode
from tests.e2e.quick_build import STRICT, QuickModel
from tests.oracles import ORACLES
from tests.support import require_tool
from tests.tflite_builder import ModelBuilder

Array = np.ndarray
QUANT = {"int8": (0.0625, -3), "int16": (2.0**-9, 0)}
"""Input scale and zero point: powers of two, so that halves are exact and frequent."""


def relu_model(kind: str, wrapped: bool) -> bytes:
    """x: a quantized tensor, or floats with a QUANTIZE before and a DEQUANTIZE behind it."""
    b, shape = ModelBuilder(), (1, 3, 67)
    scale, zero = QUANT[kind]
    if wrapped:
        x = b.op("QUANTIZE", [b.input("x", shape, "float32")], out=("q", shape, kind, scale, zero))
    else:
        x = b.input("x", shape, kind, scale, zero)
    y = b.op("RELU", [x], out=("y", shape, kind, scale * 0.75, zero))
    b.output(b.op("DEQUANTIZE", [y], out=("f", shape, "float32")) if wrapped else y)
    return b.finish()


def samples(kind: str) -> Array:
    """Halves of steps, far beyond both ends, and their neighbours."""
    scale, zero = QUANT[kind]
    rng = np.random.default_rng(5)
    lo, hi = (int(v) - zero for v in (np.iinfo(kind).min, np.iinfo(kind).max))
    steps = rng.integers(lo - 9, hi + 10, (1, 3, 67)) + rng.choice([0.0, 0.5, -0.5], (1, 3, 67))
    values = (steps * np.float32(scale)).astype(np.float32)
    values.reshape(-1)[:4] = [1e9, -1e9, 0.0, -0.0]
    towards = rng.choice([-np.inf, 0.0, np.inf], values.shape, p=[0.2, 0.6, 0.2])
    return np.where(towards == 0, values, np.nextafter(values, towards.astype(np.float32)))


def compiled(path: Path, **options: object) -> aotgen.Project:
    return aotgen.compile(path, output=path.parent / "project", weights="bin", **options)


@pytest.mark.parametrize("mode", ["tflm", "litert"])
@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_float_tensors_as_the_runtime_converts_them(
    kind: str, mode: RequantMode, tmp_path: Path
) -> None:
    require_tool("gcc")
    path, x = tmp_path / "relu.tflite", samples(kind)
    path.write_bytes(relu_model(kind, wrapped=False))
    project = compiled(path, io_type="float", requant=mode)
    (y,) = QuickModel(project).run({"x": x})
    # Steps beyond int32 are undefined in the runtimes; here they saturate.
    tame = np.clip(x, -1e4, 1e4)
    (want,) = ORACLES[mode](relu_model(kind, wrapped=True), [tame])
    assert y.dtype == np.float32
    assert y.tobytes() == want.tobytes()
    header = next((project.folder / "include").glob("*.h")).read_text()
    assert "_SCALE" not in header
    assert project.validate().ok


def test_names_stay_and_plain_integers_are_left_alone(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("pixels", (1, 4), "uint8")
    b.output(b.op("CAST", [x], out=("real", (1, 4), "float32")))
    path = tmp_path / "cast.tflite"
    path.write_bytes(b.finish())
    graph = aotgen.load(path, io_type="float")
    assert [(v.name, v.dtype.value) for v in graph.inputs] == [("pixels", "u8")]
    path.write_bytes(relu_model("int8", wrapped=False))
    graph = aotgen.load(path, io_type="float")
    assert [(v.name, v.dtype.value) for v in graph.inputs] == [("x", "f32")]
    assert (graph.output_names, graph.outputs[0].dtype.value) == (["y"], "f32")


MAIN = """
#include "relu.h"
#include <stdio.h>

int main(void)
{
    float value;
    while (fread(&value, sizeof value, 1, stdin) == 1) {
        const int step = relu_quantize_x(value);
        printf("%d %.9g\\n", step, (double)relu_dequantize_y(relu_quantize_x(value)));
    }
    printf("%s %.9g %d\\n", RELU_REQUANT, (double)RELU_INPUT_X_SCALE, (int)RELU_INPUT_X_ZERO_POINT);
    return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_header_converts_a_value_as_the_runtime_does(
    kind: str, compiler: str, tmp_path: Path
) -> None:
    require_tool(compiler)
    path, x = tmp_path / "relu.tflite", samples(kind)
    path.write_bytes(relu_model(kind, wrapped=False))
    project = compiled(path)
    source, program = tmp_path / f"main.{'c' if compiler == 'gcc' else 'cc'}", tmp_path / "main"
    source.write_text(MAIN)
    flags = STRICT if compiler == "gcc" else ("-std=c++11", *STRICT[1:], "-Wpedantic")
    command = [compiler, *flags, f"-I{project.folder}/include", source, "-o", program]
    subprocess.run(command, check=True)
    ran = subprocess.run([program], input=x.tobytes(), stdout=subprocess.PIPE, check=True)
    *rows, last = ran.stdout.decode().splitlines()
    got = np.array([row.split()[0] for row in rows], kind)

    b, (scale, zero) = ModelBuilder(), QUANT[kind]
    fed = b.input("x", x.shape, "float32")
    b.output(b.op("QUANTIZE", [fed], out=("q", x.shape, kind, scale, zero)))
    (want,) = ORACLES["tflm"](b.finish(), [np.clip(x, -1e4, 1e4)])
    assert np.array_equal(got, want.reshape(-1))
    real = np.array([row.split()[1] for row in rows], np.float32)
    b = ModelBuilder()
    fed = b.input("q", x.shape, kind, scale * 0.75, zero)
    b.output(b.op("DEQUANTIZE", [fed], out=("f", x.shape, "float32")))
    (want_real,) = ORACLES["tflm"](b.finish(), [want])
    assert np.array_equal(real, want_real.reshape(-1))
    assert last.split() == ["tflm", f"{np.float32(scale):.9g}", str(zero)]


def test_onnx_takes_no_mode(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    onnx.save(models.two_layers(), path)
    with pytest.raises(UsageError, match="leave out --requant"):
        aotgen.load(path, requant="tflm")
    project = aotgen.compile(path, output=tmp_path / "project")
    assert project.manifest["requant"] == "onnx"
    assert project.manifest["options"]["requant"] is None


def test_the_mode_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "relu.tflite"
    path.write_bytes(relu_model("int8", wrapped=False))
    for mode, recorded in ((None, "tflm"), ("tflm", "tflm"), ("litert", "litert")):
        output = tmp_path / f"project_{mode}"
        project = aotgen.compile(path, output=output, requant=mode)
        assert project.manifest["requant"] == recorded
        assert f'RELU_REQUANT "{recorded}"' in (output / "include/relu.h").read_text()
        assert project.manifest["inputs"][0]["quant"] == {
            "scale": [0.0625],
            "zero_point": [-3],
            "axis": None,
        }
