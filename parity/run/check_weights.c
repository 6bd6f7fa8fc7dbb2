/* The recorded parameters against the folder's. */
#include "parity/run/check.h"

#include <stdlib.h>
#include <string.h>

static int64_t number_of(const assay_model_spec *spec, const char *name)
{
    for (int64_t i = 0; i < spec->n_params; i++)
        if (strcmp(spec->params[i].name, name) == 0)
            return i;
    return -1;
}

/* The parameter as a global tensor over the reference's own array. */
static parity_global global_of(const assay_param_spec *p, double *values)
{
    parity_global g = {.dtype = ASSAY_F64,
                       .ndim = p->ndim,
                       .count = assay_param_elements(p),
                       .data = values,
                       .complete = true};
    for (int d = 0; d < p->ndim; d++)
        g.shape[d] = p->shape[d];
    return g;
}

static const assay_name_row *parameter_row(const check_state *c, const char *name, int64_t *param)
{
    assay_name_match match[ASSAY_NAME_MATCHES];
    const int n = assay_names_find(c->names->names, name, ASSAY_PHASE_FORWARD, match);
    for (int i = 0; i < n; i++)
        if (match[i].row->parameter && (*param = number_of(c->names->spec, match[i].row->ours)) >= 0)
            return match[i].row;
    return NULL;
}

/* What was recorded, in the shape of the row; *bad: elements that are not the folder's, rounded as they are stored. */
static assay_status compare(check_state *c, const parity_entry *e, const assay_name_row *row, int64_t param,
                            int64_t *bad, char diagnosis[PARITY_TEXT])
{
    parity_global found = {0}, a = {0}, b = {0};
    parity_result finding;
    double *x = NULL, *y = NULL, *zero = NULL;
    assay_status st = ASSAY_OK;
    const parity_global ours = global_of(&c->names->spec->params[param], c->reference->weights[param]);
    const parity_scales none = {.tp = 1, .dp = 1, .ep = 1, .pp = 1, .cp = 1, .world = 1, .microbatches = 1};
    *bad = 0;
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(c->index, e, &found, &finding), st, done);
    if (!found.complete) {
        *bad = -1; /* nothing was compared; `whole` says why it cannot be put together */
        goto done;
    }
    ASSAY_TRY_GOTO(parity_align(row, &found, &ours, 0, &a, &b), st, done);
    ASSAY_TRY_GOTO(parity_decode_all(a.data, a.count, a.dtype, &x), st, done);
    ASSAY_TRY_GOTO(parity_decode_all(b.data, b.count, b.dtype, &y), st, done);
    for (int64_t i = 0; i < a.count; i++) {
        y[i] = ref_round(y[i], a.dtype);
        *bad += !(x[i] == y[i]);
    }
    zero = calloc((size_t)a.count + 1, sizeof *zero);
    ASSAY_CHECK_GOTO(zero != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s", e->name);
    if (*bad > 0)
        parity_diagnose(x, y, zero, a.shape, a.ndim, a.dtype, &none, diagnosis);
done:
    free(zero);
    free(y);
    free(x);
    parity_global_free(&b);
    parity_global_free(&a);
    parity_global_free(&found);
    return st;
}

/* The recorded values into the reference's array. */
static assay_status take(check_state *c, const parity_entry *e, const assay_name_row *row, int64_t param)
{
    parity_global found = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    const assay_param_spec *p = &c->names->spec->params[param];
    double *to = c->reference->weights[param];
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(c->index, e, &found, &finding), st, done);
    const assay_hf_piece whole = {.rows = 1};
    const int n = found.complete ? (row->n_pieces > 0 ? row->n_pieces : 1) : 0;
    const int64_t length = row->n_pieces == 0 ? found.count : p->ndim > 1 ? p->shape[p->ndim - 1] : 1;
    for (int i = 0; i < n; i++) {
        const assay_hf_piece *x = row->n_pieces > 0 ? &row->pieces[i] : &whole;
        const bool fits = row->n_pieces == 0 ? found.count == assay_param_elements(p)
                                             : (x->src + x->rows) * length <= found.count &&
                                                   (x->dst + x->rows) * length <= assay_param_elements(p);
        if (!fits) /* judge() has said so */
            continue;
        for (int64_t k = 0; k < x->rows * length; k++)
            to[x->dst * length + k] = parity_decode(found.data, x->src * length + k, found.dtype);
    }
