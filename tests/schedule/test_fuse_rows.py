"""fuse_rows: which chains are merged, and that Groups stay a partition that everything can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aotgen.api import load, optimise
from aotgen.codegen.project import build_program
from aotgen.ir import interpreter
from aotgen.ir.graph import Graph, Group
from aotgen.ir.verifier import verify
from aotgen.options import CompileOptions
from aotgen.schedule.base import Config, Template
from aotgen.schedule.conv import fuse_rows as step
from aotgen.schedule.conv.fuse_rows import candidate_chains, fuse_rows, merge_groups
from aotgen.schedule.plan import alternatives, choose
from aotgen.target.target import Target
from tests.e2e.layout_models import Builder

X86 = Target("avx512", l1_bytes=48 * 1024, l2_bytes=1 << 20, l1_ways=12)
A72 = Target("neon", core="cortex-a72", l1_bytes=32768, l2_bytes=1 << 20, l1_ways=2)


def graph_of(b: Builder, folder: Path, options: CompileOptions | None = None) -> Graph:
    path = folder / "net.onnx"
    path.write_bytes(b.proto().SerializeToString())
    return optimise(load(path), options or CompileOptions())


def inverted_residual(size: int = 112, channels: int = 16, expand: int = 96) -> Builder:
    """A stem, then expand -> depthwise -> project of MobileNetV2 with its sum."""
    b = Builder(3, (1, 3, 2 * size, 2 * size))
    x = b.same("Relu", b.conv("x", channels, 3, 2))
    y = b.same("Relu", b.conv(x, expand))
    y = b.same("Relu", b.depthwise(y))
    b.outputs = [b.average(b.same("Add", b.conv(y, channels), x))]
    return b


def ops(groups: list[Group]) -> list[str]:
    return ["+".join(n.op for n in g.nodes) for g in groups]


def convolutions(graph: Graph) -> list[int]:
    """Of each Group that has some."""
    counts = [sum(n.op == "conv" for n in g.nodes) for g in graph.groups or []]
    return [n for n in counts if n]


@pytest.mark.parametrize("target", [X86, A72], ids=["x86", "a72"])
def test_maps_beyond_l2_are_streamed_and_small_ones_are_not(target: Target, tmp_path: Path) -> None:
    large = graph_of(inverted_residual(), tmp_path)
    assert fuse_rows(large, target)
    assert convolutions(large) == [1, 3]
    small = graph_of(inverted_residual(7, 160, 960), tmp_path)
    before = small.groups
    assert not fuse_rows(small, target)
    assert small.groups is before


def test_a_merged_group_is_one_of_all_others(tmp_path: Path) -> None:
    """The verifier's rules hold, the numbers stay, its anchor is the last convolution."""
    graph = graph_of(inverted_residual(), tmp_path)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)}
    (before,) = interpreter.run(graph, feeds).values()
    fuse_rows(graph, X86)
    verify(graph)
    (after,) = interpreter.run(graph, feeds).values()
    np.testing.assert_array_equal(before, after)
    (merged,) = [g for g in graph.groups or [] if sum(n.op == "conv" for n in g.nodes) == 3]
    assert merged.anchor is [n for n in merged.nodes if n.op == "conv"][-1]
    assert [n.op for n in merged.epilogue] == ["add"]
    choices = choose(graph, X86)
    assert choices[merged.name].template.name == "conv2d_fused_rows"


def test_every_chain_is_a_candidate(tmp_path: Path) -> None:
    graph = graph_of(inverted_residual(7), tmp_path)
    found = candidate_chains(graph, X86)
    assert ops(found) == [
        "conv+relu+conv+relu",
        "conv+relu+conv+add",
        "conv+relu+conv+relu+conv+add",
    ]
    assert all(alternatives(g, X86)[0].template.name == "conv2d_fused_rows" for g in found)


def many_readers(b: Builder) -> None:
    y = b.depthwise(b.conv("x", 64))
    b.outputs = [b.average(b.conv(y, 16)), b.average(y)]


def result_between(b: Builder) -> None:
    y = b.depthwise("x")
    b.outputs = [y, b.average(b.conv(y, 16))]


def read_by_a_sum(b: Builder) -> None:
    y = b.depthwise("x")
    b.outputs = [b.average(b.same("Add", b.conv(y, 32), y))]


def three_by_three(b: Builder) -> None:
    b.outputs = [b.average(b.conv(b.conv(b.depthwise("x"), 32, 3), 32))]


@pytest.mark.parametrize(
    ("grow", "expected"),
    [
        (many_readers, ["conv+conv"]),
        (result_between, []),
        (read_by_a_sum, []),
        (three_by_three, []),
    ],
)
def test_what_others_read_stays(
    grow: Callable[[Builder], None], expected: list[str], tmp_path: Path
) -> None:
    b = Builder(4, (1, 32, 64, 64))
    grow(b)
    graph = graph_of(b, tmp_path)
    assert ops(candidate_chains(graph, X86)) == expected


