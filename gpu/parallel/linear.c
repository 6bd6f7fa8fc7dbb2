/* Column- and row-parallel linears, whole or in splits of the rows. */
#include "gpu/parallel/linear.h"

#include "gpu/beside.h"
#include "gpu/call.h"
#include "gpu/describe.h"
#include "gpu/fault.h"
#include "gpu/parallel/splits.h"
#include "gpu/parallel/tensor.h"
#include "gpu/weight_grads.h"

/* --- products whose rows are tokens ------------------------------------------------------------------------- */
typedef struct product {
    bool of_gradients; /* linear_bwd_input; else linear_fwd */
    const char *at;
    gpu_param *weight;
    gpu_value *bias;
} product;

static assay_status multiply(gpu_model *m, const product *p, gpu_value *out, gpu_value *in)
{
    gpu_value *weight = gpu_param_use(m, p->weight);
    if (p->of_gradients)
        return GPU_CALL(m->run, "linear_bwd_input", p->at, GPU_T("dy", in), GPU_T("weight", weight),
                        GPU_T("dx", out));
    return GPU_CALL(m->run, "linear_fwd", p->at, GPU_T("x", in), GPU_T("weight", weight),
                    GPU_T("bias", p->bias), GPU_T("y", out));
}

/* --- in splits ---------------------------------------------------------------------------------------------- */
/* Memory and name of what several calls write, rows by rows. */
static assay_status make(gpu_model *m, gpu_value *v, assay_dtype dtype, const char *at, const char *slot)
{
    ASSAY_TRY(gpu_value_make(v, dtype));
    if (v->name[0] == '\0')
        gpu_value_name(m->run, v, at, slot);
    else
        gpu_value_touch(m->run, v);
    return ASSAY_OK;
}

static assay_status make_product(gpu_model *m, const product *p, gpu_value *out)
{
    const assay_op *op = assay_op_find(p->of_gradients ? "linear_bwd_input" : "linear_fwd");
    const bool backward = m->run->phase == ASSAY_PHASE_BACKWARD;
    return make(m, out, assay_op_dtype(op, m->run->recipe, ASSAY_CLASS_ACT, backward), p->at,
                p->of_gradients ? "dx" : "y");
}

/* One stretch of a product. */
static assay_status multiply_rows(gpu_model *m, const product *p, const gpu_value *out, int64_t to,
                                  const gpu_value *in, int64_t from, int64_t rows)
{
    gpu_value y = gpu_split_rows(out, to, rows), x = gpu_split_rows(in, from, rows);
    return rows > 0 ? multiply(m, p, &y, &x) : ASSAY_OK;
}

/* out = product of `in`, which is gathered from `piece`: rows of a split are multiplied while the next travel. */
static assay_status gather_and_multiply(gpu_model *m, const product *p, const char *gather, gpu_value *out,
                                        gpu_value *in, const gpu_value *piece)
{
    ASSAY_TRY(make(m, in, piece->t.dtype, gather, "recv"));
    ASSAY_TRY(make_product(m, p, out));
    ASSAY_TRY(gpu_splits_gather(m, in, piece));
    for (int c = 0; c < gpu_splits_count(m, true); c++) {
        ASSAY_TRY(gpu_splits_arrive(m, c));
        for (int r = 0; r < m->tp; r++) {
            const gpu_stretch s = gpu_split_stretch(m, true, c, r);
            ASSAY_TRY(multiply_rows(m, p, out, s.whole, in, s.whole, s.rows));
        }
    }
    return ASSAY_OK;
}

/* sum (described) over tp of `out` = product of `in`: rows of a split are summed while the next are multiplied; gpu_splits_join waits
 * for them.  `out` holds one split behind the other, so that a collective has its rows in one place. */
static assay_status multiply_and_reduce(gpu_model *m, const product *p, bool sp, const char *reduce,
                                        gpu_value *sum, gpu_value *out, gpu_value *in)
{
    int64_t done = 0;
    ASSAY_TRY(make_product(m, p, out));
    ASSAY_TRY(make(m, sum, out->t.dtype, reduce, "recv"));
    for (int c = 0; c < gpu_splits_count(m, sp); c++) {
        const int64_t first = done;
        for (int r = 0; r < gpu_split_stretches(m, sp); r++) {
            const gpu_stretch s = gpu_split_stretch(m, sp, c, r);
            ASSAY_TRY(multiply_rows(m, p, out, done, in, s.whole, s.rows));
            done += s.rows;
        }
        gpu_value rows = gpu_split_rows(out, first, done - first);
        if (done > first)
            ASSAY_TRY(gpu_splits_reduce(m, sp, reduce, c, sum, &rows));
    }
    return ASSAY_OK;
}

