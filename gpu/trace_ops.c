/* Operation calls with records: dense operations. */
#include "gpu/trace_ops.h"

#include "gpu/trace_internal.h"
#include <string.h>

assay_status gpu_value_alloc(gpu_arena *arena, gpu_value *v, assay_dtype dtype, int merge)
{
    int64_t shape[GPU_MAX_DIMS] = {0};
    int n = 0;
    for (int d = 0; d < v->ndim; d++) {
        const int64_t length = v->dim[d].length * v->dim[d].blocks;
        if (merge >= 0 && d == merge + 1)
            shape[n - 1] *= length;
        else
            shape[n++] = length;
    }
    v->t = gpu_tensor_make(NULL, dtype, n, shape);
    return gpu_arena_take(arena, gpu_tensor_bytes(v->t), &v->t.data);
}

void gpu_run_need(gpu_run *run, size_t bytes)
{
    if (bytes > run->workspace_needed)
        run->workspace_needed = bytes;
}

/* --- linear ------------------------------------------------------------------------------------------------- */
assay_status gpu_run_linear_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, gpu_value *w,
                                gpu_value *bias)
{
    if (run->dry) {
        gpu_run_need(run, gpu_linear_workspace(&run->ctx));
        return ASSAY_OK;
    }
    const gpu_operand in[] = {{"x", x}, {"weight", w}, {"bias", bias}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "linear_fwd", at, in, 3));
    ASSAY_TRY(
        gpu_linear_fwd(&run->ctx, y->t, x->t, w->t, bias ? bias->t : gpu_tensor_none(), run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, GPU_ATTRS(run, "{s:s}", "dtype", assay_dtype_name(y->t.dtype)));
}

assay_status gpu_run_linear_bwd_input(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dy,
                                      gpu_value *w)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"dy", dy}, {"weight", w}};
    const gpu_operand out[] = {{"dx", dx}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "linear_bwd_input", at, in, 2));
    ASSAY_TRY(gpu_linear_bwd_input(&run->ctx, dx->t, dy->t, w->t, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}

void gpu_value_touch(const gpu_run *run, gpu_value *v)
{
    v->phase = run->phase;
    v->microbatch = run->microbatch;
}

assay_status gpu_run_linear_bwd_weight(gpu_run *run, const char *at, gpu_value *dweight, gpu_value *dy,
                                       gpu_value *x, bool repeat)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"dy", dy}, {"x", x}, {"dweight_in", dweight}};
    const gpu_operand out[] = {{"dweight", dweight}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "linear_bwd_weight", at, in, 3));
    for (int i = 0; i < (repeat ? 2 : 1); i++)
        ASSAY_TRY(gpu_linear_bwd_weight(&run->ctx, dweight->t, dy->t, x->t, run->ctx.stream));
    gpu_value_touch(run, dweight);
    return gpu_trace_end(run, &r, out, 1, NULL);
}

assay_status gpu_run_linear_bwd_bias(gpu_run *run, const char *at, gpu_value *dbias, gpu_value *dy)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"dy", dy}, {"dbias_in", dbias}};
    const gpu_operand out[] = {{"dbias", dbias}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "linear_bwd_bias", at, in, 2));
    ASSAY_TRY(gpu_linear_bwd_bias(&run->ctx, dbias->t, dy->t, run->ctx.stream));
    gpu_value_touch(run, dbias);
    return gpu_trace_end(run, &r, out, 1, NULL);
}

/* --- norm --------------------------------------------------------------------------------------------------- */
assay_status gpu_run_rmsnorm_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *rstd, gpu_value *x,
                                 gpu_value *gamma, double eps)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"x", x}, {"gamma", gamma}};
    const gpu_operand out[] = {{"y", y}, {"rstd", rstd}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "rmsnorm_fwd", at, in, 2));
    ASSAY_TRY(gpu_rmsnorm_fwd(&run->ctx, y->t, rstd->t, x->t, gamma->t, (float)eps, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 2, GPU_ATTRS(run, "{s:f}", "eps", (double)(float)eps));
}

