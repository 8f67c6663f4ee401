/* One LAMB step over the fragments of whole or sharded parameters, for CPUs.
 *
 * The arithmetic is that of bert_ds/optim/lamb_rule.py, in float32; sums of squares are taken in
 * float32 over rows of 256 elements and in float64 above.
 *
 * What makes it hard is that a step must be limited by memory bandwidth alone and still repeat bit
 * for bit. So every sum is formed in an order that does not depend on the number of threads: a small
 * fragment by one thread from end to end, a large one by blocks whose sums are added up in their
 * order. ROW and BLOCK decide the bits of the sums and must not change. The kept u may lie in the
 * gradient's memory, so `advance` may declare neither of those two pointers `restrict`.
 *
 * A parameter that lies whole in one fragment is finished while it is still in the cache. Where
 * its gradient may be overwritten, the update direction u is kept there between the two passes;
 * else it is computed again. A parameter that is spread over ranks needs their sums first:
 * lamb_apply finishes it.
 *
 * Called through ctypes: nothing but libm and OpenMP, no headers of Python or torch. Without
 * OpenMP it compiles to one thread.
 */
#include <math.h>
#include <stdint.h>

#define ROW 256             /* elements summed in float32 */
#define BLOCK (512 * ROW)   /* elements a thread takes at a time: long, for the prefetchers */
#define SMALL (BLOCK / 2)   /* fragments up to here are done by one thread each */
#define LINE 16             /* floats in a cache line */
#define TILE (4 * LINE)     /* elements between two rounds of prefetching */
#define AHEAD 512           /* elements from use to prefetch; past the end it does nothing */

typedef struct {
    float gradient_scale;      /* 1 / clipping divisor */
    float beta1, beta2;        /* of m, of v */
    float beta3, beta2_rest;   /* weight of g in m; 1 - beta2, which float32 makes inexact */
    float inverse_correction1; /* 1 / (1 - beta1^t), or 1 */
    float inverse_correction2;
    float eps, weight_decay;
    double step_size;          /* learning rate, with what is not part of u */
    double lowest, highest;    /* bounds of the trust ratio */
    int32_t is_exempt;         /* ratio is 1 */
} Coefficients;

typedef struct { /* seven columns of int64 for the caller */
    float *weight;
    const float *gradient;
    float *exp_avg, *exp_avg_sq;
    float *kept; /* u between the passes, may be the gradient's place; NULL: computed again */
    int64_t numel;
    int64_t is_whole;
} Fragment;

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline __attribute__((always_inline)) float direction(
    float w, float m, float v, const Coefficients *c)
{
    return m * c->inverse_correction1 / (sqrtf(v * c->inverse_correction2) + c->eps)
           + c->weight_decay * w;
}

static inline void fetch(const float *first, const float *second, int64_t begin)
{
    for (int64_t i = begin + AHEAD; i < begin + AHEAD + TILE; i += LINE) {
        __builtin_prefetch(first + i);
        __builtin_prefetch(second + i);
    }
}

