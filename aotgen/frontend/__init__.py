"""From a model file to a Graph: the first step of a model's journey. One package a file format."""

from __future__ import annotations

from aotgen.frontend.onnx import check, load

__all__ = ["check", "load"]
