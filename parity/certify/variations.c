/* Other forms of a call that succeeded: in the order of a stream, its rows in two parts, rows with gaps, an output in an input's place, shadows. */
#include "parity/certify/symbols.h"
#include "parity/certify/trial.h"

#include <stdlib.h>
#include <string.h>

/* --- batch invariance --------------------------------------------------------------------------------------- */

/* Row i of every output that is left depends on row i of the inputs alone: *cut is the first row of the second part. */
static bool cuts_into_rows(const call_record *r, int64_t *rows, int64_t *cut)
{
    bool any = false;
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++)
        any = any || (call_is_output(r, i) && call_has_rows(r, i));
    if (!any || !certify_has_own_rows(r->kernel->op) || !assay_op_symbol(&r->binding, "T", rows))
        return false;
    *cut = certify_cut(r->kernel->op, &r->binding, *rows);
    return *cut > 0;
}

static void compare_rows(trial *t, const call_record *r, const call_ready *c)
{
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++) {
        const call_slot *s = &r->slot[i];
        const char *name = r->kernel->op->slots[i].name;
        if (!call_is_output(r, i) || !call_has_rows(r, i) || certify_sums_rows(r->kernel->op, name))
            continue;
        unsigned char *now = malloc(s->bytes + 1);
        const size_t bytes = now != NULL ? call_collect(r, c, i, now) : 0,
                     row = s->bytes / (size_t)s->shape[0];
        if (bytes > 0 && memcmp(now, s->after + (size_t)c->form.first * row, bytes) != 0)
            certify_bad(t->board, CERTIFY_BATCH, "%s: rows have other bits without the other rows, in %s",
                        name, t->board->now);
        free(now);
    }
}

static assay_status try_rows(trial *t, const call_record *r)
{
    int64_t rows, cut;
    if ((t->kernel.k->flags & ASSAY_KERNEL_BATCH_INVARIANT) == 0 || !cuts_into_rows(r, &rows, &cut))
        return ASSAY_OK;
    for (int part = 0; part < 2; part++) {
        call_form form = call_plain(GUARD_END, FILL_ONES);
        call_ready c;
        int32_t code;
        form.first = part == 0 ? 0 : cut;
        form.end = part == 0 ? cut : rows;
        trial_now(t, r, part == 0 ? "the first half of the rows of " : "the second half of the rows of ");
        ASSAY_TRY(trial_call(t, r, form, &c, &code));
        t->board->trial[CERTIFY_BATCH].calls++;
        if (code == ASSAY_KERNEL_OK)
            compare_rows(t, r, &c);
        else
            certify_bad(t->board, CERTIFY_BATCH, "error code %d in %s", code, t->board->now);
    }
    return ASSAY_OK;
}

/* --- fewer outputs ------------------------------------------------------------------------------------------ */
static assay_status try_without(trial *t, const call_record *r)
{
    call_form form = call_plain(GUARD_END, FILL_ODD);
    call_ready c;
    int32_t code;
    bool any = false;
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++)
        any = any || (r->slot[i].present && call_may_be_absent(r, i));
    if (!any)
        return ASSAY_OK;
    form.without = true;
    trial_now(t, r, "without the outputs that may be absent: ");
    ASSAY_TRY(trial_call(t, r, form, &c, &code));
    t->board->trial[CERTIFY_ACCEPTS].calls++;
    if (code != ASSAY_KERNEL_OK)
        certify_bad(t->board, CERTIFY_ACCEPTS, "error code %d in %s", code, t->board->now);
    else if (t->deterministic)
        trial_compare(t, r, &c, CERTIFY_REPEAT);
    return ASSAY_OK;
}

/* --- strides ------------------------------------------------------------------------------------------------ */
static assay_status try_strides(trial *t, const call_record *r)
{
    call_form form = call_plain(GUARD_END, FILL_ODD);
    call_ready c;
    int32_t code;
    bool any = false;
    for (int i = 0; i < ASSAY_OP_SLOTS; i++)
        any = any ||
              (r->slot[i].present && r->slot[i].ndim > 1 && r->slot[i].shape[0] > 1 && r->slot[i].bytes > 0);
    if ((t->kernel.k->flags & ASSAY_KERNEL_ROW_STRIDES) == 0 || !any)
        return ASSAY_OK;
    /* as many elements as keep an alignment */
    form.gap = t->kernel.k->alignment > 4 ? t->kernel.k->alignment / 2 : 3;
    trial_now(t, r, "rows with gaps in ");
    ASSAY_TRY(trial_call(t, r, form, &c, &code));
    if (code != ASSAY_KERNEL_OK) {
        t->board->trial[CERTIFY_STRIDES].calls++;
        certify_bad(t->board, CERTIFY_STRIDES, "error code %d in %s", code, t->board->now);
        return ASSAY_OK;
    }
    trial_compare(t, r, &c, CERTIFY_STRIDES);
    return ASSAY_OK;
}

