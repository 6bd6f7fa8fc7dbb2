/* Dispatch and combine of expert rows over the expert-parallel and expert-tensor-parallel groups. */
#include "ref/parallel/expert.h"

#include "ref/lockstep.h"
#include "ref/parallel/collectives.h"
#include "ref/parallel/padding.h"

#include <stdlib.h>
#include <string.h>

static int ep_size(const ref_pass *p)
{
    return p->e->grid.p.expert_model_parallel_size;
}

static int etp_size(const ref_pass *p)
{
    return p->e->grid.p.expert_tensor_parallel_size;
}

static int64_t local_experts(const ref_pass *p)
{
    return p->e->config->num_moe_experts / ep_size(p);
}

static bool gathers_tokens(const ref_pass *p)
{
    return p->e->options.moe_token_dispatcher_type == ASSAY_DISPATCHER_ALLGATHER &&
           ep_size(p) * etp_size(p) > 1;
}

/* Rows are sent over ep, and over etp. */
static bool sends(const ref_pass *p)
{
    return ep_size(p) > 1 && !gathers_tokens(p);
}

static bool cuts(const ref_pass *p)
{
    return etp_size(p) > 1 && !gathers_tokens(p);
}

/* --- permutation --------------------------------------------------------------------------------------------------- */

static assay_status make_permutation(ref_pass *p, ref_dispatch *d, const ref_ints *indices)
{
    const int64_t e = p->e->config->num_moe_experts;
    ASSAY_TRY(ref_ints_new(&p->arena, &d->row_token, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->token_row, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->tokens_per_expert, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->tokens, p->n));
    for (int r = 0; r < p->n; r++) {
        const int64_t t = indices->at[r].rows, k = indices->at[r].cols;
        ref_int_piece row_entry;
        int64_t rows = 0;
        ASSAY_TRY(ref_int_piece_new(&p->arena, &d->tokens.at[r], 1, 1));
        d->tokens.at[r].x[0] = t;
        for (int64_t i = 0; i < t * k; i++)
            rows += indices->at[r].x[i] >= 0;
        ASSAY_TRY(ref_int_piece_new(&p->arena, &d->row_token.at[r], rows, 1));
        ASSAY_TRY(ref_int_piece_new(&p->arena, &row_entry, rows, 1));
        ASSAY_TRY(ref_int_piece_new(&p->arena, &d->token_row.at[r], t, k));
        ASSAY_TRY(ref_int_piece_new(&p->arena, &d->tokens_per_expert.at[r], e, 1));
        ref_permute_plan(d->row_token.at[r].x, row_entry.x, d->tokens_per_expert.at[r].x,
                         d->token_row.at[r].x, indices->at[r].x, t, k, e, 0, e);
        memcpy(p->ranks[r].tokens_per_expert + ref_pass_place(p) * e, d->tokens_per_expert.at[r].x,
               (size_t)e * sizeof(int64_t));
    }
    return ASSAY_OK;
}

/* --- who sends how much to whom ------------------------------------------------------------------------------- */

/* Rows that `source` sends to the experts of ep rank j. */
static int64_t rows_for(const ref_dispatch *d, int source, int j, int64_t el)
{
    int64_t rows = 0;
    for (int64_t e = j * el; e < (j + 1) * el; e++)
        rows += d->tokens_per_expert.at[source].x[e];
    return rows;
}

/* Rank with coordinates etp = t, ep = i of a group etp_ep. */
static int member_at(const ref_pass *p, const assay_group_shape *g, int t, int i)
{
    return assay_group_member(g, t + etp_size(p) * i);
}

/* Gathered rows are ordered [etp, source, local expert]; sort[i] is the gathered row that comes i-th in the
 * order [local expert, etp, source]. */
