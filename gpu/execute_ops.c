/* The table of gpu_execute: for each operation its slots, attributes and call (docs/OPS.md). */
#include "core/model/config.h"
#include "gpu/execute_job.h"
#include <string.h>

/* [rows, cols] of the leading extents of `like` and another last extent. */
static gpu_tensor out_cols(gpu_job *j, const char *slot, assay_dtype dtype, gpu_tensor like, int64_t cols)
{
    int64_t shape[GPU_MAX_DIMS] = {0};
    memcpy(shape, like.shape, sizeof shape);
    if (like.ndim > 0)
        shape[like.ndim - 1] = cols;
    return gpu_job_out(j, slot, dtype, like.ndim, shape);
}

static assay_dtype attr_dtype(gpu_job *j, const char *otherwise)
{
    char text[16];
    assay_dtype dtype = ASSAY_F32;
    gpu_job_text(j, "dtype", otherwise, text, sizeof text);
    if (j->st == ASSAY_OK)
        j->st = assay_dtype_from_name(text, &dtype);
    return dtype;
}

/* --- linear --- */
static assay_status run_linear_fwd(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), w = gpu_job_in(j, "weight"), b = gpu_job_optional(j, "bias");
    const gpu_tensor y = out_cols(j, "y", attr_dtype(j, assay_dtype_name(j->act)), x, w.shape[0]);
    gpu_job_workspace(j, gpu_linear_workspace(j->ctx));
    ASSAY_TRY(j->st);
    return gpu_linear_fwd(j->ctx, y, x, w, b, j->ctx->stream);
}

static assay_status run_linear_bwd_input(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), w = gpu_job_in(j, "weight");
    const gpu_tensor dx = out_cols(j, "dx", j->act, dy, w.shape[1]);
    gpu_job_workspace(j, gpu_linear_workspace(j->ctx));
    ASSAY_TRY(j->st);
    return gpu_linear_bwd_input(j->ctx, dx, dy, w, j->ctx->stream);
}

static assay_status run_linear_bwd_weight(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), x = gpu_job_in(j, "x");
    const gpu_tensor dweight = gpu_job_out_from(j, "dweight", "dweight_in");
    gpu_job_workspace(j, gpu_linear_workspace(j->ctx));
    ASSAY_TRY(j->st);
    return gpu_linear_bwd_weight(j->ctx, dweight, dy, x, j->ctx->stream);
}

static assay_status run_linear_bwd_bias(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), dbias = gpu_job_out_from(j, "dbias", "dbias_in");
    ASSAY_TRY(j->st);
    return gpu_linear_bwd_bias(j->ctx, dbias, dy, j->ctx->stream);
}

/* tokens_per_expert has one entry for each expert of the weight. */
static const int64_t *expert_counts(gpu_job *j, gpu_tensor w)
{
    int64_t n = 0;
    const int64_t *counts = gpu_job_host_i64(j, "tokens_per_expert", &n);
    if (j->st == ASSAY_OK && n != w.shape[0])
        j->st =
            ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "%s: tokens_per_expert: expected %lld entries, found %lld",
                        j->op, (long long)w.shape[0], (long long)n);
    return counts;
}

static assay_status run_grouped_linear_fwd(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), w = gpu_job_in(j, "weight");
    const int64_t *counts = expert_counts(j, w);
    const gpu_tensor y = out_cols(j, "y", j->act, x, w.shape[1]);
    gpu_job_workspace(j, gpu_linear_workspace(j->ctx));
    ASSAY_TRY(j->st);
    return gpu_grouped_linear_fwd(j->ctx, y, x, w, counts, j->ctx->stream);
}

static assay_status run_grouped_linear_bwd_input(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), w = gpu_job_in(j, "weight");
    const int64_t *counts = expert_counts(j, w);
    const gpu_tensor dx = out_cols(j, "dx", j->act, dy, w.shape[2]);
    gpu_job_workspace(j, gpu_linear_workspace(j->ctx));
    ASSAY_TRY(j->st);
    return gpu_grouped_linear_bwd_input(j->ctx, dx, dy, w, counts, j->ctx->stream);
}

