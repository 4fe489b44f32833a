"""What a board told about itself while a project was timed, and what of it makes the times
doubtful: clocks, temperature, throttling, frequency governor.

The numbers come from the project's bench program (``templates/project/board.c.j2``), which reads
them on the board.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PERFORMANCE = "performance"

MAX_SAG = 0.05
"""A clock may be this much below what it should be without a warning."""

MAX_MHZ = 100_000.0
"""No clock is faster: the bench program's mark for one that it never saw under load."""

THROTTLED_BITS = {
    0: "the supply voltage is too low",
    1: "the firmware caps the clock",
    2: "the firmware throttles the clock",
    3: "the firmware's soft temperature limit is reached",
}
"""Of Raspberry Pi firmware's get_throttled; ``SINCE_START`` bits higher, that it happened since
the board was started."""

SINCE_START = 16

GOVERNOR_FILES = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"

_RIGHTS_REMEDY = (
    f"run `sudo chmod a+w {GOVERNOR_FILES}` on the board (docs/boards.md, Governor, has a way that"
    " lasts), or pass --no-governor"
)


@dataclass(frozen=True)
class Clock:
    """Of one CPU, in MHz; 0 where the board does not tell.

    Attributes:
        cpu: Linux's number.
        mhz: what it was.
        limit_mhz: what the kernel allows now.
        nominal_mhz: what it keeps up under load when it is cool.
    """

    cpu: int
    mhz: float
    limit_mhz: float = 0.0
    nominal_mhz: float = 0.0


@dataclass(frozen=True)
class Reading:
    """One look at the board; None where it does not tell.

    Attributes:
        clocks: of the CPUs that are timed.
        temperature_c: of the hottest thermal zone.
        trip_c: from where on the kernel lowers clocks.
        cooling: steps by which it does.
        throttled: bits of ``THROTTLED_BITS``.
        undervolt: whether the supply voltage is too low.
    """

    clocks: tuple[Clock, ...] = ()
    temperature_c: float | None = None
    trip_c: float | None = None
    cooling: int | None = None
    throttled: int | None = None
    undervolt: bool | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Reading:
        """From an object of the bench program's JSON.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        clocks = tuple(
            Clock(
                int(c["cpu"]),
                int(c["khz"]) / 1000,
                int(c.get("limit_khz", 0)) / 1000,
                int(c.get("nominal_khz", 0)) / 1000,
            )
            for c in data["clocks"]
        )
        undervolt = _number(data, "undervolt")
        return cls(
            clocks=tuple(c for c in clocks if c.mhz < MAX_MHZ),
            temperature_c=_thousandths(data, "temperature_mc"),
            trip_c=_thousandths(data, "trip_mc"),
            cooling=_number(data, "cooling"),
            throttled=_number(data, "throttled"),
            undervolt=None if undervolt is None else undervolt != 0,
        )

    @property
    def known(self) -> bool:
        """Whether the board told anything."""
        return self != Reading()

    @property
    def throttled_now(self) -> bool | None:
        """Whether firmware or kernel holds the clock down just now; None where neither tells."""
        told = (self.throttled, self.cooling, self.undervolt)
        if told == (None, None, None):
            return None
        now = (self.throttled or 0) & sum(1 << bit for bit in THROTTLED_BITS)
        return bool(now or self.cooling or self.undervolt)

    def __str__(self) -> str:
        parts = []
        if self.clocks:
            low = min(c.mhz for c in self.clocks)
            high = max(c.mhz for c in self.clocks)
            parts.append(f"{low:.0f} MHz" if low == high else f"{low:.0f} to {high:.0f} MHz")
        if self.temperature_c is not None:
            parts.append(f"{self.temperature_c:.1f} C")
        if self.throttled_now is not None:
            parts.append("throttled" if self.throttled_now else "not throttled")
        return ", ".join(parts) or "unknown"


@dataclass(frozen=True)
class Governor:
    """What became of the CPUs' frequency governor.

    Attributes:
        cpus: how many of the CPUs have one.
        set: how many were set to "performance" meanwhile.
        before: the first one's, as it was found.
        busy: another program had set it and will put it back.
        error: why it was not set, empty when it was or needed no change.
        restored: whether it is again as it was; None when that was not told.
    """

    cpus: int
    set: int
    before: str
    busy: bool
    error: str
    restored: bool | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any], restored: bool | None) -> Governor:
        """From an object of the bench program's JSON.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        return cls(
            cpus=int(data["cpus"]),
            set=int(data["set"]),
            before=str(data["before"]),
            busy=bool(data["busy"]),
            error=str(data["error"]),
            restored=restored,
        )

    @property
    def held(self) -> bool:
        """Whether clocks were to stay at their highest."""
        return self.cpus > 0 and not self.error

    def __str__(self) -> str:
        if not self.cpus:
            return "unknown"
        if self.set and not self.error:
            return f"{PERFORMANCE} (was {self.before})"
        return self.before


