"""aot_core.c: what a Cortex-M core has for speed is switched on as Arm's manuals say. QEMU emulates
no caches, so their registers are memory here, and what happens to them is written down.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aotgen.codegen.environment import render
from aotgen.target.board import load_board
from support import require_tool

CC = "arm-none-eabi-gcc"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror")


def source(folder: Path) -> str:
    (folder / "aot_core.h").write_text(render("firmware/aot_core.h.j2"))
    text = render("firmware/aot_core.c.j2")
    (folder / "aot_core.c").write_text(text)
    return text


@pytest.mark.parametrize("level", ["-O0", "-Os", "-O3"])
@pytest.mark.parametrize("name", ["cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"])
def test_general_registers_are_enough(name: str, level: str, tmp_path: Path) -> None:
    """What switches the FPU and the vector unit on must not use them."""
    require_tool(CC)
    source(tmp_path)
    argv = [CC, *STRICT, *load_board(name).cflags(), level, "-c", "aot_core.c"]
    subprocess.run(argv, cwd=tmp_path, check=True)
    argv = ["arm-none-eabi-objdump", "-d", "--no-show-raw-insn", "aot_core.o"]
    listing = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    code = [line.split("\t")[1] for line in listing.splitlines() if line.count("\t") > 1]
    assert "isb" in code
    # The names of all instructions for floats and vectors begin with a V.
    assert not [word for word in code if word.startswith("v")]


@pytest.mark.parametrize("name", ["cortex-m", "host"])
def test_other_cores_have_nothing_to_switch_on(name: str, tmp_path: Path) -> None:
    source(tmp_path)
    compiler = CC if name == "cortex-m" else "gcc"
    require_tool(compiler)
    flags = load_board(name).cflags() if name == "cortex-m" else ()
    argv = [compiler, *STRICT, *flags, "-c", "aot_core.c"]
    subprocess.run(argv, cwd=tmp_path, check=True)


PREAMBLE = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t registers[0x1000 / 4], before[0x1000 / 4];

/* What was written since the last call. */
static void tell(const char *what)
{
    for (uint32_t n = 0; n < 0x1000 / 4; n++)
        if (registers[n] != before[n])
            printf("%03x %x %s\\n", n * 4, registers[n], what);
    memcpy(before, registers, sizeof before);
}
static volatile uint32_t *at(uint32_t address)
{
    return &registers[(address & 0xFFF) / 4];
}
static volatile uint32_t *operation_of(volatile uint32_t *operation)
{
    tell("");
    before[operation - registers] = *operation = 0xFFFFFFFFu; /* so that the same again is seen */
    return operation;
}
"""

MAIN = """
int main(int argc, char **argv)
{
    (void)argc;
    *at(0xE000ED78u) = (uint32_t)strtoul(argv[1], NULL, 16);
    *at(0xE000ED80u) = (uint32_t)strtoul(argv[2], NULL, 16);
    *at(0xE000ED14u) = (uint32_t)strtoul(argv[3], NULL, 16);
    *at(0xE000ED60u) = (uint32_t)strtoul(argv[5], NULL, 16);
    *at(0xE000EF50u) = *at(0xE000EF78u) = *at(0xE000ED84u) = 0xFFFFFFFFu;
    memcpy(before, registers, sizeof before);
    if (argv[4][0] == 'c')
        aot_core_clean();
    else
        aot_core_init();
    tell("");
    return 0;
}
"""

CCR, CLIDR, CPACR, CSSELR = 0xD14, 0xD78, 0xD88, 0xD84
ICIALLU, DCISW, DCCSW, BPIALL = 0xF50, 0xF60, 0xF6C, 0xF78


