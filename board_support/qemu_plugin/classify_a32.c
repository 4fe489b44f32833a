/* classify_a32.c - classes of 32-bit ARM instructions, A32 and Thumb.
 *
 * By the encoding tables of the Arm Architecture Reference Manual for A-profile (DDI 0487),
 * chapters F3 and F4. An instruction whose condition fails counts as executed. LDM, STM, VLDM and
 * VSTM (PUSH and POP among them) count once for each register.
 */
#include "instruction.h"

/* Hints that do nothing; their numbers are those of A64. */
#define A32_START 0xe320f050u
#define A32_STOP  0xe320f051u
#define T32_START 0xf3af8050u
#define T32_STOP  0xf3af8051u

#define PC 15u

static unsigned ones(unsigned mask)
{
    unsigned count = 0;
    for (; mask != 0u; mask &= mask - 1u)
        count++;
    return count;
}

static struct insn multiple(bool load, bool vector, unsigned registers)
{
    struct insn insn = transfer(load, vector, registers > 0u ? registers : 1u);
    insn.instructions = insn.operations;
    return insn;
}

static struct insn hint(uint32_t word, uint32_t start, uint32_t stop)
{
    struct insn insn = one(SYSTEM);
    insn.mark = word == start ? REGION_START : word == stop ? REGION_STOP : NO_MARK;
    return insn;
}

/* VLDn and VSTn: doubleword registers that move. */
static struct insn structures(uint32_t word)
{
    static const unsigned char whole[16] = {4, 4, 4, 4, 3, 3, 3, 1, 2, 2, 2, 1, 1, 1, 1, 1};
    const bool load = bits(word, 21, 21) != 0u;
    if (bits(word, 23, 23) == 0u)
        return transfer(load, true, whole[bits(word, 11, 8)]);
    return transfer(load, true, 1u + bits(word, 9, 8)); /* a lane of each */
}

static enum insn_class neon_three_same(uint32_t word)
{
    const unsigned u = bits(word, 24, 24), low = bits(word, 4, 4), size1 = bits(word, 21, 21);
    switch (bits(word, 11, 8)) {
    case 0x9: /* VMLA, VMUL of integers */
        return VECTOR_MUL;
    case 0xb: /* VQDMULH; VPADD, VQRDMLAH */
        return low == 0u ? VECTOR_MUL : VECTOR;
    case 0xc: /* VFMA; VQRDMLSH */
        return low == 0u ? VECTOR : u == 0u ? FMA : VECTOR_MUL;
    case 0xd: /* VMLA, VMUL; VADD, VABD of floats */
        return low == 1u && (u == 0u || size1 == 0u) ? FMA : VECTOR_FLOAT;
    case 0xe: /* VCEQ, VCGE */
        return VECTOR_FLOAT;
    case 0xf: /* VRECPS, VRSQRTS; VMAX */
        return low == 1u && u == 0u ? FMA : VECTOR_FLOAT;
    default:
        return VECTOR;
    }
}

static enum insn_class neon(uint32_t word)
{
    if (bits(word, 23, 23) == 0u)
        return neon_three_same(word);
    if (bits(word, 4, 4) == 0u && bits(word, 21, 20) == 3u) { /* VEXT, one operand */
        const bool converts =
            bits(word, 24, 24) == 1u && bits(word, 17, 16) == 3u && bits(word, 11, 10) == 1u;
        return converts ? VECTOR_FLOAT : VECTOR;
    }
    if (bits(word, 4, 4) == 1u)
        return VECTOR; /* shifts, moves of constants */
    if (bits(word, 6, 6) == 0u)
        return bits(word, 11, 8) >= 8u && bits(word, 11, 8) != 15u ? VECTOR_MUL : VECTOR;
    switch (bits(word, 11, 8)) { /* by scalar */
    case 0x1:
    case 0x5:
    case 0x9:
        return FMA;
    default:
        return VECTOR_MUL;
    }
}

