/* The call: make outputs, ask for workspace, plant faults, record, launch, record. */
#include "gpu/call_internal.h"

#include "gpu/check.h"
#include "gpu/fault.h"
#include "gpu/ladder.h"
#include "gpu/rules.h"
#include <stdlib.h>
#include <string.h>

/* Faults that change what goes in. */
static assay_status spoil_call(gpu_run *run, gpu_resolved *c)
{
    const assay_op *op = c->o.op;
    ASSAY_TRY(gpu_fault_attrs(run, &c->o, c->instance));
    int kept = 0;
    for (int i = 0; i < c->n_in; i++) {
        ASSAY_TRY(gpu_fault_input(run, op, c->instance, c->in[i].slot, &c->in[i].value));
        if (c->in[i].value)
            c->in[kept++] = c->in[i];
    }
    c->n_in = kept;
    for (int i = 0; i < c->n_out; i++)
        ASSAY_TRY(gpu_fault_hold(run, op, c->instance, c->out[i].slot, c->out[i].value, &c->out[i].held));
    gpu_fault_plan *p = gpu_fault_at(run, GPU_FAULT_GROUP, op->name, c->instance);
    for (int g = 0; p && op->collective && g < ASSAY_GROUP_COUNT; g++)
        if (strcmp(assay_group_name((assay_group)g), p->fault.what) == 0 && run->comm.group[g].comm) {
            c->group = (assay_group)g;
            p->met++;
        }
    return ASSAY_OK;
}

/* In place of running: a reduction leaves this rank's own part, another output is zero, an updated one stays. */
static assay_status skip_call(gpu_run *run, gpu_resolved *c)
{
    const cudaStream_t stream = run->ctx.stream;
    const gpu_comm_group *g = &run->comm.group[c->group];
    const bool collective = c->o.op->collective;
    gpu_tensor send = gpu_operand(&c->o, "send");
    for (int i = 0; i < c->n_out; i++) {
        const gpu_tensor out = c->out[i].value->t;
        const assay_op_slot *s = assay_op_slot_find(c->o.op, c->out[i].slot, true);
        const size_t bytes = gpu_tensor_bytes(out);
        if (s->role == ASSAY_SLOT_INOUT || bytes == 0 || (collective && out.data == send.data))
            continue;
        if (!collective || gpu_tensor_bytes(send) < bytes) {
            CUDA_TRY(cudaMemsetAsync(out.data, 0, bytes, stream));
            continue;
        }
        size_t before = 0;
        if (strcmp(c->o.op->name, "reduce_scatter") == 0)
            before = c->counts ? (size_t)(gpu_call_rows(c->counts, g->rank) *
                                          gpu_call_row_elements(send, c->counts, g->size) *
                                          assay_dtype_bytes(send.dtype))
                               : (size_t)g->rank * bytes;
        CUDA_TRY(
            cudaMemcpyAsync(out.data, (char *)send.data + before, bytes, cudaMemcpyDeviceToDevice, stream));
    }
    c->skipped = true;
    return ASSAY_OK;
}

static bool counted(gpu_fault_plan *p)
{
    if (p)
        p->met++;
    return p != NULL;
}

const gpu_operands *gpu_span_operands(const gpu_span *span, int64_t i)
{
    const gpu_resolved *list = span->calls;
    return &list[i].o;
}

assay_status gpu_call_observe(gpu_run *run, const gpu_resolved *c, int64_t n, bool end)
{
    const gpu_observer *w = run->observer;
    const gpu_span span = {c->o.op->name, c->instance, n, end ? c->variant : 0, run->recompute, c->group, c};
    if (w == NULL || (end ? w->end : w->begin) == NULL)
        return ASSAY_OK;
    return (end ? w->end : w->begin)(w->user, run, &span);
}

