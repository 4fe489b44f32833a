/* Compares one math function of simd.h with double-precision libm over the float bit patterns
 * first, first + step, ...
 *
 *   math_sweep NAME [step [first]]
 *
 * prints "NAME max_ulp argument_bits wrong"; wrong counts lanes where the vector and the scalar
 * form differ in bits, or where exactly one of result and reference is NaN. The ulp of denormal
 * results is 2^-149. Built as step 1: all floats. */
#include "simd.h"

#include <stdio.h>
#include <stdlib.h>

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

#define EACH(F)                                                                                    \
    F(exp)                                                                                         \
    F(expm1)                                                                                       \
    F(log)                                                                                         \
    F(log1p)                                                                                       \
    F(tanh)                                                                                        \
    F(sigmoid)                                                                                     \
    F(erf)                                                                                         \
    F(sin)                                                                                         \
    F(cos)                                                                                         \
    F(tan)                                                                                         \
    F(asin)                                                                                        \
    F(acos)                                                                                        \
    F(atan)                                                                                        \
    F(sinh)                                                                                        \
    F(cosh)                                                                                        \
    F(asinh)                                                                                       \
    F(acosh)                                                                                       \
    F(atanh)

/* |y - reference| in ulps of the reference; infinity counts as 2^128 */
static double ulps(float y, double reference)
{
    const double huge = 0x1p128;
    double d = y;
    if (isinf(y))
        d = y > 0 ? huge : -huge;
    if (reference > huge)
        reference = huge;
    if (reference < -huge)
        reference = -huge;
    int e;
    frexp(reference, &e); /* 2^(e-1) <= |reference| < 2^e */
    if (reference == 0.0 || e < -125)
        e = -125;
    return fabs(d - reference) * ldexp(1.0, 24 - e);
}

static int bits_differ(float a, float b)
{
    return memcmp(&a, &b, sizeof a) != 0;
}

typedef struct {
    double ulp;
    uint32_t at;
    uint64_t wrong;
} worst;

#define SWEEP(name)                                                                                \
    static worst sweep_##name(uint64_t step, uint64_t first)                                       \
    {                                                                                              \
        worst w = {0, 0, 0};                                                                       \
        for (uint64_t u = first; u < UINT64_C(1) << 32; u += step * VL) {                          \
            float x[VL], y[VL];                                                                    \
            for (uint64_t i = 0; i < VL; i++) {                                                    \
                const uint32_t b = (uint32_t)(u + i * step);                                       \
                memcpy(&x[i], &b, sizeof b);                                                       \
            }                                                                                      \
            vstore(y, v##name(vload(x)));                                                          \
            for (uint64_t i = 0; i < VL; i++) {                                                    \
                w.wrong += (uint64_t)bits_differ(y[i], s_##name(x[i]));                            \
                const double r = name((double)x[i]);                                               \
                if (isnan(r) || isnan(y[i])) {                                                     \
                    w.wrong += (uint64_t)(isnan(r) ? !isnan(y[i]) : 1);                            \
                    continue;                                                                      \
                }                                                                                  \
                const double d = ulps(y[i], r);                                                    \
                if (d > w.ulp) {                                                                   \
                    w.ulp = d;                                                                     \
                    w.at = (uint32_t)(u + i * step);                                               \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        return w;                                                                                  \
    }
EACH(SWEEP)

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    const uint64_t step = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
#define RUN(name)                                                                                  \
    if (!strcmp(argv[1], #name)) {                                                                 \
        const worst w = sweep_##name(step, first);                                                 \
        printf("%s %.3f %08lx %llu\n", #name, w.ulp, (unsigned long)w.at,                          \
               (unsigned long long)w.wrong);                                                       \
        return 0;                                                                                  \
    }
    EACH(RUN)
    return 2;
}
