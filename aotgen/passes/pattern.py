"""A small matcher for subgraphs: describe an expression, get its values bound to names.

    x = Var("x")
    gelu = Product(0.5, x, Op("add", Op("erf", Product(math.sqrt(0.5), x)), Scalar(1.0)))

A ``Rule`` is a pattern and a rewrite; a rewrite that refuses returns its reason. Matching runs from
a node towards its inputs. The nodes inside a match must have no reader outside it, because they go
away.
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aotgen.ir.graph import Node, Value
from aotgen.passes.rewrite import Rewriter, is_plain_node

log = logging.getLogger(__name__)

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum"})
_RELATIVE = 1e-6
"""How far a constant of the model may be from the exact number: f32 rounding, some steps of it."""


@dataclass(frozen=True)
class Match:
    """What a pattern has found so far: values by name, and the nodes it covers (inputs before their
    readers)."""

    values: Mapping[str, Value] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    @property
    def root(self) -> Node:
        """The node at which the match was started."""
        return self.nodes[-1]

    @property
    def inner(self) -> tuple[Node, ...]:
        """All nodes but the root."""
        return self.nodes[:-1]

    def node(self, name: str) -> Node:
        """The node that computes the value bound to ``name``."""
        producer = self.values[name].producer
        assert producer is not None
        return producer

    def bind(self, name: str, value: Value) -> Match | None:
        """This match with ``name`` bound as well; None when it is bound to another value."""
        if name in self.values:
            return self if self.values[name] is value else None
        return replace(self, values={**self.values, name: value})

    def covering(self, *nodes: Node) -> Match:
        return replace(self, nodes=tuple(dict.fromkeys((*self.nodes, *nodes))))


class Pattern(ABC):
    """Something a value can be matched with."""

    @abstractmethod
    def find(self, value: Value, found: Match, rw: Rewriter) -> Iterator[Match]:
        """All ways in which ``value`` matches, each extending ``found``."""


@dataclass(frozen=True)
class Var(Pattern):
    """Any value; the same name must be the same value wherever it appears."""

    name: str

    def find(self, value: Value, found: Match, rw: Rewriter) -> Iterator[Match]:
        match = found.bind(self.name, value)
        if match is not None:
            yield match


@dataclass(frozen=True)
class Const(Pattern):
    """Any constant."""

    name: str

    def find(self, value: Value, found: Match, rw: Rewriter) -> Iterator[Match]:
        if value.is_const:
            yield from Var(self.name).find(value, found, rw)


@dataclass(frozen=True)
class Scalar(Pattern):
    """A constant whose elements all equal ``number``; any single number when that is None."""

    number: float | None = None
    name: str | None = None

    def find(self, value: Value, found: Match, rw: Rewriter) -> Iterator[Match]:
        number = scalar_of(value)
        if number is None or not (self.number is None or close(number, self.number)):
            return
        match = found if self.name is None else found.bind(self.name, value)
        if match is not None:
            yield match


@dataclass(frozen=True, init=False)
class Op(Pattern):
    """The output of a node: op ``op`` (or one of several), inputs matching ``inputs`` in order.

    Without patterns for inputs any inputs match. Two inputs of a commutative op match in either
    order. ``attrs`` must be equal; ``name`` binds the node's output.
    """

    ops: tuple[str, ...]
    inputs: tuple[Pattern, ...]
    name: str | None
    attrs: Mapping[str, Any]

    def __init__(
        self,
        op: str | tuple[str, ...],
        *inputs: Pattern,
        name: str | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        object.__setattr__(self, "ops", (op,) if isinstance(op, str) else op)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "attrs", dict(attrs or {}))

    def find(self, value: Value, found: Match, rw: Rewriter) -> Iterator[Match]:
        node = value.producer
        if node is None or node.op not in self.ops or len(node.outputs) != 1:
            return
        if any(node.attrs.get(key) != want for key, want in self.attrs.items()):
            return
        start = found if self.name is None else found.bind(self.name, value)
        if start is None:
            return
        for order in self._orders(node):
            for match in find_all(self.inputs, order, start, rw):
                yield match.covering(node)

    def _orders(self, node: Node) -> list[list[Value]]:
        if not self.inputs:
            return [[]]
        if len(node.args) != len(self.inputs):
            return []
        orders = [list(node.args)]
        if node.op in COMMUTATIVE and len(node.args) == 2:
            orders.append(list(reversed(node.args)))
        return orders


@dataclass(frozen=True, init=False)
class Product(Pattern):
    """``coefficient`` times ``factors``, however its tree of mul, div by a number and small powers
    is built."""

    coefficient: float
    factors: tuple[Pattern, ...]

    def __init__(self, coefficient: float, *factors: Pattern) -> None:
        object.__setattr__(self, "coefficient", coefficient)
        object.__setattr__(self, "factors", factors)

    def find(self, value: Value, found: Match, rw: Rewriter) -> Iterator[Match]:
        number, factors, nodes = _flatten(value, rw, True)
        if (
            len(factors) != len(self.factors)
            or not nodes
            or not close(number, self.coefficient, 1e-5)
        ):
            return
        seen: set[tuple[int, ...]] = set()
        for order in itertools.permutations(factors):
            key = tuple(id(v) for v in order)
            if key in seen:
                continue
            seen.add(key)
            for match in find_all(self.factors, list(order), found, rw):
                yield match.covering(*nodes)


def _flatten(value: Value, rw: Rewriter, top: bool) -> tuple[float, list[Value], list[Node]]:
    """A product's number, its other factors with repetition, and the nodes that form it, inputs
    first."""
    node = value.producer
    if node is None or not (top or rw.sole_user(value)):
        return 1.0, [value], []
    if node.op == "mul":
        number = 1.0
        factors: list[Value] = []
        nodes: list[Node] = []
        for arg in (node.input(0), node.input(1)):
            scalar = scalar_of(arg)
            if scalar is not None:
                number *= scalar
                continue
            n, f, inner = _flatten(arg, rw, False)
            number, factors, nodes = number * n, [*factors, *f], [*nodes, *inner]
        return number, factors, [*nodes, node]
    exponent = scalar_of(node.input(1)) if node.op in ("div", "pow") else None
    if node.op == "div" and exponent:
        number, factors, nodes = _flatten(node.input(0), rw, False)
        return number / exponent, factors, [*nodes, node]
    if node.op == "pow" and exponent in (2.0, 3.0):
        return 1.0, [node.input(0)] * int(exponent), [node]
    return 1.0, [value], []


def find_all(
    patterns: Sequence[Pattern], values: Sequence[Value], found: Match, rw: Rewriter
) -> Iterator[Match]:
    """All ways to match the values with the patterns, pairwise in order."""
    if not patterns:
        yield found
        return
    for match in patterns[0].find(values[0], found, rw):
        yield from find_all(patterns[1:], values[1:], match, rw)


def scalar_of(value: Value) -> float | None:
    """The one number that all elements of a constant are; None for other values."""
    if value.const is None or value.const.size == 0 or value.type.quant is not None:
        return None
    first = value.const.reshape(-1)[0]
    if value.const.size > 1 and not bool(np.all(value.const == first)):
        return None
    return float(first)


def close(a: float, b: float, relative: float = _RELATIVE) -> bool:
    return abs(a - b) <= relative * abs(b)


Rewrite = Callable[[Rewriter, Match], str | None]
"""Do the rewrite and return None, or change nothing and return the reason."""


@dataclass(frozen=True)
class Rule:
    """One rewrite.

    Attributes:
        name: for the log.
        pattern: where it applies.
        rewrite: does it, or returns why not.
        shared: nodes inside the match may have readers outside (they stay for those).
        admits: what every node of the match must be; most rules are about real numbers.
    """

    name: str
    pattern: Op | Product
    rewrite: Rewrite
    shared: bool = False
    admits: Callable[[Node], bool] = is_plain_node

    def apply(self, rw: Rewriter, node: Node) -> bool:
        """Try the rule at ``node``; True when it rewrote something."""
        if len(node.outputs) != 1:
            return False
        for match in self.pattern.find(node.output, Match(), rw):
            reason = self._check(rw, match) or self.rewrite(rw, match)
            if reason is None:
                return True
            log.debug("%s not applied at %s: %s", self.name, node.name, reason)
        return False

    def _check(self, rw: Rewriter, match: Match) -> str | None:
        if not all(map(self.admits, match.nodes)):
            return "a value is quantized or has a dimension known only at run time"
        if self.shared:
            return None
        covered = set(match.nodes)
        for node in match.inner:
            if rw.is_output(node.output) or not covered.issuperset(rw.users(node.output)):
                return f"{node.name} has a reader outside the pattern"
        return None


def apply_rules(rw: Rewriter, rules: Sequence[Rule]) -> bool:
    """Apply the rules, first to last at every node, until none applies; True when one did."""
    by_op: dict[str, list[Rule]] = {}
    for rule in rules:
        ops = rule.pattern.ops if isinstance(rule.pattern, Op) else ("mul", "div")
        for op in ops:
            by_op.setdefault(op, []).append(rule)
    changed = False
    again = True
    while again:
        again = False
        for node in rw.nodes():
            if any(rule.apply(rw, node) for rule in by_op.get(node.op, ())):
                again = changed = True
    return changed
