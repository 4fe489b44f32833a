/* What a test program on an emulated Cortex-M has beside the boards' start-up code (board_support/mps): newlib's own for
 * semihosting, which gives it arguments and files of the host, and what newlib lacks of POSIX. */
#include "aot_hal.h"
#include "posix.h"

#include <errno.h>
#include <malloc.h>
#include <stdint.h>

#define SYS_WRITEC 3u

void _start(void);
void start(void);

/* In place of that of startup.c: newlib clears .bss itself; .data is loaded to where it stays. */
void start(void)
{
    _start();
}

/* What is said of a fault. */
void aot_hal_put(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        register uint32_t r0 __asm__("r0") = SYS_WRITEC;
        register const uint8_t *r1 __asm__("r1") = (const uint8_t *)data + i;
        __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    }
}

/* newlib's own asks QEMU where the heap may end, which does not know all boards' memory. */
void *_sbrk(ptrdiff_t more)
{
    extern char end[], __stack[];
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