static assay_status run_grouped_linear_bwd_weight(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), x = gpu_job_in(j, "x");
    const gpu_tensor dweight = gpu_job_out_from(j, "dweight", "dweight_in");
    const int64_t *counts = expert_counts(j, dweight);
    gpu_job_workspace(j, gpu_linear_workspace(j->ctx));
    ASSAY_TRY(j->st);
    return gpu_grouped_linear_bwd_weight(j->ctx, dweight, dy, x, counts, j->ctx->stream);
}

/* --- norm, rope --- */
static assay_status run_rmsnorm_fwd(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), gamma = gpu_job_in(j, "gamma");
    const gpu_tensor y = gpu_job_out_like(j, "y", j->act, x);
    const gpu_tensor rstd = gpu_job_out1(j, "rstd", ASSAY_F32, gpu_tensor_row_count(x));
    const float eps = (float)gpu_job_double(j, "eps", true, 0.0);
    ASSAY_TRY(j->st);
    return gpu_rmsnorm_fwd(j->ctx, y, rstd, x, gamma, eps, j->ctx->stream);
}

static assay_status run_rmsnorm_bwd(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), x = gpu_job_in(j, "x"), gamma = gpu_job_in(j, "gamma");
    const gpu_tensor rstd = gpu_job_in(j, "rstd");
    const gpu_tensor dx = gpu_job_out_like(j, "dx", j->act, x);
    const gpu_tensor dgamma = gpu_job_out_from(j, "dgamma", "dgamma_in");
    ASSAY_TRY(j->st);
    return gpu_rmsnorm_bwd(j->ctx, dx, dgamma, dy, x, gamma, rstd, j->ctx->stream);
}

static assay_status run_rope_table(gpu_job *j)
{
    char type[16];
    gpu_rope_desc d;
    memset(&d, 0, sizeof d);
    gpu_job_text(j, "rope_type", "default", type, sizeof type);
    d.type = strcmp(type, "default") == 0  ? (int)ASSAY_ROPE_DEFAULT
             : strcmp(type, "linear") == 0 ? (int)ASSAY_ROPE_LINEAR
             : strcmp(type, "llama3") == 0 ? (int)ASSAY_ROPE_LLAMA3
                                           : -1;
    if (j->st == ASSAY_OK && d.type < 0)
        j->st = ASSAY_ERROR(ASSAY_UNSUPPORTED, "%s: rope_type: expected default, linear or llama3, found %s",
                            j->op, type);
    d.rotary_dim = gpu_job_i64(j, "rotary_dim", true, 0);
    d.base = gpu_job_double(j, "rotary_base", true, 0.0);
    d.factor = gpu_job_double(j, "factor", false, 1.0);
    d.low_freq_factor = gpu_job_double(j, "low_freq_factor", false, 1.0);
    d.high_freq_factor = gpu_job_double(j, "high_freq_factor", false, 1.0);
    d.original_max_position_embeddings = gpu_job_i64(j, "original_max_position_embeddings", false, 0);
    const int64_t positions = gpu_job_i64(j, "positions", true, 0);
    const gpu_tensor c = gpu_job_out2(j, "cos", ASSAY_F32, positions, d.rotary_dim / 2);
    const gpu_tensor s = gpu_job_out2(j, "sin", ASSAY_F32, positions, d.rotary_dim / 2);
    ASSAY_TRY(j->st);
    return gpu_rope_table(j->ctx, c, s, &d, j->ctx->stream);
}

