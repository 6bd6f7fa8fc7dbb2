/* Dispatch and combine of expert rows over the expert-parallel group. */
#include "ref/parallel/expert.h"

#include "ref/lockstep.h"
#include "ref/parallel/collectives.h"

#include <stdlib.h>
#include <string.h>

static int ep_size(const ref_pass *p)
{
    return p->e->grid.p.expert_model_parallel_size;
}

static int64_t local_experts(const ref_pass *p)
{
    return p->e->config->num_moe_experts / ep_size(p);
}

/* --- permutation --------------------------------------------------------------------------------------------------- */

static assay_status make_permutation(ref_pass *p, ref_dispatch *d, const ref_ints *indices)
{
    const int64_t e = p->e->config->num_moe_experts;
    ASSAY_TRY(ref_ints_new(&p->arena, &d->row_token, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->token_row, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->tokens_per_expert, p->n));
    for (int r = 0; r < p->n; r++) {
        const int64_t t = indices->at[r].rows, k = indices->at[r].cols;
        ref_int_piece row_slot;
        ASSAY_TRY(ref_int_piece_new(&p->arena, &d->row_token.at[r], t * k, 1));
        ASSAY_TRY(ref_int_piece_new(&p->arena, &row_slot, t * k, 1));
        ASSAY_TRY(ref_int_piece_new(&p->arena, &d->token_row.at[r], t, k));
        ASSAY_TRY(ref_int_piece_new(&p->arena, &d->tokens_per_expert.at[r], e, 1));
        ref_permute_plan(d->row_token.at[r].x, row_slot.x, d->tokens_per_expert.at[r].x, d->token_row.at[r].x,
                         indices->at[r].x, t, k, e);
        memcpy(p->ranks[r].tokens_per_expert + ref_pass_place(p) * e, d->tokens_per_expert.at[r].x,
               (size_t)e * sizeof(int64_t));
    }
    return ASSAY_OK;
}

/* Received rows are ordered [source, local expert]; sort[i] is the received row that comes i-th in the order
 * [local expert, source]. */
static void fill_sort(const ref_dispatch *d, const assay_group_shape *g, int j, int64_t el)
{
    const int me = assay_group_member(g, j);
    int64_t *sort = d->sort.at[me].x, *unsort = d->unsort.at[me].x, out = 0;
    for (int64_t e = 0; e < el; e++) {
        int64_t start = 0; /* of source i's rows */
        d->rows_per_expert.at[me].x[e] = 0;
        for (int i = 0; i < g->size; i++) {
            const int64_t *counts = d->tokens_per_expert.at[assay_group_member(g, i)].x + j * el;
            int64_t before = 0, all = 0;
            for (int64_t x = 0; x < el; x++) {
                before += x < e ? counts[x] : 0;
                all += counts[x];
            }
            for (int64_t row = 0; row < counts[e]; row++) {
                const int64_t received = start + before + row;
                sort[out] = received;
                unsort[received] = out++;
            }
            d->rows_per_expert.at[me].x[e] += counts[e];
            start += all;
        }
    }
}

static int64_t rows_for(const ref_dispatch *d, int source, int j, int64_t el)
{
    int64_t rows = 0;
    for (int64_t e = j * el; e < (j + 1) * el; e++)
        rows += d->tokens_per_expert.at[source].x[e];
    return rows;
}

static assay_status make_exchange(ref_pass *p, ref_dispatch *d)
{
    const int64_t el = local_experts(p);
    ASSAY_TRY(ref_ints_new(&p->arena, &d->sort, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->unsort, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->rows_per_expert, p->n));
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_EP, r);
        for (int j = 0; j < g.size; j++) {
            const int to = assay_group_member(&g, j);
            int64_t rows = 0;
            for (int i = 0; i < g.size; i++)
                rows += rows_for(d, assay_group_member(&g, i), j, el);
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->sort.at[to], rows, 1));
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->unsort.at[to], rows, 1));
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->rows_per_expert.at[to], el, 1));
            fill_sort(d, &g, j, el);
        }
    }
    return ASSAY_OK;
}

/* --- moving rows -------------------------------------------------------------------------------------------- */

/* to = all_to_all(from) over ep.  outward: from holds permuted rows, to gets received ones; else the way
 * back. */
static assay_status exchange(ref_pass *p, const ref_dispatch *d, ref_tensor *to, const ref_tensor *from,
                             bool outward, const char *name)
{
    const int64_t el = local_experts(p);
    const size_t n_max = (size_t)ep_size(p);
    double **send = p->e->send, **recv = p->e->recv;
    void *counts_memory;
    ASSAY_TRY(ref_arena_alloc(&p->arena, (int64_t)(n_max * n_max), sizeof(int64_t), &counts_memory));
    int64_t *counts = counts_memory;
    ASSAY_TRY(ref_tensor_new(&p->arena, to, p->n, name));
    to->token_rows = false;
    for (int r = 0; r < p->n; r++) {
        const int64_t rows = outward ? d->sort.at[r].rows : d->row_token.at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &to->at[r], rows, from->at[r].cols));
    }
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_EP, r);
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            send[i] = from->at[member].x;
            recv[i] = to->at[member].x;
            for (int j = 0; j < g.size; j++) {
                const int64_t rows =
                    outward ? rows_for(d, member, j, el) : rows_for(d, assay_group_member(&g, j), i, el);
                counts[i * g.size + j] = rows * from->at[r].cols;
            }
        }
        if (g.size > 0)
            ref_all_to_all(recv, send, counts, g.size);
    }
    return ref_store(p, to, REF_STORE_EXACT);
}

