"""What a pass is: one step from Graph to Graph, between the frontend and plan.

A pass edits the graph in place and says whether it changed anything. It never looks at time or at a
board, keeps activations channels-last, and leaves quantized values alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from aotgen.ir.graph import Graph


class Pass(ABC):
    """One rewriting step. Stateless.

    Attributes:
        name: the name that ``--disable-pass`` takes (the literature's name).
        level: the lowest optimisation level at which the pass runs.
    """

    name: ClassVar[str]
    level: ClassVar[int]

    @abstractmethod
    def run(self, graph: Graph) -> bool:
        """Rewrite ``graph`` in place; True when it changed."""