static assay_status run_rope(gpu_job *j)
{
    const bool back = strcmp(j->op, "rope_bwd") == 0;
    const gpu_tensor x = gpu_job_in(j, back ? "dy" : "x"), c = gpu_job_in(j, "cos"), s = gpu_job_in(j, "sin");
    const gpu_tensor position = gpu_job_in(j, "position");
    const gpu_tensor y = gpu_job_out_like(j, back ? "dx" : "y", j->act, x);
    gpu_job_range(j, "position", 0, gpu_tensor_row_count(c), 0);
    ASSAY_TRY(j->st);
    return back ? gpu_rope_bwd(j->ctx, y, x, c, s, position, j->ctx->stream)
                : gpu_rope_fwd(j->ctx, y, x, c, s, position, j->ctx->stream);
}

/* --- attention --- */
static gpu_attention_desc attention_desc(gpu_job *j)
{
    gpu_attention_desc d;
    memset(&d, 0, sizeof d);
    d.batch = gpu_job_i64(j, "batch", true, 0);
    d.seq_q = gpu_job_i64(j, "seq_q", true, 0);
    d.seq_k = gpu_job_i64(j, "seq_k", true, 0);
    d.heads = gpu_job_i64(j, "heads", true, 0);
    d.groups = gpu_job_i64(j, "groups", true, 0);
    d.head_dim = gpu_job_i64(j, "head_dim", true, 0);
    d.head_dim_v = gpu_job_i64(j, "head_dim_v", false, d.head_dim);
    d.scale = (float)gpu_job_double(j, "scale", true, 0.0);
    d.window = gpu_job_i64(j, "window", false, 0);
    d.q_position = gpu_job_in(j, "q_position");
    d.k_position = gpu_job_in(j, "k_position");
    d.first_key = gpu_job_optional(j, "first_key");
    return d;
}

static assay_status run_attention_fwd(gpu_job *j)
{
    const gpu_attention_desc d = attention_desc(j);
    const gpu_tensor q = gpu_job_in(j, "q"), k = gpu_job_in(j, "k"), v = gpu_job_in(j, "v");
    const int64_t rows = gpu_tensor_count(d.q_position), shape[3] = {rows, d.heads, d.head_dim_v};
    const gpu_tensor o = gpu_job_out(j, "o", j->act, 3, shape);
    const gpu_tensor lse = gpu_job_out2(j, "lse", ASSAY_F32, rows, d.heads);
    ASSAY_TRY(j->st);
    return gpu_attention_fwd(j->ctx, o, lse, q, k, v, &d, j->ctx->stream);
}

static assay_status run_attention_bwd(gpu_job *j)
{
    const gpu_attention_desc d = attention_desc(j);
    const gpu_tensor dout = gpu_job_in(j, "do"), q = gpu_job_in(j, "q"), k = gpu_job_in(j, "k");
    const gpu_tensor v = gpu_job_in(j, "v"), o = gpu_job_in(j, "o"), lse = gpu_job_in(j, "lse");
    const gpu_tensor dq = gpu_job_out_like(j, "dq", j->act, q), dk = gpu_job_out_like(j, "dk", j->act, k);
    const gpu_tensor dv = gpu_job_out_like(j, "dv", j->act, v);
    gpu_job_workspace(j, sizeof(float) * (size_t)gpu_tensor_count(lse));
    ASSAY_TRY(j->st);
    return gpu_attention_bwd(j->ctx, dq, dk, dv, dout, q, k, v, o, lse, &d, j->ctx->stream);
}

static assay_status run_qkv_split_fwd(gpu_job *j)
{
    const gpu_tensor qkv = gpu_job_in(j, "qkv");
    const int64_t heads = gpu_job_i64(j, "heads", true, 0), groups = gpu_job_i64(j, "groups", true, 0);
    const int64_t d = gpu_job_i64(j, "head_dim", true, 0), t = gpu_tensor_row_count(qkv);
    const int64_t q_shape[3] = {t, heads, d}, k_shape[3] = {t, groups, d};
    const gpu_tensor q = gpu_job_out(j, "q", j->act, 3, q_shape), k = gpu_job_out(j, "k", j->act, 3, k_shape);
    const gpu_tensor v = gpu_job_out(j, "v", j->act, 3, k_shape);
    ASSAY_TRY(j->st);
    return gpu_qkv_split_fwd(j->ctx, q, k, v, qkv, j->ctx->stream);
}

