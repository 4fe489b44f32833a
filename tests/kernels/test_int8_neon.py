"""The NEON kernels of 8-bit integers: byte for byte numpy's semantics, by qemu."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernels.harness import flags_of
from kernels.integer_cases import Cases, qconv_case
from kernels.integer_harness import IntegerCase, check

from aotgen.schedule.int8.neon.dense import Int8NeonDense
from aotgen.schedule.int8.neon.depthwise import Int8NeonDepthwise
from aotgen.target.target import Target
from support import require_tool

TARGETS = {
    "a72": (Target("neon"), "aarch64-linux-gnu", ("-mcpu=cortex-a72",), "qemu-aarch64"),
    "a76": (
        Target("neon", features=frozenset({"asimddp"})),
        "aarch64-linux-gnu",
        ("-mcpu=cortex-a76",),
        "qemu-aarch64",
    ),
    "armv7": (Target("neon_armv7"), "arm-linux-gnueabihf", (), "qemu-arm"),
}
KINDS = ("tflm", "litert", "onnx")
DENSE_TILES = {
    ("neon", False): [(1, 1), (2, 1), (3, 1)],
    ("neon", True): [
        (1, 1),
        (2, 1),
        (8, 1),
        (1, 2),
        (7, 2),
        (8, 2),
        (4, 3),
        (6, 3),
        (7, 3),
        (1, 4),
        (4, 4),
    ],
    ("neon_armv7", False): [(1, 1)],
}
"""Pixels and vectors of tiles beside those that a case's default takes."""
DENSE = Int8NeonDense()
DEPTHWISE = Int8NeonDepthwise()


