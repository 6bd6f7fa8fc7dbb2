/* Records of a request as calls. */
#include "parity/certify/device.h"
#include "parity/certify/ranks.h"
#include "parity/certify/shapes.h"
#include "parity/certify/symbols.h"

#include <stdlib.h>
#include <string.h>

call_form call_plain(guard_place place, unsigned char fill)
{
    return (call_form){.place = place, .fill = fill, .out = -1, .in = -1};
}

bool call_is_output(const call_record *r, int slot)
{
    return r->slot[slot].present && r->kernel->op->slots[slot].role != ASSAY_SLOT_IN;
}

bool call_may_be_absent(const call_record *r, int slot)
{
    const assay_op_slot *row = &r->kernel->op->slots[slot];
    return row->role == ASSAY_SLOT_OUT && row->optional && row->like == NULL;
}

/* Whether the slot has no memory of its own in this form. */
static bool is_left_out(const call_record *r, const call_form *form, int slot)
{
    return !r->slot[slot].present || slot == form->out || (form->without && call_may_be_absent(r, slot));
}

bool call_has_rows(const call_record *r, int slot)
{
    return certify_slot_has_rows(&r->kernel->op->slots[slot]);
}

/* --- reading ------------------------------------------------------------------------------------------------ */
static void fill_slot(call_slot *s, assay_dtype dtype, int ndim, const int64_t *shape)
{
    int64_t count = 1;
    s->present = true;
    s->dtype = dtype;
    s->ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        s->shape[d] = shape[d];
        count *= shape[d];
    }
    s->bytes = (size_t)count * (size_t)assay_dtype_bytes(dtype);
}

static assay_status read_inputs(call_record *r, const assay_trace *t, assay_op_operand *operands)
{
    const assay_op *op = r->kernel->op;
    for (int i = 0; i < r->asked->n_inputs; i++) {
        const char *name = r->asked->inputs[i].slot;
        const assay_trace_tensor *x = assay_trace_op_tensor(t, r->asked, name);
        const assay_op_slot *row = assay_op_slot_find(op, name, false);
        ASSAY_CHECK(x != NULL && row != NULL && (x->data != NULL || x->bytes == 0) &&
                        x->shard.ndim <= ASSAY_KERNEL_MAX_DIMS,
                    ASSAY_INTERNAL, "%s: input %s", r->asked->instance, name);
        call_slot *s = &r->slot[row - op->slots];
        fill_slot(s, x->dtype, x->shard.ndim, x->shard.local_shape);
        s->before = x->data;
        operands[i] = (assay_op_operand){name, x->dtype, s->ndim, s->shape};
    }
    return ASSAY_OK;
}

/* A request may hold several extents in one's place ([7,5] for "n"): the kernel gets them as the row writes them. */
static assay_status fold_inputs(call_record *r)
{
    const assay_op *op = r->kernel->op;
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        int64_t shape[ASSAY_OP_DIMS];
        int ndim;
        if (!r->slot[i].present)
            continue;
        ASSAY_TRY(assay_op_slot_shape(op, &op->slots[i], &r->binding, &ndim, shape));
        ASSAY_CHECK(ndim <= ASSAY_KERNEL_MAX_DIMS, ASSAY_LIMIT, "%s: %d dimensions", op->slots[i].name, ndim);
        r->slot[i].ndim = ndim;
        memcpy(r->slot[i].shape, shape, (size_t)ndim * sizeof *shape);
    }
    return ASSAY_OK;
}

static assay_status add_outputs(call_record *r, const assay_op_operand *operands)
{
    const assay_op *op = r->kernel->op;
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        const assay_op_slot *row = &op->slots[i];
        int64_t shape[ASSAY_OP_DIMS];
        assay_dtype dtype;
        int ndim;
        const assay_op_slot *like =
            row->optional && row->like != NULL ? assay_op_slot_find(op, row->like, false) : NULL;
        if (row->role == ASSAY_SLOT_OUT && !(like != NULL && !r->slot[like - op->slots].present)) {
            if (op->collective) { /* what travels */
                dtype = r->act;
                ASSAY_TRY(assay_op_slot_shape(op, row, &r->binding, &ndim, shape));
            } else {
                ASSAY_TRY(assay_op_output(op, row, r->asked->attrs, operands, r->asked->n_inputs, &r->binding,
                                          &dtype, &ndim, shape));
            }
            fill_slot(&r->slot[i], dtype, ndim, shape);
        }
        if (call_is_output(r, i)) {
            r->slot[i].after = malloc(r->slot[i].bytes + 1);
            ASSAY_CHECK(r->slot[i].after != NULL, ASSAY_OUT_OF_MEMORY, "%s", row->name);
        }
    }
    return ASSAY_OK;
}

