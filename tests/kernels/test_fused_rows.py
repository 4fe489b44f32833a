"""[1x1] -> depthwise -> [1x1] streamed by rows against float64, whatever the shapes, knobs and
cuts of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernels.harness import Case, build, check_cases, run_cases
from kernels.test_kernels import (
    ISAS,
    NEON_HALVES,
    check_emulated,
    require_isa,
    target_of,
    with_sampled_knobs,
)

from aotgen.ir.graph import Graph, Group, Node, Value
from aotgen.ir.types import DType, TensorType
from aotgen.schedule.base import Config
from aotgen.schedule.conv.conv2d_fused_rows import Conv2dFusedRows
from aotgen.schedule.registry import anchor_templates
from aotgen.target.target import Isa, Target
from tests.support import SANITIZE, require_tool

FUSED = Conv2dFusedRows()


class _Chain:
    """Grows a Group of convolutions, each with the activation ``act``."""

    def __init__(self, x: tuple[int, ...], act: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph("case", [], [], [])
        self.act = act
        self.x = Value("x", TensorType(DType.F32, x))
        self.last = self.x
        self.nodes: list[Node] = []
        self.inputs = {"x": self.rng.standard_normal(x, np.float32)}

    def append(self, node: Node) -> None:
        self.nodes.append(node)
        self.last = node.output

    def conv(self, outputs: int, *, activated: bool = True, bias: bool = True, **a: object) -> None:
        kernel, groups = a.pop("kernel", (1, 1)), int(a.get("groups", 1))  # type: ignore[call-overload]
        w = self.rng.standard_normal(
            (outputs, *kernel, self.last.shape[-1] // groups),  # type: ignore[misc]
            np.float32,
        )
        w /= np.float32(np.sqrt(w[0].size))
        b = self.graph.constant(self.rng.standard_normal(outputs, np.float32), "b")
        attrs = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1, **a}
        args = [self.last, self.graph.constant(w, "w"), b if bias else None]
        self.append(self.graph.make("conv", args, name=f"conv{len(self.nodes)}", **attrs))
        if activated and self.act:
            self.append(self.graph.make(self.act, [self.last]))

    def add(self, name: str) -> None:
        """Add an activation of the last node's shape: of that name, or x itself."""
        other = self.x
        if name != "x":
            other = Value(name, self.last.type)
            self.inputs[name] = self.rng.standard_normal(other.shape, np.float32)
        self.append(self.graph.make("add", [self.last, other]))

    def group(self) -> Group:
        return Group(self.nodes, [n for n in self.nodes if n.op == "conv"][-1], "chain")


def chain_case(
    name: str,
    x: tuple[int, ...],
    expand: int = 0,
    project: int = 0,
    *,
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1),
    pads: tuple[int, ...] = (1, 1, 1, 1),
    dilation: tuple[int, int] = (1, 1),
    act: str = "relu",
    add: str = "",
    inner: str = "",
    bias: bool = True,
    seed: int = 0,
    **kwargs: object,
) -> Case:
    """A chain with seeded values.

    Args:
        expand, project: outputs of the 1x1 convolutions; 0 leaves one out.
        add: what the last convolution's epilogue adds, "x" or the name of an input.
        inner: the same of the depthwise one's.
    """
    chain = _Chain(x, act, seed)
    if expand:
        chain.conv(expand, bias=bias)
    channels = chain.last.shape[-1]
    chain.conv(
        channels,
        kernel=kernel,
        strides=stride,
        pads=pads,
        dilations=dilation,
        groups=channels,
        bias=bias,
    )
    if inner:
        chain.add(inner)
    if project:
        chain.conv(project, activated=False, bias=bias)
    if add:
        chain.add(add)
    return Case(name, chain.group(), FUSED, chain.inputs, **kwargs)  # type: ignore[arg-type]


def knobs(**changed: int) -> Callable[[Group], Callable[[Target], Config]]:
    """The default config with other values."""
    return lambda group: (
        lambda target: Config.of(**{**FUSED.default(group, target).as_dict(), **changed})
    )