def dense_cases(target: Target) -> list[IntegerCase]:
    cases = Cases(DENSE, KINDS)
    conv, matmul = cases.conv, cases.matmul

    for kind in KINDS:
        conv(f"1x1 {kind}", (1, 7, 7, 32), 24, (1, 1), kind=kind)
        conv(f"1x1 left {kind}", (1, 5, 7, 16), 20, (1, 1), kind=kind, scaling={"left": True})
        conv(f"ties {kind}", (1, 9, 9, 4), 24, (1, 1), kind=kind, scaling={"ties": True})
        conv(
            f"ties left {kind}",
            (1, 9, 9, 4),
            24,
            (1, 1),
            kind=kind,
            scaling={"ties": True, "left": True},
        )
        conv(f"3x3 {kind}", (1, 9, 8, 16), 18, (3, 3), pads=(1, 1, 1, 1), kind=kind)
        conv(f"unsigned {kind}", (1, 6, 7, 19), 13, (3, 3), pads=(1, 1, 1, 1), kind=kind,
             unsigned=True)  # fmt: skip
        conv(f"clamp {kind}", (1, 8, 8, 24), 12, (1, 1), kind=kind, scaling={"clamp": (-20, 51)})
        conv(f"one scale {kind}", (1, 4, 5, 8), 9, (2, 2), kind=kind, per_channel=False)
        matmul(f"fc {kind}", (1, 37), 21, kind=kind)
        matmul(f"matmul {kind}", (9, 64), 32, kind=kind, trans_b=False)
    if target.isa == "neon":
        matmul("float64 scales", (9, 64), 33, kind="real")
        matmul("float64 ties", (80, 4), 24, kind="real", scaling={"ties": True})
        matmul(
            "one float64 scale", (1, 64), 32, kind="real", per_channel=False, scaling={"left": True}
        )
    for depth in (1, 3, 4, 7, 8, 9, 12, 15, 16, 17, 23, 24, 25, 31, 33, 48):
        conv(f"1x1 of {depth}", (1, 3, 5, depth), 8 + depth % 5, (1, 1))
        matmul(f"matmul of {depth}", (5, depth), 10, bias=False)
    for outputs in (1, 2, 3, 4, 5, 8, 11, 12, 13, 16, 20, 28):
        conv(f"to {outputs}", (1, 4, 4, 16), outputs, (1, 1))
    for size in range(1, 10):
        conv(f"{size} pixels", (1, 1, size, 16), 12, (1, 1))
    shape, outputs = (1, 3, 9, 20), 26
    for tile in DENSE_TILES[target.isa, "asimddp" in target.features]:
        conv(f"tile {tile}", shape, outputs, (1, 1),
             config={"pixels": tile[0], "vectors": tile[1]})  # fmt: skip
    conv("uint8 to int8", (1, 5, 5, 9), 8, (3, 3), pads=(1, 1, 1, 1), unsigned=True, to_signed=True)
    conv("first", (1, 15, 13, 3), 16, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1))
    conv("7x7", (1, 15, 14, 3), 8, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
    conv("one channel", (1, 25, 10, 1), 16, (10, 4), strides=(2, 2), pads=(4, 1, 5, 1))
    conv("dilated", (1, 11, 12, 16), 8, (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3))
    conv("dilated bytes", (1, 11, 12, 5), 8, (3, 3), dilations=(2, 2), pads=(2, 2, 2, 2))
    conv("strided 1x1", (1, 9, 9, 16), 8, (1, 1), strides=(2, 2))
    conv("padded 1x1", (1, 5, 5, 16), 8, (1, 1), pads=(1, 0, 1, 2))
    conv("batch", (3, 5, 6, 16), 8, (3, 3), pads=(1, 1, 1, 1))
    conv("batch 1x1", (3, 5, 6, 16), 8, (1, 1))
    conv("one axis", (2, 20, 16), 12, (3,), pads=(1, 1))
    conv("one axis bytes", (1, 20, 6), 12, (5,), strides=(2,), pads=(2, 2))
    conv("groups", (1, 6, 6, 32), 24, (3, 3), groups=2, pads=(1, 1, 1, 1))
    conv("groups of 5", (1, 6, 6, 15), 21, (3, 3), groups=3, pads=(1, 1, 1, 1))
    conv("grouped 1x1", (1, 6, 5, 16), 20, (1, 1), groups=4)
    conv("pad more than the map", (1, 2, 2, 16), 8, (5, 5), pads=(4, 4, 4, 4))
    conv("gaps", (1, 6, 6, 16), 14, (3, 3), pads=(1, 1, 1, 1), gap=5)
    conv("gaps 1x1", (1, 6, 6, 20), 14, (1, 1), gap=3)
    conv("rows apart", (1, 6, 5, 16), 14, (3, 3), pads=(1, 1, 1, 1), split_rows=True)
    conv("rows apart 1x1", (2, 6, 9, 16), 12, (1, 1), split_rows=True)
    conv("rows apart, few", (1, 6, 2, 16), 12, (1, 1), split_rows=True)
    conv("all -128", (1, 5, 7, 48), 12, (1, 1), extreme=True)
    conv("all -128, unsigned", (1, 5, 7, 24), 12, (3, 3), extreme=True, unsigned=True)
    for kind in KINDS:
        for zero in (131, 90, 3):  # int8 when centred; not
            conv(f"uint8 weights {kind} {zero}", (1, 5, 7, 21), 14, (3, 3), unsigned=True,
                 w_zero=zero, pads=(1, 1, 1, 1), kind=kind)  # fmt: skip
    conv("uint8 weights 1x1", (1, 5, 9, 23), 13, (1, 1), unsigned=True, w_zero=90)
    conv("uint8 weights of 5", (1, 5, 9, 5), 13, (1, 1), unsigned=True, w_zero=200)
    conv("uint8 weights of 32", (1, 6, 5, 32), 13, (3, 3), w_zero=0, pads=(1, 1, 1, 1))
    conv(
        "uint8 weights, groups", (1, 6, 5, 32), 14, (3, 3), w_zero=100, groups=2, pads=(1, 1, 1, 1)
    )
    for zero in (-128, 0, 127):
        conv(f"zero {zero}", (1, 5, 5, 16), 8, (3, 3), pads=(1, 1, 1, 1), zero=zero)
    return cases.made


def depthwise_cases() -> list[IntegerCase]:
    cases: list[IntegerCase] = []

    def conv(name: str, x: tuple[int, ...], kernel: tuple[int, ...] = (3, 3), **more) -> None:
        seed = len(cases)
        more.setdefault("kind", KINDS[seed % 3])
        cases.append(qconv_case(name, DEPTHWISE, x, x[-1], kernel, groups=x[-1], seed=seed, **more))

    for kind in KINDS:
        conv(f"3x3 {kind}", (1, 9, 12, 16), pads=(1, 1, 1, 1), kind=kind)
        conv(f"ties {kind}", (1, 9, 12, 16), kind=kind, scaling={"ties": True})
        conv(f"ties left {kind}", (1, 9, 12, 16), kind=kind, scaling={"ties": True, "left": True})
        conv(f"stride 2 {kind}", (1, 10, 20, 16), strides=(2, 2), pads=(0, 0, 1, 1), kind=kind)
        conv(f"left {kind}", (1, 5, 5, 8), pads=(1, 1, 1, 1), kind=kind, scaling={"left": True})
        conv(f"unsigned {kind}", (1, 6, 12, 11), pads=(1, 1, 1, 1), kind=kind, unsigned=True)
        conv(f"clamp {kind}", (1, 6, 9, 8), kind=kind, scaling={"clamp": (-30, 70)})
        conv(f"5x5 {kind}", (1, 8, 7, 13), (5, 5), pads=(2, 2, 2, 2), kind=kind)
    for stride in (1, 2):
        for width in (1, 2, 3, 7, 8, 9, 10, 11, 14, 15, 16, 17):
            for pads in ((1, 1, 1, 1), (0, 0, 1, 1), (2, 2, 2, 2)):
                if width + pads[1] + pads[3] >= 3:
                    conv(f"{width} wide by {stride}, pads {pads}", (1, 3, width, 8),
                         strides=(stride, stride), pads=pads)  # fmt: skip
    for channels in (9, 12, 15, 17, 24, 31):
        conv(f"{channels} channels", (1, 4, 9, channels), pads=(1, 1, 1, 1))
    conv("batch", (3, 5, 9, 8), pads=(1, 1, 1, 1))
    conv("gaps", (2, 5, 12, 8), pads=(1, 1, 1, 1), gap=3)
    conv("rows apart", (2, 5, 12, 8), pads=(1, 1, 1, 1), split_rows=True)
    conv("bands", (1, 40, 9, 16), pads=(1, 1, 1, 1), config={"band_rows": 8})
    conv("stride 3", (1, 9, 9, 8), strides=(3, 3))
    conv("strides apart", (1, 9, 9, 8), strides=(1, 2), pads=(1, 1, 1, 1))
    conv("dilated", (1, 9, 9, 8), dilations=(2, 3), pads=(2, 3, 2, 3))
    conv("one axis", (2, 20, 16), (5,), pads=(2, 2))
    conv("1x1", (1, 5, 5, 16), (1, 1))
    conv("many taps", (1, 12, 9, 9), (8, 7), pads=(3, 3, 4, 3))
    conv("many taps, uint8 weights", (1, 12, 9, 9), (8, 7), unsigned=True, w_zero=3)
    conv("all -128", (1, 9, 12, 16), extreme=True, pads=(1, 1, 1, 1))
    conv("all -128, unsigned", (1, 9, 12, 16), extreme=True, unsigned=True)
    for kind in KINDS:
        for zero in (131, 90, 3):
            conv(f"uint8 weights {kind} {zero}", (1, 5, 15, 11), unsigned=True, w_zero=zero,
                 pads=(1, 1, 1, 1), kind=kind)  # fmt: skip
            conv(f"uint8 weights 5x5 {kind} {zero}", (1, 5, 5, 9), (5, 5), unsigned=True,
                 w_zero=zero, pads=(2, 2, 2, 2), kind=kind)  # fmt: skip
    return cases


@pytest.mark.parametrize("cc", ("gcc", "clang"))
@pytest.mark.parametrize("name", ("a72", "armv7"))
def test_depthwise(name: str, cc: str, tmp_path: Path) -> None:
    run(depthwise_cases(), name, cc, tmp_path, cut=2 if cc == "clang" else 0)


@pytest.mark.parametrize("cc", ("gcc", "clang"))
@pytest.mark.parametrize("name", TARGETS)
def test_dense(name: str, cc: str, tmp_path: Path) -> None:
    run(dense_cases(TARGETS[name][0]), name, cc, tmp_path, cut=2 if cc == "clang" else 0)


def run(cases: list[IntegerCase], name: str, cc: str, folder: Path, cut: int = 0) -> None:
    target, triple, flags, emulator = TARGETS[name]
    cases = cases[:: 1 if cc == "gcc" else 2]
    compiler = f"{triple}-gcc" if cc == "gcc" else "clang"
    require_tool(compiler, emulator)
    more = [f"--target={triple}"] if cc == "clang" else []
    check(
        cases,
        target,
        folder,
        cc=compiler,
        flags=["-O2", *flags_of(target.isa), *more, *flags],
        emulator=[emulator, "-L", f"/usr/{triple}"],
        cut=cut,
    )
