"""Builds a project without CMake and runs it in this process, watched closely.

Much cheaper than a whole build, and stricter in one respect: arena and outputs lie between guard
bytes, the arena is full of NaN before a run, and the caller's tensors are aligned to an element
only.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import aotgen
from aotgen.runner.instance import Library

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror")
GUARD = 256
POISON = 0xFF
"""A byte that makes a NaN of any float; four of them are -1 as an integer."""


class _View(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("ndim", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("dims", ctypes.c_int32 * 8),
        ("strides", ctypes.c_int32 * 8),
    )


_TRACE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(_View), ctypes.c_uint64
)


class Watched:
    """``size`` bytes between guards, at an address that is ``align`` * odd."""

    def __init__(self, size: int, align: int) -> None:
        self._raw = np.full(size + 2 * GUARD + 128, POISON, np.uint8)
        start = -(self._raw.ctypes.data + GUARD) % 128 + GUARD
        self._start = start + align % 128
        self._stop = self._start + size

    @property
    def bytes(self) -> np.ndarray:
        return self._raw[self._start : self._stop]

    @property
    def address(self) -> int:
        return int(self._raw.ctypes.data) + self._start

    def check(self, name: str) -> None:
        outside = (self._raw[: self._start], self._raw[self._stop :])
        assert all((part == POISON).all() for part in outside), f"{name}: written outside"


def array_of(watched: Watched, like: dict) -> np.ndarray:
    return np.frombuffer(watched.bytes.tobytes(), like["dtype"]).reshape(like["shape"])


class QuickModel:
    """A project compiled with ``weights="bin"``, as a shared object."""

    def __init__(
        self, project: aotgen.Project, compiler: str = "gcc", level: str = "-O1", extra: tuple = ()
    ) -> None:
        self.manifest = project.manifest
        folder = project.folder
        # A new name for each build: dlopen knows libraries by path.
        library = Path(tempfile.mkdtemp(dir=folder)) / "quick.so"
        command = [compiler, level, *STRICT, *project.board.cflags(compiler), *extra]
        command += ["-fPIC", "-shared", f"-I{folder}/include", f"-I{folder}/src"]
        command += [f"-D{self.manifest['prefix'].upper()}_TRACE"]
        kernels = sorted((folder / "src").glob("kernels_*.c"))
        together = folder / "quick.c"  # the intrinsics' headers are read once instead of per file
        together.write_text("".join(f'#include "{p.name}"\n' for p in kernels))
        others = sorted(set((folder / "src").glob("*.c")) - set(kernels))
        command += [str(p) for p in (together, *others)]
        done = subprocess.run([*command, "-lm", "-o", str(library)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        self.functions = Library(library, self.manifest["prefix"])
        self.library = ctypes.CDLL(str(library))
        self.weights = Watched(self.manifest["weights_bytes"], 64)
        stored = (folder / "src/weights.bin").read_bytes()[: self.manifest["weights_bytes"]]
        self.weights.bytes[:] = np.frombuffer(stored, np.uint8)
        self.arena = Watched(self.manifest["arena_bytes"], 64)
        self.state = Watched(self.manifest["state_bytes"], 64)
        self.context = Watched(self.manifest["api"]["ctx_bytes"], 64)
        self.traced: dict[int, list[tuple[tuple[int, ...], bytes]]] = {}
        self._callback = _TRACE(self._keep)
        members = {
            "arena": self.arena.address,
            "state": self.state.address,
            "weights": self.weights.address,
            "trace": ctypes.cast(self._callback, ctypes.c_void_p).value,
        }
        config = (ctypes.c_void_p * len(self.manifest["api"]["config"]))(
            *(members.get(name) for name in self.manifest["api"]["config"])
        )
        assert self.functions.init(self.context.address, ctypes.addressof(config)) == 0

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in model order; asserts that nothing else was written.

        ``traced`` has every layer's (dims, dense bytes) afterwards, one an output: of a layer that
        computes by rows its pieces put together.
        """
        self.traced.clear()
        self.arena.bytes[:] = POISON
        given = []
        for tensor in self.manifest["inputs"]:
            data = np.ascontiguousarray(feeds[tensor["name"]], tensor["dtype"])
            watched = Watched(data.nbytes, data.itemsize)
            watched.bytes[:] = np.frombuffer(data.tobytes(), np.uint8)
            given.append((tensor["name"], watched, data.tobytes()))
        wanted = [
            Watched(t["bytes"], int(np.dtype(t["dtype"]).itemsize))
            for t in self.manifest["outputs"]
        ]
        status = self.functions.run(
            self.context.address,
            _pointers([w for _, w, _ in given]),
            _pointers(wanted),
        )
        assert status == 0
        for name, watched, before in given:
            watched.check(name)
            assert watched.bytes.tobytes() == before, f"input {name} was changed"
        for tensor, watched in zip(self.manifest["outputs"], wanted, strict=True):
            watched.check(tensor["name"])
        self.arena.check("arena")
        self.state.check("state")
        self.weights.check("weights")
        return [array_of(w, t) for w, t in zip(wanted, self.manifest["outputs"], strict=True)]

    def reset(self) -> None:
        """Back to the initial state."""
        self.functions.reset(self.context.address)
        self.state.check("state")

    def run_in_arena(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The same with every tensor in its slot in the arena."""
        self.traced.clear()
        self.arena.bytes[:] = POISON
        context, prefix = self.context.address, self.manifest["prefix"]
        slot_of = {}
        for role in ("input", "output"):
            function = getattr(self.library, f"{prefix}_{role}")
            function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]
            slot_of[role] = function
        for number, tensor in enumerate(self.manifest["inputs"]):
            data = np.ascontiguousarray(feeds[tensor["name"]], tensor["dtype"]).tobytes()
            ctypes.memmove(slot_of["input"](context, number), data, len(data))
        assert self.functions.run(context, None, None) == 0
        self.arena.check("arena")
        found = []
        for number, tensor in enumerate(self.manifest["outputs"]):
            data = ctypes.string_at(slot_of["output"](context, number), tensor["bytes"])
            found.append(np.frombuffer(data, tensor["dtype"]).reshape(tensor["shape"]))
        return found

    def _keep(self, user: int, layer: int, view: Any, ticks: int) -> None:
        v = view.contents
        dims, strides = tuple(v.dims[: v.ndim]), tuple(v.strides[: v.ndim])
        extent = 1 + sum((d - 1) * s for d, s in zip(dims, strides, strict=True))
        flat = np.frombuffer(ctypes.string_at(v.data, extent * v.bytes), f"V{v.bytes}")
        steps = tuple(s * v.bytes for s in strides)
        array = np.lib.stride_tricks.as_strided(flat, dims, steps)
        outputs, data = self.traced.setdefault(layer, []), array.tobytes()
        if outputs and self.manifest["layers"][layer]["by_rows"]:  # the next rows of one output
            before, above = outputs.pop()
            dims, data = (dims[0], before[1] + dims[1], *dims[2:]), above + data
        outputs.append((dims, data))


def _pointers(buffers: list[Watched]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(len(buffers), 1))(*(b.address for b in buffers))


def assert_close(got: np.ndarray, expected: np.ndarray, name: str, tolerance: float = 1e-4) -> None:
    """Equal NaNs and infinities; floats within ``tolerance`` of the largest, all else equal."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape, f"{name}: {got.shape} instead of {expected.shape}"
    assert got.dtype == expected.dtype, f"{name}: {got.dtype} instead of {expected.dtype}"
    if expected.dtype.kind != "f":
        assert np.array_equal(got, expected), f"{name}: {np.sum(got != expected)} differ"
        return
    finite = np.isfinite(expected)
    assert np.array_equal(np.isnan(got), np.isnan(expected)), f"{name}: NaN differ"
    assert np.array_equal(got[~finite], expected[~finite], equal_nan=True), f"{name}: inf differ"
    if finite.any():
        a, b = got[finite].astype(np.float64), expected[finite].astype(np.float64)
        error = np.max(np.abs(a - b)) / max(float(np.max(np.abs(b))), 1e-30)
        assert error <= tolerance, f"{name}: relative error {error:.3g}"
