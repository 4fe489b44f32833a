"""Normalisations and softmax."""

from __future__ import annotations

import math

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value


@converts("BatchNormalization")
def batch_normalization(n: OnnxNode) -> Value:
    """Inference only: running statistics are inputs 3 and 4; opset 7 and 8 may ask for per-element
    statistics.
    """
    n.only_first_output()
    if n.opset >= 14 and n.get_int("training_mode", 0):
        n.refuse("it is in training mode", "export the model in evaluation mode")
    if n.opset < 9 and not n.get_int("spatial", 1):
        n.refuse(
            "spatial=0 (statistics per element) is not supported", "export with opset 9 or newer"
        )
    x = n.x(0)
    n.need_float(x)
    if len(x.shape) < 2:
        n.refuse(f"an input of rank {len(x.shape)} has no channel axis")
    parameters = [n.cast(n.x(i), x.dtype) for i in range(1, 5)]
    return n.emit("batch_norm", [x, *parameters], eps=n.get_float("epsilon", 1e-5), axis=1)


@converts("InstanceNormalization")
def instance_normalization(n: OnnxNode) -> Value:
    y = n.emit(
        "instance_norm",
        [n.to_channels_last(n.x(0)), n.x(1), n.x(2)],
        eps=n.get_float("epsilon", 1e-5),
    )
    return n.to_channels_first(y)


@converts("GroupNormalization", since=18)
def group_normalization(n: OnnxNode) -> Value:
    """Scale and bias are per group before opset 21 and per channel from then on."""
    x, scale, bias = n.x(0), n.x(1), n.x(2)
    groups = n.get_int("num_groups")
    channels = x.shape[1] if len(x.shape) > 1 else 0
    if groups < 1 or channels % groups:
        n.refuse(f"num_groups {groups} does not divide {channels} channels")
    if n.opset < 21 and scale.shape == (groups,) != (channels,):
        scale, bias = (_repeat(n, v, channels // groups) for v in (scale, bias))
    y = n.emit(
        "group_norm",
        [n.to_channels_last(x), scale, bias],
        groups=groups,
        eps=n.get_float("epsilon", 1e-5),
    )
    return n.to_channels_first(y)


def _repeat(n: OnnxNode, x: Value, times: int) -> Value:
    """[G] -> [G * times], every element ``times`` times in a row."""
    (groups,) = x.shape
    wide = n.emit("expand", [n.reshape(x, (groups, 1))], shape=(groups, times))
    return n.reshape(wide, (groups * times,))


@converts("LayerNormalization", since=17)
@converts("LayerNormalization", domain="com.microsoft")
def layer_normalization(n: OnnxNode) -> list[Value | None]:
    """The further outputs, mean and 1 / standard deviation, are computed only when something reads
    them.
    """
    x, scale, bias = n.x(0), n.x(1), n.optional(2)
    axis = n.axis("axis", -1, len(x.shape))
    eps = n.get_float("epsilon", 1e-5)
    y = n.emit("layer_norm", [x, scale, bias], axis=axis, eps=eps)
    if not n.is_used(1) and not n.is_used(2):
        return [y]
    axes = tuple(range(axis, len(x.shape)))
    mean = n.emit("reduce_mean", [x], axes=axes, keepdims=True)
    centred = n.emit("sub", [x, mean])
    variance = n.emit("reduce_mean", [n.emit("mul", [centred, centred])], axes=axes, keepdims=True)
    shifted = n.emit("add", [variance, n.scalar(eps, variance)])
    return [y, mean, n.emit("reciprocal", [n.emit("sqrt", [shifted])])]


@converts("RMSNormalization", since=23)
def rms_normalization(n: OnnxNode) -> Value:
    x = n.x(0)
    return n.emit(
        "rms_norm",
        [x, n.x(1), None],
        axis=n.axis("axis", -1, len(x.shape)),
        eps=n.get_float("epsilon", 1e-5),
    )


@converts("LRN")
def lrn(n: OnnxNode) -> Value:
    y = n.emit(
        "lrn",
        [n.to_channels_last(n.x())],
        size=n.get_int("size"),
        alpha=n.get_float("alpha", 1e-4),
        beta=n.get_float("beta", 0.75),
        bias=n.get_float("bias", 1.0),
    )
    return n.to_channels_first(y)


@converts("LpNormalization")
def lp_normalization(n: OnnxNode) -> Value:
    x = n.x()
    p = n.get_int("p", 2)
    if p not in (1, 2):
        n.refuse(f"p={p} is not supported", "use p=1 or p=2")
    return n.emit("lp_norm", [x], axis=n.axis("axis", -1, len(x.shape)), p=p)


@converts("MeanVarianceNormalization", since=9)
def mean_variance_normalization(n: OnnxNode) -> Value:
    """(x - mean) / (standard deviation + 1e-9) over ``axes``, by default all but the channels."""
    x = n.x()
    axes = tuple(n.normalise_axis(a, len(x.shape)) for a in n.get_ints("axes") or (0, 2, 3))
    centred = n.emit("sub", [x, n.emit("reduce_mean", [x], axes=axes, keepdims=True)])
    square = n.emit("mul", [centred, centred])
    deviation = n.emit("sqrt", [n.emit("reduce_mean", [square], axes=axes, keepdims=True)])
    return n.emit("div", [centred, n.emit("add", [deviation, n.scalar(1e-9, x)])])


_SOFTMAX = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


@converts(*_SOFTMAX)
def softmax_flattened(n: OnnxNode) -> Value:
    """Below opset 13: over the matrix that Flatten with the same axis gives."""
    x = n.x()
    rank = len(x.shape)
    axis = n.axis("axis", 1, max(rank, 1))
    if math.prod(x.shape[axis + 1 :]) == 1:
        return n.emit(_SOFTMAX[n.op], [x], axis=axis)
    rows, columns = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    y = n.emit(_SOFTMAX[n.op], [n.reshape(x, (rows, columns))], axis=1)
    return n.reshape(y, x.shape)


@converts(*_SOFTMAX, since=13)
def softmax(n: OnnxNode) -> Value:
    """From opset 13 on: along one axis."""
    x = n.x()
    return n.emit(_SOFTMAX[n.op], [x], axis=n.axis("axis", -1, len(x.shape)))


@converts("CumSum", since=11)
@converts("CumProd", since=26)
def running(n: OnnxNode) -> Value:
    """Sums or products of the elements up to each one."""
    x = n.x()
    return n.emit(
        n.op.lower(),
        [x],
        axis=n.normalise_axis(n.need_ints(1, "axis")[0], len(x.shape)),
        exclusive=bool(n.get_int("exclusive", 0)),
        reverse=bool(n.get_int("reverse", 0)),
    )


@converts("EyeLike", since=9)
def eye_like(n: OnnxNode) -> Value:
    from aotgen.frontend.onnx.elementwise import target_type

    x = n.x()
    if len(x.shape) != 2:
        n.refuse(f"its input of rank {len(x.shape)} is not a matrix")
    dtype = target_type(n, n.get_int("dtype")) if n.has("dtype") else x.dtype
    n.expect_small(x.shape, dtype)
    rows, columns = x.shape
    return n.constant(np.eye(rows, columns, n.get_int("k", 0), dtype.numpy), "eye")
