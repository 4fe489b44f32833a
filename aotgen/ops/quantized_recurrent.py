"""integer_lstm: a recurrent layer of TFLite's integer LSTM over a whole sequence, to the bit.

The products with the input are not part of it: ``gates`` holds for every step the input's share of
each gate, already on the gates' scale of 2^-12. Inputs:

    gates    [T, N, G * H] int16: i f c o, or f c o where the input gate is 1 - f
    r        [G * H, H]    int8: recurrent weights, the gates in the same order
    h0       [N, H]        int8 or int16: the hidden state before the first step
    c0       [N, H]        int16: the cell state

Outputs are those of ``results``, some of ("y", "h", "c"): y [T, N, H], h and c behind the last
step.

Attributes: ``mode``, whose arithmetic it is ("tflm" or "litert"); ``gate_scale``, a (multiplier,
shift) of the recurrent product of each gate; ``zero_point`` of the hidden state; ``cell_power``,
the exponent of the cell state's scale; ``cell_clip``, the bound of the cell state, 0 for none;
``hidden_scale``, the (multiplier, shift) of the hidden state; ``wide``, whether the recurrent sums
have 64 bits, as with a hidden state of int16; ``dtype`` and ``quant`` of the hidden state.

Per step and unit, with [x] for x within int16 and MBQM for TFLite's
MultiplyByQuantizedMultiplier (``aotgen.ir.requant``):

    g    = [gates + MBQM(sum r (h - zero), gate_scale)]
    c    = [[f * c / 2^15] + [i * tanh(g_c) * 2^(-30 - cell_power)]], clipped
    h    = MBQM(o * tanh(c), hidden_scale) + zero, within its type

``tflm`` takes sigmoid and tanh from a table with interpolation, rounds the products of the cell
twice, and lets the recurrent share of a gate saturate before it is added; ``litert`` computes both
functions with gemmlowp's 16-bit fixed point (``fixed_point16``) and rounds once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from aotgen.ir import requant
from aotgen.ir.graph import Node, Value
from aotgen.ir.types import DType, Requant, TensorType
from aotgen.ops import fixed_point16 as f16
from aotgen.ops.common import AnyArray, Arrays, expect_rank, expect_shape, fail, need, type_of
from aotgen.ops.quantized_tables import sigmoid_i16, tanh_i16
from aotgen.ops.registry import OpDef, OpPattern, register

RESULTS = ("y", "h", "c")

Int64 = npt.NDArray[np.int64]


def _infer(node: Node) -> list[TensorType]:
    gates, r, h0, c0 = (type_of(node, i) for i in range(4))
    expect_rank(node, gates, 3, 3)
    expect_rank(node, r, 2, 2)
    steps, rows, width = gates.shape
    hidden = r.max_shape[1]
    if gates.max_shape[2] not in (3 * hidden, 4 * hidden):
        fail(node, f"gates of {width} columns do not fit a hidden size of {hidden}")
    expect_shape(node, "the recurrent weight", r, (gates.max_shape[2], hidden))
    for what, state in (("hidden", h0), ("cell", c0)):
        expect_shape(node, f"the {what} state", state, (gates.max_shape[1], hidden))
    dtype = node.attrs["dtype"]
    wanted = {"gates": (gates, DType.I16), "r": (r, DType.I8), "h0": (h0, dtype)}
    for name, (found, right) in {**wanted, "c0": (c0, DType.I16)}.items():
        if found.dtype is not right:
            fail(node, f"input {name} is {found.dtype.value}, must be {right.value}")
    if dtype not in (DType.I8, DType.I16):
        fail(node, f"a hidden state of {dtype.value} is not supported")
    if len(node.attrs["gate_scale"]) != gates.max_shape[2] // hidden:
        fail(node, f"{len(node.attrs['gate_scale'])} scales do not fit its gates")
    names = node.attrs["results"]
    if not names or list(names) != [r for r in RESULTS if r in names]:
        fail(node, f"results are {names}, must be some of {RESULTS} in this order")
    quant = node.attrs["quant"]
    types = {
        "y": TensorType(dtype, (steps, rows, hidden), quant),
        "h": TensorType(dtype, (rows, hidden), quant),
        "c": TensorType(DType.I16, (rows, hidden), node.input(3).type.quant),
    }
    return [types[name] for name in names]


def within_i16(x: Int64) -> Int64:
    return np.clip(x, -32768, 32767)


def table_sigmoid(x: Int64) -> Int64:
    """32768 * sigmoid(x / 4096), as TFLite's int16 LOGISTIC."""
    return np.asarray(sigmoid_i16({"multiplier": 3, "shift": 0}, x))


