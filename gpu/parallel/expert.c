/* Token dispatch and combine. */
#include "gpu/parallel/expert.h"

#include "gpu/call.h"
#include "gpu/describe.h"
#include "gpu/parallel/allgather.h"
#include "gpu/parallel/exchange.h"
#include "gpu/parallel/halves.h"
#include "gpu/parallel/padding.h"
#include "gpu/parallel/tensor.h"

/* --- values of rows ----------------------------------------------------------------------------------------- */
static gpu_value rows_of(gpu_arena *arena, const gpu_rows *rows, int64_t last)
{
    gpu_value v = gpu_local(arena, rows->n, last);
    v.kind = ASSAY_PIECE_ROWS;
    v.rows = rows;
    return v;
}

/* --- all_to_all --------------------------------------------------------------------------------------------- */
static assay_status all_to_all(gpu_model *m, const char *at, gpu_value *recv, const int64_t *recv_rows,
                               gpu_value *send, const int64_t *send_rows)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_to_all",
                                             .at = at,
                                             .group = ASSAY_GROUP_EP,
                                             .counts = send_rows,
                                             .recv_counts = recv_rows,
                                             .arg = {GPU_T("send", send), GPU_T("recv", recv)}});
}

/* --- dispatch ----------------------------------------------------------------------------------------------- */
/* Sizes beside those of this rank's tokens: of messages, and of the rows with those of zeros. */
static bool needs_counts(const gpu_model *m)
{
    return gpu_exchanges_rows(m) || gpu_pads_rows(m);
}

/* Rows that the experts' capacities leave; the host waits for them.  Dry mode: all. */
static assay_status count_routed(gpu_model *m, gpu_microbatch_state *mb, const gpu_moe_acts *s, int64_t *rows)
{
    const int64_t E = m->config->num_moe_experts;
    int64_t *counts;
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)E * sizeof *counts, (void **)&counts));
    if (m->run->dry)
        return ASSAY_OK;
    ASSAY_TRY(gpu_run_download(m->run, counts, s->routed_counts.t.data, (size_t)E * sizeof *counts,
                               "routed tokens"));
    *rows = 0;
    for (int64_t e = 0; e < E; e++)
        *rows += counts[e];
    return ASSAY_OK;
}

void gpu_token_dispatch_at(const gpu_model *m, const gpu_layer *l, gpu_moe_acts *s, int64_t index)
{
    const int64_t E = m->config->num_moe_experts;
    s->tokens_per_expert.t = gpu_tensor_1d(l->tokens_per_expert + index * E, ASSAY_I64, E);
    if (!needs_counts(m))
        s->local_counts.t = s->tokens_per_expert.t;
}

static assay_status permute_rows(gpu_model *m, gpu_microbatch_state *mb, const gpu_layer *l, gpu_moe_acts *s,
                                 gpu_exchange *p, gpu_value *row_entry)
{
    gpu_arena *keep = &mb->arena;
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk, T = m->sl * m->B;
    p->known = gpu_knows_rows(m);
    const bool counts_first = p->known && (gpu_has_exact_rows(m) || !needs_counts(m));
    p->rows = m->run->dry || counts_first ? T * K : gpu_most_rows(m, T);
    if (m->options->moe_expert_capacity_factor > 0.0 && (m->run->dry || counts_first))
        ASSAY_TRY(count_routed(m, mb, s, &p->rows));
    s->tokens_per_expert = gpu_named(m, gpu_local(NULL, E, 0), "mlp.permute_plan", "tokens_per_expert");
    gpu_token_dispatch_at(m, l, s, mb->index);
    return GPU_CALL(m->run, "permute_plan", "mlp.permute_plan", GPU_T("indices", &s->routed),
                    GPU_I("experts", E), GPU_I("rows", p->rows), GPU_I("first_expert", 0),
                    GPU_I("local_experts", E),
                    GPU_NEW("row_token", &s->row_token, gpu_local(keep, p->rows, 0)),
                    GPU_NEW("row_entry", row_entry, gpu_local(&m->scratch, p->rows, 0)),
                    GPU_T("tokens_per_expert", &s->tokens_per_expert),
                    GPU_NEW("token_row", &s->token_row, gpu_local(keep, T, K)));
}

/* Where permute_plan had room for more rows than there are: those that are. */
static void keep_rows(const gpu_model *m, gpu_moe_acts *s, gpu_exchange *p, gpu_value *row_entry)
{
    const int64_t *mine = gpu_exchange_counts_of(m, p, m->at.etp, m->at.ep);
    gpu_value *both[] = {&s->row_token, row_entry};
    int64_t rows = 0;
    for (int64_t e = 0; e < m->config->num_moe_experts; e++)
        rows += mine[e];
    p->rows = rows < p->rows ? rows : p->rows;
    for (int i = 0; i < 2; i++) {
        both[i]->t = gpu_tensor_1d(both[i]->t.data, ASSAY_I64, p->rows);
        both[i]->dim[0] = gpu_dim_whole(p->rows);
    }
}

