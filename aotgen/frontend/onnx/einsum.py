"""Einsum, two operands at a time: sums, transposes and batched matrix products.

Every label falls into one of four classes for a pair of operands: batch (in both, kept), contracted
(in both, not needed any more), and those of one operand only; the pair is then one matmul.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value


@dataclass(frozen=True)
class _Term:
    """A value with a label for each of its axes; ellipsis axes have labels "0", "1", ... ."""

    value: Value
    labels: tuple[str, ...]

    def extent(self, label: str) -> int:
        return self.value.shape[self.labels.index(label)]


@converts("Einsum", since=12)
def einsum(n: OnnxNode) -> Value:
    equation = n.get_str("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    subscripts = left.split(",")
    values = [n.x(i) for i in range(len(n.inputs))]
    if len(subscripts) != len(values):
        n.refuse(f"equation {equation!r} has {len(subscripts)} terms for {len(values)} inputs")
    dots = max(_ellipsis_rank(s, v) for s, v in zip(subscripts, values, strict=True))
    terms = [
        _diagonals(n, _Term(v, _labels(n, s, len(v.shape), dots)))
        for s, v in zip(subscripts, values, strict=True)
    ]
    result = _labels(n, right, None, dots) if arrow else _implicit_result(left, dots)
    if len(set(result)) != len(result) or not set(result) <= {x for t in terms for x in t.labels}:
        n.refuse(f"the result of equation {equation!r} is not valid")
    return _arrange(n, _contract_all(n, terms, result), result)


def _ellipsis_rank(subscript: str, value: Value) -> int:
    if "..." not in subscript:
        return 0
    return len(value.shape) - len(subscript.replace("...", ""))


def _labels(n: OnnxNode, subscript: str, rank: int | None, dots: int) -> tuple[str, ...]:
    """Labels of the axes; an ellipsis stands for the last of ``dots`` shared axes."""
    head, found, tail = subscript.partition("...")
    named = len(head) + len(tail)
    if not (head + tail).isalpha() and named:
        n.refuse(f"subscript {subscript!r} is not valid")
    count = (dots if rank is None else rank - named) if found else 0
    if count < 0 or (rank is not None and named + count != rank):
        n.refuse(f"subscript {subscript!r} does not fit an input of rank {rank}")
    return (*head, *(str(i) for i in range(dots - count, dots)), *tail)


def _implicit_result(left: str, dots: int) -> tuple[str, ...]:
    """Without an arrow: the ellipsis, then the labels that occur once, in alphabetical order."""
    letters = [c for c in left if c.isalpha()]
    return (*(str(i) for i in range(dots)), *sorted(c for c in letters if letters.count(c) == 1))


def _diagonals(n: OnnxNode, term: _Term) -> _Term:
    """``term`` with every label once: of a repeated one the diagonal is taken."""
    for label in dict.fromkeys(term.labels):
        while term.labels.count(label) > 1:
            axes = [i for i, x in enumerate(term.labels) if x == label][:2]
            term = _diagonal(n, term, axes[0], axes[1])
    return term


def _diagonal(n: OnnxNode, term: _Term, first: int, second: int) -> _Term:
    """The two axes become one: every (extent + 1)-th element of both, flattened."""
    shape = term.value.shape
    extent = shape[first]
    if shape[second] != extent:
        n.refuse(f"label {term.labels[first]!r} has extents {extent} and {shape[second]}")
    rest = [i for i in range(len(shape)) if i not in (first, second)]
    outer = tuple(shape[i] for i in rest)
    moved = n.transpose(term.value, (*rest, first, second))
    flat = n.reshape(moved, (*outer, extent * extent))
    line = n.emit(
        "slice",
        [flat],
        starts=(0,) * len(flat.shape),
        ends=flat.shape,
        steps=(*(1,) * len(rest), extent + 1),
    )
    return _Term(line, (*(term.labels[i] for i in rest), term.labels[first]))


def _contract_all(n: OnnxNode, terms: Sequence[_Term], result: Sequence[str]) -> _Term:
    done = terms[0]
    for index, term in enumerate(terms[1:], start=1):
        later = {label for t in terms[index + 1 :] for label in t.labels} | set(result)
        done = _contract(n, done, term, later)
    return _sum_out(n, done, set(result))


def _sum_out(n: OnnxNode, term: _Term, kept: set[str]) -> _Term:
    axes = tuple(i for i, x in enumerate(term.labels) if x not in kept)
    if not axes:
        return term
    value = n.emit("reduce_sum", [term.value], axes=axes, keepdims=False)
    return _Term(value, tuple(x for x in term.labels if x in kept))


def _contract(n: OnnxNode, a: _Term, b: _Term, kept: set[str]) -> _Term:
    """The product of two terms, summed over what is not in ``kept``."""
    shared = [x for x in a.labels if x in b.labels]
    a, b = _sum_out(n, a, kept | set(shared)), _sum_out(n, b, kept | set(shared))
    stretched = [x for x in shared if a.extent(x) != b.extent(x)]
    batch = [x for x in shared if x in kept and x not in stretched]
    summed = [x for x in shared if x not in kept and x not in stretched]
    if stretched or not summed:
        return _sum_out(n, _product(n, a, b), kept)
    rows = [x for x in a.labels if x not in shared]
    columns = [x for x in b.labels if x not in shared]
    sizes = {x: t.extent(x) for t in (a, b) for x in t.labels}

    def volume(labels: Sequence[str]) -> int:
        return math.prod(sizes[x] for x in labels)

    outer = tuple(sizes[x] for x in batch)
    trans_b = b.labels == (*batch, *columns, *summed)
    left = n.reshape(
        _arrange(n, a, [*batch, *rows, *summed]), (*outer, volume(rows), volume(summed))
    )
    order = [*columns, *summed] if trans_b else [*summed, *columns]
    pair = (volume(columns), volume(summed)) if trans_b else (volume(summed), volume(columns))
    right = n.reshape(_arrange(n, b, [*batch, *order]), (*outer, *pair))
    y = n.emit("matmul", [left, right, None], trans_b=trans_b)
    labels = (*batch, *rows, *columns)
    return _Term(n.reshape(y, [sizes[x] for x in labels]), labels)


def _arrange(n: OnnxNode, term: _Term, order: Sequence[str]) -> Value:
    return n.transpose(term.value, [term.labels.index(x) for x in order])


def _product(n: OnnxNode, a: _Term, b: _Term) -> _Term:
    """The broadcast product over the union of both terms' labels."""
    labels = (*a.labels, *(x for x in b.labels if x not in a.labels))

    def spread(term: _Term) -> Value:
        present = [x for x in labels if x in term.labels]
        shape = [term.extent(x) if x in term.labels else 1 for x in labels]
        return n.reshape(_arrange(n, term, present), shape)

    return _Term(n.emit("mul", [spread(a), spread(b)]), labels)
