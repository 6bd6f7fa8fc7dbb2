/* The call: make outputs, ask for workspace, plant faults, record, launch, record. */
#include "gpu/call.h"

#include "gpu/check.h"
#include "gpu/fault.h"
#include "gpu/ladder.h"
#include <stdlib.h>
#include <string.h>

/* A call with its names looked up: operands for the launch, values with recorded slot names for the trace. */
typedef struct operand {
    char slot[ASSAY_SLOT_NAME];
    gpu_value *value;
    void *held; /* fault hold: what it gets back */
} operand;
typedef struct resolved {
    const gpu_call_args *args;
    gpu_operands o;
    char instance[ASSAY_NAME]; /* formatted only when somebody reads it */
    int n_in, n_out;
    operand in[GPU_CALL_ARGS], out[GPU_CALL_ARGS];
    assay_group group;
    const int64_t *counts, *recv_counts;
    bool recorded;
    assay_trace_op record;
    int variant; /* that ran */
    bool skipped;
    bool replaced[GPU_CALL_ARGS]; /* outputs that the substitute made */
} resolved;

/* --- looking up --------------------------------------------------------------------------------------------- */
static assay_status bad_name(const resolved *c, const char *name)
{
    ASSAY_FAIL(ASSAY_INTERNAL, "%s %s: no slot or attribute is called %s", c->o.op->name, c->args->at, name);
}

static assay_status add(operand *list, int *n, const char *slot, const char *suffix, gpu_value *v)
{
    ASSAY_CHECK(*n < GPU_CALL_ARGS, ASSAY_LIMIT, "%s: more than %d slots", slot, GPU_CALL_ARGS);
    snprintf(list[*n].slot, sizeof list[*n].slot, "%.20s%s", slot, suffix);
    list[(*n)++].value = v;
    return ASSAY_OK;
}

static const gpu_arg *find_arg(const gpu_call_args *args, const char *name, const char *suffix)
{
    const size_t n = strlen(name);
    for (int i = 0; i < GPU_CALL_ARGS && args->arg[i].name; i++)
        if (strncmp(args->arg[i].name, name, n) == 0 && strcmp(args->arg[i].name + n, suffix) == 0)
            return &args->arg[i];
    return NULL;
}

/* Sorts the arguments into inputs, outputs and attributes. */
static assay_status look_up(gpu_run *run, const gpu_call_args *args, resolved *c)
{
    const assay_op *op = assay_op_find(args->op);
    ASSAY_CHECK(op, ASSAY_INTERNAL, "%s: not in the table of operations", args->op);
    c->args = args;
    c->group = args->group;
    c->counts = args->counts;
    c->recv_counts = args->recv_counts;
    gpu_operands_init(&c->o, op);
    if (run->trace || run->fault || run->substitute || run->observer)
        gpu_instance(run, args->at, c->instance);
    for (int i = 0; i < GPU_CALL_ARGS && args->arg[i].name; i++) {
        const gpu_arg *a = &args->arg[i];
        const assay_op_slot *in = assay_op_slot_find(op, a->name, false),
                            *out = assay_op_slot_find(op, a->name, true);
        if (assay_op_attr_find(op, a->name)) {
            c->o.attr[c->o.n_attrs++] = (gpu_attr){a->name, a->number, a->integer, a->word};
            continue;
        }
        if (!in && !out)
            return bad_name(c, a->name);
        if (a->value == NULL)
            continue;
        if (in && in->role == ASSAY_SLOT_INOUT)
            continue; /* "x_in" comes with its "x" */
        if (in)
            ASSAY_TRY(add(c->in, &c->n_in, a->name, "", a->value));
        if (out && out->role == ASSAY_SLOT_INOUT) {
            const gpu_arg *before = find_arg(args, a->name, "_in");
            ASSAY_TRY(add(c->in, &c->n_in, a->name, "_in", before ? before->value : a->value));
        }
        if (out)
            ASSAY_TRY(add(c->out, &c->n_out, a->name, "", a->value));
    }
    return ASSAY_OK;
}

static gpu_value *value_in(const operand *list, int n, const char *slot)
{
    const size_t length = strlen(slot);
    for (int i = 0; i < n; i++)
        if (strncmp(list[i].slot, slot, length) == 0 &&
            (list[i].slot[length] == '\0' || list[i].slot[length] == '.'))
            return list[i].value;
    return NULL;
}

