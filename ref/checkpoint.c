/* Checkpoints of the reference: whole tensors, put together from all ranks (which finds replicas that differ), written in the
 * recipe's types, in which every stored number is exact. */
#include "ref/checkpoint.h"

#include "core/files/checkpoint_async.h"
#include "core/files/checkpoint_folder.h"
#include "core/model/recipe.h"
#include "core/run/state.h"
#include "ref/parallel/sharding.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- types -------------------------------------------------------------------------------------------------- */
/* x is of the type: nothing is rounded here. */
static double narrow(double x, assay_dtype dtype, char *out)
{
    const float f = (float)x;
    uint32_t bits;
    if (dtype == ASSAY_F64) {
        memcpy(out, &x, sizeof x);
        return x;
    }
    memcpy(&bits, &f, sizeof bits);
    if (dtype == ASSAY_F32) {
        memcpy(out, &bits, sizeof bits);
        return (double)f;
    }
    const uint16_t high = (uint16_t)(bits >> 16); /* BF16 */
    memcpy(out, &high, sizeof high);
    bits &= 0xffff0000u;
    float back;
    memcpy(&back, &bits, sizeof back);
    return (double)back;
}

static double widen(const char *data, assay_dtype dtype)
{
    double x;
    float f;
    uint16_t high;
    if (dtype == ASSAY_F64) {
        memcpy(&x, data, sizeof x);
        return x;
    }
    if (dtype == ASSAY_BF16) {
        memcpy(&high, data, sizeof high);
        const uint32_t bits = (uint32_t)high << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    memcpy(&f, data, sizeof f);
    return (double)f;
}

/* --- save --------------------------------------------------------------------------------------------------- */
typedef struct buffers {
    double *whole;
    char *stored;
} buffers;

static assay_status new_buffers(const ref_engine *e, buffers *b)
{
    int64_t most = 1, n;
    for (int64_t i = 0; i < e->spec->n_params; i++) {
        const assay_param_spec *p = &e->spec->params[i];
        ASSAY_CHECK(assay_shape_count(p->shape, p->ndim, &n), ASSAY_LIMIT, "%s: too many elements", p->name);
        most = n > most ? n : most;
    }
    b->whole = malloc((size_t)most * sizeof *b->whole);
    b->stored = malloc((size_t)(most * assay_dtype_bytes(ASSAY_F64)));
    if (b->whole != NULL && b->stored != NULL)
        return ASSAY_OK;
    free(b->whole);
    free(b->stored);
    ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "checkpoint: %lld elements", (long long)most);
}

static assay_status add_whole(const assay_param_spec *p, const char *family, assay_dtype dtype,
                              const buffers *b, assay_checkpoint_writer *w)
{
    assay_shard all;
    const int64_t width = assay_dtype_bytes(dtype);
    assay_shard_whole(&all, p->shape, p->ndim);
    for (int64_t j = 0; j < assay_shard_count(&all); j++) {
        const double x = b->whole[j], back = narrow(x, dtype, b->stored + j * width);
        ASSAY_CHECK(back == x || (isnan(x) && isnan(back)), ASSAY_INTERNAL,
                    "%s of %s: element %lld is %.17g, which is no %s", family, p->name, (long long)j, x,
                    assay_dtype_name(dtype));
    }
    return assay_checkpoint_add(w, family, p->name, dtype, &all, b->stored, true);
}

static assay_status add_param(const ref_engine *e, int64_t i, const assay_checkpoint_content *c, buffers *b,
                              assay_checkpoint_writer *w)
{
    const assay_param_spec *p = &e->spec->params[i];
    ref_policy unperturbed = e->run->policy;
    const int64_t n = assay_param_elements(p);
    ASSAY_TRY(ref_assemble(e, i, REF_STATE_MAIN, b->whole));
    if (!p->trained)
        return add_whole(p, "expert_bias", c->state, b, w);
    if (!assay_param_needs_grad(p)) /* frozen: what the products read */
        return add_whole(p, "weight", c->weight, b, w);
    if (!c->weights_only || c->weight == c->state)
        ASSAY_TRY(add_whole(p, "main_param", c->state, b, w));
    unperturbed.perturb = 0.0;
    ref_policy_store(&unperturbed, REF_STORE_PAR, false, p->name, 0, -1, b->whole, n);
    if (!e->options.skip_save_model_weight)
        ASSAY_TRY(add_whole(p, "weight", c->weight, b, w));
    for (int k = 0; k < c->n_states; k++) {
        ASSAY_TRY(ref_assemble(e, i, REF_STATE_OPTIMIZER + k, b->whole));
        ASSAY_TRY(add_whole(p, e->state_names[k], c->state, b, w));
    }
    return ASSAY_OK;
}

bool ref_checkpoint_due(const ref_engine *e, int64_t done, int64_t steps)
{
    const assay_train_options *o = &e->options;
    if (e->run->save == NULL || e->run->save[0] == '\0' || !e->run->batches->training)
        return false;
    if (o->save_after > 0)
        return done == o->save_after;
    return done == steps || (o->save_interval > 0 && done % o->save_interval == 0);
}

static assay_status hand_over(ref_engine *e, const assay_checkpoint_writer *w, const json_t *state,
                              const assay_async_folder *folder)
{
    ASSAY_TRY(assay_async_save_start(&e->saving, w, state, folder));
    return assay_async_save_commit(e->saving);
}

static assay_status publish(assay_checkpoint_writer *w, json_t *state, const assay_async_folder *folder,
                            int64_t done)
{
    ASSAY_TRY(assay_checkpoint_write_alone(w, state));
    return folder->run != NULL ? assay_checkpoint_folder_add(folder->run, done, folder->loss, folder->keep)
                               : ASSAY_OK;
}

