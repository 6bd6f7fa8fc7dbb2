/* Parts of the engine that need no device: schedule, rectangles of flat ranges, dimensions of values. */
#include "gpu/optimizer.h"
#include "tests/support/engine.h"

TestSuite(engine_parts, .timeout = 60);

static double golden_lr(const assay_tensorfile *f, const char *name, int64_t step)
{
    const assay_tensor_info *t = assay_tensorfile_find(f, name);
    cr_assert(t, "%s", name);
    return tensor_element(t, step);
}

static void schedule_golden(const char *file, int64_t warmup, double init)
{
    static const struct {
        const char *name;
        assay_lr_decay_style style;
        assay_wsd_decay_style wsd;
    } rows[] = {{"constant", ASSAY_LR_CONSTANT, ASSAY_WSD_LINEAR},
                {"linear", ASSAY_LR_LINEAR, ASSAY_WSD_LINEAR},
                {"cosine", ASSAY_LR_COSINE, ASSAY_WSD_LINEAR},
                {"WSD.linear", ASSAY_LR_WSD, ASSAY_WSD_LINEAR},
                {"WSD.cosine", ASSAY_LR_WSD, ASSAY_WSD_COSINE},
                {"WSD.exponential", ASSAY_LR_WSD, ASSAY_WSD_EXPONENTIAL},
                {"WSD.minus_sqrt", ASSAY_LR_WSD, ASSAY_WSD_MINUS_SQRT}};
    assay_tensorfile *f;
    cr_assert_eq(assay_tensorfile_open(&f, file), ASSAY_OK, "%s", assay_error_message());
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_train_options o;
        assay_train_options_default(&o);
        o.lr = 1e-3;
        o.min_lr = 1e-4;
        o.lr_warmup_init = init;
        o.lr_warmup_iters = warmup;
        o.lr_decay_iters = 40;
        o.lr_wsd_decay_iters = 12;
        o.lr_decay_style = rows[i].style;
        o.lr_wsd_decay_style = rows[i].wsd;
        for (int64_t step = 0; step < 48; step++) {
            const double want = golden_lr(f, rows[i].name, step), have = gpu_learning_rate(&o, 48, step);
            cr_expect(fabs(have - want) <= 1e-15 + 1e-12 * want, "%s step %lld: %g, expected %g",
                      rows[i].name, (long long)step, have, want);
        }
    }
    assay_tensorfile_close(f);
}

Test(engine_parts, schedule_agrees_with_golden)
{
    schedule_golden(ASSAY_SOURCE_DIR "/golden/ops/lr_schedule.safetensors", 7, 1e-5);
}
Test(engine_parts, schedule_without_warmup_agrees_with_golden)
{
    schedule_golden(ASSAY_SOURCE_DIR "/golden/ops/lr_schedule_no_warmup.safetensors", 0, 0.0);
}

/* Every flat range is tiled exactly once, in order, by at most 2*ndim - 1 rectangles. */
Test(engine_parts, rectangles_tile_every_flat_range)
{
    const int64_t shape[3] = {3, 4, 5};
    assay_shard whole, boxes[GPU_MAX_PIECES];
    int64_t flat[GPU_MAX_PIECES];
    assay_shard_whole(&whole, shape, 3);
    for (int64_t start = 0; start <= 60; start++)
        for (int64_t length = 0; start + length <= 60; length++) {
            const int n = gpu_flat_rectangles(&whole, start, length, boxes, flat);
            int64_t at = start;
            cr_assert_leq(n, 5);
            for (int i = 0; i < n; i++) {
                cr_assert_eq(flat[i], at);
                cr_assert_eq(assay_shard_check(&boxes[i], "box"), ASSAY_OK);
                for (int64_t local = 0; local < assay_shard_count(&boxes[i]); local++, at++) {
                    int64_t rest = local, index[3], global = 0;
                    for (int d = 2; d >= 0; d--) {
                        index[d] = rest % boxes[i].local_shape[d];
                        rest /= boxes[i].local_shape[d];
                    }
                    for (int d = 0; d < 3; d++)
                        global = global * shape[d] + assay_shard_global_index(&boxes[i], d, index[d]);
                    cr_assert_eq(global, at);
                }
            }
            cr_assert_eq(at, start + length);
        }
}

Test(engine_parts, split_dimension_of_two_blocks)
{
    const gpu_dim d = gpu_dim_split(14, 2, 2, 1);
    cr_expect_eq(d.start, 4);
    cr_expect_eq(d.length, 3);
    cr_expect_eq(d.blocks, 2);
}
