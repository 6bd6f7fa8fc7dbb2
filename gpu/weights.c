/* Where weights come from: a Hugging Face folder, a seed (weights_draw.c), or a checkpoint. */
#include "core/files/checkpoint.h"
#include "core/files/tensorfile.h"
#include "core/run/inputs.h"
#include "gpu/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- element types of files --------------------------------------------------------------------------------- */
static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float half_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1Fu, fraction = h & 0x3FFu;
    if (exponent == 31)
        return from_bits(sign | 0x7F800000u | fraction << 13);
    if (exponent > 0)
        return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = (float)fraction * 0x1p-24f; /* exact: subnormal halves are normal floats */
    return sign ? -magnitude : magnitude;
}

static assay_status convert(const assay_tensor_info *t, int64_t at, int64_t n, float *out)
{
    const char *from = (const char *)t->data + at * assay_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        double wide;
        switch (t->dtype) {
        case ASSAY_F32:
            memcpy(&out[i], from + i * 4, 4);
            break;
        case ASSAY_BF16:
            memcpy(&half, from + i * 2, 2);
            out[i] = from_bits((uint32_t)half << 16);
            break;
        case ASSAY_F16:
            memcpy(&half, from + i * 2, 2);
            out[i] = half_to_float(half);
            break;
        case ASSAY_F64:
            memcpy(&wide, from + i * 8, 8);
            out[i] = (float)wide;
            break;
        default:
            ASSAY_FAIL(ASSAY_UNSUPPORTED, "%s: dtype %s of a weight, expected F32, BF16, F16 or F64", t->name,
                       assay_dtype_name(t->dtype));
        }
    }
    return ASSAY_OK;
}

/* --- from files --------------------------------------------------------------------------------------------- */
static assay_status read_part(const assay_tensorfile *file, const assay_hf_part *part, float *whole)
{
    const assay_tensor_info *t;
    const int64_t row = assay_hf_part_row_length(part);
    ASSAY_TRY(assay_tensorfile_get(file, part->name, ASSAY_DTYPE_COUNT, part->shape, part->ndim, &t));
    for (int i = 0; i < part->n_pieces; i++) {
        const assay_hf_piece *piece = &part->pieces[i];
        ASSAY_TRY(convert(t, piece->src * row, piece->rows * row, whole + piece->dst * row));
    }
    return ASSAY_OK;
}

/* Of the ranks that read a parameter, all of them whole, the lowest speaks. */
bool gpu_param_speaks(const gpu_model *m, const assay_param_spec *spec)
{
    int first = 0;
    while (first < m->run->comm.rank && !assay_param_on_rank(spec, m->grid, m->config, first))
        first++;
    return first == m->run->comm.rank;
}

void gpu_count_not_finite(const float *x, int64_t n, int64_t start, assay_not_finite *f)
{
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i]))
            continue;
        f->first = f->first < 0 || start + i < f->first ? start + i : f->first;
        f->nan += isnan(x[i]) != 0;
        f->infinite += isnan(x[i]) == 0;
    }
}

/* A NaN checkpoint is a thing to look at, so it is not refused, but said. */
static void warn_not_finite(const gpu_model *m, const char *folder, const assay_param_spec *spec,
                            const assay_hf_part *part, const float *whole)
{
    const int64_t row = assay_hf_part_row_length(part);
    assay_not_finite f = {.first = -1};
    char text[256];
    for (int k = 0; k < part->n_pieces; k++) {
        const assay_hf_piece *piece = &part->pieces[k];
        gpu_count_not_finite(whole + piece->dst * row, piece->rows * row, piece->src * row, &f);
    }
    if (f.first < 0 || !gpu_param_speaks(m, spec))
        return;
    assay_not_finite_text(&f, part->shape, part->ndim, text, sizeof text);
    fprintf(stderr, "WARNING: %s: %s: %s\n", folder, part->name, text);
}

/* The canonical tensor of `spec` from its parts. */
static assay_status read_whole(const gpu_model *m, const assay_tensorfile *file, const assay_param_spec *spec,
                               float *whole)
{
    for (int i = 0; i < spec->n_parts; i++) {
        const assay_status st = read_part(file, &spec->parts[i], whole);
        if (st != ASSAY_OK)
            return assay_context(st, "%s: for %s", assay_tensorfile_path(file), spec->name);
        warn_not_finite(m, m->options->model, spec, &spec->parts[i], whole);
    }
    return ASSAY_OK;
}

