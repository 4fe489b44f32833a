"""Lowers a planned Graph to a Program.

Lowers a Graph with a Plan to a straight list of layers, each one kernel call with its arguments
placed in arena, weights or the caller's memory. Printing it as C or OpenCL is the business of
``c.py`` and ``opencl.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotgen.codegen.names import Namer, digest, shorten
from aotgen.codegen.program import Constant, Function, Layer, Operand, Program, WeightBlob
from aotgen.codegen.sharing import is_shared
from aotgen.errors import InternalError
from aotgen.ir.graph import Graph, Group, Node, Value
from aotgen.memory.liveness import Liveness, Step, scratch_name
from aotgen.memory.planner import (
    Allocation,
    ArenaMap,
    lower_bound,
    place_behind,
    plan_arena,
)
from aotgen.memory.row_streaming import Region, RowLayer, RowStreaming
from aotgen.memory.row_windows import Window, windows_of
from aotgen.memory.states import fill_byte, state_slots
from aotgen.memory.storage import Copy, Placement, Storage
from aotgen.schedule.base import Config, Kernel, PackedConst, View, Views
from aotgen.schedule.plan import Plan, is_view_group
from aotgen.target.target import Target

SEARCH_ROUNDS = {"speed": 400, "ram": 4000, "flash": 400}
"""How long the arena's planner searches when no greedy order reaches the lower bound."""

BY_ROWS_SAVES = 0.15
"""Share of the arena that computing by rows must save: small networks of narrow maps take half as
many instructions again.
"""