static assay_status run_qkv_split_bwd(gpu_job *j)
{
    const gpu_tensor dq = gpu_job_in(j, "dq"), dk = gpu_job_in(j, "dk"), dv = gpu_job_in(j, "dv");
    int64_t cols = 0;
    if (j->st == ASSAY_OK &&
        (!assay_mul_i64(dq.shape[1], dq.shape[2], &cols) || dk.ndim != 3 || dq.ndim != 3))
        j->st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "%s: dq, dk: expected 3 dimensions [T,heads,D]", j->op);
    const gpu_tensor dqkv =
        gpu_job_out2(j, "dqkv", j->act, dk.shape[0], cols + 2 * dk.shape[1] * dk.shape[2]);
    ASSAY_TRY(j->st);
    return gpu_qkv_split_bwd(j->ctx, dqkv, dq, dk, dv, j->ctx->stream);
}

/* --- element-wise --- */
static assay_status run_add(gpu_job *j)
{
    const gpu_tensor a = gpu_job_in(j, "a"), b = gpu_job_in(j, "b"), y = gpu_job_out_like(j, "y", j->act, a);
    ASSAY_TRY(j->st);
    return gpu_add(j->ctx, y, a, b, j->ctx->stream);
}

static assay_status run_cast(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), y = gpu_job_out_like(j, "y", attr_dtype(j, NULL), x);
    ASSAY_TRY(j->st);
    return gpu_cast(j->ctx, y, x, j->ctx->stream);
}

static assay_status run_slice_rows(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x");
    const int64_t start = gpu_job_i64(j, "start", true, 0), length = gpu_job_i64(j, "length", true, 0);
    if (j->st == ASSAY_OK &&
        !(x.ndim > 0 && start >= 0 && length >= 0 && length <= x.shape[0] && start <= x.shape[0] - length))
        j->st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT,
                            "%s: expected rows inside %lld, found start %lld, length %lld", j->op,
                            (long long)x.shape[0], (long long)start, (long long)length);
    const gpu_tensor piece = j->st == ASSAY_OK ? gpu_tensor_rows(x, start, length) : x;
    const gpu_tensor y = gpu_job_out_like(j, "y", x.dtype, piece);
    ASSAY_TRY(j->st);
    if (gpu_tensor_bytes(y) > 0)
        CUDA_TRY(cudaMemcpyAsync(y.data, piece.data, gpu_tensor_bytes(y), cudaMemcpyDeviceToDevice,
                                 j->ctx->stream));
    gpu_declare(j->ctx, 0, gpu_arith_elementwise(0));
    return ASSAY_OK;
}

static assay_status run_swiglu_fwd(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), probs = gpu_job_optional(j, "probs");
    const gpu_tensor y = out_cols(j, "y", j->act, x, gpu_tensor_cols(x) / 2);
    ASSAY_TRY(j->st);
    return gpu_swiglu_fwd(j->ctx, y, x, probs, j->ctx->stream);
}

static assay_status run_swiglu_bwd(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), x = gpu_job_in(j, "x"), probs = gpu_job_optional(j, "probs");
    const gpu_tensor dx = gpu_job_out_like(j, "dx", j->act, x);
    const gpu_tensor dprobs =
        gpu_tensor_present(probs) ? gpu_job_out_like(j, "dprobs", ASSAY_F32, probs) : gpu_tensor_none();
    ASSAY_TRY(j->st);
    return gpu_swiglu_bwd(j->ctx, dx, dprobs, dy, x, probs, j->ctx->stream);
}

static assay_status run_sigmoid_gate_fwd(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), gate = gpu_job_in(j, "gate");
    const gpu_tensor y = gpu_job_out_like(j, "y", j->act, x);
    ASSAY_TRY(j->st);
    return gpu_sigmoid_gate_fwd(j->ctx, y, x, gate, j->ctx->stream);
}