/* The space of coprocessors 8 to 15: VFP and newer SIMD; alike in A32 and Thumb. */
static struct insn coprocessor(uint32_t word)
{
    const bool unconditional = bits(word, 31, 28) == 15u;
    const bool floats = bits(word, 11, 9) == 5u;
    if (unconditional && bits(word, 11, 9) == 6u)
        return one(DOT); /* VSDOT, VUDOT, VUSDOT, VSMMLA */
    if (unconditional && bits(word, 11, 9) == 4u)
        return one(FMA); /* VCMLA, VFMAL */
    if (unconditional)
        return one(floats ? FLOAT : SYSTEM); /* VSEL, VRINT */
    if (bits(word, 25, 24) == 3u)
        return one(SYSTEM); /* SVC */
    if (!floats)
        return one(SYSTEM);
    if (bits(word, 25, 25) == 0u) {
        const bool load = bits(word, 20, 20) != 0u;
        if ((word & 0x0fe00000u) == 0x0c400000u)
            return one(FLOAT); /* VMOV of two general registers */
        if (bits(word, 24, 24) == 1u && bits(word, 21, 21) == 0u)
            return transfer(load, true, 1u);
        return multiple(load, true, bits(word, 7, 0) / (bits(word, 8, 8) == 1u ? 2u : 1u));
    }
    if (bits(word, 4, 4) == 0u) {
        if ((word & 0x0fb00040u) == 0x0e800000u)
            return one(VECTOR_DIV); /* VDIV */
        if ((word & 0x0fbf00c0u) == 0x0eb100c0u)
            return one(VECTOR_DIV); /* VSQRT */
    }
    return one(FLOAT);
}

static struct insn a32_unconditional(uint32_t word)
{
    if (bits(word, 27, 25) == 1u)
        return one(neon(word));
    if (bits(word, 27, 24) == 4u && bits(word, 20, 20) == 0u)
        return structures(word);
    if ((word & 0x0d300000u) == 0x05100000u)
        return one(PREFETCH);
    if (bits(word, 27, 25) == 5u)
        return one(BRANCH); /* BLX */
    if (bits(word, 27, 26) == 3u)
        return coprocessor(word);
    return one(SYSTEM);
}

static struct insn a32_multiply_or_extra_access(uint32_t word)
{
    const unsigned op = bits(word, 6, 5), load = bits(word, 20, 20);
    if (op != 0u) { /* halfwords, doublewords */
        if (load == 0u && op >= 2u)
            return transfer(op == 2u, false, 2u);
        return transfer(load != 0u, false, 1u);
    }
    if (bits(word, 24, 24) == 0u)
        return one(MUL);
    return transfer(load != 0u, false, bits(word, 22, 21) == 1u ? 2u : 1u); /* exclusive */
}

static struct insn a32_data(uint32_t word)
{
    const unsigned op = bits(word, 24, 21);
    const bool test = op >= 8u && op <= 11u;
    if (bits(word, 25, 25) == 0u && (word & 0x90u) == 0x90u)
        return a32_multiply_or_extra_access(word);
    if (test && bits(word, 20, 20) == 0u) { /* miscellaneous */
        if (bits(word, 25, 25) == 1u) {
            if ((op & 1u) == 0u)
                return one(ALU); /* MOVW, MOVT */
            return hint(word, A32_START, A32_STOP);
        }
        if ((word & 0x0fffffd0u) == 0x012fff10u)
            return one(BRANCH);
        if (bits(word, 7, 7) == 1u)
            return one(MUL); /* of halfwords */
        return one((word & 0xf0u) == 0x10u || (word & 0xf0u) == 0x50u ? ALU : SYSTEM);
    }
    return one(!test && bits(word, 15, 12) == PC ? BRANCH : ALU);
}

static struct insn a32_media(uint32_t word)
{
    if (bits(word, 24, 23) != 2u)
        return one(ALU);
    return one(bits(word, 22, 20) == 1u || bits(word, 22, 20) == 3u ? DIV : MUL);
}

