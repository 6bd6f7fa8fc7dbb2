/* Padding of the experts' rows. */
#include "gpu/parallel/padding.h"

#include "gpu/call.h"
#include "gpu/describe.h"
#include <math.h>

bool gpu_pads_rows(const gpu_model *m)
{
    return assay_pads_rows(m->options);
}

bool gpu_sorts_rows(const gpu_model *m)
{
    return gpu_pads_rows(m) || (gpu_exchanges_rows(m) && !gpu_gathers_tokens(m));
}

/* How many of n tokens an expert takes: no more than there are. */
static int64_t capacity_of(const gpu_model *m, int64_t n)
{
    const double share = (double)(n * m->config->moe_router_topk) / (double)m->config->num_moe_experts;
    const int64_t capacity = (int64_t)ceil(share * m->options->moe_expert_capacity_factor);
    return capacity < n ? capacity : n;
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
            *most += capacity_of(m, map.shard.length * m->B);
        else if (!again)
            *most += capacity_of(m, m->S * m->B_global);
    }
    return ASSAY_OK;
}

assay_status gpu_pad_count(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, gpu_exchange *x)
{
    const int64_t El = x->experts, multiple = assay_row_multiple(m->options);
    const bool to_capacity = m->options->moe_pad_expert_input_to_capacity;
    int64_t most = 0;
    x->padded = x->gathered;
    x->room = s->counts;
    if (!gpu_pads_rows(m))
        return ASSAY_OK;
    if (to_capacity)
        ASSAY_TRY(most_rows(m, &most));
    most = (most + multiple - 1) / multiple * multiple;
    if (m->run->dry) {
        x->padded = to_capacity ? El * most : x->gathered + El * (multiple - 1);
        return gpu_arena_take(&mb->host, (size_t)El * sizeof(int64_t), (void **)&x->room);
    }
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)El * sizeof(int64_t), (void **)&x->room));
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

assay_status gpu_pad_sort(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const gpu_exchange *x)
{
    const size_t word = sizeof(int64_t);
    int64_t *sort, *unsort;
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)x->padded * word, (void **)&sort));
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)x->gathered * word, (void **)&unsort));
    if (!m->run->dry && gpu_gathers_tokens(m))
        sort_in_order(s, x, sort, unsort);
    else if (!m->run->dry)
        gpu_exchange_sort(m, x, sort, unsort);
    ASSAY_TRY(gpu_index_value(m, &mb->arena, &s->sort_index, "mlp.sort", "index", x->padded, sort));
    return gpu_index_value(m, &mb->arena, &s->unsort_index, "mlp.unsort", "index", x->gathered, unsort);
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
