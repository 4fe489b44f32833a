"""The words that a streaming project hears while the sample arrives, two frames at a time.

usage: listen.py PROJECT      (of `aotgen compile --stream 2`, for a board that QEMU emulates)
"""

import sys
from pathlib import Path

import numpy as np
from word import heard

import aotgen

FRAMES = 2
FRAME_MS = 20


def main() -> None:
    with np.load(Path(__file__).with_name("on.npz")) as arrays:
        sound = arrays["input_1"]
    ends = range(FRAMES, sound.shape[1] + 1, FRAMES)
    steps = [{"input_1": sound[:, end - FRAMES : end]} for end in ends]
    before = ""
    for end, output in zip(ends, aotgen.Project(sys.argv[1]).run_steps(steps, "qemu"), strict=True):
        word, likely = heard(output)
        if word != before and likely > 0.5:
            print(f"{end * FRAME_MS} ms: {word}")
            before = word


if __name__ == "__main__":
    main()
