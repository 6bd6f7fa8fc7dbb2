/* `assay ckpt merge`: models of one shape into one, tensor by tensor. */
#include "parity/weights/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct merge {
    const parity_weights_options *o;
    parity_model base, models[PARITY_MERGED];
    const parity_model
        *like; /* whose keys, types and configuration the output has: the base, else the first */
    int n;
    double weight[PARITY_MERGED], density[PARITY_MERGED];
    bool normalize;
    parity_made *made;
    int64_t n_made;
} merge;

static bool needs_base(parity_merge_method m)
{
    return m >= PARITY_MERGE_TASK_ARITHMETIC;
}

static bool keeps_part(parity_merge_method m)
{
    return m >= PARITY_MERGE_TIES;
}

static bool drops(parity_merge_method m)
{
    return m == PARITY_MERGE_DARE_LINEAR || m == PARITY_MERGE_DARE_TIES;
}

static bool elects(parity_merge_method m)
{
    return m == PARITY_MERGE_TIES || m == PARITY_MERGE_DARE_TIES;
}

/* --- options against method ---------------------------------------------------------------------------------- */
static assay_status spread(const char *name, const double *given, int n_given, int models, double *out)
{
    ASSAY_CHECK(n_given <= 1 || n_given == models, ASSAY_INVALID_ARGUMENT,
                "--%s: expected one number or %d, one for each model, found %d", name, models, n_given);
    for (int i = 0; i < models; i++)
        out[i] = n_given == 0 ? 1.0 : given[n_given == 1 ? 0 : i];
    return ASSAY_OK;
}

static assay_status check_options(merge *m)
{
    const parity_weights_options *o = m->o;
    const char *method = parity_merge_word(o->method);
    double sum = 0.0;
    ASSAY_CHECK(
        needs_base(o->method) == (o->base[0] != '\0'), ASSAY_INVALID_ARGUMENT, "--base: %s %s", method,
        needs_base(o->method) ? "needs the model that the others were trained from" : "has no base model");
    ASSAY_CHECK(o->method != PARITY_MERGE_SLERP || m->n == 2, ASSAY_INVALID_ARGUMENT,
                "slerp: expected two models, found %d", m->n);
    ASSAY_CHECK(o->method != PARITY_MERGE_SLERP || (o->n_weights == 0 && o->normalize < 0),
                ASSAY_INVALID_ARGUMENT, "slerp: takes --t, and no --weight or --normalize");
    ASSAY_CHECK(keeps_part(o->method) || o->n_densities == 0, ASSAY_INVALID_ARGUMENT,
                "--density: %s keeps all", method);
    ASSAY_CHECK(o->method == PARITY_MERGE_SLERP || !o->t_given, ASSAY_INVALID_ARGUMENT,
                "--t: %s has no way between two models (--method slerp has)", method);
    ASSAY_CHECK(needs_base(o->method) || !o->lambda_given, ASSAY_INVALID_ARGUMENT,
                "--lambda: %s merges models, and no differences from a base", method);
    ASSAY_CHECK(elects(o->method) || !o->election_given, ASSAY_INVALID_ARGUMENT,
                "--majority-sign-method: %s elects no signs (ties and dare_ties do)", method);
    ASSAY_CHECK(drops(o->method) || !o->seed_given, ASSAY_INVALID_ARGUMENT,
                "--merge-seed: %s draws nothing (dare_linear and dare_ties do)", method);
    ASSAY_TRY(spread("weight", o->weight, o->n_weights, m->n, m->weight));
    ASSAY_TRY(spread("density", o->density, o->n_densities, m->n, m->density));
    for (int i = 0; i < m->n; i++) {
        sum += m->weight[i];
        ASSAY_CHECK(m->density[i] > 0.0 || o->method == PARITY_MERGE_TIES, ASSAY_INVALID_ARGUMENT,
                    "--density: %s divides by it: expected more than 0", method);
    }
    m->normalize = o->normalize >= 0 ? o->normalize == 1
                                     : o->method == PARITY_MERGE_LINEAR || o->method == PARITY_MERGE_TIES;
    ASSAY_CHECK(
        o->method != PARITY_MERGE_LINEAR || !m->normalize || fabs(sum) >= 1e-8, ASSAY_INVALID_ARGUMENT,
        "--weight: the weights add up to %g, by which they would be divided (--normalize false)", sum);
    return ASSAY_OK;
}

