/* Padding of the experts' rows. */
#include "ref/parallel/padding.h"

#include "ref/lockstep.h"
#include "ref/objective.h"

bool ref_pads_rows(const ref_pass *p)
{
    return assay_pads_rows(&p->e->options);
}

/* How many of n tokens an expert takes: no more than there are. */
static int64_t capacity_of(const ref_pass *p, int64_t n)
{
    const assay_model_config *c = p->e->config;
    const int64_t capacity = ref_expert_capacity(n, c->moe_router_topk, c->num_moe_experts,
                                                 p->e->options.moe_expert_capacity_factor);
    return capacity < n ? capacity : n;
}

/* Rows that an expert of the group can get: a capacity of every microbatch whose tokens reach it, or (semantics megatron) of
 * every rank's tokens. */
static int64_t most_rows(const ref_pass *p, const ref_dispatch *d, const assay_group_shape *g)
{
    const int64_t whole = p->e->seq * p->e->run->batches->b;
    int64_t most = 0;
    for (int i = 0; i < g->size; i++) {
        const int member = assay_group_member(g, i);
        bool again = false;
        for (int j = 0; j < i; j++)
            again =
                again || ref_pass_microbatch(p, assay_group_member(g, j)) == ref_pass_microbatch(p, member);
        if (p->e->options.semantics == ASSAY_SEMANTICS_MEGATRON)
            most += capacity_of(p, d->tokens.at[member].x[0]);
        else if (!again)
            most += capacity_of(p, whole);
    }
    return most;
}

/* In a run that is not cut, whose experts get what every rank of another layout has let through. */
static assay_status objective_rows(const ref_pass *p, int64_t *most)
{
    *most = 0;
    for (int rank = 0; rank < p->e->run->objective->world; rank++) {
        int64_t tokens;
        ASSAY_TRY(ref_objective_tokens(p, rank, &tokens));
        *most += capacity_of(p, tokens);
    }
    return ASSAY_OK;
}

static int64_t padded_rows(const ref_pass *p, int64_t rows, int64_t most)
{
    const int64_t multiple = assay_row_multiple(&p->e->options);
    const int64_t wanted = p->e->options.moe_pad_expert_input_to_capacity ? most : rows;
    return (wanted + multiple - 1) / multiple * multiple;
}

/* Rows of rank r's experts, at most `most` of tokens each where that is their number. */
static assay_status pad_rank(ref_pass *p, ref_dispatch *d, int r, int64_t most)
{
    ref_int_piece *rows = &d->rows_per_expert.at[r], *unsort = &d->unsort.at[r], sort;
    const ref_int_piece old = d->sort.at[r];
    int64_t n = 0, from = 0, to = 0;
    for (int64_t e = 0; e < rows->rows; e++)
        n += padded_rows(p, rows->x[e], most);
    ASSAY_TRY(ref_int_piece_new(&p->arena, &sort, n, 1));
    for (int64_t e = 0; e < rows->rows; e++) {
        const int64_t all = padded_rows(p, rows->x[e], most), end = to + all;
        ASSAY_CHECK(rows->x[e] <= all, ASSAY_INTERNAL,
                    "layer %lld: local expert %lld: %lld rows, room for %lld", (long long)p->layer,
                    (long long)e, (long long)rows->x[e], (long long)all);
        for (int64_t i = 0; i < rows->x[e]; i++, to++) {
            sort.x[to] = old.x[from++];
            unsort->x[sort.x[to]] = to;
        }
        while (to < end)
            sort.x[to++] = -1;
        rows->x[e] = all;
    }
    d->sort.at[r] = sort;
    return ASSAY_OK;
}

assay_status ref_pad_rows(ref_pass *p, ref_dispatch *d)
{
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_ETP_EP, r);
        int64_t most = 0;
        if (p->e->options.moe_pad_expert_input_to_capacity && g.size > 0 && ref_has_objective(p))
            ASSAY_TRY(objective_rows(p, &most));
        else if (p->e->options.moe_pad_expert_input_to_capacity && g.size > 0)
            most = most_rows(p, d, &g);
        for (int i = 0; i < g.size; i++)
            ASSAY_TRY(pad_rank(p, d, assay_group_member(&g, i), most));
    }
    return ASSAY_OK;
}
