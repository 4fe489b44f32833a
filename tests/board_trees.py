"""Folders that look like the /proc, /sys, /etc and /lib of boards, for tests without a board.

Contents follow what the kernels of these boards print: part numbers, the clocks of their device
trees, thermal zones with trip points. ARM kernels without cache nodes in the device tree tell no
cache sizes, so only the Raspberry Pi 5 has some here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aotgen.target.board import Board, Cluster

A53, A72, A76 = 0xD03, 0xD08, 0xD0B
BASE = "fp asimd evtstrm crc32 cpuid"
DOTPROD = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop"
    " asimddp"
)


def without_cost_models(board: Board) -> tuple[Cluster, ...]:
    """A board's clusters as far as a look at the board tells."""
    return tuple(replace(cluster, cost_model=None) for cluster in board.clusters)


@dataclass(frozen=True)
class Tree:
    """A board's files.

    Attributes:
        model: of the device tree, and what else of it by path.
        cores: (part number, highest clock in MHz) of each CPU.
        features: of all of them.
        ram_mb: that Linux has.
        caches: (level, type, size, ways) of each CPU.
        loader: the dynamic loader in /lib.
        files: more of them, by path; they replace those above.
    """

    model: str
    cores: Sequence[tuple[int, int]]
    features: str = BASE
    ram_mb: int = 3792
    caches: Sequence[tuple[int, str, str, int]] = ()
    loader: str = "ld-linux-aarch64.so.1"
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, root: Path) -> Path:
        """The tree below the new folder ``root``."""
        for path, text in {**self._files(), **self.files}.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return root

    def _files(self) -> dict[str, str]:
        last = len(self.cores) - 1
        files = {
            "proc/cpuinfo": "\n".join(
                f"processor\t: {n}\nBogoMIPS\t: 108.00\nFeatures\t: {self.features}\n"
                "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\n"
                f"CPU part\t: {part:#x}\nCPU revision\t: 3\n"
                for n, (part, _) in enumerate(self.cores)
            ),
            "proc/version": "Linux version 6.12.0 (test)\n",
            "proc/meminfo": f"MemTotal:    {self.ram_mb << 10} kB\nMemFree:      90000 kB\n"
            f"MemAvailable:    {(self.ram_mb << 10) // 2} kB\n",
            "proc/device-tree/model": f"{self.model}\0",
            "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n',
            f"lib/{self.loader}": "",
            "sys/devices/system/cpu/present": f"0-{last}\n",
            "sys/devices/system/cpu/online": f"0-{last}\n",
            "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
            "sys/class/thermal/thermal_zone0/temp": "48312\n",
            "sys/class/thermal/thermal_zone0/trip_point_0_type": "passive\n",
            "sys/class/thermal/thermal_zone0/trip_point_0_temp": "80000\n",
            "sys/class/thermal/cooling_device0/type": "cpufreq-cpu0\n",
            "sys/class/thermal/cooling_device0/cur_state": "0\n",
        }
        for n, (_, mhz) in enumerate(self.cores):
            folder = f"sys/devices/system/cpu/cpu{n}"
            files[f"{folder}/cpufreq/cpuinfo_max_freq"] = f"{mhz}000\n"
            files[f"{folder}/cpufreq/scaling_max_freq"] = f"{mhz}000\n"
            files[f"{folder}/cpufreq/scaling_governor"] = "performance\n"
            for index, (level, kind, size, ways) in enumerate(self.caches):
                entry = f"{folder}/cache/index{index}"
                files[f"{entry}/level"] = f"{level}\n"
                files[f"{entry}/type"] = f"{kind}\n"
                files[f"{entry}/size"] = f"{size}\n"
                files[f"{entry}/ways_of_associativity"] = f"{ways}\n"
        if self.model.startswith("Raspberry Pi"):
            files["sys/devices/platform/soc/soc:firmware/get_throttled"] = "0\n"
            files["sys/class/hwmon/hwmon0/name"] = "cpu_thermal\n"
            files["sys/class/hwmon/hwmon1/name"] = "rpi_volt\n"
            files["sys/class/hwmon/hwmon1/in0_lcrit_alarm"] = "0\n"
        return files


TREES = {
    "rpi3b": Tree("Raspberry Pi 3 Model B Rev 1.2", [(A53, 1200)] * 4, ram_mb=909),
    "rpi3b-armv7": Tree(
        "Raspberry Pi 3 Model B Rev 1.2",
        [(A53, 1200)] * 4,
        "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm crc32",
        ram_mb=922,
        loader="ld-linux-armhf.so.3",
    ),
    "rpi4": Tree("Raspberry Pi 4 Model B Rev 1.4", [(A72, 1500)] * 4),
    "rpi5": Tree(
        "Raspberry Pi 5 Model B Rev 1.0",
        [(A76, 2400)] * 4,
        DOTPROD,
        8062,
        [(1, "Data", "64K", 4), (1, "Instruction", "64K", 4), (2, "Unified", "512K", 8)],
    ),
    "rk3399": Tree(
        "FriendlyARM NanoPC-T4",
        [(A53, 1416)] * 4 + [(A72, 1800)] * 2,
        f"{BASE} aes pmull sha1 sha2",
        files={
            "usr/lib/aarch64-linux-gnu/libOpenCL.so.1": "",
            "etc/OpenCL/vendors/mali.icd": "libmali.so.1\n",
            "dev/mali0": "",
            "proc/device-tree/gpu@ff9a0000/compatible": "rockchip,rk3399-mali\0arm,mali-t860\0",
        },
    ),
}
"""One for each board that ships with aotgen, healthy and ready to be measured on."""
