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
    const char *model;
    assay_precision precision;
    const char *variant, *modules; /* NULL: none */
    assay_recompute_granularity recompute;
    double capacity;
    assay_drop_policy policy;
    bool pads, planted;
    assay_row_padding multiple;
    int64_t waits; /* inside layers, in a step */
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
    snprintf(o.variant, sizeof o.variant, "%s", w->variant ? w->variant : "");
    o.precision = w->precision;
    o.recompute_granularity = w->recompute;
    snprintf(o.recompute_modules, sizeof o.recompute_modules, "%s", w->modules ? w->modules : "");
    o.moe_expert_capacity_factor = w->capacity;
    o.moe_pad_expert_input_to_capacity = w->pads;
    o.moe_token_drop_policy = w->policy;
    o.moe_router_padding_for_quantization = w->multiple;
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
                     w->model, assay_precision_name(w->precision), o.variant, (long long)step,
                     (long long)s.inside, (long long)w->waits);
        cr_expect_eq(e->run.layer_waits, w->waits, "%s '%s', step %lld: by its own count %lld, expected %lld",
                     assay_precision_name(w->precision), o.variant, (long long)step,
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
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_BF16},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_BF16, .recompute = ASSAY_RECOMPUTE_FULL},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_BF16,
         .recompute = ASSAY_RECOMPUTE_SELECTIVE,
         .modules = "moe"},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_BF16, .variant = "linear=k0,router=k0"},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_FP32},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_FP32, .recompute = ASSAY_RECOMPUTE_FULL},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_FP32, .variant = "linear=k0"},
        {.model = "mixtral", .precision = ASSAY_PRECISION_BF16},
        {.model = "olmoe", .precision = ASSAY_PRECISION_BF16},
        {.model = "olmoe",
         .precision = ASSAY_PRECISION_BF16,
         .variant = "linear=k3",
         .recompute = ASSAY_RECOMPUTE_FULL},
        {.model = "olmoe", .precision = ASSAY_PRECISION_FP32},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_waits(&ways[i]);
}

/* What a capacity leaves, and zeros behind an expert's rows. */
Test(engine_host_waits, none_where_rows_are_let_go_or_added)
{
    static const way ways[] = {
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_BF16, .capacity = 0.5},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_BF16,
         .recompute = ASSAY_RECOMPUTE_FULL,
         .capacity = 1.0},
        {.model = "olmoe", .precision = ASSAY_PRECISION_FP32, .capacity = 1.0, .policy = ASSAY_DROP_POSITION},
        {.model = "olmoe",
         .precision = ASSAY_PRECISION_BF16,
         .variant = "linear=k0,router=k0",
         .capacity = 0.7},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_BF16,
         .variant = "linear=k3,router=k1",
         .capacity = 0.7},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_BF16, .capacity = 1.0, .pads = true},
        {.model = "mixtral",
         .precision = ASSAY_PRECISION_FP32,
         .recompute = ASSAY_RECOMPUTE_FULL,
         .capacity = 0.5,
         .policy = ASSAY_DROP_POSITION,
         .pads = true},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_BF16, .multiple = ASSAY_PADDING_FP8},
        {.model = "olmoe",
         .precision = ASSAY_PRECISION_BF16,
         .variant = "linear=k0",
         .capacity = 0.5,
         .multiple = ASSAY_PADDING_MXFP8},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_FP32,
         .capacity = 0.5,
         .pads = true,
         .multiple = ASSAY_PADDING_FP8},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_waits(&ways[i]);
}

/* Sizes that somebody on the host reads. */
Test(engine_host_waits, one_where_a_size_is_needed)
{
    static const way ways[] = {
        /* cuBLASLt's products, once for all of a layer's; in each forward */
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_FP32, .variant = "linear=k1", .waits = ALL},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_BF16, .variant = "linear=k1", .waits = ALL},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_FP32,
         .variant = "linear=k1",
         .recompute = ASSAY_RECOMPUTE_FULL,
         .waits = 2 * ALL},
        {.model = "olmoe", .precision = ASSAY_PRECISION_BF16, .variant = "linear=k1", .waits = OTHER_ALL},
        /* and before them, where nothing else says it, how many rows a capacity leaves */
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_BF16,
         .variant = "linear=k1",
         .capacity = 1.0,
         .waits = 2 * ALL},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_FP32,
         .variant = "linear=k1",
         .capacity = 1.0,
         .pads = true,
         .waits = ALL},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_BF16,
         .variant = "linear=k1",
         .multiple = ASSAY_PADDING_FP8,
         .waits = ALL},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_waits(&ways[i]);
}

