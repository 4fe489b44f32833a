"""OpenCL nests give what the numpy rules give, on any OpenCL device (PoCL)."""

from __future__ import annotations

from pathlib import Path

import pytest
from te.nest_cases import all_cases
from te.nest_harness import Build, Case, compare
from te.opencl_harness import available, run_opencl

from aotgen.schedule.nest import NestTemplate
from aotgen.target.target import Target
from support import require


@pytest.fixture(autouse=True)
def opencl() -> None:
    require(available(), "an OpenCL driver with its headers")


TARGET = Target("scalar", device="gpu")

QUICK = (
    *("mish", "cast", "mod", "reduce_mean", "argmax", "cumsum", "softmax", "group_norm"),
    *("reshape", "pad", "matmul"),
    *("transpose", "concat", "gather", "resize", "conv", "max_pool", "chain gelu", "chain conv"),
)


def one_each(cases: list[Case], key_of: str) -> list[Case]:
    """The first case of every op (``op``) or op and type (``type``) that OpenCL takes."""
    found: dict[tuple[str, str], Case] = {}
    for case in cases:
        if NestTemplate().applies(case.group, TARGET) is None and case.inplace is None:
            op = case.name if case.name.startswith("chain") else case.name.split()[0]
            dtype = case.group.output.dtype.value if key_of == "type" else ""
            found.setdefault((op, dtype), case)
    return list(found.values())


def check(cases: list[Case], folder: Path) -> None:
    build = Build(cases, TARGET)
    results = run_opencl(build, folder)
    wrong = [compare(c, r) for c, r in zip(build.cases, results, strict=True)]
    assert [w for w in wrong if w] == []


def test_opencl_nests_match_numpy(tmp_path: Path) -> None:
    cases = one_each(all_cases(), "op")
    check([c for c in cases if any(c.name.startswith(q) for q in QUICK)], tmp_path)


@pytest.mark.slow
def test_all_opencl_nests_match_numpy(tmp_path: Path) -> None:
    check(one_each(all_cases(), "type"), tmp_path)
