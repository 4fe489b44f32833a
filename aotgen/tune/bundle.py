"""Bundles: candidates rendered to C with all that the device needs to check and time them.

A bundle holds no tasks, templates or paths: it can be pickled, built and run anywhere. Candidates
whose kernel and data are equal are one case of it. Contents of buffers are blobs, named by a hash
of what is in them, so that a board gets each of them once.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from aotgen.codegen.c_text import comment_safe
from aotgen.codegen.environment import render
from aotgen.codegen.simd import simd_header
from aotgen.errors import InternalError
from aotgen.ir.types import Array, DType
from aotgen.schedule.base import Arg, Kernel, ScheduleError, View
from aotgen.target.board import Board
from aotgen.tune.outcome import Candidate, Outcome
from aotgen.tune.task import Task, kernel_hash

Role = Literal["input", "const", "output", "scratch"]

Element = Literal["exact", "f32", "f64", "near_i8", "near_u8"]
"""How an output is compared: bit by bit; within a tolerance times the largest magnitude; or, 8-bit
integers that were rounded from floats, at most one step apart."""

ALIGN_BYTES, GUARD_BYTES = 64, 320
"""Of buffers in a candidate's memory: DEVICE_ALIGN and DEVICE_GUARD of the device program."""

MAX_RANK = 16
"""Axes of an output: DEVICE_RANK of the device program."""

_ORACLES = 32
"""Tasks whose inputs and outputs are kept: a tuner comes back to the same ones."""


@dataclass(frozen=True)
class Buffer:
    """Memory that a kernel gets a pointer into.

    Attributes:
        role: what it is to the kernel.
        bytes: its size.
        blob: of an input or constant the name of its contents, of an output that of the elements
            that it must hold, dense and row-major; empty for scratch.
        element: outputs only: how they are compared.
        size: outputs only: bytes of an element.
        shape: outputs only: of the elements in memory (blocks of channels have an axis more).
        strides: outputs only: in elements.
        start: outputs only: the byte where the first element lies.
    """

    role: Role
    bytes: int
    blob: str = ""
    element: Element = "exact"
    size: int = 1
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    start: int = 0


@dataclass(frozen=True)
class Case:
    """A kernel with its data.

    Attributes:
        title: for people: what is computed, and how.
        task: key of the task.
        kernel: ``kernel_hash`` of the kernel.
        unit: of ``Bundle.units``; also the name of the C function that calls the kernel.
        buffers: what its pointers lead to.
        arguments: (buffer, byte in it) for each of the kernel's pointers.
        rows: how many there are to compute.
        cut: rows of the first of two pieces, 0 where a kernel cannot be cut.
    """

    title: str
    task: str
    kernel: str
    unit: str
    buffers: tuple[Buffer, ...]
    arguments: tuple[tuple[int, int], ...]
    rows: int
    cut: int


@dataclass(frozen=True)
class Unit:
    """A C file.

    Attributes:
        source: its text; it includes "simd.h" first.
        header: of ``Bundle.headers``.
        optimize: what the task's project prefers: see ``Board.optimisation``.
    """

    source: str
    header: str
    optimize: str = "speed"


@dataclass(frozen=True)
class Bundle:
    """What a board gets at once.

    Attributes:
        board: that it is built for.
        cases: what is measured, each once.
        units: C files by name, one for each kernel.
        headers: texts of simd.h by name: of kernels that use the same parts of it.
        blobs: contents of buffers by name.
        members: for each candidate that the bundle was made of the number of its case, None where
            it could not be rendered.
    """

    board: Board
    cases: tuple[Case, ...]
    units: Mapping[str, Unit]
    headers: Mapping[str, str]
    blobs: Mapping[str, bytes]
    members: tuple[int | None, ...]


