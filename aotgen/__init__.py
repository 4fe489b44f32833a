"""aotgen: from a trained neural network to a small standalone C99 project with SIMD kernels.

    import aotgen

    project = aotgen.compile("resnet18.onnx", board="rpi4", output="resnet18_rpi4")
    project.build()
    y = project.run({"input": image})["output"]

The command line (``aotgen --help``) does the same. The exceptions are in ``aotgen.errors``.

Nothing is imported before it is asked for: the command has its signal handlers before it loads
numpy and the readers, and ``aotgen --help`` needs neither.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # not of typing, which is a large module

if TYPE_CHECKING:
    import aotgen.tune  # noqa: F401  (the name is first the package's, then the function's)
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
else:
    from aotgen import tune

    del tune  # loaded once, the package does not take the name again: it is the function's

    _HOMES = {
        "api": ("compile", "load", "tune"),
        "bench_result": ("BenchResult",),
        "bundling": ("Bundle", "ModelOptions", "bundle"),
        "comparison": ("Comparison", "compare"),
        "errors": (
            "AotgenError",
            "BoardError",
            "InternalError",
            "MismatchError",
            "ModelError",
            "ShapeError",
            "ToolchainError",
            "UnsupportedError",
            "UsageError",
        ),
        "options": ("CompileOptions",),
        "project": ("Project",),
        "target.board": ("Board", "list_boards", "load_board"),
        "target.target": ("Target",),
        "validate": ("ValidateReport",),
    }
    """Modules and what is public of them."""

    def __getattr__(name: str) -> object:
        """A public name, or a module of this package (``aotgen.errors``), loaded now."""
        from importlib import import_module

        for module, names in _HOMES.items():
            if name in names:
                value = getattr(import_module(f"aotgen.{module}"), name)
                break
        else:
            try:
                value = import_module(f"aotgen.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"aotgen.{name}":
                    raise
                raise AttributeError(f"module 'aotgen' has no attribute {name!r}") from None
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


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
