"""lstm, gru and rnn: a loop over time around the register tile and the gates' functions.

Each step multiplies the state of all rows by the packed recurrent weights, which stream past in
order, with the register tile of every dense kernel; then the gates are computed and the state is
replaced in place, a vector of hidden units at a time. The state lives in the outputs h and c where
the node has them, else in scratch. Rows of the batch do not depend on each other: they are the
kernel's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.codegen.literals import f32
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.ops.recurrent import GATES, INPUTS, Activation
from aotgen.schedule.base import (
    Alias,
    Arg,
    Config,
    Kernel,
    Knob,
    KnobValue,
    Need,
    PackedConst,
    Views,
)
from aotgen.schedule.conv.conv2d_direct import DenseTemplate
from aotgen.schedule.dense.blocking import Problem, dense_config
from aotgen.schedule.dense.matmul_gemm import MatmulShape, pack_context
from aotgen.schedule.dense.problem import Axis, Block, Dense, DenseConfig, kernel_params, terms
from aotgen.schedule.dense.tiles import Run
from aotgen.schedule.dense.writer import DenseWriter
from aotgen.schedule.fused import Fused
from aotgen.schedule.operands import operand, operand_view
from aotgen.schedule.packing import pack_panels, panel_floats
from aotgen.target.target import Target

_CELL = {
    "x": "gates",
    "s": "sums",
    "n": "fresh",
    "rb": "rb",
    "p": "p",
    "c": "c",
    "h": "h",
    "y": "y",
}
"""Parameters of the function of one vector of units, and the kernel's operands they point into."""

_RESET = {"x": "gates", "s": "sums", "h": "h", "a": "reset"}
"""The same of what a gru that resets first does between its products."""

_TITLES = {
    "cell": "The new state",
    "reset": "The update gate, and the state as the reset gate lets it pass",
}
"""What the function of one vector of units computes."""

_FIXED: dict[str, KnobValue] = {"kc": 0, "next_lines": 0}
"""Knobs of dense kernels that have one value here."""

_EXPRESSIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Affine": ("vfma(x, vset1({alpha}), vset1({beta}))", ()),
    "Clip": ("vmax(vset1({alpha}), vmin(vset1({beta}), x))", ()),
    "Elu": ("vsel(vlt(x, vzero()), vmul(vset1({alpha}), vexpm1(x)), x)", ("expm1",)),
    "HardSigmoid": (
        "vmax(vzero(), vmin(vset1(1.0f), vfma(x, vset1({alpha}), vset1({beta}))))",
        (),
    ),
    "LeakyRelu": ("vsel(vlt(x, vzero()), vmul(vset1({alpha}), x), x)", ()),
    "Relu": ("vmax(vzero(), x)", ()),
    "ScaledTanh": ("vmul(vset1({alpha}), vtanh(vmul(vset1({beta}), x)))", ("tanh",)),
    "Sigmoid": ("vsigmoid(x)", ("sigmoid",)),
    "Softplus": ("vadd(vmax(vzero(), x), vlog1p(vexp(vneg(vabs(x)))))", ("exp", "log1p")),
    "Softsign": ("vdiv(x, vadd(vset1(1.0f), vabs(x)))", ()),
    "Tanh": ("vtanh(x)", ("tanh",)),
    "ThresholdedRelu": ("vsel(vlt(x, vset1({alpha})), vzero(), x)", ()),
}
"""C of each gate function in the words of simd.h, and the functions of simd/math it calls."""


@dataclass(frozen=True)
class RecurrentShape:
    """Extents of a node.

    Attributes:
        op: lstm, gru or rnn.
        steps, rows, hidden: T, N and H.
        resets_first: a gru that multiplies the state by the reset gate before the product: gates z
            and r need a product of their own.
    """

    op: str
    steps: int
    rows: int
    hidden: int
    resets_first: bool

    @classmethod
    def of(cls, node: Node) -> RecurrentShape:
        steps, rows, _ = node.input(0).shape
        before = bool(node.attrs.get("linear_before_reset"))
        hidden = node.input(1).shape[1]
        return cls(node.op, steps, rows, hidden, node.op == "gru" and not before)

    @property
    def gates(self) -> int:
        return GATES[self.op]


class _Product(DenseWriter):
    """State times some gates' weights: [N, H] x [H, gates * H] into ``sums``."""

    def __init__(
        self,
        label: str,
        shape: RecurrentShape,
        gates: range,
        stride: int,
        cut: tuple[DenseConfig, Target],
    ) -> None:
        self.label = label
        self.gates = gates
        width = len(gates) * shape.hidden
        row = Axis(shape.rows, {"x": stride, "y": width})
        dense = Dense((), row, Axis(1, {}), ((shape.hidden, 1),), width)
        super().__init__(dense, *cut, Fused(), bias=False)

    def _name(self, tile: Any) -> str:
        return f"{self.label}_{super()._name(tile)}"


