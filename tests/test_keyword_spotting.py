"""examples/keyword_spotting: its files fit each other. docs/tutorial_microcontroller.md runs it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
from cmake_support import ROOT

from tests import oracles

EXAMPLE = ROOT / "examples" / "keyword_spotting"
MODEL = EXAMPLE / "kws.tflite"


def sample() -> np.ndarray:
    with np.load(EXAMPLE / "on.npz") as arrays:
        features = arrays["input_1"]
    assert features.dtype == np.int8 and features.shape == (1, 49, 10, 1)
    return features


def test_model_is_the_one_that_its_license_note_names() -> None:
    digest = hashlib.sha256(MODEL.read_bytes()).hexdigest()
    assert f"sha256 {digest}" in (EXAMPLE / "README.md").read_text()


def test_both_forms_of_the_sample_are_the_same() -> None:
    words = (EXAMPLE / "on.txt").read_text().split(",")
    assert [int(word) for word in words if word.strip()] == sample().ravel().tolist()


def test_reference_hears_the_word(tmp_path: Path) -> None:
    """word.py names the class that TFLite Micro finds most likely."""
    (output,) = oracles.tflm(MODEL.read_bytes(), [sample()])
    np.savez(tmp_path / "heard.npz", Identity=output)
    done = subprocess.run(
        [sys.executable, EXAMPLE / "word.py", tmp_path / "heard.npz"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "on (99.6%)\n"
