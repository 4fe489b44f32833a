"""A journal as ``compile`` uses it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotgen.errors import UsageError
from aotgen.ir.graph import Graph
from aotgen.target.board import Board
from aotgen.target.target import Target
from aotgen.tune.journal import Record, read_journal
from aotgen.tune.schedules import Tuned
from aotgen.tune.task import has_choice

if TYPE_CHECKING:
    from aotgen.codegen.program import Program

NONE = "none"
"""The journal that a compilation uses where the user wants none."""

BOARD_JOURNALS = ("journal.jsonl", "journal.jsonl.xz")
"""Files beside a board.toml that a compilation for the board uses by default."""


@dataclass(frozen=True)
class JournalUse:
    """The journal of a compilation.

    Attributes:
        name: of the file, without its folder.
        sha256: of its bytes.
        records: what is in it.
        predicts: whether the cost model may speak for tasks without records. It does not for a
            board's own journal: what a compilation gives must not depend on packages that happen
            to be installed.
        skipped: how many of its lines are no records.
        board: that ships it; None where the user named it.
    """

    name: str
    sha256: str
    records: Sequence[Record]
    predicts: bool
    skipped: int = 0
    board: str | None = None

    def schedules(self, graph: Graph, target: Target) -> Tuned:
        """What the journal says about a graph with groups."""
        from aotgen.tune.transfer import JournalTransfer

        transfer = JournalTransfer(self.records, target, self.predicts)
        return Tuned(graph, target, self.records, transfer)

    def summary(self, program: Program) -> dict[str, Any]:
        """For the manifest: the journal, and how many of the Groups with a choice got their config
        from where.
        """
        sources: Counter[str] = Counter()
        kinds: Counter[str | None] = Counter()
        for layer in program.layers:
            if layer.choice is None or layer.group is None:
                continue
            if layer.choice.source == "default" and not has_choice(layer.group, program.target):
                continue
            sources[layer.choice.source] += 1
            if layer.choice.source == "tuned" and program.schedules is not None:
                kinds[program.schedules.kind(layer.group)] += 1
        return {
            "journal": self.name,
            "board": self.board,
            "sha256": self.sha256,
            **{source: sources[source] for source in ("tuned", "transferred", "default")},
            "modelled": kinds["modelled"],
            "emulated": kinds["emulated"],
            "skipped": self.skipped,
        }


def open_journal(spec: str | None, board: Board, device: str = "cpu") -> JournalUse | None:
    """The journal that a compilation for ``board`` uses; None for none.

    Args:
        spec: as ``CompileOptions.journal``.
        board: whose own journal is taken where ``spec`` is None.
        device: where kernels run: what is known of the CPU does not serve a GPU.

    Raises:
        UsageError: there is no such file, or it is no journal.
    """
    if spec == NONE or (spec is None and device != "cpu"):
        return None
    if spec is None:
        own = next((p for n in BOARD_JOURNALS if (p := board.folder / n).is_file()), None)
        return None if own is None else _use(own, board.name)
    return _use(Path(spec), None)


def _use(path: Path, board: str | None) -> JournalUse:
    records, skipped = read_journal(path)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read journal {path}: {error.strerror or error}") from error
    return JournalUse(path.name, digest, records, board is None, len(skipped), board)


def summary_text(tuning: dict[str, Any]) -> str:
    """ "tuned 18, transferred 2, default 3 groups (journal host.jsonl)" of a manifest's summary;
    empty where a board's own journal has nothing for the model, which nobody asked for.
    """
    tuned, own = tuning["tuned"], tuning["board"]
    if own is not None and not tuned and not tuning["transferred"]:
        return ""
    journal = tuning["journal"] if own is None else f"of board {own}"
    notes = [
        f"{tuning[kind]} of them {kind}" if tuning[kind] < tuned else kind
        for kind in ("modelled", "emulated")
        if tuning[kind]
    ]
    told = f"tuned {tuned}" + (f" ({', '.join(notes)})" if notes else "")
    skipped = f", {tuning['skipped']} lines of it are no records" if tuning["skipped"] else ""
    return (
        f"{told}, transferred {tuning['transferred']}, default {tuning['default']} groups"
        f" (journal {journal}{skipped})"
    )
