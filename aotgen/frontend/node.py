"""One operator of a model file, for converters of every reader: its inputs, and emitting ops."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from aotgen.frontend.emitter import MAX_EVALUATED_BYTES, Emitter, Refused
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType


class FileNode(ABC):
    """One operator of a model file during its conversion.

    Attributes:
        name: its name, which the ops that it becomes carry.
        inputs: None for one that is absent.
    """

    def __init__(self, emitter: Emitter, name: str, inputs: Sequence[Value | None]) -> None:
        self._emitter = emitter
        self.name = name
        self.inputs = list(inputs)

    # inputs

    def optional(self, index: int) -> Value | None:
        """Input ``index``, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def evaluate(self, value: Value) -> Array | None:
        """The elements of ``value`` when they are known while compiling, else None."""
        return self._emitter.evaluate(value)

    # emitting

    @abstractmethod
    def constant(self, array: Array, name: str = "const") -> Value:
        """A constant of this operator's own."""

    def refuse(self, reason: str, remedy: str = "") -> NoReturn:
        raise Refused(reason, remedy)

    def emit(self, op: str, inputs: Sequence[Value | None], **attrs: Any) -> Value:
        """Emit canonical op ``op`` (folded at once when small and constant); its first output."""
        return self.emit_all(op, inputs, **attrs)[0]

    def emit_all(self, op: str, inputs: Sequence[Value | None], **attrs: Any) -> list[Value]:
        """Like ``emit``, all outputs."""
        return self._emitter.emit(op, inputs, self.name, attrs)

    def scalar(self, value: float, like: Value) -> Value:
        """A 0-d constant of the dtype of ``like``."""
        return self.constant(np.array(value, like.dtype.numpy))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """``x`` in another shape of equal size; ``x`` itself when it has that shape."""
        target = tuple(int(d) for d in shape)
        return x if x.shape == target else self.emit("reshape", [x], shape=target)

    def cut(self, x: Value, axis: int, start: int, end: int) -> Value:
        """``x`` from ``start`` up to ``end`` along ``axis``."""
        starts, ends = [0] * len(x.shape), list(x.shape)
        starts[axis], ends[axis] = start, end
        steps = (1,) * len(x.shape)
        return self.emit("slice", [x], starts=tuple(starts), ends=tuple(ends), steps=steps)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """``parts`` along ``axis``; a single one as it is."""
        return parts[0] if len(parts) == 1 else self.emit("concat", parts, axis=axis)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """``x`` permuted; ``x`` itself for the identity, and constants at once."""
        order = tuple(int(p) for p in perm)
        if order == tuple(range(len(order))):
            return x
        if x.is_const:
            return self._emitter.permuted(x, order)
        return self.emit("transpose", [x], perm=order)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype is dtype else self.emit("cast", [x], dtype=dtype)

    def expect_small(self, shape: Sequence[int], dtype: DType) -> None:
        """Refuse to compute a constant of this size while reading."""
        nbytes = math.prod(shape) * dtype.size
        if nbytes > MAX_EVALUATED_BYTES:
            self.refuse(
                f"it asks for a constant of {nbytes} bytes; the limit is {MAX_EVALUATED_BYTES}",
                "bind smaller input shapes",
            )
