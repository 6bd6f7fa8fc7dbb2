/* Learning-rate schedules against Megatron-LM's tables (golden/ops/lr_schedule*). */
#include "core/files/tensorfile.h"
#include "tests/support/ref_model.h"

typedef struct style {
    const char *name;
    assay_lr_decay_style decay;
    assay_wsd_decay_style wsd;
} style;
static const style styles[] = {
    {"constant", ASSAY_LR_CONSTANT, ASSAY_WSD_LINEAR},
    {"linear", ASSAY_LR_LINEAR, ASSAY_WSD_LINEAR},
    {"cosine", ASSAY_LR_COSINE, ASSAY_WSD_LINEAR},
    {"WSD.linear", ASSAY_LR_WSD, ASSAY_WSD_LINEAR},
    {"WSD.cosine", ASSAY_LR_WSD, ASSAY_WSD_COSINE},
    {"WSD.exponential", ASSAY_LR_WSD, ASSAY_WSD_EXPONENTIAL},
    {"WSD.minus_sqrt", ASSAY_LR_WSD, ASSAY_WSD_MINUS_SQRT},
};

static double metadata_number(const assay_tensorfile *f, const char *key)
{
    const char *text = assay_tensorfile_metadata(f, key);
    cr_assert_not_null(text, "no metadata %s", key);
    return strtod(text, NULL);
}

static void check_table(const char *file)
{
    char path[ASSAY_PATH];
    assay_tensorfile *f;
    assay_train_options o;
    snprintf(path, sizeof path, "%s/golden/ops/%s", ASSAY_SOURCE_DIR, file);
    require_ok(assay_tensorfile_open(&f, path), file);
    assay_train_options_default(&o);
    o.lr = metadata_number(f, "max_lr");
    o.min_lr = metadata_number(f, "min_lr");
    o.lr_warmup_init = metadata_number(f, "init_lr");
    o.lr_warmup_iters = (int64_t)metadata_number(f, "lr_warmup_steps");
    o.lr_decay_iters = (int64_t)metadata_number(f, "lr_decay_steps");
    o.lr_wsd_decay_iters = (int64_t)metadata_number(f, "lr_wsd_decay_steps");
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
        const assay_tensor_info *t = assay_tensorfile_find(f, styles[i].name);
        cr_assert_not_null(t, "%s", styles[i].name);
        o.lr_decay_style = styles[i].decay;
        o.lr_wsd_decay_style = styles[i].wsd;
        for (int64_t step = 0; step < t->count; step++) {
            double want;
            memcpy(&want, (const char *)t->data + step * 8, sizeof want);
            const double got = ref_learning_rate(&o, step);
            cr_expect(fabs(got - want) <= 1e-15 * o.lr, "%s: step %ld: %.17g, table %.17g", styles[i].name,
                      (long)step, got, want);
        }
    }
    assay_tensorfile_close(f);
}

Test(ref_schedule, with_warmup)
{
    check_table("lr_schedule.safetensors");
}
Test(ref_schedule, without_warmup)
{
    check_table("lr_schedule_no_warmup.safetensors");
}

/* lr_decay_iters 0 means train_iters. */
Test(ref_schedule, decay_defaults_to_train_iters)
{
    assay_train_options o;
    assay_train_options_default(&o);
    o.lr = 1.0;
    o.min_lr = 0.0;
    o.lr_warmup_iters = 0;
    o.lr_decay_style = ASSAY_LR_LINEAR;
    o.train_iters = 4;
    cr_expect_eq(ref_learning_rate(&o, 0), 1.0);
    cr_expect_eq(ref_learning_rate(&o, 1), 0.75);
    cr_expect_eq(ref_learning_rate(&o, 5), 0.0);
}