/* Counts of all ranks that exchange rows, on the device; where the host has to know them, on the host, and whose the rows are, behind
 * one wait.  Else the host goes on. */
static assay_status fetch_permutation(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                      gpu_exchange *p, gpu_value *row_entry)
{
    gpu_run *run = m->run;
    const int64_t E = m->config->num_moe_experts;
    const bool names = run->trace != NULL;
    const size_t row_bytes = (size_t)p->rows * sizeof(int64_t);
    const size_t count_bytes = (size_t)(m->ep * m->etp * E) * sizeof(int64_t);
    gpu_value gathered = s->tokens_per_expert;
    p->counts = gathered.t;
    if (!needs_counts(m) && !names)
        return ASSAY_OK;
    if (names)
        ASSAY_TRY(gpu_arena_take(&mb->host, row_bytes, (void **)&p->row_token));
    ASSAY_TRY(gpu_arena_take(&mb->host, count_bytes, (void **)&p->tokens_per_expert));
    if (gpu_exchanges_rows(m)) {
        gathered = gpu_local(&m->scratch, m->ep * m->etp, E);
        ASSAY_TRY(gpu_all_gather(m, "mlp.dispatch_counts", gpu_exchange_group(m), &gathered,
                                 &s->tokens_per_expert));
        p->counts = gathered.t;
    }
    if (run->dry || !p->known)
        return ASSAY_OK;
    if (names && p->rows > 0)
        CUDA_TRY(cudaMemcpyAsync(p->row_token, s->row_token.t.data, row_bytes, cudaMemcpyDeviceToHost,
                                 run->ctx.stream));
    ASSAY_TRY(gpu_run_download(run, p->tokens_per_expert, gathered.t.data, count_bytes, "token counts"));
    if (m->options->moe_expert_capacity_factor > 0.0)
        keep_rows(m, s, p, row_entry);
    return ASSAY_OK;
}

/* How many rows every expert of this rank computes: what permute_plan counted, where no row comes, goes or is added.  Without ep the
 * device adds them up, and says in which order they lie. */
static assay_status count_rows(gpu_model *m, gpu_microbatch_state *mb, const gpu_layer *l, gpu_moe_acts *s,
                               gpu_exchange *p)
{
    static const char at[] = "mlp.experts", slot[] = "tokens_per_expert";
    int64_t *room;
    if (needs_counts(m) && m->ep == 1)
        return gpu_pad_sort_there(m, mb, s, p);
    if (needs_counts(m))
        return gpu_index_value(m, &mb->arena, &s->local_counts, at, slot, m->local_experts, p->room);
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)m->local_experts * sizeof *room, (void **)&room));
    s->local_counts = gpu_named(m, gpu_local(NULL, m->local_experts, 0), at, slot);
    s->local_counts.host_room = room;
    gpu_token_dispatch_at(m, l, s, mb->index);
    return ASSAY_OK;
}

/* rows of this rank -> rows of all etp ranks */
static assay_status gather_etp(gpu_model *m, const char *at, const gpu_moe_acts *s, gpu_value *whole,
                               gpu_value *rows)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_gather",
                                             .at = at,
                                             .group = ASSAY_GROUP_ETP,
                                             .counts = s->etp_counts,
                                             .arg = {GPU_T("send", rows), GPU_T("recv", whole)}});
}

/* parts of the rows of all etp ranks -> the sum of this rank's */
static assay_status reduce_etp(gpu_model *m, const char *at, const gpu_moe_acts *s, gpu_value *rows,
                               gpu_value *part)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "reduce_scatter",
                                             .at = at,
                                             .group = ASSAY_GROUP_ETP,
                                             .counts = s->etp_counts,
                                             .arg = {GPU_T("send", part), GPU_W("reduction", "sum"),
                                                     GPU_T("recv", rows)}});
}

/* permuted rows -> rows of the local experts, before they are sorted; `last` columns */
static assay_status exchange_one(gpu_model *m, gpu_moe_acts *s, const char *dispatch_at,
                                 const char *gather_at, gpu_value *permuted, gpu_value *dispatched,
                                 gpu_value *gathered, int64_t last)
{
    gpu_arena *temp = &m->scratch;
    *dispatched = *permuted;
    if (m->ep > 1) {
        *dispatched = rows_of(temp, &s->dispatched_rows, last);
        ASSAY_TRY(all_to_all(m, dispatch_at, dispatched, s->recv_counts, permuted, s->send_counts));
    }
    *gathered = *dispatched;
    if (m->etp == 1)
        return ASSAY_OK;
    *gathered = rows_of(temp, &s->gathered_rows, last);
    return gather_etp(m, gather_at, s, gathered, dispatched);
}