struct insn classify_a32(uint32_t word)
{
    if (bits(word, 31, 28) == 15u)
        return a32_unconditional(word);
    const bool load = bits(word, 20, 20) != 0u;
    switch (bits(word, 27, 25)) {
    case 0:
    case 1:
        return a32_data(word);
    case 2:
        return transfer(load, false, 1u);
    case 3:
        return bits(word, 4, 4) == 0u ? transfer(load, false, 1u) : a32_media(word);
    case 4:
        return multiple(load, false, ones(bits(word, 15, 0)));
    case 5:
        return one(BRANCH);
    default:
        return coprocessor(word);
    }
}

struct insn classify_t16(uint32_t halfword)
{
    const unsigned top = bits(halfword, 15, 11);
    const bool load = bits(halfword, 11, 11) != 0u;
    if (top < 8u)
        return one(ALU);
    if (top == 8u) {
        if ((halfword & 0xff00u) == 0x4700u)
            return one(BRANCH);
        return one((halfword & 0xffc0u) == 0x4340u ? MUL : ALU);
    }
    if (top == 9u)
        return transfer(true, false, 1u);
    if (top < 12u)
        return transfer(bits(halfword, 11, 9) >= 3u, false, 1u);
    if (top < 20u)
        return transfer(load, false, 1u);
    if (top < 22u)
        return one(ALU);
    if (top < 24u) {
        if ((halfword & 0xf600u) == 0xb400u)
            return multiple(load, false, ones(bits(halfword, 8, 0)));
        if ((halfword & 0xf500u) == 0xb100u)
            return one(BRANCH);
        return one((halfword & 0xff0fu) == 0xbf00u || (halfword & 0xff00u) == 0xbe00u ? SYSTEM
                                                                                      : ALU);
    }
    if (top < 26u)
        return multiple(load, false, ones(bits(halfword, 7, 0)));
    return one((halfword & 0xfe00u) == 0xde00u ? SYSTEM : BRANCH);
}

static struct insn t32_multiple_or_dual(uint32_t word)
{
    const bool load = bits(word, 20, 20) != 0u;
    if (bits(word, 25, 25) == 1u)
        return one(ALU);
    if (bits(word, 22, 22) == 0u)
        return multiple(load, false, ones(bits(word, 15, 0)));
    if ((word & 0xfff000e0u) == 0xe8d00000u)
        return one(BRANCH); /* TBB */
    const bool dual = bits(word, 24, 24) == 1u || bits(word, 21, 21) == 1u;
    return transfer(load, false, dual ? 2u : 1u);
}

static struct insn t32_immediate_or_branch(uint32_t word)
{
    if (bits(word, 15, 15) == 0u)
        return one(ALU);
    if ((word & 0xfb80d000u) == 0xf3808000u)
        return hint(word, T32_START, T32_STOP); /* system registers, barriers, hints */
    return one(BRANCH);
}

static struct insn t32_single(uint32_t word)
{
    if (bits(word, 25, 24) == 3u) {
        if (bits(word, 23, 23) == 0u)
            return one(MUL);
        return one((word & 0xffd0f0f0u) == 0xfb90f0f0u ? DIV : MUL);
    }
    if (bits(word, 25, 24) == 2u)
        return one(ALU);
    const bool load = bits(word, 20, 20) != 0u;
    if (load && bits(word, 15, 12) == PC && bits(word, 22, 21) != 2u)
        return one(PREFETCH);
    return transfer(load, false, 1u);
}

struct insn classify_t32(uint32_t word)
{
    if (bits(word, 27, 24) == 15u && bits(word, 31, 29) == 7u) /* its U lies elsewhere in A32 */
        return one(neon(0xf2000000u | (bits(word, 28, 28) << 24) | (word & 0xffffffu)));
    if (bits(word, 31, 24) == 0xf9u && bits(word, 20, 20) == 0u)
        return structures(word);
    switch (bits(word, 28, 26)) {
    case 2:
        return t32_multiple_or_dual(word);
    case 4:
    case 5:
        return t32_immediate_or_branch(word);
    case 6:
        return t32_single(word);
    default:
        return coprocessor(word);
    }
}
