"""Room for deep expressions: a hundred fused ops are an expression of some thousand levels."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

LEVELS = 20_000


def deep(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` with Python's recursion limit raised while it runs."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, LEVELS))
        try:
            return function(*args, **kwargs)
        finally:
            sys.setrecursionlimit(before)

    return run
