"""What the generated text must not contain, and what may share memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from te.nest_builders import chain, normal
from te.nest_cases import all_cases
from te.nest_harness import single, value

from aotgen.codegen.c_text import wrap
from aotgen.ir.graph import Group
from aotgen.ops.registry import OpPattern, op_def, op_names
from aotgen.schedule.base import Config, View, Views
from aotgen.schedule.nest import NestTemplate
from aotgen.target.target import Target

TEMPLATE = NestTemplate()


def text_of(group: Group, target: Target | None = None) -> str:
    values = (*group.activations, *group.outputs)
    views = Views({v.name: View.dense(v.shape, v.dtype) for v in values})
    return TEMPLATE.kernel(group, target or Target("avx2"), Config(), views).body


def innermost(text: str) -> list[str]:
    """The lines of loops that hold no other loop."""
    lines = text.splitlines()
    out: list[str] = []
    for k, line in enumerate(lines):
        if re.match(r"\s*for \(", line):
            depth = len(line) - len(line.lstrip())
            end = next(m for m in range(k + 1, len(lines)) if lines[m] == " " * depth + "}")
            body = lines[k + 1 : end]
            if not any("for (" in b for b in body):
                out += body
    return out


@pytest.mark.parametrize(
    "group",
    [
        single("conv", [value("x", (1, 9, 9, 5)), normal(7, 3, 3, 5), None], strides=(2, 2),
               pads=(1, 1, 1, 1), dilations=(1, 1), groups=1),
        single("max_pool", [value("x", (1, 9, 9, 5))], kernel=(3, 3), strides=(2, 2),
               pads=(1, 1, 1, 1), dilations=(1, 1), ceil_extra=(0, 0)),
        single("pad", [value("x", (1, 9, 9, 5))], pads=(0, 1, 1, 0, 0, 1, 1, 0), mode="constant",
               value=0.0),
        single("pad", [value("x", (1, 9, 9, 5))], pads=(0, 1, 1, 0, 0, 1, 1, 0), mode="reflect",
               value=0.0),
        single("concat", [value("x", (1, 9, 9, 5)), value("y", (1, 9, 9, 6))], axis=3),
        single("tile", [value("x", (3, 7))], repeats=(1, 4)),
        single("resize", [value("x", (1, 4, 4, 8))], mode="nearest", sizes=(1, 8, 8, 8),
               scales=(1.0, 2.0, 2.0, 1.0), coord="asymmetric", nearest_mode="floor", cubic_a=-0.75,
               exclude_outside=False, extrapolation=0.0, roi=(0.0,) * 8),
        single("group_norm", [value("x", (1, 5, 32)), normal(32), normal(32)], groups=4, eps=1e-5),
        single("conv_transpose", [value("x", (1, 5, 5, 3)), normal(6, 3, 3, 3), None],
               strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1,
               output_padding=(1, 1)),
    ],
    ids=lambda g: g.name,
)  # fmt: skip
def test_inner_loops_hold_no_division_and_no_test(group: Group) -> None:
    for line in innermost(text_of(group)):
        assert not re.search(r"[a-z0-9)] [/%] |\bif\b| \? ", line), line


def test_a_dense_elementwise_nest_is_one_flat_loop() -> None:
    text = text_of(chain("x", normal(2, 3, 5, 7), ("relu", ["x"], {}), ("exp", ["x"], {})).group)
    assert text.count("for (") == 1


def test_flash_does_not_split_borders() -> None:
    group = single("pad", [value("x", (9, 9))], pads=(1, 1, 1, 1), mode="constant", value=0.0)
    small, fast = text_of(group, Target("avx2", optimize="flash")), text_of(group)
    assert small.count("for (") == 2
    assert len(small) < len(fast)


def test_memory_may_be_shared_only_where_nothing_is_read_after_it_was_written() -> None:
    x, y = value("x", (4, 6)), value("y", (4, 6))
    square = value("q", (6, 6))
    cases = [
        (single("add", [x, y]), "x", "same_index"),
        (single("add", [x, y]), "y", "same_index"),
        (single("softmax", [x], axis=1), "x", "same_index"),
        (single("softmax", [x], axis=0), "x", "same_index"),
        (single("layer_norm", [x, normal(6), normal(6)], axis=1, eps=1e-5), "x", "same_index"),
        (single("transpose", [square], perm=(1, 0)), "q", "none"),
        (single("slice", [square], starts=(5, 0), ends=(-1, 6), steps=(-1, 1)), "q", "none"),
        (single("matmul", [square, normal(6, 6), None], trans_b=False), "q", "none"),
        (single("equal", [x, y]), "x", "none"),
        (single("add", [x, value("b", (6,))]), "b", "none"),
    ]
    for group, name, expected in cases:
        source = next(v for v in group.activations if v.name == name)
        assert TEMPLATE.may_alias(group, source) == expected, (group.name, name)


def test_same_group_same_text() -> None:
    def once() -> str:
        return text_of(single("softmax", [value("x", (3, 50))], axis=1), Target("avx512"))

    assert once() == once()


def test_no_line_is_longer_than_100_columns() -> None:
    for case in all_cases():
        views = case.views()
        body = TEMPLATE.kernel(case.group, Target("avx512"), Config(), views).body
        assert max(map(len, wrap(body).splitlines())) <= 100, case.name


def test_constants_are_packed_for_the_vector_axis() -> None:
    w = np.arange(7 * 3 * 3 * 5, dtype=np.float32).reshape(7, 3, 3, 5)
    group = single("conv", [value("x", (1, 9, 9, 5)), w, None], strides=(1, 1), pads=(0, 0, 0, 0),
                   dilations=(1, 1), groups=1)  # fmt: skip
    values = (*group.activations, *group.outputs)
    views = Views({v.name: View.dense(v.shape, v.dtype) for v in values})
    kernel = TEMPLATE.kernel(group, Target("avx2"), Config(), views)
    packed = next(a.const for a in kernel.args if a.const is not None)
    assert np.array_equal(packed.array, w.transpose(1, 2, 3, 0).ravel())


def test_every_op_has_a_compute_definition() -> None:
    """But for those that only a template of their own computes."""
    missing = [name for name in op_names() if op_def(name).compute is None]
    assert [name for name in missing if op_def(name).pattern is not OpPattern.OPAQUE] == []
