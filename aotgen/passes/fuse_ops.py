"""fuse_ops: the partition of the nodes into Groups, each the work of one kernel call.

    view op                      alone: plan makes it a view, or a copy where it cannot
    anchor + element-wise        conv, matmul, pool with an epilogue in its register tile
    matmul + softmax or norm, and more element-wise, on finished rows
    element-wise -> reduction -> element-wise
    other op -> element-wise
    trees of element-wise ops

Inside a group every value has one reader, and it is in the group. A group is thus a tree whose root
is its last node, and it runs where that node stood: everything else that it reads exists by then,
and no order of groups can have a cycle (what enters a group reaches its root, so a cycle of groups
would be a cycle of roots).
"""

from __future__ import annotations

from aotgen.ir.graph import Graph, Group, Node, Value
from aotgen.ir.types import DType, Shape
from aotgen.memory.relations import is_view_op
from aotgen.ops.norm import ROW_OPS
from aotgen.ops.registry import OpPattern, op_def
from aotgen.passes.base import Pass
from aotgen.passes.layout import broadcasts
from aotgen.passes.rewrite import is_movable_node, is_plain

MAX_OPS = 256
"""About the most ops of a Group: te's expressions are as deep as its chains are long."""


def kernel_calls(graph: Graph) -> int:
    """Groups that compute, that is all but lone view ops."""
    return sum(not is_view_op(group.nodes[-1]) for group in graph.groups or ())


def single_groups(graph: Graph) -> None:
    """Every node its own Group, in the order of the nodes."""
    used: dict[str, int] = {}
    graph.groups = [_group([node], used) for node in graph.nodes]


class FuseOps(Pass):
    """Partition the nodes; anchors choose first, the last one first, then reductions, then the
    rest."""

    name = "fuse_ops"
    level = 1

    def run(self, graph: Graph) -> bool:
        fusion = _Fusion(graph)
        order = list(reversed(graph.nodes))
        for node in order:
            if op_def(node.op).pattern is OpPattern.ANCHOR:
                fusion.grow_anchor(node)
        for node in order:
            if node not in fusion.owner and op_def(node.op).pattern is OpPattern.REDUCE:
                fusion.grow_reduction(node)
        for node in order:
            moves = op_def(node.op).pattern is OpPattern.INJECTIVE and not is_view_op(node)
            if node not in fusion.owner and moves and len(node.outputs) == 1:
                fusion.claim(fusion.forward([node]))
        for node in order:
            if node not in fusion.owner and broadcasts(node):
                fusion.claim(fusion.backward(node))
        groups = fusion.finish()
        graph.groups = groups
        graph.nodes = [node for group in groups for node in group.nodes]
        return True


