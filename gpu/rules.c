/* Rules of --substitute: their text and their places. */
#include "gpu/rules.h"

#include "core/base/file.h"
#include "gpu/check.h"
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULES_BYTES = 16 << 20, RULES_MAX = 100000 };

/* --- text --------------------------------------------------------------------------------------------------- */
static assay_status take_condition(gpu_rule *r, const char *text, const char *file)
{
    const char *value = strchr(text, '=');
    const size_t n = value ? (size_t)(value - text) : 0;
    char *end = NULL;
    assay_phase phase;
    ASSAY_CHECK(value, ASSAY_INVALID_ARGUMENT,
                "%s, line %d: '%s': expected op=, phase=, step= or microbatch=", file, r->line, text);
    value++;
    if (n == 2 && strncmp(text, "op", n) == 0) {
        ASSAY_CHECK(assay_op_find(value), ASSAY_INVALID_ARGUMENT, "%s, line %d: no operation is called %s",
                    file, r->line, value);
        snprintf(r->op, sizeof r->op, "%s", value);
        return ASSAY_OK;
    }
    if (n == 5 && strncmp(text, "phase", n) == 0) {
        ASSAY_TRY(assay_phase_from_name(value, &phase));
        r->phase = (int)phase;
        return ASSAY_OK;
    }
    const bool step = n == 4 && strncmp(text, "step", n) == 0;
    const long long number = strtoll(value, &end, 10);
    ASSAY_CHECK((step || (n == 10 && strncmp(text, "microbatch", n) == 0)) && end != value && *end == '\0' &&
                    number >= 0,
                ASSAY_INVALID_ARGUMENT, "%s, line %d: '%s': expected op=, phase=, step=N or microbatch=N",
                file, r->line, text);
    *(step ? &r->step : &r->microbatch) = number;
    return ASSAY_OK;
}

/* "k0" or "values" */
static assay_status take_kind(gpu_rule *r, const char *word, const char *file)
{
    const bool variant = word[0] == 'k' && word[1] >= '0' && word[1] <= '9' && word[2] == '\0';
    r->variant = variant ? word[1] - '0' : -1;
    ASSAY_CHECK(variant || strcmp(word, "values") == 0, ASSAY_INVALID_ARGUMENT,
                "%s, line %d: expected kN:INSTANCE or values:INSTANCE[:SLOT], found '%.40s'", file, r->line,
                word);
    return ASSAY_OK;
}

static assay_status take_rule(gpu_rule *r, char *text, const char *file)
{
    char *conditions = text + strcspn(text, ",");
    if (*conditions)
        *conditions++ = '\0';
    char *instance = text + strcspn(text, ":");
    if (*instance)
        *instance++ = '\0';
    char *slot = instance + strcspn(instance, ":");
    if (*slot)
        *slot++ = '\0';
    r->phase = -1;
    r->step = r->microbatch = -1;
    ASSAY_TRY(take_kind(r, text, file));
    ASSAY_CHECK(*instance && strlen(instance) < sizeof r->instance, ASSAY_INVALID_ARGUMENT,
                "%s, line %d: expected an instance of 1 to %d bytes behind '%s:'", file, r->line,
                ASSAY_NAME - 1, text);
    ASSAY_CHECK(*slot == '\0' || (r->variant < 0 && strlen(slot) < sizeof r->slot), ASSAY_INVALID_ARGUMENT,
                "%s, line %d: %s takes no slot '%.40s'", file, r->line, text, slot);
    snprintf(r->instance, sizeof r->instance, "%s", instance);
    snprintf(r->slot, sizeof r->slot, "%s", slot);
    r->wild = strpbrk(instance, "*?[\\") != NULL;
    for (char *next; *conditions; conditions = next) {
        next = conditions + strcspn(conditions, ",");
        if (*next)
            *next++ = '\0';
        ASSAY_TRY(take_condition(r, conditions, file));
    }
    return ASSAY_OK;
}

static assay_status take_lines(gpu_rules *r, char *text)
{
    int line = 0;
    for (char *at = text, *next; *at; at = next) {
        next = at + strcspn(at, "\n");
        if (*next)
            *next++ = '\0';
        line++;
        if (*at == '\0')
            continue;
        ASSAY_CHECK(r->n < RULES_MAX, ASSAY_LIMIT, "%s: more than %d rules", r->file, RULES_MAX);
        if ((r->n & (r->n - 1)) == 0) {
            gpu_rule *grown = realloc(r->list, (size_t)(r->n ? 2 * r->n : 1) * sizeof *grown);
            ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "%s: rules", r->file);
            r->list = grown;
        }
        gpu_rule *rule = &r->list[r->n++];
        *rule = (gpu_rule){.line = line};
        ASSAY_TRY(take_rule(rule, at, r->file));
        r->values = r->values || rule->variant < 0;
    }
    ASSAY_CHECK(r->n > 0, ASSAY_INVALID_ARGUMENT, "%s: expected a rule, found none", r->file);
    return ASSAY_OK;
}

