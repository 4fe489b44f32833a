"""From a path, bytes or ModelProto to a ModelProto whose structure is known to be sound.

What is proven here, so that the importer need not ask: a graph with outputs, known opsets, every
tensor that is read defined exactly once, no cycle, nodes in an order in which they can run,
model-local functions inlined.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import inliner, version_converter

from aotgen.errors import ModelError, UsageError
from aotgen.frontend.emitter import one_line

Source = Path | str | bytes | onnx.ModelProto

MIN_OPSET = 7
"""Older models are converted by onnx: before it binary operators broadcast by attribute."""

PROTOBUF_LIMIT = (1 << 31) - 1
"""A protobuf message cannot be larger; bigger models keep their weights in external files."""

_MAGIC = {
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"PK\x03\x04": "a zip archive (perhaps a PyTorch checkpoint or a Keras file)",
    b"\x1f\x8b": "a gzip archive",
    b"\x89HDF": "an HDF5 file",
    b"GGUF": "a GGUF file",
    b"version https://git-lfs": "a Git LFS pointer, not the model itself",
    b"<": "a text file",
    b"{": "a text file",
}


@dataclass(frozen=True)
class ModelFile:
    """A sound model.

    Attributes:
        proto: functions inlined, nodes in execution order.
        folder: where external data lies; None when the model came from memory.
        label: how messages call the model.
        stem: a name for the model when the user gives none.
        opsets: version by domain; "ai.onnx" is spelled "".
        converted: the file's own opset was older than ``MIN_OPSET``.
    """

    proto: onnx.ModelProto
    folder: Path | None
    label: str
    stem: str
    opsets: dict[str, int]
    converted: bool


def read(source: Source) -> ModelFile:
    """Parse and prove ``source``.

    Raises:
        UsageError: the path cannot be read.
        ModelError: it is not an ONNX model, or a broken one.
    """
    if isinstance(source, onnx.ModelProto):
        proto, folder, label, stem = source, None, "the model", source.graph.name or "model"
    elif isinstance(source, bytes):
        proto, folder, label = _parse(source, "the model"), None, "the model"
        stem = proto.graph.name or "model"
    else:
        path = Path(source)
        label = str(path)
        proto, folder, stem = _parse(_read_file(path), label), path.parent, path.stem
    _check_text(proto, label)
    own = _opsets(proto, label)
    proto = _inline(_modern(proto, own, label), label)
    converted = own.get("", MIN_OPSET) < MIN_OPSET
    return ModelFile(_sorted(proto, label), folder, label, stem, _opsets(proto, label), converted)


def _read_file(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise UsageError(f"{path} is a folder", remedy="give the path of an .onnx file")
        if size > PROTOBUF_LIMIT:
            raise ModelError(
                f"{path} has {size} bytes, more than the 2 GiB of a protobuf message",
                remedy="save it with external data",
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or one_line(error)
        raise UsageError(f"cannot read {str(path)!r}: {why}") from None


def _parse(data: bytes, label: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{label} is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, which is not typed
        raise ModelError(f"{label} is not a complete ONNX file{_guess(data)}") from None
    if not proto.HasField("graph"):
        raise ModelError(f"{label} is not an ONNX model: it has no graph{_guess(data)}")
    return proto


def _check_text(proto: onnx.ModelProto, label: str) -> None:
    """Protobuf hands out a string that is not UTF-8 as bytes: refuse such names."""
    graph = proto.graph
    names = [graph.name, *(entry.domain for entry in proto.opset_import)]
    names += [v.name for v in (*graph.input, *graph.output, *graph.initializer)]
    for node in (*graph.node, *(n for f in proto.functions for n in f.node)):
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [a.name for a in node.attribute]
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{label} is malformed: the name {name!r} is not UTF-8 text")


def _guess(data: bytes) -> str:
    for magic, what in _MAGIC.items():
        if data.startswith(magic):
            return f": it looks like {what}"
    if data[4:8] == b"TFL3":
        return ": it looks like a TFLite model"
    if all(32 <= c < 127 or c in b"\t\r\n" for c in data[:256]):
        return ": it looks like a text file"
    return ": it is truncated or of another format"


def _opsets(proto: onnx.ModelProto, label: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if entry.version >= 2**31:
            raise ModelError(
                f"{label} is malformed: it uses version {entry.version} of opset {domain!r}"
            )
        found[domain] = max(entry.version, found.get(domain, 0))
    if "" not in found:
        if any(n.domain in ("", "ai.onnx") for n in proto.graph.node):
            raise ModelError(
                f"{label} does not say which opset it uses: the file is truncated or malformed"
            )
        return found
    newest = onnx.defs.onnx_opset_version()
    if found[""] > newest:
        raise ModelError(
            f"{label} uses opset {found['']}; the installed onnx package knows up to {newest}",
            remedy="update the onnx package or export with an older opset",
        )
    return found


def _modern(proto: onnx.ModelProto, opsets: dict[str, int], label: str) -> onnx.ModelProto:
    """``proto`` in opset ``MIN_OPSET`` or newer."""
    if opsets.get("", MIN_OPSET) >= MIN_OPSET:
        return proto
    try:
        return version_converter.convert_version(proto, MIN_OPSET)
    except Exception as error:  # the C++ converter raises its own types
        raise ModelError(
            f"{label} uses opset {opsets['']} and cannot be converted to opset {MIN_OPSET}: "
            f"{one_line(error)}",
            remedy="export it again with a newer opset",
        ) from None


def _inline(proto: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """``proto`` without calls of model-local functions, and of standard functions that have no
    converter.
    """
    if not proto.functions:
        return proto
    try:
        return inliner.inline_local_functions(proto, convert_version=True)
    except Exception as error:  # the C++ inliner raises RuntimeError, ValueError and its own types
        raise ModelError(f"{label}: its functions cannot be inlined: {one_line(error)}") from None


def node_label(node: onnx.NodeProto) -> str:
    """The node's own name, else operator and first output's name."""
    if node.name:
        return str(node.name)
    first = next((o for o in node.output if o), "")
    return f"{node.op_type}:{first}" if first else str(node.op_type)


def _sorted(proto: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """``proto`` with its nodes in execution order, the file's own order where that can run.

    Raises:
        ModelError: a tensor is undefined or defined twice, or the graph has a cycle.
    """
    graph = proto.graph
    defined: dict[str, int | None] = {}
    for name in [v.name for v in graph.input] + [t.name for t in graph.initializer]:
        if not name:
            raise ModelError(f"{label} has a graph input or initializer without a name")
        defined[name] = None
    for values, what in ((graph.input, "graph input"), (graph.initializer, "initializer")):
        counts = Counter(v.name for v in values)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ModelError(f"{label}: {what} {twice!r} is defined twice")
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name in defined and name:
                raise ModelError(
                    f"{label}: node {node_label(node)!r} defines tensor {name!r} a second time"
                )
            if name:
                defined[name] = index
    order = _order(graph, defined, label)
    for output in graph.output:
        if output.name not in defined:
            raise ModelError(f"{label}: graph output {output.name!r} is not computed by any node")
    if not graph.output:
        raise ModelError(f"{label} has no outputs: there is nothing to compute")
    if order == list(range(len(graph.node))):
        return proto
    nodes = [graph.node[i] for i in order]
    fresh = onnx.ModelProto()
    fresh.CopyFrom(proto)
    del fresh.graph.node[:]
    fresh.graph.node.extend(nodes)
    return fresh


def _order(graph: onnx.GraphProto, defined: dict[str, int | None], label: str) -> list[int]:
    """Kahn's algorithm; of the nodes that can run, the first in the file runs first."""
    waiting: list[int] = []
    users: list[list[int]] = [[] for _ in graph.node]
    for index, node in enumerate(graph.node):
        needs = set()
        for name in reads(node):
            if name not in defined:
                raise ModelError(
                    f"{label}: node {node_label(node)!r} reads undefined tensor {name!r}"
                )
            producer = defined[name]
            if producer is not None:
                needs.add(producer)
        for producer in needs:
            users[producer].append(index)
        waiting.append(len(needs))
    ready = [i for i, n in enumerate(waiting) if n == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for user in users[index]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(graph.node):
        stuck = next(i for i, n in enumerate(waiting) if n > 0)
        raise ModelError(
            f"{label}: the graph has a cycle through node {node_label(graph.node[stuck])!r}"
        )
    return order


def reads(node: onnx.NodeProto) -> list[str]:
    """Names the node reads, with those that its subgraphs take from outside."""
    names = [n for n in node.input if n]
    for attribute in node.attribute:
        for graph in (
            [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        ):
            inside = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inside |= {o for n in graph.node for o in n.output}
            names += [r for n in graph.node for r in reads(n) if r not in inside]
    return names
