"""Linear models and support vector machines of ai.onnx.ml, decomposed into products and kernels."""

from __future__ import annotations

import itertools

import numpy as np

from aotgen.frontend.onnx.ml_common import (
    DOMAIN,
    as_float,
    choose,
    complement,
    floats,
    int_labels,
    ints,
    labels_of,
    need_length,
    pair,
    post_transform,
    probit,
    rows,
    vector,
)
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import Array


def _product(n: OnnxNode, x: Value, weights: Array, offset: Array) -> Value:
    """x [N, C] times weights [C, K], plus offset [K] unless it is all 0."""
    bias = n.constant(offset, "offset") if offset.any() else None
    matrix = n.constant(np.ascontiguousarray(weights), "weights")
    return n.emit("matmul", [x, matrix, bias], trans_b=False)


def _coefficients(n: OnnxNode, x: Value, count: int) -> Array:
    """[K, C] as [C, K]."""
    values = floats(n, "coefficients")
    need_length(n, "coefficients", values, count * x.shape[1])
    return values.reshape(count, -1).T


def _intercepts(n: OnnxNode, count: int) -> Array:
    values = floats(n, "intercepts")
    if len(values) not in (0, count):
        n.refuse(f"intercepts has {len(values)} entries, {count} are needed", "export it again")
    return values if len(values) else np.zeros(count, np.float32)


@converts("LinearRegressor", domain=DOMAIN)
def linear_regressor(n: OnnxNode) -> Value:
    x = rows(n, as_float(n, n.x()))
    targets, post = n.get_int("targets", 1), n.get_str("post_transform", "NONE")
    scores = _product(n, x, _coefficients(n, x, targets), _intercepts(n, targets))
    return _single_or_all(n, scores, post)


def _single_or_all(n: OnnxNode, scores: Value, post: str) -> Value:
    """onnxruntime transforms a single score by PROBIT alone."""
    if scores.shape[1] > 1:
        return post_transform(n, scores, post)
    return probit(n, scores) if post == "PROBIT" else scores


@converts("LinearClassifier", domain=DOMAIN)
def linear_classifier(n: OnnxNode) -> list[Value | None]:
    """The label [N] int64 and the scores [N, E]; two classes may have one score, of the second."""
    x = rows(n, as_float(n, n.x()))
    count = len(floats(n, "intercepts")) or len(floats(n, "coefficients")) // max(x.shape[1], 1)
    classes = len(n.get_strings("classlabels_strings")) or len(ints(n, "classlabels_ints"))
    labels = int_labels(n, "classlabels_ints")
    post = n.get_str("post_transform", "NONE")
    scores = _product(n, x, _coefficients(n, x, count), _intercepts(n, count))
    label: Value | None = None
    if count > 1:
        if n.is_used(0):
            if len(labels):
                need_length(n, "classlabels_ints", labels, count)
            best = n.emit("argmax", [scores], axis=1, keepdims=False, select_last=False)
            label = labels_of(n, best, labels)
        return [label, post_transform(n, scores, post)]
    if classes != 2 or post == "PROBIT":
        n.refuse(
            f"one score for {classes} class labels with post_transform={post!r} has no defined "
            "meaning",
            "export it with two class labels",
        )
    if n.is_used(0):
        wins = n.emit("greater", [vector(n, scores), n.scalar(0.0, scores)])
        label = choose(n, wins, int(labels[1]), int(labels[0]))
    if post == "LOGISTIC":
        return [label, n.emit("sigmoid", [pair(n, n.emit("neg", [scores]), scores)])]
    return [label, pair(n, complement(n, scores), scores)]