assay_status gpu_rules_read(const char *file, gpu_rules **out)
{
    char *text = NULL;
    uint64_t bytes = 0;
    assay_status st = ASSAY_OK;
    gpu_rules *r = calloc(1, sizeof *r);
    *out = NULL;
    ASSAY_CHECK(r, ASSAY_OUT_OF_MEMORY, "%s: rules", file);
    snprintf(r->file, sizeof r->file, "%s", file);
    ASSAY_TRY_GOTO(assay_read_file(file, RULES_BYTES, &text, &bytes), st, done);
    ASSAY_CHECK_GOTO(strlen(text) == bytes, ASSAY_INVALID_ARGUMENT, st, done, "%s: holds a NUL byte", file);
    ASSAY_TRY_GOTO(take_lines(r, text), st, done);
    *out = r;
    r = NULL;
done:
    gpu_rules_destroy(r);
    free(text);
    return st;
}

void gpu_rules_destroy(gpu_rules *r)
{
    if (r)
        free(r->list);
    free(r);
}

/* --- places ------------------------------------------------------------------------------------------------- */
static bool is_here(const gpu_run *run, const gpu_rule *r, const char *op, const char *instance)
{
    return (r->op[0] == '\0' || strcmp(r->op, op) == 0) && (r->phase < 0 || r->phase == (int)run->phase) &&
           (r->step < 0 || r->step == run->step) && (r->microbatch < 0 || r->microbatch == run->microbatch) &&
           (r->wild ? fnmatch(r->instance, instance, 0) == 0 : strcmp(r->instance, instance) == 0);
}

static int find_variant(const gpu_run *run, const assay_op *op, const char *instance)
{
    int variant = -1;
    for (int64_t i = 0; !op->collective && i < run->rules->n; i++) {
        gpu_rule *r = &run->rules->list[i];
        if (r->variant < 0 || !is_here(run, r, op->name, instance))
            continue;
        variant = r->variant;
        r->met += !run->dry;
    }
    return variant;
}

int gpu_rules_variant(const gpu_run *run, const assay_op *op, const char *instance)
{
    return run->rules ? find_variant(run, op, instance) : -1;
}

bool gpu_rules_meet(const gpu_run *run, const char *op, const char *instance)
{
    for (int64_t i = 0; run->rules && i < run->rules->n; i++)
        if (is_here(run, &run->rules->list[i], op, instance))
            return true;
    return false;
}

gpu_rule *gpu_rules_values(const gpu_run *run, const char *op, const char *instance, const char *slot)
{
    for (int64_t i = 0; i < run->rules->n; i++) {
        gpu_rule *r = &run->rules->list[i];
        if (r->variant < 0 && (r->slot[0] == '\0' || strcmp(r->slot, slot) == 0) &&
            is_here(run, r, op, instance))
            return r;
    }
    return NULL;
}

/* Sums counts [n] over the world. */
static assay_status sum_over_world(gpu_run *run, int64_t *counts, int64_t n)
{
    void *device;
    const size_t bytes = (size_t)n * sizeof *counts;
    if (run->comm.world == 1)
        return ASSAY_OK;
    CUDA_TRY(cudaMalloc(&device, bytes));
    const gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                                .group = ASSAY_GROUP_WORLD,
                                .send = device,
                                .recv = device,
                                .count = n,
                                .dtype = ASSAY_I64};
    assay_status st = gpu_run_upload(run, device, counts, bytes, "substitute");
    if (st == ASSAY_OK)
        st = gpu_comm_enqueue(&run->comm, &call, run->ctx.stream);
    if (st == ASSAY_OK)
        st = gpu_run_download(run, counts, device, bytes, "substitute");
    if (st != ASSAY_OK)
        gpu_comm_destroy(&run->comm, true); /* cudaFree would wait for a collective that never ends */
    (void)cudaFree(device);
    return st;
}

static assay_status check_met(gpu_run *run, const gpu_rules *r)
{
    assay_status st = ASSAY_OK;
    int64_t *met = calloc((size_t)r->n, sizeof *met);
    ASSAY_CHECK(met, ASSAY_OUT_OF_MEMORY, "%s: %lld rules", r->file, (long long)r->n);
    for (int64_t i = 0; i < r->n; i++)
        met[i] = r->list[i].met;
    ASSAY_TRY_GOTO(sum_over_world(run, met, r->n), st, done);
    for (int64_t i = 0; i < r->n; i++)
        ASSAY_CHECK_GOTO(met[i] > 0, ASSAY_INVALID_ARGUMENT, st, done,
                         "%s, line %d: the rule changed nothing: no %s of this run has that instance, slot "
                         "and conditions%s",
                         r->file, r->list[i].line, r->list[i].variant < 0 ? "output" : "kernel",
                         r->list[i].variant < 0 ? " and a value in the trace of --substitute-values" : "");
done:
    free(met);
    return st;
}

assay_status gpu_rules_check_met(gpu_run *run)
{
    return run->rules ? check_met(run, run->rules) : ASSAY_OK;
}