class _Lowering:
    def __init__(self, graph: Graph, plan: Plan, target: Target, prefix: str) -> None:
        self.graph = graph
        self.plan = plan
        self.target = target
        self.prefix = prefix
        self.layers: list[Layer] = []
        self.functions: dict[str, Function] = {}
        self.weights = WeightBlob(target.align)
        self.namer = Namer(48)
        self.storage = plan.storage

    def run(self, by_rows: bool) -> Program:
        """``by_rows``: whether layers may compute by rows together."""
        for group in self.graph.groups or []:
            self.lower_group(group)
        live = self.liveness()
        regions = self.row_regions(live) if by_rows else []
        self.find_inplace(live, regions)
        self.fill_borders(live)
        for layer in self.layers:
            layer.shared = is_shared(layer, self.plan, self.target)
        used = {f for layer in self.layers for f in (layer.function, *(n for n, _ in layer.fills))}
        live.steps = [self.step(layer) for layer in self.layers]
        for region in regions:
            live.widen(region.first, region.last)
        partial = {s: b.bytes for region in regions for s, b in region.buffers.items()}
        allocations, names = live.allocations(self.target.align, partial)
        external = {names[s] for s in names if s.kind in ("input", "output")}
        arena = self.arena_map(allocations, external)
        for layer in self.layers:
            self.bind(layer, arena)
        offsets = {storage: arena.offsets[name] for storage, name in names.items()}
        slots = state_slots(self.graph, self.target.align)
        for slot in slots:
            for value in (slot.state.value, slot.state.update):
                place = self.storage.placements.get(value.name)
                if place is not None:
                    offsets[place.storage] = slot.offset
        return Program(
            self.graph,
            self.target,
            self.layers,
            {n: f for n, f in self.functions.items() if n in used},
            self.weights,
            arena,
            offsets,
            self.storage.placements,
            allocations,
            slots,
            {
                slot.state.value.name: self.weights.add(slot.state.initial)[0]
                for slot in slots
                if fill_byte(slot.state.initial) is None
            },
            regions=regions,
            own_bytes=max(
                (arena.offsets[a.name] + a.size for a in allocations if a.name not in external),
                default=0,
            ),
        )

    def arena_map(self, allocations: list[Allocation], external: set[str]) -> ArenaMap:
        """Arena offsets. Where RAM counts most, slots of the caller's tensors find their places
        when all else has one: an application that passes its own memory does not pay for them.
        """
        rounds = SEARCH_ROUNDS[self.target.optimize]
        if self.target.optimize != "ram":
            return plan_arena(allocations, rounds=rounds)
        own = plan_arena([a for a in allocations if a.name not in external], rounds=rounds)
        slots = [a for a in allocations if a.name in external]
        offsets = place_behind(allocations, own.offsets, slots)
        end = max((offsets[a.name] + a.size for a in allocations), default=0)
        least, peak = lower_bound(allocations)
        return ArenaMap(offsets, end, least, peak)

    def row_regions(self, live: Liveness) -> list[Region]:
        """Runs of layers that compute by rows together; none where RAM does not count most."""
        if self.target.optimize != "ram" or self.target.threads > 1 or self.target.device == "gpu":
            return []
        layers = [
            RowLayer(
                layer.group,
                layer.kernel,
                tuple((self.place(v), windows.get(v.name, ())) for v in layer.reads),
                tuple(self.place(v) for v in layer.outputs),
                layer.kernel.scratch_bytes(self.target.align),
            )
            for layer in self.layers
            for windows in [self.row_windows(layer.group)]
        ]
        inputs, outputs = self.external()
        external = {*inputs, *outputs}
        return RowStreaming(layers, live.spans, external, self.target.align).regions()

    def row_windows(self, group: Group | None) -> dict[str, tuple[Window, ...]]:
        """``windows_of`` a Group, by the names of what its kernel reads; nothing where unknown."""
        choice = None if group is None else self.plan.choices.get(group.name)
        if group is None or choice is None or not choice.template.streams:
            return {}
        found = windows_of(group)
        if found is None:
            return {}
        readers = self.storage.readers
        return {readers.get((group.name, v.name), v).name: w for v, w in found.items()}

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
        self.layers[-1].choice = choice

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
            if source.layout != "strided" or target.layout != "strided":
                raise InternalError(f"view op {copy.link.node.name!r} meets blocks of channels")
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
        body, routines = kernel.linked(self.prefix)
        name = shorten(f"{self.prefix}_{kernel.name}_{digest(body)}")
        if name not in self.functions:
            text = body.replace("@KERNEL@", name)
            self.functions[name] = Function(name, text, kernel, template, routines)
        return name

    def step(self, layer: Layer) -> Step:
        """What a layer touches, for the arena; scratch for every thread that computes a part."""
        return Step(
            tuple(self.place(v).storage for v in layer.reads),
            tuple(self.place(v).storage for v in layer.outputs),
            layer.kernel.scratch_bytes(self.target.align)
            * (self.target.threads if layer.shared else 1),
        )

    def liveness(self) -> Liveness:
        """Lifetimes of the layers' storages before any aliasing."""
        return Liveness.of([self.step(layer) for layer in self.layers], *self.external())

    def external(self) -> tuple[list[Storage], list[Storage]]:
        """The storages of the graph's inputs and of its outputs."""
        inputs, outputs = (
            [self.place(v).storage for v in values if v.name in self.storage.placements]
            for values in (self.graph.inputs, self.graph.outputs)
        )
        return inputs, outputs

    def find_inplace(self, live: Liveness, regions: Sequence[Region]) -> None:
        """Let outputs overwrite an input that dies with the layer, where its template allows it.

        The kernel is rendered again with one pointer for both.
        """
        for layer in self.layers:
            group = layer.group
            if group is None or len(group.outputs) != 1:
                continue
            if any(layer.index in region for region in regions):
                continue  # its rows are where its buffer's rows are
            output = self.place(layer.output)
            if not live.starts_at(output.storage, layer.index):
                continue
            template = self.plan.choices[group.name].template
            for value in group.activations:
                source = self.place(self.storage.readers.get((group.name, value.name), value))
                if not live.can_overwrite(layer.index, source, output):
                    continue
                if template.may_alias(group, value) == "same_index":
                    live.overwrite(source.storage, output.storage)
                    layer.kernel = self.group_kernel(group, inplace=value.name)
                    layer.function = self.function(layer.kernel, layer.template)
                    break

    def fill_borders(self, live: Liveness) -> None:
        """Let the first layer that writes a storage clear its zero border.

        On the CPU its kernel does so before its first row; a GPU's work items cannot wait for one
        another, so there the fill is a launch of its own.
        """
        from aotgen.schedule.nest import border_fill

        for storage, (first, _) in live.spans.items():
            if not storage.has_border or live.owner(storage) is not storage:
                continue
            layer, fill = self.layers[first], border_fill(storage.view, self.target)
            if self.target.device == "gpu":
                layer.fills.append((self.function(fill, "border"), storage))
                continue
            for arg in layer.kernel.args:
                if arg.is_output and arg.value is not None:
                    place = self.place(arg.value)
                    if place.storage is storage:
                        at = storage.origin - place.offset - arg.offset
                        layer.kernel = with_border(layer.kernel, fill, arg.name, at)
                        layer.function = self.function(layer.kernel, layer.template)
                        break

    def bind(self, layer: Layer, arena: ArenaMap) -> None:
        """Give every pointer of the call its address."""
        scratch = arena.offsets.get(scratch_name(layer.index), 0)
        for arg in layer.kernel.args:
            if arg.value is not None:
                place = self.place(arg.value)
                layer.operands.append(Operand(arg, place, place.offset + arg.offset))
            elif arg.const is not None:
                offset, size = self.weights.add(arg.const.array)
                layer.weights.append(Constant(offset, size))
                layer.operands.append(
                    Operand(arg, None, offset + arg.offset * arg.const.array.itemsize)
                )
            else:
                layer.operands.append(Operand(arg, None, scratch))
                align = self.target.align
                scratch += -(-arg.scratch_bytes // align) * align


def with_border(kernel: Kernel, fill: Kernel, output: str, at: int) -> Kernel:
    """``kernel`` that first clears the border of its output's storage when it computes row 0.

    Args:
        fill: of ``border_fill``: takes a pointer to the storage's logical element 0.
        output: C name of the kernel's output pointer.
        at: elements from that pointer to the storage's logical element 0.
    """
    pointer = f"{output} + {at}" if at > 0 else f"{output} - {-at}" if at < 0 else output
    start = kernel.body.index("{", kernel.body.index("void @KERNEL@(")) + 1
    call = f"\n    if (r0 == 0) {{\n        @KERNEL@_border({pointer}, 0, {fill.rows});\n    }}"
    border = fill.body.replace("@KERNEL@", "@KERNEL@_border").strip("\n")
    body = kernel.body[:start] + call + kernel.body[start:]
    return replace(kernel, body=f"{border}\n\n{body}", math=kernel.math | fill.math)


def lower(graph: Graph, plan: Plan, target: Target, prefix: str) -> Program:
    """Lower a planned graph.

    Args:
        graph: with groups; every graph output is computed by a node of its own
            (``legalize_outputs``).
        plan: from ``plan_graph``.
        target: what kernels are rendered for.
        prefix: of every symbol.
    """
    by_rows = _Lowering(graph, plan, target, prefix).run(by_rows=True)
    if not by_rows.regions:
        return by_rows
    # Maps that are written over their own input may need less than rows of all of them.
    whole = _Lowering(graph, plan, target, prefix).run(by_rows=False)
    return by_rows if by_rows.own_bytes < (1 - BY_ROWS_SAVES) * whole.own_bytes else whole


def legalize_outputs(graph: Graph) -> None:
    """Let every graph output be the output of a node of its own.

    A graph output that is a graph input, what a state variable held, a constant or a repeated
    output gets an ``identity`` node, so that it has memory of its own for the caller to read.
    Groups, when present, are extended.
    """
    seen: set[Value] = set()
    inputs = set(graph.sources)
    for position, value in enumerate(graph.outputs):
        if value in inputs or value.is_const or value in seen:
            node = graph.make("identity", [value], name=f"{value.name}.output")
            graph.nodes.append(node)
            if graph.groups is not None:
                graph.groups.append(Group([node], None, node.name))
            graph.outputs[position] = node.output
        seen.add(graph.outputs[position])
