/* main.c - runs a model on each input and prints ticks, stack and output bytes. */
#include "board.h"
#include "count_region.h"
#include "inputs.h" /* INPUTS, INPUT_BYTES, inputs[][] */
#include "model_api.h"

static void line(const char *key, uint32_t value)
{
    put_text(key);
    put_text(" ");
    put_number(value);
    put_text("\n");
}

int main(void)
{
    uint32_t bytes, layers;
    stack_paint();
    uint32_t start = COUNTER;
    int status = model_init();
    line("init_ticks", COUNTER - start);
    line("init_stack", stack_used());
    if (status != 0) {
        line("init_status", (uint32_t)-status);
        return 1;
    }
    for (int i = 0; i < INPUTS; i++) {
        uint8_t *in = model_input(&bytes);
        if (bytes != INPUT_BYTES) {
            line("input_bytes", bytes);
            return 2;
        }
        for (uint32_t k = 0; k < bytes; k++)
            in[k] = inputs[i][k];
        stack_paint();
        start = COUNTER;
        COUNT_START();
        status = model_run();
        COUNT_STOP();
        const uint32_t ticks = COUNTER - start;
        if (status != 0) {
            line("run_status", (uint32_t)-status);
            return 3;
        }
        line("ticks", ticks);
        line("stack", stack_used());
        const uint32_t *each = model_layers(&layers);
        for (uint32_t k = 0; k < layers; k++)
            line("layer", each[k]);
        const uint8_t *out = model_output(&bytes);
        put_text("out ");
        for (uint32_t k = 0; k < bytes; k++) {
            const char pair[3] = {"0123456789abcdef"[out[k] >> 4], "0123456789abcdef"[out[k] & 15], '\0'};
            put_text(pair);
        }
        put_text("\n");
    }
    return 0;
}
