/* One row for each operation: how its function takes the operands. */
#include "gpu/dispatch.h"

#include "core/model/config.h"
#include "gpu/check.h"
#include <stdlib.h>
#include <string.h>

/* --- operands ----------------------------------------------------------------------------------------------- */
void gpu_operands_init(gpu_operands *o, const assay_op *op)
{
    memset(o, 0, sizeof *o);
    o->op = op;
}

int gpu_operands_index(const gpu_operands *o, const char *slot)
{
    for (int i = 0; i < ASSAY_OP_SLOTS && o->op->slots[i].name; i++)
        if (strcmp(o->op->slots[i].name, slot) == 0)
            return i;
    return -1;
}

gpu_tensor gpu_operand(const gpu_operands *o, const char *slot)
{
    const int i = gpu_operands_index(o, slot);
    return i < 0 ? gpu_tensor_none() : o->slot[i];
}

const gpu_attr *gpu_operand_attr(const gpu_operands *o, const char *name)
{
    for (int i = 0; i < o->n_attrs; i++)
        if (strcmp(o->attr[i].name, name) == 0)
            return &o->attr[i];
    return NULL;
}

/* What the row says for an attribute that was not given; "" when the row demands it (the call was checked). */
static const char *otherwise(const gpu_operands *o, const char *name)
{
    const assay_op_attr *row = assay_op_attr_find(o->op, name);
    return row && row->otherwise ? row->otherwise : "";
}

double gpu_operand_double(const gpu_operands *o, const char *name)
{
    const gpu_attr *a = gpu_operand_attr(o, name);
    return a ? a->number : strtod(otherwise(o, name), NULL);
}

int64_t gpu_operand_int(const gpu_operands *o, const char *name)
{
    const gpu_attr *a = gpu_operand_attr(o, name);
    const char *other = otherwise(o, name);
    if (a == NULL && assay_op_attr_find(o->op, other))
        return gpu_operand_int(o, other);
    return a ? a->integer : strtoll(other, NULL, 10);
}

bool gpu_operand_bool(const gpu_operands *o, const char *name)
{
    const gpu_attr *a = gpu_operand_attr(o, name);
    return a ? a->integer != 0 : strcmp(otherwise(o, name), "true") == 0;
}

int gpu_operand_word(const gpu_operands *o, const char *name)
{
    const gpu_attr *a = gpu_operand_attr(o, name);
    const assay_op_attr *row = assay_op_attr_find(o->op, name);
    const char *word = a ? a->word : otherwise(o, name);
    int index = 0;
    for (const char *c = row ? row->words : ""; *c; index++) {
        const size_t n = strcspn(c, "|");
        if (strlen(word) == n && strncmp(c, word, n) == 0)
            return index;
        c += n + (c[n] == '|' ? 1 : 0);
    }
    return -1;
}

assay_status gpu_operands_from_json(gpu_operands *o, const json_t *attrs)
{
    for (int i = 0; i < assay_op_n_attrs(o->op); i++) {
        const assay_op_attr *row = &o->op->attrs[i];
        gpu_attr *a = &o->attr[o->n_attrs];
        const json_t *v = json_object_get(attrs, row->name);
        int index;
        if (v == NULL || json_is_null(v))
            continue;
        memset(a, 0, sizeof *a);
        a->name = row->name;
        a->number = json_number_value(v);
        a->integer = json_is_boolean(v) ? json_is_true(v) : (int64_t)json_integer_value(v);
        a->word = json_string_value(v);
        if (row->type == ASSAY_ATTR_WORD || row->type == ASSAY_ATTR_DTYPE) {
            ASSAY_TRY(assay_op_attr_word(o->op, attrs, row->name, &index));
            a->integer = index;
        }
        o->n_attrs++;
    }
    return ASSAY_OK;
}

