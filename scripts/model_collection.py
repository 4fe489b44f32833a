"""A collection of real models with stored inputs and outputs: its index and its arrays.

The folder has ``models.json`` ({"models": [entry, ...]}) and a .npz beside each model. Of an entry
are read: ``name``, ``file``, ``format``, ``origin``, ``quant``, ``dim_binding``, ``inputs`` (name,
dtype, ref_shape), ``outputs`` (name, tol) and ``reference.steps``.

In the .npz input i is ``in{i}``, or ``in{i}_q`` with ``in{i}_aff`` = [scale, offset]: value = q *
scale + offset. Output j is ``out{j}``, or elements ``out{j}_val`` at flat positions ``out{j}_idx``.
Keys of later steps on one instance start with ``s1_``, ``s2_`` ...

A second kind of folder has ``refs/refs.json`` ({name: entry}, of an entry are read ``shape``,
``dtype``, ``out_shape``, ``out_dtype``), ``NAME.tflite``, and the raw arrays of several runs, one
after the other: ``refs/NAME.in.bin`` and ``refs/NAME.ref.bin``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import aotgen

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Error:
    """How far an output is from the stored one.

    Attributes:
        output: its name, with the step where there are several.
        worst: the largest absolute difference; infinite when shapes, types, NaN or infinities
            differ.
        tolerance: what is allowed.
    """

    output: str
    worst: float
    tolerance: float

    @property
    def is_fine(self) -> bool:
        return self.worst <= self.tolerance


@dataclass(frozen=True)
class StoredModel:
    """One model of the collection."""

    entry: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        return str(self.entry["name"])

    @property
    def path(self) -> Path:
        return self.folder / str(self.entry["file"])

    @property
    def kind(self) -> str:
        """How it computes: fp32, fp16, qdq-int8, dynamic-range, tree ..."""
        return str(self.entry["quant"])

    @property
    def origin(self) -> str:
        """Where the file comes from, in a line."""
        origin = self.entry["origin"]
        if "source" in origin:
            return f"{origin['source']}, by {origin['tool']}"
        return str(origin.get("repo") or origin.get("archive") or origin["tool"])

    @property
    def steps(self) -> int:
        return int(self.entry["reference"].get("steps", 1))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that the stored inputs have, by the model's own input names; an input without
        a name has the shape that its file gives it.
        """
        return {t["name"]: tuple(t["ref_shape"]) for t in self.entry["inputs"] if t["name"]}

    @contextmanager
    def arrays(self) -> Iterator[Mapping[str, Array]]:
        """The stored inputs and outputs by key."""
        with np.load(self.path.with_suffix(".npz")) as stored:
            yield stored

    def inputs(self, step: int = 0) -> list[Array]:
        """The inputs of a step, in the model's order."""
        with self.arrays() as stored:
            return [
                _input(stored, f"{_prefix(step)}in{i}", tensor)
                for i, tensor in enumerate(self.entry["inputs"])
            ]

    def feeds(self, project: aotgen.Project, step: int = 0) -> dict[str, Array]:
        """The inputs of a step, by the names that a project of the model has for them."""
        names = [tensor.name for tensor in project.info.inputs]
        return dict(zip(names, self.inputs(step), strict=True))

    def errors(self, outputs: Sequence[Array], step: int = 0) -> list[Error]:
        """The outputs of a step, in the model's order, against the stored ones."""
        with self.arrays() as stored:
            return [
                self._error(stored, got, step, j, tensor)
                for j, (got, tensor) in enumerate(zip(outputs, self.entry["outputs"], strict=True))
            ]

    def errors_against(
        self, outputs: Sequence[Array], reference: Sequence[Array], step: int = 0
    ) -> list[Error]:
        """The outputs of a step against those of another run of the model, all of them alike where
        the stored ones are exact.
        """
        return [
            self._error({f"{_prefix(step)}out{j}": want}, got, step, j, tensor)
            for j, (got, want, tensor) in enumerate(
                zip(outputs, reference, self.entry["outputs"], strict=True)
            )
        ]

    def _error(
        self, stored: Mapping[str, Array], got: Array, step: int, j: int, tensor: Mapping[str, Any]
    ) -> Error:
        key = f"{_prefix(step)}out{j}"
        name = f"{tensor['name']} (step {step})" if self.steps > 1 else str(tensor["name"])
        tolerance = 0.0 if tensor.get("exact_ref") else float(tensor["tol"])
        if key in stored:
            want = stored[key]
            same = got.shape == want.shape and got.dtype == want.dtype
        else:
            want = stored[f"{key}_val"]
            positions = stored[f"{key}_idx"]
            same = got.dtype == want.dtype and int(positions.max()) < got.size
            got = got.reshape(-1)[positions] if same else got
        if not same:
            return Error(name, float("inf"), tolerance)
        return Error(name, _worst(got, want), tolerance)


