/* Traces of the reference on the batch of another trace. */
#include "parity/checks/reference.h"

#include "core/base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the recorded batch ------------------------------------------------------------------------------------- */

static assay_status read_tokens(const parity_index *x, const char *name, int64_t step, int64_t microbatch,
                                parity_global *out, bool *found)
{
    parity_result finding;
    const parity_entry *e = parity_index_find(x, name, ASSAY_PHASE_FORWARD, step, microbatch);
    *found = e != NULL;
    if (e == NULL)
        return ASSAY_OK;
    parity_result_init(&finding);
    for (int64_t i = 0; i < e->n; i++)
        ASSAY_CHECK(e->pieces[i].record->data != NULL, ASSAY_UNSUPPORTED,
                    "%s: hashes alone, no token ids to run the reference on", name);
    ASSAY_TRY(parity_entry_assemble(x, e, out, &finding));
    ASSAY_CHECK(out->complete, ASSAY_UNSUPPORTED,
                "%s: expected one batch, found ranks that disagree (a data-parallel run records every rank's "
                "rows under one name): %.300s",
                name, finding.message);
    ASSAY_CHECK(out->ndim == 2 && parity_is_integer(out->dtype), ASSAY_UNSUPPORTED,
                "%s: expected token ids [b,s], found %d dimensions of %s", name, out->ndim,
                assay_dtype_name(out->dtype));
    return ASSAY_OK;
}

/* A mask that hides nothing is none. */
static assay_status check_mask(const parity_index *x, int64_t step, int64_t microbatch)
{
    parity_global g = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    const parity_entry *e = parity_index_find(x, "attention_mask", ASSAY_PHASE_FORWARD, step, microbatch);
    if (e == NULL)
        return ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(x, e, &g, &finding), st, done);
    for (int64_t i = 0; i < g.count && g.complete; i++)
        ASSAY_CHECK_GOTO(parity_can_decode(g.dtype) && parity_decode(g.data, i, g.dtype) != 0.0,
                         ASSAY_UNSUPPORTED, st, done,
                         "attention_mask: hides tokens; the reference runs rows without padding");
done:
    parity_global_free(&g);
    return st;
}

static assay_status take_microbatch(parity_reference *r, int64_t microbatch, bool *found)
{
    parity_global ids = {0}, labels = {0};
    assay_batches *b = &r->batches;
    bool has_labels = false;
    assay_status st = ASSAY_OK;
    const int64_t vocab = r->spec->config.vocab_size;
    ASSAY_TRY_GOTO(read_tokens(r->candidate, "input_ids", r->step, microbatch, &ids, found), st, done);
    if (!*found)
        goto done;
    ASSAY_TRY_GOTO(check_mask(r->candidate, r->step, microbatch), st, done);
    ASSAY_TRY_GOTO(read_tokens(r->candidate, "labels", r->step, microbatch, &labels, &has_labels), st, done);
    if (microbatch == 0) {
        b->b = ids.shape[0];
        b->s = ids.shape[1];
    }
    ASSAY_CHECK_GOTO(ids.shape[0] == b->b && ids.shape[1] == b->s &&
                         (!has_labels || labels.count == ids.count),
                     ASSAY_UNSUPPORTED, st, done, "input_ids: microbatches of different shapes");
    const size_t bytes = (size_t)((microbatch + 1) * ids.count + 1) * sizeof(int64_t);
    int64_t *all_ids = realloc(b->input_ids, bytes);
    b->input_ids = all_ids != NULL ? all_ids : b->input_ids;
    int64_t *all_labels = realloc(b->labels, bytes);
    b->labels = all_labels != NULL ? all_labels : b->labels;
    ASSAY_CHECK_GOTO(all_ids != NULL && all_labels != NULL, ASSAY_OUT_OF_MEMORY, st, done, "batch");
    for (int64_t i = 0; i < ids.count; i++) {
        const int64_t at = microbatch * ids.count + i, id = parity_decode_integer(ids.data, i, ids.dtype);
        const int64_t label = has_labels ? parity_decode_integer(labels.data, i, labels.dtype) : id;
        ASSAY_CHECK_GOTO(
            id >= 0 && id < vocab && (label == ASSAY_IGNORE_INDEX || (label >= 0 && label < vocab)),
            ASSAY_UNSUPPORTED, st, done,
            "input_ids: expected ids below %lld, the model's vocabulary, found %lld and label %lld",
            (long long)vocab, (long long)id, (long long)label);
        b->input_ids[at] = id;
        b->labels[at] = label;
    }
done:
    parity_global_free(&labels);
    parity_global_free(&ids);
    return st;
}