def tanh_scale(power: int) -> tuple[int, int]:
    """(multiplier, right shift) that bring x * 2^``power`` to the table's steps of 2^-12 / 3."""
    left = 12 + power
    return (3 << left, 0) if left >= 0 else (3, -left)


def table_tanh(x: Int64, power: int) -> Int64:
    """32768 * tanh(x * 2^``power``), as TFLite's int16 TANH."""
    multiplier, shift = tanh_scale(power)
    return np.asarray(tanh_i16({"multiplier": multiplier, "shift": shift}, x))


def _scaled(x: Int64, scale: tuple[int, int], *, wide: bool = False) -> Int64:
    """MBQM(x, scale); ``x`` wraps around to int32 unless it is ``wide``."""
    rule = Requant("tflm", scale[:1], scale[1:], (), 0, -(1 << 31), (1 << 31) - 1, wide=wide)
    sums = x if wide else x.astype(np.int32)
    return requant.apply(rule, sums, dtype=DType.I32).astype(np.int64)


class _Cell:
    """One step, in int64."""

    def __init__(self, node: Node, r: AnyArray) -> None:
        self.attrs = node.attrs
        self.r = r.astype(np.int64)
        self.hidden = r.shape[1]
        self.gates = r.shape[0] // self.hidden
        info = np.iinfo(node.attrs["dtype"].numpy)
        self.low, self.high = int(info.min), int(info.max)
        table = node.attrs["mode"] == "tflm"
        self.sigmoid: Callable[[Int64], Int64] = table_sigmoid if table else f16.sigmoid
        self.tanh: Callable[[Int64, int], Int64] = table_tanh if table else f16.tanh

    def step(self, gates: Int64, h: Int64, c: Int64) -> tuple[Int64, Int64]:
        attrs, size = self.attrs, self.hidden
        product = (h - attrs["zero_point"]) @ self.r.T
        sums = []
        for k, scale in enumerate(attrs["gate_scale"]):
            own = slice(k * size, (k + 1) * size)
            share = _scaled(product[:, own], scale, wide=attrs["wide"])
            if attrs["mode"] == "tflm":
                share = within_i16(share)
            sums.append(within_i16(gates[:, own] + share))
        f, g, o = (sums[k + self.gates - 4] for k in (1, 2, 3))
        forget, fresh, out = self.sigmoid(f), self.tanh(g, -12), self.sigmoid(o)
        power = attrs["cell_power"]
        if attrs["mode"] == "tflm":
            into = self.sigmoid(sums[0])
            kept = within_i16(_scaled(forget * c, (1 << 30, -14)))
            new = within_i16(_scaled(into * fresh, (1 << 30, -29 - power)))
        else:
            into = 32767 - forget if self.gates == 3 else self.sigmoid(sums[0])
            kept = within_i16(_rounding_shift(forget * c, 15))
            new = within_i16(_rounding_shift(into * fresh, 30 + power))
        c = within_i16(kept + new)
        if attrs["cell_clip"]:
            c = np.clip(c, -attrs["cell_clip"], attrs["cell_clip"])
        multiplier, shift = attrs["hidden_scale"]
        zero = attrs["zero_point"]
        rule = Requant("tflm", (multiplier,), (shift,), (), zero, self.low, self.high)
        raw = (out * self.tanh(c, power)).astype(np.int32)
        return requant.apply(rule, raw, dtype=attrs["dtype"]).astype(np.int64), c


def _rounding_shift(x: Int64, bits: int) -> Int64:
    return requant.rounding_divide_by_pot(x, np.asarray(bits))


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    gates = need(arrays, 0).astype(np.int64)
    cell = _Cell(node, need(arrays, 1))
    h, c = need(arrays, 2).astype(np.int64), need(arrays, 3).astype(np.int64)
    y = np.zeros((gates.shape[0], *h.shape), np.int64)
    for t, own in enumerate(gates):
        h, c = cell.step(own, h, c)
        y[t] = h
    dtype = node.attrs["dtype"].numpy
    found = {"y": y.astype(dtype), "h": h.astype(dtype), "c": c.astype(np.int16)}
    return [found[name] for name in node.attrs["results"]]


def _macs(node: Node) -> int:
    steps, rows, width = node.input(0).type.max_shape
    return steps * rows * width * node.input(1).type.max_shape[1]


def _in_place(node: Node) -> list[tuple[Value, Value]]:
    """Each row's state is read before it is written."""
    results = dict(zip(node.attrs["results"], node.outputs, strict=True))
    pairs = (("h", node.input(2)), ("c", node.input(3)))
    return [(source, results[name]) for name, source in pairs if name in results]


register(
    OpDef("integer_lstm", OpPattern.OPAQUE, _infer, _numpy, None, macs=_macs, in_place=_in_place)
)