/* The dtype that the table gives an output. */
static assay_status output_dtype(const gpu_run *run, const resolved *c, const assay_op_slot *s,
                                 assay_dtype *out)
{
    const gpu_value *like = s->like ? value_in(c->in, c->n_in, s->like) : NULL;
    const gpu_attr *a = s->like ? gpu_operand_attr(&c->o, s->like) : NULL;
    const bool backward = run->phase == ASSAY_PHASE_BACKWARD;
    *out = assay_op_dtype(c->o.op, run->recipe, s->dtype, backward);
    switch (s->dtype) {
    case ASSAY_CLASS_F64:
        *out = ASSAY_F64;
        return ASSAY_OK;
    case ASSAY_CLASS_I64:
        *out = ASSAY_I64;
        return ASSAY_OK;
    case ASSAY_CLASS_ATTR:
        return a ? assay_dtype_from_name(a->word, out) : ASSAY_OK;
    case ASSAY_CLASS_SAME:
    case ASSAY_CLASS_ANY:
        *out = like ? like->t.dtype : *out;
        return ASSAY_OK;
    case ASSAY_CLASS_F32:
    case ASSAY_CLASS_ACT:
    case ASSAY_CLASS_PAR:
    case ASSAY_CLASS_FLOAT:
        break;
    }
    return ASSAY_OK;
}

/* Memory, name and phase for what is only described; an updated value belongs to the present phase from now on. */
static assay_status make_outputs(gpu_run *run, resolved *c)
{
    for (int i = 0; i < c->n_out; i++) {
        gpu_value *v = c->out[i].value;
        const assay_op_slot *s = assay_op_slot_find(c->o.op, c->out[i].slot, true);
        assay_dtype dtype;
        if (v->arena == NULL)
            continue;
        ASSAY_TRY(output_dtype(run, c, s, &dtype));
        ASSAY_TRY(gpu_value_make(v, dtype));
        if (v->name[0] == '\0')
            gpu_value_name(run, v, c->args->at, s->name);
        else
            gpu_value_touch(run, v);
    }
    return ASSAY_OK;
}

static void fill_operands(resolved *c)
{
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < (k ? c->n_out : c->n_in); i++) {
            const operand *v = k ? &c->out[i] : &c->in[i];
            const int index = gpu_operands_index(&c->o, v->slot);
            if (index < 0) /* "x_in", and pieces "send.1": the launch of the list knows them */
                continue;
            c->o.slot[index] = v->value->t;
            c->o.host[index] = v->value->host;
        }
}

