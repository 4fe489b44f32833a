/* The fp32 FMA peak of one core, in GFLOP/s: ACCUMULATORS independent chains of the widest FMA that
 * the compiler's flags allow, in inline assembly so that no compiler can shorten them. Prints one
 * JSON line with the best of REPEATS runs of about 10 ms.
 *
 *     cc -O2 -march=native fma_peak.c -o fma_peak && taskset -c 0 ./fma_peak
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <time.h>

#define ACCUMULATORS 12
#define REPEATS 9
#define ROUNDS 1600000L

/* One round: every chain advances by one FMA. At two FMA a cycle and a latency of four, eight
 * chains would do. */
#if defined(__AVX512F__)
#define ISA "avx512"
#define LANES 16
#define FMA(n) "vfmadd231ps %%zmm13, %%zmm14, %%zmm" #n "\n\t"
#define ZERO(n) "vpxorq %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n\t"
#elif defined(__AVX2__) && defined(__FMA__)
#define ISA "avx2"
#define LANES 8
#define FMA(n) "vfmadd231ps %%ymm13, %%ymm14, %%ymm" #n "\n\t"
#define ZERO(n) "vpxor %%ymm" #n ", %%ymm" #n ", %%ymm" #n "\n\t"
#elif defined(__aarch64__)
#define ISA "neon"
#define LANES 4
#define FMA(n) "fmla v" #n ".4s, v13.4s, v14.4s\n\t"
#define ZERO(n) "movi v" #n ".4s, #0\n\t"
#elif defined(__x86_64__)
#define ISA "sse2 (multiply, then add)"
#define LANES 4
#define FMA(n) "mulps %%xmm13, %%xmm" #n "\n\taddps %%xmm14, %%xmm" #n "\n\t"
#define ZERO(n) "pxor %%xmm" #n ", %%xmm" #n "\n\t"
#else
#error "no FMA loop for this instruction set"
#endif

#if defined(__aarch64__)
#define CLOBBERS                                                                                   \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v13", "v14"
#else
#define CLOBBERS                                                                                   \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm13", "xmm14"
#endif

#define EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double run(void)
{
    double start = seconds();
    /* Zeroed operands: denormal or infinite ones could be slow. */
    __asm__ volatile(EACH(ZERO) ZERO(13) ZERO(14)::: CLOBBERS);
    for (long i = 0; i < ROUNDS; i++) {
        __asm__ volatile(EACH(FMA)::: CLOBBERS);
    }
    return (double)ROUNDS * ACCUMULATORS * LANES * 2.0 / (seconds() - start) * 1e-9;
}

int main(void)
{
    double best = 0.0;
    for (int i = 0; i < REPEATS; i++) {
        double gflops = run();
        best = gflops > best ? gflops : best;
    }
    printf("{\"isa\": \"%s\", \"gflops\": %.2f}\n", ISA, best);
    return 0;
}
