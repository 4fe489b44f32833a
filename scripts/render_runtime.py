#!/usr/bin/env python3
"""Write the C runtime as a project gets it into a folder, for clang-format, cppcheck and its tests:
under the prefix ``model``, for four threads. model.h has what it needs of a project's header.

render_runtime.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from aotgen.codegen.environment import render
from aotgen.codegen.sharing import pool_bytes
from aotgen.doctor.probe_program import ADDS
from aotgen.resources import templates_dir
from aotgen.tune.builder import device_text

THREADS = 4
CONTEXT = {
    "p": "model",
    "P": "MODEL",
    "threads": THREADS,
    "pool_bytes": pool_bytes(THREADS),
    "align": 64,
}


def header() -> str:
    """The parts of a project's header that the runtime includes."""
    status = render("project/status.h.j2", **CONTEXT)
    pool = render("project/pool.h.j2", **CONTEXT)
    return (
        "/* clang-format off */\n#ifndef MODEL_H\n#define MODEL_H\n\n#include <stdint.h>\n\n"
        f"#define MODEL_MAX_THREADS {THREADS}\n\n{status}\n{pool}\n#endif\n"
    )


def main() -> int:
    folder = Path(sys.argv[1])
    (folder / "model.h").write_text(header(), encoding="utf-8")
    (folder / "probe.c").write_text(render("board/probe.c.j2", adds=ADDS), encoding="utf-8")
    tune = ("device.h", "child.h", "image.h", "device.c", "child.c", "candidate.c", "firmware.c")
    for name in tune:
        (folder / name).write_text(device_text(f"tune/{name}"), encoding="utf-8")
    for source in sorted((templates_dir() / "runtime").glob("*.[ch]*")):
        if source.suffix == ".j2":
            text = render(f"runtime/{source.name}", **CONTEXT)
        else:
            text = source.read_text(encoding="utf-8")
        (folder / source.name.removesuffix(".j2")).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
