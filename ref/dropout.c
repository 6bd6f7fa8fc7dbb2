/* Dropout of lockstep tensors: whose mask, and which of its rows a rank has.  docs/OPS.md 9.12. */
#include "ref/lockstep.h"
#include "ref/ops.h"

#include <assert.h>

ref_dropout ref_pass_dropout(const ref_pass *p, int r, double share, ref_dropout_site site)
{
    const int64_t layer = site == REF_DROP_EMBEDDING ? 0 : p->layer;
    return (ref_dropout){.p = share,
                         .seed = (int64_t)p->e->options.dropout_seed,
                         .stream = layer * REF_DROP_SITES + (int64_t)site,
                         .draw = p->step * p->e->run->batches->microbatches + ref_pass_microbatch(p, r)};
}

/* Tokens s * b + b' of the rank's rows of x, which are those of its shard (with sp) or of its region. */
static assay_status token_numbers(ref_pass *p, ref_int_piece *token, int r, int64_t rows)
{
    const ref_rank *rank = &p->ranks[r];
    const assay_sequence *sequence =
        p->e->grid.p.sequence_parallel ? &rank->sequence.shard : &rank->sequence.region;
    assert(rows == sequence->length * p->e->batch);
    ASSAY_TRY(ref_int_piece_new(&p->arena, token, rows, 1));
    for (int64_t t = 0; t < rows; t++)
        token->x[t] = assay_sequence_position(sequence, t / p->e->batch) * p->e->run->batches->b +
                      rank->share.first_row + t % p->e->batch;
    return ASSAY_OK;
}

static assay_status drop(ref_pass *p, ref_tensor *y, const ref_tensor *x, double share, ref_dropout_site site,
                         bool backward)
{
    for (int r = 0; r < p->n; r++) {
        const ref_dropout d = ref_pass_dropout(p, r, share, site);
        const int64_t t = x->at[r].rows, h = x->at[r].cols;
        ref_int_piece token;
        ASSAY_TRY(token_numbers(p, &token, r, t));
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], t, h));
        (backward ? ref_dropout_bwd : ref_dropout_fwd)(y->at[r].x, x->at[r].x, token.x, t, h, &d);
    }
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_ranks_dropout(ref_pass *p, ref_tensor *y, const ref_tensor *x, double share,
                               ref_dropout_site site, const char *instance)
{
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    return drop(p, y, x, share, site, false);
}

assay_status ref_ranks_dropout_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                   double share, ref_dropout_site site)
{
    ASSAY_TRY(ref_new_grad(p, dx, x, NULL));
    return drop(p, dx, dy, share, site, true);
}
