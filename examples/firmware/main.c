/* main.c - firmware that reads a digit from an image, says which on the serial line, and then lets
 * a computer at its other end run and check the network.
 */
#include "aot_device.h"
#include "aot_hal.h"
#include "digits.h"

#include <string.h>

#define CLASSES DIGITS_OUTPUT_OUTPUT_ELEMENTS

/* A three, 8x8 grey values from 0 to 16. */
static const uint8_t image[DIGITS_INPUT_INPUT_ELEMENTS] = {
    0, 0, 4,  13, 14, 2,  0, 0, //
    0, 0, 15, 10, 11, 10, 0, 0, //
    0, 3, 15, 2,  12, 6,  0, 0, //
    0, 0, 3,  8,  16, 7,  0, 0, //
    0, 0, 0,  4,  9,  16, 2, 0, //
    0, 0, 10, 3,  0,  13, 6, 0, //
    0, 0, 16, 5,  7,  16, 3, 0, //
    0, 0, 7,  13, 13, 8,  0, 0,
};

static unsigned char arena[DIGITS_ARENA_BYTES] DIGITS_ALIGNED;

int main(void);

static void say(const char *text)
{
    aot_hal_put(text, strlen(text));
}

/* The most likely digit, or a negative error. */
static int classify(void)
{
    int8_t pixels[DIGITS_INPUT_INPUT_ELEMENTS], answer[CLASSES];
    digits_ctx ctx;
    const digits_config config = {.arena = arena};
    const digits_inputs inputs = {.input = pixels};
    const digits_outputs outputs = {.output = answer};
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = digits_quantize_input((float)image[i] / 16.0f);
    int error = digits_init(&ctx, &config);
    if (error == 0)
        error = digits_run(&ctx, &inputs, &outputs);
    if (error != 0)
        return error;
    int best = 0;
    for (int i = 1; i < (int)CLASSES; i++)
        if (answer[i] > answer[best])
            best = i;
    return best;
}

int main(void)
{
    const int digit = classify();
    if (digit < 0) {
        say(digits_strerror(digit));
    } else {
        const char text[2] = {(char)('0' + digit), '\0'};
        say("digit ");
        say(text);
    }
    say("\r\n");
    (void)digits_device_open(NULL);
    digits_device_serve();
    return 0;
}
