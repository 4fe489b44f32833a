/* Compares every function of simd.h's vocabulary with its definition on floats, lane by lane, on
 * special values and pseudo-random bit patterns. Prints each failure; exit status 1 if any. */
#define _DEFAULT_SOURCE
#include "simd.h"

#include <stdio.h>
#include <stdlib.h>
#ifndef MEMORY_END
#include <sys/mman.h>
#include <unistd.h>
#endif

static int failures;

static uint32_t random_bits(void)
{
    static uint32_t s = 2463534242u;
    s ^= s << 13;
    s ^= s >> 17;
    s ^= s << 5;
    return s;
}

static float from_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}
static uint32_t to_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}
static int same(float a, float b)
{
    return to_bits(a) == to_bits(b) || (isnan(a) && isnan(b));
}
static int same_value(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* ARMv7's NEON and MVE read and write denormals as zero: what an operand counts as, and whether a
 * result is the expected one. Tininess is seen before rounding, so that FLT_MIN may become zero
 * too. */
#if defined(__arm__) && VL > 1
static float operand(float a)
{
    return fabsf(a) < FLT_MIN ? copysignf(0.0f, a) : a;
}
static int same_flushed(float a, float b)
{
    return same(a, b) || (fabsf(b) <= FLT_MIN && same(a, copysignf(0.0f, b)));
}
/* Of two operands one, which may still be denormal. */
static int same_operand(float a, float b)
{
    return same_value(operand(a), operand(b));
}
#else
#define operand(a) (a)
#define same_flushed same
#define same_operand same_value
#endif
/* MVE adds the lanes of a vector in its scalar unit. */
#ifdef __ARM_FEATURE_MVE
#define lane_sum(a) (a)
#else
#define lane_sum operand
#endif

static void fail(const char *what, float got, float want)
{
    failures++;
    printf("%s: got %a (%08lx), want %a (%08lx)\n", what, (double)got, (unsigned long)to_bits(got),
           (double)want, (unsigned long)to_bits(want));
}
static void fail_int(const char *what, long got, long want)
{
    failures++;
    printf("%s: got %ld, want %ld\n", what, got, want);
}

static const float SPECIAL[] = {
    0.0f,        -0.0f,        1.0f,       -1.0f,      0.5f,       -0.5f,       1.5f,    2.5f,
    -2.5f,       3.5f,         0x1p-149f,  -0x1p-149f, 0x1p-126f,  -0x1p-126f,  FLT_MAX, -FLT_MAX,
    INFINITY,    -INFINITY,    NAN,        8388607.5f, 8388608.0f, -8388608.0f, 0x1p30f, -0x1p31f,
    0.49999997f, -0.49999997f, 4194303.5f, -7.0f,      100.25f,    -3.75f,      1e-20f,  1e20f};
#define N_SPECIAL (sizeof SPECIAL / sizeof *SPECIAL)

/* Half of the values special, half random bits; `finite` values of moderate size on demand. */
static void fill(float *x, int moderate)
{
    for (int i = 0; i < VL; i++) {
        const uint32_t r = random_bits();
        if (moderate)
            x[i] = (float)(int32_t)r * 0x1p-20f;
        else
            x[i] = r & 1 ? SPECIAL[(r >> 8) % N_SPECIAL] : from_bits(random_bits());
    }
}

#define LANES(what, got, want, equal)                                                              \
    do {                                                                                           \
        float got_[VL];                                                                            \
        vstore(got_, (got));                                                                       \
        for (int i = 0; i < VL; i++) {                                                             \
            const float want_ = (float)(want);                                                     \
            if (!equal(got_[i], want_))                                                            \
                fail(what, got_[i], want_);                                                        \
        }                                                                                          \
    } while (0)
#define INT_LANES(what, got, want)                                                                 \
    do {                                                                                           \
        int32_t got_[VL];                                                                          \
        vistore(got_, (got));                                                                      \
        for (int i = 0; i < VL; i++) {                                                             \
            const int32_t want_ = (int32_t)(want);                                                 \
            if (got_[i] != want_)                                                                  \
                fail_int(what, got_[i], want_);                                                    \
        }                                                                                          \
    } while (0)
#define MASK_LANES(what, got, want)                                                                \
    LANES(what, vsel(got, vset1(1.0f), vzero()), (want) ? 1.0f : 0.0f, same)

static float fma_definition(float a, float b, float c)
{
#if VL > 1 || defined(FP_FAST_FMAF) || defined(__FP_FAST_FMAF)
    /* In double, rounded to odd, then to float: not every libc's fmaf rounds once. */
    const volatile double product = (double)a * b, sum = product + c;
    const volatile double back = sum - product, rest = (product - (sum - back)) + (c - back);
    int64_t bits;
    double odd = sum;
    memcpy(&bits, &odd, sizeof bits);
    if (isfinite(sum) && rest != 0.0 && !(bits & 1)) {
        bits += (rest > 0.0) == (sum > 0.0) ? 1 : -1;
        memcpy(&odd, &bits, sizeof odd);
    }
    return (float)odd;
#else
    const volatile float product = a * b;
    return product + c;
#endif
}

static void arithmetic(void)
{
    float a[VL], b[VL], c[VL], x[VL], y[VL], z[VL];
    for (int round = 0; round < 2000; round++) {
        fill(a, 0);
        fill(b, 0);
        fill(c, 0);
        for (int i = 0; i < VL; i++) {
            x[i] = operand(a[i]);
            y[i] = operand(b[i]);
            z[i] = operand(c[i]);
        }
        const vf va = vload(a), vb = vload(b), vc = vload(c);
        LANES("vload", va, a[i], same);
        LANES("vset1", vset1(a[0]), a[0], same);
        LANES("vzero", vzero(), 0.0f, same);
        LANES("vadd", vadd(va, vb), x[i] + y[i], same_flushed);
        LANES("vsub", vsub(va, vb), x[i] - y[i], same_flushed);
        LANES("vmul", vmul(va, vb), x[i] * y[i], same_flushed);
        LANES("vdiv", vdiv(va, vb), a[i] / b[i], same);
        LANES("vfma", vfma(va, vb, vc), fma_definition(x[i], y[i], z[i]), same_flushed);
        LANES("vfma_bcast", vfma_bcast(&a[VL / 2], vb, vc), fma_definition(x[VL / 2], y[i], z[i]),
              same_flushed);
        LANES("vneg", vneg(va), from_bits(to_bits(a[i]) ^ 0x80000000u), same);
        LANES("vabs", vabs(va), fabsf(a[i]), same);
        LANES("vsqrt", vsqrt(va), sqrtf(a[i]), same);
        LANES("vfloor", vfloor(va), floorf(x[i]), same);
        LANES("vceil", vceil(va), ceilf(x[i]), same);
        LANES("vround", vround(va), rintf(a[i]), same);
        LANES("vtrunc", vtrunc(va), truncf(a[i]), same);
        /* the result is free where only a is NaN */
        const vf safe_a = vsel(vne(va, va), vset1(2.0f), va);
        LANES("vmax", vmax(safe_a, vb), isnan(y[i]) ? y[i] : fmaxf(isnan(x[i]) ? 2.0f : x[i], y[i]),
              same_operand);
        LANES("vmin", vmin(safe_a, vb), isnan(y[i]) ? y[i] : fminf(isnan(x[i]) ? 2.0f : x[i], y[i]),
              same_operand);
        LANES("vmax_nan", vmax_nan(va, vb), isnan(x[i]) || isnan(y[i]) ? NAN : fmaxf(x[i], y[i]),
              same_operand);
        LANES("vmin_nan", vmin_nan(va, vb), isnan(x[i]) || isnan(y[i]) ? NAN : fminf(x[i], y[i]),
              same_operand);
    }
}

static void masks(void)
{
    float a[VL], b[VL], x[VL], y[VL];
    for (int round = 0; round < 2000; round++) {
        fill(a, 0);
        fill(b, 0);
        if (round & 1)
            memcpy(b, a, sizeof b / 2);
        for (int i = 0; i < VL; i++) {
            x[i] = operand(a[i]);
            y[i] = operand(b[i]);
        }
        const vf va = vload(a), vb = vload(b);
        MASK_LANES("vlt", vlt(va, vb), x[i] < y[i]);
        MASK_LANES("vle", vle(va, vb), x[i] <= y[i]);
        MASK_LANES("vgt", vgt(va, vb), x[i] > y[i]);
        MASK_LANES("vge", vge(va, vb), x[i] >= y[i]);
        MASK_LANES("veq", veq(va, vb), x[i] == y[i]);
        MASK_LANES("vne", vne(va, vb), x[i] != y[i]);
        MASK_LANES("vunord", vunord(va, vb), x[i] != x[i] || y[i] != y[i]);
        const vm less = vlt(va, vb), positive = vgt(va, vzero());
        MASK_LANES("vm_and", vm_and(less, positive), x[i] < y[i] && x[i] > 0.0f);
        MASK_LANES("vm_or", vm_or(less, positive), x[i] < y[i] || x[i] > 0.0f);
        MASK_LANES("vm_xor", vm_xor(less, positive), (x[i] < y[i]) != (x[i] > 0.0f));
        MASK_LANES("vm_not", vm_not(less), !(x[i] < y[i]));
        LANES("vsel", vsel(less, va, vb), x[i] < y[i] ? a[i] : b[i], same);
        int any = 0;
        for (int i = 0; i < VL; i++)
            any |= x[i] < y[i];
        if (vm_any(less) != any)
            fail_int("vm_any", vm_any(less), any);
    }
}

static void integers(void)
{
    int32_t a[VL], b[VL];
    float f[VL];
    INT_LANES("viota", viota(), i);
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < VL; i++) {
            a[i] = (int32_t)random_bits();
            b[i] = round & 1 ? (int32_t)random_bits() : a[i];
        }
        fill(f, 1);
        const vi va = viload(a), vb = viload(b);
        INT_LANES("viload", va, a[i]);
        INT_LANES("viset1", viset1(a[0]), a[0]);
        INT_LANES("viadd", viadd(va, vb), (uint32_t)a[i] + (uint32_t)b[i]);
        INT_LANES("visub", visub(va, vb), (uint32_t)a[i] - (uint32_t)b[i]);
        INT_LANES("vimul", vimul(va, vb), (uint32_t)a[i] * (uint32_t)b[i]);
        INT_LANES("viand", viand(va, vb), a[i] & b[i]);
        INT_LANES("vior", vior(va, vb), a[i] | b[i]);
        INT_LANES("vixor", vixor(va, vb), a[i] ^ b[i]);
        INT_LANES("vimax", vimax(va, vb), a[i] > b[i] ? a[i] : b[i]);
        INT_LANES("vimin", vimin(va, vb), a[i] < b[i] ? a[i] : b[i]);
        INT_LANES("vishl", vishl(va, 7), (uint32_t)a[i] << 7);
        INT_LANES("vishr_u", vishr_u(va, 31), (uint32_t)a[i] >> 31);
        INT_LANES("vishr", vishr(va, 5), floor((double)a[i] / 32.0));
        MASK_LANES("vieq", vieq(va, vb), a[i] == b[i]);
        MASK_LANES("vigt", vigt(va, vb), a[i] > b[i]);
        MASK_LANES("vilt", vilt(va, vb), a[i] < b[i]);
        INT_LANES("visel", visel(vigt(va, vb), va, vb), a[i] > b[i] ? a[i] : b[i]);
        LANES("vcvt_i2f", vcvt_i2f(va), (float)a[i], same);
        INT_LANES("vcvt_f2i", vcvt_f2i(vload(f)), f[i]);
        LANES("vbits2f", vbits2f(va), from_bits((uint32_t)a[i]), same);
        INT_LANES("vf2bits", vf2bits(vload(f)), to_bits(f[i]));
        const vf mantissa = vset1(1.0f + (float)(random_bits() >> 9) * 0x1p-23f);
        float m[VL], n[VL];
        vstore(m, mantissa);
        for (int i = 0; i < VL; i++)
            n[i] = (float)(random_bits() % 253) - 126.0f;
        const vf vn = vload(n);
        LANES("vscale", vscale(mantissa, vmax(vset1(-125.0f), vn)),
              ldexp((double)m[i], n[i] < -125.0f ? -125 : (int)n[i]), same);
        LANES("vldexp", vldexp(mantissa, vadd(vn, vn)), ldexp((double)m[i], 2 * (int)n[i]),
              same_flushed);
    }
}

