/* hal.c - the hardware layer of aot_hal.h on Arm's MPS2 and MPS3 boards: a CMSDK UART whose
 * received bytes an interrupt collects, FPGAIO's counter, and a CMSDK watchdog.
 */
#include "aot_hal.h"
#include "mps.h"

#define BAUD 115200u

#define UART_DATA                 REGISTER(BOARD_UART_ADDRESS)
#define UART_STATE                REGISTER(BOARD_UART_ADDRESS + 0x04u)
#define UART_CONTROL              REGISTER(BOARD_UART_ADDRESS + 0x08u)
#define UART_INTERRUPT            REGISTER(BOARD_UART_ADDRESS + 0x0Cu)
#define UART_DIVIDER              REGISTER(BOARD_UART_ADDRESS + 0x10u)
#define STATE_SENDING             0x1u
#define STATE_RECEIVED            0x2u
#define CONTROL_SEND              0x1u
#define CONTROL_RECEIVE           0x2u
#define CONTROL_RECEIVE_INTERRUPT 0x8u
#define INTERRUPT_RECEIVE         0x2u

#define COUNTER           REGISTER(BOARD_COUNTER_ADDRESS)
#define COUNTER_PRESCALER REGISTER(BOARD_COUNTER_ADDRESS + 0x04u)

#define WATCHDOG_LOAD       REGISTER(BOARD_WATCHDOG_ADDRESS)
#define WATCHDOG_CONTROL    REGISTER(BOARD_WATCHDOG_ADDRESS + 0x08u)
#define WATCHDOG_CLEAR      REGISTER(BOARD_WATCHDOG_ADDRESS + 0x0Cu)
#define WATCHDOG_LOCK       REGISTER(BOARD_WATCHDOG_ADDRESS + 0xC00u)
#define WATCHDOG_KEY        0x1ACCE551u
#define WATCHDOG_INTERRUPTS 0x1u /* it counts; the first time it ends is an NMI */
#define WATCHDOG_RESETS     0x2u /* the second a reset */

#define IRQ_ENABLE REGISTER(0xE000E100u + 4u * (BOARD_UART_RX_IRQ / 32u))
#define IRQ_BIT    (1u << (BOARD_UART_RX_IRQ % 32u))

#define SYSTICK_CONTROL REGISTER(0xE000E010u)
#define SYSTICK_RELOAD  REGISTER(0xE000E014u)
#define SYSTICK_VALUE   REGISTER(0xE000E018u)
#define SYSTICK_ON      0x7u /* it counts, interrupts, by the core's clock */
#define WAITS_A_SECOND  20u

/* Bytes that wait for aot_hal_get, a power of two. When they are as many the rest waits in the
 * UART. */
#define QUEUE_BYTES 256u

static volatile uint8_t queue[QUEUE_BYTES];
static volatile uint32_t queue_in, queue_out;

void board_init(void)
{
    COUNTER_PRESCALER = 0u;
    UART_DIVIDER = BOARD_UART_CLOCK_HZ / BAUD;
    UART_CONTROL = CONTROL_SEND | CONTROL_RECEIVE | CONTROL_RECEIVE_INTERRUPT;
    IRQ_ENABLE = IRQ_BIT;
    __asm__ volatile("cpsie i" : : : "memory");
}

void uart_received(void)
{
    UART_INTERRUPT = INTERRUPT_RECEIVE;
    if (queue_in - queue_out == QUEUE_BYTES) {
        UART_CONTROL = CONTROL_SEND | CONTROL_RECEIVE;
        return;
    }
    if ((UART_STATE & STATE_RECEIVED) != 0u) {
        queue[queue_in % QUEUE_BYTES] = (uint8_t)UART_DATA;
        queue_in++;
    }
}

/* The end of a wait: all it does is wake the core. */
void tick(void) {}

/* Sleeps until a byte is there or a twentieth of a second is over. The timer runs only here: it
 * would count as instructions of what is measured. */
static void wait_for_byte(void)
{
    SYSTICK_RELOAD = BOARD_SYSTICK_HZ / WAITS_A_SECOND - 1u;
    SYSTICK_VALUE = 0u;
    SYSTICK_CONTROL = SYSTICK_ON;
    /* With interrupts off none can slip in between the test and the sleep; it ends the sleep all
     * the same. */
    __asm__ volatile("cpsid i" : : : "memory");
    if (queue_in == queue_out)
        __asm__ volatile("dsb\n wfi" : : : "memory");
    __asm__ volatile("cpsie i\n isb" : : : "memory");
    SYSTICK_CONTROL = 0u;
}

int aot_hal_get(void)
{
    if (queue_in == queue_out)
        wait_for_byte();
    if (queue_in == queue_out) {
        (void)aot_hal_micros();
        return -1;
    }
    const int byte = queue[queue_out % QUEUE_BYTES];
    queue_out++;
    if ((UART_CONTROL & CONTROL_RECEIVE_INTERRUPT) == 0u) {
        /* The byte that found no room has had its interrupt. */
        __asm__ volatile("cpsid i" : : : "memory");
        UART_CONTROL = CONTROL_SEND | CONTROL_RECEIVE | CONTROL_RECEIVE_INTERRUPT;
        uart_received();
        __asm__ volatile("cpsie i" : : : "memory");
    }
    return byte;
}

void aot_hal_put(const void *data, size_t size)
{
    const uint8_t *const bytes = (const uint8_t *)data;
    for (size_t i = 0; i < size; i++) {
        while ((UART_STATE & STATE_SENDING) != 0u) {
        }
        UART_DATA = bytes[i];
    }
    /* A reset would lose the last one. */
    while ((UART_STATE & STATE_SENDING) != 0u) {
    }
}

void aot_hal_watchdog(uint32_t milliseconds)
{
    const uint64_t ticks = (uint64_t)milliseconds * BOARD_WATCHDOG_HZ / 1000u;
    WATCHDOG_LOCK = WATCHDOG_KEY;
    WATCHDOG_CONTROL = 0u;
    WATCHDOG_CLEAR = 1u;
    if (milliseconds != 0u) {
        WATCHDOG_LOAD = ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks;
        WATCHDOG_CONTROL = WATCHDOG_INTERRUPTS | WATCHDOG_RESETS;
    }
    WATCHDOG_LOCK = 0u;
}

uint32_t aot_hal_cycles(void)
{
    return COUNTER;
}

uint32_t aot_hal_cycles_hz(void)
{
    return BOARD_COUNTER_MHZ * 1000000u;
}

/* The counter's own 32 bits are too few: what it has counted since the last call is added up, and
 * what is less than a microsecond kept. Calls must not be further apart than its period, three
 * minutes at 25 MHz: aot_hal_get makes one whenever it has nothing. */
uint32_t aot_hal_micros(void)
{
    static uint32_t last, rest, micros;
    const uint32_t now = COUNTER, passed = now - last;
    last = now;
    micros += passed / BOARD_COUNTER_MHZ;
    rest += passed % BOARD_COUNTER_MHZ;
    if (rest >= BOARD_COUNTER_MHZ) {
        rest -= BOARD_COUNTER_MHZ;
        micros++;
    }
    return micros;
}
