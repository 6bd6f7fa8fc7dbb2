/* Microbatches launched as CUDA graphs: the bits of launches one by one, in every layout that takes them; a number that changes is
 * captured again; what cannot be captured is refused by name. */
#include "tests/support/engine.h"

TestSuite(engine_graph, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

#define MODEL(tied)                                                                                          \
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":24,\"ffn_hidden_size\":20,"               \
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,\"qk_layernorm\":" \
    "true,\"add_qkv_bias\":true,\"tie_word_embeddings\":" tied ",\"init_method_std\":0.2}"
/* A dense layer, then experts beside a shared one. */
#define MOE(more)                                                                                            \
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":24,\"ffn_hidden_size\":20,"               \
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,\"num_moe_"        \
    "experts\""                                                                                              \
    ":6,\"moe_router_topk\":2,\"layer_is_moe\":[false,true,true],\"moe_ffn_hidden_size\":12,"                \
    "\"moe_shared_expert_intermediate_size\":10," more "\"init_method_std\":0.2}"
#define SIGMOID "\"moe_router_score_function\":\"sigmoid\",\"moe_router_enable_expert_bias\":true,"
#define BALANCING                                                                                            \
    "--moe-router-load-balancing-type aux_loss,seq_aux_loss,global_aux_loss --moe-aux-loss-coeff "           \
    "0.05,0.1,0.2 --moe-z-loss-coeff 0.01"
/* Of sequences, which one rank has whole. */
#define BALANCING_OF_OWN_TOKENS                                                                              \
    "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.1 --precision bf16"
#define OPTIONS DRAWN "--adam-eps 1e-2 --clip-grad 0.5"
enum { MICROBATCHES = 4, STEPS = 3 };

/* mask 2: as many targets in every microbatch; 5: other numbers in every step. */
static const char *write_inputs(const char *text, int mask)
{
    static char model[ENGINE_PATH];
    const int64_t train[4] = {STEPS, MICROBATCHES, 2, 7};
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, text);
    engine_write_batch(engine_file("train"), train, 4, 37, mask);
    return model;
}

typedef struct row {
    int world;
    const char *layout, *options, *model;
    int mask;
    long captured, launched, one_by_one; /* of rank 0 */
} row;

/* Forward and backward of 4 microbatches (2 with dp2) in 3 steps; the first of each is never captured. */
static const row rows[] = {
    {1, "1", "", MODEL("false"), 2, 8, 14, 2},
    {1, "1", "--precision bf16", MODEL("true"), 2, 8, 14, 2},
    {1, "1", "--precision bf16 --variant k0", MODEL("false"), 2, 8, 14, 2},
    {1, "1", "--calculate-per-token-loss=false --precision bf16", MODEL("false"), 2, 8, 14, 2},
    {1, "1", "--recompute-granularity full --recompute-method uniform", MODEL("true"), 2, 8, 14, 2},
    {1, "1", "--recompute-granularity selective --recompute-modules core_attn,layernorm,mlp", MODEL("false"),
     2, 8, 14, 2},
    {1, "1", "--freeze embedding.*,decoder.layers.0.*", MODEL("false"), 2, 8, 14, 2},
    {1, "1", "--gradient-accumulation-fusion=false --precision bf16", MODEL("false"), 2, 8, 14, 2},
    {1, "1", "--loss-subbatch-sequence-length 3 --precision bf16", MODEL("true"), 2, 8, 14, 2},
    {2, "dp2", "", MODEL("false"), 2, 4, 6, 2},
    {2, "dp2,zero1", "--precision bf16", MODEL("true"), 2, 4, 6, 2},
    /* the last backward of a step starts reductions, its first forward waits for parameters */
    {2, "dp2,zero1", "--overlap-grad-reduce --overlap-param-gather", MODEL("false"), 2, 2, 3, 7},
    {2, "dp2,zero1", "--overlap-grad-reduce --recompute-granularity full", MODEL("true"), 2, 3, 4, 5},
    /* ... and its first backward, which makes the loss, for those of the output */
    {2, "dp2,zero1", "--overlap-param-gather --loss-subbatch-sequence-length 3 --ddp-bucket-size 64",
     MODEL("false"), 2, 2, 4, 6},
    /* experts */
    {1, "1", "", MOE(""), 2, 8, 14, 2},
    {1, "1", BALANCING " --precision bf16", MOE(""), 2, 8, 14, 2},
    {1, "1", "--moe-router-bias-update-rate 0.1 --precision bf16 --variant k0", MOE(SIGMOID), 2, 8, 14, 2},
    {1, "1", "--moe-shared-expert-overlap --precision bf16", MOE(""), 2, 8, 14, 2},
    {1, "1", "--recompute-granularity full --recompute-method uniform " BALANCING, MOE(""), 2, 8, 14, 2},
    {1, "1", "--recompute-granularity selective --recompute-modules layernorm,moe_act,shared_experts",
     MOE(""), 2, 8, 14, 2},
    {1, "1", "--gradient-accumulation-fusion=false --precision bf16", MOE(""), 2, 8, 14, 2},
    {2, "dp2,zero1",
     "--overlap-grad-reduce --overlap-param-gather --moe-router-load-balancing-type seq_aux_loss "
     "--moe-aux-loss-coeff 0.1",
     MOE(""), 2, 2, 3, 7},
    {2, "dp2", "--overlap-grad-reduce " BALANCING_OF_OWN_TOKENS, MOE(""), 2, 3, 4, 5},
};

