"""Classical machine learning (ai.onnx.ml) and TopK, compiled and compared with
onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.e2e.node_cases import ML, RNG, Case, check, check_model, floats, refusal


def test_preprocessing(tmp_path: Path) -> None:
    x = floats(5, 4)
    x[2] = 0
    holes = x.copy()
    holes[0, 1] = holes[3, 2] = np.nan
    whole = RNG.integers(-3, 9, (5, 3)).astype(np.int64)
    offset, scale = [0.1, -2.0, 0.3, 4.0], [0.5, 2.0, -1.5, 3.0]
    cases = [
        Case("Scaler", [x], {"offset": offset, "scale": scale}),
        Case("Scaler", [x], {"offset": [0.25], "scale": [3.0]}),
        Case("Scaler", [x.astype(np.float64)], {"offset": offset, "scale": scale}),
        Case("Scaler", [whole], {"offset": [1.0], "scale": [0.5]}),
        *(Case("Normalizer", [x], {"norm": norm}) for norm in ("MAX", "L1", "L2")),
        Case("Normalizer", [whole], {"norm": "L2"}),
        Case("Binarizer", [x], {"threshold": 0.3}),
        Case("Imputer", [holes], {"imputed_value_floats": offset, "replaced_value_float": np.nan}),
        Case("Imputer", [x], {"imputed_value_floats": [9.0], "replaced_value_float": 0.0}),
        Case("Imputer", [whole], {"imputed_value_int64s": [7], "replaced_value_int64": 2}),
        Case("FeatureVectorizer", [x, floats(5, 2)], {"inputdimensions": [4, 2]}),
        Case("ArrayFeatureExtractor", [x, np.array([3, 0], np.int64)]),
        Case("ArrayFeatureExtractor", [x[0], np.array([2, 1, 1], np.int64)], constants=(0,)),
        Case("OneHotEncoder", [whole], {"cats_int64s": [2, 0, 5]}),
        Case("OneHotEncoder", [x * 2], {"cats_int64s": [1, 0, -1]}),
    ]
    check(cases, tmp_path)


@pytest.mark.parametrize("version", [2, 4])
def test_label_encoder(version: int, tmp_path: Path) -> None:
    near = RNG.integers(-2, 6, (3, 4)).astype(np.int64)
    far = np.array([[10**12, 5, -(10**15), 6]], np.int64)
    x = np.array([1.5, np.nan, -2.0, 7.0], np.float32)
    cases = [
        Case(
            "LabelEncoder",
            [near],
            {"keys_int64s": [0, 3, 4, 3], "values_floats": [1.0, 2.0, 3.0, 9.0]},
        ),
        Case(
            "LabelEncoder",
            [near],
            {"keys_int64s": [0, 5], "values_int64s": [50, 60], "default_int64": -7},
        ),
        Case(
            "LabelEncoder",
            [far],
            {"keys_int64s": [10**12, -(10**15)], "values_int64s": [3, 4]},
        ),
        Case(
            "LabelEncoder",
            [x],
            {
                "keys_floats": [np.nan, 7.0, 1.5],
                "values_floats": [4.0, 5.0, 6.0],
                "default_float": 0.5,
            },
        ),
        Case("LabelEncoder", [x], {"keys_floats": [7.0, 1.5], "values_int64s": [4, 5]}),
    ]
    if version == 4:
        wide = np.array([2.5, 1.0, np.nan, -1.0])
        tensors = {
            "keys_tensor": onnx.numpy_helper.from_array(np.array([1.0, np.nan])),
            "values_tensor": onnx.numpy_helper.from_array(np.array([10.25, 20.5])),
            "default_tensor": onnx.numpy_helper.from_array(np.array([-3.0])),
        }
        cases.append(Case("LabelEncoder", [wide], tensors))
    check(cases, tmp_path, ml=version)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_linear_models(post: str, tmp_path: Path) -> None:
    x = floats(6, 4)
    cases = []
    for k in (1, 3):
        weights = {"coefficients": floats(4 * k), "intercepts": floats(k), "post_transform": post}
        if post == "PROBIT":  # inside (0, 1), where it is defined
            weights |= {"coefficients": weights["coefficients"] * 0.01, "intercepts": [0.4] * k}
        cases.append(Case("LinearRegressor", [x], {"targets": k, **weights}))
        if k > 1 or post != "PROBIT":
            labels = [10, 20] if k == 1 else [7, 3, 5]
            cases.append(
                Case("LinearClassifier", [x], {"classlabels_ints": labels, **weights}, outputs=2)
            )
    check(cases, tmp_path, tol=1e-5 if post == "PROBIT" else 2e-6)


KERNELS = {
    "LINEAR": [0.0, 0.0, 0.0],
    "RBF": [0.4, 0.0, 3.0],
    "POLY": [0.3, 1.5, 3.0],
    "SIGMOID": [0.2, 0.1, 3.0],
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vector_machines(kernel: str, tmp_path: Path) -> None:
    x = floats(7, 3)
    base = {"kernel_type": kernel, "kernel_params": KERNELS[kernel]}
    cases = [
        Case(
            "SVMRegressor",
            [x],
            {
                **base,
                "coefficients": floats(5),
                "support_vectors": floats(15),
                "n_supports": 5,
                "rho": [0.3],
                "one_class": one,
            },
        )
        for one in (0, 1)
    ]
    if kernel == "LINEAR":
        cases.append(Case("SVMRegressor", [x], {**base, "coefficients": floats(3), "rho": [-0.2]}))
        cases.append(
            Case(
                "SVMClassifier",
                [x],
                {
                    **base,
                    "coefficients": floats(9),
                    "rho": [0.1],
                    "classlabels_ints": [4, 2, 9],
                },
                outputs=2,
            )
        )
    for vectors in ([2, 3], [2, 1, 3], [1, 2, 1, 2]):
        classes, count = len(vectors), sum(vectors)
        pairs = classes * (classes - 1) // 2
        for probabilities in (False, True):
            attrs = {
                **base,
                "coefficients": floats((classes - 1) * count),
                "support_vectors": floats(3 * count),
                "vectors_per_class": vectors,
                "rho": floats(pairs) * 0.2,
                "classlabels_ints": [30, 10, 20, 40][:classes],
            }
            if probabilities:  # of either sign: labels are votes, whatever the probabilities say
                attrs |= {"prob_a": floats(pairs) * 2, "prob_b": floats(pairs) * 0.3}
            posts = ("NONE", "LOGISTIC", "SOFTMAX") if kernel == "RBF" else ("NONE",)
            cases += [
                Case("SVMClassifier", [x], {**attrs, "post_transform": post}, outputs=2)
                for post in posts
            ]
    check(cases, tmp_path, tol=1e-5)


def grown(
    rng: np.random.Generator,
    trees: int,
    features: int,
    modes: Sequence[str],
    targets: Sequence[Sequence[int]],
    missing: bool = False,
    positive: bool = False,
) -> tuple[dict[str, list[Any]], list[tuple[int, int, int, float]]]:
    """Attributes nodes_* of random trees, and leaf entries (tree, node, target, weight).

    ``targets``: of each tree in turn, what its leaves speak of; an empty one draws a subset of all
    per leaf.
    """
    nodes: dict[str, list[Any]] = {
        f"nodes_{k}": []
        for k in (
            "treeids",
            "nodeids",
            "featureids",
            "values",
            "modes",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        )
    }
    entries = []
    every = sorted({t for spoken in targets for t in spoken} or {0, 1, 2})
    for tree in range(trees):
        count = 0
        pending = [(0, 0)]  # (node id, depth); ids in order of creation, not in preorder
        while pending:
            node, depth = pending.pop(0)
            leaf = depth > 1 and (depth == 5 or rng.random() < 0.3)
            yes, no = (0, 0) if leaf else (count + 1, count + 2)
            if not leaf:
                count += 2
                pending += [(yes, depth + 1), (no, depth + 1)]
            row = (
                tree,
                node,
                int(rng.integers(features)),
                float(rng.integers(-4, 5)) / 2,
                "LEAF" if leaf else str(rng.choice(list(modes))),
                yes,
                no,
                int(missing and rng.random() < 0.5),
            )
            for column, value in zip(nodes.values(), row, strict=True):
                column.append(value)
            if leaf:
                spoken = targets[tree % len(targets)]
                chosen = spoken or rng.choice(every, int(rng.integers(1, 4)), replace=False)
                for target in chosen:
                    weight = float(np.float32(rng.random() if positive else rng.normal()))
                    if rng.random() < 0.2:
                        weight = 0.0
                    entries.append((tree, node, int(target), weight))
    return nodes, entries


def tree_case(
    rng: np.random.Generator,
    x: np.ndarray,
    kind: str,
    modes: Sequence[str],
    targets: Sequence[Sequence[int]],
    trees: int = 5,
    missing: bool = False,
    positive: bool = False,
    labels: Sequence[int] = (),
    **attrs: Any,
) -> Case:
    nodes, entries = grown(rng, trees, x.shape[1], modes, targets, missing, positive)
    prefix = "class" if kind == "Classifier" else "target"
    found = {
        **nodes,
        f"{prefix}_treeids": [e[0] for e in entries],
        f"{prefix}_nodeids": [e[1] for e in entries],
        f"{prefix}_ids": [e[2] for e in entries],
        f"{prefix}_weights": [e[3] for e in entries],
        **attrs,
    }
    if kind == "Classifier":
        found["classlabels_int64s"] = list(labels)
    return Case(f"TreeEnsemble{kind}", [x], found, outputs=2 if kind == "Classifier" else 1)


ALL_MODES = [f"BRANCH_{m}" for m in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")]


def tree_input(rng: np.random.Generator, rows: int = 40, features: int = 6) -> np.ndarray:
    """Values that often equal a threshold, and some NaN and infinities."""
    x = (rng.integers(-5, 6, (rows, features)) / 2).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = np.nan
    x[rng.random(x.shape) < 0.03] = np.inf
    return x


def test_tree_regressors(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = tree_input(rng)
    cases = []
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        for targets, count in (([[0]], 1), ([[0, 1, 2]], 3), ([[0], [1], [2]], 3), ([[]], 3)):
            for base in ({}, {"base_values": [0.25, -0.5, 1.0][:count]}):
                cases.append(
                    tree_case(
                        rng,
                        x,
                        "Regressor",
                        ["BRANCH_LEQ"],
                        targets,
                        n_targets=count,
                        aggregate_function=aggregate,
                        **base,
                    )
                )
    for mode in ALL_MODES:
        cases.append(tree_case(rng, x, "Regressor", [mode], [[0]], missing=True, n_targets=1))
    mixed = tree_case(rng, x, "Regressor", ALL_MODES, [[0]], trees=9, missing=True, n_targets=1)
    cases += [
        mixed,
        tree_case(rng, x, "Regressor", ALL_MODES, [[0, 1]], n_targets=2, post_transform="LOGISTIC"),
        tree_case(rng, x, "Regressor", ["BRANCH_LT"], [[0]], n_targets=1, post_transform="SOFTMAX"),
        tree_case(rng, x.astype(np.float64), "Regressor", ALL_MODES, [[0]], n_targets=1),
    ]
    check(cases, tmp_path)


def test_tree_classifiers(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = tree_input(rng)
    leq = ["BRANCH_LEQ"]
    cases = []
    for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        for positive in (False, True):
            for base in ({}, {"base_values": [0.125]}):
                cases.append(
                    tree_case(
                        rng,
                        x,
                        "Classifier",
                        leq,
                        [[0]],
                        trees=2,
                        positive=positive,
                        labels=[20, 10],
                        post_transform=post,
                        **base,
                    )
                )
            cases.append(
                tree_case(
                    rng,
                    x,
                    "Classifier",
                    leq,
                    [[1]],
                    positive=positive,
                    labels=[20, 10],
                    post_transform=post,
                )
            )
        for targets in ([[0, 1, 2]], [[0], [1], [2]], [[]]):
            for base in ({}, {"base_values": [0.25, -0.5, 0.0]}):
                cases.append(
                    tree_case(
                        rng,
                        x,
                        "Classifier",
                        ALL_MODES,
                        targets,
                        trees=6,
                        labels=[5, 3, 4],
                        post_transform=post,
                        **base,
                    )
                )
    whole = rng.integers(-3, 4, x.shape)
    for dtype in (np.int64, np.int32, np.float64):
        cases.append(
            tree_case(
                rng, whole.astype(dtype), "Classifier", leq, [[0], [1], [2]], labels=[5, 3, 4]
            )
        )
    check(cases, tmp_path)


def test_top_k(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    cases = []
    for axis, shape in ((0, (9,)), (1, (3, 7, 2)), (-1, (2, 3, 30)), (0, (5, 1, 4))):
        for k in {1, 2, shape[axis] // 2, shape[axis]}:
            for largest in (0, 1):
                x = rng.integers(-3, 4, shape).astype(np.float32)
                attrs = {"axis": axis, "largest": largest, "sorted": 1}
                inputs = [x, np.array([k], np.int64)]
                cases.append(Case("TopK", inputs, attrs, 2, "", constants=(1,)))
    for name in ("float64", "int32", "int64"):
        x = rng.integers(-50, 50, (3, 20)).astype(name)
        cases.append(Case("TopK", [x, np.array([4], np.int64)], {}, 2, "", constants=(1,)))
    check(cases, tmp_path)


def test_opaque_kernels_on_views(tmp_path: Path) -> None:
    """Columns of a slice, a transpose, parts of a concatenation: strides on both sides."""
    rng = np.random.default_rng(13)
    x = tree_input(rng, 8, 12)
    parts = []
    for targets in ([[0]], [[0, 1]], [[0], [1]]):
        case = tree_case(
            rng, x[:, 2:8:2], "Regressor", ["BRANCH_LEQ"], targets, n_targets=len(targets[0]) or 1
        )
        case.attrs["n_targets"] = max(t for spoken in targets for t in spoken) + 1
        parts.append(case)
    trees = [
        helper.make_node(case.op, [source], [f"scores{i}{source}"], domain=ML, **case.attrs)
        for i, case in enumerate(parts)
        for source in ("columns", "turned")
    ]
    nodes = [
        helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["columns"]),
        helper.make_node("Transpose", ["y"], ["turned"], perm=[1, 0]),
        *trees,
        helper.make_node("Concat", [t.output[0] for t in trees], ["all"], axis=1),
        helper.make_node("TopK", ["columns", "k"], ["v0", "i0"], axis=0),
        helper.make_node("TopK", ["turned", "k"], ["v1", "i1"], axis=1, largest=0),
        helper.make_node("TopK", ["turned", "k"], ["v2", "i2"], axis=0),
        helper.make_node("Concat", ["v0", "v2"], ["values"], axis=1),
        helper.make_node("Concat", ["i0", "i2"], ["places"], axis=0),
        helper.make_node("Identity", ["v1"], ["v1_out"]),
        helper.make_node("Identity", ["i1"], ["i1_out"]),
    ]
    constants = {"starts": [2], "ends": [8], "axes": [1], "steps": [2], "k": [3]}
    initializers = [
        onnx.numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()
    ]
    feeds = {"x": np.nan_to_num(x, nan=0.25), "y": np.nan_to_num(tree_input(rng, 3, 8), nan=1.0)}
    inputs = [helper.make_tensor_value_info(k, 1, v.shape) for k, v in feeds.items()]
    names = ["all", "values", "places", "v1_out", "i1_out"]
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph(nodes, "views", inputs, outputs, initializers)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    check_model(model, feeds, names, tmp_path)


def test_refusals_say_why() -> None:
    """What has no defined meaning, or none in C, is refused with a way out."""
    rng = np.random.default_rng(17)
    x = floats(4, 3)
    leq = ["BRANCH_LEQ"]
    both = tree_case(rng, x, "Classifier", leq, [[0, 1]], labels=[3, 4])
    assert "use the scores, with an ArgMax" in refusal(both)
    probit = tree_case(rng, x, "Classifier", leq, [[0]], labels=[3, 4], post_transform="PROBIT")
    assert "no defined meaning" in refusal(probit)
    zipped = Case("ZipMap", [x], {"classlabels_int64s": [0, 1, 2]})
    assert "zipmap" in refusal(zipped)
    words = Case("LabelEncoder", [np.array([1, 2])], {"keys_int64s": [1], "values_strings": ["a"]})
    assert "maps strings" in refusal(words)
    grown_case = tree_case(rng, x, "Regressor", leq, [[0]], n_targets=1)
    grown_case.attrs["nodes_truenodeids"] = [0] * len(grown_case.attrs["nodes_truenodeids"])
    assert "malformed" in refusal(grown_case)
    boxes = Case("Unique", [x], domain="")
    assert "depends on the data" in refusal(boxes)