static assay_status take_batch(parity_reference *r)
{
    int64_t n = 0;
    bool found = true;
    r->step = r->candidate->n > 0 ? r->candidate->entries[0].step : 0;
    for (int64_t i = 0; i < r->candidate->n; i++)
        if (r->candidate->entries[i].step < r->step)
            r->step = r->candidate->entries[i].step;
    for (; found; n += found)
        ASSAY_TRY(take_microbatch(r, n, &found));
    ASSAY_CHECK(n > 0, ASSAY_UNSUPPORTED, "the trace records no input_ids to run the reference on");
    r->batches.steps = 1;
    r->batches.microbatches = n;
    r->batches.training = n > 1;
    return ASSAY_OK;
}

/* --- weights ------------------------------------------------------------------------------------------------ */

assay_status parity_reference_create(parity_reference **out, const parity_aligner *names, const char *folder,
                                     const parity_index *candidate, assay_precision precision)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    parity_reference *r = calloc(1, sizeof *r);
    ASSAY_CHECK(r != NULL, ASSAY_OUT_OF_MEMORY, "reference runs");
    r->spec = names->spec;
    r->names = names;
    r->candidate = candidate;
    r->precision = precision;
    r->perturb = 1.0;
    ASSAY_TRY_GOTO(take_batch(r), st, fail);
    ASSAY_TRY_GOTO(ref_weights_load(r->spec, folder, NULL, -1, &r->weights), st, fail);
    *out = r;
    return ASSAY_OK;
fail:
    parity_reference_destroy(r);
    return st;
}

void parity_reference_destroy(parity_reference *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < PARITY_REFERENCE_RUNS; i++) {
        parity_index_destroy(r->index[i]);
        assay_trace_close(r->perturbed[i]);
    }
    parity_index_destroy(r->truth_index);
    assay_trace_close(r->truth);
    if (r->weights != NULL)
        ref_weights_free(r->spec, r->weights);
    assay_batches_close(&r->batches);
    if (r->folder[0] != '\0')
        assay_scratch_remove(r->folder);
    free(r);
}

/* --- runs --------------------------------------------------------------------------------------------------- */

/* The experts that the candidate chose: [T,K] as the trace has them, ascending. */
static bool choice_of(void *user, int64_t step, int64_t microbatch, int64_t layer, ref_routing_map map,
                      int64_t *indices, int64_t t, int64_t k)
{
    const parity_reference *r = user;
    char name[ASSAY_NAME];
    parity_global g = {0};
    parity_result finding;
    snprintf(name, sizeof name, "model.layers.%lld.mlp.gate.2", (long long)layer);
    const parity_entry *e =
        parity_index_find(r->candidate, name, ASSAY_PHASE_FORWARD, r->step + step, microbatch);
    parity_result_init(&finding);
    bool taken = map == REF_ROUTING_CHOICE && e != NULL &&
                 parity_entry_assemble(r->candidate, e, &g, &finding) == ASSAY_OK && g.complete &&
                 g.count == t * k && parity_is_integer(g.dtype);
    const int64_t s = r->batches.s, b = r->batches.b;
    for (int64_t i = 0; taken && i < t; i++) {
        int64_t *to = indices + ((i % s) * b + i / s) * k; /* row i is (b, s), ours (s, b) */
        for (int64_t j = 0; j < k; j++) {
            const int64_t expert = parity_decode_integer(g.data, i * k + j, g.dtype);
            int64_t at = j;
            taken = taken && expert >= 0 && expert < r->spec->config.num_moe_experts;
            for (; at > 0 && to[at - 1] > expert; at--)
                to[at] = to[at - 1];
            to[at] = expert;
            taken = taken && (at == 0 || to[at - 1] != expert);
        }
    }
    parity_global_free(&g);
    return taken;
}

