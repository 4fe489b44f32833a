"""The C API seen from Python, on a hand-written project: state, weights from outside, error codes.

The library sums its inputs over the steps and scales by its one weight: y = w * (x1 + x2 + ...).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aotgen.errors import BoardError, ToolchainError, UsageError
from aotgen.manifest import FORMAT
from aotgen.project import Project
from support import require_tool

SOURCE = r"""
#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { void *arena; void *state; const void *weights; } acc_config;
typedef struct { const float *x; } acc_inputs;
typedef struct { float *y; } acc_outputs;
typedef struct { float *arena; float *state; const float *weights; } acc_ctx;

int acc_init(acc_ctx *c, const acc_config *g)
{
    if (!g->arena || !g->state || !g->weights)
        return -1;
    if ((uintptr_t)g->arena % 64 || (uintptr_t)g->state % 64 || (uintptr_t)g->weights % 64)
        return -2;
    c->arena = g->arena;
    c->state = g->state;
    c->weights = g->weights;
    return c->weights[0] == 0.0f ? -3 : 0;
}

void acc_reset(acc_ctx *c)
{
    for (int i = 0; i < 3; i++)
        c->state[i] = 0.0f;
}

int acc_run(acc_ctx *c, const acc_inputs *in, const acc_outputs *out)
{
    for (int i = 0; i < 3; i++) {
        if (isnan(in->x[i]))
            return -4;
        c->state[i] += in->x[i];
        c->arena[i] = c->state[i] * c->weights[0];
        out->y[i] = c->arena[i];
    }
    return 0;
}

const char *acc_strerror(int e) { return e == -3 ? "weight is zero" : "something"; }
"""

CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(acc C)
add_library(acc STATIC src/acc.c)
if(ACC_SHARED)
  add_library(acc_shared SHARED src/acc.c)
  target_link_libraries(acc_shared m)
endif()
"""


def write_project(folder: Path, weight: float = 2.0) -> Project:
    tensor = {"dtype": "float32", "shape": [3]}
    manifest = {
        "format": FORMAT,
        "tool": {"name": "aotgen", "version": "0"},
        "prefix": "acc",
        "board": "host",
        "isa": "scalar",
        "options": {"weights": "bin"},
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
        "layers": [],
        "arena_bytes": 12,
        "state_bytes": 12,
        "api": {"ctx_bytes": 24, "arena_align": 64, "config": ["arena", "state", "weights"]},
    }
    (folder / "src").mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "src" / "acc.c").write_text(SOURCE)
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "src" / "weights.bin").write_bytes(np.float32(weight).tobytes())
    return Project(folder)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    require_tool("cmake")
    return write_project(tmp_path_factory.mktemp("acc") / "p")


def x(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32)}


def test_state_lives_from_step_to_step_and_no_longer(project: Project) -> None:
    first, second = project.run_steps([x(1, 2, 3), x(10, 20, 30)])
    assert first["y"].tolist() == [2, 4, 6]
    assert second["y"].tolist() == [22, 44, 66]
    assert project.run(x(1, 2, 3))["y"].tolist() == [2, 4, 6]


def test_instances_have_state_of_their_own(project: Project) -> None:
    a, b = project.instance(), project.instance()
    a.step(x(1, 1, 1))
    b.step(x(5, 5, 5))
    assert a.step(x(1, 1, 1))["y"].tolist() == [4, 4, 4]
    assert b.step(x(5, 5, 5))["y"].tolist() == [20, 20, 20]
    a.reset()
    assert a.step(x(1, 1, 1))["y"].tolist() == [2, 2, 2]
    a.close()
    with pytest.raises(UsageError, match="closed"):
        a.step(x(1, 1, 1))


def test_inputs_of_a_kindred_type_are_converted(project: Project) -> None:
    y = project.run({"x": np.array([1, 2, 3], np.float64)[::-1]})["y"]
    assert (y.dtype, y.tolist()) == (np.float32, [6, 4, 2])


def test_error_codes_come_with_their_text(project: Project, tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="acc_run returned -4: something"):
        project.run(x(float("nan"), 0, 0))
    with pytest.raises(BoardError, match="acc_init returned -3: weight is zero"):
        write_project(tmp_path / "q", weight=0.0).run(x(1, 2, 3))


def test_compiler_errors_are_one_line(tmp_path: Path) -> None:
    project = write_project(tmp_path / "q")
    source = tmp_path / "q" / "src" / "acc.c"
    source.write_text(SOURCE.replace("return 0;\n}\n\nconst", "return zero;\n}\n\nconst"))
    with pytest.raises(ToolchainError, match=r"error: .*zero") as caught:
        project.build()
    assert "\n" not in str(caught.value)
    source.write_text(SOURCE)
    assert project.build().library.is_file()


def test_cmake_errors_are_one_line(tmp_path: Path) -> None:
    project = write_project(tmp_path / "q")
    (tmp_path / "q" / "CMakeLists.txt").write_text("project(acc C)\nfrobnicate()\n")
    with pytest.raises(ToolchainError, match=r"CMake Error .*frobnicate") as caught:
        project.build()
    assert "\n" not in str(caught.value)


def test_missing_compiler(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no-such-cc is not installed"):
        write_project(tmp_path / "q").build(compiler="no-such-cc")


def test_a_changed_source_is_built_and_loaded(tmp_path: Path) -> None:
    """dlopen would hand out the library that it knows by this path."""
    project = write_project(tmp_path / "q")
    assert project.run(x(1, 2, 3))["y"].tolist() == [2, 4, 6]
    source = tmp_path / "q" / "src" / "acc.c"
    source.write_text(SOURCE.replace("* c->weights[0]", "* c->weights[0] * 10.0f"))
    assert project.run(x(1, 2, 3))["y"].tolist() == [20, 40, 60]
    source.write_text("int broken = ;")
    with pytest.raises(ToolchainError, match="error: "):
        project.run(x(1, 2, 3))
