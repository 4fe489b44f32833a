"""Tasks: the different kernels of a model, each with all the ways to implement it.

Groups with the same ops, attributes, shapes, element types, epilogue and memory order are one task,
in whatever model and layer they stand. A task is self-contained: float constants are drawn from its
key, so that equal tasks give equal C and a record of one model serves another. Integer constants
and single floats are the model's own, and part of the key: kernels may depend on them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aotgen.ir.graph import Graph, Group, Node, Value
from aotgen.ir.types import Array, DType
from aotgen.memory.storage import root_view
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Config, Kernel, Need, ScheduleError, Template, View, Views
from aotgen.target.target import Target

MAX_ATTRIBUTE = 16
"""Elements of an attribute that a key spells out; longer ones are hashed."""


@dataclass(frozen=True, eq=False)
class Task:
    """One kernel to tune.

    Attributes:
        key: 16 hexadecimal digits, a hash of ``text``.
        text: what the key stands for: ops, attributes, types, memory order, target.
        title: short, for people: "conv 3x3 1x56x56x64 -> 1x56x56x64 + relu".
        group: the first Group of the model that it stands for, with constants of the task's own.
        target: what kernels are rendered for.
        layers: names of all Groups of the model that it stands for.
        orders: by name of a tensor that is not row-major, its axes from the outermost in memory to
            the innermost.
        macs: multiply-accumulates of one call.
        is_chain: plan may form its Groups of others, which are tasks as well: of a run's time only
            one of the two is a part.
    """

    key: str
    text: str
    title: str
    group: Group
    target: Target
    layers: tuple[str, ...]
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    macs: int = 0
    is_chain: bool = False

    @property
    def calls(self) -> int:
        """How often a run of the model computes it."""
        return len(self.layers)

    @property
    def ops(self) -> float:
        """Arithmetic operations of one call, for GFLOPS: two a multiply-accumulate."""
        return 2.0 * self.macs

    def templates(self) -> list[Template]:
        """Every template that can implement it, in the registry's order."""
        from aotgen.schedule.registry import anchor_templates

        return [t for t in anchor_templates() if t.applies(self.group, self.target) is None]

    def template(self, name: str) -> Template | None:
        """The template of this name, None when there is none or it does not apply."""
        return next((t for t in self.templates() if t.name == name), None)

    def is_legal(self, template: Template, config: Config) -> bool:
        """Whether the static check accepts a config."""
        try:
            template.check(self.group, self.target, config)
        except ScheduleError:
            return False
        return True

    def blocks(self, template: Template, config: Config) -> dict[str, tuple[View, int, int]]:
        """By tensor: (view, elements of its memory, where logical element 0 lies), with exactly the
        border that the template asks for and otherwise dense.
        """
        needs = template.needs(self.group, self.target, config)
        out = template.output_need(self.group, self.target, config)
        made = {}
        for value in [*self.group.activations, *self.group.outputs]:
            written = value in self.group.outputs
            need = out if written else needs.get(value.name, Need())
            order = self.orders.get(value.name)
            if (
                order is None
                or need.layout != "strided"
                or not need.met_by(dense_view(value, order))
            ):
                view, origin, elements = root_view(value, need.border, need.block)
                made[value.name] = view, elements, origin
            else:
                made[value.name] = dense_view(value, order), value.type.numel or 1, 0
        return made

    def kernel(self, template: Template, config: Config) -> Kernel:
        """The kernel alone, on views of its own.

        Raises:
            ScheduleError: the config is not legal.
        """
        template.check(self.group, self.target, config)
        views = {name: block[0] for name, block in self.blocks(template, config).items()}
        return template.kernel(self.group, self.target, config, Views(views))

    def inputs(self) -> dict[str, Array]:
        """Seeded activations by name: floats around 1, integers over their whole range."""
        rng = np.random.default_rng(int(self.key, 16))
        return {v.name: _draw(v, rng) for v in self.group.activations}

    def expected(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs by numpy's rules of every op; those of float32 are computed in float64."""
        known: dict[str, Array] = {name: _wide(array) for name, array in inputs.items()}
        for node in self.group.nodes:
            arrays = [
                None if v is None else _wide(v.const) if v.const is not None else known[v.name]
                for v in node.inputs
            ]
            for value, array in zip(node.outputs, op_def(node.op).numpy(node, arrays), strict=True):
                known[value.name] = array
        return [known[v.name] for v in self.group.outputs]


@dataclass(frozen=True)
class Point:
    """A way to implement a task: hashable, comparable.

    Attributes:
        template: its name.
        config: its knobs.
    """

    template: str
    config: Config


def template_for(group: Group, target: Target, name: str) -> Template | None:
    """The template of this name, None when there is none or it does not apply to a Group."""
    from aotgen.schedule.registry import anchor_templates

    found = next((t for t in anchor_templates() if t.name == name), None)
    return found if found is not None and found.applies(group, target) is None else None


def kernel_hash(kernel: Kernel) -> str:
    """16 hexadecimal digits that change when a template prints other C or passes other things."""
    parts = [kernel.body, str(kernel.rows), str(kernel.grain)]
    parts += [routine.text for routine in kernel.routines]
    for arg in kernel.args:
        role = arg.const.role if arg.const is not None else arg.scratch_bytes
        parts.append(f"{arg.ctype} {arg.name} {role} {arg.offset} {arg.is_output}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def tasks_of(graph: Graph, target: Target, extra: Sequence[Group] = ()) -> list[Task]:
    """The tasks of a graph with groups, in order of first use: what has more than one way to be
    implemented.

    Args:
        graph: after the passes.
        target: what kernels are rendered for.
        extra: further Groups that plan may form, such as fused chains.
    """
    orders = memory_orders(graph, target)
    groups = graph.groups or []
    single = set(groups)
    found: dict[str, list[Group]] = {}
    for group in [*groups, *extra]:
        if has_choice(group, target):
            found.setdefault(describe(group, target, orders), []).append(group)
    # Groups of the graph come before further ones.
    return [
        replace(task_of(same, target, orders), is_chain=same[0] not in single)
        for same in found.values()
    ]


def task_of(groups: Sequence[Group], target: Target, orders: Mapping[str, tuple[int, ...]]) -> Task:
    """The task of Groups that ``describe`` has the same text for."""
    text = describe(groups[0], target, orders)
    key = _key(text)
    group, names = _isolated(groups[0], key)
    own = {names[n]: o for n, o in orders.items() if n in names}
    macs = sum(count(n) for n in groups[0].nodes if (count := op_def(n.op).macs))
    layers = tuple(g.name for g in groups)
    return Task(key, text, title_of(group), group, target, layers, own, macs)


def key_of(group: Group, target: Target, orders: Mapping[str, tuple[int, ...]]) -> str:
    """The key of the task that a Group of a model belongs to.

    Args:
        group: of a graph.
        target: what kernels are rendered for.
        orders: from ``memory_orders``.
    """
    return _key(describe(group, target, orders))


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(group: Group, target: Target, orders: Mapping[str, tuple[int, ...]]) -> str:
    """The text that a task's key is a hash of: independent of names and of float constants."""
    names: dict[str, str] = {}
    lines = []
    for value in group.inputs:
        names[value.name] = f"%{len(names)}"
        lines.append(f"{names[value.name]}: {_value_text(value, orders)}")
    for node in group.nodes:
        for value in node.outputs:
            names[value.name] = f"%{len(names)}"
        inputs = ", ".join("none" if v is None else names[v.name] for v in node.inputs)
        outputs = ", ".join(f"{names[v.name]}: {_value_text(v, orders)}" for v in node.outputs)
        lines.append(f"{outputs} = {node.op}({inputs}) {_attributes(node)}")
    features = ",".join(sorted(target.features))
    lines.append(
        f"target {target.isa} {target.core} l1 {target.l1_bytes}/{target.l1_ways} "
        f"l2 {target.l2_bytes} threads {target.threads} {target.device} {target.optimize}"
        + (f" {features}" if features else "")
    )
    return "\n".join(lines)


def title_of(group: Group) -> str:
    """One line on what a Group computes."""
    anchor = group.anchor or group.nodes[0]
    parts = [anchor.op]
    if "kernel" in anchor.attrs:
        parts.append("x".join(map(str, anchor.attrs["kernel"])))
    elif anchor.op in ("conv", "qconv", "conv_transpose") and len(anchor.args) > 1:
        parts.append("x".join(map(str, anchor.input(1).shape[1:-1])))
    strides = anchor.attrs.get("strides")
    if strides and set(strides) != {1}:
        parts.append(f"stride {'x'.join(map(str, strides))}")
    groups = anchor.attrs.get("groups", 1)
    if groups and groups != 1:
        parts.append(f"groups {groups}")
    shape = "x".join(map(str, anchor.input(0).shape))
    out = "x".join(map(str, group.output.shape))
    text = f"{' '.join(parts)} {shape} -> {out}"
    rest = [n.op for n in group.nodes if n is not anchor]
    return f"{text} + {' + '.join(rest)}" if rest else text


def has_choice(group: Group, target: Target) -> bool:
    """Whether the templates of a Group offer more than one config."""
    from aotgen.schedule.registry import anchor_templates

    points = 0
    for template in anchor_templates():
        if template.applies(group, target) is None:
            points += math.prod(len(k.values) for k in template.space(group, target))
    return points > 1


def _value_text(value: Value, orders: Mapping[str, tuple[int, ...]]) -> str:
    text = str(value.type)
    order = orders.get(value.name)
    if order is not None:
        text += f" order {','.join(map(str, order))}"
    if value.const is not None:
        text += f" const {_digest(value.const)}" if _is_own(value) else " const"
    return text


def _is_own(value: Value) -> bool:
    """Whether a constant's numbers belong to the task: kernels may print or analyse them."""
    return value.const is not None and (value.dtype is not DType.F32 or value.const.size == 1)


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def _attributes(node: Node) -> str:
    parts = []
    for name in sorted(node.attrs):
        value = node.attrs[name]
        text = repr(value)
        if (isinstance(value, tuple) and len(value) > MAX_ATTRIBUTE) or len(text) > 400:
            text = hashlib.sha256(text.encode()).hexdigest()[:12]
        parts.append(f"{name}={text}")
    return " ".join(parts)


def _isolated(group: Group, key: str) -> tuple[Group, dict[str, str]]:
    """A copy of a Group with values, names and float constants of its own; the new names by the
    old ones.
    """
    rng = np.random.default_rng(int(key, 16))
    made: dict[Value, Value] = {}
    names: dict[str, str] = {}

    def fresh(value: Value) -> Value:
        if value not in made:
            name = f"v{len(made)}"
            const = value.const
            if const is not None and not _is_own(value):
                const = _draw_constant(value, rng)
            made[value] = Value(name, value.type, const)
            names[value.name] = name
        return made[value]

    nodes = []
    for index, node in enumerate(group.nodes):
        inputs = [None if v is None else fresh(v) for v in node.inputs]
        outputs = [fresh(v) for v in node.outputs]
        copy = Node(node.op, inputs, outputs, dict(node.attrs), f"n{index}")
        for value in outputs:
            value.producer = copy
        nodes.append(copy)
    anchor = None if group.anchor is None else nodes[group.nodes.index(group.anchor)]
    return Group(nodes, anchor, "task"), names


def _draw_constant(value: Value, rng: np.random.Generator) -> Array:
    """Weights that keep activations near 1; vectors (biases, scales) between 0.5 and 1.5."""
    shape = value.shape
    if sum(n > 1 for n in shape) < 2:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    fan_in = max(1, math.prod(shape) // max(shape[0], 1))
    return (rng.standard_normal(shape) * math.sqrt(2 / fan_in)).astype(np.float32)


def _draw(value: Value, rng: np.random.Generator) -> Array:
    if value.dtype is DType.F32:
        return rng.standard_normal(value.shape).astype(np.float32)
    kind = value.dtype.numpy
    if np.issubdtype(kind, np.integer):
        raw = rng.bytes(math.prod(value.shape) * np.dtype(kind).itemsize)
        return np.frombuffer(raw, kind).reshape(value.shape)
    return rng.integers(0, 2, value.shape).astype(kind)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def dense_view(value: Value, order: tuple[int, ...]) -> View:
    """The view of a value without gaps whose axes lie in this order in memory."""
    strides = [0] * len(value.shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= value.shape[axis]
    return View(value.shape, tuple(strides), value.dtype)


def memory_orders(graph: Graph, target: Target) -> dict[str, tuple[int, ...]]:
    """By name of a value that does not lie row-major in memory, its axes from the outermost to the
    innermost: what a transposing view op makes of an input in the file's own layout.
    """
    from aotgen.schedule.plan import plan_graph

    found: dict[str, tuple[int, ...]] = {}
    for name, place in plan_graph(graph, target).storage.placements.items():
        view = place.view
        if view.layout != "strided":
            continue
        axes = [a for a in _axes(view.shape) if view.shape[a] > 1]
        order = sorted(axes, key=lambda a: -view.strides[a])
        if order != axes and 0 not in [view.strides[a] for a in axes]:
            rest = [a for a in _axes(view.shape) if view.shape[a] <= 1]
            found[name] = (*rest, *order)
    return found


def _axes(shape: tuple[int, ...]) -> Iterator[int]:
    return iter(range(len(shape)))
