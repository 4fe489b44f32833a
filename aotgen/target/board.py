"""Boards: the machines that generated code runs on, as ``board_support/<name>/board.toml`` says.

A Board knows its cores, memories, compiler flags and how to run a program on it; the part that
schedules need is its ``Target``. Codegen reads the flags and the toolchain file, runners the
emulator.
"""

from __future__ import annotations

import difflib
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from aotgen.errors import UsageError
from aotgen.resources import board_support_dir
from aotgen.target.cost_model import CostModel, parse_cost_model
from aotgen.target.firmware import NO_FIRMWARE, FirmwareSupport
from aotgen.target.host import HostFacts, architecture, detect_host
from aotgen.target.target import Isa, Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ISA_CFLAGS: dict[str, tuple[str, ...]] = {
    "scalar": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "neon": (),
    "neon_armv7": ("-mfpu=neon-vfpv4", "-mfloat-abi=hard"),
    "dsp": (),
    "mve": (),
}
"""What a compiler needs to accept the intrinsics of an instruction set: named one by one and never
``-march=native``, so that the same model gives the same project on every computer."""

FEATURE_CFLAGS: dict[str, str] = {"avx512_vnni": "-mavx512vnni"}
"""Flags for features that a core may have beyond its instruction set's base."""

FLOAT_CFLAGS = ("-ffp-contract=off",)
"""A multiply and an add fuse only where the code says so: the same numbers from every compiler."""

HOST_FLOPS_PER_CYCLE: dict[Isa, int] = {
    "scalar": 0,
    "avx2": 32,
    "avx512": 64,
    "neon": 16,
    "neon_armv7": 8,
    "dsp": 2,
    "mve": 8,
}
"""Of a core with two multiply-add units of the instruction set's width (one in 32-bit ARM cores),
as most have; plain C has no such bound."""

HOST_VNNI_OPS = 256
"""int8 operations a cycle of such a core with AVX-512 VNNI."""


@dataclass(frozen=True)
class Cluster:
    """Cores of one kind that share an L2 cache.

    Attributes:
        core: name of the core, as compilers spell it.
        count: how many.
        clock_mhz: nominal clock, 0 when unknown.
        l1_bytes: L1 data cache of one core.
        l2_bytes: L2 cache of the cluster (of one core where it is private).
        l1_ways: associativity of the L1 data cache.
        cpus: their numbers in Linux, as many as ``count``.
        flops_per_cycle: most float32 operations of one core per cycle (a multiply-add is two),
            0 when unknown.
        int8_ops_per_cycle: the same of int8 products added up in int32.
        l2_ways: associativity of the L2 cache.
        line_bytes: of both caches.
        cost_model: what its instructions cost; None where no model tells.
    """

    core: str
    count: int
    clock_mhz: int
    l1_bytes: int
    l2_bytes: int
    l1_ways: int = 8
    cpus: tuple[int, ...] = ()
    flops_per_cycle: int = 0
    int8_ops_per_cycle: int = 0
    l2_ways: int = 16
    line_bytes: int = 64
    cost_model: CostModel | None = None

    @property
    def peak_gflops(self) -> float:
        """Of one core in float32, GFLOP/s; 0 when its clock or its units are unknown."""
        return self.clock_mhz * self.flops_per_cycle / 1000


