"""Streaming: a model over a window of time becomes one that runs on every few new frames of it.

``stream(graph, frames)`` stands between frontend and passes: Graph -> Graph. A step reads
``frames`` new frames of each input; what later steps need of them waits in State variables, which
the rest of the compiler treats as any model's own. ``docs/streaming.md`` says what a step computes.
"""

from __future__ import annotations

from aotgen.streaming.convert import stream

__all__ = ["stream"]
