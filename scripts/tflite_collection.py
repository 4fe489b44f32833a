"""The .tflite models of a collection, and how the outputs of a project of one compare.

Under ``--requant litert`` the stored outputs, which LiteRT's reference kernels gave, are what to
reach; under ``--requant tflm`` those that the tflite-micro wheel gives for the stored inputs. A
model that computes in 8-bit integers must reach them byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aotgen.options import RequantMode
from scripts.model_collection import Array, Error, StoredModel, collection, raw_collection
from tests.oracles import OracleLacks, tflm

MODES: tuple[RequantMode, ...] = ("litert", "tflm")
INTEGER = ("int8", "uint8")
"""Kinds of models that compute in integers, whatever their inputs and outputs are."""

WEAK = {
    "person_detect": "LiteRT refuses the file; the stored outputs are the tflite-micro wheel's",
    "selfie_segmentation_fp16": "the reference kernels lack its custom operator; the stored outputs"
    " are XNNPACK's",
}
"""Models whose stored outputs are not those of LiteRT's reference kernels, by file name."""


@dataclass(frozen=True)
class Comparison:
    """The outputs of a project against a reference, over all outputs and steps.

    Attributes:
        reference: "stored" or "wheel".
        exact: whether each is the same, byte for byte.
        errors: of each output and step; what is allowed is 0 where they must be the same.
    """

    reference: str
    exact: bool
    errors: tuple[Error, ...]

    @property
    def wrong(self) -> list[Error]:
        return [e for e in self.errors if not e.is_fine]


def tflite_models(folder: Path) -> list[StoredModel]:
    """All .tflite models of a collection, those of its folders of raw arrays at the end."""
    found = list(collection(folder, ".tflite"))
    for index in sorted(folder.glob("*/refs/refs.json")):
        found += raw_collection(index.parent.parent)
    return found


def must_be_exact(model: StoredModel) -> bool:
    return model.kind in INTEGER


def wheel_outputs(model: StoredModel) -> list[list[Array]] | None:
    """What the tflite-micro wheel gives in each step; None when it does not run the model."""
    fed = [array for step in range(model.steps) for array in model.inputs(step)]
    try:
        flat = tflm(model.path.read_bytes(), fed, model.steps)
    except OracleLacks:
        return None
    count = len(flat) // model.steps
    return [flat[i * count : (i + 1) * count] for i in range(model.steps)]


def compare(
    model: StoredModel, mode: RequantMode, outputs: Sequence[Sequence[Array]]
) -> Comparison:
    """Compare what a project compiled with ``--requant mode`` gave in each step."""
    wheel = wheel_outputs(model) if mode == "tflm" else None
    errors = []
    for step, got in enumerate(outputs):
        if wheel is None:
            errors += model.errors(got, step)
        else:
            errors += model.errors_against(got, wheel[step], step)
    if must_be_exact(model):
        errors = [Error(e.output, e.worst, 0.0) for e in errors]
    exact = all(e.worst == 0 for e in errors)
    return Comparison("stored" if wheel is None else "wheel", exact, tuple(errors))


def weakness(model: StoredModel) -> str:
    """Why the stored outputs prove less than those of other models, or an empty string."""
    return WEAK.get(model.path.stem, "")
