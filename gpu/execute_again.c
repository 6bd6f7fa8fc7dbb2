/* gpu_execute, once more without the outputs that nobody has to have: what they leave behind has to be the same.
 *
 * The engine leaves out all of them together, in every step without a trace (stays_inside(), gpu/call_fused.c: whether somebody looks is
 * a question of the run, not of a slot), so one run more is what there is to see; of a single operation, adamw's param, the engine
 * stores it always, and its row alone says that a caller may not.  No operation needs one of them in any mode. */
#include "gpu/execute_internal.h"

#include "gpu/check.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAMES = 128, BITS = 24 };

bool gpu_job_may_leave(const assay_op_slot *row)
{
    return row->role == ASSAY_SLOT_OUT && row->optional && row->like == NULL;
}

bool gpu_job_runs_again(const gpu_job *first)
{
    bool any = false;
    for (int i = 0; i < assay_op_n_slots(first->op); ++i)
        any = any || gpu_job_may_leave(&first->op->slots[i]);
    return any && first->form->run == NULL && first->form->spoil == NULL;
}

gpu_execute_form gpu_job_begin_again(gpu_job *j, const gpu_job *first)
{
    j->ctx = first->ctx;
    j->op = first->op;
    j->attrs = first->attrs;
    j->act = first->act;
    j->inputs = first->inputs;
    j->n_inputs = first->n_inputs;
    j->again = true;
    j->ctx->call_variant = 1 + first->declared.variant;
    return (gpu_execute_form){
        .place = first->form->place, .spoil = first->form->spoil_again, .user = first->form->user};
}

/* "q_norm, k_norm" */
static void name_left(const assay_op *op, char names[NAMES])
{
    size_t n = 0;
    names[0] = '\0';
    for (int i = 0; i < assay_op_n_slots(op) && n < NAMES; ++i)
        if (gpu_job_may_leave(&op->slots[i]))
            n += (size_t)snprintf(names + n, NAMES - n, "%s%s", n > 0 ? ", " : "", op->slots[i].name);
}

/* Bits of an element as a number. */
static void name_bits(const char *element, size_t bytes, char text[BITS])
{
    uint64_t bits = 0;
    for (size_t i = bytes; i > 0; --i)
        bits = bits << 8 | (unsigned char)element[i - 1];
    (void)snprintf(text, BITS, "0x%0*" PRIx64, (int)(2 * bytes), bits);
}

static assay_status same_output(const gpu_job *first, const gpu_slot *a, const gpu_slot *b, const char *left)
{
    const size_t each = (size_t)assay_dtype_bytes(a->dtype);
    int64_t count = 0;
    ASSAY_CHECK(a->dtype == b->dtype && a->ndim == b->ndim &&
                    memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0 &&
                    assay_shape_count(a->shape, a->ndim, &count),
                ASSAY_INTERNAL, "%s: %s has another shape without %s", first->op->name, a->slot, left);
    for (int64_t i = 0; i < count; ++i) {
        const char *with = (const char *)a->data + (size_t)i * each,
                   *without = (const char *)b->data + (size_t)i * each;
        char expected[BITS], found[BITS];
        if (memcmp(with, without, each) == 0)
            continue;
        name_bits(with, each, expected);
        name_bits(without, each, found);
        return ASSAY_ERROR(ASSAY_INTERNAL,
                           "%s k%d: %s[%" PRId64 "]: expected the bits that it has beside %s, %s, found %s "
                           "where the call leaves out %s",
                           first->op->name, first->declared.variant, a->slot, i, left, expected, found, left);
    }
    return ASSAY_OK;
}

static const gpu_slot *output_of(const gpu_job *j, const char *slot)
{
    for (int i = 0; i < j->n_outputs; ++i)
        if (strcmp(j->outputs[i].slot, slot) == 0)
            return &j->outputs[i];
    return NULL;
}

/* Rungs do not ask whether an output is there; one that may be left out can only be in the way of a higher rung, by its address, and a
 * higher one is not asked for.  So a lower one here would be a rung that wants the output: its bits may be others by right, but training
 * would run what no request does, and pays() (gpu/call_fused.c) would count on it. */
static assay_status same_rung(const gpu_job *first, const gpu_job *again, const char *left)
{
    ASSAY_CHECK(again->declared.variant == first->declared.variant, ASSAY_INTERNAL,
                "%s k%d: k%d runs where the call leaves out %s", first->op->name, first->declared.variant,
                again->declared.variant, left);
    return ASSAY_OK;
}

assay_status gpu_job_compare(const gpu_job *first, const gpu_job *again, assay_status st)
{
    char left[NAMES], why[512];
    name_left(first->op, left);
    if (gpu_job_refused(st)) {
        (void)snprintf(why, sizeof why, "%s", assay_error_message());
        return ASSAY_ERROR(ASSAY_INTERNAL, "%s k%d refuses the call without %s (%s)", first->op->name,
                           first->declared.variant, left, why);
    }
    if (st != ASSAY_OK)
        return assay_context(st, "%s k%d without %s", first->op->name, first->declared.variant, left);
    ASSAY_TRY(same_rung(first, again, left));
    for (int i = 0; i < first->n_outputs; ++i) {
        const gpu_slot *a = &first->outputs[i], *b = output_of(again, a->slot);
        const assay_op_slot *row = assay_op_slot_find(first->op, a->slot, true);
        ASSAY_CHECK(row != NULL && (b == NULL) == gpu_job_may_leave(row), ASSAY_INTERNAL,
                    "%s: %s is an output of one run alone", first->op->name, a->slot);
        if (b != NULL)
            ASSAY_TRY(same_output(first, a, b, left));
    }
    return ASSAY_OK;
}