/* permuted rows -> rows of the local experts */
static assay_status exchange_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                  const gpu_exchange *p)
{
    const int64_t H = m->config->hidden_size;
    if (m->ep > 1)
        ASSAY_TRY(gpu_pad_sort(m, mb, s, p));
    ASSAY_TRY(gpu_exchange_name_received(m, mb, s, p, s->sort_index.host));
    ASSAY_TRY(exchange_one(m, s, "mlp.dispatch", "mlp.experts.gather", &s->permuted, &s->dispatched,
                           &s->gathered, H));
    ASSAY_TRY(exchange_one(m, s, "mlp.dispatch_probs", "mlp.experts.gather_probs", &s->permuted_probs,
                           &s->dispatched_probs, &s->gathered_probs, 0));
    return gpu_sort_rows(m, mb, s, &s->gathered, &s->gathered_probs);
}

assay_status gpu_token_dispatch_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *s)
{
    gpu_run *run = m->run;
    gpu_arena *rows_arena = gpu_sorts_rows(m) ? &m->scratch : &mb->arena;
    const int64_t H = m->config->hidden_size;
    gpu_exchange p = {.experts = m->local_experts};
    gpu_value row_entry;
    ASSAY_TRY(permute_rows(m, mb, l, s, &p, &row_entry));
    ASSAY_TRY(fetch_permutation(m, mb, s, &p, &row_entry));
    if (needs_counts(m) && !gpu_has_halves(m)) {
        ASSAY_TRY(gpu_exchange_count(m, mb, s, &p));
        ASSAY_TRY(gpu_pad_count(m, mb, s, &p));
    }
    if (!gpu_has_halves(m))
        ASSAY_TRY(count_rows(m, mb, l, s, &p));
    if (gpu_gathers_tokens(m))
        return gpu_gather_dispatch_fwd(m, mb, s, &p);
    ASSAY_TRY(gpu_exchange_name_rows(m, mb, s, &p));
    ASSAY_TRY(GPU_CALL(run, "gather_rows", "mlp.permute", GPU_T("x", &s->tokens),
                       GPU_T("index", &s->row_token),
                       GPU_NEW("y", &s->permuted, rows_of(rows_arena, &s->rows, H))));
    gpu_value probs = gpu_value_flat(&s->probs);
    ASSAY_TRY(GPU_CALL(run, "gather_rows", "mlp.permute_probs", GPU_T("x", &probs),
                       GPU_T("index", &row_entry),
                       GPU_NEW("y", &s->permuted_probs, rows_of(rows_arena, &s->rows, 0))));
    if (gpu_has_halves(m))
        return gpu_halves_dispatch_fwd(m, mb, s, &p);
    if (gpu_sorts_rows(m))
        return exchange_rows(m, mb, s, &p);
    s->expert_rows = s->rows;
    s->expert_in = s->permuted;
    s->expert_probs = s->permuted_probs;
    return ASSAY_OK;
}

/* --- combine ------------------------------------------------------------------------------------------------ */
assay_status gpu_token_combine_fwd(gpu_model *m, gpu_moe_acts *s, gpu_value *y, gpu_value *rows)
{
    gpu_arena *temp = &m->scratch;
    const int64_t H = m->config->hidden_size;
    if (gpu_gathers_tokens(m))
        return gpu_gather_combine_fwd(m, s, y, rows);
    if (!gpu_has_halves(m))
        s->returned = *rows;
    if (gpu_sorts_rows(m) && !gpu_has_halves(m)) {
        s->unsorted = rows_of(temp, &s->gathered_rows, H);
        if (m->etp > 1)
            s->unsorted.kind = ASSAY_PIECE_LOCAL; /* parts of sums over etp */
        ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.unsort", GPU_T("x", rows),
                           GPU_T("index", &s->unsort_index), GPU_T("y", &s->unsorted)));
        s->reduced = s->unsorted;
        if (m->etp > 1) {
            s->reduced = rows_of(temp, &s->dispatched_rows, H);
            ASSAY_TRY(reduce_etp(m, "mlp.experts.reduce", s, &s->reduced, &s->unsorted));
        }
        s->returned = s->reduced;
        if (m->ep > 1) {
            s->returned = rows_of(temp, &s->rows, H);
            ASSAY_TRY(
                all_to_all(m, "mlp.combine", &s->returned, s->send_counts, &s->reduced, s->recv_counts));
        }
    }
    return GPU_CALL(m->run, "combine_rows", "mlp.unpermute", GPU_T("x", &s->returned),
                    GPU_T("token_row", &s->token_row),
                    GPU_NEW("y", y, gpu_tokens(m, temp, true, gpu_dim_hidden(m))));
}

