/* startup.c - from reset to main on Arm's MPS2 and MPS3 boards: vectors, FPU, vector unit and
 * caches, .data and .bss, the painted stack; and what happens at a fault.
 *
 * What is weak here a program may have of its own: `start`, where a C library brings start-up code,
 * the handlers of mps.h, `board_end` and aot_hal_fault.
 */
#include "aot_core.h"
#include "aot_hal.h"
#include "mps.h"

#include <stddef.h>

#define SYSTEM_VECTORS 16
#define PAINT          0x5AA55AA5u
/* Words below a caller's stack pointer that painting leaves alone: its own frame. */
#define PAINT_GAP 32

#define AIRCR       0xE000ED0Cu
#define AIRCR_RESET 0x05FA0004u /* the key and SYSRESETREQ */
#define CFSR        0xE000ED28u
#define NMI         2u /* number of the exception: the watchdog's alone */

#if defined(__ARM_ARCH_8M_MAIN__) || defined(__ARM_ARCH_8_1M_MAIN__)
#    define HAS_STACK_LIMIT 1
#else
#    define HAS_STACK_LIMIT  0
/* The memory protection unit of older cores, ARMv7-M's. */
#    define MPU_CONTROL      0xE000ED94u
#    define MPU_CONTROL_ON   0x5u /* everything else as without it, and not in fault handlers */
#    define MPU_REGION       0xE000ED98u
#    define MPU_BASE         0xE000ED9Cu
#    define MPU_ATTRIBUTES   0xE000EDA0u
#    define GUARD_BYTES      0x10000u
#    define GUARD_ATTRIBUTES (0x10000000u | 15u << 1 | 1u) /* no access, 2^(15 + 1) bytes, on */
#endif

extern uint32_t __data_load[], __data_start[], __data_end[], __bss_start[], __bss_end[];
typedef void (*initializer)(void);
extern initializer __init_array_start[], __init_array_end[];

int main(void);
void Reset_Handler(void);
void start(void);
void report_fault(const uint32_t *frame);
void unexpected(void);
static void fault_handler(void);

/* Where there is no hardware layer that has them. */
void uart_received(void) __attribute__((weak, alias("unexpected")));
void tick(void) __attribute__((weak, alias("unexpected")));

typedef union vector {
    uint32_t *stack;
    void (*handler)(void);
} vector;

__attribute__((section(".vectors"),
               used)) static const vector vectors[SYSTEM_VECTORS + BOARD_UART_RX_IRQ + 1] = {
    [0] = {.stack = __stack_top},
    [1] = {.handler = Reset_Handler},
    [2] = {.handler = fault_handler}, /* NMI */
    [3] = {.handler = fault_handler}, /* HardFault; the next three are off and become it */
    [4] = {.handler = fault_handler},
    [5] = {.handler = fault_handler},
    [6] = {.handler = fault_handler},
    [7] = {.handler = fault_handler}, /* SecureFault */
    [11] = {.handler = unexpected},
    [12] = {.handler = unexpected},
    [14] = {.handler = unexpected},
    [15] = {.handler = tick},
    [SYSTEM_VECTORS + BOARD_UART_RX_IRQ] = {.handler = uart_received},
};

/* The stack, and its limit where the core checks it; FPU, vector unit and caches before any other
 * C: a compiler may use them anywhere. */
__attribute__((naked, noreturn)) void Reset_Handler(void)
{
    __asm__ volatile(
#if HAS_STACK_LIMIT
        "ldr r0, =__stack_bottom\n"
        "msr msplim, r0\n"
#endif
        "ldr r0, =__stack_top\n"
        "mov sp, r0\n"
        "bl aot_core_init\n"
        "b start\n");
}

__attribute__((weak, noreturn, used)) void start(void)
{
    const uint32_t *from = __data_load;
    for (uint32_t *to = __data_start; to < __data_end; to++)
        *to = *from++;
    for (uint32_t *to = __bss_start; to < __bss_end; to++)
        *to = 0;
    for (initializer *each = __init_array_start; each < __init_array_end; each++)
        (*each)();
    aot_hal_stack_paint();
#if !HAS_STACK_LIMIT
    /* What lies below the stack may not be touched. */
    REGISTER(MPU_REGION) = 0u;
    REGISTER(MPU_BASE) = (uint32_t)__stack_bottom - GUARD_BYTES;
    REGISTER(MPU_ATTRIBUTES) = GUARD_ATTRIBUTES;
    REGISTER(MPU_CONTROL) = MPU_CONTROL_ON;
    __asm__ volatile("dsb\n isb" : : : "memory");
#endif
    board_init();
    board_end(main());
    for (;;) {
    }
}

