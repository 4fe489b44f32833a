"""manifest.json of a generated project, read for build, run, bench and validate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from aotgen.errors import UsageError
from aotgen.ir.types import Array, DType
from aotgen.options import CompileOptions
from aotgen.target.target import Isa

MANIFEST = "manifest.json"

MODELS_FOLDER = "models"
"""Of a bundle: has a folder for each model, which is a project but for its library."""

FORMAT = 2
"""Version of manifest.json and of where things lie in a project or a bundle; another is refused."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of a project.

    Attributes:
        name: in the model file.
        dtype: element type.
        shape: in the model file's own layout.
        quantized: whether it has a scale and a zero point, so that all integers make sense.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    quantized: bool = False

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return self.dtype.numpy

    @property
    def nbytes(self) -> int:
        """Bytes of one dense tensor."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.size

    def __str__(self) -> str:
        return f"{self.dtype.value}[{'x'.join(map(str, self.shape)) or 'scalar'}]"


@dataclass(frozen=True)
class Layer:
    """One kernel call.

    Attributes:
        index: its number in the trace.
        name: of the Group.
        outputs: names of the values that it computes, in the order of its records in a trace.
        origin: the model file's nodes that it does the work of.
        weights_crc: CRC-32 of its packed weights as 8 hex digits, empty when it has none.
        by_rows: whether a trace has its output in pieces, some rows each.
    """

    index: int
    name: str
    outputs: tuple[str, ...]
    origin: tuple[str, ...]
    weights_crc: str
    by_rows: bool = False

    def __str__(self) -> str:
        nodes = f" (from {', '.join(self.origin)})" if self.origin else ""
        return f"layer {self.index}, {self.name}{nodes}"


@dataclass(frozen=True)
class Api:
    """Sizes and order of the C API's structs.

    Attributes:
        ctx_bytes: size of the context.
        config: the members of the config struct in order, all pointers.
        arena_bytes: scratch that a run needs.
        arena_align: its alignment.
        state_bytes: memory that lives from step to step.
        threads: most threads of a run.
        pool_bytes: of a pool of threads; 0 where a run has one.
    """

    ctx_bytes: int
    config: tuple[str, ...]
    arena_bytes: int
    arena_align: int
    state_bytes: int
    threads: int
    pool_bytes: int


class Manifest:
    """The manifest of the project in ``folder``; ``data`` is the whole of it.

    Attributes:
        bundle: prefix of what the project's library shares with other models; None: nothing.
        root: folder with the library's include/ and src/, and its toolchain file.
        weights_file: the weights as bytes, unless they are C.
    """

    def __init__(self, folder: Path, data: dict[str, Any]) -> None:
        self.folder = folder
        self.data = data
        try:
            bundle = data.get("bundle")
            self.bundle = None if bundle is None else str(bundle)
            if self.bundle is not None and "models" in data:
                raise _no_model_named(folder, data)
            self.root = folder if self.bundle is None else folder.resolve().parent.parent
            self.prefix = str(data["prefix"])
            weights = "weights" if self.bundle is None else f"{self.prefix}_weights"
            self.weights_file = self.root / "src" / f"{weights}.bin"
            self.board_name = str(data["board"])
            self.isa = as_isa(data["isa"])
            self.options = CompileOptions.from_manifest(data["options"])
            self.inputs = tuple(_tensor(t) for t in data["inputs"])
            self.outputs = tuple(_tensor(t) for t in data["outputs"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{folder / MANIFEST} is not a manifest of this version of aotgen ({error!r})",
                remedy="compile the model again",
            ) from error

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(
            Layer(
                index=int(entry["index"]),
                name=str(entry["name"]),
                outputs=tuple(entry["outputs"]),
                origin=tuple(entry.get("origin", ())),
                weights_crc=str(entry.get("weights_crc") or ""),
                by_rows=bool(entry.get("by_rows", False)),
            )
            for entry in self.data["layers"]
        )

    @cached_property
    def api(self) -> Api:
        api = self.data["api"]
        return Api(
            ctx_bytes=int(api["ctx_bytes"]),
            config=tuple(api["config"]),
            arena_bytes=int(self.data["arena_bytes"]),
            arena_align=int(api["arena_align"]),
            state_bytes=int(self.data["state_bytes"]),
            threads=int(api.get("threads", 1)),
            pool_bytes=int(api.get("pool_bytes", 0)),
        )

    def checked_inputs(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The inputs of one step as dense arrays of the declared types, in model order.

        Raises:
            UsageError: one is missing, unknown, or of the wrong shape or type.
        """
        names = [t.name for t in self.inputs]
        for name in inputs:
            if name not in names:
                raise UsageError(
                    f"the model has no input {name!r}", remedy=f"its inputs are {', '.join(names)}"
                )
        return [_checked(t, inputs) for t in self.inputs]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a project.

    Raises:
        UsageError: ``folder`` holds no project of aotgen, or one of another format.
    """
    return Manifest(folder, read_json(folder))


def model_folder(folder: Path, model: str | None) -> Path:
    """The folder of one of a bundle's models; a project alone has its own.

    Args:
        folder: of the bundle.
        model: prefix of the model's symbols; None is the only one.

    Raises:
        UsageError: ``folder`` holds nothing of aotgen or something of another format, no such
            model, or several and None is named.
    """
    data = read_json(folder)
    if model is None:
        if "models" not in data:
            return folder
        if len(data["models"]) > 1:
            raise _no_model_named(folder, data)
        model = bundled_models(data)[0]
    if "models" not in data:
        if data.get("prefix") == model:
            return folder
        raise UsageError(
            f"{folder} is the project of {data.get('prefix')}, no bundle with a model {model!r}",
            remedy="leave out --model",
        )
    names = bundled_models(data)
    if model not in names:
        raise UsageError(
            f"bundle {folder} has no model {model!r}", remedy=f"its models are {', '.join(names)}"
        )
    return folder / MODELS_FOLDER / model


def is_bundle(folder: Path) -> bool:
    """Whether ``folder`` holds several models of aotgen as one library."""
    return (folder / MANIFEST).is_file() and "models" in read_own_json(folder)


def bundled_models(data: Mapping[str, Any]) -> list[str]:
    """The prefixes of the models in a bundle's manifest."""
    return [str(entry["prefix"]) for entry in data["models"]]