/* --- collectives -------------------------------------------------------------------------------------------- */
static int64_t sum_of(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static int64_t row_elements(gpu_tensor t, const int64_t *counts, int n)
{
    const int64_t rows = sum_of(counts, n);
    return rows > 0 ? gpu_tensor_count(t) / rows : 1;
}

typedef assay_status (*uneven)(gpu_comm *c, assay_group group, const void *send, void *recv,
                               const int64_t *counts, assay_dtype dtype, cudaStream_t stream);

static assay_status launch_uneven(gpu_run *run, const resolved *c, uneven call, gpu_tensor whole)
{
    const gpu_tensor send = gpu_operand(&c->o, "send"), recv = gpu_operand(&c->o, "recv");
    const int n = run->comm.group[c->group].size;
    int64_t *elements = calloc((size_t)n, sizeof *elements);
    ASSAY_CHECK(elements, ASSAY_OUT_OF_MEMORY, "%s: counts of %d ranks", c->o.op->name, n);
    for (int i = 0; i < n; i++)
        elements[i] = c->counts[i] * row_elements(whole, c->counts, n);
    const assay_status st =
        call(&run->comm, c->group, send.data, recv.data, elements, send.dtype, run->ctx.stream);
    free(elements);
    return st;
}

static assay_status launch_all_to_all(gpu_run *run, const resolved *c)
{
    const gpu_tensor send = gpu_operand(&c->o, "send"), recv = gpu_operand(&c->o, "recv");
    const int n = run->comm.group[c->group].size;
    const int64_t width =
        send.ndim > 1 ? gpu_tensor_count(send) > 0 || send.shape[0] > 0 ? send.stride[0] : send.shape[1] : 1;
    int64_t *elements = calloc(2 * (size_t)n, sizeof *elements);
    ASSAY_CHECK(elements, ASSAY_OUT_OF_MEMORY, "all_to_all: counts of %d ranks", n);
    for (int i = 0; i < n; i++) {
        elements[i] = c->counts[i] * width;
        elements[n + i] = c->recv_counts[i] * width;
    }
    const assay_status st = gpu_comm_all_to_all_v(&run->comm, c->group, send.data, elements, recv.data,
                                                  elements + n, send.dtype, run->ctx.stream);
    free(elements);
    return st;
}

static assay_status launch_collective(gpu_run *run, resolved *c)
{
    static const struct {
        const char *op;
        gpu_comm_op call;
    } plain[] = {{"all_reduce", GPU_COMM_ALL_REDUCE},
                 {"all_gather", GPU_COMM_ALL_GATHER},
                 {"reduce_scatter", GPU_COMM_REDUCE_SCATTER},
                 {"broadcast", GPU_COMM_BROADCAST},
                 {"send", GPU_COMM_SEND},
                 {"recv", GPU_COMM_RECV}};
    const gpu_tensor send = gpu_operand(&c->o, "send"), recv = gpu_operand(&c->o, "recv");
    const char *op = c->o.op->name;
    if (strcmp(op, "all_to_all") == 0)
        return launch_all_to_all(run, c);
    if (c->counts && strcmp(op, "all_gather") == 0)
        return launch_uneven(run, c, gpu_comm_all_gather_v, recv);
    if (c->counts && strcmp(op, "reduce_scatter") == 0)
        return launch_uneven(run, c, gpu_comm_reduce_scatter_v, send);
    gpu_comm_call call = {.group = c->group,
                          .send = send.data,
                          .recv = recv.data,
                          .dtype = gpu_operand(&c->o, gpu_tensor_present(send) ? "send" : "recv").dtype};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(plain[i].op, op) == 0)
            call.op = plain[i].call;
    const gpu_tensor counted = call.op == GPU_COMM_REDUCE_SCATTER || call.op == GPU_COMM_RECV ? recv : send;
    call.count = gpu_tensor_count(counted);
    call.root = (int)(assay_op_attr_find(c->o.op, "peer")   ? gpu_operand_int(&c->o, "peer")
                      : assay_op_attr_find(c->o.op, "root") ? gpu_operand_int(&c->o, "root")
                                                            : 0);
    if (assay_op_attr_find(c->o.op, "start")) {
        const int64_t start = gpu_operand_int(&c->o, "start");
        const int64_t skipped = start * assay_dtype_bytes(call.dtype);
        call.send = (const char *)call.send + skipped;
        call.recv = (char *)call.recv + skipped;
        call.count -= start;
    }
    call.max = assay_op_attr_find(c->o.op, "reduction") && gpu_operand_word(&c->o, "reduction") == 1;
    return call.count > 0 ? gpu_comm_enqueue(&run->comm, &call, run->ctx.stream) : ASSAY_OK;
}

static gpu_declared collective_arith(const gpu_run *run, const resolved *c)
{
    const assay_dtype dtype = c->n_out > 0 ? c->out[0].value->t.dtype : ASSAY_F32;
    return (gpu_declared){.variant_name = "nccl",
                          .arith.all =
                              gpu_comm_arith(run->ctx.simulated, run->comm.group[c->group].size, dtype)};
}

/* --- records ------------------------------------------------------------------------------------------------ */
static assay_status write_slots(gpu_run *run, const operand *list, int n, assay_trace_slot *slots,
                                int *n_slots)
{
    for (int i = 0; i < n; i++) {
        ASSAY_CHECK(*n_slots < ASSAY_MAX_SLOTS, ASSAY_INTERNAL, "trace: more than %d slots", ASSAY_MAX_SLOTS);
        assay_trace_slot *s = &slots[*n_slots];
        snprintf(s->slot, sizeof s->slot, "%s", list[i].slot);
        ASSAY_TRY(gpu_trace_write(run, list[i].value, &s->tensor));
        (*n_slots)++;
    }
    return ASSAY_OK;
}

