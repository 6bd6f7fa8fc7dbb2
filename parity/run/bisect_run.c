/* One run of the engine with operations replaced, and its verdict. */
#include "parity/run/bisect.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "core/run/inputs.h"
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* --- inputs ------------------------------------------------------------------------------------------------- */
assay_status bisect_open(bisect *b)
{
    assay_train_options meant = b->options;
    b->started = assay_monotonic_s();
    snprintf(b->than, sizeof b->than, "the unsharded reference");
    b->whose = "the reference";
    b->config = malloc(sizeof *b->config);
    ASSAY_CHECK(b->config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY(assay_config_load(b->options.model, b->config));
    ASSAY_TRY(assay_inputs_take_config(&meant, b->config));
    ASSAY_TRY(assay_inputs_spec(&meant, b->config, &b->spec));
    ASSAY_TRY(assay_batches_open(&b->batches, b->options.batch, b->config->vocab_size));
    ASSAY_TRY(ref_weights_load(b->spec, b->options.model, NULL, b->options.draw_weights, &b->weights));
    return parity_whole_cache_create(&b->cache, b->spec, &meant, &b->batches, b->weights);
}

void bisect_close(bisect *b)
{
    assay_trace_close(b->other);
    parity_whole_cache_destroy(b->cache);
    if (b->weights != NULL)
        ref_weights_free(b->spec, b->weights);
    assay_batches_close(&b->batches);
    assay_spec_destroy(b->spec);
    parity_engine_free(&b->engine);
    free(b->config);
    free(b->elements);
}

assay_status bisect_path(const bisect *b, const char *name, char out[ASSAY_PATH])
{
    ASSAY_CHECK(snprintf(out, ASSAY_PATH, "%s/%s", b->dir, name) < ASSAY_PATH, ASSAY_LIMIT,
                "%s/%s: path too long", b->dir, name);
    return ASSAY_OK;
}

/* --- the reference's values --------------------------------------------------------------------------------- */
assay_status bisect_reference(bisect *b)
{
    char path[ASSAY_PATH];
    assay_train_options options = b->options;
    assay_parallel_config one, other;
    assay_grid objective;
    assay_trace_writer *w = NULL;
    ref_run_result result = {0};
    assay_status st = ASSAY_OK;
    ref_run_config config = {.spec = b->spec, .options = &options, .batches = &b->batches};
    json_t *header = json_pack("{s:s,s:s,s:s}", "engine", "ref", "precision", "fp64", "layout", "1");
    config.policy.precision = ASSAY_PRECISION_FP64;
    ASSAY_TRY_GOTO(bisect_path(b, "reference", path), st, done);
    ASSAY_TRY_GOTO(assay_inputs_take_config(&options, b->config), st, done);
    if (!b->batches.training)
        options.train_iters = 0;
    ASSAY_TRY_GOTO(assay_layout_parse("1", &one), st, done);
    ASSAY_TRY_GOTO(assay_grid_make(&one, &config.grid), st, done);
    if (options.semantics == ASSAY_SEMANTICS_MEGATRON) { /* the objective is that of the layout */
        ASSAY_TRY_GOTO(assay_layout_parse(options.layout[0] ? options.layout : "1", &other), st, done);
        ASSAY_TRY_GOTO(assay_grid_make(&other, &objective), st, done);
        config.objective = &objective;
    }
    ASSAY_TRY_GOTO(assay_trace_writer_open(&w, path, 0, 1, header, false), st, done);
    config.trace = w;
    ASSAY_TRY_GOTO(ref_run(&config, b->weights, &result), st, done);
    st = assay_trace_writer_close(w);
done:
    ref_run_result_free(&result);
    assay_trace_writer_destroy(w);
    json_decref(header);
    return st;
}

/* --- rules -------------------------------------------------------------------------------------------------- */
assay_status bisect_write_rules(const bisect *b, const bool *set, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    ASSAY_CHECK(f != NULL, ASSAY_OUT_OF_MEMORY, "rules");
    for (int64_t i = 0; i < b->n; i++)
        if (set[i])
            fprintf(f, "%s:%s,op=%s,phase=%s\n", b->way == BISECT_VARIANT ? "k0" : "values",
                    b->elements[i].instance, b->elements[i].op, assay_phase_name(b->elements[i].phase));
    const bool written = fclose(f) == 0;
    const assay_status st =
        written ? assay_write_file(path, text, bytes) : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "rules");
    free(text);
    return st;
}

