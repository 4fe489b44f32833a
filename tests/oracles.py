"""The reference runtimes for .tflite files: the tflite-micro wheel and LiteRT's reference kernels.

Both abort or crash the process on some models, so they live in a worker process each, which is
started again after a crash. The modes are those of ``--requant``.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np

from tests.support import require_module

Arrays = list[np.ndarray]

ARENA_BYTES = 1 << 30
"""tflite-micro's arena. It is not cleared, so memory is taken only where it is written."""

TIME_LIMIT_S = 300.0

MODULES = {"tflm": "tflite_micro", "litert": "ai_edge_litert"}


class OracleLacks(Exception):
    """The runtime does not run the model; the message is the runtime's own."""


def tflm(model: bytes, inputs: Sequence[np.ndarray], steps: int = 1) -> Arrays:
    """The model's outputs by the tflite-micro wheel.

    Args:
        model: the .tflite file's bytes.
        inputs: in the model's order; of several steps one after the other, or once for all.
        steps: successive runs of one interpreter, whose state carries over.

    Returns:
        The outputs in the model's order, those of several steps one after the other.

    Raises:
        OracleLacks: it refuses the model or crashes on it.
    """
    return _ask("tflm", model, inputs, steps)


def litert(model: bytes, inputs: Sequence[np.ndarray], steps: int = 1) -> Arrays:
    """The same by LiteRT's reference kernels (BUILTIN_REF); inputs may have shapes of their own."""
    return _ask("litert", model, inputs, steps)


ORACLES: dict[str, Callable[..., Arrays]] = {"tflm": tflm, "litert": litert}


class _Worker:
    """A process of this file's ``main``; requests and answers are pickles with their length."""

    def __init__(self, mode: str) -> None:
        # It is open as long as the worker lives.
        self.messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # Not as tests.oracles: the worker needs nothing of the package, and starts the faster.
        self.process = subprocess.Popen(
            [sys.executable, __file__, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.messages,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        atexit.register(self.close)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        atexit.unregister(self.close)

    def ask(self, request: Any) -> Any:
        """
        Raises:
            EOFError: the process has died, or answers too late.
        """
        assert self.process.stdin is not None
        self.messages.seek(0)
        self.messages.truncate()
        try:
            _write(self.process.stdin, request)
        except BrokenPipeError as error:
            raise EOFError from error
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], TIME_LIMIT_S)
        if not ready:
            raise EOFError(f"no answer within {TIME_LIMIT_S:.0f} s")
        return _read(self.process.stdout)

    def said(self) -> str:
        """What the runtime has printed about the request, in a line."""
        self.messages.seek(0)
        lines = self.messages.read().decode(errors="replace").splitlines()
        return "; ".join(line.strip() for line in lines if line.strip())[:2000]


_workers: dict[str, _Worker] = {}


def _ask(mode: str, model: bytes, inputs: Sequence[np.ndarray], steps: int) -> Arrays:
    require_module(MODULES[mode])
    worker = _workers.get(mode)
    if worker is None:
        worker = _workers[mode] = _Worker(mode)
    try:
        kind, answer = worker.ask((bytes(model), [np.asarray(a) for a in inputs], steps))
    except EOFError as error:
        worker.close()
        del _workers[mode]
        how = str(error) or f"its process died ({worker.process.returncode})"
        raise OracleLacks(f"{mode}: {how}: {worker.said()}") from None
    if kind == "lacks":
        raise OracleLacks(f"{mode}: {answer}: {worker.said()}")
    outputs: Arrays = answer
    return outputs


def _write(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value, protocol=5)
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    (size,) = struct.unpack("<q", head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def _step_inputs(inputs: Arrays, count: int, step: int) -> Arrays:
    return inputs[step * count : (step + 1) * count] if len(inputs) > count else inputs


def _run_tflm(model: bytes, inputs: Arrays, steps: int) -> Arrays:
    from tflite_micro.python.tflite_micro import runtime

    interpreter = runtime.Interpreter.from_bytes(model, arena_size=ARENA_BYTES)
    graph = _subgraph(model)
    results = []
    for step in range(steps):
        for i, array in enumerate(_step_inputs(inputs, graph.InputsLength(), step)):
            interpreter.set_input(np.ascontiguousarray(array), i)
        interpreter.invoke()
        results += [np.array(interpreter.get_output(i)) for i in range(graph.OutputsLength())]
    return results


def _subgraph(model: bytes) -> Any:
    import tflite

    return tflite.Model.GetRootAsModel(model, 0).Subgraphs(0)


def _run_litert(model: bytes, inputs: Arrays, steps: int) -> Arrays:
    from ai_edge_litert import interpreter as litert_interpreter

    interpreter = litert_interpreter.Interpreter(
        model_content=model,
        num_threads=1,
        experimental_op_resolver_type=litert_interpreter.OpResolverType.BUILTIN_REF,
    )
    details = interpreter.get_input_details()
    for detail, array in zip(details, inputs, strict=False):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    results = []
    for step in range(steps):
        for detail, array in zip(details, _step_inputs(inputs, len(details), step), strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        results += [
            np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()
        ]
    return results


_RUNNERS = {"tflm": _run_tflm, "litert": _run_litert}


def main() -> None:
    """Answer requests until stdin ends."""
    # The runtimes print to stdout too: the answers keep a descriptor of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            request = _read(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = ("done", _RUNNERS[sys.argv[1]](*request))
        except Exception as error:
            answer = ("lacks", f"{type(error).__name__}: {error}")
        _write(answers, answer)


if __name__ == "__main__":
    main()
