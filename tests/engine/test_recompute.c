/* A layer's forward may run again: with its activations released and made a second time before its backward, every
 * gradient, weight, expert bias and count has the same bits. */
#include "gpu/layer.h"
#include "gpu/optimizer.h"
#include "gpu/parallel/pipeline.h"
#include "tests/support/engine.h"

TestSuite(engine_recompute, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

/* Two kinds of MLP, a window, norms of q and k, shared expert with gate, expert bias, all balancing losses. */
static const char both_kinds[] =
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":24,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,\"qk_layernorm\":"
    "true,"
    "\"add_qkv_bias\":true,\"init_method_std\":0.2,\"num_moe_experts\":8,\"moe_router_topk\":2,"
    "\"moe_ffn_hidden_size\":12,\"moe_router_score_function\":\"sigmoid\",\"moe_router_enable_expert_bias\":"
    "true,"
    "\"moe_shared_expert_intermediate_size\":12,\"moe_shared_expert_gate\":true,\"window\":[0,4,0],"
    "\"layer_is_moe\":[true,false,true]}";
#define BALANCING                                                                                            \
    "--moe-router-load-balancing-type aux_loss,seq_aux_loss,global_aux_loss "                                \
    "--moe-aux-loss-coeff 0.02,0.03,0.01 --moe-z-loss-coeff 0.01 "
#define MOE DRAWN BALANCING "--moe-router-bias-update-rate 0.01 --adam-eps 1e-2"
enum { VOCAB = 37, STEPS = 2, MICROBATCHES = 4, ROWS = 2, TOKENS = 7, EXPERTS = 8, LAYERS = 3 };

static const char *write_inputs(void)
{
    static char model[ENGINE_PATH];
    const int64_t forward[2] = {ROWS, TOKENS}, train[4] = {STEPS, MICROBATCHES, ROWS, TOKENS};
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, both_kinds);
    engine_write_batch(engine_file("grads"), forward, 2, VOCAB, 5);
    engine_write_batch(engine_file("train"), train, 4, VOCAB, 3);
    return model;
}

static const char *const ways[] = {
    "--recompute-granularity full",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
    "--recompute-granularity selective",
    "--recompute-granularity selective --recompute-modules layernorm,moe_act,shared_experts,mlp",
    "--recompute-granularity selective --recompute-modules core_attn,moe",
};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* --- the program -------------------------------------------------------------------------------------------- */
/* Gradients of one pass, and weights with expert biases after two steps. */
static void same_bits(const char *layout, int world, const char *precision)
{
    static const char *const batches[2] = {"grads", "train"};
    const char *model = write_inputs();
    for (int i = 0; i < 2; i++) {
        ENGINE_RUN(world, "step --model %s --batch %s --layout %s --precision %s --out %s " MOE, model,
                   engine_file(batches[i]), layout, precision, engine_file("kept"));
        for (int w = 0; w < N_WAYS; w++) {
            ENGINE_RUN(world, "step --model %s --batch %s --layout %s --precision %s --out %s %s " MOE, model,
                       engine_file(batches[i]), layout, precision, engine_file("again"), ways[w]);
            engine_compare(engine_file("again"), engine_file("kept"), 0.0, "");
        }
    }
}

Test(engine_recompute, same_bits_on_one_rank)
{
    same_bits("1", 1, "fp32");
}
Test(engine_recompute, same_bits_on_one_rank_bf16)
{
    same_bits("1", 1, "bf16");
}
Test(engine_recompute, same_bits_tp2_sp_ep2_dp2)
{
    same_bits("tp2,sp,ep2,dp2", 4, "fp32");
}
Test(engine_recompute, same_bits_tp2_etp2)
{
    same_bits("tp2,etp2", 2, "fp32");
}
Test(engine_recompute, same_bits_tp2_ep2)
{
    same_bits("tp2,ep2", 2, "bf16");
}
Test(engine_recompute, same_bits_with_microbatches_in_flight)
{
    same_bits("pp3,dp2,zero1", 6, "fp32");
}

/* --- a layer's last residual and the norm behind it, in one launch -------------------------------------------- */
/* In the trace of a pass: of each layer's forward (again: the second) whether `mlp.residual` ran together with the norm behind it. */
static void last_residuals(const char *dir, bool again, bool together[LAYERS])
{
    assay_trace *t;
    cr_assert_eq(assay_trace_open(&t, dir, true), ASSAY_OK, "%s", assay_error_message());
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, i);
        int layer = 0, end = 0;
        if (op->recompute == again && strcmp(op->op, "add") == 0 &&
            sscanf(op->instance, "decoder.layers.%d.mlp.residual%n", &layer, &end) == 1 && end > 0 &&
            op->instance[end] == '\0')
            together[layer] = op->fused[0] != '\0';
    }
    assay_trace_close(t);
}

/* Together inside a group of layers that run again and behind layers that do not, apart at the ends of a group: what is behind its output
 * is given back with it.  Groups of one size are next to each other here, so that their sizes do not tell them apart. */
