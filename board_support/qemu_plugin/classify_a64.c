/* classify_a64.c - classes of A64 instructions.
 *
 * By the encoding tables of the Arm Architecture Reference Manual for A-profile (DDI 0487), chapter
 * C4. Encodings that the manual leaves unallocated get the class of their neighbours.
 */
#include "instruction.h"

#define HINT_START 0xd5032a1fu /* hint #0x50 */
#define HINT_STOP  0xd5032a3fu /* hint #0x51 */

/* Registers of LD1 to LD4 and ST1 to ST4 of whole vectors, by their opcode. */
static unsigned structure_registers(unsigned opcode)
{
    switch (opcode) {
    case 0x7:
        return 1;
    case 0x8:
    case 0xa:
        return 2;
    case 0x4:
    case 0x6:
        return 3;
    default:
        return 4;
    }
}

static struct insn load_or_store(uint32_t word)
{
    const bool vector = bits(word, 26, 26) != 0u, bit22 = bits(word, 22, 22) != 0u;
    const unsigned opc = bits(word, 23, 22), size = bits(word, 31, 30);
    switch (bits(word, 29, 28)) {
    case 0:
        if (vector && bits(word, 24, 24) == 0u) /* whole vectors */
            return transfer(bit22, true, structure_registers(bits(word, 15, 12)));
        if (vector) /* one lane, or one element to all lanes */
            return transfer(bit22, true, 1u + bits(word, 21, 21) + 2u * bits(word, 13, 13));
        return transfer(bit22, false, bits(word, 23, 23) == 0u ? 1u + bits(word, 21, 21) : 1u);
    case 1:
        if (bits(word, 24, 24) == 0u) /* literal */
            return !vector && size == 3u ? one(PREFETCH) : transfer(true, vector, 1u);
        return transfer(opc != 0u, false, 1u); /* ordered, unscaled */
    case 2:
        return transfer(bit22, vector, 2u);
    default:
        if (!vector && size == 3u && opc == 2u)
            return one(PREFETCH);
        if (!vector && bits(word, 24, 24) == 0u && bits(word, 21, 21) == 1u &&
            bits(word, 11, 10) == 0u)
            return transfer(true, false, 1u); /* atomic */
        return transfer(vector ? bit22 : opc != 0u, vector, 1u);
    }
}

static enum insn_class by_element(uint32_t word)
{
    const unsigned u = bits(word, 29, 29);
    switch (bits(word, 15, 12)) {
    case 0x1:
    case 0x5:
    case 0x9:
        return FMA;
    case 0x0:
    case 0x4:
        return u == 0u ? FMA : VECTOR_MUL; /* FMLAL, MLA */
    case 0x3:
    case 0x7:
        return u == 1u ? FMA : VECTOR_MUL; /* FCMLA, SQDMLAL */
    case 0x8:
    case 0xc:
        return u == 1u ? FMA : VECTOR_MUL; /* FMLAL2, MUL and SQDMULH */
    case 0xe:
        return DOT;
    case 0xf:
        return u == 0u ? DOT : VECTOR_MUL; /* USDOT, SQRDMLSH */
    default:
        return VECTOR_MUL;
    }
}

static enum insn_class three_same(uint32_t word)
{
    const unsigned u = bits(word, 29, 29), high = bits(word, 23, 23);
    switch (bits(word, 15, 11)) {
    case 0x12: /* MLA */
    case 0x13: /* MUL */
    case 0x16: /* SQDMULH */
        return VECTOR_MUL;
    case 0x19: /* FMLA, FMLAL2 */
        return FMA;
    case 0x1b: /* FMULX, FMUL */
        return high == 0u ? FMA : VECTOR_FLOAT;
    case 0x1d: /* FMLAL */
        return u == 0u ? FMA : VECTOR_FLOAT;
    case 0x1f: /* FRECPS, FDIV */
        return u == 0u ? FMA : high == 0u ? VECTOR_DIV : VECTOR_FLOAT;
    default:
        return bits(word, 15, 11) >= 0x18u ? VECTOR_FLOAT : VECTOR;
    }
}

