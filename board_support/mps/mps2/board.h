/* board.h - Arm MPS2+ with a Cortex-M4 (AN386) or M7 (AN500): addresses and clocks that startup.c
 * and hal.c are compiled with. */
#ifndef BOARD_H
#define BOARD_H

#define BOARD_UART_ADDRESS  0x40004000u /* UART0, a CMSDK one */
#define BOARD_UART_RX_IRQ   0
#define BOARD_UART_CLOCK_HZ 25000000u

/* FPGAIO's counter of 32 bits; its prescaler follows it. */
#define BOARD_COUNTER_ADDRESS 0x40028018u
#define BOARD_COUNTER_MHZ     25u

#define BOARD_WATCHDOG_ADDRESS 0x40008000u /* a CMSDK one, whose interrupt is the NMI */
#define BOARD_WATCHDOG_HZ      25000000u

#define BOARD_SYSTICK_HZ 25000000u

#endif
