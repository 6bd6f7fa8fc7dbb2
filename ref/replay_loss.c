/* Replay of the cross entropy, sums in double and the optimizer. */
#include "ref/bounds/foreign.h"
#include "ref/replay_context.h"

static assay_status cross_entropy_stats(const replay *r)
{
    const ref_value *logits, *targets;
    int64_t start, v, count;
    ref_pair stats;
    ASSAY_TRY(replay_attr_i64(r, "vocab_start", 0, ASSAY_CONFIG_MAX_DIM, &start));
    ASSAY_TRY(replay_integer(r, "targets", -1, &targets));
    ASSAY_TRY(replay_range(r, targets, INT32_MIN, INT64_MAX / 4));
    ASSAY_TRY(replay_real(r, "logits", -1, &logits));
    v = replay_columns(logits);
    ASSAY_TRY(replay_product(r, targets->count, v, 1, &count));
    ASSAY_TRY(replay_real(r, "logits", count, &logits));
    ASSAY_TRY(replay_product(r, 3, targets->count, 1, &count));
    ASSAY_TRY(replay_out_real(r, "stats", count, ASSAY_F32, "exp", &stats));
    return ref_bound_cross_entropy_stats(stats, logits->value, targets->ivalue, start, targets->count, v,
                                         &r->d);
}

static assay_status cross_entropy_loss(const replay *r)
{
    const ref_value *stats, *targets;
    int64_t pieces, row;
    ref_pair lse, loss;
    ASSAY_TRY(replay_integer(r, "targets", -1, &targets));
    ASSAY_TRY(replay_real(r, "stats", -1, &stats));
    ASSAY_TRY(replay_product(r, 3, targets->count, 1, &row));
    ASSAY_TRY(replay_divide(r, stats, row, &pieces));
    ASSAY_CHECK(pieces <= 1 << 20 && (pieces > 0 || targets->count == 0), ASSAY_INVALID_ARGUMENT,
                "%s: slot stats: expected [tp,3,%lld], found %lld elements", r->op, (long long)targets->count,
                (long long)stats->count);
    ASSAY_TRY(replay_out_real(r, "lse", targets->count, ASSAY_F32, "log", &lse));
    ASSAY_TRY(replay_out_real(r, "loss", targets->count, ASSAY_F32, "log", &loss));
    ref_bound_cross_entropy_loss(lse, loss, stats->value, targets->ivalue, (int)pieces, targets->count,
                                 &r->d);
    return ASSAY_OK;
}

static assay_status cross_entropy_bwd(const replay *r)
{
    const ref_value *logits, *lse, *targets;
    int64_t start, v, count;
    double scale;
    ref_pair dlogits;
    ASSAY_TRY(replay_attr_i64(r, "vocab_start", 0, ASSAY_CONFIG_MAX_DIM, &start));
    ASSAY_TRY(replay_attr_double(r, "scale", &scale));
    ASSAY_TRY(replay_integer(r, "targets", -1, &targets));
    ASSAY_TRY(replay_range(r, targets, INT32_MIN, INT64_MAX / 4));
    ASSAY_TRY(replay_real(r, "logits", -1, &logits));
    v = replay_columns(logits);
    ASSAY_TRY(replay_product(r, targets->count, v, 1, &count));
    ASSAY_TRY(replay_real(r, "logits", count, &logits));
    ASSAY_TRY(replay_real_optional(r, "lse", targets->count, &lse));
    ASSAY_TRY(replay_out_real(r, "dlogits", count, ASSAY_F32, "exp", &dlogits));
    if (!lse) /* kept by nobody: docs/TRACE.md, internal */
        return ref_bound_cross_entropy_bwd_alone(dlogits, logits->value, targets->ivalue, scale,
                                                 targets->count, v, &r->d);
    ref_bound_cross_entropy_bwd(dlogits, logits->value, lse->value, targets->ivalue, start, scale,
                                targets->count, v, &r->d);
    return ASSAY_OK;
}

static assay_status sum_any(const replay *r, bool square)
{
    const ref_value *x;
    ref_pair y;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_out_real(r, "y", 1, ASSAY_F64, "accumulation", &y));
    ref_bound_sum_double(y, x->value, x->count, square, &r->d);
    return ASSAY_OK;
}

static assay_status sum(const replay *r)
{
    return sum_any(r, false);
}

static assay_status sumsq(const replay *r)
{
    return sum_any(r, true);
}

static assay_status count_zeros(const replay *r)
{
    const ref_value *x;
    int64_t *y;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_out_integer(r, "y", 1, REF_VALUE_INTEGER, &y));
    *y = ref_count_zeros(x->value, x->count);
    return ASSAY_OK;
}