static void fill_sort(const ref_pass *p, const ref_dispatch *d, const assay_group_shape *g, int me, int j)
{
    const int64_t el = local_experts(p);
    int64_t *sort = d->sort.at[me].x, *unsort = d->unsort.at[me].x, out = 0;
    for (int64_t e = 0; e < el; e++) {
        int64_t start = 0; /* of the source's rows */
        d->rows_per_expert.at[me].x[e] = 0;
        for (int k = 0; k < g->size; k++) {
            const int source = member_at(p, g, k / ep_size(p), k % ep_size(p));
            const int64_t *counts = d->tokens_per_expert.at[source].x + j * el;
            int64_t before = 0;
            for (int64_t x = 0; x < e; x++)
                before += counts[x];
            for (int64_t row = 0; row < counts[e]; row++) {
                const int64_t gathered = start + before + row;
                sort[out] = gathered;
                unsort[gathered] = out++;
            }
            d->rows_per_expert.at[me].x[e] += counts[e];
            start += rows_for(d, source, j, el);
        }
    }
}

static assay_status make_exchange(ref_pass *p, ref_dispatch *d)
{
    const int64_t el = local_experts(p);
    const int etp = etp_size(p), ep = ep_size(p);
    ASSAY_TRY(ref_ints_new(&p->arena, &d->sort, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->unsort, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->received, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->rows_per_expert, p->n));
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_ETP_EP, r);
        for (int k = 0; k < g.size; k++) {
            const int to = assay_group_member(&g, k), j = k / etp;
            int64_t gathered = 0;
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->received.at[to], 1, 1));
            d->received.at[to].x[0] = 0;
            for (int t = 0; t < etp; t++)
                for (int i = 0; i < ep; i++) {
                    const int64_t rows = rows_for(d, member_at(p, &g, t, i), j, el);
                    d->received.at[to].x[0] += t == k % etp ? rows : 0;
                    gathered += rows;
                }
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->sort.at[to], gathered, 1));
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->unsort.at[to], gathered, 1));
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->rows_per_expert.at[to], el, 1));
            fill_sort(p, d, &g, to, j);
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
        const int64_t rows = outward ? d->received.at[r].x[0] : d->row_token.at[r].rows;
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

/* whole = the rows of all etp ranks, in their order (gather); or rows = the sum of every etp rank's part of this
 * rank's rows. */
static assay_status exchange_etp(ref_pass *p, const ref_dispatch *d, ref_tensor *to, const ref_tensor *from,
                                 bool gather, ref_store_class class, const char *name)
{
    double **send = p->e->send, **recv = p->e->recv;
    ASSAY_TRY(ref_tensor_new(&p->arena, to, p->n, name));
    to->token_rows = false;
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(ref_piece_new(&p->arena, &to->at[r], gather ? d->unsort.at[r].rows : d->received.at[r].x[0],
                                from->at[r].cols));
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_ETP, r);
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            send[i] = from->at[member].x;
            recv[i] = to->at[member].x;
            p->e->counts[i] = d->received.at[member].x[0] * from->at[member].cols;
        }
        if (g.size > 0 && gather)
            ref_all_gather(recv, send, p->e->counts, g.size);
        else if (g.size > 0)
            ref_reduce_scatter(recv, send, p->e->counts, g.size);
    }
    return ref_store(p, to, class);
}

/* Names of what lies between the permuted rows and the sorted ones. */
typedef struct way {
    const char *exchanged, *gathered, *sorted;
} way;

/* "decoder.layers.3.mlp." + text */
static const char *name_in(const ref_pass *p, const char *text, char out[ASSAY_NAME])
{
    snprintf(out, ASSAY_NAME, "%smlp.%s", p->prefix, text);
    return out;
}

/* sorted = rows of the local experts: exchanged over ep, gathered over etp, in the experts' order */
static assay_status to_experts(ref_pass *p, const ref_dispatch *d, ref_tensor *sorted, const ref_tensor *rows,
                               const way *names)
{
    char name[ASSAY_NAME];
    ref_tensor received = *rows, gathered;
    *sorted = *rows;
    if (!d->sorts)
        return ASSAY_OK;
    if (sends(p))
        ASSAY_TRY(exchange(p, d, &received, rows, true, name_in(p, names->exchanged, name)));
    gathered = received;
    if (cuts(p))
        ASSAY_TRY(exchange_etp(p, d, &gathered, &received, true, REF_STORE_EXACT,
                               name_in(p, names->gathered, name)));
    return ref_ranks_gather_rows(p, sorted, &gathered, &d->sort, name_in(p, names->sorted, name));
}

