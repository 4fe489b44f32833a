"""Epilogues of anchors: the C functions compute what the nodes' numpy rules compute."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
from te.nest_harness import ISA_FLAGS, MATH, WARNINGS, value

from aotgen.codegen.environment import render
from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType
from aotgen.ops.registry import op_def
from aotgen.schedule.base import View
from aotgen.target.target import Target
from aotgen.te.epilogue import epilogue, row_epilogue

TARGET = Target("avx2")
RNG = np.random.default_rng(5)


def matmul_group(steps: list[tuple[str, list[Value | np.ndarray], dict[str, object]]]) -> Group:
    """matmul [1,6,4] x [4,40], then ``steps``, each reading the one before as its first input."""
    graph = Graph("t", [], [], [])
    a, b = value("a", (1, 6, 4)), graph.constant(np.zeros((4, 40), np.float32))
    anchor = graph.make("matmul", [a, b, None], trans_b=False)
    nodes, current = [anchor], anchor.output
    for op, others, attrs in steps:
        operands = [o if isinstance(o, Value) else graph.constant(o) for o in others]
        nodes.append(graph.make(op, [current, *operands], **attrs))
        current = nodes[-1].output
    return Group(nodes, anchor, "g")


def reference(group: Group, x: np.ndarray, given: dict[str, np.ndarray]) -> np.ndarray:
    env = {group.anchor.output.name: x, **given}  # type: ignore[union-attr]
    for node in group.epilogue:
        args = [v.const if v.const is not None else env[v.name] for v in node.args]
        env[node.output.name] = op_def(node.op).numpy(node, args)[0]
    return env[group.output.name]


def run_c(text: str, data: list[np.ndarray], out: int, folder: Path) -> np.ndarray:
    main = "\n".join(["#include <stdio.h>", render("simd/avx2.h.j2", math=MATH), text])
    (folder / "e.c").write_text(main)
    command = ["gcc", *WARNINGS, *ISA_FLAGS["avx2"], "-O1"]
    subprocess.run([*command, "e.c", "-o", "e", "-lm"], cwd=folder, check=True)
    raw = b"".join(np.ascontiguousarray(d, np.float32).tobytes() for d in data)
    done = subprocess.run(["./e"], cwd=folder, input=raw, capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32, out)


def test_element_wise_epilogue(tmp_path: Path) -> None:
    residual = value("residual", (1, 6, 40))
    gate = value("gate", (1, 1))
    steps = [
        ("add", [np.float32(RNG.standard_normal(40))], {}),
        ("add", [residual], {}),
        ("mul", [np.float32([[0.5]])], {}),
        ("mul", [gate], {}),
        ("gelu", [], {"approximate": "none"}),
        ("clip", [], {"lo": 0.0, "hi": 6.0}),
    ]
    group = matmul_group(steps)  # type: ignore[arg-type]
    made = epilogue(group, TARGET)
    assert [i.kind for i in made.inputs] == ["channel", "pixel", "scalar"]
    assert made.math == {"erf"}
    x, r = (RNG.standard_normal((1, 6, 40)).astype(np.float32) for _ in range(2))
    g = np.float32([[1.25]])
    bias = made.inputs[0].value.const
    text = made.function.replace("@KERNEL@", "k") + (
        "int main(void) { static float x[240], r[240], b[40], g[1], y[240];\n"
        "    if (fread(x, 4, 240, stdin) != 240 || fread(r, 4, 240, stdin) != 240) return 1;\n"
        "    if (fread(b, 4, 40, stdin) != 40 || fread(g, 4, 1, stdin) != 1) return 1;\n"
        "    for (int m = 0; m < 6; m++) for (int n = 0; n < 40; n += VL)\n"
        "        vstore(&y[m * 40 + n], k_epilogue(vload(&x[m * 40 + n]), vload(&b[n]),\n"
        "                                          vload(&r[m * 40 + n]), vset1(g[0])));\n"
        "    return fwrite(y, 4, 240, stdout) != 240; }\n"
    )
    assert bias is not None
    got = run_c(text, [x, r, bias, g], 240, tmp_path).reshape(1, 6, 40)
    want = reference(group, x, {"residual": r, "gate": g})
    assert np.max(np.abs(got - want)) <= 2e-6 * np.max(np.abs(want))


def test_an_epilogue_without_work_is_the_identity() -> None:
    assert epilogue(matmul_group([]), TARGET).is_identity
    assert epilogue(matmul_group([("identity", [], {})]), TARGET).function == ""


def check_rows(steps: list[tuple[str, list[np.ndarray], dict[str, object]]], folder: Path) -> None:
    group = matmul_group(steps)  # type: ignore[arg-type]
    pitch = 43
    view = View((1, 6, 40), (6 * pitch, pitch, 1), DType.F32)
    made = row_epilogue(group, TARGET, view)
    assert made is not None
    x = RNG.standard_normal((1, 6, 40)).astype(np.float32)
    wide = np.zeros((6, pitch), np.float32)
    wide[:, :40] = x[0]
    consts = [a.const.array for a in made.args if a.const is not None]
    reads = "".join(
        f"    static float c{n}[{c.size}];\n"
        f"    if (fread(c{n}, 4, {c.size}, stdin) != {c.size}) return 1;\n"
        for n, c in enumerate(consts)
    )
    args = "".join(f", c{n}" for n in range(len(consts)))
    text = made.function.replace("@KERNEL@", "k") + (
        f"int main(void) {{\n    static float y[{wide.size}];\n"
        f"    if (fread(y, 4, {wide.size}, stdin) != {wide.size}) return 1;\n{reads}"
        f"    k_rows(y{args}, 0, 2);\n    k_rows(y{args}, 2, 6);\n"
        f"    return fwrite(y, 4, {wide.size}, stdout) != {wide.size};\n}}\n"
    )
    got = run_c(text, [wide, *consts], wide.size, folder).reshape(6, pitch)
    want = reference(group, x, {})[0]
    assert np.max(np.abs(got[:, :40] - want)) <= 1e-5 * np.max(np.abs(want))
    assert not got[:, 40:].any()


def test_softmax_on_finished_rows(tmp_path: Path) -> None:
    check_rows([("softmax", [], {"axis": 2}), ("mul", [np.float32(2.5)], {})], tmp_path)


def test_layer_norm_on_finished_rows(tmp_path: Path) -> None:
    scale, bias = (RNG.standard_normal(40).astype(np.float32) for _ in range(2))
    steps = [("layer_norm", [scale, bias], {"axis": 2, "eps": 1e-5}), ("relu", [], {})]
    check_rows(steps, tmp_path)
