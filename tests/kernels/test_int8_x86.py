"""The x86 kernels of 8-bit integers: byte for byte numpy's semantics, with and without VNNI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.harness import flags_of
from kernels.integer_cases import Cases, qconv_case
from kernels.integer_harness import IntegerCase, check

from aotgen.ir.types import DType, Requant
from aotgen.schedule.base import Template
from aotgen.schedule.int8.x86.dense import Int8Dense, split
from aotgen.schedule.int8.x86.depthwise import Int8Depthwise
from aotgen.schedule.int8.x86.operands import epilogue_of
from aotgen.target.host import detect_host, host_runs
from aotgen.target.target import Target
from support import SANITIZE, require, require_tool

VNNI = frozenset({"avx512_vnni"})
TARGETS: dict[str, tuple[Target, tuple[str, ...]]] = {
    "avx2": (Target("avx2"), ()),
    "avx512": (Target("avx512"), ()),
    "vnni": (Target("avx512", features=VNNI), ("-mavx512vnni",)),
}
KINDS = ("tflm", "litert", "onnx", "real")
DENSE = Int8Dense()
DEPTHWISE = Int8Depthwise()


class X86Cases(Cases):
    """Their kinds take turns where none is named."""

    def __init__(self, template: Template) -> None:
        super().__init__(template, KINDS)

    def conv(
        self, name: str, x: tuple[int, ...], outputs: int, kernel: tuple[int, ...], **more: Any
    ) -> None:
        far = more.pop("far", False)
        super().conv(name, x, outputs, kernel, **more)
        if far:  # from their zero point: no int8
            weights = self.made[-1].group.nodes[0].input(1)
            assert weights.const is not None
            rng = np.random.default_rng(len(self.made) - 1)
            weights.const = rng.integers(0, 256, weights.shape).astype(np.uint8)


def dense_cases() -> list[IntegerCase]:
    cases = X86Cases(DENSE)
    conv, matmul = cases.conv, cases.matmul
    same = (1, 1, 1, 1)
    for kind in KINDS:
        conv(f"1x1 {kind}", (1, 7, 7, 32), 64, (1, 1), kind=kind)
        conv(f"3x3 {kind}", (1, 9, 8, 16), 18, (3, 3), pads=same, kind=kind)
        conv(f"unsigned {kind}", (1, 6, 7, 19), 13, (3, 3), pads=same, kind=kind, unsigned=True)
        conv(f"relu {kind}", (1, 8, 8, 24), 40, (1, 1), kind=kind, scaling={"clamp": (5, 127)})
        conv(f"clamp {kind}", (1, 8, 8, 24), 12, (1, 1), kind=kind, scaling={"clamp": (-20, 51)})
        conv(f"clamp unsigned {kind}", (1, 5, 8, 24), 12, (1, 1), kind=kind, unsigned=True,
             scaling={"clamp": (3, 251)})  # fmt: skip
        conv(f"one scale {kind}", (1, 4, 5, 8), 9, (2, 2), kind=kind, per_channel=False)
        matmul(f"fc {kind}", (1, 37), 21, kind=kind)
        matmul(f"matmul {kind}", (9, 64), 32, kind=kind, trans_b=False)
    for kind in KINDS[:3]:
        conv(f"left {kind}", (1, 5, 7, 16), 20, (1, 1), kind=kind, scaling={"left": True})
        conv(
            f"left 3x3 {kind}",
            (1, 5, 7, 16),
            70,
            (3, 3),
            pads=same,
            kind=kind,
            scaling={"left": True},
        )
    for depth in (1, 3, 4, 7, 8, 9, 16, 31, 48, 130):
        conv(f"1x1 of {depth}", (1, 3, 5, depth), 8 + depth % 5, (1, 1))
        matmul(f"matmul of {depth}", (5, depth), 10, bias=False)
    for outputs in (1, 3, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100, 129):
        conv(f"to {outputs}", (1, 4, 4, 16), outputs, (1, 1))
    for size in (1, 2, 5, 6, 7, 8, 9, 13, 15, 17, 29):
        conv(f"{size} pixels", (1, 1, size, 16), 12, (1, 1))
        conv(f"{size} wide", (1, 3, size, 4), 34, (3, 3), pads=same)
    conv("first", (1, 15, 13, 3), 16, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1))
    conv("7x7", (1, 15, 14, 3), 8, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
    conv("one channel", (1, 25, 10, 1), 16, (10, 4), strides=(2, 2), pads=(4, 1, 5, 1))
    conv("dilated", (1, 11, 12, 16), 8, (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3))
    conv("dilated bytes", (1, 11, 12, 5), 8, (3, 3), dilations=(2, 2), pads=(2, 2, 2, 2))
    conv("dilated in place", (1, 11, 12, 8), 8, (3, 2), dilations=(2, 3))
    conv("in place", (2, 7, 9, 8), 24, (3, 3))
    conv("strided 1x1", (1, 9, 9, 16), 8, (1, 1), strides=(2, 2))
    conv("padded 1x1", (1, 5, 5, 16), 8, (1, 1), pads=(1, 0, 1, 2))
    conv("batch", (3, 5, 6, 16), 8, (3, 3), pads=same)
    conv("batch 1x1", (3, 5, 6, 16), 8, (1, 1))
    conv("one axis", (2, 20, 16), 12, (3,), pads=(1, 1))
    conv("one axis bytes", (1, 20, 6), 12, (5,), strides=(2,), pads=(2, 2))
    conv("pad more than the map", (1, 2, 2, 16), 8, (5, 5), pads=(4, 4, 4, 4))
    conv("rows of pads", (1, 2, 2, 4), 8, (3, 3), dilations=(5, 5), pads=(5, 5, 5, 5))
    conv("gaps", (1, 6, 6, 16), 14, (3, 3), pads=same, gap=5)
    conv("gaps 1x1", (1, 6, 6, 20), 14, (1, 1), gap=3)
    conv("rows apart", (1, 6, 5, 16), 14, (3, 3), pads=same, split_rows=True)
    conv("rows apart 1x1", (2, 6, 9, 16), 12, (1, 1), split_rows=True)
    conv("all -128", (1, 5, 7, 48), 12, (1, 1), extreme=True)
    conv("all -128, unsigned", (1, 5, 7, 24), 12, (3, 3), extreme=True, unsigned=True)
    for kind in KINDS[:3]:
        more = {"unsigned": True, "w_zero": 110, "far": True, "kind": kind}
        conv(f"far {kind}", (1, 5, 7, 24), 36, (3, 3), pads=same, **more)
        conv(f"far 1x1 {kind}", (1, 5, 7, 24), 36, (1, 1), **more)
    conv("many rows", (1, 90, 14, 64), 16, (3, 3), pads=same)
    matmul("many pixels", (700, 200), 136)
    conv("tile of one", (1, 4, 9, 16), 65, (1, 1), config={"pixels": 1, "vectors": 1})
    conv("three by two", (1, 4, 9, 16), 65, (3, 3), config={"pixels": 3, "vectors": 2})
    for zero in (-128, 0, 127):
        conv(f"zero {zero}", (1, 5, 5, 16), 8, (3, 3), pads=same, zero=zero)
    return cases.made


def depthwise_cases() -> list[IntegerCase]:
    cases = X86Cases(DEPTHWISE)

    def conv(name: str, x: tuple[int, ...], kernel: tuple[int, ...] = (3, 3), **more: Any) -> None:
        cases.conv(name, x, x[-1], kernel, groups=x[-1], **more)

    same = (1, 1, 1, 1)
    for kind in KINDS:
        conv(f"3x3 {kind}", (1, 9, 12, 16), pads=same, kind=kind)
        conv(f"stride 2 {kind}", (1, 10, 20, 72), strides=(2, 2), pads=(0, 0, 1, 1), kind=kind)
        conv(f"unsigned {kind}", (1, 6, 12, 11), pads=same, kind=kind, unsigned=True)
        conv(f"relu {kind}", (1, 6, 9, 128), kind=kind, scaling={"clamp": (-60, 127)})
        conv(f"clamp {kind}", (1, 6, 9, 8), kind=kind, scaling={"clamp": (-30, 70)})
    for kind in KINDS[:3]:
        conv(f"left {kind}", (1, 5, 5, 8), pads=same, kind=kind, scaling={"left": True})
    for width in (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17):
        conv(f"{width} wide", (1, 3, width, 32), pads=same)
        conv(f"{width} wide, stride 2", (1, 3, width, 8), strides=(2, 2), pads=same)
    for channels in (2, 3, 8, 16, 31, 32, 33, 63, 64, 65, 96, 129):
        conv(f"{channels} channels", (1, 4, 9, channels), pads=same)
    for kernel in ((2, 2), (3, 1), (4, 3), (5, 5), (7, 7), (8, 2), (9, 3)):
        conv(f"{kernel}", (1, 12, 11, 24), kernel)
    conv("batch", (3, 5, 9, 8), pads=same)
    conv("gaps", (2, 5, 12, 16), pads=same, gap=3)
    conv("rows apart", (2, 5, 12, 16), pads=same, split_rows=True)
    for kind in KINDS[:3]:
        more = {"unsigned": True, "w_zero": 150, "far": True, "kind": kind}
        conv(f"far {kind}", (1, 9, 12, 16), pads=same, **more)
    conv("stride 5", (1, 12, 12, 8), strides=(5, 4))
    conv("strides apart", (1, 9, 9, 8), strides=(1, 2), pads=same)
    conv("dilated", (1, 9, 9, 8), dilations=(2, 3), pads=(2, 3, 2, 3))
    conv("pad more than the map", (1, 2, 2, 16), (5, 5), pads=(4, 4, 4, 4))
    conv("all -128", (1, 9, 12, 16), extreme=True, pads=same)
    conv("all -128, unsigned", (1, 9, 12, 16), extreme=True, unsigned=True)
    return cases.made


# Each target by one compiler, and by the other one in the long sweeps.
PLACES = [
    pytest.param(name, cc, marks=[pytest.mark.slow] if cc != own else [])
    for name, own in (("avx2", "gcc"), ("avx512", "clang"), ("vnni", "gcc"))
    for cc in ("gcc", "clang")
]


@pytest.mark.parametrize(("name", "cc"), PLACES)
@pytest.mark.parametrize("make", (dense_cases, depthwise_cases))
def test_bytes(make: Any, name: str, cc: str, tmp_path: Path) -> None:
    target, flags = TARGETS[name]
    require_tool(cc)
    require(host_runs(target.isa), f"a CPU with {target.isa}")
    missing = target.features - set(detect_host().features)
    require(not missing, f"a CPU with {', '.join(missing)}")
    # Half of the cases, kinds and all; the slow test below has the rest.
    first, cut = (0, 0) if cc == "gcc" else (1, 3)
    check(
        make()[first::2],
        target,
        tmp_path,
        cc=cc,
        flags=("-O2", *flags_of(target.isa), *flags),
        cut=cut,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("make", (dense_cases, depthwise_cases))
def test_other_half(make: Any, name: str, tmp_path: Path) -> None:
    target, flags = TARGETS[name]
    require(set(detect_host().features) >= target.features, "a CPU with VNNI")
    require(host_runs(target.isa), f"a CPU with {target.isa}")
    check(make()[1::2], target, tmp_path, flags=("-O2", *flags_of(target.isa), *flags))


@pytest.mark.parametrize("make", (dense_cases, depthwise_cases))
def test_sanitizers(make: Any, tmp_path: Path) -> None:
    """Nothing outside of an input is read either, and no arithmetic is undefined."""
    target, _ = TARGETS["avx512" if host_runs("avx512") else "avx2"]
    require(host_runs(target.isa), f"a CPU with {target.isa}")
    check(make()[::4], target, tmp_path, flags=(*flags_of(target.isa), *SANITIZE))


def test_cheap_forms_of_requantization() -> None:
    """One product where the parameters allow it, the reference's steps where they do not."""

    def kind(requant: Requant) -> str:
        case = qconv_case("case", DENSE, (1, 2, 2, 8), 1, (1, 1), zero=0)
        case.group.nodes[0].attrs.update(requant=requant, dtype=DType.I8)
        return epilogue_of(case.group.nodes[0]).kind

    half = 1 << 30
    assert kind(Requant("tflm", (half,), (-6,), (), -128, -128, 127)) == "up"
    assert kind(Requant("tflm", (half,), (-6,), (), -100, -128, 127)) == "away"
    assert kind(Requant("tflm", (half,), (0,), (), -100, -128, 127)) == "up"
    assert kind(Requant("tflm", (half,), (1,), (), -100, -128, 127)) == "tflm"
    assert kind(Requant("tflm", (half,), (-21,), (), -100, -128, 127)) == "tflm"
    assert kind(Requant("litert", (half,), (-6,), (), -100, -128, 127)) == "up"
    assert kind(Requant("onnx", (), (), (0.5,), -100, -128, 127)) == "float"
    assert kind(Requant("onnx", (), (), (1e9,), -100, -128, 127)) == "bounded"


def test_split_of_vectors_into_panels() -> None:
    for total in range(1, 40):
        for widest in (1, 2, 4):
            parts = split(total, widest)
            covered = sum(width * count for width, count in parts)
            assert total <= covered < total + 2, (total, widest, parts)
            assert [w for w, _ in parts] == sorted({w for w, _ in parts}, reverse=True)
