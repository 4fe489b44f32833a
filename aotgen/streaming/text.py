"""What a streaming model's runs read and give, in words: for header, README and summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aotgen.ir.graph import StreamInfo, StreamOutput


def from_manifest(data: Mapping[str, Any]) -> StreamInfo:
    """``manifest.json``'s record of it."""
    outputs = tuple(StreamOutput(**entry) for entry in data["outputs"])
    return StreamInfo(data["frames"], data["window"], outputs)


def stream_text(info: StreamInfo, names: Sequence[str]) -> list[str]:
    """A sentence about the runs, then one an output.

    Args:
        info: of the graph.
        names: of the outputs, in their order.
    """
    new = _count(info.frames, "new frame")
    first = f"A run reads {new}; the model's window is {_count(info.window, 'frame')}."
    return [first, *(_output(o, n) for o, n in zip(info.outputs, names, strict=True))]


def _output(output: StreamOutput, name: str) -> str:
    word = "late" if output.latency > 0 else "early"
    late = f", {_count(abs(output.latency), 'frame')} {word}" if output.latency else ""
    if output.axis is None or output.rows is None:
        return f"{name}: that of the last window{late}."
    text = f"{name}: {_count(output.rows, 'new row')} along axis {output.axis}{late}"
    if output.delay:
        text += f"; row j of all runs is row j - {output.delay} of the model"
    return f"{text}."


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"
