"""src/simd.h: the target's vector words, and of the rest what the kernels use."""

from __future__ import annotations

from collections.abc import Collection

from aotgen.codegen.environment import render

PARTS = ("int8", "bytes", "requantize", "fixed_math", "dot8")
"""Files of templates/simd that are included when a kernel names them, in this order."""


def simd_header(isa: str, names: Collection[str]) -> str:
    """The text of simd.h.

    Args:
        isa: of the target, the name of a file in templates/simd.
        names: what kernels use beyond the basic words: ``PARTS`` and functions of simd/math.
    """
    math = sorted(set(names) - set(PARTS))
    texts = [render(f"simd/{isa}.h.j2", math=math)]
    texts += [render(f"simd/{part}.h.j2", isa=isa) for part in PARTS if part in names]
    return "\n".join(texts)
