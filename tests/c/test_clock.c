/* test_clock.c - the clock of traces counts nanoseconds and never goes back. */
#define _POSIX_C_SOURCE 200809L
#include "aot_clock.h"
#include "check.h"

#include <time.h>

int main(void)
{
    uint64_t before = digits_ticks();
    int back = 0;
    for (int i = 0; i < 100000; i++) {
        const uint64_t now = digits_ticks();
        back += now < before;
        before = now;
    }
    CHECK(back == 0);

    const struct timespec pause = {0, 20000000};
    const uint64_t start = digits_ticks();
    CHECK(nanosleep(&pause, NULL) == 0);
    const uint64_t slept = digits_ticks() - start;
    CHECK(slept >= UINT64_C(20000000));
    CHECK(slept < UINT64_C(60000000000)); /* a busy computer is slow, not another unit */
    return checked();
}
