"""``boards doctor`` and ``boards probe`` on trees of files that look like boards'."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import models
import pytest
from board_trees import A53, A72, A76, BASE, DOTPROD, TREES, Tree, without_cost_models

import aotgen
from aotgen.cli.main import call
from aotgen.codegen.environment import render
from aotgen.doctor.diagnose import describe, diagnose
from aotgen.doctor.health import Health
from aotgen.doctor.probe_program import ADDS, build_probe, needed_glibc, parse_probe, run_probe
from aotgen.doctor.report import Check, Report
from aotgen.errors import BoardError
from aotgen.runner.base import COMMAND_TIMEOUT_S, Argument, RunResult
from aotgen.runner.local import LocalRunner
from aotgen.runner.output import LineReader
from aotgen.target.board import Board, load_board
from aotgen.target.elf import read_elf
from support import require_shared, require_tool

CPUS = "sys/devices/system/cpu"
THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"


def rows(report: Report) -> dict[str, Check]:
    return {check.check: check for check in report.checks}


def examine(tree: Tree, root: Path, board: str | None = None) -> Report:
    folder = tree.write(root / "tree")
    wanted = load_board(board) if board else None
    return diagnose("local", LocalRunner(), wanted, str(folder))


@pytest.mark.parametrize("name", list(TREES))
def test_healthy_board_has_no_problems(name: str, tmp_path: Path) -> None:
    report = examine(TREES[name], tmp_path)
    assert report.board == name
    assert not report.problems, str(report)
    assert rows(report)["architecture"].found == load_board(name).machine
    assert rows(report)["programs"].status == "skip"


def changed(name: str, **files: str) -> Tree:
    tree = TREES[name]
    return replace(tree, files={**tree.files, **files})


FAULTS: dict[str, tuple[Tree, str | None, str, str, str]] = {
    # tree, --board, row, what it says, what the remedy says
    "architecture": (TREES["rpi4"], "rpi3b-armv7", "architecture", "aarch64", "--board"),
    "32-bit system": (
        replace(TREES["rpi4"], loader="ld-linux-armhf.so.3"),
        "rpi4",
        "architecture",
        "arm (with a aarch64 kernel)",
        "64-bit system",
    ),
    "other cores": (TREES["rpi4"], "rpi5", "cores", "4x cortex-a72", "probe"),
    "fewer cores": (
        replace(TREES["rpi4"], cores=[(A72, 1500)] * 2),
        "rpi4",
        "cores",
        "2x cortex-a72",
        "extends rpi4",
    ),
    "offline core": (
        changed("rpi4", **{f"{CPUS}/online": "0-2\n"}),
        "rpi4",
        "offline cores",
        "CPU 3",
        "cpu3/online",
    ),
    "features": (
        replace(TREES["rpi5"], features=BASE),
        "rpi5",
        "features",
        "without asimddp asimdhp fphp",
        "illegal instruction",
    ),
    "caches": (
        replace(TREES["rpi5"], caches=[(1, "Data", "32K", 4), (2, "Unified", "256K", 8)]),
        "rpi5",
        "caches",
        "L1 32.0 KiB, L2 256.0 KiB",
        "extends rpi5",
    ),
    "clock": (
        replace(TREES["rpi4"], cores=[(A72, 1800)] * 4),
        "rpi4",
        "clock",
        "1800 MHz",
        "clock_mhz",
    ),
    "clock held": (
        changed("rk3399", **{f"{CPUS}/cpu5/cpufreq/scaling_max_freq": "1008000\n"}),
        None,
        "clock cortex-a72",
        "1800 MHz, held at 1008",
        "cool",
    ),
    "governor": (
        changed("rpi4", **{f"{CPUS}/cpu0/cpufreq/scaling_governor": "ondemand\n"}),
        None,
        "governor",
        "ondemand, performance",
        "scaling_governor",
    ),
    "temperature": (
        changed("rpi3b", **{"sys/class/thermal/thermal_zone0/temp": "74100\n"}),
        None,
        "temperature",
        "74.1 C (cpu-thermal)",
        "cool",
    ),
    "hotter zone behind a gap": (
        changed(
            "rpi4",
            **{
                "sys/class/thermal/thermal_zone2/type": "gpu-thermal\n",
                "sys/class/thermal/thermal_zone2/temp": "91000\n",
            },
        ),
        None,
        "temperature",
        "91.0 C (gpu-thermal)",
        "cool",
    ),
    "undervoltage": (
        changed("rpi4", **{THROTTLED: "50005\n"}),
        None,
        "throttling",
        "voltage is too low now; the firmware throttles the clock now (get_throttled 0x50005)",
        "power supply",
    ),
    "throttled before": (
        changed("rpi4", **{THROTTLED: "80000\n"}),
        None,
        "throttling",
        "before: the firmware's soft temperature limit is reached",
        "cool it: heat sink and fan; then measure again; the bits of the past",
    ),
    "voltage alarm": (
        changed("rpi5", **{"sys/class/hwmon/hwmon1/in0_lcrit_alarm": "1\n"}),
        None,
        "throttling",
        "the supply voltage is too low now",
        "power supply",
    ),
    "cooling device": (
        changed("rk3399", **{"sys/class/thermal/cooling_device0/cur_state": "2\n"}),
        None,
        "throttling",
        "cpufreq-cpu0 holds the clock down now",
        "cool",
    ),
    "memory": (replace(TREES["rpi4"], ram_mb=490), None, "RAM", "490.0 MiB", "ram_bytes"),
    "no OpenCL": (
        replace(TREES["rk3399"], files={}),
        None,
        "OpenCL",
        "none",
        "libopencl",
    ),
    "no OpenCL driver": (
        replace(TREES["rk3399"], files={"usr/lib/libOpenCL.so.1": ""}),
        None,
        "OpenCL",
        "/usr/lib/libOpenCL.so.1",
        "only the loader",
    ),
    "unknown board": (
        replace(TREES["rpi5"], cores=[(A76, 2000)] * 8),
        None,
        "board",
        "none of ours",
        "boards probe local",
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_fault_is_named_with_a_remedy(fault: str, tmp_path: Path) -> None:
    tree, board, row, found, remedy = FAULTS[fault]
    check = rows(examine(tree, tmp_path, board))[row]
    assert check.status in ("warn", "fail")
    assert found in check.found
    assert remedy in check.remedy


def test_bits_are_explained() -> None:
    """Of vcgencmd get_throttled, as Raspberry Pi documents them."""
    assert Health(throttled=0x1).now == ["the supply voltage is too low"]
    assert Health(throttled=0x2).now == ["the firmware caps the clock"]
    assert Health(throttled=0x4).now == ["the firmware throttles the clock"]
    assert Health(throttled=0x8).now == ["the firmware's soft temperature limit is reached"]
    assert Health(throttled=0x20000).before == Health(throttled=0x2).now
    # What still holds is not told twice.
    assert Health(throttled=0x10001).before == []


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = TREES["rpi4"].write(tmp_path / "tree")
    assert call(["boards", "doctor", "local", "--sysfs-root", str(root)]) == 0
    assert capsys.readouterr().out.endswith("no problems\n")
    (root / CPUS / "cpu1/cpufreq/scaling_governor").write_text("powersave\n")
    assert call(["boards", "doctor", "local", "--sysfs-root", str(root), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["host"], data["board"], data["problems"]) == ("local", "rpi4", 1)
    (check,) = [c for c in data["checks"] if c["status"] == "warn"]
    assert set(check) == {"check", "found", "wanted", "status", "remedy"}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["doctor", "qemu"], 2, "does not say which board it is; name it: --board B"),
        (["probe", "serial:/dev/ttyUSB0"], 2, "leads to a microcontroller"),
        (["doctor", "local", "--sysfs-root", "/no/such"], 2, "no such folder"),
        (["doctor", "local", "--board", "rpi"], 2, "there is no board"),
        (["probe", "ssh://nobody@127.0.0.1:1"], 3, "127.0.0.1"),
        (["doctor", "ssh://nobody@127.0.0.1:1"], 3, "127.0.0.1"),
        (["doctor", "ssh://b@127.0.0.1:1", "--sysfs-root", "tree"], 2, "is relative"),
    ],
)
def test_mistakes(words: Sequence[str], code: int, says: str, capsys) -> None:
    assert call(["boards", *words]) == code
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.count("\n") == 1
    assert says in printed.err


@pytest.mark.parametrize("name", ["rpi3", "rpi4", "rpi5", "rk3399"])
def test_cpuinfo_of_boards(name: str, tmp_path: Path) -> None:
    """Their cores are recognised from /proc/cpuinfo alone."""
    root = tmp_path / "tree"
    (root / "proc").mkdir(parents=True)
    shutil.copy(require_shared(f"boards/{name}.cpuinfo"), root / "proc/cpuinfo")
    report = diagnose("local", LocalRunner(), None, str(root))
    assert report.board == {"rpi3": "rpi3b"}.get(name, name)
    assert not report.problems or [c.check for c in report.problems] == ["OpenCL"]


@pytest.mark.parametrize("name", list(TREES))
def test_probe_finds_our_boards(name: str, tmp_path: Path, capsys) -> None:
    root = TREES[name].write(tmp_path / "tree")
    assert call(["boards", "probe", "local", "--sysfs-root", str(root)]) == 0
    found = _load(tmp_path / "found", capsys.readouterr().out)
    ours = load_board(name)
    assert (found.isa, found.triple, found.gpu) == (ours.isa, ours.triple, ours.gpu)
    assert found.clusters == without_cost_models(ours)
    assert set(found.features) >= set(ours.features)
    assert dict(found.extra_cflags)["gcc"] == ours.extra_cflags["gcc"]
    assert found.emulator[0] == ours.emulator[0]
    assert found.default_runner == "qemu"


UNKNOWN = {
    "mixed, dot products": Tree(
        'Board "8"\\x', [(0xD05, 1800)] * 4 + [(A76, 2256)] * 2 + [(A76, 2304)] * 2, DOTPROD
    ),
    "core of tomorrow": Tree("New", [(0xDFF, 3000)] * 2, DOTPROD),
    "two unknown kinds": Tree("New", [(0xDFE, 2000)] * 2 + [(0xDFF, 3000)] * 2),
    "old": Tree("Old", [(A53, 900), (A53, 900)], loader="ld-linux-armhf.so.3"),
}


@pytest.mark.parametrize("name", list(UNKNOWN))
def test_models_compile_for_a_probed_board(name: str, tmp_path: Path) -> None:
    """From an unknown board to a model's program that gives the right numbers."""
    root = UNKNOWN[name].write(tmp_path / "tree")
    board = _load(tmp_path / "found", describe("local", LocalRunner(), str(root)))
    require_tool("cmake", f"{board.triple}-gcc", board.emulator[0])
    model = tmp_path / "net.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    project = aotgen.compile(model, board=str(board.folder), output=tmp_path / "p")
    assert project.validate(runner="qemu").ok


