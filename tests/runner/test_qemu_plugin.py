"""Counting under QEMU: classes of instructions, caches, processes, and what cannot be counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import BoardError, ToolchainError, UsageError
from aotgen.runner.qemu import QemuRunner
from aotgen.runner.qemu_plugin import Counts, modelled_seconds, plugin_words
from aotgen.target.board import Board, load_board
from aotgen.target.cost_model import CLASSES
from support import require_tool
from tests.runner.loopback import script

START, STOP = "hint #0x50", "hint #0x51"
A32 = ".inst 0xe320f050", ".inst 0xe320f051"
THUMB = ".inst.w 0xf3af8050", ".inst.w 0xf3af8051"

# Instruction: class and operations. x1 points to 256 bytes; x2, x3 are 4; x9 and above are free.
A64 = {
    "fmla v3.4s, v0.4s, v2.s[1]": ("fma", 1),
    "fmla v3.4s, v0.4s, v2.4s": ("fma", 1),
    "fmls v3.2d, v0.2d, v2.2d": ("fma", 1),
    "fmul v3.4s, v0.4s, v2.4s": ("fma", 1),
    "fmul v3.4s, v0.4s, v2.s[0]": ("fma", 1),
    "fmla v3.8h, v0.8h, v2.8h": ("fma", 1),
    "fmul v3.8h, v0.8h, v2.h[1]": ("fma", 1),
    "frecps v3.4s, v0.4s, v2.4s": ("fma", 1),
    "sdot v3.4s, v0.16b, v2.16b": ("dot", 1),
    "udot v3.4s, v0.16b, v2.4b[1]": ("dot", 1),
    "mul v3.8h, v0.8h, v2.8h": ("vector_mul", 1),
    "mla v3.4s, v0.4s, v2.s[1]": ("vector_mul", 1),
    "smull v3.8h, v0.8b, v2.8b": ("vector_mul", 1),
    "smlal2 v3.4s, v0.8h, v2.h[1]": ("vector_mul", 1),
    "sqrdmulh v3.4s, v0.4s, v2.4s": ("vector_mul", 1),
    "fadd v3.4s, v0.4s, v2.4s": ("vector_float", 1),
    "fmax v3.4s, v0.4s, v2.4s": ("vector_float", 1),
    "fcmgt v3.4s, v0.4s, #0.0": ("vector_float", 1),
    "faddp v3.4s, v0.4s, v2.4s": ("vector_float", 1),
    "fmaxv s3, v0.4s": ("vector_float", 1),
    "scvtf v3.4s, v0.4s": ("vector_float", 1),
    "fcvtns v3.4s, v0.4s": ("vector_float", 1),
    "fcvtl v3.4s, v0.4h": ("vector_float", 1),
    "fadd v3.8h, v0.8h, v2.8h": ("vector_float", 1),
    "add v3.4s, v0.4s, v2.4s": ("vector", 1),
    "smax v3.4s, v0.4s, v2.4s": ("vector", 1),
    "zip1 v3.4s, v0.4s, v2.4s": ("vector", 1),
    "ext v3.16b, v0.16b, v2.16b, #4": ("vector", 1),
    "dup v3.4s, v0.s[1]": ("vector", 1),
    "movi v3.4s, #0": ("vector", 1),
    "sshr v3.4s, v0.4s, #3": ("vector", 1),
    "addv s3, v0.4s": ("vector", 1),
    "sqxtn v3.4h, v0.4s": ("vector", 1),
    "fneg v3.4s, v0.4s": ("vector", 1),
    "tbl v3.16b, {v0.16b}, v2.16b": ("vector", 1),
    "fdiv v3.4s, v0.4s, v2.4s": ("vector_div", 1),
    "fsqrt v3.4s, v0.4s": ("vector_div", 1),
    "fdiv s3, s0, s2": ("vector_div", 1),
    "fsqrt d3, d0": ("vector_div", 1),
    "fmadd s3, s0, s2, s4": ("float", 1),
    "fadd s3, s0, s2": ("float", 1),
    "scvtf s3, w2": ("float", 1),
    "fmov x9, d0": ("float", 1),
    "ldr q3, [x1]": ("vector_load", 1),
    "ldr s3, [x1, #4]!": ("vector_load", 1),
    "ldur d3, [x1, #4]": ("vector_load", 1),
    "ldp q3, q4, [x1]": ("vector_load", 2),
    "ld1 {v3.4s}, [x1]": ("vector_load", 1),
    "ld1 {v3.4s-v6.4s}, [x1]": ("vector_load", 4),
    "ld1 {v3.s}[1], [x1]": ("vector_load", 1),
    "ld1r {v3.4s}, [x1]": ("vector_load", 1),
    "ld2 {v3.4s, v4.4s}, [x1]": ("vector_load", 2),
    "ld3 {v3.4s-v5.4s}, [x1]": ("vector_load", 3),
    "ld4 {v3.s-v6.s}[0], [x1]": ("vector_load", 4),
    "str q3, [x1]": ("vector_store", 1),
    "stp d3, d4, [x1]": ("vector_store", 2),
    "st1 {v3.4s-v5.4s}, [x1]": ("vector_store", 3),
    "ldr x9, [x1]": ("load", 1),
    "ldrsb w9, [x1, #1]": ("load", 1),
    "ldp x9, x10, [x1]": ("load", 2),
    "ldxr w9, [x1]": ("load", 1),
    "ldr x9, =0x123456789abcdef": ("load", 1),
    "str w9, [x1, x2]": ("store", 1),
    "stp x9, x10, [x1, #16]": ("store", 2),
    "prfm pldl1keep, [x1, #64]": ("prefetch", 1),
    "add x9, x2, x3": ("alu", 1),
    "adr x9, .": ("alu", 1),
    "mov x9, #7": ("alu", 1),
    "csel x9, x2, x3, eq": ("alu", 1),
    "ubfx x9, x2, #1, #3": ("alu", 1),
    "madd x9, x2, x3, x2": ("mul", 1),
    "smull x9, w2, w3": ("mul", 1),
    "udiv x9, x2, x3": ("div", 1),
    "b.eq . + 4": ("branch", 1),
    "cbz x2, . + 4": ("branch", 1),
    "dmb ish": ("system", 1),
    "nop": ("system", 1),
}

# The same of 32-bit ARM, in A32 and Thumb; the third number is instructions. r1 is as x1.
ARM = {
    "vmla.f32 q3, q0, q2": ("fma", 1, 1),
    "vfma.f32 q3, q0, q2": ("fma", 1, 1),
    "vmul.f32 q3, q0, d2[1]": ("fma", 1, 1),
    "vmla.f32 q3, q0, d2[1]": ("fma", 1, 1),
    "vmul.i16 q3, q0, q2": ("vector_mul", 1, 1),
    "vmlal.s16 q3, d0, d2": ("vector_mul", 1, 1),
    "vmull.s8 q3, d0, d2": ("vector_mul", 1, 1),
    "vmlal.s16 q3, d0, d2[1]": ("vector_mul", 1, 1),
    "vqrdmulh.s32 q3, q0, q2": ("vector_mul", 1, 1),
    "vadd.f32 q3, q0, q2": ("vector_float", 1, 1),
    "vmax.f32 q3, q0, q2": ("vector_float", 1, 1),
    "vcvt.s32.f32 q3, q0": ("vector_float", 1, 1),
    "vceq.f32 q3, q0, q2": ("vector_float", 1, 1),
    "vadd.i32 q3, q0, q2": ("vector", 1, 1),
    "vext.8 q3, q0, q2, #4": ("vector", 1, 1),
    "vdup.32 q3, d0[1]": ("vector", 1, 1),
    "vshr.s32 q3, q0, #3": ("vector", 1, 1),
    "vmovn.i32 d6, q0": ("vector", 1, 1),
    "vdiv.f32 s12, s0, s2": ("vector_div", 1, 1),
    "vsqrt.f32 s12, s0": ("vector_div", 1, 1),
    "vadd.f32 s12, s0, s2": ("float", 1, 1),
    "vmla.f32 s12, s0, s2": ("float", 1, 1),
    "vmov r8, s0": ("float", 1, 1),
    "vldr s12, [r1]": ("vector_load", 1, 1),
    "vldm r1, {d6-d9}": ("vector_load", 4, 4),
    "vld1.32 {d6-d9}, [r1]": ("vector_load", 4, 1),
    "vld1.32 {d6[]}, [r1]": ("vector_load", 1, 1),
    "vld3.32 {d6, d8, d10}, [r1]": ("vector_load", 3, 1),
    "vstr d6, [r1]": ("vector_store", 1, 1),
    "vst1.32 {d6, d7}, [r1]": ("vector_store", 2, 1),
    "vstmia r1, {s12-s14}": ("vector_store", 3, 3),
    "ldr r8, [r1, #4]": ("load", 1, 1),
    "ldrsh r8, [r1, #2]": ("load", 1, 1),
    "ldrd r8, r9, [r1]": ("load", 2, 1),
    "ldm r1, {r4-r6, r8}": ("load", 4, 4),
    "strb r8, [r1, r2]": ("store", 1, 1),
    "strd r8, r9, [r1]": ("store", 2, 1),
    "stm r1, {r4-r6}": ("store", 3, 3),
    "pld [r1, #64]": ("prefetch", 1, 1),
    "add r8, r2, r3": ("alu", 1, 1),
    "movw r8, #1000": ("alu", 1, 1),
    "cmp r2, r3": ("alu", 1, 1),
    "uxtb r8, r2": ("alu", 1, 1),
    "mul r8, r2, r3": ("mul", 1, 1),
    "mla r8, r2, r3, r2": ("mul", 1, 1),
    "smlabb r8, r2, r3, r2": ("mul", 1, 1),
    "smull r8, r9, r2, r3": ("mul", 1, 1),
    "udiv r8, r2, r3": ("div", 1, 1),
    "beq 2f": ("branch", 1, 1),
    "dmb ish": ("system", 1, 1),
}

SIXTEEN = {
    "adds r5, r2, r3": ("alu", 1, 1),
    "muls r5, r2, r5": ("mul", 1, 1),
    "ldr r5, [r1, #4]": ("load", 1, 1),
    "strh r5, [r1, r2]": ("store", 1, 1),
    "ldrsh r5, [r1, r2]": ("load", 1, 1),
    "push {r4-r6}": ("store", 3, 3),
    "pop {r4-r6}": ("load", 3, 3),
    "cbz r2, 3f": ("branch", 1, 1),
    "nop": ("system", 1, 1),
}

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"

EXIT64 = "mov x0, #0\n mov x8, #93\n svc #0\n"
EXIT32 = "mov r0, #0\n mov r7, #1\n svc #0\n"
DATA = " .ltorg\n .bss\n .balign 65536\nbuffer: .space 1048576\n"


@pytest.fixture(scope="module")
def pi() -> Board:
    """A Cortex-A72 that runs every instruction of the tables."""
    require_tool("qemu-aarch64", "aarch64-linux-gnu-gcc", "cc")
    board = load_board("rpi4")
    return replace(board, emulator=tuple(w.replace("cortex-a72", "max") for w in board.emulator))


@pytest.fixture(scope="module")
def pi32() -> Board:
    require_tool("qemu-arm", "arm-linux-gnueabihf-gcc", "cc")
    return load_board("rpi3b-armv7")


def build(folder: Path, triple: str, source: str, *flags: str) -> Path:
    """A program of assembly that begins at _start, or of C."""
    is_c = "int main" in source
    path = folder / ("program.c" if is_c else "program.s")
    path.write_text(source)
    alone = () if is_c else ("-nostdlib", "-static")
    program = folder / "program"
    argv = [f"{triple}-gcc", "-O1", *alone, *flags, str(path), "-o", str(program)]
    subprocess.run(argv, check=True)
    return program


def regions(board: Board, program: Path, *arguments: str) -> list[Counts]:
    with QemuRunner(board) as place, place.counting() as log:
        place.run(program, arguments)
        return log.regions()


def same(counts: list[Counts]) -> list[Counts]:
    """Without what differs from run to run."""
    return [replace(c, pid=0) for c in counts]


def executed(counts: Counts) -> dict[str, int]:
    return {name: n for name, n in counts.operations.items() if n}


def a64(body: str) -> str:
    return (
        " .text\n .global _start\n_start: adrp x1, buffer\n add x1, x1, :lo12:buffer\n"
        f" mov x2, #4\n mov x3, #4\n{body}\n {EXIT64}{DATA}"
    )


def test_classes_of_a64(pi: Board, tmp_path: Path) -> None:
    body = "\n".join(f" adrp x1, buffer\n {START}\n {text}\n {STOP}" for text in A64)
    source = a64(body)
    program = build(tmp_path, "aarch64-linux-gnu", source, "-march=armv8.2-a+dotprod+fp16")
    found = regions(pi, program)
    assert [c.region for c in found] == list(range(1, len(A64) + 1))
    told = {text: (executed(c), c.instructions) for text, c in zip(A64, found, strict=True)}
    assert told == {text: ({name: n}, 1) for text, (name, n) in A64.items()}


@pytest.mark.parametrize("mode", ["arm", "thumb"])
def test_classes_of_32_bit_arm(mode: str, pi32: Board, tmp_path: Path) -> None:
    start, stop = A32 if mode == "arm" else THUMB
    cases = {**ARM, **(SIXTEEN if mode == "thumb" else {})}
    body = "\n".join(f" ldr r1, =buffer\n {start}\n {text}\n2: {stop}\n3:" for text in cases)
    source = (
        f" .syntax unified\n .{mode}\n .fpu neon-vfpv4\n .arch armv7ve\n .text\n .global _start\n"
        f" .type _start, %function\n_start: mov r2, #4\n mov r3, #4\n{body}\n {EXIT32}{DATA}"
    )
    program = build(tmp_path, "arm-linux-gnueabihf", source, f"-m{mode}")
    found = regions(pi32, program)
    told = {text: (executed(c), c.instructions) for text, c in zip(cases, found, strict=True)}
    assert told == {text: ({name: n}, count) for text, (name, n, count) in cases.items()}


LOOP = """
    mov x4, #1000
    mov x5, x1
    {start}