/* --- one family ---------------------------------------------------------------------------------------------- */
static assay_status same_tensor(const merge *m, const assay_tensor_info *t, const parity_model *other)
{
    const assay_tensor_info *u = assay_tensorfile_find(other->file, t->name);
    ASSAY_CHECK(u != NULL, ASSAY_MISMATCH, "%s: is in %s, but not in %s", t->name, m->like->dir, other->dir);
    bool same = t->ndim == u->ndim;
    for (int d = 0; d < t->ndim && same; d++)
        same = t->shape[d] == u->shape[d];
    ASSAY_CHECK(same, ASSAY_MISMATCH,
                "%s: has %lld elements in %d dimensions in %s, and %lld in %d, or of other extents, in %s",
                t->name, (long long)t->count, t->ndim, m->like->dir, (long long)u->count, u->ndim,
                other->dir);
    return ASSAY_OK;
}

static assay_status same_family(const merge *m, const parity_model *other, int64_t seen[2][PARITY_PATTERNS])
{
    ASSAY_TRY(parity_model_same(m->like, other));
    for (int64_t i = 0; i < m->n_made; i++)
        ASSAY_TRY(same_tensor(m, assay_tensorfile_find(m->like->file, m->made[i].name), other));
    for (int64_t i = 0; i < assay_tensorfile_count(other->file); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(other->file, i);
        ASSAY_CHECK(!parity_model_has(other, t) || !parity_patterns_take(m->o, t->name, seen) ||
                        assay_tensorfile_find(m->like->file, t->name) != NULL,
                    ASSAY_MISMATCH, "%s: is in %s, but not in %s", t->name, other->dir, m->like->dir);
    }
    return ASSAY_OK;
}

/* A tied head that is written is the embedding in every model, so that it is in what is made of them. */
static assay_status check_heads(const merge *m)
{
    int64_t seen[2][PARITY_PATTERNS] = {{0}};
    bool two;
    if (!parity_patterns_take(m->o, "lm_head.weight", seen))
        return ASSAY_OK;
    for (int i = 0; i < m->n; i++)
        ASSAY_TRY(parity_model_two_heads(&m->models[i], &two));
    return m->like == &m->base ? parity_model_two_heads(&m->base, &two) : ASSAY_OK;
}

static assay_status list_tensors(merge *m)
{
    int64_t seen[2][PARITY_PATTERNS] = {{0}};
    const int64_t n = assay_tensorfile_count(m->like->file);
    ASSAY_TRY(check_heads(m));
    m->made = calloc((size_t)n + 1, sizeof *m->made);
    ASSAY_CHECK(m->made != NULL, ASSAY_OUT_OF_MEMORY, "%lld tensors", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const assay_tensor_info *t = assay_tensorfile_at(m->like->file, i);
        if (!parity_model_has(m->like, t) || !parity_patterns_take(m->o, t->name, seen))
            continue;
        m->made[m->n_made++] = parity_made_of(m->o, m->like, t);
    }
    ASSAY_CHECK(m->n_made > 0, ASSAY_INVALID_ARGUMENT, "%s: no tensor is left", m->like->dir);
    for (int i = 0; i < m->n; i++)
        ASSAY_TRY(same_family(m, &m->models[i], seen));
    ASSAY_TRY(parity_model_complete(m->like, m->o)); /* the others have the same tensors */
    return parity_patterns_met(m->o, seen, m->like->dir);
}

/* --- one tensor ---------------------------------------------------------------------------------------------- */
/* What model k changed, and what of it is kept. */
static void difference(const merge *m, const parity_made *t, int k, const double *base, double *x)
{
    for (int64_t i = 0; i < t->count; i++)
        x[i] -= base[i];
    if (drops(m->o->method))
        ref_merge_drop(x, t->count, m->density[k], m->o->seed, t->name, k);
    if (m->o->method == PARITY_MERGE_TIES)
        ref_merge_trim(x, t->count, m->density[k]);
}

static void combine(const merge *m, const parity_made *t, const double *base, double *const x[], double *out)
{
    const double *in[PARITY_MERGED];
    for (int k = 0; k < m->n; k++)
        in[k] = x[k];
    switch (m->o->method) {
    case PARITY_MERGE_LINEAR:
        ref_merge_linear(out, in, m->weight, m->n, t->count, m->normalize);
        break;
    case PARITY_MERGE_SLERP:
        ref_merge_slerp(out, in[0], in[1], m->o->t, t->count);
        break;
    case PARITY_MERGE_TIES:
    case PARITY_MERGE_DARE_TIES:
        ref_merge_elect(out, base, in, m->weight, m->n, t->count, m->normalize, m->o->lambda, m->o->election);
        break;
    default:
        ref_merge_add(out, base, in, m->weight, m->n, t->count, m->normalize, m->o->lambda);
    }
}

