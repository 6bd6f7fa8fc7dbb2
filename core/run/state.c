/* state.json: what both engines write and check. */
#include "core/run/state.h"

#include "core/model/optimizer.h"
#include "core/model/recipe.h"
#include "core/run/metrics.h"
#include "core/run/training.h"

#include <stdlib.h>
#include <string.h>

assay_status assay_state_content(const assay_model_spec *spec, const assay_train_options *o,
                                 assay_checkpoint_content *out)
{
    const assay_recipe *recipe = assay_recipe_of(o->precision);
    *out = (assay_checkpoint_content){.spec = spec,
                                      .weight = recipe->op[ASSAY_OPS_LINEAR].weight,
                                      .state = recipe->op[ASSAY_OPS_OPTIMIZER].weight,
                                      .max_shard_size = o->max_shard_size,
                                      .keep_differing = o->save_differing_replicas};
    out->n_states = o->no_save_optim ? 0 : assay_optimizer_states(o->optimizer, &out->state_names);
    out->weights_only = o->no_save_optim;
    if (o->skip_save_model_weight) /* the masters in their place: no second family */
        out->weight = out->state;
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
    if (out != NULL) /* not in `training`: a run may go on with another one */
        json_object_set_new(out, "micro_batch_size", json_integer(s->batches->b));
    return out;
}

enum { MEMBER_PATH = 256 };

/* One level down: into the first member or element of *here that differs from that of *there, added to the path. */
static bool descend(const json_t **here, const json_t **there, char path[MEMBER_PATH])
{
    const size_t used = strlen(path);
    const bool objects = json_is_object(*here) && json_is_object(*there);
    for (int side = 0; side < 2 && objects; side++) { /* what is here, then what is there alone */
        const char *key;
        json_t *value, *of = (json_t *)(uintptr_t)(side == 0 ? *here : *there);
        json_object_foreach(of, key, value)
        {
            const json_t *mine = json_object_get(*here, key), *its = json_object_get(*there, key);
            if (mine != NULL && its != NULL && json_equal(mine, its))
                continue;
            snprintf(path + used, MEMBER_PATH - used, ".%s", key);
            *here = mine;
            *there = its;
            return true;
        }
    }
    const bool lists = json_is_array(*here) && json_is_array(*there);
    for (size_t i = 0; lists && i < json_array_size(*here) && i < json_array_size(*there); i++) {
        const json_t *mine = json_array_get(*here, i), *its = json_array_get(*there, i);
        if (json_equal(mine, its))
            continue;
        snprintf(path + used, MEMBER_PATH - used, "[%zu]", i);
        *here = mine;
        *there = its;
        return true;
    }
    return false;
}

static char *text_of(const json_t *value, size_t digits)
{
    return value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits)) : NULL;
}

/* Lists of keys to ignore say that the models may differ; a word of each difference goes to `say`. */
static assay_status check_model(const char *dir, const json_t *there, const assay_model_config *config,
                                const assay_train_options *o, FILE *say)
{
    json_t *here = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_config_to_json(config, &here));
    const bool may = o->ignore_missing_keys[0] != '\0' || o->ignore_unexpected_keys[0] != '\0' ||
                     o->ignore_mismatched_keys[0] != '\0';
    const char *key;
    json_t *value;
    json_object_foreach(here, key, value)
    {
        const json_t *its_value = json_object_get(there, key);
        if (st != ASSAY_OK || json_equal(value, its_value) || assay_config_is_kept(key))
            continue;
        char path[MEMBER_PATH];
        const json_t *member = value, *its_member = its_value;
        snprintf(path, sizeof path, "%s", key);
        while (descend(&member, &its_member, path))
            ;
        char *mine = text_of(member, 10), *its = text_of(its_member, 10);
        if (mine != NULL && its != NULL && strcmp(mine, its) == 0) {
            free(mine);
            free(its);
            mine = text_of(member, 17);
            its = text_of(its_member, 17);
        }
        if (!may)
            st = ASSAY_ERROR(ASSAY_MISMATCH,
                             "checkpoint %s: of another model than %s: %s is %.80s there and %.80s here", dir,
                             o->model, path, its != NULL ? its : "absent", mine != NULL ? mine : "absent");
        else if (say != NULL)
            fprintf(say, "WARNING: checkpoint %s: model: %s is %.80s there and %.80s here\n", dir, path,
                    its != NULL ? its : "absent", mine != NULL ? mine : "absent");
        free(mine);
        free(its);
    }
    json_object_foreach((json_t *)(uintptr_t)there, key, value)
    {
        const bool more = json_object_get(here, key) == NULL && !assay_config_is_kept(key);
        if (st == ASSAY_OK && !may && more)
            st = ASSAY_ERROR(ASSAY_MISMATCH,
                             "checkpoint %s: of another model than %s: %s is there and absent here", dir,
                             o->model, key);
    }
    json_decref(here);
    return st;
}