def collection(folder: Path, suffix: str = ".onnx") -> Iterator[StoredModel]:
    """The models of a folder whose files end in ``suffix``, in the index's order."""
    index = json.loads((folder / "models.json").read_text(encoding="utf-8"))
    for entry in index["models"]:
        if str(entry["file"]).endswith(suffix):
            yield StoredModel(entry, folder)


@dataclass(frozen=True)
class RawModel(StoredModel):
    """A model whose arrays lie in raw files, one run after the other."""

    @contextmanager
    def arrays(self) -> Iterator[Mapping[str, Array]]:
        (given,), (wanted,) = self.entry["inputs"], self.entry["outputs"]
        fed = np.fromfile(self._raw("in"), given["dtype"]).reshape(-1, *given["ref_shape"])
        got = np.fromfile(self._raw("ref"), wanted["dtype"]).reshape(-1, *wanted["shape"])
        found: dict[str, Array] = {}
        for step, (x, y) in enumerate(zip(fed, got, strict=True)):
            found[f"{_prefix(step)}in0"] = x
            found[f"{_prefix(step)}out0"] = y
        yield found

    def _raw(self, what: str) -> Path:
        return self.folder / "refs" / f"{self.path.stem}.{what}.bin"


RELATIVE_TOLERANCE = 1e-4
"""Of a float output of a ``RawModel``, relative to the largest number of all runs."""


def raw_collection(folder: Path) -> Iterator[StoredModel]:
    """The models of a folder with ``refs/refs.json``, by name."""
    index = json.loads((folder / "refs" / "refs.json").read_text(encoding="utf-8"))
    for name, refs in sorted(index.items()):
        exact = refs["out_dtype"] != "float32"
        wanted = np.fromfile(folder / "refs" / f"{name}.ref.bin", refs["out_dtype"])
        yield RawModel(
            {
                "name": f"{folder.name}/{name}",
                "file": f"{name}.tflite",
                "quant": "int8" if exact else "fp32 inputs",
                "origin": {"repo": "mlcommons/tiny, tensorflow/tflite-micro"},
                "inputs": [
                    {
                        "name": _input_name(folder / f"{name}.tflite"),
                        "dtype": refs["dtype"],
                        "ref_shape": refs["shape"],
                    }
                ],
                "outputs": [
                    {
                        "name": "output",
                        "dtype": refs["out_dtype"],
                        "shape": refs["out_shape"],
                        "exact_ref": exact,
                        "tol": RELATIVE_TOLERANCE * float(np.abs(wanted.astype(np.float64)).max()),
                    }
                ],
                "reference": {"steps": wanted.size // int(np.prod(refs["out_shape"]))},
            },
            folder,
        )


def _input_name(path: Path) -> str:
    """The name of the only input of a .tflite file."""
    import tflite

    graph = tflite.Model.GetRootAsModel(path.read_bytes(), 0).Subgraphs(0)
    return str(graph.Tensors(graph.Inputs(0)).Name().decode())


def _prefix(step: int) -> str:
    return f"s{step}_" if step else ""


def _input(stored: Mapping[str, Array], key: str, tensor: Mapping[str, Any]) -> Array:
    dtype = _DTYPES[str(tensor["dtype"]).lower()]
    if key in stored:
        value = stored[key]
    else:
        scale, offset = (float(v) for v in stored[f"{key}_aff"])
        value = stored[f"{key}_q"].astype(np.float64) * scale + offset
    return np.ascontiguousarray(value, dtype).reshape(tensor["ref_shape"])


_DTYPES = {
    "float": np.float32,
    "float32": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bool": np.bool_,
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def _worst(got: Array, want: Array) -> float:
    """max|a - b| of finite elements; infinite when others differ."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    alike = np.array_equal(a[~finite], b[~finite], equal_nan=True) and np.isfinite(a[finite]).all()
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0)) if alike else float("inf")