static assay_status read_attr(const call_record *r, const assay_op_attr *row, assay_kernel_attr *a)
{
    const assay_op *op = r->kernel->op;
    const json_t *attrs = r->asked->attrs;
    int word;
    *a = (assay_kernel_attr){.size = sizeof *a, .integer_type = 1};
    switch (row->type) {
    case ASSAY_ATTR_DOUBLE:
        a->integer_type = 0;
        return assay_op_attr_double(op, attrs, row->name, &a->number);
    case ASSAY_ATTR_BOOL: {
        bool value;
        ASSAY_TRY(assay_op_attr_bool(op, attrs, row->name, &value));
        a->integer = value;
        return ASSAY_OK;
    }
    case ASSAY_ATTR_WORD: {
        ASSAY_TRY(assay_op_attr_word(op, attrs, row->name, &word));
        a->integer = word;
        a->word = json_string_value(json_object_get(attrs, row->name));
        if (a->word == NULL)
            a->word = row->otherwise;
        return ASSAY_OK;
    }
    case ASSAY_ATTR_INTS: /* read_list */
        return ASSAY_OK;
    case ASSAY_ATTR_DTYPE:
        if (json_object_get(attrs, row->name) == NULL && strcmp(row->otherwise, "act") == 0)
            word = (int)r->act;
        else
            ASSAY_TRY(assay_op_attr_word(op, attrs, row->name, &word));
        a->integer = certify_abi_dtype((assay_dtype)word);
        return ASSAY_OK;
    default:
        return assay_op_attr_int(op, attrs, row->name, &a->integer);
    }
}

static assay_status read_list(call_record *r, int index)
{
    const assay_op_attr *row = &r->kernel->op->attrs[index];
    const json_t *list = json_object_get(r->asked->attrs, row->name);
    if (row->type != ASSAY_ATTR_INTS || list == NULL)
        return ASSAY_OK;
    ASSAY_CHECK(json_array_size(list) <= COMM_RANKS, ASSAY_LIMIT, "%s: %s: at most %d numbers", r->asked->op,
                row->name, COMM_RANKS);
    for (size_t i = 0; i < json_array_size(list); i++)
        r->list[index][i] = json_integer_value(json_array_get(list, i));
    r->attr[index].list = r->list[index];
    r->attr[index].n_list = (int64_t)json_array_size(list);
    return ASSAY_OK;
}

static assay_status bind_received(call_record *r)
{
    return certify_bind_received(&r->binding, r->asked, r->comm->rank, r->comm->n_ranks,
                                 r->slot[0].present ? r->slot[0].shape[0] : -1);
}

/* What the description says of this call: arithmetic, workspace. */
static assay_status ask_kernel(call_record *r)
{
    guard_arena none = {.n = 0};
    call_ready c;
    const assay_kernel *k = r->kernel->k;
    memset(&c, 0, sizeof c);
    ASSAY_TRY(call_prepare(r, (call_form){.out = -1, .in = -1}, &none, NULL, &c));
    r->declared = assay_declaration_make(r->kernel->declared.all);
    for (int i = 0; i < assay_op_n_slots(r->kernel->op);
         i++) /* an optional output that is absent declares nothing */
        if (call_is_output(r, i)) {
            const char *name = r->kernel->op->slots[i].name;
            ASSAY_TRY(
                assay_declaration_set(&r->declared, name, *assay_declaration_of(&r->kernel->declared, name)));
        }
    for (int i = 0; i < assay_op_n_slots(r->kernel->op) && k->adapt != NULL; i++) {
        if (!call_is_output(r, i) || r->slot[i].dtype == ASSAY_I64)
            continue;
        const assay_arith *was = assay_declaration_of(&r->kernel->declared, r->kernel->op->slots[i].name);
        assay_kernel_arith a = {.size = sizeof a,
                                .accumulate = certify_abi_dtype(was->accumulate),
                                .order = (int32_t)was->order,
                                .lanes = was->lanes,
                                .split = was->split,
                                .k_step = was->k_step,
                                .guard_bits = was->guard_bits,
                                .fma = was->fma,
                                .atomics = was->atomics,
                                .math_ulp = was->math_ulp,
                                .tile = was->tile,
                                .rounding = was->rounding};
        assay_arith now;
        guard_inside(true);
        k->adapt(&c.call, i, &a);
        guard_inside(false);
        ASSAY_TRY(certify_arith_adapted(was, &a, r->kernel->op->slots[i].name, &now));
        ASSAY_TRY(assay_declaration_set(&r->declared, r->kernel->op->slots[i].name, now));
    }
    guard_inside(true);
    r->workspace_bytes = k->workspace != NULL ? k->workspace(&c.call) : 0;
    guard_inside(false);
    return ASSAY_OK;
}

