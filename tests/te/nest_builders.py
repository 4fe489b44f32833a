"""Short ways to write Groups of one node or a chain, with random inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from te.nest_harness import Case, single, value

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def case(
    op: str,
    arrays: list[Any],
    name: str = "",
    gap: int = 0,
    inplace: str | None = None,
    consts: tuple[int, ...] = (),
    tolerance: float = 2e-6,
    **attrs: Any,
) -> Case:
    """A one-node Group; ``arrays`` are its inputs in order (None absent), those in ``consts``
    constants.
    """
    inputs: dict[str, np.ndarray] = {}
    operands: list[Value | np.ndarray | None] = []
    for k, array in enumerate(arrays):
        if array is None or k in consts:
            operands.append(array)
            continue
        inputs[f"in{k}"] = array
        operands.append(value(f"in{k}", array.shape, DType.of(array.dtype)))
    label = f"{op} {name or ' '.join('x'.join(map(str, a.shape)) for a in arrays if a is not None)}"
    return Case(label, single(op, operands, **attrs), inputs, gap, inplace, tolerance)


def chain(
    name: str,
    x: np.ndarray,
    *steps: tuple[str, list[Any], dict[str, Any]],
    inplace: str | None = None,
    tolerance: float = 1e-5,
    gap: int = 0,
) -> Case:
    """A Group of several nodes, each reading the one before; arrays in a step are activations,
    Values constants.
    """
    graph = Graph("t", [], [], [])
    current = value("in0", x.shape, DType.of(x.dtype))
    inputs, nodes = {"in0": x}, []
    for op, operands, attrs in steps:
        values: list[Value | None] = []
        for operand in operands:
            if operand is None:
                values.append(None)
            elif isinstance(operand, str):
                values.append(current)
            elif isinstance(operand, tuple):
                values.append(graph.constant(np.asarray(operand[0]), "c"))
            else:
                label = f"in{len(inputs)}"
                inputs[label] = operand
                values.append(value(label, operand.shape, DType.of(operand.dtype)))
        node = graph.make(op, values, **attrs)
        nodes.append(node)
        current = node.output
    return Case(f"chain {name}", Group(nodes, None, name), inputs, gap, inplace, tolerance)
