"""Depthwise convolution of one channel on the DSP extension: which words of weights it takes, in
which blocks it computes. ``int8_dsp_depthwise_assembly`` writes the function.

The channel lies in a plane of int16 whose words are pairs of neighbours along a row: the words of
a pair of columns are adjacent, one a row, so that rows stand at constant distances whatever the
extents. SMLAD takes two taps at once. Outputs come in blocks of two columns and, where registers
allow it, two rows; the second column's taps are the first one's moved by the stride, so that any
stride works: its words are other pairs of weights, or halves of words that are there.

``resident`` weights stay in registers for the whole channel; ``streamed`` ones, of larger kernels,
are loaded for every block, a pair of columns of the plane after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from aotgen.schedule.int8.dsp.operands import ScaleKind

REGISTERS = (*(f"r{n}" for n in range(13)), "lr")

MOST_RESIDENT = 6
"""Words of weights that fit beside four sums, two words of the plane and two pointers."""

MOST_ROWS = 32
"""Of a kernel, whose code is straight."""

PARAMETERS = ("bias", "multiplier", "constant", "shift")
"""Words of a channel in front of its weights."""

Pair = tuple[int | None, int | None]
"""The taps whose weights are the lower and the upper half of a word; None for 0."""


@dataclass(frozen=True)
class DepthwiseRows:
    """The function for one window.

    Attributes:
        kernel: taps (high, wide).
        stride: (down, along).
        kind: of the scaling.
        folded: the image is one row, folded: a row of the plane is a pair of its pixels, a row of
            outputs a pair of them. The kernel is (1, wide).
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    kind: ScaleKind
    folded: bool = False

    @property
    def _words(self) -> int:
        """Of a row of pixels that two neighbouring outputs read."""
        return (self.kernel[1] - 1 + self.stride[1]) // 2 + 1

    @property
    def columns(self) -> int:
        """Pairs of columns of the plane that a block reads."""
        return 1 if self.folded else self._words

    @property
    def along(self) -> int:
        """Pairs of columns of the plane from one pair of output columns to the next."""
        return self.stride[1]

    @property
    def high(self) -> int:
        """Rows of the plane that an output row reads."""
        return self._words if self.folded else self.kernel[0]

    @property
    def down(self) -> int:
        """Rows of the plane from one output row to the next."""
        return self.stride[1] if self.folded else self.stride[0]

    def taps(self, output: int, column: int, row: int) -> Pair:
        """Taps of an output column (0, 1) that a row of a pair of columns meets."""
        if self.folded:
            column, row = row, 0
        first = 2 * column - output * self.stride[1]
        lo, hi = (
            row * self.kernel[1] + tap if 0 <= tap < self.kernel[1] else None
            for tap in (first, first + 1)
        )
        return lo, hi

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The words of weights of a channel, in memory order."""
        if not self.is_resident:
            return tuple(
                self.taps(output, column, row)
                for column in range(self.columns)
                for row in range(self.high)
                for output in (0, 1)
            )
        return self._shared

    @cached_property
    def _shared(self) -> tuple[Pair, ...]:
        """The fewest words that have all pairs, and each tap that is alone in some half."""
        used = [
            self.taps(output, column, row)
            for row in range(self.high)
            for column in range(self.columns)
            for output in (0, 1)
        ]
        words: list[Pair] = []
        for pair in used:
            if None not in pair and pair not in words:
                words.append(pair)
        there = {tap for pair in words for tap in pair}
        alone = list(dict.fromkeys(t for p in used for t in p if t is not None and t not in there))
        for at in range(0, len(alone), 2):
            words.append((alone[at], alone[at + 1] if at + 1 < len(alone) else None))
        return tuple(words)

    @property
    def read(self) -> tuple[int, ...]:
        """Pairs of columns of a block that some tap falls on."""
        return tuple(
            column
            for column in range(self.columns)
            if any(
                self.taps(o, column, r) != (None, None) for o in (0, 1) for r in range(self.high)
            )
        )

    @property
    def is_resident(self) -> bool:
        words, pointers = len(self._shared), len(self.read)
        return words <= MOST_RESIDENT and 2 + words + 2 + pointers <= len(REGISTERS)

    @property
    def rows(self) -> int:
        """Output rows of a block."""
        if not self.is_resident:
            return 2 if self.down == 1 else 1
        return 2 if 4 + len(self._shared) + 2 + len(self.read) <= len(REGISTERS) else 1

    @property
    def parameter_words(self) -> int:
        """Of a channel."""
        return len(PARAMETERS) + len(self.pairs)