assay_status call_read(call_record *r, const certify_kernel *k, const assay_trace *t,
                       const assay_trace_op *asked, assay_dtype act, const assay_kernel_comm *comm)
{
    assay_op_operand operands[ASSAY_MAX_SLOTS];
    char why[96];
    memset(r, 0, sizeof *r);
    r->kernel = k;
    r->asked = asked;
    r->act = act;
    r->comm = comm;
    ASSAY_TRY(read_inputs(r, t, operands));
    ASSAY_TRY(
        assay_op_check(k->op, asked->attrs, act, act, operands, asked->n_inputs, NULL, -1, &r->binding));
    if (comm != NULL)
        ASSAY_TRY(bind_received(r));
    ASSAY_TRY(add_outputs(r, operands));
    ASSAY_TRY(fold_inputs(r));
    for (int i = 0; i < assay_op_n_attrs(k->op); i++)
        ASSAY_TRY(read_attr(r, &k->op->attrs[i], &r->attr[i]));
    for (int i = 0; i < assay_op_n_attrs(k->op); i++)
        ASSAY_TRY(read_list(r, i));
    r->taken = certify_shapes_take(k->k->shapes, k->op, &r->binding, asked->attrs, why, sizeof why) == 1;
    return ask_kernel(r);
}

void call_forget(call_record *r)
{
    for (int i = 0; i < ASSAY_OP_SLOTS; i++)
        free(r->slot[i].after);
    memset(r, 0, sizeof *r);
}

/* --- preparing ---------------------------------------------------------------------------------------------- */
static size_t align_of(const call_record *r, assay_dtype dtype)
{
    const size_t own = (size_t)assay_dtype_bytes(dtype), asked = (size_t)r->kernel->k->alignment;
    return asked > own ? asked : own;
}

/* Shape and strides of a slot in this form; the first dimension may have gaps. */
static void shape_tensor(const call_record *r, const call_form *form, int i, assay_dtype dtype,
                         assay_kernel_tensor *t)
{
    const call_slot *s = &r->slot[i];
    int64_t stride = 1;
    memset(t, 0, sizeof *t);
    t->size = sizeof *t;
    t->dtype = certify_abi_dtype(dtype);
    t->ndim = s->ndim;
    memcpy(t->shape, s->shape, sizeof t->shape);
    if (form->end > 0 && call_has_rows(r, i))
        t->shape[0] = form->end - form->first;
    for (int d = s->ndim - 1; d >= 0; d--) {
        t->stride[d] = stride;
        if (d == 0 && s->ndim > 1 &&
            form->gap > 0) /* a gap of its own: one tensor's stride is not another's */
            t->stride[d] = stride + form->gap * (i + 1);
        stride *= t->shape[d];
    }
}

static int64_t row_elements(const assay_kernel_tensor *t)
{
    int64_t n = 1;
    for (int d = 1; d < t->ndim; d++)
        n *= t->shape[d];
    return n;
}

/* Bytes from the first element to the end of the last one. */
static size_t span_bytes(const assay_kernel_tensor *t, assay_dtype dtype)
{
    const int64_t rows = t->ndim > 0 ? t->shape[0] : 1, row = row_elements(t);
    const int64_t stride = t->ndim > 1 ? t->stride[0] : row;
    return rows > 0 && row > 0 ? (size_t)((rows - 1) * stride + row) * (size_t)assay_dtype_bytes(dtype) : 0;
}

/* Copies the rows of a slot in (from dense bytes) or out of its place. */
static void copy_rows(const call_record *r, const call_ready *c, int i, unsigned char *dense, bool out)
{
    const assay_kernel_tensor *t = &c->tensor[i];
    const size_t width = (size_t)assay_dtype_bytes(r->slot[i].dtype);
    const int64_t rows = t->ndim > 0 ? t->shape[0] : 1;
    const size_t row = (size_t)row_elements(t) * width,
                 stride = t->ndim > 1 ? (size_t)t->stride[0] * width : row;
    unsigned char *place = t->data;
    for (int64_t k = 0; k < rows && row > 0; k++)
        if (out)
            memcpy(dense + (size_t)k * row, place + (size_t)k * stride, row);
        else
            memcpy(place + (size_t)k * stride, dense + (size_t)k * row, row);
}

