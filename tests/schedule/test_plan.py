"""plan's choice of layouts against all combinations, and how measured and modelled times meet."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest

from aotgen.api import load, optimise
from aotgen.ir.graph import Graph, Group
from aotgen.ir.types import DType
from aotgen.options import CompileOptions
from aotgen.schedule import plan as plan_module
from aotgen.schedule.base import Config, Need, Template
from aotgen.schedule.layouts import X_LAYOUT, Y_LAYOUT, layout_of, with_layouts
from aotgen.schedule.plan import alternatives, choose, copy_seconds
from aotgen.target.target import Target
from tests.e2e.layout_models import depthwise_chain, random_network

X86 = Target("avx512", l1_bytes=48 * 1024, l2_bytes=1 << 20, l1_ways=12)


def graph_of(proto: object, folder: Path) -> Graph:
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())  # type: ignore[attr-defined]
    return optimise(load(path), CompileOptions())


def scattered(salt: int, group: Group, template: Template, config: Config) -> float:
    """Made-up times of the order of a copy's, different for each layout of each Group."""
    blocks = [layout_of(config, knob) == "nchwc" for knob in (X_LAYOUT, Y_LAYOUT)]
    code = sum(map(ord, group.name)) + 7 * salt + blocks[0] + 2 * blocks[1]
    return 1e-7 * (1 + code * 37 % 101)


@pytest.mark.parametrize("seed", range(12))
def test_the_cheapest_of_all_combinations(seed: int, tmp_path: Path) -> None:
    """The dynamic programming finds what trying every combination finds."""
    graph = graph_of(random_network(seed).proto(), tmp_path)
    options = plan_module._options(graph, X86, partial(scattered, seed), True)
    combinations = 1
    for found in options.values():
        combinations *= len(found)
    assert combinations <= 20_000, "choose smaller networks: this test tries every combination"
    _, seconds = plan_module._cheapest(graph, X86, options)
    start = {v: plan_module._Held(Need()) for v in graph.inputs}
    least = float("inf")
    for chosen in itertools.product(*options.values()):
        state = plan_module._State(0.0, start, None)
        for group, option in zip(options, chosen, strict=True):
            state = plan_module._step(state, group, option, X86)
        least = min(least, state.seconds)
    assert seconds == pytest.approx(least, rel=1e-12)


def test_an_unmeasured_layout_costs_what_the_model_says_of_a_measured_one(tmp_path: Path) -> None:
    graph = graph_of(depthwise_chain().proto(), tmp_path)
    group = next(g for g in graph.groups or [] if g.name == "conv_t2")
    plain, blocked, _ = alternatives(group, X86, blocks=True)

    def plain_only(group: Group, template: Template, config: Config) -> float | None:
        return 1.0 if layout_of(config, X_LAYOUT) == "strided" else None

    found = alternatives(group, X86, plain_only, blocks=True)
    assert [c.measured for c in found] == [True, False, False]
    assert found[0].seconds == 1.0
    assert found[1].seconds == pytest.approx(blocked.seconds / plain.seconds)


def test_measurements_decide(tmp_path: Path) -> None:
    """A journal in which blocks are slower, or hardly faster, keeps channels-last."""
    graph = graph_of(depthwise_chain().proto(), tmp_path)

    def times(factor: float, group: Group, template: Template, config: Config) -> float:
        return factor if layout_of(config, X_LAYOUT) == "nchwc" else 1.0

    def takes_blocks(factor: float) -> bool:
        found = choose(graph, X86, partial(times, factor), blocks=True)
        return any(layout_of(c.config, X_LAYOUT) == "nchwc" for c in found.values())

    assert takes_blocks(0.9)
    assert not takes_blocks(0.99) and not takes_blocks(1.1)


def test_a_copy_is_paid_between_layouts_only(tmp_path: Path) -> None:
    graph = graph_of(depthwise_chain().proto(), tmp_path)
    value = next(v for g in graph.groups or [] for v in g.outputs if len(v.shape) == 4)
    assert value.dtype is DType.F32
    plain, blocks = Need(unit_inner=True), Need(layout="nchwc", block=16)
    assert copy_seconds(value, plain, plain, X86) == 0.0
    assert copy_seconds(value, blocks, blocks, X86) == 0.0
    assert copy_seconds(value, plain, blocks, X86) == copy_seconds(value, blocks, plain, X86) > 0.0


def test_channels_last_configs_do_not_speak_of_layouts() -> None:
    """So that journals and manifests of networks without blocks stay as they are."""
    config = Config.of(nr=32)
    assert with_layouts(config, "strided", "strided") == config
    both = with_layouts(config, "nchwc", "nchwc")
    assert both.as_dict() == {"nr": 32, X_LAYOUT: "nchwc", Y_LAYOUT: "nchwc"}
    assert with_layouts(both, "strided", "strided") == config
