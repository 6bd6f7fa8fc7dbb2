/* Balancing losses of a router and its z-loss: of a microbatch (aux_loss), of every sequence (seq_aux_loss), of the step so
 * far (global_aux_loss).  docs/SEMANTICS.md. */
#include "ref/layer.h"
#include "ref/objective.h"
#include "ref/parallel/collectives.h"

#include <stdlib.h>
#include <string.h>

static double coeff_of(const ref_pass *p, assay_load_balancing type)
{
    return assay_balancing_coeff(&p->e->options, type);
}

static bool has_aux(const ref_pass *p)
{
    return coeff_of(p, ASSAY_BALANCING_AUX) != 0.0 || p->e->options.moe_z_loss_coeff != 0.0;
}

static bool has_seq(const ref_pass *p)
{
    return coeff_of(p, ASSAY_BALANCING_SEQ_AUX) != 0.0;
}

static bool has_global(const ref_pass *p)
{
    return coeff_of(p, ASSAY_BALANCING_GLOBAL_AUX) != 0.0;
}

bool ref_has_balancing(const ref_pass *p)
{
    return has_aux(p) || has_seq(p) || has_global(p);
}

assay_group ref_sharing_group(const ref_pass *p)
{
    return p->ranks[0].share.rows_split ? ASSAY_GROUP_TP_DP_CP : ASSAY_GROUP_TP_CP;
}

/* --- the losses as the operations take them ------------------------------------------------------------------- */

static ref_balance balance_aux(const ref_pass *p, const ref_balancing_acts *b)
{
    return (ref_balance){.aux_coeff = coeff_of(p, ASSAY_BALANCING_AUX),
                         .z_coeff = p->e->options.moe_z_loss_coeff,
                         .tokens = b->tokens,
                         .rows = 1,
                         .divisor = 1};
}

/* The mean over all rows of the microbatch, of which this rank has `batch`. */
static ref_balance balance_seq(const ref_pass *p)
{
    return (ref_balance){.aux_coeff = coeff_of(p, ASSAY_BALANCING_SEQ_AUX),
                         .tokens = p->e->seq,
                         .rows = p->e->batch,
                         .divisor = p->e->run->batches->b};
}

static ref_balance balance_global(const ref_pass *p, int64_t tokens, int64_t microbatches)
{
    return (ref_balance){.aux_coeff = coeff_of(p, ASSAY_BALANCING_GLOBAL_AUX),
                         .tokens = tokens,
                         .rows = 1,
                         .divisor = microbatches};
}

/* --- forward -------------------------------------------------------------------------------------------------- */

static assay_status trace_sums(ref_pass *p, int r, const char *at, ref_piece *sums,
                               const ref_int_piece *counts)
{
    char name[ASSAY_NAME];
    const int64_t m = ref_pass_microbatch(p, r), shape[2] = {sums->rows, sums->cols};
    const int skip = sums->rows == 1 && strcmp(at, "mlp.router.aux") == 0 ? 1 : 0; /* [E] */
    ref_pass_name(p, at, "score_sums", name);
    ref_policy_store(&p->e->run->policy, REF_STORE_ROUTER, false, name, p->step, m, sums->x,
                     sums->rows * sums->cols);
    ASSAY_TRY(ref_trace_tensor(p->e, name, p->phase, p->step, m, shape + skip, 2 - skip, sums->x, false));
    ref_pass_name(p, at, "tokens_per_expert", name);
    return ref_trace_ints(p->e, name, p->phase, p->step, m, shape + skip, 2 - skip, counts->x, false);
}

/* Sums of one rank's tokens. */
typedef struct rank_sums {
    ref_piece seq;
    double z;
} rank_sums;

