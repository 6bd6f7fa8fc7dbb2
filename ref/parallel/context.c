/* Attention over cp. */
#include "ref/parallel/context.h"

#include "ref/documents.h"
#include "ref/parallel/collectives.h"

#include <assert.h>

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

/* --- a2a -------------------------------------------------------------------------------------------------------- */

/* y = x with the heads, d wide, of every cp rank together, [P,T,A/P,D]; back: as they were.  Nothing is computed. */
static assay_status repack(ref_pass *p, ref_tensor *y, const ref_tensor *x, int64_t d, bool back)
{
    const int64_t parts = p->e->grid.p.context_parallel_size;
    for (int r = 0; r < p->n; r++) {
        const int64_t t = ref_pass_region_tokens(p, r);
        const int64_t cols = back ? x->at[r].cols * parts : x->at[r].cols, heads = cols / d;
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], back ? t : t * parts, back ? cols : cols / parts));
        if (back)
            ref_unpack_heads(y->at[r].x, x->at[r].x, t, heads, d, parts);
        else
            ref_pack_heads(y->at[r].x, x->at[r].x, t, heads, d, parts);
    }
    y->heads = y->at[0].cols / d;
    y->token_rows = back;
    return ref_store(p, y, REF_STORE_EXACT);
}

/* all_to_all over cp.  outward: packed heads, d wide, of the own positions -> own heads of all positions; else the way back. */
static assay_status exchange(ref_pass *p, ref_tensor *to, const ref_tensor *from, int64_t d, bool outward)
{
    const int parts = p->e->grid.p.context_parallel_size;
    void *memory;
    ASSAY_TRY(ref_arena_alloc(&p->arena, (int64_t)parts * parts, sizeof(int64_t), &memory));
    int64_t *counts = memory;
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(ref_piece_new(&p->arena, &to->at[r],
                                outward ? p->e->seq * p->e->batch : parts * ref_pass_region_tokens(p, r),
                                from->at[r].cols));
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_CP, r);
        for (int i = 0; i < g.size; i++) {
            p->e->send[i] = from->at[assay_group_member(&g, i)].x;
            p->e->recv[i] = to->at[assay_group_member(&g, i)].x;
            for (int j = 0; j < g.size; j++)
                counts[i * g.size + j] =
                    ref_pass_region_tokens(p, assay_group_member(&g, outward ? i : j)) * from->at[r].cols;
        }
        if (g.size > 0)
            ref_all_to_all(p->e->recv, p->e->send, counts, g.size);
    }
    to->heads = from->at[0].cols / d;
    to->token_rows = outward;
    return ref_store(p, to, REF_STORE_EXACT);
}

/* "self_attention." + verb + letter */
static const char *instance_of(const char *verb, char letter, char out[ASSAY_NAME])
{
    snprintf(out, ASSAY_NAME, "self_attention.%s_%c", verb, letter);
    return out;
}

/* Width of a head of q, k or v. */
static int64_t width_of(const ref_pass *p, char letter)
{
    return letter == 'v' ? assay_config_value_dim(p->e->config) : p->e->config->kv_channels;
}

/* x of the own positions -> own heads of all positions */
static assay_status heads_to_sequence(ref_pass *p, ref_tensor *to, const ref_tensor *x, char letter)
{
    const int64_t d = width_of(p, letter);
    char pack[ASSAY_NAME], a2a[ASSAY_NAME];
    ref_tensor packed;
    ASSAY_TRY(ref_new(p, &packed, instance_of("pack", letter, pack), "y"));
    ASSAY_TRY(ref_new(p, to, instance_of("a2a", letter, a2a), "recv"));
    ASSAY_TRY(repack(p, &packed, x, d, false));
    return exchange(p, to, &packed, d, true);
}

/* The gradient of x, from that of `to` */
static assay_status heads_to_sequence_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dto,
                                          const ref_tensor *x, char letter)
{
    const int64_t d = width_of(p, letter);
    char pack[ASSAY_NAME];
    ref_tensor packed;
    ASSAY_TRY(ref_new(p, &packed, instance_of("pack", letter, pack), "y.grad"));
    ASSAY_TRY(ref_new_grad(p, dx, x, NULL));
    ASSAY_TRY(exchange(p, &packed, dto, d, false));
    return repack(p, dx, &packed, d, true);
}

