/* The candidate's routing choices and the runs of the reference on them; the method is in whole.c. */
#include "parity/checks/whole_store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

assay_status parity_whole_cache_create(parity_whole_cache **out, const assay_model_spec *spec,
                                       const assay_train_options *options, const assay_batches *batches,
                                       double *const *weights)
{
    *out = calloc(1, sizeof **out);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "cache of reference runs");
    (*out)->spec = spec;
    (*out)->options = *options;
    (*out)->batches = batches;
    (*out)->weights = weights;
    return ASSAY_OK;
}

assay_status parity_whole_cache_share(parity_whole_cache *c, const char *folder)
{
    ASSAY_CHECK(strlen(folder) < sizeof c->folder, ASSAY_LIMIT, "%s: path too long", folder);
    ASSAY_TRY(parity_whole_identity(c, c->identity));
    snprintf(c->folder, sizeof c->folder, "%s", folder);
    return ASSAY_OK;
}

static void runs_destroy(parity_whole_runs *r)
{
    if (!r)
        return;
    ref_run_result_free(&r->truth);
    ref_run_result_free(&r->logits_truth);
    for (int i = 0; i < PARITY_WHOLE_RUNS; i++) {
        ref_run_result_free(&r->perturbed[i]);
        ref_run_result_free(&r->logits_perturbed[i]);
    }
    free(r);
}

void parity_whole_cache_destroy(parity_whole_cache *c)
{
    if (!c)
        return;
    for (int64_t i = 0; i < c->n; i++)
        runs_destroy(c->all[i]);
    free(c->all);
    free(c);
}

/* --- the candidate's choices -------------------------------------------------------------------------------- */

enum { N_MAPS = REF_ROUTING_ROUTED + 1 };
/* First number of a block that the trace does not have. */
static const int64_t absent = -2;

static int64_t choice_at(const parity_whole_choices *c, int64_t step, int64_t microbatch, int64_t layer,
                         ref_routing_map map)
{
    const int64_t layers = c->spec->config.num_layers;
    return ((((step * c->microbatches) + microbatch) * layers + layer) * N_MAPS + map) * c->tokens * c->k;
}

static bool look_up(void *user, int64_t step, int64_t microbatch, int64_t layer, ref_routing_map map,
                    int64_t *indices, int64_t t, int64_t k)
{
    const parity_whole_choices *c = user;
    if (step >= c->steps || microbatch >= c->microbatches || t != c->tokens || k != c->k)
        return false;
    const int64_t *from = c->indices + choice_at(c, step, microbatch, layer, map);
    if (t * k == 0 || from[0] == absent)
        return false;
    memcpy(indices, from, (size_t)(t * k) * sizeof *indices);
    return true;
}

void parity_whole_refuse(parity_whole_choices *c, const parity_entry *e, const parity_result *finding,
                         bool complete)
{
    parity_result *r = &c->refused;
    if (r->verdict == PARITY_FAIL)
        return;
    snprintf(r->tensor, sizeof r->tensor, "%s", e->name);
    r->phase = e->phase;
    r->step = e->step;
    r->microbatch = e->microbatch;
    parity_result_fail(r, "the choice %s is recorded and cannot be read: %.300s", e->name,
                       complete                      ? "another dtype or number of elements"
                       : finding->message[0] != '\0' ? finding->message
                                                     : "it is a piece of no whole tensor");
}

/* Fills one block from the trace; a tensor that cannot be assembled leaves the choice to the reference. */
static assay_status read_choice(parity_whole_choices *c, const parity_index *x, int64_t step,
                                int64_t microbatch, int64_t layer, ref_routing_map map)
{
    static const char *const names[N_MAPS] = {"indices", "aux.aux_indices", "drop.routed"};
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "decoder.layers.%lld.mlp.router.%s", (long long)layer, names[map]);
    int64_t *to = c->indices + choice_at(c, step, microbatch, layer, map);
    const parity_entry *e = parity_index_find(x, name, ASSAY_PHASE_FORWARD, step, microbatch);
    parity_result finding;
    parity_global g = {0};
    parity_result_init(&finding);
    to[0] = absent;
    if (!e)
        return ASSAY_OK;
    ASSAY_TRY(parity_entry_assemble(x, e, &g, &finding));
    if (g.complete && g.dtype == ASSAY_I64 && g.count == c->tokens * c->k)
        memcpy(to, g.data, (size_t)g.count * sizeof *to);
    else
        parity_whole_refuse(c, e, &finding, g.complete);
    parity_global_free(&g);
    return ASSAY_OK;
}

/* The reference refuses experts that do not exist or do not ascend: such a row is the routing check's.  What is routed may
 * have -1 in the places of the choice. */
static void drop_malformed(parity_whole_choices *c, int64_t block, const int64_t *chosen)
{
    int64_t *x = c->indices + block;
    for (int64_t i = 0; x[0] != absent && i < c->tokens * c->k; i++) {
        const bool good = chosen ? x[i] == -1 || x[i] == chosen[i]
                                 : x[i] >= 0 && x[i] < c->spec->config.num_moe_experts &&
                                       (i % c->k == 0 || x[i] > x[i - 1]);
        if (!good)
            x[0] = absent;
    }
}

