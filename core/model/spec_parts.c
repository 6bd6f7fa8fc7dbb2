/* The tensors on disk that a canonical parameter is made of: what the lists of all forms of folders share. */
#include "core/model/spec_internal.h"

#include <stdlib.h>

/* A list of parts under construction. */
assay_status assay_spec_add_part(assay_param_spec *p, int n_pieces, int64_t rows, int64_t columns,
                                 assay_hf_part **out)
{
    assay_hf_part *part = &p->parts[p->n_parts];
    part->pieces = calloc((size_t)n_pieces, sizeof *part->pieces);
    ASSAY_CHECK(part->pieces != NULL, ASSAY_OUT_OF_MEMORY, "%s: %d pieces", p->name, n_pieces);
    part->n_pieces = n_pieces;
    part->ndim = columns > 0 ? 2 : 1;
    part->shape[0] = rows;
    part->shape[1] = columns;
    p->n_parts++;
    *out = part;
    return ASSAY_OK;
}

assay_status assay_spec_reserve_parts(assay_param_spec *p, int64_t n)
{
    p->parts = calloc((size_t)n, sizeof *p->parts);
    ASSAY_CHECK(p->parts != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld parts", p->name, (long long)n);
    return ASSAY_OK;
}

/* The canonical tensor as one Hugging Face tensor, its leading dimensions folded. */
assay_status assay_spec_one_part(assay_param_spec *p, const char *name)
{
    int64_t rows = p->shape[0];
    for (int d = 1; d < p->ndim - 1; d++)
        rows *= p->shape[d];
    assay_hf_part *part;
    ASSAY_TRY(assay_spec_reserve_parts(p, 1));
    ASSAY_TRY(assay_spec_add_part(p, 1, rows, p->ndim > 1 ? p->shape[p->ndim - 1] : 0, &part));
    snprintf(part->name, sizeof part->name, "%s", name);
    part->pieces[0] = (assay_hf_piece){.dst = 0, .src = 0, .rows = rows};
    return ASSAY_OK;
}

/* A part that fills one range of canonical rows. */
assay_status assay_spec_range_part(assay_param_spec *p, int64_t dst, int64_t rows, int64_t columns,
                                   assay_hf_part **part)
{
    ASSAY_TRY(assay_spec_add_part(p, 1, rows, columns, part));
    (*part)->pieces[0] = (assay_hf_piece){.dst = dst, .src = 0, .rows = rows};
    return ASSAY_OK;
}

assay_status assay_spec_parts_build(assay_param_spec *p, assay_param_kind kind, const assay_model_config *c)
{
    return c->arch == ASSAY_ARCH_MEGATRON ? assay_spec_megatron_parts(p, kind, c)
                                          : assay_spec_hf_parts(p, kind, c);
}

void assay_spec_parts_free(assay_param_spec *p)
{
    for (int i = 0; i < p->n_parts; i++)
        free(p->parts[i].pieces);
    free(p->parts);
    p->parts = NULL;
    p->n_parts = 0;
}

int64_t assay_hf_part_row_length(const assay_hf_part *part)
{
    return part->ndim > 1 ? part->shape[part->ndim - 1] : 1;
}

int64_t assay_hf_part_rows(const assay_hf_part *part)
{
    return part->ndim > 2 ? part->shape[0] * part->shape[1] : part->shape[0];
}
