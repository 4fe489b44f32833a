"""What a learned cost model sees of a Group and a config: numbers by name.

One name has one meaning in all templates, so that what was learned from one layer, template or
board serves another. Counts, bytes and times are logarithms to base 2, shares and ratios are plain.

| name | meaning |
|---|---|
| ``log2_macs``, ``log2_outputs``, ``log2_reduction`` | of one call |
| ``log2_x_bytes``, ``log2_w_bytes``, ``log2_y_bytes`` | activations read, constants, outputs |
| ``macs_per_byte`` | multiply-accumulates by all of these bytes, log2 |
| ``w_by_l2``, ``x_by_l1``, ``x_by_l2`` | those bytes by a cache's, log2 |
| ``knob_*`` | a knob: log2(1 + value), 0 or 1, or one of ``knob_<name>_<value>`` |
| ``tile_pixels``, ``tile_vectors``, ``accumulators`` | of the register tile |
| ``registers``, ``registers_free`` | that a tile keeps live, as a share of all; left |
| ``tail_waste`` | work of padded tiles by real work; by axis: ``waste_rows`` and the like |
| ``log2_tiles``, ``log2_instructions`` | calls of the tile; instructions of its code |
| ``log2_step_*`` | cycles of one reduction step by what limits it |
| ``resident_by_l1``, ``resident_by_l2`` | bytes that should stay by a cache's, log2 |
| ``log2_stream_bytes`` | what goes past them |
| ``log2_model_seconds`` | of the model; parts: ``log2_tile_seconds``, ``log2_memory_seconds`` |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aotgen.ir.graph import Group
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Config
from aotgen.schedule.group_memo import per_group
from aotgen.target.target import Target

if TYPE_CHECKING:
    from aotgen.schedule.base import Template

LEAST_SECONDS = 1e-9
"""Modelled times below it, of empty work, count as this."""


def log2(value: float) -> float:
    """Of a count or a size: 0 for less than one."""
    return math.log2(value) if value > 1 else 0.0


def log2_ratio(part: float, whole: float) -> float:
    """How often ``whole`` fits: between -16 and 16."""
    if part <= 0 or whole <= 0:
        return -16.0
    return min(16.0, max(-16.0, math.log2(part / whole)))


def log2_seconds(seconds: float) -> float:
    """Of a modelled time; 0 where there is no model."""
    return math.log2(max(seconds, LEAST_SECONDS)) if math.isfinite(seconds) else 0.0


@per_group
def work_features(group: Group, target: Target) -> dict[str, float]:
    """What every config of a Group has in common; not to be changed."""
    macs = sum(count(n) for n in group.nodes if (count := op_def(n.op).macs))
    outputs = sum(v.type.numel or 0 for v in group.outputs)
    x_bytes = sum(v.type.nbytes for v in group.activations)
    w_bytes = sum(v.type.nbytes for v in group.inputs if v.is_const)
    y_bytes = sum(v.type.nbytes for v in group.outputs)
    return {
        "log2_macs": log2(macs),
        "log2_outputs": log2(outputs),
        "log2_reduction": log2(macs / max(1, outputs)),
        "log2_x_bytes": log2(x_bytes),
        "log2_w_bytes": log2(w_bytes),
        "log2_y_bytes": log2(y_bytes),
        "macs_per_byte": log2_ratio(macs, x_bytes + w_bytes + y_bytes),
        "w_by_l2": log2_ratio(w_bytes, target.l2_bytes),
        "x_by_l1": log2_ratio(x_bytes, target.l1_bytes),
        "x_by_l2": log2_ratio(x_bytes, target.l2_bytes),
        "epilogue_nodes": float(len(group.epilogue)),
        "vector_lanes": float(target.vl),
        "threads": float(target.threads),
    }


def knob_features(config: Config) -> dict[str, float]:
    """Every knob as numbers."""
    made = {}
    for name, value in config.values:
        if isinstance(value, bool):
            made[f"knob_{name}"] = float(value)
        elif isinstance(value, int):
            made[f"knob_{name}"] = math.log2(1 + max(0, value))
        else:
            made[f"knob_{name}_{value}"] = 1.0
    return made


@per_group
def _absent(group: Group, template: Template, target: Target) -> dict[str, float]:
    """0 for every value of the categorical knobs."""
    return {
        f"knob_{knob.name}_{value}": 0.0
        for knob in template.space(group, target)
        for value in knob.values
        if isinstance(value, str)
    }


def common_features(
    template: Template, group: Group, target: Target, config: Config
) -> dict[str, float]:
    """The Group's work, the knobs and the template's own model."""
    return {
        **work_features(group, target),
        **_absent(group, template, target),
        **knob_features(config),
        "log2_model_seconds": log2_seconds(template.cost(group, target, config)),
    }


def tile_features(
    pixels: int, vectors: int, live: int, target: Target, instructions: float
) -> dict[str, float]:
    """Of a register tile.

    Args:
        pixels, vectors: its accumulators.
        live: vector registers in use in its innermost loop.
        instructions: of its code.
    """
    return {
        "tile_pixels": float(pixels),
        "tile_vectors": float(vectors),
        "accumulators": float(pixels * vectors),
        "registers": live / target.vector_registers,
        "registers_free": float(target.vector_registers - live),
        "log2_instructions": log2(instructions),
    }


def waste(padded: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """(padded, real) extents by axis: how much is computed in vain, by axis and in all."""
    shares = {axis: whole / max(1.0, real) for axis, (whole, real) in padded.items()}
    made = {f"waste_{axis}": share for axis, share in shares.items()}
    return {**made, "tail_waste": math.prod(shares.values())}


def resident(in_l1: float, in_l2: float, stream: float, target: Target) -> dict[str, float]:
    """Bytes that are read again soon (in L1, in L2), and bytes that pass by once."""
    return {
        "resident_by_l1": log2_ratio(in_l1, target.l1_bytes),
        "resident_by_l2": log2_ratio(in_l2, target.l2_bytes),
        "log2_stream_bytes": log2(stream),
    }
