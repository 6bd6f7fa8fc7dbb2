/* Replay of the router, its auxiliary losses and the permutation of rows. */
#include "core/model/ops.h"
#include "ref/replay_context.h"

#include <stdlib.h>
#include <string.h>

/* logits [T,E]: the last extent is E. */
static assay_status logits_of(const replay *r, const char *slot, ref_router_desc *d, const ref_value **logits)
{
    ASSAY_TRY(replay_real(r, slot, -1, logits));
    d->experts = replay_columns(*logits);
    ASSAY_CHECK((*logits)->ndim >= 1 && d->experts >= 1 && d->experts <= ASSAY_MAX_EXPERTS,
                ASSAY_INVALID_ARGUMENT, "%s: slot %s: expected 1 to %d experts, found %lld", r->op, slot,
                ASSAY_MAX_EXPERTS, (long long)d->experts);
    return replay_divide(r, *logits, d->experts, &d->tokens);
}

static assay_status router_mode(const replay *r, bool pre_softmax, ref_router_desc *d)
{
    char name[16];
    ASSAY_TRY(replay_attr_string(r, "score_function", name, sizeof name));
    const bool sigmoid = strcmp(name, "sigmoid") == 0;
    d->mode = ref_router_mode_of(sigmoid ? ASSAY_SCORE_SIGMOID : ASSAY_SCORE_SOFTMAX, pre_softmax);
    ASSAY_CHECK(sigmoid || strcmp(name, "softmax") == 0, ASSAY_INVALID_ARGUMENT,
                "%s: score_function: expected softmax or sigmoid, found '%s'", r->op, name);
    return ASSAY_OK;
}

/* After logits_of: everything else of the descriptor. */
static assay_status router_attrs(const replay *r, ref_router_desc *d)
{
    bool pre_softmax;
    ASSAY_TRY(replay_attr_bool(r, "pre_softmax", &pre_softmax));
    ASSAY_TRY(router_mode(r, pre_softmax, d));
    ASSAY_TRY(replay_attr_i64(r, "topk", 1, d->experts, &d->topk));
    ASSAY_TRY(replay_attr_bool(r, "norm_topk_prob", &d->norm_topk_prob));
    ASSAY_TRY(replay_attr_double(r, "scaling_factor", &d->scaling_factor));
    ASSAY_TRY(replay_attr_i64(r, "num_groups", 0, d->experts, &d->num_groups));
    ASSAY_TRY(replay_attr_i64(r, "group_topk", 0, d->experts, &d->group_topk));
    if (d->num_groups == 0)
        return ASSAY_OK;
    ASSAY_CHECK(d->experts % d->num_groups == 0 && d->group_topk >= 1 && d->group_topk <= d->num_groups &&
                    d->topk >= d->group_topk && d->topk <= d->group_topk * (d->experts / d->num_groups),
                ASSAY_INVALID_ARGUMENT,
                "%s: %lld experts in %lld groups, %lld groups for the best %lld experts: impossible", r->op,
                (long long)d->experts, (long long)d->num_groups, (long long)d->group_topk,
                (long long)d->topk);
    return ASSAY_OK;
}

/* Of the output of kind CHOICE that was taken last. */
static void keep_decisions(const replay *r, const ref_decisions *x)
{
    ref_choices *c = &r->result->choices[r->result->n_choices++];
    c->n_decisions = x->n;
    c->n_ambiguous = x->n_ambiguous;
    c->n_inadmissible = x->n_inadmissible;
    c->first_inadmissible = x->first_inadmissible;
    c->decision_gap = x->gap;
    c->n_experts = x->n_experts;
    c->n_shown = x->n_shown;
    memcpy(c->shown, x->shown, sizeof x->shown);
}

/* Scratch for selection keys. */
static assay_status keys_alloc(const replay *r, int64_t n, ref_pair *keys)
{
    keys->y = calloc((size_t)n + 1, sizeof *keys->y);
    keys->b = calloc((size_t)n + 1, sizeof *keys->b);
    keys->same = false;
    if (keys->y && keys->b)
        return ASSAY_OK;
    free(keys->y);
    free(keys->b);
    ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: %lld keys", r->op, (long long)n);
}

