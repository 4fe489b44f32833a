"""constant_channels: what is proven constant is, and without it the results are the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from passes.builders import Net
from passes.quantized_nets import QuantizedNet, extreme_feeds

from aotgen.ir import interpreter, requant
from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import Array, DType, Requant
from aotgen.ir.verifier import verify
from aotgen.loading import load_for, optimise
from aotgen.options import CompileOptions
from aotgen.passes.constant_channels import ConstantChannels
from aotgen.passes.intervals import Intervals
from tests.support import require_shared

SEEDS = range(50)


def _elements(graph: Graph) -> int:
    return sum(v.type.numel for v in graph.values())


def _same(before: Graph, after: Graph) -> None:
    for feeds in extreme_feeds(before):
        want, got = interpreter.run(before, feeds), interpreter.run(after, feeds)
        for name in want:
            assert np.array_equal(got[name], want[name]), name


@pytest.mark.parametrize("multiple", [1, 4, 8])
def test_random_nets(multiple: int) -> None:
    removal = ConstantChannels(multiple)
    smaller = 0
    for seed in SEEDS:
        before, after = QuantizedNet(seed).build(), QuantizedNet(seed).build()
        changed = removal.run(after)
        verify(after)
        assert changed == (_elements(after) < _elements(before)), seed
        smaller += changed
        _same(before, after)
        assert not removal.run(after), f"seed {seed}: not all at once"
    assert smaller > len(SEEDS) // 3


def test_intervals_hold_what_runs_see() -> None:
    constant = 0
    for seed in SEEDS:
        graph = QuantizedNet(seed).build()
        intervals = Intervals(graph)

        def check(value: Value, array: Array, known: Intervals = intervals) -> None:
            found = known.of(value)
            if found is not None:
                rows = array.reshape(-1, array.shape[-1])
                assert np.all(rows >= found.lo) and np.all(rows <= found.hi), value

        for feeds in extreme_feeds(graph):
            interpreter.run(graph, feeds, observe=check)
        constant += sum(int(intervals.constant(v).sum()) for n in graph.nodes for v in n.outputs)
    assert constant > 1000


def test_what_a_second_run_removes_changes_nothing() -> None:
    """What made up a number of channels may be one less the second time; never a needed one."""
    removal = ConstantChannels(3)
    for seed in SEEDS:
        before, after = QuantizedNet(seed).build(), QuantizedNet(seed).build()
        runs = [removal.run(after) for _ in range(4)]
        assert not runs[-1], seed
        _same(before, after)


UNIT = Requant("tflm", (1 << 30,), (-7,), (), 0, -128, 127)
"""Sums are divided by 256."""


class Chain(Net):
    """int8 layers with zero point 0 whose channels a test chooses."""

    def __init__(self, channels: int, *spatial: int) -> None:
        super().__init__()
        self.x = self.input(1, *spatial or (4, 4), channels, dtype=DType.I8)

    def conv_of(
        self,
        x: Value,
        weights: Array,
        bias: Array | None = None,
        pad: int = 0,
        groups: int = 1,
        requant: Requant = UNIT,
    ) -> Value:
        """weights [O, kh, kw, C / groups]."""
        b = None if bias is None else self.graph.constant(np.asarray(bias, np.int32), "b")
        return self.op(
            "qconv",
            x,
            self.graph.constant(np.asarray(weights, np.int8), "w"),
            b,
            strides=(1, 1),
            pads=(pad,) * 4,
            dilations=(1, 1),
            groups=groups,
            dtype=DType.I8,
            quant=None,
            requant=requant,
        )

    def weights(self, *shape: int) -> Array:
        w = self.rng.integers(1, 128, shape)
        return np.where(self.rng.random(shape) < 0.5, w, -w)

    def done(self, y: Value) -> Graph:
        return self.output(y)


def _widths(graph: Graph) -> list[int]:
    return [n.output.shape[-1] for n in graph.nodes if n.op in ("qconv", "qmatmul")]


def _pruned(build: Callable[[], Graph]) -> Graph:
    before, after = build(), build()
    ConstantChannels().run(after)
    verify(after)
    _same(before, after)
    return after


def _saturated(sign: int, outputs: int, constant: int) -> Array:
    """A bias beyond the clamp, below or above it by ``sign``, of the first ``constant`` outputs."""
    return np.where(np.arange(outputs) < constant, sign * (1 << 24), 5)


@pytest.mark.parametrize(
    ("sign", "kernel", "pad", "left"),
    [
        (1, 1, 0, 8),  # folded into the bias
        (1, 3, 0, 8),
        (1, 3, 1, 16),  # pads are another value than the channel
        (0, 3, 1, 8),  # pads are the same value
    ],
)
def test_constants_in_a_window(sign: int, kernel: int, pad: int, left: int) -> None:
    def build() -> Graph:
        net = Chain(8)
        first = net.weights(16, 1, 1, 8)
        if sign == 0:
            first[:8] = 0
        y = net.conv_of(net.x, first, _saturated(sign, 16, 8))
        return net.done(net.conv_of(y, net.weights(8, kernel, kernel, 16), pad=pad))

    assert _widths(_pruned(build)) == [left, 8]


def test_a_tap_that_sees_no_pads_is_folded() -> None:
    """Of a padded 3x3 window only the middle never leaves the image."""

    def build() -> Graph:
        net = Chain(8)
        y = net.conv_of(net.x, net.weights(16, 1, 1, 8), _saturated(1, 16, 8))
        w = net.weights(8, 3, 3, 16)
        w[:, [0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 2, 0, 2, 0, 1, 2], :8] = 0
        return net.done(net.conv_of(y, w, pad=1))

    assert _widths(_pruned(build)) == [8, 8]


def test_an_image_smaller_than_the_pads_is_folded() -> None:
    """A 3x3 window on one pixel: eight taps see pads alone."""

    def build() -> Graph:
        net = Chain(8, 1, 1)
        y = net.conv_of(net.x, net.weights(16, 1, 1, 8), _saturated(1, 16, 8))
        return net.done(net.conv_of(y, net.weights(8, 3, 3, 16), pad=1))

    assert _widths(_pruned(build)) == [8, 8]


def test_channels_that_nothing_reads() -> None:
    """Their weights are 0 in the next layer; what they alone read goes as well."""

    def build() -> Graph:
        net = Chain(8)
        first, second = net.weights(24, 1, 1, 8), net.weights(24, 1, 1, 24)
        second[8:, :, :, :8] = 0  # the first 8 channels are read by the first 8 outputs alone
        third = net.weights(8, 1, 1, 24)
        third[..., :8] = 0
        y = net.conv_of(net.conv_of(net.x, first), second)
        return net.done(net.conv_of(y, third))

    assert _widths(_pruned(build)) == [16, 16, 8]


def test_constants_go_through_depthwise_sum_and_pool() -> None:
    """Both branches of a sum are constant in the same channels."""

    def build() -> Graph:
        net = Chain(8)
        left = net.conv_of(net.x, net.weights(16, 1, 1, 8), _saturated(1, 16, 8))
        left = net.conv_of(left, np.abs(net.weights(16, 3, 3, 1)), groups=16)
        right = net.conv_of(net.x, net.weights(16, 3, 3, 8), _saturated(-1, 16, 8))
        m, s = requant.quantize_multiplier(0.5)
        n, t = requant.quantize_multiplier(2.0**-19)
        y = net.op(
            "qadd",
            left,
            right,
            zeros=(0, 0),
            left_shift=20,
            multipliers=(m, m),
            shifts=(s, s),
            multiplier=n,
            shift=t,
            zero_point=0,
            lo=-128,
            hi=127,
            dtype=DType.I8,
            quant=None,
        )
        y = net.op(
            "max_pool", y, kernel=(2, 2), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1),
            ceil_extra=(0, 0),
        )  # fmt: skip
        flat = net.op("reshape", y, shape=(1, y.type.numel))
        w = net.graph.constant(net.weights(8, flat.shape[-1]).astype(np.int8), "w")
        y = net.op("qmatmul", flat, w, None, trans_b=True, dtype=DType.I8, quant=None, requant=UNIT)
        return net.done(y)

    graph = _pruned(build)
    assert _widths(graph) == [8, 8, 8, 8]
    assert graph.nodes[-1].input(0).shape == (1, 8)


def test_outputs_and_what_ops_over_channels_read_stay() -> None:
    def build() -> Graph:
        net = Chain(8)
        y = net.conv_of(net.x, net.weights(16, 1, 1, 8), _saturated(1, 16, 8))
        return net.output(y, net.op("argmax", y, axis=3, keepdims=True, select_last=False))

    assert not ConstantChannels().run(build())


def test_shifts_that_may_wrap_around_prove_nothing() -> None:
    """Both ends of the sums give the highest output, what lies between them the lowest."""
    left = Requant("tflm", (1 << 30,), (20,), (), 0, -128, 127)

    def build() -> Graph:
        net, w = Chain(8), np.zeros((16, 1, 1, 8), np.int64)
        w[..., 0] = 9
        y = net.conv_of(net.x, w, np.full(16, 3050), requant=left)
        return net.done(net.conv_of(y, net.weights(8, 1, 1, 16)))

    assert _widths(_pruned(build)) == [16, 8]


def test_nothing_reads_what_makes_up_a_number() -> None:
    """Channel 0 of the second layer is high, so that output 0 of the last one is constant; it is
    kept, as one of eight, but has lost its own inputs and is not high any more."""

    def build() -> Graph:
        net = Chain(8)
        second, third = net.weights(8, 1, 1, 16), net.weights(8, 1, 1, 8)
        second[..., 8:], third[..., 0] = 0, 0
        second[0], third[0] = 0, 0
        second[0, ..., 8:], third[0, ..., 0] = 1, 127
        high, beyond = np.zeros(8), np.zeros(8)
        high[0], beyond[0] = 100 * 256, 22000
        y = net.conv_of(net.conv_of(net.x, net.weights(16, 1, 1, 8)), second, high)
        return net.done(net.conv_of(y, third, beyond))

    assert _widths(_pruned(build)) == [8, 8, 8]


def test_constant_outputs_need_no_inputs() -> None:
    """The layer before is not needed at all; one vector of channels is left of it."""

    def build() -> Graph:
        net = Chain(8)
        y = net.conv_of(net.x, net.weights(32, 1, 1, 8))
        return net.done(net.conv_of(y, net.weights(8, 3, 3, 32), np.full(8, 1 << 29), pad=1))

    graph = _pruned(build)
    assert _widths(graph) == [8, 8]
    last = graph.nodes[-1]
    assert last.input(1).const is not None and not last.input(1).const.any()
    assert last.input(2).const is not None and np.all(last.input(2).const < 1 << 17)


def test_flash_keeps_fewer_channels() -> None:
    """The visual wake words of MLPerf Tiny: bytes of its convolutions' weights."""
    file = require_shared("models/mlperf_tiny/vww_96_int8.tflite")

    def weights(optimize: Literal["speed", "flash"]) -> int:
        options = CompileOptions(optimize=optimize, requant="tflm")
        graph = optimise(load_for(file, options), options)
        return sum(n.input(1).type.nbytes for n in graph.nodes if n.op == "qconv")

    assert weights("flash") <= 31_615 < weights("speed")
