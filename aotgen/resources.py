"""Where the files that are not Python live: C templates and board descriptions.

A checkout and an editable install read them in place, at the top of the repository; a wheel carries
them inside the package (pyproject.toml maps them to ``aotgen/_data``).
"""

from __future__ import annotations

from pathlib import Path

from aotgen.errors import InternalError

_PACKAGE = Path(__file__).resolve().parent


def templates_dir() -> Path:
    """Folder of the Jinja templates (``simd/``, ``kernels/``, ``project/``, ``runtime/``)."""
    return _find("templates")


def board_support_dir() -> Path:
    """Folder with one folder per board that ships with aotgen."""
    return _find("board_support")


def _find(name: str) -> Path:
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise InternalError(f"the installation of aotgen in {_PACKAGE} lacks its {name} folder")