/* --- calls -------------------------------------------------------------------------------------------------- */
#define T(name) gpu_operand(o, name)
#define F(name) gpu_operand_double(o, name)
#define I(name) gpu_operand_int(o, name)
#define CALL(name)                                                                                           \
    static assay_status name(gpu_ctx *ctx, const gpu_operands *o, int64_t n, cudaStream_t stream,            \
                             gpu_declared *declared)

static const int64_t *host(const gpu_operands *o, const char *slot)
{
    return o->host[gpu_operands_index(o, slot)];
}

static gpu_tensor flat(gpu_tensor t)
{
    return gpu_tensor_present(t) ? gpu_tensor_1d(t.data, t.dtype, gpu_tensor_count(t)) : t;
}

CALL(linear_fwd)
{
    (void)n;
    return gpu_linear_fwd(ctx, T("y"), T("x"), T("weight"), T("bias"), stream, declared);
}
CALL(linear_bwd_input)
{
    (void)n;
    return gpu_linear_bwd_input(ctx, T("dx"), T("dy"), T("weight"), stream, declared);
}
CALL(linear_bwd_weight)
{
    (void)n;
    return gpu_linear_bwd_weight(ctx, T("dweight"), T("dy"), T("x"), stream, declared);
}
CALL(linear_bwd_bias)
{
    (void)n;
    return gpu_linear_bwd_bias(ctx, T("dbias"), T("dy"), stream, declared);
}
CALL(grouped_linear_fwd)
{
    (void)n;
    return gpu_grouped_linear_fwd(ctx, T("y"), T("x"), T("weight"), host(o, "tokens_per_expert"), stream,
                                  declared);
}
CALL(grouped_linear_bwd_input)
{
    (void)n;
    return gpu_grouped_linear_bwd_input(ctx, T("dx"), T("dy"), T("weight"), host(o, "tokens_per_expert"),
                                        stream, declared);
}
CALL(grouped_linear_bwd_weight)
{
    (void)n;
    return gpu_grouped_linear_bwd_weight(ctx, T("dweight"), T("dy"), T("x"), host(o, "tokens_per_expert"),
                                         stream, declared);
}
/* Rows as wide as gamma: [T,A,D] is [T*A,D] for a norm of each head and [T,A*D] for one over all heads. */
static gpu_tensor as_rows(gpu_tensor t, gpu_tensor gamma)
{
    const int64_t h = gpu_tensor_count(gamma), count = gpu_tensor_count(t);
    const int64_t shape[2] = {h > 0 ? count / h : gpu_tensor_row_count(t), h};
    return h > 0 && count % h != 0 ? t : gpu_tensor_make(t.data, t.dtype, 2, shape);
}

CALL(rmsnorm_fwd)
{
    const gpu_tensor gamma = T("gamma");
    (void)n;
    return gpu_rmsnorm_fwd(ctx, as_rows(T("y"), gamma), T("rstd"), as_rows(T("x"), gamma), gamma,
                           (float)F("eps"), stream, declared);
}
CALL(rmsnorm_bwd)
{
    const gpu_tensor gamma = T("gamma");
    (void)n;
    return gpu_rmsnorm_bwd(ctx, as_rows(T("dx"), gamma), T("dgamma"), as_rows(T("dy"), gamma),
                           as_rows(T("x"), gamma), gamma, T("rstd"), stream, declared);
}

CALL(rope_table)
{
    static const int types[] = {ASSAY_ROPE_DEFAULT, ASSAY_ROPE_LINEAR,
                                ASSAY_ROPE_LLAMA3}; /* the order of the words */
    const int word = gpu_operand_word(o, "rope_type");
    const gpu_rope_desc d = {.type = word >= 0 ? types[word] : -1,
                             .rotary_dim = I("rotary_dim"),
                             .base = F("rotary_base"),
                             .factor = F("factor"),
                             .low_freq_factor = F("low_freq_factor"),
                             .high_freq_factor = F("high_freq_factor"),
                             .original_max_position_embeddings = I("original_max_position_embeddings")};
    (void)n;
    return gpu_rope_table(ctx, T("cos"), T("sin"), &d, stream, declared);
}
CALL(rope_fwd)
{
    (void)n;
    return gpu_rope_fwd(ctx, T("y"), T("x"), T("cos"), T("sin"), T("position"), stream, declared);
}
CALL(rope_bwd)
{
    (void)n;
    return gpu_rope_bwd(ctx, T("dx"), T("dy"), T("cos"), T("sin"), T("position"), stream, declared);
}