static assay_status router_fwd(const replay *r)
{
    ref_router_desc d = {0};
    const ref_value *logits, *bias;
    ref_pair scores, probs, keys;
    int64_t *indices;
    ref_decisions decisions;
    ASSAY_TRY(logits_of(r, "logits", &d, &logits));
    ASSAY_TRY(router_attrs(r, &d));
    ASSAY_TRY(replay_real_optional(r, "expert_bias", d.experts, &bias));
    ASSAY_TRY(replay_out_integer(r, "indices", d.tokens * d.topk, REF_VALUE_CHOICE, &indices));
    ASSAY_TRY(replay_out_real(r, "probs", d.tokens * d.topk, ASSAY_F32, "exp", &probs));
    ASSAY_TRY(replay_out_real(r, "scores", logits->count, ASSAY_F32, "exp", &scores));
    ASSAY_TRY(keys_alloc(r, logits->count, &keys));
    const ref_value *candidate = replay_candidate(r, "indices");
    const double *b = bias ? bias->value : NULL;
    ref_bound_router_scores(scores, keys, logits->value, b, &d, &r->d);
    ref_bound_router_choice(indices, candidate ? candidate->ivalue : NULL, keys, logits->value, b, &d,
                            &r->d.num, (r->d.rounding & ASSAY_ROUND_TIES) != 0, &decisions);
    keep_decisions(r, &decisions);
    ref_bound_router_probs(probs, logits->value, indices, &d, &r->d);
    free(keys.y);
    free(keys.b);
    return ASSAY_OK;
}

static assay_status router_bwd(const replay *r)
{
    ref_router_desc d = {0};
    const ref_value *scores, *dprobs, *indices;
    ref_pair dlogits;
    ASSAY_TRY(logits_of(r, "scores", &d, &scores));
    ASSAY_TRY(router_attrs(r, &d));
    ASSAY_TRY(replay_real(r, "dprobs", d.tokens * d.topk, &dprobs));
    ASSAY_TRY(replay_integer(r, "indices", d.tokens * d.topk, &indices));
    ASSAY_TRY(replay_range(r, indices, 0, d.experts - 1));
    ASSAY_TRY(replay_out_real(r, "dlogits", scores->count, ASSAY_F32, "softmax", &dlogits));
    ref_bound_router_bwd(dlogits, dprobs->value, indices->ivalue, scores->value, &d, &r->d);
    return ASSAY_OK;
}

/* What router_aux_fwd leaves of every token, for the sums of sequences behind it. */
typedef struct aux_tokens {
    ref_router_desc d;
    ref_pair scores;
    const int64_t *indices;
} aux_tokens;

static assay_status aux_forward(const replay *r, aux_tokens *out)
{
    ref_router_desc d = {.scaling_factor = 1.0};
    const ref_value *logits;
    ref_pair aux, sums, z;
    int64_t *indices, *counts;
    ref_decisions decisions;
    ASSAY_TRY(logits_of(r, "logits", &d, &logits));
    ASSAY_TRY(router_mode(r, true, &d));
    ASSAY_TRY(replay_attr_i64(r, "topk", 1, d.experts, &d.topk));
    ASSAY_TRY(replay_out_real(r, "aux_scores", logits->count, ASSAY_F32, "exp", &aux));
    ASSAY_TRY(replay_out_integer(r, "aux_indices", d.tokens * d.topk, REF_VALUE_CHOICE, &indices));
    ASSAY_TRY(replay_out_integer(r, "tokens_per_expert", d.experts, REF_VALUE_INTEGER, &counts));
    ASSAY_TRY(replay_out_real(r, "score_sums", d.experts, ASSAY_F32, "accumulation", &sums));
    ASSAY_TRY(replay_out_real(r, "z_sum", 1, ASSAY_F32, "accumulation", &z));
    const ref_value *candidate = replay_candidate(r, "aux_indices");
    ref_bound_router_aux_scores(aux, logits->value, &d, &r->d);
    ref_bound_router_choice(indices, candidate ? candidate->ivalue : NULL, aux, logits->value, NULL, &d,
                            &r->d.num, false, &decisions);
    keep_decisions(r, &decisions);
    for (int64_t i = 0; i < d.tokens * d.topk; i++)
        counts[indices[i]]++;
    *out = (aux_tokens){d, aux, indices};
    return ref_bound_router_aux_sums(sums, z, aux, logits->value, &d, &r->d);
}

static assay_status router_aux_fwd(const replay *r)
{
    aux_tokens tokens;
    return aux_forward(r, &tokens);
}