/* Planted fault: the gradient is negated on its way.  Two bytes or four hold the sign in their top bit. */
static assay_status flip_sign(gpu_run *run, gpu_value *v)
{
    enum { CHUNK = 4096 };
    unsigned char bytes[CHUNK];
    const size_t total = gpu_tensor_bytes(v->t), width = (size_t)assay_dtype_bytes(v->t.dtype);
    for (size_t at = 0; at < total; at += CHUNK) {
        const size_t n = total - at < CHUNK ? total - at : CHUNK;
        ASSAY_TRY(gpu_run_download(run, bytes, (char *)v->t.data + at, n, "fault flipped_sign"));
        for (size_t i = width - 1; i < n; i += width)
            bytes[i] ^= 0x80u;
        ASSAY_TRY(gpu_run_upload(run, (char *)v->t.data + at, bytes, n, "fault flipped_sign"));
    }
    return ASSAY_OK;
}

assay_status gpu_run_rmsnorm_bwd(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dgamma,
                                 gpu_value *dy, gpu_value *x, gpu_value *gamma, gpu_value *rstd, double eps,
                                 bool flip)
{
    if (run->dry) {
        const int64_t h = gpu_tensor_count(gamma->t);
        gpu_run_need(run, gpu_rmsnorm_bwd_workspace(&run->ctx, gpu_tensor_count(x->t) / h, h));
        return ASSAY_OK;
    }
    const gpu_operand in[] = {{"dy", dy}, {"x", x}, {"gamma", gamma}, {"rstd", rstd}, {"dgamma_in", dgamma}};
    const gpu_operand out[] = {{"dx", dx}, {"dgamma", dgamma}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "rmsnorm_bwd", at, in, 5));
    ASSAY_TRY(gpu_rmsnorm_bwd(&run->ctx, dx->t, dgamma->t, dy->t, x->t, gamma->t, rstd->t, run->ctx.stream));
    const gpu_declared declared = run->ctx.declared;
    if (flip)
        ASSAY_TRY(flip_sign(run, dx));
    run->ctx.declared = declared;
    gpu_value_touch(run, dgamma);
    return gpu_trace_end(run, &r, out, 2, GPU_ATTRS(run, "{s:f}", "eps", (double)(float)eps));
}

/* --- rope --------------------------------------------------------------------------------------------------- */
static const char *rope_type_name(int type)
{
    return type == ASSAY_ROPE_LLAMA3 ? "llama3" : type == ASSAY_ROPE_LINEAR ? "linear" : "default";
}

assay_status gpu_run_rope_table(gpu_run *run, const char *at, gpu_value *cos_table, gpu_value *sin_table,
                                const gpu_rope_desc *d)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand out[] = {{"cos", cos_table}, {"sin", sin_table}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "rope_table", at, NULL, 0));
    ASSAY_TRY(gpu_rope_table(&run->ctx, cos_table->t, sin_table->t, d, run->ctx.stream));
    return gpu_trace_end(
        run, &r, out, 2,
        GPU_ATTRS(run, "{s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:I}", "rope_type", rope_type_name(d->type),
                  "rotary_dim", (json_int_t)d->rotary_dim, "rotary_base", d->base, "factor", d->factor,
                  "low_freq_factor", d->low_freq_factor, "high_freq_factor", d->high_freq_factor,
                  "original_max_position_embeddings", (json_int_t)d->original_max_position_embeddings,
                  "positions", (json_int_t)cos_table->t.shape[0]));
}

