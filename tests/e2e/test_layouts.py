"""alter_op_layout in whole networks: where plan chooses blocks of channels (NCHWc) and where it
refuses them, and that any mixture of layouts computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import aotgen
import aotgen.codegen.project as project_module
from aotgen.api import load, optimise, target_of
from aotgen.ir.graph import Graph, Group
from aotgen.options import CompileOptions
from aotgen.schedule.base import Config, Template
from aotgen.schedule.plan import Plan, plan_graph
from aotgen.target.board import load_board
from aotgen.target.target import Target
from support import require_tool
from tests.e2e.fuzz_models import Model
from tests.e2e.layout_models import Builder, depthwise_chain, lone_depthwise, random_network
from tests.e2e.test_fuzz import check_built

X86 = Target("avx512", l1_bytes=48 * 1024, l2_bytes=1 << 20, l1_ways=12)
BOARDS = ("host", "host-avx2", "host-scalar")
SEEDS = (3, 5, 6, 7, 9, 10, 11, 12)
"""Further networks for the emulated board."""


def prefers_blocks(group: Group, template: Template, config: Config) -> float:
    """Times of a journal in which every block of channels pays for any copy."""
    return 10.0 ** -sum(value == "nchwc" for value in config.as_dict().values())


def prefers_some(salt: int, group: Group, template: Template, config: Config) -> float:
    """Times that favour a layout for some Groups and not for others."""
    knobs = ["x_layout" in config.as_dict(), "y_layout" in config.as_dict()]
    return 1.0 + sum(map(ord, group.name)) * (1 + knobs[0] + 2 * knobs[1] + salt) % 7


def save(builder: Builder, folder: Path) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(builder.proto().SerializeToString())
    return path


def planned(path: Path, target: Target, measured: object = None, blocks: bool = True) -> Plan:
    graph = optimise(load(path), CompileOptions())
    return plan_graph(graph, target, measured, blocks)  # type: ignore[arg-type]


def blocked(plan: Plan) -> set[str]:
    """Names of the values that lie in blocks."""
    return {n for n, p in plan.storage.placements.items() if p.view.layout == "nchwc"}


def copies(plan: Plan) -> int:
    return sum(len(found) for found in plan.storage.copies.values())


@pytest.mark.parametrize("channels", [256, 512])
def test_a_chain_of_depthwise_convolutions_takes_blocks(channels: int, tmp_path: Path) -> None:
    """The stem writes them, residuals stay in them, at most one tensor is copied on the way out."""
    plan = planned(save(depthwise_chain(channels), tmp_path), X86)
    layouts = [c.config.as_dict() for c in plan.choices.values()]
    assert sum("x_layout" in knobs for knobs in layouts) >= 4
    assert len(blocked(plan)) >= 5
    assert copies(plan) <= 1


def test_a_lone_layer_is_not_worth_its_copies(tmp_path: Path) -> None:
    path = save(lone_depthwise(), tmp_path)
    plan = planned(path, X86)
    assert not blocked(plan) and copies(plan) == 0
    forced = planned(path, X86, prefers_blocks)
    assert len(blocked(forced)) == 1 and copies(forced) == 1


@pytest.mark.parametrize(
    "options",
    [
        CompileOptions(disabled_passes=("alter_op_layout",)),
        CompileOptions(opt_level=2),
        CompileOptions(optimize="ram"),
        CompileOptions(optimize="flash"),
        CompileOptions(),
    ],
    ids=["disabled", "level 2", "ram", "flash", "default"],
)
def test_when_it_runs(options: CompileOptions, tmp_path: Path) -> None:
    board = load_board("host")
    graph = optimise(load(save(depthwise_chain(), tmp_path)), options)
    target = target_of(board, options)
    seen: list[tuple[str, str, str]] = []
    program = project_module.build_program(
        graph, target, "net", options, lambda *texts: seen.append(texts)
    )
    views = [p.view.layout for p in program.placements.values()]
    if options == CompileOptions() and target.isa != "scalar":
        assert "nchwc" in views
        ((name, before, after),) = seen
        assert name == "alter_op_layout"
        assert before.count("\n") == after.count("\n") and before != after
        assert f"NCHW{target.vl}c" in after and "NCHW" not in before
    else:
        assert "nchwc" not in views and not seen


def planned_by(measured: object) -> Callable[..., Plan]:
    """``plan_graph`` with these measurements in place of the caller's."""

    def plan(graph: Graph, target: Target, given: object = None, blocks: bool = False) -> Plan:
        return plan_graph(graph, target, measured, blocks)  # type: ignore[arg-type]

    return plan


def compiled(
    model: Model, folder: Path, board: str, measured: object, monkeypatch: pytest.MonkeyPatch
) -> aotgen.Project:
    """The model's project, planned with these measurements."""
    path = folder / "net.onnx"
    path.write_bytes(model.proto.SerializeToString())
    with monkeypatch.context() as patch:
        patch.setattr(project_module, "plan_graph", planned_by(measured))
        return aotgen.compile(path, board=board, output=folder / "project", weights="bin")


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("build", [depthwise_chain, lone_depthwise])
def test_networks_in_blocks(
    build: object, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tool("gcc")
    model = build(channels=32, size=7).model()  # type: ignore[operator]
    project = compiled(model, tmp_path, board, prefers_blocks, monkeypatch)
    layouts = {layer["layout"] for layer in project.manifest["layers"]}
    vector = {"scalar": 1, "avx2": 8, "avx512": 16, "neon": 4}[project.manifest["isa"]]
    assert layouts == {"strided", f"NCHW{vector}c"}
    check_built(project, model)


def check_seed(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the network of this seed had blocks."""
    require_tool("gcc")
    model = random_network(seed).model()
    measured = prefers_blocks if seed % 2 else partial(prefers_some, seed)
    project = compiled(model, folder, BOARDS[seed % 3], measured, monkeypatch)
    check_built(project, model)
    return any(layer["layout"] != "strided" for layer in project.manifest["layers"])


@pytest.mark.parametrize(
    "first", [0, 6, *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 240, 6))]
)
def test_random_networks(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for seed in range(first, first + 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        found += check_seed(seed, folder, monkeypatch)
    assert found >= 3


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in SEEDS)])
def test_validate_on_an_emulated_board(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer by layer through the generated programs, whose trace sees logical tensors."""
    board = load_board("rpi4")
    require_tool("cmake", f"{board.triple}-gcc", board.emulator[0])
    project = compiled(random_network(seed).model(), tmp_path, "rpi4", prefers_blocks, monkeypatch)
    assert any(layer["layout"] == "NCHW4c" for layer in project.manifest["layers"])
    report = project.validate(per_layer=True, runner="qemu")
    assert report.ok, report.first_bad_layer
    assert sum(layer.difference is not None for layer in report.layers) >= 3


def test_the_same_plan_twice(tmp_path: Path) -> None:
    path = save(random_network(5), tmp_path)
    texts = [
        [(name, c.config.as_dict()) for name, c in planned(path, X86).choices.items()]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
