/* The lattice request of the exact check: operations with inputs for which every honest order of summation
 * gives the same result, so that the answer must be equal bit for bit.  Small integers, unique numbers as
 * payload, one-hot keys, tables of 0 and 1; odd sizes, empty sizes, empty experts, ties. */
#include "parity/checks/exact.h"

#include "core/base/philox.h"
#include <stdlib.h>
#include <string.h>

typedef struct request {
    assay_trace_writer *w;
    assay_dtype act;
    int rank, world;
    int64_t n;         /* operations so far: seed of the next values */
    assay_trace_op op; /* the one being built */
    json_t *attrs;
    int *ranks;
    assay_status st;
} request;

typedef double (*value_of)(const request *q, int64_t i);

/* Integers in [-4, 4]: a sum of up to 2^20 products stays exact in F32. */
static double lattice(const request *q, int64_t i)
{
    return (double)assay_philox_below((uint64_t)q->n, (uint64_t)q->op.n_inputs, (uint64_t)i, 9) - 4.0;
}

/* A number of its own for every element, as far as the type can count. */
static double unique(const request *q, int64_t i)
{
    const int64_t base = 1 + i + 4096 * (int64_t)q->rank;
    return q->act == ASSAY_BF16 ? (double)(base % 251 + 1) : (double)base;
}

static double sign(const request *q, int64_t i)
{
    return lattice(q, i) > 0.0 ? 1.0 : -1.0;
}

static double zero(const request *q, int64_t i)
{
    (void)q;
    (void)i;
    return 0.0;
}

/* --- building ----------------------------------------------------------------------------------------------- */

static void begin(request *q, const char *op)
{
    memset(&q->op, 0, sizeof q->op);
    snprintf(q->op.op, sizeof q->op.op, "%s", op);
    snprintf(q->op.instance, sizeof q->op.instance, "exact.%s.%lld", op, (long long)q->n);
    q->op.phase = ASSAY_PHASE_FORWARD;
    q->op.microbatch = -1;
    q->op.arith = assay_arith_elementwise();
    json_decref(q->attrs);
    q->attrs = json_object();
    json_object_set_new(q->attrs, "act", json_string(assay_dtype_name(q->act)));
}

static void attr_int(request *q, const char *key, int64_t value)
{
    json_object_set_new(q->attrs, key, json_integer(value));
}

static void attr_text(request *q, const char *key, const char *value)
{
    json_object_set_new(q->attrs, key, json_string(value));
}

static void input_bytes(request *q, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape,
                        const void *data)
{
    assay_trace_tensor t;
    memset(&t, 0, sizeof t);
    if (q->st != ASSAY_OK)
        return;
    snprintf(t.name, sizeof t.name, "%.120s.%s", q->op.instance, slot);
    t.phase = q->op.phase;
    t.microbatch = -1;
    t.dtype = dtype;
    t.kind = ASSAY_PIECE_LOCAL;
    t.rows_id = -1;
    assay_shard_whole(&t.shard, shape, ndim);
    q->st = assay_trace_write_tensor(q->w, &t, data);
    snprintf(q->op.inputs[q->op.n_inputs].slot, ASSAY_SLOT_NAME, "%s", slot);
    q->op.inputs[q->op.n_inputs++].tensor = t.id;
}

static void input_real(request *q, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape,
                       value_of value)
{
    int64_t count = 1;
    for (int d = 0; d < ndim; d++)
        count *= shape[d];
    const size_t width = (size_t)assay_dtype_bytes(dtype);
    unsigned char *bytes = calloc((size_t)count + 1, width);
    if (!bytes) {
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: %lld elements", (long long)count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        /* All values are small integers: exact in F32, and their upper half is the BF16 value. */
        const float f = (float)value(q, i);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        const uint16_t upper = (uint16_t)(bits >> 16);
        memcpy(bytes + (size_t)i * width, dtype == ASSAY_BF16 ? (const void *)&upper : (const void *)&bits,
               width);
    }
    input_bytes(q, slot, dtype, ndim, shape, bytes);
    free(bytes);
}

