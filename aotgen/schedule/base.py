"""What a template is: the contract between Groups, plan and codegen.

A template turns a Group into a ``Kernel`` (C text) for given views of its tensors. plan asks
``applies``, ``default``, ``needs`` and ``output_need`` to choose templates and layouts; codegen
emits equal kernels once and one call per Group.

The C function of every kernel computes output rows [r0, r1):

    static void <name>(<one pointer per arg, in order>, int32_t r0, int32_t r1)

Strides come from the views and are printed as constants. A pointer points at logical element 0 of
its view.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from aotgen.codegen.names import digest, shorten
from aotgen.ir.graph import Group, Value
from aotgen.ir.types import Array, DType
from aotgen.target.target import Target

KnobValue = int | str | bool
KnobKind = Literal["ordinal", "categorical", "boolean"]

Border = tuple[tuple[int, int], ...]
"""Elements before and behind, per axis; empty for none."""

Layout = Literal["strided", "panel", "nchwc"]
"""strided; packed panels [K/4][mr][4]; channel blocks [N][C/c][spatial][c], c = ``View.block``."""


@dataclass(frozen=True)
class View:
    """How a kernel sees a tensor: logical shape and the distance in elements between neighbours
    along each axis.

    Attributes:
        shape: logical, in the IR's layout (NHWC for images).
        strides: elements per axis, 0 for a broadcast axis. Of an nchwc view: from image to image
            and from pixel to pixel of one block; the last one, 1, holds inside a block.
        dtype: of the elements.
        border: per axis (before, after): how many elements outside the shape may be read and
            are zero.
        layout: "strided", or "nchwc" for blocks of channels.
        block: channels of a block of an nchwc view; they divide the channels.
        block_stride: elements from one block of a pixel to the next.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    border: tuple[tuple[int, int], ...] = ()
    layout: Layout = "strided"
    block: int = 0
    block_stride: int = 0

    @classmethod
    def dense(cls, shape: tuple[int, ...], dtype: DType) -> View:
        return cls(shape, dense_strides(shape), dtype)

    @classmethod
    def blocked(cls, shape: tuple[int, ...], dtype: DType, block: int, border: Border = ()) -> View:
        """[N][C/block][spatial][block] without gaps, the border around each block's plane."""
        pairs = border or ((0, 0),) * len(shape)
        if pairs[0] != (0, 0) or pairs[-1] != (0, 0) or shape[-1] % block:
            raise ValueError("blocks of channels need whole blocks, and borders of spatial axes")
        extents = [n + b + e for n, (b, e) in zip(shape[1:-1], pairs[1:-1], strict=True)]
        inner = dense_strides((*extents, block))
        plane = extents[0] * inner[0] if extents else block
        strides = (shape[-1] // block * plane, *inner)
        return cls(shape, strides, dtype, border, "nchwc", block, plane)

    @property
    def layout_name(self) -> str:
        """ "strided", or "NCHW16c" and the like."""
        spatial = "DHW"[5 - len(self.shape) :]
        return f"NC{spatial}{self.block}c" if self.layout == "nchwc" else self.layout

    @property
    def channel_step(self) -> int:
        """Elements from channel c to channel c + block, per channel: channel c, a multiple of the
        block, lies c * channel_step elements behind channel 0. 1 for a strided view whose channels
        are neighbours.
        """
        return self.block_stride // self.block if self.layout == "nchwc" else 1

    def split_channels(self, block: int) -> View:
        """The same elements in the same logical order as a strided view whose last axis is cut into
        (C/block, block).

        Raises:
            ValueError: the view has blocks of another size.
        """
        if self.layout == "nchwc" and self.block != block:
            raise ValueError(f"a view in blocks of {self.block} channels is none of {block}")
        n, step = self.shape[-1], self.strides[-1]
        outer = self.block_stride if self.layout == "nchwc" else block * step
        border = (*self.border[:-1], (0, 0), (0, 0)) if self.border else ()
        return View(
            (*self.shape[:-1], n // block, block),
            (*self.strides[:-1], outer, step),
            self.dtype,
            border,
        )

    def permuted(self, perm: tuple[int, ...]) -> View:
        """A strided view with its axes in another order."""
        border = tuple(self.border[p] for p in perm) if self.border else ()
        shape = tuple(self.shape[p] for p in perm)
        return View(shape, tuple(self.strides[p] for p in perm), self.dtype, border)

    @property
    def as_strided(self) -> View:
        """This view, or for blocks of channels the strided one with an axis more."""
        return self.split_channels(self.block) if self.layout == "nchwc" else self

    @property
    def is_dense(self) -> bool:
        """Row-major without gaps; the stride of an axis of extent 1 does not matter."""
        if self.layout != "strided":
            return False
        expected = dense_strides(self.shape)
        return all(
            n == 1 or s == e for n, s, e in zip(self.shape, self.strides, expected, strict=True)
        )

    @property
    def has_even_rows(self) -> bool:
        """Whether all axes but the last count as one axis."""
        if self.layout != "strided":
            return False
        outer = zip(self.shape[:-1], self.strides[:-1], strict=True)
        axes = [(n, s) for n, s in outer if n != 1]
        return all(wide == n * s for (_, wide), (n, s) in itertools.pairwise(axes))

    @property
    def row_stride(self) -> int:
        """Elements from one row to the next, where all axes but the last count as one axis: the
        stride of the innermost of them that has more than one element.
        """
        for extent, stride in zip(self.shape[-2::-1], self.strides[-2::-1], strict=True):
            if extent != 1:
                return stride
        return self.shape[-1]

    def border_of(self, axis: int) -> tuple[int, int]:
        return self.border[axis] if self.border else (0, 0)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


@dataclass(frozen=True)
class Knob:
    """One choice of a template.

    ``ordinal`` values are sorted and neighbours are one step apart; ``categorical`` values have no
    order.
    """

    name: str
    kind: KnobKind
    values: tuple[KnobValue, ...]
    unit: str = ""


@dataclass(frozen=True)
class Config:
    """A value for each knob of a template, sorted by name: hashable, printable, comparable."""

    values: tuple[tuple[str, KnobValue], ...] = ()

    @classmethod
    def of(cls, **knobs: KnobValue) -> Config:
        return cls(tuple(sorted(knobs.items())))

    def __getitem__(self, name: str) -> KnobValue:
        for key, value in self.values:
            if key == name:
                return value
        raise KeyError(name)

    def int(self, name: str) -> int:
        """Knob ``name`` as an integer."""
        return int(self[name])

    def get(self, name: str, default: KnobValue) -> KnobValue:
        """Knob ``name``, or ``default`` where there is none of it."""
        return self.as_dict().get(name, default)

    def as_dict(self) -> dict[str, KnobValue]:
        return dict(self.values)


class ScheduleError(Exception):
    """A config that is not legal for a Group: search and plan skip it."""


@dataclass(frozen=True)
class Need:
    """What a template asks of one input's view.

    Attributes:
        border: per axis (before, after) zeros that must be readable around the tensor; empty
            for none.
        unit_inner: the last axis must have stride 1.
        dense: the view must be dense.
        even_rows: rows, the vectors along the last axis, must lie at one distance from each other.
        layout: the view must have this layout.
        block: channels of a block that an nchwc view must have.
    """

    border: tuple[tuple[int, int], ...] = ()
    unit_inner: bool = False
    dense: bool = False
    even_rows: bool = False
    layout: Layout = "strided"
    block: int = 0

    def met_by(self, view: View) -> bool:
        if view.layout != self.layout or view.block != self.block:
            return False
        if self.dense and not view.is_dense:
            return False
        if self.even_rows and not view.has_even_rows:
            return False
        if self.unit_inner and view.shape and view.shape[-1] != 1 and view.strides[-1] != 1:
            return False
        return all(
            have[0] >= want[0] and have[1] >= want[1]
            for axis, want in enumerate(self.border)
            for have in [view.border_of(axis)]
        )


@dataclass(frozen=True, eq=False)
class PackedConst:
    """A constant as a kernel wants it in memory.

    Attributes:
        role: short name that ends the C symbol ("w", "bias").
        array: one-dimensional, in memory order, padded as the kernel expects.
        source: the graph constant it was made from, for reports; None when computed.
    """

    role: str
    array: Array
    source: Value | None = None


@dataclass(frozen=True, eq=False)
class Arg:
    """One pointer argument of a kernel call: exactly one of ``value``, ``const`` and
    ``scratch_bytes`` is set.

    ``offset`` (elements, may be negative only within a view's border) is added to the pointer of a
    value.
    """

    name: str
    ctype: str
    value: Value | None = None
    const: PackedConst | None = None
    scratch_bytes: int = 0
    is_output: bool = False
    offset: int = 0


@dataclass(frozen=True)
class Routine:
    """A C function that kernels call, emitted once in a project however many do: an inner loop
    whose extents are arguments.

    Attributes:
        name: base of the C name ("dsp_gemm_4x2"). Codegen appends a hash of the text. Kernels and
            routines behind it in ``Kernel.routines`` write it as ``@dsp_gemm_4x2@``.
        prototype: C, without a semicolon; the own name is written ``@ROUTINE@``. Its types are
            plain ones and those of simd.h.
        text: C text of the function; not static.
        includes: as ``Kernel.includes``.
    """

    name: str
    prototype: str
    text: str
    includes: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Kernel:
    """A rendered kernel and the arguments one Group calls it with.

    Attributes:
        name: base of the C name: op, dtype, method, tile ("conv2d_f32_direct_14x2").
            Codegen appends a hash of the body.
        body: C text of the function and its static helpers. The function's own name is written
            ``@KERNEL@``, helpers' names start with ``@KERNEL@_``. Two Groups with equal bodies
            share one function.
        args: pointer arguments, in the order of the C parameters; ``int32_t r0, int32_t r1``
            follow them.
        rows: the full range of output rows: codegen calls with (0, rows), or each thread of a run
            with a part of it, whose scratch is its own.
        grain: where rows are single elements or pixels, how many of them threads cut between.
        math: names of simd/math functions that the body uses ("exp", "tanh", ...).
        includes: standard headers the body needs beyond stddef.h and stdint.h ("string.h").
        global_size: OpenCL only: the NDRange.
        by_rows: whether the rows are those of the output's map, or equal parts of them, in order;
            not where they count channels or the like.
        routines: shared functions that the body calls; each only others before it.
    """

    name: str
    body: str
    args: tuple[Arg, ...]
    rows: int
    math: frozenset[str] = frozenset()
    includes: frozenset[str] = frozenset()
    global_size: tuple[int, ...] = ()
    grain: int = 1
    by_rows: bool = True
    routines: tuple[Routine, ...] = ()

    def linked(self, prefix: str) -> tuple[str, dict[str, Routine]]:
        """(the body with the names of its routines, the routines' texts likewise by that name).

        ``prefix`` begins the names; they end in a hash of the text.
        """
        names: dict[str, str] = {}
        found: dict[str, Routine] = {}

        def named(text: str) -> str:
            for short, full in names.items():
                text = text.replace(f"@{short}@", full)
            return text

        for routine in self.routines:
            text = named(routine.text)
            full = shorten(f"{prefix}_{routine.name}_{digest(text)}")
            found[full] = replace(
                routine,
                prototype=routine.prototype.replace("@ROUTINE@", full),
                text=text.replace("@ROUTINE@", full),
            )
            names[routine.name] = full
        return named(self.body), found

    @property
    def units(self) -> int:
        """Into how many parts threads can cut the rows."""
        return -(-self.rows // self.grain)

    def scratch_bytes(self, align: int) -> int:
        """Scratch of one thread, each buffer rounded up to ``align`` bytes."""
        return sum(math.ceil(a.scratch_bytes / align) * align for a in self.args)


INSTRUCTION_SECONDS = 1e-8
"""Modelled, of an instruction of a microcontroller, which has no caches and issues one at a time:
templates count instructions there, and what an emulator counts compares with them."""

Alias = Literal["none", "same_index", "rows_behind"]
"""May the output share an input's memory: never; when both views are equal; when the output stays
rows behind.
"""


@dataclass(frozen=True)
class Views:
    """The views of a Group's tensors: activations and outputs by value name.

    ``inplace`` names the activation that the output overwrites (only after ``may_alias`` allowed
    it): the kernel then has one pointer for both, its output ``Arg``, and none for that activation.
    """

    by_name: Mapping[str, View] = field(default_factory=dict)
    inplace: str | None = None

    def __getitem__(self, value: Value) -> View:
        return self.by_name[value.name]


class Template(ABC):
    """One way to implement a family of Groups. Stateless; registered in
    ``aotgen.schedule.registry``.
    """

    name: str
    streams = True
    """Whether layers with its kernels may compute by rows together: where a kernel counts as many
    rows as its output's map has, they are those, and none costs more for being computed alone.
    """

    @abstractmethod
    def applies(self, group: Group, target: Target) -> str | None:
        """None when this template can implement the group, else the reason why not."""

    @abstractmethod
    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        """The knobs and their legal values for this group."""

    @abstractmethod
    def default(self, group: Group, target: Target) -> Config:
        """A good config computed from the target's facts alone."""

    def check(self, group: Group, target: Target, config: Config) -> None:
        """Raise ScheduleError when registers, caches or code size rule the config out."""
        return None

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        """The config that stands for all legal ones that give the same kernel, where a knob has no
        effect beside the others' values: a search need not time the others.
        """
        return config

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        """Numbers that a model learns times from: finite, the same name for the same meaning in
        all templates (``aotgen.schedule.features`` names them). Of a legal config.
        """
        from aotgen.schedule.features import common_features

        return common_features(self, group, target, config)

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        """By name of an activation: what its view must offer. An absent name accepts any view."""
        return {}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        """What the output's view must offer (its border is plan's business)."""
        return Need()

    def layouts(self, group: Group, target: Target) -> list[tuple[Layout, Layout]]:
        """Layouts of (the anchor's input, the output) beside (strided, strided) that the template
        can be asked for by the knobs of ``aotgen.schedule.layouts``.
        """
        return []

    def default_in(
        self, group: Group, target: Target, config: Config, x: Layout, y: Layout
    ) -> Config:
        """The default config for a pair of ``layouts``; ``config`` is the channels-last one."""
        from aotgen.schedule.layouts import with_layouts

        return with_layouts(config, x, y)

    def clipped(self, group: Group, target: Target, config: Config) -> Config | None:
        """The config that asks for no zeros around its input and is else like ``config``; None
        where ``config`` asks for none, or the template cannot do without.
        """
        return None

    def by_rows(self, group: Group, target: Target, config: Config) -> Config | None:
        """The config whose kernel computes rows of the output's map one by one and asks for no
        zeros around its input; None where ``config``'s does, or the template has no such kernel.
        """
        return None

    def may_alias(self, group: Group, value: Value) -> Alias:
        """Whether the output may be written over activation ``value``."""
        return "none"

    def cost(self, group: Group, target: Target, config: Config) -> float:
        """Modelled seconds of one call, for choosing between alternatives without measurements."""
        return math.inf

    @abstractmethod
    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        """Render the kernel for these views."""
