/* What layers are made of: linears, norms, and the tensor-parallel regions around them. */
#include "parity/checks/plan.h"

#include <string.h>

plan_tensor plan_linear(plan *p, const char *at, plan_tensor x, const char *weight, const char *bias,
                        assay_dtype dtype)
{
    const plan_tensor y = plan_value(p, at, "y", dtype);
    plan_add(p, "linear_fwd", at);
    plan_in(p, "x", x);
    plan_in(p, "weight", plan_param(p, weight));
    if (bias != NULL)
        plan_in(p, "bias", plan_param(p, bias));
    plan_out(p, "y", y);
    plan_word(p, "dtype", assay_dtype_name(dtype));
    return y;
}

void plan_linear_backward(plan *p, const char *at, plan_tensor dy, plan_tensor x, const char *weight,
                          const char *bias, plan_tensor dx)
{
    if (bias != NULL && !plan_is_frozen(p, bias)) {
        plan_add(p, "linear_bwd_bias", at);
        plan_in(p, "dy", dy);
        plan_accumulate_product(p, "dbias", bias);
    }
    if (!plan_is_frozen(p, weight)) {
        plan_add(p, "linear_bwd_weight", at);
        plan_in(p, "dy", dy);
        plan_in(p, "x", x);
        plan_accumulate_product(p, "dweight", weight);
        plan_bool(p, "gradient_accumulation_fusion", p->job->options->gradient_accumulation_fusion);
    }
    plan_add(p, "linear_bwd_input", at);
    plan_in(p, "dy", dy);
    plan_in(p, "weight", plan_param(p, weight));
    plan_out(p, "dx", dx);
}

plan_norm plan_rmsnorm(plan *p, const char *at, plan_tensor x)
{
    return plan_rmsnorm_of(p, at, x, p->job->config->layernorm_epsilon);
}

plan_norm plan_rmsnorm_of(plan *p, const char *at, plan_tensor x, double eps)
{
    const plan_norm n = {.x = x,
                         .y = plan_value(p, at, "y", p->act),
                         .rstd = plan_value(p, at, "rstd", p->accumulated),
                         .eps = eps};
    plan_add(p, "rmsnorm_fwd", at);
    plan_in(p, "x", x);
    plan_in(p, "gamma", plan_param(p, plan_text(p, "%s.weight", at)));
    plan_out(p, "y", n.y);
    plan_out(p, "rstd", n.rstd);
    plan_f32(p, "eps", eps);
    return n;
}

void plan_rmsnorm_backward(plan *p, const char *at, const plan_norm *n, plan_tensor dy, plan_tensor dx)
{
    const char *gamma = plan_text(p, "%s.weight", at);
    plan_add(p, "rmsnorm_bwd", at);
    plan_in(p, "dy", dy);
    plan_in(p, "x", n->x);
    plan_in(p, "gamma", plan_param(p, gamma));
    plan_in(p, "rstd", n->rstd);
    if (!plan_is_frozen(p, gamma))
        plan_accumulate(p, "dgamma", gamma);
    plan_out(p, "dx", dx);
    plan_f32(p, "eps", n->eps);
}

plan_tensor plan_add_op(plan *p, const char *at, plan_tensor a, plan_tensor b, plan_tensor y)
{
    plan_add(p, "add", at);
    plan_in(p, "a", a);
    plan_in(p, "b", b);
    plan_out(p, "y", y);
    return y;
}

/* --- regions ------------------------------------------------------------------------------------------------ */

/* Rows of s of every tp rank, where they are not equal. */
static void uneven_counts(plan *p)
{
    if (p->sequence.region.length % p->tp == 0)
        return;
    int64_t *counts = plan_integers(p, p->tp);
    for (int r = 0; counts != NULL && r < p->tp; r++)
        counts[r] = plan_piece(p->sequence.region.length, p->tp, r, NULL);
    plan_list(p, "counts", counts, p->tp);
}

void plan_gather_sequence(plan *p, const char *at, plan_tensor send, plan_tensor recv)
{
    plan_add_collective(p, "all_gather", at, ASSAY_GROUP_TP, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    uneven_counts(p);
}

void plan_scatter_sequence(plan *p, const char *at, plan_tensor send, plan_tensor recv)
{
    plan_add_collective(p, "reduce_scatter", at, ASSAY_GROUP_TP, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    uneven_counts(p);
}

static plan_tensor sum_over_tp(plan *p, const char *at, plan_tensor send)
{
    const plan_tensor recv = plan_value(p, at, "recv", send.dtype);
    plan_add_collective(p, "all_reduce", at, ASSAY_GROUP_TP, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    return recv;
}

plan_tensor plan_column_input(plan *p, const char *at, plan_tensor x)
{
    if (!p->sp)
        return x;
    const plan_tensor whole = plan_value(p, at, "recv", x.dtype);
    plan_gather_sequence(p, at, x, whole);
    return whole;
}

plan_tensor plan_column_input_backward(plan *p, const char *at, const char *at_reduce, plan_tensor dx,
                                       plan_tensor forward)
{
    if (p->tp == 1)
        return dx;
    if (!p->sp)
        return sum_over_tp(p, at_reduce, dx);
    const plan_tensor piece = plan_grad(p, forward, dx.dtype);
    plan_scatter_sequence(p, at, dx, piece);
    return piece;
}

plan_tensor plan_row_output(plan *p, const char *at, plan_tensor y)
{
    if (p->tp == 1)
        return y;
    if (!p->sp)
        return sum_over_tp(p, at, y);
    const plan_tensor piece = plan_value(p, at, "recv", y.dtype);
    plan_scatter_sequence(p, at, y, piece);
    return piece;
}

plan_tensor plan_row_output_backward(plan *p, const char *at, plan_tensor dy, plan_tensor forward)
{
    if (!p->sp)
        return dy;
    const plan_tensor whole = plan_grad(p, forward, dy.dtype);
    plan_gather_sequence(p, at, dy, whole);
    return whole;
}
