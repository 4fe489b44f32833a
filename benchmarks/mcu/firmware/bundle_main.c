/* bundle_main.c - runs each model of an image on its inputs, in turns, so that the arena that they may share changes hands
 * with every run; prints ticks and output bytes. */
#include "board.h"
#include "bundled_model.h"
#include "bundle_inputs.h" /* INPUTS */

static void line(const char *key, uint32_t value)
{
    put_text(key);
    put_text(" ");
    put_number(value);
    put_text("\n");
}

static int infer(const bundled_model *model, const uint8_t *input)
{
    uint8_t *const in = model->input();
    for (uint32_t k = 0; k < model->input_bytes; k++)
        in[k] = input[k];
    const uint32_t start = COUNTER;
    const int status = model->run();
    const uint32_t ticks = COUNTER - start;
    if (status != 0)
        return status;
    put_text("model ");
    put_text(model->name);
    put_text("\n");
    line("ticks", ticks);
    const uint8_t *const out = model->output();
    put_text("out ");
    for (uint32_t k = 0; k < model->output_bytes; k++) {
        const char pair[3] = {"0123456789abcdef"[out[k] >> 4], "0123456789abcdef"[out[k] & 15], '\0'};
        put_text(pair);
    }
    put_text("\n");
    return 0;
}

int main(void)
{
    for (uint32_t m = 0; m < bundled_count; m++)
        if (bundled_models[m].init() != 0)
            return 1;
    for (uint32_t i = 0; i < INPUTS; i++)
        for (uint32_t m = 0; m < bundled_count; m++)
            if (infer(&bundled_models[m], bundled_models[m].inputs + i * bundled_models[m].input_bytes) != 0)
                return 2;
    return 0;
}
