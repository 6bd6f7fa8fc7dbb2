/* A model folder as tensors of numbers. */
#include "core/files/checkpoint.h"
#include "core/model/config.h"
#include "parity/weights/weights.h"
#include "ref/weights_read.h"

#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A checkpoint says by its manifest what is in it: nothing damaged is merged. */
static assay_status verify(const char *dir)
{
    char path[PATH_MAX];
    assay_checkpoint *c;
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    if (access(path, F_OK) != 0)
        return ASSAY_OK;
    ASSAY_TRY(assay_checkpoint_open(&c, dir));
    assay_checkpoint_close(c);
    return ASSAY_OK;
}

/* The parameter table of a configuration that is understood. */
static assay_status build_spec(parity_model *m)
{
    assay_status st = ASSAY_OK;
    assay_model_config *c = calloc(1, sizeof *c);
    ASSAY_CHECK(c != NULL, ASSAY_OUT_OF_MEMORY, "%s: configuration", m->dir);
    if (assay_config_from_json(m->config, m->dir, c) != ASSAY_OK) {
        assay_error_clear();
        goto done;
    }
    if (c->arch == ASSAY_ARCH_MEGATRON) /* several ways to name its tensors */
        ASSAY_TRY_GOTO(assay_config_find_files(m->dir, c), st, done);
    st = assay_spec_build(c, &m->spec);
done:
    free(c);
    return st;
}

static assay_status open_all(parity_model *m)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/config.json", m->dir);
    ASSAY_TRY(verify(m->dir));
    ASSAY_TRY(assay_json_load(&m->config, path));
    ASSAY_CHECK(json_is_object(m->config), ASSAY_FORMAT, "%s: expected an object", path);
    ASSAY_TRY(assay_quantization_read(m->config, path, &m->quantization));
    ASSAY_TRY(build_spec(m));
    return assay_tensorfile_open(&m->file, m->dir);
}

assay_status parity_model_open(parity_model *m, const char *dir)
{
    *m = (parity_model){0};
    ASSAY_TRY(assay_option_text("model", dir, m->dir, sizeof m->dir));
    const assay_status st = open_all(m);
    if (st != ASSAY_OK)
        parity_model_close(m);
    return st;
}

void parity_model_close(parity_model *m)
{
    if (m->file != NULL)
        assay_tensorfile_close(m->file);
    json_decref(m->config);
    assay_spec_destroy(m->spec);
    free(m->linear);
    *m = (parity_model){0};
}

bool parity_model_has(const parity_model *m, const assay_tensor_info *t)
{
    return !assay_is_block_scale(m->file, &m->quantization, t->name);
}

assay_status parity_model_two_heads(const parity_model *m, bool *out)
{
    *out = json_is_true(json_object_get(m->config, "tie_word_embeddings")) &&
           assay_tensorfile_find(m->file, "lm_head.weight") != NULL;
    return *out ? assay_tied_head_check(m->file) : ASSAY_OK;
}

assay_status parity_model_read(const parity_model *m, const assay_tensor_info *t, double **out)
{
    *out = malloc(((size_t)t->count + 1) * sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", t->name, (long long)t->count);
    const assay_status st = ref_stored_read(m->file, &m->quantization, t, *out);
    if (st == ASSAY_OK)
        return ASSAY_OK;
    free(*out);
    *out = NULL;
    return assay_context(st, "%s", m->dir);
}

/* --- all of it ----------------------------------------------------------------------------------------------- */
/* Experts of transformers 5 in one tensor (save_original_format=False), which it reads as well. */
static bool is_fused(const parity_model *m, const char *name)
{
    static const char layers[] = "model.layers.";
    char both[2][128];
    const char *dot =
        strncmp(name, layers, sizeof layers - 1) == 0 ? strchr(name + sizeof layers - 1, '.') : NULL;
    if (dot == NULL || dot - name > 64 ||
        (strstr(dot, ".experts.") == NULL && strncmp(dot, ".block_sparse_moe.", 18) != 0))
        return false;
    for (int i = 0; i < 2; i++)
        snprintf(both[i], sizeof both[i], "%.*s.mlp.experts.%s", (int)(dot - name), name,
                 i == 0 ? "gate_up_proj" : "down_proj");
    return assay_tensorfile_find(m->file, both[0]) != NULL && assay_tensorfile_find(m->file, both[1]) != NULL;
}

assay_status parity_model_complete(const parity_model *m, const parity_weights_options *o)
{
    int64_t seen[2][PARITY_PATTERNS] = {{0}}, missing = 0, all = 0;
    char names[512] = "";
    size_t used = 0;
    for (int64_t i = 0; m->spec != NULL && i < m->spec->n_params; i++)
        for (int k = 0; k < m->spec->params[i].n_parts; k++) {
            const assay_hf_part *part = &m->spec->params[i].parts[k];
            const assay_tensor_info *t = assay_tensorfile_find(m->file, part->name);
            all++;
            if (!parity_patterns_take(o, part->name, seen) || (t == NULL && is_fused(m, part->name)))
                continue;
            if (t != NULL) {
                ASSAY_TRY(assay_tensorfile_get(m->file, part->name, ASSAY_DTYPE_COUNT, part->shape,
                                               part->ndim, &t));
                continue;
            }
            if (missing++ < 3)
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%.128s", used > 0 ? ", " : "",
                                         part->name);
        }
    ASSAY_CHECK(missing == 0, ASSAY_NOT_FOUND,
                "%s: there is no tensor '%s'%s: %lld of the %lld tensors of the model (%s) are missing, and "
                "transformers "
                "would draw them",
                m->dir, names, missing > 3 ? "..." : "", (long long)missing, (long long)all,
                assay_arch_name(m->spec->config.arch));
    return ASSAY_OK;
}

/* --- patterns ------------------------------------------------------------------------------------------------ */
static bool any(const parity_patterns *p, const char *name, int64_t *seen)
{
    bool found = false;
    for (int i = 0; i < p->n; i++)
        if (fnmatch(p->text[i], name, 0) == 0) {
            seen[i]++;
            found = true;
        }
    return found;
}

bool parity_patterns_take(const parity_weights_options *o, const char *name, int64_t seen[2][PARITY_PATTERNS])
{
    const bool included = any(&o->include, name, seen[0]), excluded = any(&o->exclude, name, seen[1]);
    return (o->include.n == 0 || included) && !excluded;
}

assay_status parity_patterns_met(const parity_weights_options *o, int64_t seen[2][PARITY_PATTERNS],
                                 const char *dir)
{
    const parity_patterns *both[2] = {&o->include, &o->exclude};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < both[k]->n; i++)
            ASSAY_CHECK(seen[k][i] > 0, ASSAY_NOT_FOUND, "--%s %s: no tensor of %s has such a name",
                        k == 0 ? "include" : "exclude", both[k]->text[i], dir);
    return ASSAY_OK;
}
