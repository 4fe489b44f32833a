"""``--optimize ram``: layers that compute by rows together give the bytes of layers one by one.

Networks of convolutions, depthwise ones, pools, sums and concatenations with odd sizes, strides and
dilations are compared with the interpreter, output by output and layer by layer. The arena is full
of poison before a run and lies between guards, so a row that is read too early or dropped too soon
shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgen
from aotgen.ir import interpreter
from aotgen.loading import load
from tests.e2e.quick_build import QuickModel
from tests.support import require_tool
from tests.tflite_builder import ModelBuilder


class Network:
    """A random network over one image, int8 or float32."""

    def __init__(self, seed: int, is_float: bool = False) -> None:
        self.is_float = is_float
        self.rng = np.random.default_rng(seed)
        self.b = ModelBuilder()
        size = (int(self.rng.integers(17, 34)), int(self.rng.integers(9, 20)))
        shape = (1, *size, int(self.rng.choice([1, 3, 4])))
        self.count = 0
        self.x = self.b.input("x", shape, *self.kind())
        self.shape = shape

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def kind(self, scale: float = 0.04, zero: int = -5) -> tuple[Any, ...]:
        """An activation's type."""
        return ("float32",) if self.is_float else ("int8", scale, zero)

    def weights(self, name: str, form: tuple[int, ...], scales: Any, axis: int = 0) -> int:
        """A constant of random weights; ``scales``: one, or one for each output channel."""
        drawn = self.rng.integers(-127, 128, form).astype(np.int8)
        if self.is_float:
            at = [1] * len(form)
            at[axis] = -1
            return self.b.const(name, (drawn * np.reshape(scales, at)).astype(np.float32))
        if np.ndim(scales) == 0:
            return self.b.const(name, drawn, scales, 0)
        return self.b.const(name, drawn, list(scales), [0] * len(scales), axis)

    def _window(self, taps: int, stride: int, dilation: int, same: bool) -> tuple[int, int]:
        reach = (taps - 1) * dilation + 1
        sizes = self.shape[1:3]
        if same:
            return tuple(-(-n // stride) for n in sizes)  # type: ignore[return-value]
        return tuple((n - reach) // stride + 1 for n in sizes)  # type: ignore[return-value]

    def _fits(self, reach: int) -> bool:
        return min(self.shape[1:3]) >= reach

    def conv(self, outputs: int, *, depthwise: bool = False) -> None:
        rng = self.rng
        taps = int(rng.choice([1, 3, 3, 5]))
        stride, dilation = (1, 2) if rng.random() < 0.15 else (int(rng.choice([1, 1, 2])), 1)
        same = bool(rng.random() < 0.7) or not self._fits((taps - 1) * dilation + 1)
        channels = self.shape[3]
        outputs = channels if depthwise else outputs
        form = (1, taps, taps, outputs) if depthwise else (outputs, taps, taps, channels)
        depth = taps * taps * (1 if depthwise else channels)
        scales = rng.uniform(0.004, 0.02, outputs) / depth**0.5
        w = self.weights(f"w{self.count}", form, scales, 3 if depthwise else 0)
        bias = rng.integers(-2000, 2000, outputs).astype(np.int32)
        if self.is_float:
            c = self.b.const(f"c{self.count}", (bias * 0.04 * scales).astype(np.float32))
        else:
            c = self.b.const(f"c{self.count}", bias, list(0.04 * scales), [0] * outputs, 0)
        size = self._window(taps, stride, dilation, same)
        options = {
            "padding": "SAME" if same else "VALID",
            "stride_w": stride,
            "stride_h": stride,
            "dilation_w_factor": dilation,
            "dilation_h_factor": dilation,
            "fused_activation_function": str(rng.choice(["NONE", "RELU"])),
        }
        if depthwise:
            options["depth_multiplier"] = 1
        self.shape = (1, *size, outputs)
        out = (self.name(), self.shape, *self.kind())
        op = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        self.x = self.b.op(op, [self.x, w, c], out=out, options=options, version=3)

    def pool(self) -> None:
        kind = str(self.rng.choice(["MAX_POOL_2D", "AVERAGE_POOL_2D"]))
        if not self._fits(3):
            return
        size = self._window(3, 2, 1, True)
        self.shape = (1, *size, self.shape[3])
        options = {
            "padding": "SAME", "stride_w": 2, "stride_h": 2, "filter_width": 3,
            "filter_height": 3,
        }  # fmt: skip
        out = (self.name(), self.shape, *self.kind())
        self.x = self.b.op(kind, [self.x], out=out, options=options, version=2)

    def residual(self) -> None:
        """Two 3x3 convolutions around a sum with what they read."""
        before, shape = self.x, self.shape
        for _ in range(2):
            w = self.weights(f"w{self.count}r", (shape[3], 3, 3, shape[3]), 0.002)
            out = (self.name(), shape, *self.kind())
            options = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
            self.x = self.b.op("CONV_2D", [self.x, w, None], out=out, options=options, version=3)
        out = (self.name(), shape, *self.kind(0.05, -3))
        self.x = self.b.op("ADD", [before, self.x], out=out, version=2)

    def branches(self) -> None:
        """Two convolutions of other kernels side by side."""
        x, shape = self.x, self.shape
        parts = []
        for outputs, taps in ((5, 1), (3, 3)):
            w = self.weights(f"w{self.count}b", (outputs, taps, taps, shape[3]), 0.003)
            out = (self.name(), (*shape[:3], outputs), *self.kind())
            options = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
            parts.append(self.b.op("CONV_2D", [x, w, None], out=out, options=options, version=3))
        self.shape = (*shape[:3], 8)
        out = (self.name(), self.shape, *self.kind())
        self.x = self.b.op("CONCATENATION", parts, out=out, options={"axis": 3}, version=2)

    def finish(self) -> bytes:
        self.b.output(self.x)
        return self.b.finish()


def network(seed: int, is_float: bool = False) -> bytes:
    n = Network(seed, is_float)
    n.conv(8)
    for _ in range(int(n.rng.integers(4, 9))):
        step = str(n.rng.choice(["conv", "depthwise", "residual", "branches", "pool"]))
        if step == "conv":
            n.conv(int(n.rng.integers(3, 13)))
        elif step == "depthwise":
            n.conv(0, depthwise=True)
        else:
            getattr(n, step)()
    return n.finish()


def check(seed: int, board: str, folder: Path) -> tuple[int, int]:
    """Bytes of the arena as ``ram`` and as ``speed`` has it."""
    model = folder / "network.tflite"
    model.write_bytes(network(seed))
    project = aotgen.compile(model, board, folder / "ram", optimize="ram", weights="bin")
    fast = aotgen.compile(model, board, folder / "speed", weights="bin")
    quick = QuickModel(project)
    graph = load(model)
    x = graph.inputs[0]
    drawn = np.random.default_rng(seed).integers(-128, 128, x.shape).astype(np.int8)
    values: dict[str, np.ndarray] = {}
    wanted = interpreter.run(
        graph, {x.name: drawn}, observe=lambda v, a: values.__setitem__(v.name, a)
    )
    for got in (quick.run({x.name: drawn}), quick.run_in_arena({x.name: drawn})):
        for array, value in zip(got, wanted.values(), strict=True):
            assert np.array_equal(array, value)
    for layer in project.manifest["layers"]:
        pieces = b"".join(data for _, data in quick.traced[layer["index"]])
        known = values.get(layer["output"])
        if known is not None and known.nbytes == len(pieces):
            assert pieces == known.tobytes(), layer["name"]
    return project.manifest["arena_own_bytes"], fast.manifest["arena_own_bytes"]


@pytest.mark.parametrize("seed", range(8))
def test_bytes_are_the_same(seed: int, tmp_path: Path) -> None:
    require_tool("gcc")
    small, large = check(seed, "host-scalar", tmp_path)
    assert small <= large


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 80))
def test_many_networks(seed: int, tmp_path: Path) -> None:
    require_tool("gcc")
    check(seed, "host-scalar" if seed % 2 else "host", tmp_path)


def check_float(seed: int, board: str, folder: Path) -> tuple[int, int]:
    """The same for float32, against layers one by one: bit by bit where no layer of those sums in
    another order, as Winograd's do.
    """
    model = folder / "network.tflite"
    model.write_bytes(network(seed, is_float=True))
    project = aotgen.compile(model, board, folder / "ram", optimize="ram", weights="bin")
    fast = aotgen.compile(model, board, folder / "speed", weights="bin")
    graph = load(model)
    x = graph.inputs[0]
    drawn = np.random.default_rng(seed).normal(0, 2, x.shape).astype(np.float32)
    wanted = interpreter.run(graph, {x.name: drawn})
    quick, whole = QuickModel(project), QuickModel(fast).run({x.name: drawn})
    reordered = any(
        "winograd" in layer["template"] for p in (project, fast) for layer in p.manifest["layers"]
    )
    for got in (quick.run({x.name: drawn}), quick.run_in_arena({x.name: drawn})):
        for array, value, alone in zip(got, wanted.values(), whole, strict=True):
            assert np.abs(array - value).max() <= 1e-5 * np.abs(value).max()
            assert reordered or np.array_equal(array, alone)
    return project.manifest["arena_own_bytes"], fast.manifest["arena_own_bytes"]


@pytest.mark.parametrize("seed", range(8))
def test_floats_are_the_same(seed: int, tmp_path: Path) -> None:
    require_tool("gcc")
    small, large = check_float(seed, "host-scalar", tmp_path)
    assert small <= large


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 80))
def test_many_float_networks(seed: int, tmp_path: Path) -> None:
    require_tool("gcc")
    check_float(seed, "host-scalar" if seed % 2 else "host", tmp_path)