/* --- columns ------------------------------------------------------------------------------------------------ */
assay_status gpu_column_linear_fwd(gpu_model *m, gpu_arena *arena, const gpu_column_linear *c, gpu_value *y,
                                   gpu_value *whole, gpu_value *x)
{
    const product p = {.at = c->at, .weight = c->weight, .bias = gpu_param_use(m, c->bias)};
    if (c->sp && gpu_has_splits(m)) {
        *whole = gpu_tokens(m, arena, false, x->dim[2]);
        return gather_and_multiply(m, &p, c->gather, y, whole, x);
    }
    ASSAY_TRY(gpu_column_parallel_input(m, arena, c->sp, c->gather, whole, x));
    return multiply(m, &p, y, whole);
}

static assay_status parameter_grads(gpu_model *m, const gpu_column_linear *c, gpu_value *dy, gpu_value *whole)
{
    ASSAY_TRY(gpu_linear_bwd_bias(m, c->at, dy, c->bias));
    return gpu_linear_bwd_weight(m, c->at, dy, whole, c->weight);
}

/* dx, behind dwhole, is on its way on the communication stream. */
static assay_status sum_input_grad(gpu_model *m, const gpu_column_linear *c, gpu_value *dx, gpu_value *dwhole,
                                   gpu_value *dy, const gpu_value *x)
{
    const product p = {.of_gradients = true, .at = c->at, .weight = c->weight};
    if (gpu_has_splits(m)) {
        *dx = gpu_column_parallel_input_grad(m, c->sp, c->gather, dwhole->dim[2], x);
        return multiply_and_reduce(m, &p, c->sp, c->sp ? c->gather : c->reduce, dx, dwhole, dy);
    }
    ASSAY_TRY(multiply(m, &p, dwhole, dy));
    ASSAY_TRY(gpu_beside_begin(m->run, GPU_BESIDE_SUM, GPU_SWITCH_UNWAITED_INPUT_GRADIENT));
    ASSAY_TRY(gpu_column_parallel_input_bwd(m, c->sp, c->reduce, c->gather, dx, dwhole, x));
    ASSAY_TRY(gpu_beside_mark(m->run, GPU_BESIDE_SUM));
    return gpu_beside_end(m->run);
}

static bool sums_beside(const gpu_model *m)
{
    return m->options->async_tensor_model_parallel_allreduce && !m->run->dry && gpu_tp_beside(m);
}

assay_status gpu_column_linear_bwd(gpu_model *m, const gpu_column_linear *c, gpu_value *dx, gpu_value *dwhole,
                                   gpu_value *dy, gpu_value *whole, const gpu_value *x)
{
    const product p = {.of_gradients = true, .at = c->at, .weight = c->weight};
    const bool beside = sums_beside(m), splits = gpu_has_splits(m);
    if (!beside)
        ASSAY_TRY(parameter_grads(m, c, dy, whole));
    if (!beside && !splits) {
        ASSAY_TRY(multiply(m, &p, dwhole, dy));
        return gpu_column_parallel_input_bwd(m, c->sp, c->reduce, c->gather, dx, dwhole, x);
    }
    ASSAY_TRY(sum_input_grad(m, c, dx, dwhole, dy, x));
    if (beside)
        ASSAY_TRY(parameter_grads(m, c, dy, whole));
    return splits ? gpu_splits_join(m) : gpu_beside_join(m->run, GPU_BESIDE_SUM, GPU_SWITCH_UNWAITED_SUM);
}

/* --- rows --------------------------------------------------------------------------------------------------- */
assay_status gpu_row_linear_fwd(gpu_model *m, gpu_arena *arena, const gpu_row_linear *r, gpu_value *y,
                                gpu_value *partial, gpu_value *x)
{
    const product p = {.at = r->at, .weight = r->weight, .bias = gpu_row_parallel_bias(m, r->bias)};
    if (gpu_has_splits(m)) {
        *y = gpu_tokens(m, arena, r->sp, partial->dim[2]);
        ASSAY_TRY(multiply_and_reduce(m, &p, r->sp, r->reduce, y, partial, x));
        return gpu_splits_join(m);
    }
    ASSAY_TRY(multiply(m, &p, partial, x));
    return gpu_row_parallel_output(m, arena, r->sp, r->reduce, y, partial);
}

assay_status gpu_row_linear_bwd(gpu_model *m, const gpu_row_linear *r, gpu_value *dx, gpu_value *dy,
                                gpu_value *x, const gpu_value *partial)
{
    const product p = {.of_gradients = true, .at = r->at, .weight = r->weight};
    const bool splits = r->sp && gpu_has_splits(m);
    gpu_value dpartial;
    if (splits) {
        dpartial = gpu_grad_of(m, partial);
        ASSAY_TRY(gather_and_multiply(m, &p, r->reduce, dx, &dpartial, dy));
    } else {
        ASSAY_TRY(gpu_row_parallel_output_bwd(m, r->sp, r->reduce, &dpartial, dy, partial));
    }
    ASSAY_TRY(gpu_linear_bwd_bias(m, r->at, &dpartial, r->bias));
    ASSAY_TRY(gpu_linear_bwd_weight(m, r->at, &dpartial, x, r->weight));
    return splits ? ASSAY_OK : multiply(m, &p, dx, &dpartial);
}
