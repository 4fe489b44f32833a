/* check.h - what the tests of the runtime print: every check that fails, and a last line. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static int checks, failures;

#define CHECK(condition) \
    do { \
        checks++; \
        if (!(condition)) { \
            failures++; \
            (void)printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
        } \
    } while (0)

/* The exit status of the test. */
static int checked(void)
{
    (void)printf("%d checks, %d failed\n", checks, failures);
    return checks > 0 && failures == 0 ? 0 : 1;
}

#endif