static assay_status record_begin(gpu_run *run, resolved *c)
{
    memset(&c->record, 0, sizeof c->record);
    if (!c->recorded)
        return ASSAY_OK;
    snprintf(c->record.op, sizeof c->record.op, "%s", c->o.op->name);
    snprintf(c->record.instance, sizeof c->record.instance, "%s", c->instance);
    c->record.phase = run->phase;
    c->record.step = run->step;
    c->record.microbatch = run->microbatch;
    c->record.recompute = run->recompute;
    return write_slots(run, c->in, c->n_in, c->record.inputs, &c->record.n_inputs);
}

static json_t *count_list(const int64_t *counts, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(counts[i]));
    return list;
}

static bool is_even(const int64_t *counts, int n)
{
    for (int i = 1; i < n; i++)
        if (counts[i] != counts[0])
            return false;
    return true;
}

/* A dtype that was not given is that of the tensor it is about. */
static const char *dtype_word(const resolved *c, const assay_op_attr *row)
{
    const gpu_value *v = strcmp(row->otherwise ? row->otherwise : "", "act") == 0
                             ? value_in(c->out, c->n_out, "y")
                             : value_in(c->in, c->n_in, "send");
    if (v == NULL)
        v = c->n_out > 0 ? c->out[0].value : NULL;
    return v ? assay_dtype_name(v->t.dtype) : NULL;
}

/* The attributes of the row that were given, in its order. */
static json_t *attributes(const gpu_run *run, const resolved *c)
{
    const int ranks = c->o.op->collective ? run->comm.group[c->group].size : 0;
    const bool token_rows = strcmp(c->o.op->name, "all_to_all") == 0 || c->group == ASSAY_GROUP_ETP;
    json_t *attrs = json_object();
    for (int i = 0; i < assay_op_n_attrs(c->o.op); i++) {
        const assay_op_attr *row = &c->o.op->attrs[i];
        const gpu_attr *a = gpu_operand_attr(&c->o, row->name);
        const int64_t *list = strcmp(row->name, "counts") == 0 ? c->counts : c->recv_counts;
        json_t *v = NULL;
        if (row->type == ASSAY_ATTR_INTS && list && (token_rows || !is_even(list, ranks)))
            v = count_list(list, ranks);
        else if (row->type == ASSAY_ATTR_DTYPE && !a && strcmp(row->name, "dtype") == 0 && dtype_word(c, row))
            v = json_string(dtype_word(c, row));
        else if (a && (row->type == ASSAY_ATTR_WORD || row->type == ASSAY_ATTR_DTYPE))
            v = json_string(a->word);
        else if (a && row->type == ASSAY_ATTR_DOUBLE)
            v = json_real(a->number);
        else if (a && row->type == ASSAY_ATTR_INT)
            v = json_integer(a->integer);
        else if (a && row->type == ASSAY_ATTR_BOOL)
            v = json_boolean(a->integer != 0);
        if (v)
            json_object_set_new(attrs, row->name, v);
    }
    if (json_object_size(attrs) > 0)
        return attrs;
    json_decref(attrs);
    return NULL;
}

static assay_status declare(const gpu_run *run, const resolved *c, gpu_declared *out)
{
    if (c->o.op->collective)
        *out = collective_arith(run, c);
    else if (c->skipped)
        *out = (gpu_declared){.variant_name = "skipped", .arith.all = assay_arith_elementwise()};
    else
        return gpu_ladder_declare(&run->ctx, &c->o, c->variant, out);
    return ASSAY_OK;
}

static assay_status record_end(gpu_run *run, resolved *c)
{
    if (!c->recorded)
        return ASSAY_OK;
    assay_trace_op *r = &c->record;
    gpu_declared declared;
    ASSAY_TRY(declare(run, c, &declared));
    r->variant = declared.variant;
    r->arith = declared.arith;
    snprintf(r->variant_name, sizeof r->variant_name, "%s", declared.variant_name);
    if (c->o.op->collective) {
        const gpu_comm_group *g = &run->comm.group[c->group];
        snprintf(r->group, sizeof r->group, "%s", assay_group_name(c->group));
        r->n_group_ranks = g->size;
        r->group_ranks = g->ranks;
    }
    ASSAY_TRY(write_slots(run, c->out, c->n_out, r->outputs, &r->n_outputs));
    for (int i = 0; i < c->n_out; i++)
        r->substituted[i] = c->replaced[i];
    r->attrs = attributes(run, c);
    const assay_status st = assay_trace_write_op(run->trace, r);
    json_decref(r->attrs);
    return st;
}

