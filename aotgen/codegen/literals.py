"""C99 literals with exactly the value meant."""

from __future__ import annotations

import math

import numpy as np


def f32(value: float) -> str:
    """A float literal that reads back as ``numpy.float32(value)``: shortest decimal, 9 digits at
    most.

    Infinities and NaN are the macros of <math.h>.
    """
    x = np.float32(value)
    if math.isnan(float(x)):
        return "NAN"
    if math.isinf(float(x)):
        return "INFINITY" if x > 0 else "-INFINITY"
    text = (
        np.format_float_scientific(x, unique=True, trim="0")
        if _is_extreme(float(x))
        else repr(float(str(x)))
    )
    return f"{text}f" if any(c in text for c in ".e") else f"{text}.0f"


def _is_extreme(x: float) -> bool:
    return x != 0 and not 1e-4 <= abs(x) < 1e7


def f64(value: float) -> str:
    """A double literal that reads back as ``value``."""
    if math.isnan(value):
        return "(double)NAN"
    if math.isinf(value):
        return "(double)INFINITY" if value > 0 else "-(double)INFINITY"
    text = repr(float(value))
    return text if any(c in text for c in ".e") else f"{text}.0"


def i64(value: int) -> str:
    """An int64_t literal; the most negative value has no literal of its own in C."""
    if value == -(2**63):
        return "INT64_MIN"
    return f"INT64_C({value})"


def i32(value: int) -> str:
    """An int32_t literal."""
    return "INT32_MIN" if value == -(2**31) else str(value)
