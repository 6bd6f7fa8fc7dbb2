/* Replay of products, element-wise operations, rope and the embedding. */
#include "ref/replay_context.h"

#include <string.h>

/* A matrix of ndim >= 2: [rows..., last]. */
static assay_status matrix(const replay *r, const ref_value *w, int ndim)
{
    ASSAY_CHECK(w->ndim == ndim, ASSAY_INVALID_ARGUMENT, "%s: slot %s: expected %d dimensions, found %d",
                r->op, w->slot, ndim, w->ndim);
    return ASSAY_OK;
}

static assay_status linear_fwd(const replay *r)
{
    const ref_value *x, *w, *bias;
    int64_t t, count;
    ref_pair y;
    ASSAY_TRY(replay_real(r, "weight", -1, &w));
    ASSAY_TRY(matrix(r, w, 2));
    const int64_t n = w->shape[0], k = w->shape[1];
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, k, &t));
    ASSAY_TRY(replay_real_optional(r, "bias", n, &bias));
    ASSAY_TRY(replay_product(r, t, n, 1, &count));
    ASSAY_TRY(replay_out_real(r, "y", count, x->dtype, "accumulation", &y));
    return ref_bound_linear_fwd(y, x->value, w->value, bias ? bias->value : NULL, t, n, k, &r->d);
}

static assay_status linear_bwd_input(const replay *r)
{
    const ref_value *dy, *w;
    int64_t t, count;
    ref_pair dx;
    ASSAY_TRY(replay_real(r, "weight", -1, &w));
    ASSAY_TRY(matrix(r, w, 2));
    const int64_t n = w->shape[0], k = w->shape[1];
    ASSAY_TRY(replay_real(r, "dy", -1, &dy));
    ASSAY_TRY(replay_divide(r, dy, n, &t));
    ASSAY_TRY(replay_product(r, t, k, 1, &count));
    ASSAY_TRY(replay_out_real(r, "dx", count, dy->dtype, "accumulation", &dx));
    return ref_bound_linear_bwd_input(dx, dy->value, w->value, t, n, k, &r->d);
}

/* Products that are stored one by one and added in the stored type (a gradient scattered row by row). */
static void partial_sums(const replay *r, ref_pair dw, const double *dy, const double *x, int64_t t,
                         int64_t n, int64_t k)
{
    const double relative = expm1((double)(t + 1) * r->d.u_store);
    for (int64_t i = 0; i < n * k; i++) {
        double size = 0.0;
        for (int64_t row = 0; row < t; row++)
            size += fabs(dy[row * n + i / k] * x[row * k + i % k]);
        dw.b[i] += relative * size + (double)(t + 1) * r->d.eta_store;
    }
}

/* What the product is added to; NULL: it is the result, and what the memory held is not read. */
static assay_status added_to(const replay *r, const ref_value *old, const double **out)
{
    bool accumulate = true;
    if (replay_has_attr(r, "accumulate"))
        ASSAY_TRY(replay_attr_bool(r, "accumulate", &accumulate));
    *out = accumulate ? old->value : NULL;
    return ASSAY_OK;
}

/* Rows [first, first + t) and the matrix at `offset`. */
static assay_status weight_gradient(const replay *r, ref_pair dw, const ref_value *dy, const ref_value *x,
                                    const ref_value *old, int64_t first, int64_t offset, int64_t t, int64_t n,
                                    int64_t k)
{
    const ref_pair out = {dw.y + offset, dw.b + offset, dw.same};
    const double *a = dy->value + first * n, *b = x->value + first * k, *before;
    bool fused = true; /* the attribute's value where it is absent */
    ASSAY_TRY(added_to(r, old, &before));
    before = before ? before + offset : NULL;
    if (replay_has_attr(r, "gradient_accumulation_fusion"))
        ASSAY_TRY(replay_attr_bool(r, "gradient_accumulation_fusion", &fused));
    ASSAY_TRY(fused ? ref_bound_linear_bwd_weight(out, a, b, before, t, n, k, &r->d)
                    : ref_bound_linear_bwd_weight_stored(out, a, b, before, dy->dtype, t, n, k, &r->d));
    if (r->d.rounding & ASSAY_ROUND_PARTIAL_SUMS)
        partial_sums(r, out, a, b, t, n, k);
    return ASSAY_OK;
}