static assay_status run_sigmoid_gate_bwd(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), x = gpu_job_in(j, "x"), gate = gpu_job_in(j, "gate");
    const gpu_tensor dx = gpu_job_out_like(j, "dx", j->act, x);
    const gpu_tensor dgate = gpu_job_out_like(j, "dgate", j->act, gate);
    ASSAY_TRY(j->st);
    return gpu_sigmoid_gate_bwd(j->ctx, dx, dgate, dy, x, gate, j->ctx->stream);
}

static assay_status run_embedding_fwd(gpu_job *j)
{
    const gpu_tensor ids = gpu_job_in(j, "ids"), w = gpu_job_in(j, "weight");
    const int64_t start = gpu_job_i64(j, "vocab_start", false, 0);
    const gpu_tensor y = gpu_job_out2(j, "y", j->act, gpu_tensor_count(ids), w.shape[1]);
    ASSAY_TRY(j->st);
    return gpu_embedding_fwd(j->ctx, y, ids, w, start, j->ctx->stream);
}

static assay_status run_embedding_bwd(gpu_job *j)
{
    const gpu_tensor dy = gpu_job_in(j, "dy"), ids = gpu_job_in(j, "ids");
    const int64_t start = gpu_job_i64(j, "vocab_start", false, 0);
    const gpu_tensor dweight = gpu_job_out_from(j, "dweight", "dweight_in");
    ASSAY_TRY(j->st);
    return gpu_embedding_bwd(j->ctx, dweight, dy, ids, start, j->ctx->stream);
}

static assay_status run_sum(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), y = gpu_job_out1(j, "y", ASSAY_F64, 1);
    gpu_job_workspace(j, gpu_sum_workspace(j->ctx));
    ASSAY_TRY(j->st);
    return strcmp(j->op, "sumsq") == 0 ? gpu_sumsq(j->ctx, y, &x, 1, j->ctx->stream)
                                       : gpu_sum(j->ctx, y, x, j->ctx->stream);
}

/* --- mixture of experts --- */
static gpu_router_desc router_desc(gpu_job *j)
{
    gpu_router_desc d;
    char text[16];
    memset(&d, 0, sizeof d);
    gpu_job_text(j, "score_function", "softmax", text, sizeof text);
    d.score_function = strcmp(text, "softmax") == 0   ? (int)ASSAY_SCORE_SOFTMAX
                       : strcmp(text, "sigmoid") == 0 ? (int)ASSAY_SCORE_SIGMOID
                                                      : -1;
    d.topk = gpu_job_i64(j, "topk", true, 0);
    d.pre_softmax = gpu_job_bool(j, "pre_softmax", false);
    d.norm_topk_prob = gpu_job_bool(j, "norm_topk_prob", false);
    d.scaling_factor = (float)gpu_job_double(j, "scaling_factor", false, 1.0);
    d.num_groups = gpu_job_i64(j, "num_groups", false, 0);
    d.group_topk = gpu_job_i64(j, "group_topk", false, 0);
    return d;
}

static gpu_router_aux_desc aux_desc(gpu_job *j)
{
    gpu_router_aux_desc d;
    memset(&d, 0, sizeof d);
    d.router = router_desc(j);
    d.aux_coeff = gpu_job_double(j, "aux_coeff", true, 0.0);
    d.z_coeff = gpu_job_double(j, "z_coeff", true, 0.0);
    d.loss_scale = gpu_job_double(j, "loss_scale", false, 1.0);
    d.group_tokens = gpu_job_i64(j, "tokens", true, 0);
    return d;
}