static assay_status local_sums(ref_pass *p, ref_router_acts *a, int r, rank_sums *sums)
{
    const assay_model_config *c = p->e->config;
    ref_balancing_acts *b = &a->balancing;
    const int64_t t = a->logits.at[r].rows, e = c->num_moe_experts, k = c->moe_router_topk;
    const ref_router_desc d = ref_router_describe(p, t);
    ref_piece scores;
    ref_int_piece indices;
    char name[ASSAY_NAME];
    const int64_t m = ref_pass_microbatch(p, r), shape[3] = {p->e->seq, p->e->batch, e};
    ASSAY_TRY(ref_piece_new(&p->arena, &scores, t, e));
    ASSAY_TRY(ref_int_piece_new(&p->arena, &indices, t, k));
    ASSAY_TRY(ref_piece_new(&p->arena, &b->score_sums.at[r], 1, e));
    ASSAY_TRY(ref_int_piece_new(&p->arena, &b->aux.at[r], 1, e));
    ref_router_aux_scores(scores.x, a->logits.at[r].x, &d);
    ref_router_aux_topk(indices.x, scores.x, &d);
    ASSAY_TRY(ref_router_replay(p, r, REF_ROUTING_AUX, indices.x, indices.x, k));
    ref_router_aux_sums(b->score_sums.at[r].x, b->aux.at[r].x, &sums->z, scores.x, indices.x,
                        a->logits.at[r].x, &d);
    ref_pass_name(p, "mlp.router.aux", "aux_scores", name);
    ASSAY_TRY(ref_trace_tensor(p->e, name, p->phase, p->step, m, shape, 3, scores.x, false));
    ref_pass_name(p, "mlp.router.aux", "z_sum", name);
    ref_policy_store(&p->e->run->policy, REF_STORE_ROUTER, false, name, p->step, m, &sums->z, 1);
    ASSAY_TRY(trace_sums(p, r, "mlp.router.aux", &b->score_sums.at[r], &b->aux.at[r]));
    if (!has_seq(p))
        return ASSAY_OK;
    ASSAY_TRY(ref_piece_new(&p->arena, &sums->seq, p->e->batch, e));
    ASSAY_TRY(ref_int_piece_new(&p->arena, &b->seq.at[r], p->e->batch, e));
    ref_router_seq_aux_sums(sums->seq.x, b->seq.at[r].x, scores.x, indices.x, p->e->batch, &d);
    return trace_sums(p, r, "mlp.router.seq_aux", &sums->seq, &b->seq.at[r]);
}

/* Adds the counts up over every group of the kind; returns the tokens of one, the same in all. */
static int64_t reduce(ref_pass *p, assay_group kind, ref_ints *counts, const ref_tensor *logits)
{
    int64_t tokens = 0;
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, kind, r);
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            p->e->integers[i] = counts->at[member].x;
            tokens = (i == 0 ? 0 : tokens) + logits->at[member].rows;
        }
        if (g.size > 0)
            ref_all_reduce_i64(p->e->integers, g.size, counts->at[r].rows * counts->at[r].cols);
    }
    return tokens;
}

/* Counts of the microbatch, kept at its place, and of those of the step up to it: the pass may run again. */
static assay_status global_counts(ref_pass *p, ref_router_acts *a)
{
    ref_balancing_acts *b = &a->balancing;
    const int64_t e = p->e->config->num_moe_experts, layers = p->e->config->num_layers;
    ASSAY_TRY(ref_ints_new(&p->arena, &b->global, p->n));
    for (int r = 0; r < p->n; r++) {
        ASSAY_TRY(ref_int_piece_new(&p->arena, &b->global.at[r], 1, e));
        memcpy(b->global.at[r].x, b->aux.at[r].x, (size_t)e * sizeof(int64_t));
    }
    b->global_tokens = reduce(p, ASSAY_GROUP_TP_DP_CP, &b->global, &a->logits);
    for (int r = 0; r < p->n; r++) {
        int64_t *kept = p->ranks[r].global_counts, *total = b->global.at[r].x;
        memcpy(kept + ref_pass_place(p) * e, total, (size_t)e * sizeof(int64_t));
        for (int64_t m = 0; m < p->microbatch; m++)
            ref_running_counts(total, total, kept + (m * layers + p->layer) * e, e);
    }
    return ASSAY_OK;
}

/* Losses of rank r at `at` into its places first, first + 1. */
static void losses_of(ref_pass *p, int r, const char *at, int first, int n, const double *sums,
                      const int64_t *counts, const double *z, const ref_balance *balance)
{
    const ref_router_desc d = ref_router_describe(p, 0);
    char name[ASSAY_NAME];
    double losses[2];
    ref_router_aux_loss(losses, sums, counts, z, balance, &d);
    ref_pass_name(p, at, "losses", name);
    ref_policy_store(&p->e->run->policy, REF_STORE_ROUTER, false, name, p->step, ref_pass_microbatch(p, r),
                     losses, 2);
    memcpy(p->ranks[r].aux_losses + REF_LOSSES * ref_pass_place(p) + first, losses,
           (size_t)n * sizeof *losses);
}

static void global_loss(ref_pass *p, const ref_balancing_acts *b, int r, const int64_t *counts,
                        const ref_balance *balance)
{
    losses_of(p, r, "mlp.router.global_aux_loss", REF_LOSS_GLOBAL_AUX, 1, b->score_sums.at[r].x, counts, NULL,
              balance);
}

