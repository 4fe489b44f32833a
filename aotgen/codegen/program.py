"""Program: what a generated project runs, ready to print. ``lower.py`` makes it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import Array
from aotgen.memory.planner import Allocation, ArenaMap
from aotgen.memory.row_streaming import Region
from aotgen.memory.states import StateSlot
from aotgen.memory.storage import Placement, Storage
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Arg, Config, Kernel, Routine
from aotgen.schedule.plan import Choice, Schedules
from aotgen.target.target import Target


@dataclass(frozen=True, eq=False)
class Operand:
    """One pointer a kernel is called with.

    Attributes:
        arg: the kernel's parameter.
        place: where an activation lives; None for weights and scratch.
        offset: element offset of the pointer in the place's storage; byte offset in the weights
            or in scratch.
        shared: of a constant, see ``Constant``.
    """

    arg: Arg
    place: Placement | None
    offset: int
    shared: bool = False


class Constant(NamedTuple):
    """Where a packed constant lies.

    Attributes:
        offset: in the weights, in bytes.
        bytes: of it.
        shared: whether these are the weights that the models of a bundle share.
    """

    offset: int
    bytes: int
    shared: bool = False


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
        weights: where each packed constant lies, in the order of the operands.
        fills: on a GPU, storages whose border is cleared before this layer, with the function.
        reads: activations that it reads, one entry an argument.
        shared: whether the threads of a run share its rows; else it is the first one's alone.
        choice: plan's, None for a layout copy.
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
    weights: list[Constant] = field(default_factory=list)
    fills: list[tuple[str, Storage]] = field(default_factory=list)
    reads: list[Value] = field(default_factory=list)
    shared: bool = False
    choice: Choice | None = None

    @property
    def outputs(self) -> list[Value]:
        """All that it writes, in the order in which a trace reports them."""
        return self.group.outputs if self.group else [self.output]

    @property
    def macs(self) -> int:
        total = 0
        for node in self.group.nodes if self.group else []:
            rule = op_def(node.op).macs
            total += rule(node) if rule else 0
        return total


class WeightBlob:
    """The packed constants, one after the other, each padded to the alignment; equal bytes are
    stored once. Holds the arrays themselves, not a copy of their bytes: a model's weights are most
    of the memory that a compilation needs.
    """

    def __init__(self, align: int) -> None:
        self.align = align
        self._size = 0
        self._parts: dict[int, memoryview] = {}
        self._known: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Bytes in all, padding included."""
        return self._size

    def add(self, array: Array | memoryview) -> tuple[int, int]:
        """(offset, bytes) of the array's elements in memory order; stored unless they are."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        key = hashlib.sha256(data).digest()
        offset = self._known.get(key)
        if offset is None:
            offset = self._known[key] = self._size
            if len(data):
                self._parts[offset] = data
            self._size += -(-len(data) // self.align) * self.align
        return offset, len(data)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All bytes in order, in pieces."""
        for data in self._parts.values():
            yield data
            yield bytes(-len(data) % self.align)

    def constants(self) -> dict[bytes, tuple[int, memoryview]]:
        """Offset and bytes of each constant that has some, in order, by a hash of them."""
        none = hashlib.sha256(b"").digest()
        return {key: (at, self._parts[at]) for key, at in self._known.items() if key != none}

    def write(self, path: Path) -> None:
        """Write all bytes, which weights.S or an application reads; of none a few, so that what
        includes the file has something to stand for.
        """
        with path.open("wb") as file:
            file.writelines(self.chunks())
            file.write(b"" if len(self) else bytes(self.align))

    def crc(self, offset: int, size: int, seed: int) -> int:
        """CRC-32 (zlib's) of the constant that ``add`` put there, continuing ``seed``."""
        return zlib.crc32(self._parts[offset], seed) if size else seed

    def crc_of_all(self) -> int:
        """CRC-32 (zlib's) of all bytes, padding included."""
        crc = 0
        for chunk in self.chunks():
            crc = zlib.crc32(chunk, crc)
        return crc


@dataclass
class Function:
    """An emitted kernel function: its C name, text, what it needs, and the routines that it calls
    by their C names.
    """

    name: str
    text: str
    kernel: Kernel
    template: str
    routines: Mapping[str, Routine] = field(default_factory=dict)


@dataclass
class Program:
    """Everything that codegen prints.

    Attributes:
        graph: the lowered graph.
        layers: in execution order.
        functions: by name, in order of first use.
        weights: the packed constants in execution order.
        arena: placement of all allocations.
        offsets: byte offset of each storage in the arena, of a state's in the state buffer.
        placements: of every activation, by name.
        allocations: what the arena holds: storages and scratch.
        states: where each state variable lies in the state buffer.
        initial: offset in the weights of the initial value of each variable that does not start
            with equal bytes, by its name.
        schedules: the journal's, when there was one.
        regions: runs of layers that compute by rows together.
        own_bytes: of the arena, where the caller passes all inputs and outputs.
        shared: constants that other models of the same bundle have, too.
    """

    graph: Graph
    target: Target
    layers: list[Layer]
    functions: dict[str, Function]
    weights: WeightBlob
    arena: ArenaMap
    offsets: dict[Storage, int]
    placements: Mapping[str, Placement]
    allocations: list[Allocation]
    states: list[StateSlot] = field(default_factory=list)
    initial: dict[str, int] = field(default_factory=dict)
    schedules: Schedules | None = None
    regions: list[Region] = field(default_factory=list)
    own_bytes: int = 0
    shared: WeightBlob = field(default_factory=lambda: WeightBlob(1))

    @property
    def math(self) -> frozenset[str]:
        return frozenset().union(*(f.kernel.math for f in self.functions.values()))

    @property
    def routines(self) -> dict[str, Routine]:
        """Those of all functions, in order of first use."""
        found: dict[str, Routine] = {}
        for function in self.functions.values():
            found.update(function.routines)
        return found

    def region_of(self, layer: Layer) -> Region | None:
        """The region that a layer computes in."""
        return next((r for r in self.regions if layer.index in r), None)

    def layer_crc(self, layer: Layer) -> int:
        """CRC-32 (zlib's) of the bytes of a layer's packed constants, in order."""
        crc = 0
        for constant in layer.weights:
            blob = self.shared if constant.shared else self.weights
            crc = blob.crc(constant.offset, constant.bytes, crc)
        return crc
