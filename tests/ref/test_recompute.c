/* A forward of the reference leaves nothing but what it may leave twice: losses and counts at the place of its
 * microbatch. */
#include "ref/stage.h"
#include "tests/support/ref_model.h"

static const char moe[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":2,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":29,\"init_method_"
    "std\":0.2,"
    "\"num_moe_experts\":4,\"moe_router_topk\":2,\"moe_ffn_hidden_size\":8,\"layer_is_moe\":[true,true],"
    "\"moe_router_enable_expert_bias\":true,\"moe_router_score_function\":\"sigmoid\"}";
enum { LAYERS = 2, EXPERTS = 4, MICROBATCHES = 2 };

typedef struct sums {
    int64_t counts[MICROBATCHES * LAYERS * EXPERTS];
    double loss[MICROBATCHES], aux[MICROBATCHES * LAYERS * REF_LOSSES];
    int64_t global_counts[MICROBATCHES * LAYERS * EXPERTS];
} sums;

static sums copy_sums(const ref_engine *e)
{
    sums s;
    memcpy(s.counts, e->ranks[0].tokens_per_expert, sizeof s.counts);
    memcpy(s.loss, e->ranks[0].loss_sums, sizeof s.loss);
    memcpy(s.aux, e->ranks[0].aux_losses, sizeof s.aux);
    memcpy(s.global_counts, e->ranks[0].global_counts, sizeof s.global_counts);
    return s;
}

/* Microbatch 1 forward `forwards` times, then backward from the last. */
static sums pass_of(ref_engine *e, int forwards)
{
    ref_tensor dinput;
    ref_stage_acts acts;
    ref_pass p = {.e = e, .n = 1, .ranks = e->ranks, .microbatch = 1, .layer = -1};
    for (int i = 0; i < forwards; i++) {
        memset(&acts, 0, sizeof acts);
        require_ok(ref_stage_fwd(&p, &acts, NULL), "forward");
    }
    require_ok(ref_stage_bwd(&p, &acts, NULL, &dinput), "backward");
    ref_arena_free(&p.arena);
    return copy_sums(e);
}

Test(ref_recompute, a_second_forward_changes_nothing)
{
    model_case c;
    ref_engine once, twice;
    open_drawn(&c, moe, 1, MICROBATCHES, 2, 5);
    c.options.moe_router_load_balancing_type =
        (assay_word_list){3, {ASSAY_BALANCING_AUX, ASSAY_BALANCING_SEQ_AUX, ASSAY_BALANCING_GLOBAL_AUX}};
    c.options.moe_aux_loss_coeff = (assay_number_list){3, {0.02, 0.03, 0.04}};
    c.options.moe_z_loss_coeff = 0.01;
    require_ok(ref_engine_make(&once, &c.run, c.weights), "engine");
    require_ok(ref_engine_make(&twice, &c.run, c.weights), "engine");
    require_ok(ref_layers_create(&once), "layers");
    require_ok(ref_layers_create(&twice), "layers");
    once.targets = twice.targets = 8;
    const sums a = pass_of(&once, 1), b = pass_of(&twice, 2);
    cr_expect_eq(memcmp(a.counts, b.counts, sizeof a.counts), 0, "counts");
    cr_expect_eq(memcmp(a.loss, b.loss, sizeof a.loss), 0, "loss");
    cr_expect_eq(memcmp(a.aux, b.aux, sizeof a.aux), 0, "auxiliary losses");
    int64_t tokens = 0;
    for (int i = 0; i < LAYERS * EXPERTS; i++)
        tokens += a.counts[LAYERS * EXPERTS + i];
    cr_expect_eq(tokens, LAYERS * 2 * 5 * 2, "every token of the microbatch, in both layers, top 2");
    cr_expect_gt(a.loss[1], 0.0);
    cr_expect_eq(memcmp(a.global_counts, b.global_counts, sizeof a.global_counts), 0, "counts of the step");
    for (int k = 0; k < REF_LOSSES; k++)
        cr_expect_gt(a.aux[REF_LOSSES * LAYERS + k], 0.0);
    for (int64_t i = 0; i < c.spec->n_params; i++) {
        const ref_param *x = &once.ranks[0].params[i], *y = &twice.ranks[0].params[i];
        if (x->grad)
            cr_expect_eq(memcmp(x->grad, y->grad, (size_t)x->count * sizeof(double)), 0, "%s",
                         c.spec->params[i].name);
    }
    ref_engine_free(&once);
    ref_engine_free(&twice);
    close_case(&c);
}