/* Integers that the kernel reads in host memory and that are on the device alone: the host waits for them, once for each value. */
static assay_status fetch_integers(gpu_run *run, gpu_resolved *c)
{
    const char *slot = gpu_ladder_misses(&run->ctx, &c->o);
    gpu_value *v = slot ? gpu_call_value_in(c->in, c->n_in, slot) : NULL;
    if (v == NULL)
        return ASSAY_OK;
    ASSAY_CHECK(v->host_room, ASSAY_INTERNAL,
                "%s %s: %s: a kernel reads these integers in host memory, where there is no room for them",
                c->o.op->name, c->args->at, slot);
    ASSAY_CHECK(
        !run->graphs, ASSAY_UNSUPPORTED,
        "enable_cuda_graph: %s %s: the kernel that is asked for reads %s in host memory, which no graph "
        "waits for; choose another with --variant",
        c->o.op->name, c->args->at, slot);
    ASSAY_TRY(gpu_run_download(run, v->host_room, v->t.data, gpu_tensor_bytes(v->t), c->args->at));
    v->host = v->host_room;
    c->o.host[gpu_operands_index(&c->o, slot)] = v->host;
    return ASSAY_OK;
}

static assay_status launch_one(gpu_run *run, gpu_resolved *c)
{
    if (c->o.op->collective)
        return gpu_call_launch_collective(run, c);
    run->ctx.call_variant = 1 + c->wish;
    assay_status st = fetch_integers(run, c);
    if (st == ASSAY_OK)
        st = gpu_ladder_run(&run->ctx, &c->o, 1, run->ctx.stream, &c->variant);
    run->ctx.call_variant = 0;
    return st;
}

static assay_status run_once(gpu_run *run, gpu_resolved *c)
{
    ASSAY_TRY(gpu_call_observe(run, c, 1, false));
    ASSAY_TRY(launch_one(run, c));
    return gpu_call_observe(run, c, 1, true);
}

/* The input whose elements the operation only moves, or adds up over ranks. */
static const gpu_value *moved_by(const gpu_resolved *c)
{
    if (c->o.op->collective)
        return gpu_call_value_in(c->in, c->n_in, "send");
    return strcmp(c->o.op->name, "gather_rows") == 0 ? gpu_call_value_in(c->in, c->n_in, "x") : NULL;
}

assay_status gpu_call_finish_outputs(gpu_run *run, gpu_resolved *c)
{
    const gpu_comm_group *g = &run->comm.group[c->group];
    run->ran = c->skipped || c->o.op->collective ? -1 : c->variant;
    for (int i = 0; i < c->n_out; i++) {
        gpu_value *v = c->out[i].value;
        const assay_op_slot *s = assay_op_slot_find(c->o.op, c->out[i].slot, true);
        if (s->role == ASSAY_SLOT_INOUT)
            gpu_value_touch(run, v);
        if (run->fault)
            ASSAY_TRY(gpu_fault_output(run, &c->o, c->instance, c->out[i].slot, v, c->recv_counts, g->size));
        if (run->substitute)
            ASSAY_TRY(run->substitute(run->substitute_user, run, c->o.op->name, c->instance, c->out[i].slot,
                                      moved_by(c), v, &c->replaced[i]));
    }
    run->ran = -1;
    return ASSAY_OK;
}

static assay_status put_back(gpu_run *run, gpu_resolved *c)
{
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i].held && gpu_tensor_bytes(c->out[i].value->t) > 0)
            CUDA_TRY(cudaMemcpyAsync(c->out[i].value->t.data, c->out[i].held,
                                     gpu_tensor_bytes(c->out[i].value->t), cudaMemcpyDeviceToDevice,
                                     run->ctx.stream));
    return ASSAY_OK;
}

assay_status gpu_call_prepare(gpu_run *run, const gpu_call_args *args, gpu_resolved *c)
{
    return gpu_call_prepare_part(run, args, false, c);
}