/* The numbers of the line that the engine prints. */
__attribute__((noinline)) static void read_counts(const char *log, long n[3])
{
    const char *at = strstr(log, "graphs: ");
    if (at == NULL || sscanf(at, "graphs: %ld passes captured, %ld launched again, %ld one by one", &n[0],
                             &n[1], &n[2]) != 3)
        n[0] = n[1] = n[2] = -1;
}

static void both(const row *r)
{
    long n[3];
    const char *model = write_inputs(r->model, r->mask);
    ENGINE_RUN(r->world, "step --model %s --batch %s --layout %s --out %s %s " OPTIONS, model,
               engine_file("train"), r->layout, engine_file("off"), r->options);
    for (int seed = 0; seed < 2; seed++) {
        engine_set_stream_seed(seed);
        ENGINE_RUN(r->world,
                   "step --model %s --batch %s --layout %s --out %s --enable-cuda-graph %s " OPTIONS, model,
                   engine_file("train"), r->layout, engine_file("on"), r->options);
        char *log = engine_log();
        read_counts(log, n);
        free(log);
        engine_compare(engine_file("on"), engine_file("off"), 0.0, "");
        cr_expect(n[0] == r->captured && n[1] == r->launched && n[2] == r->one_by_one,
                  "%s %s: %ld captured, %ld launched, %ld one by one", r->layout, r->options, n[0], n[1],
                  n[2]);
    }
}

Test(engine_graph, the_bits_are_those_of_launches_one_by_one)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        both(&rows[i]);
}

/* A target weighs 1 / (targets of the step), a number that backwards hold; masks make it another. */
static const row masked = {1, "1", "--precision bf16", MODEL("false"), 5, 15, 7, 2};
/* ... behind forwards that are launched: they leave the counts of their own microbatch. */
static const row masked_experts = {1, "1", BALANCING, MOE(""), 5, 15, 7, 2};

Test(engine_graph, backwards_are_captured_again_where_a_target_weighs_something_else)
{
    both(&masked);
    both(&masked_experts);
}

Test(engine_graph, a_graph_with_a_stale_number_shows)
{
    const char *model = write_inputs(masked.model, masked.mask);
    ENGINE_RUN(1, "step --model %s --batch %s --out %s " OPTIONS, model, engine_file("train"),
               engine_file("off"));
    ENGINE_RUN(1, "step --model %s --batch %s --out %s --enable-cuda-graph --fault stale_graph " OPTIONS,
               model, engine_file("train"), engine_file("on"));
    cr_expect_gt(engine_worst(engine_file("on"), engine_file("off")), 1e-6);
}

typedef struct refusal {
    int world;
    const char *arguments, *says;
} refusal;

static const refusal refusals[] = {
    {2, "--layout tp2", "collectives over tp"},
    {2, "--layout cp2", "collectives over cp"},
    {2, "--layout pp2", "a pipeline"},
    {2, "--layout dp2,zero2", "zero2 and zero3"},
    {1, "--hidden-dropout 0.1", "dropout draws"},
    {1, "--trace /tmp/assay-no-trace", "leave out --trace"},
};
static const refusal of_experts[] = {
    {2, "--layout dp2,ep2", "travel over ep"},
    {1, "--moe-expert-capacity-factor 1", "capacities of experts"},
    {1, "--moe-expert-capacity-factor 1 --moe-pad-expert-input-to-capacity", "capacities of experts"},
    {1, "--moe-router-padding-for-quantization fp8", "rows of experts that are padded"},
    {1, "--moe-input-jitter-eps 0.01", "the router draws"},
    {1, "--moe-router-force-load-balancing", "the router draws"},
    {2, "--layout dp2 " BALANCING, "over the rows of all dp ranks"},
    {1, "--variant linear=k1 --precision bf16", "grouped_linear_fwd mlp.experts.linear_fc1: the kernel"},
};

static void refuse(const char *model_text, const refusal *list, size_t n)
{
    const char *model = write_inputs(model_text, 2);
    for (size_t i = 0; i < n; i++) {
        char line[4 * ENGINE_PATH];
        snprintf(line, sizeof line, "step --model %s --batch %s --enable-cuda-graph --out %s %s " OPTIONS,
                 model, engine_file("train"), engine_file("none"), list[i].arguments);
        engine_must_fail(list[i].world, list[i].says, line);
    }
}

Test(engine_graph, what_cannot_be_captured_is_refused_by_name)
{
    refuse(MODEL("false"), refusals, sizeof refusals / sizeof *refusals);
    refuse(MOE(""), of_experts, sizeof of_experts / sizeof *of_experts);
}
