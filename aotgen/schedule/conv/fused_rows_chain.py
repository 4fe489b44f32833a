"""What a kernel that streams convolutions by rows computes: [1x1] -> depthwise -> [1x1].

A Group of such a chain has the nodes of up to three Groups (``schedule.conv.fuse_rows`` makes
it); its anchor is the last convolution. ``Chain`` finds its stages again, and the extents that
the model and the writer share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from aotgen.ir.graph import Group, Node
from aotgen.schedule.conv.conv2d_direct import why_not
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.depthwise_tile import MAX_TAPS, Window, window_of
from aotgen.schedule.group_memo import per_group
from aotgen.target.target import Target

EXPAND, DEPTHWISE, PROJECT = "expand", "depthwise", "project"


@dataclass(frozen=True)
class Chain:
    """The stages of a Group, each a Group of one convolution and its epilogue.

    Attributes:
        depthwise: the depthwise convolution.
        expand: the 1x1 convolution before it; None where it reads an activation.
        project: the 1x1 convolution behind it; None where it computes the Group's output.
    """

    depthwise: Group
    expand: Group | None
    project: Group | None

    @property
    def stages(self) -> dict[str, Group]:
        """By name, in the order of execution."""
        found = {EXPAND: self.expand, DEPTHWISE: self.depthwise, PROJECT: self.project}
        return {name: stage for name, stage in found.items() if stage is not None}

    @cached_property
    def shape(self) -> ConvShape:
        """Of the depthwise convolution."""
        return ConvShape.of(self.depthwise.nodes[0])

    @property
    def window(self) -> Window:
        return window_of(self.shape)

    @property
    def reach(self) -> int:
        """Input rows that one output row reads, those between dilated taps included."""
        return self.shape.reach(1)

    def window_rows(self, rows: int) -> int:
        """Input rows of ``rows`` output rows."""
        return self.shape.reach(1, rows)

    @property
    def ring_row(self) -> int:
        """Floats of a row of the ring: a row of the map with the zeros beside it."""
        left, right = self.shape.border()[2]
        return (left + self.shape.size[2] + right) * self.shape.channels

    @property
    def strip_row(self) -> int:
        """Floats of a row of depthwise outputs."""
        return self.shape.out[2] * self.shape.channels


def cut_stages(group: Group) -> list[Group]:
    """A Group of each convolution of ``group`` with what stands behind it; empty when the Group
    does not begin with one.
    """
    runs: list[list[Node]] = []
    for node in group.nodes:
        if node.op == "conv":
            runs.append([])
        if not runs:
            return []
        runs[-1].append(node)
    return [Group(nodes, nodes[0], nodes[0].name) for nodes in runs]


def stage_kind(group: Group, target: Target) -> str | None:
    """ "depthwise", "pointwise", or None for a Group that is no stage of a chain."""
    if why_not(group, target) is not None:
        return None
    shape = ConvShape.of(group.nodes[0])
    if shape.axes != 2 or shape.out[1] < 2:
        return None
    if shape.is_depthwise:
        return "depthwise" if shape.taps <= MAX_TAPS else None
    return "pointwise" if shape.groups == 1 and shape.maps_pixels else None


@per_group
def chain_of(group: Group, target: Target) -> Chain | None:
    """The chain that a Group is; None for any other Group."""
    stages = cut_stages(group)
    if not 2 <= len(stages) <= 3:
        return None
    for before, behind in pairwise(stages):
        if behind.nodes[0].input(0) is not before.output:
            return None
    kinds = [stage_kind(stage, target) for stage in stages]
    if kinds.count("depthwise") != 1 or None in kinds:
        return None
    at = kinds.index("depthwise")
    if at > 1 or len(stages) - at > 2:
        return None
    return Chain(
        stages[at], stages[0] if at else None, stages[-1] if at < len(stages) - 1 else None
    )


def known_chain(group: Group, target: Target) -> Chain:
    """The chain that a Group is known to be."""
    found = chain_of(group, target)
    assert found is not None, group.name
    return found
