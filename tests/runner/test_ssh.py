"""The SSH runner against a real sshd: what programs get, what comes back, what is left there."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import Download, LinkError, Upload
from aotgen.runner.ssh import SshRunner
from aotgen.runner.ssh_config import SshConfig, Target
from tests.models import flip_weight_bit, two_layers
from tests.runner.loopback import (
    FAILURES,
    Board,
    folder_of,
    free_port,
    running,
    script,
    second_sshd,
    wait_for,
)
from tests.support import require_tool


def test_output_files_and_arguments(board: Board, tmp_path: Path) -> None:
    text = 'cat "$1" > "$2"; printf "%s|" "$@"; echo; pwd; echo err >&2; cat'
    program = script(tmp_path, text, "a program")
    source, copy = tmp_path / "in file", tmp_path / "o'ut"
    source.write_bytes(b"\x00\xff")
    odd = ["", "a b", "$HOME `id` \\ 'x' \"y\" *", "-rf", "ä\n;", "~"]
    with board.runner() as runner:
        runner.deploy(program)
        folder = folder_of(runner)
        assert folder.stat().st_mode & 0o777 == 0o700
        result = runner.run(program, [Upload(source), Download(copy), *odd])
        assert sorted(p.name[-8:] for p in folder.iterdir()) == [" program", "-in file"]
    words, where = result.stdout.rsplit("|\n", 1)
    assert words.split("|")[2:] == odd
    assert where == f"{folder}\n"
    assert result.stderr == "err\n" and 0 < result.seconds < 30
    assert copy.read_bytes() == b"\x00\xff"
    assert not folder.exists()


def test_commands_and_files_of_the_board(board: Board) -> None:
    with board.runner() as runner:
        assert runner.command(["echo", "a  b", "$HOME"]).stdout == "a  b $HOME\n"
        assert runner.command(["id", "-un"]).stdout.strip() == board.user
        assert runner.read_text("/proc/version") == Path("/proc/version").read_text()
        assert runner.read_text("/no/such/file") is None
        assert runner.read_text("/proc") is None
        assert runner.read_text("/etc/shadow") is None or board.user == "root"
        with pytest.raises(BoardError, match=r"cannot start no-such-program: .*No such file"):
            runner.command(["no-such-program"])
        with pytest.raises(BoardError, match=r"ls ended with status 2: .*cannot access"):
            runner.command(["ls", "/no/such/folder"])
        assert runner._session is not None and not runner._session.folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *FAILURES,
        ("sleep 100 & sleep 100", r"stopped after 0\.5 s"),
        ("trap '' TERM; while :; do sleep 1; done", r"stopped after 0\.5 s"),
        ("yes", "printed more than 16 MiB"),
        ("yes >&2", "printed more than 16 MiB"),
    ],
)
def test_failures_are_named(text: str, words: str, board: Board, tmp_path: Path) -> None:
    """And leave no process behind."""
    program = script(tmp_path, text)
    with board.runner() as runner, pytest.raises(BoardError, match=words):
        runner.deploy(program)
        name = str(folder_of(runner))
        runner.run(program, timeout=0.5 if "stopped" in words else 60)
    wait_for(lambda: not running(name), 30)


def test_garbage_is_decoded(board: Board, tmp_path: Path) -> None:
    program = script(tmp_path, "head -c 100000 /dev/urandom; head -c 100000 /dev/zero")
    with board.runner() as runner:
        runner.deploy(program)
        assert len(runner.run(program).stdout) > 100_000
        with pytest.raises(BoardError, match="program printed no result"):
            runner.time(program, number=1, repeat=1, warmup=1)


def test_children_end_with_their_program(board: Board, tmp_path: Path) -> None:
    program = script(tmp_path, "sleep 4321 & echo done")
    with board.runner() as runner:
        runner.deploy(program)
        assert runner.run(program).stdout == "done\n"
        assert not running("sleep 4321")


def test_lines_arrive_as_they_are_printed(board: Board, tmp_path: Path) -> None:
    """The program waits after each line for what the reader does: it reads what is made here, as
    the board is this computer.
    """
    seen: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lines-") as made, board.runner() as runner:
        Path(made).chmod(0o755)
        wait = f"until test -e {made}/$i; do sleep 0.02; done"
        program = script(tmp_path, f"for i in 1 2 3; do echo line $i; {wait}; done; printf end")

        def read(line: str) -> None:
            seen.append(line)
            (Path(made) / line.removeprefix("line ")).touch()

        runner.deploy(program)
        runner.run(program, on_line=read)
    assert seen == ["line 1", "line 2", "line 3", "end"]


def test_what_a_line_reader_raises_stops_the_program(board: Board, tmp_path: Path) -> None:
    def stop(line: str) -> None:
        raise UsageError("enough")

    program = script(tmp_path, "echo 1; sleep 1234")
    with board.runner() as runner:
        runner.deploy(program)
        with pytest.raises(UsageError, match="enough"):
            runner.run(program, on_line=stop)
        assert not running("sleep 1234")
        assert runner.command(["echo", "still here"]).stdout == "still here\n"


def test_only_what_changed_is_uploaded(board: Board, tmp_path: Path) -> None:
    told: list[str] = []
    program, data = script(tmp_path, 'cksum < "$1"'), tmp_path / "data"
    data.write_bytes(bytes(3 << 20))

    def uploads() -> list[str]:
        found = [text.split(":")[0] for text in told if " 0 %" in text]
        told.clear()
        return found

    with board.runner(progress=told.append) as runner:
        runner.deploy(program)
        first = runner.run(program, [Upload(data)]).stdout
        assert told[0] == "uploading data: 0 % of 3.0 MiB" and "100 %" in told[-2]
        assert uploads() == ["uploading data"]
        assert runner.run(program, [Upload(data)]).stdout == first
        assert uploads() == []
        data.write_bytes(b"1" + bytes((3 << 20) - 1))
        assert runner.run(program, [Upload(data)]).stdout != first
        assert uploads() == ["uploading data"]
        # Somebody changed it there, leaving its size.
        there = next(folder_of(runner).glob("*-data"))
        there.chmod(0o600)
        there.write_bytes(bytes(3 << 20))
        assert runner.run(program, [Upload(data)]).stdout != first
        assert uploads() == ["uploading data"]
        runner.run(program, ["/dev/null"])
        assert not list(folder_of(runner).glob("*-data"))


def test_a_program_is_replaced(board: Board, tmp_path: Path) -> None:
    program = script(tmp_path, "echo one")
    with board.runner() as runner:
        runner.deploy(program)
        assert runner.run(program).stdout == "one\n"
        runner.deploy(script(tmp_path, "echo two"))
        assert runner.run(program).stdout == "two\n"
        with pytest.raises(BoardError, match="was not deployed"):
            runner.run(tmp_path / "other")
        with pytest.raises(BoardError, match=r"no program .*/none; build"):
            runner.deploy(tmp_path / "none")


def test_a_wrapper(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the board's kernel cannot start is started by an emulator there."""
    require_tool("aarch64-linux-gnu-gcc")
    source, program = tmp_path / "p.c", tmp_path / "p"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hi"); return 0; }\n')
    subprocess.run(["aarch64-linux-gnu-gcc", str(source), "-o", str(program)], check=True)
    monkeypatch.setenv("AOTGEN_SSH_WRAPPER", "env A='x y' qemu-aarch64 -L /usr/aarch64-linux-gnu")
    with board.runner() as runner:
        runner.deploy(program)
        assert runner.run(program).stdout == "hi\n"
        assert runner.command(["uname", "-s"]).stdout == "Linux\n"
    monkeypatch.setenv("AOTGEN_SSH_WRAPPER", "a 'b")
    with pytest.raises(UsageError, match="AOTGEN_SSH_WRAPPER is malformed"):
        board.runner()


