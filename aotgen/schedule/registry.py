"""The templates, in order of preference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from aotgen.ir.graph import Group
from aotgen.schedule.base import Template
from aotgen.target.target import Target


@cache
def anchor_templates() -> tuple[Template, ...]:
    """Every anchor template; one that is made for a special case stands before the general one."""
    from aotgen.schedule.conv.conv2d_depthwise import Conv2dDepthwise
    from aotgen.schedule.conv.conv2d_direct import Conv2dDirect
    from aotgen.schedule.conv.conv2d_first import Conv2dFirst
    from aotgen.schedule.conv.conv2d_fused_rows import Conv2dFusedRows
    from aotgen.schedule.conv.conv2d_pointwise import Conv2dPointwise
    from aotgen.schedule.conv.conv_dot import ConvDot, ConvTransposeDot
    from aotgen.schedule.conv.conv_grouped import ConvGrouped, ConvTransposeGrouped
    from aotgen.schedule.conv.conv_transpose import ConvTranspose
    from aotgen.schedule.conv.pool2d import Pool2d
    from aotgen.schedule.dense.matmul_gemm import MatmulBatch, MatmulGemm
    from aotgen.schedule.int8.dsp.dense import Int8DspDense
    from aotgen.schedule.int8.dsp.depthwise import Int8DspDepthwise
    from aotgen.schedule.int8.dsp.depthwise_taps import Int8DspTaps
    from aotgen.schedule.int8.integer_sum import Int8IntegerSum
    from aotgen.schedule.int8.mve.dense import Int8MveDense
    from aotgen.schedule.int8.mve.depthwise import Int8MveDepthwise
    from aotgen.schedule.int8.neon.dense import Int8NeonDense
    from aotgen.schedule.int8.neon.depthwise import Int8NeonDepthwise
    from aotgen.schedule.int8.neon.sum import Int8Sum
    from aotgen.schedule.int8.pool import Int8Pool
    from aotgen.schedule.int8.quantized_batch import QuantizedBatch
    from aotgen.schedule.int8.quantized_dense import QuantizedDense
    from aotgen.schedule.int8.quantized_depthwise import QuantizedDepthwise
    from aotgen.schedule.int8.softmax import Int8Softmax
    from aotgen.schedule.int8.x86.dense import Int8Dense
    from aotgen.schedule.int8.x86.depthwise import Int8Depthwise
    from aotgen.schedule.opaque.delay_line import DelayLine
    from aotgen.schedule.opaque.integer_lstm import IntegerLstm
    from aotgen.schedule.opaque.pairwise_coupling import PairwiseCoupling
    from aotgen.schedule.opaque.recurrent import Recurrent
    from aotgen.schedule.opaque.svdf import Svdf
    from aotgen.schedule.opaque.top_k import TopK
    from aotgen.schedule.opaque.tree_ensemble import TreeEnsemble
    from aotgen.schedule.winograd.conv2d_winograd import Conv2dWinograd

    return (
        Conv2dPointwise(),
        Conv2dFirst(),
        Conv2dDepthwise(),
        Conv2dFusedRows(),
        ConvGrouped(),
        ConvDot(),
        Conv2dWinograd(),
        Conv2dDirect(),
        ConvTransposeGrouped(),
        ConvTransposeDot(),
        ConvTranspose(),
        MatmulGemm(),
        MatmulBatch(),
        Pool2d(),
        Int8Pool(),
        Int8Sum(),
        Int8IntegerSum(),
        Int8Softmax(),
        Int8Depthwise(),
        Int8Dense(),
        Int8NeonDepthwise(),
        Int8NeonDense(),
        Int8DspDense(),
        Int8MveDense(),
        Int8MveDepthwise(),
        Int8DspDepthwise(),
        Int8DspTaps(),
        QuantizedDepthwise(),
        QuantizedDense(),
        QuantizedBatch(),
        Recurrent(),
        IntegerLstm(),
        DelayLine(),
        Svdf(),
        TopK(),
        PairwiseCoupling(),
        TreeEnsemble(),
    )


GENERAL = frozenset({"conv2d_direct", "conv2d_winograd", "conv_transpose"})
"""Templates that a special one makes superfluous: their models are not exact enough to be chosen
against it.
"""


def candidates(group: Group, target: Target) -> list[Template]:
    """Templates that can implement ``group``, the preferred one first; the te nest only when no
    other can.
    """
    found = [t for t in anchor_templates() if t.applies(group, target) is None]
    if found:
        return preferred(found)
    from aotgen.schedule.nest import NestTemplate

    nest = NestTemplate()
    return [nest] if nest.applies(group, target) is None else []


def preferred(templates: Sequence[Template]) -> list[Template]:
    """Of templates that can implement a Group those that are weighed without a measurement."""
    return [t for t in templates if t.name not in GENERAL] or list(templates)
