"""Damaged .tflite files: a process of its own reads them under limits of time and memory.

    python tests/frontend/tflite/mutants.py FIRST COUNT

prints a line for each file that does not end in a graph or in one of the errors that a user sees.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np

from aotgen.errors import AotgenError, InternalError
from aotgen.frontend import Mode, load
from aotgen.frontend.tflite.schema import SCALARS, TABLES, UNIONS
from aotgen.passes.pipeline import run_passes
from aotgen.schedule.plan import unsupported
from aotgen.target.board import load_board
from scripts.coverage import DEFAULT_COLLECTION
from tests.tflite_builder import ModelBuilder, write_table

SECONDS = 20
"""One file may take; under a sanitizer-free Python the slowest takes less than one."""

EXTRA_BYTES = 3 << 30
"""Memory that the process may ask for beyond what it has when the first file is read."""

LARGEST_FILE = 120_000
"""Of the collection of real models only smaller ones are damaged."""


def convolutional() -> bytes:
    """A small int8 network: convolutions, shapes computed from shapes, a mean and a softmax."""
    rng = np.random.default_rng(1)
    b = ModelBuilder()
    q = (0.1, -3)

    def weights(name: str, *shape: int, axis: int) -> int:
        n = shape[axis]
        array = rng.integers(-127, 128, shape).astype(np.int8)
        return b.const(name, array, [0.01] * n, [0] * n, axis)

    def ints(name: str, *values: int) -> int:
        return b.const(name, np.array(values, np.int32))

    x = b.input("x", (1, 8, 8, 3), "int8", *q, signature=(-1, 8, 8, 3))
    bias = b.const("bias", rng.integers(-99, 99, 4).astype(np.int32), [0.001] * 4, [0] * 4)
    same = {"padding": "SAME", "stride_w": 1, "stride_h": 1, "fused_activation_function": "RELU6"}
    y = b.op("CONV_2D", [x, weights("w", 4, 3, 3, 3, axis=0), bias], options=same,
             out=("conv", (1, 8, 8, 4), "int8", *q))  # fmt: skip
    z = b.op("DEPTHWISE_CONV_2D", [y, weights("v", 1, 3, 3, 4, axis=3), bias],
             options={**same, "depth_multiplier": 1},
             out=("depthwise", (1, 8, 8, 4), "int8", *q))  # fmt: skip
    total = b.op("ADD", [y, z], out=("sum", (1, 8, 8, 4), "int8", 0.2, 1), options={})
    padding = b.const("padding", np.array([[0, 0], [1, 1], [0, 2], [0, 0]], np.int32))
    wide = b.op("PAD", [total, padding], out=("wide", (1, 10, 10, 4), "int8", 0.2, 1))
    pooled = b.op("MAX_POOL_2D", [wide], out=("pooled", (1, 5, 5, 4), "int8", 0.2, 1),
                  options={"padding": "VALID", "stride_w": 2, "stride_h": 2, "filter_width": 2,
                           "filter_height": 2})  # fmt: skip
    shape = b.op("SHAPE", [pooled], out=("shape", (4,), "int32"), options={"out_type": "int32"})
    first = b.op("STRIDED_SLICE", [shape, ints("b", 0), ints("e", 1), ints("s", 1)],
                 out=("batch", (), "int32"), options={"shrink_axis_mask": 1})  # fmt: skip
    size = b.op("PACK", [first, b.const("rest", np.array(-1, np.int32))],
                out=("size", (2,), "int32"), options={"values_count": 2, "axis": 0})  # fmt: skip
    flat = b.op("RESHAPE", [pooled, size], out=("flat", (1, 100), "int8", 0.2, 1))
    dense = b.op("FULLY_CONNECTED", [flat, weights("u", 5, 100, axis=0), None],
                 out=("dense", (1, 5), "int8", *q))  # fmt: skip
    b.output(b.op("SOFTMAX", [dense], out=("y", (1, 5), "int8", 1 / 256, -128),
                  options={"beta": 1.0}))  # fmt: skip
    b.signature("serving_default", {"x": x}, {"y": b.main.outputs[0]})
    return b.finish()


def stateful() -> bytes:
    """A float network with a variable, its initialisation, gathers and splits."""
    b = ModelBuilder()
    f = "float32"
    init = b.subgraph("init")
    handle = {"container": "", "shared_name": "total"}
    there = init.op("VAR_HANDLE", [], out=("there", (), "RESOURCE"), options=handle)
    zero = init.const("zero", np.zeros((1, 6), np.float32))
    init.op("ASSIGN_VARIABLE", [there, zero], outs=[], options={})
    x = b.input("x", (1, 6), f)
    b.op("CALL_ONCE", [], outs=[], options={"init_subgraph_index": 1})
    here = b.op("VAR_HANDLE", [], out=("here", (), "RESOURCE"), options=handle)
    old = b.op("READ_VARIABLE", [here], out=("old", (1, 6), f), options={})
    total = b.op("ADD", [old, x], out=("sum", (1, 6), f), options={})
    b.op("ASSIGN_VARIABLE", [here, total], outs=[], options={})
    axis = b.const("axis", np.array(1, np.int32))
    parts = b.op("SPLIT", [axis, total], options={"num_splits": 2},
                 outs=[("left", (1, 3), f), ("right", (1, 3), f)])  # fmt: skip
    order = b.const("order", np.array([2, 0, 1], np.int32))
    moved = b.op("GATHER", [parts[0], order], out=("moved", (1, 3), f), options={"axis": 1})
    joined = b.op("CONCATENATION", [moved, parts[1]], out=("joined", (1, 6), f),
                  options={"axis": 1})  # fmt: skip
    steps = b.op("RANGE", [b.const(n, np.array(v, np.int32)) for n, v in
                           (("start", 0), ("limit", 6), ("delta", 1))],
                 out=("steps", (6,), "int32"), options={})  # fmt: skip
    real = b.op("CAST", [steps], out=("real", (6,), f), options={})
    b.output(b.op("MUL", [joined, real], out=("y", (1, 6), f), options={}))
    return b.finish()


def originals() -> list[bytes]:
    """What is damaged."""
    files = sorted(DEFAULT_COLLECTION.glob("**/*.tflite")) if DEFAULT_COLLECTION.is_dir() else []
    small = [p.read_bytes() for p in files if p.stat().st_size < LARGEST_FILE]
    return [convolutional(), stateful(), *small]


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """``data`` with one kind of damage, seldom twice."""
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 2, 8]))):
        kind = rng.integers(0, 6)
        at = _place(data, rng)
        if kind == 0:  # a bit
            changed[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:  # a byte
            changed[at] = int(rng.integers(0, 256))
        elif kind == 2 and len(changed) > 8:  # the end is missing
            del changed[int(rng.integers(8, len(changed))) :]
            changed += b"" if rng.integers(0, 2) else bytes(64)
            return bytes(changed)
        elif kind == 3:  # an offset, a length or a number at its extremes
            word = int(rng.choice(_EXTREMES)) & 0xFFFFFFFF
            where = at // 4 * 4
            if where + 4 <= len(changed):
                struct.pack_into("<I", changed, where, word)
        elif kind == 4:  # two words change places
            a, b = at // 4 * 4, _place(data, rng) // 4 * 4
            if max(a, b) + 4 <= len(changed):
                changed[a : a + 4], changed[b : b + 4] = changed[b : b + 4], changed[a : a + 4]
        else:  # a word moves by a few
            where = at // 4 * 4
            if where + 4 <= len(changed):
                (word,) = struct.unpack_from("<I", changed, where)
                struct.pack_into("<I", changed, where, word + int(rng.integers(-16, 17)) & _WORD)
    return bytes(changed)


_WORD = 0xFFFFFFFF

_EXTREMES = (0, 1, 2, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
             0xFFFFFFFE, 0x40000000, 0x20000000, 1 << 24)  # fmt: skip


def _place(data: bytes, rng: np.random.Generator) -> int:
    """A position, most often in the structure at the two ends rather than in the weights."""
    if rng.integers(0, 4) == 0:
        return int(rng.integers(0, len(data)))
    structure = min(len(data), 6000)
    position = int(rng.integers(0, structure))
    return position if rng.integers(0, 2) else len(data) - 1 - position


def parsed(data: bytes, position: int, table: str) -> dict[str, Any]:
    """A table of a sound file as ``write_table`` takes it."""

    def at(code: str, where: int) -> Any:
        return struct.unpack_from("<" + code, data, where)[0]

    def target(where: int) -> int:
        return where + int(at("I", where))

    def text(where: int) -> str:
        start = target(where)
        return data[start + 4 : start + 4 + at("I", start)].decode()

    vtable = position - at("i", position)
    values: dict[str, Any] = {}
    for slot, field in enumerate(TABLES[table][: (at("H", vtable) - 4) // 2]):
        offset = at("H", vtable + 4 + 2 * slot)
        if not offset or field.name == "-":
            continue
        where = position + offset
        if field.kind == "scalar":
            values[field.name] = at(SCALARS[field.type][0], where)
        elif field.kind == "string":
            values[field.name] = text(where)
        elif field.kind == "table":
            values[field.name] = parsed(data, target(where), field.type)
        elif field.kind == "union":
            name = UNIONS[field.type][values[f"{field.name}_type"]]
            values[field.name] = (name, parsed(data, target(where), name))
        else:
            start = target(where)
            count = at("I", start)
            if field.kind == "scalars":
                code, size = SCALARS[field.type]
                found = np.frombuffer(data, "<" + code, count, start + 4)
                values[field.name] = found.tobytes() if size == 1 else found.tolist()
            else:
                parts = range(start + 4, start + 4 + 4 * count, 4)
                values[field.name] = [parsed(data, target(p), field.type) for p in parts]
    return values


def disturbed(model: dict[str, Any], rng: np.random.Generator) -> bytes:
    """A sound FlatBuffer of ``model`` with other numbers in a few places."""
    restore: list[tuple[Any, Any, Any]] = []
    for _ in range(int(rng.choice([1, 1, 2, 4]))):
        graph = model["subgraphs"][int(rng.integers(0, len(model["subgraphs"])))]
        part = str(rng.choice(["tensors", "operators", "operators", "graph", "codes"]))
        tree = {"graph": graph, "codes": model["operator_codes"]}.get(part) or graph[part]
        while True:
            keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
            if not keys:
                break
            key = keys[int(rng.integers(0, len(keys)))]
            value = tree[key]
            if isinstance(value, tuple):
                value = value[1]
            if isinstance(value, dict | list) and value and rng.integers(0, 8):
                tree = value
                continue
            restore.append((tree, key, tree[key]))
            tree[key] = _other(value, rng)
            break
    b = flatbuffers.Builder(1 << 16)
    try:
        b.Finish(write_table(b, "Model", model), file_identifier=b"TFL3")
        return bytes(b.Output())
    except (TypeError, struct.error, OverflowError, ValueError, AttributeError):
        return b""  # the schema cannot hold what came out
    finally:
        for tree, key, value in reversed(restore):
            tree[key] = value


def _other(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return int(rng.choice([-1, 0, 1, 2, 3, 7, 100, value + 1, value - 1, 2 * value, 1 << 30]))
    if isinstance(value, float):
        return float(rng.choice([0.0, -1.0, 1e-38, 1e38, np.nan, np.inf, value * 2]))
    if isinstance(value, list):
        kind = rng.integers(0, 4)
        return (
            []
            if kind == 0
            else value[:-1]
            if kind == 1
            else value[::-1]
            if kind == 2
            else (value + value[:1])
        )
    return b"" if isinstance(value, bytes) else "" if isinstance(value, str) else value


@cache
def _sources() -> tuple[list[bytes], list[dict[str, Any]]]:
    files = originals()
    return files, [parsed(f, struct.unpack_from("<I", f)[0], "Model") for f in files]


def mutants(first: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Files ``first``, ``first + 1``, ...: the same number is the same file. Every other one is a
    sound FlatBuffer of an unsound model.
    """
    files, models = _sources()
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        which = number // 2 % len(files)
        data = damaged(files[which], rng) if number % 2 else disturbed(models[which], rng)
        while not data:
            data = disturbed(models[which], rng)
        yield number, data


class TooLong(BaseException):
    """A file was not done in time."""


def _out_of_time(*_: object) -> None:
    raise TooLong


def complaint(data: bytes, mode: Mode) -> str:
    """What is wrong about how ``data`` is read; "" for a graph, and for an error for its user."""
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(SECONDS)
    try:
        graph = run_passes(load(data, requant=mode))
        unsupported(graph, load_board("host").target())
    except InternalError:
        return traceback.format_exc()
    except AotgenError as error:
        text = str(error)
        return "" if text and error.exit_code == 2 else f"not an error for a user: {text!r}"
    except (Exception, TooLong):
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    return ""


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    run_passes(load(convolutional()))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number, data in mutants(first, count):
        wrong = complaint(data, "litert" if number % 3 else "tflm")
        if wrong:
            print(f"mutant {number}: {wrong}", flush=True)


if __name__ == "__main__":
    main()