static assay_status a2a_fwd(ref_pass *p, ref_context_acts *a, ref_tensor *o, const ref_tensor *q,
                            const ref_tensor *k, const ref_tensor *v)
{
    const int64_t d = assay_config_value_dim(p->e->config);
    ref_tensor packed;
    ASSAY_TRY(make_positions(p, &a->seen.q_position, true));
    a->seen.k_position = a->seen.q_position;
    ASSAY_TRY(ref_documents_start(p, &a->seen.document_start, true));
    ASSAY_TRY(heads_to_sequence(p, &a->q, q, 'q'));
    ASSAY_TRY(heads_to_sequence(p, &a->k, k, 'k'));
    ASSAY_TRY(heads_to_sequence(p, &a->v, v, 'v'));
    ASSAY_TRY(ref_ranks_attention(p, &a->o, &a->lse, &a->q, &a->k, &a->v, &a->seen,
                                  "self_attention.core_attention"));
    ASSAY_TRY(ref_new(p, &packed, "self_attention.a2a_o", "recv"));
    ASSAY_TRY(ref_new(p, o, "self_attention.unpack_o", "y"));
    ASSAY_TRY(exchange(p, &packed, &a->o, d, false));
    ASSAY_TRY(repack(p, o, &packed, d, true));
    o->heads = 0; /* [S,B,A*D], as attention leaves it */
    return ASSAY_OK;
}

static assay_status a2a_bwd(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                            const ref_context_acts *a, const ref_tensor *dout, const ref_tensor *q,
                            const ref_tensor *k, const ref_tensor *v)
{
    const int64_t d = assay_config_value_dim(p->e->config);
    ref_tensor packed, d_o, dq_all, dk_all, dv_all;
    ASSAY_TRY(ref_new(p, &packed, "self_attention.a2a_o", "recv.grad"));
    ASSAY_TRY(ref_new_grad(p, &d_o, &a->o, NULL));
    ASSAY_TRY(repack(p, &packed, dout, d, false));
    ASSAY_TRY(exchange(p, &d_o, &packed, d, true));
    ASSAY_TRY(ref_ranks_attention_bwd(p, &dq_all, &dk_all, &dv_all, &d_o, &a->q, &a->k, &a->v, &a->o, &a->lse,
                                      &a->seen));
    ASSAY_TRY(heads_to_sequence_bwd(p, dq, &dq_all, q, 'q'));
    ASSAY_TRY(heads_to_sequence_bwd(p, dk, &dk_all, k, 'k'));
    return heads_to_sequence_bwd(p, dv, &dv_all, v, 'v');
}

/* --- p2p -------------------------------------------------------------------------------------------------------- */

/* "self_attention." + what + "." + step */
static const char *step_of(const char *what, int step, char out[ASSAY_NAME])
{
    snprintf(out, ASSAY_NAME, "self_attention.%s.%d", what, step);
    return out;
}

/* The ring: every rank takes over what the cp rank before it has. */
static assay_status travel(ref_pass *p, ref_tensor *to, const ref_tensor *from, const char *instance,
                           const char *slot)
{
    ASSAY_TRY(ref_new(p, to, instance, slot));
    to->heads = from->heads;
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_CP, r);
        for (int i = 0; i < g.size; i++) {
            const int next = assay_group_member(&g, (i + 1) % g.size);
            const ref_piece *sent = &from->at[assay_group_member(&g, i)];
            ASSAY_TRY(ref_piece_new(&p->arena, &to->at[next], sent->rows, sent->cols));
            ref_send_recv(to->at[next].x, sent->x, sent->rows * sent->cols);
        }
    }
    return ref_store(p, to, REF_STORE_EXACT);
}

/* Positions of the keys that every rank has after `step` journeys: those of the cp rank that many places before it. */
static assay_status block_positions(ref_pass *p, ref_ints *out, int step)
{
    const int cp = p->e->grid.p.context_parallel_size;
    ASSAY_TRY(ref_ints_new(&p->arena, out, p->n));
    for (int r = 0; r < p->n; r++) {
        const assay_coords *at = &p->ranks[r].at;
        const int owner = assay_grid_rank(&p->e->grid, at->tp, (at->cp + cp - step) % cp, at->dp, at->pp);
        ASSAY_TRY(positions_of(p, &out->at[r], &p->e->ranks[owner].sequence.region));
    }
    return ASSAY_OK;
}

