"""examples/firmware: a user's own firmware for a Cortex-M4, with a network in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cmake_support import ROOT, Build, command

import aotgen
from aotgen.project import Project
from aotgen.runner.qemu_system import QemuMachine
from aotgen.target.board import load_board
from support import require_tool

EXAMPLE = ROOT / "examples" / "firmware"
MODEL = ROOT / "examples" / "cmake_app" / "digits_int8.tflite"


@pytest.mark.parametrize("way", ["aotgen_add_model", "add_subdirectory"])
def test_firmware_of_ones_own(way: str, tmp_path: Path) -> None:
    """It says what it sees; then ``validate`` and ``bench`` reach the network in it."""
    require_tool("arm-none-eabi-gcc", "qemu-system-arm")
    build = Build(EXAMPLE, tmp_path / "b")
    project, arguments = build.folder / "digits_aotgen", [command(tmp_path)]
    if way == "add_subdirectory":
        project = tmp_path / "p"
        # Of a board with start-up code, which firmware that adds the project has no use for.
        aotgen.compile(MODEL, "mps2-an386", project, prefix="digits")
        arguments = [f"-DDIGITS_PROJECT={project}"]
    printed = build.make(f"-DCMAKE_TOOLCHAIN_FILE={EXAMPLE}/toolchain.cmake", *arguments)
    assert "warning" not in printed
    machine = QemuMachine(load_board("mps2-an386"), build.folder / "firmware.elf")
    try:
        assert machine.port is not None
        said = b""
        while not said.endswith(b"\n"):
            data = machine.port.read(10.0)
            assert data, said
            said += data
        assert said.decode().strip() in (EXAMPLE / "README.md").read_text().splitlines()
        line = machine.port.name
        machine.port.close()
        report = Project(project).validate(per_layer=True, runner=f"serial:{line}")
        assert report.ok, str(report)
        assert report.layers and all(layer.difference is not None for layer in report.layers)
    finally:
        machine.close()


def test_image_is_the_other_examples() -> None:
    text = (EXAMPLE / "main.c").read_text()
    body = text[text.index("ELEMENTS] = {") : text.index("};")].partition("{")[2]
    image = [int(word) for word in body.replace("//", "").replace(",", " ").split()]
    assert image == np.loadtxt(EXAMPLE.parent / "cmake_app/three.txt", dtype=int).ravel().tolist()