Test(engine_recompute, no_launch_crosses_the_end_of_a_group)
{
    static const struct {
        const char *way;
        bool first[LAYERS], again[LAYERS];
    } rows[] = {
        {"", {true, true, true}, {false}},
        {"--recompute-granularity full", {false, false, false}, {false}},
        {"--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
         {true, false, false},
         {false}},
        {"--recompute-granularity full --recompute-method uniform --recompute-num-layers 3",
         {true, true, false},
         {true, false, false}},
        {"--recompute-granularity full --recompute-method block --recompute-num-layers 1",
         {false, true, true},
         {false}},
        {"--recompute-granularity full --recompute-method block --recompute-num-layers 2",
         {false, false, true},
         {false}},
        {"--recompute-granularity selective", {true, true, true}, {false}},
        {"--recompute-granularity selective --recompute-modules layernorm", {false, false, true}, {false}},
    };
    const char *model = write_inputs();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool first[LAYERS] = {false}, again[LAYERS] = {false};
        char dir[ENGINE_PATH];
        snprintf(dir, sizeof dir, "%s/trace%zu", engine_folder, i);
        ENGINE_RUN(1, "step --model %s --batch %s --out %s --trace %s %s " MOE, model, engine_file("grads"),
                   engine_file("out"), dir, rows[i].way);
        last_residuals(dir, false, first);
        last_residuals(dir, true, again);
        for (int l = 0; l < LAYERS; l++)
            cr_expect(first[l] == rows[i].first[l] && again[l] == rows[i].again[l],
                      "%s: layer %d: %d in the first run, %d in the second", rows[i].way, l, first[l],
                      again[l]);
    }
}

Test(engine_recompute, words_that_contradict_are_refused)
{
    static const struct {
        const char *options, *message;
    } rows[] = {
        {"--recompute-granularity some", "recompute_granularity"},
        {"--recompute-modules moe",
         "recompute_modules: expected together with recompute_granularity selective"},
        {"--recompute-num-layers 2",
         "recompute_num_layers: expected together with recompute_granularity full"},
        {"--recompute-granularity selective --recompute-method block", "recompute_method: expected together"},
        {"--recompute-granularity selective --recompute-modules moe,core", "found 'core'"},
        {"--recompute-granularity selective --recompute-modules moe,moe", "moe: more than once"},
        {"--recompute-granularity selective --recompute-modules moe,moe_act", "say one or the other"},
        {"--recompute-granularity selective --recompute-modules mla_up_proj", "found 'mla_up_proj'"},
    };
    const char *model = write_inputs();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[4 * ENGINE_PATH];
        snprintf(line, sizeof line, "step " DRAWN "--model %s --batch %s --out %s %s", model,
                 engine_file("train"), engine_file("out"), rows[i].options);
        engine_must_fail(1, rows[i].message, line);
    }
}

/* --- one step in this process ------------------------------------------------------------------------------- */
/* What a step did: forwards of every layer, counts as the step sums them, and as a running sum of every forward. */
typedef struct step_facts {
    int forwards[LAYERS];
    int64_t counts[LAYERS][EXPERTS], running[LAYERS][EXPERTS];
    size_t kept; /* bytes of a microbatch's activations */
} step_facts;

static assay_status watch(void *user, gpu_run *run, const char *op, const char *instance, const char *slot,
                          const gpu_value *moved, gpu_value *output, bool *replaced)
{
    (void)moved;
    step_facts *f = user;
    int64_t counts[EXPERTS];
    (void)instance;
    (void)replaced; /* nothing is: this only looks */
    if (strcmp(op, "attention_fwd") == 0 &&
        strcmp(slot, "lse") == 0) /* the norms may be in another layer's launch */
        f->forwards[run->layer]++;
    if (strcmp(op, "permute_plan") != 0 || strcmp(slot, "tokens_per_expert") != 0)
        return ASSAY_OK;
    ASSAY_TRY(gpu_run_download(run, counts, output->t.data, sizeof counts, "counts"));
    for (int e = 0; e < EXPERTS; e++)
        f->running[run->layer][e] += counts[e];
    return ASSAY_OK;
}

static assay_status sum_counts(gpu_model *m, step_facts *f)
{
    int64_t *device = NULL;
    CUDA_TRY(cudaMalloc((void **)&device, sizeof f->counts));
    ASSAY_TRY(gpu_step_tokens_per_expert(m, device));
    ASSAY_TRY(gpu_run_download(m->run, f->counts, device, sizeof f->counts, "counts"));
    CUDA_TRY(cudaFree(device));
    return ASSAY_OK;
}