@dataclass
class _Parts:
    """What the kernel is made of, as it grows: arguments, helper functions, products."""

    args: list[Arg] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    packs: list[Block] = field(default_factory=list)
    products: list[dict[str, Any]] = field(default_factory=list)
    tiles: list[dict[str, Any]] = field(default_factory=list)


class Recurrent(DenseTemplate):
    """A recurrent layer in f32, one direction."""

    name = "recurrent"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if len(group.nodes) != 1 or node.op not in GATES:
            return "needs a lone lstm, gru or rnn"
        if target.device != "cpu":
            return "recurrent layers run on a CPU"
        floats = [*node.inputs[:6], *node.outputs]
        if any(v is not None and v.dtype is not DType.F32 for v in floats):
            return "recurrent layers are implemented for f32"
        if any(0 in v.shape for v in [*node.args, *node.outputs]):
            return "needs tensors with elements"
        return None

    def problem(self, group: Group, target: Target) -> Problem:
        shape = RecurrentShape.of(group.nodes[0])
        return Problem(
            rows=shape.rows,
            cols=1,
            outer=shape.steps,
            groups=1,
            channels=shape.gates * shape.hidden,
            reduction=shape.hidden,
            inner=shape.hidden,
            passes=1,
            x_bytes=4 * shape.rows * shape.hidden,
            lane_step=target.has_neon,
        )

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        """The weights are read again in the next step: none are fetched ahead into L2, and the
        reduction stays whole.
        """
        made = super().space(group, target)
        return tuple(replace(k, values=(_FIXED[k.name],)) if k.name in _FIXED else k for k in made)

    def default(self, group: Group, target: Target) -> Config:
        return Config.of(**{**super().default(group, target).as_dict(), **_FIXED})

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        """The products of a step differ in their channels."""
        return config

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        node = group.nodes[0]
        read = [node.optional(INPUTS.index(name)) for name in ("gates", "rb", "p")]
        return {v.name: Need(unit_inner=True) for v in read if v is not None and not v.is_const}

    def may_alias(self, group: Group, value: Value) -> Alias:
        return "none"

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        return _Writer(group.nodes[0], dense_config(config, target), target, views).kernel()


