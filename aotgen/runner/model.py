"""A project's model where it runs: what ``Project`` does with it, whatever it runs on.

``program.py`` has the one for boards with an operating system, through the project's programs;
``serial_model.py`` that of microcontrollers, through their firmware.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from aotgen.errors import BoardError
from aotgen.ir.types import Array

if TYPE_CHECKING:
    from aotgen.bench import BenchOptions
    from aotgen.bench_result import BenchResult, Cores
    from aotgen.manifest import Manifest
    from aotgen.trace import Expected, TraceRecord

Outputs = dict[str, Array]


class PlacedModel(ABC):
    """A model that is ready to run somewhere. Inputs are checked and in the model's order.

    All methods raise BoardError where the program or the board fails, ToolchainError where the
    project does not build, UsageError for threads or cores that the place does not have.
    """

    @abstractmethod
    def run(
        self, steps: Sequence[Sequence[Array]], threads: int = 1, cores: Cores | None = None
    ) -> list[Outputs]:
        """Run successive steps on one fresh instance.

        Args:
            steps: the inputs of each.
            threads: of a run.
            cores: on which of them, see ``Project.run``.
        """

    @abstractmethod
    def trace(
        self,
        steps: Sequence[Sequence[Array]],
        expected: Expected,
        threads: int = 1,
        cores: Cores | None = None,
    ) -> tuple[list[Outputs], list[TraceRecord]]:
        """``run``, and what each layer computed.

        Args:
            steps: see ``run``.
            expected: over a slow line, what is as expected is not sent.
            threads: see ``run``.
            cores: see ``run``.
        """

    @abstractmethod
    def weight_crcs(self) -> dict[int, str]:
        """CRC-32 of each layer's weights by layer number, as 8 hex digits."""

    @abstractmethod
    def bench(self, threads: Sequence[int], options: BenchOptions) -> Iterator[BenchResult]:
        """Time the model with one number of threads after the other.

        Yields:
            A result for each; an incomplete one, and then the error, where it broke off.
        """


def split_outputs(info: Manifest, data: bytes, steps: int) -> list[Outputs]:
    """The outputs of each step from their bytes, one after the other.

    Raises:
        BoardError: they are not so many.
    """
    expected = steps * sum(t.nbytes for t in info.outputs)
    if len(data) != expected:
        raise BoardError(f"{info.prefix} gave {len(data)} bytes of outputs instead of {expected}")
    results, start = [], 0
    for _ in range(steps):
        result: Outputs = {}
        for tensor in info.outputs:
            piece = data[start : start + tensor.nbytes]
            result[tensor.name] = np.frombuffer(piece, tensor.numpy).reshape(tensor.shape).copy()
            start += tensor.nbytes
        results.append(result)
    return results