/* router_fwd, then router_aux_fwd: neither reads what the other makes. */
static assay_status router_balanced_fwd(const replay *r)
{
    ASSAY_TRY(router_fwd(r));
    return router_aux_fwd(r);
}

/* Tokens are of `rows` interleaved sequences. */
static assay_status check_rows(const replay *r, const ref_router_desc *d, int64_t rows)
{
    ASSAY_CHECK(rows >= 1 && d->tokens % rows == 0, ASSAY_INVALID_ARGUMENT,
                "%s: expected tokens of whole rows, found %lld tokens in %lld rows", r->op,
                (long long)d->tokens, (long long)rows);
    return ASSAY_OK;
}

/* Counts and sums of `rows` sequences, in slots of these names. */
static assay_status add_sequences(const replay *r, const aux_tokens *x, const char *counts_slot,
                                  const char *sums_slot)
{
    int64_t rows, *counts, cells;
    ref_pair sums;
    ASSAY_TRY(replay_attr_i64(r, "rows", 1, INT64_MAX / 4, &rows));
    ASSAY_TRY(check_rows(r, &x->d, rows));
    ASSAY_TRY(replay_product(r, rows, x->d.experts, 1, &cells));
    ASSAY_TRY(replay_out_integer(r, counts_slot, cells, REF_VALUE_INTEGER, &counts));
    ASSAY_TRY(replay_out_real(r, sums_slot, cells, ASSAY_F32, "accumulation", &sums));
    ref_router_seq_aux_sums(sums.y, counts, x->scores.y, x->indices, rows, &x->d);
    return ref_bound_router_seq_aux_sums(sums, x->scores, rows, &x->d, &r->d);
}

static assay_status router_seq_aux_fwd(const replay *r)
{
    aux_tokens x = {0};
    const ref_value *scores, *indices;
    ASSAY_TRY(logits_of(r, "aux_scores", &x.d, &scores));
    ASSAY_TRY(replay_integer(r, "aux_indices", -1, &indices));
    x.d.topk = replay_columns(indices);
    ASSAY_CHECK(indices->count == x.d.tokens * x.d.topk, ASSAY_INVALID_ARGUMENT,
                "%s: slot aux_indices: expected rows of %lld tokens, found %lld elements", r->op,
                (long long)x.d.tokens, (long long)indices->count);
    ASSAY_TRY(replay_range(r, indices, 0, x.d.experts - 1));
    x.scores = (ref_pair){scores->value, NULL, false};
    x.indices = indices->ivalue;
    return add_sequences(r, &x, "tokens_per_expert", "score_sums");
}

/* The sequences' sums are of the scores and the choice that the launch makes. */
static assay_status router_balanced_seq_fwd(const replay *r)
{
    aux_tokens x;
    ASSAY_TRY(router_fwd(r));
    ASSAY_TRY(aux_forward(r, &x));
    return add_sequences(r, &x, "seq_tokens_per_expert", "seq_score_sums");
}

/* The name of a slot or attribute of a loss: those of the second one in a launch end in _2. */
typedef struct of_loss {
    char name[32];
} of_loss;
static of_loss named(const char *name, int loss)
{
    of_loss n;
    if (loss == 0)
        snprintf(n.name, sizeof n.name, "%s", name);
    else
        snprintf(n.name, sizeof n.name, "%s_%d", name, loss + 1);
    return n;
}

static assay_status balance_attrs(const replay *r, int loss, ref_balance *b, ref_router_desc *d)
{
    const of_loss divisor = named("divisor", loss);
    ASSAY_TRY(replay_attr_double(r, named("aux_coeff", loss).name, &b->aux_coeff));
    ASSAY_TRY(replay_attr_double(r, named("z_coeff", loss).name, &b->z_coeff));
    ASSAY_TRY(replay_attr_i64(r, "topk", 1, ASSAY_MAX_EXPERTS, &d->topk));
    ASSAY_TRY(replay_attr_i64(r, named("tokens", loss).name, 0, INT64_MAX / 2, &b->tokens));
    b->divisor = 1;
    return replay_has_attr(r, divisor.name) ? replay_attr_i64(r, divisor.name, 1, INT64_MAX / 2, &b->divisor)
                                            : ASSAY_OK;
}