1:  ldp q0, q1, [x1], #32
    fmla v3.4s, v0.4s, v1.s[1]
    fadd v4.4s, v0.4s, v1.4s
    str q3, [x1]
    subs x4, x4, #1
    b.ne 1b
    {stop}
    add x4, x4, #1
"""


def test_a_loop_and_its_cycles(pi: Board, tmp_path: Path) -> None:
    """Exact, however QEMU cuts the code into blocks; and the same in every run."""
    source = a64(LOOP.format(start=START, stop=STOP))
    program = build(tmp_path, "aarch64-linux-gnu", source)
    first = regions(pi, program)
    assert same(regions(pi, program)) == same(first)
    (counts,) = first
    assert counts.complete and counts.threads == 1
    assert counts.instructions == 6000
    assert set(counts.operations) == set(CLASSES)
    assert executed(counts) == {
        "fma": 1000,
        "vector_float": 1000,
        "vector_load": 2000,
        "vector_store": 1000,
        "alu": 1000,
        "branch": 1000,
    }
    # 1000 times 32 bytes from a line's start on, and the last store is one vector behind them.
    assert (counts.l1_misses, counts.l2_misses) == (501, 501)
    # A round takes 2 cycles of the load unit and of the vector unit, 7/3 of the front end.
    model = pi.clusters[0].cost_model
    assert model is not None and counts.issue_cycles is not None
    units = [2, 2, 1, 0.5, 1, 7 / 3]
    each = max(units) + (1 - model.overlap) * (sum(units) - max(units))
    assert counts.issue_cycles == pytest.approx(1000 * each, rel=1e-3)
    missing = 501 * (model.l1_miss + model.l2_miss)
    seconds = (counts.issue_cycles + missing) / 1.5e9
    assert modelled_seconds(counts, pi) == pytest.approx(seconds, rel=1e-12)


def lru_misses(addresses: list[int], levels: list[tuple[int, int]]) -> list[int]:
    """Of (bytes, ways) with lines of 64 bytes; the next level sees the misses of the one before."""
    found = []
    lines = [address // 64 for address in addresses]
    for size, ways in levels:
        sets: dict[int, OrderedDict[int, None]] = {}
        missed = []
        for line in lines:
            own = sets.setdefault(line % (size // 64 // ways), OrderedDict())
            if line not in own:
                missed.append(line)
                if len(own) == ways:
                    own.popitem(last=False)
            own[line] = None
            own.move_to_end(line)
        found.append(len(missed))
        lines = missed
    return found


RANDOM = """
    mov w9, #1
    movz w10, #0x660d
    movk w10, #0x19, lsl #16
    movz w11, #0xf35f
    movk w11, #0x3c6e, lsl #16
    mov x4, #20000
    {start}