static void input_2d(request *q, const char *slot, assay_dtype dtype, int64_t rows, int64_t columns,
                     value_of value)
{
    input_real(q, slot, dtype, 2, (int64_t[]){rows, columns}, value);
}

static void input_i64(request *q, const char *slot, int64_t n, const int64_t *values)
{
    input_bytes(q, slot, ASSAY_I64, 1, &n, values);
}

static void finish(request *q)
{
    if (q->st != ASSAY_OK)
        return;
    q->op.attrs = q->attrs;
    q->st = assay_trace_write_op(q->w, &q->op);
    q->n++;
}

/* --- operations --------------------------------------------------------------------------------------------- */

static void add_linear(request *q, int64_t t, int64_t n, int64_t k, bool bias)
{
    begin(q, "linear_fwd");
    input_2d(q, "x", q->act, t, k, lattice);
    input_2d(q, "weight", q->act, n, k, lattice);
    if (bias)
        input_real(q, "bias", q->act, 1, &n, lattice);
    finish(q);
    begin(q, "linear_bwd_input");
    input_2d(q, "dy", q->act, t, n, lattice);
    input_2d(q, "weight", q->act, n, k, lattice);
    finish(q);
    begin(q, "linear_bwd_weight");
    input_2d(q, "dy", q->act, t, n, lattice);
    input_2d(q, "x", q->act, t, k, lattice);
    input_2d(q, "dweight_in", ASSAY_F32, n, k, lattice);
    finish(q);
    begin(q, "linear_bwd_bias");
    input_2d(q, "dy", q->act, t, n, lattice);
    input_real(q, "dbias_in", ASSAY_F32, 1, &n, lattice);
    finish(q);
}

static void add_grouped(request *q, int64_t experts, const int64_t *counts, int64_t n, int64_t k)
{
    const int64_t weight[3] = {experts, n, k};
    int64_t rows = 0;
    for (int64_t e = 0; e < experts; e++)
        rows += counts[e];
    begin(q, "grouped_linear_fwd");
    input_2d(q, "x", q->act, rows, k, lattice);
    input_real(q, "weight", q->act, 3, weight, lattice);
    input_i64(q, "tokens_per_expert", experts, counts);
    finish(q);
    begin(q, "grouped_linear_bwd_input");
    input_2d(q, "dy", q->act, rows, n, lattice);
    input_real(q, "weight", q->act, 3, weight, lattice);
    input_i64(q, "tokens_per_expert", experts, counts);
    finish(q);
    begin(q, "grouped_linear_bwd_weight");
    input_2d(q, "dy", q->act, rows, n, lattice);
    input_2d(q, "x", q->act, rows, k, lattice);
    input_i64(q, "tokens_per_expert", experts, counts);
    input_real(q, "dweight_in", ASSAY_F32, 3, weight, lattice);
    finish(q);
}

/* Ids on both sides of the piece and repeated ones. */
static void add_embedding(request *q, int64_t t, int64_t v, int64_t h, int64_t start)
{
    int64_t ids[32];
    for (int64_t i = 0; i < t; i++)
        ids[i] = (i * 5 + i / 3) % (2 * v + start);
    begin(q, "embedding_fwd");
    input_i64(q, "ids", t, ids);
    input_2d(q, "weight", q->act, v, h, unique);
    attr_int(q, "vocab_start", start);
    finish(q);
    begin(q, "embedding_bwd");
    input_2d(q, "dy", q->act, t, h, lattice);
    input_i64(q, "ids", t, ids);
    input_2d(q, "dweight_in", ASSAY_F32, v, h, lattice);
    attr_int(q, "vocab_start", start);
    finish(q);
}

static void split_attrs(request *q, int64_t heads, int64_t groups, int64_t d)
{
    attr_int(q, "heads", heads);
    attr_int(q, "groups", groups);
    attr_int(q, "head_dim", d);
}

static void add_qkv(request *q, int64_t t, int64_t heads, int64_t groups, int64_t d)
{
    const char *const slots[3] = {"dq", "dk", "dv"};
    begin(q, "qkv_split_fwd");
    input_2d(q, "qkv", q->act, t, (heads + 2 * groups) * d, unique);
    split_attrs(q, heads, groups, d);
    finish(q);
    begin(q, "qkv_split_bwd");
    split_attrs(q, heads, groups, d);
    for (int i = 0; i < 3; i++)
        input_real(q, slots[i], q->act, 3, (int64_t[]){t, i == 0 ? heads : groups, d}, unique);
    finish(q);
}