/* --- verdict ------------------------------------------------------------------------------------------------ */
static bool is_target(const bisect *b, const parity_claim *r)
{
    return b->target[0] == '\0' || fnmatch(b->target, r->tensor, 0) == 0;
}

static assay_status judge(bisect *b, const char *path, bool *agrees)
{
    assay_trace *trace = NULL;
    parity_report *report = NULL;
    assay_status st = ASSAY_OK;
    b->n_compared = b->n_failed = 0;
    b->first[0] = b->first_tensor[0] = '\0';
    b->first_step = -1;
    ASSAY_TRY_GOTO(assay_trace_open(&trace, path, false), st, done);
    ASSAY_TRY_GOTO(parity_report_create(&report), st, done);
    ASSAY_TRY_GOTO(b->other != NULL ? parity_check_whole_against(b->cache, trace, b->other, b->widen, report)
                                    : parity_check_whole(b->cache, trace, report),
                   st, done);
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        const parity_claim *r = parity_report_at(report, i);
        if (!is_target(b, r))
            continue;
        ASSAY_CHECK_GOTO(r->verdict != PARITY_SKIP, ASSAY_UNSUPPORTED, st, done,
                         "%s cannot be judged: %.300s", r->tensor, r->message);
        b->n_compared++;
        b->n_failed += r->verdict == PARITY_FAIL;
        if (r->verdict == PARITY_FAIL && b->first[0] == '\0') {
            snprintf(b->first, sizeof b->first, "%.150s is off by %.3g times what rounding explains",
                     r->tensor, r->ratio);
            snprintf(b->first_tensor, sizeof b->first_tensor, "%s", r->tensor);
            b->first_step = r->step;
        }
    }
    ASSAY_CHECK_GOTO(
        b->n_compared > 0, ASSAY_INVALID_ARGUMENT, st, done,
        "--target %s: no tensor that the whole check compares with %s has that name (loss, grad_norm, "
        "output_layer.y, PARAMETER.main_grad, ...)",
        b->target[0] != '\0' ? b->target : "*", b->than);
    *agrees = b->n_failed == 0;
done:
    parity_report_destroy(report);
    assay_trace_close(trace);
    return st;
}

assay_status bisect_run_other(bisect *b, const char *name)
{
    char log[ASSAY_PATH];
    assay_train_options o = b->options;
    ASSAY_TRY(bisect_path(b, name, o.trace));
    ASSAY_TRY(bisect_path(b, "engine.log", log));
    snprintf(o.layout, sizeof o.layout, "%s", b->against_layout);
    o.fault[0] = '\0';
    b->runs++;
    return parity_engine_run(&b->engine, "step", &o, NULL, log, true, b->timeout_s, NULL);
}

static assay_status run_engine(bisect *b, const char *name, const char *how, const char *rules, bool *agrees)
{
    char log[ASSAY_PATH];
    assay_train_options o = b->options;
    ASSAY_CHECK(b->runs < b->limit, ASSAY_LIMIT,
                "--runs %lld: made before it was known what heals; of the last one %s", (long long)b->limit,
                b->first);
    ASSAY_TRY(bisect_path(b, name, o.trace));
    ASSAY_TRY(bisect_path(b, "engine.log", log));
    ASSAY_TRY(assay_remove_tree(o.trace, b->dir));
    if (rules != NULL)
        snprintf(o.substitute, sizeof o.substitute, "%s", rules);
    if (rules != NULL && b->way == BISECT_VALUES)
        ASSAY_TRY(bisect_path(b, b->other != NULL ? "other" : "reference", o.substitute_values));
    ASSAY_TRY(parity_engine_run(&b->engine, "step", &o, NULL, log, true, b->timeout_s, NULL));
    b->runs++;
    ASSAY_TRY(judge(b, o.trace, agrees));
    if (!b->quiet)
        fprintf(stderr, "run %lld: %s: %s%s\n", (long long)b->runs, how,
                *agrees ? "agrees" : "differs: ", b->first);
    return ASSAY_OK;
}

