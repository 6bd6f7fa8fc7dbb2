/* All ladders together: which rung runs, and what it declares. */
#include "gpu/ladder.h"

#include "gpu/check.h"
#include "gpu/ops.h"
#include <stdio.h>
#include <string.h>

#if ASSAY_SIM
#include <assay_sim.h>
#endif
#ifndef ASSAY_SIM_TARGETS
#define ASSAY_SIM_TARGETS 1
#endif

#if ASSAY_SIM_TARGETS > 1
#define LADDER_AVX2(op) extern const gpu_rung gpu_##op##_ladder_avx2[];
GPU_OPERATIONS(LADDER_AVX2)
#undef LADDER_AVX2
#define LADDER_ROW(op) {#op, {gpu_##op##_ladder, gpu_##op##_ladder_avx2}},
#else
#define LADDER_ROW(op) {#op, {gpu_##op##_ladder}},
#endif

static const struct {
    const char *op;
    const gpu_rung *rungs[ASSAY_SIM_TARGETS]; /* the same rows for each kind of CPU */
} ladders[] = {GPU_OPERATIONS(LADDER_ROW)};
#undef LADDER_ROW
enum { N_LADDERS = sizeof ladders / sizeof ladders[0] };

static int target(void)
{
#if ASSAY_SIM
    return assay_sim_target();
#else
    return 0;
#endif
}

const char *gpu_ladder_target(void)
{
    return target() == 1 ? "avx2" : "baseline";
}

const gpu_rung *gpu_ladder(const char *op)
{
    for (int i = 0; i < N_LADDERS; i++)
        if (strcmp(ladders[i].op, op) == 0)
            return ladders[i].rungs[target()];
    return NULL;
}

static int height(const gpu_rung *rungs)
{
    int n = 0;
    while (rungs[n].run)
        n++;
    return n;
}

const gpu_rung *gpu_ladder_find(const char *op, int variant)
{
    const gpu_rung *rungs = gpu_ladder(op);
    return rungs && variant >= 0 && variant < height(rungs) ? &rungs[variant] : NULL;
}

int gpu_ladder_highest(const char *family)
{
    int highest = -1;
    for (int i = 0; i < N_LADDERS; i++) {
        const assay_op *op = assay_op_find(ladders[i].op);
        const int top = height(ladders[i].rungs[0]) - 1;
        if (op && strcmp(op->family, family) == 0 && top > highest)
            highest = top;
    }
    return highest;
}

static int wish_of(const gpu_ctx *ctx, const gpu_operands *o)
{
    return ctx->call_variant > 0 ? ctx->call_variant - 1 : gpu_ctx_variant(ctx, o->op->family);
}

/* Highest rung that may run: the one that was asked for, or the last. */
static int highest_of(const gpu_ctx *ctx, const gpu_operands *o, const gpu_rung *rungs, bool *asked)
{
    const int top = height(rungs) - 1, wish = wish_of(ctx, o);
    *asked = wish >= 0;
    return *asked && wish < top ? wish : top;
}

