/* Operation calls with records: mixture of experts. */
#include "gpu/trace_internal.h"
#include "gpu/trace_ops.h"

/* --- grouped linear ----------------------------------------------------------------------------------------- */
assay_status gpu_run_grouped_linear_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *x,
                                        gpu_value *w, const int64_t *counts, gpu_value *counts_value)
{
    if (run->dry) {
        gpu_run_need(run, gpu_linear_workspace(&run->ctx));
        return ASSAY_OK;
    }
    const gpu_operand in[] = {{"x", x}, {"weight", w}, {"tokens_per_expert", counts_value}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "grouped_linear_fwd", at, in, 3));
    ASSAY_TRY(gpu_grouped_linear_fwd(&run->ctx, y->t, x->t, w->t, counts, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}

assay_status gpu_run_grouped_linear_bwd_input(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dy,
                                              gpu_value *w, const int64_t *counts, gpu_value *counts_value)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"dy", dy}, {"weight", w}, {"tokens_per_expert", counts_value}};
    const gpu_operand out[] = {{"dx", dx}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "grouped_linear_bwd_input", at, in, 3));
    ASSAY_TRY(gpu_grouped_linear_bwd_input(&run->ctx, dx->t, dy->t, w->t, counts, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}

assay_status gpu_run_grouped_linear_bwd_weight(gpu_run *run, const char *at, gpu_value *dweight,
                                               gpu_value *dy, gpu_value *x, const int64_t *counts,
                                               gpu_value *counts_value)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {
        {"dy", dy}, {"x", x}, {"tokens_per_expert", counts_value}, {"dweight_in", dweight}};
    const gpu_operand out[] = {{"dweight", dweight}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "grouped_linear_bwd_weight", at, in, 4));
    ASSAY_TRY(gpu_grouped_linear_bwd_weight(&run->ctx, dweight->t, dy->t, x->t, counts, run->ctx.stream));
    gpu_value_touch(run, dweight);
    return gpu_trace_end(run, &r, out, 1, NULL);
}

/* --- router ------------------------------------------------------------------------------------------------- */
static json_t *router_attrs(const gpu_run *run, const gpu_router_desc *d)
{
    return GPU_ATTRS(run, "{s:I, s:s, s:b, s:b, s:f, s:I, s:I}", "topk", (json_int_t)d->topk,
                     "score_function", d->score_function == ASSAY_SCORE_SIGMOID ? "sigmoid" : "softmax",
                     "pre_softmax", d->pre_softmax, "norm_topk_prob", d->norm_topk_prob, "scaling_factor",
                     (double)d->scaling_factor, "num_groups", (json_int_t)d->num_groups, "group_topk",
                     (json_int_t)d->group_topk);
}

static const char *score_word(const gpu_router_desc *d)
{
    return d->score_function == ASSAY_SCORE_SIGMOID ? "sigmoid" : "softmax";
}

static json_t *aux_loss_attrs(const gpu_run *run, const gpu_router_aux_desc *d)
{
    return GPU_ATTRS(run, "{s:f, s:f, s:I, s:I}", "aux_coeff", d->aux_coeff, "z_coeff", d->z_coeff, "tokens",
                     (json_int_t)d->group_tokens, "topk", (json_int_t)d->router.topk);
}

static json_t *aux_bwd_attrs(const gpu_run *run, const gpu_router_aux_desc *d)
{
    json_t *attrs = aux_loss_attrs(run, d);
    if (attrs) {
        json_object_set_new(attrs, "loss_scale", json_real(d->loss_scale));
        json_object_set_new(attrs, "score_function", json_string(score_word(&d->router)));
    }
    return attrs;
}

/* Planted fault: one expert of row 0 becomes the lowest number that was not chosen; the row stays ascending.
 */
static assay_status spoil_first_row(gpu_run *run, gpu_value *indices, int64_t experts)
{
    const int64_t k = indices->t.shape[indices->t.ndim - 1];
    int64_t row[64];
    if (gpu_tensor_count(indices->t) == 0 || k > 64 || k >= experts)
        return ASSAY_OK;
    const size_t bytes = (size_t)k * sizeof row[0];
    ASSAY_TRY(gpu_run_download(run, row, indices->t.data, bytes, "fault wrong_expert"));
    int64_t free_expert = 0;
    while (free_expert < k && row[free_expert] == free_expert)
        free_expert++;
    if (free_expert < k)
        row[free_expert] = free_expert;
    else
        row[k - 1] = k;
    return gpu_run_upload(run, indices->t.data, row, bytes, "fault wrong_expert");
}

assay_status gpu_run_router_fwd(gpu_run *run, const char *at, gpu_value *indices, gpu_value *probs,
                                gpu_value *scores, gpu_value *logits, gpu_value *expert_bias,
                                const gpu_router_desc *d, bool spoil)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"logits", logits}, {"expert_bias", expert_bias}};
    const gpu_operand out[] = {{"indices", indices}, {"probs", probs}, {"scores", scores}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "router_fwd", at, in, 2));
    ASSAY_TRY(gpu_router_fwd(&run->ctx, indices->t, probs->t, scores->t, logits->t,
                             expert_bias ? expert_bias->t : gpu_tensor_none(), d, run->ctx.stream));
    const gpu_declared declared = run->ctx.declared;
    if (spoil)
        ASSAY_TRY(spoil_first_row(run, indices, logits->t.shape[logits->t.ndim - 1]));
    run->ctx.declared = declared;
    return gpu_trace_end(run, &r, out, 3, router_attrs(run, d));
}

