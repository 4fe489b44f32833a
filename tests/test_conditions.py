"""What of a board's readings makes times doubtful, and what peak its cores have."""

from __future__ import annotations

import pytest

import aotgen
from aotgen.bench import cores_in_use, peak_gops
from aotgen.conditions import Clock, Governor, Reading, governor_problems, throttling

HELD = Governor(cpus=2, set=2, before="schedutil", busy=False, error="", restored=True)
DENIED = Governor(cpus=2, set=0, before="ondemand", busy=False, error="Permission denied")


def clocks(*mhz: float, limit: float = 1800) -> tuple[Clock, ...]:
    return tuple(Clock(cpu, m, limit, 1800) for cpu, m in enumerate(mhz))


def signs(
    before: Reading, worst: Reading, after: Reading, governor: Governor | None = HELD
) -> list[str]:
    return list(throttling(before, worst, after, governor))


def test_a_cool_board_has_no_signs() -> None:
    idle = Reading(clocks(600, 600), 45.0, 80.0, 0, 0, False)
    loaded = Reading(clocks(1800, 1800), 62.0, 80.0, 0, 0, False)
    assert signs(idle, loaded, loaded) == []
    assert signs(Reading(), Reading(), Reading(), None) == []


@pytest.mark.parametrize(
    ("before", "worst", "after", "words"),
    [
        # Raspberry Pi: what happened before the run is no sign, what happens within is.
        (0x50000, 0x50000, 0x50000, []),
        (0x0, 0x4, 0x40000, ["throttles"]),
        (0x0, 0x0, 0x10000, ["voltage"]),
        (0x50005, 0x50005, 0x50005, ["voltage", "throttles"]),
        (0x0, 0xA, 0xA0000, ["caps", "soft"]),
    ],
)
def test_firmware_bits(before: int, worst: int, after: int, words: list[str]) -> None:
    found = signs(Reading(throttled=before), Reading(throttled=worst), Reading(throttled=after))
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_other_signs() -> None:
    quiet = Reading()
    assert "2 steps" in signs(quiet, Reading(cooling=2), Reading(cooling=0))[0]
    assert "voltage" in signs(quiet, Reading(undervolt=True), Reading(undervolt=False))[0]
    hot = Reading(temperature_c=85.0, trip_c=80.0)
    assert "reached 85 C, from 80 C on" in signs(quiet, hot, quiet)[0]


def test_clocks_that_fall() -> None:
    before, full = Reading(clocks(1800, 1800)), Reading(clocks(1800, 1800))
    fallen = Reading(clocks(1800, 1200))
    assert "CPU 1 fell to 1200 of 1800 MHz" in signs(before, fallen, full)[0]
    assert signs(before, Reading(clocks(1800, 1750)), full) == []
    # An ondemand governor lets a CPU that has nothing to do be slow.
    assert signs(before, fallen, full, DENIED) == []
    assert "CPU 0" in signs(before, Reading(clocks(1000, 1200)), full, DENIED)[0]
    capped = Reading(clocks(1200, 1200, limit=1200))
    assert "limited to 1200 of 1800 MHz (scaling_max_freq)" in signs(capped, capped, capped)[0]


def test_governor_problems_come_with_a_remedy() -> None:
    assert list(governor_problems(None)) == []
    assert list(governor_problems(HELD)) == []
    (denied,) = governor_problems(DENIED)
    assert "governor ondemand was not set to performance (Permission denied)" in denied
    assert "sudo chmod" in denied and "--no-governor" in denied
    (busy,) = governor_problems(Governor(2, 0, "performance", True, "Device or resource busy"))
    assert "another bench" in busy
    (left,) = governor_problems(Governor(2, 2, "schedutil", False, "", restored=False))
    assert "could not be set back to schedutil" in left


def test_readings_print() -> None:
    assert str(Reading(clocks(1416, 1800), 48.24)) == "1416 to 1800 MHz, 48.2 C"
    assert str(Reading()) == "unknown"
    assert str(Reading(throttled=0x50000, undervolt=False)) == "not throttled"  # long ago
    for slow in (Reading(throttled=4), Reading(cooling=2), Reading(undervolt=True)):
        assert str(slow) == "throttled"
    data = {"clocks": [{"cpu": 4, "khz": 1_800_000}], "temperature_mc": -500}
    assert Reading.of(data) == Reading((Clock(4, 1800.0),), temperature_c=-0.5)
    with pytest.raises((KeyError, TypeError, ValueError)):
        Reading.of({"clocks": [{"cpu": 4}]})


@pytest.mark.parametrize(
    ("board", "cpus", "threads", "cores", "float_peak"),
    [
        # GFLOP/s of A72 at 1.8 GHz and A53 at 1.416 GHz: 14.4 and 11.328 a core.
        ("rk3399", (4, 5), 2, "big", 28.8),
        ("rk3399", (), 1, None, 14.4),
        ("rk3399", (), 4, "little", 45.312),
        ("rk3399", (), 6, "all", 28.8 + 45.312),
        ("rk3399", (), 4, "big", 28.8),  # two threads have no core of their own
        ("rpi5", (0,), 1, "all", 38.4),
    ],
)
def test_peak(
    board: str, cpus: tuple[int, ...], threads: int, cores: str | None, float_peak: float
) -> None:
    used = cores_in_use(aotgen.load_board(board), cpus, threads, cores)  # type: ignore[arg-type]
    assert peak_gops(used, integer=False) == pytest.approx(float_peak)


def test_peak_of_int8_and_of_unknown_cores() -> None:
    (core,) = cores_in_use(aotgen.load_board("rpi5"), (0,), 1, None)
    assert peak_gops([core], integer=True) == pytest.approx(153.6)
    assert peak_gops(cores_in_use(aotgen.load_board("host-scalar"), (), 1, None), False) == 0.0