static assay_status run_router_fwd(gpu_job *j)
{
    const gpu_router_desc d = router_desc(j);
    const gpu_tensor logits = gpu_job_in(j, "logits"), bias = gpu_job_optional(j, "expert_bias");
    const gpu_tensor indices = out_cols(j, "indices", ASSAY_I64, logits, d.topk);
    const gpu_tensor probs = out_cols(j, "probs", ASSAY_F32, logits, d.topk);
    const gpu_tensor scores = gpu_job_out_like(j, "scores", ASSAY_F32, logits);
    ASSAY_TRY(j->st);
    return gpu_router_fwd(j->ctx, indices, probs, scores, logits, bias, &d, j->ctx->stream);
}

static assay_status run_router_bwd(gpu_job *j)
{
    const gpu_router_desc d = router_desc(j);
    const gpu_tensor dprobs = gpu_job_in(j, "dprobs"), indices = gpu_job_in(j, "indices");
    const gpu_tensor scores = gpu_job_in(j, "scores"), logits = gpu_job_in(j, "logits");
    const gpu_tensor dlogits = gpu_job_out_like(j, "dlogits", ASSAY_F32, logits);
    gpu_job_range(j, "indices", 0, gpu_tensor_cols(logits), 0);
    ASSAY_TRY(j->st);
    return gpu_router_bwd(j->ctx, dlogits, dprobs, indices, scores, logits, &d, j->ctx->stream);
}

static assay_status run_router_aux_fwd(gpu_job *j)
{
    const gpu_router_desc d = router_desc(j);
    const gpu_tensor logits = gpu_job_in(j, "logits");
    const int64_t experts = gpu_tensor_cols(logits);
    const gpu_tensor scores = gpu_job_out_like(j, "aux_scores", ASSAY_F32, logits);
    const gpu_tensor indices = out_cols(j, "aux_indices", ASSAY_I64, logits, d.topk);
    const gpu_tensor counts = gpu_job_out1(j, "tokens_per_expert", ASSAY_I64, experts);
    const gpu_tensor sums = gpu_job_out1(j, "score_sums", ASSAY_F32, experts);
    const gpu_tensor z_sum = gpu_job_out1(j, "z_sum", ASSAY_F32, 1);
    gpu_job_workspace(j, gpu_router_aux_workspace(j->ctx, gpu_tensor_row_count(logits)));
    ASSAY_TRY(j->st);
    return gpu_router_aux_fwd(j->ctx, scores, indices, counts, sums, z_sum, logits, &d, j->ctx->stream);
}

static assay_status run_router_aux_loss(gpu_job *j)
{
    const gpu_router_aux_desc d = aux_desc(j);
    const gpu_tensor sums = gpu_job_in(j, "score_sums"), counts = gpu_job_in(j, "tokens_per_expert");
    const gpu_tensor z_sum = gpu_job_in(j, "z_sum"), losses = gpu_job_out1(j, "losses", ASSAY_F32, 2);
    ASSAY_TRY(j->st);
    return gpu_router_aux_loss(j->ctx, losses, sums, counts, z_sum, &d, j->ctx->stream);
}

static assay_status run_router_aux_bwd(gpu_job *j)
{
    const gpu_router_aux_desc d = aux_desc(j);
    const gpu_tensor logits = gpu_job_in(j, "logits"), counts = gpu_job_in(j, "tokens_per_expert");
    const gpu_tensor dlogits = gpu_job_out_from(j, "dlogits", "dlogits_in");
    ASSAY_TRY(j->st);
    return gpu_router_aux_bwd(j->ctx, dlogits, logits, counts, &d, j->ctx->stream);
}

static assay_status run_permute_plan(gpu_job *j)
{
    const gpu_tensor indices = gpu_job_in(j, "indices");
    const int64_t experts = gpu_job_i64(j, "experts", true, 0), n = gpu_tensor_count(indices);
    const gpu_tensor row_token = gpu_job_out1(j, "row_token", ASSAY_I64, n);
    const gpu_tensor row_slot = gpu_job_out1(j, "row_slot", ASSAY_I64, n);
    const gpu_tensor counts = gpu_job_out1(j, "tokens_per_expert", ASSAY_I64, experts);
    const gpu_tensor token_row = gpu_job_out_like(j, "token_row", ASSAY_I64, indices);
    gpu_job_range(j, "indices", 0, experts, 0);
    ASSAY_TRY(j->st);
    return gpu_permute_plan(j->ctx, row_token, row_slot, counts, token_row, indices, j->ctx->stream);
}

