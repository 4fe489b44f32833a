/* main.c - runs a model on each input and prints ticks, stack and output bytes. */
#include "count_region.h"
#include "inputs.h" /* INPUTS, INPUT_BYTES, inputs[][] */
#include "measure.h"
#include "model_api.h"

int main(void);

int main(void)
{
    uint32_t bytes, layers;
    aot_hal_stack_paint();
    uint32_t start = COUNTER;
    int status = model_init();
    put_line("init_ticks", COUNTER - start);
    put_line("init_stack", aot_hal_stack_used());
    if (status != 0) {
        put_line("init_status", (uint32_t)-status);
        return 1;
    }
    for (int i = 0; i < INPUTS; i++) {
        uint8_t *in = model_input(&bytes);
        if (bytes != INPUT_BYTES) {
            put_line("input_bytes", bytes);
            return 2;
        }
        for (uint32_t k = 0; k < bytes; k++)
            in[k] = inputs[i][k];
        aot_hal_stack_paint();
        start = COUNTER;
        COUNT_START();
        status = model_run();
        COUNT_STOP();
        const uint32_t ticks = COUNTER - start;
        if (status != 0) {
            put_line("run_status", (uint32_t)-status);
            return 3;
        }
        put_line("ticks", ticks);
        put_line("stack", aot_hal_stack_used());
        const uint32_t *each = model_layers(&layers);
        for (uint32_t k = 0; k < layers; k++)
            put_line("layer", each[k]);
        const uint8_t *out = model_output(&bytes);
        put_output(out, bytes);
    }
    return 0;
}