/* Tables of 0 and 1 rotate by whole quarter turns. */
static double quarter_cos(const request *q, int64_t i)
{
    (void)q;
    return i % 3 == 0 ? 1.0 : 0.0;
}

static double quarter_sin(const request *q, int64_t i)
{
    return 1.0 - quarter_cos(q, i);
}

static void add_rope(request *q, int64_t t, int64_t heads, int64_t d, int64_t rotary)
{
    const int64_t positions = 11;
    int64_t position[32];
    for (int64_t i = 0; i < t; i++)
        position[i] = (i * 7 + 3) % positions;
    for (int back = 0; back < 2; back++) {
        begin(q, back ? "rope_bwd" : "rope_fwd");
        input_real(q, back ? "dy" : "x", q->act, 3, (int64_t[]){t, heads, d}, unique);
        input_2d(q, "cos", ASSAY_F32, positions, rotary / 2, quarter_cos);
        input_2d(q, "sin", ASSAY_F32, positions, rotary / 2, quarter_sin);
        input_i64(q, "position", t, position);
        finish(q);
    }
}

static void add_rows(request *q, int64_t t, int64_t k, int64_t h)
{
    int64_t index[64], token_row[64];
    const int64_t rows = t * k;
    for (int64_t i = 0; i < rows; i++)
        index[i] = t > 0 ? (i * 5 + 1) % t : 0;
    for (int64_t i = 0; i < rows; i++)
        token_row[i] = rows - 1 - i; /* a permutation */
    begin(q, "gather_rows");
    input_2d(q, "x", q->act, t, h, unique);
    input_i64(q, "index", rows, index);
    finish(q);
    begin(q, "combine_rows");
    input_2d(q, "x", q->act, rows, h, lattice);
    input_bytes(q, "token_row", ASSAY_I64, 2, (int64_t[]){t, k}, token_row);
    finish(q);
    begin(q, "slice_rows");
    input_2d(q, "x", q->act, t, h, unique);
    attr_int(q, "start", t / 3);
    attr_int(q, "length", t - t / 3);
    finish(q);
    begin(q, "add");
    input_2d(q, "a", q->act, t, h, lattice);
    input_2d(q, "b", q->act, t, h, lattice);
    finish(q);
}

static void add_plan(request *q, int64_t t, int64_t k, int64_t experts)
{
    int64_t indices[64];
    for (int64_t i = 0; i < t; i++) {
        const int64_t first = (i * 3) % (experts - k + 1); /* the last experts stay empty for small t */
        for (int64_t j = 0; j < k; j++)
            indices[i * k + j] = first + j;
    }
    begin(q, "permute_plan");
    input_bytes(q, "indices", ASSAY_I64, 2, (int64_t[]){t, k}, indices);
    attr_int(q, "experts", experts);
    finish(q);
}

/* --- attention: key j is 64 e_(j mod D), query i asks for one visible key; all other scores are 4096 less.
 */

enum { HEAD_DIM = 8 };

/* The key that query position p asks for. */
static int64_t wanted_key(int64_t p, int64_t window)
{
    const int64_t back = window > 0 ? p % window : p / 2;
    return p - (back > p ? p : back);
}

static void fill_one_hot(float *x, int64_t batch, int64_t heads, int64_t n, bool query, int64_t window)
{
    for (int64_t s = 0; s < n; s++) {
        const int64_t hot = query ? wanted_key(s, window) : s;
        for (int64_t r = 0; r < batch * heads; r++)
            x[(s * batch * heads + r) * HEAD_DIM + hot % HEAD_DIM] = 64.0f;
    }
}