/* o, lse = what was seen so far and what one more block shows */
static assay_status merge(ref_pass *p, ref_tensor *o, ref_tensor *lse, const ref_tensor *o_b,
                          const ref_tensor *lse_b, const char *instance, bool last)
{
    const ref_tensor o_a = *o, lse_a = *lse;
    ASSAY_TRY(ref_new(p, o, instance, "o"));
    ASSAY_TRY(ref_new(p, lse, instance, "lse"));
    for (int r = 0; r < p->n; r++) {
        const int64_t t = o_a.at[r].rows, heads = lse_a.at[r].cols;
        ASSAY_TRY(ref_piece_new(&p->arena, &o->at[r], t, o_a.at[r].cols));
        ASSAY_TRY(ref_piece_new(&p->arena, &lse->at[r], t, heads));
        ref_attention_merge(o->at[r].x, lse->at[r].x, o_a.at[r].x, lse_a.at[r].x, o_b->at[r].x,
                            lse_b->at[r].x, t * heads, assay_config_value_dim(p->e->config));
    }
    ASSAY_TRY(ref_store(p, lse, REF_STORE_LSE));
    return ref_store(p, o, last ? REF_STORE_ATTENTION : REF_STORE_LSE);
}

static assay_status p2p_fwd(ref_pass *p, ref_context_acts *a, ref_tensor *o, const ref_tensor *q,
                            const ref_tensor *k, const ref_tensor *v)
{
    const int cp = p->e->grid.p.context_parallel_size;
    char at[ASSAY_NAME];
    a->q = *q;
    a->k = *k;
    a->v = *v;
    ASSAY_TRY(make_positions(p, &a->seen.q_position, false));
    ASSAY_TRY(ref_documents_start(p, &a->seen.document_start, false));
    for (int step = 0; step < cp; step++) {
        ref_tensor part, part_lse, *to = step == 0 ? &a->o : &part, *to_lse = step == 0 ? &a->lse : &part_lse;
        ref_tensor keys = a->k, values = a->v;
        if (step > 0) {
            ASSAY_TRY(travel(p, &a->k, &keys, step_of("ring", step, at), "k"));
            ASSAY_TRY(travel(p, &a->v, &values, at, "v"));
        }
        ASSAY_TRY(block_positions(p, &a->seen.k_position, step));
        ASSAY_TRY(ref_ranks_attention(p, to, to_lse, q, &a->k, &a->v, &a->seen,
                                      step_of("core_attention", step, at)));
        if (step > 0)
            ASSAY_TRY(merge(p, &a->o, &a->lse, &part, &part_lse,
                            step == cp - 1 ? "self_attention.core_attention" : step_of("merge", step, at),
                            step == cp - 1));
    }
    *o = a->o;
    return ASSAY_OK;
}

/* acc = what arrived of the gradient of a block and this rank's part */
static assay_status add_part(ref_pass *p, ref_tensor *acc, const ref_tensor *part, int step, const char *slot)
{
    char at[ASSAY_NAME];
    ref_tensor arrived;
    ASSAY_TRY(travel(p, &arrived, acc, step_of("ring", step, at), slot));
    snprintf(at, sizeof at, "self_attention.ring.%d.%s_add", step, slot);
    return ref_ranks_add(p, acc, &arrived, part, at);
}

