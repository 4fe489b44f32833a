"""The recurrent template on its own: gaps between rows, scratch full of NaN, any knobs, rows in
pieces, and onnxruntime's own answer for the ops' semantics elsewhere (tests/e2e/test_recurrent.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.schedule.base import Config, ScheduleError
from aotgen.schedule.opaque.recurrent import Recurrent
from aotgen.target.target import Isa
from tests.kernels.harness import Case, build, check_cases
from tests.kernels.test_kernels import NEON_HALVES, check_emulated, require_isa, target_of
from tests.support import SANITIZE

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
ACTIVATIONS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh"), "rnn": ("Tanh",)}


def case(
    op: str, t: int, n: int, h: int, *, before: bool = False, const: bool = True, **more
) -> Case:
    """A recurrent layer with an initial state; ``before``: linear_before_reset."""
    rng = np.random.default_rng(t + n + h)
    graph = Graph("case", [], [], [])
    inputs: dict[str, np.ndarray] = {}

    def tensor(name: str, *shape: int, constant: bool = False) -> Value:
        array = rng.standard_normal(shape, np.float32) * np.float32(0.5)
        if constant:
            return graph.constant(array, name)
        inputs[name] = array
        return Value(name, TensorType(DType.F32, shape))

    gates = GATES[op] * h
    operands = [
        tensor("gates", t, n, gates),
        tensor("r", gates, h, constant=const),
        tensor("rb", h) if before else None,
        tensor("h0", n, h),
        tensor("c0", n, h) if op == "lstm" else None,
        tensor("p", 3 * h, constant=True) if op == "lstm" else None,
    ]
    attrs = {
        "results": ("y",),
        "reverse": False,
        "clip": None,
        "activations": tuple((name, 0.0, 0.0) for name in ACTIVATIONS[op]),
    }
    attrs |= {"input_forget": False} if op == "lstm" else {}
    attrs |= {"linear_before_reset": before} if op == "gru" else {}
    node = graph.make(op, operands, name=op, **{**attrs, **more})
    name = f"{op} {t}x{n}x{h} {before=} {const=} {more}"
    return Case(name, Group([node], None, op), Recurrent(), inputs)


def all_cases() -> list[Case]:
    made = []
    for t, n, h in ((1, 1, 40), (3, 5, 7), (2, 9, 33), (4, 2, 16), (2, 3, 1)):
        for op in GATES:
            made.append(case(op, t, n, h))
        made.append(case("gru", t, n, h, before=True))
    made.append(case("lstm", 3, 4, 19, const=False))
    made.append(case("gru", 3, 4, 19, const=False))
    made.append(case("lstm", 3, 4, 19, reverse=True, input_forget=True, clip=0.5))
    made.append(case("gru", 3, 4, 19, results=("h",)))
    return made


@pytest.mark.parametrize(("isa", "gap"), [("scalar", 3), ("avx2", 0), ("avx512", 3)])
def test_cases(isa: Isa, gap: int, tmp_path: Path) -> None:
    require_isa(isa)
    made = [replace(c, gap=gap) for c in all_cases()]
    check_cases(made, target_of(isa), tmp_path, extra=("-O1",))


@pytest.mark.parametrize(("name", "part"), NEON_HALVES)
def test_neon_under_emulation(name: str, part: int, tmp_path: Path) -> None:
    check_emulated(name, part, lambda _: all_cases(), tmp_path)


def test_clean_under_sanitizers(tmp_path: Path) -> None:
    """Rows are computed in pieces."""
    check_cases(all_cases(), target_of("scalar"), tmp_path, extra=SANITIZE, cut=1)


def test_sampled_knobs_compute_the_same(tmp_path: Path) -> None:
    require_isa("avx2")
    target, rng, made = target_of("avx2"), np.random.default_rng(3), []
    for c in all_cases():
        space = {k.name: k.values for k in c.template.space(c.group, target)}
        default = c.template.default(c.group, target).as_dict()
        assert all(value in space[name] for name, value in default.items()), c.name
        for _ in range(3):
            config = Config.of(**{k: v[rng.integers(len(v))] for k, v in space.items()})
            try:
                c.template.check(c.group, target, config)
            except ScheduleError:
                continue
            made.append(replace(c, config=lambda _, config=config: config))
    assert len(made) > 30
    check_cases(made, target, tmp_path, extra=("-O1",))


def test_same_case_renders_the_same_text() -> None:
    target = target_of("avx512")
    texts = [[build(c, target).kernel.body for c in all_cases()] for _ in range(2)]
    assert texts[0] == texts[1]
