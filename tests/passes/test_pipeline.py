"""The whole pipeline: seeded random graphs at every level, and with each pass left out."""

from __future__ import annotations

import numpy as np
import pytest
from passes.builders import Net, RandomNet, check_equal, feeds, ops

from aotgen.errors import UsageError
from aotgen.ir import interpreter
from aotgen.ir.verifier import verify
from aotgen.passes.pipeline import PASSES, pass_names, run_passes

GRAPHS = 150


@pytest.mark.parametrize("first", range(0, GRAPHS, 10))
def test_random_graphs_keep_their_numbers(first: int) -> None:
    for seed in range(first, first + 10):
        graph = RandomNet(seed).build()
        x = feeds(graph)
        want = interpreter.run(graph, x)
        names = pass_names()
        # Each graph at every level; each pass left out in every third graph.
        left_out = [(3 + seed % 2, [n]) for i, n in enumerate(names) if (i + seed) % 3 == 0]
        for level, disabled in [*((level, []) for level in range(5)), *left_out]:
            where = f"seed {seed}, level {level}, without {disabled}"
            after = RandomNet(seed).build()
            run_passes(after, opt_level=level, disabled=disabled, verify=True)
            check_equal(interpreter.run(after, x), want, where=where)
            assert after.groups is not None


def test_each_pass_alone_keeps_the_numbers() -> None:
    for seed in range(30):
        graph = RandomNet(seed).build()
        x = feeds(graph)
        want = interpreter.run(graph, x)
        for step in PASSES:
            after = RandomNet(seed).build()
            step.run(after)
            verify(after)
            check_equal(interpreter.run(after, x), want, where=f"seed {seed}, {step.name}")


def test_a_second_run_changes_nothing() -> None:
    for seed in range(40):
        graph = RandomNet(seed).build()
        run_passes(graph)
        names = [node.name for node in graph.nodes]
        changed: list[str] = []
        run_passes(graph, on_pass=lambda name, *texts, seen=changed: seen.append(name))
        assert [node.name for node in graph.nodes] == names, seed
        assert set(changed) <= {"fuse_ops"}, (seed, changed)


def test_the_same_graph_twice_gives_the_same_text() -> None:
    from aotgen.ir.printer import print_graph

    for seed in range(10):
        texts = {print_graph(run_passes(RandomNet(seed).build())) for _ in range(2)}
        assert len(texts) == 1


def test_unknown_pass_is_named_with_the_known_ones() -> None:
    net = Net()
    with pytest.raises(UsageError, match=r"'fold'.*fold_constant") as caught:
        run_passes(net.output(net.input(1)), disabled=["fold"])
    assert caught.value.exit_code == 2


def test_levels_switch_passes_on() -> None:
    assert {p.name: p.level for p in PASSES} == {
        "legalize_f16": 0,
        "simplify_inference": 0,
        "sink_transposes": 0,
        "dead_code": 0,
        "fuse_ops": 1,
        "unwrap_dilation": 2,
        "fold_constant": 2,
        "canonicalize_cast": 3,
        "quantize_canonicalize": 3,
        "canonicalize_ops": 3,
        "fold_scale_axis": 3,
        "eliminate_common_subexpr": 3,
        "order_groups": 3,
        "constant_channels": 3,
        "combine_parallel_conv2d": 4,
        "combine_parallel_dense": 4,
        "combine_parallel_batch_matmul": 4,
        "fast_math": 4,
    }


@pytest.mark.filterwarnings("error")
def test_absurd_constants_are_no_reason_to_warn() -> None:
    net = Net()
    x = net.input(1, 4, 5, 5)
    scale, var = (net.graph.constant(np.full(4, v, np.float32), "c") for v in (3e38, -1.0))
    y = net.op("batch_norm", net.conv(x, 4), scale, scale, scale, var, eps=1e-5, axis=1)
    graph = run_passes(net.output(net.op("mul", y, net.number(3e38))))
    (got,) = interpreter.run(graph, feeds(graph)).values()
    assert np.isnan(got).all()


def test_on_pass_shows_what_changed() -> None:
    net = Net()
    x = net.input(1, 4, 5, 5)
    graph = net.output(net.op("relu", net.batch_norm(net.conv(x, 3))))
    seen: list[tuple[str, bool]] = []
    run_passes(graph, on_pass=lambda name, before, after: seen.append((name, before != after)))
    assert ("simplify_inference", True) in seen
    assert ("fold_scale_axis", True) in seen
    assert "canonicalize_cast" not in dict(seen)


def test_level_0_makes_every_node_a_group() -> None:
    net = Net()
    graph = run_passes(net.output(net.op("relu", net.op("neg", net.input(2, 3)))), opt_level=0)
    assert graph.groups is not None
    assert [[n.op for n in g.nodes] for g in graph.groups] == [["neg"], ["relu"]]
    assert ops(graph) == {"neg": 1, "relu": 1}


def test_graph_with_nothing_to_do() -> None:
    net = Net()
    x = net.input(2, 3)
    c = net.const(2)
    graph = run_passes(net.output(x, x, c), verify=True)
    assert graph.outputs == [x, x, c] and graph.nodes == [] and graph.groups == []
