/* Calls of operations for tests: slots with random data, a run through gpu_execute in several thread orders
 * (results must be the same bits), comparison against double values with a bound for each element. */
#ifndef TESTS_GPU_OPS_UTIL_H
#define TESTS_GPU_OPS_UTIL_H

#include <assay_sim.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/check.h"
#include "gpu/execute.h"

#include "gpu/ladder.h"

#define U32 0x1p-24

/* A launch as it is, without gpu_execute's own checks: RAW_T("x", tensor), {"eps", .number = 1e-6}. */
typedef struct raw_operand {
    const char *name; /* slot or attribute */
    gpu_tensor t;
    double number;
    const char *word;
    const int64_t *host;
} raw_operand;

#define RAW_T(slot, ...)                                                                                     \
    {                                                                                                        \
        .name = (slot), .t = __VA_ARGS__                                                                     \
    }

static inline gpu_operands raw_operands(const char *op, const raw_operand *list)
{
    gpu_operands o;
    gpu_operands_init(&o, assay_op_find(op));
    for (; list->name; ++list) {
        if (assay_op_attr_find(o.op, list->name))
            o.attr[o.n_attrs++] = (gpu_attr){list->name, list->number, (int64_t)list->number, list->word};
        else
            gpu_operands_put(&o, list->name, list->t);
        if (list->host)
            o.host[gpu_operands_index(&o, list->name)] = list->host;
    }
    return o;
}

/* Of an operation whose k3 is code for 9.0: the ladder passes it over on other devices, and called all the same it refuses by name. */
static inline void k3_of_devices(const char *op, const raw_operand *list)
{
    static const struct {
        int major, minor, chosen;
    } rows[] = {{8, 0, 2}, {8, 9, 2}, {9, 0, 3}, {9, 1, 2}, {10, 0, 2}, {12, 0, 2}};
    static char room[256]; /* workspace of the call */
    char name[64];
    const gpu_operands o = raw_operands(op, list);
    const gpu_rung *rungs = gpu_ladder(op);
    snprintf(name, sizeof name, "%s k3", op);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gpu_ctx ctx = {.sm_major = rows[i].major, .sm_minor = rows[i].minor};
        ctx.workspace = room;
        ctx.workspace_bytes = sizeof room;
        for (int f = 0; f < GPU_FAMILY_COUNT; f++)
            ctx.variant[f] = 3;
        cr_expect_eq(gpu_ladder_choose(rungs, &ctx, &o, 1), rows[i].chosen, "%d.%d", rows[i].major,
                     rows[i].minor);
        if (rows[i].chosen == 3)
            continue;
        const gpu_work w = {&ctx, &o, 1, 3, NULL};
        cr_expect_eq(rungs[3].run(&w), ASSAY_UNSUPPORTED);
        cr_expect_not_null(strstr(assay_error_message(), name), "%s", assay_error_message());
        assay_error_clear();
    }
}

static inline assay_status raw_run(gpu_ctx *ctx, const char *op, const raw_operand *list)
{
    const gpu_operands o = raw_operands(op, list);
    int variant;
    return gpu_ladder_run(ctx, &o, 1, ctx->stream, &variant);
}
#define RAW(ctx, op, ...) raw_run((ctx), (op), (const raw_operand[]){__VA_ARGS__, {.name = NULL}})

typedef struct op_call {
    gpu_ctx *ctx;
    gpu_slot in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    double *value[ASSAY_MAX_SLOTS], *result[ASSAY_MAX_SLOTS];
    int n_in, n_out;
    json_t *attrs;
    uint64_t seed;
    gpu_declared declared; /* of the last run */
} op_call;

static inline void open_ctx(gpu_ctx *ctx)
{
    const assay_status st = gpu_ctx_init(ctx, -1, (size_t)1 << 20);
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

static inline void set_variants(gpu_ctx *ctx, const char *text)
{
    cr_assert_eq(gpu_ctx_set_variants(ctx, text), ASSAY_OK, "%s", assay_error_message());
}

static inline double to_bf16(double v)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = (float)v};
    if (isnan(v))
        return v;
    x.u += 0x7fffu + (x.u >> 16 & 1u); /* v is a float already: one rounding, to nearest even */
    x.u &= 0xffff0000u;
    return (double)x.f;
}

