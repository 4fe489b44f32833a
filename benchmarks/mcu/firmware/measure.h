/* measure.h - what measuring firmware prints with, and the counter that it measures by. The rest is the board's own start-up code
 * and hardware layer (board_support/mps); main's status is that of the emulator. */
#ifndef MEASURE_H
#define MEASURE_H

#include "aot_hal.h"
#include "mps.h"

/* Read in place: a call would count. */
#define COUNTER REGISTER(BOARD_COUNTER_ADDRESS)

void put_text(const char *text);
void put_number(uint32_t value);
/* "key value" */
void put_line(const char *key, uint32_t value);
/* "out " and the bytes in hexadecimal */
void put_output(const uint8_t *bytes, uint32_t count);

#endif