assay_status gpu_token_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *drows, gpu_value *dy)
{
    if (gpu_gathers_tokens(m))
        return gpu_gather_combine_bwd(m, s, drows, dy);
    gpu_value dreturned = gpu_grad_of(m, &s->returned), dreduced, dunsorted;
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.unpermute", GPU_T("x", dy), GPU_T("index", &s->row_token),
                       GPU_T("y", &dreturned)));
    *drows = dreturned;
    if (!gpu_sorts_rows(m) || gpu_has_halves(m))
        return ASSAY_OK;
    dreduced = dreturned;
    if (m->ep > 1) {
        dreduced = gpu_grad_of(m, &s->reduced);
        ASSAY_TRY(all_to_all(m, "mlp.combine", &dreduced, s->recv_counts, &dreturned, s->send_counts));
    }
    dunsorted = dreduced;
    if (m->etp > 1) {
        dunsorted = gpu_grad_of(m, &s->unsorted);
        ASSAY_TRY(gather_etp(m, "mlp.experts.reduce", s, &dunsorted, &dreduced));
    }
    return GPU_CALL(m->run, "gather_rows", "mlp.unsort", GPU_T("x", &dunsorted),
                    GPU_T("index", &s->sort_index), GPU_NEW("y", drows, gpu_grad_of(m, &s->fc2)));
}

/* Values and instances of one way back: of the rows, or of their probs. */
typedef struct return_way {
    const char *sort_at, *gather_at, *dispatch_at;
    const gpu_value *permuted, *dispatched, *gathered;
} return_way;

/* gradient of rows of the local experts -> gradient of the permuted rows */
static assay_status return_rows(gpu_model *m, gpu_moe_acts *s, const return_way *w, gpu_value *out,
                                gpu_value *drows)
{
    gpu_value dgathered = gpu_grad_of(m, w->gathered), ddispatched;
    if (m->etp > 1)
        dgathered.kind = ASSAY_PIECE_LOCAL; /* every slice of an expert gives a part */
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", w->sort_at, GPU_T("x", drows), GPU_T("index", &s->unsort_index),
                       GPU_T("y", &dgathered)));
    ddispatched = dgathered;
    if (m->etp > 1) {
        ddispatched = gpu_grad_of(m, w->dispatched);
        ASSAY_TRY(reduce_etp(m, w->gather_at, s, &ddispatched, &dgathered));
    }
    *out = ddispatched;
    if (m->ep == 1)
        return ASSAY_OK;
    *out = gpu_grad_of(m, w->permuted);
    return all_to_all(m, w->dispatch_at, out, s->send_counts, &ddispatched, s->recv_counts);
}

assay_status gpu_token_dispatch_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dtokens, gpu_value *dprobs,
                                    gpu_value *drows, gpu_value *dprobs_rows)
{
    if (gpu_gathers_tokens(m))
        return gpu_gather_dispatch_bwd(m, s, dtokens, dprobs, drows, dprobs_rows);
    const return_way rows = {"mlp.sort",   "mlp.experts.gather", "mlp.dispatch",
                             &s->permuted, &s->dispatched,       &s->gathered},
                     probs = {"mlp.sort_probs",   "mlp.experts.gather_probs", "mlp.dispatch_probs",
                              &s->permuted_probs, &s->dispatched_probs,       &s->gathered_probs};
    gpu_value dpermuted = *drows, dpermuted_probs = *dprobs_rows;
    if (gpu_sorts_rows(m) && !gpu_has_halves(m)) {
        ASSAY_TRY(return_rows(m, s, &rows, &dpermuted, drows));
        ASSAY_TRY(return_rows(m, s, &probs, &dpermuted_probs, dprobs_rows));
    }
    *dtokens = gpu_named(m, gpu_tokens(m, &m->scratch, true, gpu_dim_hidden(m)), "mlp.permute", "dx");
    ASSAY_TRY(GPU_CALL(m->run, "combine_rows", "mlp.permute", GPU_T("x", &dpermuted),
                       GPU_T("token_row", &s->token_row), GPU_T("y", dtokens)));
    *dprobs = gpu_grad_of(m, &s->probs);
    ASSAY_TRY(gpu_value_make(dprobs, ASSAY_F32));
    gpu_value flat = gpu_value_flat(dprobs), index = gpu_value_flat(&s->token_row);
    return GPU_CALL(m->run, "gather_rows", "mlp.permute_probs", GPU_T("x", &dpermuted_probs),
                    GPU_T("index", &index), GPU_T("y", &flat));
}
