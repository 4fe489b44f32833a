"""Preprocessing of ai.onnx.ml: scaling, encoding, imputing, joining features.

Strings, maps and sequences have no place in a tensor program and are refused.
"""

from __future__ import annotations

import math

import numpy as np

from aotgen.frontend.onnx.ml_common import (
    DOMAIN,
    as_float,
    floats,
    ints,
    need_length,
)
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts, refuses
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType

_STRINGS = "encode the strings before the model, or train it on integers"

_TABLE_GROWTH = 4
"""A range of integer keys becomes a table when it is at most so many times longer than the list."""


def _features_axis(x: Value) -> int:
    """The axis of the features: 1, or 0 of a vector."""
    return min(1, len(x.shape) - 1)


def _per_feature(n: OnnxNode, name: str, values: Array, count: int) -> Array:
    if len(values) != 1:
        need_length(n, name, values, count)
    return values


@converts("Scaler", domain=DOMAIN)
def scaler(n: OnnxNode) -> Value:
    """(x - offset) * scale along the last axis; f64 is rounded to f32 at the end."""
    x = n.x()
    x = x if x.dtype is DType.F64 else as_float(n, x)
    count = x.shape[-1]
    offset, scale = floats(n, "offset"), floats(n, "scale")
    for name, values in (("offset", offset), ("scale", scale)):
        if len(values):
            row = n.constant(_per_feature(n, name, values, count).astype(x.dtype.numpy), name)
            x = n.emit("sub" if name == "offset" else "mul", [x, row])
    return n.cast(x, DType.F32)


@converts("Normalizer", domain=DOMAIN)
def normalizer(n: OnnxNode) -> Value:
    """x over the maximum, the sum of magnitudes or the Euclidean length of its row; a row whose
    divisor is 0 stays.
    """
    x = as_float(n, n.x())
    axes, kind = (_features_axis(x),), n.get_str("norm", "MAX")
    op = {"MAX": "reduce_max", "L1": "reduce_l1", "L2": "reduce_l2"}.get(kind)
    if op is None:
        n.refuse(f"norm={kind!r} is not known")
    size = n.emit(op, [x], axes=axes, keepdims=True)
    none = n.emit("equal", [size, n.scalar(0.0, size)])
    return n.emit("div", [x, n.emit("where", [none, n.scalar(1.0, size), size])])


@converts("Binarizer", domain=DOMAIN)
def binarizer(n: OnnxNode) -> Value:
    x = n.x()
    n.need_float(x)
    above = n.emit("greater", [x, n.scalar(n.get_float("threshold", 0.0), x)])
    return n.cast(above, x.dtype)


@converts("Imputer", domain=DOMAIN)
def imputer(n: OnnxNode) -> Value:
    """The imputed value of a feature where it equals the replaced one (which may be NaN)."""
    x = n.x()
    if x.dtype.is_float:
        imputed, replaced = (
            floats(n, "imputed_value_floats"),
            n.get_float("replaced_value_float", 0),
        )
    else:
        imputed = ints(n, "imputed_value_int64s")
        replaced = n.get_int("replaced_value_int64", 0)
    if not len(imputed):
        n.refuse(f"it has no imputed values for {x.dtype.value}")
    row = _per_feature(n, "imputed values", imputed, x.shape[-1]).astype(x.dtype.numpy)
    if x.dtype.is_float and math.isnan(replaced):
        gone = n.emit("isnan", [x])
    else:
        gone = n.emit("equal", [x, n.scalar(replaced, x)])
    return n.emit("where", [gone, n.constant(row, "imputed"), x])