def plain_cases() -> list[Case]:
    """Every kind of chain under its default."""
    five = {"kernel": (5, 5), "pads": (2, 2, 2, 2)}
    return [
        chain_case("expand, project", (1, 13, 17, 10), 27, 12, add="residual"),
        chain_case("residual is x", (1, 13, 17, 12), 27, 12, add="x", gap=3),
        chain_case("stride 2", (2, 14, 15, 16), 40, 24, stride=(2, 2), gap=1),
        chain_case("project", (2, 11, 9, 20), 0, 24, add="residual", gap=2),
        chain_case("expand", (2, 11, 9, 20), 33, **five, add="residual"),
        chain_case("stride 2, 5x5", (1, 23, 21, 9), 35, 50, stride=(2, 2), **five),
        chain_case("pads behind", (1, 14, 14, 8), 32, 24, stride=(2, 2), pads=(0, 0, 1, 1)),
        chain_case("no pads", (1, 9, 14, 8), 32, 24, pads=(0, 0, 0, 0), bias=False),
        chain_case("dilated", (1, 15, 12, 8), 21, 5, dilation=(2, 3), pads=(2, 3, 2, 3)),
        chain_case(
            "rows unread", (1, 14, 9, 8), 20, 8, kernel=(1, 3), stride=(3, 1), pads=(0, 1) * 2
        ),
        chain_case("pads beyond the window", (1, 5, 6, 8), 20, 8, pads=(4, 3, 4, 3)),
        chain_case("inner sum", (1, 9, 9, 8), 24, 16, inner="middle", add="residual", gap=2),
        chain_case("inner sum of x", (1, 9, 9, 8), 0, 16, inner="x"),
        chain_case("hardswish", (1, 12, 10, 16), 48, 20, act="hard_swish"),
        chain_case("sigmoid", (1, 6, 10, 7), 19, 0, act="sigmoid"),
    ]


def cases() -> list[Case]:
    """With steps and rings that do not divide the rows."""
    made = plain_cases()
    for case in [made[0], made[2], made[3]]:
        for rows, steps in ((1, 0), (3, 1), (4, 3)):
            changed = {"fuse_rows": rows, "oh_tile": 1}
            if "ring_steps" in FUSED.default(case.group, target_of("scalar")).as_dict():
                changed["ring_steps"] = steps
            made.append(
                Case(
                    f"{case.name}, {rows} rows",
                    case.group,
                    FUSED,
                    case.inputs,
                    case.gap,
                    config=knobs(**changed)(case.group),
                )
            )
    return made


@pytest.mark.parametrize("isa", ISAS)
def test_chains_match_float64(isa: Isa, tmp_path: Path) -> None:
    require_isa(isa)
    check_cases(cases(), target_of(isa), tmp_path, extra=("-O1",))


@pytest.mark.parametrize(("name", "part"), NEON_HALVES)
def test_neon_under_emulation(name: str, part: int, tmp_path: Path) -> None:
    check_emulated(name, part, lambda _: cases(), tmp_path)


def test_no_access_outside_views(tmp_path: Path) -> None:
    require_tool("gcc")
    require_isa("avx2")
    check_cases(cases(), target_of("avx2"), tmp_path, extra=SANITIZE)


