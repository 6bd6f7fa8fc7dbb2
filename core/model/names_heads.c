/* Columns of the heads of a class that rotates pairs of neighbours and leaves them where they are.  Ours are sorted into halves, as deepseek_v3's:
 * of r rotated columns behind the first n, ours n + i and n + r/2 + i are theirs n + 2i and n + 2i + 1. */
#include "core/model/config_internal.h"
#include "core/model/names_internal.h"

#include <string.h>

static bool is_rotated(const assay_name_row *row)
{
    static const char *const names[] = {".rope_q.y", ".rope_q.y.grad", ".rope_kv.k", ".rope_kv.k.grad"};
    const size_t n = strlen(row->ours);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (n > strlen(names[i]) && strcmp(row->ours + n - strlen(names[i]), names[i]) == 0)
            return true;
    return false;
}

assay_status assay_names_sort_heads(assay_names *n)
{
    const assay_model_config *c = &n->spec->config;
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    const int64_t plain = c->qk_head_dim, half = c->qk_pos_emb_head_dim / 2;
    assay_hf_piece *pieces = NULL;
    if (class->mla == NULL || class->mla->rope_interleave)
        return ASSAY_OK;
    ASSAY_TRY(assay_names_own(n, 1 + 2 * half, &pieces));
    pieces[0].rows = plain;
    for (int64_t i = 0; i < half; i++) {
        pieces[1 + i] = (assay_hf_piece){.dst = plain + i, .src = plain + 2 * i, .rows = 1};
        pieces[1 + half + i] = (assay_hf_piece){.dst = plain + half + i, .src = plain + 2 * i + 1, .rows = 1};
    }
    for (int64_t i = 0; i < n->n; i++)
        if (is_rotated(&n->rows[i])) {
            n->rows[i].n_pieces = (int)(1 + 2 * half);
            n->rows[i].pieces = pieces;
            n->rows[i].extent = n->rows[i].their_extent = plain + 2 * half;
        }
    return ASSAY_OK;
}
