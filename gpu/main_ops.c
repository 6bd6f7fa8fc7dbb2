/* `ops`: executes the op records of a request trace one by one. */
#include "gpu/execute.h"
#include "gpu/main.h"
#include "gpu/rung.h"

#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 64 << 20 };

/* Writes an input again, unchanged. */
static assay_status copy_input(gpu_run *run, const assay_trace_tensor *from, int64_t step, int64_t *id)
{
    assay_trace_tensor t = *from;
    t.step = step;
    if (t.kind == ASSAY_PIECE_ROWS) { /* its row names are another record of the request */
        t.kind = ASSAY_PIECE_LOCAL;
        t.rows_id = -1;
    }
    ASSAY_TRY(assay_trace_write_tensor(run->trace, &t, from->data));
    *id = t.id;
    return ASSAY_OK;
}

static assay_status write_output(gpu_run *run, const assay_trace_op *op, const gpu_slot *slot, int64_t *id)
{
    assay_trace_tensor t = {.phase = op->phase,
                            .step = op->step,
                            .microbatch = op->microbatch,
                            .dtype = slot->dtype,
                            .kind = ASSAY_PIECE_LOCAL,
                            .rows_id = -1};
    snprintf(t.name, sizeof t.name, "%.*s.%.*s", (int)(sizeof t.name - sizeof slot->slot - 2), op->instance,
             (int)sizeof slot->slot - 1, slot->slot);
    assay_shard_whole(&t.shard, slot->shape, slot->ndim);
    ASSAY_TRY(assay_trace_write_tensor(run->trace, &t, slot->data));
    *id = t.id;
    return ASSAY_OK;
}

static assay_status execute(gpu_run *run, const assay_trace *request, const assay_trace_op *op, int place,
                            gpu_slot *in, gpu_slot *out, int *n_out, gpu_declared *declared)
{
    const gpu_execute_form form = {.place = (gpu_place)place};
    const int rank = run->comm.rank;
    *n_out = 0;
    if (gpu_ops_is_collective(op->op)) {
        gpu_slot *s = &out[0];
        snprintf(s->slot, sizeof s->slot, "recv");
        ASSAY_TRY(gpu_ops_collective(run, op, assay_trace_op_tensor(request, op, "send"), malloc, &s->data,
                                     &s->dtype, &s->ndim, s->shape));
        *n_out = s->data ? 1 : 0;
        *declared =
            (gpu_declared){.variant_name = "nccl",
                           .arith.all = gpu_comm_arith(run->ctx.simulated, run->comm.world, s->dtype)};
        return ASSAY_OK;
    }
    char text[32] = "F32";
    assay_dtype act;
    ASSAY_TRY(assay_json_get_string(op->attrs, "act", false, op->op, text, sizeof text));
    ASSAY_TRY(assay_dtype_from_name(text, &act));
    ASSAY_TRY(gpu_execute_read_inputs(request, op, rank, in));
    return gpu_execute_as(&run->ctx, op->op, op->attrs, act, in, op->n_inputs, &form, out, n_out, declared);
}

/* Ids of a record's inputs in the answer, which holds them once, however many rungs read them. */
typedef struct input_ids {
    int64_t id[ASSAY_MAX_SLOTS];
    bool written;
} input_ids;

/* Inputs, outputs and the record of an operation that has everything else. */
static assay_status write_slots(gpu_run *run, const assay_trace *request, const assay_trace_op *from,
                                const gpu_slot *out, int n_out, input_ids *ids, assay_trace_op *op)
{
    for (int i = 0; i < op->n_inputs; i++) {
        if (!ids->written)
            ASSAY_TRY(copy_input(run,
                                 assay_trace_tensor_by_id(request, run->comm.rank, from->inputs[i].tensor),
                                 from->step, &ids->id[i]));
        op->inputs[i].tensor = ids->id[i];
    }
    ids->written = true;
    for (int i = 0; i < n_out; i++) {
        memcpy(op->outputs[i].slot, out[i].slot, sizeof op->outputs[i].slot);
        ASSAY_TRY(write_output(run, from, &out[i], &op->outputs[i].tensor));
    }
    return assay_trace_write_op(run->trace, op);
}

static assay_status write_record(gpu_run *run, const assay_trace *request, const assay_trace_op *from,
                                 const gpu_slot *out, int n_out, const gpu_declared *declared, input_ids *ids)
{
    assay_trace_op op = *from;
    op.n_outputs = n_out;
    op.variant = declared->variant;
    op.arith = declared->arith;
    snprintf(op.variant_name, sizeof op.variant_name, "%s",
             declared->variant_name ? declared->variant_name : "");
    if (gpu_ops_is_collective(from->op)) {
        snprintf(op.group, sizeof op.group, "world");
        op.n_group_ranks = run->comm.world;
        op.group_ranks = run->comm.group[ASSAY_GROUP_WORLD].ranks;
    }
    json_t *attrs = declared->p_dtype ? json_deep_copy(from->attrs) : NULL;
    if (attrs) {
        json_object_set_new(attrs, "p_dtype", json_string(declared->p_dtype));
        op.attrs = attrs;
    }
    const assay_status st = write_slots(run, request, from, out, n_out, ids, &op);
    json_decref(attrs);
    return st;
}

