"""Constants that several models of a bundle have stand in it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotgen.codegen.program import Constant, Layer, Program, WeightBlob


def share_constants(programs: Sequence[Program]) -> WeightBlob:
    """Move constants of equal bytes that more than one program has out of their weights.

    What a state begins with stays with its model.

    Args:
        programs: of one target; their weights, layers and operands are changed.

    Returns:
        The bytes that they share now, which the layers' constants with ``shared`` lie in.
    """
    align = programs[0].target.align
    users = Counter(key for program in programs for key in program.weights.constants())
    shared = WeightBlob(align)
    for program in programs:
        own = WeightBlob(align)
        initial = set(program.initial.values())
        moved: dict[int, Constant] = {}
        starts: dict[int, int] = {}
        for key, (offset, data) in program.weights.constants().items():
            if offset in initial or users[key] == 1:
                moved[offset] = Constant(*own.add(data))
            if offset in initial:
                starts[offset] = moved[offset].offset
            if users[key] > 1:
                moved[offset] = Constant(*shared.add(data), shared=True)
        program.initial = {name: starts[at] for name, at in program.initial.items()}
        program.weights, program.shared = own, shared
        for layer in program.layers:
            _move(layer, moved)
    return shared


def _move(layer: Layer, moved: Mapping[int, Constant]) -> None:
    """Give a layer's constants and the pointers to them their new places."""
    before, layer.weights = iter(layer.weights), []
    for number, operand in enumerate(layer.operands):
        if operand.arg.const is not None:
            old = next(before)
            new = moved[old.offset] if old.bytes else Constant(0, 0)
            offset = new.offset + operand.offset - old.offset
            layer.operands[number] = replace(operand, offset=offset, shared=new.shared)
            layer.weights.append(new)
