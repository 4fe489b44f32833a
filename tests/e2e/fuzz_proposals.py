"""Further nodes that ``fuzz_models`` may draw: newer operators, control flow, other domains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.e2e.fuzz_models import Generator, Sample, Unsuitable, window

MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"


def bounded(g: Generator, x: Sample) -> Sample:
    """Values of ``x`` pressed into (-0.9, 0.9)."""
    (y,) = g.add("Tanh", [x.name])
    (y,) = g.add("Mul", [y.name, g.constant(np.float32(0.9))])
    return y


def trigonometry(g: Generator) -> None:
    x = g.any()
    op = g.pick("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh")
    if op in ("Tan", "Asin", "Acos", "Atanh"):
        x = bounded(g, x)
    elif op == "Acosh":
        (x,) = g.add("Cosh", [x.name])
        (x,) = g.add("Add", [x.name, g.constant(np.float32(0.5))])
    g.add(op, [x.name])


def unusual_unary(g: Generator) -> None:
    form = g.pick("shrink", "isnan", "isinf", "hardmax", "like", "swish", "gelu", "logsum")
    if form == "shrink":
        x = g.any(lambda s: s.exact)
        g.add("Shrink", [x.name], exact=True, lambd=0.4, bias=g.pick(0.0, 0.3))
    elif form in ("isnan", "isinf"):
        x = g.any(lambda s: s.exact)
        (y,) = g.add("IsNaN" if form == "isnan" else "IsInf", [x.name], exact=True)
        g.add("Where", [y.name, g.constant(np.float32(7)), x.name], exact=True)
    elif form == "hardmax":
        x = g.any(lambda s: s.exact and s.rank >= 1)
        g.add("Hardmax", [x.name], exact=True, axis=g.axis(x.rank))
    elif form == "like":
        like = g.any(lambda s: s.exact, g.pick(np.bool_, np.int64, np.float32))
        g.add("CastLike", [g.any(lambda s: s.exact).name, like.name], exact=True)
    elif form == "swish":
        g.add("Swish", [g.any().name], alpha=g.pick(1.0, 0.7))
    elif form == "gelu":
        g.add("Gelu", [g.any().name], approximate="tanh")
    else:
        x = g.any(lambda s: s.rank >= 1 and bool((s.value > 0.01).all()))
        (y,) = g.add("ReduceSum", [x.name], keepdims=g.pick(0, 1))
        g.add("Log", [y.name])


def bits(g: Generator) -> None:
    dtype = g.pick(np.int32, np.int64, np.uint8, np.uint32)
    shape = tuple(g.between(1, 6) for _ in range(g.between(1, 4)))
    x = g.input(shape, dtype)
    other = g.constant(g.rng.integers(0, 8, g.pick(shape, shape[-1:], ())).astype(dtype))
    if np.dtype(dtype).kind == "u" and g.chance(0.5):
        g.add("BitShift", [x.name, other], exact=True, direction=g.pick("LEFT", "RIGHT"))
    elif g.chance(0.3):
        g.add("BitwiseNot", [x.name], exact=True)
    else:
        op = g.pick("BitwiseAnd", "BitwiseOr", "BitwiseXor")
        g.add(op, [x.name, other], exact=True)


def other_pool(g: Generator) -> None:
    x = g.image()
    form = g.pick("lp", "global", "indices", "unpool")
    if form == "global":
        g.add("GlobalLpPool", [x.name], p=g.pick(1, 2, 3))
        return
    attrs = window(g, x.shape[2:], dilate=False)
    if any(k >= n for n, k in zip(x.shape[2:], attrs["kernel_shape"], strict=True)):
        raise Unsuitable
    if form == "lp":
        g.add("LpPool", [x.name], p=g.pick(1, 2, 3), **attrs)
        return
    x = g.any(lambda s: s.exact and 3 <= s.rank <= 5 and min(s.shape[2:]) >= 2)
    if form == "indices":
        attrs = window(g, x.shape[2:], dilate=False)
        g.add("MaxPool", [x.name], 2, True, **attrs)
        return
    kernel = [2] * (x.rank - 2)
    y, where = g.add("MaxPool", [x.name], 2, True, kernel_shape=kernel, strides=kernel)
    g.add("MaxUnpool", [y.name, where.name], exact=True, kernel_shape=kernel, strides=kernel)


def newer_norm(g: Generator) -> None:
    form = g.pick("group", "rms", "instance")
    if form == "rms":
        x = g.any(lambda s: s.rank >= 1 and s.shape[-1] > 3)
        axis = -1 if g.chance(0.6) else g.axis(x.rank)
        g.add("RMSNormalization", [x.name, g.constant(g.values(x.shape[axis:]))], axis=axis)
        return
    x = g.any(lambda s: 3 <= s.rank <= 5 and np.prod(s.shape[2:]) > 4)
    c = x.shape[1]
    names = [g.constant(g.values((c,))) for _ in range(2)]
    if form == "group":
        groups = g.pick(*[d for d in range(1, c + 1) if c % d == 0])
        g.add("GroupNormalization", [x.name, *names], num_groups=groups)
    else:
        g.add("InstanceNormalization", [x.name, *names], epsilon=g.pick(1e-5, 1e-2))


def odd_resize(g: Generator) -> None:
    """Antialiasing, aspect ratios, axes, crops and edges of Resize."""
    x = g.any(lambda s: s.rank == 4)
    form = g.pick("antialias", "ratio", "axes", "crop", "symmetric", "outside")
    mode = g.pick("linear", "cubic")
    attrs: dict[str, Any] = {"mode": mode}
    sizes = [g.between(1, 2 * d) for d in x.shape[2:]]
    inputs = [x.name, "", "", g.ints([*x.shape[:2], *sizes])]
    if form == "antialias":
        attrs["antialias"] = 1
    elif form == "ratio":
        attrs["keep_aspect_ratio_policy"] = g.pick("not_larger", "not_smaller")
        inputs, attrs["axes"] = [x.name, "", "", g.ints(sizes)], [2, 3]
    elif form == "axes":
        inputs, attrs["axes"] = [x.name, "", "", g.ints(sizes[::-1])], [3, 2]
    elif form == "crop":
        low, high = g.rng.uniform(-0.3, 0.4, 2), g.rng.uniform(0.5, 1.2, 2)
        roi = np.array([0, 0, *low, 1, 1, *high], np.float32)
        inputs[1] = g.constant(roi)
        attrs["coordinate_transformation_mode"] = "tf_crop_and_resize"
        attrs["extrapolation_value"] = g.pick(0.0, 2.5)
        attrs["mode"] = "linear"
    elif form == "symmetric":
        attrs["coordinate_transformation_mode"] = "half_pixel_symmetric"
    else:
        attrs |= {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": g.pick(-0.5, -0.75)}
    g.add("Resize", inputs, **attrs)


def sampling(g: Generator) -> None:
    x = g.any(lambda s: s.rank == 4 and s.value.size > 4)
    n, _, h, w = x.shape
    form = g.pick("grid", "roi", "sequence", "compress")
    if form == "grid":
        grid = g.rng.uniform(-1.3, 1.3, (n, g.between(1, 5), g.between(1, 5), 2))
        name = g.constant(grid.astype(np.float32))
        mode = g.pick("linear", "cubic") if g.opset >= 20 else g.pick("bilinear", "bicubic")
        padding = g.pick("zeros", "border", "reflection")
        corners = g.pick(0, 1)
        g.add("GridSample", [x.name, name], mode=mode, padding_mode=padding, align_corners=corners)
    elif form == "roi":
        rows = g.between(1, 4)
        low = g.rng.uniform(-1, 0.5, (rows, 2)) * [w, h]
        roi = np.concatenate([low, low + g.rng.uniform(0.2, 1, (rows, 2)) * [w, h]], 1)
        batch = g.ints(g.rng.integers(0, n, rows))
        attrs = {"output_height": g.between(1, 4), "output_width": g.between(1, 4)}
        attrs["sampling_ratio"] = g.pick(1, 2)
        names = [x.name, g.constant(roi.astype(np.float32)), batch]
        g.add("RoiAlign", names, mode=g.pick("avg", "max"), spatial_scale=g.pick(1.0, 0.5), **attrs)
    elif form == "sequence":
        steps, rows = x.shape[:2]
        lengths = g.ints(g.rng.integers(1, steps + 1, rows))
        g.add("ReverseSequence", [x.name, lengths], exact=True, batch_axis=1, time_axis=0)
    else:
        axis = g.axis(x.rank)
        mask = g.constant(g.rng.random(x.shape[axis]) < 0.6)
        g.add("Compress", [x.name, mask], exact=True, axis=axis)


def scatter_reduction(g: Generator) -> None:
    """Updates that meet in one element."""
    x = g.any(lambda s: s.rank >= 1)
    axis = g.axis(x.rank)
    shape = list(x.shape)
    shape[axis] = g.between(1, 4)
    n = x.shape[axis]
    indices = g.ints(g.rng.integers(-n, n, shape))
    updates = g.constant(g.values(tuple(shape)))
    reduction = g.pick("add", "mul", "max", "min")
    g.add("ScatterElements", [x.name, indices, updates], axis=axis, reduction=reduction)


def batched_gather_nd(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 2)
    rows = g.between(1, 4)
    n = x.shape[1]
    indices = g.rng.integers(-n, n, (x.shape[0], rows, 1))
    g.add("GatherND", [x.name, g.ints(indices)], exact=True, batch_dims=1)


def gather_at_run_time(g: Generator) -> None:
    """Indices that are an input of the model or computed from one."""
    x = g.any(lambda s: s.rank >= 1 and min(s.shape) >= 4)
    form = g.pick("elements", "nd", "scatter")
    if form == "elements":
        indices = g.input(x.shape, np.int64)
        g.add("GatherElements", [x.name, indices.name], exact=True, axis=g.axis(x.rank))
    elif form == "nd":
        indices = g.input((g.between(1, 4), g.between(1, x.rank)), np.int64)
        g.add("GatherND", [x.name, indices.name], exact=True)
    else:
        indices = g.input((1, 1), np.int64)
        updates = g.constant(g.values((1, *x.shape[1:])))
        g.add("ScatterND", [x.name, indices.name, updates], exact=True)


def control(g: Generator) -> None:
    """If, Loop and Scan around a small body."""
    form = g.pick("if", "loop", "scan")
    if form == "if":
        x = g.any()
        name = g.fresh("b")
        then = helper.make_graph(
            [helper.make_node("Tanh", [x.name], [name])], "then", [], [value_info(name, x.shape)]
        )
        other = g.fresh("b")
        orelse = helper.make_graph(
            [helper.make_node("Neg", [x.name], [other])], "else", [], [value_info(other, x.shape)]
        )
        branch(g, x, then, orelse)
        return
    x = g.any(lambda s: s.rank >= 1 and (form == "loop" or s.shape[0] <= 12))
    shape = x.shape if form == "loop" else x.shape[1:]
    start = g.constant(g.values(shape))
    t, a, b, c = (g.fresh("b") for _ in range(4))
    nodes = [
        helper.make_node("Add", [a, b], [t]),
        helper.make_node("Sigmoid", [t], [c]),
    ]
    if form == "scan":
        out = g.fresh("b")
        nodes.append(helper.make_node("Mul", [c, a], [out]))
        body = helper.make_graph(
            nodes,
            "body",
            [value_info(a, shape), value_info(b, shape)],
            [value_info(c, shape), value_info(out, shape)],
        )
        attrs = {"scan_input_directions": [g.pick(0, 1)], "scan_output_directions": [g.pick(0, 1)]}
        g.add("Scan", [start, x.name], 2, body=body, num_scan_inputs=1, **attrs)
        return
    trip, go, goes = (g.fresh("b") for _ in range(3))
    nodes[0] = helper.make_node("Add", [a, x.name], [t])
    nodes.append(helper.make_node("Identity", [go], [goes]))
    body = helper.make_graph(
        nodes,
        "body",
        [
            helper.make_tensor_value_info(trip, TensorProto.INT64, []),
            helper.make_tensor_value_info(go, TensorProto.BOOL, []),
            value_info(a, shape),
        ],
        [
            helper.make_tensor_value_info(goes, TensorProto.BOOL, []),
            value_info(c, shape),
            value_info(t, shape),
        ],
    )
    count = g.constant(np.array(g.between(1, 4), np.int64), "i")
    outer(g, "Loop", [count, "", start], [x.name], 2, body=body)


def outer(
    g: Generator, op: str, inputs: list[str], captured: list[str], outputs: int, **attrs: Any
) -> list[Sample]:
    """A node whose body reads ``captured``: for the trial run they are made inputs of a model that
    has the node and an Identity of each of them.
    """
    return g.add(op, inputs, outputs, captured=captured, **attrs)


def branch(g: Generator, x: Sample, then: Any, orelse: Any) -> None:
    condition = g.constant(np.array(g.chance(0.5)), "c")
    outer(g, "If", [condition], [x.name], 1, then_branch=then, else_branch=orelse)


def value_info(name: str, shape: tuple[int, ...]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def microsoft(g: Generator) -> None:
    form = g.pick("matmul", "gemm", "bias", "fast", "quick", "skip", "attention", "conv")
    if form == "conv":
        x = g.any(lambda s: s.rank == 4)
        out = g.between(1, 9)
        w = g.constant(g.values((out, x.shape[1], 1, 1), x.shape[1] ** -0.5))
        activation = g.pick("Relu", "Tanh", "Sigmoid", "LeakyRelu")
        extra = {"activation_params": [0.2]} if activation == "LeakyRelu" else {}
        g.add("FusedConv", [x.name, w], domain=MICROSOFT, activation=activation, **extra)
    elif form == "gemm":
        x = g.any(lambda s: s.rank == 2)
        w = g.constant(g.values((x.shape[1], g.between(1, 9)), x.shape[1] ** -0.5))
        g.add("FusedGemm", [x.name, w], domain=MICROSOFT, activation=g.pick("Relu", "Tanh"))
    elif form == "matmul":
        x = g.any(lambda s: s.rank >= 2)
        turned = g.pick(0, 1)
        k = x.shape[-2] if turned else x.shape[-1]
        w = g.constant(g.values((g.between(1, 9), k), k**-0.5))
        g.add("FusedMatMul", [x.name, w], domain=MICROSOFT, transA=turned, transB=1, alpha=0.7)
    elif form in ("bias", "fast", "quick"):
        x = g.any(lambda s: s.rank >= 2)
        bias = [g.constant(g.values(x.shape[-1:]))] if form != "quick" else []
        op = {"bias": "BiasGelu", "fast": "FastGelu", "quick": "QuickGelu"}[form]
        g.add(op, [x.name, *bias], domain=MICROSOFT)
    elif form == "skip":
        x = g.any(lambda s: s.rank == 3 and s.shape[-1] > 3)
        d = x.shape[-1:]
        names = [g.constant(g.values(d)) for _ in range(g.between(1, 3))]
        g.add("SkipLayerNormalization", [x.name, x.name, *names], domain=MICROSOFT)
    else:
        x = g.any(lambda s: s.rank == 3)
        d, heads = x.shape[-1], g.between(1, 4)
        w = g.values((d, 3 * 4 * heads), d**-0.5)
        names = [x.name, g.constant(w), g.constant(g.values((12 * heads,)))]
        g.add("Attention", names, domain=MICROSOFT, num_heads=heads)


def full_recurrent(g: Generator) -> None:
    """Lengths, peepholes, clipping, other activations, an initial cell."""
    x = g.any(lambda s: s.rank == 3 and s.shape[0] <= 20 and s.shape[2] <= 100)
    (x,) = g.add("Tanh", [x.name])
    steps, rows, inputs = x.shape
    op, hidden = g.pick("LSTM", "GRU", "RNN"), g.between(1, 20)
    direction = g.pick("forward", "reverse", "bidirectional")
    d, gates = 1 + (direction == "bidirectional"), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    names = [
        x.name,
        g.constant(g.values((d, gates * hidden, inputs), inputs**-0.5)),
        g.constant(g.values((d, gates * hidden, hidden), 0.5 * hidden**-0.5)),
        g.constant(g.values((d, 2 * gates * hidden), 0.5)) if g.chance(0.5) else "",
    ]
    lengths = g.rng.integers(1, steps + 1, rows).astype(np.int32)
    names.append(g.constant(lengths) if g.chance(0.5) else "")
    names.append(g.constant(g.values((d, rows, hidden))) if g.chance(0.5) else "")
    if op == "LSTM":
        names.append(g.constant(g.values((d, rows, hidden))) if g.chance(0.5) else "")
        names.append(g.constant(g.values((d, 3 * hidden), 0.5)) if g.chance(0.5) else "")
    attrs: dict[str, Any] = {"clip": 0.8} if g.chance(0.3) else {}
    if op == "LSTM" and g.chance(0.2):
        attrs["input_forget"] = 1
    if g.chance(0.4):
        functions = {"LSTM": 3, "GRU": 2, "RNN": 1}[op]
        pool = ("Sigmoid", "Tanh", "Softsign", "HardSigmoid")
        chosen = [g.pick(*pool) for _ in range(functions * d)]
        attrs["activations"] = chosen
    while not names[-1]:
        names.pop()
    outputs = 3 if op == "LSTM" else 2
    g.add(op, names, outputs, hidden_size=hidden, direction=direction, **attrs)


def trees(g: Generator) -> None:
    """A random forest over the rows of an exact matrix."""
    x = g.any(lambda s: s.exact and s.rank == 2)
    features, targets = x.shape[1], g.between(1, 3)
    names = ("tree", "node", "feature", "value", "mode", "true", "false")
    columns: dict[str, list[Any]] = {k: [] for k in names}
    leaves: dict[str, list[Any]] = {k: [] for k in ("tree", "node", "id", "weight")}
    mode = g.pick("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE")
    for tree in range(g.between(1, 6)):
        depth = g.between(0, 4)
        count = 2 ** (depth + 1) - 1
        for node in range(count):
            leaf = 2 * node + 1 >= count
            columns["tree"].append(tree)
            columns["node"].append(node)
            columns["feature"].append(0 if leaf else g.between(0, features - 1))
            columns["value"].append(0.0 if leaf else float(np.float32(g.rng.standard_normal())))
            columns["mode"].append("LEAF" if leaf else mode)
            columns["true"].append(0 if leaf else 2 * node + 1)
            columns["false"].append(0 if leaf else 2 * node + 2)
            if leaf:
                leaves["tree"].append(tree)
                leaves["node"].append(node)
                leaves["id"].append(g.between(0, targets - 1))
                leaves["weight"].append(float(np.float32(g.rng.standard_normal())))
    g.add(
        "TreeEnsembleRegressor",
        [x.name],
        domain=ML,
        nodes_treeids=columns["tree"],
        nodes_nodeids=columns["node"],
        nodes_featureids=columns["feature"],
        nodes_values=columns["value"],
        nodes_modes=columns["mode"],
        nodes_truenodeids=columns["true"],
        nodes_falsenodeids=columns["false"],
        target_treeids=leaves["tree"],
        target_nodeids=leaves["node"],
        target_ids=leaves["id"],
        target_weights=leaves["weight"],
        n_targets=targets,
        aggregate_function=g.pick("SUM", "AVERAGE", "MIN", "MAX"),
    )


def quantized_pair(g: Generator) -> None:
    """Rounded to integers and back, a tensor or an axis at a time."""
    x = g.any(lambda s: s.exact and s.rank >= 1)
    axis = g.axis(x.rank)
    shape = () if g.chance(0.5) else (x.shape[axis],)
    dtype = g.pick(np.uint8, np.int8)
    scale = g.constant(g.rng.uniform(0.01, 0.1, shape).astype(np.float32))
    zero = g.constant(g.rng.integers(0, 100, shape).astype(dtype))
    attrs = {"axis": axis} if shape else {}
    (y,) = g.add("QuantizeLinear", [x.name, scale, zero], exact=True, **attrs)
    g.add("DequantizeLinear", [y.name, scale, zero], exact=True, **attrs)


MORE: tuple[tuple[Callable[[Generator], None], float], ...] = (
    (trigonometry, 0.8),
    (unusual_unary, 1),
    (bits, 0.3),
    (other_pool, 1.2),
    (newer_norm, 1),
    (odd_resize, 0.8),
    (sampling, 0.8),
    (scatter_reduction, 0.5),
    (batched_gather_nd, 0.3),
    (gather_at_run_time, 0.6),
    (control, 1),
    (microsoft, 1),
    (full_recurrent, 1),
    (trees, 0.4),
    (quantized_pair, 0.5),
)
