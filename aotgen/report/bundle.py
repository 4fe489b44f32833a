"""What a bundle takes of a board: flash of each model and of what they share, RAM with one arena
and with an arena for each model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aotgen.report.fit import Fit, Remedy, bundle_remedies, fit
from aotgen.report.text import table
from aotgen.target.board import Board

if TYPE_CHECKING:
    from aotgen.footprint import Footprint


@dataclass(frozen=True)
class BundleReport:
    """A bundle against its board.

    Attributes:
        manifest: of the bundle; with "footprint" where it was built.
        board: that it was compiled for.
        fit: of the bundle as it is.
        shared: with one arena for all.
        separate: with an arena for each model.
        remedies: what would help where it does not fit.
        own: flash of what only one model needs, by its prefix; the weights included.
    """

    manifest: Mapping[str, Any]
    board: Board
    fit: Fit
    shared: Fit
    separate: Fit
    remedies: tuple[Remedy, ...]
    own: Mapping[str, int]

    @property
    def shared_flash_bytes(self) -> int:
        """What several models need, or none alone: flash less what they have of their own."""
        return self.fit.flash.needs - sum(self.own.values())

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form: the manifest and what was found."""
        models = [
            {**entry, "own_flash_bytes": self.own[entry["prefix"]]}
            for entry in self.manifest["models"]
        ]
        return {
            **self.manifest,
            "models": models,
            "shared_flash_bytes": self.shared_flash_bytes,
            "fits": self.fit.ok,
            "misfits": self.fit.misfits,
            "memory": {
                "ram": self.fit.ram.as_dict(),
                "flash": self.fit.flash.as_dict(),
                "ram_shared_arena": self.shared.ram.as_dict(),
                "ram_separate_arenas": self.separate.ram.as_dict(),
            },
            "remedies": [remedy.as_dict() for remedy in self.remedies],
        }

    def text(self) -> str:
        """For people."""
        header = ("model", "MACs", "arena", "state", "weights", "own flash")
        rows = [
            [
                entry["prefix"],
                *(f"{entry[key]:,}" for key in ("macs", "arena_bytes", "state_bytes")),
                f"{entry['weights_bytes']:,}",
                f"{self.own[entry['prefix']]:,}",
            ]
            for entry in self.manifest["models"]
        ]
        rows.append(["shared", "", "", "", "", f"{self.shared_flash_bytes:,}"])
        return "\n".join([table(header, rows, left=1), "", *self.memory_lines()])

    def memory_lines(self) -> list[str]:
        """RAM, flash and whether they are there."""
        built = self.manifest.get("footprint")
        one = self.manifest["share_arena"]
        words = ("one arena for all", "an arena for each model")
        is_, other = words if one else reversed(words)
        beside = (self.separate if one else self.shared).ram.needs
        stack = "without stack" if built is None else f"with {built['stack_bytes']:,} of stack"
        code = ", the code estimated" if built is None else ""
        lines = [
            f"RAM    {self.fit.ram.needs:,} bytes {stack}, {is_}; {beside:,} with {other}",
            f"flash  {self.fit.flash.needs:,} bytes{code}",
            f"fits   {self.fit.verdict}",
        ]
        if not self.fit.ok:
            tried = [str(remedy) for remedy in self.remedies] or ["nothing that a bundle can do"]
            lines += [f"{'helps' if n == 0 else '':<7}{line}" for n, line in enumerate(tried)]
        return lines


def bundle_report(
    manifest: Mapping[str, Any], board: Board, built: Footprint | None = None
) -> BundleReport:
    """How a bundle fits its board.

    Args:
        manifest: of the bundle.
        board: that it was compiled for.
        built: its footprint; None estimates the code.
    """
    if built is not None:
        manifest = {**manifest, "footprint": built.as_dict()}
    arenas = manifest["arenas_bytes"]
    return BundleReport(
        manifest,
        board,
        fit(manifest, board),
        fit({**manifest, "arena_bytes": arenas["shared"]}, board),
        fit({**manifest, "arena_bytes": arenas["separate"]}, board),
        tuple(bundle_remedies(manifest, board)),
        {
            entry["prefix"]: built.own_bytes(entry["prefix"])
            if built is not None
            else entry["weights_bytes"] + entry["code_bytes"]
            for entry in manifest["models"]
        },
    )
