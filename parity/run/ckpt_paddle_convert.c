/* Folders of PaddleNLP's to checkpoints and back: the tensors bit for bit; of the rest what the other side has words for. */
#include "parity/run/ckpt_paddle.h"

#include "core/model/optimizer.h"

#include <stdlib.h>
#include <string.h>

static assay_status count_of(const assay_param_spec *p, int64_t *count)
{
    ASSAY_CHECK(assay_shape_count(p->shape, p->ndim, count), ASSAY_LIMIT, "%s: too large", p->name);
    return ASSAY_OK;
}

/* --- PaddleNLP's folder -> a checkpoint --------------------------------------------------------------------- */
/* What the folder's tensors can be. */
static assay_status content_of(const assay_paddle *p, const char *dir, const char *weights,
                               assay_checkpoint_content *out)
{
    const assay_paddle_facts *f = assay_paddle_facts_of(p);
    *out = (assay_checkpoint_content){.spec = assay_paddle_spec(p), .state = ASSAY_F32, .weight = f->weight};
    if (f->masters_as_weights)
        out->weight = ASSAY_BF16;
    if (weights != NULL) {
        out->weights_only = true;
        if (strcmp(weights, "masters") == 0) {
            ASSAY_CHECK(f->has_masters || f->weight == ASSAY_F32, ASSAY_NOT_FOUND, "%s: has no masters", dir);
            out->weight = ASSAY_F32;
        }
        return ASSAY_OK;
    }
    static const char hint[] = "; the weights alone: --weights model or masters";
    ASSAY_CHECK(f->has_optimizer, ASSAY_NOT_FOUND, "%s: has no optimizer states%s", dir, hint);
    ASSAY_CHECK(!f->quantized, ASSAY_UNSUPPORTED,
                "%s: its optimizer states are quantized (ckpt_quant_stage), lossy, and not read%s", dir,
                hint);
    ASSAY_CHECK(f->weight != ASSAY_F16, ASSAY_UNSUPPORTED, "%s: F16: no precision here trains in it%s", dir,
                hint);
    ASSAY_CHECK(
        f->has_masters || f->weight == ASSAY_F32, ASSAY_NOT_FOUND,
        "%s: weights of BF16 without their masters (remove_master_weight): the run cannot go on exactly%s",
        dir, hint);
    ASSAY_CHECK(f->without == 0, ASSAY_UNSUPPORTED,
                "%s: %lld tensors have no states, frozen ones: a checkpoint holds models whose weights are "
                "all trained%s",
                dir, (long long)f->without, hint);
    ASSAY_CHECK(f->step >= 0 && f->last_epoch >= 0, ASSAY_NOT_FOUND,
                "%s: without trainer_state.json and scheduler.pdparams nobody knows the step%s", dir, hint);
    out->n_states = assay_optimizer_states(ASSAY_OPTIMIZER_ADAM, &out->state_names);
    return ASSAY_OK;
}

/* Where the values of a role are. */
static assay_paddle_role source_of(const assay_paddle *p, assay_paddle_role role, int64_t i)
{
    const assay_paddle_facts *f = assay_paddle_facts_of(p);
    if (role == ASSAY_PADDLE_WEIGHT && f->masters_as_weights)
        return ASSAY_PADDLE_MASTER;
    if (role == ASSAY_PADDLE_MASTER && assay_paddle_has(p, role, i) == ASSAY_DTYPE_COUNT &&
        f->weight == ASSAY_F32)
        return ASSAY_PADDLE_WEIGHT;
    return role;
}

assay_dtype parity_paddle_type(const assay_paddle *p, assay_paddle_role role, int64_t i)
{
    const assay_dtype found = assay_paddle_has(p, source_of(p, role, i), i);
    if (found != ASSAY_DTYPE_COUNT && role == ASSAY_PADDLE_WEIGHT &&
        (assay_paddle_facts_of(p)->masters_as_weights || assay_paddle_facts_of(p)->weight == ASSAY_BF16))
        return ASSAY_BF16;
    return found;
}