static assay_status run_gather_rows(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), index = gpu_job_in(j, "index");
    gpu_tensor like = x;
    like.shape[0] = gpu_tensor_count(index);
    const gpu_tensor y = gpu_job_out_like(j, "y", x.dtype, like);
    if (j->st == ASSAY_OK && gpu_tensor_count(index) > 0)
        gpu_job_range(j, "index", 0, x.shape[0], -1);
    ASSAY_TRY(j->st);
    return gpu_gather_rows(j->ctx, y, x, index, j->ctx->stream);
}

static assay_status run_combine_rows(gpu_job *j)
{
    const gpu_tensor x = gpu_job_in(j, "x"), token_row = gpu_job_in(j, "token_row");
    const gpu_tensor y = gpu_job_out2(j, "y", j->act, token_row.shape[0], gpu_tensor_cols(x));
    gpu_job_range(j, "token_row", 0, gpu_tensor_row_count(x), -1);
    ASSAY_TRY(j->st);
    return gpu_combine_rows(j->ctx, y, x, token_row, j->ctx->stream);
}

static assay_status run_expert_bias_update(gpu_job *j)
{
    const gpu_tensor bias = gpu_job_out_from(j, "bias", "bias_in");
    const gpu_tensor counts = gpu_job_in(j, "tokens_per_expert");
    const float rate = (float)gpu_job_double(j, "rate", true, 0.0);
    ASSAY_TRY(j->st);
    return gpu_expert_bias_update(j->ctx, bias, counts, rate, j->ctx->stream);
}

/* --- loss, optimizer --- */
static assay_status run_cross_entropy_stats(gpu_job *j)
{
    const gpu_tensor logits = gpu_job_in(j, "logits"), targets = gpu_job_in(j, "targets");
    const int64_t start = gpu_job_i64(j, "vocab_start", false, 0);
    const gpu_tensor stats = gpu_job_out2(j, "stats", ASSAY_F32, 3, gpu_tensor_count(targets));
    ASSAY_TRY(j->st);
    return gpu_cross_entropy_stats(j->ctx, stats, logits, targets, start, j->ctx->stream);
}

static assay_status run_cross_entropy_loss(gpu_job *j)
{
    const gpu_tensor stats = gpu_job_in(j, "stats"), targets = gpu_job_in(j, "targets");
    const gpu_tensor lse = gpu_job_out_like(j, "lse", ASSAY_F32, targets);
    const gpu_tensor loss = gpu_job_out_like(j, "loss", ASSAY_F32, targets);
    ASSAY_TRY(j->st);
    return gpu_cross_entropy_loss(j->ctx, lse, loss, stats, targets, j->ctx->stream);
}

static assay_status run_cross_entropy_bwd(gpu_job *j)
{
    const gpu_tensor logits = gpu_job_in(j, "logits"), lse = gpu_job_in(j, "lse");
    const gpu_tensor targets = gpu_job_in(j, "targets");
    const gpu_tensor dlogits = gpu_job_out_like(j, "dlogits", j->act, logits);
    const int64_t start = gpu_job_i64(j, "vocab_start", false, 0);
    const float scale = (float)gpu_job_double(j, "scale", true, 0.0);
    ASSAY_TRY(j->st);
    return gpu_cross_entropy_bwd(j->ctx, dlogits, logits, lse, targets, start, scale, j->ctx->stream);
}

