"""Decision trees of ai.onnx.ml: read into preorder, then tree_ensemble and what follows the sums.

Where the operators' text is silent (a class that no leaf speaks of, scores of two classes), the
result is onnxruntime's; where onnxruntime contradicts the text, the model is refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aotgen.frontend.onnx.ml_common import (
    DOMAIN,
    POST_TRANSFORMS,
    choose,
    complement,
    floats_or_tensor,
    int_labels,
    ints,
    labels_of,
    need_length,
    pair,
    post_transform,
    rows,
    vector,
)
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType
from aotgen.ops.trees import LEAF, MODES, NAN_IS_TRUE

_BRANCHES = {f"BRANCH_{mode.upper()}": i for i, mode in enumerate(MODES)}

_MEMBER = len(MODES)
"""TreeEnsemble's number of a test for membership in a set."""

_COPIES = 8
"""Nodes shared by several parents are repeated, up to this many times the nodes of the file."""


@dataclass(frozen=True)
class Branch:
    """``mode`` as tree_ensemble has it; ``yes`` and ``no`` are keys of nodes."""

    feature: int
    threshold: float
    mode: int
    yes: Hashable
    no: Hashable


@dataclass
class Leaf:
    """(target, weight) pairs in the file's order."""

    entries: list[tuple[int, float]] = field(default_factory=list)


Nodes = Mapping[Hashable, Branch | Leaf]


@dataclass
class Forest:
    """Trees in preorder, as tree_ensemble wants them.

    Attributes:
        leaves: the entries of each leaf, by the number that ``skips`` has for it.
        owners: of each leaf the index of its tree.
    """

    values: list[float] = field(default_factory=list)
    features: list[int] = field(default_factory=list)
    skips: list[int] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    leaves: list[list[tuple[int, float]]] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def grow(
        self, n: OnnxNode, root: Hashable, nodes: Nodes, limit: int, reached: set[Hashable]
    ) -> None:
        """Append the tree below ``root``; its nodes are added to ``reached``."""
        self.roots.append(len(self.values))
        # Each entry: a node to write, and the branch whose false child it is; keys on the way to
        # it, for cycles. A None leaves the innermost node of that way.
        pending: list[tuple[Hashable, int | None] | None] = [(root, None)]
        path: dict[Hashable, None] = {}
        while pending:
            top = pending.pop()
            if top is None:
                path.popitem()
                continue
            reached.add(top[0])
            key, parent = top
            node = nodes.get(key)
            if node is None:
                n.refuse(f"a tree refers to node {key}, which does not exist", _MALFORMED)
            if key in path:
                n.refuse(f"node {key} of a tree is below itself", _MALFORMED)
            at = len(self.values)
            if at >= limit:
                n.refuse(f"its trees share nodes: written out they have more than {limit}")
            if parent is not None:
                self.skips[parent] = at - parent
            if isinstance(node, Leaf):
                self._append(0.0, LEAF, len(self.leaves), 0)
                self.leaves.append(node.entries)
                self.owners.append(len(self.roots) - 1)
                continue
            if node.feature < 0:  # which would read as a leaf
                n.refuse(f"a tree asks for feature {node.feature}", _MALFORMED)
            self._append(node.threshold, node.feature, 0, node.mode)
            path[key] = None
            pending += [None, (node.no, at), (node.yes, None)]

    def _append(self, value: float, feature: int, skip: int, mode: int) -> None:
        self.values.append(value)
        self.features.append(feature)
        self.skips.append(skip)
        self.modes.append(mode)

    def always(self, target: int) -> bool:
        """Whether some tree speaks of ``target`` in each of its leaves."""
        silent = {
            owner
            for owner, entries in zip(self.owners, self.leaves, strict=True)
            if all(t != target for t, _ in entries)
        }
        return len(silent) < len(self.roots)

    def targets(self) -> list[int]:
        return sorted({t for entries in self.leaves for t, _ in entries})

    def emit(
        self, n: OnnxNode, x: Value, targets: int, aggregate: str, hits: bool
    ) -> tuple[Value, Value | None]:
        """The node: scores [N, targets], and hits when asked for."""
        if any(not 0 <= t < targets for t in self.targets()):
            n.refuse(f"a leaf speaks of a target outside 0..{targets - 1}", _MALFORMED)
        if any(not 0 <= f < x.shape[1] for f in self.features if f != LEAF):
            n.refuse(f"a tree asks for a feature outside 0..{x.shape[1] - 1}", _MALFORMED)
        real = x.dtype.numpy
        values, skips = np.array(self.values, real), np.array(self.skips, np.int32)
        features = np.array(self.features, np.int32)
        lists: list[Value] = []
        if all(len(entries) == 1 for entries in self.leaves):
            at = features == LEAF
            values[at] = [entries[0][1] for entries in self.leaves]
            skips[at] = [entries[0][0] for entries in self.leaves]
        else:
            counts = [len(entries) for entries in self.leaves]
            flat = [entry for entries in self.leaves for entry in entries]
            lists = [
                n.constant(np.cumsum([0, *counts]).astype(np.int32), "starts"),
                n.constant(np.array([t for t, _ in flat], np.int32), "targets"),
                n.constant(np.array([w for _, w in flat], real), "weights"),
            ]
        found = n.emit_all(
            "tree_ensemble",
            [
                x,
                n.constant(values, "values"),
                n.constant(features, "features"),
                n.constant(skips, "skips"),
                n.constant(np.array(self.modes, np.uint8), "modes"),
                n.constant(np.array(self.roots, np.int32), "roots"),
                *lists,
            ],
            targets=targets,
            aggregate=aggregate,
            hits=hits,
        )
        return found[0], found[1] if hits else None


