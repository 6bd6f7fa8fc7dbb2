/* Dropout: which masks there are, and of what.  docs/OPS.md 9.12. */
#include "parity/checks/plan.h"

#include <math.h>

/* Rows of hidden states on this rank: numbers s * b + b' in the whole microbatch. */
static plan_tensor token_numbers(plan *p)
{
    const assay_sequence *sequence =
        p->job->grid->p.sequence_parallel ? &p->sequence.shard : &p->sequence.region;
    const int64_t n = sequence->length * p->B;
    int64_t *value = plan_integers(p, n);
    for (int64_t t = 0; value != NULL && t < n; t++)
        value[t] =
            assay_sequence_position(sequence, t / p->B) * p->job->batches->b + p->share.first_row + t % p->B;
    const plan_tensor out = {
        .name = "dropout_token_ids", .phase = ASSAY_PHASE_FORWARD, .microbatch = -1, .dtype = ASSAY_I64};
    return plan_with_integers(out, value, n);
}

static void mask(plan *p, const char *name, double share, plan_dropout_site site)
{
    const int64_t layer = site == PLAN_DROP_EMBEDDING ? 0 : p->layer;
    plan_real(p, name, share, 0.0);
    plan_int(p, "seed", (int64_t)p->job->options->dropout_seed);
    plan_int(p, "stream", 4 * layer + (int64_t)site);
    plan_int(p, "draw", p->step * p->job->batches->microbatches + p->microbatch);
}

double plan_hidden_dropout(const plan *p, plan_dropout_site site)
{
    const assay_train_options *o = p->job->options;
    return site == PLAN_DROP_EMBEDDING ? o->hidden_dropout : fmax(o->hidden_dropout, o->residual_dropout);
}

plan_tensor plan_dropout(plan *p, const char *at, plan_dropout_site site, plan_tensor x)
{
    const double share = plan_hidden_dropout(p, site);
    if (share == 0.0)
        return x;
    const plan_tensor y = plan_value(p, at, "y", p->act);
    plan_add(p, "dropout_fwd", at);
    plan_in(p, "x", x);
    plan_in(p, "token", token_numbers(p));
    plan_out(p, "y", y);
    mask(p, "p", share, site);
    return y;
}

plan_tensor plan_dropout_backward(plan *p, const char *at, plan_dropout_site site, plan_tensor dy,
                                  plan_tensor x)
{
    const double share = plan_hidden_dropout(p, site);
    if (share == 0.0)
        return dy;
    const plan_tensor dx = plan_grad(p, x, p->act);
    plan_add(p, "dropout_bwd", at);
    plan_in(p, "dy", dy);
    plan_in(p, "token", token_numbers(p));
    plan_out(p, "dx", dx);
    mask(p, "p", share, site);
    return dx;
}

void plan_attention_dropout(plan *p, int64_t parts)
{
    const assay_model_config *c = p->job->config;
    const double share = p->job->options->attention_dropout;
    if (share == 0.0)
        return;
    int64_t first;
    const int64_t heads = plan_piece(c->num_attention_heads, p->tp, p->at.tp, &first);
    mask(p, "dropout_p", share, PLAN_DROP_PROBS);
    plan_int(p, "first_row", p->share.first_row);
    plan_int(p, "all_rows", p->job->batches->b);
    plan_int(p, "first_head", first + (parts > 1 ? p->at.cp * (heads / parts) : 0));
    plan_int(p, "all_heads", c->num_attention_heads);
    plan_int(p, "all_keys", p->S);
}
