/* Events around launches, and what they say. */
#include "gpu/bench_record.h"

#include "gpu/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- cost of a launch --------------------------------------------------------------------------------------- */
int64_t gpu_bench_wire_bytes(const gpu_operands *o)
{
    const char *op = o->op->name;
    const bool receives = strcmp(op, "all_gather") == 0 || strcmp(op, "recv") == 0;
    const gpu_tensor t = gpu_operand(o, receives ? "recv" : "send");
    return gpu_tensor_present(t) ? (int64_t)gpu_tensor_bytes(t) : 0;
}

double gpu_bench_bus_factor(const char *op, int ranks)
{
    const double n = ranks > 1 ? (double)ranks : 1.0;
    if (strcmp(op, "all_reduce") == 0)
        return 2.0 * (n - 1.0) / n;
    if (strcmp(op, "all_gather") == 0 || strcmp(op, "reduce_scatter") == 0 || strcmp(op, "all_to_all") == 0)
        return (n - 1.0) / n;
    return 1.0;
}

/* A slice counts positions of the sequence, each of which is a row of the tensor for every sequence of the batch: [S,B*H] in place of
 * [S*B,H]. */
static gpu_tensor as_counted(const gpu_operands *o, gpu_tensor t)
{
    if (strcmp(o->op->name, "slice_rows") != 0 || t.ndim != 2)
        return t;
    const int64_t length = gpu_operand_int(o, "length"), rows = gpu_operand(o, "y").shape[0];
    const int64_t unit = length > 0 && rows % length == 0 ? rows / length : 1;
    t.shape[0] /= unit;
    t.shape[1] *= unit;
    return t;
}

static assay_status cost_of(const gpu_operands *o, assay_op_cost *out)
{
    assay_op_operand list[ASSAY_OP_SLOTS];
    assay_op_given given[ASSAY_OP_ATTRS];
    gpu_tensor slot[ASSAY_OP_SLOTS];
    int n = 0, n_given = 0;
    for (int i = 0; i < assay_op_n_slots(o->op); i++)
        if (o->slot[i].ndim > 0) {
            slot[n] = as_counted(o, o->slot[i]);
            list[n] = (assay_op_operand){o->op->slots[i].name, slot[n].dtype, slot[n].ndim, slot[n].shape};
            n++;
        }
    for (int i = 0; i < o->n_attrs; i++)
        if (assay_op_attr_find(o->op, o->attr[i].name)->type == ASSAY_ATTR_INT)
            given[n_given++] = (assay_op_given){o->attr[i].name, o->attr[i].integer};
    ASSAY_TRY(assay_op_cost_of(o->op, given, n_given, list, n, -1, out));
    if (o->op->collective)
        out->bytes = gpu_bench_wire_bytes(o);
    return ASSAY_OK;
}

/* --- rows --------------------------------------------------------------------------------------------------- */
/* "mlp.linear_fc1" of "decoder.layers.3.mlp.linear_fc1". */
static const char *without_layer(const char *instance)
{
    static const char layers[] = "decoder.layers.";
    const char *rest = instance + strlen(layers);
    if (strncmp(instance, layers, strlen(layers)) != 0)
        return instance;
    const size_t digits = strspn(rest, "0123456789");
    return digits > 0 && rest[digits] == '.' ? rest + digits + 1 : instance;
}