_MALFORMED = "the model is malformed: export it again"


def _read_lists(n: OnnxNode, prefix: str) -> Forest:
    """The trees of TreeEnsembleClassifier ("class") and TreeEnsembleRegressor ("target")."""
    keys = list(zip(_ints(n, "nodes_treeids"), _ints(n, "nodes_nodeids"), strict=True))
    count = len(keys)
    features, yes, no = (
        _ints(n, f"nodes_{name}", count) for name in ("featureids", "truenodeids", "falsenodeids")
    )
    modes, values = n.get_strings("nodes_modes"), floats_or_tensor(n, "nodes_values")
    missing = ints(n, "nodes_missing_value_tracks_true")
    need_length(n, "nodes_modes", modes, count)
    need_length(n, "nodes_values", values, count)
    nodes: dict[Hashable, Branch | Leaf] = {}
    for i, (key, mode) in enumerate(zip(keys, modes, strict=True)):
        if key in nodes:
            n.refuse(f"node {key} of a tree is there twice", _MALFORMED)
        if mode == "LEAF":
            nodes[key] = Leaf()
            continue
        if mode not in _BRANCHES:
            n.refuse(f"nodes_modes has {mode!r}, which is not known")
        flag = NAN_IS_TRUE if len(missing) and missing[i] else 0
        nodes[key] = Branch(
            features[i],
            float(values[i]),
            _BRANCHES[mode] | flag,
            (key[0], yes[i]),
            (key[0], no[i]),
        )
    _read_leaves(n, prefix, nodes)
    children = {c for b in nodes.values() if isinstance(b, Branch) for c in (b.yes, b.no)}
    roots: dict[int, Hashable] = {}
    for key in keys:
        if key not in children:
            if key[0] in roots:
                n.refuse(f"tree {key[0]} has two roots", _MALFORMED)
            roots[key[0]] = key
    return _grown(n, list(roots.values()), nodes, needed=True)


def _read_leaves(n: OnnxNode, prefix: str, nodes: Nodes) -> None:
    """Attach the weights to the leaves."""
    weights = floats_or_tensor(n, f"{prefix}_weights")
    trees, numbers, targets = (
        _ints(n, f"{prefix}_{name}", len(weights)) for name in ("treeids", "nodeids", "ids")
    )
    for tree, number, target, weight in zip(trees, numbers, targets, weights, strict=True):
        leaf = nodes.get((tree, number))
        if not isinstance(leaf, Leaf):
            n.refuse(f"{prefix}_nodeids names {(tree, number)}, which is no leaf", _MALFORMED)
        leaf.entries.append((target, float(weight)))


def _ints(n: OnnxNode, name: str, count: int | None = None) -> list[int]:
    found = [int(v) for v in ints(n, name)]
    if count is not None:
        need_length(n, name, found, count)
    return found


def _grown(n: OnnxNode, roots: Sequence[Hashable], nodes: Nodes, needed: bool = False) -> Forest:
    """The trees below ``roots``; ``needed``: they have all of ``nodes``."""
    if not roots:
        n.refuse("it has no tree", _MALFORMED)
    forest = Forest()
    reached: set[Hashable] = set()
    for root in roots:
        forest.grow(n, root, nodes, _COPIES * len(nodes), reached)
    # Each of these has a parent, and still no root leads to it.
    lost = next((key for key in nodes if needed and key not in reached), None)
    if lost is not None:
        n.refuse(f"node {lost} of a tree is below itself", _MALFORMED)
    return forest


def _features(n: OnnxNode) -> Value:
    """[N, F] in f32, or in f64 as they are; integers become f32."""
    x = rows(n, n.x())
    if x.dtype is DType.F64:
        return x
    if x.dtype is DType.BOOL or x.dtype is DType.F16:
        n.refuse(f"element type {x.dtype.value} is not supported here", "cast its input to float")
    return n.cast(x, DType.F32)