static const unsigned char *before_of(const call_record *r, const call_ready *c, int i)
{
    const call_slot *s = &r->slot[i];
    const size_t rows = s->ndim > 0 && s->shape[0] > 0 ? (size_t)s->shape[0] : 1;
    return s->before != NULL && call_has_rows(r, i) ? s->before + s->bytes / rows * (size_t)c->form.first
                                                    : s->before;
}

static assay_status place_slot(const call_record *r, call_ready *c, int i)
{
    const call_slot *s = &r->slot[i];
    const char *name = r->kernel->op->slots[i].name;
    const size_t bytes = span_bytes(&c->tensor[i], s->dtype);
    ASSAY_TRY(guard_take(c->arena, i, name, bytes, align_of(r, s->dtype), c->form.place, c->form.fill));
    c->tensor[i].data = bytes > 0 || !c->form.data_absent ? c->arena->buffer[i].data : NULL;
    if (s->before != NULL && bytes > 0)
        copy_rows(r, c, i, (unsigned char *)(uintptr_t)before_of(r, c, i), false);
    c->arena->buffer[i].is_input = r->kernel->op->slots[i].role == ASSAY_SLOT_IN;
    return ASSAY_OK;
}

static bool is_shadowed(const call_record *r, int i)
{
    return call_is_output(r, i) && assay_dtype_is_float(r->slot[i].dtype);
}

static assay_status place_all(const call_record *r, call_ready *c)
{
    const int n = assay_op_n_slots(r->kernel->op);
    guard_clear(c->arena);
    guard_clear(c->shadows);
    for (int i = 0; i < n; i++) {
        if (is_left_out(r, &c->form, i))
            continue;
        ASSAY_TRY(place_slot(r, c, i));
        if (!c->form.shadow || !is_shadowed(r, i))
            continue;
        shape_tensor(r, &c->form, i, ASSAY_F32, &c->shadow_tensor[i]);
        ASSAY_TRY(guard_take(c->shadows, i, r->kernel->op->slots[i].name,
                             span_bytes(&c->shadow_tensor[i], ASSAY_F32), align_of(r, ASSAY_F32),
                             c->form.place, c->form.fill));
        c->shadow_tensor[i].data = c->shadows->buffer[i].data;
        c->shadow[i] = &c->shadow_tensor[i];
    }
    if (c->form.out >= 0)
        c->tensor[c->form.out].data = c->tensor[c->form.in].data;
    size_t bytes = r->workspace_bytes;
    if (c->form.without && r->kernel->k->workspace != NULL) { /* of fewer outputs */
        guard_inside(true);
        bytes = r->kernel->k->workspace(&c->call);
        guard_inside(false);
    }
    ASSAY_TRY(
        guard_take(c->arena, n, "workspace", bytes, align_of(r, ASSAY_I64), c->form.place, c->form.fill));
    c->call.workspace = c->arena->buffer[n].data;
    c->call.workspace_bytes = bytes;
    return ASSAY_OK;
}

/* shadows NULL: no memory at all (what workspace() and adapt() get). */
assay_status call_prepare(const call_record *r, call_form form, guard_arena *arena, guard_arena *shadows,
                          call_ready *c)
{
    const assay_op *op = r->kernel->op;
    memset(c, 0, sizeof *c);
    c->form = form;
    c->arena = arena;
    c->shadows = shadows;
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        if (!r->slot[i].present || (form.without && call_may_be_absent(r, i)))
            continue;
        shape_tensor(r, &form, i, r->slot[i].dtype, &c->tensor[i]);
        c->slot[i] = &c->tensor[i];
    }
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        c->attr[i] = &r->attr[i];
    c->call = (assay_kernel_call){.size = sizeof c->call,
                                  .act = certify_abi_dtype(r->act),
                                  .operation = op->name,
                                  .n_slots = assay_op_n_slots(op),
                                  .n_attrs = assay_op_n_attrs(op),
                                  .slot = c->slot,
                                  .attr = c->attr,
                                  .shadow = form.shadow ? c->shadow : NULL,
                                  .comm = r->comm};
    return shadows != NULL ? place_all(r, c) : ASSAY_OK;
}

