/* state.json: what both engines write and check. */
#include "core/run/state.h"

#include "core/model/optimizer.h"
#include "core/model/recipe.h"
#include "core/run/metrics.h"
#include "core/run/training.h"

#include <stdlib.h>

assay_status assay_state_content(const assay_model_spec *spec, const assay_train_options *o,
                                 assay_checkpoint_content *out)
{
    const assay_recipe *recipe = assay_recipe_of(o->precision);
    for (int64_t i = 0; i < spec->n_params; i++)
        ASSAY_CHECK(!spec->params[i].frozen, ASSAY_UNSUPPORTED,
                    "%s: is frozen: a checkpoint holds models whose weights are all trained",
                    spec->params[i].name);
    *out = (assay_checkpoint_content){.spec = spec,
                                      .weight = recipe->op[ASSAY_OPS_LINEAR].weight,
                                      .state = recipe->op[ASSAY_OPS_OPTIMIZER].weight,
                                      .max_shard_size = o->max_shard_size,
                                      .keep_differing = o->save_differing_replicas};
    out->n_states = assay_optimizer_states(o->optimizer, &out->state_names);
    return ASSAY_OK;
}

/* No generator has a state: every draw is a function of the seeds and of global indices. */
static json_t *random_to_json(const assay_train_options *o)
{
    json_t *r = json_pack("{s:s, s:I}", "generator", "philox", "dropout_seed", (json_int_t)o->dropout_seed);
    if (r != NULL && o->draw_weights >= 0)
        json_object_set_new(r, "draw_weights", json_integer(o->draw_weights));
    return r;
}

json_t *assay_state_to_json(const assay_state *s)
{
    char layout[ASSAY_LAYOUT_TEXT];
    assay_layout_format(s->layout, layout);
    json_t *out =
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:{s:I, s:f}, s:{s:f, s:b}, s:o}", "engine", s->engine,
                  "layout", layout, "precision", assay_precision_name(s->options->precision), "options",
                  assay_train_options_to_json(s->options, ASSAY_FOR_STEP), "training",
                  assay_training_to_json(s->options), "data", assay_consumed_to_json(s->batches, s->step),
                  "scheduler", "num_steps", (json_int_t)s->step, "learning_rate", s->learning_rate,
                  "loss_scaler", "loss_scale", 1.0, "dynamic", 0, "random", random_to_json(s->options));
    if (out != NULL && s->run != NULL && s->run[0] != '\0')
        json_object_set_new(out, "run", json_string(s->run));
    return out;
}

static assay_status check_model(const char *dir, const json_t *there, const assay_model_config *config,
                                const char *model)
{
    json_t *here = NULL;
    ASSAY_TRY(assay_config_to_json(config, &here));
    const char *different = NULL;
    const char *key;
    json_t *value;
    json_object_foreach(here, key,
                        value) if (different == NULL && !json_equal(value, json_object_get(there, key)))
        different = key;
    assay_status st = ASSAY_OK;
    if (there == NULL || different != NULL || !json_equal(here, there)) {
        char *mine = different ? json_dumps(json_object_get(here, different), JSON_ENCODE_ANY) : NULL;
        char *its =
            different && there ? json_dumps(json_object_get(there, different), JSON_ENCODE_ANY) : NULL;
        st = ASSAY_ERROR(
            ASSAY_MISMATCH, "checkpoint %s: of another model than %s: %s is %.80s there and %.80s here", dir,
            model, different ? different : "model", its ? its : "absent", mine ? mine : "present");
        free(mine);
        free(its);
    }
    json_decref(here);
    return st;
}

assay_status assay_state_check(const char *dir, const json_t *state, const assay_model_config *config,
                               const assay_train_options *o, const assay_batches *b, FILE *say, int64_t *step)
{
    ASSAY_TRY(assay_json_get_i64(state, "step", true, 0, INT64_MAX, dir, step));
    ASSAY_TRY(check_model(dir, json_object_get(state, "model"), config, o->model));
    ASSAY_TRY(assay_training_check(dir, state, o, say));
    if (assay_metrics_wanted(o))
        ASSAY_TRY(assay_consumed_check(dir, state, b, o, *step, say));
    return ASSAY_OK;
}