static void input_floats(request *q, const char *slot, int ndim, const int64_t *shape, const float *values)
{
    int64_t count = 1;
    for (int d = 0; d < ndim; d++)
        count *= shape[d];
    if (q->act == ASSAY_F32) {
        input_bytes(q, slot, ASSAY_F32, ndim, shape, values);
        return;
    }
    uint16_t *narrow = calloc((size_t)count + 1, sizeof *narrow);
    for (int64_t i = 0; narrow && i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        narrow[i] = (uint16_t)(bits >> 16);
    }
    if (narrow)
        input_bytes(q, slot, ASSAY_BF16, ndim, shape, narrow);
    else
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request");
    free(narrow);
}

static void attention_attrs(request *q, int64_t batch, int64_t seq_q, int64_t seq_k, int64_t heads,
                            int64_t groups, int64_t window)
{
    attr_int(q, "batch", batch);
    attr_int(q, "seq_q", seq_q);
    attr_int(q, "seq_k", seq_k);
    attr_int(q, "heads", heads);
    attr_int(q, "groups", groups);
    attr_int(q, "head_dim", HEAD_DIM);
    attr_int(q, "head_dim_v", HEAD_DIM);
    attr_int(q, "window", window);
    json_object_set_new(q->attrs, "scale", json_real(1.0));
}

static void add_one_hot(request *q, int64_t batch, int64_t n, int64_t heads, int64_t groups, int64_t window)
{
    enum { MAX = HEAD_DIM * 2 * 8 * HEAD_DIM };
    static const float nothing[MAX] = {0};
    float query[MAX], key[MAX];
    int64_t position[HEAD_DIM * 2];
    memcpy(query, nothing, sizeof query);
    memcpy(key, nothing, sizeof key);
    fill_one_hot(query, batch, heads, n, true, window);
    fill_one_hot(key, batch, groups, n, false, window);
    for (int64_t i = 0; i < n * batch; i++)
        position[i] = i / batch;
    begin(q, "attention_fwd");
    input_floats(q, "q", 3, (int64_t[]){n * batch, heads, HEAD_DIM}, query);
    input_floats(q, "k", 3, (int64_t[]){n * batch, groups, HEAD_DIM}, key);
    input_real(q, "v", q->act, 3, (int64_t[]){n * batch, groups, HEAD_DIM}, unique);
    input_i64(q, "q_position", n * batch, position);
    input_i64(q, "k_position", n * batch, position);
    attention_attrs(q, batch, n, n, heads, groups, window);
    finish(q);
}

/* Equal scores over 1, 2, 4 and 8 visible keys: exact means of multiples of 8. */
static double eights(const request *q, int64_t i)
{
    return 8.0 * lattice(q, i);
}

