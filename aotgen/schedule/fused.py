"""What an anchor's epilogue needs inside a kernel: its C function, and how each of its inputs is
addressed.

te prints the arithmetic (``aotgen.te.epilogue``); this module turns its inputs into kernel
arguments. Axes of the output are named by the template: strides of an input are asked for per
output axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aotgen.ir.graph import Group, Value
from aotgen.schedule.base import Arg, Need, PackedConst, Views, dense_strides
from aotgen.schedule.packing import pad_channels
from aotgen.target.target import Target

if TYPE_CHECKING:
    from aotgen.te.epilogue import RowEpilogue


ChannelOffset = Callable[[int], str]
"""C text of how far behind channel 0 a vector of channels lies, by an operand's channel step."""


def constant_channel(channel: int) -> ChannelOffset:
    """The offset of a vector that begins at ``channel``."""
    return lambda step: str(channel * step)


@dataclass(frozen=True, eq=False)
class FusedInput:
    """One input of the epilogue.

    Attributes:
        name: C parameter.
        kind: "pixel" (output's shape), "channel" (last axis only), "scalar".
        value: the tensor; None for a constant.
        const: the packed constant of kind channel.
        strides: elements per output axis, for kind pixel.
        channel_step: of its view, for kind pixel (``View.channel_step``).
        in_place: the output overwrites it: it is read through the output's pointer and has no
            argument of its own.
    """

    name: str
    kind: str
    value: Value | None
    const: PackedConst | None
    strides: tuple[int, ...]
    in_place: bool = False
    channel_step: int = 1

    @property
    def arg(self) -> Arg:
        if self.const is not None:
            return Arg(self.name, "const float *", const=self.const)
        return Arg(self.name, "const float *", value=self.value)


@dataclass(frozen=True, eq=False)
class Fused:
    """The epilogue of a kernel.

    Attributes:
        function: C text of ``@KERNEL@_epilogue``, empty when there is none.
        loaded: its inputs, in the order of the C function's parameters.
        math: functions of simd/math that it and the row epilogue call.
        rows: the row epilogue, None when there is none.
        aliased: plan may let the output share an input's memory, so neither is restrict.
        long: it calls functions, so that a copy behind every accumulator would spill the others.
    """

    function: str = ""
    loaded: tuple[FusedInput, ...] = ()
    math: frozenset[str] = frozenset()
    rows: RowEpilogue | None = None
    aliased: bool = False
    long: bool = False

    @property
    def inputs(self) -> tuple[FusedInput, ...]:
        """The inputs that are arguments of the kernel."""
        return tuple(i for i in self.loaded if not i.in_place)

    @property
    def row_args(self) -> tuple[Arg, ...]:
        """Further arguments of the row epilogue, under names that no other argument has; so are
        the names of their constants.
        """
        return () if self.rows is None else tuple(map(_row_arg, self.rows.args))

    @property
    def row_function(self) -> str:
        """C text of the row epilogue, or nothing; one of a single row ignores r0, r1 in words."""
        if self.rows is None:
            return ""
        text = self.rows.function.strip("\n")
        if text.count("r0") == 1:
            text = text.replace("{", "{\n    (void)r0;\n    (void)r1;", 1)
        return text

    def tile_params(self, bias: bool) -> list[str]:
        """C parameters of a register tile: x, w, the bias, the epilogue's inputs, y."""
        parts = ["const float *restrict x", "const float *restrict w"]
        if bias:
            parts.append("const float *restrict bias")
        for i in self.inputs:
            parts.append(f"const float *{'' if i.kind == 'pixel' else 'restrict '}{i.name}")
        return [*parts, "float *y" if self.aliased else "float *restrict y"]

    def tile_operands(self, bias: bool) -> list[str]:
        """Names of the pointers among ``tile_params``, in order."""
        return ["x", "w", *(["bias"] if bias else []), *(i.name for i in self.inputs), "y"]

    def store(
        self,
        value: str,
        y: str,
        at: Mapping[str, str],
        channel: ChannelOffset,
        lanes: int,
    ) -> str:
        """The C statement that runs the epilogue on vector ``value`` and stores it at pointer
        ``y``; the other arguments are those of ``load``.
        """
        if self.function:
            value = f"@KERNEL@_epilogue({value}{self.load(at, channel, lanes)})"
        return f"vstore_n({y}, {value}, {lanes});" if lanes else f"vstore({y}, {value});"

    def with_channel_constants(self, arrange: Callable[[str, Value], PackedConst]) -> Fused:
        """The same epilogue with its constants per channel in another order.

        Args:
            arrange: (role, the graph's constant) -> the constant as the kernel wants it.
        """

        def arranged(i: FusedInput) -> FusedInput:
            if i.kind != "channel" or i.const is None or i.const.source is None:
                return i
            return replace(i, const=arrange(i.name, i.const.source))

        return replace(self, loaded=tuple(map(arranged, self.loaded)))

    def load(self, at: Mapping[str, str], channel: ChannelOffset, lanes: int) -> str:
        """C arguments for ``@KERNEL@_epilogue`` behind the accumulator: ", vload(...)" per input.

        Args:
            at: of y and per pixel input, the C pointer of this pixel.
            channel: the C offset of the vector's first channel.
            lanes: valid lanes, 0 for all.
        """
        parts = []
        for i in self.loaded:
            if i.kind == "scalar":
                parts.append(f"vset1(*{i.name})")
                continue
            base = at["y" if i.in_place else i.name] if i.kind == "pixel" else i.name
            offset = channel(i.channel_step)
            pointer = f"{base} + {offset}" if offset != "0" else base
            tail = lanes and i.const is None
            parts.append(f"vload_n({pointer}, {lanes})" if tail else f"vload({pointer})")
        return "".join(f", {p}" for p in parts)


