"""Program: what a generated project runs, ready to print.

Lowers a Graph with a Plan to a straight list of layers, each one kernel call with its arguments
placed in arena, weights or the caller's memory. Printing it as C or OpenCL is the business of
``c.py`` and ``opencl.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from aotgen.codegen.names import Namer, digest, shorten
from aotgen.ir.graph import Graph, Group, Node, Value
from aotgen.memory.planner import ALIGN, Allocation, ArenaMap, plan_arena
from aotgen.memory.storage import Copy, Placement, Storage
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Arg, Config, Kernel, PackedConst, View, Views
from aotgen.schedule.plan import Plan, is_view_group
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
        output: value that the layer writes (several only for multi-output nests).
        template: name of the template.
        config: its knobs.
        group: None for a layout copy.
        weights: (byte offset, bytes) in the weights of each packed constant.
        fill: storages whose zero border must be written before this layer, each with its kernel
            function.
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
        arena: placement of all storages (by root value name) and of scratch.
        offsets: byte offset in the arena of each storage, by root value name.
        placements: of every activation.
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


class _Weights:
    """Collects packed constants; equal bytes are stored once."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.known: dict[str, int] = {}

    def add(self, const: PackedConst) -> tuple[int, int]:
        data = np.ascontiguousarray(const.array).tobytes()
        key = digest(data, 64)
        if key not in self.known:
            self.known[key] = self.size
            padded = -(-len(data) // ALIGN) * ALIGN
            self.parts.append(data + bytes(padded - len(data)))
            self.size += padded
        return self.known[key], len(data)


class _Lowering:
    def __init__(self, graph: Graph, plan: Plan, target: Target, prefix: str) -> None:
        self.graph = graph
        self.plan = plan
        self.target = target
        self.prefix = prefix
        self.layers: list[Layer] = []
        self.functions: dict[str, Function] = {}
        self.weights = _Weights()
        self.namer = Namer(48)
        self.storage = plan.storage
        self.inplace: dict[Storage, Storage] = {}

    def run(self) -> Program:
        for group in self.graph.groups or []:
            self.lower_group(group)
        self.find_inplace()
        self.fill_borders()
        allocations, owners = self.allocations()
        arena = plan_arena(allocations)
        offsets = {s: arena.offsets[name] for s, name in owners.items()}
        for layer in self.layers:
            self.bind(layer, arena)
        return Program(
            self.graph,
            self.target,
            self.layers,
            self.functions,
            b"".join(self.weights.parts),
            arena,
            offsets,
            self.storage.placements,
            allocations,
        )

    def place(self, value: Value) -> Placement:
        return self.storage.placements[value.name]

    def lower_group(self, group: Group) -> None:
        if is_view_group(group):
            node = group.nodes[0]
            for copy in self.storage.copies.get(node.name, []):
                self.lower_copy(copy, node, group)
            return
        for copy in self.storage.copies.get(group.name, []):
            self.lower_copy(copy, None, group)
        choice = self.plan.choices[group.name]
        kernel = self.group_kernel(group)
        self.add_layer(
            group.name,
            tuple(n.op for n in group.nodes),
            group.origin,
            kernel,
            group.output,
            choice.template.name,
            choice.config,
            group,
        )

    def group_kernel(self, group: Group, inplace: str | None = None) -> Kernel:
        """A Group's kernel for the resolved views; where it reads a copy, the copy is its argument.

        ``inplace`` names the activation that the output overwrites.
        """
        choice = self.plan.choices[group.name]
        renamed = {
            v.name: self.storage.readers[(group.name, v.name)]
            for v in group.activations
            if (group.name, v.name) in self.storage.readers
        }
        tensors = [*group.activations, *group.outputs]
        views = {v.name: self.place(renamed.get(v.name, v)).view for v in tensors}
        kernel = choice.template.kernel(group, self.target, choice.config, Views(views, inplace))
        args = tuple(
            replace(a, value=renamed.get(a.value.name, a.value)) if a.value is not None else a
            for a in kernel.args
        )
        return replace(kernel, args=args)

    def lower_copy(self, copy: Copy, node: Node | None, group: Group) -> None:
        """A layout copy as a layer of its own."""
        name = node.name if node is not None else f"{copy.source.name}.layout"
        ops = (node.op if node is not None else "layout copy",)
        origin = node.origin if node is not None else group.origin
        kernel = self.copy_kernel(copy, group)
        self.add_layer(name, ops, origin, kernel, copy.target, "te_nest", Config(), None)

    def copy_kernel(self, copy: Copy, group: Group) -> Kernel:
        """Strided to strided where both sides have a view; else the view op's own nest."""
        from aotgen.schedule.nest import NestTemplate, copy_nest

        target = self.place(copy.target).view
        dense = View.dense(copy.source.shape, copy.source.dtype)
        source = dense if copy.source.is_const else self.place(copy.source).view
        skip = start = 0
        if copy.link is not None:
            derived = copy.link.derive(source if copy.link.down else target)
            if derived is None:
                template = NestTemplate()
                views = {v.name: self.place(v).view for v in [*group.activations, *group.outputs]}
                config = template.default(group, self.target)
                return template.kernel(group, self.target, config, Views(views))
            if copy.link.down:
                source, skip = derived
            else:
                target, start = derived
        kernel = copy_nest(source, target, copy.source.dtype, self.target)
        args = []
        for arg in kernel.args:
            if arg.is_output:
                args.append(replace(arg, value=copy.target, offset=arg.offset + start))
            elif copy.source.const is not None:
                const = PackedConst("c", copy.source.const.reshape(-1), copy.source)
                args.append(replace(arg, value=None, const=const, offset=arg.offset + skip))
            else:
                args.append(replace(arg, value=copy.source, offset=arg.offset + skip))
        return replace(kernel, args=tuple(args))

    def add_layer(
        self,
        name: str,
        ops: tuple[str, ...],
        origin: tuple[str, ...],
        kernel: Kernel,
        output: Value,
        template: str,
        config: Config,
        group: Group | None,
    ) -> None:
        layer = Layer(
            len(self.layers),
            self.namer.name(name, "layer"),
            ops,
            origin,
            kernel,
            output,
            template,
            config,
            group,
        )
        layer.function = self.function(kernel, template)
        layer.reads = [a.value for a in kernel.args if a.value is not None and not a.is_output]
        self.layers.append(layer)

    def function(self, kernel: Kernel, template: str) -> str:
        """The name of the emitted function for ``kernel``; equal bodies share one."""
        body_hash = digest(kernel.body)
        name = shorten(f"{self.prefix}_{kernel.name}_{body_hash}")
        if name not in self.functions:
            self.functions[name] = Function(
                name, kernel.body.replace("@KERNEL@", name), kernel, template
            )
        return name

    def writers(self) -> dict[Storage, list[int]]:
        table: dict[Storage, list[int]] = {}
        for layer in self.layers:
            for value in layer.group.outputs if layer.group else [layer.output]:
                table.setdefault(self.place(value).storage, []).append(layer.index)
        return table

    def lifetimes(self) -> dict[Storage, tuple[int, int]]:
        """(first, last) layer of every storage; graph inputs live from the start, outputs to the
        end.
        """
        end = max(len(self.layers) - 1, 0)
        spans: dict[Storage, tuple[int, int]] = {}

        def touch(storage: Storage, step: int) -> None:
            first, last = spans.get(storage, (step, step))
            spans[storage] = (min(first, step), max(last, step))

        for layer in self.layers:
            for value in layer.reads:
                touch(self.place(value).storage, layer.index)
            for value in layer.group.outputs if layer.group else [layer.output]:
                touch(self.place(value).storage, layer.index)
        for value in self.graph.inputs:
            if value.name in self.storage.placements:
                touch(self.place(value).storage, 0)
        for value in self.graph.outputs:
            if value.name in self.storage.placements:
                touch(self.place(value).storage, end)
        return spans

    def find_inplace(self) -> None:
        """Let outputs overwrite an input that dies here, where the template allows it and both
        views are equal.

        Aliasing is fixed here, before any text is final: the kernel is rendered again with one
        pointer for both.
        """
        spans = self.lifetimes()
        for layer in self.layers:
            if layer.group is None or len(layer.group.outputs) != 1:
                continue
            out = self.place(layer.output)
            if (
                out.storage.kind != "arena"
                or spans[out.storage][0] != layer.index
                or out.storage in self.inplace
            ):
                continue
            choice = self.plan.choices[layer.group.name]
            for value in layer.group.activations:
                source = self.storage.readers.get((layer.group.name, value.name), value)
                place = self.place(source)
                if not self.can_share(layer, place, out, spans):
                    continue
                if choice.template.may_alias(layer.group, value) != "same_index":
                    continue
                self.alias(layer, place.storage, out.storage, value, spans)
                break

    def can_share(
        self, layer: Layer, place: Placement, out: Placement, spans: dict[Storage, tuple[int, int]]
    ) -> bool:
        a, b = place.storage, out.storage
        same = (
            a.kind == "arena"
            and a is not b
            and a.root.dtype is b.root.dtype
            and (a.elements, a.origin) == (b.elements, b.origin)
            and place.offset == out.offset
            and place.view == out.view
        )
        readers = [v for v in layer.reads if self.place(v).storage is a]
        return same and spans[a][1] == layer.index and len(readers) == 1

    def alias(
        self,
        layer: Layer,
        kept: Storage,
        merged: Storage,
        value: Value,
        spans: dict[Storage, tuple[int, int]],
    ) -> None:
        assert layer.group is not None
        layer.kernel = self.group_kernel(layer.group, inplace=value.name)
        layer.function = self.function(layer.kernel, layer.template)
        self.inplace[merged] = kept
        first = spans[kept][0]
        spans[kept] = (first, spans[merged][1])
        spans[merged] = spans[kept]

    def owner(self, storage: Storage) -> Storage:
        """The storage whose memory ``storage`` uses."""
        while storage in self.inplace:
            storage = self.inplace[storage]
        return storage

    def fill_borders(self) -> None:
        from aotgen.schedule.nest import border_fill

        first: dict[Storage, int] = {}
        for storage, steps in self.writers().items():
            if storage.has_border and storage not in self.inplace:
                first[storage] = min(steps)
        for storage, step in first.items():
            kernel = border_fill(storage.view, self.target)
            name = self.function(kernel, "border")
            self.layers[step].fills.append((name, storage))

    def allocations(self) -> tuple[list[Allocation], dict[Storage, str]]:
        used = {f for layer in self.layers for f in (layer.function, *(n for n, _ in layer.fills))}
        self.functions = {n: f for n, f in self.functions.items() if n in used}
        spans = self.lifetimes()
        sizes: dict[Storage, tuple[int, int, int]] = {}
        for storage, (first, last) in spans.items():
            owner = self.owner(storage)
            size, a, b = sizes.get(owner, (0, first, last))
            sizes[owner] = (max(size, storage.bytes), min(a, first), max(b, last))
        result = [Allocation(s.root.name, size, a, b) for s, (size, a, b) in sizes.items()]
        names = {s: self.owner(s).root.name for s in spans}
        for layer in self.layers:
            if layer.kernel.scratch_bytes:
                result.append(
                    Allocation(
                        f"{layer.name}.scratch",
                        layer.kernel.scratch_bytes * self.target.threads,
                        layer.index,
                        layer.index,
                    )
                )
        return result, names

    def bind(self, layer: Layer, arena: ArenaMap) -> None:
        """Give every pointer of the call its address."""
        scratch = arena.offsets.get(f"{layer.name}.scratch", 0)
        for arg in layer.kernel.args:
            if arg.value is not None:
                place = self.place(arg.value)
                layer.operands.append(Operand(arg, place, place.offset + arg.offset))
            elif arg.const is not None:
                offset, size = self.weights.add(arg.const)
                layer.weights.append((offset, size))
                layer.operands.append(
                    Operand(arg, None, offset + arg.offset * arg.const.array.itemsize)
                )
            else:
                layer.operands.append(Operand(arg, None, scratch))
                scratch += -(-arg.scratch_bytes // ALIGN) * ALIGN


def lower(graph: Graph, plan: Plan, target: Target, prefix: str) -> Program:
    """Lower a planned graph.

    Args:
        graph: with groups; every graph output is computed by a node of its own
            (``legalize_outputs``).
        plan: from ``plan_graph``.
        target: what kernels are rendered for.
        prefix: of every symbol.
    """
    return _Lowering(graph, plan, target, prefix).run()


def legalize_outputs(graph: Graph) -> None:
    """Let every graph output be the output of a node of its own.

    A graph output that is a graph input, a constant or a repeated output gets an ``identity`` node,
    so that it has memory of its own for the caller to read. Groups, when present, are extended.
    """
    seen: set[Value] = set()
    inputs = set(graph.inputs)
    for position, value in enumerate(graph.outputs):
        if value in inputs or value.is_const or value in seen:
            node = graph.make("identity", [value], name=f"{value.name}.output")
            graph.nodes.append(node)
            if graph.groups is not None:
                graph.groups.append(Group([node], None, node.name))
            graph.outputs[position] = node.output
        seen.add(graph.outputs[position])


def total_scratch(layers: Iterable[Layer]) -> int:
    """The largest scratch of a layer, in bytes."""
    return max((layer.kernel.scratch_bytes for layer in layers), default=0)
