"""A template for ``aotgen tune`` itself: real convolutions that wait, and such as do wrong.

    python -m tests.tune.staged tune MODEL ...

is the command line with this template alone.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper

from aotgen.cli.main import call
from aotgen.ir.graph import Group
from aotgen.schedule import registry
from aotgen.schedule.base import Config, Kernel, Knob, Need, ScheduleError, Template, Views
from aotgen.schedule.conv.conv2d_direct import Conv2dDirect
from aotgen.target.target import Target
from tests.models import model

STATUS = {
    "none": "ok",
    "crash": "crash",
    "hang": "timeout",
    "bounds": "bounds",
    "wrong": "wrong",
}
"""What comes of each value of the knob "fault"."""

# What stands behind the convolution's own code; y is its output.
_FAULTS = {
    "none": "",
    "crash": "*(volatile int *)(intptr_t)(r1 - r0 + 8) = 1;",
    "hang": "for (volatile int n = 0; r1 > r0; n = 1) {}",
    "bounds": "y[-1] = 1.0f;",
    "wrong": "y[0] += 1.0f;",
}

WAITS = (0, 1, 2, 3, 4)

POINTS = len(WAITS) + len(STATUS) - 1


class Staged(Template):
    """conv2d_direct's default with a wait, twice as long for each step of a knob: whichever of some
    candidates is the fastest is so by far.
    """

    name = "staged"

    def __init__(self) -> None:
        self._real = Conv2dDirect()

    def applies(self, group: Group, target: Target) -> str | None:
        return self._real.applies(group, target)

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return Knob("wait", "ordinal", WAITS), Knob("fault", "categorical", tuple(STATUS))

    def default(self, group: Group, target: Target) -> Config:
        return Config.of(wait=WAITS[-1], fault="none")

    def check(self, group: Group, target: Target, config: Config) -> None:
        if config["fault"] != "none" and config["wait"]:
            raise ScheduleError("one of each fault is enough")

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return self._real.needs(group, target, self._real.default(group, target))

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return self._real.output_need(group, target, self._real.default(group, target))

    def cost(self, group: Group, target: Target, config: Config) -> float:
        return 1e-4 * 2 ** config.int("wait")

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        made = self._real.kernel(group, target, self._real.default(group, target), views)
        turns = 20_000 * 2 ** config.int("wait") if config.int("wait") else 0
        body = re.sub(r"\b(void @KERNEL@)\(", r"\1_own(", made.body)
        parameters = ", ".join(f"{arg.ctype}{arg.name}" for arg in made.args)
        names = ", ".join(arg.name for arg in made.args)
        body += (
            f"\nstatic void @KERNEL@({parameters}, int32_t r0, int32_t r1)\n{{\n"
            f"for (volatile int32_t i = 0; i < {turns}; i++) {{}}\n"
            f"@KERNEL@_own({names}, r0, r1);\n{_FAULTS[str(config['fault'])]}\n}}\n"
        )
        return replace(made, name="staged", body=body)


def use(patch: pytest.MonkeyPatch) -> None:
    """Let there be no other template."""
    only = (Staged(),)
    patch.setattr(registry, "anchor_templates", lambda: only)


def block(channels: int, size: int) -> ModelProto:
    """The first basic block of one of ResNet-18's later stages: three convolutions, one of them on
    the shortcut, [1, channels, size, size] to [1, 2 * channels, size / 2, size / 2].
    """
    rng = np.random.default_rng(18)
    wide, half = 2 * channels, size // 2

    def weights(outputs: int, inputs: int, kernel: int) -> np.ndarray:
        scale = np.sqrt(2.0 / (inputs * kernel * kernel))
        drawn = rng.standard_normal((outputs, inputs, kernel, kernel)) * scale
        return drawn.astype(np.float32)

    constants = {
        "w1": weights(wide, channels, 3),
        "b1": rng.standard_normal(wide).astype(np.float32),
        "w2": weights(wide, wide, 3),
        "b2": rng.standard_normal(wide).astype(np.float32),
        "w3": weights(wide, channels, 1),
        "b3": rng.standard_normal(wide).astype(np.float32),
    }
    nodes = [
        helper.make_node(
            "Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1], strides=[2, 2]
        ),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "w3", "b3"], ["c3"], "shortcut", strides=[2, 2]),
        helper.make_node("Add", ["c2", "c3"], ["s"], "sum"),
        helper.make_node("Relu", ["s"], ["y"], "relu2"),
    ]
    return model(nodes, {"x": (1, channels, size, size)}, {"y": (1, wide, half, half)}, constants)


def save(proto: ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        use(patched)
        sys.exit(call(sys.argv[1:]))