assay_status parity_whole_read_choices(const parity_whole_cache *cache, const parity_index *x, int64_t steps,
                                       parity_whole_choices *c)
{
    const assay_model_config *m = &cache->spec->config;
    *c = (parity_whole_choices){.spec = cache->spec,
                                .steps = steps,
                                .microbatches = cache->batches->microbatches,
                                .tokens = cache->batches->b * cache->batches->s,
                                .k = m->num_moe_experts > 0 ? m->moe_router_topk : 0};
    parity_result_init(&c->refused);
    c->refused.verdict = PARITY_PASS;
    c->clips = choice_at(c, steps, 0, 0, REF_ROUTING_CHOICE);
    c->count = c->clips + parity_whole_clip_numbers(c);
    c->indices = malloc(((size_t)c->count + 1) * sizeof *c->indices);
    ASSAY_CHECK(c->indices, ASSAY_OUT_OF_MEMORY, "routing choices");
    memset(c->indices, 0xff, ((size_t)c->count + 1) * sizeof *c->indices);
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t b = 0; b < c->microbatches; b++) {
            for (int64_t l = 0; l < m->num_layers && c->k * c->tokens > 0; l++) {
                for (int i = 0; m->mlp[l] == ASSAY_MLP_MOE && i < N_MAPS; i++) {
                    const int64_t chosen = choice_at(c, s, b, l, REF_ROUTING_CHOICE);
                    ASSAY_TRY(read_choice(c, x, s, b, l, (ref_routing_map)i));
                    drop_malformed(c, choice_at(c, s, b, l, (ref_routing_map)i),
                                   i == REF_ROUTING_ROUTED ? c->indices + chosen : NULL);
                }
            }
        }
    }
    ASSAY_TRY(parity_whole_read_clips(x, c));
    ASSAY_TRY(assay_hash_init());
    assay_hash_tensor(ASSAY_I64, &c->count, 1, c->indices, (size_t)c->count * sizeof *c->indices, c->hash);
    return ASSAY_OK;
}

/* --- runs of the reference ---------------------------------------------------------------------------------- */

/* Longest sum that the model makes, for the random walk of its rounding errors. */
static double longest_sum(const parity_whole_cache *c)
{
    const assay_model_config *m = &c->spec->config;
    const int64_t sizes[] = {
        m->hidden_size,         m->ffn_hidden_size,
        m->moe_ffn_hidden_size, m->num_attention_heads * m->kv_channels,
        m->vocab_size,          c->batches->b * c->batches->s * c->batches->microbatches};
    int64_t longest = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        longest = sizes[i] > longest ? sizes[i] : longest;
    return (double)longest;
}

static ref_policy policy_of(const parity_whole_cache *c, assay_precision precision, int run)
{
    const double walk = sqrt(longest_sum(c) / 3.0);
    ref_policy p = {.precision = precision, .perturb_seed = 1000 + (uint64_t)run};
    p.perturb = precision == ASSAY_PRECISION_BF16 ? 1.0 : fmax(1.0, walk);
    return p;
}

/* `run` < 0: the truth, which is one for all precisions. */
static assay_status run_one(const parity_whole_cache *c, const ref_run_config *config,
                            const parity_whole_choices *choice, int run, ref_run_result *result)
{
    char key[3 * ASSAY_SHA256_HEX + ASSAY_LAYOUT_TEXT + 64];
    if (c->folder[0] == '\0')
        return ref_run(config, c->weights, result);
    snprintf(key, sizeof key, "%s, choices %s, %s%s%s, %s%s, run %d", c->identity, choice->hash,
             config->master ? "masters " : "", config->master ? choice->masters_hash : "", c->objective,
             assay_precision_name(config->policy.precision), config->want_logits ? "logits" : "training",
             run);
    return parity_whole_run(c->folder, key, config, c->weights, result);
}

/* The perturbed runs first ... runs-1, and the truth before the first of all. */
static assay_status run_all(const parity_whole_cache *c, const assay_batches *batches,
                            assay_precision precision, parity_whole_choices *choice, bool logits, int first,
                            int runs, ref_run_result *truth, ref_run_result perturbed[PARITY_WHOLE_RUNS])
{
    assay_parallel_config one, other;
    assay_grid objective;
    assay_train_options options = c->options;
    ref_run_config config = {.spec = c->spec,
                             .options = &options,
                             .batches = batches,
                             .routing = look_up,
                             .routing_user = choice,
                             .clip = parity_whole_clip,
                             .master = choice->masters && !logits ? parity_whole_master : NULL,
                             .want_logits = logits,
                             .want_grads = !logits,
                             .want_states = !logits && batches->training};
    if (!batches->training)
        options.train_iters = 0;
    ASSAY_TRY(assay_layout_parse("1", &one));
    ASSAY_TRY(assay_grid_make(&one, &config.grid));
    if (logits &&
        options.semantics == ASSAY_SEMANTICS_MEGATRON) /* rows of zeros, as many as another layout has */
        options.moe_pad_expert_input_to_capacity = false;
    if (c->objective[0] != '\0' && !logits) { /* logits do not depend on it */
        ASSAY_TRY(assay_layout_parse(c->objective, &other));
        ASSAY_TRY(assay_grid_make(&other, &objective));
        config.objective = &objective;
    }
    config.policy.precision = ASSAY_PRECISION_FP64;
    if (first == 0)
        ASSAY_TRY(run_one(c, &config, choice, -1, truth));
    for (int i = first; i < runs; i++) {
        config.policy = policy_of(c, precision, i);
        ASSAY_TRY(run_one(c, &config, choice, i, &perturbed[i]));
    }
    return ASSAY_OK;
}