static gpu_attention_desc attention_desc(const gpu_operands *o)
{
    return (gpu_attention_desc){.batch = I("batch"),
                                .seq_q = I("seq_q"),
                                .seq_k = I("seq_k"),
                                .heads = I("heads"),
                                .groups = I("groups"),
                                .head_dim = I("head_dim"),
                                .head_dim_v = I("head_dim_v"),
                                .scale = (float)F("scale"),
                                .window = I("window"),
                                .q_position = T("q_position"),
                                .k_position = T("k_position"),
                                .first_key = T("first_key")};
}

/* o and its gradient may be stored as [T, A*D]; the operation sees [T, A, D]. */
static gpu_tensor as_heads(gpu_tensor t, const gpu_attention_desc *d)
{
    const int64_t shape[3] = {d->batch * d->seq_q, d->heads, d->head_dim_v};
    return gpu_tensor_make(t.data, t.dtype, 3, shape);
}

CALL(attention_fwd)
{
    const gpu_attention_desc d = attention_desc(o);
    (void)n;
    return gpu_attention_fwd(ctx, as_heads(T("o"), &d), T("lse"), T("q"), T("k"), T("v"), &d, stream,
                             declared);
}
CALL(attention_bwd)
{
    const gpu_attention_desc d = attention_desc(o);
    (void)n;
    return gpu_attention_bwd(ctx, T("dq"), T("dk"), T("dv"), as_heads(T("do"), &d), T("q"), T("k"), T("v"),
                             as_heads(T("o"), &d), T("lse"), &d, stream, declared);
}
static size_t attention_bwd_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_attention_desc d = attention_desc(o);
    return gpu_attention_bwd_workspace(ctx, &d);
}
CALL(qkv_split_fwd)
{
    (void)n;
    return gpu_qkv_split_fwd(ctx, T("q"), T("k"), T("v"), T("qkv"), stream, declared);
}
CALL(qkv_split_bwd)
{
    (void)n;
    return gpu_qkv_split_bwd(ctx, T("dqkv"), T("dq"), T("dk"), T("dv"), stream, declared);
}

