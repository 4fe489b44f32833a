/* mps.h - what startup.c and hal.c of Arm's MPS2 and MPS3 boards share. */
#ifndef MPS_H
#define MPS_H

#include "board.h"

#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

/* Made by the linker script; the stack grows from top to bottom. */
extern uint32_t __stack_bottom[], __stack_top[];

/* Switches the UART and the counter on; called once, before main. Without a hardware layer it does
 * nothing. */
void board_init(void);

/* What becomes of the board when main has returned `status`, or after a fault. By itself it
 * restarts. */
void board_end(int status);
#define BOARD_FAULTED 99

/* Entries of the vector table that hal.c has. */
void uart_received(void);
void tick(void);

#endif