assay_status gpu_run_rope(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, gpu_value *cos_table,
                          gpu_value *sin_table, gpu_value *position, bool backward)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {
        {backward ? "dy" : "x", x}, {"cos", cos_table}, {"sin", sin_table}, {"position", position}};
    const gpu_operand out[] = {{backward ? "dx" : "y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, backward ? "rope_bwd" : "rope_fwd", at, in, 4));
    if (backward)
        ASSAY_TRY(
            gpu_rope_bwd(&run->ctx, y->t, x->t, cos_table->t, sin_table->t, position->t, run->ctx.stream));
    else
        ASSAY_TRY(
            gpu_rope_fwd(&run->ctx, y->t, x->t, cos_table->t, sin_table->t, position->t, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}

/* --- attention ---------------------------------------------------------------------------------------------- */
static json_t *attention_attrs(const gpu_run *run, const gpu_attention_desc *d)
{
    return GPU_ATTRS(run, "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I}", "batch", (json_int_t)d->batch,
                     "seq_q", (json_int_t)d->seq_q, "seq_k", (json_int_t)d->seq_k, "heads",
                     (json_int_t)d->heads, "groups", (json_int_t)d->groups, "head_dim",
                     (json_int_t)d->head_dim, "head_dim_v", (json_int_t)d->head_dim_v, "scale",
                     (double)d->scale, "window", (json_int_t)d->window);
}

/* o and its gradient are stored as [T, A*D]; the operation sees [T, A, D]. */
static gpu_tensor as_heads(gpu_tensor t, int64_t tokens, int64_t heads, int64_t head_dim)
{
    const int64_t shape[3] = {tokens, heads, head_dim};
    return gpu_tensor_make(t.data, t.dtype, 3, shape);
}

assay_status gpu_run_attention_fwd(gpu_run *run, const char *at, gpu_value *o, gpu_value *lse, gpu_value *q,
                                   gpu_value *k, gpu_value *v, gpu_value *position, gpu_attention_desc d)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {
        {"q", q}, {"k", k}, {"v", v}, {"q_position", position}, {"k_position", position}};
    const gpu_operand out[] = {{"o", o}, {"lse", lse}};
    gpu_record r;
    d.q_position = d.k_position = position->t;
    d.first_key = gpu_tensor_none();
    ASSAY_TRY(gpu_trace_begin(run, &r, "attention_fwd", at, in, 5));
    ASSAY_TRY(gpu_attention_fwd(&run->ctx, as_heads(o->t, d.batch * d.seq_q, d.heads, d.head_dim_v), lse->t,
                                q->t, k->t, v->t, &d, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 2, attention_attrs(run, &d));
}

assay_status gpu_run_attention_bwd(gpu_run *run, const char *at, gpu_value *dq, gpu_value *dk, gpu_value *dv,
                                   gpu_value *dout, gpu_value *q, gpu_value *k, gpu_value *v, gpu_value *o,
                                   gpu_value *lse, gpu_value *position, gpu_attention_desc d)
{
    if (run->dry) {
        gpu_run_need(run, gpu_attention_bwd_workspace(&run->ctx, &d));
        return ASSAY_OK;
    }
    const gpu_operand in[] = {{"do", dout},
                              {"q", q},
                              {"k", k},
                              {"v", v},
                              {"o", o},
                              {"lse", lse},
                              {"q_position", position},
                              {"k_position", position}};
    const gpu_operand out[] = {{"dq", dq}, {"dk", dk}, {"dv", dv}};
    const int64_t tokens = d.batch * d.seq_q;
    gpu_record r;
    d.q_position = d.k_position = position->t;
    d.first_key = gpu_tensor_none();
    ASSAY_TRY(gpu_trace_begin(run, &r, "attention_bwd", at, in, 8));
    ASSAY_TRY(gpu_attention_bwd(&run->ctx, dq->t, dk->t, dv->t,
                                as_heads(dout->t, tokens, d.heads, d.head_dim_v), q->t, k->t, v->t,
                                as_heads(o->t, tokens, d.heads, d.head_dim_v), lse->t, &d, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 3, attention_attrs(run, &d));
}

static json_t *split_attrs(const gpu_run *run, const gpu_value *q, const gpu_value *k)
{
    return GPU_ATTRS(run, "{s:I, s:I, s:I}", "heads", (json_int_t)q->t.shape[1], "groups",
                     (json_int_t)k->t.shape[1], "head_dim", (json_int_t)q->t.shape[2]);
}

assay_status gpu_run_qkv_split_fwd(gpu_run *run, const char *at, gpu_value *q, gpu_value *k, gpu_value *v,
                                   gpu_value *qkv)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"qkv", qkv}};
    const gpu_operand out[] = {{"q", q}, {"k", k}, {"v", v}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "qkv_split_fwd", at, in, 1));
    ASSAY_TRY(gpu_qkv_split_fwd(&run->ctx, q->t, k->t, v->t, qkv->t, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 3, split_attrs(run, q, k));
}

assay_status gpu_run_qkv_split_bwd(gpu_run *run, const char *at, gpu_value *dqkv, gpu_value *dq,
                                   gpu_value *dk, gpu_value *dv)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"dq", dq}, {"dk", dk}, {"dv", dv}};
    const gpu_operand out[] = {{"dqkv", dqkv}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "qkv_split_bwd", at, in, 3));
    ASSAY_TRY(gpu_qkv_split_bwd(&run->ctx, dqkv->t, dq->t, dk->t, dv->t, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, split_attrs(run, dq, dk));
}