static assay_status router_aux_loss(const replay *r)
{
    ref_router_desc d = {0};
    ref_balance b = {0};
    const ref_value *sums, *counts, *z;
    ref_pair losses;
    ASSAY_TRY(balance_attrs(r, 0, &b, &d));
    ASSAY_TRY(replay_real(r, "score_sums", -1, &sums));
    d.experts = replay_columns(sums);
    ASSAY_CHECK(sums->ndim >= 1 && d.experts >= 1 && d.experts <= ASSAY_MAX_EXPERTS, ASSAY_INVALID_ARGUMENT,
                "%s: slot score_sums: expected 1 to %d experts, found %lld", r->op, ASSAY_MAX_EXPERTS,
                (long long)d.experts);
    ASSAY_TRY(replay_divide(r, sums, d.experts, &b.rows));
    ASSAY_TRY(replay_integer(r, "tokens_per_expert", sums->count, &counts));
    ASSAY_TRY(replay_real_optional(r, "z_sum", 1, &z));
    ASSAY_TRY(replay_out_real(r, "losses", 2, ASSAY_F32, "accumulation", &losses));
    return ref_bound_router_aux_loss(losses, sums->value, counts->ivalue, z ? z->value : NULL, &b, &d, &r->d);
}

/* One loss: dlogits = before + its gradient.  d: of the logits. */
static assay_status add_loss(const replay *r, int loss, const ref_value *logits, ref_router_desc d,
                             ref_pair before, ref_pair dlogits)
{
    ref_balance b = {0};
    double loss_scale;
    const ref_value *counts;
    ASSAY_TRY(router_mode(r, true, &d));
    ASSAY_TRY(balance_attrs(r, loss, &b, &d));
    ASSAY_TRY(replay_attr_double(r, named("loss_scale", loss).name, &loss_scale));
    ASSAY_TRY(replay_integer(r, named("tokens_per_expert", loss).name, -1, &counts));
    ASSAY_TRY(replay_divide(r, counts, d.experts, &b.rows));
    ASSAY_TRY(check_rows(r, &d, b.rows));
    ref_bound_router_aux_bwd(dlogits, logits->value, counts->ivalue, before, &b, loss_scale, &d, &r->d);
    return ASSAY_OK;
}

static assay_status router_aux_bwd(const replay *r)
{
    ref_router_desc d = {0};
    const ref_value *logits, *old;
    ref_pair dlogits;
    ASSAY_TRY(logits_of(r, "logits", &d, &logits));
    ASSAY_TRY(replay_real(r, "dlogits_in", logits->count, &old));
    ASSAY_TRY(replay_out_real(r, "dlogits", logits->count, ASSAY_F32, "softmax", &dlogits));
    return add_loss(r, 0, logits, d, (ref_pair){old->value, NULL, false}, dlogits);
}

/* router_bwd, then the losses, each on what the ones before it made: bounds go through all of them, whether what is between them is
 * stored or not. */
static assay_status router_balanced_bwd(const replay *r)
{
    const int losses = assay_op_n_parts(assay_op_find(r->op)) - 1;
    ref_router_desc d = {0}, choice = {0};
    const ref_value *logits, *scores, *dprobs, *indices;
    ref_pair dlogits, between;
    char name[16];
    ASSAY_TRY(logits_of(r, "logits", &d, &logits));
    ASSAY_TRY(logits_of(r, "scores", &choice, &scores));
    ASSAY_CHECK(scores->count == logits->count && choice.experts == d.experts, ASSAY_INVALID_ARGUMENT,
                "%s: slot scores: expected %lld experts as in logits, found %lld", r->op,
                (long long)d.experts, (long long)choice.experts);
    ASSAY_TRY(router_attrs(r, &choice));
    ASSAY_TRY(replay_real(r, "dprobs", choice.tokens * choice.topk, &dprobs));
    ASSAY_TRY(replay_integer(r, "indices", choice.tokens * choice.topk, &indices));
    ASSAY_TRY(replay_range(r, indices, 0, choice.experts - 1));
    ASSAY_TRY(replay_out_real(r, "dlogits", logits->count, ASSAY_F32, "softmax", &dlogits));
    ref_bound_router_bwd(dlogits, dprobs->value, indices->ivalue, scores->value, &choice, &r->d);
    for (int loss = 0; loss < losses; loss++) {
        snprintf(name, sizeof name, "dlogits_%d", loss);
        if (replay_candidate(r, name)) {
            const size_t bytes = (size_t)logits->count * sizeof(double);
            ASSAY_TRY(replay_out_real(r, name, logits->count, ASSAY_F32, "softmax", &between));
            memcpy(between.y, dlogits.y, bytes);
            memcpy(between.b, dlogits.b, bytes);
        }
        ASSAY_TRY(add_loss(r, loss, logits, d, dlogits, dlogits));
    }
    return ASSAY_OK;
}