def times(merged: float) -> Callable[[Group, Template, Config], float]:
    """A journal: 1 for every convolution that stands alone, ``merged`` for each of a chain."""

    def measured(group: Group, template: Template, config: Config) -> float:
        found = sum(n.op == "conv" for n in group.nodes)
        return merged * found if found > 1 else 1.0

    return measured


def test_measurements_decide(tmp_path: Path) -> None:
    """On small maps, too; a merge must save more than a measurement can tell."""
    graph = graph_of(inverted_residual(7), tmp_path)
    assert len(merge_groups(graph, X86, times(0.9))) == len(graph.groups or []) - 2
    for slower in (0.99, 1.1):
        assert ops(merge_groups(graph, X86, times(slower))) == ops(graph.groups or [])


def test_a_journal_without_chains_does_not_change_the_choice(tmp_path: Path) -> None:
    """Measured Groups are not compared with modelled ones: slow measurements of parts would merge
    everything.
    """

    def parts_only(group: Group, template: Template, config: Config) -> float | None:
        alone = sum(n.op == "conv" for n in group.nodes) < 2
        return 10 * template.cost(group, X86, config) if alone else None

    graph = graph_of(inverted_residual(7, 160, 960), tmp_path)
    assert ops(merge_groups(graph, X86, parts_only)) == ops(graph.groups or [])


def test_the_cheapest_of_overlapping_chains(tmp_path: Path) -> None:
    """Of 1x1 -> depthwise -> 1x1 -> depthwise -> 1x1 the cut of least time, found by trying all."""
    b = Builder(5, (1, 32, 20, 20))
    x = b.depthwise(b.conv("x", 48))
    x = b.conv(b.depthwise(b.conv(x, 32)), 32)
    b.outputs = [b.average(x)]
    graph = graph_of(b, tmp_path)
    (path,) = step._paths(graph, X86)
    assert len(path) == 5
    for salt in range(20):

        def measured(group: Group, *_: object, salt: int = salt) -> float:
            text = "".join(n.name for n in group.nodes if n.op == "conv")
            return len(group.nodes) * (1 + sum(map(ord, text)) * (salt + 3) % 11 / 10)

        def least(at: int) -> float:
            """Of what stands behind position ``at``."""
            if at == len(path):
                return 0.0
            found = [measured(path[at]) + least(at + 1)]
            for size in (2, 3):
                group = step._merged(path[at : at + size])
                if at + size <= len(path) and step.chain_of(group, X86):
                    found.append(measured(group) / (1 - step.MIN_GAIN) + least(at + size))
            return min(found)

        cut = step._best_cut(path, graph, X86, measured, False)
        got = sum(
            measured(step._merged(run)) / (1 - step.MIN_GAIN) if len(run) > 1 else measured(run[0])
            for run in cut
        )
        assert got == pytest.approx(least(0), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "merges"),
    [
        (CompileOptions(), True),
        (CompileOptions(disabled_passes=("fuse_rows",)), False),
        (CompileOptions(opt_level=2), False),
    ],
    ids=["default", "disabled", "level 2"],
)
def test_when_it_runs(options: CompileOptions, merges: bool, tmp_path: Path) -> None:
    graph = graph_of(inverted_residual(), tmp_path, options)
    seen: list[tuple[str, str, str]] = []
    program = build_program(graph, X86, "net", options, lambda *texts: seen.append(texts))
    templates = [layer.template for layer in program.layers]
    assert ("conv2d_fused_rows" in templates) == merges
    assert ("fuse_rows" in [name for name, _, _ in seen]) == merges
    macs = sum(layer.macs for layer in program.layers)
    assert macs == 112 * 112 * (27 * 16 + 2 * 16 * 96 + 9 * 96)


def test_a_merge_frees_the_maps_between(tmp_path: Path) -> None:
    """When optimising for RAM it may cost a little time; layers by rows free them as well."""
    whole, merged, by_rows = (
        _arena_bytes(tmp_path, CompileOptions(optimize=goal, disabled_passes=disabled))
        for goal, disabled in (("speed", ("fuse_rows",)), ("ram", ()), ("ram", ("fuse_rows",)))
    )
    assert merged < 0.6 * whole
    assert by_rows < 0.6 * whole


def _arena_bytes(folder: Path, options: CompileOptions) -> int:
    """Of an inverted residual block."""
    graph = graph_of(inverted_residual(28, 32, 192), folder, options)
    sizes = {"l1_bytes": 32768, "l2_bytes": 1 << 20}
    target = Target("neon", core="cortex-a72", optimize=options.optimize, **sizes)
    return build_program(graph, target, "net", options).arena.bytes
