/* The start of a test program on an emulated Cortex-M: vectors, FPU on, then newlib's own start-up for semihosting, which
 * gives it arguments and files of the host. What newlib lacks of POSIX stands here too. */
#include "posix.h"

#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>

extern uint32_t __stack[];
void _start(void);
void Reset_Handler(void);
static void fault(void);

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    (void (*)(void))__stack, Reset_Handler, fault, fault, fault, fault, fault, fault, 0, 0, 0, fault, fault, 0, fault, fault};

__attribute__((naked, noreturn)) void Reset_Handler(void)
{
    __asm__ volatile("ldr r0, =0xE000ED88\n ldr r1, [r0]\n orr r1, r1, #(0xF << 20)\n str r1, [r0]\n dsb\n isb\n"
#if defined(__ARM_FEATURE_MVE)
                     "ldr r0, =0xE000ED14\n ldr r1, [r0]\n orr r1, r1, #(1 << 19)\n str r1, [r0]\n dsb\n isb\n"
#endif
                     "b _start\n");
}

static void write0(const char *text)
{
    register uint32_t r0 __asm__("r0") = 4u;
    register const char *r1 __asm__("r1") = text;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void fault(void)
{
    static const uint32_t block[2] = {0x20026u, 99u};
    write0("fault\n");
    register uint32_t r0 __asm__("r0") = 0x20u;
    register const uint32_t *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : : "r"(r0), "r"(r1) : "memory");
    for (;;) {
    }
}

/* newlib's own asks QEMU where the heap may end, which does not know all boards' memory. */
void *_sbrk(ptrdiff_t more)
{
    extern char end[];
    static char *at = end;
    char *const old = at;
    if ((uintptr_t)at + (uintptr_t)more > (uintptr_t)__stack - 0x100000u) {
        errno = ENOMEM;
        return (void *)-1;
    }
    at += more;
    return old;
}

int posix_memalign(void **p, size_t align, size_t size)
{
    *p = memalign(align, size);
    return *p == NULL ? ENOMEM : 0;
}

int clock_gettime(int clock, struct timespec *t)
{
    (void)clock;
    t->tv_sec = 0;
    t->tv_nsec = 0;
    return 0;
}
