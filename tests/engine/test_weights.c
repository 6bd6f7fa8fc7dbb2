/* Drawn weights of a rank: every element is the formula of docs/CONVENTIONS.md at its global index, whatever the piece and
 * the number of threads. */
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/philox.h"
#include "gpu/model.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float formula(const char *name, double std, uint64_t seed, int64_t at)
{
    return (float)((double)assay_philox_normal4(seed, assay_name_hash(name), (uint64_t)at) *
                   (std * ASSAY_PHILOX_UNIT));
}

/* A piece of two segments in each dimension, as of [gate; up] blocks and zig-zag columns. */
static assay_shard scattered(int64_t rows, int64_t columns)
{
    assay_shard s;
    assay_shard_whole(&s, (const int64_t[]){rows, columns}, 2);
    for (int d = 0; d < 2; d++) {
        const int64_t n = s.global_shape[d], quarter = n / 4;
        const assay_segment cut[2] = {{n - quarter, quarter}, {quarter, quarter}}; /* in the other order */
        assay_shard_set(&s, d, cut, 2);
        s.local_shape[d] = 2 * quarter;
    }
    cr_assert_eq(assay_shard_check(&s, "piece"), ASSAY_OK, "%s", assay_error_message());
    return s;
}

static void agrees(const assay_shard *s, int threads)
{
    assay_param_spec p = {.init = ASSAY_INIT_NORMAL};
    const int64_t n = assay_shard_count(s);
    float *piece = malloc(((size_t)n + 1) * sizeof *piece);
    snprintf(p.name, sizeof p.name, "decoder.layers.3.mlp.linear_fc1.weight");
    memset(piece, 0xff, ((size_t)n + 1) * sizeof *piece);
    gpu_draw_piece(&p, s, 0.02, 77, threads, piece);
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t index[ASSAY_MAX_DIMS], rest = i, at = 0;
        for (int d = s->ndim - 1; d >= 0; d--) {
            index[d] = assay_shard_global_index(s, d, rest % s->local_shape[d]);
            rest /= s->local_shape[d];
        }
        for (int d = 0; d < s->ndim; d++)
            at = at * s->global_shape[d] + index[d];
        const float expected = formula(p.name, 0.02, 77, at);
        bad += memcmp(&piece[i], &expected, sizeof expected) != 0;
    }
    cr_expect_eq(bad, 0, "%lld of %lld elements, %d threads", (long long)bad, (long long)n, threads);
    uint32_t behind;
    memcpy(&behind, &piece[n], sizeof behind);
    cr_expect_eq(behind, UINT32_MAX, "nothing is written behind the piece");
    free(piece);
}

Test(engine_weights, every_element_is_the_formula_at_its_global_index)
{
    static const int threads[] = {1, 2, 3, 16};
    const int64_t shapes[][2] = {{1, 1}, {3, 5}, {257, 131}, {400, 700}};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            assay_shard s;
            assay_shard_whole(&s, shapes[i], 2);
            agrees(&s, threads[t]);
        }
        assay_shard s = scattered(8, 12);
        agrees(&s, threads[t]);
        s = scattered(1024, 800);
        agrees(&s, threads[t]);
        assay_shard_whole(&s, (const int64_t[]){90001}, 1);
        agrees(&s, threads[t]);
        assay_shard_whole(&s, (const int64_t[]){0, 7}, 2);
        agrees(&s, threads[t]);
    }
}

Test(engine_weights, constants_are_constants)
{
    const int64_t n = 70000;
    float *piece = calloc((size_t)n, sizeof *piece);
    assay_shard s;
    assay_shard_whole(&s, &n, 1);
    for (int one = 0; one < 2; one++) {
        const assay_param_spec p = {.init = one ? ASSAY_INIT_ONE : ASSAY_INIT_ZERO, .name = "b"};
        int64_t bad = 0;
        gpu_draw_piece(&p, &s, 0.02, 77, 2, piece);
        for (int64_t i = 0; i < n; i++)
            bad += piece[i] != (one ? 1.0f : 0.0f);
        cr_expect_eq(bad, 0);
    }
    free(piece);
}

/* Nanoseconds per element, shown with ASSAY_TEST_VERBOSE. */
Test(engine_weights, speed)
{
    const int64_t shape[2] = {2048, 8192}, n = shape[0] * shape[1];
    float *piece = malloc((size_t)n * sizeof *piece);
    const assay_param_spec p = {.init = ASSAY_INIT_NORMAL, .name = "w"};
    assay_shard s;
    if (getenv("ASSAY_TEST_VERBOSE")) {
        assay_shard_whole(&s, shape, 2);
        for (int threads = 1; threads <= 4; threads *= 2) {
            const double t = assay_monotonic_s();
            gpu_draw_piece(&p, &s, 0.02, 77, threads, piece);
            fprintf(stderr, "%d threads: %.1f ns\n", threads, (assay_monotonic_s() - t) * 1e9 / (double)n);
        }
    }
    free(piece);
}
