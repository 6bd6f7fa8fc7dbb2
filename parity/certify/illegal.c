/* Calls that break the contract: each gets an error code, and no output is written. */
#include "parity/certify/symbols.h"
#include "parity/certify/trial.h"

#include <string.h>

typedef struct breakage {
    trial *t;
    const call_record *r;
    call_ready c;
} breakage;

static assay_status begin(breakage *b, const char *what)
{
    trial_now(b->t, b->r, what);
    return call_prepare(b->r, call_plain(GUARD_END, FILL_ONES), &b->t->arena, &b->t->shadows, &b->c);
}

static void run(breakage *b)
{
    certify_board *board = b->t->board;
    /* Structs are on the heap of nobody: a kernel that ignores what is broken runs as always. */
    guard_limit(b->t->limit);
    const int32_t code = b->r->comm != NULL ? trial_alone(b->t, b->r, &b->c) : call_run(b->r, &b->c, board);
    guard_limit(0);
    board->trial[CERTIFY_ARGUMENTS].calls++;
    if (code == ASSAY_KERNEL_OK)
        certify_bad(board, CERTIFY_ARGUMENTS, "no error code for %s", board->now);
    else if (!call_untouched(b->r, &b->c))
        certify_bad(board, CERTIFY_ARGUMENTS, "an output is written although error code %d is returned: %s",
                    code, board->now);
}

static assay_status try_extent(breakage *b, int i, int d, int more, const char *what)
{
    ASSAY_TRY(begin(b, what));
    b->c.tensor[i].shape[d] += more;
    for (int k = b->r->slot[i].ndim - 2; k >= 0; k--)
        b->c.tensor[i].stride[k] = b->c.tensor[i].stride[k + 1] * b->c.tensor[i].shape[k + 1];
    run(b);
    return ASSAY_OK;
}

static assay_status try_shapes(breakage *b, int i)
{
    const assay_op *op = b->r->kernel->op;
    for (int d = 0; d < b->r->slot[i].ndim; d++) {
        char symbol[8], what[96];
        certify_symbol_of(&op->slots[i], d, symbol);
        if (symbol[0] == '\0' ||
            (!certify_is_number(&op->slots[i], d) && !certify_symbol_is_shared(op, i, symbol)))
            continue;
        snprintf(what, sizeof what, "an extra element in dimension %d of %s: ", d, op->slots[i].name);
        ASSAY_TRY(try_extent(b, i, d, 1, what));
        if (b->r->slot[i].shape[d] < 2) /* a call without elements may be asked for nothing else */
            continue;
        snprintf(what, sizeof what, "an element less in dimension %d of %s: ", d, op->slots[i].name);
        ASSAY_TRY(try_extent(b, i, d, -1, what));
    }
    return ASSAY_OK;
}

static assay_status try_dtype(breakage *b, int i, assay_dtype dtype)
{
    char what[96];
    snprintf(what, sizeof what, "%s of dtype %s: ", b->r->kernel->op->slots[i].name, assay_dtype_name(dtype));
    ASSAY_TRY(begin(b, what));
    b->c.tensor[i].dtype = certify_abi_dtype(dtype);
    run(b);
    return ASSAY_OK;
}

/* F64 in place of what the row says, and the other of F32 and BF16: a kernel that looks at the dtype of one tensor alone takes this one's
 * bytes for another type's. */
static assay_status try_dtypes(breakage *b, int i)
{
    const assay_op_slot *row = &b->r->kernel->op->slots[i];
    const assay_dtype now = b->r->slot[i].dtype;
    if (row->dtype == ASSAY_CLASS_ANY || row->dtype == ASSAY_CLASS_FLOAT)
        return ASSAY_OK;
    if (now != ASSAY_F64)
        ASSAY_TRY(try_dtype(b, i, ASSAY_F64));
    if (now == ASSAY_F32 || now == ASSAY_BF16)
        ASSAY_TRY(try_dtype(b, i, now == ASSAY_F32 ? ASSAY_BF16 : ASSAY_F32));
    return ASSAY_OK;
}

