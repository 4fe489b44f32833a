"""Which function converts which TFLite operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from aotgen.errors import InternalError

if TYPE_CHECKING:
    from aotgen.frontend.tflite.node import Output, TfliteNode

Converter = Callable[["TfliteNode"], "Output | Sequence[Output | None]"]
"""Emits the operator's ops and returns its outputs; None for an output that nothing uses."""

F = TypeVar("F", bound=Converter)

_TABLE: dict[str, Converter] = {}

_REFUSALS: dict[str, tuple[str, str]] = {}


def converter(*ops: str) -> Callable[[F], F]:
    """Register a function as the converter of builtin operators ``ops``, named as in the schema."""

    def wrap(function: F) -> F:
        for op in ops:
            if op in _TABLE or op in _REFUSALS:
                raise InternalError(f"TFLite operator {op!r} is registered twice")
            _TABLE[op] = function
        return function

    return wrap


def refuses(*ops: str, reason: str, remedy: str) -> None:
    """Register why ``ops`` are not converted, where there is more to say than that."""
    for op in ops:
        if op in _TABLE or op in _REFUSALS:
            raise InternalError(f"TFLite operator {op!r} is registered twice")
        _REFUSALS[op] = (reason, remedy)


def converter_of(op: str) -> Converter | None:
    """The function for ``op``; None when there is none."""
    return _TABLE.get(op)


def refusal(op: str) -> tuple[str, str] | None:
    """Reason and remedy for an operator without a converter; None when nothing is registered."""
    return _REFUSALS.get(op)


def supported() -> list[str]:
    """All operators that have a converter, sorted."""
    return sorted(_TABLE)