static assay_status linear_bwd_weight(const replay *r)
{
    const ref_value *dy, *x, *old;
    int64_t t, t_x;
    ref_pair dw;
    ASSAY_TRY(replay_real(r, "dweight_in", -1, &old));
    ASSAY_TRY(matrix(r, old, 2));
    const int64_t n = old->shape[0], k = old->shape[1];
    ASSAY_TRY(replay_real(r, "dy", -1, &dy));
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, dy, n, &t));
    ASSAY_TRY(replay_divide(r, x, k, &t_x));
    ASSAY_CHECK(t == t_x || n == 0 || k == 0, ASSAY_INVALID_ARGUMENT,
                "%s: slot x: expected %lld rows as in dy, found %lld", r->op, (long long)t, (long long)t_x);
    ASSAY_TRY(replay_out_real(r, "dweight", old->count, ASSAY_F32, "accumulation", &dw));
    if (old->count == 0)
        return ASSAY_OK;
    return weight_gradient(r, dw, dy, x, old, 0, 0, t, n, k);
}

static assay_status linear_bwd_bias(const replay *r)
{
    const ref_value *dy, *old;
    const double *before;
    int64_t t;
    ref_pair db;
    ASSAY_TRY(replay_real(r, "dbias_in", -1, &old));
    ASSAY_TRY(replay_real(r, "dy", -1, &dy));
    ASSAY_TRY(replay_divide(r, dy, old->count, &t));
    ASSAY_TRY(replay_out_real(r, "dbias", old->count, ASSAY_F32, "accumulation", &db));
    ASSAY_TRY(added_to(r, old, &before));
    return ref_bound_linear_bwd_bias(db, dy->value, before, t, old->count, &r->d);
}

/* tokens_per_expert [El] adds up to the rows. */
static assay_status expert_rows(const replay *r, int64_t e, int64_t rows, const ref_value **counts)
{
    int64_t total = 0;
    ASSAY_TRY(replay_integer(r, "tokens_per_expert", e, counts));
    ASSAY_TRY(replay_range(r, *counts, 0, INT64_MAX / 2));
    for (int64_t i = 0; i < e; i++)
        if (!assay_add_i64(total, (*counts)->ivalue[i], &total))
            total = INT64_MAX;
    ASSAY_CHECK(total == rows, ASSAY_INVALID_ARGUMENT,
                "%s: slot tokens_per_expert: the counts add up to %lld, there are %lld rows", r->op,
                (long long)total, (long long)rows);
    return ASSAY_OK;
}

static ref_pair at(ref_pair p, int64_t offset)
{
    return (ref_pair){p.y + offset, p.b + offset, p.same};
}

static assay_status grouped_linear_fwd(const replay *r)
{
    const ref_value *x, *w, *counts;
    int64_t rows, count;
    ref_pair y;
    ASSAY_TRY(replay_real(r, "weight", -1, &w));
    ASSAY_TRY(matrix(r, w, 3));
    const int64_t e = w->shape[0], n = w->shape[1], k = w->shape[2];
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, k, &rows));
    ASSAY_TRY(expert_rows(r, e, rows, &counts));
    ASSAY_TRY(replay_product(r, rows, n, 1, &count));
    ASSAY_TRY(replay_out_real(r, "y", count, x->dtype, "accumulation", &y));
    for (int64_t i = 0, first = 0; i < e; first += counts->ivalue[i++])
        ASSAY_TRY(ref_bound_linear_fwd(at(y, first * n), x->value + first * k, w->value + i * n * k, NULL,
                                       counts->ivalue[i], n, k, &r->d));
    return ASSAY_OK;
}

static assay_status grouped_linear_bwd_input(const replay *r)
{
    const ref_value *dy, *w, *counts;
    int64_t rows, count;
    ref_pair dx;
    ASSAY_TRY(replay_real(r, "weight", -1, &w));
    ASSAY_TRY(matrix(r, w, 3));
    const int64_t e = w->shape[0], n = w->shape[1], k = w->shape[2];
    ASSAY_TRY(replay_real(r, "dy", -1, &dy));
    ASSAY_TRY(replay_divide(r, dy, n, &rows));
    ASSAY_TRY(expert_rows(r, e, rows, &counts));
    ASSAY_TRY(replay_product(r, rows, k, 1, &count));
    ASSAY_TRY(replay_out_real(r, "dx", count, dy->dtype, "accumulation", &dx));
    for (int64_t i = 0, first = 0; i < e; first += counts->ivalue[i++])
        ASSAY_TRY(ref_bound_linear_bwd_input(at(dx, first * k), dy->value + first * n, w->value + i * n * k,
                                             counts->ivalue[i], n, k, &r->d));
    return ASSAY_OK;
}