CALL(add)
{
    (void)n;
    return gpu_add(ctx, T("y"), T("a"), T("b"), stream, declared);
}
CALL(cast)
{
    (void)n;
    return gpu_cast(ctx, T("y"), T("x"), stream, declared);
}
CALL(clamp_fwd)
{
    (void)n;
    return gpu_clamp_fwd(ctx, T("y"), T("x"), F("limit"), stream, declared);
}
CALL(clamp_bwd)
{
    (void)n;
    return gpu_clamp_bwd(ctx, T("dx"), T("dy"), T("x"), F("limit"), stream, declared);
}
CALL(swiglu_fwd)
{
    (void)n;
    return gpu_swiglu_fwd(ctx, T("y"), T("x"), T("probs"), stream, declared);
}
CALL(swiglu_bwd)
{
    (void)n;
    return gpu_swiglu_bwd(ctx, T("dx"), T("dprobs"), T("dy"), T("x"), T("probs"), stream, declared);
}
CALL(sigmoid_gate_fwd)
{
    (void)n;
    return gpu_sigmoid_gate_fwd(ctx, T("y"), T("x"), flat(T("gate")), stream, declared);
}
CALL(sigmoid_gate_bwd)
{
    (void)n;
    return gpu_sigmoid_gate_bwd(ctx, T("dx"), flat(T("dgate")), T("dy"), T("x"), flat(T("gate")), stream,
                                declared);
}
CALL(slice_rows)
{
    (void)ctx;
    const gpu_tensor x = T("x"), y = T("y");
    const int64_t start = I("start"), length = I("length");
    (void)n;
    /* Rows of s, where the tensor's rows are tokens: y has its share of x. */
    const int64_t unit = length > 0 ? y.shape[0] / length : 1;
    ASSAY_CHECK(x.ndim > 0 && length <= x.shape[0] && start <= x.shape[0] / (unit > 0 ? unit : 1) - length,
                ASSAY_INVALID_ARGUMENT,
                "slice_rows: expected rows inside %lld, found start %lld, length %lld", (long long)x.shape[0],
                (long long)start, (long long)length);
    const gpu_tensor piece = gpu_tensor_rows(x, start * unit, y.shape[0]);
    if (gpu_tensor_bytes(y) > 0 && y.data != piece.data) /* else a view */
        CUDA_TRY(cudaMemcpyAsync(y.data, piece.data, gpu_tensor_bytes(y), cudaMemcpyDeviceToDevice, stream));
    gpu_declare(declared, 0, gpu_arith_elementwise(0));
    return ASSAY_OK;
}
CALL(embedding_fwd)
{
    (void)n;
    return gpu_embedding_fwd(ctx, T("y"), T("ids"), T("weight"), I("vocab_start"), stream, declared);
}
CALL(embedding_bwd)
{
    (void)n;
    return gpu_embedding_bwd(ctx, T("dweight"), T("dy"), T("ids"), I("vocab_start"), stream, declared);
}
CALL(sum)
{
    (void)n;
    return gpu_sum(ctx, T("y"), flat(T("x")), stream, declared);
}
static size_t sum_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    (void)o;
    return gpu_sum_workspace(ctx);
}
static size_t linear_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    (void)o;
    return gpu_linear_workspace(ctx);
}

static gpu_router_desc router_desc(const gpu_operands *o)
{
    static const int functions[] = {ASSAY_SCORE_SOFTMAX, ASSAY_SCORE_SIGMOID}; /* the order of the words */
    const bool whole = assay_op_attr_find(o->op, "num_groups") != NULL;
    const int word = assay_op_attr_find(o->op, "score_function") ? gpu_operand_word(o, "score_function") : 0;
    return (gpu_router_desc){.topk = I("topk"),
                             .score_function = word >= 0 ? functions[word] : -1,
                             .pre_softmax = whole && gpu_operand_bool(o, "pre_softmax"),
                             .norm_topk_prob = whole && gpu_operand_bool(o, "norm_topk_prob"),
                             .scaling_factor = whole ? (float)F("scaling_factor") : 1.0f,
                             .num_groups = whole ? I("num_groups") : 0,
                             .group_topk = whole ? I("group_topk") : 0};
}
static gpu_router_aux_desc aux_desc(const gpu_operands *o)
{
    return (gpu_router_aux_desc){.aux_coeff = F("aux_coeff"),
                                 .z_coeff = F("z_coeff"),
                                 .loss_scale =
                                     assay_op_attr_find(o->op, "loss_scale") ? F("loss_scale") : 1.0,
                                 .group_tokens = I("tokens"),
                                 .router = router_desc(o)};
}
CALL(router_fwd)
{
    const gpu_router_desc d = router_desc(o);
    (void)n;
    return gpu_router_fwd(ctx, T("indices"), T("probs"), T("scores"), T("logits"), T("expert_bias"), &d,
                          stream, declared);
}
CALL(router_bwd)
{
    const gpu_router_desc d = router_desc(o);
    (void)n;
    return gpu_router_bwd(ctx, T("dlogits"), T("dprobs"), T("indices"), T("scores"), T("logits"), &d, stream,
                          declared);
}
CALL(router_aux_fwd)
{
    const gpu_router_desc d = router_desc(o);
    (void)n;
    return gpu_router_aux_fwd(ctx, T("aux_scores"), T("aux_indices"), T("tokens_per_expert"), T("score_sums"),
                              T("z_sum"), T("logits"), &d, stream, declared);
}
static size_t router_aux_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    return gpu_router_aux_workspace(ctx, gpu_tensor_row_count(T("logits")));
}
static size_t rmsnorm_bwd_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    return gpu_rmsnorm_bwd_workspace(ctx, gpu_tensor_row_count(as_rows(T("x"), T("gamma"))),
                                     gpu_tensor_count(T("gamma")));
}
CALL(router_aux_loss)
{
    const gpu_router_aux_desc d = aux_desc(o);
    (void)n;
    return gpu_router_aux_loss(ctx, T("losses"), T("score_sums"), T("tokens_per_expert"), T("z_sum"), &d,
                               stream, declared);
}
CALL(router_aux_bwd)
{
    const gpu_router_aux_desc d = aux_desc(o);
    (void)n;
    return gpu_router_aux_bwd(ctx, T("dlogits"), T("logits"), T("tokens_per_expert"), &d, stream, declared);
}
CALL(permute_plan)
{
    (void)n;
    return gpu_permute_plan(ctx, T("row_token"), T("row_slot"), T("tokens_per_expert"), T("token_row"),
                            T("indices"), stream, declared);
}
CALL(gather_rows)
{
    (void)n;
    return gpu_gather_rows(ctx, T("y"), T("x"), T("index"), stream, declared);
}
CALL(combine_rows)
{
    (void)n;
    return gpu_combine_rows(ctx, T("y"), T("x"), T("token_row"), stream, declared);
}
CALL(expert_bias_update)
{
    (void)n;
    return gpu_expert_bias_update(ctx, T("bias"), T("tokens_per_expert"), (float)F("rate"), stream, declared);
}