assay_status bisect_run(bisect *b, const char *name, const bool *set, bool *agrees)
{
    char rules[ASSAY_PATH], how[96];
    int64_t size = 0;
    for (int64_t i = 0; set && i < b->n; i++)
        size += set[i];
    if (size == 0)
        return run_engine(b, name, "as it is", NULL, agrees);
    ASSAY_TRY(bisect_path(b, "rules.txt", rules));
    ASSAY_TRY(bisect_write_rules(b, set, rules));
    if (b->way == BISECT_VARIANT)
        snprintf(how, sizeof how, "%lld of %lld operations at variant 0", (long long)size, (long long)b->n);
    else
        snprintf(how, sizeof how, "%lld of %lld operations with %s's values", (long long)size,
                 (long long)b->n, b->whose);
    return run_engine(b, name, how, rules, agrees);
}

assay_status bisect_run_everything(bisect *b, const char *name, bool *agrees)
{
    static const char all[] = "values:*\n";
    char rules[ASSAY_PATH], how[96];
    ASSAY_TRY(bisect_path(b, "rules.txt", rules));
    ASSAY_TRY(assay_write_file(rules, all, sizeof all - 1));
    snprintf(how, sizeof how, "all of %s's values", b->whose);
    return run_engine(b, name, how, rules, agrees);
}

/* --- elements ----------------------------------------------------------------------------------------------- */
static int compare_elements(const void *x, const void *y)
{
    const bisect_element *a = x, *b = y;
    if (a->phase != b->phase)
        return a->phase < b->phase ? -1 : 1;
    if (a->layer != b->layer)
        return (a->layer < b->layer) == (a->phase != ASSAY_PHASE_BACKWARD) ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->sequence > b->sequence) - (a->sequence < b->sequence);
}

int64_t bisect_layer_in(const char *instance)
{
    static const char prefix[] = "decoder.layers.";
    return strncmp(instance, prefix, sizeof prefix - 1) == 0 ? strtoll(instance + sizeof prefix - 1, NULL, 10)
                                                             : -1;
}

/* The layer that an operation belongs to: its own, of what ran before it in its phase, or of what runs behind it. */
static int64_t layer_near(const assay_trace *t, int rank, int64_t at)
{
    const assay_trace_op *op = assay_trace_op_at(t, rank, at);
    int64_t layer = bisect_layer_in(op->instance);
    for (int direction = -1; direction <= 1 && layer < 0; direction += 2)
        for (int64_t i = at + direction; i >= 0 && i < assay_trace_n_ops(t, rank) && layer < 0;
             i += direction) {
            const assay_trace_op *other = assay_trace_op_at(t, rank, i);
            if (other->phase == op->phase && other->microbatch == op->microbatch && other->step == op->step)
                layer = bisect_layer_in(other->instance);
        }
    return layer;
}

static void key_of(const char *op, const char *instance, assay_phase phase, char *out, size_t capacity)
{
    parity_key k = parity_key_begin(out, capacity);
    parity_key_text(&k, op);
    parity_key_text(&k, instance);
    parity_key_number(&k, (int64_t)phase);
}

static assay_status add_element(bisect *b, parity_map *map, const assay_trace *t, int rank, int64_t at)
{
    char key[ASSAY_NAME + 80];
    const assay_trace_op *op = assay_trace_op_at(t, rank, at);
    key_of(op->op, op->instance, op->phase, key, sizeof key);
    int64_t index = parity_map_get(map, key);
    if (index < 0) {
        index = b->n;
        if ((b->n & (b->n - 1)) == 0) {
            bisect_element *grown = realloc(b->elements, (size_t)(b->n ? 2 * b->n : 1) * sizeof *grown);
            ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "operations of the run");
            b->elements = grown;
        }
        bisect_element *e = &b->elements[b->n++];
        *e = (bisect_element){.phase = op->phase,
                              .collective = op->group[0] != '\0',
                              .layer = layer_near(t, rank, at),
                              .rank = rank,
                              .sequence = op->sequence};
        snprintf(e->op, sizeof e->op, "%s", op->op);
        snprintf(e->instance, sizeof e->instance, "%s", op->instance);
        ASSAY_TRY(parity_map_put(map, key, index));
    }
    bisect_element *e = &b->elements[index];
    e->variant = op->variant > e->variant ? op->variant : e->variant;
    e->replaceable[BISECT_VARIANT] = !e->collective && e->variant > 0;
    return ASSAY_OK;
}

