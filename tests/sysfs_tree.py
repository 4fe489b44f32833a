"""A folder that looks like the parts of a board's /sys that tell of clocks and temperature."""

from __future__ import annotations

from pathlib import Path


class SysfsTree:
    """Files under ``root``; all are plain ones that whoever runs the tests may write."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: object) -> None:
        """Write ``sys/<path>``."""
        file = self.root / "sys" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cpu(
        self, number: int, governor: str = "schedutil", mhz: int = 1800, top: int = 1800
    ) -> None:
        folder = f"devices/system/cpu/cpu{number}/cpufreq"
        self.write(f"{folder}/scaling_governor", governor)
        self.write(f"{folder}/scaling_cur_freq", mhz * 1000)
        self.write(f"{folder}/scaling_max_freq", top * 1000)
        self.write(f"{folder}/cpuinfo_max_freq", top * 1000)

    def zone(
        self, number: int, celsius: float, kind: str = "cpu-thermal", trip: float | None = None
    ) -> None:
        folder = f"class/thermal/thermal_zone{number}"
        self.write(f"{folder}/type", kind)
        self.write(f"{folder}/temp", round(celsius * 1000))
        if trip is not None:
            self.write(f"{folder}/trip_point_0_type", "critical")
            self.write(f"{folder}/trip_point_0_temp", 110_000)
            self.write(f"{folder}/trip_point_1_type", "passive")
            self.write(f"{folder}/trip_point_1_temp", round(trip * 1000))

    def governor_file(self, number: int) -> Path:
        return self.root / f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor"

    def governors(self) -> list[str]:
        """Of all CPUs, in order."""
        files = sorted(self.root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"))
        return [file.read_text().strip() for file in files]
