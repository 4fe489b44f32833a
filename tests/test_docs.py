"""The documentation works as it is written.

Each ```console block of README.md and docs/*.md is run in order, one document in one folder that
looks like a checkout. Lines after a command are what it must print, ``...`` standing for anything.
A block under a line "`path`:" is a file that the commands use. ``<!-- needs: TOOL... -->`` before a
block names tools (``python:NAME``: packages) without which it is left out, ``<!-- slow -->`` leaves
it to the sweep. Commands in ```sh blocks need what no test has, such as a board: they are only
parsed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer

from aotgen.cli.app import app
from support import require

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

SETS_UP = ("make ", "pip ", ". ")
"""Commands that install aotgen: the test has it already."""

_BLOCK = re.compile(
    r"(?:^`(?P<path>[^`\n]+)`:\n\n|(?:^<!-- (?:needs: (?P<needs>[^\n]+)|(?P<slow>slow)) -->\n)+)?"
    r"^```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Command:
    text: str
    line: int
    printed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    line: int
    path: str
    needs: tuple[str, ...]
    slow: bool

    def commands(self) -> Iterator[Command]:
        command: Command | None = None
        for number, line in enumerate(self.body.splitlines(), self.line):
            if line.startswith("$ "):
                if command:
                    yield command
                command = Command(line[2:], number)
            else:
                assert command, f"line {number}: output without a command"
                command.printed.append(line)
        if command:
            yield command


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(
            language=found["language"],
            body=found["body"],
            line=text.count("\n", 0, found.start("body")) + 1,
            path=found["path"] or "",
            needs=tuple((found["needs"] or "").split()),
            slow=found["slow"] is not None,
        )
        for found in _BLOCK.finditer(text)
    ]


def is_there(need: str) -> bool:
    kind, colon, name = need.partition(":")
    if colon:
        assert kind == "python", need
        return importlib.util.find_spec(name) is not None
    return shutil.which(need) is not None


def matches(printed: str, wanted: list[str]) -> bool:
    """Whether ``printed`` is the wanted lines, ``...`` in them standing for anything."""
    parts = re.split(r"\.\.\.", "\n".join(wanted))
    return (
        re.fullmatch(".*".join(map(re.escape, parts)), printed.strip("\n"), re.DOTALL) is not None
    )


class Checkout:
    """A folder with the example in it, where ``aotgen`` and ``python`` are the tested ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("benchmarks", "examples"):
            (folder / name).symlink_to(ROOT / name)
        tools = folder / ".tools"
        tools.mkdir()
        for name, arguments in (("aotgen", "-m aotgen "), ("python", "")):
            script = tools / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
            script.chmod(0o755)
        path = os.pathsep.join([str(tools), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def run(self, commands: list[Command], document: str, timeout: float) -> None:
        """Run the commands of a block in one shell, so that ``cd`` lasts as long as it."""
        mark = "-- printed up to here --"
        script = "\n".join(f"{c.text} || exit\necho '{mark}'" for c in commands)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        outputs = done.stdout.split(f"{mark}\n")
        for command, printed in zip(commands, outputs, strict=False):
            where = f"{document}:{command.line}: {command.text}"
            assert len(outputs) > commands.index(command) + 1, f"{where}\n{printed}{done.stderr}"
            if command.printed:
                assert matches(printed, command.printed), f"{where}\n{printed}"


def run_document(document: Path, folder: Path, slow: bool) -> None:
    checkout = Checkout(folder)
    lacking: set[str] = set()
    for block in blocks(document):
        if block.path:
            checkout.write(block.path, block.body)
        if block.language != "console" or (block.slow and not slow):
            continue
        if missing := {need for need in block.needs if not is_there(need)}:
            lacking |= missing
            continue
        commands = [c for c in block.commands() if not c.text.startswith(SETS_UP)]
        checkout.run(commands, document.name, 3600 if block.slow else 300)
    require(not lacking, ", ".join(sorted(lacking)))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands(document: Path, tmp_path: Path) -> None:
    run_document(document, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if any(b.slow for b in blocks(d))], ids=lambda path: path.name
)
def test_all_commands(document: Path, tmp_path: Path) -> None:
    run_document(document, tmp_path, slow=True)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_need_more_can_be_parsed(document: Path) -> None:
    """Verbs and options of aotgen's commands in ```sh blocks exist."""
    for block in blocks(document):
        if block.language != "sh":
            continue
        for line in block.body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            end = next((i for i, word in enumerate(words) if word in (">", "|", "&&")), None)
            words = words[:end]
            if words[:1] == ["aotgen"]:
                assert_parsed(words[1:], f"{document.name}: {line}")


def assert_parsed(words: list[str], where: str) -> None:
    command = typer.main.get_command(app)
    name = "aotgen"
    while hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, f"{where}: no verb {name}"
        command = command.commands[name]
    try:
        command.make_context(name, words)
    except Exception as error:
        pytest.fail(f"{where}: {getattr(error, 'message', error)}")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links(document: Path) -> None:
    """Every relative link leads to a file, and its anchor to a heading."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = document.parent / name if name else document
        assert file.exists(), f"{document.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, f"{document.name}: {target}"


def test_operators_are_listed() -> None:
    """docs/operators.md has every operator that the readers convert, and no other."""
    import aotgen.frontend.onnx
    import aotgen.frontend.tflite  # noqa: F401  (registers the converters)
    from aotgen.frontend.onnx.registry import supported as onnx_operators
    from aotgen.frontend.tflite.registry import supported as tflite_operators

    groups: dict[str, list[str]] = {}
    for domain, op in onnx_operators():
        groups.setdefault(f"ONNX {domain}", []).append(op)
    for op in tflite_operators():
        kind, _, name = op.rpartition(":")
        groups.setdefault(f"TFLite {kind}", []).append(name)
    text = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    for operators in groups.values():
        listed = ", ".join(f"`{op}`" for op in sorted(operators))
        assert f"({len(operators)}): {listed}." in " ".join(text.split()), (
            f"docs/operators.md lacks: {listed}"
        )


def test_passes_are_listed() -> None:
    """docs/architecture.md has every pass in the row of its level."""
    from aotgen.passes.pipeline import PASSES

    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for level in sorted({p.level for p in PASSES}):
        names = ", ".join(f"`{p.name}`" for p in PASSES if p.level == level)
        assert f"| {level} | {names} |" in text


def test_docs_checker_sees_a_difference() -> None:
    assert matches("arena 12 KiB\nok\n", ["arena ...", "ok"])
    assert matches("a\nb\nc\n", ["a", "...", "c"])
    assert not matches("arena 12 KiB\nbad\n", ["arena ...", "ok"])
    assert not matches("a\nb\nc\n", ["a", "c"])
