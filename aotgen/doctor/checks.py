"""Compares what was found on a board with what its board.toml promises and a measurement needs."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable

from aotgen.conditions import GOVERNOR_FILES
from aotgen.doctor.facts import Cpu, CpuCluster, Facts
from aotgen.doctor.probe_program import ProbeRun, Spin
from aotgen.doctor.report import Check
from aotgen.report.text import byte_text
from aotgen.target.board import Board, Cluster

MIN_FREE_BYTES = 64 << 20
"""Room for a project's programs and the weights of most models."""

MIN_RAM_SHARE = 0.8
"""Of the board.toml's memory that Linux has; firmware and GPU keep the rest."""

MIN_CLOCK_SHARE = 0.95

MAX_SPREAD = 0.05
"""Of the times of one loop; more says that clock or load changes all the time."""

NEAR_LIMIT_C = 10.0
"""So close below the temperature that throttles a measurement will reach it."""

_SHOWN_FEATURES = (
    "asimd asimdhp fphp asimddp i8mm bf16 sve sve2 crc32 neon vfpv4 avx2 fma avx512f avx512_vnni"
)

_GOVERNOR_REMEDY = (
    f"let `aotgen bench` set it, or: echo performance | sudo tee {GOVERNOR_FILES} (docs/boards.md,"
    " Governor)"
)


def check_facts(facts: Facts, board: Board | None) -> list[Check]:
    """All that needs no program of ours on the board."""
    return [
        Check("system", _described(facts)),
        *check_architecture(facts, board),
        *check_cores(facts, board),
        check_features(facts, board),
        *check_caches(facts, board),
        *check_clocks(facts, board),
        check_governor(facts),
        check_temperature(facts),
        check_throttling(facts),
        check_ram(facts, board),
        check_opencl(facts, board),
    ]


def _described(facts: Facts) -> str:
    return ", ".join(text for text in (facts.model, facts.system) if text) or "no name"


def check_architecture(facts: Facts, board: Board | None) -> list[Check]:
    """The kernel's and the C library's: 32-bit systems often have a 64-bit kernel."""
    wanted = board.machine if board else ""
    found = facts.machine
    if facts.kernel_machine != facts.machine:
        found = f"{facts.machine} (with a {facts.kernel_machine} kernel)"
    if board is None or facts.machine == wanted:
        return [Check("architecture", found, wanted)]
    if facts.kernel_machine == wanted:
        remedy = "install the 64-bit system, or compile for a 32-bit board such as rpi3b-armv7"
    else:
        remedy = "choose the right board (--board), or write one: aotgen boards probe"
    return [Check("architecture", found, wanted, "fail", remedy)]


def check_cores(facts: Facts, board: Board | None) -> list[Check]:
    found = ", ".join(_cores(cluster) for cluster in facts.clusters)
    checks = []
    if board is None:
        checks.append(Check("cores", found))
    else:
        wanted = ", ".join(_cores(cluster) for cluster in board.clusters)
        have, want = _count(facts.clusters), _count(board.clusters)
        if any(name not in have for name in want):
            remedy = "choose the right board (--board), or write one: aotgen boards probe"
            checks.append(Check("cores", found, wanted, "warn", remedy))
        elif have != want and not facts.offline:
            remedy = f"write the numbers into a board.toml that extends {board.name}"
            checks.append(Check("cores", found, wanted, "warn", remedy))
        else:
            checks.append(Check("cores", found, wanted))
    if facts.offline:
        numbers = ", ".join(map(str, facts.offline))
        remedy = (
            "switch them on: echo 1 | sudo tee /sys/devices/system/cpu/cpu"
            f"{facts.offline[0]}/online; see maxcpus= and isolcpus= in /proc/cmdline"
        )
        checks.append(Check("offline cores", f"CPU {numbers}", "none", "warn", remedy))
    return checks


