"""Tasks whose candidates are C text of a test: right ones, and such as do everything wrong."""

from __future__ import annotations

from dataclasses import replace

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.schedule.base import Arg, Config, Kernel, Knob, Template, Views
from aotgen.target.target import Target
from aotgen.tune.outcome import Candidate
from aotgen.tune.task import Point, Task
from tests.kernels.harness import conv_case

ROWS, WIDTH = 12, 40

LOOP = """
    for (int32_t r = r0; r < r1; r++)
        for (int32_t i = 0; i < 40; i++)
            y[r * 40 + i] = x[r * 40 + i] > 0.0f ? x[r * 40 + i] : 0.0f;
"""

# What the kernel relu of [12, 40] does; int32_t r0, r1 are its rows.
BODIES = {
    "right": LOOP,
    "slower": "for (volatile int n = 0; n < 20000; n++) {}" + LOOP,
    "crash": "*(volatile int *)(intptr_t)(r1 - 12 + 8) = 1;" + LOOP,
    "abort": LOOP + "if (r1 == 12) abort();",
    "hang": LOOP + "for (volatile int n = 0; r1 == 12; n = 1) {}",
    "exit": LOOP + "if (r1 == 12) exit(0);",
    "before": LOOP + "y[-1] = 1.0f;",
    "behind": LOOP + "y[12 * 40] = 1.0f;",
    "far": LOOP + "((volatile float *)y)[1 << 14] = 1.0f;",
    "half": LOOP.replace("r < r1", "r < r1 - 1"),
    "wrong": LOOP + "y[r0 * 40 + 3] += 1.0f;",
    "nan": LOOP + "y[r0 * 40 + 3] = NAN;",
    "input": LOOP + "((float *)(intptr_t)x)[1] += 1.0f;",
    "cut": LOOP + "if (r0 > 0) y[r0 * 40] = 9.0f;",
    "stack": "volatile char deep[64 << 20]; for (int i = 63 << 20; i >= 0; i -= 256) deep[i] = 1;"
    + LOOP,
    "scratch": LOOP,
    "syntax": "this is not C;" + LOOP,
    "unknown": LOOP + "extern void nowhere(void); nowhere();",
}
STATUS = {
    "right": "ok",
    "slower": "ok",
    "crash": "crash",
    "abort": "crash",
    "hang": "timeout",
    "exit": "crash",
    "before": "bounds",
    "behind": "bounds",
    "far": "bounds",
    "half": "wrong",
    "wrong": "wrong",
    "nan": "wrong",
    "input": "bounds",
    "cut": "wrong",
    "stack": "memory",
    "scratch": "memory",
    "syntax": "build",
    "unknown": "build",
}
"""What comes of each of ``BODIES``."""


class Planted(Template):
    """Renders one of ``BODIES``."""

    name = "planted"

    def applies(self, group: Group, target: Target) -> str | None:
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return (
            Knob("body", "categorical", tuple(BODIES)),
            Knob("twin", "boolean", (False, True)),
        )

    def default(self, group: Group, target: Target) -> Config:
        return Config.of(body="right", twin=False)

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        body = str(config["body"])
        x, y = group.activations[0], group.output
        args = [Arg("x", "const float *", value=x), Arg("y", "float *", value=y, is_output=True)]
        extra = ""
        if body == "scratch":
            args.append(Arg("s", "float *", scratch_bytes=1 << 44))
            extra = ", float *s"
        text = (
            f"static void @KERNEL@(const float *x, float *y{extra}, int32_t r0, int32_t r1)\n"
            f"{{\n{BODIES[body]}\n}}\n"
        )
        return Kernel("relu", text, tuple(args), ROWS, includes=frozenset({"stdlib.h", "math.h"}))


class PlantedTask(Task):
    """A task whose only template is ``Planted``."""

    def templates(self) -> list[Template]:
        return [Planted()]


def planted_task(target: Target, key: str = "00000000000000aa") -> Task:
    """relu of [12, 40]."""
    graph = Graph("case", [], [], [])
    node = graph.make("relu", [Value("x", TensorType(DType.F32, (ROWS, WIDTH)))], name="relu")
    return PlantedTask(key, "relu", "relu", Group([node], node, "task"), target, ("a",))


def planted(task: Task, *bodies: str) -> list[Candidate]:
    return [Candidate(task, Point("planted", Config.of(body=body, twin=False))) for body in bodies]


def conv_task(target: Target, channels: int = 16) -> Task:
    """A 3x3 convolution with the registry's own templates."""
    case = conv_case(
        "conv", Planted(), (1, 10, 10, 8), channels, (3, 3), pads=(1, 1, 1, 1), relu=True
    )
    key = f"{channels:016x}"
    return replace(
        Task(key, "conv", "conv", case.group, target, ("a",)), macs=10 * 10 * 8 * 9 * channels
    )


def default_candidates(task: Task) -> list[Candidate]:
    """The default of every template."""
    return [
        Candidate(task, Point(t.name, t.default(task.group, task.target))) for t in task.templates()
    ]
