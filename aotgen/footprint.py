"""Flash by symbol and the deepest stack of a generated project, from what its compiler made.

A bare board's project is linked with a program of two calls, init and run, so that what the linker
drops from an application is dropped here too. The stack of a C function is what the compiler says
(``-fstack-usage``); that of assembly and of the C library is read from the disassembly, and so are
the calls. A call through a pointer may reach every function whose address something takes.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aotgen.errors import InternalError, ToolchainError, UsageError
from aotgen.manifest import Manifest
from aotgen.target.board import Board
from aotgen.target.toolchain import compiler_packages, require_tool

SymbolKind = Literal["code", "constant", "data", "zero"]

_STUB = """#include "{p}.h"
static {p}_ctx ctx;
static {p}_config config;
void footprint_entry(void);
void footprint_entry(void)
{{
    (void){p}_init(&ctx, &config);
    (void){p}_run(&ctx, NULL, NULL);
}}
"""

_KINDS: dict[str, SymbolKind] = {
    "t": "code",
    "r": "constant",
    "d": "data",
    "b": "zero",
    "w": "code",
}

_ENTRY = "footprint_entry"


@dataclass(frozen=True)
class Symbol:
    """A symbol of the linked library.

    Attributes:
        name: in C.
        bytes: its size.
        kind: "code" and "constant" lie in flash, "data" in flash and RAM, "zero" in RAM.
    """

    name: str
    bytes: int
    kind: SymbolKind


@dataclass(frozen=True)
class Footprint:
    """What a project's library takes on its board, without the caller's buffers.

    Attributes:
        symbols: the largest first.
        flash_bytes: of code and constants, alignment included.
        static_bytes: of RAM.
        stack_bytes: the most that init or run needs; the caller's own frame excluded.
        stack_path: the functions of the deepest chain of calls, run or init first.
    """

    symbols: tuple[Symbol, ...]
    flash_bytes: int
    static_bytes: int
    stack_bytes: int
    stack_path: tuple[tuple[str, int], ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "flash_bytes": self.flash_bytes,
            "static_bytes": self.static_bytes,
            "stack_bytes": self.stack_bytes,
            "stack_path": [{"function": name, "bytes": size} for name, size in self.stack_path],
            "symbols": [{"name": s.name, "bytes": s.bytes, "kind": s.kind} for s in self.symbols],
        }


@dataclass
class _Function:
    """A function as the disassembly shows it."""

    depth: int = 0
    calls: set[str] = field(default_factory=set)
    indirect: bool = False


def measure_footprint(
    manifest: Manifest, board: Board, flags: Sequence[str] | None = None
) -> Footprint:
    """Compile and link a project's library and look at the result.

    Args:
        manifest: of the project.
        board: that it was compiled for, a bare one.
        flags: of optimisation; None takes those of a Release build.

    Raises:
        UsageError: the board has an operating system.
        ToolchainError: the compiler is missing or fails.
    """
    if not board.is_bare:
        raise UsageError(
            f"board {board.name} is no microcontroller: its linker decides too late what is used",
            remedy="look at the static library with size and nm",
        )
    compiler = require_tool(f"{board.triple}-gcc", compiler_packages(board))
    binutils = str(compiler.path)[: -len("gcc")]
    with tempfile.TemporaryDirectory(prefix="aotgen-footprint-") as name:
        folder = Path(name)
        flags = flags or board.optimisation(manifest.options.optimize)
        image = _linked(manifest, board, compiler.path, flags, folder)
        usage = _stack_usage(folder)
        symbols = _symbols(_call([f"{binutils}nm", "-S", "--size-sort", str(image)]))
        functions = _functions(_call([f"{binutils}objdump", "-d", str(image)]))
        taken = _address_taken(_call([f"{binutils}readelf", "-rW", str(image)]), functions)
        sections = _sections(_call([f"{binutils}size", "-A", str(image)]))
    for function, size in usage.items():
        # The disassembly sees through what inline assembly pushes, the compiler does not.
        if function in functions:
            functions[function].depth = max(functions[function].depth, size)
    roots = [f"{manifest.prefix}_run", f"{manifest.prefix}_init"]
    path = max((_deepest(root, functions, taken) for root in roots), key=_total)
    flash = sum(sections.get(s, 0) for s in (".text", ".rodata", ".data", ".ARM.exidx"))
    kept = tuple(s for s in symbols if s.name not in (_ENTRY, "ctx", "config"))
    entry = sum(s.bytes for s in symbols if s.name == _ENTRY)
    return Footprint(
        kept,
        flash - entry,
        sum(s.bytes for s in kept if s.kind in ("data", "zero")),
        _total(path),
        tuple(path),
    )


def _linked(
    manifest: Manifest, board: Board, compiler: Path, flags: Sequence[str], folder: Path
) -> Path:
    """The image; the ``.su`` files lie beside it."""
    p, source = manifest.prefix, manifest.root / "src"
    stub = folder / "footprint.c"
    stub.write_text(_STUB.format(p=p), encoding="utf-8")
    files = [stub, *sorted(source.glob("*.c")), *sorted(source.glob("*.S"))]
    common = [
        *board.cflags(), *flags, "-std=c99", "-ffunction-sections", "-fdata-sections",
        "-fstack-usage", f"-I{manifest.root / 'include'}", f"-I{source}", f"-Wa,-I{source}",
        f'-D{p.upper()}_WEIGHTS_FILE="{manifest.weights_file}"',
    ]  # fmt: skip
    objects = []
    for file in files:
        objects.append(str(folder / f"{file.name}.o"))
        _call([str(compiler), *common, "-c", str(file), "-o", objects[-1]])
    image = folder / "image.elf"
    link = [
        *board.cflags(), *flags, "-nostartfiles", "--specs=nano.specs", "--specs=nosys.specs",
        "-Wl,--gc-sections", "-Wl,--emit-relocs", f"-Wl,-e,{_ENTRY}", "-Wl,-Ttext=0x8000",
    ]  # fmt: skip
    _call([str(compiler), *link, *objects, "-lm", "-o", str(image)])
    return image


def _call(argv: Sequence[str]) -> str:
    """
    Raises:
        ToolchainError: the program fails, or is not there.
    """
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise ToolchainError(f"cannot start {argv[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = next((w for w in done.stderr.splitlines() if "error" in w), done.stderr[-300:])
        raise ToolchainError(f"{Path(argv[0]).name} failed: {words.strip()}")
    return done.stdout


def _stack_usage(folder: Path) -> dict[str, int]:
    """Bytes of each function's frame by its name, from the compiler's .su files."""
    found: dict[str, int] = {}
    for file in sorted(folder.glob("*.su")):
        for line in file.read_text(encoding="utf-8").splitlines():
            where, size, _ = line.split("\t")
            found[where.rsplit(":", 1)[1]] = int(size)
    return found


def _symbols(text: str) -> list[Symbol]:
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 4 and words[2].lower() in _KINDS:
            kind = _KINDS[words[2].lower()]
            found.append(Symbol(words[3], int(words[1], 16), kind))
    return sorted(found, key=lambda s: (-s.bytes, s.name))


def _sections(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {r[0]: int(r[1]) for r in rows if len(r) == 3 and r[1].isdigit()}


_LABEL = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_LINE = re.compile(r"^\s*[0-9a-f]+:\t(?:[0-9a-f]{4} ?){1,2}\s*\t(\S+)(?:\s+(.*))?$")
_TARGET = re.compile(r"<([^>+]+)>")
_BRANCH = re.compile(r"^b(?:eq|ne|cs|cc|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al)?(?:\.[nw])?$")


def _functions(text: str) -> dict[str, _Function]:
    """Stack depth and calls of every function of a disassembly.

    The depth is that of all pushes and subtractions from SP in a row: what is taken only on one
    path counts for all.
    """
    found: dict[str, _Function] = {}
    current: _Function | None = None
    name = ""
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            name = label[1]
            current = found.setdefault(name, _Function())
            continue
        match = _LINE.match(line)
        if match is None or current is None:
            continue
        mnemonic, operands = match[1], (match[2] or "").split(";")[0].split("@")[0].strip()
        current.depth += _pushed(mnemonic, operands)
        callee = _TARGET.search(match[2] or "")
        if mnemonic in ("bl", "blx") and callee:
            current.calls.add(callee[1])
        elif mnemonic == "blx" or (mnemonic == "bx" and operands != "lr"):
            current.indirect = True
        elif _BRANCH.match(mnemonic) and callee and callee[1] != name:
            current.calls.add(callee[1])
    return found


_IMMEDIATE = re.compile(r"#(\d+)")


def _pushed(mnemonic: str, operands: str) -> int:
    """Bytes by which an instruction lowers SP."""
    base = mnemonic.split(".")[0]
    if base == "push" or (base in ("stmdb", "stmfd") and operands.startswith("sp!")):
        return 4 * _listed(operands)
    if base in ("vpush", "vstmdb") and (base == "vpush" or operands.startswith("sp!")):
        return (8 if re.search(r"\{d", operands) else 4) * _listed(operands)
    if base in ("sub", "subw") and re.match(r"sp, (sp, )?#", operands):
        found = _IMMEDIATE.search(operands)
        return int(found[1]) if found else 0
    if base in ("str", "strd", "stmia") and "[sp, #-" in operands and operands.endswith("]!"):
        found = re.search(r"#-(\d+)", operands)
        return int(found[1]) if found else 0
    return 0


def _listed(operands: str) -> int:
    """Registers between the braces."""
    inside = re.search(r"\{([^}]*)\}", operands)
    count = 0
    for word in inside[1].split(",") if inside else ():
        ends = re.findall(r"\d+", word)
        count += int(ends[1]) - int(ends[0]) + 1 if len(ends) == 2 else 1
    return count


def _address_taken(text: str, functions: Mapping[str, _Function]) -> set[str]:
    """Functions whose address lies in data or is made by instructions."""
    found: set[str] = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 5 and re.search(r"R_ARM_(ABS32|THM_MOVW|TARGET1)", words[2]):
            if words[4] in functions:
                found.add(words[4])
    return found


def _total(path: Iterable[tuple[str, int]]) -> int:
    return sum(size for _, size in path)


def _deepest(
    root: str, functions: Mapping[str, _Function], taken: Iterable[str]
) -> list[tuple[str, int]]:
    """The chain of calls from ``root`` that needs most.

    Raises:
        InternalError: functions call themselves.
    """
    known: dict[str, list[tuple[str, int]]] = {}
    open_now: list[str] = []
    anywhere = sorted(taken)

    def visit(name: str) -> list[tuple[str, int]]:
        if name in known:
            return known[name]
        if name in open_now:
            raise InternalError(f"stack: {name} calls itself through {open_now[-1]}")
        function = functions.get(name)
        if function is None:
            return []
        open_now.append(name)
        through = [c for c in anywhere if c not in open_now] if function.indirect else []
        callees = [*sorted(function.calls), *through]
        below = max((visit(c) for c in callees), key=_total, default=[])
        open_now.pop()
        known[name] = [(name, function.depth), *below]
        return known[name]

    return visit(root)