static assay_status running_counts(const replay *r)
{
    const ref_value *counts, *previous;
    int64_t *total;
    ASSAY_TRY(replay_integer(r, "tokens_per_expert", -1, &counts));
    ASSAY_TRY(replay_integer_optional(r, "previous", counts->count, &previous));
    ASSAY_TRY(replay_range(r, counts, 0, (int64_t)1 << 48));
    if (previous)
        ASSAY_TRY(replay_range(r, previous, 0, (int64_t)1 << 56));
    ASSAY_TRY(replay_out_integer(r, "total", counts->count, REF_VALUE_INTEGER, &total));
    ref_running_counts(total, counts->ivalue, previous ? previous->ivalue : NULL, counts->count);
    return ASSAY_OK;
}

static assay_status expert_bias_update(const replay *r)
{
    const ref_value *old, *counts;
    double rate;
    ref_pair bias;
    ASSAY_TRY(replay_attr_double(r, "rate", &rate));
    ASSAY_TRY(replay_real(r, "bias_in", -1, &old));
    ASSAY_TRY(replay_integer(r, "tokens_per_expert", old->count, &counts));
    ASSAY_CHECK(old->count <= ASSAY_MAX_EXPERTS, ASSAY_INVALID_ARGUMENT,
                "%s: slot bias_in: at most %d experts, found %lld", r->op, ASSAY_MAX_EXPERTS,
                (long long)old->count);
    ASSAY_TRY(replay_range(r, counts, 0, (int64_t)1 << 48));
    ASSAY_TRY(replay_out_real(r, "bias", old->count, ASSAY_F32, "addition", &bias));
    ref_bound_expert_bias_update(bias, old->value, counts->ivalue, rate, old->count, &r->d);
    return ASSAY_OK;
}

static assay_status router_drop(const replay *r)
{
    const ref_value *indices, *probs = NULL, *token;
    int64_t e, capacity, start, t, n, *routed, *counts, count;
    ASSAY_TRY(replay_attr_i64(r, "experts", 1, ASSAY_MAX_EXPERTS, &e));
    ASSAY_TRY(replay_attr_i64(r, "capacity", 0, INT64_MAX / 4, &capacity));
    ASSAY_TRY(replay_attr_i64(r, "start", 0, INT64_MAX / 4, &start));
    ASSAY_TRY(replay_attr_i64(r, "length", 0, INT64_MAX / 4, &t));
    ASSAY_TRY(replay_integer(r, "all_indices", -1, &indices));
    ASSAY_TRY(replay_range(r, indices, 0, e - 1));
    const int64_t k = replay_columns(indices);
    ASSAY_TRY(replay_divide(r, indices, k, &n));
    ASSAY_TRY(replay_integer(r, "token", n, &token));
    ASSAY_TRY(replay_real_optional(r, "all_probs", indices->count, &probs));
    ASSAY_CHECK(start + t <= n, ASSAY_INVALID_ARGUMENT, "%s: tokens %lld to %lld of %lld", r->op,
                (long long)start, (long long)(start + t), (long long)n);
    ASSAY_TRY(replay_product(r, t, k, 1, &count));
    ASSAY_TRY(replay_out_integer(r, "routed", count, REF_VALUE_INTEGER, &routed));
    ASSAY_TRY(replay_out_integer(r, "tokens_per_expert", e, REF_VALUE_INTEGER, &counts));
    ref_router_drop(routed, counts, indices->ivalue, probs ? probs->value : NULL, token->ivalue, n, k, e,
                    capacity, start, t);
    return ASSAY_OK;
}

static assay_status random_logits(const replay *r)
{
    const ref_value *token;
    int64_t e, layer, draw, tokens, count;
    double *y;
    ASSAY_TRY(replay_attr_i64(r, "experts", 1, ASSAY_MAX_EXPERTS, &e));
    ASSAY_TRY(replay_attr_i64(r, "layer", 0, ASSAY_MAX_LAYERS, &layer));
    ASSAY_TRY(replay_attr_i64(r, "draw", 0, (int64_t)1 << 30, &draw));
    ASSAY_TRY(replay_attr_i64(r, "tokens", 0, (int64_t)1 << 30, &tokens));
    ASSAY_TRY(replay_integer(r, "token", -1, &token));
    ASSAY_TRY(replay_range(r, token, 0, tokens - 1));
    ASSAY_TRY(replay_product(r, token->count, e, 1, &count));
    ASSAY_TRY(replay_out_exact(r, "y", count, ASSAY_F32, &y));
    ref_random_logits(y, token->ivalue, token->count, e, layer, draw, tokens);
    return ASSAY_OK;
}

