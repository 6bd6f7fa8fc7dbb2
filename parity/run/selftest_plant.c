/* Planted faults: clean runs, changed copies of what they recorded, runs of an engine that errs, and the check that must find it. */
#include "core/base/file.h"
#include "core/files/checkpoint.h"
#include "parity/run/selftest.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- runs --------------------------------------------------------------------------------------------------- */

static assay_status scratch(selftest *s, const char *name, char out[ASSAY_PATH])
{
    const int n = snprintf(out, ASSAY_PATH, "%s/%s-%d", s->dir, name, s->n_runs++);
    ASSAY_CHECK(n > 0 && n < ASSAY_PATH, ASSAY_LIMIT, "%s: path too long", s->dir);
    return ASSAY_OK;
}

static assay_status run_engine(selftest *s, const char *layout, const char *fault, char trace[ASSAY_PATH],
                               char save[ASSAY_PATH])
{
    char log[ASSAY_PATH];
    assay_train_options o = s->train;
    ASSAY_TRY(scratch(s, "trace", trace));
    ASSAY_TRY(scratch(s, "save", save));
    ASSAY_TRY(scratch(s, "log", log));
    ASSAY_TRY(scratch(s, "out", o.out));
    snprintf(o.trace, sizeof o.trace, "%s", trace);
    snprintf(o.save, sizeof o.save, "%s", save);
    o.save_differing_replicas = true;
    snprintf(o.layout, sizeof o.layout, "%s", layout);
    snprintf(o.fault, sizeof o.fault, "%s", fault);
    return parity_engine_run(&s->engine, "step", &o, NULL, log, true, 120.0, NULL);
}

static assay_status clean_of(selftest *s, const char *layout, clean_run **out)
{
    for (int i = 0; i < s->n_clean; i++) {
        if (strcmp(s->clean[i].layout, layout) == 0 && s->clean[i].precision == s->train.precision) {
            *out = &s->clean[i];
            return ASSAY_OK;
        }
    }
    ASSAY_CHECK(s->n_clean < MAX_TRACES, ASSAY_LIMIT, "mutants use more than %d layouts", (int)MAX_TRACES);
    clean_run *c = &s->clean[s->n_clean];
    memset(c, 0, sizeof *c);
    snprintf(c->layout, sizeof c->layout, "%s", layout);
    c->precision = s->train.precision;
    ASSAY_TRY(run_engine(s, layout, "", c->dir, c->save));
    ASSAY_TRY(assay_trace_open(&c->trace, c->dir, true));
    s->n_clean++;
    *out = c;
    return ASSAY_OK;
}

/* --- judging ------------------------------------------------------------------------------------------------ */

assay_status selftest_judge(selftest *s, const assay_trace *t, const char *layout, parity_check check,
                            parity_report *report)
{
    assay_parallel_config p;
    assay_grid grid;
    switch (check) {
    case PARITY_CHECK_ASSEMBLE:
        return parity_check_assemble(t, report);
    case PARITY_CHECK_LOCAL:
        return parity_check_local(t, report);
    case PARITY_CHECK_ROUTING:
        return parity_check_routing(t, report);
    case PARITY_CHECK_WHOLE:
        return parity_check_whole(s->cache[s->train.precision == ASSAY_PRECISION_BF16], t, report);
    case PARITY_CHECK_FLOW:
        return parity_check_flow(t, s->spec, report);
    case PARITY_CHECK_PLAN:
        ASSAY_TRY(assay_layout_parse(layout, &p));
        ASSAY_TRY(assay_grid_make(&p, &grid));
        ASSAY_TRY(assay_grid_check_model(&grid, &s->spec->config));
        return parity_check_plan(t, s->spec, &grid, &s->train, &s->batches, report);
    default:
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "the %s check does not read a trace", parity_check_name(check));
    }
}

static assay_status judge_copy(selftest *s, const parity_mutant *m, parity_report *report)
{
    clean_run *c;
    char dir[ASSAY_PATH];
    assay_trace *t = NULL;
    ASSAY_TRY(clean_of(s, m->layout, &c));
    ASSAY_TRY(scratch(s, "mutant", dir));
    ASSAY_TRY(parity_trace_mutate(c->trace, dir, &m->mutation));
    ASSAY_TRY(assay_trace_open(&t, dir, true));
    const assay_status st = m->kind == PARITY_MUTANT_BITWISE
                                ? parity_check_bitwise_traces(c->trace, t, "repeat", 0, report)
                                : selftest_judge(s, t, m->layout, m->expected_check, report);
    assay_trace_close(t);
    return st;
}

static assay_status judge_engine(selftest *s, const parity_mutant *m, parity_report *report)
{
    char dir[ASSAY_PATH], save[ASSAY_PATH];
    clean_run *c; /* the same layout without the fault must pass */
    assay_trace *t = NULL;
    ASSAY_TRY(clean_of(s, m->layout, &c));
    ASSAY_TRY(run_engine(s, m->layout, m->mutation.kind, dir, save));
    ASSAY_TRY(assay_trace_open(&t, dir, true));
    const assay_status st = selftest_judge(s, t, m->layout, m->expected_check, report);
    assay_trace_close(t);
    return st;
}

