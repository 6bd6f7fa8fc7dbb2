/* Attention over cp. */
#include "ref/parallel/context.h"

#include "ref/lockstep.h"
#include "ref/parallel/collectives.h"

static bool alone(const ref_pass *p)
{
    return p->e->grid.p.context_parallel_size == 1;
}

/* --- positions ------------------------------------------------------------------------------------------------ */

/* Positions of the tokens of `sequence`, each row of the batch the same. */
static assay_status positions_of(ref_pass *p, ref_int_piece *out, const assay_sequence *sequence)
{
    const int64_t batch = p->e->batch;
    ASSAY_TRY(ref_int_piece_new(&p->arena, out, sequence->length * batch, 1));
    for (int64_t t = 0; t < out->rows; t++)
        out->x[t] = assay_sequence_position(sequence, t / batch);
    return ASSAY_OK;
}

/* Of every rank's own region, or of what its cp group gathers. */
static assay_status make_positions(ref_pass *p, ref_ints *out, bool gathered)
{
    assay_sequence whole;
    ASSAY_TRY(ref_ints_new(&p->arena, out, p->n));
    if (gathered)
        ASSAY_TRY(assay_sequence_gathered(&p->e->grid, p->e->seq, &whole));
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(positions_of(p, &out->at[r], gathered ? &whole : &p->ranks[r].sequence.region));
    return ASSAY_OK;
}

/* --- all_gather ----------------------------------------------------------------------------------------------- */

typedef enum { GATHER, REDUCE_SCATTER } cp_collective;

/* Runs the collective on every cp group; counts are the elements of every member's region. */
static void run_groups(ref_pass *p, cp_collective what, ref_tensor *to, const ref_tensor *from)
{
    double **send = p->e->send, **recv = p->e->recv;
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_CP, r);
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            send[i] = from->at[member].x;
            recv[i] = to->at[member].x;
            p->e->counts[i] = ref_pass_region_tokens(p, member) * from->at[member].cols;
        }
        if (g.size > 0 && what == GATHER)
            ref_all_gather(recv, send, p->e->counts, g.size);
        else if (g.size > 0)
            ref_reduce_scatter(recv, send, p->e->counts, g.size);
    }
}

static assay_status gather(ref_pass *p, ref_tensor *whole, const ref_tensor *piece, const char *instance)
{
    ASSAY_TRY(ref_new(p, whole, instance, "recv"));
    whole->heads = piece->heads;
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(ref_piece_new(&p->arena, &whole->at[r], p->e->seq * p->e->batch, piece->at[r].cols));
    run_groups(p, GATHER, whole, piece);
    return ref_store(p, whole, REF_STORE_EXACT);
}

/* dpiece = own positions of the sum over cp of dwhole, named as the gradient of `piece` */
static assay_status gather_bwd(ref_pass *p, ref_tensor *dpiece, const ref_tensor *dwhole,
                               const ref_tensor *piece)
{
    ASSAY_TRY(ref_new_grad(p, dpiece, piece, NULL));
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(ref_piece_new(&p->arena, &dpiece->at[r], piece->at[r].rows, piece->at[r].cols));
    run_groups(p, REDUCE_SCATTER, dpiece, dwhole);
    return ref_store(p, dpiece, REF_STORE_ACT);
}

/* --- attention ------------------------------------------------------------------------------------------------ */

assay_status ref_context_attention_fwd(ref_pass *p, ref_context_acts *a, ref_tensor *o, const ref_tensor *q,
                                       const ref_tensor *k, const ref_tensor *v)
{
    a->q = *q;
    a->k = *k;
    a->v = *v;
    ASSAY_TRY(make_positions(p, &a->q_position, false));
    ASSAY_TRY(make_positions(p, &a->k_position, !alone(p)));
    if (!alone(p)) {
        ASSAY_TRY(gather(p, &a->k, k, "self_attention.gather_k"));
        ASSAY_TRY(gather(p, &a->v, v, "self_attention.gather_v"));
    }
    ASSAY_TRY(ref_ranks_attention(p, &a->o, &a->lse, &a->q, &a->k, &a->v, &a->q_position, &a->k_position));
    *o = a->o;
    return ASSAY_OK;
}

assay_status ref_context_attention_bwd(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                                       const ref_context_acts *a, const ref_tensor *dout, const ref_tensor *q,
                                       const ref_tensor *k, const ref_tensor *v)
{
    ref_tensor dk_whole, dv_whole;
    (void)q;
    if (alone(p))
        return ref_ranks_attention_bwd(p, dq, dk, dv, dout, &a->q, &a->k, &a->v, &a->o, &a->lse,
                                       &a->q_position, &a->k_position);
    ASSAY_TRY(ref_ranks_attention_bwd(p, dq, &dk_whole, &dv_whole, dout, &a->q, &a->k, &a->v, &a->o, &a->lse,
                                      &a->q_position, &a->k_position));
    ASSAY_TRY(gather_bwd(p, dk, &dk_whole, k));
    return gather_bwd(p, dv, &dv_whole, v);
}