/* The way back; sorted holds parts of sums over etp. */
static assay_status from_experts(ref_pass *p, const ref_dispatch *d, ref_tensor *rows,
                                 const ref_tensor *sorted, ref_store_class class, const way *names)
{
    char name[ASSAY_NAME];
    ref_tensor unsorted, reduced;
    *rows = *sorted;
    if (!d->sorts)
        return ASSAY_OK;
    ASSAY_TRY(ref_ranks_gather_rows(p, &unsorted, sorted, &d->unsort, name_in(p, names->sorted, name)));
    reduced = unsorted;
    if (cuts(p))
        ASSAY_TRY(exchange_etp(p, d, &reduced, &unsorted, false, class, name_in(p, names->gathered, name)));
    *rows = reduced;
    if (sends(p))
        ASSAY_TRY(exchange(p, d, rows, &reduced, false, name_in(p, names->exchanged, name)));
    return ASSAY_OK;
}

/* --- the all-gather dispatcher ------------------------------------------------------------------------------ */

/* whole = the tokens of all ranks of the group etp_ep, in its order (gather); or this rank's sum of all parts of them. */
static assay_status exchange_tokens(ref_pass *p, const ref_dispatch *d, ref_tensor *to,
                                    const ref_tensor *from, bool gather, ref_store_class class,
                                    const char *name)
{
    double **send = p->e->send, **recv = p->e->recv;
    const ref_tensor source = *from; /* may be what `to` was */
    char full[ASSAY_NAME];
    ASSAY_TRY(ref_tensor_new(&p->arena, to, p->n, name_in(p, name, full)));
    to->token_rows = !gather;
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(ref_piece_new(&p->arena, &to->at[r],
                                gather ? d->token_row.at[r].rows : d->tokens.at[r].x[0], source.at[r].cols));
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_ETP_EP, r);
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            send[i] = source.at[member].x;
            recv[i] = to->at[member].x;
            p->e->counts[i] = d->tokens.at[member].x[0] * source.at[member].cols;
        }
        if (g.size > 0 && gather)
            ref_all_gather(recv, send, p->e->counts, g.size);
        else if (g.size > 0)
            ref_reduce_scatter(recv, send, p->e->counts, g.size);
    }
    return ref_store(p, to, class);
}

/* The rows of a rank's own experts among the tokens of its group. */
static assay_status plan_local_rows(ref_pass *p, ref_dispatch *d, const ref_ints *indices)
{
    const int64_t e = p->e->config->num_moe_experts, k = p->e->config->moe_router_topk, el = local_experts(p);
    ASSAY_TRY(ref_ints_new(&p->arena, &d->rows_per_expert, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->sort, p->n));
    ASSAY_TRY(ref_ints_new(&p->arena, &d->unsort, p->n));
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_ETP_EP, r);
        int64_t n = 0;
        ref_int_piece all;
        for (int i = 0; i < g.size; i++)
            n += indices->at[assay_group_member(&g, i)].rows;
        ASSAY_TRY(ref_int_piece_new(&p->arena, &all, n, k));
        n = 0;
        for (int i = 0; i < g.size; i++) {
            const ref_int_piece *one = &indices->at[assay_group_member(&g, i)];
            memcpy(all.x + n * k, one->x, (size_t)(one->rows * k) * sizeof *all.x);
            n += one->rows;
        }
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            const int64_t first = i / etp_size(p) * el;
            int64_t rows = 0;
            ref_int_piece slot, counts;
            for (int64_t j = 0; j < n * k; j++)
                rows += all.x[j] >= first && all.x[j] < first + el;
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->row_token.at[member], rows, 1));
            ASSAY_TRY(ref_int_piece_new(&p->arena, &slot, rows, 1));
            ASSAY_TRY(ref_int_piece_new(&p->arena, &counts, e, 1));
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->token_row.at[member], n, k));
            ref_permute_plan(d->row_token.at[member].x, slot.x, counts.x, d->token_row.at[member].x, all.x, n,
                             k, e, first, el);
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->rows_per_expert.at[member], el, 1));
            memcpy(d->rows_per_expert.at[member].x, counts.x + first, (size_t)el * sizeof *counts.x);
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->sort.at[member], rows, 1));
            ASSAY_TRY(ref_int_piece_new(&p->arena, &d->unsort.at[member], rows, 1));
            for (int64_t row = 0; row < rows; row++)
                d->sort.at[member].x[row] = d->unsort.at[member].x[row] = row;
        }
    }
    return ASSAY_OK;
}