/* Of numbers that are F64, or of integers. */
static assay_status total(const replay *r)
{
    const ref_value *x;
    ref_pair y;
    bool integers = false;
    for (int i = 0; i < r->n_inputs; i++)
        integers = integers || (strcmp(r->inputs[i].slot, "x") == 0 && r->inputs[i].ivalue != NULL);
    if (integers) {
        int64_t *sum;
        ASSAY_TRY(replay_integer(r, "x", -1, &x));
        ASSAY_TRY(replay_range(r, x, -((int64_t)1 << 40), (int64_t)1 << 40));
        ASSAY_CHECK(x->count <= 1 << 20, ASSAY_LIMIT, "total: slot x: %lld numbers", (long long)x->count);
        ASSAY_TRY(replay_out_integer(r, "y", 1, REF_VALUE_INTEGER, &sum));
        *sum = 0;
        for (int64_t i = 0; i < x->count; i++)
            *sum += x->ivalue[i];
        return ASSAY_OK;
    }
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_out_real(r, "y", 1, ASSAY_F64, "accumulation", &y));
    ref_bound_sum_double(y, x->value, x->count, false, &r->d);
    return ASSAY_OK;
}

static assay_status clip_coefficient(const replay *r)
{
    const ref_value *sumsq;
    double clip_grad;
    ref_pair norm, scale;
    ASSAY_TRY(replay_attr_double(r, "clip_grad", &clip_grad));
    ASSAY_TRY(replay_real(r, "sumsq", 1, &sumsq));
    ASSAY_TRY(replay_out_real(r, "norm", 1, ASSAY_F64, "root", &norm));
    ASSAY_TRY(replay_out_real(r, "scale", 1, ASSAY_F64, "quotient", &scale));
    ref_bound_clip_coefficient(norm, scale, sumsq->value[0], clip_grad);
    return ASSAY_OK;
}

static assay_status adamw_desc(const replay *r, ref_adamw_desc *d)
{
    const ref_value *scale;
    ASSAY_TRY(replay_attr_double(r, "lr", &d->lr));
    ASSAY_TRY(replay_attr_double(r, "beta1", &d->beta1));
    ASSAY_TRY(replay_attr_double(r, "beta2", &d->beta2));
    ASSAY_TRY(replay_attr_double(r, "eps", &d->eps));
    ASSAY_TRY(replay_attr_double(r, "weight_decay", &d->weight_decay));
    ASSAY_TRY(replay_real_optional(r, "grad_scale", 1, &scale));
    d->grad_scale = scale ? scale->value[0] : 1.0;
    ASSAY_TRY(replay_attr_i64(r, "step", 1, INT64_MAX / 2, &d->step));
    return ASSAY_OK;
}

/* The copy of the weights is the candidate's own new master, rounded once. */
static assay_status adamw_copy(const replay *r, const ref_pair *master, int64_t n)
{
    const ref_value *copy = replay_candidate(r, "param"), *own = replay_candidate(r, "main_param");
    ref_pair y;
    if (!copy)
        return ASSAY_OK;
    if (!own) {
        ASSAY_TRY(replay_out_real(r, "param", n, ASSAY_F32, "update", &y));
        for (int64_t i = 0; i < n; i++) {
            y.y[i] = master->y[i];
            y.b[i] = master->b[i] + ref_ulp(master->y[i], ASSAY_F32);
        }
        return ASSAY_OK;
    }
    double *exact;
    ASSAY_TRY(replay_out_exact(r, "param", n, copy->dtype, &exact));
    for (int64_t i = 0; i < n; i++)
        exact[i] = own->value[i];
    return ASSAY_OK;
}

static assay_status adamw(const replay *r)
{
    const ref_value *param, *m, *v, *grad;
    ref_adamw_desc desc;
    ref_pair new_param, new_m, new_v;
    ASSAY_TRY(adamw_desc(r, &desc));
    ASSAY_TRY(replay_real(r, "main_param_in", -1, &param));
    const int64_t n = param->count;
    ASSAY_TRY(replay_real(r, "exp_avg_in", n, &m));
    ASSAY_TRY(replay_real(r, "exp_avg_sq_in", n, &v));
    ASSAY_TRY(replay_real(r, "grad", n, &grad));
    ASSAY_TRY(replay_out_real(r, "main_param", n, ASSAY_F32, "update", &new_param));
    ASSAY_TRY(replay_out_real(r, "exp_avg", n, ASSAY_F32, "first moment", &new_m));
    ASSAY_TRY(replay_out_real(r, "exp_avg_sq", n, ASSAY_F32, "second moment", &new_v));
    ref_bound_adamw(new_param, new_m, new_v, param->value, m->value, v->value, grad->value, &desc, n, &r->d);
    return adamw_copy(r, &new_param, n);
}

const replay_row replay_loss_table[] = {
    {"cross_entropy_stats", cross_entropy_stats},
    {"cross_entropy_loss", cross_entropy_loss},
    {"cross_entropy_bwd", cross_entropy_bwd},
    {"sum", sum},
    {"sumsq", sumsq},
    {"count_zeros", count_zeros},
    {"total", total},
    {"clip_coefficient", clip_coefficient},
    {"adamw", adamw},
    {NULL, NULL},
};