1:  madd w9, w9, w10, w11
    lsr w12, w9, #12
    ldrb w13, [x1, x12]
    subs x4, x4, #1
    b.ne 1b
    {stop}
"""


def test_misses_are_those_of_lru_caches(pi: Board, tmp_path: Path) -> None:
    """20000 pseudo-random bytes of 1 MiB, against another simulation."""
    source = a64(RANDOM.format(start=START, stop=STOP))
    (counts,) = regions(pi, build(tmp_path, "aarch64-linux-gnu", source))
    addresses, seed = [], 1
    for _ in range(20000):
        seed = (seed * 0x19660D + 0x3C6EF35F) % 2**32
        addresses.append(seed >> 12)
    wanted = lru_misses(addresses, [(32768, 2), (1 << 20, 16)])
    assert [counts.l1_misses, counts.l2_misses] == wanted
    assert counts.operations["load"] == 20000


STREAM = """
    mov x6, #2
0:  {start}
    mov x4, #{lines}
    mov x5, x1
1:  ldr x9, [x5], #64
    subs x4, x4, #1
    b.ne 1b
    {stop}
    subs x6, x6, #1
    b.ne 0b
"""


@pytest.mark.parametrize(
    ("kib", "warm"), [(16, (0, 0)), (256, (4096, 0))], ids=["fits L1", "fits L2"]
)
def test_caches_stay_warm(kib: int, warm: tuple[int, int], pi: Board, tmp_path: Path) -> None:
    source = a64(STREAM.format(start=START, stop=STOP, lines=kib * 16))
    cold, again = regions(pi, build(tmp_path, "aarch64-linux-gnu", source))
    assert (cold.l1_misses, cold.l2_misses) == (kib * 16, kib * 16)
    assert (again.l1_misses, again.l2_misses) == warm


FORKS = """
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static void spin(unsigned n) {
    __asm__ volatile("hint #0x50\\n1: subs %0, %0, #1\\n b.ne 1b\\n hint #0x51" : "+r"(n) : : "cc");
}
int main(void) {
    spin(10);
    for (unsigned child = 1; child <= 2; child++) {
        const pid_t pid = fork();
        if (pid == 0) {
            for (int fd = 3; fd < 64; fd++)
                close(fd);
            spin(100 * child);
            spin(200 * child);
            __asm__ volatile("hint #0x50");
            _exit(0);
        }
        printf("%d\\n", (int)pid);
        waitpid(pid, NULL, 0);
    }
    printf("%d\\n", (int)getpid());
    spin(30);
    return 0;
}
"""


def test_forked_children_report_their_own(pi: Board, tmp_path: Path) -> None:
    program = build(tmp_path, "aarch64-linux-gnu", FORKS)
    with QemuRunner(pi) as place, place.counting() as log:
        first, second, parent = map(int, place.run(program).stdout.split())
        found = log.regions()
    assert [(c.pid, c.region, c.complete) for c in found] == [
        (parent, 1, True),
        *((child, n, n < 3) for child in (first, second) for n in (1, 2, 3)),
        (parent, 2, True),
    ]
    branches = [c.operations["branch"] for c in found if c.complete]
    assert branches == [10, 100, 200, 200, 400, 30]


THREADS = """
#include <pthread.h>
#include <stddef.h>
static void *work(void *none) { return none; }
int main(void) {
    pthread_t thread;
    __asm__ volatile("hint #0x50");
    pthread_create(&thread, NULL, work, NULL);
    pthread_join(thread, NULL);
    __asm__ volatile("hint #0x51");
    return 0;
}
"""


def test_the_environment_does_not_count(
    pi: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"""
        #include <stdlib.h>
        int main(int argc, char **argv, char **environment)
        {{
            __asm__ volatile("{START}");
            while (*environment != NULL)
                environment++;
            __asm__ volatile("{STOP}");
            return 0;
        }}
    """
    program = build(tmp_path, "aarch64-linux-gnu", source, "-O1")
    before = same(regions(pi, program))
    for number in range(50):
        monkeypatch.setenv(f"AOTGEN_TEST_{number}", "x" * 100)
    assert same(regions(pi, program)) == before


def test_what_cannot_be_counted(pi: Board, tmp_path: Path) -> None:
    program = build(tmp_path, "aarch64-linux-gnu", THREADS, "-pthread")
    with QemuRunner(pi) as place:
        with pytest.raises(BoardError, match="had 2 threads in the region to count; count with"):
            place.count(program)
        with pytest.raises(BoardError, match="ended 0 regions to count, not 1"):
            place.count(build(tmp_path, "aarch64-linux-gnu", a64("")))


@pytest.mark.parametrize(
    ("options", "version", "words"),
    [
        ("-g port", "8.2.0", r"was built without plugins; use .* \(not qemu-user-static\)"),
        ("-plugin file", "10.0.2", "QEMU 10 has another interface for plugins; use .*4.2 to 8.2"),
    ],
    ids=["static", "too new"],
)
def test_emulators_that_cannot_count(
    options: str, version: str, words: str, pi: Board, tmp_path: Path
) -> None:
    said = f"case $1 in -h) echo '{options}';; *) echo 'qemu-aarch64 version {version}';; esac"
    place = QemuRunner(replace(pi, emulator=(str(script(tmp_path, said)),)))
    with pytest.raises(ToolchainError, match=words), place.counting():
        pass


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"l2_ways": 0}, "1048576 bytes are no whole number of sets of 0 lines .* l2_ways"),
        ({"l1_bytes": 32100}, "32100 bytes are no whole number of sets of 2 lines of 64 .* l1_b"),
    ],
)
def test_caches_that_are_none(pi: Board, change: dict[str, int], words: str) -> None:
    place = QemuRunner(pi)
    cluster = replace(pi.clusters[0], **change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words), place.counting(cluster):
        pass


def test_building_the_plugin(pi: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = QemuRunner(pi).prefix[0]
    cluster = pi.clusters[0]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache, a=b"))
    code = (
        "import sys\nfrom pathlib import Path\nfrom aotgen.runner.qemu_plugin import plugin_words\n"
        "from aotgen.target.board import load_board\n"
        "print(plugin_words(sys.argv[1], load_board('rpi4').clusters[0], Path('log')))\n"
    )
    argv = [sys.executable, "-c", code, emulator]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate()[0] for process in both}
    assert len(said) == 1 and "cache,, a=b" in said.pop()
    files = sorted(p.name for p in (tmp_path / "cache, a=b/aotgen").iterdir())
    assert len(files) == 2 and files[1] == "insn_cost.lock"
    source = a64(f" {START}\n nop\n {STOP}")
    assert regions(pi, build(tmp_path, "aarch64-linux-gnu", source))[0].instructions == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"cc is not installed; .* apt-get install gcc"):
        plugin_words(emulator, cluster, tmp_path / "log")
    blocked = tmp_path / "program.s"
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(ToolchainError, match="Not a directory; set XDG_CACHE_HOME"):
        plugin_words(emulator, cluster, tmp_path / "log")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    require_tool("cmake", "qemu-aarch64", "aarch64-linux-gnu-gcc", "cc")
    folder = tmp_path_factory.mktemp("bench")
    return aotgen.compile(DIGITS, board="rpi4", output=folder / "digits")


def test_bench_tells_instructions(
    project: aotgen.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", str(project.folder), "--runner", "qemu", "--repeat", "1", "--number", "1"]
    assert call([*words, "--profile", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["modelled_core"] == "cortex-a72" and data["emulated"]
    assert 0 < data["instructions"] <= sum(data["operations"].values())
    assert 0 <= data["l2_misses"] <= data["l1_misses"]
    # Winograd's algorithm, F(4x4, 3x3), saves at most 3/4 of four multiplications in a vector.
    assert data["macs"] / 16 <= data["operations"]["fma"] <= data["macs"]
    layers = data["layers"]
    parts = sum(layer["instructions"] for layer in layers)
    # The trace hook of the counted layers reads a clock.
    assert 0 <= parts - data["instructions"] < 1000 * len(layers)
    milliseconds = sum(layer["modelled_ms"] for layer in layers)
    assert data["modelled_ms"] == pytest.approx(milliseconds, rel=0.1)
    assert call(words) == 0
    text = capsys.readouterr().out
    assert "instructions" in text and "modelled, not measured: " in text
    assert text.splitlines()[-1].startswith("Mean inference time")


def test_bench_without_counts(project: aotgen.Project, tmp_path: Path) -> None:
    """An emulator that cannot count still times."""
    plain = tmp_path / "plain"
    plain.mkdir()
    said = f'case $1 in -h) echo none;; *) exec {shutil.which("qemu-aarch64")} "$@";; esac'
    argv = (str(script(plain, said)), *project.board.emulator[1:])
    static = aotgen.Project(project.folder, replace(project.board, emulator=argv))
    result = static.bench(number=1, repeat=1, runner="qemu")
    assert result.cost is None and result.as_dict()["median_ms"] > 0
    assert "instructions not counted: " in result.warnings[0]


def test_bench_counts_without_a_model(pi32: Board, tmp_path: Path) -> None:
    """Also the marks of 32-bit ARM, which compilers make Thumb."""
    project = aotgen.compile(DIGITS, board="rpi3b-armv7", output=tmp_path / "digits")
    cost = project.bench(number=1, repeat=1, runner="qemu").cost
    assert cost is not None and cost.modelled_ms is None
    assert cost.counts.instructions > cost.counts.operations["fma"] > 10_000
    assert str(cost).endswith("no cost model for cortex-a53")


def test_boards_without_a_model(pi: Board) -> None:
    counts = Counts(1, 1, True, 1, 10, {}, 1000.0, 10, 1)
    with pytest.raises(UsageError, match="board rpi3b has no cost model for cortex-a53; measure"):
        modelled_seconds(counts, load_board("rpi3b"))
    rk3399 = load_board("rk3399")
    assert modelled_seconds(counts, rk3399) == pytest.approx((1000 + 10 * 4 + 12) / 1.8e9)
    with pytest.raises(UsageError, match="rk3399 has no cost model for cortex-a53"):
        modelled_seconds(counts, rk3399, rk3399.clusters[1])
