/* Padding of the experts' rows. */
#include "gpu/parallel/padding.h"

#include "gpu/call.h"
#include "gpu/describe.h"
#include "gpu/sort_index.h"

bool gpu_pads_rows(const gpu_model *m)
{
    return assay_pads_rows(m->options);
}

bool gpu_sorts_rows(const gpu_model *m)
{
    return gpu_pads_rows(m) || (gpu_exchanges_rows(m) && !gpu_gathers_tokens(m));
}

/* A capacity of every microbatch whose tokens reach this rank's experts; semantics megatron: of every rank's tokens. */
static assay_status most_rows(const gpu_model *m, int64_t *most)
{
    const assay_group_shape g = assay_grid_group_shape(m->grid, gpu_exchange_group(m), m->run->comm.rank);
    *most = 0;
    for (int i = 0; i < g.size; i++) {
        assay_sequence_map map;
        assay_coords at, before;
        bool again = false;
        assay_grid_coords(m->grid, assay_group_member(&g, i), &at);
        ASSAY_TRY(assay_sequence_map_make(m->grid, assay_group_member(&g, i), m->S, &map));
        for (int j = 0; j < i; j++) {
            assay_grid_coords(m->grid, assay_group_member(&g, j), &before);
            again = again || m->rows_split || before.dp == at.dp;
        }
        if (m->options->semantics == ASSAY_SEMANTICS_MEGATRON)
            *most += gpu_expert_capacity(m, map.shard.length * m->B);
        else if (!again)
            *most += gpu_expert_capacity(m, m->S * m->B_global);
    }
    return ASSAY_OK;
}

assay_status gpu_pad_count(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, gpu_exchange *x)
{
    const int64_t El = x->experts;
    const bool to_capacity = m->options->moe_pad_expert_input_to_capacity;
    int64_t most = 0;
    x->padded = x->gathered;
    x->room = s->counts;
    x->most = -1;
    x->multiple = 1;
    if (!gpu_pads_rows(m))
        return ASSAY_OK;
    const int64_t multiple = x->multiple = assay_row_multiple(m->options);
    if (to_capacity) {
        ASSAY_TRY(most_rows(m, &most));
        x->most = most = (most + multiple - 1) / multiple * multiple;
    }
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)El * sizeof(int64_t), (void **)&x->room));
    if (m->run->dry || !x->known) {
        x->padded = to_capacity ? El * most : x->gathered + El * (multiple - 1);
        return ASSAY_OK;
    }
    x->padded = 0;
    for (int64_t e = 0; e < El; e++) {
        x->room[e] = to_capacity ? most : (s->counts[e] + multiple - 1) / multiple * multiple;
        ASSAY_CHECK(s->counts[e] <= x->room[e], ASSAY_INTERNAL, "local expert %lld: %lld rows, room for %lld",
                    (long long)e, (long long)s->counts[e], (long long)x->room[e]);
        x->padded += x->room[e];
    }
    return ASSAY_OK;
}

/* Gathered tokens are permuted in the experts' order: only the rows of zeros are missing. */
static void sort_in_order(const gpu_moe_acts *s, const gpu_exchange *x, int64_t *sort, int64_t *unsort)
{
    int64_t from = 0, to = 0, end = 0;
    for (int64_t e = 0; e < x->experts; e++) {
        end += x->room[e];
        for (int64_t i = 0; i < s->counts[e]; i++, from++, to++) {
            sort[to] = from;
            unsort[from] = to;
        }
        while (to < end)
            sort[to++] = -1;
    }
}

/* Both orders on the host. */
static assay_status sort_on_host(gpu_model *m, gpu_microbatch_state *mb, const gpu_moe_acts *s,
                                 const gpu_exchange *x, int64_t **sort, int64_t **unsort)
{
    const size_t word = sizeof(int64_t);
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)x->padded * word, (void **)sort));
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)x->gathered * word, (void **)unsort));
    if (!m->run->dry && gpu_gathers_tokens(m))
        sort_in_order(s, x, *sort, *unsort);
    else if (!m->run->dry)
        gpu_exchange_sort(m, x, *sort, *unsort);
    return ASSAY_OK;
}

assay_status gpu_pad_sort(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const gpu_exchange *x)
{
    int64_t *sort, *unsort;
    ASSAY_TRY(sort_on_host(m, mb, s, x, &sort, &unsort));
    ASSAY_TRY(gpu_index_value(m, &mb->arena, &s->sort_index, "mlp.sort", "index", x->padded, sort));
    return gpu_index_value(m, &mb->arena, &s->unsort_index, "mlp.unsort", "index", x->gathered, unsort);
}

/* An array of n on the device under instance and slot, which the device itself fills. */
static assay_status filled_there(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at,
                                 const char *slot, int64_t n, const int64_t *host)
{
    *v = gpu_named(m, gpu_local(arena, n, 0), at, slot);
    v->host = host;
    return gpu_value_make(v, ASSAY_I64);
}

/* What the host knows it makes for the names of a trace; what the experts' kernels read is the device's own in every run. */
assay_status gpu_pad_sort_there(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                const gpu_exchange *x)
{
    gpu_arena *keep = &mb->arena;
    const bool sorts = gpu_sorts_rows(m);
    gpu_sort_index_args a = {.counts = x->counts.data,
                             .sources = m->etp,
                             .merged = gpu_gathers_tokens(m),
                             .experts = x->experts,
                             .room = x->most,
                             .multiple = x->multiple};
    int64_t *sort = NULL, *unsort = NULL;
    ASSAY_TRY(filled_there(m, keep, &s->local_counts, "mlp.experts", "tokens_per_expert", x->experts,
                           x->known ? x->room : NULL));
    if (sorts) {
        if (m->run->trace)
            ASSAY_TRY(sort_on_host(m, mb, s, x, &sort, &unsort));
        ASSAY_TRY(filled_there(m, keep, &s->sort_index, "mlp.sort", "index", x->padded, sort));
        ASSAY_TRY(filled_there(m, keep, &s->unsort_index, "mlp.unsort", "index", x->gathered, unsort));
        a.sort = s->sort_index.t.data;
        a.padded = x->padded;
        a.unsort = s->unsort_index.t.data;
        a.gathered = x->gathered;
    }
    a.tokens_per_expert = s->local_counts.t.data;
    if (!m->run->dry)
        CUDA_TRY(gpu_sort_index(&a, m->run->ctx.stream));
    return ASSAY_OK;
}

/* A value with the rows that the experts compute. */
static gpu_value sorted_rows(gpu_microbatch_state *mb, const gpu_moe_acts *s, int64_t last)
{
    gpu_value v = gpu_local(&mb->arena, s->expert_rows.n, last);
    v.kind = ASSAY_PIECE_ROWS;
    v.rows = &s->expert_rows;
    return v;
}

assay_status gpu_sort_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, gpu_value *rows,
                           gpu_value *probs)
{
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.sort", GPU_T("x", rows), GPU_T("index", &s->sort_index),
                       GPU_NEW("y", &s->expert_in, sorted_rows(mb, s, m->config->hidden_size))));
    return GPU_CALL(m->run, "gather_rows", "mlp.sort_probs", GPU_T("x", probs),
                    GPU_T("index", &s->sort_index), GPU_NEW("y", &s->expert_probs, sorted_rows(mb, s, 0)));
}
