"""The word that the network hears: its most likely class.

usage: word.py OUTPUT.npz      (an output of `aotgen run`)
"""

import sys
from collections.abc import Mapping

import numpy as np

WORDS = (
    *("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes"),
    "silence",
    "something else",
)


def heard(outputs: Mapping[str, np.ndarray]) -> tuple[str, float]:
    """The word and its probability."""
    likely = (outputs["Identity"].ravel().astype(int) + 128) / 256
    return WORDS[likely.argmax()], float(likely.max())


def main() -> None:
    with np.load(sys.argv[1]) as outputs:
        word, likely = heard(outputs)
    print(f"{word} ({likely:.1%})")


if __name__ == "__main__":
    main()
