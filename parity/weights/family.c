/* Whether two configurations are of one model: what the reader understands of them, where it reads both. */
#include "core/model/config.h"
#include "parity/weights/weights.h"

#include <stdlib.h>
#include <string.h>

/* Members that say nothing of a model and differ without a word. */
static bool is_about_files(const char *key)
{
    static const char *const keys[] = {"_name_or_path",
                                       "dtype",
                                       "torch_dtype",
                                       "transformers_version",
                                       "use_cache",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "quantization_config",
                                       NULL};
    for (int i = 0; keys[i] != NULL; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/* Understood: a warning for each member of a; else it is an error.  again: those of b have been seen. */
static assay_status compare_members(const parity_model *a, const parity_model *b, bool understood, bool again)
{
    const char *key;
    json_t *x;
    json_object_foreach(a->config, key, x)
    {
        const json_t *y = json_object_get(b->config, key);
        if (is_about_files(key) || (json_is_null(x) && y == NULL) || json_equal(x, y) || (again && y != NULL))
            continue;
        ASSAY_CHECK(understood, ASSAY_MISMATCH,
                    "config.json: %.80s differs in %s and %s: they are not one architecture", key, a->dir,
                    b->dir);
        fprintf(stderr, "WARNING: config.json: %.80s differs in %s and %s, which changes no number\n", key,
                a->dir, b->dir);
    }
    return ASSAY_OK;
}

/* What weights begin from and how long a sequence may be enter no result: lengths that rope reads are members of their own. */
static assay_status compare_understood(const parity_model *a, const parity_model *b, assay_model_config *x,
                                       assay_model_config *y, bool *understood)
{
    *understood = assay_config_from_json(a->config, a->dir, x) == ASSAY_OK &&
                  assay_config_from_json(b->config, b->dir, y) == ASSAY_OK;
    if (!*understood)
        return ASSAY_OK;
    y->max_position_embeddings = x->max_position_embeddings;
    y->init_method_std = x->init_method_std;
    y->init_constant_std = x->init_constant_std;
    const char *name = assay_config_difference(x, y);
    ASSAY_CHECK(name == NULL, ASSAY_MISMATCH,
                "config.json: %s differs in %s and %s: they are not one architecture",
                assay_config_word(x, name), a->dir, b->dir);
    return ASSAY_OK;
}

assay_status parity_model_same(const parity_model *a, const parity_model *b)
{
    bool understood = false;
    assay_model_config *c = calloc(2, sizeof *c);
    ASSAY_CHECK(c != NULL, ASSAY_OUT_OF_MEMORY, "%s: configuration", a->dir);
    const assay_status st = compare_understood(a, b, &c[0], &c[1], &understood);
    free(c);
    ASSAY_TRY(st);
    ASSAY_TRY(compare_members(a, b, understood, false));
    return compare_members(b, a, understood, true);
}
