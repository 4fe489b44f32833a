"""Fused transformer operators of onnxruntime's domain: embeddings and attention, without a cache of
earlier keys and values.
"""

from __future__ import annotations

import math

import numpy as np

from aotgen.frontend.onnx.microsoft import DOMAIN
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import DType


@converts("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(n: OnnxNode) -> list[Value | None]:
    """layer_norm(word[ids] + position[0..S) + segment[segments]): ids [B, S] -> [B, S, H].

    Output 1 counts the tokens of each row of the mask (input 7); output 2 is the sum.
    """
    ids, word, position = n.x(0), n.x(2), n.x(3)
    if len(ids.shape) != 2:
        n.refuse(f"ids of shape {list(ids.shape)} are no [batch, sequence]")
    batch, length = ids.shape
    total = n.emit("gather", [word, ids], axis=0)
    at = n.optional(8)
    if at is None:
        places = n.cut(position, 0, 0, length)
    else:
        places = n.emit("gather", [position, at], axis=0)
    total = n.emit("add", [total, places])
    segments, kinds = n.optional(1), n.optional(4)
    if segments is not None and kinds is not None:
        total = n.emit("add", [total, n.emit("gather", [kinds, segments], axis=0)])
    eps = n.get_float("epsilon", 1e-12)
    y = n.emit("layer_norm", [total, n.x(5), n.x(6)], axis=2, eps=eps)
    counts: Value | None = None
    if n.is_used(1):
        mask = n.optional(7)
        if mask is None:
            counts = n.constant(np.zeros(batch, np.int32), "counts")
        else:
            one = n.emit("equal", [mask, n.scalar(1, mask)])
            counts = n.emit("reduce_sum", [n.cast(one, DType.I32)], axes=(1,), keepdims=False)
    return [y, counts, total]


@converts("Attention", domain=DOMAIN)
def attention(n: OnnxNode) -> list[Value]:
    """Self attention with one product for queries, keys and values: X [B, S, I],
    W [I, Dq + Dk + Dv] -> [B, S, Dv].
    """
    x, weight, bias = n.x(0), n.x(1), n.optional(2)
    if len(x.shape) != 3 or len(weight.shape) != 2:
        n.refuse(
            f"an input of shape {list(x.shape)} with weights {list(weight.shape)} does not fit"
        )
    _no_cache(n, (4, 6))
    if n.get_int("do_rotary", 0):
        n.refuse("rotary embeddings are not supported")
    sizes = n.get_ints("qkv_hidden_sizes") or (weight.shape[1] // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != weight.shape[1] or sizes[0] != sizes[1]:
        n.refuse(f"qkv_hidden_sizes {list(sizes)} do not fit weights {list(weight.shape)}")
    product = n.emit("matmul", [x, weight, None], trans_b=False)
    if bias is not None:
        product = n.emit("add", [product, bias])
    q, k, v = n.emit_all("split", [product], axis=2, sizes=tuple(sizes))
    return [_attend(n, q, k, v, n.optional(3), n.optional(5))]


@converts("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(n: OnnxNode) -> list[Value]:
    """Attention of queries [B, S, D] over keys [B, L, D] and values [B, L, Dv] -> [B, S, Dv]."""
    if any(n.optional(i) is None or len(n.x(i).shape) != 3 for i in range(3)):
        n.refuse("only separate queries, keys and values of rank 3 are supported")
    _no_cache(n, (6, 7, 8, 9))
    q, k, v = n.x(0), n.x(1), n.x(2)
    bias = n.optional(3)
    if bias is not None:
        sizes = (q.shape[2], k.shape[2], v.shape[2])
        parts = n.emit_all("split", [bias], axis=0, sizes=sizes)
        q, k, v = (n.emit("add", [t, b]) for t, b in zip((q, k, v), parts, strict=True))
    return [_attend(n, q, k, v, n.optional(4), n.optional(5))]


def _no_cache(n: OnnxNode, inputs: tuple[int, ...]) -> None:
    if any(n.optional(i) is not None for i in inputs):
        n.refuse("a cache of earlier keys and values is not supported", "export without past")
    n.only_first_output()


def _attend(
    n: OnnxNode, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None
) -> Value:
    """softmax(scale * q k' + bias + mask) v, head by head; all [B, rows, heads * size]."""
    heads = n.get_int("num_heads")
    batch, rows, width = q.shape
    length, depth = k.shape[1], v.shape[2]
    if heads < 1 or width % heads or depth % heads or k.shape[2] != width:
        n.refuse(f"{heads} heads do not fit widths {width}, {k.shape[2]} and {depth}")
    scale = n.get_float("scale", 0.0) or 1.0 / math.sqrt(width // heads)

    def split(t: Value, size: int) -> Value:
        return n.transpose(n.reshape(t, (batch, t.shape[1], heads, size)), (0, 2, 1, 3))

    scores = n.emit(
        "matmul",
        [split(q, width // heads), split(k, width // heads), None],
        trans_b=True,
    )
    scores = n.emit("mul", [scores, n.scalar(scale, scores)])
    for addend in (bias, _mask(n, mask, scores)):
        if addend is not None:
            scores = n.emit("add", [scores, addend])
    if n.get_int("unidirectional", 0):
        # What onnxruntime adds to scores that causality hides.
        lowest = np.finfo(np.float16 if scores.dtype is DType.F16 else np.float32).min
        hidden = np.triu(np.full((rows, length), lowest), 1 + length - rows)
        scores = n.emit("add", [scores, n.constant(hidden, "causal")])
    weights = n.emit("softmax", [scores], axis=3)
    y = n.emit("matmul", [weights, split(v, depth // heads), None], trans_b=False)
    return n.reshape(n.transpose(y, (0, 2, 1, 3)), (batch, rows, depth))


def _mask(n: OnnxNode, mask: Value | None, scores: Value) -> Value | None:
    """0 where a key counts and ``mask_filter_value`` elsewhere, [B, 1, 1 or S, L] in the type of
    ``scores`` [B, heads, S, L]; from how many keys count [B], or which do [B, L] or [B, S, L].
    """
    if mask is None:
        return None
    batch, _, rows, length = scores.shape
    low = n.get_float("mask_filter_value", -10000.0)
    if mask.shape == (batch,):
        order = n.constant(np.arange(length, dtype=np.int32).reshape(1, 1, 1, length), "order")
        ends = n.reshape(n.cast(mask, DType.I32), (batch, 1, 1, 1))
        counts = n.emit("less", [order, ends])
    elif mask.shape == (batch, length):
        zero = n.scalar(0, mask)
        counts = n.emit("greater", [n.reshape(mask, (batch, 1, 1, length)), zero])
    elif mask.shape == (batch, rows, length):
        zero = n.scalar(0, mask)
        counts = n.emit("greater", [n.reshape(mask, (batch, 1, rows, length)), zero])
    else:
        n.refuse(f"a mask of shape {list(mask.shape)} is not supported")
    numbers = [n.scalar(v, scores) for v in (0.0, low)]
    return n.emit("where", [counts, *numbers])