/* *variant: the rung that ran. */
static assay_status run_record(gpu_run *run, const assay_trace *request, const assay_trace_op *op, int place,
                               input_ids *ids, int *variant)
{
    gpu_slot in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    gpu_declared declared = {0};
    int n_out = 0;
    memset(in, 0, sizeof in);
    memset(out, 0, sizeof out);
    assay_status st = execute(run, request, op, place, in, out, &n_out, &declared);
    if (st == ASSAY_OK)
        st = write_record(run, request, op, out, n_out, &declared, ids);
    else
        st = assay_context(st, "rank %d: op %lld, %s %s", run->comm.rank, (long long)op->sequence, op->op,
                           op->instance);
    for (int i = 0; i < ASSAY_MAX_SLOTS; i++) {
        free(in[i].data);
        free(out[i].data);
    }
    *variant = declared.variant;
    return st;
}

/* The record once, or on every rung that takes it, from the highest down to k0: each run asks for a lower one than the last. */
static assay_status run_rungs(gpu_run *run, const assay_trace *request, const assay_trace_op *op,
                              const gpu_ops_form *form)
{
    const bool every = form->every_rung && !gpu_ops_is_collective(op->op);
    input_ids ids = {.written = false};
    int below = every ? GPU_MOST_RUNGS : 0; /* 1 + the highest that may run; 0: what the form says */
    assay_status st = ASSAY_OK;
    do {
        run->ctx.call_variant = below;
        st = run_record(run, request, op, form->place, &ids, &below);
        run->ctx.call_variant = 0;
    } while (every && below > 0 && st == ASSAY_OK);
    return st;
}

static assay_status run_all(gpu_run *run, const assay_trace *request, const gpu_ops_form *form)
{
    const int64_t n = assay_trace_n_ops(request, run->comm.rank);
    int64_t open_step = -1;
    for (int64_t i = 0; i < n; i++) {
        const assay_trace_op *op = assay_trace_op_at(request, run->comm.rank, i);
        if (open_step >= 0 && op->step != open_step)
            ASSAY_TRY(assay_trace_end_step(run->trace));
        open_step = op->step;
        ASSAY_TRY(run_rungs(run, request, op, form));
    }
    if (open_step >= 0)
        ASSAY_TRY(assay_trace_end_step(run->trace));
    return assay_trace_writer_close(run->trace);
}

assay_status gpu_ops_verb(const char *request_dir, const char *out, const gpu_ops_form *form)
{
    assay_status st = ASSAY_OK;
    assay_rank_env env;
    gpu_run run = {.layer = -1, .microbatch = -1};
    assay_trace *request = NULL;
    json_t *header = NULL;
    int devices = 0;
    bool comm_ready = false;
    ASSAY_TRY(assay_rank_env_read(&env));
    ASSAY_TRY_GOTO(assay_trace_open(&request, request_dir, true), st, done);
    ASSAY_CHECK_GOTO(assay_trace_world(request) == env.world, ASSAY_MISMATCH, st, done,
                     "%s: a request for %d ranks, %d were started", request_dir, assay_trace_world(request),
                     env.world);
    (void)cudaGetDeviceCount(&devices);
    ASSAY_TRY_GOTO(gpu_ctx_init(&run.ctx, devices > 0 ? env.local_rank % devices : -1, WORKSPACE_BYTES), st,
                   done);
    ASSAY_TRY_GOTO(gpu_ctx_set_variants(&run.ctx, form->variants), st, done);
    comm_ready = true;
    ASSAY_TRY_GOTO(gpu_comm_create(&run.comm, &env, NULL, true), st, done);
    gpu_comm_limit(&run.comm, form->collective_timeout);
    header = json_pack("{s:s, s:s, s:s, s:b}", "engine", run.ctx.simulated ? "sim" : "gpu", "tier",
                       run.ctx.simulated ? "sim" : "gpu", "device", run.ctx.device_name, "every_rung",
                       form->every_rung);
    ASSAY_TRY_GOTO(assay_trace_writer_open(&run.trace, out, env.rank, env.world, header, false), st, done);
    ASSAY_TRY_GOTO(run_all(&run, request, form), st, done);
done:
    json_decref(header);
    assay_trace_writer_destroy(run.trace);
    assay_trace_close(request);
    if (comm_ready)
        gpu_comm_destroy(&run.comm, st != ASSAY_OK);
    gpu_ctx_destroy(&run.ctx);
    free(run.host);
    return st;
}
