/* Balancing losses of a router and its z-loss. */
#include "parity/checks/plan_moe.h"

static double coeff_of(const plan *p, assay_load_balancing type)
{
    return assay_balancing_coeff(p->job->options, type);
}

static bool has_aux(const plan *p)
{
    return coeff_of(p, ASSAY_BALANCING_AUX) != 0.0 || p->job->options->moe_z_loss_coeff != 0.0;
}

static bool has_seq(const plan *p)
{
    return coeff_of(p, ASSAY_BALANCING_SEQ_AUX) != 0.0;
}

static bool has_global(const plan *p)
{
    return coeff_of(p, ASSAY_BALANCING_GLOBAL_AUX) != 0.0;
}

bool plan_has_balancing(const plan *p)
{
    return has_aux(p) || has_seq(p) || has_global(p);
}

assay_group plan_sharing_group(const plan *p)
{
    return p->share.rows_split ? ASSAY_GROUP_TP_DP_CP : ASSAY_GROUP_TP_CP;
}

void plan_choice_attrs(plan *p)
{
    plan_int(p, "topk", p->job->config->moe_router_topk);
    plan_word(p, "score_function",
              p->job->config->moe_router_score_function == ASSAY_SCORE_SIGMOID ? "sigmoid" : "softmax");
}

/* Number of the microbatch among those of the rank. */
static int64_t turn_of(const plan *p)
{
    return p->microbatch - p->share.first_microbatch;
}

/* --- counts --------------------------------------------------------------------------------------------------- */

/* counts [rows,E] += the auxiliary map of a rank in its turn; token t is of row t mod rows. */
static bool add_counts(plan *p, int rank, int64_t turn, int64_t rows, int64_t *counts)
{
    const assay_model_config *c = p->job->config;
    const assay_batches *b = p->job->batches;
    assay_coords at;
    assay_batch_share share;
    assay_grid_coords(p->job->grid, rank, &at);
    p->st = assay_batch_share_make(assay_needs_all_rows(p->job->options), b->microbatches, b->b,
                                   p->job->grid->p.data_parallel_size, at.dp, &share);
    if (p->st != ASSAY_OK)
        return false;
    const int64_t *map = plan_choice(p, rank, share.first_microbatch + turn, p->layer, PLAN_AUX);
    const int64_t n = plan_tokens_of(p, rank) * c->moe_router_topk;
    for (int64_t i = 0; map != NULL && i < n; i++)
        counts[i / c->moe_router_topk % rows * c->num_moe_experts + map[i]]++;
    return map != NULL;
}

/* The same of all ranks of a group; false: a map is missing or malformed. */
static bool add_group(plan *p, assay_group group, int64_t turn, int64_t rows, int64_t *counts)
{
    const assay_group_shape shape = assay_grid_group_shape(p->job->grid, group, p->rank);
    bool known = true;
    for (int i = 0; i < shape.size && p->st == ASSAY_OK; i++)
        known = add_counts(p, assay_group_member(&shape, i), turn, rows, counts) && known;
    return known;
}

/* The sum of `mine` over a group; mine itself in a group of one. */
static plan_tensor sum_counts(plan *p, const char *at, assay_group group, int64_t rows, plan_tensor mine)
{
    const int64_t n = rows * p->job->config->num_moe_experts;
    int64_t *sum = plan_integers(p, n);
    if (sum == NULL || plan_group_size(p, group) <= 1)
        return mine;
    plan_tensor all = plan_value(p, at, "recv", ASSAY_I64);
    if (add_group(p, group, turn_of(p), rows, sum))
        all = plan_with_integers(all, sum, n);
    plan_add_collective(p, "all_reduce", at, group, ASSAY_I64);
    plan_in(p, "send", mine);
    plan_out(p, "recv", all);
    return all;
}

/* Counts of this rank. */
static plan_tensor own_counts(plan *p, const char *at, int64_t rows)
{
    const int64_t n = rows * p->job->config->num_moe_experts;
    int64_t *mine = plan_integers(p, n);
    const plan_tensor counts = plan_value(p, at, "tokens_per_expert", ASSAY_I64);
    const bool known = mine != NULL && add_counts(p, p->rank, turn_of(p), rows, mine);
    return known ? plan_with_integers(counts, mine, n) : counts;
}