def _kernels(n: OnnxNode, x: Value, vectors: Array) -> Value:
    """K(x, v) of each row [N, C] and support vector [S, C]: [N, S]."""
    kind = n.get_str("kernel_type", "LINEAR")
    parameters = floats(n, "kernel_params")
    gamma, offset, degree = (float(p) for p in parameters) if len(parameters) else (0.0, 0.0, 0.0)
    if kind == "RBF":
        wide = n.reshape(x, (x.shape[0], 1, x.shape[1]))
        apart = n.emit("sub", [wide, n.constant(vectors[None], "vectors")])
        square = n.emit("reduce_sum_square", [apart], axes=(2,), keepdims=False)
        return n.emit("exp", [n.emit("mul", [square, n.scalar(-gamma, square)])])
    product = n.emit("matmul", [x, n.constant(vectors, "vectors"), None], trans_b=True)
    if kind == "LINEAR":
        return product
    affine = n.emit("mul", [product, n.scalar(gamma, product)])
    affine = n.emit("add", [affine, n.scalar(offset, product)])
    if kind == "POLY":
        return n.emit("pow", [affine, n.scalar(degree, product)])
    if kind == "SIGMOID":
        return n.emit("tanh", [affine])
    n.refuse(f"kernel_type={kind!r} is not known")


def _vectors(n: OnnxNode, x: Value, count: int) -> Array:
    values = floats(n, "support_vectors")
    need_length(n, "support_vectors", values, count * x.shape[1])
    return values.reshape(count, x.shape[1])


@converts("SVMRegressor", domain=DOMAIN)
def svm_regressor(n: OnnxNode) -> Value:
    """Sum of coefficient * K(x, v), plus rho; its sign when it is a one-class model."""
    x = rows(n, as_float(n, n.x()))
    count, rho = n.get_int("n_supports", 0), floats(n, "rho")
    need_length(n, "rho", rho, 1)
    if count:
        coefficients = floats(n, "coefficients")
        need_length(n, "coefficients", coefficients, count)
        kernels, weights = _kernels(n, x, _vectors(n, x, count)), coefficients.reshape(-1, 1)
    else:
        kernels, weights = _linear_kernel(n, x, 1)
    y = _product(n, kernels, weights, rho)
    if n.get_int("one_class", 0):
        inside = n.emit("greater", [y, n.scalar(0.0, y)])
        y = n.emit("where", [inside, n.scalar(1.0, y), n.scalar(-1.0, y)])
    return y  # whatever post_transform says, as in onnxruntime


def _linear_kernel(n: OnnxNode, x: Value, classes: int) -> tuple[Value, Array]:
    """Without support vectors: the coefficients [classes, C] are the only vectors."""
    values = floats(n, "coefficients")
    need_length(n, "coefficients", values, classes * x.shape[1])
    return _kernels(n, x, values.reshape(classes, -1)), np.eye(classes, dtype=np.float32)