static enum insn_class three_same_half(uint32_t word)
{
    const unsigned u = bits(word, 29, 29), high = bits(word, 23, 23);
    switch (bits(word, 13, 11)) {
    case 1:
        return u == 0u ? FMA : VECTOR_FLOAT;
    case 3:
        return high == 0u ? FMA : VECTOR_FLOAT;
    case 7:
        return u == 0u ? FMA : high == 0u ? VECTOR_DIV : VECTOR_FLOAT;
    default:
        return VECTOR_FLOAT;
    }
}

/* Of one operand: two registers, or all lanes of one. */
static enum insn_class one_operand(uint32_t word)
{
    const unsigned opcode = bits(word, 16, 12);
    if ((word & 0x3fbffc00u) == 0x2ea1f800u || (word & 0x3ffffc00u) == 0x2ef9f800u)
        return VECTOR_DIV;           /* FSQRT */
    if (bits(word, 21, 17) == 0x18u) /* FMAXNMV, FADDP, FMAXV */
        return opcode == 0xcu || opcode == 0xdu || opcode == 0xfu ? VECTOR_FLOAT : VECTOR;
    if (opcode >= 0xcu && opcode <= 0xeu) /* FCMGT and others with 0 */
        return bits(word, 23, 23) == 1u ? VECTOR_FLOAT : VECTOR;
    return opcode >= 0x16u ? VECTOR_FLOAT : VECTOR;
}

static enum insn_class three_same_extra(uint32_t word)
{
    switch (bits(word, 14, 11)) {
    case 0x0:
    case 0x1:
        return VECTOR_MUL; /* SQRDMLAH */
    case 0x2:
    case 0x3:
    case 0x4:
    case 0x5:
    case 0xd:
    case 0xf:
        return DOT; /* and SMMLA, BFMMLA, BFDOT */
    default:
        return FMA; /* FCMLA, FCADD */
    }
}

static enum insn_class three_different(uint32_t word)
{
    switch (bits(word, 15, 12)) {
    case 0x8:
    case 0x9:
    case 0xa:
    case 0xb:
    case 0xc:
    case 0xd:
    case 0xe:
        return VECTOR_MUL;
    default:
        return VECTOR;
    }
}

/* Vectors, and the scalar forms of the same instructions. */
static enum insn_class simd(uint32_t word)
{
    if (bits(word, 24, 24) == 1u)
        return bits(word, 10, 10) == 0u ? by_element(word) : VECTOR;
    if (bits(word, 21, 21) == 1u) {
        if (bits(word, 10, 10) == 1u)
            return three_same(word);
        if (bits(word, 11, 10) == 0u)
            return three_different(word);
        return one_operand(word);
    }
    if (bits(word, 15, 15) == 1u && bits(word, 10, 10) == 1u)
        return three_same_extra(word);
    if (bits(word, 22, 22) == 1u && bits(word, 15, 14) == 0u && bits(word, 10, 10) == 1u)
        return three_same_half(word);
    return VECTOR;
}

static enum insn_class scalar_float(uint32_t word)
{
    if ((word & 0xff20fc00u) == 0x1e201800u || (word & 0xff3ffc00u) == 0x1e21c000u)
        return VECTOR_DIV; /* FDIV, FSQRT */
    return FLOAT;
}

struct insn classify_a64(uint32_t word)
{
    const unsigned group = bits(word, 28, 25);
    if ((group & 5u) == 4u)
        return load_or_store(word);
    if ((group & 14u) == 8u)
        return one(ALU);
    if ((group & 14u) == 10u) {
        struct insn insn = one(bits(word, 31, 25) == 0x6au ? SYSTEM : BRANCH);
        insn.mark = word == HINT_START ? REGION_START : word == HINT_STOP ? REGION_STOP : NO_MARK;
        return insn;
    }
    if ((group & 7u) == 5u) {
        if (bits(word, 28, 24) == 0x1bu)
            return one(MUL);
        return one((word & 0x7fe0f800u) == 0x1ac00800u ? DIV : ALU);
    }
    if ((group & 7u) == 7u) {
        const unsigned high = bits(word, 31, 24);
        if ((high & 0x9eu) == 0x0eu || (high & 0xdeu) == 0x5eu)
            return one(simd(word));
        return one(scalar_float(word));
    }
    return one(group == 2u ? VECTOR : SYSTEM); /* SVE; reserved */
}