/* The end of a piece of memory behind which an access is a fault: a page with none mapped behind
 * it, or on a bare board the end of a RAM that holds nothing of the program. */
static char *memory_end(void)
{
#ifdef MEMORY_END
    static char *volatile end = (char *)MEMORY_END; /* volatile: an array of unknown bounds */
    return end;
#else
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *base = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + page, page, PROT_NONE)) {
        fail_int("mmap", 0, 1);
        exit(1);
    }
    return base + page;
#endif
}

static void memory(void)
{
    char *const end = memory_end();
    float x[VL];
    fill(x, 0);
    for (int n = 1; n <= VL; n++) {
        float *p = (float *)(void *)end - n;
        memcpy(p, x, (size_t)n * sizeof *p);
        LANES("vload_n", vload_n(p, n), i < n ? x[i] : 0.0f, same);
        p[-1] = 7.0f;
        vstore_n(p, vadd(vset1(1.0f), vcvt_i2f(viota())), n);
        for (int i = 0; i < n; i++)
            if (!same(p[i], (float)(i + 1)))
                fail("vstore_n", p[i], (float)(i + 1));
        if (!same(p[-1], 7.0f))
            fail("vstore_n, before", p[-1], 7.0f);
    }
    float big[16 * VL + 1];
    for (int k = 0; k < 16 * VL + 1; k++)
        big[k] = (float)k;
    LANES("vload, unaligned", vload(big + 1), (float)(i + 1), same);
#if defined(__arm__) && defined(__ARM_NEON)
    const float *next = big + 1;
    LANES("vload_next", vload_next(&next), (float)(i + 1), same);
    LANES("vload_next, again", vload_next(&next), (float)(i + 1 + VL), same);
#endif
    for (ptrdiff_t s = -15; s < 16; s++) {
        const float *start = s < 0 ? big + 16 * VL : big;
        LANES("vload_stride", vload_stride(start, s), start[i * s], same);
    }
    const vi index = viadd(vimul(viota(), viset1(5)), viset1(3));
    LANES("vgather", vgather(big, index), (float)(5 * i + 3), same);
    float both[2 * VL];
    for (int k = 0; k < 2 * VL; k++)
        both[k] = (float)(k * k);
    LANES("vpairs", vpairs(vload(both), vload(both + VL)),
          VL == 1 ? both[i] : both[2 * i] + both[2 * i + (VL > 1)], same);
    for (int32_t k = 0; k < VL; k++) {
        const vi lanes = viand(viadd(viota(), viset1(k)), viset1(VL - 1));
        LANES("vpermute", vpermute(vload(x), lanes), x[(i + k) % VL], same);
    }
    vstore_stride(big + 2, vset1(-1.0f), 3);
    for (int k = 0; k < 16 * VL + 1; k++) {
        const float want = k >= 2 && k <= 2 + 3 * (VL - 1) && k % 3 == 2 ? -1.0f : (float)k;
        if (!same(big[k], want))
            fail("vstore_stride", big[k], want);
    }
}