done:
    parity_global_free(&found);
    return st;
}

/* A parameter that the model does not have. */
static void report_unknown(check_state *c, const parity_entry *e)
{
    const size_t length = strlen(e->name);
    const bool weight = length > 7 && strcmp(e->name + length - 7, ".weight") == 0;
    if (weight && e->microbatch < 0 && strcmp(e->name, "lm_head.weight") != 0)
        check_note(c, "%s: a parameter that the model's class does not have; not compared", e->name);
}

/* A head with a gradient of its own, where the configuration ties it. */
static void check_head(check_state *c)
{
    const int64_t step = c->reference->step;
    if (c->names->config->tie_word_embeddings &&
        (parity_index_find(c->index, "lm_head.weight", ASSAY_PHASE_FORWARD, step, -1) != NULL ||
         parity_index_find(c->index, "lm_head.weight.grad", ASSAY_PHASE_GRAD, step, -1) != NULL))
        check_fail(c, CHECK_WEIGHTS,
                   "lm_head.weight is a parameter of its own, where the model's configuration ties it to "
                   "model.embed_tokens.weight (tie_word_embeddings): the weights are not shared");
}

typedef assay_status (*visit)(check_state *c, const parity_entry *e, const assay_name_row *row,
                              int64_t param);

/* Every recorded parameter of the step that the reference runs. */
static assay_status each_parameter(check_state *c, visit function)
{
    for (int64_t i = 0; i < c->index->n; i++) {
        const parity_entry *e = &c->index->entries[i];
        int64_t param = -1;
        if (e->phase != ASSAY_PHASE_FORWARD || e->step != c->reference->step || !e->pieces[0].record->data)
            continue;
        const assay_name_row *row = parameter_row(c, e->name, &param);
        if (row != NULL)
            ASSAY_TRY(function(c, e, row, param));
        else if (function != take)
            report_unknown(c, e);
    }
    return ASSAY_OK;
}

static assay_status judge(check_state *c, const parity_entry *e, const assay_name_row *row, int64_t param)
{
    int64_t bad = 0;
    char diagnosis[PARITY_TEXT] = "";
    const assay_status st = compare(c, e, row, param, &bad, diagnosis);
    if (st == ASSAY_MISMATCH) {
        check_fail(c, CHECK_WEIGHTS, "%s: %.300s", e->name, assay_error_message());
        c->n_misshapen++;
        assay_error_clear();
        return ASSAY_OK;
    }
    ASSAY_TRY(st);
    if (bad == 0)
        c->passed[CHECK_WEIGHTS]++;
    else if (bad > 0)
        check_fail(c, CHECK_WEIGHTS, "%s is not the folder's: %lld elements differ%s%.400s", e->name,
                   (long long)bad, diagnosis[0] != '\0' ? "; looks like: " : "", diagnosis);
    return ASSAY_OK;
}

assay_status check_weights(check_state *c)
{
    if (c->reference == NULL) {
        snprintf(c->unchecked[CHECK_WEIGHTS], PARITY_TEXT, "%s", c->unchecked[CHECK_WHOLE]);
        return ASSAY_OK;
    }
    const size_t listed = json_array_size(c->others);
    ASSAY_TRY(each_parameter(c, judge));
    /* A run that has trained since has other values everywhere; a weight that was loaded wrongly is one among many, and another shape is
     * another model. */
    if (c->n_misshapen == 0 && c->failed[CHECK_WEIGHTS] > c->passed[CHECK_WEIGHTS]) {
        check_note(c,
                   "%lld of %lld recorded parameters are not the folder's: taken for a run that has trained "
                   "since; the "
                   "reference uses the recorded ones",
                   (long long)c->failed[CHECK_WEIGHTS],
                   (long long)(c->failed[CHECK_WEIGHTS] + c->passed[CHECK_WEIGHTS]));
        c->failed[CHECK_WEIGHTS] = 0;
        while (json_array_size(c->others) > listed)
            json_array_remove(c->others, json_array_size(c->others) - 1);
        c->first[CHECK_WEIGHTS][0] = '\0';
    }
    check_head(c);
    return each_parameter(c, take);
}