@converts("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(n: OnnxNode) -> Value:
    """The inputs side by side [N, sum]; each is cut or filled with zeros to its dimension."""
    parts: list[Value] = []
    sizes = n.get_ints("inputdimensions") or ()
    for index in range(len(n.inputs)):
        x = as_float(n, n.x(index))
        if len(x.shape) == 1:
            x = n.reshape(x, (1, x.shape[0]))
        if len(x.shape) != 2:
            n.refuse(f"input {index} has rank {len(x.shape)}, not 1 or 2")
        parts.append(_sized(n, x, sizes[index] if index < len(sizes) else x.shape[1]))
    return n.concat(parts, 1)


def _sized(n: OnnxNode, x: Value, size: int) -> Value:
    """[N, C] as [N, size]."""
    count, have = x.shape
    if size < have:
        return n.cut(x, 1, 0, size)
    if size > have:
        zeros = n.constant(np.zeros((count, size - have), x.dtype.numpy), "zeros")
        return n.emit("concat", [x, zeros], axis=1)
    return x


@converts("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(n: OnnxNode) -> Value:
    """Columns of the last axis; a vector becomes one row."""
    x, index = n.x(0), n.x(1)
    if len(x.shape) == 1:
        x = n.reshape(x, (1, x.shape[0]))
    index = n.reshape(index, (index.type.numel,))
    return n.emit("gather", [x, index], axis=len(x.shape) - 1)


@converts("LabelEncoder", domain=DOMAIN, since=2)
def label_encoder(n: OnnxNode) -> Value:
    """The value of the first key that equals x, else the default; a NaN is a key from version 4
    on.
    """
    x = n.x()
    keys, values, default = _mapping(n)
    if len(keys) != len(values):
        n.refuse(f"it has {len(keys)} keys and {len(values)} values", "export it again")
    if x.dtype.numpy != keys.dtype:
        n.refuse(f"its keys are {keys.dtype}, but its input is {x.dtype.value}")
    if not len(keys):
        n.refuse("it has no keys")
    if keys.dtype.kind == "i":
        low, high = int(keys.min()), int(keys.max())
        if high - low < _TABLE_GROWTH * len(keys) + 64:
            return _from_table(n, x, keys, values, default)
    return _from_list(n, x, keys, values, default)


def _mapping(n: OnnxNode) -> tuple[Array, Array, Array]:
    """Keys, values, and the default in the values' type."""
    if n.get_strings("keys_strings") or n.get_strings("values_strings"):
        n.refuse("it maps strings", _STRINGS)
    tables: dict[str, Array | None] = {}
    for side in ("keys", "values"):
        found = [n.get_tensor(f"{side}_tensor"), ints(n, f"{side}_int64s")]
        found.append(floats(n, f"{side}_floats"))
        tables[side] = next((a.reshape(-1) for a in found if a is not None and a.size), None)
    keys, values = tables["keys"], tables["values"]
    if keys is None or values is None:
        n.refuse("it has no keys or no values of numbers", _STRINGS)
    default = n.get_tensor("default_tensor")
    if default is None:
        number = (
            n.get_float("default_float", -0.0)
            if values.dtype.kind == "f"
            else n.get_int("default_int64", -1)
        )
        default = np.array(number)
    return keys, values, default.reshape(-1)[0].astype(values.dtype)


def _from_table(n: OnnxNode, x: Value, keys: Array, values: Array, default: Array) -> Value:
    """Integer keys of a short range: a table of it, with the default before and behind."""
    low, high = int(keys.min()), int(keys.max())
    table = np.full(high - low + 3, default, values.dtype)
    table[(keys[::-1] - low) + 1] = values[::-1]  # the first of equal keys is written last
    ends = [n.constant(np.array(v, keys.dtype)) for v in (low - 1, high + 1)]
    inside = n.emit("minimum", [n.emit("maximum", [x, ends[0]]), ends[1]])
    position = n.emit("sub", [inside, ends[0]])
    return n.emit("gather", [n.constant(table, "table"), position], axis=0)


def _from_list(n: OnnxNode, x: Value, keys: Array, values: Array, default: Array) -> Value:
    """Any keys: the first that is equal, found by comparing with all."""
    wide = n.reshape(x, (*x.shape, 1))
    equal = n.emit("equal", [wide, n.constant(keys, "keys")])
    if n.opset >= 4 and keys.dtype.kind == "f" and np.isnan(keys).any():
        both = n.emit("and", [n.emit("isnan", [wide]), n.constant(np.isnan(keys), "nan_keys")])
        equal = n.emit("or", [equal, both])
    last = len(x.shape)
    # The default stands behind the values, where the search ends that finds nothing.
    order = np.arange(len(keys), dtype=np.int64)
    place = n.emit("where", [equal, n.constant(order), n.constant(np.array(len(keys), np.int64))])
    first = n.emit("reduce_min", [place], axes=(last,), keepdims=False)
    table = np.append(values, default).astype(values.dtype)
    return n.emit("gather", [n.constant(table, "table"), first], axis=0)


@converts("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(n: OnnxNode) -> Value:
    """[...] to [..., categories]; a number is cut to an integer first. All zeros for an unknown
    one: with zeros=0 runtimes report an error, which a compiled model cannot.
    """
    if n.get_strings("cats_strings"):
        n.refuse("its categories are strings", _STRINGS)
    categories = ints(n, "cats_int64s")
    if not len(categories):
        n.refuse("it has no categories")
    x = n.cast(n.x(), DType.I64)
    wide = n.reshape(x, (*x.shape, 1))
    return n.cast(n.emit("equal", [wide, n.constant(categories, "categories")]), DType.F32)


refuses(
    "ZipMap",
    domain=DOMAIN,
    reason="its result is a sequence of maps, which C has no type for",
    remedy="export the model without it (skl2onnx: options={'zipmap': False}); the scores are "
    "columns in the order of the class labels",
)
# LabelEncoder before version 2 maps between strings and integers alone.
refuses(
    "LabelEncoder",
    "CategoryMapper",
    "DictVectorizer",
    "CastMap",
    domain=DOMAIN,
    reason="strings and maps are not supported",
    remedy=_STRINGS,
)
