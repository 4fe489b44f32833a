/* A firmware for tests of board_support: does what a byte from the serial line says. */
#include "aot_hal.h"

#include <string.h>

int main(void);

static void say(const char *text)
{
    aot_hal_put(text, strlen(text));
}

static void number(uint32_t value)
{
    char text[10];
    size_t at = sizeof text;
    do {
        text[--at] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value != 0u);
    aot_hal_put(text + at, sizeof text - at);
    say(" ");
}

static int deep(volatile int n)
{
    volatile char block[256];
    block[0] = (char)n;
    return n == 0 ? 0 : deep(n - 1) + block[0];
}

__attribute__((section(".noinit"))) static uint32_t kept;
static uint32_t initialised = 42u, cleared;

static void constructor(void) __attribute__((constructor));
static void constructor(void)
{
    cleared += 7u;
}

int main(void)
{
    say("boot ");
    for (;;) {
        const int byte = aot_hal_get();
        switch (byte) {
        case -1:
            break;
        case 'm': /* memory: .data, .bss after the constructors, what a reset keeps */
            number(initialised);
            number(cleared);
            number(kept++);
            initialised++;
            break;
        case 'k':
            kept = 0u;
            break;
        case 'c': { /* the counter over 100000 times the same */
            const uint32_t start = aot_hal_cycles();
            for (volatile int i = 0; i < 100000; i++) {
            }
            number(aot_hal_cycles() - start);
            break;
        }
        case 't': { /* a tenth of a second by one clock, by the other */
            const uint32_t micros = aot_hal_micros(), cycles = aot_hal_cycles();
            while (aot_hal_micros() - micros < 100000u) {
            }
            number((aot_hal_cycles() - cycles) / (aot_hal_cycles_hz() / 1000u));
            break;
        }
        case 'p': /* the stack painted, then 20 calls of 256 bytes and more */
            aot_hal_stack_paint();
            number(aot_hal_stack_size());
            number(aot_hal_stack_used());
            (void)deep(20);
            number(aot_hal_stack_used());
            break;
        case 'o':
            (void)deep(100000);
            break;
        case 'u':
            __asm__ volatile("udf #1");
            break;
        case 'b':
            *(volatile uint32_t *)0xF0000000u = 1u;
            break;
        case 'f': { /* the FPU, or the vector unit where it does floats */
            volatile float x = 1.5f;
            number((uint32_t)(x * 4.0f));
            break;
        }
        case 'r':
            aot_hal_reset();
            break;
        default: {
            const uint8_t back = (uint8_t)byte;
            aot_hal_put(&back, 1);
        }
        }
    }
}