static void add_uniform(request *q, int64_t heads, int64_t groups)
{
    static const int64_t asks[4] = {0, 1, 3, 7}, keys[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    begin(q, "attention_fwd");
    input_real(q, "q", q->act, 3, (int64_t[]){4, heads, HEAD_DIM}, zero);
    input_real(q, "k", q->act, 3, (int64_t[]){8, groups, HEAD_DIM}, lattice);
    input_real(q, "v", q->act, 3, (int64_t[]){8, groups, HEAD_DIM}, eights);
    input_i64(q, "q_position", 4, asks);
    input_i64(q, "k_position", 8, keys);
    attention_attrs(q, 1, 4, 8, heads, groups, 0);
    finish(q);
}

/* --- norm, loss, sums, router ------------------------------------------------------------------------------- */

/* mean of squares 1 and eps 3: rstd is 1/2. */
static void add_norm(request *q, int64_t t, int64_t h)
{
    begin(q, "rmsnorm_fwd");
    input_2d(q, "x", q->act, t, h, sign);
    input_real(q, "gamma", q->act, 1, &h, lattice);
    json_object_set_new(q->attrs, "eps", json_real(3.0));
    finish(q);
}

static void add_loss(request *q, int64_t t, int64_t v, int64_t start)
{
    int64_t targets[32];
    for (int64_t i = 0; i < t; i++)
        targets[i] = i % 4 == 1 ? -100 : (i * 3) % (v + start + 2);
    begin(q, "cross_entropy_stats");
    input_2d(q, "logits", ASSAY_F32, t, v, lattice);
    input_i64(q, "targets", t, targets);
    attr_int(q, "vocab_start", start);
    finish(q);
}

static void add_sums(request *q, int64_t n)
{
    begin(q, "sumsq");
    input_real(q, "x", ASSAY_F32, 1, &n, lattice);
    finish(q);
    begin(q, "sum");
    input_real(q, "x", ASSAY_F32, 1, &n, lattice);
    finish(q);
    begin(q, "cast");
    input_real(q, "x", ASSAY_F32, 1, &n, lattice);
    attr_text(q, "dtype", assay_dtype_name(q->act));
    finish(q);
}

/* Few values, many ties. */
static double tied(const request *q, int64_t i)
{
    return (double)assay_philox_below((uint64_t)q->n, 77, (uint64_t)i, 3);
}

static void add_router(request *q, int64_t t, int64_t experts, int64_t k, const char *score, bool pre,
                       int64_t groups, int64_t group_topk)
{
    begin(q, "router_fwd");
    input_2d(q, "logits", ASSAY_F32, t, experts, tied);
    attr_int(q, "topk", k);
    attr_text(q, "score_function", score);
    json_object_set_new(q->attrs, "pre_softmax", json_boolean(pre));
    json_object_set_new(q->attrs, "norm_topk_prob", json_true());
    json_object_set_new(q->attrs, "scaling_factor", json_real(1.0));
    attr_int(q, "num_groups", groups);
    attr_int(q, "group_topk", group_topk);
    finish(q);
}

/* --- collectives -------------------------------------------------------------------------------------------- */

static void call_world(request *q, bool sums, assay_dtype dtype)
{
    snprintf(q->op.group, sizeof q->op.group, "world");
    q->op.n_group_ranks = q->world;
    q->op.group_ranks = q->ranks;
    attr_text(q, "dtype", assay_dtype_name(dtype));
    if (sums)
        attr_text(q, "reduction", "sum");
    finish(q);
}

/* Rows that rank a sends to rank b, none for some pairs. */
static int64_t chunk(int a, int b)
{
    return (a + 2 * b) % 3;
}

static void add_all_to_all(request *q, int64_t h)
{
    json_t *counts = json_array(), *recv_counts = json_array();
    int64_t rows = 0;
    for (int r = 0; r < q->world; r++) {
        rows += chunk(q->rank, r);
        json_array_append_new(counts, json_integer(chunk(q->rank, r)));
        json_array_append_new(recv_counts, json_integer(chunk(r, q->rank)));
    }
    begin(q, "all_to_all");
    json_object_set_new(q->attrs, "counts", counts);
    json_object_set_new(q->attrs, "recv_counts", recv_counts);
    input_2d(q, "send", q->act, rows, h, unique);
    call_world(q, false, q->act);
}

static void add_collectives(request *q, int64_t rows)
{
    const int64_t h = 3, vector[2] = {5 + q->rank, 7};
    begin(q, "all_reduce");
    input_2d(q, "send", ASSAY_F32, rows, h, unique);
    call_world(q, true, ASSAY_F32);
    begin(q, "all_reduce");
    input_i64(q, "send", 2, vector);
    call_world(q, true, ASSAY_I64);
    begin(q, "all_gather");
    input_2d(q, "send", q->act, rows, h, unique);
    call_world(q, false, q->act);
    begin(q, "reduce_scatter");
    input_2d(q, "send", ASSAY_F32, rows * q->world, h, unique);
    call_world(q, true, ASSAY_F32);
    begin(q, "broadcast");
    input_2d(q, "send", q->act, rows, h, unique);
    attr_int(q, "root", q->world - 1);
    call_world(q, false, q->act);
    add_all_to_all(q, h);
}

/* --- the request -------------------------------------------------------------------------------------------- */

static void add_products(request *q)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 5},  {7, 17, 33}, {0, 3, 4},    {3, 0, 4},
                                       {3, 4, 0}, {5, 1, 64}, {1, 31, 2},  {16, 16, 16}, {17, 32, 65}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        add_linear(q, sizes[i][0], sizes[i][1], sizes[i][2], i % 2 == 0);
    add_grouped(q, 3, (int64_t[]){2, 0, 3}, 3, 5);
    add_grouped(q, 1, (int64_t[]){0}, 4, 4);
    add_grouped(q, 4, (int64_t[]){0, 5, 1, 0}, 17, 9);
    add_grouped(q, 2, (int64_t[]){16, 17}, 32, 33);
}