def _cores(cluster: CpuCluster | Cluster) -> str:
    if isinstance(cluster, Cluster):
        return f"{cluster.count}x {cluster.core}"
    return f"{len(cluster.cpus)}x {cluster.core.name}"


def _count(clusters: Iterable[CpuCluster | Cluster]) -> Counter[str]:
    """Cores of each kind; compilers' levels of x86-64 are no kinds of cores."""
    found: Counter[str] = Counter()
    for cluster in clusters:
        if isinstance(cluster, Cluster):
            if not cluster.core.startswith("x86"):
                found[cluster.core] += cluster.count
        elif cluster.core.compilers_know or cluster.core.name.startswith(("cortex", "neoverse")):
            found[cluster.core.name] += len(cluster.cpus)
    return found


def check_features(facts: Facts, board: Board | None) -> Check:
    shown = [name for name in _SHOWN_FEATURES.split() if name in facts.features]
    found = " ".join(shown) or "none that aotgen uses"
    if board is None:
        return Check("features", found)
    wanted = " ".join(board.features)
    missing = sorted(set(board.features) - facts.features)
    if not missing or not facts.features:
        return Check("features", found, wanted, "ok" if facts.features else "skip")
    return Check(
        "features",
        f"without {' '.join(missing)}",
        wanted,
        "fail",
        "compile for another board: programs for this one stop with an illegal instruction",
    )


def check_caches(facts: Facts, board: Board | None) -> list[Check]:
    """Sizes decide on the blocking of loops, not on results."""
    checks = []
    for cluster in facts.clusters:
        caches = cluster.caches
        found = ", ".join(
            f"L{level} {byte_text(cache.size)}" for level, cache in caches.items() if cache.size
        )
        wanted = _cluster_like(cluster, board)
        name = _row("caches", cluster, facts)
        want = f"L1 {byte_text(wanted.l1_bytes)}, L2 {byte_text(wanted.l2_bytes)}" if wanted else ""
        sizes = {level: caches[level].size for level in (1, 2) if level in caches}
        if wanted is None or not any(sizes.values()):
            checks.append(Check(name, found or "not told by the kernel", want, "skip"))
            continue
        differs = any(
            size and size != told
            for size, told in zip(
                (sizes.get(1), sizes.get(2)), (wanted.l1_bytes, wanted.l2_bytes), strict=True
            )
        )
        remedy = f"write them into a board.toml that extends {board.name}" if board else ""
        # What the host boards say is read from the same files, with bounds against absurd values.
        if not differs or (board is not None and not board.triple):
            checks.append(Check(name, found, want))
        else:
            checks.append(Check(name, found, want, "warn", remedy))
    return checks


def _cluster_like(cluster: CpuCluster, board: Board | None) -> Cluster | None:
    """The board's cluster of the same cores."""
    if board is None:
        return None
    same = [c for c in board.clusters if c.core == cluster.core.name]
    if not same and len(board.clusters) == 1 and board.clusters[0].core.startswith("x86"):
        return board.clusters[0]
    return same[0] if same else None


def _row(what: str, cluster: CpuCluster, facts: Facts) -> str:
    return f"{what} {cluster.core.name}" if len(facts.clusters) > 1 else what