class Core:
    """aot_core.c as a program of this computer, whose registers are memory."""

    def __init__(self, folder: Path, isar0: int) -> None:
        self.isar0 = isar0
        text = source(folder)
        for old, new in (
            ("(*(volatile uint32_t *)(address))", "(*at(address))"),
            ('__asm__ volatile("dsb\\n isb" : : : "memory")', 'tell("")'),
            ("*operation = way", "*operation_of(operation) = way"),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        (folder / "core.c").write_text(PREAMBLE + text + MAIN)
        self.program = folder / "core"
        argv = ["gcc", "-std=c99", "-Wall", "-Wextra", "-D__ARM_ARCH_8M_MAIN__=1"]
        argv += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
        subprocess.run([*argv, "core.c", "-o", str(self.program)], cwd=folder, check=True)

    def writes(self, clidr: int, ccsidr: int, ccr: int, verb: str) -> list[tuple[int, int]]:
        """(register, value) of each, in order."""
        argv = [str(self.program), f"{clidr:x}", f"{ccsidr:x}", f"{ccr:x}", verb, f"{self.isar0:x}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        rows = [line.split() for line in done.stdout.splitlines()]
        return [(int(row[0], 16), int(row[1], 16)) for row in rows]


M7_ISAR0, M55_ISAR0 = 0x01101110, 0x01103110
"""ID_ISAR0 of these cores, as QEMU has it from their reference manuals."""


@pytest.fixture(scope="module", params=[M7_ISAR0, M55_ISAR0])
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Core:
    require_tool("gcc")
    return Core(tmp_path_factory.mktemp("core"), request.param)


# The Cortex-M7's CCSIDR of caches of 4 to 64 KiB with four ways of 32 bytes a line, as its
# technical reference manual has them; and of one way, of three, and of none at all.
SIZES = {
    0xF003E019: (32, 4, 5),
    0xF00FE019: (128, 4, 5),
    0xF03FE019: (512, 4, 5),
    0x0003E001: (32, 1, 5),
    0x0003E010: (32, 3, 4),
    0x00000000: (1, 1, 4),
}


@pytest.mark.parametrize("ccsidr", SIZES)
def test_each_line_is_invalid_before_its_cache_is_on(core: Core, ccsidr: int) -> None:
    sets, ways, line_bits = SIZES[ccsidr]
    way_bits = (ways - 1).bit_length()
    lines = {
        (way << (32 - way_bits) if way_bits else 0) | s << line_bits
        for s in range(sets)
        for way in range(ways)
    }
    found = core.writes(0x09000003, ccsidr, 0x200, "init")
    assert {v for r, v in found if r == DCISW} == lines
    assert found[0][0] == CPACR
    order = [r for n, (r, _) in enumerate(found) if r != DCISW or found[n - 1][0] != DCISW]
    assert sum(r == DCISW for r, _ in found) == len(lines)
    assert order[-5:] == [ICIALLU, CCR, CSSELR, DCISW, CCR]
    assert dict(found)[CPACR] == 0xF << 20
    assert dict(found)[CCR] & 0x30200 == 0x30200
    cleaned = core.writes(0x09000003, ccsidr, 0x30200, "clean")
    assert {v for r, v in cleaned if r == DCCSW} == lines
    assert {r for r, _ in cleaned} == {CSSELR, DCCSW}


def test_loops_and_branches(core: Core) -> None:
    """ARMv8.1-M's alone: in ARMv7-M these bits are reserved, or one already."""
    found = core.writes(0, 0, 0x200, "init")
    loops = [(BPIALL, 0), (CCR, 0xC0200)] if core.isar0 == M55_ISAR0 else []
    assert found == [(CPACR, 0xF << 20), *loops]


def test_caches_that_are_on_keep_what_they_have(core: Core) -> None:
    found = core.writes(0x09000003, 0xF00FE019, 0x30200, "init")
    assert {r for r, _ in found} <= {CPACR, BPIALL, CCR}
    assert core.writes(0x09000003, 0xF00FE019, 0x20200, "clean") == []
    assert core.writes(0, 0, 0x200, "clean") == []


@pytest.mark.parametrize(("clidr", "cache"), [(1, 0x20000), (2, 0x10000)])
def test_one_cache_alone(core: Core, clidr: int, cache: int) -> None:
    found = core.writes(clidr, 0xF00FE019, 0x200, "init")
    assert dict(found)[CCR] & 0x30000 == cache
