/* The fixed-point words of simd.h against a definition of their own in unsigned 64-bit arithmetic.
 *
 *   requantize_sweep sweep COUNT PAIRS   COUNT accumulators, spread over all of int32, with ties and
 *                                        both ends, by each (multiplier, shift) of the file PAIRS;
 *                                        prints the first differences and fails on any
 *   requantize_sweep values IN OUT       triples (accumulator, multiplier, shift) of int32; writes
 *                                        requantize_tflm and requantize_litert of each
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"

/* a / 2^n to nearest, ties up: the floor of an unsigned number that is 2^63 too large. */
static int64_t nearest_up(int64_t a, int n)
{
    const uint64_t offset = (uint64_t)1 << 63;
    const uint64_t half = n ? (uint64_t)1 << (n - 1) : 0;
    return (int64_t)((((uint64_t)a + half + offset) >> n) - (offset >> n));
}

static int32_t wrapped(int64_t a)
{
    const uint32_t low = (uint32_t)((uint64_t)a & 0xffffffffu);
    int32_t value;
    memcpy(&value, &low, sizeof value);
    return value;
}

static int32_t define_tflm(int32_t x, int32_t m, int s)
{
    const int32_t moved = s > 0 ? wrapped((int64_t)((uint64_t)(uint32_t)x << s)) : x;
    const int64_t high = nearest_up((int64_t)moved * m, 31);
    if (s >= 0) return wrapped(high);
    return wrapped(high < 0 ? -nearest_up(-high, -s) : nearest_up(high, -s));
}

static int32_t define_litert(int32_t x, int32_t m, int s)
{
    return wrapped(nearest_up((int64_t)x * m, 31 - s));
}

/* Accumulator i for a pair: both ends, small ones, those next to ties, then all over the range. */
static int32_t accumulator(uint32_t i, int32_t m, int s)
{
    if (i < 256) return wrapped((int64_t)INT32_MIN + i);
    if (i < 512) return wrapped((int64_t)INT32_MAX - (i - 256));
    if (i < 1024) return (int32_t)i - 768;
    if (i < 16384 && m) {
        const double tie = ((double)(i / 3) - 2730.5) * (double)((int64_t)1 << (31 - s)) / (double)m;
        if (tie > -2147483000.0 && tie < 2147483000.0) return (int32_t)tie + (int32_t)(i % 3) - 1;
    }
    return wrapped((int64_t)((uint64_t)i * 2654435761u));
}

static int sweep(uint32_t count, const char *path)
{
    FILE *f = fopen(path, "rb");
    int32_t pair[2];
    int wrong = 0;
    if (!f) return 2;
    while (fread(pair, sizeof pair, 1, f) == 1) {
        const int32_t m = pair[0], s = pair[1];
        const vi vm = viset1(m), vs = viset1(s);
        for (uint32_t i = 0; i < count; i += VL) {
            int32_t x[VL], tflm[VL], litert[VL];
            for (uint32_t k = 0; k < VL; k++) x[k] = accumulator(i + k, m, s);
            vistore(tflm, virequantize_tflm(viload(x), vm, vs));
            vistore(litert, virequantize_litert(viload(x), vm, vs));
            for (uint32_t k = 0; k < VL; k++) {
                const int32_t a = define_tflm(x[k], m, s), b = define_litert(x[k], m, s);
                const int same = tflm[k] == a && s_requantize_tflm(x[k], m, s) == a &&
                                 litert[k] == b && s_requantize_litert(x[k], m, s) == b;
                if (!same && wrong++ < 10) {
                    printf("x %" PRId32 " m %" PRId32 " s %" PRId32, x[k], m, s);
                    printf(": tflm %" PRId32 " not %" PRId32, tflm[k], a);
                    printf(", litert %" PRId32 " not %" PRId32 "\n", litert[k], b);
                }
            }
        }
    }
    fclose(f);
    return wrong != 0;
}

static int values(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    int32_t t[3];
    if (!in || !out) return 2;
    while (fread(t, sizeof t, 1, in) == 1) {
        int32_t lanes[VL], result[2];
        vistore(lanes, virequantize_tflm(viset1(t[0]), viset1(t[1]), viset1(t[2])));
        result[0] = lanes[VL - 1];
        vistore(lanes, virequantize_litert(viset1(t[0]), viset1(t[1]), viset1(t[2])));
        result[1] = lanes[0];
        if (fwrite(result, sizeof result, 1, out) != 1) return 2;
    }
    fclose(in);
    return fclose(out) != 0;
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    if (!strcmp(argv[1], "sweep")) return sweep((uint32_t)strtoul(argv[2], NULL, 10), argv[3]);
    return values(argv[2], argv[3]);
}
