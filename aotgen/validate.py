"""Compares a built project with the reference interpreter, output by output and layer by layer.

The project carries the model file it was compiled from. Outputs are compared with that model
interpreted as it was read, before any pass but legalize_f16, which says where a model rounds to
fp16; layers with the same model after the passes of the project's own options. A layer's weights
are also compared by checksum, since a changed bit of a weight may be too small to see in the
results. A model with state is compared over several steps of one instance; the worst one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aotgen.errors import BoardError
from aotgen.ir.types import Array
from aotgen.loading import load_for
from aotgen.manifest import Layer, Manifest
from aotgen.trace import TraceRecord

if TYPE_CHECKING:
    from aotgen.bench_result import Cores
    from aotgen.ir.graph import Graph, Value
    from aotgen.project import PlaceSpec, Project

DEFAULT_TOLERANCE = 1e-4

STEPS = 4
"""Successive steps that are compared of a model with state, unless inputs are given."""

MOST_STEPS = 32
"""Of a streaming model as many as fill its window, but no more than this."""

_INPUT_SEED = 20240229


@dataclass(frozen=True)
class Difference:
    """How far a tensor is from its reference.

    Attributes:
        name: of the output, or of the value a layer computes.
        max_abs: largest |a - b|.
        relative: max|a - b| / max|b|; infinite when one is NaN where the other is not.
    """

    name: str
    max_abs: float
    relative: float


@dataclass(frozen=True)
class LayerCheck:
    """One kernel call compared.

    Attributes:
        index: its number.
        name: of the Group.
        origin: the model file's nodes.
        difference: of what it computes; None when the passes left no value of that name to compare
            with.
        weights_ok: whether the checksum of its weights is the manifest's; None when it has none.
        ok: whether both are fine.
    """

    index: int
    name: str
    origin: tuple[str, ...]
    difference: Difference | None
    weights_ok: bool | None
    ok: bool

    def reason(self) -> str:
        """What is wrong, or an empty string."""
        if self.weights_ok is False:
            return "its weights differ from the compiled ones (checksum)"
        if not self.ok and self.difference is not None:
            return f"its output is off by {self.difference.relative:.3g}"
        return ""


@dataclass(frozen=True)
class ValidateReport:
    """Result of a validation.

    Attributes:
        outputs: in model order.
        layers: in execution order; empty unless asked for.
        tolerance: the limit for ``Difference.relative``.
    """

    outputs: tuple[Difference, ...]
    layers: tuple[LayerCheck, ...]
    tolerance: float

    @property
    def ok(self) -> bool:
        fits = all(d.relative <= self.tolerance for d in self.outputs)
        return fits and self.first_bad_layer is None

    @property
    def first_bad_layer(self) -> LayerCheck | None:
        """The first layer with wrong weights, else the first with a wrong result."""
        for layer in self.layers:
            if layer.weights_ok is False:
                return layer
        return next((layer for layer in self.layers if not layer.ok), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        bad = self.first_bad_layer
        return {
            "ok": self.ok,
            "tolerance": self.tolerance,
            "outputs": [asdict(d) for d in self.outputs],
            "layers": [asdict(layer) for layer in self.layers],
            "first_bad_layer": bad.index if bad else None,
        }


def model_file(folder: Path) -> Path:
    """The model that the project in ``folder`` was compiled from."""
    tflite = folder / "test" / "model.tflite"
    return tflite if tflite.is_file() else folder / "test" / "model.onnx"


def validate(
    project: Project,
    inputs: Sequence[Mapping[str, Array]] | None,
    per_layer: bool,
    runner: PlaceSpec,
    tolerance: float,
    threads: int = 1,
    cores: Cores | None = None,
) -> ValidateReport:
    """See ``Project.validate``; ``inputs`` are successive steps."""
    from aotgen.ir import interpreter
    from aotgen.loading import optimise
    from aotgen.passes.legalize_f16 import LegalizeF16

    info = project.info
    graph = load_for(model_file(project.folder), info.options)
    LegalizeF16().run(graph)
    drawn = random_inputs(info, steps_of(graph)) if inputs is None else inputs
    instance = interpreter.Instance(graph)
    steps: list[dict[str, Array]] = []
    expected: list[dict[str, Array]] = []
    for given in drawn:
        ordered = info.checked_inputs(given)
        feeds = {t.name: a for t, a in zip(info.inputs, ordered, strict=True)}
        if inputs is None:
            feeds, outputs = interpreter.run_drawn(instance, feeds)
        else:
            outputs = instance.step(feeds)
        steps.append(feeds)
        expected.append(outputs)
    if not per_layer:
        got = project.run_steps(steps, runner, threads, cores)
        return ValidateReport(_compare_outputs(info, got, expected), (), tolerance)
    values = _layer_values(optimise(graph, info.options), info, steps)

    compared = _compared(info)

    def known(step: int, layer: int, output: int) -> Array | None:
        return values[step].get(compared[layer, output]) if (layer, output) in compared else None

    with project.placed(runner) as model:
        got, trace = model.trace(
            [info.checked_inputs(step) for step in steps], known, threads, cores
        )
        crcs = model.weight_crcs()
    layers = _compare_layers(info, values, trace, crcs, tolerance)
    return ValidateReport(_compare_outputs(info, got, expected), layers, tolerance)


def steps_of(graph: Graph) -> int:
    """How many successive steps of a model to compare."""
    if graph.stream is not None:
        window = -(-graph.stream.window // graph.stream.frames)
        return min(max(STEPS, window + 1), MOST_STEPS)
    return STEPS if graph.states else 1


def _compared(info: Manifest) -> dict[tuple[int, int], str]:
    """By layer and number of its output the value that it computes.

    Several copies may each write a part of one concatenation: the last one completes it.
    """
    last = {name: layer.index for layer in info.layers for name in layer.outputs}
    return {
        (layer.index, number): name
        for layer in info.layers
        for number, name in enumerate(layer.outputs)
        if last[name] == layer.index
    }


def _layer_values(
    graph: Graph, info: Manifest, steps: Sequence[Mapping[str, Array]]
) -> list[dict[str, Array]]:
    """For each step what the interpreter computes for the outputs of layers, by name."""
    from aotgen.ir import interpreter

    wanted = {name for layer in info.layers for name in layer.outputs}
    found: list[dict[str, Array]] = []

    def keep(value: Value, array: Array) -> None:
        if value.name in wanted:
            found[-1][value.name] = array

    instance = interpreter.Instance(graph)
    for feeds in steps:
        found.append({})
        instance.step(feeds, observe=keep)
    return found


def random_inputs(info: Manifest, steps: int = 1) -> list[dict[str, Array]]:
    """Seeded inputs of each step: floats from a standard normal distribution, quantized integers
    over their whole range, other integers and booleans 0 or 1.

    Integers stay small because they may be indices.
    """
    rng = np.random.default_rng(_INPUT_SEED)
    drawn: list[dict[str, Array]] = []
    for _ in range(steps):
        inputs: dict[str, Array] = {}
        for tensor in info.inputs:
            if tensor.dtype.is_float:
                inputs[tensor.name] = rng.standard_normal(tensor.shape).astype(tensor.numpy)
            elif tensor.quantized:
                bounds = np.iinfo(tensor.numpy.name)
                integers = rng.integers(bounds.min, bounds.max + 1, tensor.shape)
                inputs[tensor.name] = integers.astype(tensor.numpy)
            else:
                inputs[tensor.name] = rng.integers(0, 2, tensor.shape).astype(tensor.numpy)
        drawn.append(inputs)
    return drawn


def difference(name: str, got: Array, expected: Array) -> Difference:
    """How far ``got`` is from ``expected``; NaN equals NaN here, and two fp16 numbers next to each
    other are equal: what was rounded to them may have been.
    """
    a, b = got.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if got.dtype == np.float16 and expected.dtype == np.float16:
        with np.errstate(invalid="ignore", over="ignore"):
            same |= np.nextafter(got, expected) == expected
    if bool(same.all()):
        return Difference(name, 0.0, 0.0)
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
    worst = float(error.max())
    if not np.isfinite(worst):
        return Difference(name, float("inf"), float("inf"))
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max()) if finite.size else 0.0
    return Difference(name, worst, worst / scale if scale else float("inf"))


def _compare_outputs(
    info: Manifest,
    got: Sequence[Mapping[str, Array]],
    expected: Sequence[Mapping[str, Array]],
) -> tuple[Difference, ...]:
    """For each output the largest difference of any step."""
    return tuple(
        max(
            (difference(t.name, a[t.name], b[t.name]) for a, b in zip(got, expected, strict=True)),
            key=lambda d: d.relative,
        )
        for t in info.outputs
    )


def _compare_layers(
    info: Manifest,
    values: Sequence[Mapping[str, Array]],
    trace: list[TraceRecord],
    crcs: Mapping[int, str],
    tolerance: float,
) -> tuple[LayerCheck, ...]:
    """Check every layer of the manifest.

    Args:
        info: manifest of the project.
        values: for each step, by name what the interpreter computes for every value of the
            optimised graph.
        trace: of these steps.
        crcs: from the linked weights.
        tolerance: see ``ValidateReport``.
    """
    traced: dict[tuple[int, int], list[TraceRecord]] = {}
    for record in trace:
        traced.setdefault((record.step, record.layer), []).append(record)
    compared = _compared(info)
    checks = []
    for layer in info.layers:
        found = [
            _difference_of(name, record, known[name])
            for step, known in enumerate(values)
            for number, (name, record) in enumerate(
                zip(layer.outputs, traced.get((step, layer.index), ()), strict=False)
            )
            if name in known and (layer.index, number) in compared
        ]
        checks.append(_check_layer(layer, found, crcs, tolerance))
    return tuple(checks)


def _check_layer(
    layer: Layer, differences: list[Difference], crcs: Mapping[int, str], tolerance: float
) -> LayerCheck:
    """``differences``: of those outputs that could be compared; the worst one counts."""
    found = max(differences, key=lambda d: d.relative, default=None)
    weights_ok = None
    if layer.weights_crc:
        weights_ok = crcs.get(layer.index, "") == layer.weights_crc.lower()
    ok = weights_ok is not False and (found is None or found.relative <= tolerance)
    return LayerCheck(layer.index, layer.name, layer.origin, found, weights_ok, ok)


def _difference_of(name: str, record: TraceRecord, expected: Array) -> Difference:
    same_size = record.elem_bytes == expected.dtype.itemsize
    if not same_size or int(np.prod(record.shape, dtype=np.int64)) != expected.size:
        raise BoardError(
            f"the trace of layer {record.layer} has {record.shape} elements of"
            f" {record.elem_bytes} bytes where {name} has {expected.shape} of"
            f" {expected.dtype.itemsize}"
        )
    return difference(name, np.frombuffer(record.data, expected.dtype), expected.reshape(-1))