assay_status gpu_run_router_bwd(gpu_run *run, const char *at, gpu_value *dlogits, gpu_value *dprobs,
                                gpu_value *indices, gpu_value *scores, gpu_value *logits,
                                const gpu_router_desc *d)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {
        {"dprobs", dprobs}, {"indices", indices}, {"scores", scores}, {"logits", logits}};
    const gpu_operand out[] = {{"dlogits", dlogits}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "router_bwd", at, in, 4));
    ASSAY_TRY(gpu_router_bwd(&run->ctx, dlogits->t, dprobs->t, indices->t, scores->t, logits->t, d,
                             run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, router_attrs(run, d));
}

assay_status gpu_run_router_aux_fwd(gpu_run *run, const char *at, gpu_value *aux_scores,
                                    gpu_value *aux_indices, gpu_value *counts, gpu_value *score_sums,
                                    gpu_value *z_sum, gpu_value *logits, const gpu_router_desc *d)
{
    if (run->dry) {
        const int64_t experts = logits->t.shape[logits->t.ndim - 1];
        gpu_run_need(run, gpu_router_aux_workspace(&run->ctx, gpu_tensor_count(logits->t) / experts));
        return ASSAY_OK;
    }
    const gpu_operand in[] = {{"logits", logits}};
    const gpu_operand out[] = {{"aux_scores", aux_scores},
                               {"aux_indices", aux_indices},
                               {"tokens_per_expert", counts},
                               {"score_sums", score_sums},
                               {"z_sum", z_sum}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "router_aux_fwd", at, in, 1));
    ASSAY_TRY(gpu_router_aux_fwd(&run->ctx, aux_scores->t, aux_indices->t, counts->t, score_sums->t, z_sum->t,
                                 logits->t, d, run->ctx.stream));
    return gpu_trace_end(
        run, &r, out, 5,
        GPU_ATTRS(run, "{s:I, s:s}", "topk", (json_int_t)d->topk, "score_function", score_word(d)));
}

assay_status gpu_run_router_aux_loss(gpu_run *run, const char *at, gpu_value *losses, gpu_value *score_sums,
                                     gpu_value *counts, gpu_value *z_sum, const gpu_router_aux_desc *d)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"score_sums", score_sums}, {"tokens_per_expert", counts}, {"z_sum", z_sum}};
    const gpu_operand out[] = {{"losses", losses}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "router_aux_loss", at, in, 3));
    ASSAY_TRY(
        gpu_router_aux_loss(&run->ctx, losses->t, score_sums->t, counts->t, z_sum->t, d, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, aux_loss_attrs(run, d));
}

assay_status gpu_run_router_aux_bwd(gpu_run *run, const char *at, gpu_value *dlogits, gpu_value *dlogits_in,
                                    gpu_value *logits, gpu_value *counts, const gpu_router_aux_desc *d)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"logits", logits}, {"tokens_per_expert", counts}, {"dlogits_in", dlogits_in}};
    const gpu_operand out[] = {{"dlogits", dlogits}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "router_aux_bwd", at, in, 3));
    ASSAY_TRY(gpu_router_aux_bwd(&run->ctx, dlogits->t, logits->t, counts->t, d, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, aux_bwd_attrs(run, d));
}

assay_status gpu_run_expert_bias_update(gpu_run *run, const char *at, gpu_value *bias, gpu_value *bias_in,
                                        gpu_value *counts, double rate)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"bias_in", bias_in}, {"tokens_per_expert", counts}};
    const gpu_operand out[] = {{"bias", bias}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "expert_bias_update", at, in, 2));
    ASSAY_TRY(gpu_expert_bias_update(&run->ctx, bias->t, counts->t, (float)rate, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, GPU_ATTRS(run, "{s:f}", "rate", (double)(float)rate));
}

/* --- rows --------------------------------------------------------------------------------------------------- */
assay_status gpu_run_permute_plan(gpu_run *run, const char *at, gpu_value *row_token, gpu_value *row_slot,
                                  gpu_value *tokens_per_expert, gpu_value *token_row, gpu_value *indices)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"indices", indices}};
    const gpu_operand out[] = {{"row_token", row_token},
                               {"row_slot", row_slot},
                               {"tokens_per_expert", tokens_per_expert},
                               {"token_row", token_row}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "permute_plan", at, in, 1));
    ASSAY_TRY(gpu_permute_plan(&run->ctx, row_token->t, row_slot->t, tokens_per_expert->t, token_row->t,
                               indices->t, run->ctx.stream));
    return gpu_trace_end(
        run, &r, out, 4,
        GPU_ATTRS(run, "{s:I}", "experts", (json_int_t)gpu_tensor_count(tokens_per_expert->t)));
}

assay_status gpu_run_gather_rows(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, gpu_value *index)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"x", x}, {"index", index}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "gather_rows", at, in, 2));
    ASSAY_TRY(gpu_gather_rows(&run->ctx, y->t, x->t, index->t, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}

assay_status gpu_run_combine_rows(gpu_run *run, const char *at, gpu_value *y, gpu_value *x,
                                  gpu_value *token_row)
{
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"x", x}, {"token_row", token_row}};
    const gpu_operand out[] = {{"y", y}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "combine_rows", at, in, 2));
    ASSAY_TRY(gpu_combine_rows(&run->ctx, y->t, x->t, token_row->t, run->ctx.stream));
    return gpu_trace_end(run, &r, out, 1, NULL);
}
