/* Evaluates the functions of fast_math.h.j2 on a sample.
 *
 *   fast_sample in.bin out.bin      in.bin: float x[n], n a multiple of 16;
 *                                   out.bin: per function in the order below, float v[n], s[n]
 */
#include "simd.h"

#include <stdio.h>
#include <stdlib.h>

#define FUNCTION(name)                                                                             \
    static void name(const float *x, float *v, float *s, long n)                                   \
    {                                                                                              \
        for (long i = 0; i < n; i += VL) vstore(v + i, v##name(vload(x + i)));                     \
        for (long i = 0; i < n; i++) s[i] = s_##name(x[i]);                                        \
    }

FUNCTION(fast_exp)
FUNCTION(fast_tanh)
FUNCTION(fast_sigmoid)
FUNCTION(fast_erf)

int main(int argc, char **argv)
{
    void (*const functions[])(const float *, float *, float *, long) = {fast_exp, fast_tanh,
                                                                        fast_sigmoid, fast_erf};
    if (argc != 3) return 2;
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    if (!in || !out || fseek(in, 0, SEEK_END)) return 2;
    const long n = ftell(in) / (long)sizeof(float);
    const size_t count = (size_t)n;
    rewind(in);
    float *x = malloc(count * sizeof *x), *y = malloc(2 * count * sizeof *y);
    if (!x || !y || fread(x, sizeof *x, count, in) != count) return 2;
    for (int f = 0; f < 4; f++) {
        functions[f](x, y, y + n, n);
        if (fwrite(y, sizeof *y, 2 * count, out) != 2 * count) return 2;
    }
    free(x);
    free(y);
    fclose(in);
    return fclose(out) ? 2 : 0;
}
