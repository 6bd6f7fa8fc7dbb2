/* Where two folders differ, one of them or both PaddleNLP's: as canonical parameters, whatever their files, names and orientation. */
#include "parity/run/ckpt_paddle.h"

#include <stdlib.h>
#include <string.h>

typedef struct side {
    const char *dir;
    assay_paddle *paddle;
    assay_checkpoint *checkpoint;
    const assay_model_spec *spec;
    int64_t step;
} side;

static assay_status open_side(side *s, const char *dir)
{
    *s = (side){.dir = dir};
    if (assay_paddle_is(dir)) {
        ASSAY_TRY(parity_paddle_open_whole(&s->paddle, dir));
        s->spec = assay_paddle_spec(s->paddle);
        s->step = assay_paddle_facts_of(s->paddle)->step;
        return ASSAY_OK;
    }
    ASSAY_TRY(assay_checkpoint_open(&s->checkpoint, dir));
    s->spec = assay_checkpoint_content_of(s->checkpoint)->spec;
    s->step = json_integer_value(json_object_get(assay_checkpoint_header(s->checkpoint), "step"));
    return ASSAY_OK;
}

static void close_side(side *s)
{
    assay_paddle_close(s->paddle);
    assay_checkpoint_close(s->checkpoint);
}

/* The type of a role; ASSAY_DTYPE_COUNT: not there. */
static assay_dtype type_of(const side *s, assay_paddle_role role, int64_t i)
{
    if (s->paddle != NULL)
        return role == ASSAY_PADDLE_MASTER && !assay_paddle_facts_of(s->paddle)->has_optimizer
                   ? ASSAY_DTYPE_COUNT
                   : parity_paddle_type(s->paddle, role, i);
    for (int64_t k = 0; k < assay_checkpoint_count(s->checkpoint); k++) {
        const char *family, *name;
        assay_dtype dtype;
        assay_shard whole;
        assay_checkpoint_at(s->checkpoint, k, &family, &name, &dtype, &whole);
        if (strcmp(family, assay_paddle_role_name(role)) == 0 && strcmp(name, s->spec->params[i].name) == 0)
            return dtype;
    }
    return ASSAY_DTYPE_COUNT;
}

static assay_status values_of(const side *s, assay_paddle_role role, int64_t i, assay_dtype dtype, void **out)
{
    const assay_param_spec *p = &s->spec->params[i];
    assay_shard whole;
    if (s->paddle != NULL)
        return parity_paddle_values(s->paddle, role, i, dtype == ASSAY_U16 ? ASSAY_BF16 : dtype, out);
    assay_shard_whole(&whole, p->shape, p->ndim);
    *out = malloc((size_t)(assay_shard_count(&whole) * assay_dtype_bytes(dtype)) + 1);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "%s", p->name);
    return assay_checkpoint_read(s->checkpoint, assay_paddle_role_name(role), p->name, dtype, &whole, *out);
}

static assay_status compare(const side *a, const side *b, assay_paddle_role role, int64_t i, int64_t *differ)
{
    void *x = NULL, *y = NULL;
    assay_status st = ASSAY_OK;
    assay_shard whole;
    const assay_param_spec *p = &a->spec->params[i];
    const assay_dtype ta = type_of(a, role, i), tb = type_of(b, role, i);
    if (ta != tb || ta == ASSAY_DTYPE_COUNT) {
        *differ += ta != tb;
        if (ta == ASSAY_DTYPE_COUNT || tb == ASSAY_DTYPE_COUNT) {
            if (ta != tb)
                printf("%s %s: not in %s\n", assay_paddle_role_name(role), p->name,
                       ta == ASSAY_DTYPE_COUNT ? a->dir : b->dir);
        } else
            printf("%s %s: %s and %s\n", assay_paddle_role_name(role), p->name, assay_dtype_name(ta),
                   assay_dtype_name(tb));
        return ASSAY_OK;
    }
    ASSAY_TRY_GOTO(values_of(a, role, i, ta, &x), st, done);
    ASSAY_TRY_GOTO(values_of(b, role, i, tb, &y), st, done);
    assay_shard_whole(&whole, p->shape, p->ndim);
    const int64_t n = assay_shard_count(&whole), width = assay_dtype_bytes(ta);
    int64_t found = 0, first = 0;
    for (int64_t k = 0; k < n; k++)
        if (memcmp((char *)x + k * width, (char *)y + k * width, (size_t)width) != 0 && found++ == 0)
            first = k;
    if (found > 0)
        printf("%s %s: %lld of %lld elements differ, the first at %lld\n", assay_paddle_role_name(role),
               p->name, (long long)found, (long long)n, (long long)first);
    *differ += found > 0;
done:
    free(x);
    free(y);
    return st;
}

static bool same_model(const side *a, const side *b)
{
    bool same = a->spec->n_params == b->spec->n_params;
    for (int64_t i = 0; same && i < a->spec->n_params; i++) {
        const assay_param_spec *x = &a->spec->params[i], *y = &b->spec->params[i];
        same = strcmp(x->name, y->name) == 0 && x->ndim == y->ndim &&
               memcmp(x->shape, y->shape, (size_t)x->ndim * sizeof x->shape[0]) == 0;
    }
    return same;
}

assay_status parity_paddle_diff(const char *dir_a, const char *dir_b, int *code)
{
    side a = {.dir = NULL}, b = {.dir = NULL};
    assay_status st = ASSAY_OK;
    int64_t differ = 0;
    ASSAY_TRY_GOTO(open_side(&a, dir_a), st, done);
    ASSAY_TRY_GOTO(open_side(&b, dir_b), st, done);
    ASSAY_CHECK_GOTO(same_model(&a, &b), ASSAY_MISMATCH, st, done,
                     "%s and %s: parameters of different models", dir_a, dir_b);
    for (int64_t i = 0; i < a.spec->n_params; i++)
        for (int r = 0; r <= ASSAY_PADDLE_MOMENT2; r++)
            ASSAY_TRY_GOTO(compare(&a, &b, (assay_paddle_role)r, i, &differ), st, done);
    if (a.step != b.step)
        printf("step: %lld and %lld\n", (long long)a.step, (long long)b.step);
    printf("%lld tensors differ of %lld parameters, their masters and states\n", (long long)differ,
           (long long)a.spec->n_params);
    *code = differ > 0 || a.step != b.step ? 1 : 0;
done:
    close_side(&a);
    close_side(&b);
    return st;
}