def _regression(
    n: OnnxNode, forest: Forest, targets: int, aggregate: str, base: Array, post: str
) -> Value:
    """[N, targets]: the aggregate, plus the base values where some leaf spoke, transformed."""
    x = _features(n)
    always = all(forest.always(t) for t in range(targets))
    kind = {"AVERAGE": "sum"}.get(aggregate, aggregate.lower())
    one_number = targets == 1 and all(len(entries) == 1 for entries in forest.leaves)
    hits = (kind != "sum" and not one_number) or (not always and bool(base.any()))
    scores, seen = forest.emit(n, x, targets, kind, hits)
    if aggregate == "AVERAGE":
        scores = n.emit("div", [scores, n.scalar(len(forest.roots), scores)])
    if len(base):
        need_length(n, "base_values", base, targets)
    if base.any():
        seen = None if always else seen
        row = n.constant(base.astype(x.dtype.numpy), "base_values")
        moved = n.emit("add", [scores, row])
        scores = moved if seen is None else n.emit("where", [seen, moved, scores])
    scores = n.cast(scores, DType.F32)
    if targets == 1 and post in POST_TRANSFORMS and post != "PROBIT":
        return scores  # onnxruntime transforms a single target by PROBIT alone
    return post_transform(n, scores, post)


@converts("TreeEnsembleRegressor", domain=DOMAIN)
def tree_regressor(n: OnnxNode) -> Value:
    return _regression(
        n,
        _read_lists(n, "target"),
        n.get_int("n_targets"),
        n.get_str("aggregate_function", "SUM"),
        floats_or_tensor(n, "base_values"),
        n.get_str("post_transform", "NONE"),
    )


@converts("TreeEnsembleClassifier", domain=DOMAIN)
def tree_classifier(n: OnnxNode) -> list[Value | None]:
    """The label [N] int64 and the scores [N, E]."""
    classes = len(n.get_strings("classlabels_strings")) or len(ints(n, "classlabels_int64s"))
    labels = int_labels(n, "classlabels_int64s")
    forest, base = _read_lists(n, "class"), floats_or_tensor(n, "base_values")
    post = n.get_str("post_transform", "NONE")
    x = _features(n)
    if classes < 2:
        n.refuse(f"it has {classes} class labels", "a classifier needs at least two")
    if classes > 2:
        return _many_classes(n, forest, x, base, labels, classes, post)
    if len(forest.targets()) > 1:
        return _two_scores(n, forest, x, base, post)
    return _one_score(n, forest, x, base, labels, post)


def _many_classes(
    n: OnnxNode, forest: Forest, x: Value, base: Array, labels: Array, classes: int, post: str
) -> list[Value | None]:
    """The class of the highest score among those that a leaf spoke of."""
    always = all(forest.always(t) for t in range(classes))
    scores, seen = forest.emit(n, x, classes, "sum", not always and not len(base))
    if len(base):
        need_length(n, "base_values", base, classes)
        scores = n.emit("add", [scores, n.constant(base.astype(x.dtype.numpy), "base_values")])
    label: Value | None = None
    if n.is_used(0):
        heard = scores
        if seen is not None:
            heard = n.emit("where", [seen, scores, n.scalar(-np.inf, scores)])
        best = n.emit("argmax", [heard], axis=1, keepdims=False, select_last=False)
        label = labels_of(n, best, labels)
    return [label, post_transform(n, n.cast(scores, DType.F32), post)]


def _two_scores(
    n: OnnxNode, forest: Forest, x: Value, base: Array, post: str
) -> list[Value | None]:
    """Two classes that both have scores: they are what the trees say."""
    if n.is_used(0):
        n.refuse(
            "its leaves score both of two classes: the label is the class of the higher score by "
            "ONNX's text, but 1 wherever class 1 has a positive score in onnxruntime",
            "use the scores, with an ArgMax, instead of the label",
        )
    if len(base) or not (forest.always(0) and forest.always(1)):
        n.refuse(
            "its leaves score both of two classes, with base_values or not in every leaf: runtimes "
            "disagree about the scores",
            "export it with one score, that of the positive class",
        )
    scores, _ = forest.emit(n, x, 2, "sum", False)
    return [None, post_transform(n, n.cast(scores, DType.F32), post)]