static assay_status try_slot(breakage *b, int i)
{
    const assay_op_slot *row = &b->r->kernel->op->slots[i];
    const assay_kernel *k = b->r->kernel->k;
    const call_slot *s = &b->r->slot[i];
    char what[96];
    if (!row->optional) {
        snprintf(what, sizeof what, "no tensor for %s: ", row->name);
        ASSAY_TRY(begin(b, what));
        b->c.slot[i] = NULL;
        run(b);
    }
    snprintf(what, sizeof what, "no data for %s: ", row->name);
    ASSAY_TRY(begin(b, what));
    b->c.tensor[i].data = NULL;
    run(b);
    ASSAY_TRY(try_dtypes(b, i));
    if (s->ndim > 1 && s->shape[0] > 1 && (k->flags & ASSAY_KERNEL_ROW_STRIDES) == 0) {
        snprintf(what, sizeof what, "%s with gaps between rows: ", row->name);
        ASSAY_TRY(begin(b, what));
        b->c.tensor[i].stride[0]++;
        run(b);
    }
    if (s->ndim > 0) {
        snprintf(what, sizeof what, "a negative extent of %s: ", row->name);
        ASSAY_TRY(begin(b, what));
        b->c.tensor[i].shape[0] = -1;
        run(b);
    }
    if (k->alignment > (int)assay_dtype_bytes(s->dtype)) {
        snprintf(what, sizeof what, "%s at an address that is not aligned: ", row->name);
        ASSAY_TRY(begin(b, what));
        b->c.tensor[i].data = (char *)b->c.tensor[i].data - assay_dtype_bytes(s->dtype);
        run(b);
    }
    return try_shapes(b, i);
}

/* Only records whose every slot has elements: an empty one allows more. */
static bool is_full(const call_record *r)
{
    for (int i = 0; i < ASSAY_OP_SLOTS; i++)
        if (r->slot[i].present && r->slot[i].bytes == 0)
            return false;
    return true;
}

/* What only a collective has: its communicator, lists of counts, ranks. */
static assay_status try_collective(breakage *b)
{
    const assay_op *op = b->r->kernel->op;
    char what[96];
    ASSAY_TRY(begin(b, "no communicator: "));
    b->c.call.comm = NULL;
    run(b);
    for (int i = 0; i < assay_op_n_attrs(op); i++) {
        const char *name = op->attrs[i].name;
        assay_kernel_attr attr = b->r->attr[i];
        int64_t list[COMM_RANKS + 1] = {0};
        const bool is_rank = strcmp(name, "root") == 0 || strcmp(name, "peer") == 0;
        const bool is_list = op->attrs[i].type == ASSAY_ATTR_INTS && strcmp(name, "shape") != 0;
        if (is_rank) {
            attr.integer = b->r->comm->n_ranks;
            snprintf(what, sizeof what, "%s beyond the ranks: ", name);
        } else if (strcmp(name, "start") == 0) {
            attr.integer = 1 + b->r->slot[0].shape[0];
            snprintf(what, sizeof what, "start behind the end: ");
        } else if (is_list) {
            memcpy(list, b->r->list[i], sizeof b->r->list[i]);
            attr.list = list;
            attr.n_list = b->r->comm->n_ranks;
            for (int r = 0; r < b->r->comm->n_ranks; r++)
                list[r] += 1 + b->r->slot[0].shape[0]; /* more than there is, with or without counts */
            snprintf(what, sizeof what, "%s that are not those of the tensors: ", name);
        } else {
            continue;
        }
        ASSAY_TRY(begin(b, what));
        b->c.attr[i] = &attr;
        run(b);
    }
    return ASSAY_OK;
}

assay_status trial_illegal(trial *t, const call_record *r)
{
    breakage b = {.t = t, .r = r};
    if (!is_full(r))
        return ASSAY_OK;
    t->legal++;
    ASSAY_TRY(begin(&b, "a call whose size is 8 bytes: "));
    b.c.call.size = 8;
    run(&b);
    if (r->workspace_bytes > 0) {
        ASSAY_TRY(begin(&b, "a workspace of one byte less: "));
        b.c.call.workspace_bytes--;
        run(&b);
    }
    if (r->comm != NULL)
        ASSAY_TRY(try_collective(&b));
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++)
        if (r->slot[i].present)
            ASSAY_TRY(try_slot(&b, i));
    return ASSAY_OK;
}
