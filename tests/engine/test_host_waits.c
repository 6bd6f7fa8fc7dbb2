/* Where the host waits for the device inside layers: nowhere, but where it has to know a size.  Seen twice: by the engine's own
 * count, and from outside by the simulator's count of what the host asked of its runtime, read around every launch. */
#include "gpu/train.h"
#include "tests/support/engine.h"
#include <assay_sim.h>

TestSuite(engine_host_waits, .timeout = 200, .init = engine_setup, .fini = engine_teardown);

/* golden/models/qwen3_moe: four layers, of which three have experts.  mixtral, olmoe: two layers of experts of 28 and of 10 columns, which
 * are no multiples of 8. */
enum { LAYERS_WITH_EXPERTS = 3, OTHER_LAYERS_WITH_EXPERTS = 2, MICROBATCHES = 3 };
static const int64_t batch_shape[4] = {2, MICROBATCHES, 2, 7};

typedef struct sight {
    int64_t inside;  /* launches of a layer between whose beginnings and ends the host waited */
    int64_t in_pass; /* launches in layers */
    int64_t layer, waits;
    assay_phase phase;
    bool recompute;
} sight;

/* Called at the begin and at the end of every launch. */
static assay_status look(void *user, gpu_run *run, const gpu_span *span)
{
    sight *s = user;
    const int64_t waits = assay_sim_host_waits();
    const bool same = s->layer == run->layer && s->phase == run->phase && s->recompute == span->recompute;
    if (run->layer >= 0 && same) {
        s->inside += waits != s->waits;
        s->in_pass++;
    }
    s->layer = run->layer;
    s->phase = run->phase;
    s->recompute = span->recompute;
    s->waits = waits;
    return ASSAY_OK;
}

/* The planted fault: what the engine did before, the counts of every layer's rows on the host. */
static assay_status download(void *user, gpu_run *run, const char *op, const char *instance, const char *slot,
                             const gpu_value *moved, gpu_value *output, bool *replaced)
{
    int64_t *counts = user;
    (void)instance;
    (void)moved;
    (void)replaced;
    if (strcmp(op, "permute_plan") != 0 || strcmp(slot, "tokens_per_expert") != 0)
        return ASSAY_OK;
    return gpu_run_download(run, counts, output->t.data, gpu_tensor_bytes(output->t), "counts");
}

typedef struct way {
    assay_precision precision;
    const char *variant;
    assay_recompute_granularity recompute;
    const char *modules;
    double capacity;
    bool pads, planted;
    int64_t waits; /* inside layers, in a step */
    const char *model;
} way;

