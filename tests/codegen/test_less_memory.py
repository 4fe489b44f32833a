"""The arena of float networks on microcontrollers against what is alive at once whatever the
program: the sum of whole maps, none written over another.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.loading import load
from aotgen.memory.relations import is_view_op
from tests.tflite_builder import ModelBuilder

RESIDUAL, PLAIN, NARROW = "residual", "plain", "narrow"


def network(kind: str) -> bytes:
    """3x3 convolutions of float32: around sums, one after the other, or depthwise on a narrow map
    of many channels.
    """
    rng = np.random.default_rng(1)
    b = ModelBuilder()
    size, channels = ((25, 5), 64) if kind == NARROW else ((16, 16), 8)
    shape = (1, *size, channels)
    x = before = b.input("x", shape, "float32")
    for i in range(6):
        depthwise = kind == NARROW and i % 2 == 0
        form = (1, 3, 3, channels) if depthwise else (channels, 3, 3, channels)
        w = b.const(f"w{i}", (0.1 * rng.standard_normal(form)).astype(np.float32))
        options = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
        options.update({"depth_multiplier": 1} if depthwise else {})
        op = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        x = b.op(op, [x, w, None], out=(f"c{i}", shape, "float32"), options=options, version=3)
        if kind == RESIDUAL and i % 2:
            x = before = b.op("ADD", [before, x], out=(f"s{i}", shape, "float32"), version=2)
    b.output(x)
    return b.finish()


def least_bytes(model: Path) -> int:
    """The largest sum of live activations, operator by operator."""
    graph = load(model)
    values = [v for v in graph.values() if not v.is_const]
    last = {v: i for i, node in enumerate(graph.nodes) for v in node.args}
    last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    first = {node.output: i for i, node in enumerate(graph.nodes)}
    assert not any(is_view_op(node) for node in graph.nodes)
    return max(
        sum(v.type.nbytes for v in values if first.get(v, 0) <= i <= last[v])
        for i in range(len(graph.nodes))
    )


@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547"])
@pytest.mark.parametrize("kind", [RESIDUAL, PLAIN, NARROW])
def test_borders_cost_no_memory(kind: str, board: str, tmp_path: Path) -> None:
    model = tmp_path / "net.tflite"
    model.write_bytes(network(kind))
    speed, ram, flash = (
        aotgen.compile(model, board, tmp_path / goal, optimize=goal).manifest
        for goal in ("speed", "ram", "flash")
    )
    assert speed["arena_bytes"] <= 1.05 * least_bytes(model) + 1024
    assert ram["arena_own_bytes"] <= speed["arena_own_bytes"]
    assert flash["arena_bytes"] > speed["arena_bytes"]  # zeros in memory are the smallest code


def test_large_processors_keep_borders(tmp_path: Path) -> None:
    model = tmp_path / "net.tflite"
    model.write_bytes(network(PLAIN))
    project = aotgen.compile(model, "rpi4", tmp_path / "rpi4")
    assert not any("border" in (layer["knobs"] or {}) for layer in project.manifest["layers"])