static assay_status input_jitter(const replay *r)
{
    const ref_value *x, *token;
    int64_t h;
    ref_jitter j;
    ref_pair y;
    ASSAY_TRY(replay_attr_double(r, "eps", &j.eps));
    ASSAY_TRY(replay_attr_i64(r, "layer", 0, ASSAY_MAX_LAYERS, &j.layer));
    ASSAY_TRY(replay_attr_i64(r, "draw", 0, (int64_t)1 << 30, &j.draw));
    ASSAY_TRY(replay_attr_i64(r, "tokens", 0, (int64_t)1 << 30, &j.tokens));
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_integer(r, "token", -1, &token));
    ASSAY_TRY(replay_range(r, token, 0, j.tokens - 1));
    ASSAY_TRY(replay_divide(r, x, token->count, &h));
    ASSAY_TRY(replay_out_real(r, "y", x->count, x->dtype, "stored rounding", &y));
    ref_bound_input_jitter(y, x->value, token->ivalue, token->count, h, &j, &r->d);
    return ASSAY_OK;
}

/* The number of experts: attribute `experts`, else as many counts as the candidate wrote. */
static assay_status permute_plan(const replay *r)
{
    const ref_value *indices, *candidate = replay_candidate(r, "tokens_per_expert");
    int64_t e = candidate ? candidate->count : -1, t, rows = 0, first = 0, local, *row_token, *row_entry,
            *counts, *token_row;
    if (replay_has_attr(r, "experts"))
        ASSAY_TRY(replay_attr_i64(r, "experts", 1, ASSAY_MAX_EXPERTS, &e));
    ASSAY_CHECK(e >= 0, ASSAY_INVALID_ARGUMENT,
                "%s: neither attribute 'experts' nor output slot 'tokens_per_expert' is there", r->op);
    ASSAY_TRY(replay_integer(r, "indices", -1, &indices));
    ASSAY_TRY(replay_range(r, indices, -1, e - 1));
    local = e;
    if (replay_has_attr(r, "first_expert"))
        ASSAY_TRY(replay_attr_i64(r, "first_expert", 0, e, &first));
    if (replay_has_attr(r, "local_experts"))
        ASSAY_TRY(replay_attr_i64(r, "local_experts", 0, e - first, &local));
    for (int64_t i = 0; i < indices->count; i++)
        rows += indices->ivalue[i] >= first && indices->ivalue[i] < first + local;
    const int64_t k = replay_columns(indices);
    ASSAY_TRY(replay_divide(r, indices, k, &t));
    ASSAY_TRY(replay_out_integer(r, "row_token", rows, REF_VALUE_INTEGER, &row_token));
    ASSAY_TRY(replay_out_integer(r, "row_entry", rows, REF_VALUE_INTEGER, &row_entry));
    ASSAY_TRY(replay_out_integer(r, "tokens_per_expert", e, REF_VALUE_INTEGER, &counts));
    ASSAY_TRY(replay_out_integer(r, "token_row", indices->count, REF_VALUE_INTEGER, &token_row));
    ref_permute_plan(row_token, row_entry, counts, token_row, indices->ivalue, k > 0 ? t : 0, k, e, first,
                     local);
    return ASSAY_OK;
}

/* Rows of numbers or of integers: an integer moves as it is, not through a double. */
static assay_status gather_values(const replay *r, const ref_value *x, const ref_value *index, int64_t h,
                                  int64_t count)
{
    if (!x->ivalue) {
        double *y;
        ASSAY_TRY(replay_out_exact(r, "y", count, x->dtype, &y));
        ref_gather_rows(y, x->value, index->ivalue, index->count, h);
        return ASSAY_OK;
    }
    int64_t *y;
    ASSAY_TRY(replay_out_integer(r, "y", count, REF_VALUE_INTEGER, &y));
    for (int64_t i = 0; i < count; i++)
        y[i] = index->ivalue[i / h] < 0 ? 0 : x->ivalue[index->ivalue[i / h] * h + i % h];
    return ASSAY_OK;
}