static void add_moves(request *q)
{
    add_embedding(q, 9, 11, 3, 4);
    add_embedding(q, 0, 5, 2, 0);
    add_embedding(q, 1, 1, 7, 2);
    add_qkv(q, 5, 4, 2, 3);
    add_qkv(q, 1, 3, 1, 8);
    add_qkv(q, 0, 2, 2, 4);
    add_rope(q, 5, 3, 8, 8);
    add_rope(q, 7, 1, 8, 4);
    add_rope(q, 0, 2, 4, 4);
    add_rows(q, 7, 2, 5);
    add_rows(q, 1, 1, 1);
    add_rows(q, 0, 2, 3);
    add_rows(q, 13, 3, 17);
    add_plan(q, 7, 2, 5);
    add_plan(q, 1, 1, 1);
    add_plan(q, 0, 2, 4);
    add_plan(q, 13, 3, 8);
}

static void add_others(request *q)
{
    add_one_hot(q, 2, 8, 4, 2, 0);
    add_one_hot(q, 1, 8, 8, 1, 3);
    add_one_hot(q, 1, 1, 2, 2, 0);
    add_one_hot(q, 2, 5, 3, 3, 1);
    add_uniform(q, 4, 2);
    add_norm(q, 5, 3);
    add_norm(q, 1, 1);
    add_norm(q, 0, 4);
    add_norm(q, 3, 129);
    add_loss(q, 7, 5, 3);
    add_loss(q, 1, 33, 0);
    add_loss(q, 0, 4, 0);
    add_sums(q, 0);
    add_sums(q, 1);
    add_sums(q, 1025);
    add_router(q, 9, 8, 2, "softmax", true, 0, 0);
    add_router(q, 5, 7, 3, "softmax", false, 0, 0);
    add_router(q, 4, 5, 2, "sigmoid", true, 0, 0);
    add_router(q, 6, 8, 2, "softmax", false, 4, 2);
    add_router(q, 0, 4, 2, "softmax", true, 0, 0);
}

assay_status parity_exact_request(const char *dir, int world, const char *act_dtype)
{
    assay_dtype act;
    ASSAY_TRY(assay_dtype_from_name(act_dtype, &act));
    ASSAY_CHECK(act == ASSAY_F32 || act == ASSAY_BF16, ASSAY_INVALID_ARGUMENT,
                "exact request: expected F32 or BF16, found %s", act_dtype);
    ASSAY_CHECK(world >= 1 && world <= ASSAY_MAX_WORLD, ASSAY_INVALID_ARGUMENT,
                "exact request: world of %d ranks", world);
    int *ranks = calloc((size_t)world, sizeof *ranks);
    ASSAY_CHECK(ranks, ASSAY_OUT_OF_MEMORY, "exact request");
    assay_status st = ASSAY_OK;
    for (int r = 0; r < world; r++)
        ranks[r] = r;
    for (int rank = 0; rank < world && st == ASSAY_OK; rank++) {
        request q = {.act = act, .rank = rank, .world = world, .ranks = ranks};
        json_t *header =
            json_pack("{s:s, s:s}", "engine", "request", "precision", act == ASSAY_F32 ? "fp32" : "bf16");
        q.st = assay_trace_writer_open(&q.w, dir, rank, world, header, false);
        json_decref(header);
        if (q.st == ASSAY_OK) {
            add_collectives(&q, 5);
            add_collectives(&q, 1);
            add_collectives(&q, 0);
            if (rank == 0) {
                add_products(&q);
                add_moves(&q);
                add_others(&q);
            }
            q.st = q.st == ASSAY_OK ? assay_trace_end_step(q.w) : q.st;
            q.st = q.st == ASSAY_OK ? assay_trace_writer_close(q.w) : q.st;
        }
        assay_trace_writer_destroy(q.w);
        json_decref(q.attrs);
        st = q.st;
    }
    free(ranks);
    return st;
}
