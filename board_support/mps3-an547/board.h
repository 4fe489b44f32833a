/* board.h - Arm MPS3 with a Cortex-M55 (AN547): addresses and clocks that startup.c and hal.c are
 * compiled with. */
#ifndef BOARD_H
#define BOARD_H

#define BOARD_UART_ADDRESS  0x49303000u /* UART0, a CMSDK one */
#define BOARD_UART_RX_IRQ   33
#define BOARD_UART_CLOCK_HZ 32000000u

/* FPGAIO's counter of 32 bits; its prescaler follows it. */
#define BOARD_COUNTER_ADDRESS 0x49302018u
#define BOARD_COUNTER_MHZ     20u

#define BOARD_WATCHDOG_ADDRESS 0x4802E000u /* a CMSDK one, whose interrupt is the NMI */
#define BOARD_WATCHDOG_HZ      32768u

#define BOARD_SYSTICK_HZ 32000000u

#endif