static assay_status make(void *user, const parity_made *t, double **out)
{
    const merge *m = user;
    assay_status st = ASSAY_OK;
    double *base = NULL, *x[PARITY_MERGED] = {NULL};
    *out = malloc(((size_t)t->count + 1) * sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", t->name, (long long)t->count);
    if (needs_base(m->o->method))
        ASSAY_TRY_GOTO(parity_model_read(&m->base, assay_tensorfile_find(m->base.file, t->name), &base), st,
                       done);
    for (int k = 0; k < m->n; k++) {
        const parity_model *from = &m->models[k];
        ASSAY_TRY_GOTO(parity_model_read(from, assay_tensorfile_find(from->file, t->name), &x[k]), st, done);
        if (base != NULL)
            difference(m, t, k, base, x[k]);
    }
    combine(m, t, base, x, *out);
done:
    for (int k = 0; k < m->n; k++)
        free(x[k]);
    free(base);
    return st;
}

/* --- all of it ----------------------------------------------------------------------------------------------- */
/* How the folder was made. */
static json_t *origin_of(const merge *m)
{
    json_t *models = json_array();
    for (int i = 0; i < m->n; i++)
        json_array_append_new(models, json_pack("{s:s,s:f,s:f}", "model", m->models[i].dir, "weight",
                                                m->weight[i], "density", m->density[i]));
    return json_pack("{s:s,s:s,s:s*,s:o,s:b,s:f,s:f,s:I,s:s}", "made_by", "assay ckpt merge", "method",
                     parity_merge_word(m->o->method), "base", m->o->base[0] != '\0' ? m->o->base : NULL,
                     "models", models, "normalize", m->normalize, "t", m->o->t, "lambda", m->o->lambda,
                     "merge_seed", (json_int_t)m->o->seed, "majority_sign_method",
                     m->o->election == REF_MERGE_TOTAL ? "total" : "frequency");
}

static assay_status write_out(merge *m, const char *to)
{
    json_t *config = NULL, *origin = origin_of(m);
    assay_status st = parity_weights_config(m->o, m->like, m->made, m->n_made, &config);
    const parity_folder f = {.dir = to,
                             .like = m->like->dir,
                             .word = "model",
                             .config = config,
                             .config_name = "config.json",
                             .origin = origin,
                             .tensors = m->made,
                             .n = m->n_made,
                             .max_shard_size = m->o->max_shard_size,
                             .make = make,
                             .user = m};
    if (st == ASSAY_OK)
        st = parity_folder_write(&f);
    json_decref(config);
    json_decref(origin);
    return st;
}

assay_status parity_merge(const parity_weights_options *o, const char *const *paths, int n)
{
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(n >= 2 && n - 1 <= PARITY_MERGED, ASSAY_INVALID_ARGUMENT,
                "merge: expected 1 to %d models and the folder to be made, found %d paths",
                (int)PARITY_MERGED, n);
    merge *m = calloc(1, sizeof *m);
    ASSAY_CHECK(m != NULL, ASSAY_OUT_OF_MEMORY, "merge");
    m->o = o;
    m->n = n - 1;
    ASSAY_TRY_GOTO(check_options(m), st, done);
    if (needs_base(o->method))
        ASSAY_TRY_GOTO(parity_model_open(&m->base, o->base), st, done);
    for (int i = 0; i < m->n; i++)
        ASSAY_TRY_GOTO(parity_model_open(&m->models[i], paths[i]), st, done);
    m->like = needs_base(o->method) ? &m->base : &m->models[0];
    if (o->dtype == ASSAY_F8_E4M3)
        ASSAY_TRY_GOTO(parity_model_linear(needs_base(o->method) ? &m->base : &m->models[0]), st, done);
    ASSAY_TRY_GOTO(list_tensors(m), st, done);
    st = write_out(m, paths[n - 1]);
done:
    for (int i = 0; i < m->n; i++)
        parity_model_close(&m->models[i]);
    parity_model_close(&m->base);
    free(m->made);
    free(m);
    return st;
}

/* A model folder in another type or without keys is a merge of one. */
assay_status parity_weights_convert(const parity_weights_options *o, const char *from, const char *to)
{
    parity_weights_options one = *o;
    one.method = PARITY_MERGE_LINEAR;
    one.base[0] = '\0';
    one.n_weights = one.n_densities = 0;
    one.normalize = 0;
    return parity_merge(&one, (const char *const[]){from, to}, 2);
}
