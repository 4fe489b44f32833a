#!/usr/bin/env python3
"""Compile digits.onnx to a C project, build it, run it on every test image, and say how it did.

`make demo` runs this. The built library is called in this process (ctypes); onnxruntime computes
the same images for comparison.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnxruntime

import aotgen

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-4


def test_images() -> tuple[np.ndarray, np.ndarray]:
    """The test split: images [N, 1, 8, 8], fp32 in 0..1, and their labels [N]."""
    with np.load(HERE / "digits_test.npz") as split:
        return split["images"].astype(np.float32) / 16, split["labels"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--board", default="host")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "digits")
    options = parser.parse_args()

    model = HERE / "digits.onnx"
    project = aotgen.compile(model, board=options.board, output=options.output, force=True)
    project.build()

    images, labels = test_images()
    logits = np.concatenate([project.run({"input": image[None]})["output"] for image in images])
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    reference = np.concatenate([session.run(None, {"input": image[None]})[0] for image in images])

    correct = int((logits.argmax(1) == labels).sum())
    difference = float(np.abs(logits - reference).max() / np.abs(reference).max())
    latency = project.bench(number=100, repeat=20)
    manifest = project.manifest
    print(f"model       {manifest['model']['name']} for board {options.board}, in {options.output}")
    print(f"accuracy    {correct / len(labels):.2%} ({correct} of {len(labels)} test images)")
    print(f"difference  {difference:.1e} from onnxruntime (max|a-b| / max|b|)")
    print(f"arena       {manifest['arena_bytes']:,} bytes of RAM")
    print(
        f"flash       {manifest['flash_bytes']:,} bytes, "
        f"of which weights {manifest['weights_bytes']:,}"
    )
    print(f"latency     {latency.median_ms * 1e3:.1f} us (median)")
    if difference > TOLERANCE:
        print(f"demo: the difference is above {TOLERANCE:g}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