@dataclass(frozen=True)
class Board:
    """A machine that generated code runs on.

    Attributes:
        name: as in ``--board``.
        description: one line for people.
        isa: which ``templates/simd`` header its projects get.
        features: CPU features beyond the instruction set's base, as /proc/cpuinfo spells them.
        triple: of its C compiler, as Debian names cross compilers ("aarch64-linux-gnu"); empty for
            the host's own.
        clusters: the fastest cores first.
        ram_bytes: main memory, 0 for no limit worth a check.
        flash_bytes: memory for code and weights, 0 for no limit worth a check.
        external_bytes: of a bare board, memory beside these that takes weights and arenas which are
            too large for them.
        gpu: name of the GPU, empty for none.
        gpu_preferred: whether ``--device auto`` takes it.
        extra_cflags: by compiler ("gcc", "clang"), beyond those of the instruction set.
        release_flags: optimisation flags of a Release build.
        toolchain: CMake toolchain file; None for the host's own compiler, or with a triple, for one
            that ``toolchain_file.toolchain_text`` writes.
        static: whether programs are linked statically, for a board with an old libc.
        emulator: argv that runs a program of the board on this computer; empty for none.
        system: "linux", or "bare" for a microcontroller without an operating system.
        emulated_machine: of a bare board, its name in ``qemu-system-arm -M``; empty for none.
        firmware: of a bare board, what a program needs to start there.
        flash_command: argv that writes a program into its flash, with {elf}, {bin} or {hex} for the
            file; empty where the user does that.
        default_runner: what ``--runner`` is when nobody says.
        folder: where its board.toml is.
    """

    name: str
    description: str
    isa: Isa
    features: tuple[str, ...]
    triple: str
    clusters: tuple[Cluster, ...]
    ram_bytes: int
    flash_bytes: int
    gpu: str
    gpu_preferred: bool
    extra_cflags: Mapping[str, tuple[str, ...]]
    release_flags: tuple[str, ...]
    toolchain: Path | None
    static: bool
    emulator: tuple[str, ...]
    default_runner: str
    folder: Path
    system: Literal["linux", "bare"] = "linux"
    emulated_machine: str = ""
    firmware: FirmwareSupport = NO_FIRMWARE
    flash_command: tuple[str, ...] = ()
    external_bytes: int = 0

    def cflags(self, compiler: str = "gcc") -> tuple[str, ...]:
        """Flags every C file of a project needs, whatever the build type.

        Args:
            compiler: "gcc" or "clang".
        """
        more = tuple(FEATURE_CFLAGS[f] for f in self.features if f in FEATURE_CFLAGS)
        return ISA_CFLAGS[self.isa] + more + self.extra_cflags.get(compiler, ()) + FLOAT_CFLAGS

    def target(
        self,
        threads: int = 1,
        optimize: Literal["speed", "ram", "flash"] = "speed",
        device: Literal["cpu", "gpu"] = "cpu",
    ) -> Target:
        """What schedules need to know, of the board's fastest cores.

        Raises:
            UsageError: a GPU is asked for and the board has none.
        """
        if device == "gpu" and not self.gpu:
            raise UsageError(f"board {self.name} has no GPU", remedy="use --device cpu")
        if threads > 1 and self.is_bare:
            raise UsageError(
                f"board {self.name} is a microcontroller, whose runs have one thread, not"
                f" {threads}",
                remedy="leave out --threads",
            )
        cluster = self.clusters[0]
        return Target(
            isa=self.isa,
            core=cluster.core,
            l1_bytes=cluster.l1_bytes,
            l2_bytes=cluster.l2_bytes,
            threads=threads,
            optimize=optimize,
            device=device,
            l1_ways=cluster.l1_ways,
            features=frozenset(self.features),
            bare=self.is_bare,
        )

    @property
    def machine(self) -> str:
        """The board's architecture, as triples spell it ("x86_64", "aarch64", "arm")."""
        return self.triple.split("-")[0] if self.triple else architecture(platform.machine())

    def optimisation(self, optimize: str) -> tuple[str, ...]:
        """The compiler's flags of optimisation in a Release build, by what a project prefers."""
        return ("-Os",) if self.is_bare and optimize == "flash" else self.release_flags

    @property
    def is_bare(self) -> bool:
        """Whether the board is a microcontroller without an operating system."""
        return self.system == "bare"

    @property
    def runs_here(self) -> bool:
        """Whether this computer itself can run the board's programs."""
        if self.is_bare:
            return False
        return not self.triple or self.machine == architecture(platform.machine())


def list_boards() -> list[str]:
    """Names of the boards that ship with aotgen, sorted."""
    return sorted(path.parent.name for path in board_support_dir().glob("*/board.toml"))


def load_board(name: str | Path) -> Board:
    """A board by its name, or by the path of a folder with a board.toml or of that file itself.

    Raises:
        UsageError: there is no such board, or its board.toml is malformed.
    """
    path = _board_file(name)
    return _parse(_Table(_merged(path, ()), path), path.parent)


def _board_file(name: str | Path) -> Path:
    """A plain name is a board of ours; anything with a slash or a suffix is a path."""
    text = str(name)
    if text in list_boards():
        return board_support_dir() / text / "board.toml"
    if isinstance(name, Path) or "/" in text or text.endswith(".toml"):
        path = Path(name)
        path = path / "board.toml" if path.is_dir() else path
        if path.is_file():
            return path
        raise UsageError(f"there is no board description at {path}")
    near = difflib.get_close_matches(text, list_boards(), n=2, cutoff=0.6)
    cores = "see `aotgen boards list`; a microcontroller goes by its core, such as cortex-m4"
    hint = f"did you mean {' or '.join(near)}?" if near else cores
    if Path(text, "board.toml").is_file():
        hint = f"write ./{text} for the folder of that name"
    raise UsageError(f"there is no board {text!r}", remedy=hint)


