"""What a board is and how it is: everything that can be read there without running a program of
ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import groupby

from aotgen.doctor.cores import UNKNOWN, Core, core_of, features_seen_by
from aotgen.doctor.files import BoardFiles
from aotgen.doctor.health import Health, read_health
from aotgen.target.board import HOST_FLOPS_PER_CYCLE
from aotgen.target.host import architecture, choose_isa, core_name
from aotgen.target.linux_files import Cache, cpu_list, cpuinfo_blocks, data_caches, memory_bytes

SAME_CLOCK = 0.05
"""Cores of one kind whose highest clocks differ by less are one cluster."""

TRIPLES = {
    "aarch64": "aarch64-linux-gnu",
    "arm": "arm-linux-gnueabihf",
    "x86_64": "x86_64-linux-gnu",
    "riscv64": "riscv64-linux-gnu",
    "i686": "i686-linux-gnu",
}

_LOADERS = {
    "ld-linux-aarch64.so.1": "aarch64",
    "ld-linux-armhf.so.3": "arm",
    "ld-linux-x86-64.so.2": "x86_64",
    "ld-linux-riscv64-lp64d.so.1": "riscv64",
    "ld-musl-aarch64.so.1": "aarch64",
    "ld-musl-armhf.so.1": "arm",
    "ld-musl-x86_64.so.1": "x86_64",
}


@dataclass(frozen=True)
class Cpu:
    """One CPU.

    Attributes:
        number: Linux's.
        core: what it is.
        max_khz: highest clock that the hardware offers, 0 when not told.
        limit_khz: highest that is allowed at the moment.
        governor: of its clock, empty without cpufreq.
        capacity: the scheduler's, 0 when not told.
    """

    number: int
    core: Core
    max_khz: int = 0
    limit_khz: int = 0
    governor: str = ""
    capacity: int = 0


@dataclass(frozen=True)
class CpuCluster:
    """CPUs of one kind and clock; never empty. ``caches``: by level, the first CPU's data and
    unified ones.
    """

    cpus: tuple[Cpu, ...]
    caches: dict[int, Cache] = field(default_factory=dict)

    @property
    def core(self) -> Core:
        return self.cpus[0].core

    @property
    def max_khz(self) -> int:
        return max(cpu.max_khz for cpu in self.cpus)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(cpu.number for cpu in self.cpus)

    @property
    def speed(self) -> tuple[int, int, int]:
        """Orders clusters: by the scheduler's capacity, else by clock and operations per cycle."""
        rate = (self.max_khz or 1) * (self.core.flops_per_cycle or 4)
        return (self.cpus[0].capacity, rate, self.core.l2_bytes)


@dataclass(frozen=True)
class OpenCl:
    """What an OpenCL program needs: the loader's library, vendors' drivers, GPU devices."""

    libraries: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    gpu: str = ""


@dataclass(frozen=True)
class Facts:
    """A board as it was found.

    Attributes:
        model: what it calls itself, empty when it does not.
        system: its Linux distribution.
        kernel_machine: architecture of the kernel, as compiler triples spell it.
        machine: architecture of its C library, which programs are linked with; the kernel's when
            none was found.
        loaders: dynamic loaders in /lib, such as ``ld-linux-aarch64.so.1``.
        clusters: the fastest first.
        offline: CPUs that are switched off.
        features: that all CPUs have.
        ram_bytes: that Linux has, without what firmware and GPU keep; 0 when not told.
        available_bytes: of it, free for programs.
        health: temperature and throttling.
        opencl: see ``OpenCl``.
    """

    model: str
    system: str
    kernel_machine: str
    machine: str
    loaders: tuple[str, ...]
    clusters: tuple[CpuCluster, ...]
    offline: tuple[int, ...]
    features: frozenset[str]
    ram_bytes: int
    available_bytes: int
    health: Health
    opencl: OpenCl

    @property
    def cpus(self) -> list[Cpu]:
        return [cpu for cluster in self.clusters for cpu in cluster.cpus]


def read_facts(files: BoardFiles) -> Facts:
    """Read them all.

    Raises:
        BoardError: the board cannot be reached.
    """
    blocks = cpuinfo_blocks(files.text("/proc/cpuinfo"))
    kernel = _kernel_machine(files, blocks)
    loaders = tuple(sorted({n for d in ("/lib", "/lib64") for n in files.names(d)} & {*_LOADERS}))
    users = {_LOADERS[name] for name in loaders}
    machine = kernel if kernel in users or len(users) != 1 else users.pop()
    cpus = _cpus(files, blocks, machine)
    present = cpu_list(files.text("/sys/devices/system/cpu/present"))
    memory = memory_bytes(files.text("/proc/meminfo"))
    return Facts(
        model=files.text("/proc/device-tree/model") or _model_name(blocks),
        system=_os_name(files.text("/etc/os-release")),
        kernel_machine=kernel,
        machine=machine,
        loaders=loaders,
        clusters=_clusters(files, cpus),
        offline=tuple(sorted(set(present) - {cpu.number for cpu in cpus})),
        features=features_seen_by(machine, tuple(_common_flags(blocks))),
        ram_bytes=memory.get("MemTotal", 0),
        available_bytes=memory.get("MemAvailable", memory.get("MemFree", 0)),
        health=read_health(files),
        opencl=_opencl(files, machine),
    )


