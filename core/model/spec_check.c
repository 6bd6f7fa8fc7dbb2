/* Whether the weights of a folder are those of a model: names, shapes and dtypes, not a byte of data. */
#include "core/files/tensorfile.h"
#include "core/model/quantization.h"
#include "core/model/spec.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *pa, const void *pb)
{
    return strcmp(*(const char *const *)pa, *(const char *const *)pb);
}

/* Names of the model's tensors, sorted; NULL: out of memory. */
static const char **names_of(const assay_model_spec *spec, int64_t parts)
{
    const char **names = malloc(((size_t)parts + 1) * sizeof *names);
    int64_t n = 0;
    for (int64_t i = 0; names != NULL && i < spec->n_params; i++)
        for (int k = 0; k < spec->params[i].n_parts; k++)
            names[n++] = spec->params[i].parts[k].name;
    if (n > 0)
        qsort(names, (size_t)n, sizeof *names, compare);
    return names;
}

/* Old files carry rotary tables, tied models may carry the head twice: the same one (config_head.c). */
static bool may_be_ignored(const assay_model_spec *spec, const char *name)
{
    static const char table[] = "rotary_emb.inv_freq";
    const size_t n = strlen(name), t = sizeof table - 1;
    return (n >= t && strcmp(name + n - t, table) == 0) ||
           (spec->config.tie_word_embeddings && strcmp(name, "lm_head.weight") == 0);
}

static assay_status check_part(const assay_tensorfile *f, const assay_quantization *q,
                               const assay_hf_part *part, int64_t *scales)
{
    const assay_tensor_info *t;
    assay_block_scales scaled;
    ASSAY_TRY(assay_tensorfile_get(f, part->name, ASSAY_DTYPE_COUNT, part->shape, part->ndim, &t));
    ASSAY_CHECK(t->dtype == ASSAY_F64 || t->dtype == ASSAY_F32 || t->dtype == ASSAY_BF16 ||
                    t->dtype == ASSAY_F16 || t->dtype == ASSAY_F8_E4M3,
                ASSAY_UNSUPPORTED,
                "%s: tensor '%s': expected F64, F32, BF16, F16, or F8_E4M3 with scales, found %s",
                assay_tensorfile_path(f), part->name, assay_dtype_name(t->dtype));
    const assay_status st = assay_block_scales_of(f, q, t, &scaled);
    *scales += scaled.scale != NULL;
    return st == ASSAY_OK ? st : assay_context(st, "%s", assay_tensorfile_path(f));
}

/* Behind the last layer: multi-token prediction (DeepSeek-V3), which is not computed. */
static assay_status refuse_stranger(const assay_model_spec *spec, const assay_tensorfile *f, const char *name)
{
    static const char layers[] = "model.layers.";
    const size_t n = sizeof layers - 1;
    char *end = NULL;
    const long long layer = strncmp(name, layers, n) == 0 ? strtoll(name + n, &end, 10) : -1;
    ASSAY_CHECK(
        end == NULL || *end != '.' || layer < spec->config.num_layers, ASSAY_MISMATCH,
        "%s: tensor '%s' has no place in this model (%s): it has layers 0 to %lld, and those of multi-token "
        "prediction are not computed; without it: assay ckpt convert A B --exclude 'model.layers.%lld.*'",
        assay_tensorfile_path(f), name, assay_arch_name(spec->config.arch),
        (long long)spec->config.num_layers - 1, layer);
    ASSAY_FAIL(ASSAY_MISMATCH, "%s: tensor '%s' has no place in this model (%s)", assay_tensorfile_path(f),
               name, assay_arch_name(spec->config.arch));
}

static assay_status check_strangers(const assay_model_spec *spec, int64_t parts, const assay_quantization *q,
                                    const assay_tensorfile *f)
{
    assay_status st = ASSAY_OK;
    const char **names = names_of(spec, parts);
    ASSAY_CHECK(names != NULL, ASSAY_OUT_OF_MEMORY, "names of %lld tensors", (long long)parts);
    for (int64_t i = 0; i < assay_tensorfile_count(f) && st == ASSAY_OK; i++) {
        const char *name = assay_tensorfile_at(f, i)->name;
        if (bsearch(&name, names, (size_t)parts, sizeof *names, compare) == NULL &&
            !may_be_ignored(spec, name) && !assay_is_block_scale(f, q, name))
            st = refuse_stranger(spec, f, name);
    }
    free((void *)names);
    return st;
}

/* Names are looked up only when the file holds more tensors than the model and its scales need. */
assay_status assay_spec_check_file(const assay_model_spec *spec, const assay_quantization *q,
                                   const assay_tensorfile *f)
{
    int64_t parts = 0, scales = 0;
    for (int64_t i = 0; i < spec->n_params; i++) {
        for (int k = 0; k < spec->params[i].n_parts; k++)
            ASSAY_TRY(check_part(f, q, &spec->params[i].parts[k], &scales));
        parts += spec->params[i].n_parts;
    }
    return assay_tensorfile_count(f) == parts + scales ? ASSAY_OK : check_strangers(spec, parts, q, f);
}

assay_status assay_spec_check_folder(const assay_model_spec *spec, const char *folder, bool *stored)
{
    assay_tensorfile *f = NULL;
    *stored = false;
    if (folder != NULL && folder[0] != '\0')
        ASSAY_TRY(assay_tensorfile_in_folder(folder, stored));
    if (!*stored)
        return ASSAY_OK;
    assay_quantization q;
    ASSAY_TRY(assay_quantization_of_folder(folder, &q));
    ASSAY_TRY(assay_tensorfile_open(&f, folder));
    const assay_status st = assay_spec_check_file(spec, &q, f);
    assay_tensorfile_close(f);
    return st;
}