__attribute__((weak)) void board_init(void) {}

__attribute__((weak)) void board_end(int status)
{
    (void)status;
    aot_hal_reset();
}

uint32_t aot_hal_stack_size(void)
{
    return (uint32_t)((const char *)__stack_top - (const char *)__stack_bottom);
}

uint32_t aot_hal_stack_used(void)
{
    const uint32_t *lowest = __stack_bottom;
    while (lowest < __stack_top && *lowest == PAINT)
        lowest++;
    return (uint32_t)((const char *)__stack_top - (const char *)lowest);
}

void aot_hal_stack_paint(void)
{
    uint32_t *here;
    __asm__ volatile("mov %0, sp" : "=r"(here));
    /* Volatile: a call of memset would need stack where we paint. */
    for (volatile uint32_t *each = __stack_bottom; each < here - PAINT_GAP; each++)
        *each = PAINT;
}

void aot_hal_reset(void)
{
    aot_core_clean();
    __asm__ volatile("dsb" : : : "memory");
    REGISTER(AIRCR) = AIRCR_RESET;
    __asm__ volatile("dsb" : : : "memory");
    for (;;) {
    }
}

/* The handler works on a fresh stack: the old one may have been the fault. */
__attribute__((naked)) static void fault_handler(void)
{
    __asm__ volatile("cpsid i\n"
                     "mrs r0, msp\n"
                     "ldr r1, =__stack_top\n"
                     "mov sp, r1\n"
                     "b report_fault\n");
}

void unexpected(void)
{
    aot_hal_fault("unexpected exception", 0u, 0u);
    board_end(BOARD_FAULTED);
}

/* The first fault that a status register (CFSR) tells of, in words. */
static const char *fault_name(uint32_t status)
{
    static const struct {
        uint32_t bits;
        const char *name;
    } names[] = {
        {0x0000001Au | 0x00001000u | 0x00100000u, "stack overflow"}, /* nothing else is protected */
        {0x00000001u, "jump to where no code is"},
        {0x0000FF00u, "bus fault"},
        {0x00010000u, "undefined instruction"},
        {0x00080000u, "coprocessor (FPU) that is off"},
        {0x01000000u, "unaligned access"},
        {0x02000000u, "division by zero"},
        {0xFFFF0000u, "usage fault"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((status & names[i].bits) != 0u)
            return names[i].name;
    return "hard fault";
}

/* `frame`: where the core has put r0-r3, r12, lr, pc and xpsr, unless it had no stack for them. */
__attribute__((noreturn, used)) void report_fault(const uint32_t *frame)
{
    const uint32_t status = REGISTER(CFSR);
    uint32_t exception;
    __asm__ volatile("mrs %0, ipsr" : "=r"(exception));
    const int saved = frame >= __stack_bottom && frame + 8 <= __stack_top;
    const char *what = saved ? fault_name(status) : "stack overflow";
    aot_hal_fault(exception == NMI ? "watchdog" : what, saved ? frame[6] : 0u, status);
    board_end(BOARD_FAULTED);
    for (;;) {
    }
}

/* One line of text, for firmware that has no report of its own. */
__attribute__((weak)) void aot_hal_fault(const char *what, uint32_t pc, uint32_t status)
{
    char line[] = " at 00000000, CFSR 00000000\r\n";
    size_t size = 0;
    while (what[size] != '\0')
        size++;
    for (size_t i = 0; i < 8; i++) {
        line[4 + i] = "0123456789abcdef"[(pc >> (28u - 4u * i)) & 15u];
        line[19 + i] = "0123456789abcdef"[(status >> (28u - 4u * i)) & 15u];
    }
    aot_hal_put(what, size);
    aot_hal_put(line, sizeof line - 1);
}