/* Longest sum of the model, for the random walk of its rounding errors. */
static double longest_sum(const parity_reference *r)
{
    const assay_model_config *m = &r->spec->config;
    const int64_t sizes[] = {m->hidden_size,         m->ffn_hidden_size,
                             m->moe_ffn_hidden_size, m->num_attention_heads * m->kv_channels,
                             m->vocab_size,          r->batches.b * r->batches.s * r->batches.microbatches};
    int64_t longest = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        longest = sizes[i] > longest ? sizes[i] : longest;
    return (double)longest;
}

/* run < 0: the truth. */
static assay_status run_one(parity_reference *r, int run, assay_trace **trace, parity_index **index)
{
    char path[ASSAY_PATH + 32];
    assay_train_options options;
    assay_parallel_config one;
    assay_trace_writer *w = NULL;
    ref_run_result result = {0};
    assay_status st = ASSAY_OK;
    json_t *header = json_pack("{s:s,s:s,s:s}", "engine", "ref", "precision", "fp64", "layout", "1");
    const double walk = fmax(1.0, sqrt(longest_sum(r) / 3.0));
    ref_run_config config = {.spec = r->spec, .options = &options, .batches = &r->batches};
    assay_train_options_default(&options);
    options.train_iters = r->batches.training ? 1 : 0;
    if (r->spec->config.num_moe_experts > 0) {
        config.routing = choice_of;
        config.routing_user = r;
    }
    if (run >= 0) {
        config.policy = (ref_policy){.precision = r->precision, .perturb_seed = 1000 + (uint64_t)run};
        config.policy.stores_gates = assay_trace_is_foreign(r->candidate->trace);
        config.policy.perturb = r->perturb * (r->precision == ASSAY_PRECISION_BF16 ? 1.0 : walk);
    } else {
        config.policy.precision = ASSAY_PRECISION_FP64;
    }
    snprintf(path, sizeof path, "%s/%d", r->folder, run + 1);
    ASSAY_TRY_GOTO(assay_layout_parse("1", &one), st, done);
    ASSAY_TRY_GOTO(assay_grid_make(&one, &config.grid), st, done);
    ASSAY_TRY_GOTO(assay_trace_writer_open(&w, path, 0, 1, header, false), st, done);
    config.trace = w;
    ASSAY_TRY_GOTO(ref_run(&config, r->weights, &result), st, done);
    ASSAY_TRY_GOTO(assay_trace_writer_close(w), st, done);
    ASSAY_TRY_GOTO(assay_trace_open(trace, path, false), st, done);
    st = parity_index_create(index, *trace);
done:
    ref_run_result_free(&result);
    assay_trace_writer_destroy(w);
    json_decref(header);
    return st;
}

assay_status parity_reference_run(parity_reference *r, int n)
{
    if (r->folder[0] == '\0') {
        ASSAY_TRY(assay_scratch_make("reference", r->folder, sizeof r->folder));
        ASSAY_TRY(run_one(r, -1, &r->truth, &r->truth_index));
    }
    for (; r->n < n && r->n < PARITY_REFERENCE_RUNS; r->n++)
        ASSAY_TRY(run_one(r, r->n, &r->perturbed[r->n], &r->index[r->n]));
    return ASSAY_OK;
}
