/* Evaluates every math function of simd.h on a sample, vector and scalar form, and writes the
 * results' bits.
 *
 *   math_sample in.bin out.bin      in.bin: float x[n], y[n] (y for pow), n a multiple of 16;
 *                                   out.bin: per function in the order of FUNCTIONS, float v[n],
 * s[n]
 */
#include "simd.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    vf (*v)(vf, vf);
    float (*s)(float, float);
} function;

#define UNARY(name)                                                                                \
    static vf v_##name(vf x, vf y)                                                                 \
    {                                                                                              \
        (void)y;                                                                                   \
        return v##name(x);                                                                         \
    }                                                                                              \
    static float f_##name(float x, float y)                                                        \
    {                                                                                              \
        (void)y;                                                                                   \
        return s_##name(x);                                                                        \
    }

UNARY(exp)
UNARY(expm1)
UNARY(log)
UNARY(log1p)
UNARY(tanh)
UNARY(sigmoid)
UNARY(erf)
UNARY(sin)
UNARY(cos)
UNARY(tan)
UNARY(asin)
UNARY(acos)
UNARY(atan)
UNARY(sinh)
UNARY(cosh)
UNARY(asinh)
UNARY(acosh)
UNARY(atanh)
static vf v_pow(vf x, vf y)
{
    return vpow(x, y);
}
static float f_pow(float x, float y)
{
    return s_pow(x, y);
}

#define ENTRY(name)                                                                                \
    {                                                                                              \
        v_##name, f_##name                                                                         \
    }
static const function FUNCTIONS[] = {
    ENTRY(exp),  ENTRY(expm1), ENTRY(log),   ENTRY(log1p), ENTRY(tanh), ENTRY(sigmoid), ENTRY(erf),
    ENTRY(sin),  ENTRY(cos),   ENTRY(tan),   ENTRY(asin),  ENTRY(acos), ENTRY(atan),    ENTRY(sinh),
    ENTRY(cosh), ENTRY(asinh), ENTRY(acosh), ENTRY(atanh), ENTRY(pow)};

static float *floats(size_t n)
{
    float *p = malloc(n * sizeof *p);
    if (!p)
        exit(3);
    return p;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    if (!in || !out || fseek(in, 0, SEEK_END))
        return 2;
    const size_t n = (size_t)ftell(in) / (2 * sizeof(float));
    rewind(in);
    float *x = floats(n), *y = floats(n), *v = floats(n), *s = floats(n);
    if (fread(x, sizeof *x, n, in) != n || fread(y, sizeof *y, n, in) != n)
        return 2;
    for (size_t f = 0; f < sizeof FUNCTIONS / sizeof *FUNCTIONS; f++) {
        for (size_t i = 0; i < n; i += VL)
            vstore(v + i, FUNCTIONS[f].v(vload(x + i), vload(y + i)));
        for (size_t i = 0; i < n; i++)
            s[i] = FUNCTIONS[f].s(x[i], y[i]);
        if (fwrite(v, sizeof *v, n, out) != n || fwrite(s, sizeof *s, n, out) != n)
            return 2;
    }
    free(x);
    free(y);
    free(v);
    free(s);
    fclose(in);
    return fclose(out) ? 2 : 0;
}
