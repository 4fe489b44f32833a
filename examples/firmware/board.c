/* board.c - what this firmware has anyway: vectors, start-up code, a serial line, a clock; as the
 * three functions of aot_hal.h it is all that the network's device library needs.
 */
#include "aot_core.h"
#include "aot_hal.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define UART_DATA         REGISTER(0x40004000u)
#define UART_STATE        REGISTER(0x40004004u) /* 1: it is sending, 2: it has received */
#define UART_CONTROL      REGISTER(0x40004008u)
#define UART_DIVIDER      REGISTER(0x40004010u)
#define COUNTER           REGISTER(0x40028018u) /* 25 MHz */
#define COUNTER_MHZ       25u
#define UART_IRQ          0u
#define IRQ_ENABLE        REGISTER(0xE000E100u)
#define IRQ_PENDING       REGISTER(0xE000E280u)
#define SYSTICK_CONTROL   REGISTER(0xE000E010u)
#define SYSTICK_RELOAD    REGISTER(0xE000E014u)
#define SYSTICK_VALUE     REGISTER(0xE000E018u)
#define SYSTEM_PENDING    REGISTER(0xE000ED04u)
#define WAIT_MS           50u

extern uint32_t data_load[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];
int main(void);
void Reset_Handler(void);
void start(void);
static void stop(void);

typedef union vector {
    uint32_t *stack;
    void (*handler)(void);
} vector;

__attribute__((section(".vectors"), used)) static const vector vectors[16] = {
    {.stack = stack_top}, {.handler = Reset_Handler}, {.handler = stop}, {.handler = stop},
    {.handler = stop},    {.handler = stop},          {.handler = stop}, {.handler = stop},
    {.handler = NULL},    {.handler = NULL},          {.handler = NULL}, {.handler = stop},
    {.handler = stop},    {.handler = NULL},          {.handler = stop}, {.handler = stop},
};

/* The FPU on before code that may use it, and what else a core has for speed: loop cache, branch
 * prediction, caches. aot_core_init comes with the network's device library; start-up code that
 * does this by itself leaves it out. */
__attribute__((naked, noreturn)) void Reset_Handler(void)
{
    __asm__ volatile("bl aot_core_init\n"
                     "b start\n");
}

__attribute__((noreturn, used)) void start(void)
{
    const uint32_t *from = data_load;
    for (uint32_t *to = data_start; to < data_end; to++)
        *to = *from++;
    for (uint32_t *to = bss_start; to < bss_end; to++)
        *to = 0;
    UART_DIVIDER = COUNTER_MHZ * 1000000u / 115200u;
    UART_CONTROL = 0xBu; /* send, receive, an interrupt for what is received */
    SYSTICK_RELOAD = COUNTER_MHZ * 1000u * WAIT_MS - 1u;
    IRQ_ENABLE = 1u << UART_IRQ;
    /* Interrupts only wake the core here: no handler runs. */
    __asm__ volatile("cpsid i" : : : "memory");
    (void)main();
    stop();
    for (;;) {
    }
}

static void stop(void)
{
    for (;;) {
    }
}

void aot_hal_put(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        while ((UART_STATE & 1u) != 0u) {
        }
        UART_DATA = ((const uint8_t *)data)[i];
    }
}

/* Sleeps until there is a byte, WAIT_MS at most. */
int aot_hal_get(void)
{
    if ((UART_STATE & 2u) == 0u) {
        SYSTICK_VALUE = 0u;
        SYSTICK_CONTROL = 7u;
        __asm__ volatile("dsb\n wfi" : : : "memory");
        SYSTICK_CONTROL = 0u;
        SYSTEM_PENDING = 1u << 25; /* the timer's interrupt is no longer wanted */
    }
    REGISTER(0x4000400Cu) = 2u; /* nor is the UART's */
    IRQ_PENDING = 1u << UART_IRQ;
    return (UART_STATE & 2u) != 0u ? (int)(UART_DATA & 0xFFu) : -1;
}

/* Calls must not be further apart than the counter's period of three minutes. */
uint32_t aot_hal_micros(void)
{
    static uint32_t last, rest, micros;
    const uint32_t now = COUNTER;
    rest += now - last;
    last = now;
    micros += rest / COUNTER_MHZ;
    rest %= COUNTER_MHZ;
    return micros;
}
