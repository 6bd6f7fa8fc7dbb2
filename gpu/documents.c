/* Documents packed in the rows of a batch. */
#include "gpu/documents.h"

#include "gpu/describe.h"
#include "gpu/fault.h"
#include <string.h>

/* One integer tensor of a microbatch: what it is called, whose positions it has, what of a token it holds. */
typedef struct leaf {
    const char *name;
    bool gathered; /* of all positions of the cp group */
    bool start;    /* the document's first token; else the position in the document */
} leaf;

static int64_t value_of(const leaf *l, const int64_t *row, int64_t s)
{
    return l->start ? s - row[s] : row[s];
}

/* The value that a planted fault puts at local row i of batch row b; s: its position. */
static int64_t faulty(const gpu_model *m, const leaf *l, const char *fault, const int64_t *positions,
                      int64_t i, int64_t b, int64_t s)
{
    const bool rank = strcmp(fault, "rank") == 0;
    const int64_t *row = positions + ((rank ? m->row0 + m->B : m->row0) + b) % m->B_global * m->S;
    if (strcmp(fault, "row") == 0)
        return l->start ? 0 : s;
    if (strcmp(fault, "order") == 0)
        return value_of(l, row, l->gathered ? i : gpu_model_plain_position(m, i));
    return value_of(l, row, rank ? s : (s + 1) % m->S);
}

static assay_status load(gpu_model *m, gpu_microbatch_state *mb, const leaf *l, gpu_value *v,
                         const int64_t *positions)
{
    const gpu_dim dim[2] = {l->gathered ? gpu_dim_gathered(m) : gpu_dim_sequence(m, false), gpu_dim_batch(m)};
    int64_t *staged;
    bool changed = false;
    *v = gpu_value_describe(&mb->arena, 2, dim, 0);
    gpu_value_rename(m->run, v, l->name);
    ASSAY_TRY(gpu_value_make(v, ASSAY_I64));
    ASSAY_TRY(gpu_arena_take(&mb->host, gpu_tensor_bytes(v->t), (void **)&staged));
    if (m->run->dry)
        return ASSAY_OK;
    const char *fault = gpu_fault_leaf(m->run, l->name);
    for (int64_t i = 0; i < dim[0].length; i++)
        for (int64_t b = 0; b < m->B; b++) {
            const int64_t s = assay_sequence_position(dim[0].sequence, i);
            const int64_t own = value_of(l, positions + (m->row0 + b) * m->S, s);
            staged[i * m->B + b] = fault ? faulty(m, l, fault, positions, i, b, s) : own;
            changed = changed || staged[i * m->B + b] != own;
        }
    if (changed)
        gpu_fault_leaf_met(m->run);
    CUDA_TRY(cudaMemcpyAsync(v->t.data, staged, gpu_tensor_bytes(v->t), cudaMemcpyHostToDevice,
                             m->run->ctx.stream));
    return ASSAY_OK;
}

assay_status gpu_documents_load(gpu_model *m, gpu_microbatch_state *mb, const int64_t *positions)
{
    static const leaf own = {.name = "position_ids"}, start = {.name = "document_start", .start = true},
                      all = {.name = "key_document_start", .gathered = true, .start = true};
    gpu_documents *d = &mb->documents;
    if (!m->packed)
        return ASSAY_OK;
    ASSAY_TRY(load(m, mb, &own, &d->position, positions));
    return m->cp > 1 && m->grid->p.cp_comm_type == ASSAY_CP_A2A
               ? load(m, mb, &all, &d->gathered_start, positions)
               : load(m, mb, &start, &d->start, positions);
}

gpu_value *gpu_documents_position(gpu_model *m, gpu_documents *documents)
{
    return documents ? &documents->position : &m->position;
}

gpu_value *gpu_documents_start(gpu_documents *documents, bool gathered)
{
    return documents == NULL ? NULL : gathered ? &documents->gathered_start : &documents->start;
}
