/* bundle_main.c - runs each model of an image on its inputs, in turns, so that the arena that they may share changes hands
 * with every run; prints ticks and output bytes. */
#include "bundle_inputs.h" /* INPUTS */
#include "bundled_model.h"
#include "measure.h"

int main(void);

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
    put_line("ticks", ticks);
    put_output(model->output(), model->output_bytes);
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