static void must(assay_status st)
{
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

static void expect_waits(const way *w)
{
    static int64_t counts[512];
    assay_train_options o;
    gpu_engine *e;
    assay_train_options_default(&o);
    engine_write_batch(engine_file("batch"), batch_shape, 4, 61, 5);
    snprintf(o.model, sizeof o.model, "%s%s", GOLDEN, w->model);
    snprintf(o.batch, sizeof o.batch, "%s", engine_file("batch"));
    snprintf(o.variant, sizeof o.variant, "%s", w->variant);
    o.precision = w->precision;
    o.recompute_granularity = w->recompute;
    snprintf(o.recompute_modules, sizeof o.recompute_modules, "%s", w->modules);
    o.moe_expert_capacity_factor = w->capacity;
    o.moe_pad_expert_input_to_capacity = w->pads;
    must(gpu_engine_open(&o, false, &e));
    for (int64_t step = 0; step < batch_shape[0]; step++) {
        sight s = {.layer = -1};
        const gpu_observer eye = {look, look, &s};
        e->run.observer = &eye;
        e->run.substitute = w->planted ? download : NULL;
        e->run.substitute_user = counts;
        must(gpu_engine_step(e, step));
        e->run.observer = NULL;
        e->run.substitute = NULL;
        cr_expect_gt(s.in_pass, 50);
        cr_expect_eq(s.inside, w->waits,
                     "%s %s '%s', step %lld: the host waits %lld times inside layers, expected %lld",
                     w->model, assay_precision_name(w->precision), w->variant, (long long)step,
                     (long long)s.inside, (long long)w->waits);
        cr_expect_eq(e->run.layer_waits, w->waits, "%s '%s', step %lld: by its own count %lld, expected %lld",
                     assay_precision_name(w->precision), w->variant, (long long)step,
                     (long long)e->run.layer_waits, (long long)w->waits);
        cr_expect_gt(e->run.comm.waits, e->run.layer_waits, "losses are read behind a step");
    }
    gpu_engine_close(e, false);
    cr_expect_eq(assay_sim_reports(), 0);
}

enum { ALL = LAYERS_WITH_EXPERTS * MICROBATCHES, OTHER_ALL = OTHER_LAYERS_WITH_EXPERTS * MICROBATCHES };

Test(engine_host_waits, none_in_a_layer_whose_counts_stay_on_the_device)
{
    static const way ways[] = {
        {ASSAY_PRECISION_BF16, "", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, 0, "qwen3_moe"},
        {ASSAY_PRECISION_BF16, "", ASSAY_RECOMPUTE_FULL, "", 0.0, false, false, 0, "qwen3_moe"},
        {ASSAY_PRECISION_BF16, "", ASSAY_RECOMPUTE_SELECTIVE, "moe", 0.0, false, false, 0, "qwen3_moe"},
        {ASSAY_PRECISION_BF16, "linear=k0,router=k0", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, 0,
         "qwen3_moe"},
        {ASSAY_PRECISION_FP32, "", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, 0, "qwen3_moe"},
        {ASSAY_PRECISION_FP32, "", ASSAY_RECOMPUTE_FULL, "", 0.0, false, false, 0, "qwen3_moe"},
        {ASSAY_PRECISION_FP32, "linear=k0", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, 0, "qwen3_moe"},
        {ASSAY_PRECISION_BF16, "", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, 0, "mixtral"},
        {ASSAY_PRECISION_BF16, "", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, 0, "olmoe"},
        {ASSAY_PRECISION_BF16, "linear=k3", ASSAY_RECOMPUTE_FULL, "", 0.0, false, false, 0, "olmoe"},
        {ASSAY_PRECISION_FP32, "", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, 0, "olmoe"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_waits(&ways[i]);
}

/* Sizes that somebody on the host reads. */
Test(engine_host_waits, one_where_a_size_is_needed)
{
    static const way ways[] = {
        /* cuBLASLt's products, once for all of a layer's; in each forward */
        {ASSAY_PRECISION_FP32, "linear=k1", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, ALL, "qwen3_moe"},
        {ASSAY_PRECISION_BF16, "linear=k1", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, ALL, "qwen3_moe"},
        {ASSAY_PRECISION_FP32, "linear=k1", ASSAY_RECOMPUTE_FULL, "", 0.0, false, false, 2 * ALL,
         "qwen3_moe"},
        {ASSAY_PRECISION_BF16, "linear=k1", ASSAY_RECOMPUTE_NONE, "", 0.0, false, false, OTHER_ALL, "olmoe"},
        /* the rows that a capacity leaves; with padding, those of each expert, too */
        {ASSAY_PRECISION_BF16, "", ASSAY_RECOMPUTE_NONE, "", 1.0, false, false, ALL, "qwen3_moe"},
        {ASSAY_PRECISION_BF16, "", ASSAY_RECOMPUTE_NONE, "", 1.0, true, false, 2 * ALL, "qwen3_moe"},
        {ASSAY_PRECISION_FP32, "", ASSAY_RECOMPUTE_NONE, "", 1.0, false, false, ALL, "qwen3_moe"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_waits(&ways[i]);
}

Test(engine_host_waits, a_download_that_is_put_back_is_seen)
{
    static const assay_precision precisions[] = {ASSAY_PRECISION_BF16, ASSAY_PRECISION_FP32};
    for (int i = 0; i < 2; i++) {
        const way planted = {precisions[i], "", ASSAY_RECOMPUTE_NONE, "", 0.0, false, true, ALL, "qwen3_moe"};
        expect_waits(&planted);
    }
}

/* Several ranks: one wait for what NCCL sends, in each forward. */
static void expect_waits_of_ranks(const char *model, const char *layout, int world, assay_precision precision,
                                  const char *options, int64_t waits)
{
    engine_write_batch(engine_file("batch"), batch_shape, 4, 61, 5);
    ENGINE_RUN(world,
               "bench --model %s%s --batch %s --layout %s --precision %s --warmup 1 --steps 1 --out %s%s",
               GOLDEN, model, engine_file("batch"), layout, assay_precision_name(precision),
               engine_file("out"), options);
    for (int r = 0; r < world; r++) {
        char name[64];
        json_t *root;
        snprintf(name, sizeof name, "out/rank-%05d.json", r);
        must(assay_json_load(&root, engine_file(name)));
        const json_t *found = json_object_get(root, "host_waits_in_layers");
        cr_assert(json_is_integer(found));
        cr_expect_eq(json_integer_value(found), waits,
                     "%s %s%s: rank %d waits %lld times inside layers, expected %lld", model, layout, options,
                     r, (long long)json_integer_value(found), (long long)waits);
        json_decref(root);
    }
}

Test(engine_host_waits, one_for_the_messages_between_experts)
{
    expect_waits_of_ranks("qwen3_moe", "tp2,sp", 2, ASSAY_PRECISION_BF16, "", 0);
    expect_waits_of_ranks("qwen3_moe", "tp2,sp", 2, ASSAY_PRECISION_FP32, "", 0);
    expect_waits_of_ranks("olmoe", "tp2,sp", 2, ASSAY_PRECISION_BF16, "", 0);
    expect_waits_of_ranks("mixtral", "pp2", 2, ASSAY_PRECISION_BF16, "", 0);
    expect_waits_of_ranks("olmoe", "ep2,dp2", 2, ASSAY_PRECISION_BF16, "", OTHER_ALL);
    expect_waits_of_ranks("qwen3_moe", "ep2,dp2", 2, ASSAY_PRECISION_BF16, "", ALL);
    expect_waits_of_ranks("qwen3_moe", "ep2,dp2", 2, ASSAY_PRECISION_FP32, "", ALL);
    expect_waits_of_ranks("qwen3_moe", "tp2,sp,etp2", 2, ASSAY_PRECISION_BF16, "", ALL);
    expect_waits_of_ranks("qwen3_moe", "ep2,dp2", 2, ASSAY_PRECISION_BF16,
                          " --moe-token-dispatcher-type allgather", ALL);
}
