/* Replay of operations that only other frameworks record: a cross entropy in one piece, experts whose weights multiply where the
 * rows are combined, the balancing loss of all layers together. */
#include "ref/bounds/foreign.h"
#include "ref/replay_context.h"

#include <string.h>

enum { IGNORED = -100 };

static assay_status cross_entropy_fwd(const replay *r)
{
    const ref_value *logits, *targets;
    int64_t v, count, counted = 0;
    char reduction[8];
    double divisor = 1.0;
    ref_pair loss;
    ASSAY_TRY(replay_attr_string(r, "reduction", reduction, sizeof reduction));
    const bool mean = strcmp(reduction, "mean") == 0, none = strcmp(reduction, "none") == 0;
    ASSAY_CHECK(mean || none || strcmp(reduction, "sum") == 0, ASSAY_INVALID_ARGUMENT,
                "%s: reduction: expected mean, sum or none, found '%s'", r->op, reduction);
    ASSAY_TRY(replay_integer(r, "targets", -1, &targets));
    ASSAY_TRY(replay_real(r, "logits", -1, &logits));
    v = replay_columns(logits);
    ASSAY_TRY(replay_product(r, targets->count, v, 1, &count));
    ASSAY_TRY(replay_real(r, "logits", count, &logits));
    for (int64_t i = 0; i < targets->count; i++) {
        const int64_t x = targets->ivalue[i];
        ASSAY_CHECK(x == IGNORED || (x >= 0 && x < v), ASSAY_INVALID_ARGUMENT,
                    "%s: slot targets: element %lld: expected 0 to %lld or %d, found %lld", r->op,
                    (long long)i, (long long)(v - 1), IGNORED, (long long)x);
        counted += x != IGNORED;
    }
    if (mean)
        divisor = (double)counted;
    ASSAY_TRY(replay_out_real(r, "loss", none ? targets->count : 1, ASSAY_F32, "log", &loss));
    return ref_bound_cross_entropy_fwd(loss, logits->value, targets->ivalue, !none, divisor, targets->count,
                                       v, &r->d);
}

typedef struct combine_inputs {
    const ref_value *x, *probs, *token_row;
    int64_t rows, t, k, h;
} combine_inputs;

static assay_status combine_read(const replay *r, combine_inputs *in)
{
    ASSAY_TRY(replay_real(r, "x", -1, &in->x));
    ASSAY_TRY(replay_integer(r, "token_row", -1, &in->token_row));
    in->h = replay_columns(in->x);
    in->k = replay_columns(in->token_row);
    ASSAY_TRY(replay_divide(r, in->x, in->h, &in->rows));
    ASSAY_TRY(replay_divide(r, in->token_row, in->k, &in->t));
    ASSAY_TRY(replay_range(r, in->token_row, -1, in->rows - 1));
    return replay_real(r, "probs", in->token_row->count, &in->probs);
}

static assay_status weighted_combine_fwd(const replay *r)
{
    combine_inputs in;
    int64_t count;
    ref_pair y;
    ASSAY_TRY(combine_read(r, &in));
    ASSAY_TRY(replay_product(r, in.t, in.h, 1, &count));
    ASSAY_TRY(replay_out_real(r, "y", count, in.x->dtype, "accumulation", &y));
    return ref_bound_weighted_combine_fwd(y, in.x->value, in.probs->value, in.token_row->ivalue, in.t, in.k,
                                          in.h, &r->d);
}

static assay_status weighted_combine_bwd(const replay *r)
{
    combine_inputs in;
    const ref_value *dy;
    int64_t count;
    ref_pair dx, dprobs;
    ASSAY_TRY(combine_read(r, &in));
    ASSAY_TRY(replay_product(r, in.t, in.h, 1, &count));
    ASSAY_TRY(replay_real(r, "dy", count, &dy));
    ASSAY_TRY(replay_out_real(r, "dx", in.x->count, in.x->dtype, "product", &dx));
    ASSAY_TRY(replay_out_real(r, "dprobs", in.token_row->count, ASSAY_F32, "accumulation", &dprobs));
    return ref_bound_weighted_combine_bwd(dx, dprobs, dy->value, in.x->value, in.probs->value,
                                          in.token_row->ivalue, in.t, in.k, in.h, &r->d);
}

/* logits [N,E] of all layers, one behind the other; their scores are stored in their dtype where that is declared. */
typedef struct balancing_inputs {
    const ref_value *logits, *weight;
    int64_t n, e, k;
    ref_declared d;
} balancing_inputs;

static assay_status balancing_read(const replay *r, balancing_inputs *in)
{
    ASSAY_TRY(replay_real(r, "logits", -1, &in->logits));
    in->e = replay_columns(in->logits);
    ASSAY_TRY(replay_divide(r, in->logits, in->e, &in->n));
    ASSAY_TRY(replay_attr_i64(r, "topk", 1, in->e, &in->k));
    ASSAY_TRY(replay_real_optional(r, "row_weight", in->n, &in->weight));
    in->d = r->d;
    ref_declared_store(&in->d, r->arith, in->logits->dtype);
    return ASSAY_OK;
}

static assay_status load_balancing_fwd(const replay *r)
{
    balancing_inputs in;
    ref_pair loss;
    ASSAY_TRY(balancing_read(r, &in));
    ASSAY_TRY(replay_out_real(r, "loss", 1, ASSAY_F32, "accumulation", &loss));
    return ref_bound_load_balancing_fwd(loss, in.logits->value, in.weight ? in.weight->value : NULL, in.n,
                                        in.e, in.k, &in.d);
}

static assay_status load_balancing_bwd(const replay *r)
{
    balancing_inputs in;
    double scale;
    ref_pair dlogits;
    ASSAY_TRY(balancing_read(r, &in));
    ASSAY_TRY(replay_attr_double(r, "scale", &scale));
    ASSAY_TRY(replay_out_real(r, "dlogits", in.logits->count, in.logits->dtype, "accumulation", &dlogits));
    return ref_bound_load_balancing_bwd(dlogits, in.logits->value, in.weight ? in.weight->value : NULL, scale,
                                        in.n, in.e, in.k, &in.d);
}

const replay_row replay_foreign_table[] = {
    {"cross_entropy_fwd", cross_entropy_fwd},       {"weighted_combine_fwd", weighted_combine_fwd},
    {"weighted_combine_bwd", weighted_combine_bwd}, {"load_balancing_fwd", load_balancing_fwd},
    {"load_balancing_bwd", load_balancing_bwd},     {NULL, NULL},
};