class Bundler:
    """Makes bundles for one board; remembers the inputs and outputs of the last tasks."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._oracles: OrderedDict[str, tuple[dict[str, Array], list[Array]]] = OrderedDict()

    def bundle(self, candidates: Sequence[Candidate]) -> tuple[Bundle, list[tuple[int, Outcome]]]:
        """Render candidates.

        Returns:
            The bundle, and (number of the candidate, outcome) of those that cannot be rendered.
        """
        made = _Bundle(self.board)
        failed: list[tuple[int, Outcome]] = []
        for number, candidate in enumerate(candidates):
            try:
                made.add(candidate, self.oracle(candidate.task))
            except Exception as error:
                # Whatever a template trips over must not end hours of tuning.
                text = " ".join(str(error).split()) or repr(error)
                kind = "" if isinstance(error, ScheduleError) else f"{type(error).__name__}: "
                failed.append((number, Outcome(candidate, "render", message=f"{kind}{text}")))
                made.members.append(None)
        return made.finish(), failed

    def oracle(self, task: Task) -> tuple[dict[str, Array], list[Array]]:
        """(inputs by name, outputs) of a task."""
        known = self._oracles.get(task.key)
        if known is None:
            inputs = task.inputs()
            known = inputs, task.expected(inputs)
            self._oracles[task.key] = known
            if len(self._oracles) > _ORACLES:
                self._oracles.popitem(last=False)
        self._oracles.move_to_end(task.key)
        return known


class _Bundle:
    """A bundle in the making."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.cases: dict[Case, int] = {}
        self.units: dict[str, Unit] = {}
        self.headers: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.members: list[int | None] = []

    def add(self, candidate: Candidate, oracle: tuple[dict[str, Array], list[Array]]) -> None:
        task, point = candidate.task, candidate.point
        template = task.template(point.template)
        if template is None:
            raise ScheduleError(f"template {point.template} does not apply")
        blocks = task.blocks(template, point.config)
        kernel = task.kernel(template, point.config)
        knobs = " ".join(f"{k}={v}" for k, v in point.config.values)
        title = comment_safe(f"{task.title}: {point.template} {knobs}")
        case = self._case(title, task, kernel, blocks, oracle)
        # Equal kernels with equal data are one case, whichever config they come from.
        same = next((c for c in self.cases if _identity(c) == _identity(case)), case)
        self.members.append(self.cases.setdefault(same, len(self.cases)))

    def finish(self) -> Bundle:
        return Bundle(
            self.board,
            tuple(self.cases),
            self.units,
            self.headers,
            self.blobs,
            tuple(self.members),
        )

    def _case(
        self,
        title: str,
        task: Task,
        kernel: Kernel,
        blocks: Mapping[str, tuple[View, int, int]],
        oracle: tuple[dict[str, Array], list[Array]],
    ) -> Case:
        inputs, outputs = oracle
        expected = {v.name: a for v, a in zip(task.group.outputs, outputs, strict=True)}
        buffers: list[Buffer] = []
        places: dict[str, int] = {}
        arguments: list[tuple[int, int]] = []
        for arg in kernel.args:
            if arg.value is None:
                size = arg.const.array.itemsize if arg.const is not None else 1
                arguments.append((len(buffers), arg.offset * size))
                buffers.append(self._own(arg))
                continue
            name = arg.value.name
            view, elements, origin = blocks[name]
            if name not in places:
                places[name] = len(buffers)
                if arg.is_output:
                    exact = _is_exact(task)
                    buffers.append(self._output(view, elements, origin, expected[name], exact))
                else:
                    buffers.append(self._input(view, elements, origin, inputs[name]))
            arguments.append((places[name], (origin + arg.offset) * view.dtype.size))
        units = kernel.units
        cut = min(kernel.rows, kernel.grain * (units * 3 // 7 or 1)) if units > 1 else 0
        return Case(
            title,
            task.key,
            kernel_hash(kernel),
            self._unit(title, task, kernel),
            tuple(buffers),
            tuple(arguments),
            kernel.rows,
            cut,
        )

    def _own(self, arg: Arg) -> Buffer:
        """A constant or scratch."""
        if arg.const is None:
            return Buffer("scratch", arg.scratch_bytes)
        data = np.ascontiguousarray(arg.const.array).tobytes()
        return Buffer("const", len(data), self._blob(data))

    def _input(self, view: View, elements: int, origin: int, array: Array) -> Buffer:
        memory = np.zeros(elements, view.dtype.numpy)
        strided = view.as_strided
        strides = [s * view.dtype.size for s in strided.strides]
        seen = np.lib.stride_tricks.as_strided(memory[origin:], strided.shape, strides)
        seen[...] = array.reshape(strided.shape)
        data = memory.tobytes()
        return Buffer("input", len(data), self._blob(data))

    def _output(self, view: View, elements: int, origin: int, array: Array, exact: bool) -> Buffer:
        size = view.dtype.size
        strided = view.as_strided
        if len(strided.shape) > MAX_RANK:
            raise InternalError(f"an output of {len(strided.shape)} axes")
        with np.errstate(over="ignore"):
            wanted = np.ascontiguousarray(array.astype(view.dtype.numpy))
        return Buffer(
            "output",
            elements * size,
            self._blob(wanted.tobytes()),
            _element(view.dtype, exact),
            size,
            strided.shape,
            strided.strides,
            origin * size,
        )

    def _blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()[:32]
        self.blobs.setdefault(name, data)
        return name

    def _unit(self, title: str, task: Task, kernel: Kernel) -> str:
        """The C file of a kernel; its name says its content."""
        header = simd_header(task.target.isa, kernel.math)
        ctypes = [arg.ctype for arg in kernel.args]
        linked, routines = kernel.linked("")
        shared = "".join(r.text for r in routines.values())
        optimize = task.target.optimize
        text = f"{header}\0{shared}{linked}\0{ctypes}\0{sorted(kernel.includes)}\0{optimize}"
        entry = f"call_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if entry not in self.units:
            name = f"{kernel.name}_{entry[-8:]}"
            # As in a project: other files may call it, so that it is compiled on its own.
            body, routines = kernel.linked(name)
            body = re.sub(r"^static\s+void\s+@KERNEL@\(", "void @KERNEL@(", body, flags=re.M)
            body = body.replace("@KERNEL@", name)
            before = [f"{r.prototype};\n\n{r.text.strip()}\n\n" for r in routines.values()]
            source = render(
                "tune/kernel.c.j2",
                name=name,
                title=title,
                entry=entry,
                includes=sorted(kernel.includes.union(*(r.includes for r in routines.values()))),
                ctypes=ctypes,
                body="".join(before) + body.strip("\n"),
            )
            digest = hashlib.sha256(header.encode()).hexdigest()[:16]
            self.headers.setdefault(digest, header)
            self.units[entry] = Unit(source, digest, optimize)
        return entry


def arena_bytes(case: Case) -> int:
    """Memory of a case's inputs, outputs and scratch with the guards around them:
    device_arena_bytes of the device program.
    """
    own = [b.bytes for b in case.buffers if b.role != "const"]
    return GUARD_BYTES + sum(-(-n // ALIGN_BYTES) * ALIGN_BYTES + GUARD_BYTES for n in own)


def part_of(bundle: Bundle, numbers: Sequence[int]) -> Bundle:
    """The bundle with the contents of buffers of some cases alone, whose numbers stay."""
    names = {b.blob for n in numbers for b in bundle.cases[n].buffers}
    return replace(bundle, blobs={n: data for n, data in bundle.blobs.items() if n in names})


def _identity(case: Case) -> tuple[object, ...]:
    return case.task, case.unit, case.buffers, case.arguments, case.rows, case.cut


def _is_exact(task: Task) -> bool:
    """Whether integers that the task gives were computed from integers alone."""
    values = [
        v for node in task.group.nodes for v in (*node.inputs, *node.outputs) if v is not None
    ]
    return not any(v.dtype.is_float for v in values)


def _element(dtype: DType, exact: bool) -> Element:
    if dtype is DType.F32:
        return "f32"
    if dtype is DType.F64:
        return "f64"
    near: dict[DType, Element] = {DType.I8: "near_i8", DType.U8: "near_u8"}
    return "exact" if exact else near.get(dtype, "exact")


def files_of(
    bundle: Bundle, small: int = 1 << 16
) -> tuple[list[bytes], dict[str, tuple[int, int]]]:
    """The contents of the files that a device gets: all small blobs in one, each large one its own.

    Args:
        bundle: whose blobs.
        small: blobs of less bytes share a file.

    Returns:
        The files, and (file, byte in it) of each blob by name; starts are multiples of 64.
    """
    shared = bytearray()
    files: list[bytes] = [b""]
    places: dict[str, tuple[int, int]] = {}
    for name, data in bundle.blobs.items():
        if len(data) >= small:
            places[name] = len(files), 0
            files.append(data)
        else:
            places[name] = 0, len(shared)
            shared += data + bytes(-len(data) % 64)
    files[0] = bytes(shared) or bytes(64)
    return files, places


def table_source(bundle: Bundle, built: Sequence[int]) -> str:
    """table.c: the cases that could be compiled, in this order, with the files of ``files_of``.

    Args:
        bundle: whose cases.
        built: their numbers.
    """
    files, places = files_of(bundle)
    lists: dict[tuple[int, ...], int] = {}

    def axes(values: tuple[int, ...]) -> str:
        return f"axes{lists.setdefault(values, len(lists))}" if values else "NULL"

    def described(buffer: Buffer) -> dict[str, object]:
        file, at = places[buffer.blob] if buffer.blob else (-1, 0)
        return {
            "role": f"DEVICE_{buffer.role.upper()}",
            "file": file,
            "at": at,
            "bytes": buffer.bytes,
            "element": f"DEVICE_{buffer.element.upper()}",
            "size": buffer.size,
            "rank": len(buffer.shape),
            "shape": axes(buffer.shape),
            "strides": axes(buffer.strides),
            "start": buffer.start,
        }

    cases = [
        {
            "title": case.title,
            "entry": case.unit,
            "rows": case.rows,
            "cut": case.cut,
            "buffers": [described(b) for b in case.buffers],
            "args": case.arguments,
        }
        for case in (bundle.cases[number] for number in built)
    ]
    entries = sorted({bundle.cases[number].unit for number in built})
    return render(
        "tune/table.c.j2",
        entries=entries,
        axis_lists=list(lists),
        cases=cases,
        file_bytes=[len(data) for data in files],
    )
