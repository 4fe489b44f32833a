"""Which of a task's candidates is the fastest, by a journal's records of several kinds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aotgen.tune.journal import Record
from aotgen.tune.task import Point

_SOURCES = {
    "measured": "board",
    "network": "board",
    "modelled": "model",
    "emulated": "emulator",
}
"""Where seconds come from, the best first; those of one source are comparable."""


@dataclass(frozen=True)
class Ranked:
    """A point of a task by its records.

    Attributes:
        record: the one that counts: timed in the network before alone, measured before modelled.
        seconds: comparable within the task: of a point that was only timed alone what it would be
            in the network, by the ratio of those that were timed in both ways.
        alone: seconds of the point timed alone, which are comparable between tasks; None when it
            never was.
    """

    record: Record
    seconds: float
    alone: float | None


def ranked(records: Iterable[Record]) -> list[Ranked]:
    """The points of one task with a time, the fastest first.

    Modelled times count only where nothing was measured, those of an emulator where there are no
    others. A point that was timed in the network again counts with its last time there; one that
    was timed alone again with its lowest, of the kernel that was measured last.
    """
    places: dict[tuple[str, bool], dict[Point, tuple[float, Record]]] = {}
    for record in records:
        if record.status != "ok" or record.seconds is None:
            continue
        inside = record.kind == "network"
        place = places.setdefault((_SOURCES[record.source], inside), {})
        known = place.get(record.point)
        again = known is not None and known[1].kernel == record.kernel
        if not inside and known is not None and again and known[0] <= record.seconds:
            continue
        place[record.point] = record.seconds, record
    sources = [source for source, _ in places]
    best = next((s for s in _SOURCES.values() if s in sources), "")
    alone = places.get((best, False), {})
    return _together(alone, places.get((best, True), {}))


def _together(
    alone: dict[Point, tuple[float, Record]], inside: dict[Point, tuple[float, Record]]
) -> list[Ranked]:
    """Points that were timed alone, in the network, or both."""
    inside = {
        p: found
        for p, found in inside.items()
        if p not in alone or alone[p][1].kernel == found[1].kernel
    }
    ratios = sorted(s / alone[p][0] for p, (s, _) in inside.items() if p in alone)
    scale = ratios[len(ratios) // 2] if ratios else 1.0
    made = [Ranked(r, s * scale, s) for p, (s, r) in alone.items() if p not in inside]
    made += [Ranked(r, s, alone[p][0] if p in alone else None) for p, (s, r) in inside.items()]
    return sorted(made, key=lambda r: (r.seconds, r.record.template, str(r.record.point.config)))
