"""Layouts that a template can read and write, as knobs of its config.

Passes keep activations channels-last. plan may let a Group read or write blocks of channels instead
(NCHWc, [N][C/c][H][W][c]) where that is faster and worth its copies: alter_op_layout. c is the
vector length, so that channel c lies ``View.channel_step`` * c elements behind channel 0, whatever
the layout, and a kernel differs only in its strides.

The knobs ``x_layout`` and ``y_layout`` are "nchwc" or absent. No ``Template.space`` lists them:
whether a layout pays off is not a question about one Group.
"""

from __future__ import annotations

import math
from dataclasses import replace

from aotgen.ir.graph import Group, Value
from aotgen.schedule.base import Config, Layout, Need
from aotgen.target.target import Target

X_LAYOUT, Y_LAYOUT = "x_layout", "y_layout"


def layout_of(config: Config, knob: str) -> Layout:
    """The layout that ``x_layout`` or ``y_layout`` names."""
    return "nchwc" if config.as_dict().get(knob) == "nchwc" else "strided"


def with_layouts(config: Config, x: Layout, y: Layout) -> Config:
    """``config`` that reads its first node's input as ``x`` and writes (and reads residuals) as
    ``y``.
    """
    knobs = {k: v for k, v in config.as_dict().items() if k not in (X_LAYOUT, Y_LAYOUT)}
    chosen = {k: v for k, v in ((X_LAYOUT, x), (Y_LAYOUT, y)) if v != "strided"}
    return Config.of(**knobs, **chosen)


def can_block(value: Value, target: Target) -> bool:
    """Whether ``value`` may be an activation in blocks of channels."""
    return (
        not value.is_const
        and 3 <= len(value.shape) <= 5
        and math.prod(value.shape[1:-1]) > 1
        and value.shape[-1] % target.vl == 0
        and value.dtype.size == 4
    )


def layout_choices(group: Group, target: Target) -> list[tuple[Layout, Layout]]:
    """(x, y) layouts that a kernel of strides and channel steps can take beside (strided,
    strided).

    y's holds for every epilogue operand of its shape, too.
    """
    x, y = group.nodes[0].input(0), group.output
    like_y = [v for n in group.epilogue for v in n.args if v.shape == y.shape and v.is_const]
    both: list[Layout] = ["strided", "nchwc"]
    read = both if can_block(x, target) else both[:1]
    anchor = group.anchor
    assert anchor is not None
    plain = y.shape == anchor.output.shape and len(group.outputs) == 1 and not like_y
    written = both if plain and can_block(y, target) else both[:1]
    return [(a, b) for a in read for b in written if (a, b) != ("strided", "strided")]


def planewise_layouts(group: Group, target: Target) -> list[tuple[Layout, Layout]]:
    """Of ``layout_choices``, those of a kernel that works plane by plane once its input lies in
    blocks: writing blocks while reading whole pixels gains nothing.
    """
    return [pair for pair in layout_choices(group, target) if pair[0] == "nchwc"]


def in_layout(need: Need, layout: Layout, target: Target) -> Need:
    """``need`` of a view in this layout."""
    if layout == "strided":
        return need
    return replace(need, unit_inner=False, layout=layout, block=target.vl)


def laid_out(
    needs: dict[str, Need], group: Group, config: Config, target: Target
) -> dict[str, Need]:
    """A template's needs with its first node's input and the operands of the output's shape in the
    layouts of ``config``.
    """
    x, y = layout_of(config, X_LAYOUT), layout_of(config, Y_LAYOUT)
    shapes = {v.name: v.shape for v in group.activations}
    made = {}
    for name, need in needs.items():
        if name == group.nodes[0].input(0).name:
            made[name] = in_layout(need, x, target)
        elif shapes[name] == group.output.shape:
            made[name] = in_layout(need, y, target)
        else:
            made[name] = need
    return made