def test_rows_cut_anywhere_give_the_same_bytes(tmp_path: Path) -> None:
    """A thread's rows begin with a ring of their own and end anywhere."""
    made, target = cases(), target_of("scalar")
    whole = run_cases(made, target, tmp_path, extra=("-O0",))
    for cut in (1, 3):
        pieces = run_cases(made, target, tmp_path, extra=("-O0",), cut=cut)
        for case, a, b in zip(made, whole, pieces, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{case.name} cut at {cut}")


def test_sampled_knobs_compute_the_same(tmp_path: Path) -> None:
    require_isa("avx2")
    target, rng = target_of("avx2"), np.random.default_rng(5)
    made = [c for _ in range(2) for c in with_sampled_knobs(plain_cases(), target, rng)]
    assert len(made) > 10
    check_cases(made, target, tmp_path, extra=("-O1",))


def in_layouts(case: Case, x: bool, y: bool) -> Case:
    """The case with its input or output in blocks of channels."""

    def config(target: Target) -> Config:
        pair = ("nchwc" if x else "strided", "nchwc" if y else "strided")
        assert pair in FUSED.layouts(case.group, target)
        default = FUSED.default(case.group, target)
        return FUSED.default_in(case.group, target, default, *pair)

    return Case(f"{case.name}, {x} {y}", case.group, FUSED, case.inputs, config=config)


def test_blocks_of_channels(tmp_path: Path) -> None:
    """What the chain reads and writes may lie in blocks; what lies between does not."""
    require_isa("avx2")
    full = chain_case("full", (1, 13, 11, 16), 40, 24, add="residual")
    short = chain_case("project", (1, 13, 11, 16), 0, 24, add="residual")
    front = chain_case("expand", (1, 12, 9, 16), 32, stride=(2, 2))
    made = [in_layouts(full, x, y) for x, y in ((True, False), (False, True), (True, True))]
    made += [in_layouts(short, False, True), in_layouts(front, True, True)]
    check_cases(made, target_of("avx2"), tmp_path, extra=("-O1",))


def test_ring_and_strip_are_all_that_lies_between() -> None:
    """Scratch does not grow with the height of the map."""
    target = target_of("avx512")

    def scratch(height: int) -> int:
        case = chain_case("tall", (1, height, 32, 16), 96, 24, config=None)
        fixed = knobs(fuse_rows=2, oh_tile=2, ring_steps=1)(case.group)
        return build(
            Case("tall", case.group, FUSED, case.inputs, config=fixed), target
        ).kernel.scratch_bytes(64)

    assert scratch(64) == scratch(512) == 4 * (34 * 96 * 6 + 2 * 32 * 96)


def test_only_what_is_read_where_it_is_written_may_be_overwritten() -> None:
    """Rows of x are read again by later steps and by other threads."""
    own = chain_case("own", (1, 9, 9, 8), 24, 8, add="x").group
    other = chain_case("other", (1, 9, 9, 8), 24, 8, add="residual", inner="middle").group
    inputs = {v.name: v for v in other.activations}
    assert FUSED.may_alias(own, own.activations[0]) == "none"
    found = {name: FUSED.may_alias(other, v) for name, v in inputs.items()}
    assert found == {"x": "none", "middle": "none", "residual": "same_index"}


def test_no_other_template_takes_a_chain() -> None:
    target = target_of("avx2")
    for case in plain_cases():
        takes = [t.name for t in anchor_templates() if t.applies(case.group, target) is None]
        assert takes == [FUSED.name], case.name


def test_what_is_no_chain() -> None:
    """Two 1x1 convolutions, a lone depthwise one, a 3x3 one of all channels, a strided 1x1."""
    target = target_of("avx2")
    plain = chain_case("plain", (1, 8, 8, 8), 16, 8, act="")
    expand, depthwise, project = plain.group.nodes
    for nodes in ([expand], [depthwise], [expand, project], [project, depthwise]):
        assert FUSED.applies(Group(nodes, nodes[-1], "no chain"), target) is not None
    odd = _Chain((1, 8, 8, 8), "", 0)
    odd.conv(16, kernel=(3, 3), pads=(1, 1, 1, 1))
    odd.conv(16, kernel=(3, 3), pads=(1, 1, 1, 1), groups=16)
    assert FUSED.applies(odd.group(), target) is not None
    strided = _Chain((1, 8, 8, 8), "", 0)
    strided.conv(16, strides=(2, 2))
    strided.conv(16, kernel=(3, 3), pads=(1, 1, 1, 1), groups=16)
    assert FUSED.applies(strided.group(), target) is not None
