"""Whoever ends the command by a signal gets one line, an exit code, and nothing half made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import models
import pytest

import aotgen
from aotgen.api import new_folder

pytestmark = pytest.mark.usefixtures("default_signals")

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_STARTED = """
import os, sys, {module}
from aotgen.cli.interruption import Interruption
from aotgen.cli import main
install = Interruption.install
def told(self):
    install(self)
    print("ready", flush=True)
Interruption.install = told
sys.argv[0] = "aotgen"
main.main()
"""
"""The command, which says when its handlers stand."""


def command(*words: str | Path, cwd: Path, module: str = "sys") -> subprocess.Popen[str]:
    """The command with ``words``; its handlers stand when this returns."""
    argv = [sys.executable, "-c", _STARTED.format(module=module), *map(str, words)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, cwd=cwd, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def messages(stderr: str) -> list[str]:
    """Without lines of progress."""
    return [line for line in stderr.splitlines() if not line.endswith(" ...")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6])
def test_at_any_moment(number: signal.Signals, delay: float, model: Path, tmp_path: Path) -> None:
    """While modules load, while the model is compiled and written, and at the end: where the
    command is by then is up to the computer.
    """
    aotgen.compile(model, output=tmp_path / "net")
    before = (tmp_path / "net" / "manifest.json").read_bytes()
    with command("compile", model, "-o", "net", "--force", "--opt-level", "0", cwd=tmp_path) as run:
        time.sleep(delay)
        os.killpg(run.pid, number)
        out, err = run.communicate(timeout=60)
    after = (tmp_path / "net" / "manifest.json").read_bytes()
    assert list(tmp_path.iterdir()) == [tmp_path / "net"]
    if run.returncode == 128 + number:
        assert messages(err) == ["aotgen: error: interrupted"]
    else:  # it was done
        assert run.returncode in (0, -number) and not messages(err)
        assert out and after != before


@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGHUP])
def test_in_the_midst_of_an_import(number: signal.Signals, tmp_path: Path) -> None:
    """Extension modules drop an exception that comes while they load: it waits until they have."""
    (tmp_path / "slow.py").write_text(
        "import os\n"
        "class Dropped:\n"
        "    def __del__(self):\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        for _ in range(10**5): pass\n"
        "try:\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    for _ in range(10**5): pass\n"
        "except BaseException:\n"
        "    pass\n"
    )
    (tmp_path / "verb.py").write_text(
        "import sys, time\n"
        "sys.path.insert(0, '.')\n"
        "from aotgen.cli import app\n"
        "def run_words(words):\n"
        "    import slow\n"
        "    if words: slow.Dropped()\n"
        "    time.sleep(60)\n"
        "app.run_words = run_words\n"
    )
    for words in ((), ("finalizer",)):
        with command(
            *words, cwd=tmp_path, module="sys; sys.path.insert(0, '.'); import verb"
        ) as run:
            _, err = run.communicate(timeout=30)
        assert (run.returncode, err) == (128 + number, "aotgen: error: interrupted\n")


def test_a_build_ends_with_what_it_started(model: Path, tmp_path: Path) -> None:
    """The compilers, too, though the signal reaches this process alone."""
    aotgen.compile(model, output=tmp_path / "net")
    slow = tmp_path / "slow-cc"
    slow.write_text(
        '#!/bin/sh\ncase "$*" in *net*.c*) touch began; sleep 60;; *) exec cc "$@";; esac'
    )
    slow.chmod(0o755)
    code = (
        "import aotgen, sys; from aotgen.cli import app, main\n"
        f"app.run_words = lambda words: aotgen.Project('net').build(compiler={str(slow)!r})\n"
        "main.main()\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    with run:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "net").rglob("began")):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=30)
    assert (run.returncode, messages(err)) == (143, ["aotgen: error: interrupted"])
    assert str(slow) not in "".join(_command_lines())


def _command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_old_project_stays(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted behind any step of the replacement, there is the old folder or the new one."""
    target = tmp_path / "net"
    target.mkdir()
    (target / "old").touch()
    rename, steps = Path.rename, 0

    def interrupted(path: Path, to: Path) -> Path:
        nonlocal steps
        done = rename(path, to)
        steps += 1
        if steps == at:
            raise Interrupted
        return done

    monkeypatch.setattr(Path, "rename", interrupted)
    try:
        with new_folder(target) as fresh:
            (fresh / "new").touch()
    except Interrupted:
        pass
    assert list(tmp_path.iterdir()) == [target]
    assert [p.name for p in target.iterdir()] == ["old" if at == 1 else "new"]


def test_a_name_that_is_almost_too_long(tmp_path: Path) -> None:
    with new_folder(tmp_path / ("é" * 127)) as fresh:
        (fresh / "file").touch()
    assert [len(os.fsencode(p.name)) for p in tmp_path.iterdir()] == [254]
