/* Operation calls with records: embedding and loss. */
#include "gpu/trace_internal.h"
#include "gpu/trace_ops.h"

/* --- embedding and loss ------------------------------------------------------------------------------------- */
assay_status gpu_run_embedding_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *ids, gpu_value *w,
                                   int64_t vocab_start)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"ids", ids}, {"weight", w}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "embedding_fwd", at, in, 2));
    ASSAY_TRY(gpu_embedding_fwd(&run->ctx, y->t, ids->t, w->t, vocab_start, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, GPU_ATTRS(run, "{s:I}", "vocab_start", (json_int_t)vocab_start));
}

assay_status gpu_run_embedding_bwd(gpu_run *run, const char *at, gpu_value *dweight, gpu_value *dy,
                                   gpu_value *ids, int64_t vocab_start)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"dy", dy}, {"ids", ids}, {"dweight_in", dweight}};
    const gpu_operand out[] = {{"dweight", dweight}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "embedding_bwd", at, in, 3));
    ASSAY_TRY(gpu_embedding_bwd(&run->ctx, dweight->t, dy->t, ids->t, vocab_start, run->ctx.stream));
    gpu_value_touch(run, dweight);
    return gpu_trace_end(run, &r, out, 1, GPU_ATTRS(run, "{s:I}", "vocab_start", (json_int_t)vocab_start));
}

assay_status gpu_run_cross_entropy_stats(gpu_run *run, const char *at, gpu_value *stats, gpu_value *logits,
                                         gpu_value *targets, int64_t vocab_start)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"logits", logits}, {"targets", targets}};
    const gpu_operand out[] = {{"stats", stats}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "cross_entropy_stats", at, in, 2));
    ASSAY_TRY(
        gpu_cross_entropy_stats(&run->ctx, stats->t, logits->t, targets->t, vocab_start, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, GPU_ATTRS(run, "{s:I}", "vocab_start", (json_int_t)vocab_start));
}

assay_status gpu_run_cross_entropy_loss(gpu_run *run, const char *at, gpu_value *lse, gpu_value *loss,
                                        gpu_value *stats, gpu_value *targets)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"stats", stats}, {"targets", targets}};
    const gpu_operand out[] = {{"lse", lse}, {"loss", loss}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "cross_entropy_loss", at, in, 2));
    const int64_t tokens = gpu_tensor_count(targets->t);
    const int64_t pieces = tokens > 0 ? gpu_tensor_count(stats->t) / (3 * tokens) : 1;
    const int64_t shape[3] = {pieces, 3, tokens};
    ASSAY_TRY(gpu_cross_entropy_loss(&run->ctx, lse->t, loss->t,
                                     gpu_tensor_make(stats->t.data, ASSAY_F32, 3, shape), targets->t,
                                     run->ctx.stream));
    return gpu_trace_end(run, &r, out, 2, NULL);
}

assay_status gpu_run_cross_entropy_bwd(gpu_run *run, const char *at, gpu_value *dlogits, gpu_value *logits,
                                       gpu_value *lse, gpu_value *targets, int64_t vocab_start, double scale)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"logits", logits}, {"lse", lse}, {"targets", targets}};
    const gpu_operand out[] = {{"dlogits", dlogits}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "cross_entropy_bwd", at, in, 3));
    ASSAY_TRY(gpu_cross_entropy_bwd(&run->ctx, dlogits->t, logits->t, lse->t, targets->t, vocab_start,
                                    (float)scale, run->ctx.stream));
    return gpu_trace_end(
        run, &r, out, 1,
        GPU_ATTRS(run, "{s:I, s:f}", "vocab_start", (json_int_t)vocab_start, "scale", (double)(float)scale));
}

assay_status gpu_run_sum(gpu_run *run, const char *at, gpu_value *y, gpu_value *x)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"x", x}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "sum", at, in, 1));
    ASSAY_TRY(gpu_sum(&run->ctx, y->t, gpu_tensor_1d(x->t.data, x->t.dtype, gpu_tensor_count(x->t)),
                      run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}
