"""Row buffers: what is dropped nobody needs, and a buffer holds as many rows as there ever are."""

from __future__ import annotations

import numpy as np

from aotgen.memory.row_streaming import Drop, Pace, RowBuffer


def random_readers(rng: np.random.Generator) -> list[Drop]:
    """Readers of one buffer: windows of one or two strides at paces that agree."""
    per, slope = int(rng.choice([1, 2, 4])), int(rng.integers(1, 4))
    drops = []
    for _ in range(int(rng.integers(1, 4))):
        stride = int(rng.choice([1, 2]))
        pace = Pace(2 * slope // stride, int(rng.integers(-6, 9)), per, 40 // stride)
        drops.append(Drop(pace, stride, int(rng.integers(0, 3))))
    return drops


def test_no_reader_loses_a_row() -> None:
    """Rows are dropped when all readers are done with them, and at most two rows later."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        drops = random_readers(rng)
        least = Drop.least(drops)
        slack = max(d.pad for d in drops) - min(d.pad for d in drops) + 2
        for step in range(-10, 60):
            needed = min(drop.rows(step) for drop in drops)
            assert least.rows(step) <= needed
        end = min(drop.rows(1000) for drop in drops)
        assert end - slack <= least.rows(1000) <= end


def test_buffers_hold_all_rows_at_a_time() -> None:
    """The rows of the first steps tell those of all."""
    rng = np.random.default_rng(4)
    for _ in range(300):
        least = Drop.least(random_readers(rng))
        pace = least.pace
        ahead = pace.offset * least.stride + int(rng.integers(0, 12)) * pace.per
        written = Pace(pace.slope * least.stride, ahead, pace.per, 40)
        buffer = RowBuffer(16, 0, written, least)
        every = [written.rows(step) - buffer.first_row(step) for step in range(-60, 120)]
        assert buffer.most_rows() == max(every)
        for delay in (1, 7):
            assert buffer.later(delay).first_row(20 + delay) == buffer.first_row(20)
            assert buffer.later(delay).most_rows() == buffer.most_rows()
