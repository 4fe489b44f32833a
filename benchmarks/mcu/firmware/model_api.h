/* model_api.h - a model as main.c measures it. */
#ifndef MODEL_API_H
#define MODEL_API_H

#include <stdint.h>

int model_init(void);
int model_run(void);
uint8_t *model_input(uint32_t *bytes);
const uint8_t *model_output(uint32_t *bytes);
/* Counter ticks of each layer in the last traced run; NULL where nothing is traced. */
const uint32_t *model_layers(uint32_t *count);

#endif