assay_status parity_paddle_values(const assay_paddle *p, assay_paddle_role role, int64_t i, assay_dtype want,
                                  void **out)
{
    const assay_param_spec *spec = &assay_paddle_spec(p)->params[i];
    const assay_paddle_role from = source_of(p, role, i);
    const assay_dtype found = assay_paddle_has(p, from, i);
    const bool rounds = role == ASSAY_PADDLE_WEIGHT && want == ASSAY_BF16 && found == ASSAY_F32;
    int64_t count;
    *out = NULL;
    ASSAY_TRY(count_of(spec, &count));
    ASSAY_CHECK(found != ASSAY_DTYPE_COUNT, ASSAY_NOT_FOUND, "%s of %s is not there",
                assay_paddle_role_name(role), spec->name);
    ASSAY_CHECK(rounds || found == want || (found == ASSAY_U16 && want == ASSAY_BF16), ASSAY_MISMATCH,
                "%s of %s: expected %s, found %s", assay_paddle_role_name(role), spec->name,
                assay_dtype_name(want), assay_dtype_name(found));
    char *data = malloc((size_t)(count * assay_dtype_bytes(found)) + 1);
    ASSAY_CHECK(data != NULL, ASSAY_OUT_OF_MEMORY, "%s", spec->name);
    const assay_status st = assay_paddle_read(p, from, i, data);
    for (int64_t k = 0; k < count && rounds && st == ASSAY_OK;
         k++) { /* in place: two bytes never pass four */
        uint32_t bits;
        memcpy(&bits, data + 4 * k, sizeof bits);
        const uint16_t low = parity_paddle_rounded(bits);
        memcpy(data + 2 * k, &low, sizeof low);
    }
    *out = data;
    if (st != ASSAY_OK) {
        free(data);
        *out = NULL;
    }
    return st;
}

static assay_status add(const assay_paddle *p, int64_t i, const char *family, assay_dtype dtype,
                        const void *data, assay_checkpoint_writer *w)
{
    const assay_param_spec *spec = &assay_paddle_spec(p)->params[i];
    assay_shard whole;
    assay_shard_whole(&whole, spec->shape, spec->ndim);
    return assay_checkpoint_add(w, family, spec->name, dtype, &whole, data, true);
}

static assay_status add_role(const assay_paddle *p, assay_paddle_role role, int64_t i, assay_dtype dtype,
                             const char *family, assay_checkpoint_writer *w)
{
    void *data;
    ASSAY_TRY(parity_paddle_values(p, role, i, dtype, &data));
    const assay_status st = add(p, i, family, dtype, data, w);
    free(data);
    return st;
}

static assay_status add_param(const assay_paddle *p, int64_t i, const assay_checkpoint_content *c,
                              assay_checkpoint_writer *w)
{
    const bool as_masters =
        c->weight == ASSAY_F32 && assay_paddle_has(p, ASSAY_PADDLE_MASTER, i) != ASSAY_DTYPE_COUNT;
    ASSAY_TRY(add_role(p, as_masters ? ASSAY_PADDLE_MASTER : ASSAY_PADDLE_WEIGHT, i, c->weight, "weight", w));
    if (!c->weights_only || c->weight == c->state) /* one tensor then */
        ASSAY_TRY(add_role(p, ASSAY_PADDLE_MASTER, i, ASSAY_F32, "main_param", w));
    if (c->weights_only)
        return ASSAY_OK;
    ASSAY_TRY(add_role(p, ASSAY_PADDLE_MOMENT1, i, ASSAY_F32, c->state_names[0], w));
    return add_role(p, ASSAY_PADDLE_MOMENT2, i, ASSAY_F32, c->state_names[1], w);
}