/* Rows are those of x; probs [T,K] may be gathered one number at a time (y has as many elements as index). */
static assay_status gather_rows(const replay *r)
{
    const ref_value *x, *index, *y_candidate = replay_candidate(r, "y");
    int64_t rows, count;
    bool integers = false;
    for (int i = 0; i < r->n_inputs; i++)
        integers = integers || (strcmp(r->inputs[i].slot, "x") == 0 && r->inputs[i].ivalue);
    ASSAY_TRY(integers ? replay_integer(r, "x", -1, &x) : replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_integer(r, "index", -1, &index));
    int64_t h = x->ndim >= 2 ? replay_columns(x) : 1;
    if (h > 1 && y_candidate && y_candidate->count == index->count)
        h = 1;
    ASSAY_TRY(replay_divide(r, x, h, &rows));
    ASSAY_TRY(replay_range(r, index, -1, rows - 1));
    ASSAY_TRY(replay_product(r, index->count, h, 1, &count));
    return gather_values(r, x, index, h, count);
}

static assay_status combine_rows(const replay *r)
{
    const ref_value *x, *token_row;
    int64_t rows, t, count;
    ref_pair y;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_integer(r, "token_row", -1, &token_row));
    const int64_t h = replay_columns(x), k = replay_columns(token_row);
    ASSAY_TRY(replay_divide(r, x, h, &rows));
    ASSAY_TRY(replay_divide(r, token_row, k, &t));
    ASSAY_TRY(replay_range(r, token_row, -1, rows - 1));
    ASSAY_TRY(replay_product(r, t, h, 1, &count));
    ASSAY_TRY(replay_out_real(r, "y", count, x->dtype, "accumulation", &y));
    return ref_bound_combine_rows(y, x->value, token_row->ivalue, t, k, h, &r->d);
}

/* Rows are the first extent, or tokens when the candidate's size says so. */
static assay_status slice_rows(const replay *r)
{
    const ref_value *x, *y_candidate = replay_candidate(r, "y");
    int64_t start, length, rows, count;
    double *y;
    ASSAY_TRY(replay_attr_i64(r, "start", 0, INT64_MAX / 4, &start));
    ASSAY_TRY(replay_attr_i64(r, "length", 0, INT64_MAX / 4, &length));
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    int64_t width = x->ndim >= 1 && x->shape[0] > 0 ? x->count / x->shape[0] : 0;
    ASSAY_TRY(replay_product(r, length, width, 1, &count));
    if (y_candidate && y_candidate->count != count && x->ndim > 2)
        width = replay_columns(x);
    ASSAY_TRY(replay_divide(r, x, width, &rows));
    ASSAY_CHECK(start + length <= rows || width == 0, ASSAY_INVALID_ARGUMENT, "%s: rows %lld to %lld of %lld",
                r->op, (long long)start, (long long)(start + length), (long long)rows);
    ASSAY_TRY(replay_product(r, length, width, 1, &count));
    ASSAY_TRY(replay_out_exact(r, "y", count, x->dtype, &y));
    if (count > 0)
        memcpy(y, x->value + start * width, (size_t)count * sizeof *y);
    return ASSAY_OK;
}

const replay_row replay_moe_table[] = {
    {"router_fwd", router_fwd},
    {"router_bwd", router_bwd},
    {"router_aux_fwd", router_aux_fwd},
    {"router_balanced_fwd", router_balanced_fwd},
    {"router_balanced_seq_fwd", router_balanced_seq_fwd},
    {"router_aux_loss", router_aux_loss},
    {"router_aux_bwd", router_aux_bwd},
    {"router_balanced_bwd", router_balanced_bwd},
    {"router_balanced_bwd_two", router_balanced_bwd},
    {"router_balanced_bwd_three", router_balanced_bwd},
    {"expert_bias_update", expert_bias_update},
    {"random_logits", random_logits},
    {"input_jitter", input_jitter},
    {"router_seq_aux_fwd", router_seq_aux_fwd},
    {"running_counts", running_counts},
    {"router_drop", router_drop},
    {"permute_plan", permute_plan},
    {"gather_rows", gather_rows},
    {"combine_rows", combine_rows},
    {"slice_rows", slice_rows},
    {NULL, NULL},
};