/* --- the seam ----------------------------------------------------------------------------------------------- */
/* Faults that change what goes in. */
static assay_status spoil_call(gpu_run *run, resolved *c)
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
static assay_status skip_call(gpu_run *run, resolved *c)
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
            before = c->counts
                         ? (size_t)(sum_of(c->counts, g->rank) * row_elements(send, c->counts, g->size) *
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
    const resolved *list = span->calls;
    return &list[i].o;
}

/* Around the launch of n calls, of which c is the first. */
static assay_status observe(gpu_run *run, const resolved *c, int64_t n, bool end)
{
    const gpu_observer *w = run->observer;
    const gpu_span span = {c->o.op->name, c->instance, n, end ? c->variant : 0, run->recompute, c->group, c};
    if (w == NULL || (end ? w->end : w->begin) == NULL)
        return ASSAY_OK;
    return (end ? w->end : w->begin)(w->user, run, &span);
}

static assay_status launch_one(gpu_run *run, resolved *c)
{
    if (!c->o.op->collective)
        return gpu_ladder_run(&run->ctx, &c->o, 1, run->ctx.stream, &c->variant);
    return launch_collective(run, c);
}

static assay_status run_once(gpu_run *run, resolved *c)
{
    ASSAY_TRY(observe(run, c, 1, false));
    ASSAY_TRY(launch_one(run, c));
    return observe(run, c, 1, true);
}

/* Results after a launch: faults, then what the substitute says. */
static assay_status finish_outputs(gpu_run *run, resolved *c)
{
    const gpu_comm_group *g = &run->comm.group[c->group];
    for (int i = 0; i < c->n_out; i++) {
        gpu_value *v = c->out[i].value;
        if (run->fault)
            ASSAY_TRY(gpu_fault_output(run, &c->o, c->instance, c->out[i].slot, v, c->recv_counts, g->size));
        if (run->substitute)
            ASSAY_TRY(run->substitute(run->substitute_user, run, c->o.op->name, c->instance, c->out[i].slot,
                                      v, &c->replaced[i]));
        const assay_op_slot *s = assay_op_slot_find(c->o.op, c->out[i].slot, true);
        if (s->role == ASSAY_SLOT_INOUT)
            gpu_value_touch(run, v);
    }
    return ASSAY_OK;
}

static assay_status put_back(gpu_run *run, resolved *c)
{
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i].held && gpu_tensor_bytes(c->out[i].value->t) > 0)
            CUDA_TRY(cudaMemcpyAsync(c->out[i].value->t.data, c->out[i].held,
                                     gpu_tensor_bytes(c->out[i].value->t), cudaMemcpyDeviceToDevice,
                                     run->ctx.stream));
    return ASSAY_OK;
}

static assay_status prepare(gpu_run *run, const gpu_call_args *args, resolved *c)
{
    ASSAY_TRY(look_up(run, args, c));
    ASSAY_TRY(make_outputs(run, c));
    if (run->fault && !run->dry)
        ASSAY_TRY(spoil_call(run, c));
    fill_operands(c);
    c->recorded = run->trace != NULL && !run->dry &&
                  gpu_fault_at(run, GPU_FAULT_OMIT, c->o.op->name, c->instance) == NULL;
    return ASSAY_OK;
}

static void need(gpu_run *run, const resolved *c)
{
    const size_t bytes = c->o.op->collective ? 0 : gpu_ladder_workspace(&run->ctx, &c->o);
    if (bytes > run->workspace_needed)
        run->workspace_needed = bytes;
}

/* Once more on what the first left: a reduction of its own result. */
static assay_status run_extra(gpu_run *run, resolved *c)
{
    const int send = gpu_operands_index(&c->o, "send"), recv = gpu_operands_index(&c->o, "recv");
    if (c->o.op->collective && c->n_in == 1 && c->n_out == 1 &&
        gpu_tensor_count(c->o.slot[send]) == gpu_tensor_count(c->o.slot[recv])) {
        c->in[0].value = c->out[0].value;
        c->o.slot[send] = c->o.slot[recv];
    }
    ASSAY_TRY(record_begin(run, c));
    ASSAY_TRY(run_once(run, c));
    ASSAY_TRY(finish_outputs(run, c));
    return record_end(run, c);
}

