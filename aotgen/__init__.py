"""aotgen: from a trained neural network to a small standalone C99 project with SIMD kernels.

    import aotgen

    project = aotgen.compile("resnet18.onnx", board="rpi4", output="resnet18_rpi4")
    project.build()
    y = project.run({"input": image})["output"]

The command line (``aotgen --help``) does the same. The exceptions are in ``aotgen.errors``.
"""

from __future__ import annotations

__version__ = "0.1.0"

import aotgen.tune  # noqa: F401  (the package takes the name first, the function keeps it)
from aotgen.api import compile, load, tune
from aotgen.bench_result import BenchResult
from aotgen.bundling import Bundle, ModelOptions, bundle
from aotgen.comparison import Comparison, compare
from aotgen.errors import (
    AotgenError,
    BoardError,
    InternalError,
    MismatchError,
    ModelError,
    ShapeError,
    ToolchainError,
    UnsupportedError,
    UsageError,
)
from aotgen.options import CompileOptions
from aotgen.project import Project
from aotgen.target.board import Board, list_boards, load_board
from aotgen.target.target import Target
from aotgen.validate import ValidateReport

__all__ = [
    "load",
    "compile",
    "bundle",
    "tune",
    "compare",
    "Project",
    "Bundle",
    "ModelOptions",
    "CompileOptions",
    "BenchResult",
    "Comparison",
    "ValidateReport",
    "Board",
    "Target",
    "list_boards",
    "load_board",
    "AotgenError",
    "UsageError",
    "ModelError",
    "UnsupportedError",
    "ShapeError",
    "MismatchError",
    "ToolchainError",
    "BoardError",
    "InternalError",
    "__version__",
]
