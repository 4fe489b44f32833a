#!/usr/bin/env python3
"""Speed of single kernels with their default schedules: the layers of four networks, chained, and
random convolutions.

All kernels of a network run one after the other from one program; activations pass through the same
few buffers and every layer has its own weights, so that weights come from as far away as inside the
network. Minima of all rounds; the FMA peak (fma_peak.c) is measured between programs, and the best
of all peaks is the divisor.

usage: kernels.py [--isa avx512] [--rounds 100] [resnet18] [mobilenet_v2] [squeezenet1_1]
[transformer] [random]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/kernels")]

from harness import (  # noqa: E402
    Case,
    conv_case,
    flags_of,
    matmul_case,
    pool_case,
    time_cases,
)

from aotgen.ops.registry import op_def  # noqa: E402
from aotgen.schedule.base import Template  # noqa: E402
from aotgen.schedule.registry import anchor_templates, candidates  # noqa: E402
from aotgen.target.host import detect_host  # noqa: E402
from aotgen.target.target import Target  # noqa: E402

TEMPLATES = {t.name: t for t in anchor_templates()}
ANY: Template = TEMPLATES["conv2d_direct"]


def conv(
    x: tuple[int, int, int],
    outputs: int,
    kernel: int,
    stride: int = 1,
    pad: int | None = None,
    groups: int = 1,
    dilation: int = 1,
    add: bool = False,
    gap: int = 0,
) -> Case:
    """A square convolution with bias and relu on x [height, width, channels]."""
    pad = kernel // 2 if pad is None else pad
    depthwise = " dw" if groups > 1 else ""
    name = f"{kernel}x{kernel} {x[0]}x{x[1]} {x[2]}>{outputs} s{stride}{depthwise}"
    name += f" d{dilation}" if dilation > 1 else ""
    return conv_case(
        name,
        ANY,
        (1, *x),
        outputs,
        (kernel, kernel),
        strides=(stride, stride),
        pads=(pad,) * 4,
        dilations=(dilation, dilation),
        groups=groups,
        relu=True,
        add=add,
        gap=gap,
        physical={"x": (0, 3, 1, 2)} if x[2] <= 4 else {},
    )


def dense(m: int, k: int, n: int) -> Case:
    return matmul_case(f"matmul {m}x{k}x{n}", ANY, (m, k), (k, n))


def max_pool(size: int, channels: int, pad: int, ceil: int = 0) -> Case:
    return pool_case(
        f"max_pool {size}x{size} {channels}",
        ANY,
        "max_pool",
        (1, size, size, channels),
        (3, 3),
        strides=(2, 2),
        pads=(pad, pad, pad + ceil, pad + ceil),
        extra=(ceil, ceil),
    )


def resnet18() -> list[Case]:
    made = [conv((224, 224, 3), 64, 7, 2), max_pool(112, 64, 1)]
    made += [conv((56, 56, 64), 64, 3, add=i % 2 == 1) for i in range(4)]
    size, channels = 56, 64
    for outputs in (128, 256, 512):
        made += [conv((size, size, channels), outputs, k, 2) for k in (3, 1)]
        size, channels = size // 2, outputs
        made += [conv((size, size, channels), channels, 3, add=i != 1) for i in range(3)]
    return [*made, dense(1, 512, 1000)]


def mobilenet_v2() -> list[Case]:
    made = [conv((224, 224, 3), 32, 3, 2)]
    size, channels = 112, 32
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    for expand, outputs, count, first in [*rows, (6, 160, 3, 2), (6, 320, 1, 1)]:
        for i in range(count):
            stride, wide = (first if i == 0 else 1), channels * expand
            if expand > 1:
                made.append(conv((size, size, channels), wide, 1))
            made.append(conv((size, size, wide), wide, 3, stride, groups=wide))
            size //= stride
            made.append(conv((size, size, wide), outputs, 1, add=i > 0))
            channels = outputs
    return [*made, conv((7, 7, 320), 1280, 1), dense(1, 1280, 1000)]


def squeezenet1_1() -> list[Case]:
    made = [conv((224, 224, 3), 64, 3, 2, pad=0), max_pool(111, 64, 0)]
    plan = [(55, 64, 16, 64), (55, 128, 16, 64), (27, 128, 32, 128), (27, 256, 32, 128)]
    plan += [(13, 256, 48, 192), (13, 384, 48, 192), (13, 384, 64, 256), (13, 512, 64, 256)]
    for i, (size, inputs, squeeze, expand) in enumerate(plan):
        if i in (2, 4):
            made.append(max_pool(55 if i == 2 else 27, inputs, 0))
        made.append(conv((size, size, inputs), squeeze, 1))
        made += [conv((size, size, squeeze), expand, k, gap=expand) for k in (1, 3)]
    return [*made, conv((13, 13, 512), 1000, 1)]


def transformer() -> list[Case]:
    made: list[Case] = []
    for _ in range(4):
        made += [dense(128, 256, 256) for _ in range(3)]
        heads = {"a": (1, 0, 2), "b": (1, 0, 2)}
        made.append(
            matmul_case(
                "scores 4x128x64x128",
                ANY,
                (4, 128, 64),
                (4, 128, 64),
                const_b=False,
                trans_b=True,
                bias=False,
                physical=heads,
            )
        )
        made.append(
            matmul_case(
                "values 4x128x128x64",
                ANY,
                (4, 128, 128),
                (4, 128, 64),
                const_b=False,
                bias=False,
                physical={"b": (1, 0, 2)},
            )
        )
        made += [dense(128, 256, 256), dense(128, 256, 1024), dense(128, 1024, 256)]
    return made


def random_convs() -> list[Case]:
    """Forty seeded convolutions with at least 64 channels, odd sizes, some strided or dilated."""
    rng = np.random.default_rng(40)
    made = []
    for _ in range(40):
        size = int(rng.integers(7, 60)) | 1
        channels, outputs = (int(rng.integers(64, 320)) for _ in range(2))
        kernel = int(rng.choice([1, 3, 3, 3, 5]))
        stride = int(rng.choice([1, 1, 2]))
        dilation = int(rng.choice([1, 1, 2])) if kernel > 1 and size > 12 else 1
        pad = (kernel - 1) * dilation // 2
        made.append(conv((size, size, channels), outputs, kernel, stride, pad, dilation=dilation))
    return made


WORKLOADS = {
    "resnet18": resnet18,
    "mobilenet_v2": mobilenet_v2,
    "squeezenet1_1": squeezenet1_1,
    "transformer": transformer,
    "random": random_convs,
}


def peak(folder: Path, isa: str, prefix: Sequence[str]) -> float:
    """GFLOP/s of the core's FMA units, now."""
    exe = folder / "fma_peak"
    if not exe.exists():
        source = str(ROOT / "benchmarks/fma_peak.c")
        subprocess.run(["gcc", "-O2", *flags_of(isa), source, "-o", str(exe)], check=True)
    done = subprocess.run([*prefix, str(exe)], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["gflops"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    host = detect_host()
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], default=[])
    parser.add_argument("--isa", choices=["scalar", "avx2", "avx512"], default=host.isa)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--core", type=int, default=1, help="CPU to pin to, -1 for none")
    args = parser.parse_args()
    target = Target(args.isa, l1_bytes=host.l1_bytes, l2_bytes=host.l2_bytes)
    prefix = [] if args.core < 0 else ["taskset", "-c", str(args.core)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for workload in args.workloads or list(WORKLOADS):
            report(workload, target, folder, args.rounds, prefix)


def report(workload: str, target: Target, folder: Path, rounds: int, prefix: list[str]) -> None:
    """Print the table of one workload."""
    cases = WORKLOADS[workload]()
    for case in cases:
        case.template = candidates(case.group, target)[0]
    peaks = [peak(folder, target.isa, prefix)]
    best: list[float] = []
    for _ in range(3):
        times, _ = time_cases(
            cases, target, folder, rounds=max(1, rounds // 3), extra=("-O2",), prefix=prefix
        )
        best = [min(pair) for pair in zip(best or times, times, strict=True)]
        peaks.append(peak(folder, target.isa, prefix))
    top = max(peaks)
    print(f"\n## {workload}, {target.isa}, peak {top:.0f} GFLOP/s (least {min(peaks):.0f})\n")
    print("| layer | template | us | GFLOP/s | of peak | knobs |\n|---|---|---|---|---|---|")
    shares = []
    for case, seconds in zip(cases, best, strict=True):
        anchor = case.group.nodes[0]
        macs = op_def(anchor.op).macs
        gflops = 2e-9 * macs(anchor) / seconds if macs and "pool" not in anchor.op else 0.0
        shares.append(gflops / top)
        config = case.template.default(case.group, target)
        knobs = " ".join(f"{k}={v}" for k, v in config.values if v)
        print(
            f"| {case.name} | {case.template.name} | {seconds * 1e6:.1f} | {gflops:.0f} "
            f"| {gflops / top:.0%} | {knobs} |"
        )
    known = [s for s in shares if s > 0]
    mean = statistics.geometric_mean(known)
    print(f"\n{workload}: {sum(best) * 1e3:.3f} ms in all, {mean:.1%} of peak (geometric mean)")


if __name__ == "__main__":
    main()