def check_clocks(facts: Facts, board: Board | None) -> list[Check]:
    checks = []
    for cluster in facts.clusters:
        name = _row("clock", cluster, facts)
        told = _cluster_like(cluster, board)
        wanted = told.clock_mhz if told and board and board.triple else 0
        want = f"{wanted} MHz" if wanted else ""
        if not cluster.max_khz:
            checks.append(Check(name, "not told by the kernel", want, "skip"))
            continue
        limits = [cpu.limit_khz for cpu in cluster.cpus if cpu.limit_khz]
        limit, top = min(limits, default=cluster.max_khz), cluster.max_khz
        if limit < MIN_CLOCK_SHARE * top:
            found = f"{top // 1000} MHz, held at {limit // 1000}"
            remedy = (
                "raise scaling_max_freq again: echo"
                f" {top} | sudo tee /sys/devices/system/cpu/cpu{cluster.numbers[0]}"
                "/cpufreq/scaling_max_freq; if it falls back, cool the board"
            )
            checks.append(Check(name, found, want or f"{top // 1000} MHz", "warn", remedy))
        elif wanted and abs(top / 1000 - wanted) > (1 - MIN_CLOCK_SHARE) * wanted:
            remedy = "write clock_mhz into a board.toml of your own, or see the system's clock"
            remedy += " settings (arm_freq in /boot/firmware/config.txt of a Raspberry Pi)"
            checks.append(Check(name, f"{top // 1000} MHz", want, "warn", remedy))
        else:
            checks.append(Check(name, f"{top // 1000} MHz", want))
    return checks


def check_governor(facts: Facts) -> Check:
    found = sorted({cpu.governor for cpu in facts.cpus if cpu.governor})
    if not found:
        return Check("governor", "no cpufreq", "performance", "skip")
    if found == ["performance"]:
        return Check("governor", "performance", "performance")
    return Check("governor", ", ".join(found), "performance", "warn", _GOVERNOR_REMEDY)


def check_temperature(facts: Facts) -> Check:
    zone = facts.health.hottest
    if zone is None:
        return Check("temperature", "not told by the kernel", status="skip")
    most = facts.health.limit_celsius - NEAR_LIMIT_C
    found, want = f"{zone.celsius:.1f} C ({zone.name})", f"below {most:.0f} C"
    if zone.celsius < most:
        return Check("temperature", found, want)
    return Check(
        "temperature",
        found,
        want,
        "warn",
        "cool it: heat sink and fan; let it rest, and measure with --cooldown",
    )


_SUPPLY_REMEDY = "use the board's own power supply and a short, thick cable"
_HEAT_REMEDY = "cool it: heat sink and fan; then measure again"


def check_throttling(facts: Facts) -> Check:
    health = facts.health
    if not health.known:
        return Check("throttling", "not told by the kernel", "none", "skip")
    bits = f" (get_throttled 0x{health.throttled:x})" if health.throttled else ""
    told = [f"{text} now" for text in health.now]
    told += [f"before: {text}" for text in health.before]
    if not told:
        return Check("throttling", "none", "none")
    voltage = ["voltage" in text for text in told]
    remedies = [_SUPPLY_REMEDY] if any(voltage) else []
    if not all(voltage):
        remedies.append(_HEAT_REMEDY)
    if not health.now:
        remedies.append("the bits of the past are cleared by a restart")
    return Check("throttling", "; ".join(told) + bits, "none", "warn", "; ".join(remedies))


def check_ram(facts: Facts, board: Board | None) -> Check:
    if not facts.ram_bytes:
        return Check("RAM", "not told by the kernel", status="skip")
    found = f"{byte_text(facts.ram_bytes)}, {byte_text(facts.available_bytes)} free"
    if board is None or not board.ram_bytes:
        return Check("RAM", found)
    want = byte_text(board.ram_bytes)
    if facts.ram_bytes >= MIN_RAM_SHARE * board.ram_bytes:
        return Check("RAM", found, want)
    remedy = f"write ram_bytes into a board.toml that extends {board.name}; analyze relies on it"
    return Check("RAM", found, want, "warn", remedy)