static assay_status one_step(bool recompute, step_facts *f)
{
    static assay_model_config config;
    static assay_grid grid;
    static assay_batches batches;
    static assay_train_options options;
    static gpu_run run;
    static gpu_model m;
    static gpu_optimizer o;
    const assay_rank_env env = {.rank = 0, .world = 1, .local_world = 1};
    const char *model = write_inputs();
    assay_parallel_config layout;
    assay_batch_share share;
    gpu_schedule schedule = {0};
    memset(f, 0, sizeof *f);
    assay_train_options_default(&options);
    options.recompute_granularity = recompute ? ASSAY_RECOMPUTE_FULL : ASSAY_RECOMPUTE_NONE;
    options.draw_weights = 1234;
    options.precision = ASSAY_PRECISION_FP32;
    ASSAY_TRY(assay_config_load(model, &config));
    ASSAY_TRY(assay_layout_parse("1", &layout));
    ASSAY_TRY(assay_grid_make(&layout, &grid));
    ASSAY_TRY(assay_batches_open(&batches, engine_file("train"), VOCAB));
    ASSAY_TRY(assay_batch_share_make(false, batches.microbatches, batches.b, 1, 0, &share));
    ASSAY_TRY(gpu_ctx_init(&run.ctx, 0, 0));
    CUDA_TRY(cudaStreamCreateWithFlags(&run.comm_stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&run.compute_done, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&run.comm_done, cudaEventDisableTiming));
    ASSAY_TRY(gpu_comm_create(&run.comm, &env, &grid, false));
    ASSAY_TRY(gpu_model_create(&m, &run, &config, &grid, &options));
    ASSAY_TRY(gpu_model_set_batch(&m, &batches, &share));
    ASSAY_TRY(gpu_pipeline_schedule(1, 1, 0, share.n_microbatches, &schedule));
    m.chunks[0].n_in_flight = gpu_pipeline_in_flight(&schedule, 0);
    ASSAY_TRY(gpu_optimizer_create(&o, &m, true));
    m.state = (gpu_arena){.counting = true};
    ASSAY_TRY(gpu_optimizer_alloc(&o));
    const size_t bytes = m.state.peak;
    ASSAY_TRY(gpu_arena_create(&m.state, bytes));
    ASSAY_TRY(gpu_optimizer_alloc(&o));
    ASSAY_TRY(gpu_model_weights(&m, model, gpu_optimizer_set_weight, &o));
    ASSAY_TRY(gpu_model_allocate(&m));
    run.substitute = watch;
    run.substitute_user = f;
    m.targets = 50;
    ASSAY_TRY(gpu_optimizer_zero_grad(&o));
    ASSAY_TRY(gpu_forward_backward(&m, &batches, &share, &schedule, 0));
    f->kept = m.chunks[0].in_flight[0].arena.peak;
    const assay_status st = sum_counts(&m, f);
    gpu_comm_destroy(&run.comm, false);
    gpu_optimizer_destroy(&o);
    gpu_model_destroy(&m);
    CUDA_TRY(cudaEventDestroy(run.compute_done));
    CUDA_TRY(cudaEventDestroy(run.comm_done));
    CUDA_TRY(cudaStreamDestroy(run.comm_stream));
    gpu_ctx_destroy(&run.ctx);
    assay_batches_close(&batches);
    gpu_pipeline_schedule_free(&schedule);
    free(run.host);
    memset(&run, 0, sizeof run); /* the next step begins anew */
    memset(&m, 0, sizeof m);
    memset(&o, 0, sizeof o);
    return st;
}

static void run_step(bool recompute, step_facts *f)
{
    cr_assert_eq(one_step(recompute, f), ASSAY_OK, "%s", assay_error_message());
}

Test(engine_recompute, every_layer_goes_forward_once_more_and_less_is_kept)
{
    step_facts kept, again;
    run_step(true, &again);
    for (int l = 0; l < LAYERS; l++)
        cr_expect_eq(again.forwards[l], 2 * MICROBATCHES, "layer %d: %d forwards", l, again.forwards[l]);
    run_step(false, &kept);
    for (int l = 0; l < LAYERS; l++)
        cr_expect_eq(kept.forwards[l], MICROBATCHES, "layer %d: %d forwards", l, kept.forwards[l]);
    cr_expect_lt(again.kept, kept.kept);
}

Test(engine_recompute, counts_of_the_step_do_not_depend_on_how_often_a_layer_went_forward)
{
    step_facts kept, again;
    run_step(true, &again);
    run_step(false, &kept);
    cr_expect_eq(memcmp(kept.counts, again.counts, sizeof kept.counts), 0);
    int64_t tokens = 0;
    for (int e = 0; e < EXPERTS; e++)
        tokens += kept.counts[0][e];
    cr_expect_eq(tokens, MICROBATCHES * ROWS * TOKENS * 2);
}

/* The planted fault: counts as a running sum inside the forward, as the engine once had them. */
Test(engine_recompute, a_running_sum_of_counts_would_be_caught)
{
    step_facts kept, again;
    run_step(true, &again);
    run_step(false, &kept);
    cr_expect_eq(memcmp(kept.running, kept.counts, sizeof kept.counts), 0);
    cr_expect_neq(memcmp(kept.running, again.running, sizeof kept.running), 0);
}