static bool name_is_known(const assay_model_spec *spec, const char *name)
{
    for (int64_t i = 0; i < spec->n_params; i++)
        for (int k = 0; k < spec->params[i].n_parts; k++)
            if (strcmp(spec->params[i].parts[k].name, name) == 0)
                return true;
    return false;
}

/* A tensor that the model has no place for is not silently dropped; old files carry rotary tables, tied
 * models may carry the head twice. */
static assay_status check_no_strangers(const gpu_model *m, const assay_tensorfile *file)
{
    static const char rotary[] = "rotary_emb.inv_freq";
    for (int64_t i = 0; i < assay_tensorfile_count(file); i++) {
        const char *name = assay_tensorfile_at(file, i)->name;
        const size_t length = strlen(name);
        const bool is_table =
            length >= sizeof rotary - 1 && strcmp(name + length - (sizeof rotary - 1), rotary) == 0;
        const bool is_head = m->config->tie_word_embeddings && strcmp(name, "lm_head.weight") == 0;
        ASSAY_CHECK(is_table || is_head || name_is_known(m->spec, name), ASSAY_MISMATCH,
                    "%s: tensor '%s' has no place in this model (%s)", assay_tensorfile_path(file), name,
                    assay_arch_name(m->config->arch));
    }
    return ASSAY_OK;
}

/* --- both --------------------------------------------------------------------------------------------------- */
static assay_status piece_of(const gpu_model *m, assay_weights_source source, const assay_tensorfile *file,
                             const gpu_param *p, float **whole, float *piece)
{
    const assay_param_spec *spec = p->spec;
    if (source == ASSAY_WEIGHTS_LOADED) { /* the checkpoint overwrites them all */
        ASSAY_CHECK(!spec->frozen, ASSAY_UNSUPPORTED,
                    "%s: a frozen weight is in no checkpoint: expected weights in the model folder",
                    spec->name);
        memset(piece, 0, (size_t)assay_shard_count(&p->shard) * sizeof *piece);
        return ASSAY_OK;
    }
    if (source == ASSAY_WEIGHTS_DRAWN) {
        gpu_draw_piece(spec, &p->shard, gpu_init_std(spec, m->config), (uint64_t)m->options->draw_weights,
                       m->host_threads, piece);
        return ASSAY_OK;
    }
    assay_shard all;
    assay_shard_whole(&all, spec->shape, spec->ndim);
    float *grown = realloc(*whole, (size_t)assay_shard_count(&all) * sizeof **whole);
    ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", spec->name,
                (long long)assay_shard_count(&all));
    *whole = grown;
    ASSAY_TRY(read_whole(m, file, spec, *whole));
    (void)assay_shard_copy(piece, &p->shard, *whole, &all, (int64_t)sizeof(float), NULL, false, NULL);
    return ASSAY_OK;
}

assay_status gpu_model_weights(gpu_model *m, const char *folder, gpu_weight_sink put, void *user)
{
    assay_status st = ASSAY_OK;
    assay_tensorfile *file = NULL;
    float *whole = NULL, *piece = NULL;
    assay_weights_source source;
    ASSAY_TRY(assay_inputs_weights(folder, m->options->load, m->options->draw_weights, &source));
    if (source == ASSAY_WEIGHTS_STORED) {
        ASSAY_TRY_GOTO(assay_tensorfile_open(&file, folder), st, done);
        ASSAY_TRY_GOTO(check_no_strangers(m, file), st, done);
    }
    for (int64_t i = 0; i < m->n_params; i++) {
        gpu_param *p = &m->params[i];
        float *grown = realloc(piece, (size_t)(p->count > 0 ? p->count : 1) * sizeof *piece);
        ASSAY_CHECK_GOTO(grown, ASSAY_OUT_OF_MEMORY, st, done, "%s: %lld elements", p->spec->name,
                         (long long)p->count);
        piece = grown;
        ASSAY_TRY_GOTO(piece_of(m, source, file, p, &whole, piece), st, done);
        ASSAY_TRY_GOTO(put(user, p, piece), st, done);
    }
done:
    free(whole);
    free(piece);
    assay_tensorfile_close(file);
    return st;
}
