"""Program: what a generated project runs, ready to print. ``lower.py`` makes it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from aotgen.ir.graph import Graph, Group, Value
from aotgen.memory.planner import Allocation, ArenaMap
from aotgen.memory.storage import Placement, Storage
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Arg, Config, Kernel
from aotgen.target.target import Target


@dataclass(frozen=True, eq=False)
class Operand:
    """One pointer a kernel is called with.

    Attributes:
        arg: the kernel's parameter.
        place: where an activation lives; None for weights and scratch.
        offset: element offset of the pointer in the place's storage; byte offset in the weights
            or in scratch.
    """

    arg: Arg
    place: Placement | None
    offset: int


@dataclass(eq=False)
class Layer:
    """One kernel call.

    Attributes:
        index: position in execution order.
        name: from the model's own node names, unique.
        ops: canonical ops computed, in order.
        origin: names of the model file's nodes.
        kernel: the rendered kernel.
        function: name of the emitted function.
        operands: its pointers.
        output: value that the layer writes; the first of a Group with several.
        template: name of the template.
        config: its knobs.
        group: None for a layout copy.
        weights: (byte offset, bytes) in the weights of each packed constant.
        fills: on a GPU, storages whose border is cleared before this layer, with the function.
        reads: activations that it reads, one entry an argument.
    """

    index: int
    name: str
    ops: tuple[str, ...]
    origin: tuple[str, ...]
    kernel: Kernel
    output: Value
    template: str
    config: Config
    group: Group | None = None
    function: str = ""
    operands: list[Operand] = field(default_factory=list)
    weights: list[tuple[int, int]] = field(default_factory=list)
    fills: list[tuple[str, Storage]] = field(default_factory=list)
    reads: list[Value] = field(default_factory=list)

    @property
    def macs(self) -> int:
        total = 0
        for node in self.group.nodes if self.group else []:
            rule = op_def(node.op).macs
            total += rule(node) if rule else 0
        return total


@dataclass
class Function:
    """An emitted kernel function: its C name, text, and what it needs."""

    name: str
    text: str
    kernel: Kernel
    template: str


@dataclass
class Program:
    """Everything that codegen prints.

    Attributes:
        graph: the lowered graph.
        layers: in execution order.
        functions: by name, in order of first use.
        weights: the packed constants, one after the other in execution order, each aligned to
            64 bytes.
        arena: placement of all allocations.
        offsets: byte offset in the arena of each storage.
        placements: of every activation, by name.
        allocations: what the arena holds: storages and scratch.
    """

    graph: Graph
    target: Target
    layers: list[Layer]
    functions: dict[str, Function]
    weights: bytes
    arena: ArenaMap
    offsets: dict[Storage, int]
    placements: Mapping[str, Placement]
    allocations: list[Allocation]

    @property
    def math(self) -> frozenset[str]:
        return frozenset().union(*(f.kernel.math for f in self.functions.values()))

    def layer_crc(self, layer: Layer) -> int:
        """CRC-32 (zlib's) of the bytes of a layer's packed constants, in order."""
        crc = 0
        for offset, size in layer.weights:
            crc = zlib.crc32(self.weights[offset : offset + size], crc)
        return crc
