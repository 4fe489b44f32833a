/* board.h - what of the three emulated boards the measuring firmware uses: a UART, a counter, a way out. */
#ifndef MEASURE_BOARD_H
#define MEASURE_BOARD_H

#include <stdint.h>

#ifdef BOARD_AN547 /* Cortex-M55 */
#    define UART0  0x49303000u
#    define FPGAIO 0x49302000u
#else /* Cortex-M4, Cortex-M7 */
#    define UART0  0x40004000u
#    define FPGAIO 0x40028000u
#endif
#define REGISTER(address) (*(volatile uint32_t *)(address))
#define UART_DATA    REGISTER(UART0 + 0x00u)
#define UART_STATE   REGISTER(UART0 + 0x04u)
#define UART_CONTROL REGISTER(UART0 + 0x08u)
#define UART_BAUD    REGISTER(UART0 + 0x10u)
#define COUNTER      REGISTER(FPGAIO + 0x18u)

extern uint32_t stack_bottom[], stack_top[];

void put_text(const char *text);
void put_number(uint32_t value);
void leave(int status);
void stack_paint(void);
uint32_t stack_used(void);

#endif
