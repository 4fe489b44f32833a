/* test_model.c - the calls of a model: what they refuse, and that neither the pool nor the run before
 * changes a result. */
#include "check.h"
#include "digits.h"

#include <string.h>

static unsigned char arena[DIGITS_ARENA_BYTES + 1] DIGITS_ALIGNED;
static float image[DIGITS_INPUT_INPUT_ELEMENTS];
static float first[DIGITS_OUTPUT_OUTPUT_ELEMENTS], second[DIGITS_OUTPUT_OUTPUT_ELEMENTS];

static void check_refusals(void)
{
    digits_ctx ctx;
    digits_config config = {0};
    CHECK(digits_init(&ctx, NULL) == DIGITS_ERR_NULL);
    CHECK(digits_init(&ctx, &config) == DIGITS_ERR_NULL);
    config.arena = arena + 1;
    CHECK(digits_init(NULL, &config) == DIGITS_ERR_NULL);
    CHECK(digits_init(&ctx, &config) == DIGITS_ERR_ALIGN);
    config.arena = arena;
    config.weights = arena + 1;
    CHECK(digits_init(&ctx, &config) == DIGITS_ERR_ALIGN);
    CHECK(digits_run(NULL, NULL, NULL) == DIGITS_ERR_NULL);
    for (int error = -10; error <= 1; error++)
        CHECK(digits_strerror(error) != NULL);
    CHECK(strcmp(digits_strerror(DIGITS_ERR_NULL), digits_strerror(DIGITS_ERR_ALIGN)) != 0);
}

static void infer(void *pool, float *logits)
{
    digits_ctx ctx;
    digits_config config = {0};
    const digits_inputs inputs = {image};
    const digits_outputs outputs = {logits};
    config.arena = arena;
    config.pool = pool;
    /* NaN all over: nothing of an earlier run may matter. */
    memset(arena, 0xff, DIGITS_ARENA_BYTES);
    CHECK(digits_init(&ctx, &config) == DIGITS_OK);
    CHECK(digits_run(&ctx, &inputs, &outputs) == DIGITS_OK);
}

int main(void)
{
    check_refusals();
    for (size_t i = 0; i < DIGITS_INPUT_INPUT_ELEMENTS; i++)
        image[i] = (float)(i % 17) / 16.0f;
    infer(NULL, first);
    for (size_t i = 0; i < DIGITS_OUTPUT_OUTPUT_ELEMENTS; i++)
        CHECK(first[i] == first[i]); /* not NaN */
    for (int threads = 1; threads <= DIGITS_MAX_THREADS; threads++) {
        static digits_pool pool;
        CHECK(digits_pool_open(&pool, threads, NULL, NULL) == DIGITS_OK);
        infer(&pool, second);
        digits_pool_close(&pool);
        CHECK(memcmp(first, second, sizeof first) == 0);
    }

    /* The same by the slots in the arena. */
    digits_ctx ctx;
    digits_config config = {0};
    config.arena = arena;
    CHECK(digits_init(&ctx, &config) == DIGITS_OK);
    memcpy(digits_input(&ctx, 0), image, sizeof image);
    CHECK(digits_run(&ctx, NULL, NULL) == DIGITS_OK);
    CHECK(memcmp(digits_output(&ctx, 0), first, sizeof first) == 0);
    CHECK(digits_input(&ctx, 1) == NULL && digits_output(&ctx, -1) == NULL);
    return checked();
}