CALL(cross_entropy_stats)
{
    (void)n;
    return gpu_cross_entropy_stats(ctx, T("stats"), T("logits"), T("targets"), I("vocab_start"), stream,
                                   declared);
}
CALL(cross_entropy_loss)
{
    const int64_t tokens = gpu_tensor_count(T("targets"));
    const gpu_tensor stats = T("stats");
    const int64_t shape[3] = {tokens > 0 ? gpu_tensor_count(stats) / (3 * tokens) : 1, 3, tokens};
    (void)n;
    return gpu_cross_entropy_loss(ctx, T("lse"), T("loss"),
                                  gpu_tensor_make(stats.data, stats.dtype, 3, shape), T("targets"), stream,
                                  declared);
}
CALL(cross_entropy_bwd)
{
    (void)n;
    return gpu_cross_entropy_bwd(ctx, T("dlogits"), T("logits"), T("lse"), T("targets"), I("vocab_start"),
                                 (float)F("scale"), stream, declared);
}

/* The sums of a list lie one behind the other. */
CALL(sumsq)
{
    gpu_tensor *x = calloc((size_t)n, sizeof *x);
    ASSAY_CHECK(x, ASSAY_OUT_OF_MEMORY, "sumsq: a list of %lld tensors", (long long)n);
    for (int64_t i = 0; i < n; i++)
        x[i] = gpu_operand(&o[i], "x");
    const assay_status st =
        gpu_sumsq(ctx, gpu_tensor_1d(T("y").data, T("y").dtype, n), x, n, stream, declared);
    free(x);
    return st;
}
CALL(adamw)
{
    static const char *const slots[] = {"main_param", "exp_avg", "exp_avg_sq", "param", "grad"};
    gpu_tensor *list = calloc(5 * (size_t)n, sizeof *list);
    gpu_adamw_desc *descs = calloc((size_t)n, sizeof *descs);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(list && descs, ASSAY_OUT_OF_MEMORY, st, done, "adamw: a list of %lld tensors",
                     (long long)n);
    for (int64_t i = 0; i < n; i++, o++) {
        for (int k = 0; k < 5; k++)
            list[k * n + i] = T(slots[k]);
        descs[i] = (gpu_adamw_desc){.lr = F("lr"),
                                    .beta1 = F("beta1"),
                                    .beta2 = F("beta2"),
                                    .eps = F("eps"),
                                    .weight_decay = F("weight_decay"),
                                    .grad_scale = F("grad_scale"),
                                    .step = I("step")};
    }
    st = gpu_adamw(ctx, n, list, list + n, list + 2 * n, list + 3 * n, list + 4 * n, descs, stream, declared);
done:
    free(list);
    free(descs);
    return st;
}

