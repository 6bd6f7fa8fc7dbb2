/* Traces of the reference on the batch of another trace. */
#include "parity/checks/reference.h"

#include "core/base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    ASSAY_TRY_GOTO(parity_reference_take_batch(r), st, fail);
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
    free(r->microbatches);
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
    options.calculate_per_token_loss = !r->means;
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