/* Streams are functions of seeds where both are Philox's; the seeds are training options. */
static assay_status check_random(const char *dir, const json_t *state, const assay_train_options *o,
                                 FILE *say)
{
    const char *generator = json_string_value(json_object_get(json_object_get(state, "random"), "generator"));
    const bool mapped = generator != NULL && strcmp(generator, "philox") == 0;
    ASSAY_CHECK(
        mapped || o->no_load_rng, ASSAY_MISMATCH,
        "checkpoint %s: its random streams are of generator %.40s, expected philox: they cannot go on "
        "here; to begin this run's own: --no-load-rng",
        dir, generator != NULL ? generator : "none");
    if (!mapped && say != NULL)
        fprintf(say, "WARNING: checkpoint %s: random streams do not go on, this run's begin\n", dir);
    return ASSAY_OK;
}

static assay_status check(const assay_train_options *o, const json_t *state, const assay_model_config *config,
                          const assay_batches *b, FILE *say, int64_t *step)
{
    ASSAY_TRY(assay_json_get_i64(state, "step", true, 0, INT64_MAX, o->load, step));
    ASSAY_TRY(check_model(o->load, json_object_get(state, "model"), config, o, say));
    if (o->finetune) { /* weights alone: the rest of the run is another one's */
        *step = 0;
        return ASSAY_OK;
    }
    ASSAY_CHECK(json_array_size(json_object_get(json_object_get(state, "content"), "states")) > 0,
                ASSAY_MISMATCH,
                "checkpoint %s: holds weights alone, no optimizer states: no run goes on from it; --finetune "
                "begins one with its weights",
                o->load);
    ASSAY_TRY(assay_training_check(o->load, state, o, say));
    assay_training_say_rows(o->load, state, o, config, b, say);
    ASSAY_TRY(check_random(o->load, state, o, say));
    if (assay_metrics_wanted(o))
        ASSAY_TRY(assay_consumed_check(o->load, state, b, o, *step, say));
    return ASSAY_OK;
}

/* A weight that was frozen has no states, and an update's step number is the run's: it cannot begin to train in the middle of one. */
static assay_status check_frozen(const assay_train_options *o, const assay_model_spec *here,
                                 const assay_model_spec *there)
{
    for (int64_t i = 0; i < here->n_params && !o->finetune; i++) {
        const assay_param_spec *p = assay_spec_find(there, here->params[i].name);
        ASSAY_CHECK(
            p == NULL || !p->frozen || !assay_param_needs_grad(&here->params[i]), ASSAY_MISMATCH,
            "checkpoint %s: %s: is frozen there and trained here: it has no optimizer states to go on "
            "from; --finetune begins with its weights",
            o->load, p->name);
    }
    return ASSAY_OK;
}

/* What is not taken from it, once. */
static assay_status say_ignored(const assay_train_options *o, const assay_checkpoint *c, FILE *say)
{
    const json_t *ignored = assay_checkpoint_ignored(c);
    for (size_t i = 0; i < json_array_size(ignored) && say != NULL; i++)
        fprintf(say, "WARNING: checkpoint %s: ignored: %s\n", o->load,
                json_string_value(json_array_get(ignored, i)));
    return ASSAY_OK;
}

assay_status assay_state_load(const assay_train_options *o, const assay_model_spec *spec,
                              const assay_batches *b, int rank, int world, assay_checkpoint **out,
                              int64_t *step)
{
    FILE *say = rank == 0 ? stderr : NULL;
    const assay_checkpoint_ignore ignore = {.missing = o->ignore_missing_keys,
                                            .unexpected = o->ignore_unexpected_keys,
                                            .mismatched = o->ignore_mismatched_keys};
    *out = NULL;
    ASSAY_TRY(assay_checkpoint_open_share(out, o->load, &ignore, rank, world));
    assay_status st = check(o, assay_checkpoint_header(*out), &spec->config, b, say, step);
    if (st == ASSAY_OK)
        st = check_frozen(o, spec, assay_checkpoint_content_of(*out)->spec);
    if (st == ASSAY_OK)
        st = assay_checkpoint_match(*out, spec);
    if (st == ASSAY_OK)
        st = say_ignored(o, *out, say);
    if (st != ASSAY_OK) {
        assay_checkpoint_close(*out);
        *out = NULL;
    }
    return st;
}

const char *assay_state_masters(const assay_checkpoint *c, const assay_param_spec *p)
{
    return assay_checkpoint_has(c, "main_param", p) ? "main_param" : "weight";
}

assay_status assay_state_dtype(const assay_train_options *o, const assay_checkpoint *c, const char *family,
                               const char *name, assay_dtype here, assay_dtype *there)
{
    *there = assay_checkpoint_stored_dtype(c, family, name);
    ASSAY_CHECK(*there != ASSAY_F64 || here == ASSAY_F64 || o->round_checkpoint, ASSAY_MISMATCH,
                "checkpoint %s: %s/%s: is F64, this run's are %s; to round to nearest even: "
                "--round-checkpoint",
                o->load, family, name, assay_dtype_name(here));
    ASSAY_CHECK(*there == ASSAY_F64 || *there == ASSAY_F32 || *there == ASSAY_BF16, ASSAY_UNSUPPORTED,
                "checkpoint %s: %s/%s: expected F64, F32 or BF16, found %s", o->load, family, name,
                assay_dtype_name(*there));
    return ASSAY_OK;
}
