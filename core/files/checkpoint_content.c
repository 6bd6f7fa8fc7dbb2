/* What a checkpoint holds, as state.json says it. */
#include "core/files/checkpoint_internal.h"
#include <stdio.h>
#include <string.h>

json_t *assay_checkpoint_content_to_json(const assay_checkpoint_content *c)
{
    json_t *states = json_array();
    for (int k = 0; k < c->n_states; k++)
        json_array_append_new(states, json_string(c->state_names[k]));
    return json_pack("{s:s, s:s, s:o, s:I, s:b}", "weight", assay_dtype_name(c->weight), "state",
                     assay_dtype_name(c->state), "states", states, "max_shard_size",
                     (json_int_t)(c->max_shard_size > 0 ? c->max_shard_size : ASSAY_CHECKPOINT_SHARD),
                     "weights_only", c->weights_only);
}

static assay_status read_dtype(const json_t *content, const char *key, const char *path, assay_dtype *out)
{
    char word[16];
    ASSAY_TRY(assay_json_get_string(content, key, true, path, word, sizeof word));
    return assay_dtype_from_name(word, out);
}

assay_status assay_checkpoint_content_from_json(const json_t *content, const char *path,
                                                const assay_model_spec *spec, assay_state_words *words,
                                                assay_checkpoint_content *out)
{
    const json_t *states = json_object_get(content, "states");
    ASSAY_CHECK(json_is_object(content) && json_is_array(states) &&
                    json_array_size(states) <= ASSAY_MAX_OPTIMIZER_STATES,
                ASSAY_FORMAT, "%s: content: expected an object with at most %d states", path,
                ASSAY_MAX_OPTIMIZER_STATES);
    *out = (assay_checkpoint_content){
        .spec = spec, .n_states = (int)json_array_size(states), .state_names = words->list};
    ASSAY_TRY(read_dtype(content, "weight", path, &out->weight));
    ASSAY_TRY(read_dtype(content, "state", path, &out->state));
    ASSAY_TRY(assay_json_get_i64(content, "max_shard_size", true, 1, INT64_MAX, path, &out->max_shard_size));
    ASSAY_TRY(assay_json_get_bool(content, "weights_only", true, path, &out->weights_only));
    for (int k = 0; k < out->n_states; k++) {
        const char *word = json_string_value(json_array_get(states, (size_t)k));
        ASSAY_CHECK(word != NULL && strlen(word) < sizeof words->text[k], ASSAY_FORMAT,
                    "%s: content: states: expected words", path);
        snprintf(words->text[k], sizeof words->text[k], "%s", word);
        words->list[k] = words->text[k];
    }
    return ASSAY_OK;
}