static assay_status grouped_linear_bwd_weight(const replay *r)
{
    const ref_value *dy, *x, *old, *counts;
    int64_t rows, rows_x;
    ref_pair dw;
    ASSAY_TRY(replay_real(r, "dweight_in", -1, &old));
    ASSAY_TRY(matrix(r, old, 3));
    const int64_t e = old->shape[0], n = old->shape[1], k = old->shape[2];
    ASSAY_TRY(replay_real(r, "dy", -1, &dy));
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, dy, n, &rows));
    ASSAY_TRY(replay_divide(r, x, k, &rows_x));
    ASSAY_CHECK(rows == rows_x || n == 0 || k == 0, ASSAY_INVALID_ARGUMENT,
                "%s: slot x: expected %lld rows as in dy, found %lld", r->op, (long long)rows,
                (long long)rows_x);
    ASSAY_TRY(expert_rows(r, e, rows, &counts));
    ASSAY_TRY(replay_out_real(r, "dweight", old->count, ASSAY_F32, "accumulation", &dw));
    for (int64_t i = 0, first = 0; i < e && old->count > 0; first += counts->ivalue[i++])
        ASSAY_TRY(weight_gradient(r, dw, dy, x, old, first, i * n * k, counts->ivalue[i], n, k));
    return ASSAY_OK;
}

static assay_status add(const replay *r)
{
    const ref_value *a, *b;
    ref_pair y;
    ASSAY_TRY(replay_real(r, "a", -1, &a));
    ASSAY_TRY(replay_real(r, "b", a->count, &b));
    ASSAY_TRY(replay_out_real(r, "y", a->count, a->dtype, "addition", &y));
    ref_bound_add(y, a->value, b->value, a->count, &r->d);
    return ASSAY_OK;
}

/* x [T,2F] */
static assay_status gate_up(const replay *r, const ref_value **x, int64_t *t, int64_t *f)
{
    ASSAY_TRY(replay_real(r, "x", -1, x));
    const int64_t columns = replay_columns(*x);
    ASSAY_CHECK((*x)->ndim >= 1 && columns % 2 == 0, ASSAY_INVALID_ARGUMENT,
                "%s: slot x: expected rows [gate | up] of even length, found %lld", r->op,
                (long long)columns);
    *f = columns / 2;
    return replay_divide(r, *x, columns, t);
}

static assay_status swiglu_fwd(const replay *r)
{
    const ref_value *x, *probs;
    int64_t t, f;
    ref_pair y;
    ASSAY_TRY(gate_up(r, &x, &t, &f));
    ASSAY_TRY(replay_real_optional(r, "probs", t, &probs));
    ASSAY_TRY(replay_out_real(r, "y", x->count / 2, x->dtype, "sigmoid", &y));
    ref_bound_swiglu_fwd(y, x->value, probs ? probs->value : NULL, f > 0 ? t : 0, f, &r->d);
    return ASSAY_OK;
}

static assay_status swiglu_bwd(const replay *r)
{
    const ref_value *x, *probs, *dy;
    int64_t t, f;
    ref_pair dx, dprobs = {NULL, NULL, false};
    ASSAY_TRY(gate_up(r, &x, &t, &f));
    ASSAY_TRY(replay_real(r, "dy", x->count / 2, &dy));
    ASSAY_TRY(replay_real_optional(r, "probs", t, &probs));
    ASSAY_TRY(replay_out_real(r, "dx", x->count, x->dtype, "sigmoid", &dx));
    if (probs)
        ASSAY_TRY(replay_out_real(r, "dprobs", t, ASSAY_F32, "accumulation", &dprobs));
    if (f == 0)
        return ASSAY_OK; /* empty rows: dprobs is an empty sum */
    return ref_bound_swiglu_bwd(dx, dprobs, dy->value, x->value, probs ? probs->value : NULL, t, f, &r->d);
}

/* The limit as the dtype of x holds it. */
static assay_status clamp_limit(const replay *r, const ref_value *x, double *limit)
{
    ASSAY_TRY(replay_attr_double(r, "limit", limit));
    if (x->dtype != ASSAY_F64)
        *limit = ref_round((double)(float)*limit, x->dtype);
    return ASSAY_OK;
}