assay_status gpu_call_prepare_part(gpu_run *run, const gpu_call_args *args, bool apart, gpu_resolved *c)
{
    ASSAY_TRY(gpu_call_look_up(run, args, c));
    ASSAY_TRY(gpu_call_make_outputs(run, apart, c));
    if (run->fault && !run->dry)
        ASSAY_TRY(spoil_call(run, c));
    gpu_call_fill_operands(c);
    c->wish = gpu_rules_variant(run, c->o.op, c->instance);
    c->recorded = run->trace != NULL && !run->dry &&
                  gpu_fault_at(run, GPU_FAULT_OMIT, c->o.op->name, c->instance) == NULL;
    return ASSAY_OK;
}

void gpu_call_need(gpu_run *run, const gpu_resolved *c)
{
    run->ctx.call_variant = 1 + c->wish;
    const size_t bytes = c->o.op->collective ? 0 : gpu_ladder_workspace(&run->ctx, &c->o);
    run->ctx.call_variant = 0;
    if (bytes > run->workspace_needed)
        run->workspace_needed = bytes;
}

/* Once more on what the first left: a reduction of its own result. */
static assay_status run_extra(gpu_run *run, gpu_resolved *c)
{
    const int send = gpu_operands_index(&c->o, "send"), recv = gpu_operands_index(&c->o, "recv");
    if (c->o.op->collective && c->n_in == 1 && c->n_out == 1 &&
        gpu_tensor_count(c->o.slot[send]) == gpu_tensor_count(c->o.slot[recv])) {
        c->in[0].value = c->out[0].value;
        c->o.slot[send] = c->o.slot[recv];
    }
    ASSAY_TRY(gpu_call_record_begin(run, c));
    ASSAY_TRY(run_once(run, c));
    ASSAY_TRY(gpu_call_finish_outputs(run, c));
    return gpu_call_record_end(run, c);
}

assay_status gpu_call_run(gpu_run *run, gpu_resolved *c)
{
    if (run->dry) {
        gpu_call_need(run, c);
        return ASSAY_OK;
    }
    const char *op = c->o.op->name;
    const bool skip = counted(gpu_fault_at(run, GPU_FAULT_SKIP, op, c->instance)) ||
                      counted(gpu_fault_at(run, GPU_FAULT_OMIT, op, c->instance));
    ASSAY_TRY(gpu_call_record_begin(run, c));
    if (run->fault)
        ASSAY_TRY(gpu_fault_nudge(run, &c->o, c->instance));
    ASSAY_TRY(skip ? skip_call(run, c) : run_once(run, c));
    if (counted(gpu_fault_at(run, GPU_FAULT_REPEAT, op, c->instance)))
        ASSAY_TRY(run_once(run, c));
    ASSAY_TRY(gpu_call_finish_outputs(run, c));
    ASSAY_TRY(gpu_call_record_end(run, c));
    if (counted(gpu_fault_at(run, GPU_FAULT_EXTRA, op, c->instance)))
        ASSAY_TRY(run_extra(run, c));
    return put_back(run, c);
}

assay_status gpu_call(gpu_run *run, const gpu_call_args *args)
{
    gpu_resolved c;
    memset(&c, 0, sizeof c);
    ASSAY_TRY(gpu_call_prepare(run, args, &c));
    return gpu_call_run(run, &c);
}

/* --- lists -------------------------------------------------------------------------------------------------- */
static assay_status launch_list(gpu_run *run, gpu_resolved *list, int64_t n)
{
    gpu_operands *o = calloc((size_t)n, sizeof *o);
    int variant = 0;
    ASSAY_CHECK(o, ASSAY_OUT_OF_MEMORY, "%s: a list of %lld calls", list->o.op->name, (long long)n);
    int wish = -1; /* one launch: the lowest that any of them was given */
    for (int64_t i = 0; i < n; i++) {
        o[i] = list[i].o;
        wish = list[i].wish >= 0 && (wish < 0 || list[i].wish < wish) ? list[i].wish : wish;
    }
    run->ctx.call_variant = 1 + wish;
    const assay_status st = gpu_ladder_run(&run->ctx, o, n, run->ctx.stream, &variant);
    run->ctx.call_variant = 0;
    for (int64_t i = 0; i < n && st == ASSAY_OK; i++)
        list[i].variant = variant;
    free(o);
    return st;
}