/* --- the rows ----------------------------------------------------------------------------------------------- */
typedef struct row {
    const char *op;
    assay_status (*run)(gpu_ctx *ctx, const gpu_operands *o, int64_t n, cudaStream_t stream,
                        gpu_declared *declared);
    size_t (*workspace)(const gpu_ctx *ctx, const gpu_operands *o); /* NULL: none */
} row;

#define ROW(name)                                                                                            \
    {                                                                                                        \
#name, name, NULL                                                                                    \
    }
static const row rows[] = {
    {"linear_fwd", linear_fwd, linear_workspace},
    {"linear_bwd_input", linear_bwd_input, linear_workspace},
    {"linear_bwd_weight", linear_bwd_weight, linear_workspace},
    ROW(linear_bwd_bias),
    {"grouped_linear_fwd", grouped_linear_fwd, linear_workspace},
    {"grouped_linear_bwd_input", grouped_linear_bwd_input, linear_workspace},
    {"grouped_linear_bwd_weight", grouped_linear_bwd_weight, linear_workspace},
    ROW(rmsnorm_fwd),
    {"rmsnorm_bwd", rmsnorm_bwd, rmsnorm_bwd_workspace},
    ROW(rope_table),
    ROW(rope_fwd),
    ROW(rope_bwd),
    ROW(attention_fwd),
    {"attention_bwd", attention_bwd, attention_bwd_workspace},
    ROW(qkv_split_fwd),
    ROW(qkv_split_bwd),
    ROW(add),
    ROW(cast),
    ROW(slice_rows),
    ROW(clamp_fwd),
    ROW(clamp_bwd),
    ROW(swiglu_fwd),
    ROW(swiglu_bwd),
    ROW(sigmoid_gate_fwd),
    ROW(sigmoid_gate_bwd),
    ROW(embedding_fwd),
    ROW(embedding_bwd),
    {"sum", sum, sum_workspace},
    ROW(router_fwd),
    ROW(router_bwd),
    {"router_aux_fwd", router_aux_fwd, router_aux_workspace},
    ROW(router_aux_loss),
    ROW(router_aux_bwd),
    ROW(permute_plan),
    ROW(gather_rows),
    ROW(combine_rows),
    ROW(expert_bias_update),
    ROW(cross_entropy_stats),
    ROW(cross_entropy_loss),
    ROW(cross_entropy_bwd),
    {"sumsq", sumsq, sum_workspace},
    ROW(adamw),
};

static const row *find(const char *op)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].op, op) == 0)
            return &rows[i];
    return NULL;
}

bool gpu_dispatch_knows(const char *op)
{
    return find(op) != NULL;
}

size_t gpu_dispatch_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    const row *r = find(o->op->name);
    return r && r->workspace ? r->workspace(ctx, o) : 0;
}

assay_status gpu_dispatch(gpu_ctx *ctx, const gpu_operands *o, int64_t n, cudaStream_t stream,
                          gpu_declared *declared)
{
    const row *r = find(o->op->name);
    ASSAY_CHECK(r, ASSAY_UNSUPPORTED, "operation %s: the engine has no function for it", o->op->name);
    return r->run(ctx, o, n, stream, declared);
}