static assay_status to_experts(ref_pass *p, const ref_dispatch *d, ref_tensor *sorted, const ref_tensor *rows,
                               const char *exchanged_name, const char *sorted_name)
{
    ref_tensor received;
    if (ep_size(p) == 1) {
        *sorted = *rows;
        return ASSAY_OK;
    }
    ASSAY_TRY(exchange(p, d, &received, rows, true, exchanged_name));
    return ref_ranks_gather_rows(p, sorted, &received, &d->sort, sorted_name);
}

static assay_status from_experts(ref_pass *p, const ref_dispatch *d, ref_tensor *rows,
                                 const ref_tensor *sorted, const char *unsorted_name,
                                 const char *exchanged_name)
{
    ref_tensor unsorted;
    if (ep_size(p) == 1) {
        *rows = *sorted;
        return ASSAY_OK;
    }
    ASSAY_TRY(ref_ranks_gather_rows(p, &unsorted, sorted, &d->unsort, unsorted_name));
    return exchange(p, d, rows, &unsorted, false, exchanged_name);
}

/* "decoder.layers.3.mlp." + text */
static const char *name_in(const ref_pass *p, const char *text, char out[ASSAY_NAME])
{
    snprintf(out, ASSAY_NAME, "%smlp.%s", p->prefix, text);
    return out;
}

assay_status ref_token_dispatch_fwd(ref_pass *p, ref_dispatch *d, ref_tensor *rows, ref_tensor *row_probs,
                                    const ref_tensor *tokens, const ref_tensor *probs,
                                    const ref_ints *indices)
{
    char a[ASSAY_NAME], b[ASSAY_NAME];
    ASSAY_TRY(make_permutation(p, d, indices));
    ASSAY_TRY(make_exchange(p, d));
    ASSAY_TRY(ref_ranks_gather_rows(p, &d->permuted, tokens, &d->row_token, name_in(p, "permute.y", a)));
    /* probs [T,K] as [T*K,1]: row i of the permutation takes entry (token, slot) */
    ref_tensor flat;
    ASSAY_TRY(ref_tensor_new(&p->arena, &flat, p->n, probs->name));
    ref_ints entry;
    ASSAY_TRY(ref_ints_new(&p->arena, &entry, p->n));
    for (int r = 0; r < p->n; r++) {
        const int64_t n = d->row_token.at[r].rows;
        flat.at[r] = (ref_piece){.x = probs->at[r].x, .rows = n, .cols = 1};
        ASSAY_TRY(ref_int_piece_new(&p->arena, &entry.at[r], n, 1));
        for (int64_t i = 0; i < n; i++)
            entry.at[r].x[d->token_row.at[r].x[i]] = i;
    }
    ASSAY_TRY(ref_ranks_gather_rows(p, &d->permuted_probs, &flat, &entry, name_in(p, "permute_probs.y", a)));
    ASSAY_TRY(to_experts(p, d, rows, &d->permuted, name_in(p, "dispatch.recv", a), name_in(p, "sort.y", b)));
    return to_experts(p, d, row_probs, &d->permuted_probs, name_in(p, "dispatch_probs.recv", a),
                      name_in(p, "sort_probs.y", b));
}

assay_status ref_token_combine_fwd(ref_pass *p, const ref_dispatch *d, ref_tensor *y, const ref_tensor *rows)
{
    char a[ASSAY_NAME], b[ASSAY_NAME];
    ref_tensor back;
    ASSAY_TRY(from_experts(p, d, &back, rows, name_in(p, "unsort.y", a), name_in(p, "combine.recv", b)));
    return ref_ranks_combine_rows(p, y, &back, &d->token_row, name_in(p, "unpermute.y", a));
}

assay_status ref_token_combine_bwd(ref_pass *p, const ref_dispatch *d, ref_tensor *drows,
                                   const ref_tensor *dy, const ref_tensor *rows)
{
    char a[ASSAY_NAME], b[ASSAY_NAME];
    ref_tensor dback;
    snprintf(b, sizeof b, "%s.grad", rows->name);
    ASSAY_TRY(ref_ranks_gather_rows(p, &dback, dy, &d->row_token,
                                    ep_size(p) == 1 ? b : name_in(p, "combine.recv.grad", a)));
    return to_experts(p, d, drows, &dback, name_in(p, "unsort.y.grad", a), b);
}

assay_status ref_token_dispatch_bwd(ref_pass *p, const ref_dispatch *d, ref_tensor *dtokens,
                                    ref_tensor *dprobs, const ref_tensor *drows, const ref_tensor *drow_probs)
{
    char a[ASSAY_NAME], b[ASSAY_NAME];
    ref_tensor dpermuted, dpermuted_probs;
    ASSAY_TRY(from_experts(p, d, &dpermuted, drows, name_in(p, "dispatch.recv.grad", a),
                           name_in(p, "permute.y.grad", b)));
    ASSAY_TRY(from_experts(p, d, &dpermuted_probs, drow_probs, name_in(p, "dispatch_probs.recv.grad", a),
                           name_in(p, "permute_probs.y.grad", b)));
    ASSAY_TRY(ref_ranks_combine_rows(p, dtokens, &dpermuted, &d->token_row, name_in(p, "permute.dx", a)));
    /* Back from rows to [T,K]: the entry of (token, slot) is that of its row. */
    ASSAY_TRY(ref_new(p, dprobs, "mlp.router.probs", "grad"));
    for (int r = 0; r < p->n; r++) {
        const ref_int_piece *rows = &d->token_row.at[r];
        ASSAY_TRY(ref_piece_new(&p->arena, &dprobs->at[r], rows->rows, rows->cols));
        ref_gather_rows(dprobs->at[r].x, dpermuted_probs.at[r].x, rows->x, rows->rows * rows->cols, 1);
    }
    return ref_store(p, dprobs, REF_STORE_EXACT);
}
