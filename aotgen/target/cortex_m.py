"""What a compiler defines for the core of a microcontroller board: by that a project tells that it
is being built for another one.

Most of what is wrong would go unnoticed: kernels of an M4 run on an M55, at a third of its speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotgen.target.board import Board
from aotgen.target.target import Isa


@dataclass(frozen=True)
class Need:
    """What the compiler's flags must be for.

    Attributes:
        condition: expression of the C preprocessor that holds then.
        words: it in words, behind "needs".
    """

    condition: str
    words: str


# GCC before 13 has one macro for Armv8-M and Armv8.1-M: Helium, which all cores of ours with the
# latter have, tells them apart.
_ARMV7EM = Need("defined(__ARM_ARCH_7EM__)", "an Armv7E-M core (Cortex-M4, Cortex-M7)")
_ARMV8M = Need(
    "defined(__ARM_ARCH_8M_MAIN__) && !defined(__ARM_FEATURE_MVE)",
    "an Armv8-M core without Helium (Cortex-M33)",
)

_ARCHITECTURES = {
    "cortex-m4": _ARMV7EM,
    "cortex-m7": _ARMV7EM,
    "cortex-m33": _ARMV8M,
    "cortex-m35p": _ARMV8M,
}
"""By core; of one that is not here any architecture will do that has its instructions."""

_INSTRUCTIONS: dict[Isa, Need] = {
    "dsp": Need("defined(__ARM_FEATURE_DSP)", "a core with the DSP extension"),
    "mve": Need("defined(__ARM_FEATURE_MVE)", "a core with Helium (MVE)"),
}

_FLOAT_ABIS = {
    "hard": Need("defined(__ARM_PCS_VFP)", "floats in FPU registers (-mfloat-abi=hard)"),
    "softfp": Need(
        "defined(__ARM_FP) && !defined(__ARM_PCS_VFP)",
        "an FPU, and floats in general registers (-mfloat-abi=softfp)",
    ),
    "soft": Need("!defined(__ARM_PCS_VFP)", "floats in general registers (-mfloat-abi=soft)"),
}


def core_need(isa: Isa, bare: bool) -> Need | None:
    """What the kernels need of a microcontroller's core; None where they are plain C."""
    return _INSTRUCTIONS.get(isa) if bare else None


def needs_of(board: Board) -> tuple[Need, ...]:
    """What a project for a board must be compiled for; nothing where its kernels are plain C.

    A board that brings its firmware has a float ABI, too. In a firmware of the user's it is the
    user's: kernels take no floats as arguments.
    """
    need = core_need(board.isa, board.is_bare)
    if need is None:
        return ()
    found = [need]
    architecture = _ARCHITECTURES.get(board.clusters[0].core)
    if architecture is not None:
        found.append(architecture)
    if board.firmware.can_start:
        found += [_FLOAT_ABIS[abi] for abi in _float_abi(board)]
    return tuple(found)


def _float_abi(board: Board) -> list[str]:
    """The float ABI that the board's flags choose; none where they leave it to the compiler."""
    option = "-mfloat-abi="
    abis = [f.removeprefix(option) for f in board.extra_cflags["gcc"] if f.startswith(option)]
    return [abi for abi in abis[-1:] if abi in _FLOAT_ABIS]