def _one_score(
    n: OnnxNode, forest: Forest, x: Value, base: Array, labels: Array, post: str
) -> list[Value | None]:
    """Two classes and one score s, of the positive class: it is it when s > 0.5 if no weight is
    negative, else when s > 0. The other score is 1 - s or -s, and with LOGISTIC sigmoid(-s).
    """
    index = (forest.targets() or [0])[0]
    if not forest.always(index):
        n.refuse("some leaves have no score", _MALFORMED)
    if len(base) > 1 or (len(base) and index) or (post == "PROBIT" and not index):
        n.refuse(
            f"base_values of {len(base)} entries and post_transform={post!r} with the score of "
            f"class {index} alone have no defined meaning",
            "export it again",
        )
    positive = all(w >= 0 for entries in forest.leaves for _, w in entries)
    forest.leaves = [[(0, w) for _, w in entries] for entries in forest.leaves]
    score, _ = forest.emit(n, x, 1, "sum", False)
    if len(base):
        score = n.emit("add", [score, n.scalar(float(base[0]), score)])
    label: Value | None = None
    if n.is_used(0):
        wins = n.emit("greater", [vector(n, score), n.scalar(0.5 if positive else 0.0, score)])
        need_length(n, "classlabels_int64s", labels, 2)
        label = choose(n, wins, int(labels[1]), int(labels[0]))
    score = n.cast(score, DType.F32)
    if index:
        zero = n.emit("mul", [score, n.scalar(0.0, score)])
        return [label, post_transform(n, pair(n, zero, score), post)]
    if post == "LOGISTIC":
        return [label, n.emit("sigmoid", [pair(n, n.emit("neg", [score]), score)])]
    other = complement(n, score) if positive else n.emit("neg", [score])
    return [label, pair(n, other, score)]


@converts("TreeEnsemble", domain=DOMAIN, since=5)
def tree_ensemble(n: OnnxNode) -> Value:
    """Nodes that are branches alone, leaves in a list of their own, sets as tests."""
    splits, weights = n.get_tensor("nodes_splits"), n.get_tensor("leaf_weights")
    codes = n.get_tensor("nodes_modes")
    if splits is None or weights is None or codes is None:
        n.refuse("nodes_splits, nodes_modes or leaf_weights is missing", _MALFORMED)
    splits, weights = splits.reshape(-1), weights.reshape(-1)
    if splits.dtype not in (np.float32, np.float64):
        n.refuse(f"element type {splits.dtype} of its splits is not supported")
    count, leaves = len(splits), _ints(n, "leaf_targetids", len(weights))
    features = _ints(n, "nodes_featureids", count)
    missing = ints(n, "nodes_missing_value_tracks_true")
    sets = _sets(n.get_tensor("membership_values"))
    nodes: dict[Hashable, Branch | Leaf] = {
        ("leaf", i): Leaf([(t, float(w))])
        for i, (t, w) in enumerate(zip(leaves, weights, strict=True))
    }

    def child(side: str, i: int) -> Hashable:
        kind = "leaf" if ends[side][i] else "node"
        return (kind, ids[side][i])

    ids = {s: _ints(n, f"nodes_{s}nodeids", count) for s in ("true", "false")}
    ends = {s: _ints(n, f"nodes_{s}leafs", count) for s in ("true", "false")}
    for i, code in enumerate(int(c) for c in codes.reshape(-1)):
        flag = NAN_IS_TRUE if len(missing) and missing[i] else 0
        yes, no = child("true", i), child("false", i)
        if code < _MEMBER:
            nodes["node", i] = Branch(features[i], float(splits[i]), code | flag, yes, no)
            continue
        if code > _MEMBER or not sets:
            n.refuse(f"nodes_modes has {code} without a set of membership_values", _MALFORMED)
        # A set is a chain of tests for equality with one child for all that hold.
        members = sets.pop(0) or [float("nan")]
        for j, member in enumerate(members):
            key = ("node", i) if j == 0 else ("member", i, j)
            rest = no if j == len(members) - 1 else ("member", i, j + 1)
            nodes[key] = Branch(features[i], member, _BRANCHES["BRANCH_EQ"] | flag, yes, rest)
    roots = [("node", r) for r in _ints(n, "tree_roots")]
    forest = _grown(n, roots, nodes)
    aggregate = _numbered(n, "aggregate_function", ("AVERAGE", "SUM", "MIN", "MAX"), 1)
    post = _numbered(n, "post_transform", POST_TRANSFORMS, 0)
    scores = _regression(
        n, forest, n.get_int("n_targets"), aggregate, np.zeros(0, np.float32), post
    )
    return n.cast(scores, n.x().dtype)


def _numbered(n: OnnxNode, name: str, words: Sequence[str], default: int) -> str:
    """The word that an attribute has the number of."""
    number = n.get_int(name, default)
    if not 0 <= number < len(words):
        n.refuse(f"{name}={number} is not known", _MALFORMED)
    return words[number]


def _sets(values: Array | None) -> list[list[float]]:
    """The sets of membership_values, each ended by a NaN."""
    found: list[list[float]] = []
    current: list[float] = []
    for value in () if values is None else values.reshape(-1):
        if np.isnan(value):
            found.append(current)
            current = []
        else:
            current.append(float(value))
    return found + ([current] if current else [])