class _Fusion:
    """The partition as it grows: nodes by owner (the group's last node)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        self.users = graph.users()
        self.results = set(graph.results)
        self.owner: dict[Node, Node] = {}
        self.members: dict[Node, list[Node]] = {}
        self._movable: dict[Node, bool] = {}

    def claim(self, nodes: list[Node]) -> None:
        """Make ``nodes`` a group."""
        for node in nodes:
            self.owner[node] = nodes[-1]
        self.members[nodes[-1]] = nodes

    def next_of(self, node: Node) -> Node | None:
        """The one reader of ``node``'s output, if it is free to join node's group."""
        if len(node.outputs) != 1 or node.output in self.results:
            return None
        users = self.users[node.output]
        if len(users) != 1 or users[0] in self.owner or len(users[0].outputs) != 1:
            return None
        user = users[0]
        if user not in self._movable:
            self._movable[user] = is_movable_node(user)
        return user if self._movable[user] else None

    def grow_anchor(self, anchor: Node) -> None:
        """The element-wise ops behind an anchor; behind a matmul one op on whole rows too."""
        nodes = [anchor]
        if anchor.output.dtype is DType.F32 and is_plain(*anchor.args, anchor.output):
            rows = False
            while len(nodes) < MAX_OPS:
                user = self.next_of(nodes[-1])
                if user is None:
                    break
                if _is_epilogue(nodes[-1].output, user, on_rows=rows):
                    nodes.append(user)
                elif anchor.op == "matmul" and not rows and _is_row_op(nodes[-1].output, user):
                    nodes.append(user)
                    rows = True
                else:
                    break
        self.claim(nodes)

    def grow_reduction(self, node: Node) -> None:
        """The element-wise ops that compute a reduction's input, and those behind it."""
        nodes = [node]
        prologue = node.input(0).producer
        if prologue is not None and _reads_once(node) and self._joins(prologue, node):
            nodes = [*self.backward(prologue), node]
        self.claim(self.forward(nodes))

    def forward(self, nodes: list[Node]) -> list[Node]:
        """``nodes`` and the chain of element-wise ops behind them that keep the shape."""
        nodes = list(nodes)
        while len(nodes) < MAX_OPS:
            user = self.next_of(nodes[-1])
            if user is None or not broadcasts(user):
                break
            if user.output.type.shape != nodes[-1].output.type.shape:
                break
            nodes.append(user)
        return nodes

    def backward(self, root: Node) -> list[Node]:
        """The tree of element-wise ops that ends in ``root``, in execution order."""
        tree = [root]
        stack = [root]
        while stack and len(tree) < MAX_OPS:
            node = stack.pop()
            for value in dict.fromkeys(node.args):
                inner = value.producer
                if inner is None or not self._joins(inner, node) or inner in tree:
                    continue
                # As many evaluations as before: broadcasting would repeat them.
                if inner.output.type.shape == root.output.type.shape:
                    tree.append(inner)
                    stack.append(inner)
        return sorted(tree, key=self.position.__getitem__)

    def _joins(self, inner: Node, user: Node) -> bool:
        """``inner`` is element-wise, free, and read by ``user`` alone."""
        return inner not in self.owner and broadcasts(inner) and self.next_of(inner) is user

    def finish(self) -> list[Group]:
        """Groups in the order of their last nodes; whoever is left stands alone."""
        for node in self.graph.nodes:
            if node not in self.owner:
                self.claim([node])
        used: dict[str, int] = {}
        roots = [node for node in self.graph.nodes if node in self.members]
        return [_group(self.members[root], used) for root in roots]


def _group(nodes: list[Node], used: dict[str, int]) -> Group:
    anchor = next((n for n in nodes if op_def(n.op).pattern is OpPattern.ANCHOR), None)
    base = (anchor or nodes[-1]).name
    used[base] = used.get(base, -1) + 1
    name = base if used[base] == 0 else f"{base}_{used[base]}"
    return Group(nodes, anchor, name)


def _is_epilogue(value: Value, user: Node, *, on_rows: bool) -> bool:
    """``user`` computes f32 of value's shape from value and operands that an epilogue can load;
    ``on_rows``, behind a row op, constants of one row or one number alone.
    """
    if not broadcasts(user) or user.output.type != value.type:
        return False
    return all(
        other is value
        or (
            other.dtype is DType.F32
            and _is_loadable(other, value.type.shape)
            and (not on_rows or (other.is_const and _is_row_constant(other, value.type.shape)))
        )
        for other in user.args
    )


def _is_loadable(value: Value, shape: Shape) -> bool:
    """Same shape (pixel), one number per index of the last axis (channel), or one number."""
    own = value.type.shape
    if own == shape or all(n == 1 for n in own):
        return True
    return own[-1] == shape[-1] and all(n == 1 for n in own[:-1])


def _is_row_constant(value: Value, shape: Shape) -> bool:
    """One number, or one per index of the last axis; no tensor of the whole shape."""
    return value.type.numel == 1 or value.type.shape != shape


def _reads_once(node: Node) -> bool:
    """A reduction that evaluates what it reads once: a plain one, or one that keeps a row."""
    if node.op.startswith(("reduce_", "arg")):
        return True
    if node.op in ("softmax", "log_softmax", "lp_norm"):
        return bool(node.attrs["axis"] == node.output.type.rank - 1)
    return node.op in ("layer_norm", "rms_norm")


def _is_row_op(value: Value, user: Node) -> bool:
    """A softmax or norm over the last axis of ``value``, with constant parameters."""
    if user.op not in ROW_OPS or user.output.type != value.type or user.input(0) is not value:
        return False
    return user.attrs["axis"] == value.type.rank - 1 and all(v.is_const for v in user.args[1:])