def _kernel_machine(files: BoardFiles, blocks: list[dict[str, str]]) -> str:
    """A tree of files says itself what it is of; a board's ``uname`` knows best."""
    if files.root:
        told = files.text("/proc/sys/kernel/arch")
        first = blocks[0] if blocks else {}
        flags = first.get("Features", "").split()
        if told:
            return architecture(told)
        if "asimd" in flags:
            return "aarch64"
        if flags:
            return "arm"
        if "flags" in first:
            return "x86_64"
    return architecture(files.output(["uname", "-m"]) or "unknown")


def _cpus(files: BoardFiles, blocks: list[dict[str, str]], machine: str) -> list[Cpu]:
    online = cpu_list(files.text("/sys/devices/system/cpu/online"))
    numbers = online or [int(block["processor"]) for block in blocks] or [0]
    by_number = {int(block["processor"]): block for block in blocks}
    return [_cpu(files, n, by_number.get(n, {}), machine) for n in numbers]


def _cpu(files: BoardFiles, number: int, block: dict[str, str], machine: str) -> Cpu:
    folder = f"/sys/devices/system/cpu/cpu{number}"
    clock = files.number(f"{folder}/cpufreq/cpuinfo_max_freq") or 0
    return Cpu(
        number=number,
        core=_core(block, machine),
        max_khz=clock or _x86_khz(block),
        limit_khz=files.number(f"{folder}/cpufreq/scaling_max_freq") or clock,
        governor=files.text(f"{folder}/cpufreq/scaling_governor") if clock else "",
        capacity=files.number(f"{folder}/cpu_capacity") or 0,
    )


def _core(block: dict[str, str], machine: str) -> Core:
    try:
        implementer, part = int(block["CPU implementer"], 16), int(block["CPU part"], 16)
        core = core_of(implementer, part)
        name = f"part-{implementer:02x}-{part:03x}"
        return replace(core, name=name) if core == UNKNOWN else core
    except (KeyError, ValueError):
        isa, _ = choose_isa(machine, frozenset(block.get("flags", "").split()))
        return replace(
            UNKNOWN, name=core_name(machine, isa), flops_per_cycle=HOST_FLOPS_PER_CYCLE[isa]
        )


def _x86_khz(block: dict[str, str]) -> int:
    try:
        return round(1000 * float(block.get("cpu MHz", "0")))
    except ValueError:
        return 0


def _clusters(files: BoardFiles, cpus: list[Cpu]) -> tuple[CpuCluster, ...]:
    """CPUs of one kind and nearly one clock together, the fastest first."""
    clusters: list[CpuCluster] = []

    def key(cpu: Cpu) -> tuple[str, int]:
        return cpu.core.name, -cpu.max_khz

    for _, same in groupby(sorted(cpus, key=key), lambda cpu: cpu.core.name):
        members: list[Cpu] = []
        for cpu in same:
            if members and cpu.max_khz < members[0].max_khz * (1 - SAME_CLOCK):
                clusters.append(_cluster(files, members))
                members = []
            members.append(cpu)
        clusters.append(_cluster(files, members))
    return tuple(sorted(clusters, key=lambda c: (c.speed, c.numbers), reverse=True))


def _cluster(files: BoardFiles, members: list[Cpu]) -> CpuCluster:
    cpus = tuple(sorted(members, key=lambda c: c.number))
    return CpuCluster(cpus, data_caches(files.text, cpus[0].number))


def _common_flags(blocks: list[dict[str, str]]) -> list[str]:
    """Flags that every CPU has, in the order of the first."""
    lists = [(b.get("Features") or b.get("flags") or "").split() for b in blocks]
    lists = [flags for flags in lists if flags]
    return [flag for flag in lists[0] if all(flag in other for other in lists)] if lists else []


def _os_name(text: str) -> str:
    fields = {m[1]: m[2] for m in re.finditer(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE)}
    return fields.get("PRETTY_NAME") or fields.get("NAME", "")


def _opencl(files: BoardFiles, machine: str) -> OpenCl:
    triple = TRIPLES.get(machine, machine)
    folders = (f"/usr/lib/{triple}", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/vendor/lib64")
    libraries = [
        f"{folder}/{name}"
        for folder in folders
        for name in files.names(folder)
        if re.fullmatch(r"libOpenCL\.so(\.\d+)*", name)
    ]
    vendors = [n for n in files.names("/etc/OpenCL/vendors") if n.endswith(".icd")]
    nodes = [f"/dev/dri/{n}" for n in files.names("/dev/dri") if n.startswith("renderD")]
    nodes += [f"/dev/{n}" for n in files.names("/dev") if re.fullmatch(r"mali\d+|kgsl-3d0", n)]
    return OpenCl(tuple(libraries), tuple(vendors), tuple(nodes), _gpu_name(files))


def _gpu_name(files: BoardFiles) -> str:
    """Of the GPU in the device tree: the last, most general of its compatible names."""
    for node in files.names("/proc/device-tree"):
        if re.fullmatch(r"(gpu|v3d)(@[0-9a-f]+)?", node):
            names = files.text(f"/proc/device-tree/{node}/compatible").split("\0")
            return names[-1].rpartition(",")[2]
    return ""


def _model_name(blocks: list[dict[str, str]]) -> str:
    """The processor's, where the CPUs have one (x86)."""
    return blocks[0].get("model name", "") if blocks else ""