/* What all data-parallel ranks have counted in the layer up to a turn of this rank. */
static plan_tensor total_counts(plan *p, int64_t turn)
{
    const int64_t n = p->job->config->num_moe_experts;
    plan_tensor total = plan_value(p, "mlp.router.global_aux", "total", ASSAY_I64);
    total.microbatch = p->share.first_microbatch + turn;
    int64_t *sum = plan_integers(p, n);
    bool known = sum != NULL;
    for (int64_t i = 0; known && i <= turn; i++)
        known = add_group(p, ASSAY_GROUP_TP_DP_CP, i, 1, sum);
    return known ? plan_with_integers(total, sum, n) : total;
}

/* --- the losses ------------------------------------------------------------------------------------------------- */

/* What they divide by: tokens of the whole microbatch; positions of a sequence, rows of the whole microbatch; tokens of all
 * data-parallel ranks, microbatches so far. */
typedef enum { OF_MICROBATCH, OF_SEQUENCES, OF_STEP } balance_kind;

static void balance_attrs(plan *p, balance_kind kind)
{
    static const assay_load_balancing type[] = {ASSAY_BALANCING_AUX, ASSAY_BALANCING_SEQ_AUX,
                                                ASSAY_BALANCING_GLOBAL_AUX};
    const int64_t b = p->job->batches->b;
    const int64_t of_step = p->S * p->B * p->job->grid->p.data_parallel_size;
    plan_real(p, "aux_coeff", coeff_of(p, type[kind]), 0.0);
    plan_real(p, "z_coeff", kind == OF_MICROBATCH ? p->job->options->moe_z_loss_coeff : 0.0, 0.0);
    plan_int(p, "tokens", kind == OF_MICROBATCH ? p->S * b : kind == OF_SEQUENCES ? p->S : of_step);
    plan_int(p, "divisor", kind == OF_MICROBATCH ? 1 : kind == OF_SEQUENCES ? b : turn_of(p) + 1);
}

static void add_loss(plan *p, const char *at, balance_kind kind, plan_tensor sums, plan_tensor counts,
                     const plan_tensor *z)
{
    plan_add(p, "router_aux_loss", at);
    plan_in(p, "score_sums", sums);
    plan_in(p, "tokens_per_expert", counts);
    if (z != NULL)
        plan_in(p, "z_sum", *z);
    plan_out(p, "losses", plan_value(p, at, "losses", p->accumulated));
    balance_attrs(p, kind);
    plan_int(p, "topk", p->job->config->moe_router_topk);
}

/* Counts and sums of the sequences, in front of every loss. */
static void seq_statistics(plan *p, plan_tensor scores, plan_tensor indices, plan_tensor *counts,
                           plan_tensor *sums)
{
    static const char at[] = "mlp.router.seq_aux";
    *counts = own_counts(p, at, p->B);
    *sums = plan_value(p, at, "score_sums", p->accumulated);
    plan_add(p, "router_seq_aux_fwd", at);
    plan_in(p, "aux_scores", scores);
    plan_in(p, "aux_indices", indices);
    plan_out(p, "tokens_per_expert", *counts);
    plan_out(p, "score_sums", *sums);
    plan_int(p, "rows", p->B);
}

static void seq_forward(plan *p, plan_moe_saved *s, plan_tensor counts, plan_tensor sums)
{
    s->seq_counts = sum_counts(p, "mlp.router.seq_aux_counts", ASSAY_GROUP_TP_CP, p->B, counts);
    add_loss(p, "mlp.router.seq_aux_loss", OF_SEQUENCES, sums, s->seq_counts, NULL);
}

