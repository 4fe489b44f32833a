/* null_model.c - no model at all: what the measuring firmware itself takes. */
#include "model_api.h"

static uint8_t input[4], output[4];

int model_init(void)
{
    return 0;
}

int model_run(void)
{
    output[0] = input[0];
    return 0;
}

uint8_t *model_input(uint32_t *bytes)
{
    *bytes = sizeof input;
    return input;
}

const uint8_t *model_output(uint32_t *bytes)
{
    *bytes = sizeof output;
    return output;
}

const uint32_t *model_layers(uint32_t *count)
{
    *count = 0u;
    return 0;
}