def check_opencl(facts: Facts, board: Board | None) -> Check:
    opencl = facts.opencl
    gpu = board.gpu if board is not None and board.triple else ""
    wanted = f"a driver for {gpu}" if gpu else ""
    parts = [
        opencl.libraries[0] if opencl.libraries else "",
        f"drivers {', '.join(opencl.vendors)}" if opencl.vendors else "",
        f"devices {', '.join(opencl.devices)}" if opencl.devices else "",
    ]
    found = "; ".join(part for part in parts if part) or "none"
    if not gpu or (opencl.libraries and (opencl.vendors or opencl.devices)):
        return Check("OpenCL", found, wanted)
    if not opencl.libraries:
        remedy = (
            "apt-get install ocl-icd-libopencl1 and the GPU's driver (libmali or Mesa's rusticl)"
        )
    else:
        remedy = "install the GPU's driver (libmali or Mesa's rusticl): there is only the loader"
    return Check("OpenCL", found, wanted, "warn", f"{remedy}; --device cpu needs none")


def check_libc(
    run: ProbeRun | None, error: str, needed: tuple[int, int] | None, board: Board
) -> Check:
    """Whether a program built here starts there.

    Args:
        run: what the probe program found; None when it did not run.
        error: why not.
        needed: the glibc that it was linked against.
        board: what it was built for.
    """
    if run is not None and needed is None:
        return Check("C library", "programs are static", "any")
    want = f"glibc {needed[0]}.{needed[1]}" if needed else "any"
    if run is not None:
        return Check("C library", f"glibc {run.libc}" if run.libc else "no glibc", want)
    return Check(
        "C library",
        error,
        want,
        "fail",
        f"link statically: a board.toml with extends = {board.name!r} and static = true, or"
        " -DCMAKE_EXE_LINKER_FLAGS=-static (docs/boards.md, Old C libraries)",
    )


def check_folder(run: ProbeRun) -> Check:
    """That programs can be put somewhere and be run there."""
    want = f"{byte_text(MIN_FREE_BYTES)} free"
    # Its own folder there lives as long as a connection.
    found = f"{posixpath.dirname(run.folder) or '/'} runs programs"
    if run.free_bytes < 0:
        return Check("folder", found, want, "skip")
    found = f"{found}, {byte_text(run.free_bytes)} free"
    if run.free_bytes >= MIN_FREE_BYTES:
        return Check("folder", found, want)
    return Check("folder", found, want, "warn", "free space there: large weights need it")


def check_spins(spins: Iterable[Spin], facts: Facts, elsewhere: bool = False) -> list[Check]:
    """Whether the clock is what the kernel says, and stays so.

    Args:
        spins: one of each cluster.
        facts: about the board.
        elsewhere: whether the facts come from another tree than the kernel's own.
    """
    checks = []
    by_number = {cpu.number: cpu for cpu in facts.cpus}
    for spin in spins:
        name = f"clock held (CPU {spin.cpu})"
        found = f"{spin.mhz:.0f} MHz, median {100 * spin.spread:.1f} % slower than best"
        top = 0 if elsewhere else _comparable_clock(by_number.get(spin.cpu))
        want = f"within {100 * MAX_SPREAD:.0f} %"
        want = f"{top} MHz, {want}" if top else want
        remedy = ""
        if not spin.pinned:
            remedy = "the CPU cannot be chosen: see the limits of the account (taskset, cgroups)"
        elif spin.spread > MAX_SPREAD:
            remedy = "set the governor, cool the board (an emulator never holds its clock)"
        elif top and spin.mhz < 0.9 * top:
            remedy = "something below Linux holds the clock down: supply, temperature, firmware"
        checks.append(Check(name, found, want, "warn" if remedy else "ok", remedy))
        found = f"other programs take {100 * spin.lost:.0f} % of CPU {spin.cpu}"
        want = f"below {100 * MAX_SPREAD:.0f} %"
        if spin.lost > MAX_SPREAD:
            checks.append(Check("load", found, want, "warn", "stop what else runs (top)"))
    return checks


def _comparable_clock(cpu: Cpu | None) -> int:
    """MHz that one addition a cycle should come to; 0 where cpufreq does not tell the clock."""
    if cpu is None or not cpu.governor or not cpu.core.name.startswith(("cortex", "neoverse")):
        return 0
    return (cpu.limit_khz or cpu.max_khz) // 1000