def _no_model_named(folder: Path, data: Mapping[str, Any]) -> UsageError:
    names = bundled_models(data)
    return UsageError(
        f"{folder} is a bundle of {len(names)} models: name one",
        remedy=f"--model {' or '.join(names)}",
    )


def read_json(folder: Path) -> dict[str, Any]:
    """manifest.json of a project or a bundle.

    Raises:
        UsageError: ``folder`` holds neither, or one of another format.
    """
    data = read_own_json(folder)
    if data.get("format") != FORMAT:
        raise UsageError(
            f"{folder / MANIFEST} has format {data.get('format')!r}, this aotgen reads {FORMAT}",
            remedy=f"compile the model again, or use aotgen {data['tool'].get('version')}",
        )
    return data


def read_own_json(folder: Path) -> dict[str, Any]:
    """manifest.json of a project that any version of aotgen wrote.

    Raises:
        UsageError: ``folder`` holds no project of aotgen.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{folder} is not a project of aotgen: cannot read {MANIFEST} ({error.strerror})",
            remedy="name a folder that `aotgen compile` made",
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    tool = data.get("tool") if isinstance(data, dict) else None
    if not isinstance(tool, dict) or tool.get("name") != "aotgen":
        raise UsageError(f"{path} was not written by aotgen")
    return dict(data)


def as_isa(text: str) -> Isa:
    """``text`` as an instruction set; ValueError when it is none."""
    if text not in get_args(Isa):
        raise ValueError(text)
    return cast(Isa, text)


def _tensor(entry: dict[str, Any]) -> Tensor:
    return Tensor(
        str(entry["name"]),
        DType.of(entry["dtype"]),
        tuple(int(d) for d in entry["shape"]),
        entry.get("quant") is not None,
    )


def _checked(tensor: Tensor, inputs: Mapping[str, Array]) -> Array:
    if tensor.name not in inputs:
        raise UsageError(f"input {tensor.name!r} ({tensor}) is missing")
    array = np.asarray(inputs[tensor.name])
    if array.shape != tensor.shape:
        raise UsageError(
            f"input {tensor.name!r} has shape {array.shape}, the model wants {tensor.shape}"
        )
    if not np.can_cast(array.dtype, tensor.numpy, "same_kind"):
        raise UsageError(f"input {tensor.name!r} is {array.dtype}, the model wants {tensor.numpy}")
    return np.ascontiguousarray(array, tensor.numpy).reshape(tensor.shape)