/* --- dispatch and combine ----------------------------------------------------------------------------------- */

assay_status ref_token_dispatch_fwd(ref_pass *p, ref_dispatch *d, ref_tensor *rows, ref_tensor *row_probs,
                                    const ref_tensor *tokens, const ref_tensor *probs,
                                    const ref_ints *indices)
{
    char a[ASSAY_NAME];
    ref_tensor all_tokens, all_probs;
    ASSAY_TRY(make_permutation(p, d, indices));
    if (gathers_tokens(p)) {
        ASSAY_TRY(plan_local_rows(p, d, indices));
        ASSAY_TRY(exchange_tokens(p, d, &all_tokens, tokens, true, REF_STORE_EXACT, "dispatch.recv"));
        ASSAY_TRY(exchange_tokens(p, d, &all_probs, probs, true, REF_STORE_EXACT, "dispatch_probs.recv"));
        tokens = &all_tokens;
        probs = &all_probs;
    } else {
        ASSAY_TRY(make_exchange(p, d));
    }
    ASSAY_TRY(ref_ranks_gather_rows(p, &d->permuted, tokens, &d->row_token, name_in(p, "permute.y", a)));
    /* probs [T,K] as [T*K,1]: row i of the permutation takes entry (token, slot) */
    ref_tensor flat;
    ASSAY_TRY(ref_tensor_new(&p->arena, &flat, p->n, probs->name));
    ref_ints entry;
    ASSAY_TRY(ref_ints_new(&p->arena, &entry, p->n));
    for (int r = 0; r < p->n; r++) {
        const int64_t n = probs->at[r].rows * probs->at[r].cols;
        flat.at[r] = (ref_piece){.x = probs->at[r].x, .rows = n, .cols = 1};
        ASSAY_TRY(ref_int_piece_new(&p->arena, &entry.at[r], d->row_token.at[r].rows, 1));
        for (int64_t i = 0; i < n; i++)
            if (d->token_row.at[r].x[i] >= 0)
                entry.at[r].x[d->token_row.at[r].x[i]] = i;
    }
    ASSAY_TRY(ref_ranks_gather_rows(p, &d->permuted_probs, &flat, &entry, name_in(p, "permute_probs.y", a)));
    d->sorts = ref_pads_rows(p) || (ep_size(p) * etp_size(p) > 1 && !gathers_tokens(p));
    if (ref_pads_rows(p))
        ASSAY_TRY(ref_pad_rows(p, d));
    static const way tokens_way = {"dispatch.recv", "experts.gather.recv", "sort.y"};
    static const way probs_way = {"dispatch_probs.recv", "experts.gather_probs.recv", "sort_probs.y"};
    ASSAY_TRY(to_experts(p, d, rows, &d->permuted, &tokens_way));
    return to_experts(p, d, row_probs, &d->permuted_probs, &probs_way);
}

