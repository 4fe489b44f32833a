"""One instance of a model in this process: a project's shared library, called through ctypes.

Each instance has its own context, arena and state, so several may run at the same time; one
instance runs one step at a time.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from aotgen.errors import BoardError, UsageError
from aotgen.ir.types import Array
from aotgen.manifest import Manifest

_BUFFER_ALIGN = 64


class Library:
    """A project's shared library and the three functions of its API that matter here."""

    def __init__(self, path: Path, prefix: str, bundle: str | None = None) -> None:
        """
        Args:
            path: of lib<prefix>_shared.so.
            prefix: of its symbols.
            bundle: prefix of those that it shares with other models; None: it shares none.

        Raises:
            BoardError: this process cannot load it.
        """
        # dlopen knows libraries by path, so a rebuilt one must be opened under a new name to be
        # seen at all.
        with tempfile.TemporaryDirectory(prefix="aotgen-") as folder:
            copy = Path(folder) / path.name
            try:
                shutil.copyfile(path, copy)
                library = ctypes.CDLL(str(copy))
            except OSError as error:
                raise BoardError(f"cannot load {path.name}: {error}") from error
        self.init = getattr(library, f"{prefix}_init")
        self.run = getattr(library, f"{prefix}_run")
        self.reset = getattr(library, f"{prefix}_reset")
        self.strerror = getattr(library, f"{prefix}_strerror")
        # Only a GPU project has these.
        self.release = getattr(library, f"{prefix}_release", None)
        self.cl_open = getattr(library, f"{prefix}_cl_open", None)
        self.cl_close = getattr(library, f"{prefix}_cl_close", None)
        # Only a project for several threads has these.
        self.pool_open = getattr(library, f"{bundle or prefix}_pool_open", None)
        self.pool_close = getattr(library, f"{bundle or prefix}_pool_close", None)
        self.init.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.reset.argtypes = [ctypes.c_void_p]
        for function in (self.init, self.run):
            function.restype = ctypes.c_int
        self.strerror.argtypes = [ctypes.c_int]
        self.strerror.restype = ctypes.c_char_p
        for function in (self.release, self.cl_open, self.cl_close):
            if function is not None:
                function.argtypes = [ctypes.c_void_p]
        if self.cl_open is not None:
            self.cl_open.restype = ctypes.c_int
        if self.pool_open is not None and self.pool_close is not None:
            pointer = ctypes.c_void_p
            self.pool_open.argtypes = [pointer, ctypes.c_int, pointer, pointer]
            self.pool_open.restype = ctypes.c_int
            self.pool_close.argtypes = [pointer]


class Instance:
    """A model that is ready to run; successive steps keep its state."""

    def __init__(
        self,
        library: Library,
        manifest: Manifest,
        weights: Array | None = None,
        threads: int = 1,
    ) -> None:
        """
        Args:
            library: of the project.
            manifest: of the project.
            weights: the bytes of weights.bin when the library does not hold them.
            threads: that share a run, at most those that the project was compiled for.

        Raises:
            BoardError: the model's init function refuses, or a thread does not start.
        """
        api = manifest.api
        self._library = library
        self._manifest = manifest
        self._lock = threading.Lock()
        self._context = _aligned(max(api.ctx_bytes, 1), _BUFFER_ALIGN)
        self._buffers = {
            "arena": _aligned(api.arena_bytes, max(api.arena_align, _BUFFER_ALIGN)),
            "state": _aligned(api.state_bytes, _BUFFER_ALIGN),
        }
        if weights is not None:
            self._buffers["weights"] = _aligned(weights.size, _BUFFER_ALIGN)
            self._buffers["weights"][:] = weights
        self._open = False
        self._device = self._open_device()
        self._pool = self._open_pool(threads)
        pointers = [self._pointer(name) for name in api.config]
        config = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        status = library.init(self._context.ctypes.data, ctypes.addressof(config))
        if status < 0:
            self._close_pool()
            self._close_device()
        self._check(status, "init")
        self._open = True

    def step(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once.

        Args:
            inputs: by the model's own names, in the file's own layout.

        Returns:
            The outputs, likewise.

        Raises:
            UsageError: an input is missing, unknown, or of the wrong shape or type.
            BoardError: the model's run function reports an error.
        """
        given = self._manifest.checked_inputs(inputs)
        results = {t.name: np.empty(t.shape, t.numpy) for t in self._manifest.outputs}
        slots = [results[t.name] for t in self._manifest.outputs]
        with self._lock:
            if not self._open:
                raise UsageError("the instance is closed")
            status = self._library.run(
                self._context.ctypes.data, _pointers(given), _pointers(slots)
            )
        self._check(status, "run")
        return results

    def reset(self) -> None:
        """Forget the state of earlier steps."""
        with self._lock:
            self._library.reset(self._context.ctypes.data)

    def close(self) -> None:
        """End the instance's threads and give back what it holds of a GPU; it cannot run
        afterwards.
        """
        with self._lock:
            if self._open and self._library.release is not None:
                self._library.release(self._context.ctypes.data)
            self._open = False
            self._close_pool()
            self._close_device()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.close()

    def _open_pool(self, threads: int) -> Array | None:
        """What ``config.pool`` points at; None for one thread."""
        if threads == 1 or self._library.pool_open is None:
            return None
        pool = _aligned(self._manifest.api.pool_bytes, _BUFFER_ALIGN)
        status = self._library.pool_open(pool.ctypes.data, threads, None, None)
        self._check(status, "pool_open")
        return pool

    def _close_pool(self) -> None:
        if self._pool is not None and self._library.pool_close is not None:
            self._library.pool_close(self._pool.ctypes.data)
        self._pool = None

    def _open_device(self) -> ctypes.Array[ctypes.c_void_p] | None:
        """What ``config.cl`` points at: device, context and queue; None without a GPU."""
        if self._library.cl_open is None:
            return None
        device = (ctypes.c_void_p * 3)()
        if not self._library.cl_open(ctypes.addressof(device)):
            raise BoardError(
                "there is no OpenCL device",
                remedy="install an OpenCL driver (pocl-opencl-icd) or compile with --device cpu",
            )
        return device

    def _close_device(self) -> None:
        if self._device is not None and self._library.cl_close is not None:
            self._library.cl_close(ctypes.addressof(self._device))
        self._device = None

    def _pointer(self, name: str) -> int | None:
        """The member ``name`` of the config struct."""
        if name == "cl":
            return None if self._device is None else ctypes.addressof(self._device)
        buffer = self._pool if name == "pool" else self._buffers.get(name)
        return buffer.ctypes.data if buffer is not None and buffer.size else None

    def _check(self, status: int, verb: str) -> None:
        if status < 0:
            text = self._library.strerror(status) or b""
            name = f"{self._manifest.prefix}_{verb}"
            raise BoardError(f"{name} returned {status}: {text.decode(errors='replace')}")


def _aligned(size: int, align: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """``size`` zero bytes whose address is a multiple of ``align``."""
    raw = np.zeros(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size]


def _pointers(arrays: list[Array]) -> ctypes.Array[ctypes.c_void_p]:
    """The struct of pointers that run takes: one per tensor, in model order."""
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