static inline double uniform(op_call *c)
{
    c->seed ^= c->seed << 13;
    c->seed ^= c->seed >> 7;
    c->seed ^= c->seed << 17;
    return (double)(c->seed >> 11) * 0x1p-53;
}

static inline void call_begin(op_call *c, gpu_ctx *ctx, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->ctx = ctx;
    c->seed = seed * 0x9e3779b97f4a7c15u + 0x1234567;
    c->attrs = json_object();
}

static inline void call_end(op_call *c)
{
    for (int i = 0; i < c->n_in; ++i) {
        free(c->in[i].data);
        free(c->value[i]);
    }
    for (int i = 0; i < c->n_out; ++i) {
        free(c->out[i].data);
        free(c->result[i]);
    }
    json_decref(c->attrs);
}

static inline int64_t slot_count(const gpu_slot *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->ndim; ++i)
        n *= s->shape[i];
    return n;
}

static inline gpu_slot *new_slot(op_call *c, const char *name, assay_dtype dtype, int ndim,
                                 const int64_t *shape)
{
    gpu_slot *s = &c->in[c->n_in];
    snprintf(s->slot, sizeof s->slot, "%s", name);
    s->dtype = dtype;
    s->ndim = ndim;
    memcpy(s->shape, shape, (size_t)ndim * sizeof shape[0]);
    const size_t n = (size_t)slot_count(s);
    s->data = malloc(n * 8 + 8);
    c->value[c->n_in++] = malloc(n * sizeof(double) + 8);
    return s;
}

/* Stores c->value of the last slot in its dtype and rounds the values to what is stored. */
static inline void store_slot(op_call *c)
{
    gpu_slot *s = &c->in[c->n_in - 1];
    double *v = c->value[c->n_in - 1];
    for (int64_t i = 0; i < slot_count(s); ++i) {
        if (s->dtype == ASSAY_BF16) {
            v[i] = to_bf16(v[i]);
            const float f = (float)v[i];
            uint32_t bits;
            memcpy(&bits, &f, 4);
            ((uint16_t *)s->data)[i] = (uint16_t)(bits >> 16);
        } else if (s->dtype == ASSAY_F32) {
            ((float *)s->data)[i] = (float)v[i];
            v[i] = (double)(float)v[i];
        } else if (s->dtype == ASSAY_F64) {
            ((double *)s->data)[i] = v[i];
        } else {
            ((int64_t *)s->data)[i] = (int64_t)v[i];
        }
    }
}

/* Random numbers in [low, high). */
static inline double *put(op_call *c, const char *name, assay_dtype dtype, double low, double high, int ndim,
                          ...)
{
    int64_t shape[GPU_MAX_DIMS] = {0};
    va_list ap;
    va_start(ap, ndim);
    for (int i = 0; i < ndim; ++i)
        shape[i] = va_arg(ap, int64_t);
    va_end(ap);
    gpu_slot *s = new_slot(c, name, dtype, ndim, shape);
    double *v = c->value[c->n_in - 1];
    for (int64_t i = 0; i < slot_count(s); ++i)
        v[i] = dtype == ASSAY_I64 ? floor(low + (high - low) * uniform(c)) : low + (high - low) * uniform(c);
    store_slot(c);
    return v;
}

/* Given numbers. */
static inline void put_values(op_call *c, const char *name, assay_dtype dtype, const double *v, int64_t rows,
                              int64_t cols)
{
    const int64_t shape[2] = {rows, cols};
    new_slot(c, name, dtype, cols < 0 ? 1 : 2, shape);
    memcpy(c->value[c->n_in - 1], v, (size_t)slot_count(&c->in[c->n_in - 1]) * sizeof v[0]);
    store_slot(c);
}