class _Writer:
    """Computes everything that templates/kernels/recurrent.c.j2 prints."""

    def __init__(self, node: Node, config: DenseConfig, target: Target, views: Views) -> None:
        self.node, self.target, self.views = node, target, views
        self.config = config
        self.shape = RecurrentShape.of(node)
        self.results = dict(zip(node.attrs["results"], node.outputs, strict=True))
        self.parts = _Parts()
        self.zero_state = node.optional(3) is None
        self.strides: dict[str, tuple[int, ...]] = {}

    def kernel(self) -> Kernel:
        shape, node = self.shape, self.node
        self.operands()
        states = [self.state("h", 3)]
        if shape.op == "lstm":
            states.append(self.state("c", 4))
        runs, tile = self.multiply()
        if "y" in self.results:
            self.output("y")
        functions, math = self.functions()
        steps, last = shape.steps, shape.steps - 1
        ahead = f"for (int32_t t = 0; t < {steps}; t++) {{"
        back = f"for (int32_t t = {last}; t >= 0; t--) {{"
        reverse = bool(node.attrs["reverse"])
        text = render(
            "kernels/recurrent.c.j2",
            op=shape.op,
            title=self.title(),
            hidden=shape.hidden,
            states=states,
            loop=back if reverse else ahead,
            later=(f"t < {last}" if reverse else "t > 0") if self.zero_state else "",
            has={name: node.optional(k) is not None for k, name in enumerate(INPUTS)},
            has_y="y" in self.results,
            length=self.place("lengths") if node.optional(6) is not None else "",
            y_row=self.place("y") if "y" in self.results else "",
            resets_first=shape.resets_first,
            input_forget=bool(node.attrs.get("input_forget")),
            cell_clip=_optional_f32(node.attrs.get("cell_clip")),
            functions=functions,
            helpers=self.parts.helpers,
            packs=self.parts.packs,
            tiles=self.parts.tiles,
            phases=self.phases(),
            params=kernel_params(self.parts.args, Fused()),
            first=_first_row(runs, "r0"),
            end=_first_row(runs, "r1"),
            lanes=shape.hidden % self.target.vl,
            wide=shape.hidden >= self.target.vl,
        )
        return Kernel(
            f"{shape.op}_f32_{tile}",
            text,
            tuple(self.parts.args),
            sum(run.count for run in runs),
            math,
            frozenset({"string.h"}),
        )

    def place(self, name: str) -> str:
        """C pointer to row n (of step t) of an operand."""
        variables = ("t", "n") if name in ("gates", "y") else ("n",)
        strides = dict(zip(variables, self.strides[name], strict=False))
        extents = {"t": self.shape.steps, "n": self.shape.rows}
        return terms(name, *((v, s) for v, s in strides.items() if extents[v] > 1))

    def phases(self) -> list[dict[str, Any]]:
        """Each product of a step with what the rows do behind it."""
        cells = ["reset", "cell"] if self.shape.resets_first else ["cell"]
        return [
            {**product, **self.cell(name)}
            for product, name in zip(self.parts.products, cells, strict=True)
        ]

    def cell(self, name: str) -> dict[str, Any]:
        """The function of one vector of units: parameters, row pointers, and the calls of a row."""
        present = {p.name for p in self.parts.args}
        operands = _RESET if name == "reset" else _CELL
        used = [(k, o) for k, o in operands.items() if o in present]
        changed = {"h", "c", "y", "a"} if name == "cell" else {"s", "a"}
        params = [f"{'' if k in changed else 'const '}float *{k}" for k, _ in used]
        rows, args = [], []
        for k, source in used:
            if source in ("rb", "p"):  # the same for all rows
                args.append(source)
                continue
            kind = "" if k in changed else "const "
            rows.append(f"{kind}float *const {k}n = {self.place(source)};")
            args.append(f"{k}n")
        h, vl = self.shape.hidden, self.target.vl
        full, lanes = h // vl * vl, h % vl
        calls: list[Block] = []
        if full:
            moved = args if full == vl else [f"{a} + i" for a in args]
            call = f"@KERNEL@_{name}({', '.join(moved)});"
            head = f"for (int32_t i = 0; i < {full}; i += {vl}) {{"
            calls.append(call if full == vl else {"head": head, "body": [call]})
        if lanes:
            moved = [f"{a} + {full}" if full else a for a in args]
            calls.append(f"@KERNEL@_{name}_{lanes}({', '.join(moved)});")
        return {
            "name": name,
            "title": _TITLES[name],
            "cell_params": ", ".join(params),
            "rows": rows,
            "calls": calls,
        }

    def operands(self) -> None:
        """Arguments for the inputs that are read as they are: all but the recurrent weights."""
        for index, name in enumerate(INPUTS):
            value = self.node.optional(index)
            if value is None or name == "r":
                continue
            self.parts.args.append(operand(name, value))
            self.strides[name] = operand_view(value, self.views).strides

    def output(self, name: str) -> None:
        value = self.results[name]
        self.parts.args.append(Arg(name, "float *", value=value, is_output=True))
        self.strides[name] = self.views[value].strides

    def state(self, name: str, initial: int) -> dict[str, str]:
        """h or c: the output of that name, else scratch [N, H]; its row n, and the C statement that
        copies input ``initial`` there, empty for zeros.
        """
        if name in self.results:
            self.output(name)
        else:
            self.scratch(name, self.shape.hidden)
        row, copy, hidden = self.place(name), "", self.shape.hidden
        if self.node.optional(initial) is not None:
            source, stride = self.place(f"{name}0"), self.strides[f"{name}0"][1]
            if stride == 1 or hidden == 1:
                copy = f"memcpy({row}, {source}, {hidden} * sizeof(float));"
            else:
                copy = (
                    f"for (int32_t i = 0; i < {hidden}; i++)"
                    f" ({row})[i] = ({source})[(ptrdiff_t)i * {stride}];"
                )
        return {"row": row, "fill": copy}

    def scratch(self, name: str, width: int) -> None:
        """[N, width] floats."""
        self.strides[name] = (width, 1)
        self.parts.args.append(Arg(name, "float *", scratch_bytes=4 * self.shape.rows * width))

    def multiply(self) -> tuple[tuple[Run, ...], str]:
        """Add the products of a step; (row tiles, the tile's size for names)."""
        shape = self.shape
        h_stride = self.strides["h"][0]
        cut = (self.config, self.target)
        if shape.resets_first:
            gates = _Product("update", shape, range(2), h_stride, cut)
            fresh = _Product("fresh", shape, range(2, 3), shape.hidden, cut)
            self.product(gates, "h", "sums", "w")
            self.scratch("reset", shape.hidden)
            self.product(fresh, "reset", "fresh", "w_fresh")
        else:
            gates = _Product("gates", shape, range(shape.gates), h_stride, cut)
            self.product(gates, "h", "sums", "w")
        return gates.rows, gates.tile_text

    def product(self, writer: _Product, source: str, sums: str, weights: str) -> None:
        """``source`` times the weights of a product's gates into ``sums`` of scratch."""
        width = writer.dense.channels
        blocks: list[Block] = []
        if self.shape.steps > 1 or not self.zero_state:
            writer.bases = {"x": source, "y": sums, "w": self.weights(writer, weights)}
            blocks = writer.nests()
            self.parts.tiles += [writer.tile_context(t) for t in writer.used.values()]
        self.scratch(sums, width)
        zero_sums = (
            f"memset({sums} + (ptrdiff_t)first * {width}, 0, "
            f"(size_t)(end - first) * {width} * sizeof(float));"
        )
        self.parts.products.append({"zero_sums": zero_sums, "blocks": blocks})

    def weights(self, writer: _Product, name: str) -> str:
        """Add packed weights as a constant, or code that packs them; the C name to read."""
        value, h = self.node.input(1), self.shape.hidden
        first, vl = writer.gates.start * h, self.target.vl
        width = len(writer.gates) * h
        if value.const is not None:
            rows = np.asarray(value.const, np.float32)[first : first + width]
            packed = pack_panels(rows.reshape(1, width, h), writer.panels, vl)
            const = PackedConst(name, packed, value)
            self.parts.args.append(Arg(name, "const float *", const=const))
            return name
        n_stride, k_stride = operand_view(value, self.views).strides
        offset = first * n_stride
        self.parts.args.append(Arg(name, "const float *", value=value, offset=offset))
        size = panel_floats(writer.panels, h, vl)
        self.parts.args.append(Arg(f"{name}_packed", "float *", scratch_bytes=4 * size))
        shape = MatmulShape((), self.shape.rows, h, width, True)
        pack = render("kernels/pack_b.c.j2", **pack_context(writer, shape, k_stride, n_stride))
        pack = pack.replace("@KERNEL@_pack(", f"@KERNEL@_pack_{writer.label}(")
        self.parts.helpers.append(pack.strip("\n"))
        self.parts.packs.append(f"@KERNEL@_pack_{writer.label}({name}, {name}_packed);")
        return f"{name}_packed"

    def functions(self) -> tuple[list[dict[str, str]], frozenset[str]]:
        """The gates' functions f, g and h, and what of simd/math they call."""
        made: list[dict[str, str]] = []
        math: set[str] = set()
        for name, activation in zip("fgh", self.node.attrs["activations"], strict=False):
            expression, calls = _expression(activation)
            # What h is of is the cell's state, no sum.
            clip = self.node.attrs["clip"] if name != "h" else None
            made.append(
                {
                    "name": name,
                    "title": _activation_text(activation),
                    "clip": "" if clip is None else f32(clip),
                    "value": expression,
                }
            )
            math.update(calls)
        return made, frozenset(math)

    def title(self) -> str:
        node, s = self.node, self.shape
        notes = ["from the last step to the first"] if node.attrs["reverse"] else []
        notes += ["initial state zero"] if self.zero_state else []
        shapes = f"gates [{s.steps}, {s.rows}, {s.gates * s.hidden}]"
        outputs = ", ".join(f"{k} {list(v.shape)}" for k, v in self.results.items())
        return "; ".join([f"{s.op} of {s.hidden} units, {shapes} -> {outputs}", *notes])


def _optional_f32(value: float | None) -> str:
    return "" if value is None else f32(value)


def _activation_text(activation: Activation) -> str:
    name, alpha, beta = activation
    used = [t for t in ("alpha", "beta") if f"{{{t}}}" in _EXPRESSIONS[name][0]]
    values = {"alpha": alpha, "beta": beta}
    return f"{name}({', '.join(f32(values[t]) for t in used)})" if used else name


def _expression(activation: Activation) -> tuple[str, tuple[str, ...]]:
    """(C of a vector x, functions of simd/math)."""
    name, alpha, beta = activation
    text, calls = _EXPRESSIONS[name]
    return text.format(alpha=f32(alpha), beta=f32(beta)), calls


def _first_row(runs: Sequence[Run], tile: str) -> str:
    """The first row of row tile ``tile``, as C."""
    first, last = runs[0], runs[-1]
    if first is last:
        return tile if first.size == 1 else f"{tile} * {first.size}"
    return f"{tile} * {last.size} + ({tile} < {first.count} ? {tile} : {first.count})"
