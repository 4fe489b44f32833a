/* What newlib does not declare for a bare machine. */
#ifndef TEST_POSIX_H
#define TEST_POSIX_H
#include <stddef.h>
#include <time.h>
#ifndef CLOCK_MONOTONIC
#define CLOCK_MONOTONIC 4
#endif
int posix_memalign(void **p, size_t align, size_t size);
int clock_gettime(int clock, struct timespec *t);
#endif