def test_probe_of_mixed_cores(tmp_path: Path) -> None:
    root = UNKNOWN["mixed, dot products"].write(tmp_path / "tree")
    board = _load(tmp_path / "found", describe("local", LocalRunner(), str(root)))
    assert [(c.core, c.cpus, c.clock_mhz) for c in board.clusters] == [
        ("cortex-a76", (4, 5, 6, 7), 2304),
        ("cortex-a55", (0, 1, 2, 3), 1800),
    ]
    assert board.extra_cflags["gcc"] == ("-mcpu=cortex-a76.cortex-a55",)
    assert board.extra_cflags["clang"] == ("-mcpu=cortex-a55",)


def test_probe_of_this_computer(tmp_path: Path, capsys) -> None:
    assert call(["boards", "probe", "local"]) == 0
    board = _load(tmp_path / "found", capsys.readouterr().out)
    host = load_board("host")
    assert (board.isa, board.features, board.triple) == (host.isa, host.features, "")
    assert [c.cpus for c in board.clusters] and board.default_runner == "local"


def _load(folder: Path, text: str) -> Board:
    folder.mkdir()
    (folder / "board.toml").write_text(text)
    return load_board(folder)


class Elsewhere(LocalRunner):
    """A board of another architecture, on which programs of ours end as they are told."""

    def __init__(self, machine: str, ends: str | BoardError, reachable: bool = True) -> None:
        super().__init__()
        self.machine = machine
        self.ends = ends
        self.reachable = reachable

    def command(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT_S) -> RunResult:
        if list(argv) == ["uname", "-m"]:
            return RunResult(f"{self.machine}\n", "", 0)
        return super().command(argv, timeout)

    def read_text(self, path: str) -> str | None:
        if isinstance(self.ends, BoardError) and not self.reachable and path == "/proc/version":
            raise self.ends
        return super().read_text(path)

    def run(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = 1.0,
        on_line: LineReader | None = None,
    ) -> RunResult:
        if isinstance(self.ends, BoardError):
            raise self.ends
        return RunResult(self.ends, "", 0)


