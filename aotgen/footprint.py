"""Flash by symbol and the deepest stack of a generated project, from what its compiler made.

A bare board's project is linked with a program of two calls, init and run of each model, so that
what the linker drops from an application is dropped here too. The stack of a C function is what the
compiler says (``-fstack-usage``); that of assembly and of the C library is read from the
disassembly, and so are the calls. A call through a pointer may reach every function whose address
something takes.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
void {entry}(void);
void {entry}(void)
{{
    (void){p}_init(&ctx, &config);
    (void){p}_run(&ctx, NULL, NULL);
}}
"""
"""Of one model."""

_KINDS: dict[str, SymbolKind] = {
    "t": "code",
    "r": "constant",
    "d": "data",
    "b": "zero",
    "w": "code",
}

_STUB_OBJECTS = ("ctx", "config")


@dataclass(frozen=True)
class Symbol:
    """A symbol of the linked library.

    Attributes:
        name: in C.
        bytes: its size.
        kind: "code" and "constant" lie in flash, "data" in flash and RAM, "zero" in RAM.
        models: those that need it.
    """

    name: str
    bytes: int
    kind: SymbolKind
    models: tuple[str, ...] = ()


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
            "symbols": [
                {"name": s.name, "bytes": s.bytes, "kind": s.kind, "models": list(s.models)}
                for s in self.symbols
            ],
        }

    def own_bytes(self, model: str) -> int:
        """Flash of what no other model of the library needs, its weights included."""
        return sum(s.bytes for s in self.symbols if s.models == (model,) and s.kind != "zero")


@dataclass
class _Function:
    """A function as the disassembly shows it."""

    depth: int = 0
    calls: set[str] = field(default_factory=set)
    indirect: bool = False


def measure_footprint(
    models: Manifest | Sequence[Manifest], board: Board, flags: Sequence[str] | None = None
) -> Footprint:
    """Compile and link a library and look at the result.

    Args:
        models: manifest of a project, or those of all models of one bundle.
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
    manifests = [models] if isinstance(models, Manifest) else list(models)
    compiler = require_tool(f"{board.triple}-gcc", compiler_packages(board))
    binutils = str(compiler.path)[: -len("gcc")]
    with tempfile.TemporaryDirectory(prefix="aotgen-footprint-") as name:
        folder = Path(name)
        flags = flags or board.optimisation(manifests[0].options.optimize)
        argv = [str(compiler.path), *board.cflags(), *flags]
        objects = _compiled(manifests, argv, folder)
        image = _linked(manifests, argv, objects, folder)
        usage = _stack_usage(folder)
        functions = _functions(_call([f"{binutils}objdump", "-d", str(image)]))
        taken = _address_taken(_call([f"{binutils}readelf", "-rW", str(image)]), functions)
        sections = _sections(_call([f"{binutils}size", "-A", str(image)]))

        def symbols_of(program: Path) -> list[Symbol]:
            return _symbols(_call([f"{binutils}nm", "-S", "--size-sort", str(program)]))

        symbols = symbols_of(image)
        # Whatever the linker keeps for a model alone is what that model needs.
        needs = {
            manifest.prefix: {
                s.name
                for s in (
                    symbols
                    if len(manifests) == 1
                    else symbols_of(_linked([manifest], argv, objects, folder))
                )
            }
            for manifest in manifests
        }
    for function, size in usage.items():
        # The disassembly sees through what inline assembly pushes, the compiler does not.
        if function in functions:
            functions[function].depth = max(functions[function].depth, size)
    roots = [f"{manifest.prefix}_{what}" for manifest in manifests for what in ("run", "init")]
    path = max((_deepest(root, functions, taken) for root in roots), key=_total)
    entries = {_entry(manifest) for manifest in manifests}
    flash = sum(sections.get(s, 0) for s in (".text", ".rodata", ".data", ".ARM.exidx"))
    kept = tuple(
        replace(s, models=tuple(model for model, names in needs.items() if s.name in names))
        for s in symbols
        if s.name not in {*entries, *_STUB_OBJECTS}
    )
    stubs = sum(s.bytes for s in symbols if s.name in entries)
    return Footprint(
        kept,
        flash - stubs,
        sum(s.bytes for s in kept if s.kind in ("data", "zero")),
        _total(path),
        tuple(path),
    )


def _entry(manifest: Manifest) -> str:
    """The function of ``_STUB``: no symbol of the model's begins so."""
    return f"aotgen_footprint__{manifest.prefix}"


def _compiled(
    manifests: Sequence[Manifest], argv: Sequence[str], folder: Path
) -> dict[str, list[str]]:
    """The object files of each model's calls of init and run, by its prefix, and under "" those of
    the library; the ``.su`` files lie beside them.
    """
    root = manifests[0].root
    source = root / "src"
    common = [
        *argv, "-std=c99", "-ffunction-sections", "-fdata-sections", "-fstack-usage",
        f"-I{root / 'include'}", f"-I{source}", f"-Wa,-I{source}",
        *(f'-D{m.prefix.upper()}_WEIGHTS_FILE="{m.weights_file}"' for m in manifests),
    ]  # fmt: skip
    objects: dict[str, list[str]] = {"": []}
    files = [("", path) for path in [*sorted(source.glob("*.c")), *sorted(source.glob("*.S"))]]
    for manifest in manifests:
        stub = folder / f"footprint_{manifest.prefix}.c"
        stub.write_text(_STUB.format(p=manifest.prefix, entry=_entry(manifest)), encoding="utf-8")
        files.append((manifest.prefix, stub))
    for model, file in files:
        made = str(folder / f"{file.name}.o")
        objects.setdefault(model, []).append(made)
        _call([*common, "-c", str(file), "-o", made])
    return objects


def _linked(
    manifests: Sequence[Manifest],
    argv: Sequence[str],
    objects: Mapping[str, Sequence[str]],
    folder: Path,
) -> Path:
    """An image with what these models need."""
    image = folder / "image.elf"
    first, *others = map(_entry, manifests)
    link = [
        *argv, "-nostartfiles", "--specs=nano.specs", "--specs=nosys.specs",
        "-Wl,--gc-sections", "-Wl,--emit-relocs", "-Wl,-Ttext=0x8000", f"-Wl,-e,{first}",
        *(f"-Wl,-u,{entry}" for entry in others),
    ]  # fmt: skip
    stubs = [path for manifest in manifests for path in objects[manifest.prefix]]
    _call([*link, *stubs, *objects[""], "-lm", "-o", str(image)])
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