/* Elements of one operation in one layer, or outside of all, are a group; groups in order of their last elements, so that those before
 * one hold nothing that runs behind it. */
static assay_status number_groups(bisect *b)
{
    char key[ASSAY_NAME];
    parity_map *map = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_map_create(&map));
    for (int64_t i = b->n - 1; i >= 0; i--) {
        parity_key k = parity_key_begin(key, sizeof key);
        parity_key_text(&k, b->elements[i].op);
        parity_key_number(&k, bisect_layer_in(b->elements[i].instance));
        int64_t group = parity_map_get(map, key);
        if (group < 0) {
            group = b->n_groups++;
            ASSAY_TRY_GOTO(parity_map_put(map, key, group), st, done);
        }
        b->elements[i].group = group;
    }
    for (int64_t i = 0; i < b->n; i++)
        b->elements[i].group = b->n_groups - 1 - b->elements[i].group;
done:
    parity_map_destroy(map);
    return st;
}

static assay_status mark_suspects(bisect *b, const assay_trace *t)
{
    parity_report *report = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(parity_report_create(&report), st, done);
    ASSAY_TRY_GOTO(parity_check_local(t, report), st, done);
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        const parity_claim *r = parity_report_at(report, i);
        for (int64_t k = 0; k < b->n && r->verdict == PARITY_FAIL; k++)
            if (strcmp(b->elements[k].op, r->op) == 0 && strcmp(b->elements[k].instance, r->instance) == 0 &&
                b->elements[k].phase == r->phase)
                b->elements[k].suspect = true;
    }
done:
    parity_report_destroy(report);
    return st;
}

assay_status bisect_read_elements(bisect *b, const char *name)
{
    char path[ASSAY_PATH];
    assay_trace *t = NULL;
    parity_map *map = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(bisect_path(b, name, path));
    ASSAY_TRY_GOTO(assay_trace_open(&t, path, false), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&map), st, done);
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++)
            ASSAY_TRY_GOTO(add_element(b, map, t, rank, i), st, done);
    if (b->n > 1)
        qsort(b->elements, (size_t)b->n, sizeof *b->elements, compare_elements);
    ASSAY_TRY_GOTO(number_groups(b), st, done);
    ASSAY_TRY_GOTO(mark_suspects(b, t), st, done);
    st = bisect_mark_feeds(b, t);
done:
    parity_map_destroy(map);
    assay_trace_close(t);
    return st;
}

assay_status bisect_read_replaced(bisect *b, const char *name)
{
    char path[ASSAY_PATH], key[ASSAY_NAME + 80];
    assay_trace *t = NULL;
    parity_map *map = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(bisect_path(b, name, path));
    ASSAY_TRY_GOTO(assay_trace_open(&t, path, false), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&map), st, done);
    for (int64_t i = 0; i < b->n; i++) {
        key_of(b->elements[i].op, b->elements[i].instance, b->elements[i].phase, key, sizeof key);
        ASSAY_TRY_GOTO(parity_map_put(map, key, i), st, done);
    }
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            key_of(op->op, op->instance, op->phase, key, sizeof key);
            const int64_t index = parity_map_get(map, key);
            for (int k = 0; k < op->n_outputs && index >= 0; k++)
                if (op->substituted[k])
                    b->elements[index].replaceable[BISECT_VALUES] = true;
        }
done:
    parity_map_destroy(map);
    assay_trace_close(t);
    return st;
}