assay_status ref_balancing_fwd(ref_pass *p, ref_router_acts *a)
{
    ref_balancing_acts *b = &a->balancing;
    void *memory;
    ASSAY_TRY(ref_arena_alloc(&p->arena, p->n, sizeof(rank_sums), &memory));
    rank_sums *sums = memory;
    ASSAY_TRY(ref_new(p, &b->score_sums, "mlp.router.aux", "score_sums"));
    ASSAY_TRY(ref_ints_new(&p->arena, &b->aux, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &b->seq, p->n));
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(local_sums(p, a, r, &sums[r]));
    if (has_global(p))
        ASSAY_TRY(global_counts(p, a));
    b->tokens = reduce(p, ref_sharing_group(p), &b->aux, &a->logits);
    if (has_seq(p))
        (void)reduce(p, ASSAY_GROUP_TP_CP, &b->seq, &a->logits);
    const ref_balance aux = balance_aux(p, b), seq = balance_seq(p),
                      global = balance_global(p, b->global_tokens, p->microbatch + 1);
    for (int r = 0; r < p->n; r++) {
        if (has_aux(p))
            losses_of(p, r, "mlp.router.aux_loss", REF_LOSS_AUX, 2, b->score_sums.at[r].x, b->aux.at[r].x,
                      &sums[r].z, &aux);
        if (has_seq(p))
            losses_of(p, r, "mlp.router.seq_aux_loss", REF_LOSS_SEQ_AUX, 1, sums[r].seq.x, b->seq.at[r].x,
                      NULL, &seq);
        if (has_global(p))
            global_loss(p, b, r, b->global.at[r].x, &global);
    }
    return ASSAY_OK;
}

/* --- backward ------------------------------------------------------------------------------------------------- */

/* The weight of a microbatch's losses in the objective.  Megatron-LM multiplies them by the tokens of the rank (seq: of a
 * sequence on the rank) where the gradients are divided by the targets of the step. */
static double weight_of(const ref_pass *p, int64_t tokens, bool seq)
{
    const assay_train_options *o = &p->e->options;
    if (o->semantics == ASSAY_SEMANTICS_MEGATRON && o->calculate_per_token_loss)
        return (double)(seq ? tokens / p->e->batch : tokens) / (double)p->e->targets;
    return 1.0 / (double)p->e->run->batches->microbatches;
}

/* dlogits += the gradient of weight 1, each row times its weight in another layout's objective. */
static assay_status add_elsewhere(ref_pass *p, ref_piece *dlogits, const ref_piece *logits,
                                  const int64_t *counts, const ref_balance *balance, bool seq,
                                  bool magnitudes)
{
    ref_router_desc d = ref_router_describe(p, logits->rows);
    d.magnitudes = magnitudes;
    ref_piece weights, plain;
    ASSAY_TRY(ref_piece_new(&p->arena, &weights, logits->rows, 1));
    ASSAY_TRY(ref_piece_new(&p->arena, &plain, logits->rows, logits->cols));
    memset(plain.x, 0, (size_t)(logits->rows * logits->cols) * sizeof *plain.x);
    ref_router_aux_bwd(plain.x, logits->x, counts, balance, 1.0, &d);
    ASSAY_TRY(ref_objective_aux_weights(p, seq, weights.x));
    for (int64_t i = 0; i < logits->rows * logits->cols; i++)
        dlogits->x[i] += weights.x[i / logits->cols] * plain.x[i];
    return ASSAY_OK;
}

static assay_status add(ref_pass *p, ref_tensor *dlogits, const ref_tensor *logits, const ref_ints *counts,
                        const ref_balance *balance, bool seq, bool magnitudes)
{
    if (ref_has_objective(p) && p->e->options.calculate_per_token_loss)
        return add_elsewhere(p, &dlogits->at[0], &logits->at[0], counts->at[0].x, balance, seq, magnitudes);
    for (int r = 0; r < p->n; r++) {
        const ref_piece *l = &logits->at[r];
        ref_router_desc d = ref_router_describe(p, l->rows);
        d.magnitudes = magnitudes;
        ref_router_aux_bwd(dlogits->at[r].x, l->x, counts->at[r].x, balance, weight_of(p, l->rows, seq), &d);
    }
    return ASSAY_OK;
}

/* In a run that is not cut the counts of another layout are known behind all forwards of the step. */
static assay_status add_global(ref_pass *p, ref_tensor *dlogits, const ref_router_acts *a, bool magnitudes)
{
    const ref_balancing_acts *b = &a->balancing;
    ref_balance global = balance_global(p, b->global_tokens, p->microbatch + 1);
    if (ref_has_objective(p)) {
        int ranks;
        ASSAY_TRY(ref_objective_global_counts(p, b->global.at[0].x, &global.divisor, &ranks));
        global.tokens *= ranks;
        global_loss(p, b, 0, b->global.at[0].x, &global);
    }
    return add(p, dlogits, &a->logits, &b->global, &global, false, magnitudes);
}

assay_status ref_balancing_bwd(ref_pass *p, ref_tensor *dlogits, const ref_router_acts *a, bool magnitudes)
{
    const ref_balancing_acts *b = &a->balancing;
    const ref_balance aux = balance_aux(p, b), seq = balance_seq(p);
    if (has_aux(p))
        ASSAY_TRY(add(p, dlogits, &a->logits, &b->aux, &aux, false, magnitudes));
    if (has_seq(p))
        ASSAY_TRY(add(p, dlogits, &a->logits, &b->seq, &seq, true, magnitudes));
    return has_global(p) ? add_global(p, dlogits, a, magnitudes) : ASSAY_OK;
}
