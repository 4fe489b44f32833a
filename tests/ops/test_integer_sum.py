"""Sums of two 8-bit tensors by two products of int32: the same for all 65536 pairs."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.small_cases import sum_attributes, sum_case

from aotgen.ir.graph import Graph, Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType, TensorType
from aotgen.ops.integer_sum import integer_sum
from aotgen.ops.quantized_elementwise import integer_coefficients, scale_coefficients
from aotgen.ops.registry import op_def
from aotgen.te.compute import int_range

SIGNS = {"qadd": (1, 1), "qsub": (1, -1)}


@pytest.mark.parametrize("op", SIGNS)
@pytest.mark.parametrize("dtype", (DType.I8, DType.U8))
def test_all_pairs(op: str, dtype: DType) -> None:
    lo, hi = int_range(dtype)
    every = np.arange(lo, hi + 1, dtype=dtype.numpy)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(every[:, None], every[None, :]))
    found = 0
    for seed in range(25):
        case = sum_case("any", (256, 256), op, dtype=dtype, seed=seed, relu=seed % 3 == 0)
        made = integer_coefficients(case.node)
        if made is None:
            continue
        found += 1
        want = op_def(op).numpy(case.node, [a, b])[0]
        parts = [x.astype(np.int64) * f for x, f in zip((a, b), made.factors, strict=True)]
        total = parts[0] + parts[1] + made.constant
        for step in (*parts, parts[0] + parts[1], parts[0] + made.constant,
                     parts[1] + made.constant, total):  # fmt: skip
            assert np.abs(step).max() < 1 << 31
        attrs = case.node.attrs
        assert np.array_equal(np.clip(total >> made.shift, attrs["lo"], attrs["hi"]), want)
    assert found >= 23


def test_there_are_none_for_16_bits() -> None:
    attrs = sum_attributes(np.random.default_rng(0), DType.I8)
    types = (DType.I8, DType.I16)
    assert integer_sum(lambda attrs, a, b: a, attrs, (1, 1), types) is None


@pytest.mark.parametrize("dtype", (DType.I8, DType.U8))
def test_every_value_of_a_change_of_scale(dtype: DType) -> None:
    lo, hi = int_range(dtype)
    every = np.arange(lo, hi + 1, dtype=dtype.numpy)
    rng = np.random.default_rng(0)
    for _ in range(50):
        multiplier, shift = quantize_multiplier(float(10 ** rng.uniform(-1, 1)))
        zeros = rng.integers(lo, hi + 1, 2)
        graph = Graph("any", [Value("x", TensorType(dtype, (256,)))], [], [])
        node = graph.make(
            "requantize", [graph.inputs[0]], zeros=(int(zeros[0]),), multiplier=multiplier,
            shift=shift, zero_point=int(zeros[1]), lo=lo, hi=hi, dtype=dtype, quant=None,
        )  # fmt: skip
        made = scale_coefficients(node)
        # A shift to the right rounds twice, which one product seldom does.
        assert made is not None or shift < 0
        if made is None:
            continue
        want = op_def("requantize").numpy(node, [every])[0]
        total = every.astype(np.int64) * made.factors[0] + made.constant
        assert np.abs(total).max() < 1 << 31
        assert np.array_equal(np.clip(total >> made.shift, lo, hi), want)