/* --- in place ----------------------------------------------------------------------------------------------- */
static assay_status try_in_place(trial *t, const call_record *r)
{
    for (const char *p = t->kernel.k->in_place; p != NULL && *p != '\0';
         p += strcspn(p, " "), p += strspn(p, " ")) {
        char out[32] = "", in[32] = "";
        call_form form = call_plain(GUARD_END, FILL_ODD);
        call_ready c;
        int32_t code;
        if (sscanf(p, "%31[^= ]=%31[^= ]", out, in) != 2)
            continue;
        form.out = (int)(assay_op_slot_find(t->kernel.op, out, true) - t->kernel.op->slots);
        form.in = (int)(assay_op_slot_find(t->kernel.op, in, false) - t->kernel.op->slots);
        if (!r->slot[form.out].present || !r->slot[form.in].present ||
            r->slot[form.out].bytes != r->slot[form.in].bytes)
            continue;
        trial_now(t, r, "in place: ");
        ASSAY_TRY(call_prepare(r, form, &t->arena, &t->shadows, &c));
        guard_limit(t->limit);
        code = call_run(r, &c, t->board);
        guard_limit(0);
        call_inspect(r, &c, t->board);
        if (code == ASSAY_KERNEL_OK)
            trial_compare(t, r, &c, CERTIFY_IN_PLACE);
        else
            certify_bad(t->board, CERTIFY_IN_PLACE, "error code %d in %s", code, t->board->now);
    }
    return ASSAY_OK;
}

/* --- shadows ------------------------------------------------------------------------------------------------ */
static void compare_shadow(trial *t, const call_record *r, const call_ready *c, int i)
{
    const int64_t n = (int64_t)(r->slot[i].bytes / (size_t)assay_dtype_bytes(r->slot[i].dtype));
    const float *shadow = c->shadow_tensor[i].data;
    for (int64_t e = 0; e < n; e++) {
        float wide;
        memcpy(&wide, &shadow[e], sizeof wide);
        const double want = ref_round((double)wide, r->slot[i].dtype);
        float found;
        if (r->slot[i].dtype == ASSAY_F32) {
            memcpy(&found, r->slot[i].after + 4 * e, 4);
        } else {
            uint32_t bits = (uint32_t)(r->slot[i].after[2 * e] | r->slot[i].after[2 * e + 1] << 8) << 16;
            memcpy(&found, &bits, sizeof found);
        }
        const bool same = want == (double)found || (isnan(want) && isnan(found));
        if (same)
            continue;
        certify_bad(t->board, CERTIFY_SHADOW,
                    "%s: element %lld: the shadow %.9g rounds to %.9g, the output is %.9g, in %s",
                    r->kernel->op->slots[i].name, (long long)e, (double)wide, want, (double)found,
                    t->board->now);
        return;
    }
}

static assay_status try_shadow(trial *t, const assay_trace *request, const call_record *r)
{
    call_form form = call_plain(GUARD_END, FILL_ONES);
    call_ready c;
    int32_t code;
    if (t->shadow == NULL)
        return ASSAY_OK;
    form.shadow = true;
    trial_now(t, r, "with shadows: ");
    ASSAY_TRY(trial_call(t, r, form, &c, &code));
    t->board->trial[CERTIFY_SHADOW].calls++;
    if (code != ASSAY_KERNEL_OK) {
        certify_bad(t->board, CERTIFY_SHADOW, "error code %d in %s", code, t->board->now);
        return ASSAY_OK;
    }
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++)
        if (c.shadow[i] != NULL && (r->slot[i].dtype == ASSAY_F32 || r->slot[i].dtype == ASSAY_BF16))
            compare_shadow(t, r, &c, i);
    return trial_write(t->shadow, request, r, &c, true);
}

/* --- stream order ------------------------------------------------------------------------------------------- */
static assay_status try_stream(trial *t, const assay_trace *request, const call_record *r)
{
    call_form form = call_plain(GUARD_END, FILL_ODD);
    call_ready c;
    int32_t code;
    if (t->kernel.device == NULL)
        return ASSAY_OK;
    form.late = true;
    trial_now(t, r, "inputs that arrive late on the stream: ");
    ASSAY_TRY(trial_call(t, r, form, &c, &code));
    if (code != ASSAY_KERNEL_OK) {
        certify_bad(t->board, CERTIFY_STREAM, "error code %d in %s", code, t->board->now);
        return ASSAY_OK;
    }
    if (t->deterministic)
        trial_compare(t, r, &c, CERTIFY_STREAM);
    else
        ASSAY_TRY(trial_write(t->late, request, r, &c, false));
    return ASSAY_OK;
}

assay_status trial_variations(trial *t, const assay_trace *request, const call_record *r)
{
    ASSAY_TRY(try_stream(t, request, r));
    ASSAY_TRY(try_rows(t, r));
    ASSAY_TRY(try_without(t, r));
    ASSAY_TRY(try_strides(t, r));
    ASSAY_TRY(try_in_place(t, r));
    return try_shadow(t, request, r);
}
