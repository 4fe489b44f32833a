"""The loops of a pool over output rows and columns: borders split off, windows clipped."""

from __future__ import annotations

from collections.abc import Sequence

from aotgen.ir.graph import Node
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.problem import Block, loop, terms
from aotgen.schedule.dense.tiles import Run, split_even


class PoolLoops:
    """The loops over output rows and columns, borders split off."""

    def __init__(
        self,
        node: Node,
        shape: ConvShape,
        strides: dict[str, tuple[int, int, int]],
        xs: tuple[int, int, int],
        names: list[str],
        is_max: bool,
    ) -> None:
        self.node, self.shape, self.strides, self.xs, self.names = node, shape, strides, xs, names
        self.is_max = is_max
        self.channels: dict[str, int] = {}
        """Channel steps of the operands when the loop over channels goes around all pixels."""
        self.vl = 1
        self.tile = 1
        """Most outputs of a tile of columns inside."""
        self.from_channel = False
        """Whether one output's function takes the channel to begin at."""
        extra = tuple(node.attrs.get("ceil_extra", (0,) * shape.axes))
        self.extra = (0,) * (3 - shape.axes) + extra
        self.include = not is_max and bool(node.attrs["count_include_pad"])

    def tile_inside(self, outputs: int) -> list[int]:
        """Cut the columns whose window lies inside into tiles of at most ``outputs``; their sizes,
        without those of one.
        """
        low, high = self.shape.inside(2)
        rows_low, rows_high = self.shape.inside(1)
        self.tile = outputs if low < high and rows_low < rows_high else 1
        if self.tile == 1:
            return []
        return [run.size for run in split_even(high - low, self.tile) if run.size > 1]

    def again(self, inputs: Sequence[str]) -> str:
        """Arguments of one output of a tile, output t, for ``_cells``."""
        s = self.shape
        moves = {n: self.strides[n][2] for n in [*inputs, "y"]}
        moves["x"] = s.stride[2] * self.xs[2]
        args = [terms(name, ("t", moves[name])) for name in self.names]
        args += [str(s.kernel[1]), str(s.kernel[2]), *(["from"] if self.from_channel else [])]
        return ", ".join(args)

    def rows(self) -> list[Block]:
        low, high = self.shape.inside(1)
        inner = self._row("kh0", "khn", "rows_counted" if self._counts else "")
        lines: list[Block] = [*self._clip(1, "r", "kh0", "khn", "rows_counted"), *inner]
        if low == 0 and high == self.shape.out[1]:
            lines = self._row("0", str(self.shape.kernel[1]), str(self.shape.kernel[1]))
        elif low < high:
            test = " && ".join(
                t
                for t in (
                    f"r >= {low}" if low else "",
                    f"r < {high}" if high < self.shape.out[1] else "",
                )
                if t
            )
            whole = self._row("0", str(self.shape.kernel[1]), str(self.shape.kernel[1]))
            lines = [{"head": f"if ({test}) {{", "body": whole}, {"head": "else {", "body": lines}]
        nest: list[Block] = [
            "/* upwards: the rows that the layer before wrote last are the nearest in cache */",
            {"head": "for (int32_t r = r1 - 1; r >= r0; r--) {", "body": lines},
        ]
        if self.channels:
            head = f"for (int32_t c = 0; c < {self.shape.channels}; c += {self.vl}) {{"
            nest = [{"head": head, "body": nest}]
        return [loop("i0", "0", str(self.shape.batch), nest)] if self.shape.batch > 1 else nest

    @property
    def _counts(self) -> bool:
        return not self.is_max

    def _clip(self, axis: int, var: str, first: str, count: str, counted: str) -> list[Block]:
        """Clip a window along one axis: its first tap inside, taps inside, cells that avg_pool
        counts.
        """
        s = self.shape
        k, d, size = s.kernel[axis], s.dilation[axis], s.size[axis]
        at = f"{first}_at"
        lines: list[Block] = [
            f"const int32_t {at} = {terms(f'{var} * {s.stride[axis]}', offset=-s.begin[axis])};"
        ]
        low = f"({d - 1} - {at}) / {d}" if d > 1 else f"-{at}"
        lines.append(f"const int32_t {first} = {at} < 0 ? {low} : 0;")
        lines += _taps_before(f"{count}_end", f"{size} - {at}", d, k)
        lines.append(f"const int32_t {count} = {count}_end > {first} ? {count}_end - {first} : 0;")
        if self._counts:
            if self.include:
                lines += _taps_before(
                    counted, f"{size + s.end[axis] - self.extra[axis]} - {at}", d, k
                )
            else:
                lines.append(f"const int32_t {counted} = {count};")
        return lines

    def _row(self, kh0: str, kh: str, counted: str) -> list[Block]:
        """All columns of output row r, whose window has rows kh0 .. kh0 + kh inside."""
        s = self.shape
        low, high = self.shape.inside(2)
        made: list[Block] = []
        for start, end, whole in ((0, low, False), (low, high, True), (high, s.out[2], False)):
            if start >= end:
                continue
            if whole and kh.isdigit() and self.tile > 1:
                for run in split_even(end - start, self.tile):
                    made.append(loop("t", "0", str(run.count), [self._tile(start, run)]))
                continue
            if whole:
                body = [self._call(kh0, kh, counted, "0", str(s.kernel[2]), str(s.kernel[2]))]
            else:
                body = [
                    *self._clip(2, "t", "kw0", "kwn", "columns_counted"),
                    self._call(kh0, kh, counted, "kw0", "kwn", "columns_counted"),
                ]
            made.append(loop("t", str(start), str(end), body))
        return made

    def _tile(self, low: int, run: Run) -> Block:
        """One tile of columns, the t-th of its run."""
        if run.size == 1:
            kh, kw = str(self.shape.kernel[1]), str(self.shape.kernel[2])
            return self._call("0", kh, kh, "0", kw, kw, low + run.start)
        args = self._pointers("0", "0", low + run.start, run.size)
        return f"@KERNEL@_tile{run.size}({', '.join(args)});"

    def _pointers(self, kh0: str, kw0: str, start: int = 0, size: int = 1) -> list[str]:
        """The operands at output row r, column start + t * size, of a window clipped to
        (kh0, kw0).
        """
        s = self.shape
        args = []
        for name in self.names:
            batch, row, col = self.strides[name]
            parts = [("i0", batch)] if s.batch > 1 else []
            parts.append(("c", self.channels.get(name, 0)))
            offset = start * col
            if name == "x":
                row, col = self.xs[1] * s.stride[1], self.xs[2] * s.stride[2]
                parts += [(kh0, s.dilation[1] * self.xs[1]), (kw0, s.dilation[2] * self.xs[2])]
                offset = start * col - (s.begin[1] * self.xs[1] + s.begin[2] * self.xs[2])
            args.append(terms(name, *parts, ("r", row), ("t", col * size), offset=offset))
        return args

    def _call(
        self, kh0: str, kh: str, rows: str, kw0: str, kw: str, columns: str, start: int = 0
    ) -> Block:
        args = [*self._pointers(kh0, kw0, start), kh, kw]
        if self._counts:
            both_known = rows.isdigit() and columns.isdigit()
            args.append(
                f"{int(rows) * int(columns)}.0f" if both_known else f"(float)({rows} * {columns})"
            )
        if self.from_channel:
            args.append("0")
        return f"@KERNEL@_cells({', '.join(args)});"


def _taps_before(name: str, distance: str, dilation: int, kernel: int) -> list[Block]:
    """``name`` = how many of ``kernel`` taps, ``dilation`` apart, lie before ``distance``."""
    taps = f"({distance} + {dilation - 1}) / {dilation}" if dilation > 1 else distance
    return [
        f"const int32_t {name}_most = {taps};",
        f"const int32_t {name} = "
        f"{name}_most < 0 ? 0 : {name}_most < {kernel} ? {name}_most : {kernel};",
    ]
