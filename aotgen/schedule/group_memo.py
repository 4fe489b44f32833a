"""Remembering what is computed from a Group's shapes: a search asks for it thousands of times."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from aotgen.ir.graph import Group

P = ParamSpec("P")
R = TypeVar("R")


def per_group(function: Callable[Concatenate[Group, P], R]) -> Callable[Concatenate[Group, P], R]:
    """Remember what ``function(group, ...)`` returns for as long as the Group lives and has the
    same nodes. It may look at types and attributes, not at constants. The other arguments must be
    hashable and stand for themselves; what it returns must not be changed.
    """
    known: WeakKeyDictionary[Group, dict[Hashable, R]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(group: Group, /, *args: P.args, **kwargs: P.kwargs) -> R:
        own = known.setdefault(group, {})
        key = (*group.nodes, args, *kwargs.items())  # nodes themselves: an id may come again
        if key not in own:
            own[key] = function(group, *args, **kwargs)
        return own[key]

    return remembered
