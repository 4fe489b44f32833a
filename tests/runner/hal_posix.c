/* hal_posix.c - aot_hal.h on this computer: the serial line is stdin and stdout. A restart is a new program in the same
 * process, as a reset is: nothing of the memory is left.
 */
#define _POSIX_C_SOURCE 200809L
#include "aot_hal.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 20

void aot_hal_put(const void *data, size_t size)
{
    const char *at = (const char *)data;
    while (size > 0) {
        const ssize_t done = write(STDOUT_FILENO, at, size);
        if (done <= 0)
            _exit(1);
        at += done;
        size -= (size_t)done;
    }
}

int aot_hal_get(void)
{
    struct pollfd ready = {STDIN_FILENO, POLLIN, 0};
    unsigned char byte;
    if (poll(&ready, 1, WAIT_MS) <= 0)
        return -1;
    if (read(STDIN_FILENO, &byte, 1) != 1)
        _exit(0);
    return byte;
}

uint32_t aot_hal_micros(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)((uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u);
}

void aot_hal_reset(void)
{
    char *const arguments[] = {(char *)"device", NULL};
    (void)execv("/proc/self/exe", arguments);
    _exit(1);
}