def governor_problems(governor: Governor | None) -> Iterator[str]:
    """One text for each thing wrong with the governor; each with a remedy."""
    if governor is None or not governor.cpus:
        return
    if governor.busy:
        yield "another bench on the board has set the governor: the two disturb each other"
    elif governor.error:
        what = (
            "some CPUs' governors were" if governor.set else f"the governor {governor.before} was"
        )
        yield (
            f"{what} not set to {PERFORMANCE} ({governor.error}), so the clock may vary;"
            f" {_RIGHTS_REMEDY}"
        )
    if governor.restored is False:
        yield (
            f"the governor could not be set back to {governor.before}; on the board, write it to"
            f" {GOVERNOR_FILES}"
        )


def throttling(
    before: Reading, worst: Reading, after: Reading, governor: Governor | None
) -> Iterator[str]:
    """One text for each sign that the board ran slower than it can."""
    found = dict.fromkeys(_firmware(before, worst, after))
    if worst.undervolt or after.undervolt:
        found.setdefault(THROTTLED_BITS[0])
    yield from found
    steps = max(worst.cooling or 0, after.cooling or 0)
    if steps:
        yield f"the kernel lowered the clock by {steps} steps because of heat"
    hottest = max((r.temperature_c or 0.0) for r in (worst, after))
    trip = worst.trip_c
    if trip is not None and hottest >= trip:
        yield f"the CPU reached {hottest:.0f} C, from {trip:.0f} C on the kernel lowers the clock"
    yield from _slow_clocks(before, worst, governor)


def _firmware(before: Reading, worst: Reading, after: Reading) -> Iterator[str]:
    if before.throttled is None or after.throttled is None:
        return
    seen = before.throttled | (worst.throttled or 0) | after.throttled
    new = (after.throttled & ~before.throttled) >> SINCE_START
    for bit, text in THROTTLED_BITS.items():
        if (seen | new) >> bit & 1:
            yield text


def _slow_clocks(before: Reading, worst: Reading, governor: Governor | None) -> Iterator[str]:
    """Clocks under load, against what the CPUs can.

    Without the governor a CPU that has nothing to do is slow by right, so one fast CPU suffices.
    """
    known = [c for c in worst.clocks if c.nominal_mhz > 0]
    slow = [c for c in known if c.mhz < (1 - MAX_SAG) * c.nominal_mhz]
    held = governor is not None and governor.held
    if not slow or (not held and len(slow) < len(known)):
        return
    least = min(slow, key=lambda c: c.mhz / c.nominal_mhz)
    limits = {c.cpu: c.limit_mhz for c in before.clocks}
    limit = limits.get(least.cpu, 0.0)
    if 0 < limit < (1 - MAX_SAG) * least.nominal_mhz and least.mhz >= (1 - MAX_SAG) * limit:
        yield (
            f"CPU {least.cpu} is limited to {limit:.0f} of {least.nominal_mhz:.0f} MHz"
            " (scaling_max_freq)"
        )
    else:
        yield f"CPU {least.cpu} fell to {least.mhz:.0f} of {least.nominal_mhz:.0f} MHz"


def _number(data: Mapping[str, Any], key: str) -> int | None:
    return int(data[key]) if key in data else None


def _thousandths(data: Mapping[str, Any], key: str) -> float | None:
    value = _number(data, key)
    return None if value is None else value / 1000
