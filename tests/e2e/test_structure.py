"""What a compiled network looks like: kernel calls, copies, arena, symbols, sizes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from aotgen.project import Project
from support import require_tool

MOST_CALLS = {"resnet18": 23, "mobilenet_v2": 54, "squeezenet1_1": 30, "transformer": 40}


@pytest.mark.parametrize("name", MOST_CALLS)
def test_kernel_calls(name: str, compiled) -> None:
    project = compiled(name, "host")
    layers = project.manifest["layers"]
    assert len(layers) <= MOST_CALLS[name]
    source = (project.folder / "src" / f"{name}.c").read_text()
    assert len(re.findall(rf"^    {name}_\w+_[0-9a-f]{{8}}\(", source, re.M)) == len(layers)
    assert not any(layer["layout_copy"] for layer in layers)


@pytest.mark.parametrize("name", [*MOST_CALLS, "ds_cnn"])
def test_no_transpose_left_and_arena_near_its_bound(name: str, compiled) -> None:
    manifest = compiled(name, "host").manifest
    ops = {op for layer in manifest["layers"] for op in layer["op"].split("+")}
    if name != "transformer":
        assert "transpose" not in ops
    assert "concat" not in ops
    assert manifest["arena_bytes"] <= 1.05 * manifest["arena"]["lower_bound"]


def symbols(library: Path) -> list[tuple[str, str]]:
    """(kind, name) of every symbol that a library defines for others, or needs."""
    text = subprocess.run(
        ["nm", "--extern-only", str(library)], check=True, capture_output=True, text=True
    ).stdout
    return [
        (m[1], m[2])
        for line in text.splitlines()
        if (m := re.match(r"[0-9a-f ]{16} (\w) (\S+)$", line))
    ]


def test_library_is_small_and_keeps_to_its_prefix(compiled) -> None:
    require_tool("cmake", "gcc", "nm", "size")
    project: Project = compiled("resnet18", "host")
    library = project.build().library
    defined = [name for kind, name in symbols(library) if kind != "U"]
    assert defined and all(name.startswith("resnet18_") for name in defined)
    own = set(defined)
    needed = {name for kind, name in symbols(library) if kind == "U"} - own
    assert needed <= {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"}, needed
    sizes = subprocess.run(
        ["size", "-A", str(library)], check=True, capture_output=True, text=True
    ).stdout
    total = sum(
        int(m[2]) for m in re.finditer(r"^(\.text\S*|\.rodata\S*)\s+(\d+)", sizes, flags=re.M)
    )
    assert total - project.manifest["weights_bytes"] < 300_000
