"""qconv and qmatmul in every arithmetic and type, by every template that takes them, on each
instruction set: exactly the numbers of their numpy rules.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from kernels.integer_cases import KINDS, NEST, integer_case
from kernels.integer_harness import IntegerCase, check

from aotgen.ir.types import DType
from aotgen.schedule.int8.quantized_batch import QuantizedBatch
from aotgen.schedule.int8.quantized_dense import QuantizedDense
from aotgen.schedule.int8.quantized_depthwise import QuantizedDepthwise
from aotgen.target.board import ISA_CFLAGS, load_board
from aotgen.target.host import host_runs
from aotgen.target.target import Isa, Target
from support import SANITIZE, halves, require, require_tool, share

GENERAL = (QuantizedDepthwise(), QuantizedBatch(), QuantizedDense())
I8, U8, I16 = DType.I8, DType.U8, DType.I16

SHAPES = [
    ("pointwise", (1, 5, 7, 19), (21, 1, 1, 19), {}),
    ("3x3", (1, 8, 9, 6), (33, 3, 3, 6), {"pads": (1, 1, 1, 1)}),
    ("stride", (2, 9, 8, 3), (16, 3, 2, 3), {"strides": (2, 3), "pads": (0, 1, 2, 1)}),
    ("dilated", (1, 9, 9, 4), (5, 3, 3, 4), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ("groups", (1, 6, 5, 12), (18, 3, 3, 4), {"groups": 3, "pads": (1, 1, 1, 1)}),
    ("multiplier", (1, 6, 5, 7), (14, 3, 3, 1), {"groups": 7, "pads": (1, 1, 1, 1)}),
    ("depthwise", (1, 8, 9, 35), (35, 3, 3, 1), {"groups": 35, "pads": (1, 1, 1, 1)}),
    ("depthwise few", (1, 9, 8, 3), (3, 5, 2, 1), {"groups": 3, "strides": (2, 2)}),
    ("1-D", (2, 17, 8), (9, 4, 8), {"strides": (2,), "pads": (1, 2)}),
]


def conv_cases() -> list[IntegerCase]:
    made = []
    for number, (kind, (name, x, w, attrs)) in enumerate(itertools.product(KINDS, SHAPES)):
        attrs = {**attrs, "seed": number, "gap": 5 * (number % 3 == 2)}
        made.append(integer_case(f"{kind} {name} i8", "qconv", x, w, kind=kind, x_zero=-7, **attrs))
        zeros = {"x_zero": 131, "w_zero": 90 + number}
        made.append(
            integer_case(
                f"{kind} {name} u8", "qconv", x, w, kind=kind, dtypes=(U8, U8),
                per_channel=number % 2 == 0, bias=number % 3 != 1, **zeros, **attrs,
            )
        )  # fmt: skip
        for wide in (False, True):
            if kind == "onnx" and wide:
                continue
            made.append(
                integer_case(
                    f"{kind} {name} i16{' wide' if wide else ''}", "qconv", x, w, kind=kind,
                    dtypes=(I16, I8), wide=wide, bias=number % 4 != 3, **attrs,
                )
            )  # fmt: skip
    return made


def matmul_cases() -> list[IntegerCase]:
    made = []
    forms = [
        ("row", (1, 40), (37, 40), True),
        ("rows", (9, 21), (21, 16), False),
        ("batch", (2, 3, 5, 8), (4, 8), True),
        ("long", (3, 1500), (7, 1500), True),
    ]
    for number, (kind, (name, x, w, trans_b)) in enumerate(itertools.product(KINDS, forms)):
        shared = {"kind": kind, "trans_b": trans_b, "seed": number}
        made.append(integer_case(f"{kind} {name} i8", "qmatmul", x, w, x_zero=11, **shared))
        made.append(
            integer_case(
                f"{kind} {name} u8", "qmatmul", x, w, dtypes=(U8, U8), x_zero=3, w_zero=255,
                per_channel=False, **shared,
            )
        )  # fmt: skip
        wide = kind != "onnx"
        made.append(
            integer_case(
                f"{kind} {name} i16", "qmatmul", x, w, dtypes=(I16, I8), wide=wide, **shared
            )
        )
        # Weights that are no int8 less their zero point
        made.append(
            integer_case(f"{kind} {name} shifted", "qmatmul", x, w, x_zero=5, w_zero=-9, **shared)
        )
        # Two activations
        made.append(
            integer_case(
                f"{kind} {name} two", "qmatmul", (2, *x[-2:]), (2, *w), constant_w=False,
                per_channel=False, bias=False, x_zero=-3, w_zero=5, **shared,
            )
        )  # fmt: skip
    made.append(integer_case("sums", "qmatmul", (4, 33), (9, 33), kind=None, x_zero=9))
    return made


def nest_cases() -> list[IntegerCase]:
    """The same by te alone, which is the fallback of every template."""
    found = conv_cases()[::3] + matmul_cases()[::2]
    for case in found:
        case.template = NEST
    return found


def general_cases(target: Target) -> list[IntegerCase]:
    """By the templates that every ISA has; te where none applies."""
    found = conv_cases() + matmul_cases()
    for case in found:
        fits = (t for t in GENERAL if t.applies(case.group, target) is None)
        case.template = next(fits, NEST)
    return found


def all_cases(target: Target) -> list[IntegerCase]:
    return general_cases(target) + nest_cases()


@pytest.mark.parametrize(("isa", "part"), halves("avx2", "avx512"))
def test_x86(isa: Isa, part: int, tmp_path: Path) -> None:
    require(host_runs(isa), f"a CPU with {isa}")
    target = Target(isa)
    check(share(all_cases(target), part), target, tmp_path, flags=("-O1", *ISA_CFLAGS[isa]))


@pytest.mark.parametrize(("name", "part"), halves("rpi4", "rpi3b-armv7"))
def test_arm_under_emulation(name: str, part: int, tmp_path: Path) -> None:
    board = load_board(name)
    cc = f"{board.triple}-gcc"
    require_tool(cc, board.emulator[0])
    flags, target = ("-O1", *board.cflags()), board.target()
    cases = share(all_cases(target), part)
    check(cases, target, tmp_path, cc=cc, flags=flags, emulator=board.emulator)


@pytest.mark.parametrize(("isa", "part"), halves("scalar", "avx2"))
def test_nothing_is_undefined(isa: Isa, part: int, tmp_path: Path) -> None:
    """Every access within views, no overflow: by the sanitizers; rows are computed in pieces."""
    require(host_runs(isa), f"a CPU with {isa}")
    target = Target(isa)
    cases = share(all_cases(target), part)
    check(cases, target, tmp_path, flags=(*ISA_CFLAGS[isa], *SANITIZE), cut=2)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_clang(isa: Isa, tmp_path: Path) -> None:
    require_tool("clang")
    require(host_runs(isa), f"a CPU with {isa}")
    target = Target(isa)
    check(all_cases(target), target, tmp_path, cc="clang", flags=("-O1", *ISA_CFLAGS[isa]))