def _merged(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    """A board's TOML over that of the board it ``extends``; tables merge, all else replaces."""
    if path in below:
        raise UsageError(f"board {path} extends itself")
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    if isinstance(data.get("toolchain"), str):
        data["toolchain"] = str(path.parent / data["toolchain"])
    _resolve_firmware(data.get("firmware"), path.parent)
    base = data.pop("extends", None)
    if base is None:
        return data
    return _overlay(_merged(_board_file(str(base)), (*below, path)), data)


def _resolve_firmware(firmware: object, folder: Path) -> None:
    """Make the paths of a [firmware] table those of files beside the board.toml that names them;
    what is no path is left to the parser's complaints.
    """
    if not isinstance(firmware, dict):
        return
    sources, script = firmware.get("sources"), firmware.get("linker_script")
    if isinstance(sources, list):
        firmware["sources"] = [_beside(folder, s) for s in sources]
    if isinstance(script, str) and script:
        firmware["linker_script"] = _beside(folder, script)


def _beside(folder: Path, name: object) -> object:
    return os.path.normpath(folder / name) if isinstance(name, str) else name


def _overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _overlay(old, value) if both and old is not None else value
    return merged


class _Table:
    """A TOML table whose values are fetched with a type; a wrong one is a UsageError."""

    def __init__(self, data: dict[str, Any], path: Path) -> None:
        self.data = data
        self.path = path

    def text(self, key: str, default: str | None = None) -> str:
        return cast(str, self._get(key, str, default))

    def number(self, key: str, default: int | None = None) -> int:
        value = cast(int, self._get(key, int, default))
        if isinstance(value, bool) or value < 0:
            raise UsageError(f"{self.path}: {key} must be a number of at least 0")
        return value

    def flag(self, key: str) -> bool:
        return cast(bool, self._get(key, bool, False))

    def words(self, key: str) -> tuple[str, ...]:
        values = cast("list[object]", self._get(key, list, []))
        if not all(isinstance(v, str) for v in values):
            raise UsageError(f"{self.path}: {key} must be a list of strings")
        return tuple(str(v) for v in values)

    def numbers(self, key: str) -> tuple[int, ...]:
        values = cast("list[object]", self._get(key, list, []))
        if not all(type(v) is int and v >= 0 for v in values):
            raise UsageError(f"{self.path}: {key} must be a list of numbers of at least 0")
        return tuple(cast("list[int]", values))

    def table(self, key: str) -> _Table:
        return _Table(cast("dict[str, Any]", self._get(key, dict, {})), self.path)

    def tables(self, key: str) -> list[_Table]:
        items = cast("list[object]", self._get(key, list, []))
        return [_Table(item, self.path) for item in items if isinstance(item, dict)]

    def _get(self, key: str, kind: type, default: object) -> object:
        value = self.data.get(key, default)
        if value is None:
            raise UsageError(f"{self.path}: {key} is missing")
        if not isinstance(value, kind):
            raise UsageError(f"{self.path}: {key} must be a {kind.__name__}, not {value!r}")
        return value


def _parse(table: _Table, folder: Path) -> Board:
    detect = table.text("isa") == "detect" or not table.tables("clusters")
    facts = detect_host() if detect else None
    isa = facts.isa if facts and table.text("isa") == "detect" else table.text("isa")
    if isa not in get_args(Isa):
        known = ", ".join(get_args(Isa))
        raise UsageError(f"{table.path}: isa {isa!r} does not exist", remedy=f"use one of {known}")
    memory = table.table("memory")
    cflags = table.table("cflags")
    toolchain = table.text("toolchain", "")
    return Board(
        name=folder.name,
        description=table.text("description", ""),
        isa=cast(Isa, isa),
        features=table.words("features") or (facts.features if facts else ()),
        triple=table.text("triple", ""),
        clusters=_clusters(table, facts, cast(Isa, isa)),
        ram_bytes=memory.number("ram_bytes", facts.ram_bytes if facts else 0),
        flash_bytes=memory.number("flash_bytes", 0),
        gpu=table.table("gpu").text("name", ""),
        gpu_preferred=table.table("gpu").flag("preferred"),
        extra_cflags={
            compiler: cflags.words("common") + cflags.words(compiler)
            for compiler in ("gcc", "clang")
        },
        release_flags=cflags.words("release") or ("-O2",),
        toolchain=Path(toolchain) if toolchain else None,
        static=table.flag("static"),
        emulator=table.table("emulator").words("argv"),
        default_runner=table.text("default_runner", "local"),
        folder=folder,
        system=_system(table),
        emulated_machine=table.table("emulator").text("machine", ""),
        firmware=_firmware(table),
        flash_command=table.table("flash").words("command"),
        external_bytes=memory.number("external_bytes", 0),
    )


def _system(table: _Table) -> Literal["linux", "bare"]:
    system = table.text("system", "linux")
    if system not in ("linux", "bare"):
        raise UsageError(
            f"{table.path}: system {system!r} does not exist", remedy="use linux or bare"
        )
    return "bare" if system == "bare" else "linux"


def _firmware(table: _Table) -> FirmwareSupport:
    given = table.table("firmware")
    if given.data and _system(table) != "bare":
        raise UsageError(
            f"{table.path}: [firmware] is for boards without an operating system",
            remedy='write system = "bare"',
        )
    script = given.text("linker_script", "")
    support = FirmwareSupport(
        tuple(Path(name) for name in given.words("sources")),
        Path(script) if script else None,
        given.words("images"),
    )
    support.check(table.path)
    return support


def _clusters(table: _Table, facts: HostFacts | None, isa: Isa) -> tuple[Cluster, ...]:
    if facts is not None and not table.tables("clusters"):
        core = facts.core if isa == facts.isa else f"{facts.machine}-{isa}"
        return (
            Cluster(
                core=core,
                count=facts.cores,
                clock_mhz=facts.clock_mhz,
                l1_bytes=facts.l1_bytes,
                l2_bytes=facts.l2_bytes,
                l1_ways=facts.l1_ways,
                cpus=facts.cpus,
                flops_per_cycle=HOST_FLOPS_PER_CYCLE[isa],
                int8_ops_per_cycle=HOST_VNNI_OPS if _has_vnni(table, facts, isa) else 0,
            ),
        )
    found = table.tables("clusters")
    cpus = _cpu_numbers(found)
    return tuple(
        Cluster(
            core=c.text("core"),
            count=c.number("count"),
            clock_mhz=c.number("clock_mhz", 0),
            l1_bytes=c.number("l1_bytes"),
            l2_bytes=c.number("l2_bytes"),
            l1_ways=c.number("l1_ways", 8),
            cpus=numbers,
            flops_per_cycle=c.number("flops_per_cycle", 0),
            int8_ops_per_cycle=c.number("int8_ops_per_cycle", 0),
            l2_ways=c.number("l2_ways", 16),
            line_bytes=c.number("line_bytes", 64),
            cost_model=_cost_model(c),
        )
        for c, numbers in zip(found, cpus, strict=True)
    )


def _cost_model(cluster: _Table) -> CostModel | None:
    if "cost_model" not in cluster.data:
        return None
    where = f"{cluster.path}: cost_model of {cluster.text('core')}"
    return parse_cost_model(cluster.table("cost_model").data, where)


def _has_vnni(table: _Table, facts: HostFacts, isa: Isa) -> bool:
    return isa == "avx512" and "avx512_vnni" in (table.words("features") or facts.features)


def _cpu_numbers(clusters: list[_Table]) -> list[tuple[int, ...]]:
    """The CPUs of each cluster; where none are given, ARM's Linux counts the slowest ones first.

    Raises:
        UsageError: they are not as many as cores, or two clusters share one.
    """
    next_free, counted = 0, []
    for cluster in reversed(clusters):
        count = cluster.number("count")
        counted.append(tuple(range(next_free, next_free + count)))
        next_free += count
    found = [
        c.numbers("cpus") or numbers for c, numbers in zip(clusters, reversed(counted), strict=True)
    ]
    for cluster, cpus in zip(clusters, found, strict=True):
        if len(cpus) != cluster.number("count"):
            raise UsageError(f"{cluster.path}: a cluster has {len(cpus)} cpus and another count")
    every = [cpu for cpus in found for cpu in cpus]
    if len(set(every)) != len(every):
        raise UsageError(
            f"{clusters[0].path}: two clusters share a CPU", remedy="give each its own cpus"
        )
    return found
