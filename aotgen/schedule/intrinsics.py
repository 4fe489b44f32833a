"""Dot-product instructions as records: what they compute, what they need, how their operands lie.

The packer, the register tile's template and the tests read the same record, so another family
(smull and smlal, sdot, SMLAD, VNNI, an accelerator's call) is one more record. plan and the
templates choose among ``intrinsics_for``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aotgen.ir.types import DType
from aotgen.target.target import Target
from aotgen.te.compute import Tensor, compute, memory, reduce

Element = TypeVar("Element", bound=np.generic)


@dataclass(frozen=True)
class Intrinsic:
    """``acc[n] += sum over k of a[k] * b[k, n]`` for one pixel a and one vector of channels n.

    Attributes:
        name: dtype and method.
        isas: instruction sets that have it.
        dtypes: of a, b and the accumulator.
        steps: reduction steps that one load of a serves; it is then read element by element.
        k_pack: reduction steps of a channel that lie next to each other in packed b.
        load: C statement that brings what pointer {a} points at ({element}) into {v}.
        fma: C statement that adds step {lane} of {v} times {b} to {acc}; of {s} with ``splat``.
        splat: C statement that brings step {lane_of_half} of the {half} ("low", "high") of {v} into
            all lanes of {s}, once for all vectors of a pixel; empty: fma reads {v} by element.
        moves_b: packed b is read with vload_next, which moves the pointer.
        features: what cores must have beyond the instruction set, as ``Target.features`` names it.
        fma_memory: the same straight from the pointer {a}, for tiles of one vector; empty: none.
        asm: instructions that do the same as ``fma`` for templates that choose registers
            themselves, which are numbers: {p} is one for products, the others as above.
        asm_single: what takes the place of the second of ``asm`` where two products do not share
            an int16, see ``aotgen.schedule.int8.neon.tiles.pairs_fit``.
        asm_first: what takes the place of ``asm`` where there is nothing yet to add to.
    """

    name: str
    isas: frozenset[str]
    dtypes: tuple[DType, DType, DType]
    steps: int
    k_pack: int
    load: str
    fma: str
    fma_memory: str = ""
    splat: str = ""
    moves_b: bool = False
    features: frozenset[str] = frozenset()
    asm: tuple[str, ...] = ()
    asm_single: str = ""
    asm_first: str = ""

    def splat_text(self, s: str, v: str, lane: int) -> str:
        """``splat`` of one step."""
        half = "high" if lane >= self.steps // 2 else "low"
        return self.splat.format(s=s, v=v, half=half, lane_of_half=lane % (self.steps // 2))

    def fits(self, target: Target) -> bool:
        """Whether the target's cores have the instruction."""
        return target.isa in self.isas and self.features <= target.features

    def semantics(self, channels: int, reduction: int) -> Tensor:
        """What a tile of one pixel computes, in te: a [reduction] times b [reduction, channels]."""
        a = memory("a", (reduction,), self.dtypes[0])
        b = memory("b", (reduction, channels), self.dtypes[1])
        return compute(
            (channels,),
            self.dtypes[2],
            lambda n: reduce("sum", [("k", reduction)], lambda k: a(k) * b(k, n)),
            ("n",),
        )

    def packed_at(self, n: int, k: int, channels: int) -> int:
        """Position of channel ``n``, step ``k`` in what ``pack`` returns: the packing map."""
        return (k // self.k_pack * channels + n) * self.k_pack + k % self.k_pack

    def pack(self, block: npt.NDArray[Element]) -> npt.NDArray[Element]:
        """[channels, reduction] as the tile reads it: [reduction / k_pack][channels][k_pack], flat.

        The reduction is padded with zeros to a multiple of k_pack.
        """
        channels, reduction = block.shape
        rounds = -(-reduction // self.k_pack)
        wide = np.zeros((channels, rounds * self.k_pack), block.dtype)
        wide[:, :reduction] = block
        return wide.reshape(channels, rounds, self.k_pack).transpose(1, 0, 2).reshape(-1)


_F32 = (DType.F32, DType.F32, DType.F32)

F32_BROADCAST = Intrinsic(
    name="f32_broadcast",
    isas=frozenset({"scalar", "avx2", "avx512", "neon", "neon_armv7", "dsp", "mve"}),
    dtypes=_F32,
    steps=1,
    k_pack=1,
    load="const vf {v} = vset1({element});",
    fma="{acc} = vfma({v}, {b}, {acc});",
    fma_memory="{acc} = vfma_bcast({a}, {b}, {acc});",
)
"""Every ISA: one element of a in all lanes. AVX-512 reads it from memory inside the FMA."""

F32_BY_ELEMENT = Intrinsic(
    name="f32_by_element",
    isas=frozenset({"neon"}),
    dtypes=_F32,
    steps=4,
    k_pack=1,
    load="const vf {v} = vload({a});",
    fma="{acc} = vfmaq_laneq_f32({acc}, {b}, {v}, {lane});",
)
"""NEON: a load of four steps of a, each multiplied by element: a quarter of the loads."""

F32_SPLAT = Intrinsic(
    name="f32_splat",
    isas=frozenset({"neon_armv7"}),
    dtypes=_F32,
    steps=4,
    k_pack=1,
    load="const vf {v} = vload({a});",
    fma="{acc} = vfma({s}, {b}, {acc});",
    splat="const vf {s} = vdupq_lane_f32(vget_{half}_f32({v}), {lane_of_half});",
    moves_b=True,
)
"""ARMv7 has no fused multiply by element: a load of four steps of a, each brought into all lanes of
a register; a load per step would need its own address, as vld1 has no offset."""

_S8 = (DType.I8, DType.I8, DType.I32)

S8_SDOT = Intrinsic(
    name="s8_sdot",
    isas=frozenset({"neon"}),
    dtypes=_S8,
    steps=16,
    k_pack=4,
    load="const int8x16_t {v} = vld1q_s8({a});",
    fma="{acc} = vdotq_laneq_s32({acc}, {b}, {v}, {lane});",
    features=frozenset({"asimddp"}),
    asm=("sdot v{acc}.4s, v{b}.16b, v{v}.4b[{lane}]",),
)
"""ARMv8.2's dot product: four steps of four channels at once, {lane} counts quadruples of steps."""

_SMULL_SMLAL = (
    "{acc} = vpadalq_s16({acc}, vmlal_s8(vmull_s8(vget_low_s8({v}), vget_low_s8({b})),"
    " vget_high_s8({v}), vget_high_s8({b})));"
)

S8_SMULL_SMLAL = Intrinsic(
    name="s8_smull_smlal",
    isas=frozenset({"neon"}),
    dtypes=_S8,
    steps=16,
    k_pack=16,
    load="const int8x16_t {v} = vld1q_s8({a});",
    fma=_SMULL_SMLAL,
    asm=(
        "smull v{p}.8h, v{v}.8b, v{b}.8b",
        "smlal2 v{p}.8h, v{v}.16b, v{b}.16b",
        "sadalp v{acc}.4s, v{p}.8h",
    ),
    asm_single="smull2 v{p}.8h, v{v}.16b, v{b}.16b",
)
"""Every AArch64: sixteen steps of one channel, two products in an int16, then pairs added to int32;
an accumulator has four partial sums of a channel."""

S8_VMULL_VMLAL = Intrinsic(
    name="s8_vmull_vmlal",
    isas=frozenset({"neon_armv7"}),
    dtypes=_S8,
    steps=16,
    k_pack=16,
    load="const int8x16_t {v} = vld1q_s8({a});",
    fma=_SMULL_SMLAL,
    asm=(
        "vmull.s8 q{p}, d{v_low}, d{b_low}",
        "vmlal.s8 q{p}, d{v_high}, d{b_high}",
        "vpadal.s16 q{acc}, q{p}",
    ),
    asm_single="vmull.s8 q{p}, d{v_high}, d{b_high}",
)
"""The same on 32-bit ARM, whose instructions name the halves of a register."""

S8_VMLADAV = Intrinsic(
    name="s8_vmladav",
    isas=frozenset({"mve"}),
    dtypes=_S8,
    steps=16,
    k_pack=16,
    load="const int8x16_t {v} = vldrbq_s8({a});",
    fma="{acc} = vmladavaq_s8({acc}, {v}, {b});",
    asm=("vmladava.s8 {acc}, {v}, {b}",),
    asm_first="vmladav.s8 {acc}, {v}, {b}",
)
"""MVE: sixteen steps of one channel into a general register, one of even number."""

U8S8_DOT4 = Intrinsic(
    name="u8s8_dot4",
    isas=frozenset({"avx2", "avx512"}),
    dtypes=(DType.U8, DType.I8, DType.I32),
    steps=4,
    k_pack=4,
    load="const vqa {v} = {set}({a});",
    fma="{acc} = vdot4({acc}, {v}, {b});",
)
"""x86: four products of a lane at once, vpdpbusd with VNNI; without it two products of int16 pairs,
as the sums of two that vpmaddubsw makes would saturate. {set} is vqa_set1, or vqa_set1_flip for
inputs in memory that are int8."""

S16S8_SMLAD = Intrinsic(
    name="s16s8_smlad",
    isas=frozenset({"dsp", "mve"}),
    dtypes=(DType.I16, DType.I8, DType.I32),
    steps=2,
    k_pack=1,
    load="int16x2_t {v}; memcpy(&{v}, {a}, 4);",
    fma="{acc} = __smlad({v}, __sxtb16({b} >> 8 * {lane}), {acc});",
    asm=("smlad {acc}, {v}, {b}, {acc}",),
)
"""The DSP extension: two steps of a, and a word {b} of two channels' weights for them, of which
{lane} is the channel. SXTB16 widens every other byte; other steps than neighbours may share a word,
as long as a and b agree."""

I16_PAIRS = Intrinsic(
    name="i16_pairs",
    isas=frozenset({"scalar", "neon", "neon_armv7", "avx2", "avx512", "dsp", "mve"}),
    dtypes=(DType.I16, DType.I8, DType.I32),
    steps=2,
    k_pack=2,
    load="const vp {v} = vpset1({a});",
    fma="{acc} = vpdot({v}, {b}, {acc});",
)
"""Products of int16 pairs, summed in int32: madd_epi16, or smull and addp."""

INTRINSICS = (
    F32_BY_ELEMENT,
    F32_SPLAT,
    F32_BROADCAST,
    S8_SDOT,
    S8_SMULL_SMLAL,
    S8_VMULL_VMLAL,
    S8_VMLADAV,
    U8S8_DOT4,
    S16S8_SMLAD,
    I16_PAIRS,
)
"""All records, the preferred first."""


def intrinsics_for(target: Target, dtypes: tuple[DType, DType, DType]) -> list[Intrinsic]:
    """The records that a target can run for operands of these types, the preferred first."""
    return [i for i in INTRINSICS if i.fits(target) and i.dtypes == dtypes]


def tile_steps(
    by_element: Intrinsic | None, offsets: Sequence[int], vectors: int
) -> dict[str, Any]:
    """C lines of the register tile's reduction steps, for templates/kernels/tile.c.j2.

    Args:
        by_element: the record that serves several steps with one load of a, if the target has one.
        offsets: floats from pointer a to each pixel's input.
        vectors: of output channels.

    Returns:
        step: lines of one step; lane_loads: loads for several; lane_fmas: by step, the lines.
    """
    one = F32_BROADCAST
    step: list[str] = []
    for i, at in enumerate(offsets):
        names = {"v": f"v{i}", "a": f"a + {at}", "element": f"a[{at}]"}
        if vectors == 1 and one.fma_memory:
            step.append(one.fma_memory.format(acc=f"acc{i}_0", b="b0", **names))
            continue
        step.append(one.load.format(**names))
        step += [one.fma.format(acc=f"acc{i}_{n}", b=f"b{n}", **names) for n in range(vectors)]
    if by_element is None:
        return {"step": step, "lane_loads": [], "lane_fmas": []}
    loads = [by_element.load.format(v=f"v{i}", a=f"a + {at}") for i, at in enumerate(offsets)]
    fmas = [
        _lane_lines(by_element, lane, len(offsets), vectors) for lane in range(by_element.steps)
    ]
    return {"step": step, "lane_loads": loads, "lane_fmas": fmas}


def _lane_lines(record: Intrinsic, lane: int, pixels: int, vectors: int) -> list[str]:
    """Lines of one step of a load that serves several: all pixels of a vector, where a is read by
    element; else all vectors of a pixel, so that one register is enough for the splat.
    """

    def fma(i: int, n: int) -> str:
        return record.fma.format(acc=f"acc{i}_{n}", b=f"b{n}", v=f"v{i}", s=f"s{i}", lane=lane)

    if not record.splat:
        return [fma(i, n) for n in range(vectors) for i in range(pixels)]
    lines: list[str] = []
    for i in range(pixels):
        lines.append(record.splat_text(f"s{i}", f"v{i}", lane))
        lines += [fma(i, n) for n in range(vectors)]
    return lines
