/* app.c - says which digit two networks see in an image.
 *
 * usage: app FILE          64 numbers from 0 to 16, row by row
 */
#include "digits.h"
#include "digits_int8.h"

#include <math.h>
#include <stdio.h>

#define PIXELS DIGITS_INPUT_INPUT_ELEMENTS
#define CLASSES DIGITS_OUTPUT_OUTPUT_ELEMENTS

#define LARGER(a, b) ((a) > (b) ? (a) : (b))

/* Dead between runs: the models share it. */
static unsigned char arena[LARGER(DIGITS_ARENA_BYTES, DIGITS_INT8_ARENA_BYTES)] DIGITS_ALIGNED;

static int read_image(const char *path, float image[PIXELS])
{
    FILE *file = fopen(path, "r");
    size_t count = 0;
    int value;
    if (file == NULL)
        return 0;
    while (count < PIXELS && fscanf(file, "%d", &value) == 1)
        image[count++] = (float)value / 16.0f;
    (void)fclose(file);
    return count == PIXELS;
}

static int run_float(const float image[PIXELS], float logits[CLASSES])
{
    digits_ctx ctx;
    const digits_config config = {.arena = arena};
    const digits_inputs inputs = {.input = image};
    const digits_outputs outputs = {.output = logits};
    const int error = digits_init(&ctx, &config);
    return error != 0 ? error : digits_run(&ctx, &inputs, &outputs);
}

/* The header knows what the integers stand for. */
static int run_int8(const float image[PIXELS], float logits[CLASSES])
{
    int8_t pixels[PIXELS], answer[CLASSES];
    digits_int8_ctx ctx;
    const digits_int8_config config = {.arena = arena};
    const digits_int8_inputs inputs = {.input = pixels};
    const digits_int8_outputs outputs = {.output = answer};
    for (size_t i = 0; i < PIXELS; i++)
        pixels[i] = digits_int8_quantize_input(image[i]);
    int error = digits_int8_init(&ctx, &config);
    if (error == 0)
        error = digits_int8_run(&ctx, &inputs, &outputs);
    for (size_t i = 0; error == 0 && i < CLASSES; i++)
        logits[i] = digits_int8_dequantize_output(answer[i]);
    return error;
}

/* The most likely digit and its probability, by softmax. */
static void print_answer(const char *name, const float logits[CLASSES])
{
    size_t best = 0;
    double sum = 0.0;
    for (size_t i = 1; i < CLASSES; i++)
        if (logits[i] > logits[best])
            best = i;
    for (size_t i = 0; i < CLASSES; i++)
        sum += exp((double)(logits[i] - logits[best]));
    (void)printf("%-8s %zu (%.1f%%)\n", name, best, 100.0 / sum);
}

int main(int argc, char **argv)
{
    float image[PIXELS], logits[CLASSES];
    int error;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: app FILE\n");
        return 2;
    }
    if (!read_image(argv[1], image)) {
        (void)fprintf(stderr, "%s: not %u numbers\n", argv[1], PIXELS);
        return 2;
    }
    error = run_float(image, logits);
    if (error == 0)
        print_answer("float32:", logits);
    else
        (void)fprintf(stderr, "float32: %s\n", digits_strerror(error));
    if (error == 0) {
        error = run_int8(image, logits);
        if (error == 0)
            print_answer("int8:", logits);
        else
            (void)fprintf(stderr, "int8: %s\n", digits_int8_strerror(error));
    }
    return error != 0;
}
