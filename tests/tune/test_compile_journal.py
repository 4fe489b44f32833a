"""compile with a journal: its best records, and only those that still hold."""

from __future__ import annotations

import hashlib
import lzma
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from onnx import helper, numpy_helper

import aotgen
from aotgen.api import load, optimise
from aotgen.cli.main import call
from aotgen.ir.graph import Graph, Group
from aotgen.options import CompileOptions
from aotgen.resources import board_support_dir
from aotgen.schedule.base import Config, Template
from aotgen.schedule.plan import Proposal, alternatives
from aotgen.target.board import load_board
from aotgen.target.target import Target
from aotgen.tune.journal import Journal, Record
from aotgen.tune.run import Tunable
from aotgen.tune.schedules import Tuned
from aotgen.tune.space import Space
from aotgen.tune.task import Point, Task, kernel_hash, tasks_of
from aotgen.tune.transfer import MIN_ROWS, JournalTransfer
from support import require_module
from tests.e2e.layout_models import Builder
from tests.tune.fake_measurer import BOARD, record


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


def tasks(model: Path, threads: int = 1) -> list[Task]:
    graph = optimise(load(model), CompileOptions())
    return tasks_of(graph, load_board(BOARD).target(threads=threads))


def lone_conv(
    folder: Path, target: Target, weights: tuple[int, int, int, int], size: int
) -> tuple[Graph, Group, Task]:
    """A network of one convolution of square maps, its Group and its task; weights are OIHW."""
    outputs, channels, kernel, _ = weights
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[kernel // 2] * 4)
    maps = {"x": (1, channels, size, size)}, {"y": (1, outputs, size, size)}
    proto = models.model([node], *maps, {"w": np.ones(weights, np.float32)})
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    graph = optimise(load(path), CompileOptions())
    (group,) = (g for g in graph.groups or [] if g.anchor is not None)
    (task,) = tasks_of(graph, target)
    return graph, group, task


def unusual(task: Task) -> Point:
    """A legal point that gives another kernel than the default."""
    space = Space(task)
    template = space.templates[0]
    default = kernel_hash(task.kernel(template, template.default(task.group, task.target)))
    return next(p for p in space.legal() if kernel_hash(task.kernel(template, p.config)) != default)


def journal_of(model: Path, **more: Any) -> Path:
    """A journal in which an unusual point of every task is the fastest."""
    journal = Journal(model.with_name("j.jsonl"))
    for task in tasks(model):
        default = Space(task).default()[0]
        journal.append([record(task, default, 2e-6, **more)])
        journal.append([record(task, unusual(task), 1e-6, **more)])
    return journal.path


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def compiled(model: Path, name: str, **options: Any) -> aotgen.Project:
    return aotgen.compile(model, BOARD, model.with_name(name), prefix="net", **options)


def sources(project: aotgen.Project) -> str:
    return "".join(p.read_text() for p in sorted((project.folder / "src").glob("kernels_*.c")))


def test_the_best_records_are_used(model: Path) -> None:
    path = journal_of(model)
    plain = compiled(model, "plain")
    tuned = compiled(model, "tuned", journal=path)
    assert sources(plain) != sources(tuned)
    assert plain.manifest["tuning"] is None
    summary = tuned.manifest["tuning"]
    assert (summary["tuned"], summary["transferred"], summary["default"]) == (2, 0, 0)
    assert summary["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    for layer, task in zip(tuned.manifest["layers"], tasks(model), strict=True):
        assert layer["knobs"] == unusual(task).config.as_dict()
        assert (layer["schedule"], layer["seconds"], layer["task"]) == ("tuned", 1e-6, task.key)
    weights = {w.name: numpy_helper.to_array(w) for w in models.two_layers().graph.initializer}
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    wanted = np.maximum(x @ weights["w1"] + weights["b1"], 0) @ weights["w2"]
    np.testing.assert_allclose(tuned.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)


def test_the_same_journal_gives_the_same_bytes(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = journal_of(model)
    one = compiled(model, "one", journal=path)
    monkeypatch.chdir(model.parent)
    two = compiled(model, "two", journal="j.jsonl")
    assert digest(one.folder) == digest(two.folder)


def _worse(r: Record) -> Record:
    return replace(r, kernel="0" * 16) if r.seconds == 1e-6 else r


def _illegal(r: Record) -> Record:
    knobs = {name: 12_345 for name in r.config}
    return replace(r, config=knobs) if r.seconds == 1e-6 else r


def _unsigned(r: Record) -> Record:
    return replace(_illegal(r), kernel="") if r.seconds == 1e-6 else r


def _truth(r: Record) -> Record:
    """Knobs that equal legal ones, of another type."""
    knobs = {name: bool(value) if value in (0, 1) else value for name, value in r.config.items()}
    return replace(r, config=knobs) if r.seconds == 1e-6 else r


def _renamed(r: Record) -> Record:
    return replace(r, config={"gone": 1}) if r.seconds == 1e-6 else r


def _retired(r: Record) -> Record:
    return replace(r, template="conv_gone") if r.seconds == 1e-6 else r


def _foreign(r: Record) -> Record:
    return replace(r, template="pool2d") if r.seconds == 1e-6 else r


@pytest.mark.parametrize(
    "change", [_worse, _illegal, _unsigned, _truth, _renamed, _retired, _foreign]
)
def test_records_that_do_not_hold_are_passed_over(
    model: Path, change: Callable[[Record], Record]
) -> None:
    """What remains is the default's record."""
    path = journal_of(model)
    plain = compiled(model, "plain")
    records = [change(r) for r in Journal(path).records()]
    path.write_text("".join(f"{r.line()}\n" for r in records))
    tuned = compiled(model, "tuned", journal=path)
    assert sources(tuned) == sources(plain)
    assert [layer["seconds"] for layer in tuned.manifest["layers"]] == [2e-6, 2e-6]


def test_a_time_in_the_network_outweighs_one_alone(model: Path) -> None:
    path = journal_of(model)
    more = []
    for task in tasks(model):
        more.append(record(task, Space(task).default()[0], 3e-6, kind="network"))
        more.append(record(task, unusual(task), 4e-6, kind="network"))
    Journal(path).append(more)
    assert sources(compiled(model, "tuned", journal=path)) == sources(compiled(model, "plain"))


def test_the_summary_is_one_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = journal_of(model)
    arguments = ["compile", str(model), "--board", BOARD, "-o", str(model.with_name("out"))]
    assert call([*arguments, "--journal", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tuned 2, transferred 0, default 0 groups (journal j.jsonl)"
    modelled = [replace(r, kind="modelled") for r in Journal(path).records()]
    path.write_text("".join(f"{r.line()}\n" for r in modelled[:2]) + "what?\n" * 2)
    assert call([*arguments, "--journal", str(path), "--force"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "tuned 1 (modelled), transferred 0, default 1 groups"
        " (journal j.jsonl, 2 lines of it are no records)"
    )
    assert call([*arguments, "--journal", str(model.with_name("gone.jsonl")), "--force"]) == 2
    assert "there is no journal" in capsys.readouterr().err
    assert call([*arguments, "--journal", str(model), "--force"]) == 2
    assert "net.onnx is no journal" in capsys.readouterr().err


@pytest.mark.parametrize("packed", [False, True])
def test_a_boards_own_journal(
    model: Path, packed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = journal_of(model, kind="modelled")
    board = model.with_name("mine")
    shutil.copytree(board_support_dir() / BOARD, board)
    if packed:
        (board / "journal.jsonl.xz").write_bytes(lzma.compress(path.read_bytes()))
    else:
        shutil.copy(path, board / "journal.jsonl")
    out = model.with_name("out")
    arguments = ["compile", str(model), "--board", str(board), "-o", str(out), "--force"]
    assert call(arguments) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "tuned 2 (modelled), transferred 0, default 0 groups (journal of board mine)"
    assert call([*arguments, "--journal", "none"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_boards_own_journal_that_is_of_no_use_says_nothing(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unlike one that the user named."""
    board = model.with_name("mine")
    shutil.copytree(board_support_dir() / BOARD, board)
    (board / "journal.jsonl").write_text("")
    out = str(model.with_name("out"))
    arguments = ["compile", str(model), "--board", str(board), "-o", out, "--force"]
    assert call(arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert call([*arguments, "--journal", str(board / "journal.jsonl")]) == 0
    assert capsys.readouterr().out.startswith("tuned 0, transferred 0, default 2 groups (journal")


def test_another_number_of_threads_takes_over_the_configs(model: Path) -> None:
    tuned = compiled(model, "tuned", journal=journal_of(model), threads=2)
    summary = tuned.manifest["tuning"]
    assert (summary["tuned"], summary["transferred"]) == (0, 2)
    for layer, task in zip(tuned.manifest["layers"], tasks(model), strict=True):
        assert layer["knobs"] == unusual(task).config.as_dict()
        assert (layer["schedule"], layer["seconds"]) == ("transferred", None)


def test_configs_go_to_what_they_were_found_for(model: Path) -> None:
    """To another core when they were measured, and to no other purpose."""
    task = tasks(model)[0]
    point = unusual(task)

    def transferred(kind: str, **changes: Any) -> Point | None:
        target = replace(task.target, **changes)
        graph = optimise(load(model), CompileOptions())
        other = tasks_of(graph, target)[0]
        assert other.key != task.key
        made = replace(record(task, point, 1e-6), kind=kind, isa=target.isa)
        return JournalTransfer([made], target, predicts=False)(other)

    assert transferred("measured", threads=2) == point
    assert transferred("modelled", threads=2) == point
    assert transferred("measured", core="another") == point
    assert transferred("modelled", core="another") is None
    assert transferred("measured", optimize="ram") is None


def test_the_model_speaks_for_tasks_like_those_it_knows(model: Path) -> None:
    """Every row says that a small k_unroll is three times as fast."""
    require_module("xgboost")
    known, unknown = tasks(model)
    records = []
    space = Space(known)
    for point in space.legal():
        slow = point.config.int("k_unroll") > 2
        records.append(record(known, point, 3e-6 if slow else 1e-6))
        if len(records) == 4 * MIN_ROWS:
            break
    assert len({r.seconds for r in records}) == 2
    transfer = JournalTransfer(records, unknown.target)
    point = transfer(unknown)
    default = Space(unknown).default()[0]
    if default.config.int("k_unroll") > 2:
        assert point is not None and point.config.int("k_unroll") <= 2
    else:
        assert point is None
    assert JournalTransfer(records[: MIN_ROWS - 1], unknown.target)(unknown) is None
    assert JournalTransfer(records, unknown.target, predicts=False)(unknown) is None


class OneMeasured:
    """A journal with a time of one template of a Group, and a proposal for another one."""

    def __init__(self, measured: str, proposed: Mapping[str, Proposal]) -> None:
        self._measured = measured
        self._proposed = proposed

    def __call__(self, group: Group, template: Template, config: Config) -> float | None:
        return 1.0 if template.name == self._measured else None

    def proposals(self, group: Group) -> Mapping[str, Proposal]:
        return self._proposed

    def key(self, group: Group) -> str:
        return ""

    def kind(self, group: Group) -> str | None:
        return None


def test_a_truthful_time_does_not_lose_against_an_optimistic_model(tmp_path: Path) -> None:
    """The other templates of its Group cost what the models say in relation to it, whether the
    registry or only a journal proposes them.
    """
    target = load_board("host-avx2").target()
    _, group, task = lone_conv(tmp_path, target, (32, 16, 1, 1), 9)
    direct = task.template("conv2d_direct")
    assert direct is not None
    assert [c.template.name for c in alternatives(group, target)] == ["conv2d_pointwise"]
    proposed = {direct.name: Proposal(direct.default(group, target), "tuned")}
    modelled = {
        c.template.name: c.seconds for c in alternatives(group, target, OneMeasured("", proposed))
    }
    assert set(modelled) == {"conv2d_pointwise", "conv2d_direct"}
    for name, own in modelled.items():
        for choice in alternatives(group, target, OneMeasured(name, proposed)):
            assert choice.measured == (choice.template.name == name)
            assert choice.seconds == pytest.approx(modelled[choice.template.name] / own)


def test_other_layouts_stand_on_the_default(tmp_path: Path) -> None:
    """What tuning gained for channels-last does not make blocks of channels faster, and a general
    template that is there by its record has none.
    """
    target = load_board("rpi4").target()
    _, group, task = lone_conv(tmp_path, target, (32, 16, 1, 1), 9)
    special, general = (task.template(n) for n in ("conv2d_pointwise", "conv2d_direct"))
    assert special is not None and general is not None
    default = special.default(group, target)
    tuned = next(
        p.config for p in Space(task).legal() if p.template == special.name and p.config != default
    )
    proposed = {
        special.name: Proposal(tuned, "tuned"),
        general.name: Proposal(general.default(group, target), "tuned"),
    }

    class DefaultToo(OneMeasured):
        def __call__(self, group: Group, template: Template, config: Config) -> float | None:
            return {default: 3.0, tuned: 1.0}.get(config) if template is special else None

    plain = {c.config: c.seconds for c in alternatives(group, target, None, True)}
    found = alternatives(group, target, DefaultToo("", proposed), True)
    assert [c.config for c in found if c.template.name == general.name] == [
        general.default(group, target)
    ]
    own = [c for c in found if c.template.name == special.name]
    assert (own[0].config, own[0].seconds, own[0].measured) == (tuned, 1.0, True)
    assert len(own) == len(plain) > 1
    for choice in own[1:]:
        assert choice.seconds == pytest.approx(3.0 * plain[choice.config] / plain[default])


def test_a_copy_that_a_config_needs_counts(tmp_path: Path) -> None:
    """The first layer reads the input as the file has it; a template that cannot has it copied."""
    target = load_board("rpi4").target()
    graph, group, task = lone_conv(tmp_path, target, (16, 3, 3, 3), 40)
    points = {p.template: p for p in Space(task).default()}
    records = [record(task, p, 1e-3, isa=target.isa) for p in points.values()]
    tuned = Tuned(graph, target, records)
    moved = 2 * 4 * 3 * 40 * 40
    for name, extra in (("conv2d_first", False), ("conv2d_direct", True)):
        template = task.template(name)
        assert template is not None
        seconds = tuned(group, template, points[name].config)
        assert seconds is not None
        copied = seconds - 1e-3
        if extra:  # between 1 and 16 bytes a nanosecond
            assert moved / 16e9 < copied < moved / 1e9
        else:
            assert copied == 0


def test_a_sole_proposal_leaves_no_other_template(model: Path) -> None:
    graph = optimise(load(model), CompileOptions())
    target = load_board(BOARD).target()
    task = tasks(model)[0]
    group = next(g for g in graph.groups or [] if g.name == task.layers[0])
    point = unusual(task)
    proposed = {point.template: Proposal(point.config, "transferred", sole=True)}
    (choice,) = alternatives(group, target, OneMeasured("", proposed))
    assert (choice.config, choice.source) == (point.config, "transferred")


def test_times_decide_what_is_merged_by_rows(tmp_path: Path) -> None:
    """A chain is a task of its own; here it beats, and then does not beat, its parts."""
    b = Builder(3, (1, 3, 28, 28))
    x = b.same("Relu", b.conv("x", 16))
    y = b.same("Relu", b.depthwise(x))
    b.outputs = [b.average(b.same("Relu", b.conv(y, 32)))]
    path = tmp_path / "net.onnx"
    path.write_bytes(b.proto().SerializeToString())
    tunable = Tunable(path, load_board("host-avx2"), CompileOptions())
    chained = "conv2d_fused_rows"
    for name, chain_seconds, merges in (("fast", 1e-7, True), ("slow", 1e-3, False)):
        journal = Journal(tmp_path / f"{name}.jsonl")
        for task in tunable.tasks:
            default = Space(task).default()[0]
            seconds = chain_seconds if default.template == chained else 1e-5
            journal.append([record(task, default, seconds)])
        project = aotgen.compile(path, "host-avx2", tmp_path / name, journal=journal.path)
        layers = project.manifest["layers"]
        assert (chained in [layer["template"] for layer in layers]) == merges
        tuned = [layer for layer in layers if layer["schedule"] == "tuned"]
        keys = {task.key for task in tunable.tasks}
        assert tuned and all(layer["task"] in keys for layer in tuned)


def test_one_journal_of_all_models_of_a_bundle(model: Path, tmp_path: Path) -> None:
    """Tasks of any model are told apart by what they compute: one file serves all."""
    wide = models.two_layers()
    wide.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 6
    wide.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 6
    other = tmp_path / "wide.onnx"
    other.write_bytes(wide.SerializeToString())
    journal = Journal(tmp_path / "both.jsonl")
    for file in (model, other):
        for task in tasks(file):
            journal.append([record(task, Space(task).default()[0], 2e-6)])
            journal.append([record(task, unusual(task), 1e-6)])
    options = CompileOptions(journal=str(journal.path))
    files = {"one": model, "two": other}
    made = aotgen.bundle(files, BOARD, tmp_path / "pair", options=options)
    for name, file in files.items():
        manifest = made.project(name).manifest
        assert manifest["tuning"]["tuned"] == len(tasks(file)) > 0
        for layer, task in zip(manifest["layers"], tasks(file), strict=True):
            assert layer["knobs"] == unusual(task).config.as_dict()
            assert (layer["schedule"], layer["task"]) == ("tuned", task.key)
        assert made.project(name).validate(per_layer=True).ok