/* Size and rate of the masters' jumps, over all parameters: AdamW makes them alike. */
static void measure_jumps(parity_whole_runs *r, int runs)
{
    double energy = 0.0, n = 0.0;
    r->jump = 0.0;
    for (int64_t i = 0; i < r->truth.n_tensors; i++) {
        const ref_named_tensor *t = &r->truth.tensors[i];
        int64_t count = 1;
        for (int d = 0; d < t->ndim; d++)
            count *= t->shape[d];
        for (int k = 0; k < runs && strcmp(t->kind, "weight") == 0; k++) {
            const ref_named_tensor *p = ref_result_find(&r->perturbed[k], "weight", t->name, t->step);
            for (int64_t e = 0; p && e < count; e++) {
                const double d = fabs(p->data[e] - t->data[e]);
                r->jump = d > r->jump ? d : r->jump;
                energy += d * d;
            }
            n += (double)count;
        }
    }
    r->jump_rate = r->jump > 0.0 ? energy / (r->jump * r->jump * n) : 0.0;
}

/* The label at position 0 is never a target: the model shifts. */
static bool has_targets(const assay_batches *b, int64_t step, int64_t microbatch)
{
    const int64_t *labels = assay_batches_labels(b, step, microbatch);
    for (int64_t i = 0; i < b->b * b->s; i++)
        if ((b->shifted || i % b->s != 0) && labels[i] != ASSAY_IGNORE_INDEX)
            return true;
    return false;
}

/* Microbatch 0 of step 0 as a batch of its own: its logits depend on the initial weights alone. */
static assay_status run_logits(const parity_whole_cache *c, assay_precision precision,
                               parity_whole_choices *choice, int runs, parity_whole_runs *r)
{
    assay_batches first = *c->batches;
    if (!has_targets(c->batches, 0, 0))
        return ASSAY_OK; /* a batch without labels has no loss to run */
    first.training = false;
    first.steps = first.microbatches = 1;
    ASSAY_TRY(run_all(c, &first, precision, choice, true, r->n, runs, &r->logits_truth, r->logits_perturbed));
    r->has_logits = true;
    return ASSAY_OK;
}

static assay_status extend(parity_whole_cache *c, assay_precision precision, parity_whole_choices *choice,
                           int runs, parity_whole_runs *r)
{
    ASSAY_TRY(run_all(c, c->batches, precision, choice, false, r->n, runs, &r->truth, r->perturbed));
    ASSAY_TRY(run_logits(c, precision, choice, runs, r));
    r->n = runs;
    return ASSAY_OK;
}

static assay_status add_runs(parity_whole_cache *c, const char *key, parity_whole_runs **out)
{
    parity_whole_runs **all = realloc(c->all, (size_t)(c->n + 1) * sizeof *all);
    ASSAY_CHECK(all, ASSAY_OUT_OF_MEMORY, "reference runs");
    c->all = all;
    parity_whole_runs *r = calloc(1, sizeof *r);
    ASSAY_CHECK(r, ASSAY_OUT_OF_MEMORY, "reference runs");
    snprintf(r->key, sizeof r->key, "%s", key);
    c->all[c->n++] = r;
    *out = r;
    return ASSAY_OK;
}

assay_status parity_whole_find_runs(parity_whole_cache *c, assay_precision precision,
                                    parity_whole_choices *choice, int runs, parity_whole_runs **out)
{
    char key[sizeof(*out)->key];
    parity_whole_runs *r = NULL;
    snprintf(key, sizeof key, "%s|%s|%s|%s", assay_precision_name(precision), c->objective, choice->hash,
             choice->masters_hash);
    for (int64_t i = 0; i < c->n && r == NULL; i++)
        if (strcmp(c->all[i]->key, key) == 0)
            r = c->all[i];
    if (r == NULL)
        ASSAY_TRY(add_runs(c, key, &r));
    if (r->n < runs) {
        const assay_status st = extend(c, precision, choice, runs, r);
        if (st != ASSAY_OK) {
            r->key[0] = '\0'; /* half made: nobody finds it again */
            return st;
        }
    }
    measure_jumps(r, runs);
    *out = r;
    return ASSAY_OK;
}
