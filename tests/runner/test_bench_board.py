"""The bench program and a board's /sys: the governor is put back whatever happens, and what the
board tells arrives.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import pytest

import aotgen
from support import require_tool
from tests.sysfs_tree import SysfsTree

NOBODY = 65534
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_tool("cmake")
    folder = tmp_path_factory.mktemp("bench")
    model = folder / "two.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    return aotgen.compile(model, output=folder / "two").build().program("bench")


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path / "root")
    for cpu in range(3):
        tree.cpu(cpu)
    return tree


def start(program: Path, tree: SysfsTree, *more: str, **how: Any) -> subprocess.Popen[str]:
    """In a process group of its own."""
    argv = [str(program), "--sysfs-root", str(tree.root), "--number", "0", *more]
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **how,
    )


def run(
    program: Path, tree: SysfsTree, *more: str, **how: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last line that it prints."""
    process = start(program, tree, *more, **how)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    return lines[0], lines[-1]


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def running(program: Path, tree: SysfsTree) -> Iterator[subprocess.Popen[str]]:
    """A measurement that lasts, with the governor set."""
    process = start(program, tree, "--repeat", "100000")
    assert wait_for(lambda: tree.governors() == ["performance"] * 3)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_the_governor_is_set_and_put_back(program: Path, tree: SysfsTree) -> None:
    process = start(program, tree, "--repeat", "20")
    assert wait_for(lambda: tree.governors() == ["performance"] * 3)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert tree.governors() == ["schedutil"] * 3
    first, *repeats, last = (json.loads(line) for line in out.splitlines())
    assert first["governor"] == {
        "cpus": 3,
        "set": 3,
        "before": "schedutil",
        "busy": False,
        "error": "",
    }
    assert last["governor_restored"] is True
    assert [line["repeat"] for line in repeats] == list(range(20))
    assert [line["ms"] for line in repeats] == last["times_ms"]
    assert last["peak_bytes"] > 100_000


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("group", [False, True], ids=["program", "group"])
def test_a_killed_program_leaves_the_governor_as_it_was(
    number: signal.Signals, group: bool, running: subprocess.Popen[str], tree: SysfsTree
) -> None:
    (os.killpg if group else os.kill)(running.pid, number)
    # The end of its output, too, does not wait for anything.
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == -number
    assert wait_for(lambda: tree.governors() == ["schedutil"] * 3)


def test_each_cpu_gets_back_its_own(program: Path, tree: SysfsTree) -> None:
    tree.cpu(0, "ondemand")
    tree.cpu(1, "performance")
    tree.cpu(2, "userspace")
    speed = "devices/system/cpu/cpu2/cpufreq/scaling_setspeed"
    tree.write(speed, 600000)
    first, last = run(program, tree, "--repeat", "1")
    assert (first["governor"]["set"], first["governor"]["before"]) == (2, "ondemand")
    assert tree.governors() == ["ondemand", "performance", "userspace"]
    assert (tree.root / "sys" / speed).read_text().strip() == "600000"
    assert last["governor_restored"] is True


def test_only_the_cores_in_use(program: Path, tree: SysfsTree) -> None:
    """The first CPU that this process may use is pinned; the others keep their governor."""
    cpu = min(os.sched_getaffinity(0))
    tree.cpu(cpu)
    first, _ = run(program, tree, "--cores", "all", "--repeat", "1")
    assert first["cpus"] == [cpu]
    assert first["governor"]["cpus"] == 1
    assert [c["cpu"] for c in first["before"]["clocks"]] == [cpu]


def test_left_alone_when_asked(program: Path, tree: SysfsTree) -> None:
    stamp = tree.governor_file(0).stat().st_mtime_ns
    first, last = run(program, tree, "--no-governor", "--repeat", "1")
    assert "governor" not in first and "governor_restored" not in last
    assert len(first["before"]["clocks"]) == 3
    assert tree.governor_file(0).stat().st_mtime_ns == stamp
    first, _ = run(program, tree, "--no-board", "--repeat", "1")
    assert "governor" not in first and first["before"] == {"clocks": []}


def test_without_permission_the_measurement_goes_on(program: Path) -> None:
    how: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are its user's alone
        folder = Path(name)
        folder.chmod(0o755)
        copy = folder / "bench"
        copy.write_bytes(program.read_bytes())
        copy.chmod(0o755)
        tree = SysfsTree(folder / "root")
        tree.cpu(0)
        tree.governor_file(0).chmod(0o444)
        first, last = run(copy, tree, "--repeat", "1", **(how if os.geteuid() == 0 else {}))
    assert first["governor"]["set"] == 0
    assert first["governor"]["error"] == os.strerror(13)
    assert last["governor_restored"] is True and len(last["times_ms"]) == 1


def test_a_second_program_does_not_take_the_first_ones_governor_for_the_boards(
    running: subprocess.Popen[str], program: Path, tree: SysfsTree
) -> None:
    first, _ = run(program, tree, "--repeat", "1")
    assert first["governor"]["busy"] is True and first["governor"]["set"] == 0
    assert tree.governors() == ["performance"] * 3
    running.terminate()
    assert wait_for(lambda: tree.governors() == ["schedutil"] * 3)


