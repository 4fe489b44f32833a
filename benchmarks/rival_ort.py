#!/usr/bin/env python3
"""onnxruntime as the rival of speed.py: one model, one thread, in a process of its own.

usage: rival_ort.py MODEL.onnx INPUT.npz

onnxruntime gets its best settings: every graph optimisation, inputs and outputs bound in advance
(IOBinding), one thread. It speaks lines of JSON. Once loaded it prints {"version", "load_ms"};
then, for each line on stdin,

    run N     prints {"times_ms": [N latencies]}
    output    prints {"output": [the first output, flattened]}

The processor is the one that the parent process is pinned to, for affinity is inherited.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from time import perf_counter_ns

import numpy as np
import onnxruntime


def bind(
    path: str, inputs: dict[str, np.ndarray]
) -> tuple[onnxruntime.InferenceSession, onnxruntime.IOBinding]:
    """Load the model, run it once, bind its inputs and outputs to memory for all further runs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for value in session.get_inputs():
        array = np.ascontiguousarray(inputs[value.name])
        binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for value in session.get_outputs():
        binding.bind_output(value.name, "cpu")
    session.run_with_iobinding(binding)
    for value, result in zip(session.get_outputs(), binding.get_outputs(), strict=True):
        binding.bind_ortvalue_output(value.name, result)
    return session, binding


def latencies(
    session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding, count: int
) -> Iterator[float]:
    """Milliseconds of `count` inferences, each timed by itself."""
    run = session.run_with_iobinding
    for _ in range(count):
        start = perf_counter_ns()
        run(binding)
        yield (perf_counter_ns() - start) / 1e6


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    start = perf_counter_ns()
    with np.load(sys.argv[2]) as arrays:
        session, binding = bind(sys.argv[1], dict(arrays))
    load_ms = (perf_counter_ns() - start) / 1e6
    print(json.dumps({"version": onnxruntime.__version__, "load_ms": load_ms}), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["run", count]:
                answer: dict[str, list[float]] = {
                    "times_ms": list(latencies(session, binding, int(count)))
                }
            case ["output"]:
                answer = {"output": binding.get_outputs()[0].numpy().ravel().tolist()}
            case _:
                print(f"rival_ort: unknown command {line.strip()!r}", file=sys.stderr)
                return 2
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