static void global_forward(plan *p, plan_moe_saved *s, plan_tensor counts, plan_tensor sums)
{
    const int64_t turn = turn_of(p);
    const plan_tensor all = sum_counts(p, "mlp.router.global_aux_counts", ASSAY_GROUP_TP_DP_CP, 1, counts);
    s->global_counts = total_counts(p, turn);
    plan_add(p, "running_counts", "mlp.router.global_aux");
    plan_in(p, "tokens_per_expert", all);
    if (turn > 0)
        plan_in(p, "previous", total_counts(p, turn - 1));
    plan_out(p, "total", s->global_counts);
    add_loss(p, "mlp.router.global_aux_loss", OF_STEP, sums, s->global_counts, NULL);
}

void plan_balancing_forward(plan *p, plan_moe_saved *s)
{
    static const char at[] = "mlp.router.aux";
    const plan_tensor sums = plan_value(p, at, "score_sums", p->accumulated);
    const plan_tensor z = plan_value(p, at, "z_sum", p->accumulated);
    const plan_tensor scores = plan_value(p, at, "aux_scores", p->accumulated);
    const plan_tensor counts = own_counts(p, at, 1);
    plan_tensor indices = plan_value(p, at, "aux_indices", ASSAY_I64);
    indices.experts = p->job->config->num_moe_experts;
    indices.topk = p->job->config->moe_router_topk;
    plan_add(p, "router_aux_fwd", at);
    plan_in(p, "logits", s->logits);
    plan_out(p, "aux_scores", scores);
    plan_out(p, "aux_indices", indices);
    plan_out(p, "tokens_per_expert", counts);
    plan_out(p, "score_sums", sums);
    plan_out(p, "z_sum", z);
    plan_choice_attrs(p);
    plan_tensor seq_counts, seq_sums;
    if (has_seq(p))
        seq_statistics(p, scores, indices, &seq_counts, &seq_sums);
    if (has_aux(p)) {
        s->aux_counts = sum_counts(p, "mlp.router.aux_counts", plan_sharing_group(p), 1, counts);
        add_loss(p, "mlp.router.aux_loss", OF_MICROBATCH, sums, s->aux_counts, &z);
    }
    if (has_seq(p))
        seq_forward(p, s, seq_counts, seq_sums);
    if (has_global(p))
        global_forward(p, s, counts, sums);
}

/* The weight of a microbatch's losses in the objective. */
static double weight_of(const plan *p, bool seq)
{
    const assay_train_options *o = p->job->options;
    return o->semantics == ASSAY_SEMANTICS_MEGATRON && o->calculate_per_token_loss
               ? (double)(p->sequence.shard.length * (seq ? 1 : p->B)) / (double)p->n_targets
               : 1.0 / (double)p->job->batches->microbatches;
}

/* dlogits in place: `before` -> `after`. */
static void add_backward(plan *p, const char *at, balance_kind kind, const plan_moe_saved *s,
                         plan_tensor counts, plan_tensor before, plan_tensor after)
{
    plan_add(p, "router_aux_bwd", at);
    plan_in(p, "logits", s->logits);
    plan_in(p, "tokens_per_expert", counts);
    plan_in(p, "dlogits_in", before);
    plan_out(p, "dlogits", after);
    balance_attrs(p, kind);
    plan_choice_attrs(p);
    plan_real(p, "loss_scale", weight_of(p, kind == OF_SEQUENCES), 0.0);
}

void plan_balancing_backward(plan *p, const plan_moe_saved *s, plan_tensor dlogits, plan_tensor total)
{
    static const char aux[] = "mlp.router.aux", seq[] = "mlp.router.seq_aux",
                      global[] = "mlp.router.global_aux";
    plan_tensor at = dlogits;
    if (has_aux(p)) {
        const bool last = !has_seq(p) && !has_global(p);
        const plan_tensor y = last ? total : plan_value(p, aux, "dlogits", p->accumulated);
        add_backward(p, aux, OF_MICROBATCH, s, s->aux_counts, at, y);
        at = y;
    }
    if (has_seq(p)) {
        const plan_tensor y = has_global(p) ? plan_value(p, seq, "dlogits", p->accumulated) : total;
        add_backward(p, seq, OF_SEQUENCES, s, s->seq_counts, at, y);
        at = y;
    }
    if (has_global(p))
        add_backward(p, global, OF_STEP, s, s->global_counts, at, total);
}