static assay_status clamp_fwd(const replay *r)
{
    const ref_value *x;
    double limit;
    ref_pair y;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(clamp_limit(r, x, &limit));
    ASSAY_TRY(replay_out_real(r, "y", x->count, x->dtype, "stored rounding", &y));
    ref_bound_clamp_fwd(y, x->value, limit, x->count, &r->d);
    return ASSAY_OK;
}

static assay_status clamp_bwd(const replay *r)
{
    const ref_value *x, *dy;
    double limit;
    ref_pair dx;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(clamp_limit(r, x, &limit));
    ASSAY_TRY(replay_real(r, "dy", x->count, &dy));
    ASSAY_TRY(replay_out_real(r, "dx", x->count, x->dtype, "stored rounding", &dx));
    ref_bound_clamp_bwd(dx, dy->value, x->value, limit, x->count, &r->d);
    return ASSAY_OK;
}

static assay_status dropout(const replay *r, const char *in, const char *out)
{
    const ref_value *x, *token;
    int64_t h;
    ref_dropout d;
    ref_pair y;
    ASSAY_TRY(replay_dropout(r, "p", &d));
    ASSAY_TRY(replay_real(r, in, -1, &x));
    ASSAY_TRY(replay_integer(r, "token", -1, &token));
    ASSAY_TRY(replay_divide(r, x, token->count, &h));
    ASSAY_TRY(replay_out_real(r, out, x->count, x->dtype, "stored rounding", &y));
    ref_bound_dropout(y, x->value, token->ivalue, token->count, h, &d, &r->d);
    return ASSAY_OK;
}

static assay_status dropout_fwd(const replay *r)
{
    return dropout(r, "x", "y");
}

static assay_status dropout_bwd(const replay *r)
{
    return dropout(r, "dy", "dx");
}

static assay_status sigmoid_gate_fwd(const replay *r)
{
    const ref_value *x, *gate;
    ref_pair y;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_real(r, "gate", -1, &gate));
    int64_t h;
    ASSAY_TRY(replay_divide(r, x, gate->count, &h));
    ASSAY_TRY(replay_out_real(r, "y", x->count, x->dtype, "sigmoid", &y));
    ref_bound_sigmoid_gate_fwd(y, x->value, gate->value, gate->count, h, &r->d);
    return ASSAY_OK;
}

static assay_status sigmoid_gate_bwd(const replay *r)
{
    const ref_value *x, *gate, *dy;
    int64_t h;
    ref_pair dx, dgate;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_real(r, "dy", x->count, &dy));
    ASSAY_TRY(replay_real(r, "gate", -1, &gate));
    ASSAY_TRY(replay_divide(r, x, gate->count, &h));
    ASSAY_TRY(replay_out_real(r, "dx", x->count, x->dtype, "sigmoid", &dx));
    ASSAY_TRY(replay_out_real(r, "dgate", gate->count, gate->dtype, "accumulation", &dgate));
    ref_bound_sigmoid_gate_bwd(dx, dgate, dy->value, x->value, gate->value, gate->count, h, &r->d);
    return ASSAY_OK;
}

static assay_status cast(const replay *r)
{
    const ref_value *x;
    double *y;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_out_exact(r, "y", x->count, x->dtype, &y));
    if (x->count > 0)
        memcpy(y, x->value, (size_t)x->count * sizeof *y);
    return ASSAY_OK;
}

static assay_status yarn_desc(const replay *r, ref_rope_desc *d)
{
    ASSAY_TRY(replay_attr_double(r, "beta_fast", &d->beta_fast));
    ASSAY_TRY(replay_attr_double(r, "beta_slow", &d->beta_slow));
    ASSAY_TRY(replay_attr_bool(r, "truncate", &d->truncate));
    ASSAY_TRY(replay_attr_double(r, "attention_factor", &d->attention_factor));
    ASSAY_CHECK(d->beta_fast > 0.0 && d->beta_slow > 0.0 && d->attention_factor > 0.0 && d->base > 1.0,
                ASSAY_INVALID_ARGUMENT,
                "%s: yarn: expected beta_fast, beta_slow and attention_factor above 0, rotary_base above 1, "
                "found %g, %g, %g and %g",
                r->op, d->beta_fast, d->beta_slow, d->attention_factor, d->base);
    return replay_attr_i64(r, "original_max_position_embeddings", 1, ASSAY_CONFIG_MAX_DIM,
                           &d->original_max_position_embeddings);
}