static assay_status find_row(gpu_bench *b, const gpu_run *run, const gpu_span *span, int *out)
{
    const assay_op *op = gpu_span_operands(span, 0)->op;
    const char *at = b->instances ? without_layer(span->instance) : "";
    for (int i = 0; i < b->n_rows; i++) {
        const gpu_bench_row *r = &b->rows[i];
        if (r->op == op && r->phase == run->phase && r->variant == span->variant &&
            r->recompute == span->recompute && (!op->collective || r->group == span->group) &&
            strncmp(r->at, at, GPU_BENCH_AT - 1) == 0) {
            *out = i;
            return ASSAY_OK;
        }
    }
    ASSAY_CHECK(b->n_rows < GPU_BENCH_ROWS, ASSAY_LIMIT, "bench: more than %d lines of operations",
                GPU_BENCH_ROWS);
    gpu_bench_row *r = &b->rows[b->n_rows];
    *r = (gpu_bench_row){.phase = run->phase,
                         .op = op,
                         .variant = span->variant,
                         .recompute = span->recompute,
                         .group = span->group,
                         .ranks = op->collective ? run->comm.group[span->group].size : 0,
                         .ms = calloc((size_t)b->steps, sizeof(double))};
    ASSAY_CHECK(r->ms, ASSAY_OUT_OF_MEMORY, "bench: times of %lld steps", (long long)b->steps);
    snprintf(r->at, sizeof r->at, "%s", at);
    *out = b->n_rows++;
    return ASSAY_OK;
}

static assay_status count(gpu_bench *b, gpu_bench_row *row, const gpu_span *span)
{
    for (int64_t i = 0; i < span->n; i++) {
        assay_op_cost c;
        ASSAY_TRY(cost_of(gpu_span_operands(span, i), &c));
        row->cost.flops += c.flops;
        row->cost.model_flops += c.model_flops;
        row->cost.bytes += c.bytes;
    }
    row->calls += span->n;
    row->launches++;
    b->launches++;
    return ASSAY_OK;
}

/* --- the ring ----------------------------------------------------------------------------------------------- */
static assay_status record(gpu_bench *b, const gpu_run *run, int *event)
{
    ASSAY_CHECK(b->used < b->n_events, ASSAY_INTERNAL,
                "bench: more launches in a step than the %lld that were counted", (long long)b->launches);
    *event = b->used++;
    CUDA_TRY(cudaEventRecord(b->events[*event], run->ctx.stream));
    return ASSAY_OK;
}

static void add_pair(gpu_bench *b, int row, int begin, int end)
{
    if (b->n_pairs <
        b->max_pairs) /* as many as events: a pair has an end of its own, a stretch shares both */
        b->pairs[b->n_pairs++] = (gpu_bench_pair){row, begin, end};
}

/* Two events for each launch and for the step, made once it is known how many. */
static assay_status make_ring(gpu_bench *b)
{
    const int64_t n = 2 * b->launches + 2;
    ASSAY_CHECK(n < INT32_MAX / 2, ASSAY_LIMIT, "bench: %lld launches in a step", (long long)b->launches);
    b->events = calloc((size_t)n, sizeof *b->events);
    b->pairs = calloc((size_t)n, sizeof *b->pairs);
    ASSAY_CHECK(b->events && b->pairs, ASSAY_OUT_OF_MEMORY, "bench: %lld events", (long long)n);
    b->max_pairs = (int)n;
    for (; b->n_events < (int)n; b->n_events++)
        CUDA_TRY(cudaEventCreate(&b->events[b->n_events]));
    return ASSAY_OK;
}

/* --- the observer ------------------------------------------------------------------------------------------- */
static assay_status begin(void *user, gpu_run *run, const gpu_span *span)
{
    gpu_bench *b = user;
    int event = -1;
    ASSAY_CHECK(b->n_open < GPU_BENCH_OPEN, ASSAY_LIMIT, "bench: more than %d launches within each other",
                GPU_BENCH_OPEN);
    if (b->timing)
        ASSAY_TRY(record(b, run, &event));
    if (b->n_open == 0)
        b->stretch = event;
    gpu_bench_open *o = &b->open[b->n_open++];
    *o = (gpu_bench_open){.calls = span->calls, .begin = event};
    snprintf(o->what, sizeof o->what, "%s %s", span->op, span->instance);
    return ASSAY_OK;
}