static inline void attr_i(op_call *c, const char *key, int64_t v)
{
    json_object_set_new(c->attrs, key, json_integer(v));
}
static inline void attr_d(op_call *c, const char *key, double v)
{
    json_object_set_new(c->attrs, key, json_real(v));
}
static inline void attr_b(op_call *c, const char *key, bool v)
{
    json_object_set_new(c->attrs, key, json_boolean(v));
}
static inline void attr_s(op_call *c, const char *key, const char *v)
{
    json_object_set_new(c->attrs, key, json_string(v));
}

static inline double decode(const gpu_slot *s, int64_t i)
{
    if (s->dtype == ASSAY_F32)
        return (double)((const float *)s->data)[i];
    if (s->dtype == ASSAY_F64)
        return ((const double *)s->data)[i];
    if (s->dtype == ASSAY_I64)
        return (double)((const int64_t *)s->data)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)s->data)[i] << 16;
    float f;
    memcpy(&f, &bits, 4);
    return (double)f;
}

/* Runs in forward order, then reversed and shuffled: the same bits each time. */
static inline void run_op(op_call *c, const char *op, assay_dtype act)
{
    static const assay_sim_order order[] = {ASSAY_SIM_ORDER_FORWARD, ASSAY_SIM_ORDER_REVERSE,
                                            ASSAY_SIM_ORDER_RANDOM};
    for (int k = 0; k < 3; ++k) {
        gpu_slot out[ASSAY_MAX_SLOTS];
        int n = 0;
        assay_sim_set_order(order[k], 7);
        const assay_status st = gpu_execute(c->ctx, op, c->attrs, act, c->in, c->n_in, out, &n, &c->declared);
        cr_assert_eq(st, ASSAY_OK, "%s: %s", op, assay_error_message());
        if (k == 0) {
            memcpy(c->out, out, sizeof out);
            c->n_out = n;
            continue;
        }
        for (int i = 0; i < n; ++i) {
            cr_assert(memcmp(out[i].data, c->out[i].data,
                             (size_t)(slot_count(&out[i]) * assay_dtype_bytes(out[i].dtype))) == 0,
                      "%s: %s depends on the order of the threads", op, out[i].slot);
            free(out[i].data);
        }
    }
    assay_sim_set_order(ASSAY_SIM_ORDER_FORWARD, 0);
    cr_assert_eq(assay_sim_reports(), 0, "%s: the simulator reported a misuse", op);
    for (int i = 0; i < c->n_out; ++i) {
        c->result[i] = malloc((size_t)slot_count(&c->out[i]) * sizeof(double) + 8);
        for (int64_t e = 0; e < slot_count(&c->out[i]); ++e)
            c->result[i][e] = decode(&c->out[i], e);
    }
}

static inline const double *result(const op_call *c, const char *slot)
{
    for (int i = 0; i < c->n_out; ++i)
        if (strcmp(c->out[i].slot, slot) == 0)
            return c->result[i];
    cr_assert_fail("no output %s", slot);
    return NULL;
}

static inline int out_precision(const op_call *c, const char *slot)
{
    for (int i = 0; i < c->n_out; ++i)
        if (strcmp(c->out[i].slot, slot) == 0)
            return assay_dtype_precision(c->out[i].dtype);
    return 24;
}

/* |got - want| <= bound + half an ulp of the stored dtype; also demands that want is a number. */
static inline void near(const op_call *c, const char *slot, int64_t i, double want, double bound)
{
    const double got = result(c, slot)[i];
    const double limit = bound + ldexp(fabs(want) + bound, -out_precision(c, slot)) + 1e-40;
    cr_assert(fabs(got - want) <= limit, "%s[%lld]: expected %.9g within %.3g, found %.9g (variant %s)", slot,
              (long long)i, want, limit, got, c->declared.variant_name);
}

static inline void exact(const op_call *c, const char *slot, int64_t i, double want)
{
    const double got = result(c, slot)[i];
    cr_assert(got == want, "%s[%lld]: expected %.9g, found %.9g (variant %s)", slot, (long long)i, want, got,
              c->declared.variant_name);
}

#endif
