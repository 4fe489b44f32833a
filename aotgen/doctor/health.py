"""How hot a board is, and whether it slows itself down: thermal zones, cooling devices, and the
throttling bits of the Raspberry Pi's firmware.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aotgen.conditions import SINCE_START, THROTTLED_BITS
from aotgen.doctor.files import BoardFiles

_THROTTLED = "/sys/devices/platform/soc/soc:firmware/get_throttled"

_MAX_ENTRIES = 32
_MAX_GAP = 2
_DEFAULT_LIMIT_C = 80.0


@dataclass(frozen=True)
class Zone:
    """A thermal zone.

    Attributes:
        name: its type in sysfs.
        celsius: now.
        limit: at which the system starts to slow down; None when it does not say.
    """

    name: str
    celsius: float
    limit: float | None


@dataclass(frozen=True)
class Health:
    """
    Attributes:
        zones: with a temperature.
        throttled: the Raspberry Pi's bits; None on other boards.
        cooling: names of devices that hold a CPU's clock down right now.
        low_voltage: the Raspberry Pi's supply monitor; None without one.
    """

    zones: tuple[Zone, ...] = ()
    throttled: int | None = None
    cooling: tuple[str, ...] = ()
    low_voltage: bool | None = None

    @property
    def hottest(self) -> Zone | None:
        return max(self.zones, key=lambda zone: zone.celsius, default=None)

    @property
    def limit_celsius(self) -> float:
        """The lowest temperature at which a zone starts to slow down."""
        limits = [zone.limit for zone in self.zones if zone.limit is not None]
        return min(limits, default=_DEFAULT_LIMIT_C)

    @property
    def now(self) -> list[str]:
        """What slows the board down at the moment."""
        found = _bits(self.throttled or 0)
        if self.low_voltage and THROTTLED_BITS[0] not in found:
            found.append(THROTTLED_BITS[0])
        return [*found, *(f"{name} holds the clock down" for name in self.cooling)]

    @property
    def before(self) -> list[str]:
        """What did so since the board was started, and does no more."""
        return [t for t in _bits((self.throttled or 0) >> SINCE_START) if t not in self.now]

    @property
    def known(self) -> bool:
        """Whether the board tells at all."""
        return self.throttled is not None or self.low_voltage is not None or bool(self.zones)


def read_health(files: BoardFiles) -> Health:
    """
    Raises:
        BoardError: the board cannot be reached.
    """
    return Health(
        zones=tuple(_zones(files)),
        throttled=_throttled(files),
        cooling=tuple(_cooling(files)),
        low_voltage=_low_voltage(files),
    )


def _bits(value: int) -> list[str]:
    return [text for bit, text in THROTTLED_BITS.items() if value >> bit & 1]


def _entries(files: BoardFiles, prefix: str, name: str) -> list[tuple[str, str]]:
    """(folder, text of its file ``name``) of numbered folders; gaps in the numbers occur."""
    found, missing = [], 0
    for index in range(_MAX_ENTRIES):
        folder = f"{prefix}{index}"
        text = files.text(f"{folder}/{name}")
        missing = 0 if text else missing + 1
        if missing > _MAX_GAP:
            break
        if text:
            found.append((folder, text))
    return found


def _zones(files: BoardFiles) -> list[Zone]:
    zones = []
    for folder, name in _entries(files, "/sys/class/thermal/thermal_zone", "type"):
        value = files.number(f"{folder}/temp")
        if value is None:
            continue
        trips = [
            files.number(f"{point}_temp")
            for point, kind in _trip_points(files, folder)
            if kind == "passive"
        ]
        limits = [trip / 1000 for trip in trips if trip is not None and trip > 0]
        zones.append(Zone(name, value / 1000, min(limits, default=None)))
    return zones


def _trip_points(files: BoardFiles, folder: str) -> list[tuple[str, str]]:
    """(path without its ending, type) of a zone's trip points."""
    found = []
    for index in range(_MAX_ENTRIES):
        point = f"{folder}/trip_point_{index}"
        kind = files.text(f"{point}_type")
        if not kind:
            break
        found.append((point, kind))
    return found


def _throttled(files: BoardFiles) -> int | None:
    value = files.number(_THROTTLED, 16)
    if (
        value is not None
        or files.root
        or not files.text("/proc/device-tree/model").startswith("Raspberry Pi")
    ):
        return value
    found = re.fullmatch(
        r"throttled=0x([0-9a-fA-F]+)", files.output(["vcgencmd", "get_throttled"]) or ""
    )
    return int(found[1], 16) if found else None


def _cooling(files: BoardFiles) -> list[str]:
    """CPU cooling devices that are at work; fans are none."""
    return [
        name
        for folder, name in _entries(files, "/sys/class/thermal/cooling_device", "type")
        if re.search("cpu", name, re.IGNORECASE) and (files.number(f"{folder}/cur_state") or 0) > 0
    ]


def _low_voltage(files: BoardFiles) -> bool | None:
    for folder, name in _entries(files, "/sys/class/hwmon/hwmon", "name"):
        if name == "rpi_volt":
            alarm = files.number(f"{folder}/in0_lcrit_alarm")
            return None if alarm is None else alarm != 0
    return None