def test_programs_of_another_machine(board: Board, tmp_path: Path) -> None:
    """Told before anything is uploaded."""
    program = tmp_path / "p"
    program.write_bytes(
        b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\x00" + bytes(44)  # 64 bits, RISC-V
    )
    with board.runner() as runner:
        with pytest.raises(BoardError, match=r"board is \w+, p is built for riscv64; compile"):
            runner.deploy(program)
        assert runner._session is not None and not runner._session.folder


def test_a_system_without_the_loader(board: Board, tmp_path: Path) -> None:
    require_tool("gcc")
    source, program = tmp_path / "p.c", tmp_path / "p"
    source.write_text("int main(void) { return 0; }\n")
    loader = "-Wl,--dynamic-linker=/lib/ld-none.so.3"
    subprocess.run(["gcc", str(source), "-o", str(program), loader], check=True)
    with board.runner() as runner, pytest.raises(BoardError, match=r"has no /lib/ld-none\.so\.3"):
        runner.deploy(program)


def test_jump_hosts(board: Board, tmp_path: Path) -> None:
    """ProxyJump and ProxyCommand; the gate's key is checked as well."""
    port = free_port()
    text = board.config.read_text()
    gate = text.replace("Host board", "Host gate").replace(f"Port {board.port}", f"Port {port}")
    known = (board.folder / "known_hosts").read_text()
    config = tmp_path / "config"

    def jumping(keys: str, line: str, at: int = board.port) -> SshRunner:
        (tmp_path / "known").write_text(keys)
        behind = text.replace(f"Port {board.port}", f"Port {at}")
        both = f"{behind}  {line}\n{gate}".replace(
            str(board.folder / "known_hosts"), str(tmp_path / "known")
        )
        config.write_text(both)
        return SshRunner(Target("board"), SshConfig(config))

    both_known = known + known.replace(str(board.port), str(port))
    with second_sshd(board, tmp_path, port, "AllowTcpForwarding yes"):
        for line in ("ProxyJump gate", f"ProxyCommand ssh -F {config} -W %h:%p gate"):
            with jumping(both_known, line) as runner:
                assert runner.command(["echo", "hi"]).stdout == "hi\n"
        unknown = pytest.raises(BoardError, match=rf"key of \[127.0.0.1\]:{port} is not known")
        with jumping(known, "ProxyJump gate") as runner, unknown:
            runner.command(["true"])
        # A board that does not answer the gate may do so later.
        absent = pytest.raises(LinkError, match="does not lead to")
        with jumping(both_known, "ProxyJump gate", free_port()) as runner, absent:
            runner.command(["true"])
    with second_sshd(board, tmp_path, port, "AllowTcpForwarding no"):
        forbidden = pytest.raises(BoardError, match="does not lead to")
        with jumping(both_known, "ProxyJump gate") as runner, forbidden as caught:
            runner.command(["true"])
        assert not isinstance(caught.value, LinkError)
    nobody = pytest.raises(BoardError, match=rf"nothing listens at 127.0.0.1 port {port}")
    with jumping(both_known, "ProxyJump gate") as runner, nobody:
        runner.command(["true"])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    require_tool("cmake", "aarch64-linux-gnu-gcc")
    folder = tmp_path_factory.mktemp("project")
    onnx.save(two_layers(), folder / "m.onnx")
    return aotgen.compile(folder / "m.onnx", board="rpi4", output=folder / "p")