assay_status gpu_call(gpu_run *run, const gpu_call_args *args)
{
    resolved c;
    memset(&c, 0, sizeof c);
    ASSAY_TRY(prepare(run, args, &c));
    if (run->dry) {
        need(run, &c);
        return ASSAY_OK;
    }
    const char *op = c.o.op->name;
    const bool skip = counted(gpu_fault_at(run, GPU_FAULT_SKIP, op, c.instance)) ||
                      counted(gpu_fault_at(run, GPU_FAULT_OMIT, op, c.instance));
    ASSAY_TRY(record_begin(run, &c));
    ASSAY_TRY(skip ? skip_call(run, &c) : run_once(run, &c));
    if (counted(gpu_fault_at(run, GPU_FAULT_REPEAT, op, c.instance)))
        ASSAY_TRY(run_once(run, &c));
    ASSAY_TRY(finish_outputs(run, &c));
    ASSAY_TRY(record_end(run, &c));
    if (counted(gpu_fault_at(run, GPU_FAULT_EXTRA, op, c.instance)))
        ASSAY_TRY(run_extra(run, &c));
    return put_back(run, &c);
}

/* --- lists -------------------------------------------------------------------------------------------------- */
static assay_status launch_list(gpu_run *run, resolved *list, int64_t n)
{
    gpu_operands *o = calloc((size_t)n, sizeof *o);
    int variant = 0;
    ASSAY_CHECK(o, ASSAY_OUT_OF_MEMORY, "%s: a list of %lld calls", list->o.op->name, (long long)n);
    for (int64_t i = 0; i < n; i++)
        o[i] = list[i].o;
    const assay_status st = gpu_ladder_run(&run->ctx, o, n, run->ctx.stream, &variant);
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
    resolved *list = calloc((size_t)n, sizeof *list);
    ASSAY_CHECK(list, ASSAY_OUT_OF_MEMORY, "%s: a list of %lld calls", args->op, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        ASSAY_TRY_GOTO(prepare(run, &args[i], &list[i]), st, done);
        if (run->dry)
            need(run, &list[i]);
        else
            ASSAY_TRY_GOTO(record_begin(run, &list[i]), st, done);
    }
    if (run->dry)
        goto done;
    ASSAY_TRY_GOTO(observe(run, list, n, false), st, done);
    if (launch)
        ASSAY_TRY_GOTO(launch(user), st, done);
    else
        ASSAY_TRY_GOTO(launch_list(run, list, n), st, done);
    ASSAY_TRY_GOTO(observe(run, list, n, true), st, done);
    for (int64_t i = 0; i < n; i++) {
        ASSAY_TRY_GOTO(finish_outputs(run, &list[i]), st, done);
        ASSAY_TRY_GOTO(record_end(run, &list[i]), st, done);
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
    resolved *c = calloc((size_t)n + 1, sizeof *c);
    ASSAY_CHECK(c, ASSAY_OUT_OF_MEMORY, "exchange: %d transfers", n);
    for (int i = 0; i < n; i++) {
        enter(run, &list[i]);
        ASSAY_TRY_GOTO(prepare(run, &list[i].args, &c[i]), st, done);
        ASSAY_TRY_GOTO(record_begin(run, &c[i]), st, done);
        ASSAY_TRY_GOTO(observe(run, &c[i], 1, false), st, done);
    }
    ASSAY_TRY_GOTO(gpu_comm_group_start(&run->comm), st, done);
    for (int i = 0; i < n && st == ASSAY_OK; i++)
        st = launch_one(run, &c[i]);
    ASSAY_TRY_GOTO(st, st, done);
    ASSAY_TRY_GOTO(gpu_comm_group_end(&run->comm), st, done);
    for (int i = 0; i < n; i++) {
        enter(run, &list[i]);
        ASSAY_TRY_GOTO(observe(run, &c[i], 1, true), st, done);
        ASSAY_TRY_GOTO(finish_outputs(run, &c[i]), st, done);
        ASSAY_TRY_GOTO(record_end(run, &c[i]), st, done);
    }
done:
    free(c);
    return st;
}