Test(engine_host_waits, a_download_that_is_put_back_is_seen)
{
    static const way planted[] = {
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_BF16, .planted = true, .waits = ALL},
        {.model = "qwen3_moe", .precision = ASSAY_PRECISION_FP32, .planted = true, .waits = ALL},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_BF16,
         .capacity = 0.5,
         .planted = true,
         .waits = ALL},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_BF16,
         .capacity = 0.5,
         .pads = true,
         .planted = true,
         .waits = ALL},
        {.model = "qwen3_moe",
         .precision = ASSAY_PRECISION_BF16,
         .multiple = ASSAY_PADDING_FP8,
         .planted = true,
         .waits = ALL},
    };
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++)
        expect_waits(&planted[i]);
}

#define ALLGATHER " --moe-token-dispatcher-type allgather"
#define CAPACITY " --moe-expert-capacity-factor 0.5"
#define TO_CAPACITY CAPACITY " --moe-pad-expert-input-to-capacity"
#define MULTIPLE " --moe-router-padding-for-quantization fp8"

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
    expect_waits_of_ranks("qwen3_moe", "ep2,dp2", 2, ASSAY_PRECISION_BF16, CAPACITY, ALL);
    expect_waits_of_ranks("olmoe", "ep2,dp2", 2, ASSAY_PRECISION_FP32, TO_CAPACITY, OTHER_ALL);
    expect_waits_of_ranks("qwen3_moe", "ep2,dp2", 2, ASSAY_PRECISION_BF16, ALLGATHER CAPACITY, ALL);
    expect_waits_of_ranks("qwen3_moe", "ep2,dp2", 2, ASSAY_PRECISION_BF16, ALLGATHER, ALL);
}

/* Without ep rows go to all etp ranks, as many as a rank's tokens have: NCCL's sizes follow from shapes, but where a capacity has let
 * some go. */
Test(engine_host_waits, none_over_etp_where_shapes_say_what_travels)
{
    static const struct {
        const char *model;
        assay_precision precision;
        const char *options;
        int64_t waits;
    } ways[] = {
        {"qwen3_moe", ASSAY_PRECISION_BF16, "", 0},
        {"qwen3_moe", ASSAY_PRECISION_FP32, "", 0},
        {"olmoe", ASSAY_PRECISION_BF16, MULTIPLE, 0},
        {"qwen3_moe", ASSAY_PRECISION_BF16, ALLGATHER, 0},
        {"olmoe", ASSAY_PRECISION_FP32, ALLGATHER CAPACITY, 0},
        {"qwen3_moe", ASSAY_PRECISION_BF16, ALLGATHER TO_CAPACITY, 0},
        {"qwen3_moe", ASSAY_PRECISION_BF16, ALLGATHER MULTIPLE, 0},
        {"qwen3_moe", ASSAY_PRECISION_BF16, CAPACITY, ALL},
        {"qwen3_moe", ASSAY_PRECISION_BF16, TO_CAPACITY, ALL},
        {"qwen3_moe", ASSAY_PRECISION_BF16, " --variant linear=k1", ALL},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_waits_of_ranks(ways[i].model, "tp2,sp,etp2", 2, ways[i].precision, ways[i].options,
                              ways[i].waits);
}

static double counted_flops(const char *options)
{
    double sum = 0.0;
    json_t *root;
    const json_t *row;
    size_t i;
    ENGINE_RUN(1, "bench --model %solmoe --batch %s --precision fp32 --warmup 1 --steps 1 --out %s%s", GOLDEN,
               engine_file("batch"), engine_file("out"), options);
    must(assay_json_load(&root, engine_file("out/rank-00000.json")));
    json_array_foreach(json_object_get(root, "operations"), i, row) sum +=
        json_number_value(json_object_get(row, "flops"));
    json_decref(root);
    return sum;
}

/* What a bench counts are the rows that are there: as many as cuBLASLt multiplies, which is told by the host. */
Test(engine_host_waits, rows_that_nobody_has_are_not_counted)
{
    engine_write_batch(engine_file("batch"), batch_shape, 4, 61, 5);
    const double all = counted_flops(""), left = counted_flops(CAPACITY),
                 known = counted_flops(CAPACITY " --variant linear=k1");
    cr_expect_lt(left, all);
    cr_expect_float_eq(left, known, 0.0, "%.0f FLOPs, of counts that the host knows %.0f", left, known);
}

/* A run with a trace waits for the counts, and its shapes hold no row too many. */
Test(engine_host_waits, counts_on_the_host_change_no_bit)
{
    static const struct {
        const char *model, *layout;
        int world;
        const char *precision, *options;
    } ways[] = {
        {"qwen3_moe", "tp1", 1, "bf16", CAPACITY},
        {"olmoe", "tp1", 1, "fp32", CAPACITY " --moe-token-drop-policy position"},
        {"olmoe", "tp1", 1, "bf16", CAPACITY " --variant linear=k0,router=k0"},
        {"qwen3_moe", "tp1", 1, "bf16", CAPACITY " --variant linear=k3,router=k1"},
        {"qwen3_moe", "tp1", 1, "bf16", TO_CAPACITY},
        {"mixtral", "tp1", 1, "fp32", MULTIPLE},
        {"olmoe", "tp1", 1, "bf16", CAPACITY MULTIPLE " --recompute-granularity full"},
        {"qwen3_moe", "ep2,dp2", 2, "bf16", CAPACITY},
        {"olmoe", "ep2,dp2", 2, "fp32", TO_CAPACITY " --moe-token-drop-policy position"},
        {"qwen3_moe", "ep2,dp2", 2, "bf16", ALLGATHER CAPACITY MULTIPLE},
        {"qwen3_moe", "tp2,sp,etp2", 2, "bf16", CAPACITY},
        {"qwen3_moe", "tp2,sp,etp2", 2, "bf16", ""},
        {"olmoe", "tp2,sp,etp2", 2, "bf16", MULTIPLE},
        {"qwen3_moe", "tp2,sp,etp2", 2, "fp32", ALLGATHER},
        {"qwen3_moe", "tp2,sp,etp2", 2, "bf16", ALLGATHER CAPACITY},
        {"qwen3_moe", "tp2,sp,etp2", 2, "bf16", ALLGATHER TO_CAPACITY},
        {"qwen3_moe", "tp2,sp,etp2", 2, "bf16", ALLGATHER CAPACITY MULTIPLE},
    };
    engine_write_batch(engine_file("batch"), batch_shape, 4, 61, 5);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char trace[32];
        snprintf(trace, sizeof trace, "trace%zu", i);
        engine_set_stream_seed((int)(i % 3));
        ENGINE_RUN(ways[i].world,
                   "step --model %s%s --batch %s --layout %s --precision %s --out %s --trace %s%s", GOLDEN,
                   ways[i].model, engine_file("batch"), ways[i].layout, ways[i].precision,
                   engine_file("waits"), engine_file(trace), ways[i].options);
        ENGINE_RUN(ways[i].world, "step --model %s%s --batch %s --layout %s --precision %s --out %s%s",
                   GOLDEN, ways[i].model, engine_file("batch"), ways[i].layout, ways[i].precision,
                   engine_file("goes_on"), ways[i].options);
        cr_expect_eq(engine_n_different(engine_file("goes_on"), engine_file("waits")), 0, "%s %s %s%s",
                     ways[i].model, ways[i].layout, ways[i].precision, ways[i].options);
    }
}