def _spun(
    cpu_ms: Sequence[float], wall: float = 1.0, pinned: str = "true", free: float = 1e9
) -> str:
    times = ", ".join(f"[{wall * t}, {t}]" for t in cpu_ms)
    return (
        f'{{"folder": "/tmp/x", "free_bytes": {free:.0f}, "libc": "2.36"}}\n'
        f'{{"cpu": 0, "pinned": {pinned}, "adds": 30000000, "times_ms": [{times}]}}\n'
    )


OLD_LIBC = BoardError(
    "aotgen-probe ended with status 1: aotgen-probe: /lib/aarch64-linux-gnu/libc.so.6: version"
    " `GLIBC_2.34' not found (required by aotgen-probe)"
)

PROGRAMS: dict[str, tuple[str | BoardError, str, str, str]] = {
    "fine": (_spun([20.0, 20.1, 20.0]), "clock held (CPU 0)", "ok", ""),
    "unsteady": (_spun([20.0, 25.0, 26.0]), "clock held (CPU 0)", "warn", "governor"),
    "slow": (_spun([30.0, 30.1, 30.0]), "clock held (CPU 0)", "warn", "below Linux"),
    "not pinned": (_spun([20.0], pinned="false"), "clock held (CPU 0)", "warn", "taskset"),
    "busy": (_spun([20.0, 20.0], wall=1.5), "load", "warn", "top"),
    "little space": (_spun([20.0], free=1e6), "folder", "warn", "free space"),
    "old libc": (OLD_LIBC, "C library", "fail", "static = true"),
    "noexec": (
        BoardError("no folder for it", remedy="mount it"),
        "programs",
        "fail",
        "mount",
    ),
    "garbage": ("hello\n", "programs", "fail", "docs/boards.md"),
    "other garbage": ('{"folder": 1}\n[]\n', "programs", "fail", "docs/boards.md"),
}


