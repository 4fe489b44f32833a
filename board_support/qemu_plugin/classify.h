/* classify.h - what an ARM instruction does, as far as its cost goes. */
#ifndef CLASSIFY_H
#define CLASSIFY_H

#include <stdbool.h>
#include <stdint.h>

/* The order of class_names in insn_cost.c. */
enum insn_class {
    FMA,          /* multiplies and multiply-adds of vectors of floats */
    DOT,          /* dot products and small matrix products */
    VECTOR_MUL,   /* multiplies and multiply-adds of vectors of integers */
    VECTOR_FLOAT, /* additions, comparisons and conversions of vectors of floats */
    VECTOR,       /* all else in vector registers */
    VECTOR_DIV,   /* divisions and roots of floats, vectors and scalars */
    FLOAT,        /* arithmetic of single floats, and what moves and converts them */
    VECTOR_LOAD,  /* of vector and floating-point registers */
    VECTOR_STORE, /* the same */
    LOAD,         /* of general registers */
    STORE,
    PREFETCH,
    ALU,
    MUL,
    DIV,
    BRANCH,
    SYSTEM, /* system registers, barriers, hints, calls of the kernel */
    CLASSES
};

enum insn_mark { NO_MARK, REGION_START, REGION_STOP };

struct insn {
    enum insn_class kind;
    unsigned operations;   /* registers that a load or store moves; else 1 */
    unsigned instructions; /* the same for LDM, STM, VLDM and VSTM; else 1 */
    enum insn_mark mark;
};

/* Loads and stores, prefetches excluded: QEMU does nothing for those. */
static inline bool accesses_memory(struct insn insn)
{
    return insn.kind >= VECTOR_LOAD && insn.kind <= STORE;
}

struct insn classify_a64(uint32_t word);

/* 32-bit ARM: a word of A32; of Thumb one halfword, or two of them with the first one on top. */
struct insn classify_a32(uint32_t word);
struct insn classify_t16(uint32_t halfword);
struct insn classify_t32(uint32_t word);

#endif
