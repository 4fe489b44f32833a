"""Writes the board.toml of a board that was looked at."""

from __future__ import annotations

import platform

from aotgen.doctor.cores import GCC_PAIRS
from aotgen.doctor.facts import TRIPLES, CpuCluster, Facts
from aotgen.target.host import architecture, choose_isa

_KEPT_FEATURES = {
    "aarch64": ("asimd", "asimddp", "asimdhp", "fphp", "i8mm", "bf16", "crc32"),
    "arm": ("neon", "vfpv4", "idiva", "idivt"),
}
"""What kernels may use, of what /proc/cpuinfo lists."""

_QEMU_CORES = ("cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1")
"""Cores that user-mode QEMU 7.2 has in 64 bits."""

_MIN_L1, _MIN_L2 = 8 << 10, 32 << 10


def board_toml(facts: Facts, host: str, static: bool = False) -> str:
    """A board.toml for the board: ``load_board`` accepts it, and models compile for it.

    Args:
        facts: about the board.
        host: leads to it, as in ``--runner``; becomes its default runner.
        static: whether programs must bring their own C library.
    """
    name = facts.model or facts.clusters[0].core.name
    isa, x86_features = choose_isa(facts.machine, facts.features)
    kept = _KEPT_FEATURES.get(facts.machine)
    features = x86_features if kept is None else [f for f in kept if f in facts.features]
    cores = " and ".join(f"{len(c.cpus)}x {c.core.name}" for c in facts.clusters)
    about = ", ".join(text for text in (name, facts.system, cores) if text)
    lines = [
        f"# Found by `aotgen boards probe {_comment(host)}`.",
        f"description = {_string(about)}",
        f"isa = {_string(isa)}",
    ]
    here = facts.machine == architecture(platform.machine())
    cross = host != "local" or not here
    runner = "qemu" if host == "local" and not here else host
    if cross:
        lines.append(
            f"triple = {_string(TRIPLES.get(facts.machine, f'{facts.machine}-linux-gnu'))}"
        )
    lines += [f"default_runner = {_string(runner)}", f"features = {_strings(features)}"]
    if static:
        lines += ["# The board's C library is older than the compiler's.", "static = true"]
    if facts.ram_bytes:
        lines += ["", "[memory]", f"ram_bytes = {facts.ram_bytes}"]
    for cluster in facts.clusters:
        lines += ["", *_cluster(cluster)]
    if facts.opencl.libraries and facts.opencl.devices:
        lines += ["", "[gpu]", f"name = {_string(facts.opencl.gpu or 'opencl')}"]
    flags = _flags(facts)
    if flags:
        lines += ["", "[cflags]", *(f"{k} = {_strings(v)}" for k, v in flags.items())]
    if cross:
        lines += ["", "[emulator]", f"argv = {_strings(_emulator(facts))}"]
    return "\n".join(lines) + "\n"


def _cluster(cluster: CpuCluster) -> list[str]:
    core = cluster.core
    caches = cluster.caches
    l1, l2 = caches.get(1), caches.get(2)
    l1_bytes, l1_note = _told(l1.size if l1 else 0, core.l1_bytes, _MIN_L1)
    l2_bytes, l2_note = _told(l2.size if l2 else 0, core.l2_bytes, _MIN_L2)
    lines = [
        "[[clusters]]",
        f"core = {_string(core.name)}",
        f"count = {len(cluster.cpus)}",
        f"cpus = [{', '.join(map(str, cluster.numbers))}]",
    ]
    if cluster.max_khz:
        lines.append(f"clock_mhz = {cluster.max_khz // 1000}")
    lines += [
        f"l1_bytes = {l1_bytes}{l1_note}",
        f"l1_ways = {(l1.ways if l1 else 0) or core.l1_ways}",
        f"l2_bytes = {max(l1_bytes, l2_bytes)}{l2_note}",
    ]
    if l2 and l2.ways:
        lines.append(f"l2_ways = {l2.ways}")
    if core.flops_per_cycle:
        lines.append(f"flops_per_cycle = {core.flops_per_cycle}")
    if core.int8_ops_per_cycle:
        lines.append(f"int8_ops_per_cycle = {core.int8_ops_per_cycle}")
    return lines


def _told(size: int, usual: int, least: int) -> tuple[int, str]:
    """A cache's size and a comment where it is a guess."""
    if size >= least:
        return size, ""
    return usual, "  # usual of such cores: the kernel does not tell"


def _flags(facts: Facts) -> dict[str, list[str]]:
    """What to compile for: of mixed clusters, what all cores have."""
    if facts.machine not in ("aarch64", "arm"):
        return {}
    names = [c.core.name for c in facts.clusters]
    known = all(c.core.compilers_know for c in facts.clusters)
    kinds = sorted(set(names), key=names.index)
    if known and len(kinds) == 1:
        return {"common": [f"-mcpu={kinds[0]}"]}
    pair = ".".join(kinds)
    if known and pair in GCC_PAIRS and facts.machine == "aarch64":
        older = _oldest(facts)
        return {"gcc": [f"-mcpu={pair}"], "clang": [f"-mcpu={older}"]}
    if known:
        return {"common": [f"-mcpu={_oldest(facts)}"]}
    if facts.machine == "arm":
        return {"common": ["-march=armv7-a"]}
    if "asimddp" in facts.features:
        half = "+fp16" if {"asimdhp", "fphp"} <= facts.features else ""
        return {"common": [f"-march=armv8.2-a+dotprod{half}"]}
    return {"common": ["-march=armv8-a"]}


def _oldest(facts: Facts) -> str:
    """A core whose instructions all others have: the slowest cluster's."""
    return facts.clusters[-1].core.name


def _emulator(facts: Facts) -> list[str]:
    core = facts.clusters[-1].core.name
    cpu = core if facts.machine == "aarch64" and core in _QEMU_CORES else "max"
    triple = TRIPLES.get(facts.machine, facts.machine)
    architecture = "i386" if facts.machine == "i686" else facts.machine
    return [f"qemu-{architecture}", "-cpu", cpu, "-L", f"/usr/{triple}"]


def _string(text: str) -> str:
    """A basic string of TOML."""
    kept = "".join(c if c.isprintable() else " " for c in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _strings(texts: tuple[str, ...] | list[str]) -> str:
    return f"[{', '.join(_string(text) for text in texts)}]"


def _comment(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
