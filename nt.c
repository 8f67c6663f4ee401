/* One LAMB step over the fragments of whole or sharded parameters, for CPUs.
 *
 * The arithmetic is that of bert_ds/optim/lamb.py, in float32; sums of squares are taken in
 * float32 over rows of 1,024 elements and in float64 above. Every sum is formed in an order that
 * does not depend on the number of threads.
 *
 * A parameter that lies whole in one fragment is finished while it is still in the cache: its
 * update direction u is kept in a scratch buffer between the two passes. A parameter that is
 * spread over ranks needs their sums first: lamb_apply finishes it, and computes u again, which
 * costs less than memory for it.
 *
 * Called through ctypes: nothing but libm and OpenMP, no headers of Python or torch. Without
 * OpenMP it compiles to one thread.
 */
#include <math.h>
#include <immintrin.h>
#include <stdint.h>

#define ROW 1024            /* elements summed in float32 */
#define BLOCK (16 * ROW)    /* elements a thread takes at a time */
#define SMALL (4 * BLOCK)   /* fragments up to here are done by one thread each */

typedef struct {
    float gradient_scale;      /* 1 / clipping divisor */
    float beta1, beta2, beta3; /* of m, of v, weight of g in m */
    float inverse_correction1; /* 1 / (1 - beta1^t), or 1 */
    float inverse_correction2;
    float eps, weight_decay;
    double step_size;          /* learning rate, with what is not part of u */
    double lowest, highest;    /* bounds of the trust ratio */
    int32_t is_exempt;         /* ratio is 1 */
} Coefficients;

typedef struct {
    float *weight;
    const float *gradient;
    float *exp_avg, *exp_avg_sq;
    int64_t numel;
    int64_t is_whole;
} Fragment;

static inline __attribute__((always_inline)) float direction(
    float w, float m, float v, const Coefficients *c)
{
    return m * c->inverse_correction1 / (sqrtf(v * c->inverse_correction2) + c->eps)
           + c->weight_decay * w;
}

/* First pass over elements [begin, end): moments, and sums of squares of w, u and g. */
static inline __attribute__((always_inline)) void advance(
    const Fragment *f, float *restrict kept, int keep, int64_t begin, int64_t end,
    const Coefficients *coefficients, double sums[3])
{
    const Coefficients c = *coefficients;
    const float beta2_rest = 1.0f - c.beta2;
    const float *restrict w = f->weight, *restrict g = f->gradient;
    float *restrict m = f->exp_avg, *restrict v = f->exp_avg_sq;
    for (int64_t row = begin; row < end; row += ROW) {
        const int64_t stop = row + ROW < end ? row + ROW : end;
        float ww = 0.0f, uu = 0.0f, gg = 0.0f;
        for (int64_t tile = row; tile < stop; tile += TILE) {
            const int64_t tile_end = tile + TILE < stop ? tile + TILE : stop;
            for (int64_t k = tile; k < tile + TILE; k += 16) {
                __builtin_prefetch(w + k + AHEAD, 0, LOC);
                __builtin_prefetch(g + k + AHEAD, 0, LOCN);
                __builtin_prefetch(m + k + AHEAD, 0, LOCN);
                __builtin_prefetch(v + k + AHEAD, 0, LOCN);
            }
#if NT
            if (keep && tile_end - tile == TILE && !(((uintptr_t)m | (uintptr_t)v) & 63)) {
            float mt[TILE] __attribute__((aligned(64))), vt[TILE] __attribute__((aligned(64)));
#pragma omp simd reduction(+ : ww, uu, gg)
            for (int64_t j = 0; j < TILE; j++) {
                const int64_t i = tile + j;
                const float gi = g[i] * c.gradient_scale;
                const float mi = c.beta1 * m[i] + c.beta3 * gi;
                const float vi = c.beta2 * v[i] + beta2_rest * gi * gi;
                const float ui = direction(w[i], mi, vi, &c);
                mt[j] = mi; vt[j] = vi;
                kept[i] = ui;
                ww += w[i] * w[i]; uu += ui * ui; gg += gi * gi;
            }
            for (int j = 0; j < TILE; j += 16) {
                _mm512_stream_ps(m + tile + j, _mm512_load_ps(mt + j));
                _mm512_stream_ps(v + tile + j, _mm512_load_ps(vt + j));
            }
            continue; }
#endif
#pragma omp simd reduction(+ : ww, uu, gg)
            for (int64_t i = tile; i < tile_end; i++) {
                const float gi = g[i] * c.gradient_scale;
                const float mi = c.beta1 * m[i] + c.beta3 * gi;
                const float vi = c.beta2 * v[i] + beta2_rest * gi * gi;
                const float ui = direction(w[i], mi, vi, &c);
                m[i] = mi;
                v[i] = vi;
                if (keep) kept[i] = ui;
                ww += w[i] * w[i];
                uu += ui * ui;
                gg += gi * gi;
            }
        }
        sums[0] += ww;
        sums[1] += uu;
        sums[2] += gg;
    }
}

/* Second pass, u from the scratch buffer. */
static void apply_kept(const Fragment *f, const float *restrict kept, int64_t begin, int64_t end,
                       float multiplier)
{
    float *restrict w = f->weight;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) w[i] -= multiplier * kept[i];
}

