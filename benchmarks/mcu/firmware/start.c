/* start.c - vectors, start-up, a UART and stack painting: no C library is needed. */
#include "board.h"

extern uint32_t data_load[], data_start[], data_end[], bss_start[], bss_end[];
int main(void);
void Reset_Handler(void);
void start_c(void);

void leave(int status)
{
    /* semihosting SYS_EXIT_EXTENDED: QEMU exits with the status */
    uint32_t block[2] = {0x20026u, (uint32_t)status};
    register uint32_t r0 __asm__("r0") = 0x20u;
    register uint32_t *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : : "r"(r0), "r"(r1) : "memory");
    for (;;) {
    }
}

static void fault(void)
{
    put_text("fault ");
    put_number(REGISTER(0xE000ED28u));
    put_text("\n");
    leave(99);
}

__attribute__((naked, noreturn)) void Reset_Handler(void)
{
    /* FPU and MVE on before the compiler may use them; low-overhead loops on the Cortex-M55 */
    __asm__ volatile("ldr r0, =0xE000ED88\n ldr r1, [r0]\n orr r1, r1, #(0xF << 20)\n str r1, [r0]\n dsb\n isb\n"
#ifdef BOARD_AN547
                     "ldr r0, =0xE000ED14\n ldr r1, [r0]\n orr r1, r1, #(1 << 19)\n str r1, [r0]\n dsb\n isb\n"
#endif
                     "ldr r0, =stack_top\n mov sp, r0\n b start_c\n");
}

__attribute__((used, noreturn)) void start_c(void)
{
    const uint32_t *from = data_load;
    for (uint32_t *to = data_start; to < data_end;)
        *to++ = *from++;
    for (uint32_t *to = bss_start; to < bss_end;)
        *to++ = 0;
    UART_BAUD = 16u;
    UART_CONTROL = 3u;
    leave(main());
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    (void (*)(void))stack_top, Reset_Handler, fault, fault, fault, fault, fault, fault, 0, 0, 0, fault, fault, 0, fault, fault};

static void put(int c)
{
    while ((UART_STATE & 1u) != 0u) {
    }
    UART_DATA = (uint32_t)c;
}

void put_text(const char *text)
{
    while (*text != '\0')
        put(*text++);
}

void put_number(uint32_t value)
{
    char digits[10];
    int n = 0;
    do {
        digits[n++] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value != 0u);
    while (n > 0)
        put(digits[--n]);
}

#define PAINT 0xA5A5A5A5u

void stack_paint(void)
{
    uint32_t *top;
    __asm__ volatile("mov %0, sp" : "=r"(top));
    for (volatile uint32_t *p = stack_bottom; p < top - 16; p++)
        *p = PAINT;
}

uint32_t stack_used(void)
{
    const uint32_t *p = stack_bottom;
    while (p < stack_top && *p == PAINT)
        p++;
    return (uint32_t)((const char *)stack_top - (const char *)p);
}