@converts("SVMClassifier", domain=DOMAIN)
def svm_classifier(n: OnnxNode) -> list[Value | None]:
    """The label [N] int64 and the scores: of every class, or of every pair of classes (0-1, 0-2,
    ..., 1-2, ...) where there are no probabilities.
    """
    x = rows(n, as_float(n, n.x()))
    labels = int_labels(n, "classlabels_ints")
    per_class = [int(v) for v in n.get_ints("vectors_per_class") or ()]
    post, rho = n.get_str("post_transform", "NONE"), floats(n, "rho")
    a, b = floats(n, "prob_a"), floats(n, "prob_b")
    if per_class:
        classes = len(per_class)
    else:
        classes, a = len(labels) or len(n.get_strings("classlabels_strings")), a[:0]
    if classes < 2:
        n.refuse(f"it has {classes} classes", "a classifier needs at least two")
    if per_class:
        decisions = _pairwise(n, x, per_class, rho)
        votes = _votes(n, decisions, classes)
    else:
        kernels, weights = _linear_kernel(n, x, classes)
        need_length(n, "rho", rho, 1)
        votes = decisions = _product(n, kernels, weights, np.full(classes, rho[0], np.float32))
    label: Value | None = None
    if n.is_used(0):
        if len(labels):
            need_length(n, "classlabels_ints", labels, classes)
        label = _svm_label(n, votes, labels, per_class)
    if not len(a):
        return [label, _decision_scores(n, decisions, post)]
    need_length(n, "prob_a", a, classes * (classes - 1) // 2)
    need_length(n, "prob_b", b, len(a))
    return [label, post_transform(n, _probabilities(n, decisions, a, b, classes), post)]


def _pairs(classes: int) -> list[tuple[int, int]]:
    """The pairs of classes, in the order of their scores."""
    return list(itertools.combinations(range(classes), 2))


def _pairwise(n: OnnxNode, x: Value, per_class: list[int], rho: Array) -> Value:
    """One decision per pair of classes [N, P], positive for the first: sum of coefficient * K over
    the support vectors of both, plus rho.

    Coefficients are [classes - 1, S]: of a vector of class i the row of its decision against class
    j is j - 1 for i < j, and j for i > j.
    """
    count, classes = sum(per_class), len(per_class)
    pairs = _pairs(classes)
    need_length(n, "rho", rho, len(pairs))
    coefficients = floats(n, "coefficients")
    need_length(n, "coefficients", coefficients, (classes - 1) * count)
    table = coefficients.reshape(classes - 1, count)
    own = np.repeat(np.arange(classes), per_class)
    weights = np.zeros((count, len(pairs)), np.float32)
    for p, (i, j) in enumerate(pairs):
        weights[own == i, p] = table[j - 1, own == i]
        weights[own == j, p] = table[i, own == j]
    return _product(n, _kernels(n, x, _vectors(n, x, count)), weights, rho)


def _votes(n: OnnxNode, decisions: Value, classes: int) -> Value:
    """How many pairs each class wins, [N, classes]."""
    pairs = _pairs(classes)
    first = np.zeros((len(pairs), classes), np.float32)
    second = np.zeros_like(first)
    for p, (i, j) in enumerate(pairs):
        first[p, i] = second[p, j] = 1
    won = n.emit("greater", [decisions, n.scalar(0.0, decisions)])
    ones = n.emit("where", [won, n.scalar(1.0, decisions), n.scalar(0.0, decisions)])
    return _product(n, ones, first - second, second.sum(axis=0))


def _probabilities(n: OnnxNode, decisions: Value, a: Array, b: Array, classes: int) -> Value:
    """Platt's sigmoid of each decision, coupled to one probability per class."""
    slope, offset = n.constant(-a, "prob_a"), n.constant(-b, "prob_b")
    argument = n.emit("add", [n.emit("mul", [decisions, slope]), offset])
    each = n.emit("sigmoid", [argument])
    return n.emit("pairwise_coupling", [each], classes=classes)


def _svm_label(n: OnnxNode, votes: Value, labels: Array, per_class: list[int]) -> Value:
    """The class of most votes, the first of equal ones; of linear models that of the best score."""
    if not per_class and votes.shape[1] == 2:
        n.refuse(
            "the label of a model of two classes without support vectors is not that of the higher "
            "score in onnxruntime",
            "use the scores, with an ArgMax, instead of the label",
        )
    best = n.emit("argmax", [votes], axis=1, keepdims=False, select_last=False)
    return labels_of(n, best, labels)


def _decision_scores(n: OnnxNode, decisions: Value, post: str) -> Value:
    """Two classes have one decision d: -d and d, sigmoids of them with LOGISTIC, else 1 - d and
    d.
    """
    if decisions.shape[1] > 1:
        return post_transform(n, decisions, post)
    if post == "PROBIT":
        n.refuse("post_transform='PROBIT' of one decision has no defined meaning")
    if post in ("NONE", "LOGISTIC"):
        both = pair(n, n.emit("neg", [decisions]), decisions)
        return post_transform(n, both, post)
    return pair(n, complement(n, decisions), decisions)