/* Second pass, u computed again. */
static void apply_again(const Fragment *f, int64_t begin, int64_t end,
                        const Coefficients *coefficients, float multiplier)
{
    const Coefficients c = *coefficients;
    float *restrict w = f->weight;
    const float *restrict m = f->exp_avg, *restrict v = f->exp_avg_sq;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) w[i] -= multiplier * direction(w[i], m[i], v[i], &c);
}

static float multiplier_of(const double *squares, int64_t stride, const Coefficients *c)
{
    const double w = sqrt(squares[0]), u = sqrt(squares[stride]);
    double ratio = w / u;
    if (ratio < c->lowest) ratio = c->lowest;
    if (ratio > c->highest) ratio = c->highest;
    if (c->is_exempt || w == 0.0 || u == 0.0) ratio = 1.0;
    return (float)(c->step_size * ratio);
}

#include <omp.h>
static int64_t reversed_block(int64_t b, int64_t n, int t){ int64_t chunk=(n+t-1)/t; (void)chunk; int me=omp_get_thread_num(); int64_t q=n/t,r=n%t; int64_t lo= me<r? me*(q+1): r*(q+1)+(me-r)*q; int64_t len= me<r?q+1:q; return lo+(len-1-(b-lo)); }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A fragment by one thread, from end to end. */
static void step_small(const Fragment *f, const Coefficients *c, float *kept, double *squares,
                       int64_t stride)
{
    double sums[3] = {0.0, 0.0, 0.0};
    for (int64_t b = 0; b < f->numel; b += BLOCK)
        advance(f, kept, 1, b, least(b + BLOCK, f->numel), c, sums);
    for (int k = 0; k < 3; k++) squares[k * stride] = sums[k];
    if (f->is_whole) apply_kept(f, kept, 0, f->numel, multiplier_of(squares, stride, c));
}

/* A fragment by all threads. `partial` has room for 3 sums a block. */
static void step_large(const Fragment *f, const Coefficients *c, float *scratch, int64_t room,
                       double *partial, double *squares, int64_t stride, int num_threads)
{
    const int64_t num_blocks = (f->numel + BLOCK - 1) / BLOCK;
    const int keep = f->is_whole && f->numel <= room;
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t b = 0; b < num_blocks; b++) {
        double sums[3] = {0.0, 0.0, 0.0};
        const int64_t begin = b * BLOCK, end = least(begin + BLOCK, f->numel);
        if (keep)
            advance(f, scratch, 1, begin, end, c, sums);
        else
            advance(f, scratch, 0, begin, end, c, sums);
        for (int k = 0; k < 3; k++) partial[3 * b + k] = sums[k];
    }
    double totals[3] = {0.0, 0.0, 0.0};
    for (int64_t b = 0; b < num_blocks; b++)
        for (int k = 0; k < 3; k++) totals[k] += partial[3 * b + k];
    for (int k = 0; k < 3; k++) squares[k * stride] = totals[k];
    if (!f->is_whole) return;
    const float multiplier = multiplier_of(squares, stride, c);
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t b = 0; b < num_blocks; b++) {
        const int64_t rb = REV ? reversed_block(b, num_blocks, num_threads) : b;
        const int64_t begin = rb * BLOCK, end = least(begin + BLOCK, f->numel);
        if (keep)
            apply_kept(f, scratch, begin, end, multiplier);
        else
            apply_again(f, begin, end, c, multiplier);
    }
}

/* Sizes that the caller makes buffers by. */
int64_t lamb_block(void) { return BLOCK; }
int64_t lamb_small(void) { return SMALL; }

/* Moments and sums of squares of all fragments; weights of those that are whole.
 *
 * squares: [3, count], rows of w, u, g.
 * scratch: room floats, at least SMALL a thread. partial: 3 doubles a block of the largest.
 */
void lamb_advance(const Fragment *fragments, int64_t count, const Coefficients *c, double *squares,
                  float *scratch, int64_t room, double *partial, int num_threads)
{
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int64_t i = 0; i < count; i++) {
        if (fragments[i].numel > SMALL) continue;
#ifdef _OPENMP
        extern int omp_get_thread_num(void);
        float *kept = scratch + (int64_t)omp_get_thread_num() * SMALL;
#else
        float *kept = scratch;
#endif
        step_small(&fragments[i], c, kept, squares + i, count);
    }
    for (int64_t i = 0; i < count; i++)
        if (fragments[i].numel > SMALL)
            step_large(&fragments[i], c, scratch, room, partial, squares + i, count, num_threads);
}

/* Weights of the fragments that are not whole. multipliers: float64 [count], lr times ratio. */
void lamb_apply(const Fragment *fragments, int64_t count, const Coefficients *c,
                const double *multipliers, int num_threads)
{
    for (int64_t i = 0; i < count; i++) {
        const Fragment *f = &fragments[i];
        if (f->is_whole) continue;
        const int64_t num_blocks = (f->numel + BLOCK - 1) / BLOCK;
        const float multiplier = (float)multipliers[i];
#pragma omp parallel for schedule(static) num_threads(num_threads) if (f->numel > SMALL)
        for (int64_t b = 0; b < num_blocks; b++)
            apply_again(f, b * BLOCK, least((b + 1) * BLOCK, f->numel), c, multiplier);
    }
}
