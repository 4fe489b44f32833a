"""CompileOptions: what a user may choose about a compilation, checked once."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

from aotgen.codegen.names import is_reserved
from aotgen.errors import UsageError

Weights = Literal["c", "asm", "bin"]
Device = Literal["cpu", "gpu", "auto"]
Optimize = Literal["speed", "ram", "flash"]
RequantMode = Literal["tflm", "litert"]
IoType = Literal["native", "float"]

MAX_OPT_LEVEL = 4
MAX_THREADS = 64


@dataclass(frozen=True)
class CompileOptions:
    """The options of ``aotgen compile``.

    Attributes:
        opt_level: 0 to 4; which passes run (docs/architecture.md has the table).
        disabled_passes: names of passes to leave out.
        weights: "asm" includes src/weights.bin with ``.incbin``; "c" is a plain C array; "bin"
            leaves the weights in a file that the application maps or reads and passes in
            ``config.weights``.
        threads: most threads that one run may use.
        device: where kernels run; "auto" takes the GPU where the board has one.
        prefix: of every public symbol; None derives it from the model's file name.
        optimize: what to prefer where speed, RAM and code size disagree.
        requant: of a .tflite file, whose integer arithmetic it gets, byte for byte: TFLite Micro's
            or that of LiteRT's reference kernels; None is "tflm". ONNX defines its own, which
            leaves only None.
        io_type: "float" turns quantized inputs and outputs into float32 ones.
        shapes: shape of an input by its name, for inputs whose shape the file leaves open.
        dims: value of a symbolic dimension by its name.
        journal: path of a tuning journal whose records to use; None is the one that comes with the
            board, if any, and "none" is none.
        stream: new frames that a run reads of a model over a window of time, whose other frames
            wait in the state buffer; None leaves the model as it is.
        time_axis: of the inputs of such a model, in the file's own layout; None for the first axis
            that is longer than 1, channels last.
    """

    opt_level: int = 3
    disabled_passes: tuple[str, ...] = ()
    weights: Weights = "asm"
    threads: int = 1
    device: Device = "cpu"
    prefix: str | None = None
    optimize: Optimize = "speed"
    requant: RequantMode | None = None
    io_type: IoType = "native"
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    journal: str | None = None
    stream: int | None = None
    time_axis: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.opt_level <= MAX_OPT_LEVEL:
            raise UsageError(
                f"opt level {self.opt_level} does not exist", remedy=f"use 0 to {MAX_OPT_LEVEL}"
            )
        if not 1 <= self.threads <= MAX_THREADS:
            raise UsageError(
                f"{self.threads} threads are not possible", remedy=f"use 1 to {MAX_THREADS}"
            )
        if self.stream is not None and self.stream < 1:
            raise UsageError(
                f"--stream {self.stream} is no number of frames", remedy="use 1 or more"
            )
        if self.time_axis is not None and (self.stream is None or self.time_axis < 0):
            raise UsageError(f"--time-axis {self.time_axis} needs --stream, and counts from 0 on")
        _one_of("weights", self.weights, get_args(Weights))
        _one_of("device", self.device, get_args(Device))
        _one_of("optimize", self.optimize, get_args(Optimize))
        _one_of("io type", self.io_type, get_args(IoType))
        if self.requant is not None:
            _one_of("requant mode", self.requant, get_args(RequantMode))
        if self.prefix is not None and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,39}", self.prefix):
            raise UsageError(
                f"prefix {self.prefix!r} cannot start C names",
                remedy="use a letter, then at most 39 letters, digits or underscores",
            )

        if self.prefix is not None and is_reserved(self.prefix):
            raise UsageError(
                f"prefix {self.prefix!r} names a system header, a library or a build target",
                remedy="choose another",
            )

    def as_manifest(self) -> dict[str, Any]:
        """JSON-ready form for manifest.json; ``from_manifest`` reads it back. What was used of a
        journal is recorded elsewhere; where it lay is nobody's business.
        """
        data = asdict(self)
        del data["journal"]
        data["disabled_passes"] = list(self.disabled_passes)
        data["shapes"] = {name: list(shape) for name, shape in sorted(self.shapes.items())}
        data["dims"] = dict(sorted(self.dims.items()))
        return data

    @classmethod
    def from_manifest(cls, data: dict[str, Any]) -> CompileOptions:
        """The options a manifest records; keys that this version does not know are ignored."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["disabled_passes"] = tuple(known.get("disabled_passes", ()))
        known["shapes"] = {name: tuple(s) for name, s in known.get("shapes", {}).items()}
        return cls(**known)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(
            f"{option} {value!r} does not exist", remedy=f"use one of {', '.join(allowed)}"
        )


def as_weights(text: str) -> Weights:
    """``text`` as a value of the weights option; UsageError when it is none."""
    _one_of("weights", text, get_args(Weights))
    return cast(Weights, text)


def as_device(text: str) -> Device:
    """``text`` as a value of the device option; UsageError when it is none."""
    _one_of("device", text, get_args(Device))
    return cast(Device, text)


def as_optimize(text: str) -> Optimize:
    """``text`` as a value of the optimize option; UsageError when it is none."""
    _one_of("optimize", text, get_args(Optimize))
    return cast(Optimize, text)


def as_requant(text: str) -> RequantMode:
    """``text`` as a value of the requant option; UsageError when it is none."""
    _one_of("requant mode", text, get_args(RequantMode))
    return cast(RequantMode, text)


def as_io_type(text: str) -> IoType:
    """``text`` as a value of the io_type option; UsageError when it is none."""
    _one_of("io type", text, get_args(IoType))
    return cast(IoType, text)