@pytest.fixture
def environment(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTGEN_SSH_CONFIG", str(board.config))
    monkeypatch.setenv("AOTGEN_SSH_WRAPPER", " ".join(board.wrapper))


@pytest.mark.usefixtures("environment")
def test_run_validate_and_bench(
    project: aotgen.Project, board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(1).standard_normal((2, 8), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    spec = f"ssh://{board.user}@board"
    folder, out = str(project.folder), tmp_path / "out.npz"
    assert (
        call(["run", folder, "-i", str(tmp_path / "in.npz"), "-o", str(out), "--runner", spec]) == 0
    )
    with np.load(out) as got:
        expected = project.run({"x": x}, runner="qemu")["y"]
        assert got["y"].tobytes() == expected.tobytes()
    assert call(["validate", folder, "--runner", "board", "--per-layer", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and len(report["layers"]) == len(project.info.layers)
    argv = ["bench", folder, "--runner", "board", "--repeat", "2", "--number", "2", "--json"]
    assert call(argv) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["runner"] == "ssh" and result["median_ms"] > 0


@pytest.mark.usefixtures("environment")
def test_a_changed_weight_bit_is_named(tmp_path: Path) -> None:
    """The lowest bit of one float of layer k, over ssh."""
    require_tool("cmake", "aarch64-linux-gnu-gcc")
    onnx.save(two_layers(), tmp_path / "m.onnx")
    project = aotgen.compile(tmp_path / "m.onnx", board="rpi4", output=tmp_path / "p")
    victim = [layer for layer in project.info.layers if layer.weights_crc][1]
    flip_weight_bit(project.folder, 1)
    report = project.validate(per_layer=True, runner="board")
    bad = report.first_bad_layer
    assert bad is not None and bad.index == victim.index
    assert max(d.relative for d in report.outputs) < 1e-5