assay_status gpu_call_list(gpu_run *run, const gpu_call_args *args, int64_t n, gpu_launch launch, void *user)
{
    assay_status st = ASSAY_OK;
    if (n == 0)
        return launch && !run->dry ? launch(user) : ASSAY_OK;
    gpu_resolved *list = calloc((size_t)n, sizeof *list);
    ASSAY_CHECK(list, ASSAY_OUT_OF_MEMORY, "%s: a list of %lld calls", args->op, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        ASSAY_TRY_GOTO(gpu_call_prepare(run, &args[i], &list[i]), st, done);
        if (run->dry)
            gpu_call_need(run, &list[i]);
        else
            ASSAY_TRY_GOTO(gpu_call_record_begin(run, &list[i]), st, done);
    }
    if (run->dry)
        goto done;
    ASSAY_TRY_GOTO(gpu_call_observe(run, list, n, false), st, done);
    if (launch)
        ASSAY_TRY_GOTO(launch(user), st, done);
    else
        ASSAY_TRY_GOTO(launch_list(run, list, n), st, done);
    ASSAY_TRY_GOTO(gpu_call_observe(run, list, n, true), st, done);
    for (int64_t i = 0; i < n; i++) {
        ASSAY_TRY_GOTO(gpu_call_finish_outputs(run, &list[i]), st, done);
        ASSAY_TRY_GOTO(gpu_call_record_end(run, &list[i]), st, done);
        ASSAY_TRY_GOTO(put_back(run, &list[i]), st, done);
    }
done:
    free(list);
    return st;
}

static void enter(gpu_run *run, const gpu_transfer *t)
{
    run->phase = t->phase;
    run->microbatch = t->microbatch;
}

assay_status gpu_call_exchange(gpu_run *run, const gpu_transfer *list, int n)
{
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(n >= 0 && n <= GPU_EXCHANGE_TRANSFERS, ASSAY_INTERNAL, "exchange: %d transfers, at most %d",
                n, GPU_EXCHANGE_TRANSFERS);
    gpu_resolved *c = calloc((size_t)n + 1, sizeof *c);
    ASSAY_CHECK(c, ASSAY_OUT_OF_MEMORY, "exchange: %d transfers", n);
    for (int i = 0; i < n; i++) {
        enter(run, &list[i]);
        ASSAY_TRY_GOTO(gpu_call_prepare(run, &list[i].args, &c[i]), st, done);
        if (run->dry)
            continue;
        ASSAY_TRY_GOTO(gpu_call_record_begin(run, &c[i]), st, done);
        ASSAY_TRY_GOTO(gpu_call_observe(run, &c[i], 1, false), st, done);
    }
    if (run->dry)
        goto done;
    ASSAY_TRY_GOTO(gpu_comm_group_start(&run->comm), st, done);
    for (int i = 0; i < n && st == ASSAY_OK; i++)
        st = launch_one(run, &c[i]);
    ASSAY_TRY_GOTO(st, st, done);
    ASSAY_TRY_GOTO(gpu_comm_group_end(&run->comm), st, done);
    for (int i = 0; i < n; i++) {
        enter(run, &list[i]);
        ASSAY_TRY_GOTO(gpu_call_observe(run, &c[i], 1, true), st, done);
        ASSAY_TRY_GOTO(gpu_call_finish_outputs(run, &c[i]), st, done);
        ASSAY_TRY_GOTO(gpu_call_record_end(run, &c[i]), st, done);
    }
done:
    free(c);
    return st;
}
