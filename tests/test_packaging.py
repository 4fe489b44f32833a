"""The wheel and the checkout both find templates/ and board_support/."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support import require_module

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_module("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation"]
    subprocess.run([*argv, "--quiet", "-w", str(folder)], check=True, timeout=120)
    return next(folder.glob("aotgen-*.whl"))


def test_wheel_carries_every_resource(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "board_support"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file():
                assert f"aotgen/_data/{path.relative_to(ROOT)}" in names
    for path in (ROOT / "cmake").iterdir():
        found = [
            name for name in names if name.endswith(f".data/data/share/cmake/aotgen/{path.name}")
        ]
        assert len(found) == 1
    assert "aotgen/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any("__pycache__" in name or name.startswith("tests/") for name in names)


def test_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import aotgen\n"
        "from aotgen.codegen.environment import render\n"
        "print(aotgen.__file__)\n"
        "print(aotgen.load_board('rpi4').toolchain.is_file(), len(aotgen.list_boards()))\n"
        "print(len(render('simd/scalar.h.j2', math=[])) > 1000)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "site")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    file, boards, rendered = done.stdout.splitlines()
    assert file.startswith(str(tmp_path / "site"))
    assert boards.startswith("True ")
    assert int(boards.split()[1]) >= 7
    assert rendered == "True"
