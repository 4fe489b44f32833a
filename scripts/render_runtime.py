#!/usr/bin/env python3
"""Write the C runtime as a project gets it into a folder, for clang-format and cppcheck.

render_runtime.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from aotgen.codegen.environment import render
from aotgen.resources import templates_dir


def main() -> int:
    folder = Path(sys.argv[1])
    for source in sorted((templates_dir() / "runtime").glob("*.[ch]*")):
        if source.suffix == ".j2":
            text = render(f"runtime/{source.name}", p="model", P="MODEL")
        else:
            text = source.read_text(encoding="utf-8")
        (folder / source.name.removesuffix(".j2")).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
