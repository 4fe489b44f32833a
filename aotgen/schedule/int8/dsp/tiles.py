"""Products of int8 on the DSP extension (Cortex-M4, M7): routines in assembly, how their operands
lie, and how many instructions they take.

SMLAD adds two products of int16. Activations are widened once into a patch, in the order in which
SXTB16 takes steps out of four bytes: the words (0, 2) and (1, 3). Weights stay bytes: of every two
steps a word holds those of two output channels, w0 and w1, so SXTB16 of it and of it turned by
eight bits are the operands.

Packed, a half of that word is the number h = 256 w1 + w0, and one SXTB16 is enough: SMLAD with
the word as it is gives P = 256 acc1 + acc0, with SXTB16 of it acc0, hence acc1 = (P - acc0) >> 8,
modulo 2^32 throughout. ``pairs_fit`` proves from the weights that acc1 has 24 bits and that h is
an int16.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from aotgen.codegen.environment import render
from aotgen.schedule.base import Routine
from aotgen.schedule.int8.dsp.operands import I32, Channels, ScaleKind, rounding_constant
from aotgen.schedule.intrinsics import S16S8_SMLAD

QUAD = 4
"""Reduction steps that are widened together."""

_SXTB16 = (0, 2, 1, 3)
"""Steps of four bytes in the order in which two SXTB16 give them."""

BIAS_BITS = 24
"""Of a bias in a stream, the rest of whose word is the shift."""


@dataclass(frozen=True)
class Products:
    """How a layer's products are computed: a variant of every routine.

    Attributes:
        packed: whether two weights are one number; never where ``scale`` is any.
        scale: kind of the requantization; linear does for relu, too.
        unroll: pairs of reduction steps in the loop of four pixels; twice 8 steps of a vector where
            it is 8.
    """

    packed: bool
    scale: ScaleKind
    unroll: int

    @property
    def any_scale(self) -> bool:
        return self.scale == "any"

    @property
    def suffix(self) -> str:
        """What tells the variant in a kernel's name."""
        return f"{'packed' if self.packed else 'plain'}_{self.scale}"


