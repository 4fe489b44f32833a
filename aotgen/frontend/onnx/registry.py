"""Which function converts which operator, from which opset version on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from aotgen.errors import InternalError

if TYPE_CHECKING:
    from aotgen.frontend.onnx.node import OnnxNode
    from aotgen.ir.graph import Value

Converter = Callable[["OnnxNode"], "Value | Sequence[Value | None]"]
"""Emits the node's ops and returns its outputs; None for an output that nothing uses."""

F = TypeVar("F", bound=Converter)

_TABLE: dict[tuple[str, str], dict[int, Converter]] = {}

_REFUSALS: dict[tuple[str, str], tuple[str, str]] = {}


def converts(*ops: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
    """Register a function as the converter of ``ops`` from opset ``since`` to the next one
    registered.
    """

    def wrap(function: F) -> F:
        for op in ops:
            versions = _TABLE.setdefault((domain, op), {})
            if since in versions:
                raise InternalError(f"two converters for {op!r} since {since}")
            versions[since] = function
        return function

    return wrap


def converter(domain: str, op: str, opset: int) -> Converter | None:
    """The function for ``op`` in a model of version ``opset`` of ``domain``; None when there is
    none.
    """
    versions = [v for v in _TABLE.get((domain, op), {}) if v <= opset]
    return _TABLE[domain, op][max(versions)] if versions else None


def refuses(*ops: str, reason: str, remedy: str, domain: str = "") -> None:
    """Register why ``ops`` are not converted, where there is more to say than that."""
    for op in ops:
        _REFUSALS[domain, op] = (reason, remedy)


def refusal(domain: str, op: str) -> tuple[str, str] | None:
    """Reason and remedy for an operator without a converter; None when nothing is registered."""
    return _REFUSALS.get((domain, op))


def supported() -> list[tuple[str, str]]:
    """All (domain, operator) that have a converter, sorted."""
    return sorted(_TABLE)
