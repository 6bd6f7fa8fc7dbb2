/* Memory for fewer rows of experts than a router may send to one rank: what fits has the same bits, what does not ends the run and says
 * what would. */
#include "tests/support/engine.h"

TestSuite(engine_rank_capacity, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

static const char model_text[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":2,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,\"init_method_"
    "std\":"
    "0.5,\"num_moe_experts\":12,\"moe_router_topk\":2,\"moe_ffn_hidden_size\":12}";
enum { VOCAB = 37 };
#define FACTOR "--moe-expert-rank-capacity-factor"

/* What the message of the last run expects; 0: it has another. */
static double factor_of_the_log(void)
{
    static const char before[] = "rows of experts; moe_expert_rank_capacity_factor ";
    double was, found = 0.0;
    long long memory;
    static char text[1 << 16];
    char *log = engine_log();
    snprintf(text, sizeof text, "%s", log);
    free(log);
    const char *at = strstr(text, before);
    if (at == NULL ||
        sscanf(at + sizeof before - 1, "%lf has memory for %lld: expected %lf", &was, &memory, &found) != 3)
        cr_log_error("%s", text);
    return found;
}

static void try_layout(const char *layout, int world, const char *words)
{
    static const int64_t train[4] = {2, 6, 2, 7};
    char line[4 * ENGINE_PATH], model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, model_text);
    engine_write_batch(engine_file("train"), train, 4, VOCAB, 3);
    ENGINE_RUN(world, "step --model %s --batch %s --layout %s %s --out %s " DRAWN, model,
               engine_file("train"), layout, words, engine_file("all"));
    /* An even share for each rank is less than one of them gets. */
    double factor = 1.0;
    for (int runs = 0;; runs++) {
        cr_assert_lt(runs, 12, "%s: no factor is enough", layout);
        snprintf(line, sizeof line,
                 "step --model %s --batch %s --layout %s %s --out %s " FACTOR " %.17g " DRAWN, model,
                 engine_file("train"), layout, words, engine_file("fits"), factor);
        if (engine_run(world, "%s", line) == ASSAY_OK) {
            cr_expect_gt(runs, 0, "%s: even shares were enough", layout);
            break;
        }
        const double next = factor_of_the_log();
        cr_assert_gt(next, factor, "%s: %g", layout, next);
        factor = next;
    }
    cr_expect_lt(factor, 6.0, "%s: the worst case", layout);
    engine_compare(engine_file("fits"), engine_file("all"), 0.0, "");
}

Test(engine_rank_capacity, ep2)
{
    try_layout("dp2,ep2", 2, "--precision bf16");
}
Test(engine_rank_capacity, ep3_recompute)
{
    try_layout("dp3,ep3", 3, "--precision fp32 --recompute-granularity full");
}
Test(engine_rank_capacity, ep2_in_halves)
{
    try_layout("dp2,ep2", 2, "--precision fp32 --moe-alltoall-halves");
}
Test(engine_rank_capacity, etp2_ep2)
{
    try_layout("tp2,sp,etp2,dp2,ep2", 4, "--precision bf16");
}