static assay_status end(void *user, gpu_run *run, const gpu_span *span)
{
    gpu_bench *b = user;
    int event, row, i = 0;
    while (i < b->n_open && b->open[i].calls != span->calls)
        i++;
    ASSAY_CHECK(i < b->n_open, ASSAY_INTERNAL, "bench: %s %s ended and never began", span->op,
                span->instance);
    const int from = b->open[i].begin;
    b->open[i] = b->open[--b->n_open];
    ASSAY_TRY(find_row(b, run, span, &row));
    if (!b->timing)
        return count(b, &b->rows[row], span);
    ASSAY_TRY(record(b, run, &event));
    b->rows[row].calls_now += span->n;
    add_pair(b, row, from, event);
    if (b->n_open == 0)
        add_pair(b, -1, b->stretch, event);
    return ASSAY_OK;
}

/* --- steps -------------------------------------------------------------------------------------------------- */
assay_status gpu_bench_create(gpu_bench **out, int64_t steps, bool instances)
{
    gpu_bench *b = calloc(1, sizeof *b);
    *out = NULL;
    ASSAY_CHECK(b, ASSAY_OUT_OF_MEMORY, "bench: %zu bytes", sizeof *b);
    b->steps = steps;
    b->instances = instances;
    b->observer = (gpu_observer){begin, end, b};
    b->step_ms = calloc((size_t)steps, sizeof *b->step_ms);
    b->busy_ms = calloc((size_t)steps, sizeof *b->busy_ms);
    if (steps < 1 || b->step_ms == NULL || b->busy_ms == NULL) {
        gpu_bench_destroy(b);
        ASSAY_FAIL(steps < 1 ? ASSAY_INVALID_ARGUMENT : ASSAY_OUT_OF_MEMORY, "bench: %lld steps",
                   (long long)steps);
    }
    *out = b;
    return ASSAY_OK;
}

void gpu_bench_destroy(gpu_bench *b)
{
    if (b == NULL)
        return;
    for (int i = 0; i < b->n_events; i++)
        (void)cudaEventDestroy(b->events[i]);
    for (int i = 0; i < b->n_rows; i++)
        free(b->rows[i].ms);
    free(b->events);
    free(b->pairs);
    free(b->step_ms);
    free(b->busy_ms);
    free(b);
}

assay_status gpu_bench_begin_step(gpu_bench *b, gpu_run *run)
{
    int event;
    b->used = b->n_pairs = b->n_open = 0;
    for (int i = 0; i < b->n_rows; i++)
        b->rows[i].calls_now = 0;
    run->counted = !b->timing;
    if (!b->timing)
        return ASSAY_OK;
    ASSAY_CHECK(b->step < b->steps, ASSAY_INTERNAL, "bench: more than %lld steps", (long long)b->steps);
    return record(b, run, &event);
}

static assay_status read_pairs(gpu_bench *b)
{
    for (int i = 0; i < b->n_pairs; i++) {
        const gpu_bench_pair *p = &b->pairs[i];
        float ms;
        CUDA_TRY(cudaEventElapsedTime(&ms, b->events[p->begin], b->events[p->end]));
        if (p->row < 0)
            b->busy_ms[b->step] += (double)ms;
        else
            b->rows[p->row].ms[b->step] += (double)ms;
    }
    return ASSAY_OK;
}

assay_status gpu_bench_end_step(gpu_bench *b, gpu_run *run)
{
    int last;
    float ms;
    ASSAY_CHECK(b->n_open == 0, ASSAY_INTERNAL, "bench: %s began and did not end", b->open[0].what);
    run->counted = false;
    if (!b->timing) {
        b->timing = true;
        return make_ring(b);
    }
    ASSAY_TRY(record(b, run, &last));
    ASSAY_TRY(gpu_comm_wait_event(&run->comm, b->events[last], "bench"));
    for (int i = 0; i < b->n_rows; i++)
        ASSAY_CHECK(b->rows[i].calls_now == b->rows[i].calls, ASSAY_INTERNAL,
                    "bench: %s: %lld calls in this step, %lld in the counted one", b->rows[i].op->name,
                    (long long)b->rows[i].calls_now, (long long)b->rows[i].calls);
    CUDA_TRY(cudaEventElapsedTime(&ms, b->events[0], b->events[last]));
    b->step_ms[b->step] = (double)ms;
    ASSAY_TRY(read_pairs(b));
    b->step++;
    return ASSAY_OK;
}