assay_status ref_token_combine_fwd(ref_pass *p, const ref_dispatch *d, ref_tensor *y, const ref_tensor *rows)
{
    static const way back_way = {"combine.recv", "experts.reduce.recv", "unsort.y"};
    char name[ASSAY_NAME];
    ref_tensor back;
    ASSAY_TRY(from_experts(p, d, &back, rows, REF_STORE_ACT, &back_way));
    if (gathers_tokens(p)) {
        ref_tensor parts;
        ASSAY_TRY(ref_ranks_combine_rows(p, &parts, &back, &d->token_row, name_in(p, "unpermute.y", name)));
        return exchange_tokens(p, d, y, &parts, false, REF_STORE_ACT, "combine.recv");
    }
    return ref_ranks_combine_rows(p, y, &back, &d->token_row, name_in(p, "unpermute.y", name));
}

assay_status ref_token_combine_bwd(ref_pass *p, const ref_dispatch *d, ref_tensor *drows,
                                   const ref_tensor *dy)
{
    const char *const fc2 = "experts.linear_fc2.y.grad", *const reduced = "experts.reduce.recv.grad";
    const char *const unsorted = "unsort.y.grad";
    const way grads = {cuts(p) ? reduced : unsorted, unsorted, fc2};
    const char *const returned = sends(p)   ? "combine.recv.grad"
                                 : cuts(p)  ? reduced
                                 : d->sorts ? unsorted
                                            : fc2;
    char name[ASSAY_NAME];
    ref_tensor dback, all;
    if (gathers_tokens(p)) {
        ASSAY_TRY(exchange_tokens(p, d, &all, dy, true, REF_STORE_EXACT, "unpermute.y.grad"));
        dy = &all;
    }
    ASSAY_TRY(ref_ranks_gather_rows(p, &dback, dy, &d->row_token, name_in(p, returned, name)));
    return to_experts(p, d, drows, &dback, &grads);
}

assay_status ref_token_dispatch_bwd(ref_pass *p, const ref_dispatch *d, ref_tensor *dtokens,
                                    ref_tensor *dprobs, const ref_tensor *drows, const ref_tensor *drow_probs)
{
    const bool cut = cuts(p), sent = sends(p);
    const way grads = {"permute.y.grad", sent ? "dispatch.recv.grad" : "permute.y.grad",
                       cut    ? "experts.gather.recv.grad"
                       : sent ? "dispatch.recv.grad"
                              : "permute.y.grad"};
    const way probs_grads = {"permute_probs.y.grad",
                             sent ? "dispatch_probs.recv.grad" : "permute_probs.y.grad",
                             cut    ? "experts.gather_probs.recv.grad"
                             : sent ? "dispatch_probs.recv.grad"
                                    : "permute_probs.y.grad"};
    char a[ASSAY_NAME];
    ref_tensor dpermuted, dpermuted_probs;
    const bool gathers = gathers_tokens(p);
    ASSAY_TRY(from_experts(p, d, &dpermuted, drows, REF_STORE_ACT, &grads));
    ASSAY_TRY(from_experts(p, d, &dpermuted_probs, drow_probs, REF_STORE_ROUTER, &probs_grads));
    ASSAY_TRY(ref_ranks_combine_rows(p, dtokens, &dpermuted, &d->token_row, name_in(p, "permute.dx", a)));
    /* Back from rows to [T,K]: the entry of (token, slot) is that of its row. */
    ASSAY_TRY(ref_new(p, dprobs, "mlp.router.probs", "grad"));
    for (int r = 0; r < p->n; r++) {
        const ref_int_piece *rows = &d->token_row.at[r];
        ASSAY_TRY(ref_piece_new(&p->arena, &dprobs->at[r], rows->rows, rows->cols));
        ref_gather_rows(dprobs->at[r].x, dpermuted_probs.at[r].x, rows->x, rows->rows * rows->cols, 1);
    }
    ASSAY_TRY(ref_store(p, dprobs, REF_STORE_EXACT));
    if (!gathers)
        return ASSAY_OK;
    ASSAY_TRY(exchange_tokens(p, d, dtokens, dtokens, false, REF_STORE_ACT, "dispatch.dx"));
    return exchange_tokens(p, d, dprobs, dprobs, false, REF_STORE_ROUTER, "router.probs.grad");
}
