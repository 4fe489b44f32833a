"""A model through its project's own programs, which a Runner deploys and runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from aotgen.bench import BenchOptions, measure
from aotgen.bench_result import BenchResult, Cores
from aotgen.errors import BoardError, UsageError
from aotgen.ir.types import Array
from aotgen.runner.base import Argument, Download, Runner, Upload, json_line
from aotgen.runner.model import Outputs, PlacedModel, split_outputs
from aotgen.trace import Expected, TraceRecord, joined, parse_trace

if TYPE_CHECKING:
    from aotgen.project import Project


class ProgramModel(PlacedModel):
    """Each call is one run of ``<prefix>_run`` or ``<prefix>_bench``."""

    def __init__(self, project: Project, place: Runner) -> None:
        self._project = project
        self._info = project.info
        self._place = place

    def run(
        self, steps: Sequence[Sequence[Array]], threads: int = 1, cores: Cores | None = None
    ) -> list[Outputs]:
        return self._run(steps, _words(threads, cores), trace=False)[0]

    def trace(
        self,
        steps: Sequence[Sequence[Array]],
        expected: Expected,
        threads: int = 1,
        cores: Cores | None = None,
    ) -> tuple[list[Outputs], list[TraceRecord]]:
        outputs, data = self._run(steps, _words(threads, cores), trace=True)
        return outputs, joined(parse_trace(data), self._info.layers)

    def weight_crcs(self) -> dict[int, str]:
        data = json_line(self._call(["--crc"]), "the run program")
        return {int(entry["layer"]): str(entry["crc"]).lower() for entry in data["weights"]}

    def bench(self, threads: Sequence[int], options: BenchOptions) -> Iterator[BenchResult]:
        project = self._project
        program, weights = project.bench_program()
        self._place.deploy(program)
        return measure(self._info, project.board, self._place, program, weights, threads, options)

    def _run(
        self, steps: Sequence[Sequence[Array]], words: list[Argument], trace: bool
    ) -> tuple[list[Outputs], bytes]:
        """The outputs of each step, and the trace file."""
        with tempfile.TemporaryDirectory(prefix="aotgen-") as name:
            folder = Path(name)
            fed, got, seen = folder / "in.bin", folder / "out.bin", folder / "trace.bin"
            fed.write_bytes(b"".join(a.tobytes() for step in steps for a in step))
            arguments: list[Argument] = ["--in", Upload(fed), "--out", Download(got), *words]
            if trace:
                arguments += ["--trace", Download(seen)]
            self._call(arguments)
            try:
                outputs = split_outputs(self._info, got.read_bytes(), len(steps))
                return outputs, seen.read_bytes() if trace else b""
            except OSError as error:
                raise BoardError(f"{self._info.prefix}_run wrote no result: {error}") from error

    def _call(self, arguments: Sequence[Argument]) -> str:
        """What ``<prefix>_run`` prints on stdout when called with ``arguments``."""
        program, weights = self._project.run_program()
        self._place.deploy(program)
        return self._place.run(program, [*arguments, *weights]).stdout


def _words(threads: int, cores: Cores | None) -> list[Argument]:
    """What tells the run program its threads; nothing where it would do so by itself.

    Raises:
        UsageError: there are no such cores.
    """
    if cores is not None and cores not in get_args(Cores):
        raise UsageError(f"--cores {cores!r} does not exist", remedy="use big, little or all")
    given: list[Argument] = ["--threads", str(threads)] if threads > 1 else []
    return [*given, *(["--cores", cores] if cores is not None else [])]