@pytest.mark.parametrize("case", list(PROGRAMS))
def test_programs_on_the_board(case: str, tmp_path: Path) -> None:
    require_tool("aarch64-linux-gnu-gcc")
    ends, row, status, remedy = PROGRAMS[case]
    root = TREES["rpi4"].write(tmp_path / "tree")
    # The kernel's own tree: clocks are compared with what it says.
    runner = Elsewhere("aarch64", ends)
    report = diagnose("ssh://pi@board", _Rooted(runner, root), load_board("rpi4"))
    check = rows(report)[row]
    assert check.status == status, str(report)
    assert remedy in check.remedy


class _Rooted(Elsewhere):
    """``Elsewhere`` whose / is a tree of files."""

    def __init__(self, other: Elsewhere, root: Path) -> None:
        super().__init__(other.machine, other.ends, other.reachable)
        self.root = root

    def command(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT_S) -> RunResult:
        words = [f"{self.root}{word}" if word.startswith("/") else word for word in argv]
        return super().command(words, timeout)

    def read_text(self, path: str) -> str | None:
        found = super().read_text(path)
        return found if path == "/proc/version" else super().read_text(f"{self.root}{path}")


def test_link_lost_while_a_program_runs(tmp_path: Path) -> None:
    """That is no property of the board: one error, not a table."""
    require_tool("aarch64-linux-gnu-gcc")
    root = TREES["rpi4"].write(tmp_path / "tree")
    runner = _Rooted(Elsewhere("aarch64", BoardError("the link was lost")), root)
    asked = 0

    def read_text(path: str) -> str | None:
        nonlocal asked
        asked += path == "/proc/version"
        if path == "/proc/version" and asked > 1:
            raise BoardError("the link was lost")
        return _Rooted.read_text(runner, path)

    runner.read_text = read_text  # type: ignore[method-assign]
    with pytest.raises(BoardError, match="link was lost"):
        diagnose("ssh://pi@board", runner, load_board("rpi4"))


def test_old_libc_makes_a_static_board(tmp_path: Path) -> None:
    require_tool("aarch64-linux-gnu-gcc")
    root = TREES["rpi4"].write(tmp_path / "tree")
    text = describe("ssh://pi@board", _Rooted(Elsewhere("aarch64", OLD_LIBC), root))
    board = _load(tmp_path / "found", text)
    assert board.static
    assert board.default_runner == "ssh://pi@board"