/* First pass over elements [begin, end): moments, and sums of squares of w, u and g. */
static inline __attribute__((always_inline)) void advance(
    const Fragment *f, float *kept, int64_t begin, int64_t end, const Coefficients *coefficients,
    double sums[3])
{
    const Coefficients c = *coefficients;
    const float *restrict w = f->weight, *g = f->gradient;
    float *restrict m = f->exp_avg, *restrict v = f->exp_avg_sq;
    for (int64_t row = begin; row < end; row += ROW) {
        const int64_t row_end = least(row + ROW, end);
        float ww = 0.0f, uu = 0.0f, gg = 0.0f;
        for (int64_t tile = row; tile < row_end; tile += TILE) {
            const int64_t tile_end = least(tile + TILE, row_end);
            fetch(w, g, tile);
            fetch(m, v, tile);
#pragma omp simd reduction(+ : ww, uu, gg)
            for (int64_t i = tile; i < tile_end; i++) {
                const float gi = g[i] * c.gradient_scale;
                const float mi = c.beta1 * m[i] + c.beta3 * gi;
                const float vi = c.beta2 * v[i] + c.beta2_rest * gi * gi;
                const float ui = direction(w[i], mi, vi, &c);
                m[i] = mi;
                v[i] = vi;
                if (kept) kept[i] = ui;
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

/* Two loops out of one source: with and without the store. */
static void advance_block(const Fragment *f, int64_t begin, int64_t end, const Coefficients *c,
                          double sums[3])
{
    if (f->kept)
        advance(f, f->kept, begin, end, c, sums);
    else
        advance(f, 0, begin, end, c, sums);
}

/* Second pass over elements [begin, end): w -= multiplier u. */
static void apply_block(const Fragment *f, int64_t begin, int64_t end,
                        const Coefficients *coefficients, float multiplier)
{
    const Coefficients c = *coefficients;
    float *restrict w = f->weight;
    const float *restrict m = f->exp_avg, *restrict v = f->exp_avg_sq, *restrict u = f->kept;
    for (int64_t tile = begin; tile < end; tile += TILE) {
        const int64_t tile_end = least(tile + TILE, end);
        if (u) {
            fetch(w, u, tile);
#pragma omp simd
            for (int64_t i = tile; i < tile_end; i++) w[i] -= multiplier * u[i];
        } else {
            fetch(m, v, tile);
#pragma omp simd
            for (int64_t i = tile; i < tile_end; i++)
                w[i] -= multiplier * direction(w[i], m[i], v[i], &c);
        }
    }
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

/* A fragment by one thread, from end to end. */
static void step_small(const Fragment *f, const Coefficients *c, double *squares, int64_t stride)
{
    double sums[3] = {0.0, 0.0, 0.0};
    advance_block(f, 0, f->numel, c, sums);
    for (int k = 0; k < 3; k++) squares[k * stride] = sums[k];
    if (f->is_whole) apply_block(f, 0, f->numel, c, multiplier_of(squares, stride, c));
}

/* A fragment by all threads. partial: 3 sums a block. */
static void step_large(const Fragment *f, const Coefficients *c, double *partial, double *squares,
                       int64_t stride, int num_threads)
{
    const int64_t num_blocks = (f->numel + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static, 1) num_threads(num_threads)
    for (int64_t b = 0; b < num_blocks; b++) {
        double sums[3] = {0.0, 0.0, 0.0};
        advance_block(f, b * BLOCK, least((b + 1) * BLOCK, f->numel), c, sums);
        for (int k = 0; k < 3; k++) partial[3 * b + k] = sums[k];
    }
    for (int k = 0; k < 3; k++) {
        double total = 0.0;
        for (int64_t b = 0; b < num_blocks; b++) total += partial[3 * b + k];
        squares[k * stride] = total;
    }
    if (!f->is_whole) return;
    const float multiplier = multiplier_of(squares, stride, c);
#pragma omp parallel for schedule(static, 1) num_threads(num_threads)
    for (int64_t b = 0; b < num_blocks; b++)
        apply_block(f, b * BLOCK, least((b + 1) * BLOCK, f->numel), c, multiplier);
}

/* Elements that one thread takes at a time: `partial` holds three sums for each of them. */
int64_t lamb_block(void) { return BLOCK; }

/* Moments and sums of squares of all fragments; weights of those that are whole.
 *
 * squares: [3, count], rows of w, u, g. partial: 3 doubles a block of the largest fragment.
 */
void lamb_advance(const Fragment *fragments, int64_t count, const Coefficients *c, double *squares,
                  double *partial, int num_threads)
{
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int64_t i = 0; i < count; i++)
        if (fragments[i].numel <= SMALL) step_small(&fragments[i], c, squares + i, count);
    for (int64_t i = 0; i < count; i++)
        if (fragments[i].numel > SMALL)
            step_large(&fragments[i], c, partial, squares + i, count, num_threads);
}

/* Weights of the fragments that are not whole. multipliers: [count], step size times ratio. */
void lamb_apply(const Fragment *fragments, int64_t count, const Coefficients *c,
                const double *multipliers, int num_threads)
{
    for (int64_t i = 0; i < count; i++) {
        const Fragment *f = &fragments[i];
        if (f->is_whole) continue;
        const int64_t num_blocks = (f->numel + BLOCK - 1) / BLOCK;
        const float multiplier = (float)multipliers[i];
#pragma omp parallel for schedule(static, 1) num_threads(num_threads) if (f->numel > SMALL)
        for (int64_t b = 0; b < num_blocks; b++)
            apply_block(f, b * BLOCK, least((b + 1) * BLOCK, f->numel), c, multiplier);
    }
}
