/* `assay ckpt reshard` and `convert` of a checkpoint: the same state in other files, or its weights alone. */
#include "core/base/file.h"
#include "core/files/checkpoint.h"
#include "parity/run/ckpt_options.h"
#include "parity/run/ckpt_paddle.h"
#include "ref/weights_read.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A frozen weight has no master: where masters take the place of weights it is widened, as --skip-save-model-weight does. */
static bool is_widened(const assay_checkpoint_content *to, const char *family, const char *name,
                       assay_dtype dtype)
{
    const assay_param_spec *p = assay_spec_find(to->spec, name);
    return strcmp(family, "weight") == 0 && to->weight == ASSAY_F32 && dtype != ASSAY_F32 && p != NULL &&
           !assay_param_needs_grad(p);
}

static assay_status widen(int64_t count, assay_dtype from, char **data)
{
    float *wide = malloc(((size_t)count + 1) * sizeof *wide);
    ASSAY_CHECK(wide != NULL, ASSAY_OUT_OF_MEMORY, "%lld elements", (long long)count);
    for (int64_t i = 0; i < count; i++)
        wide[i] = (float)ref_stored_element(*data, from, i);
    free(*data);
    *data = (char *)wide;
    return ASSAY_OK;
}

static assay_status copy_item(const assay_checkpoint *c, int64_t i, const assay_checkpoint_content *to,
                              assay_checkpoint_writer *w)
{
    const char *family, *name;
    assay_dtype dtype;
    assay_shard whole;
    assay_checkpoint_at(c, i, &family, &name, &dtype, &whole);
    const bool master = strcmp(family, "main_param") == 0, weight = strcmp(family, "weight") == 0;
    const bool state = strncmp(family, "exp_avg", 7) == 0; /* the one optimizer's */
    const bool wider = is_widened(to, family, name, dtype);
    if ((state && to->n_states == 0) || (master && to->weights_only && to->weight != to->state) ||
        (weight && to->weight != dtype && !wider))
        return ASSAY_OK; /* the copy has none, or has masters in its place */
    const int64_t count = assay_shard_count(&whole);
    char *data = malloc((size_t)(count * assay_dtype_bytes(dtype)) + 1);
    ASSAY_CHECK(data != NULL, ASSAY_OUT_OF_MEMORY, "%s/%s", family, name);
    assay_status st = assay_checkpoint_read(c, family, name, dtype, &whole, data);
    if (st == ASSAY_OK && wider)
        st = widen(count, dtype, &data);
    if (st == ASSAY_OK)
        st = assay_checkpoint_add(w, family, name, wider ? ASSAY_F32 : dtype, &whole, data, true);
    free(data);
    return st;
}

/* Nobody else has begun it: what is left of it is of no use.  The first failure's message stays. */
static assay_status remove_staged(const char *dir, uint64_t job, assay_status st)
{
    char staged[PATH_MAX], parent[PATH_MAX], message[1200];
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    snprintf(message, sizeof message, "%s", assay_error_message());
    snprintf(staged, sizeof staged, "%.*s.tmp-%014llx", (int)n, dir, (unsigned long long)job);
    snprintf(parent, sizeof parent, "%s", staged);
    char *slash = strrchr(parent, '/');
    if (slash == NULL)
        snprintf(parent, sizeof parent, ".");
    else
        *(slash == parent ? slash + 1 : slash) = '\0';
    (void)assay_remove_tree(staged, parent);
    return ASSAY_ERROR(st, "%s", message);
}

static assay_status fill(const assay_checkpoint *c, const assay_checkpoint_content *to,
                         assay_checkpoint_writer *w)
{
    for (int64_t i = 0; i < assay_checkpoint_count(c); i++)
        ASSAY_TRY(copy_item(c, i, to, w));
    ASSAY_TRY(assay_checkpoint_writer_finish(w));
    return assay_checkpoint_seal(w);
}

static assay_status copy(const assay_checkpoint *c, const assay_checkpoint_content *to, const char *dir)
{
    assay_status st = ASSAY_OK;
    assay_checkpoint_writer *w = NULL;
    const uint64_t job = assay_checkpoint_job();
    json_t *state = json_deep_copy(assay_checkpoint_header(c));
    ASSAY_CHECK(state != NULL, ASSAY_OUT_OF_MEMORY, "%s: state", dir);
    ASSAY_TRY_GOTO(assay_checkpoint_writer_open(&w, dir, job,
                                                json_integer_value(json_object_get(state, "step")), 0, 1, to),
                   st, done);
    st = fill(c, to, w);
    st = st == ASSAY_OK ? assay_checkpoint_publish(w, state) : remove_staged(dir, job, st);
done:
    assay_checkpoint_writer_destroy(w);
    json_decref(state);
    return st;
}

/* Of a checkpoint with weights in another type alone nobody knows the masters. */
static assay_status weights_alone(const ckpt_options *o, assay_checkpoint_content *to)
{
    const bool masters = strcmp(o->weights, "masters") == 0; /* default: model */
    ASSAY_CHECK(
        !masters || !to->weights_only || to->weight == to->state, ASSAY_NOT_FOUND,
        "convert: --weights masters: %s has no masters: it holds weights alone, in %s (--no-save-optim, or "
        "converted)",
        o->paths[1], assay_dtype_name(to->weight));
    to->weight = masters ? to->state : to->weight;
    to->n_states = 0;
    to->weights_only = true;
    return ASSAY_OK;
}

assay_status ckpt_copy(const ckpt_options *o, bool convert)
{
    assay_checkpoint *c;
    ASSAY_TRY(assay_checkpoint_open(&c, o->paths[1]));
    if (o->paddle) {
        const assay_status st = parity_paddle_export(c, o->paths[2]);
        assay_checkpoint_close(c);
        return st;
    }
    assay_checkpoint_content to = *assay_checkpoint_content_of(c);
    if (o->max_shard_size > 0)
        to.max_shard_size = o->max_shard_size;
    assay_status st = convert ? weights_alone(o, &to) : ASSAY_OK;
    if (st == ASSAY_OK)
        st = copy(c, &to, o->paths[2]);
    assay_checkpoint_close(c);
    ASSAY_TRY(st);
    printf("wrote %s\n", o->paths[2]);
    return ASSAY_OK;
}
