"""A transformer encoder."""

from __future__ import annotations

from collections.abc import Sequence

from .layers import Layers


def transformer(net: Layers, x: str) -> str:
    """Post-norm transformer encoder (Vaswani et al., 2017): 4 layers, width 256, 4 heads, GELU."""
    length, width, heads, hidden = 128, 256, 4, 1024
    size = width // heads

    def split_heads(x: str, s: str, perm: Sequence[int]) -> str:
        y = net.reshape(net.linear(x, s, (width, width)), s, (1, length, heads, size))
        return net.node("Transpose", s, y, perm=perm)

    for layer in range(4):
        s = f"layers.{layer}"
        q = split_heads(x, s + ".q", (0, 2, 1, 3))
        k = split_heads(x, s + ".k", (0, 2, 3, 1))
        v = split_heads(x, s + ".v", (0, 2, 1, 3))
        score = net.node("Mul", s, net.node("MatMul", s, q, k), net.constant(s, size**-0.5))
        y = net.node("MatMul", s, net.node("Softmax", s, score, axis=-1), v)
        y = net.node("Transpose", s, y, perm=(0, 2, 1, 3))
        y = net.linear(net.reshape(y, s, (1, length, width)), s + ".out", (width, width))
        x = net.layer_norm(net.node("Add", s, x, y), s + ".norm1", width)
        y = net.gelu(net.linear(x, s + ".linear1", (width, hidden)), s + ".activation")
        y = net.linear(y, s + ".linear2", (hidden, width))
        x = net.layer_norm(net.node("Add", s, x, y), s + ".norm2", width)
    return x