def test_what_the_board_tells(program: Path, tree: SysfsTree) -> None:
    tree.cpu(1, mhz=600)
    tree.zone(0, 71.5, "gpu-thermal")
    tree.zone(1, 48.2, "soc-thermal", trip=70)
    tree.write("devices/platform/soc/soc:firmware/get_throttled", "50005")
    tree.write("class/thermal/cooling_device0/type", "thermal-cpufreq-0")
    tree.write("class/thermal/cooling_device0/cur_state", 2)
    tree.write("class/thermal/cooling_device1/type", "fan")
    tree.write("class/thermal/cooling_device1/cur_state", 4)
    tree.write("class/hwmon/hwmon0/name", "rpi_volt")
    tree.write("class/hwmon/hwmon0/in0_lcrit_alarm", 1)
    first, last = run(program, tree, "--repeat", "1")
    assert first["before"]["clocks"][1] == {
        "cpu": 1,
        "khz": 600_000,
        "limit_khz": 1_800_000,
        "nominal_khz": 1_800_000,
    }
    told = {key: value for key, value in first["before"].items() if key != "clocks"}
    assert told == {
        "temperature_mc": 48_200,
        "trip_mc": 70_000,
        "cooling": 2,
        "throttled": 0x50005,
        "undervolt": 1,
    }
    assert last["worst"] == last["after"] == first["before"]


@pytest.mark.parametrize(
    ("prints", "bits"), [("throttled=0xe0000", 0xE0000), ("error=2", None), ("throttled=zz", None)]
)
def test_a_raspberry_pi_without_a_file_of_its_bits(
    prints: str, bits: int | None, program: Path, tree: SysfsTree, tmp_path: Path
) -> None:
    """As of the Raspberry Pi 5."""
    model = tree.root / "proc/device-tree/model"
    model.parent.mkdir(parents=True)
    model.write_text("Raspberry Pi 5 Model B Rev 1.0\0")
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "vcgencmd"
    command.write_text(f'#!/bin/sh\n[ "$*" = get_throttled ] && echo {prints}\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    first, last = run(program, tree, "--repeat", "1", env=env)
    assert first["before"].get("throttled") == last["worst"].get("throttled") == bits


def test_a_board_that_tells_nonsense(program: Path, tree: SysfsTree) -> None:
    tree.cpu(0, 'a"b\\c\x01')
    tree.write("devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "fast")
    tree.write("devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "")
    tree.write("class/thermal/thermal_zone0/temp", "hot")
    tree.write("devices/platform/soc/soc:firmware/get_throttled", "zz")
    first, _ = run(program, tree, "--repeat", "1")
    assert first["governor"]["before"] == "a?b?c?"
    assert [c["cpu"] for c in first["before"]["clocks"]] == [0]
    assert set(first["before"]) == {"clocks"}
    assert tree.governor_file(0).read_text() == 'a"b\\c\x01'


def test_cooling_down(program: Path, tree: SysfsTree) -> None:
    """Until it is cool enough; not without end; for the whole time without a thermometer."""
    first, _ = run(program, tree, "--repeat", "1", "--cooldown", "1")
    assert first["cooled_s"] == 1
    tree.zone(0, 60)
    first, _ = run(program, tree, "--repeat", "1", "--cooldown", "30")
    assert first["cooled_s"] == 0  # nothing to get back to
    first, _ = run(program, tree, "--repeat", "1", "--cooldown", "1", "--cool-to", "45000")
    assert first["cooled_s"] == 1
    thermometer = tree.root / "sys/class/thermal/thermal_zone0/temp"
    thermometer.unlink()
    os.mkfifo(thermometer)  # each reading takes what is written for it
    readings = itertools.chain([b"46000\n"], itertools.repeat(b"44000\n"))
    process = start(program, tree, "--repeat", "1", "--cooldown", "30", "--cool-to", "45000")
    while process.poll() is None:
        with contextlib.suppress(OSError):  # it does not read now
            pipe = os.open(thermometer, os.O_WRONLY | os.O_NONBLOCK)
            with os.fdopen(pipe, "wb", buffering=0) as file:
                file.write(next(readings))
        time.sleep(0.01)
    out, _ = process.communicate()
    assert json.loads(out.splitlines()[0])["cooled_s"] == 1


@pytest.mark.parametrize(
    "words",
    [["--repeat", "0"], ["--number", "-1"], ["--cooldown", "x"], ["--threads", "9"], ["--what"]],
)
def test_mistakes(words: list[str], program: Path) -> None:
    done = subprocess.run([str(program), *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("board", ["rpi4", "rpi3b-armv7"])
def test_on_arm(board: str, tree: SysfsTree, tmp_path: Path) -> None:
    machine = aotgen.load_board(board)
    require_tool(f"{machine.triple}-gcc", machine.emulator[0])
    model = tmp_path / "two.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    project = aotgen.compile(model, board=board, output=tmp_path / "p")
    root = str(tree.root)
    result = project.bench(number=1, repeat=2, runner="qemu", sysfs_root=root)
    assert result.governor is not None
    assert (result.governor.set, result.governor.restored) == (3, True)
    assert tree.governors() == ["schedutil"] * 3
    assert result.emulated and result.peak_share is None and result.peak_bytes is None
    # Without a tree the emulator would read this computer's.
    result = project.bench(number=1, repeat=1, runner="qemu")
    assert result.governor is None and not result.before.known
