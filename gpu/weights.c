/* Where weights come from: a Hugging Face folder, a seed (weights_draw.c), or a checkpoint. */
#include "core/files/checkpoint.h"
#include "core/files/tensorfile.h"
#include "core/run/inputs.h"
#include "gpu/weights_read.h"

#include <string.h>

/* Of the ranks that read a parameter, all of them whole, the lowest speaks. */
bool gpu_param_speaks(const gpu_model *m, const assay_param_spec *spec)
{
    int first = 0;
    while (first < m->run->comm.rank && !assay_param_on_rank(spec, m->grid, m->config, first))
        first++;
    return first == m->run->comm.rank;
}

static bool same_place(const assay_shard *a, const assay_shard *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->n_segments[d] == b->n_segments[d] &&
               memcmp(a->segments[d], b->segments[d], (size_t)a->n_segments[d] * sizeof(assay_segment)) == 0;
    return same;
}

/* Of the ranks that read the same elements the lowest speaks. */
static bool speaks_for_piece(const gpu_model *m, const gpu_param *p, bool part)
{
    const assay_group shards = assay_param_shard_group(p->spec, m->grid);
    int mine, other;
    assay_shard s;
    (void)assay_grid_group(m->grid, shards, m->run->comm.rank, NULL, &mine);
    for (int r = 0; r < m->run->comm.rank; r++) {
        if (!assay_param_on_rank(p->spec, m->grid, m->config, r) ||
            assay_param_shard(p->spec, m->grid, r, &s) != ASSAY_OK)
            continue;
        (void)assay_grid_group(m->grid, shards, r, NULL, &other);
        if (same_place(&s, &p->shard) && (!part || mine == other))
            return false;
    }
    return true;
}

/* --- all of them -------------------------------------------------------------------------------------------- */
typedef struct reader {
    const gpu_model *m;
    const gpu_param *p;
    assay_weights_source source;
    assay_quantization quantization; /* of a folder */
    gpu_stored_param stored;         /* of its file */
    bool part;                       /* less than the piece was asked for */
} reader;

/* gpu_weight_read. */
static assay_status read_weight(void *from, int64_t first, int64_t n, float *out)
{
    reader *r = from;
    const assay_param_spec *spec = r->p->spec;
    r->part = r->part || n < r->p->count;
    if (r->source == ASSAY_WEIGHTS_LOADED) { /* the checkpoint overwrites them all */
        memset(out, 0, (size_t)n * sizeof *out);
        return ASSAY_OK;
    }
    if (r->source == ASSAY_WEIGHTS_DRAWN) {
        gpu_draw_part(spec, &r->p->shard, gpu_init_std(spec, r->m->config),
                      (uint64_t)r->m->options->draw_weights, r->m->host_threads, first, n, out);
        return ASSAY_OK;
    }
    return gpu_stored_param_read(&r->stored, &r->p->shard, first, n, out);
}

/* A NaN checkpoint is a thing to look at, so it is not refused, but said. */
static void warn(const reader *r)
{
    if (r->source == ASSAY_WEIGHTS_STORED && gpu_stored_param_warn(&r->stored, "", false))
        (void)gpu_stored_param_warn(&r->stored, r->m->options->model, speaks_for_piece(r->m, r->p, r->part));
}

static assay_status put_param(reader *r, const assay_tensorfile *file, gpu_param *p, gpu_weight_sink put,
                              void *user)
{
    r->p = p;
    r->part = false;
    if (file != NULL)
        ASSAY_TRY(gpu_stored_param_open(&r->stored, file, &r->quantization, p->spec));
    const assay_status st = put(user, p, read_weight, r);
    if (st == ASSAY_OK)
        warn(r);
    gpu_stored_param_close(&r->stored);
    return st;
}

assay_status gpu_model_weights(gpu_model *m, const char *folder, gpu_weight_sink put, void *user)
{
    assay_status st = ASSAY_OK;
    assay_tensorfile *file = NULL;
    reader r = {.m = m};
    ASSAY_TRY(
        assay_inputs_weights(folder, assay_inputs_load(m->options), m->options->draw_weights, &r.source));
    if (r.source == ASSAY_WEIGHTS_STORED) {
        ASSAY_TRY_GOTO(assay_quantization_of_folder(folder, &r.quantization), st, done);
        ASSAY_TRY_GOTO(assay_tensorfile_open(&file, folder), st, done);
        ASSAY_TRY_GOTO(assay_spec_check_file(m->spec, &r.quantization, file), st, done);
    }
    for (int64_t i = 0; i < m->n_params; i++)
        ASSAY_TRY_GOTO(put_param(&r, file, &m->params[i], put, user), st, done);
done:
    assay_tensorfile_close(file);
    return st;
}
