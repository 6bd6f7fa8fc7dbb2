/* Where the elements of a piece of a canonical parameter lie in its parts. */
#include "core/model/spec.h"

typedef struct run_state {
    const assay_param_spec *p;
    const assay_shard *piece;
    int last_row_dim;       /* the last dimension that is folded into rows */
    int64_t row_length;     /* of the parameter */
    int64_t columns;        /* of the piece: its part of a row */
    assay_hf_run_sink sink; /* of the caller */
    void *user;
} run_state;

/* Rows [row, row+n) of a part are local rows [local, local+n) of the piece. */
static assay_status emit(const run_state *s, int part, int64_t row, int64_t local, int64_t n)
{
    const int column_dim = s->p->ndim - 1;
    if (s->columns == s->row_length && (column_dim == 0 || s->piece->n_segments[column_dim] == 1))
        /* whole rows follow one another in both */
        return s->sink(s->user, part, row * s->row_length, local * s->columns, n * s->columns);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (local + i) * s->columns;
        for (int k = 0; k < s->piece->n_segments[column_dim]; k++) {
            const assay_segment g = s->piece->segments[column_dim][k];
            ASSAY_TRY(s->sink(s->user, part, (row + i) * s->row_length + g.start, at, g.length));
            at += g.length;
        }
    }
    return ASSAY_OK;
}

/* Canonical rows [row, row+n) are local rows [local, local+n). */
static assay_status over_parts(const run_state *s, int64_t row, int64_t local, int64_t n)
{
    for (int i = 0; i < s->p->n_parts; i++) {
        const assay_hf_part *part = &s->p->parts[i];
        for (int k = 0; k < part->n_pieces; k++) {
            const assay_hf_piece *h = &part->pieces[k];
            const int64_t from = row > h->dst ? row : h->dst;
            const int64_t end = row + n < h->dst + h->rows ? row + n : h->dst + h->rows;
            if (from < end)
                ASSAY_TRY(emit(s, i, h->src + from - h->dst, local + from - row, end - from));
        }
    }
    return ASSAY_OK;
}

/* row, local: what the dimensions before `dim` have folded to. */
static assay_status over_rows(const run_state *s, int dim, int64_t row, int64_t local)
{
    const assay_shard *piece = s->piece;
    int64_t at = 0;
    for (int k = 0; k < piece->n_segments[dim]; k++) {
        const assay_segment g = piece->segments[dim][k];
        const int64_t global = row * s->p->shape[dim] + g.start;
        const int64_t here = local * piece->local_shape[dim] + at;
        at += g.length;
        if (dim == s->last_row_dim) {
            ASSAY_TRY(over_parts(s, global, here, g.length));
            continue;
        }
        for (int64_t i = 0; i < g.length; i++)
            ASSAY_TRY(over_rows(s, dim + 1, global + i, here + i));
    }
    return ASSAY_OK;
}

assay_status assay_param_runs(const assay_param_spec *p, const assay_shard *piece, assay_hf_run_sink sink,
                              void *user)
{
    const bool rows = p->ndim > 1;
    run_state s = {.p = p,
                   .piece = piece,
                   .last_row_dim = rows ? p->ndim - 2 : 0,
                   .row_length = rows ? p->shape[p->ndim - 1] : 1,
                   .columns = rows ? piece->local_shape[p->ndim - 1] : 1,
                   .sink = sink,
                   .user = user};
    return assay_shard_count(piece) > 0 ? over_rows(&s, 0, 0, 0) : ASSAY_OK;
}