def _row_arg(arg: Arg) -> Arg:
    const = None if arg.const is None else replace(arg.const, role=f"row_{arg.const.role}")
    return replace(arg, name=f"row_{arg.name}", const=const)


def make_fused(
    group: Group, target: Target, views: Views, groups: int = 1, rows: bool = False
) -> Fused:
    """The epilogue of a group whose last output axis holds ``groups`` groups of channels.

    Args:
        rows: whether the template runs a row epilogue (softmax, layer_norm) on finished rows.
    """
    if not group.epilogue:
        return Fused()
    from aotgen.te.epilogue import epilogue, row_epilogue

    made = epilogue(group, target)
    row = row_epilogue(group, target, views[group.output]) if rows else None
    channels = group.output.shape[-1] // groups
    inputs: list[FusedInput] = []
    for e in made.inputs:
        if e.kind == "channel" and e.value.const is not None:
            packed = pad_channels(e.value.const, groups, channels, target.vl)
            inputs.append(
                FusedInput(e.name, "channel", None, PackedConst(e.name, packed, e.value), ())
            )
        elif e.value.const is not None:
            flat = PackedConst(e.name, e.value.const.reshape(-1), e.value)
            strides = dense_strides(group.output.shape) if e.kind == "pixel" else ()
            inputs.append(FusedInput(e.name, e.kind, None, flat, strides))
        else:
            pixel = e.kind == "pixel"
            strides = views[e.value].strides if pixel else ()
            own = pixel and e.value.name == views.inplace
            step = views[e.value].channel_step if pixel else 1
            inputs.append(FusedInput(e.name, e.kind, e.value, None, strides, own, step))
    return Fused(
        "" if made.is_identity else made.function.strip("\n"),
        tuple(inputs),
        made.math | (row.math if row is not None else frozenset()),
        row,
        aliased=any(i.kind == "pixel" and not i.in_place for i in inputs),
        long=bool(made.math) and not made.is_identity,
    )


def fused_needs(group: Group) -> dict[str, Need]:
    """What the epilogue asks of its activations, also of those that the anchor reads as well:
    channels next to each other.
    """
    read = {v.name for node in group.epilogue for v in node.args}
    return {v.name: Need(unit_inner=True) for v in group.activations if v.name in read}