static assay_status save_as(ref_engine *e, const char *dir, int64_t done, json_t *state, buffers *b,
                            const assay_async_folder *folder)
{
    assay_status st = ASSAY_OK;
    assay_checkpoint_content content;
    assay_checkpoint_writer *w;
    ASSAY_TRY(assay_state_content(e->spec, &e->options, &content));
    ASSAY_TRY(assay_async_save_wait(&e->saving)); /* one at a time */
    ASSAY_TRY(assay_checkpoint_writer_open(&w, dir, assay_checkpoint_job(), done, 0, 1, &content));
    if (e->options.async_save)
        ASSAY_TRY_GOTO(assay_checkpoint_defer(w), st, out);
    for (int64_t i = 0; i < e->spec->n_params; i++)
        ASSAY_TRY_GOTO(add_param(e, i, &content, b, w), st, out);
    st = e->options.async_save ? hand_over(e, w, state, folder) : publish(w, state, folder, done);
out:
    assay_checkpoint_writer_destroy(w);
    return st;
}

assay_status ref_checkpoint_save(ref_engine *e, int64_t done, double loss)
{
    char dir[ASSAY_PATH + 32];
    buffers b;
    const bool below = e->options.save_interval > 0;
    const assay_async_folder folder = {
        .run = below ? e->run->save : NULL, .loss = loss, .keep = e->options.save_total_limit};
    const assay_state s = {.options = &e->options,
                           .layout = &e->grid.p,
                           .batches = e->run->batches,
                           .engine = "ref",
                           .run = e->run->metrics != NULL ? e->run->metrics->run : "",
                           .step = done,
                           .learning_rate = ref_learning_rate(&e->options, done)};
    if (below)
        assay_checkpoint_folder_name(e->run->save, done, dir, sizeof dir);
    else
        snprintf(dir, sizeof dir, "%s", e->run->save);
    json_t *state = assay_state_to_json(&s);
    ASSAY_CHECK(state != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint: state");
    assay_status st = new_buffers(e, &b);
    if (st == ASSAY_OK) {
        st = save_as(e, dir, done, state, &b, &folder);
        free(b.whole);
        free(b.stored);
    }
    json_decref(state);
    return st;
}

/* --- load --------------------------------------------------------------------------------------------------- */
/* The piece of rank r, as its masters (a frozen weight has none) and as what the products read. */
static void put_master(const ref_engine *e, const assay_param_spec *spec, ref_param *p, double *piece)
{
    ref_policy unperturbed = e->run->policy;
    unperturbed.perturb = 0.0;
    if (p->main_param != NULL)
        memcpy(p->main_param, piece + p->own_first, (size_t)p->own_count * sizeof *piece);
    ref_policy_store(&unperturbed, REF_STORE_PAR, false, spec->name, 0, -1, piece, p->count);
    if (p->own_weight != NULL)
        memcpy(p->own_weight, piece + p->own_first, (size_t)p->own_count * sizeof *piece);
    else
        memcpy(p->weight, piece, (size_t)p->count * sizeof *piece);
}

/* family -1: the masters, or of a buffer the buffer; else a state.  A key that is not there keeps what the run began with: the
 * model's value, states of 0. */
static assay_status load_piece(ref_engine *e, const assay_param_spec *spec, ref_param *p, int family,
                               assay_dtype here)
{
    assay_status st = ASSAY_OK;
    const assay_checkpoint *c = e->run->load;
    const char *word = !spec->trained ? "expert_bias"
                       : family < 0   ? assay_state_masters(c, spec)
                                      : e->state_names[family];
    assay_dtype dtype;
    if (!assay_checkpoint_has(c, word, spec))
        return ASSAY_OK;
    ASSAY_TRY(assay_state_dtype(&e->options, c, word, spec->name, here, &dtype));
    const int64_t width = assay_dtype_bytes(dtype);
    double *piece = malloc(((size_t)p->count + 1) * sizeof *piece);
    char *stored = malloc((size_t)((p->count + 1) * width));
    ASSAY_CHECK_GOTO(piece && stored, ASSAY_OUT_OF_MEMORY, st, done, "checkpoint: %s", spec->name);
    ASSAY_TRY_GOTO(assay_checkpoint_read(c, word, spec->name, dtype, &p->shard, stored), st, done);
    for (int64_t j = 0; j < p->count; j++) {
        const double x = widen(stored + j * width, dtype);
        piece[j] = here == ASSAY_F64 ? x : (double)(float)x;
    }
    if (family >= 0)
        memcpy(p->states[family], piece + p->own_first, (size_t)p->own_count * sizeof *piece);
    else if (spec->trained)
        put_master(e, spec, p, piece);
    else
        memcpy(p->weight, piece, (size_t)p->count * sizeof *piece);
done:
    free(piece);
    free(stored);
    return st;
}

assay_status ref_checkpoint_load(ref_engine *e)
{
    const assay_dtype here = assay_recipe_of(e->options.precision)->op[ASSAY_OPS_OPTIMIZER].weight;
    const int n_states = e->options.finetune ? 0 : e->n_states;
    for (int r = 0; r < e->grid.world; r++)
        for (int64_t i = 0; i < e->spec->n_params; i++) {
            const assay_param_spec *spec = &e->spec->params[i];
            ref_param *p = &e->ranks[r].params[i];
            for (int k = -1; k < (assay_param_needs_grad(spec) ? n_states : 0) && p->here; k++)
                ASSAY_TRY(load_piece(e, spec, p, k, here));
        }
    return ASSAY_OK;
}
