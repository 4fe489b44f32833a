"""Kernels that run a register tile over the outputs of each phase of a convolution: pointers, loops
and calls. Subclasses know the tile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Value
from aotgen.schedule.base import Arg, Kernel, PackedConst, Views
from aotgen.schedule.conv.conv2d_direct import conv_title, output_axes
from aotgen.schedule.conv.conv_phase import Phase, phase_text
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.conv_transpose import phase_calls
from aotgen.schedule.dense.problem import Block, kernel_params, loop, terms
from aotgen.schedule.dense.tiles import Run, split_even
from aotgen.schedule.fused import Fused
from aotgen.schedule.packing import F32
from aotgen.target.target import Target


class PhaseWriter(ABC):
    """Builds a template's context for a convolution in phases under one tile of rows x columns."""

    template: str
    """File of the template, which gets ``context``, functions, calls, title and params."""

    def __init__(
        self,
        group: Group,
        shape: ConvShape,
        phases: Sequence[Phase],
        target: Target,
        tile_size: tuple[int, int],
        views: Views,
        fused: Fused,
    ) -> None:
        self.group, self.shape, self.phases = group, shape, phases
        self.target, self.fused, self.vl = target, fused, target.vl
        self.tile_size = tile_size
        self.x = views[group.nodes[0].input(0)]
        self.xs = shape.spatial_strides(self.x)
        self.axes = output_axes(group, shape, views, fused)
        self.bias = group.nodes[0].optional(2)

    @abstractmethod
    def tile(self, phase: Phase, rows: int, cols: int, name: str) -> dict[str, Any]:
        """The template's context of one tile function."""

    @abstractmethod
    def packed(self, phase: Phase) -> F32:
        """The phase's weights in memory order, one-dimensional."""

    @abstractmethod
    def channels(self, role: str, value: Value) -> PackedConst:
        """A constant per output channel as the tile loads it."""

    @abstractmethod
    def context(self) -> Mapping[str, Any]:
        """What else the template needs."""

    def kernel(self, method: str) -> Kernel:
        """Render the kernel; ``method`` ends its C name."""
        weights = [self.packed(p) for p in self.phases]
        args = self.args(np.concatenate(weights))
        functions: dict[tuple[Any, ...], dict[str, Any]] = {}
        for phase in self.phases:
            if phase.geometry not in functions:
                name = f"_phase{len(functions)}" if len(self.phases) > 1 else ""
                functions[phase.geometry] = self._function(phase, name)
        rows = [sum(r.count for r in self.runs(p)[0]) for p in self.phases]
        op = self.group.nodes[0].op
        title = conv_title(self.shape, op)
        single = len(self.phases) == 1
        sizes = [w.size for w in weights]
        given = phase_calls(self.phases, args, self.fused, self.xs, self.axes, sizes, rows)
        calls = [
            {"name": functions[p.geometry]["name"], "args": text}
            for p, text in zip(self.phases, given, strict=True)
        ]
        for f in functions.values():
            f["title"] = title if single else f"one of {len(self.phases)} phases: {f['pixels']}"
        text = render(
            self.template,
            epilogue=self.fused.function,
            vl=self.vl,
            barrier=self.target.has_neon or self.target.has_dsp,
            functions=list(functions.values()),
            calls=[] if single else calls,
            title=title,
            params=kernel_params(args, self.fused),
            **self.context(),
        )
        return Kernel(f"{op}_f32_{method}", text, tuple(args), max(rows), self.fused.math)

    def args(self, packed: F32) -> list[Arg]:
        """x, w (all phases' weights), bias, the epilogue's inputs and y."""
        node = self.group.nodes[0]
        args = [
            Arg("x", "const float *", value=node.input(0)),
            Arg("w", "const float *", const=PackedConst("w", packed, node.input(1))),
        ]
        if self.bias is not None:
            args.append(Arg("bias", "const float *", const=self.channels("bias", self.bias)))
        args += [i.arg for i in self.fused.inputs]
        args.append(Arg("y", "float *", value=self.group.output, is_output=True))
        return args

    def names(self) -> list[str]:
        return self.fused.tile_operands(self.bias is not None)

    def runs(self, phase: Phase) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        return (
            split_even(phase.out[1], self.tile_size[0]),
            split_even(phase.out[2], self.tile_size[1]),
        )

    def strides(self, phase: Phase, axis: int, name: str) -> int:
        """Elements of an operand from one output of a phase to the next."""
        if name == "x":
            return int(self.xs[axis] * phase.stride[axis])
        return self.axes[1 + axis].get(name, 0) * phase.y_step[axis]

    def params(self) -> str:
        return ", ".join(self.fused.tile_params(self.bias is not None))

    # The loops around it.

    def _function(self, phase: Phase, name: str) -> dict[str, Any]:
        """The function of one phase, its pointers at the phase's first elements."""
        rows, cols = self.runs(phase)
        tiles: dict[tuple[int, int], str] = {}
        heights: list[list[Block]] = []
        for run in rows:
            columns: list[Block] = []
            for c in cols:
                tile = tiles.setdefault((run.size, c.size), f"tile{name}_{run.size}x{c.size}")
                t = "t" if c.count > 1 else "0"
                call: list[Block] = [self._call(phase, tile, rows, run, c, t)]
                columns += [loop("t", "0", str(c.count), call)] if c.count > 1 else call
            heights.append(columns)
        inside = heights[0]
        if len(heights) > 1:
            inside = [
                {"head": f"if (r < {rows[0].count}) {{", "body": heights[0]},
                {"head": "else {", "body": heights[1]},
            ]
        body: list[Block] = [loop("r", "r0", "r1", inside)]
        if phase.out[0] > 1:
            body = [loop("d", "0", str(phase.out[0]), body)]
        if self.shape.batch > 1:
            body = [loop("n", "0", str(self.shape.batch), body)]
        return {
            "name": name,
            "tiles": [self.tile(phase, *size, text) for size, text in tiles.items()],
            "body": body,
            "pixels": phase_text(phase),
        }

    def _call(
        self, phase: Phase, tile: str, rows: tuple[Run, ...], run: Run, cols: Run, t: str
    ) -> str:
        kinds = {i.name: i.kind for i in self.fused.inputs}
        before = rows[0].count if run is not rows[0] else 0
        args = []
        for name in self.names():
            if name in ("w", "bias") or kinds.get(name) in ("channel", "scalar"):
                args.append(name)
                continue
            row, col = self.strides(phase, 1, name), self.strides(phase, 2, name)
            offset = (run.start - before * run.size) * row + cols.start * col
            if name == "x" and len(self.phases) == 1:
                offset += sum(a * b for a, b in zip(phase.x_first, self.xs, strict=True))
            parts = []
            if self.shape.batch > 1:
                images = self.x.strides[0] if name == "x" else self.axes[0][name]
                parts.append(("n", images))
            if phase.out[0] > 1:
                parts.append(("d", self.strides(phase, 0, name)))
            args.append(
                terms(name, *parts, ("r", row * run.size), (t, col * cols.size), offset=offset)
            )
        return f"@KERNEL@_{tile}({', '.join(args)});"