size_t gpu_ladder_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_rung *rungs = gpu_ladder(o->op->name);
    size_t most = 0;
    bool asked;
    for (int k = rungs ? highest_of(ctx, o, rungs, &asked) : -1; k >= 0; k--) {
        const size_t bytes = rungs[k].workspace ? rungs[k].workspace(ctx, o) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The rung reads integers in host memory that are not known there. */
static bool misses_host(const gpu_rung *r, const gpu_operands *o)
{
    const int i = r->reads_host ? gpu_operands_index(o, r->reads_host) : -1;
    return i >= 0 && gpu_tensor_count(o->slot[i]) > 0 && o->host[i] == NULL;
}

static bool takes(const gpu_rung *r, const gpu_ctx *ctx, const gpu_operands *o, int64_t n)
{
    const int capability = 10 * ctx->sm_major + ctx->sm_minor;
    bool all =
        capability >= r->least_capability && (r->most_capability == 0 || capability <= r->most_capability);
    for (int64_t i = 0; i < n && all; i++)
        all = !misses_host(r, &o[i]) && (r->accepts == NULL || r->accepts(ctx, &o[i]));
    return all;
}

int gpu_ladder_choose(const gpu_rung *rungs, const gpu_ctx *ctx, const gpu_operands *o, int64_t n)
{
    bool asked;
    int k = highest_of(ctx, o, rungs, &asked);
    while (k > 0 && ((!asked && rungs[k].pays && !rungs[k].pays(o)) || !takes(&rungs[k], ctx, o, n)))
        k--;
    return k;
}

const char *gpu_ladder_misses(const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_rung *rungs = gpu_ladder(o->op->name);
    const int chosen = rungs ? gpu_ladder_choose(rungs, ctx, o, 1) : 0;
    bool asked;
    for (int k = rungs ? highest_of(ctx, o, rungs, &asked) : 0; k > chosen; k--)
        if (misses_host(&rungs[k], o) && (asked || rungs[k].pays == NULL || rungs[k].pays(o)))
            return rungs[k].reads_host;
    return NULL;
}

/* The rung of the kernel that a source calls NAME_kN, with or without a template's arguments; -1: the name has none. */
int gpu_ladder_rung_of(const char *kernel)
{
    const size_t n = strcspn(kernel, "<)");
    return n > 3 && kernel[n - 3] == '_' && kernel[n - 2] == 'k' && kernel[n - 1] >= '0' &&
                   kernel[n - 1] <= '9'
               ? kernel[n - 1] - '0'
               : -1;
}

#if ASSAY_SIM
typedef struct launches {
    int highest; /* rung; -1: no kernel has one in its name */
    char kernel[64];
} launches;

static void note_launch(void *user, const char *kernel)
{
    launches *l = user;
    const int rung = gpu_ladder_rung_of(kernel);
    if (rung <= l->highest)
        return;
    l->highest = rung;
    snprintf(l->kernel, sizeof l->kernel, "%s", kernel);
}

/* A record says which rung ran: the highest of its kernels, which the same sources launch on a device, has that number. */
static assay_status run_rung(const gpu_rung *rung, const gpu_work *w)
{
    launches l = {.highest = -1};
    assay_sim_watch_launches(note_launch, &l);
    const assay_status st = rung->run(w);
    assay_sim_watch_launches(NULL, NULL);
    ASSAY_CHECK(st != ASSAY_OK || l.highest < 0 || l.highest == w->variant, ASSAY_INTERNAL,
                "%s k%d launched %s and no higher: the kernel of another rung", w->o->op->name, w->variant,
                l.kernel);
    return st;
}
#else
static assay_status run_rung(const gpu_rung *rung, const gpu_work *w)
{
    return rung->run(w);
}
#endif

assay_status gpu_ladder_run(gpu_ctx *ctx, const gpu_operands *o, int64_t n, cudaStream_t stream, int *variant)
{
    const gpu_rung *rungs = gpu_ladder(o->op->name);
    ASSAY_CHECK(rungs, ASSAY_UNSUPPORTED, "operation %s: the engine has no function for it", o->op->name);
    *variant = gpu_ladder_choose(rungs, ctx, o, n);
    const size_t bytes = rungs[*variant].workspace ? rungs[*variant].workspace(ctx, o) : 0;
    ASSAY_CHECK(
        bytes == 0 || stream == ctx->stream, ASSAY_UNSUPPORTED,
        "%s k%d: its %zu bytes of workspace belong to the compute stream of the context: another stream "
        "would write them at the same time",
        o->op->name, *variant, bytes);
    const gpu_work w = {ctx, o, n, *variant, stream};
    return run_rung(&rungs[*variant], &w);
}

/* Next word of a list of slots. */
static const char *next_output(const char *list, char slot[ASSAY_DECLARED_SLOT])
{
    const size_t n = strcspn(list, " ");
    snprintf(slot, ASSAY_DECLARED_SLOT, "%.*s", (int)n, list);
    return list + n + strspn(list + n, " ");
}

assay_status gpu_ladder_declare(const gpu_ctx *ctx, const gpu_operands *o, int variant, gpu_declared *out)
{
    static const char *const names[GPU_MOST_RUNGS] = {"k0", "k1", "k2", "k3", "k4",
                                                      "k5", "k6", "k7", "k8", "k9"};
    const gpu_rung *r = gpu_ladder_find(o->op->name, variant);
    ASSAY_CHECK(r && variant < GPU_MOST_RUNGS, ASSAY_INTERNAL, "%s: no variant %d", o->op->name, variant);
    *out = (gpu_declared){.variant = variant, .variant_name = names[variant], .p_dtype = r->p_dtype};
    for (const gpu_rung_arith *a = r->arith; a < r->arith + GPU_RUNG_ARITHS && a->outputs; a++) {
        assay_arith arith = a->arith;
        char slot[ASSAY_DECLARED_SLOT];
        if (a->adapt)
            a->adapt(&arith, ctx, o);
        if (a == r->arith)
            out->arith = assay_declaration_make(arith);
        for (const char *rest = a->outputs; a > r->arith && *rest;) {
            rest = next_output(rest, slot);
            if (gpu_tensor_present(gpu_operand(o, slot)))
                ASSAY_TRY(assay_declaration_set(&out->arith, slot, arith));
        }
    }
    return ASSAY_OK;
}

static json_t *rung_json(const gpu_rung *r, int variant)
{
    char name[8];
    json_t *outputs = json_array();
    snprintf(name, sizeof name, "k%d", variant);
    for (const gpu_rung_arith *a = r->arith; a < r->arith + GPU_RUNG_ARITHS && a->outputs; a++)
        json_array_append_new(outputs, json_pack("{s:s, s:o, s:s}", "outputs", a->outputs, "arith",
                                                 assay_arith_to_json(&a->arith), "how", a->how));
    json_t *rung = json_pack("{s:s, s:s, s:i, s:b, s:s*, s:s*, s:o}", "name", name, "buys", r->buys,
                             "least_capability", r->least_capability, "by_library", r->by_library,
                             "reads_host", r->reads_host, "act", r->act, "outputs", outputs);
    if (rung && r->most_capability != 0)
        json_object_set_new(rung, "most_capability", json_integer(r->most_capability));
    return rung;
}

json_t *gpu_ladder_json(void)
{
    json_t *all = json_array();
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        if (op->foreign)
            continue;
        json_t *variants = json_array();
        const gpu_rung *r;
        for (int k = 0; (r = gpu_ladder_find(op->name, k)) != NULL; k++)
            json_array_append_new(variants, rung_json(r, k));
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:o}", "op", op->name, "family", op->family,
                                             "sums", op->sums, "variants", variants));
    }
    return all;
}