/* Waits of one step of a model of so many layers of experts with an expert bias. */
static int64_t waits_of_layers(int layers)
{
    static const int64_t shape[4] = {1, MICROBATCHES, 2, 7};
    char model[ENGINE_PATH], text[1024];
    assay_train_options o;
    gpu_engine *e;
    snprintf(text, sizeof text,
             "{\"model_type\":\"megatron\",\"num_layers\":%d,\"hidden_size\":16,\"ffn_hidden_size\":20,"
             "\"num_attention_heads\":2,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":61,"
             "\"num_moe_experts\":4,\"moe_router_topk\":2,\"moe_ffn_hidden_size\":12,"
             "\"moe_router_enable_expert_bias\":true,\"moe_router_score_function\":\"sigmoid\"}",
             layers);
    snprintf(model, sizeof model, "%s/of%d", engine_folder, layers);
    engine_write_config(model, text);
    engine_write_batch(engine_file("batch"), shape, 4, 61, 5);
    assay_train_options_default(&o);
    snprintf(o.model, sizeof o.model, "%s", model);
    snprintf(o.batch, sizeof o.batch, "%s", engine_file("batch"));
    o.draw_weights = 3;
    must(gpu_engine_open(&o, false, &e));
    must(gpu_engine_step(e, 0));
    const int64_t waits = e->run.comm.waits; /* of the step */
    gpu_engine_close(e, false);
    return waits;
}

/* The counts of a step, which an expert bias follows, are read once for all layers. */
Test(engine_host_waits, an_expert_bias_waits_once_for_all_layers)
{
    const int64_t two = waits_of_layers(2);
    const int64_t five = waits_of_layers(5);
    cr_expect_eq(five, two, "of 5 layers %lld waits, of 2 %lld", (long long)five, (long long)two);
    cr_expect_leq(two, 6);
}
