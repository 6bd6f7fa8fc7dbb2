/* Documents packed in the rows of a batch. */
#include "ref/documents.h"

/* Positions in their documents of rank r's rows, [B,S] in the order of the file; NULL: rows are one document. */
static const int64_t *rows_of(const ref_pass *p, int r)
{
    const int64_t *microbatch =
        assay_batches_positions(p->e->run->batches, p->step, ref_pass_microbatch(p, r));
    return microbatch ? microbatch + p->ranks[r].share.first_row * p->e->seq : NULL;
}

assay_status ref_documents_load(ref_pass *p)
{
    const int64_t batch = p->e->batch;
    ASSAY_TRY(ref_ints_new(&p->arena, &p->position_ids, p->n));
    for (int r = 0; r < p->n; r++) {
        const int64_t *rows = rows_of(p, r), *position = p->ranks[r].position;
        ref_int_piece *out = &p->position_ids.at[r];
        ASSAY_TRY(ref_int_piece_new(&p->arena, out, ref_pass_region_tokens(p, r), 1));
        for (int64_t t = 0; t < out->rows; t++)
            out->x[t] = rows ? rows[t % batch * p->e->seq + position[t]] : position[t];
    }
    return ASSAY_OK;
}

assay_status ref_documents_start(ref_pass *p, ref_ints *out, bool gathered)
{
    const int64_t batch = p->e->batch;
    assay_sequence whole;
    *out = (ref_ints){0};
    if (!p->e->run->batches->position_ids)
        return ASSAY_OK;
    ASSAY_TRY(ref_ints_new(&p->arena, out, p->n));
    ASSAY_TRY(assay_sequence_gathered(&p->e->grid, p->e->seq, &whole));
    for (int r = 0; r < p->n; r++) {
        const assay_sequence *sequence = gathered ? &whole : &p->ranks[r].sequence.region;
        const int64_t *rows = rows_of(p, r);
        ASSAY_TRY(ref_int_piece_new(&p->arena, &out->at[r], sequence->length * batch, 1));
        for (int64_t t = 0; t < out->at[r].rows; t++) {
            const int64_t s = assay_sequence_position(sequence, t / batch);
            out->at[r].x[t] = s - rows[t % batch * p->e->seq + s];
        }
    }
    return ASSAY_OK;
}
