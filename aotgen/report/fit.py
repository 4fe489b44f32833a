"""Whether a model fits a board's memory, by how many bytes not, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from aotgen.options import CompileOptions
from aotgen.report.text import byte_text
from aotgen.target.board import Board

Analyze = Callable[[CompileOptions], Mapping[str, Any]]
"""The manifest of the model on the board with these options."""


@dataclass(frozen=True)
class Memory:
    """One memory of a board.

    Attributes:
        kind: "RAM" or "flash".
        needs: bytes that the model takes. RAM: arena, state, context and pool of threads; flash:
            weights and code. Of a model that was built ("footprint") the code is exact, and the
            stack counts; else the code is an estimate and the stack is left out.
        has: bytes of the board, 0 where it sets no limit.
        external: bytes of what is needed that go to memory beside this, since it is too small.
    """

    kind: str
    needs: int
    has: int
    external: int = 0

    @property
    def short(self) -> int:
        """Bytes that are missing."""
        return max(0, self.needs - self.external - self.has) if self.has else 0

    def __str__(self) -> str:
        needs = f"needs {byte_text(self.needs)}, the board has {byte_text(self.has)}"
        return f"short by {self.short:,} bytes of {self.kind}: {needs}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "short": self.short}


@dataclass(frozen=True)
class Fit:
    """A model against a board's memories."""

    ram: Memory
    flash: Memory

    @property
    def ok(self) -> bool:
        return self.short == 0

    @property
    def short(self) -> int:
        """Bytes that are missing of both."""
        return self.ram.short + self.flash.short

    @property
    def misfits(self) -> list[str]:
        """A sentence for each memory that is too small."""
        return [str(memory) for memory in (self.ram, self.flash) if memory.short]

    @property
    def verdict(self) -> str:
        """Whether the model fits, or by how much not, for people."""
        if not self.ok:
            return "; ".join(self.misfits)
        named = ((self.flash, "weights"), (self.ram, "arena"))
        beside = [f"{what} of {byte_text(m.external)}" for m, what in named if m.external]
        if beside:
            return f"yes, with {' and '.join(beside)} in external memory"
        return "yes" if self.ram.has or self.flash.has else "yes: the board sets no limits"


@dataclass(frozen=True)
class Remedy:
    """Something that makes a model smaller where it is too large.

    Attributes:
        what: the user can do.
        fit: what comes of it.
    """

    what: str
    fit: Fit

    def __str__(self) -> str:
        sizes = f"RAM {self.fit.ram.needs:,}, flash {self.fit.flash.needs:,} bytes"
        rest = [f"{m.short:,} bytes of {m.kind}" for m in (self.fit.ram, self.fit.flash) if m.short]
        return f"{self.what}: {sizes}, " + (
            f"still short by {' and '.join(rest)}" if rest else "fits"
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "what": self.what,
            "fits": self.fit.ok,
            "ram": self.fit.ram.as_dict(),
            "flash": self.fit.flash.as_dict(),
        }


def fit(manifest: Mapping[str, Any], board: Board) -> Fit:
    """How the project of ``manifest`` fits ``board``.

    A microcontroller's external memory takes weights, and an arena, that its own cannot hold.
    """
    weights = manifest["weights_bytes"]
    return _fit(manifest, board, manifest["arena_bytes"], weights)


def _fit(manifest: Mapping[str, Any], board: Board, arena: int, weights: int) -> Fit:
    api = manifest["api"]
    code = manifest["flash_bytes"] - manifest["weights_bytes"]
    rest = manifest["state_bytes"] + api["ctx_bytes"] + api["pool_bytes"]
    built = manifest.get("footprint")
    if built is not None:
        code = built["flash_bytes"] - manifest["weights_bytes"]
        rest += built["static_bytes"] + built["stack_bytes"]
    ram = Memory("RAM", arena + rest, board.ram_bytes)
    flash = Memory("flash", weights + code, board.flash_bytes)
    room = board.external_bytes
    if flash.short and weights <= room:
        flash, room = replace(flash, external=weights), room - weights
    if ram.short and arena <= room:
        ram = replace(ram, external=arena)
    return Fit(ram, flash)


def remedies(
    manifest: Mapping[str, Any], board: Board, options: CompileOptions, analyze: Analyze
) -> list[Remedy]:
    """What would help a model that does not fit, the best first: nothing that does not help.

    Args:
        manifest: of the model under ``options``.
        board: see ``fit``.
        options: as they are.
        analyze: used for each set of options that may help.
    """
    now = fit(manifest, board)
    tried = _candidates(manifest, board, options, analyze, now)
    found = [r for r in tried if r.fit.short < now.short]
    return sorted(found, key=lambda r: (r.fit.short, r.what))


def bundle_remedies(manifest: Mapping[str, Any], board: Board) -> list[Remedy]:
    """What would help a bundle that does not fit, the best first.

    Args:
        manifest: of the bundle.
        board: see ``fit``.
    """
    now = fit(manifest, board)
    arena, weights = manifest["arena_bytes"], manifest["weights_bytes"]
    one = manifest["arenas_bytes"]["shared"]
    tried = [
        Remedy("--share-arena", _fit(manifest, board, one, weights)),
        Remedy(
            "--weights bin, mapped from memory beside the flash", _fit(manifest, board, arena, 0)
        ),
        Remedy("both", _fit(manifest, board, one, 0)),
    ]
    found: list[Remedy] = []
    for remedy in tried:
        if remedy.fit.short < min([now.short, *(r.fit.short for r in found)]):
            found.append(remedy)
    return sorted(found, key=lambda r: (r.fit.short, r.what))


def _candidates(
    manifest: Mapping[str, Any], board: Board, options: CompileOptions, analyze: Analyze, now: Fit
) -> Iterator[Remedy]:
    """Options that exist, each tried alone, then what the application can do."""
    changes: list[tuple[str, CompileOptions]] = []
    if now.ram.short and options.optimize != "ram":
        changes.append(("--optimize ram", replace(options, optimize="ram")))
    if now.flash.short and options.optimize != "flash":
        changes.append(("--optimize flash", replace(options, optimize="flash")))
    if options.opt_level < 3:
        changes.append(("--opt-level 3", replace(options, opt_level=3)))
    if now.ram.short and options.threads > 1:
        changes.append(("--threads 1", replace(options, threads=1)))
    if now.ram.short and options.io_type == "float":
        changes.append(("--io-type native", replace(options, io_type="native")))
    for what, changed in changes:
        yield Remedy(what, fit(analyze(changed), board))
    arena, weights = manifest["arena_bytes"], manifest["weights_bytes"]
    own = manifest["arena_own_bytes"]
    if own < arena:
        what = "inputs and outputs in buffers that the application has anyway"
        yield Remedy(what, _fit(manifest, board, own, weights))
    if now.flash.short:
        what = "--weights bin, mapped from memory beside the flash"
        yield Remedy(what, _fit(manifest, board, arena, 0))
