#!/usr/bin/env python3
"""Share of the core's measured FMA peak that single convolutions reach with the default schedule.

Forty seeded random convolutions, batch 1, channels >= 64, odd sizes, some strided or dilated.
Each is a model of one Conv between two transposes, so that its input and output are channels-last
as they are inside a network, and no layout copy is timed. FLOPs: 2 * OH * OW * OC * IC * KH * KW,
so taps on the padding count. The peak (fma_peak.c) is measured again before each convolution; the
best of all is the divisor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import measure
import networks
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 40
PEAK_FLAGS = {"host": ["-march=native"], "host-avx2": ["-mavx2", "-mfma"], "host-scalar": []}


@dataclass(frozen=True)
class Case:
    """A square convolution with bias; sizes in pixels, `pad` on all four sides."""

    size: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    @property
    def out_size(self) -> int:
        reach = self.dilation * (self.kernel - 1) + 1
        return (self.size + 2 * self.pad - reach) // self.stride + 1

    @property
    def flops(self) -> int:
        taps = self.in_channels * self.kernel**2
        return 2 * self.out_size**2 * self.out_channels * taps

    def __str__(self) -> str:
        text = f"{self.size}x{self.size} {self.in_channels}>{self.out_channels} k{self.kernel}"
        text += f" s{self.stride}" if self.stride > 1 else ""
        text += f" d{self.dilation}" if self.dilation > 1 else ""
        return text + (f" p{self.pad}" if self.pad else "")


def cases(count: int, seed: int = SEED) -> list[Case]:
    """`count` draws of 20 to 800 MFLOP; half of the channel counts are any from 64 to 384."""
    rng = np.random.default_rng(seed)
    drawn: list[Case] = []

    def channels() -> int:
        if rng.random() < 0.5:
            return int(rng.choice([64, 96, 128, 192, 256, 384, 512]))
        return int(rng.integers(64, 385))

    while len(drawn) < count:
        kernel = int(rng.choice([1, 3, 3, 3, 5]))
        stride = int(rng.choice([1, 1, 1, 2]))
        dilation = int(rng.choice([1, 1, 1, 2, 3])) if kernel > 1 and stride == 1 else 1
        pad = int(rng.choice([0, 1])) * dilation * (kernel // 2)
        size = 2 * int(rng.integers(3, 29)) + 1
        case = Case(size, channels(), channels(), kernel, stride, dilation, pad)
        if case.out_size > 0 and 20e6 <= case.flops <= 800e6:
            drawn.append(case)
    return drawn


def export(case: Case, index: int, folder: Path) -> tuple[Path, np.ndarray]:
    """Write the model of one case; returns its path and a seeded input [1, H, W, C]."""
    rng = np.random.default_rng([SEED, index])
    shape = (case.out_channels, case.in_channels, case.kernel, case.kernel)
    std = (case.in_channels * case.kernel**2) ** -0.5
    weight = std * rng.standard_normal(shape, np.float32)
    bias = rng.standard_normal(case.out_channels, np.float32)
    x = rng.standard_normal((1, case.size, case.size, case.in_channels), np.float32)
    nodes = [
        helper.make_node("Transpose", ["input"], ["nchw"], perm=[0, 3, 1, 2]),
        helper.make_node(
            "Conv",
            ["nchw", "weight", "bias"],
            ["conv"],
            "conv",
            pads=[case.pad] * 4,
            strides=[case.stride] * 2,
            dilations=[case.dilation] * 2,
            kernel_shape=shape[2:],
        ),
        helper.make_node("Transpose", ["conv"], ["output"], perm=[0, 2, 3, 1]),
    ]
    result = (1, case.out_size, case.out_size, case.out_channels)
    graph = helper.make_graph(
        nodes,
        "conv",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(
        graph,
        ir_version=networks.IR_VERSION,
        opset_imports=[helper.make_opsetid("", networks.OPSET)],
    )
    onnx.checker.check_model(model, full_check=True)
    path = folder / f"conv{index:02d}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path, x


class Peak:
    """fma_peak.c, built for the board's instruction set; keeps the best that it has measured."""

    def __init__(self, folder: Path, board: str, compiler: str) -> None:
        self.program = folder / f"fma_peak-{board}"
        source = measure.HERE / "fma_peak.c"
        command = [compiler, "-O2", *PEAK_FLAGS[board], str(source), "-o", str(self.program)]
        subprocess.run(command, check=True)
        self.gflops, self.isa = 0.0, ""

    def measure(self) -> None:
        done = subprocess.run([self.program], check=True, capture_output=True, text=True)
        answer = json.loads(done.stdout)
        self.gflops, self.isa = max(self.gflops, answer["gflops"]), answer["isa"]


def time_case(
    case: Case, index: int, folder: Path, board: str, rounds: int, core: int | None, peak: Peak
) -> float:
    """Compile, check against onnxruntime and time one case; returns its lowest latency in ms."""
    model, x = export(case, index, folder)
    ours = measure.AotgenSide(model, folder / f"conv{index:02d}-{board}", board)
    expected = networks.session(model).run(None, {"input": x})[0]
    with measure.pinned(core):
        computed = np.asarray(ours.project.run({"input": x})["output"])
        measure.checked_error(str(case), computed, expected)
        peak.measure()
        return min(measure.interleave([ours], rounds)[0])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=40, help="convolutions (default: 40)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--board", default="host", choices=sorted(PEAK_FLAGS))
    parser.add_argument("--core", type=int, help="processor to pin to (default: the last)")
    parser.add_argument("--cc", default="cc", help="compiler of fma_peak.c")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    peak = Peak(options.folder, options.board, options.cc)
    drawn = cases(options.count)
    times = []
    for index, case in enumerate(drawn):
        print(f"[{index + 1:2}/{len(drawn)}] {case} ...", file=sys.stderr, flush=True)
        times.append(
            time_case(
                case, index, options.folder, options.board, options.rounds, options.core, peak
            )
        )
    gflops = [case.flops / ms / 1e6 for case, ms in zip(drawn, times, strict=True)]
    shares = [rate / peak.gflops for rate in gflops]
    mean = statistics.geometric_mean(shares)
    if options.json:
        record = {
            "machine": measure.machine(),
            "board": options.board,
            "peak_gflops": peak.gflops,
            "geometric_mean": mean,
            "cases": [asdict(c) | {"ms": ms} for c, ms in zip(drawn, times, strict=True)],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{measure.machine()}; FMA peak {peak.gflops:.1f} GFLOP/s ({peak.isa})\n")
    rows = [
        (str(case), f"{case.flops / 1e6:.0f}", f"{ms:.3f}", f"{rate:.1f}", f"{share:.0%}")
        for case, ms, rate, share in zip(drawn, times, gflops, shares, strict=True)
    ]
    print(measure.markdown(("convolution", "MFLOP", "ms", "GFLOP/s", "share of peak"), rows))
    print(f"\ngeometric mean of the share of peak: {mean:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