/* --- element-wise ------------------------------------------------------------------------------------------- */
assay_status gpu_run_add(gpu_run *run, const char *at, gpu_value *y, gpu_value *a, gpu_value *b)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"a", a}, {"b", b}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "add", at, in, 2));
    ASSAY_TRY(gpu_add(&run->ctx, y->t, a->t, b->t, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}

assay_status gpu_run_cast(gpu_run *run, const char *at, gpu_value *y, gpu_value *x)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"x", x}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "cast", at, in, 1));
    ASSAY_TRY(gpu_cast(&run->ctx, y->t, x->t, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, GPU_ATTRS(run, "{s:s}", "dtype", assay_dtype_name(y->t.dtype)));
}

assay_status gpu_run_slice_rows(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, int64_t start,
                                int64_t length)
{
    const int64_t rows_of_s = x->dim[1].length * x->dim[1].blocks;
    y->t = gpu_tensor_rows(x->t, start * rows_of_s, length * rows_of_s);
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"x", x}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "slice_rows", at, in, 1));
    run->ctx.declared = (gpu_declared){.variant_name = "view", .arith = assay_arith_elementwise()};
    return gpu_trace_end(
        run, &r, out, 1,
        GPU_ATTRS(run, "{s:I, s:I}", "start", (json_int_t)start, "length", (json_int_t)length));
}

assay_status gpu_run_swiglu_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, gpu_value *probs)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"x", x}, {"probs", probs}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "swiglu_fwd", at, in, 2));
    ASSAY_TRY(gpu_swiglu_fwd(&run->ctx, y->t, x->t, probs ? probs->t : gpu_tensor_none(), run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}

assay_status gpu_run_swiglu_bwd(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dprobs, gpu_value *dy,
                                gpu_value *x, gpu_value *probs)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"dy", dy}, {"x", x}, {"probs", probs}};
    const gpu_operand out[] = {{"dx", dx}, {"dprobs", dprobs}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "swiglu_bwd", at, in, 3));
    ASSAY_TRY(gpu_swiglu_bwd(&run->ctx, dx->t, dprobs ? dprobs->t : gpu_tensor_none(), dy->t, x->t,
                             probs ? probs->t : gpu_tensor_none(), run->ctx.stream));
    return gpu_trace_end(run, &r, out, 2, NULL);
}

static gpu_tensor flat(gpu_tensor t)
{
    return gpu_tensor_1d(t.data, t.dtype, gpu_tensor_count(t));
}

assay_status gpu_run_sigmoid_gate_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *x,
                                      gpu_value *gate)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"x", x}, {"gate", gate}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "sigmoid_gate_fwd", at, in, 2));
    ASSAY_TRY(gpu_sigmoid_gate_fwd(&run->ctx, y->t, x->t, flat(gate->t), run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}

assay_status gpu_run_sigmoid_gate_bwd(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dgate,
                                      gpu_value *dy, gpu_value *x, gpu_value *gate)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"dy", dy}, {"x", x}, {"gate", gate}};
    const gpu_operand out[] = {{"dx", dx}, {"dgate", dgate}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "sigmoid_gate_bwd", at, in, 3));
    ASSAY_TRY(
        gpu_sigmoid_gate_bwd(&run->ctx, dx->t, flat(dgate->t), dy->t, x->t, flat(gate->t), run->ctx.stream));
    return gpu_trace_end(run, &r, out, 2, NULL);
}