/* --- running and looking --------------------------------------------------------------------------------------- */
void call_lock(const call_record *r, const call_ready *c, bool locked)
{
    for (int i = 0; i < ASSAY_OP_SLOTS && c->form.locked; i++)
        if (r->slot[i].present && r->kernel->op->slots[i].role == ASSAY_SLOT_IN && i != c->form.in)
            (void)guard_lock(c->arena, i, locked);
}

int32_t call_kernel(const call_record *r, const call_ready *c)
{
    const assay_kernel *k = r->kernel->k;
    int32_t code = k->run(&c->call);
    if (k->synchronize != NULL && k->synchronize(c->call.stream) != 0 && code == ASSAY_KERNEL_OK)
        code = ASSAY_KERNEL_DEVICE;
    return code;
}

int32_t call_run(const call_record *r, const call_ready *c, certify_board *board)
{
    board->runs++;
    if (r->kernel->device != NULL)
        return device_run(r, c, board);
    call_lock(r, c, true);
    guard_inside(true);
    const int32_t code = call_kernel(r, c);
    guard_inside(false);
    call_lock(r, c, false);
    return code;
}

size_t call_collect(const call_record *r, const call_ready *c, int i, unsigned char *out)
{
    const assay_kernel_tensor *t = &c->tensor[i];
    const int64_t rows = t->ndim > 0 ? t->shape[0] : 1;
    copy_rows(r, c, i, out, true);
    return (size_t)(rows * row_elements(t)) * (size_t)assay_dtype_bytes(r->slot[i].dtype);
}

static void inspect_buffer(const guard_buffer *b, unsigned char fill, const char *what, certify_board *board)
{
    const int64_t damage = guard_damage(b, fill);
    board->trial[CERTIFY_GUARDS].calls++;
    if (damage != 0)
        certify_bad(board, CERTIFY_GUARDS, "wrote %lld bytes %s %s%s, in %s", (long long)llabs(damage),
                    damage > 0 ? "past the end of" : "before the start of", what, b->name, board->now);
}

static void inspect_gaps(const call_record *r, const call_ready *c, int i, certify_board *board)
{
    const assay_kernel_tensor *t = &c->tensor[i];
    const size_t width = (size_t)assay_dtype_bytes(r->slot[i].dtype), row = (size_t)row_elements(t) * width;
    const unsigned char *data = t->data;
    for (int64_t k = 0; row > 0 && t->ndim > 1 && k + 1 < t->shape[0]; k++)
        for (size_t b = row; b < (size_t)t->stride[0] * width; b++)
            if (data[(size_t)(k * t->stride[0]) * width + b] != c->form.fill) {
                certify_bad(board, CERTIFY_STRIDES, "wrote into the gap behind row %lld of %s, in %s",
                            (long long)k, r->kernel->op->slots[i].name, board->now);
                return;
            }
}

void call_inspect(const call_record *r, const call_ready *c, certify_board *board)
{
    const int n = assay_op_n_slots(r->kernel->op);
    for (int i = 0; i < n; i++) {
        if (is_left_out(r, &c->form, i))
            continue;
        inspect_buffer(&c->arena->buffer[i], c->form.fill, "", board);
        if (c->form.gap > 0)
            inspect_gaps(r, c, i, board);
        if (c->form.shadow && is_shadowed(r, i))
            inspect_buffer(&c->shadows->buffer[i], c->form.fill, "the shadow of ", board);
        if (r->kernel->op->slots[i].role != ASSAY_SLOT_IN || i == c->form.in || c->form.pieces)
            continue;
        unsigned char *now = malloc(r->slot[i].bytes + 1);
        board->trial[CERTIFY_INPUTS].calls++;
        const size_t bytes = now != NULL ? call_collect(r, c, i, now) : 0;
        if (now == NULL || (bytes > 0 && memcmp(now, before_of(r, c, i), bytes) != 0))
            certify_bad(board, CERTIFY_INPUTS, "changed input %s, in %s", r->kernel->op->slots[i].name,
                        board->now);
        free(now);
    }
    inspect_buffer(&c->arena->buffer[n], c->form.fill, "", board);
}

bool call_untouched(const call_record *r, const call_ready *c)
{
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++) {
        const guard_buffer *b = &c->arena->buffer[i];
        if (!call_is_output(r, i) || i == c->form.out)
            continue;
        if (r->slot[i].before != NULL) {
            if (b->bytes > 0 && memcmp(b->data, before_of(r, c, i), b->bytes) != 0)
                return false;
            continue;
        }
        for (size_t k = 0; k < b->bytes; k++)
            if (b->data[k] != c->form.fill)
                return false;
    }
    return true;
}
