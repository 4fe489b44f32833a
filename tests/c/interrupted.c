/* interrupted.c - firmware for QEMU's mps2-an386 in which a task with a small stack of its own runs
 * the model while an interrupt runs it too, in another context. It prints the interrupts, the runs
 * of the task, how many of all runs had other outputs than alone, and the task's stack in bytes.
 *
 * Linked with examples/firmware/board.ld and the project of examples/keyword_spotting/kws.tflite.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kws.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define UART_DATA         REGISTER(0x40004000u)
#define UART_STATE        REGISTER(0x40004004u) /* 1: it is sending */
#define UART_CONTROL      REGISTER(0x40004008u)
#define UART_DIVIDER      REGISTER(0x40004010u)
#define SYSTICK_CONTROL   REGISTER(0xE000E010u)
#define SYSTICK_RELOAD    REGISTER(0xE000E014u)
#define SYSTICK_VALUE     REGISTER(0xE000E018u)
#define FPU_ACCESS        REGISTER(0xE000ED88u)

#define INTERRUPTS 25u
#define PERIOD     7725425u /* cycles: runs of the task are interrupted at different places */
#define PAINT      0xA5A5A5A5u

enum { TASK, INTERRUPT, CONTEXTS };

extern uint32_t bss_start[], bss_end[], stack_top[];
void Reset_Handler(void);
void start(void);
void task(void);
static void fault(void);
static void tick(void);

typedef union vector {
    uint32_t *stack;
    void (*handler)(void);
} vector;

__attribute__((section(".vectors"), used)) static const vector vectors[16] = {
    {.stack = stack_top}, {.handler = Reset_Handler}, {.handler = fault}, {.handler = fault},
    {.handler = fault},   {.handler = fault},         {.handler = fault}, {.handler = NULL},
    {.handler = NULL},    {.handler = NULL},          {.handler = NULL},  {.handler = fault},
    {.handler = fault},   {.handler = NULL},          {.handler = fault}, {.handler = tick},
};

static unsigned char arena[CONTEXTS][KWS_ARENA_BYTES] KWS_ALIGNED;
static unsigned char state[CONTEXTS][KWS_STATE_BYTES + KWS_ARENA_ALIGN] KWS_ALIGNED;
static kws_ctx ctx[CONTEXTS];
static int8_t in[CONTEXTS][KWS_INPUT_INPUT_1_ELEMENTS];
static int8_t out[CONTEXTS][KWS_OUTPUT_IDENTITY_ELEMENTS];
static int8_t alone[CONTEXTS][KWS_OUTPUT_IDENTITY_ELEMENTS];
static volatile uint32_t interrupts, runs, wrong;
static uint32_t task_stack[256] __attribute__((aligned(8)));

static void put(const char *text)
{
    for (; *text != '\0'; text++) {
        while ((UART_STATE & 1u) != 0u) {
        }
        UART_DATA = (uint8_t)*text;
    }
}

static void put_number(uint32_t value)
{
    char digits[12];
    char *at = digits + sizeof digits - 1;
    *at = '\0';
    *--at = ' ';
    do
        *--at = (char)('0' + value % 10u);
    while ((value /= 10u) != 0u);
    put(at);
}

/* Ends QEMU, by semihosting. */
static void leave(void)
{
    __asm__ volatile("mov r0, #0x18\n"
                     "ldr r1, =0x20026\n"
                     "bkpt 0xab");
    for (;;) {
    }
}

static void fault(void)
{
    put("fault");
    leave();
}

/* One run from the initial state. */
static int infer(int which)
{
    const kws_inputs inputs = {.input_1 = in[which]};
    const kws_outputs outputs = {.Identity = out[which]};
    kws_reset(&ctx[which]);
    memset(out[which], 0, sizeof out[which]);
    return kws_run(&ctx[which], &inputs, &outputs);
}

static void check(int which)
{
    if (infer(which) != KWS_OK || memcmp(out[which], alone[which], sizeof out[which]) != 0)
        wrong++;
}

static void tick(void)
{
    if (interrupts < INTERRUPTS) {
        check(INTERRUPT);
        interrupts++;
    }
}

__attribute__((noinline, used)) void task(void)
{
    while (interrupts < INTERRUPTS) {
        check(TASK);
        runs++;
    }
    SYSTICK_CONTROL = 0u;
    size_t free_words = 0;
    while (task_stack[free_words] == PAINT)
        free_words++;
    put_number(interrupts);
    put_number(runs);
    put_number(wrong);
    put_number((uint32_t)(sizeof task_stack - free_words * sizeof task_stack[0]));
    leave();
}

__attribute__((naked, noreturn)) void Reset_Handler(void)
{
    __asm__ volatile("b start");
}

__attribute__((noreturn, used)) void start(void)
{
    FPU_ACCESS |= 0xFu << 20;
    __asm__ volatile("dsb\n isb" : : : "memory");
    for (uint32_t *to = bss_start; to < bss_end; to++)
        *to = 0;
    UART_DIVIDER = 217u;
    UART_CONTROL = 1u;
    for (int which = 0; which < CONTEXTS; which++) {
        for (size_t i = 0; i < sizeof in[which]; i++)
            in[which][i] = (int8_t)((i * (which == TASK ? 11u : 37u)) % 256u - 128u);
        const kws_config config = {.arena = arena[which], .state = state[which]};
        if (kws_init(&ctx[which], &config) != KWS_OK || infer(which) != KWS_OK)
            fault();
        memcpy(alone[which], out[which], sizeof alone[which]);
    }
    for (size_t i = 0; i < sizeof task_stack / sizeof task_stack[0]; i++)
        task_stack[i] = PAINT;
    SYSTICK_RELOAD = PERIOD;
    SYSTICK_VALUE = 0u;
    SYSTICK_CONTROL = 7u;
    __asm__ volatile("msr psp, %0\n"
                     "mov r0, #2\n"
                     "msr control, r0\n"
                     "isb\n"
                     "bl task"
                     :
                     : "r"(task_stack + sizeof task_stack / sizeof task_stack[0])
                     : "r0", "memory");
    for (;;) {
    }
}
