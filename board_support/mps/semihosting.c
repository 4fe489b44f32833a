/* semihosting.c - for a program that an emulator, or a debugger, runs to its end, in place of one
 * that stays on the board: it ends with the status of main.
 */
#include "mps.h"

#define SYS_EXIT_EXTENDED  0x20u
#define STOPPED_BY_PROGRAM 0x20026u

void board_end(int status)
{
    const uint32_t block[2] = {STOPPED_BY_PROGRAM, (uint32_t)status};
    register uint32_t r0 __asm__("r0") = SYS_EXIT_EXTENDED;
    register const uint32_t *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : : "r"(r0), "r"(r1) : "memory");
    for (;;) {
    }
}
