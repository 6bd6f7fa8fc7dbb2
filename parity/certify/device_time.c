/* How long a kernel takes on its device: the child's part `time`.  Events of the runtime around calls on the call's stream, each behind a
 * copy that empties the caches.  Numbers alone: nothing here is a trial. */
#include "core/base/file.h"
#include "core/model/ops_cost.h"
#include "parity/certify/device_call.h"
#include "parity/certify/throughput.h"
#include "parity/certify/trial.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WARMUP = 3, L2_CACHE_SIZE = 38 /* cudaDeviceAttr */, SCRATCH = 4 << 20 };

typedef struct stopwatch {
    trial *t;
    certify_device *d;
    void *from, *to; /* events */
    void *scratch[2];
    size_t bytes; /* of each */
    json_t *list;
} stopwatch;

static assay_status check(const stopwatch *w, int error, const char *what)
{
    ASSAY_CHECK(error == 0, ASSAY_INTERNAL, "throughput: %s: %.60s, in %s", what, w->d->error_name(error),
                w->t->board->now);
    return ASSAY_OK;
}

static assay_status make(stopwatch *w)
{
    int l2 = 0;
    ASSAY_TRY(check(w, w->d->event_create(&w->from, 0), "cudaEventCreateWithFlags"));
    ASSAY_TRY(check(w, w->d->event_create(&w->to, 0), "cudaEventCreateWithFlags"));
    (void)w->d->attribute(&l2, L2_CACHE_SIZE, 0);
    w->bytes = (size_t)SCRATCH > 4 * (size_t)l2 ? (size_t)SCRATCH : 4 * (size_t)l2;
    for (int i = 0; i < 2; i++)
        ASSAY_TRY(check(w, w->d->allocate(&w->scratch[i], w->bytes), "cudaMalloc"));
    return ASSAY_OK;
}

static void drop(stopwatch *w)
{
    for (int i = 0; i < 2; i++)
        if (w->scratch[i] != NULL)
            (void)w->d->release(w->scratch[i]);
    if (w->from != NULL)
        (void)w->d->event_destroy(w->from);
    if (w->to != NULL)
        (void)w->d->event_destroy(w->to);
}

/* One run; ms of it. */
static assay_status run_once(stopwatch *w, device_call *x, float *ms)
{
    int error = w->d->copy_async(w->scratch[1], w->scratch[0], w->bytes, ON_DEVICE, x->call.stream);
    ASSAY_TRY(check(w, error, "a copy"));
    ASSAY_TRY(check(w, w->d->event_record(w->from, x->call.stream), "cudaEventRecord"));
    guard_limit(w->t->limit);
    guard_inside(true);
    device_kernel(x, false);
    guard_inside(false);
    ASSAY_CHECK(x->code == ASSAY_KERNEL_OK, ASSAY_INVALID_ARGUMENT,
                "throughput: run() returns %d at sizes that the description takes, in %s", x->code,
                w->t->board->now);
    ASSAY_TRY(check(w, w->d->event_record(w->to, x->call.stream), "cudaEventRecord"));
    error = w->d->event_wait(w->to);
    guard_limit(0);
    ASSAY_TRY(check(w, error, "the device"));
    ASSAY_TRY(check(w, x->error, "the runtime's last error"));
    return check(w, w->d->event_ms(ms, w->from, w->to), "cudaEventElapsedTime");
}

/* FLOPs and bytes by the formulas of the operation's row; null where there is none. */
static void put_cost(const call_record *r, json_t *row)
{
    assay_op_operand list[ASSAY_OP_SLOTS];
    assay_op_given given[ASSAY_OP_ATTRS];
    assay_op_cost cost;
    const assay_op *op = r->kernel->op;
    int n = 0, n_given = 0;
    for (int i = 0; i < assay_op_n_slots(op); i++)
        if (r->slot[i].present)
            list[n++] =
                (assay_op_operand){op->slots[i].name, r->slot[i].dtype, r->slot[i].ndim, r->slot[i].shape};
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (op->attrs[i].type == ASSAY_ATTR_INT &&
            json_object_get(r->asked->attrs, op->attrs[i].name) != NULL)
            given[n_given++] = (assay_op_given){op->attrs[i].name, r->attr[i].integer};
    const bool known = assay_op_cost_of(op, given, n_given, list, n, -1, &cost) == ASSAY_OK;
    assay_error_clear();
    json_object_set_new(row, "flops", known ? json_integer(cost.flops) : json_null());
    json_object_set_new(row, "bytes", known ? json_integer(cost.bytes) : json_null());
}

static assay_status time_call(stopwatch *w, const call_record *r)
{
    call_ready c;
    device_call x;
    float ms = 0.0f;
    json_t *seconds = json_array();
    assay_status st = call_prepare(r, call_plain(GUARD_END, FILL_ONES), &w->t->arena, &w->t->shadows, &c);
    if (st == ASSAY_OK) {
        device_make(&x, r, &c, w->t->board, w->d->stream);
        st = check(w, device_copy_all(&x, TO_DEVICE), "a copy");
    }
    for (int i = -WARMUP; i < THROUGHPUT_RUNS && st == ASSAY_OK; i++) {
        st = run_once(w, &x, &ms);
        if (i >= 0 && st == ASSAY_OK)
            json_array_append_new(seconds, json_real(1e-3 * (double)ms));
    }
    json_t *row = json_pack("{s:s, s:s, s:o}", "instance", r->asked->instance, "act",
                            assay_dtype_name(r->act), "seconds", seconds);
    put_cost(r, row);
    if (st != ASSAY_OK || row == NULL)
        json_decref(row);
    else
        json_array_append_new(w->list, row);
    return st;
}

static assay_status time_dtype(stopwatch *w, const char *dir, assay_dtype act)
{
    char path[ASSAY_PATH];
    assay_trace *request = NULL;
    assay_status st = ASSAY_OK;
    snprintf(path, sizeof path, "%.900s/time.%s", dir, assay_dtype_name(act));
    if (access(path, F_OK) != 0) /* no size of this operation was asked */
        return ASSAY_OK;
    ASSAY_TRY(assay_trace_open(&request, path, false));
    for (int64_t i = 0; i < assay_trace_n_ops(request, 0) && st == ASSAY_OK; i++) {
        call_record r;
        st = call_read(&r, &w->t->kernel, request, assay_trace_op_at(request, 0, i), act, NULL);
        if (st == ASSAY_OK && r.taken) {
            trial_now(w->t, &r, "a timed run of ");
            st = time_call(w, &r);
        }
        call_forget(&r);
    }
    assay_trace_close(request);
    return st;
}

assay_status device_time(trial *t, const char *dir)
{
    char path[ASSAY_PATH];
    stopwatch w = {.t = t, .d = t->kernel.device, .list = json_array()};
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(w.d != NULL && w.d->reports == NULL, ASSAY_UNSUPPORTED,
                "throughput: measured on a device alone, neither in host memory nor in the simulator");
    ASSAY_TRY_GOTO(make(&w), st, done);
    for (int d = ASSAY_KERNEL_F32; d <= ASSAY_KERNEL_BF16; d++)
        if (t->kernel.k->dtypes & ASSAY_KERNEL_SET(d))
            ASSAY_TRY_GOTO(time_dtype(&w, dir, certify_dtype_of(d)), st, done);
    snprintf(path, sizeof path, "%.900s/times.json", dir);
    ASSAY_TRY_GOTO(assay_json_save(w.list, path), st, done);
done:
    drop(&w);
    json_decref(w.list);
    return st;
}
