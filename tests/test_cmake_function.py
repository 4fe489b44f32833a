"""aotgen_add_model: a model as a library in an application's own CMake build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import models
import numpy as np
import onnxruntime
import pytest

from support import require_tool

ROOT = Path(__file__).resolve().parents[1]

CMAKE = f"""
cmake_minimum_required(VERSION 3.16)
project(app C ASM)
add_subdirectory("{ROOT}" aotgen)
aotgen_add_model(net MODEL two.onnx BOARD host-scalar OPTIONS --optimize flash)
add_executable(app app.c)
target_link_libraries(app PRIVATE net)
"""

APP = r"""
#include "net.h"
#include <stdio.h>

static unsigned char arena[NET_ARENA_BYTES + 1] NET_ALIGNED;

int main(void)
{
    float x[16], y[8];
    net_ctx ctx;
    const net_config config = {.arena = arena};
    const net_inputs inputs = {.x = x};
    const net_outputs outputs = {.y = y};
    for (int i = 0; i < 16; i++)
        x[i] = (float)i / 8.0f - 1.0f;
    if (net_init(&ctx, &config) != 0 || net_run(&ctx, &inputs, &outputs) != 0)
        return 1;
    for (int i = 0; i < 8; i++)
        printf("%.9g\n", (double)y[i]);
    return 0;
}
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    require_tool("cmake")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    (tmp_path / "app.c").write_text(APP)
    (tmp_path / "two.onnx").write_bytes(models.two_layers().SerializeToString())
    return tmp_path


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = folder / "aotgen"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aotgen "$@"\n')
    command.chmod(0o755)
    argv = ["cmake", "-S", str(folder), "-B", str(folder / "b"), f"-DAOTGEN_COMMAND={command}"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode == 0:
        argv = ["cmake", "--build", str(folder / "b")]
        subprocess.run(argv, check=True, capture_output=True, text=True)
    return done


def test_model_in_an_application(app: Path) -> None:
    assert build(app).returncode == 0
    out = subprocess.run([app / "b" / "app"], check=True, capture_output=True, text=True).stdout
    got = np.array(out.split(), np.float32).reshape(2, 4)
    x = (np.arange(16, dtype=np.float32) / 8 - 1).reshape(2, 8)
    session = onnxruntime.InferenceSession(
        str(app / "two.onnx"), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {"x": x})[0]
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    # Nothing is compiled again until the model changes.
    manifest = app / "b" / "net_aotgen" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    assert build(app).returncode == 0
    assert manifest.stat().st_mtime_ns == before


def test_a_bad_model_stops_the_build(app: Path) -> None:
    (app / "two.onnx").write_bytes(b"\xff\xd8\xff\xe0 JFIF")
    done = build(app)
    assert done.returncode != 0
    assert "JPEG" in done.stderr
    assert not (app / "b" / "net_aotgen").exists()
