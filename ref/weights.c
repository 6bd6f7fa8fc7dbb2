/* Initial weights: from a Hugging Face folder, or drawn; and the way between canonical and Hugging Face
 * tensors. */
#include "ref/ref.h"

#include "core/base/hash.h"
#include "core/base/philox.h"
#include "core/run/inputs.h"
#include "ref/replay.h"
#include "ref/weights_read.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- parts -------------------------------------------------------------------------------------------------- */

void ref_hf_extract(const assay_param_spec *p, int part_index, const double *canonical, double *part)
{
    const assay_hf_part *h = &p->parts[part_index];
    const int64_t n = assay_hf_part_row_length(h);
    for (int i = 0; i < h->n_pieces; i++)
        memcpy(part + h->pieces[i].src * n, canonical + h->pieces[i].dst * n,
               (size_t)(h->pieces[i].rows * n) * sizeof *part);
}

void ref_hf_insert(const assay_param_spec *p, int part_index, const double *part, double *canonical)
{
    const assay_hf_part *h = &p->parts[part_index];
    const int64_t n = assay_hf_part_row_length(h);
    for (int i = 0; i < h->n_pieces; i++)
        memcpy(canonical + h->pieces[i].dst * n, part + h->pieces[i].src * n,
               (size_t)(h->pieces[i].rows * n) * sizeof *part);
}

/* --- reading ------------------------------------------------------------------------------------------------ */

static assay_status read_part(const assay_param_spec *p, int index, const assay_tensorfile *f,
                              const assay_quantization *q, double *canonical)
{
    const assay_hf_part *h = &p->parts[index];
    const assay_tensor_info *info;
    ASSAY_TRY(assay_tensorfile_get(f, h->name, ASSAY_DTYPE_COUNT, h->shape, h->ndim, &info));
    double *part = malloc(((size_t)info->count + 1) * sizeof *part);
    ASSAY_CHECK(part, ASSAY_OUT_OF_MEMORY, "%s: out of memory", h->name);
    const assay_status st = ref_stored_read(f, q, info, part);
    if (st == ASSAY_OK)
        ref_hf_insert(p, index, part, canonical);
    free(part);
    return st;
}

/* --- drawing ------------------------------------------------------------------------------------------------ */

double ref_init_std(const assay_param_spec *p, const assay_model_config *c)
{
    if (p->init == ASSAY_INIT_ONE || p->init == ASSAY_INIT_ZERO)
        return c->init_constant_std;
    return p->init == ASSAY_INIT_OUTPUT_NORMAL ? c->init_method_std / sqrt(2.0 * (double)c->num_layers)
                                               : c->init_method_std;
}

enum { SMALL = 1 << 15 }; /* elements that are not worth a second thread */

/* Rounded to F32, the dtype of masters, in every precision: all recipes start from the same numbers. */
static void draw(const assay_param_spec *p, double std, uint64_t seed, double *x, int64_t n)
{
    const uint64_t stream = assay_name_hash(p->name);
    const double scale = std * ASSAY_PHILOX_UNIT, middle = p->init == ASSAY_INIT_ONE ? 1.0 : 0.0;
#pragma omp parallel for schedule(static) if (n > SMALL)
    for (int64_t i = 0; i < n; i++)
        x[i] = ref_round(middle + (double)assay_philox_normal4(seed, stream, (uint64_t)i) * scale, ASSAY_F32);
}

/* --- all ---------------------------------------------------------------------------------------------------- */

/* f NULL: drawn, unless they are to be replaced. */
static assay_status fill_weights(const assay_model_spec *spec, const assay_tensorfile *f,
                                 const assay_quantization *q, bool drawn, uint64_t seed, double **weights)
{
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *p = &spec->params[i];
        int64_t n;
        ASSAY_CHECK(assay_shape_count(p->shape, p->ndim, &n) && n < INT64_MAX / 16, ASSAY_LIMIT,
                    "%s: too many elements", p->name);
        weights[i] = calloc((size_t)n + 1, sizeof(double));
        ASSAY_CHECK(weights[i], ASSAY_OUT_OF_MEMORY, "%s: out of memory: %lld elements", p->name,
                    (long long)n);
        if (drawn)
            draw(p, ref_init_std(p, &spec->config), seed, weights[i], n);
        for (int part = 0; f && part < p->n_parts; part++)
            ASSAY_TRY(read_part(p, part, f, q, weights[i]));
    }
    return ASSAY_OK;
}

assay_status ref_weights_load(const assay_model_spec *spec, const char *model_dir, const char *load,
                              int64_t draw_weights, double ***weights)
{
    assay_status st = ASSAY_OK;
    assay_tensorfile *f = NULL;
    assay_weights_source source;
    assay_quantization q = {0};
    bool stored;
    *weights = NULL;
    ASSAY_TRY(assay_inputs_weights(model_dir, load, draw_weights, &source));
    ASSAY_TRY(assay_spec_check_folder(spec, model_dir, &stored));
    if (stored) {
        ASSAY_TRY(assay_quantization_of_folder(model_dir, &q));
        ASSAY_TRY(assay_tensorfile_open(&f, model_dir));
    }
    double **w = calloc((size_t)spec->n_params + 1, sizeof *w);
    ASSAY_CHECK_GOTO(w, ASSAY_OUT_OF_MEMORY, st, done, "out of memory: %lld parameters",
                     (long long)spec->n_params);
    st = fill_weights(spec, f, &q, source == ASSAY_WEIGHTS_DRAWN, (uint64_t)draw_weights, w);
    if (st != ASSAY_OK) {
        ref_weights_free(spec, w);
        goto done;
    }
    *weights = w;
done:
    if (f)
        assay_tensorfile_close(f);
    return st;
}

static assay_not_finite count_not_finite(const double *x, int64_t n)
{
    assay_not_finite f = {.first = -1};
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i]))
            continue;
        f.first = f.first < 0 ? i : f.first;
        f.nan += isnan(x[i]) != 0;
        f.infinite += isnan(x[i]) == 0;
    }
    return f;
}

static assay_status say_part(const assay_param_spec *p, int index, const double *canonical,
                             ref_not_finite_sink sink, void *user)
{
    const assay_hf_part *h = &p->parts[index];
    int64_t n;
    char text[256];
    ASSAY_CHECK(assay_shape_count(h->shape, h->ndim, &n), ASSAY_LIMIT, "%s: too many elements", h->name);
    double *part = calloc((size_t)n + 1, sizeof *part);
    ASSAY_CHECK(part, ASSAY_OUT_OF_MEMORY, "%s: out of memory", h->name);
    ref_hf_extract(p, index, canonical, part);
    const assay_not_finite f = count_not_finite(part, n);
    free(part);
    if (f.first < 0)
        return ASSAY_OK;
    assay_not_finite_text(&f, h->shape, h->ndim, text, sizeof text);
    return sink(user, h->name, text);
}

assay_status ref_weights_not_finite(const assay_model_spec *spec, double *const *weights,
                                    ref_not_finite_sink sink, void *user)
{
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *p = &spec->params[i];
        int64_t n;
        if (!assay_shape_count(p->shape, p->ndim, &n) || count_not_finite(weights[i], n).first < 0)
            continue;
        for (int part = 0; part < p->n_parts; part++)
            ASSAY_TRY(say_part(p, part, weights[i], sink, user));
    }
    return ASSAY_OK;
}

void ref_weights_free(const assay_model_spec *spec, double **weights)
{
    for (int64_t i = 0; weights && i < spec->n_params; i++)
        free(weights[i]);
    free(weights);
}
