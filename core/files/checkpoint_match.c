/* The keys of a checkpoint and those of the model that loads it: missing, unexpected and mismatched ones are errors unless an ignore
 * list names them. */
#include "core/files/checkpoint_internal.h"
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- lists -------------------------------------------------------------------------------------------------- */
/* "a,b": a pattern of the key, or of the tensor whose optimizer state it is. */
static bool is_listed(const char *patterns, const char *key)
{
    char pattern[ASSAY_NAME], base[ASSAY_NAME + 32];
    snprintf(base, sizeof base, "%s", key);
    char *slash = strrchr(base, '/');
    if (slash != NULL)
        *slash = '\0';
    for (const char *at = patterns; at != NULL && *at != '\0';) {
        const size_t n = strcspn(at, ",");
        if (n > 0 && n < sizeof pattern) {
            memcpy(pattern, at, n);
            pattern[n] = '\0';
            if (fnmatch(pattern, key, 0) == 0 || fnmatch(pattern, base, 0) == 0)
                return true;
        }
        at += n + (at[n] == ',');
    }
    return false;
}

bool assay_checkpoint_ignores(assay_checkpoint *c, assay_key_fault fault, const char *key)
{
    static const char *const words[] = {"missing", "unexpected", "mismatched"};
    const char *const lists[] = {c->ignore.missing, c->ignore.unexpected, c->ignore.mismatched};
    char text[ASSAY_NAME + 64];
    if (!is_listed(lists[fault], key))
        return false;
    snprintf(text, sizeof text, "%s %s", words[fault], key);
    json_array_append_new(c->ignored, json_string(text));
    return true;
}

const json_t *assay_checkpoint_ignored(const assay_checkpoint *c)
{
    return c->ignored;
}

/* --- two models --------------------------------------------------------------------------------------------- */
static bool same_shape(const assay_param_spec *a, const assay_param_spec *b)
{
    bool same = a->ndim == b->ndim && a->trained == b->trained;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d];
    return same;
}

/* Every part of the parameter is ignored, or an error. */
static assay_status ignore_all(assay_checkpoint *c, const assay_param_spec *p, assay_key_fault fault,
                               const char *text)
{
    static const char *const options[] = {"missing", "unexpected", "mismatched"};
    for (int k = 0; k < p->n_parts; k++)
        ASSAY_CHECK(assay_checkpoint_ignores(c, fault, p->parts[k].name), ASSAY_MISMATCH,
                    "checkpoint %s: %s: %s; to load the rest: --ignore-%s-keys '%s'", c->dir,
                    p->parts[k].name, text, options[fault], p->parts[k].name);
    return ASSAY_OK;
}

assay_status assay_checkpoint_match(assay_checkpoint *c, const assay_model_spec *here)
{
    for (int64_t i = 0; i < here->n_params; i++) {
        const assay_param_spec *p = &here->params[i], *there = assay_spec_find(c->spec, p->name);
        if (there == NULL)
            ASSAY_TRY(ignore_all(c, p, ASSAY_KEY_MISSING, "the model has it, the checkpoint has not"));
        else if (!same_shape(p, there))
            ASSAY_TRY(ignore_all(c, p, ASSAY_KEY_MISMATCHED,
                                 "the model and the checkpoint have it in different shapes"));
    }
    for (int64_t i = 0; i < c->spec->n_params; i++)
        if (assay_spec_find(here, c->spec->params[i].name) == NULL)
            ASSAY_TRY(ignore_all(c, &c->spec->params[i], ASSAY_KEY_UNEXPECTED,
                                 "the checkpoint has it, the model has not"));
    return ASSAY_OK;
}

bool assay_checkpoint_has(const assay_checkpoint *c, const char *family, const assay_param_spec *here)
{
    const int f = assay_checkpoint_family_of(&c->plan.content, family);
    const int64_t param = f >= 0 ? assay_checkpoint_find_param(&c->plan.content, here->name) : -1;
    const int64_t first = param >= 0 ? assay_checkpoint_plan_find(&c->plan, f, param) : -1;
    if (first < 0 || !same_shape(here, &c->spec->params[param]))
        return false;
    for (int k = 0; k < c->spec->params[param].n_parts; k++)
        if (c->infos[first + k] == NULL)
            return false;
    return true;
}

assay_dtype assay_checkpoint_stored_dtype(const assay_checkpoint *c, const char *family, const char *name)
{
    const int f = assay_checkpoint_family_of(&c->plan.content, family);
    const int64_t param = f >= 0 ? assay_checkpoint_find_param(&c->plan.content, name) : -1;
    return param < 0 ? ASSAY_DTYPE_COUNT
                     : assay_checkpoint_dtype_of(&c->plan.content, f, &c->spec->params[param]);
}