static assay_status p2p_bwd(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                            const ref_context_acts *a, const ref_tensor *dout, const ref_tensor *q,
                            const ref_tensor *k, const ref_tensor *v)
{
    const int cp = p->e->grid.p.context_parallel_size;
    assert(cp > 0);
    char at[ASSAY_NAME];
    ref_tensor keys = *k, values = *v, sum = {0}, dkeys = {0}, dvalues = {0};
    for (int step = 0; step < cp; step++) {
        ref_tensor part, dk_part, dv_part, before_k = keys, before_v = values, before = sum;
        ref_seen seen = a->seen;
        if (step > 0) {
            ASSAY_TRY(travel(p, &keys, &before_k, step_of("ring", step, at), "k"));
            ASSAY_TRY(travel(p, &values, &before_v, at, "v"));
        }
        ASSAY_TRY(block_positions(p, &seen.k_position, step));
        ASSAY_TRY(ref_ranks_attention_bwd(p, &part, &dk_part, &dv_part, dout, q, &keys, &values, &a->o,
                                          &a->lse, &seen));
        if (step == 0) {
            sum = part;
            dkeys = dk_part;
            dvalues = dv_part;
            continue;
        }
        ASSAY_TRY(ref_ranks_add_grad(p, &sum, &before, &part, q));
        ASSAY_TRY(add_part(p, &dkeys, &dk_part, step, "dk"));
        ASSAY_TRY(add_part(p, &dvalues, &dv_part, step, "dv"));
    }
    *dq = sum;
    ASSAY_TRY(travel(p, dk, &dkeys, step_of("ring", cp, at), "dk")); /* home */
    ASSAY_TRY(travel(p, dv, &dvalues, at, "dv"));
    dq->heads = q->heads;
    dk->heads = dv->heads = k->heads;
    return ASSAY_OK;
}

/* --- attention ------------------------------------------------------------------------------------------------ */

static assay_status all_gather_fwd(ref_pass *p, ref_context_acts *a, ref_tensor *o, const ref_tensor *q,
                                   const ref_tensor *k, const ref_tensor *v)
{
    a->q = *q;
    a->k = *k;
    a->v = *v;
    ASSAY_TRY(make_positions(p, &a->seen.q_position, false));
    ASSAY_TRY(make_positions(p, &a->seen.k_position, !alone(p)));
    ASSAY_TRY(ref_documents_start(p, &a->seen.document_start, false));
    if (!alone(p)) {
        ASSAY_TRY(gather(p, &a->k, k, "self_attention.gather_k"));
        ASSAY_TRY(gather(p, &a->v, v, "self_attention.gather_v"));
    }
    ASSAY_TRY(ref_ranks_attention(p, &a->o, &a->lse, &a->q, &a->k, &a->v, &a->seen,
                                  "self_attention.core_attention"));
    *o = a->o;
    return ASSAY_OK;
}

static assay_status all_gather_bwd(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                                   const ref_context_acts *a, const ref_tensor *dout, const ref_tensor *q,
                                   const ref_tensor *k, const ref_tensor *v)
{
    ref_tensor dk_whole, dv_whole;
    (void)q;
    if (alone(p))
        return ref_ranks_attention_bwd(p, dq, dk, dv, dout, &a->q, &a->k, &a->v, &a->o, &a->lse, &a->seen);
    ASSAY_TRY(ref_ranks_attention_bwd(p, dq, &dk_whole, &dv_whole, dout, &a->q, &a->k, &a->v, &a->o, &a->lse,
                                      &a->seen));
    ASSAY_TRY(gather_bwd(p, dk, &dk_whole, k));
    return gather_bwd(p, dv, &dv_whole, v);
}

/* The ways to reach the keys of the other ranks; with cp = 1 the first. */
static const struct {
    assay_status (*fwd)(ref_pass *p, ref_context_acts *a, ref_tensor *o, const ref_tensor *q,
                        const ref_tensor *k, const ref_tensor *v);
    assay_status (*bwd)(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                        const ref_context_acts *a, const ref_tensor *dout, const ref_tensor *q,
                        const ref_tensor *k, const ref_tensor *v);
} comm[ASSAY_CP_COMM_COUNT] = {
    [ASSAY_CP_ALL_GATHER] = {all_gather_fwd, all_gather_bwd},
    [ASSAY_CP_A2A] = {a2a_fwd, a2a_bwd},
    [ASSAY_CP_P2P] = {p2p_fwd, p2p_bwd},
};

assay_status ref_context_attention_fwd(ref_pass *p, ref_context_acts *a, ref_tensor *o, const ref_tensor *q,
                                       const ref_tensor *k, const ref_tensor *v)
{
    return comm[p->e->grid.p.cp_comm_type].fwd(p, a, o, q, k, v);
}

assay_status ref_context_attention_bwd(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                                       const ref_context_acts *a, const ref_tensor *dout, const ref_tensor *q,
                                       const ref_tensor *k, const ref_tensor *v)
{
    return comm[p->e->grid.p.cp_comm_type].bwd(p, dq, dk, dv, a, dout, q, k, v);
}