static assay_status rope_desc(const replay *r, ref_rope_desc *d)
{
    char type[16];
    *d = (ref_rope_desc){.type = ASSAY_ROPE_DEFAULT, .factor = 1.0};
    ASSAY_TRY(replay_attr_i64(r, "rotary_dim", 0, ASSAY_CONFIG_MAX_DIM, &d->rotary_dim));
    ASSAY_TRY(replay_attr_double(r, "rotary_base", &d->base));
    ASSAY_CHECK(d->rotary_dim % 2 == 0 && d->base > 0.0, ASSAY_INVALID_ARGUMENT,
                "%s: expected an even rotary_dim and a positive rotary_base, found %lld and %g", r->op,
                (long long)d->rotary_dim, d->base);
    ASSAY_TRY(replay_attr_string(r, "rope_type", type, sizeof type));
    if (strcmp(type, "default") == 0)
        return ASSAY_OK;
    for (d->type = ASSAY_ROPE_LINEAR; d->type < ASSAY_ROPE_YARN; d->type++)
        if (strcmp(type, assay_rope_name(d->type)) == 0)
            break;
    ASSAY_CHECK(strcmp(type, assay_rope_name(d->type)) == 0, ASSAY_INVALID_ARGUMENT,
                "%s: rope_type: expected default, linear, llama3 or yarn, found '%s'", r->op, type);
    ASSAY_TRY(replay_attr_double(r, "factor", &d->factor));
    ASSAY_CHECK(d->factor > 0.0, ASSAY_INVALID_ARGUMENT, "%s: factor: expected a positive number, found %g",
                r->op, d->factor);
    if (d->type == ASSAY_ROPE_LINEAR)
        return ASSAY_OK;
    if (d->type == ASSAY_ROPE_YARN)
        return yarn_desc(r, d);
    ASSAY_TRY(replay_attr_double(r, "low_freq_factor", &d->low_freq_factor));
    ASSAY_TRY(replay_attr_double(r, "high_freq_factor", &d->high_freq_factor));
    ASSAY_TRY(replay_attr_i64(r, "original_max_position_embeddings", 1, ASSAY_CONFIG_MAX_DIM,
                              &d->original_max_position_embeddings));
    return ASSAY_OK;
}

/* No inputs: the number of positions is the attribute's; where a trace has none, the candidate's. */
static assay_status rope_table(const replay *r)
{
    ref_rope_desc desc;
    ref_pair c, s;
    const ref_value *table = replay_candidate(r, "cos");
    ASSAY_TRY(rope_desc(r, &desc));
    int64_t p;
    if (replay_has_attr(r, "positions")) {
        ASSAY_TRY(replay_attr_i64(r, "positions", 0, ASSAY_CONFIG_MAX_DIM, &p));
    } else {
        ASSAY_CHECK(table, ASSAY_INVALID_ARGUMENT, "%s: output slot 'cos' is missing: how many positions?",
                    r->op);
        ASSAY_TRY(replay_divide(r, table, desc.rotary_dim / 2, &p));
    }
    const int64_t count = p * (desc.rotary_dim / 2);
    ASSAY_TRY(replay_out_real(r, "cos", count, ASSAY_F32, "output rounding", &c));
    ASSAY_TRY(replay_out_real(r, "sin", count, ASSAY_F32, "output rounding", &s));
    if (desc.rotary_dim > 0)
        ref_bound_rope_table(c, s, &desc, p, &r->d);
    return ASSAY_OK;
}

static assay_status rope(const replay *r, const char *in, const char *out, double sign)
{
    const ref_value *x, *c, *s, *position;
    int64_t heads, table_rows, dim;
    ref_pair y;
    ASSAY_TRY(replay_real(r, in, -1, &x));
    ASSAY_TRY(replay_real(r, "cos", -1, &c));
    ASSAY_TRY(replay_real(r, "sin", c->count, &s));
    ASSAY_TRY(replay_integer(r, "position", -1, &position));
    dim = replay_columns(x);
    if (replay_has_attr(r, "head_dim"))
        ASSAY_TRY(replay_attr_i64(r, "head_dim", 1, ASSAY_CONFIG_MAX_DIM, &dim));
    const int64_t half = replay_columns(c), t = position->count;
    ASSAY_TRY(replay_divide(r, c, half, &table_rows));
    ASSAY_CHECK(half >= 0 && half <= dim / 2, ASSAY_INVALID_ARGUMENT,
                "%s: slot cos: %lld frequencies do not fit heads of %lld", r->op, (long long)half,
                (long long)dim);
    ASSAY_CHECK(t > 0 ? x->count % t == 0 : x->count == 0, ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: %lld elements for %lld positions", r->op, in, (long long)x->count,
                (long long)t);
    heads = t > 0 && dim > 0 ? x->count / t / dim : 0;
    ASSAY_CHECK(t == 0 || dim == 0 || heads * dim == x->count / t, ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: rows of %lld are not heads of %lld", r->op, in, (long long)(x->count / t),
                (long long)dim);
    ASSAY_TRY(replay_range(r, position, 0, table_rows - 1));
    ASSAY_TRY(replay_out_real(r, out, x->count, x->dtype, "rotation", &y));
    ref_bound_rope(y, x->value, c->value, s->value, position->ivalue, 2 * half, t, heads, dim, sign, &r->d);
    return ASSAY_OK;
}