static assay_status answer_request(selftest *s, const char *layout, char request[ASSAY_PATH],
                                   char answer[ASSAY_PATH])
{
    char log[ASSAY_PATH], option[ASSAY_PATH + 16], out[ASSAY_PATH + 16];
    assay_train_options o;
    int world;
    assay_train_options_default(&o);
    ASSAY_TRY(parity_layout_world(layout, &world));
    ASSAY_TRY(scratch(s, "request", request));
    ASSAY_TRY(scratch(s, "answer", answer));
    ASSAY_TRY(scratch(s, "log", log));
    ASSAY_TRY(parity_exact_request(request, world, "F32"));
    snprintf(o.layout, sizeof o.layout, "%s", layout);
    snprintf(option, sizeof option, "--request=%s", request);
    snprintf(out, sizeof out, "--out=%s", answer);
    const char *extra[] = {option, out, NULL};
    return parity_engine_run(&s->engine, "ops", &o, extra, log, true, 120.0, NULL);
}

static assay_status judge_exact(selftest *s, const parity_mutant *m, parity_report *report)
{
    char request[ASSAY_PATH], answer[ASSAY_PATH], dir[ASSAY_PATH];
    assay_trace *t = NULL;
    ASSAY_TRY(answer_request(s, m->layout, request, answer));
    ASSAY_TRY(scratch(s, "mutant", dir));
    ASSAY_TRY(assay_trace_open(&t, answer, true));
    const assay_status st = parity_trace_mutate(t, dir, &m->mutation);
    assay_trace_close(t);
    ASSAY_TRY(st);
    return parity_check_exact(request, dir, false, report);
}

/* One tensor of the copy: the element in the middle of the wanted one changes in its lowest bit. */
static assay_status copy_state(const assay_checkpoint *from, int64_t index, const parity_mutant *m,
                               assay_checkpoint_writer *to, bool *planted)
{
    const char *family, *name;
    assay_dtype dtype;
    assay_shard whole;
    assay_checkpoint_at(from, index, &family, &name, &dtype, &whole);
    const int64_t count = assay_shard_count(&whole);
    unsigned char *data = calloc((size_t)count + 1, (size_t)assay_dtype_bytes(dtype));
    ASSAY_CHECK(data, ASSAY_OUT_OF_MEMORY, "%s", name);
    assay_status st = assay_checkpoint_read(from, family, name, dtype, &whole, data);
    if (st == ASSAY_OK && count > 0 && strcmp(family, m->mutation.kind) == 0 &&
        strcmp(name, m->expected_instance) == 0) {
        data[count / 2 * assay_dtype_bytes(dtype)] ^= 1u;
        *planted = true;
    }
    if (st == ASSAY_OK)
        st = assay_checkpoint_add(to, family, name, dtype, &whole, data, true);
    free(data);
    return st;
}

static assay_status copy_checkpoint(const char *from, const char *to, const parity_mutant *m)
{
    assay_checkpoint *c = NULL;
    assay_checkpoint_writer *w = NULL;
    json_t *header = NULL;
    bool planted = false;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(assay_checkpoint_open(&c, from), st, done);
    const int64_t step = json_integer_value(json_object_get(assay_checkpoint_header(c), "step"));
    ASSAY_TRY_GOTO(assay_checkpoint_writer_open(&w, to, assay_checkpoint_job(), step, 0, 1,
                                                assay_checkpoint_content_of(c)),
                   st, done);
    for (int64_t i = 0; i < assay_checkpoint_count(c); i++)
        ASSAY_TRY_GOTO(copy_state(c, i, m, w, &planted), st, done);
    ASSAY_CHECK_GOTO(planted, ASSAY_NOT_FOUND, st, done, "%s: no %s of %s in the checkpoint", m->name,
                     m->mutation.kind, m->expected_instance);
    header = json_deep_copy(assay_checkpoint_header(c));
    ASSAY_TRY_GOTO(assay_checkpoint_write_alone(w, header), st, done);
done:
    json_decref(header);
    assay_checkpoint_writer_destroy(w);
    assay_checkpoint_close(c);
    return st;
}

static assay_status judge_checkpoint(selftest *s, const parity_mutant *m, parity_report *report)
{
    clean_run *c;
    char dir[ASSAY_PATH];
    ASSAY_TRY(clean_of(s, m->layout, &c));
    ASSAY_TRY(scratch(s, "checkpoint", dir));
    ASSAY_TRY(copy_checkpoint(c->save, dir, m));
    return parity_check_checkpoints(c->save, dir, "copy", report);
}

assay_status selftest_plant(selftest *s, const parity_mutant *m, parity_report *report)
{
    switch (m->kind) {
    case PARITY_MUTANT_ENGINE:
        return judge_engine(s, m, report);
    case PARITY_MUTANT_EXACT:
        return judge_exact(s, m, report);
    case PARITY_MUTANT_CHECKPOINT:
        return judge_checkpoint(s, m, report);
    default:
        return judge_copy(s, m, report);
    }
}