static assay_status run_adamw(gpu_job *j)
{
    gpu_adamw_desc d;
    memset(&d, 0, sizeof d);
    d.lr = gpu_job_double(j, "lr", true, 0.0);
    d.beta1 = gpu_job_double(j, "beta1", true, 0.0);
    d.beta2 = gpu_job_double(j, "beta2", true, 0.0);
    d.eps = gpu_job_double(j, "eps", true, 0.0);
    d.weight_decay = gpu_job_double(j, "weight_decay", true, 0.0);
    d.step = gpu_job_i64(j, "step", true, 0);
    d.grad_scale = gpu_job_double(j, "grad_scale", false, 1.0);
    const gpu_tensor p = gpu_job_out_from(j, "main_param", "main_param_in");
    const gpu_tensor m = gpu_job_out_from(j, "exp_avg", "exp_avg_in");
    const gpu_tensor v = gpu_job_out_from(j, "exp_avg_sq", "exp_avg_sq_in");
    const gpu_tensor grad = gpu_job_in(j, "grad"), param = gpu_job_out_like(j, "param", j->act, p);
    ASSAY_TRY(j->st);
    return gpu_adamw(j->ctx, 1, &p, &m, &v, &param, &grad, &d, j->ctx->stream);
}

static const struct {
    const char *op;
    assay_status (*run)(gpu_job *j);
} gpu_operations[] = {
    {"linear_fwd", run_linear_fwd},
    {"linear_bwd_input", run_linear_bwd_input},
    {"linear_bwd_weight", run_linear_bwd_weight},
    {"linear_bwd_bias", run_linear_bwd_bias},
    {"grouped_linear_fwd", run_grouped_linear_fwd},
    {"grouped_linear_bwd_input", run_grouped_linear_bwd_input},
    {"grouped_linear_bwd_weight", run_grouped_linear_bwd_weight},
    {"rmsnorm_fwd", run_rmsnorm_fwd},
    {"rmsnorm_bwd", run_rmsnorm_bwd},
    {"rope_table", run_rope_table},
    {"rope_fwd", run_rope},
    {"rope_bwd", run_rope},
    {"attention_fwd", run_attention_fwd},
    {"attention_bwd", run_attention_bwd},
    {"qkv_split_fwd", run_qkv_split_fwd},
    {"qkv_split_bwd", run_qkv_split_bwd},
    {"add", run_add},
    {"cast", run_cast},
    {"slice_rows", run_slice_rows},
    {"swiglu_fwd", run_swiglu_fwd},
    {"swiglu_bwd", run_swiglu_bwd},
    {"sigmoid_gate_fwd", run_sigmoid_gate_fwd},
    {"sigmoid_gate_bwd", run_sigmoid_gate_bwd},
    {"embedding_fwd", run_embedding_fwd},
    {"embedding_bwd", run_embedding_bwd},
    {"sum", run_sum},
    {"router_fwd", run_router_fwd},
    {"router_bwd", run_router_bwd},
    {"router_aux_fwd", run_router_aux_fwd},
    {"router_aux_loss", run_router_aux_loss},
    {"router_aux_bwd", run_router_aux_bwd},
    {"permute_plan", run_permute_plan},
    {"gather_rows", run_gather_rows},
    {"combine_rows", run_combine_rows},
    {"expert_bias_update", run_expert_bias_update},
    {"cross_entropy_stats", run_cross_entropy_stats},
    {"cross_entropy_loss", run_cross_entropy_loss},
    {"cross_entropy_bwd", run_cross_entropy_bwd},
    {"sumsq", run_sum},
    {"adamw", run_adamw},
};

static int find_operation(const char *op)
{
    for (int i = 0; i < (int)(sizeof gpu_operations / sizeof gpu_operations[0]); ++i)
        if (strcmp(gpu_operations[i].op, op) == 0)
            return i;
    return -1;
}

bool gpu_execute_knows(const char *op)
{
    return find_operation(op) >= 0;
}

assay_status gpu_job_run(gpu_job *j)
{
    return gpu_operations[find_operation(j->op)].run(j);
}