static assay_status rope_fwd(const replay *r)
{
    return rope(r, "x", "y", 1.0);
}

static assay_status rope_bwd(const replay *r)
{
    return rope(r, "dy", "dx", -1.0);
}

static assay_status embedding_fwd(const replay *r)
{
    const ref_value *ids, *w;
    int64_t start, count;
    double *y;
    ASSAY_TRY(replay_attr_i64(r, "vocab_start", 0, ASSAY_CONFIG_MAX_DIM, &start));
    ASSAY_TRY(replay_real(r, "weight", -1, &w));
    ASSAY_TRY(matrix(r, w, 2));
    ASSAY_TRY(replay_integer(r, "ids", -1, &ids));
    ASSAY_TRY(replay_product(r, ids->count, w->shape[1], 1, &count));
    ASSAY_TRY(replay_out_exact(r, "y", count, w->dtype, &y));
    ref_embedding_fwd(y, ids->ivalue, w->value, start, ids->count, w->shape[0], w->shape[1]);
    return ASSAY_OK;
}

static assay_status embedding_bwd(const replay *r)
{
    const ref_value *ids, *dy, *old;
    int64_t start, padding, count;
    ref_pair dw;
    ASSAY_TRY(replay_attr_i64(r, "vocab_start", 0, ASSAY_CONFIG_MAX_DIM, &start));
    ASSAY_TRY(replay_attr_i64(r, "padding_idx", -1, ASSAY_CONFIG_MAX_DIM, &padding));
    ASSAY_TRY(replay_real(r, "dweight_in", -1, &old));
    ASSAY_TRY(matrix(r, old, 2));
    ASSAY_TRY(replay_integer(r, "ids", -1, &ids));
    ASSAY_TRY(replay_product(r, ids->count, old->shape[1], 1, &count));
    ASSAY_TRY(replay_real(r, "dy", count, &dy));
    ASSAY_TRY(replay_out_real(r, "dweight", old->count, ASSAY_F32, "accumulation", &dw));
    if (old->count == 0)
        return ASSAY_OK;
    return ref_bound_embedding_bwd(dw, dy->value, ids->ivalue, old->value, start, padding, ids->count,
                                   old->shape[0], old->shape[1], &r->d);
}

const replay_row replay_dense_table[] = {
    {"linear_fwd", linear_fwd},
    {"linear_bwd_input", linear_bwd_input},
    {"linear_bwd_weight", linear_bwd_weight},
    {"linear_bwd_bias", linear_bwd_bias},
    {"grouped_linear_fwd", grouped_linear_fwd},
    {"grouped_linear_bwd_input", grouped_linear_bwd_input},
    {"grouped_linear_bwd_weight", grouped_linear_bwd_weight},
    {"add", add},
    {"swiglu_fwd", swiglu_fwd},
    {"swiglu_bwd", swiglu_bwd},
    {"clamp_fwd", clamp_fwd},
    {"clamp_bwd", clamp_bwd},
    {"dropout_fwd", dropout_fwd},
    {"dropout_bwd", dropout_bwd},
    {"sigmoid_gate_fwd", sigmoid_gate_fwd},
    {"sigmoid_gate_bwd", sigmoid_gate_bwd},
    {"cast", cast},
    {"rope_table", rope_table},
    {"rope_fwd", rope_fwd},
    {"rope_bwd", rope_bwd},
    {"embedding_fwd", embedding_fwd},
    {"embedding_bwd", embedding_bwd},
    {NULL, NULL},
};