def pairs_fit(channels: Channels, groups: int) -> bool:
    """Whether the weights of pairs of channels of each group may be packed."""
    per_group = len(channels.weights) // groups
    first = np.arange(len(channels.weights)).reshape(groups, per_group)[:, : per_group // 2 * 2]
    w0, w1 = (channels.weights[first[:, i::2].reshape(-1)].astype(np.int64) for i in (0, 1))
    second = first[:, 1::2].reshape(-1)
    limit = 1 << (BIAS_BITS - 1)
    sums_fit = (channels.low[second] >= -limit).all() and (channels.high[second] < limit).all()
    return bool(sums_fit and (256 * w1 + w0 >= -(1 << 15)).all())


def biases_fit(channels: Channels) -> bool:
    """Whether biases leave room for the shift in a stream."""
    return bool((np.abs(channels.bias.astype(np.int64)) < 1 << (BIAS_BITS - 1)).all())


def stream(channels: Channels, own: slice, products: Products, zero: int) -> I32:
    """The weights of channels ``own`` for ``gemm4`` and ``gemm1``, int32.

    For each pair of channels: two words, bias << 8 and the shift less 1; the weights; for each of
    the two its multiplier, or with ``any_scale`` multiplier, constant and shifts (a byte each: to
    the right, 1 + to the left, 31 or 32). An odd number of channels is filled up.
    """
    count = own.stop - own.start
    wide = count + count % 2

    def pairs(values: I32) -> I32:
        full = np.zeros((wide, *values.shape[1:]), np.int64)
        full[:count] = values[own]
        return _words(full).reshape(wide // 2, 2, *values.shape[1:])

    shift = channels.right if products.any_scale else np.maximum(channels.right - 1, 0)
    head = pairs(channels.bias.astype(np.int64) << 8 | (0 if products.any_scale else shift))
    weights = _weight_words(pairs(channels.weights.astype(np.int32)), products, QUAD)
    tail = pairs(channels.multiplier)
    if products.any_scale:
        constant = rounding_constant(channels.right, zero)
        columns = np.stack([channels.multiplier, constant, _shifts(channels)], axis=1)
        tail = pairs(columns).reshape(wide // 2, 6)
    return np.concatenate([head, weights, tail], axis=1).reshape(-1)


def vector_stream(channels: Channels, products: Products) -> I32:
    """The weights for ``gemv``, int32: for every four channels four words of biases, with packed
    weights b0, 256 b1 + b0 and so on; then for every eight steps four words of the first two
    channels and four of the others. Filled up to whole fours and eights.
    """
    count, depth = channels.weights.shape
    wide = -(-count // 4) * 4
    bias = np.zeros((wide // 2, 2), np.int64)
    bias.reshape(-1)[:count] = channels.bias
    if products.packed:
        bias[:, 1] = 256 * bias[:, 1] + bias[:, 0]
    full = np.zeros((wide // 2, 2, depth), np.int32)
    full.reshape(wide, depth)[:count] = channels.weights
    words = _weight_words(full, products, 2 * QUAD)
    words = words.reshape(wide // 4, 2, -1, QUAD).transpose(0, 2, 1, 3).reshape(wide // 4, -1)
    return np.concatenate([_words(bias).reshape(-1, 4), words], axis=1).reshape(-1)


def vector_scale(channels: Channels, products: Products, zero: int) -> tuple[int, int, int]:
    """(multiplier, constant, shift) of a layer with one scale, as ``gemv`` takes them."""
    right = int(channels.right[0])
    shift = int(_shifts(channels)[0]) if products.any_scale else right - 1
    constant = int(rounding_constant(channels.right[:1], zero)[0])
    return int(channels.multiplier[0]), constant, shift


def clamp_words(lo: int, hi: int) -> tuple[int, int]:
    """The bounds, each four times in a word."""
    low, high = (int(np.full(4, v, np.int8).view(np.int32)[0]) for v in (lo, hi))
    return low, high


def _words(values: np.ndarray) -> I32:
    return (values & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def _weight_words(weights: I32, products: Products, multiple: int) -> I32:
    """[pairs, 2, depth] as words [pairs, depth / 2], the depth filled up to a multiple."""
    pairs, _, depth = weights.shape
    full = np.zeros((pairs, 2, -(-depth // multiple) * multiple), np.int8)
    full[:, :, :depth] = weights
    ordered = full.reshape(pairs, 2, -1, QUAD)[:, :, :, _SXTB16].reshape(full.shape)
    halves = np.concatenate([S16S8_SMLAD.pack(pair) for pair in ordered]).view("<i2")
    if products.packed:  # a negative w0 takes one from w1's byte
        borrow = np.where(ordered[:, 0] < 0, 256, 0).astype(np.int16)
        halves = halves - borrow.reshape(-1)
    return halves.view("<i4").reshape(pairs, -1)


def _shifts(channels: Channels) -> I32:
    right, left = channels.right, channels.left
    return right | (left + 1) << 8 | np.where(right > 0, 31, 32).astype(np.int32) << 16


# --- the routines ---------------------------------------------------------------------------------

_PRODUCTS = "(const {x} *patch, const int32_t *stream, int8_t *out, const void *operands)"


def _routine(name: str, template: str, returns: str, parameters: str, **context: object) -> Routine:
    unused = re.sub("(?=[,)])", " __attribute__((unused))", parameters)  # to the compiler, in r0-r3
    text = render(f"kernels/{template}.c.j2", head=f"{returns}@ROUTINE@{unused}", **context)
    return Routine(name, f"{returns}@ROUTINE@{parameters}", text)


@cache
def expand(pixels: int) -> Routine:
    """``dsp_expand4`` of four pixels, ``dsp_expand1`` of one: int8 to a patch."""
    if pixels == 4:
        where = "int32_t n, int32_t offset, int32_t rows, int32_t step"
        parameters = f"(int32_t *to, const int8_t *const *from, {where})"
    else:
        parameters = "(int32_t *to, const int8_t *from, int32_t n)"
    name = f"dsp_expand{pixels}"
    return _routine(name, "int8_dsp_expand", "int32_t *", parameters, pixels=pixels)


def _variant(products: Products) -> dict[str, object]:
    """What the templates of products read; acc1 doubled is P - acc0 less 7 bits."""
    return {
        "dot": S16S8_SMLAD,
        "packed": products.packed,
        "scale": products.scale,
        "double": "asr" if products.packed else "lsl",
        "doubling": 7 if products.packed else 1,
    }


@cache
def gemm4(products: Products) -> Routine:
    """Four pixels times a stream."""
    return _routine(
        "dsp_gemm4",
        "int8_dsp_gemm4",
        "void ",
        _PRODUCTS.format(x="int32_t"),
        unroll=products.unroll,
        step_bytes=48 if products.packed else 52,
        frame=44 if products.any_scale else 36,
        **_variant(products),
    )


@cache
def gemm1(products: Products) -> Routine:
    """One pixel times a stream."""
    frame = 40 if products.any_scale else 32
    parameters = _PRODUCTS.format(x="int32_t")
    variant = _variant(products)
    return _routine("dsp_gemm1", "int8_dsp_gemm1", "void ", parameters, frame=frame, **variant)


@cache
def gemv(products: Products, *, direct: bool) -> Routine:
    """A vector times a stream of ``vector_stream``; ``direct``: of int8, not widened before."""
    return _routine(
        "dsp_gemv",
        "int8_dsp_gemv",
        "void ",
        _PRODUCTS.format(x="int8_t" if direct else "int32_t"),
        direct=direct,
        unroll=vector_unroll(products),
        frame=40 if products.any_scale else 32 if vector_unroll(products) > 1 else 28,
        **_variant(products),
    )


def vector_unroll(products: Products) -> int:
    """Rounds of eight steps in the loop of ``gemv``."""
    return 2 if products.unroll > 4 else 1


# --- their instructions ---------------------------------------------------------------------------

_OUTPUT: dict[ScaleKind, int] = {"relu": 4, "linear": 5, "any": 8}
"""Of the requantization of a sum."""


def gemm4_instructions(products: Products, depth: int, channels: int) -> int:
    """Of four pixels, ``depth`` a multiple of QUAD."""
    steps = depth // 2
    output = _OUTPUT[products.scale]
    pair = (12 if products.packed else 13) * steps + 3 * math.ceil(steps / products.unroll)
    return 20 + -(-channels // 2) * (pair + 36 + 8 * output)


def gemm1_instructions(products: Products, depth: int, channels: int) -> int:
    """Of one pixel."""
    steps = depth // 2
    output = _OUTPUT[products.scale]
    pair = (3 if products.packed else 4) * steps + steps
    return 20 + -(-channels // 2) * (pair + 26 + 2 * output)


def gemv_instructions(products: Products, depth: int, channels: int, *, direct: bool) -> int:
    """Of a vector, widening included."""
    rounds = -(-depth // (2 * QUAD))
    each = (27 if products.packed else 42) + (5 if direct else 0)
    loops = 3 * math.ceil(rounds / vector_unroll(products))
    output = _OUTPUT[products.scale]
    widening = 0 if direct else 7 * -(-depth // QUAD)
    return 40 + widening + -(-channels // 4) * (rounds * each + loops + 14 + 4 * output)
