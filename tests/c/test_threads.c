/* test_threads.c - the thread pool by itself: every row once, meetings, errors, a child after a fork.
 *
 * A project has the pool under the prefix of its model: here that of the digits example. Exit status 0: all well.
 */
#if defined(__linux__)
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "aot_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

#define ROWS 997
#define LAYERS 50

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            (void)fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static digits_pool pool;
static int32_t values[2][ROWS];

/* Each layer adds up what three rows of the one before hold: wrong when a row is missed, twice there or too early. */
static void sums(const void *task, const digits_worker *worker)
{
    const int32_t grain = *(const int32_t *)task;
    for (int layer = 0; layer < LAYERS; layer++) {
        const int32_t *from = values[layer % 2];
        int32_t *to = values[(layer + 1) % 2], r0, r1;
        if (digits_share(worker, ROWS, grain, &r0, &r1))
            for (int32_t r = r0; r < r1; r++) {
                const uint32_t sum = (uint32_t)from[r] + (uint32_t)from[(r + 1) % ROWS] + (uint32_t)from[(r + 500) % ROWS];
                to[r] = (int32_t)(sum % 1000003u);
            }
        digits_meet(worker);
    }
}

static void start(void)
{
    for (int32_t r = 0; r < ROWS; r++)
        values[0][r] = r * 31 % 101;
}

static void expect_sums(int32_t *want, int32_t grain)
{
    const digits_worker alone = {NULL, 0, 0u, DIGITS_WHOLE};
    start();
    sums(&grain, &alone);
    memcpy(want, values[LAYERS % 2], sizeof values[0]);
}

static void pause_ms(long ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

static void check_sums(int threads, const int32_t *cpus, const int32_t *rates, int32_t grain)
{
    int32_t want[ROWS];
    expect_sums(want, grain);
    CHECK(digits_pool_open(&pool, threads, cpus, rates) == DIGITS_OK);
    CHECK(digits_pool_pinned(&pool) <= threads);
    for (int run = 0; run < 20; run++) {
        if (run % 10 == 9)
            pause_ms(2); /* all asleep */
        start();
        CHECK(digits_pool_run(&pool, sums, &grain) == DIGITS_OK);
        CHECK(memcmp(values[LAYERS % 2], want, sizeof want) == 0);
    }
    digits_pool_close(&pool);
    digits_pool_close(&pool);
}

/* Shares cover all rows, in order, without a gap. */
static void check_shares(void)
{
    const int32_t sizes[] = {1, 2, 3, 7, 64, 65, 1000, 2147483647};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int32_t grain = 1; grain <= 64; grain += 21)
            for (uint32_t parts = 1; parts <= 5; parts++) {
                int32_t next = 0;
                for (uint32_t p = 0; p < parts; p++) {
                    const digits_worker w = {NULL, (int32_t)p, p * DIGITS_WHOLE / parts, (p + 1u) * DIGITS_WHOLE / parts};
                    int32_t r0, r1;
                    if (digits_share(&w, sizes[i], grain, &r0, &r1)) {
                        CHECK(r0 == next && r0 % grain == 0);
                        next = r1;
                    }
                }
                CHECK(next == sizes[i]);
            }
}

/* A run within a run finds the pool busy. */
static void nested(const void *task, const digits_worker *worker)
{
    (void)task;
    if (worker->index == 0)
        CHECK(digits_pool_run(&pool, nested, NULL) == DIGITS_ERR_BUSY);
}

static void check_errors(void)
{
    const int32_t none[] = {1, 0};
    CHECK(digits_pool_open(NULL, 1, NULL, NULL) == DIGITS_ERR_NULL);
    CHECK(digits_pool_open(&pool, 0, NULL, NULL) == DIGITS_ERR_THREADS);
    CHECK(digits_pool_open(&pool, DIGITS_MAX_THREADS + 1, NULL, NULL) == DIGITS_ERR_THREADS);
    CHECK(digits_pool_open(&pool, 2, NULL, none) == DIGITS_ERR_THREADS);
    digits_pool_close(NULL);
    CHECK(digits_pool_open(&pool, 2, NULL, NULL) == DIGITS_OK);
    CHECK(digits_pool_run(&pool, nested, NULL) == DIGITS_OK);
    digits_pool_close(&pool);
}

/* A child has no threads but its own: its run is alone, and closing does not wait for them. */
static void check_fork(void)
{
    int32_t want[ROWS], grain = 1;
    int status = 0;
    expect_sums(want, grain);
    CHECK(digits_pool_open(&pool, 3, NULL, NULL) == DIGITS_OK);
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        start();
        const int fine = digits_pool_run(&pool, sums, &grain) == DIGITS_OK
            && memcmp(values[LAYERS % 2], want, sizeof want) == 0;
        digits_pool_close(&pool);
        _exit(fine ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    start();
    CHECK(digits_pool_run(&pool, sums, &grain) == DIGITS_OK);
    CHECK(memcmp(values[LAYERS % 2], want, sizeof want) == 0);
    digits_pool_close(&pool);
}

/* Signals stay with the program's own threads; the calling thread comes back from its CPU. */
static void check_pinned(void)
{
#if defined(__linux__)
    cpu_set_t before, after;
    CPU_ZERO(&before);
    CPU_ZERO(&after);
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    int32_t cpus[] = {-1, -1};
    for (int i = 0; i < CPU_SETSIZE && cpus[1] < 0; i++)
        if (CPU_ISSET((size_t)i, &before))
            cpus[cpus[0] >= 0] = i;
    CHECK(digits_pool_open(&pool, 2, cpus, NULL) == DIGITS_OK);
    CHECK(digits_pool_pinned(&pool) == (cpus[1] >= 0 ? 2 : 1));
    digits_pool_close(&pool);
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    CHECK(CPU_EQUAL(&before, &after));
    check_sums(2, cpus, NULL, 1);
#endif
    const int32_t nowhere[] = {100000, -1};
    check_sums(2, nowhere, NULL, 1);
}


int main(void)
{
    const int32_t rates[] = {9, 4, 2, 1};
    check_shares();
    check_errors();
    for (int threads = 1; threads <= DIGITS_MAX_THREADS; threads++) {
        check_sums(threads, NULL, NULL, 1);
        check_sums(threads, NULL, rates, 64);
    }
    check_pinned();
    check_fork();
    (void)printf("threads: all well\n");
    return 0;
}
