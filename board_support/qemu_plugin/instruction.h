/* instruction.h - what the classifiers of A64 and of 32-bit ARM build their answers from. */
#ifndef INSTRUCTION_H
#define INSTRUCTION_H

#include "classify.h"

static inline unsigned bits(uint32_t word, int high, int low)
{
    return (word >> low) & ((1u << (high - low + 1)) - 1u);
}

static inline struct insn one(enum insn_class kind)
{
    const struct insn insn = {kind, 1u, 1u, NO_MARK};
    return insn;
}

static inline struct insn transfer(bool load, bool vector, unsigned registers)
{
    struct insn insn = one(load ? LOAD : STORE);
    if (vector)
        insn.kind = load ? VECTOR_LOAD : VECTOR_STORE;
    insn.operations = registers;
    return insn;
}

#endif