/* What the folder says and no more: a run that goes on names the rest with --override-checkpoint-args. */
static json_t *state_of(const assay_paddle_facts *f, assay_dtype weight)
{
    char engine[64];
    snprintf(engine, sizeof engine, "PaddleNLP%s%s", f->version[0] != '\0' ? " " : "", f->version);
    const char *precision = weight == ASSAY_BF16 ? "bf16" : "fp32";
    return json_pack("{s:s, s:s, s:s, s:I, s:{s:s, s:s}, s:{s:I}, s:{s:I, s:f}, s:{s:f, s:b}}", "engine",
                     engine, "layout", "unknown", "precision", precision, "world_size", (json_int_t)1,
                     "training", "precision", precision, "optimizer", "adam", "data", "consumed_samples",
                     (json_int_t)(f->consumed_samples > 0 ? f->consumed_samples : 0), "scheduler",
                     "num_steps", (json_int_t)f->step, "learning_rate", f->learning_rate, "loss_scaler",
                     "loss_scale", 1.0, "dynamic", 0);
}

/* What PaddleNLP has in the place of the decay rates: beta^(step+1), the same of every parameter (parity_paddle_open_whole), kept so
 * that the way back has its bits; an engine that trains on writes rates in its stead. */
static assay_status keep_powers(const assay_paddle *p, json_t *state)
{
    float power[2];
    int64_t n;
    for (int b = 0; b < 2; b++)
        ASSAY_TRY(
            assay_paddle_powers(p, b == 0 ? ASSAY_PADDLE_POW1 : ASSAY_PADDLE_POW2, 0, &power[b], 1, &n));
    ASSAY_CHECK(json_object_set_new(state, "beta_pow_acc",
                                    json_pack("[ff]", (double)power[0], (double)power[1])) == 0,
                ASSAY_OUT_OF_MEMORY, "state.json");
    return ASSAY_OK;
}

