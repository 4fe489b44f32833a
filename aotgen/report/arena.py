"""Where the buffers of a model lie in its arena, and when: as a table, a chart and a picture."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotgen.report.picture import save
from aotgen.report.text import table

_SYMBOLS = string.ascii_letters + string.digits
_SCRATCH, _FREE = "#", "."
_NAME_WIDTH = 48


@dataclass(frozen=True)
class Buffer:
    """A piece of the arena.

    Attributes:
        name: of the value that it holds first, or "scratch N" of layer N.
        offset: bytes from the arena's start.
        bytes: size.
        first: the first layer that touches it.
        last: the last one.
    """

    name: str
    offset: int
    bytes: int
    first: int
    last: int

    @property
    def is_scratch(self) -> bool:
        """It is the scratch memory of one layer, and holds no value."""
        return self.name.startswith("scratch ")

    @property
    def short_name(self) -> str:
        return self.name if len(self.name) <= _NAME_WIDTH else f"{self.name[: _NAME_WIDTH - 3]}..."


def buffers_of(manifest: Mapping[str, Any]) -> list[Buffer]:
    """The buffers of a manifest's arena by offset, then by first layer."""
    found = [
        Buffer(b["name"], b["offset"], b["bytes"], b["first_layer"], b["last_layer"])
        for b in manifest["arena"]["buffers"]
    ]
    return sorted(found, key=lambda b: (b.offset, b.first, b.last, b.name))


def live_bytes(manifest: Mapping[str, Any]) -> list[int]:
    """By layer the bytes of the arena that hold something while it runs: no arena can be smaller
    than the largest."""
    align = manifest["api"]["arena_align"]
    live = [0] * len(manifest["layers"])
    for buffer in buffers_of(manifest):
        for layer in range(buffer.first, min(buffer.last + 1, len(live))):
            live[layer] += -(-buffer.bytes // align) * align
    return live


def arena_table(buffers: Sequence[Buffer]) -> str:
    """A line a buffer, with its symbol in the chart."""
    rows = [
        (symbol, b.short_name, f"{b.offset:,}", f"{b.bytes:,}", f"{b.first}..{b.last}")
        for b, symbol in zip(buffers, _symbols(buffers), strict=True)
    ]
    return table(["", "buffer", "offset", "bytes", "layers"], rows, left=2)


def arena_chart(
    buffers: Sequence[Buffer], size: int, layers: int, width: int = 80, height: int = 16
) -> str:
    """Memory upward, layers to the right; a symbol a buffer, ``#`` scratch, ``.`` nothing.

    Args:
        buffers: see ``arena_table``, whose symbols are used.
        size: of the arena in bytes.
        layers: of the model.
        width: most characters of a line of cells; a cell is several layers where there are more.
        height: lines of cells. A cell shows the largest part of what is there.
    """
    if not size or not layers:
        return "(the arena is empty)"
    symbols = _symbols(buffers)
    span = -(-layers // width)
    columns = -(-layers // span)
    wide = max(1, min(3, width // columns))
    margin = len(f"{size:,}")
    lines = []
    for row in reversed(range(height)):
        low, high = row * size / height, (row + 1) * size / height
        cells = "".join(
            wide * _cell(buffers, symbols, (low, high), (c * span, min((c + 1) * span, layers)))
            for c in range(columns)
        )
        lines.append(f"{round(high):>{margin},} |{cells}")
    step = f", {span} a column" if span > 1 else ""
    lines.append(f"{0:>{margin}} +{'-' * columns * wide}")
    lines.append(f"{'':{margin}}  layers 0 to {layers - 1}{step}")
    return "\n".join(lines)


def _symbols(buffers: Sequence[Buffer]) -> list[str]:
    """One for each buffer, again from the start where there are more than letters and digits."""
    values = [b for b in buffers if not b.is_scratch]
    numbers = {id(b): i for i, b in enumerate(values)}
    return [_SCRATCH if b.is_scratch else _SYMBOLS[numbers[id(b)] % len(_SYMBOLS)] for b in buffers]


def _cell(
    buffers: Sequence[Buffer],
    symbols: Sequence[str],
    memory: tuple[float, float],
    layers: tuple[int, int],
) -> str:
    """What takes most of a rectangle of memory and layers."""
    best, found = 0.0, _FREE
    for buffer, symbol in zip(buffers, symbols, strict=True):
        deep = min(buffer.offset + buffer.bytes, memory[1]) - max(buffer.offset, memory[0])
        long = min(buffer.last + 1, layers[1]) - max(buffer.first, layers[0])
        if deep > 0 and long > 0 and deep * long > best:
            best, found = deep * long, symbol
    return found


def plot_arena(manifest: Mapping[str, Any], path: str, limit: int = 0) -> None:
    """Draw the arena: memory over layers, a rectangle a buffer, and what lives at each layer.

    Args:
        manifest: of a project.
        path: of the picture; its suffix is its format.
        limit: bytes of RAM that the board has, 0 for none to draw.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it knows no such format.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    buffers, live = buffers_of(manifest), live_bytes(manifest)
    size, layers = manifest["arena"]["bytes"], len(manifest["layers"])
    # No pyplot: it has a state, and opens windows.
    figure = Figure(figsize=(min(24.0, 6 + layers / 8), 6), layout="constrained")
    axis = figure.subplots()
    number = 0
    for buffer in buffers:
        color = "0.6" if buffer.is_scratch else f"C{number % 10}"
        number += not buffer.is_scratch
        corner, width = (buffer.first, buffer.offset), buffer.last + 1 - buffer.first
        axis.add_patch(
            Rectangle(
                corner, width, buffer.bytes, facecolor=color, edgecolor="black", linewidth=0.5
            )
        )
    axis.stairs(live, range(layers + 1), color="black", linestyle="--", label="live bytes")
    if limit and limit < 4 * max(size, 1):
        axis.axhline(limit, color="red", label="RAM of the board")
    axis.set_xlim(0, max(layers, 1))
    axis.set_ylim(0, 1.08 * max([size, *live, 1, *([limit] if limit < 4 * max(size, 1) else [])]))
    axis.set_xlabel("layer")
    axis.set_ylabel("bytes of the arena")
    axis.set_title(f"{manifest['model']['name']} on {manifest['board']}: {size:,} bytes")
    axis.legend(loc="upper right")
    save(figure, path)
