"""``import aotgen`` loads nothing, yet its names are there: for programs, and for type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import aotgen

PUBLIC = sorted({*aotgen.__all__} - {"__version__"})


def told_to_type_checkers() -> dict[str, str]:
    """Modules by the names that type checkers are told to come from them."""
    tree = ast.parse(Path(str(aotgen.__file__)).read_text(encoding="utf-8"))
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in branch.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_type_checkers_and_programs_see_the_same() -> None:
    told = told_to_type_checkers()
    assert sorted(told) == PUBLIC
    for name, module in told.items():
        assert getattr(aotgen, name) is getattr(import_module(module), name)
    assert {*PUBLIC} <= {*dir(aotgen)}


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = (
        "import sys, aotgen\n"
        "assert 'numpy' not in sys.modules\n"
        "import aotgen.tune.session\n"
        "assert callable(aotgen.tune) and aotgen.errors.UsageError is aotgen.UsageError\n"
        "from aotgen import *\n"
        "assert bundle is aotgen.bundle"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["nothing", "__wrapped__", "errors.UsageError"])
def test_other_names(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'aotgen' has no attribute '{name}'"):
        getattr(aotgen, name)
