/* Law: of every operation that is asked with a NaN or an infinity, each real input holds one in some call: a kernel that swallows a NaN
 * of one of them is seen. */
#include "parity/checks/random_request.h"
#include "parity/judge/judge.h"
#include "tests/support/parity.h"

enum { MOST = 1024 };

typedef struct input {
    char op[48], slot[ASSAY_SLOT_NAME];
    bool special;
} input;

static input *input_at(input *all, int *n, const char *op, const char *slot)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(all[i].op, op) == 0 && strcmp(all[i].slot, slot) == 0)
            return &all[i];
    cr_assert_lt(*n, MOST);
    input *one = &all[(*n)++];
    snprintf(one->op, sizeof one->op, "%s", op);
    snprintf(one->slot, sizeof one->slot, "%s", slot);
    return one;
}

static bool holds(const assay_trace_tensor *t, bool nan)
{
    bool any = false;
    for (int64_t i = 0; i < assay_shard_count(&t->shard) && !any; i++) {
        const double x = parity_decode(t->data, i, t->dtype);
        any = nan ? isnan(x) : !isfinite(x); /* what is derived of an infinity may be a NaN */
    }
    return any;
}

static void gather(const assay_trace *t, parity_data_mode mode, input *all, int *n)
{
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, 0, i);
        for (int k = 0; k < op->n_inputs; k++) {
            const assay_trace_tensor *x = assay_trace_op_tensor(t, op, op->inputs[k].slot);
            if (x == NULL || !assay_dtype_is_float(x->dtype))
                continue;
            input *one = input_at(all, n, op->op, op->inputs[k].slot);
            one->special = one->special || holds(x, mode == PARITY_NAN);
        }
    }
}

/* 1 / sqrt of an infinite mean is 0. */
static bool is_none(parity_data_mode mode, const input *i)
{
    return mode == PARITY_INFINITY && strcmp(i->slot, "rstd") == 0 &&
           (strcmp(i->op, "rmsnorm_bwd") == 0 || strcmp(i->op, "rmsnorm_bwd_add") == 0);
}

/* Every operation at every size and boundary, as a trial of a kernel asks for it. */
static assay_trace *request_in(const char *dir, parity_data_mode mode)
{
    int rank = 0;
    json_t *header = json_pack("{s:s, s:s}", "engine", "request", "precision", "fp32");
    parity_ask q = {.act = ASSAY_F32, .world = 1, .ranks = &rank};
    must(assay_trace_writer_open(&q.w, dir, 0, 1, header, false));
    parity_ask_random(&q, mode);
    parity_ask_sweep(&q, mode);
    must(q.st);
    close_writer(q.w);
    json_decref(q.attrs);
    json_decref(header);
    return open_trace(dir);
}

Test(parity_special, every_real_input_holds_one)
{
    static const parity_data_mode modes[] = {PARITY_NAN, PARITY_INFINITY};
    static input all[MOST];
    char dir[256];
    for (int k = 0; k < 2; k++) {
        const char *name = parity_data_mode_name(modes[k]);
        int n = 0;
        memset(all, 0, sizeof all);
        assay_trace *t = request_in(fresh_path(dir, "request"), modes[k]);
        gather(t, modes[k], all, &n);
        cr_expect_gt(n, 150, "%s: %d inputs", name, n);
        for (int i = 0; i < n; i++)
            cr_expect_neq(all[i].special, is_none(modes[k], &all[i]), "%s, %s: %s", name, all[i].op,
                          all[i].slot);
        assay_trace_close(t);
        remove_path(dir);
    }
}