assay_status parity_paddle_import(const char *from, const char *to, const char *weights,
                                  int64_t max_shard_size)
{
    assay_paddle *p;
    assay_status st = ASSAY_OK;
    assay_checkpoint_content content;
    assay_checkpoint_writer *w = NULL;
    json_t *state = NULL;
    ASSAY_TRY(parity_paddle_open_whole(&p, from));
    const assay_paddle_facts *f = assay_paddle_facts_of(p);
    ASSAY_TRY_GOTO(content_of(p, from, weights, &content), st, done);
    content.max_shard_size = max_shard_size;
    state = state_of(f, content.weight);
    ASSAY_CHECK_GOTO(state != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: state", to);
    if (weights == NULL)
        ASSAY_TRY_GOTO(keep_powers(p, state), st, done);
    ASSAY_TRY_GOTO(assay_checkpoint_writer_open(&w, to, assay_checkpoint_job(), f->step > 0 ? f->step : 0, 0,
                                                1, &content),
                   st, done);
    for (int64_t i = 0; i < content.spec->n_params; i++)
        ASSAY_TRY_GOTO(add_param(p, i, &content, w), st, done);
    ASSAY_TRY_GOTO(assay_checkpoint_write_alone(w, state), st, done);
    printf("wrote %s\n", to);
    if (weights == NULL)
        printf("not carried: random streams (rng_state), the options of training (training_args.bin is "
               "pickled): load it with "
               "--override-checkpoint-args\n");
done:
    assay_checkpoint_writer_destroy(w);
    json_decref(state);
    assay_paddle_close(p);
    return st;
}

/* --- a checkpoint -> PaddleNLP's folder --------------------------------------------------------------------- */
/* As its kernel has it: the rate once at the start and again every step, each product rounded to F32. */
static assay_status power_of(const json_t *training, const char *key, int64_t step, float *out)
{
    double rate;
    ASSAY_TRY(assay_json_get_double(training, key, true, 0.0, 1.0, "state.json: training", &rate));
    volatile float product = (float)rate, before = -1.0f;
    for (int64_t k = 0; k < step && product != before; k++) { /* 0, or the least number, stays as it is */
        before = product;
        product = product * (float)rate;
    }
    *out = product;
    return ASSAY_OK;
}

static assay_status target_of(const assay_checkpoint *c, assay_paddle_target *out)
{
    const assay_checkpoint_content *content = assay_checkpoint_content_of(c);
    const json_t *state = assay_checkpoint_header(c), *training = json_object_get(state, "training");
    *out = (assay_paddle_target){
        .spec = content->spec, .weight = content->weight, .states = content->n_states > 0};
    ASSAY_CHECK(content->state == ASSAY_F32 || content->n_states == 0, ASSAY_UNSUPPORTED,
                "states of %s: PaddleNLP's are F32", assay_dtype_name(content->state));
    out->masters = out->states && content->weight != content->state;
    ASSAY_TRY(assay_json_get_i64(state, "step", true, 0, INT64_MAX, "state.json", &out->step));
    if (!out->states)
        return ASSAY_OK;
    ASSAY_TRY(assay_json_get_i64(json_object_get(state, "data"), "consumed_samples", true, 0, INT64_MAX,
                                 "state.json: data", &out->consumed_samples));
    ASSAY_TRY(assay_json_get_double(json_object_get(state, "scheduler"), "learning_rate", true, 0.0, 1e9,
                                    "state.json: scheduler", &out->learning_rate));
    const json_t *kept = json_object_get(state, "beta_pow_acc");
    if (json_is_real(json_array_get(kept, 0)) && json_is_real(json_array_get(kept, 1))) {
        out->pow1 = (float)json_real_value(json_array_get(kept, 0));
        out->pow2 = (float)json_real_value(json_array_get(kept, 1));
        return ASSAY_OK;
    }
    ASSAY_TRY(power_of(training, "adam_beta1", out->step, &out->pow1));
    return power_of(training, "adam_beta2", out->step, &out->pow2);
}

static assay_status copy(const assay_checkpoint *c, int64_t i, const assay_paddle_target *t,
                         assay_paddle_writer *w)
{
    const char *family, *name;
    assay_dtype dtype;
    assay_shard whole;
    int role = 0;
    assay_checkpoint_at(c, i, &family, &name, &dtype, &whole);
    while (role <= ASSAY_PADDLE_MOMENT2 &&
           strcmp(family, assay_paddle_role_name((assay_paddle_role)role)) != 0)
        role++;
    ASSAY_CHECK(role <= ASSAY_PADDLE_MOMENT2, ASSAY_UNSUPPORTED,
                "%s/%s: PaddleNLP's folders have no such tensor", family, name);
    if (role == ASSAY_PADDLE_MASTER && !t->masters)
        return ASSAY_OK; /* of the weights' type: one tensor */
    char *data = malloc((size_t)(assay_shard_count(&whole) * assay_dtype_bytes(dtype)) + 1);
    ASSAY_CHECK(data != NULL, ASSAY_OUT_OF_MEMORY, "%s/%s", family, name);
    assay_status st = assay_checkpoint_read(c, family, name, dtype, &whole, data);
    if (st == ASSAY_OK)
        st = assay_paddle_writer_add(w, (assay_paddle_role)role,
                                     assay_spec_find(t->spec, name) - t->spec->params, data);
    free(data);
    return st;
}

assay_status parity_paddle_export(const assay_checkpoint *c, const char *to)
{
    assay_paddle_writer *w = NULL;
    assay_paddle_target target;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(target_of(c, &target));
    if (target.spec->config.pad_token_id >= 0)
        fprintf(stderr,
                "WARNING: pad_token_id %lld: PaddleNLP's embedding has no padding_idx, that row is trained "
                "there\n",
                (long long)target.spec->config.pad_token_id);
    ASSAY_TRY(assay_paddle_writer_open(&w, to, &target));
    for (int64_t i = 0; i < assay_checkpoint_count(c); i++)
        ASSAY_TRY_GOTO(copy(c, i, &target, w), st, done);
    ASSAY_TRY_GOTO(assay_paddle_writer_finish(w), st, done);
    printf("wrote %s\n", to);
    printf("not written: random streams (rng_state), training_args.bin, generation_config.json, the "
           "tokenizer\n");
done:
    assay_paddle_writer_destroy(w);
    return st;
}