static void reductions(void)
{
    float a[VL], t[VL];
    for (int round = 0; round < 2000; round++) {
        fill(a, round & 1);
        for (int i = 0; i < VL; i++)
            t[i] = lane_sum(a[i]);
        for (int half = VL / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++)
                t[i] = lane_sum(t[i] + t[i + half]);
        if (!same(vsum(vload(a)), t[0]))
            fail("vsum", vsum(vload(a)), t[0]);
        float high = operand(a[0]), low = high;
        for (int i = 1; i < VL; i++) {
            high = isnan(high) || isnan(a[i]) ? NAN : fmaxf(high, operand(a[i]));
            low = isnan(low) || isnan(a[i]) ? NAN : fminf(low, operand(a[i]));
        }
        if (!same_value(vmaxr(vload(a)), high))
            fail("vmaxr", vmaxr(vload(a)), high);
        if (!same_value(vminr(vload(a)), low))
            fail("vminr", vminr(vload(a)), low);
    }
}

static void macros(const float *AOT_RESTRICT p)
{
    AOT_PREFETCH(p);
    AOT_PREFETCH_L2(p);
    float sum = 0.0f;
    AOT_UNROLL(4)
    for (int i = 0; i < 8; i++) {
        AOT_BARRIER;
        sum += p[i];
    }
    if (!same(sum, 28.0f))
        fail("AOT_UNROLL", sum, 28.0f);
}

int main(void)
{
    static const float numbers[8] = {0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f};
    arithmetic();
    masks();
    integers();
    memory();
    reductions();
    macros(numbers);
    return failures != 0;
}
