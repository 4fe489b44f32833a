"""What the fields mean of the structs that kernels on MVE get when they are optimised for flash, so
that all layers of a kind share one text. All are int32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_VIEWS = {
    "x_image": "bytes from image to image",
    "x_row": "bytes from row to row",
    "x_pixel": "bytes from pixel to pixel",
    "y_image": "bytes from output image to image",
    "y_row": "bytes from output row to row",
    "y_pixel": "bytes from output pixel to pixel",
    "zero": "the output's zero point",
    "pad": "the input's zero point",
}

DEPTHWISE = _VIEWS | {
    "out_rows": "rows of the output",
    "channels": "of the input and the output",
    "stride": "rows of the input from output row to row",
    "kernel_rows": "rows of taps",
    "kernel_columns": "columns of taps",
    "tap_rows": "rows of the input from one row of taps to the next",
    "tap_bytes": "from a tap to the next one of its row",
    "begin": "rows of padding above the input",
    "size": "rows of the input",
    "ring_rows": "padded rows in the ring",
    "row_bytes": "of one of them",
    "ring_bytes": "of all",
    "left": "bytes of padding in front of a row",
    "cell_bytes": "of all cells",
    "copied": "columns of the input that outputs read",
    "pairs": "of output columns",
    "odd": "whether a column is left behind them",
    "lo": "lower clamp",
    "hi": "upper clamp",
}
"""Of ``int8_mve_depthwise``, of both methods."""

DENSE = _VIEWS | {
    "depth": "bytes of a row of products, whole steps of 16",
    "outputs": "output channels, of a group",
    "low": "lower clamp",
    "high": "upper clamp",
    "multiplier": "of all channels",
    "right": "shift of all channels, at most 0",
    "left": "shift of all channels",
    "bytes": "of a row without what fills it up",
    "panel": "bytes of a panel of weights and its parameters",
    "groups": "of channels",
    "group_w": "bytes of a group's weights and parameters",
    "group_x": "input channels of a group",
    "group_y": "output channels of a group",
    "x_step": "bytes from row to row of products",
    "y_step": "bytes from output pixel to pixel",
    "x_end": "bytes of the input",
    "span": "rows of products of a call",
    "x_batch": "bytes from image to image",
    "y_batch": "bytes from output image to image",
    "channels": "of the input, of a group",
    "run": "bytes that lie next to each other in a window",
    "x_down": "bytes from one row of taps to the next",
    "x_right": "bytes from a tap to the next one of its row",
    "rows_inside": "first rows of windows that lie inside the input",
    "columns_inside": "first columns of windows that do",
    "block": "windows that are copied together",
    "in_h": "rows of the input",
    "in_w": "columns of the input",
    "out_h": "rows of the output",
    "out_w": "columns of the output",
    "kernel_h": "rows of taps",
    "kernel_w": "columns of taps",
    "stride_h": "rows from window to window",
    "stride_w": "columns from window to window",
    "dilation_h": "rows from tap to tap",
    "dilation_w": "columns from tap to tap",
    "begin_h": "rows of padding above the input",
    "begin_w": "columns of padding in front of it",
}
"""Of ``int8_mve_dense``."""

_LOOPS = {
    "x": "bytes of the input from round to round of loop",
    "y": "bytes of the output from round to round of loop",
    "inside": "rounds of the loops inside loop",
    "extent": "rounds of loop",
}
"""Of loops around spans, which are numbered."""


def described(names: Iterable[str], meanings: Mapping[str, str]) -> dict[str, str]:
    """The meaning of each field by its name, in order."""
    found: dict[str, str] = {}
    for name in names:
        kind, _, number = name.rpartition("_")
        loop = kind in _LOOPS and number.isdigit()
        found[name] = f"{_LOOPS[kind]} {number}" if loop else meanings[name]
    return found