@pytest.mark.parametrize("static", [False, True])
def test_musl_wants_static_programs(static: bool, tmp_path: Path) -> None:
    require_tool("aarch64-linux-gnu-gcc")
    root = replace(TREES["rpi4"], loader="ld-musl-aarch64.so.1").write(tmp_path / "tree")
    text = f'extends = "rpi4"\nstatic = {str(static).lower()}\n'
    board = _load(tmp_path / "board", text)
    lacks = BoardError("the system of board has no /lib/ld-linux-aarch64.so.1")
    runner = _Rooted(Elsewhere("aarch64", _spun([20.0]) if static else lacks), root)
    check = rows(diagnose("ssh://pi@board", runner, board))["C library"]
    assert check.status == ("ok" if static else "fail")
    if not static:
        assert "static = true" in check.remedy
        assert "static = true" in describe("ssh://pi@board", runner)


def test_missing_compiler_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = TREES["rpi4"].write(tmp_path / "tree")
    runner = _Rooted(Elsewhere("aarch64", _spun([20.0])), root)
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "ls").symlink_to(shutil.which("ls") or "/bin/ls")
    monkeypatch.setenv("PATH", str(bare))
    check = rows(diagnose("ssh://pi@board", runner, load_board("rpi4")))["compiler"]
    assert check.status == "fail"
    assert "apt-get install gcc-aarch64-linux-gnu" in check.remedy


def test_probe_program_here(tmp_path: Path) -> None:
    """It compiles without a warning, finds its folder and times all CPUs that it is given."""
    program = build_probe(load_board("host"), tmp_path)
    found = run_probe(LocalRunner(), program, [load_board("host").clusters[0].cpus[0]] * 2)
    assert found.folder == str(tmp_path.resolve())
    assert found.free_bytes > 0
    assert len(found.spins) == 2
    for spin in found.spins:
        assert spin.pinned
        assert 100 < spin.mhz < 20000
        assert spin.spread >= 0
        assert 0 <= spin.lost < 1


@pytest.mark.parametrize("name", ["host", "rpi4", "rpi3b-armv7"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_probe_program_is_clean_c(name: str, compiler: str, tmp_path: Path) -> None:
    board = load_board(name)
    require_tool(f"{board.triple}-gcc" if board.triple else "gcc", compiler)
    if name == "host" or compiler == "gcc":
        build_probe(board, tmp_path)
    else:
        (tmp_path / "probe.c").write_text(render("board/probe.c.j2", adds=ADDS))
    cross = f"{board.triple}-gcc" if board.triple and compiler == "gcc" else compiler
    argv = [cross, *([f"--target={board.triple}"] if board.triple and compiler == "clang" else [])]
    strict = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pthread"]
    subprocess.run(
        [*argv, *strict, str(tmp_path / "probe.c"), "-o", str(tmp_path / "x")], check=True
    )


def test_static_boards_need_no_libc(tmp_path: Path) -> None:
    """``static = true`` reaches a project's programs; they bring their own C library."""
    require_tool("cmake", "aarch64-linux-gnu-gcc", "qemu-aarch64")
    board = _load(tmp_path / "old", 'extends = "rpi4"\nstatic = true\n')
    model = tmp_path / "net.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    project = aotgen.compile(model, board=str(board.folder), output=tmp_path / "p")
    build = project.build()
    elf = read_elf(build.program("bench"))
    assert elf is not None and not elf.interpreter
    assert project.validate(runner="qemu").ok
    assert needed_glibc(build_probe(load_board("rpi4"), tmp_path)) >= (2, 17)
    static = build_probe(board, tmp_path)
    found = read_elf(static)
    assert found is not None and not found.interpreter


def test_garbage_of_the_probe_program() -> None:
    with pytest.raises(BoardError, match="printed no result"):
        parse_probe("")
    with pytest.raises(BoardError, match="printed no result"):
        parse_probe(_spun([0.0]))


@pytest.mark.parametrize("text", ["", "processor : x\n", "garbage \x00\xff: :\n" * 50])
def test_strange_files(text: str, tmp_path: Path) -> None:
    """Whatever a kernel prints, there is a table and a board.toml that can be loaded."""
    tree = replace(TREES["rpi4"], cores=[(A72, 1500)])
    files = {path: text for path in (*tree._files(), THROTTLED, "etc/os-release")}
    root = replace(tree, files=files).write(tmp_path / "tree")
    assert str(diagnose("local", LocalRunner(), load_board("rpi4"), str(root)))
    assert _load(tmp_path / "found", describe("local", LocalRunner(), str(root))).clusters
