/* The table of operations: docs/OPS.md holds its rows, recorded shapes match it, and what a row does not allow is refused by name. */
#include "core/base/log.h"
#include "core/model/ops.h"
#include "tests/support/core.h"

#include <stdarg.h>
#include <string.h>

/* --- the page ----------------------------------------------------------------------------------------------- */
static char *page(void)
{
    char *text = NULL;
    uint64_t n = 0;
    cr_assert_eq(assay_read_file(ASSAY_SOURCE_DIR "/docs/OPS.md", 1 << 20, &text, &n), ASSAY_OK, "%s",
                 assay_error_message());
    return text;
}

Test(ops, every_row_is_on_the_page)
{
    char *text = page(), row[2048];
    for (int i = 0; assay_op_at(i); i++) {
        assay_op_describe(assay_op_at(i), row, sizeof row);
        const char *found = strstr(text, row);
        cr_expect(found && found[-1] == '\n' && found[strlen(row)] == '\n', "docs/OPS.md lacks the line\n%s",
                  row);
    }
    free(text);
}

/* A line of a table of slots begins with "| `name` |"; section 9 and symbols have other tables. */
Test(ops, the_page_has_no_other_row)
{
    char *text = page();
    int rows = 0, n = 0;
    char *end = strstr(text, "\n## 9.");
    cr_assert(end);
    *end = '\0';
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char name[64] = "";
        if (sscanf(line, "| `%63[a-z_]`", name) != 1)
            continue;
        rows++;
        cr_expect(assay_op_find(name), "docs/OPS.md has operation %s, the table has not", name);
    }
    while (assay_op_at(n))
        n++;
    cr_expect_eq(rows, n, "%d lines on the page, %d rows", rows, n);
    free(text);
}

/* --- the rows themselves ------------------------------------------------------------------------------------ */
static bool has_output(const assay_op *op, const char *name, size_t length)
{
    for (int i = 0; i < assay_op_n_slots(op); i++)
        if (op->slots[i].role != ASSAY_SLOT_IN && strlen(op->slots[i].name) == length &&
            strncmp(op->slots[i].name, name, length) == 0)
            return true;
    return false;
}

/* "y: K; rstd: H": each word before a colon is an output. */
Test(ops, sums_name_outputs)
{
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        for (const char *c = op->sums; *c;) {
            const size_t length = strcspn(c, ":");
            cr_expect(has_output(op, c, length), "%s: sums names %.*s", op->name, (int)length, c);
            c += strcspn(c, ";");
            c += strspn(c, "; ");
        }
    }
}

Test(ops, references_inside_a_row_resolve)
{
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        cr_expect_eq(assay_op_find(op->name), op, "%s is there twice", op->name);
        for (int k = 0; k < assay_op_n_slots(op); k++) {
            const assay_op_slot *s = &op->slots[k];
            const bool attr = s->dtype == ASSAY_CLASS_ATTR;
            if (s->like)
                cr_expect(attr ? assay_op_attr_find(op, s->like) != NULL
                               : assay_op_slot_find(op, s->like, false) != NULL,
                          "%s: %s: like %s", op->name, s->name, s->like);
            if (s->alias)
                cr_expect(assay_op_slot_find(op, s->alias, false), "%s: %s: alias %s", op->name, s->name,
                          s->alias);
        }
    }
}

/* --- calls -------------------------------------------------------------------------------------------------- */
typedef struct given {
    const char *slot;
    const char *dtype;
    int ndim;
    int64_t shape[4];
} given;

typedef struct sample {
    const char *op, *attrs;
    given in[9], out[6];
    const char *refusal; /* NULL: legal */
} sample;

static int operands(const given *list, int most, assay_op_operand *out)
{
    int n = 0;
    for (; n < most && list[n].slot; n++) {
        out[n] = (assay_op_operand){.slot = list[n].slot, .ndim = list[n].ndim, .shape = list[n].shape};
        cr_assert_eq(assay_dtype_from_name(list[n].dtype, &out[n].dtype), ASSAY_OK);
    }
    return n;
}

#define LINEAR(...)                                                                                          \
    {                                                                                                        \
        {"x", "F32", 3, {4, 2, 8}}, {"weight", "F32", 2, {6, 8}}, __VA_ARGS__                                \
    }
#define Y_LINEAR                                                                                             \
    {                                                                                                        \
        {                                                                                                    \
            "y", "F32", 3,                                                                                   \
            {                                                                                                \
                4, 2, 6                                                                                      \
            }                                                                                                \
        }                                                                                                    \
    }
#define ATTENTION                                                                                            \
    "{\"batch\":2,\"seq_q\":4,\"seq_k\":4,\"heads\":4,\"groups\":2,\"head_dim\":8,\"scale\":0.5}"

static const sample samples[] = {
    /* recorded forms of one shape */
    {"linear_fwd", "{}", LINEAR({"bias", "F32", 1, {6}}), Y_LINEAR, NULL},
    {"linear_fwd",
     "{\"dtype\":\"F32\"}",
     {{"x", "BF16", 2, {8, 8}}, {"weight", "BF16", 2, {6, 8}}},
     {{"y", "F32", 3, {4, 2, 6}}},
     NULL},
    {"rmsnorm_fwd",
     "{\"eps\":1e-5}",
     {{"x", "BF16", 4, {4, 2, 3, 8}}, {"gamma", "BF16", 1, {8}}},
     {{"y", "BF16", 4, {4, 2, 3, 8}}, {"rstd", "F32", 3, {4, 2, 3}}},
     NULL},
    /* one norm over all heads: the heads are recorded apart */
    {"rmsnorm_fwd",
     "{\"eps\":1e-5}",
     {{"x", "BF16", 4, {4, 2, 3, 8}}, {"gamma", "BF16", 1, {24}}},
     {{"y", "BF16", 4, {4, 2, 3, 8}}, {"rstd", "F32", 2, {4, 2}}},
     NULL},
    /* one head on this rank, two rows of the batch: [S,B,A*D] is no [T,A,D] */
    {"attention_fwd",
     "{\"batch\":2,\"seq_q\":11,\"seq_k\":11,\"heads\":1,\"groups\":1,\"head_dim\":10,\"scale\":1.0}",
     {{"q", "F32", 3, {11, 2, 10}},
      {"k", "F32", 3, {22, 1, 10}},
      {"v", "F32", 4, {11, 2, 1, 10}},
      {"q_position", "I64", 1, {22}},
      {"k_position", "I64", 1, {22}}},
     {{"o", "F32", 3, {11, 2, 10}}, {"lse", "F32", 3, {11, 2, 1}}},
     NULL},
    {"attention_fwd",
     ATTENTION,
     {{"q", "F32", 4, {4, 2, 4, 8}},
      {"k", "F32", 3, {8, 2, 8}},
      {"v", "F32", 4, {4, 2, 2, 8}},
      {"q_position", "I64", 2, {4, 2}},
      {"k_position", "I64", 1, {8}}},
     {{"o", "F32", 3, {4, 2, 32}}, {"lse", "F32", 3, {4, 2, 4}}},
     NULL},
    {"cross_entropy_loss",
     "{}",
     {{"stats", "F32", 4, {2, 3, 3, 2}}, {"targets", "I64", 2, {3, 2}}},
     {{"lse", "F32", 2, {3, 2}}, {"loss", "F32", 2, {3, 2}}},
     NULL},
    {"cross_entropy_loss",
     "{}",
     {{"stats", "F32", 3, {3, 3, 2}}, {"targets", "I64", 2, {3, 2}}},
     {{"lse", "F32", 2, {3, 2}}, {"loss", "F32", 2, {3, 2}}},
     NULL},
    {"rope_fwd",
     "{}",
     {{"x", "F32", 3, {6, 1, 8}},
      {"cos", "F32", 2, {9, 4}},
      {"sin", "F32", 2, {9, 4}},
      {"position", "I64", 1, {6}}},
     {{"y", "F32", 2, {6, 8}}},
     NULL},
    {"gather_rows",
     "{}",
     {{"x", "F32", 3, {4, 2, 8}}, {"index", "I64", 1, {16}}},
     {{"y", "F32", 2, {16, 8}}},
     NULL},
    {"gather_rows",
     "{}",
     {{"x", "F32", 1, {16}}, {"index", "I64", 2, {8, 2}}},
     {{"y", "F32", 3, {4, 2, 2}}},
     NULL},
    {"slice_rows",
     "{\"start\":2,\"length\":2}",
     {{"x", "BF16", 3, {4, 2, 8}}},
     {{"y", "BF16", 3, {2, 2, 8}}},
     NULL},
    {"qkv_split_fwd",
     "{\"heads\":4,\"groups\":2,\"head_dim\":8}",
     {{"qkv", "F32", 3, {4, 2, 64}}},
     {{"q", "F32", 4, {4, 2, 4, 8}}, {"k", "F32", 4, {4, 2, 2, 8}}, {"v", "F32", 4, {4, 2, 2, 8}}},
     NULL},
    {"kv_down_split_fwd",
     "{\"kv_lora_rank\":5,\"qk_pos_emb_head_dim\":2}",
     {{"kv_combined", "F32", 3, {4, 2, 7}}},
     {{"kv_compressed", "F32", 3, {4, 2, 5}}, {"k_pos_emb", "F32", 3, {4, 2, 2}}},
     NULL},
    {"mla_rope_kv_bwd",
     "{\"heads\":2,\"qk_head_dim\":3,\"v_head_dim\":5}",
     {{"cos", "F32", 2, {9, 4}},
      {"sin", "F32", 2, {9, 4}},
      {"position", "I64", 2, {3, 2}},
      {"dk", "F32", 4, {3, 2, 2, 11}},
      {"dv", "F32", 4, {3, 2, 2, 5}}},
     {{"dkv", "F32", 3, {3, 2, 16}}, {"dk_pos_emb", "F32", 3, {3, 2, 8}}},
     NULL},
    {"all_gather", "{\"dtype\":\"F32\"}", {{0}}, {{"recv", "F32", 1, {8}}}, NULL},
    {"reduce_scatter",
     "{}",
     {{"send", "F32", 2, {6, 8}}},
     {{"recv.0", "F32", 1, {3}}, {"recv.1", "F32", 2, {2, 8}}},
     NULL},
    {"linear_fwd",
     "{}",
     {{"x", "F32", 2, {0, 8}}, {"weight", "F32", 2, {6, 8}}},
     {{"y", "F32", 2, {0, 6}}},
     NULL},
    {"kv_down_split_fwd",
     "{\"kv_lora_rank\":5,\"qk_pos_emb_head_dim\":2}",
     {{"kv_combined", "F32", 2, {8, 8}}},
     {{0}},
     "kv_down_split_fwd: slot kv_combined: expected shape [T,C+R=7], found [8,8]"},
    {"mla_rope_kv_bwd", /* as much as turned, and no more */
     "{\"heads\":2,\"qk_head_dim\":3,\"v_head_dim\":5}",
     {{"cos", "F32", 2, {9, 3}},
      {"sin", "F32", 2, {9, 3}},
      {"position", "I64", 1, {6}},
      {"dk", "F32", 3, {6, 2, 11}},
      {"dv", "F32", 3, {6, 2, 5}}},
     {{0}},
     "mla_rope_kv_bwd: slot dk: expected shape [T=6,A=2,N+2*h=9], found [6,2,11]"},
    /* slots */
    {"linear_fwd",
     "{}",
     {{"x", "F32", 2, {4, 8}}},
     Y_LINEAR,
     "linear_fwd: slot weight: expected a tensor, found none"},
    {"linear_fwd", "{}", LINEAR({"gamma", "F32", 1, {6}}), Y_LINEAR,
     "linear_fwd: the operation has no input slot gamma"},
    {"linear_fwd", "{}", LINEAR({"x", "F32", 1, {6}}), Y_LINEAR, "slot x is there twice"},
    {"linear_fwd", "{}", LINEAR({0}), {{"dx", "F32", 2, {8, 6}}}, "the operation has no output slot dx"},
    {"linear_bwd_bias",
     "{}",
     {{"dy", "F32", 2, {4, 6}}, {"dbias", "F32", 1, {6}}},
     {{"dbias", "F32", 1, {6}}},
     "no input slot dbias"},
    {"linear_bwd_bias",
     "{}",
     {{"dy", "F32", 2, {4, 6}}},
     {{"dbias", "F32", 1, {6}}},
     "slot dbias_in: expected a tensor, found none"},
    {"swiglu_bwd",
     "{}",
     {{"dy", "F32", 2, {4, 3}}, {"x", "F32", 2, {4, 6}}, {"probs", "F32", 1, {4}}},
     {{"dx", "F32", 2, {4, 6}}},
     "slot dprobs: expected a tensor, found none"},
    {"swiglu_bwd",
     "{}",
     {{"dy", "F32", 2, {4, 3}}, {"x", "F32", 2, {4, 6}}},
     {{"dx", "F32", 2, {4, 6}}, {"dprobs", "F32", 1, {4}}},
     "slot dprobs: expected none, found one"},
    /* dtypes */
    {"add",
     "{}",
     {{"a", "F32", 1, {4}}, {"b", "BF16", 1, {4}}},
     {{"y", "F32", 1, {4}}},
     "add: slot b: expected dtype F32, found BF16"},
    {"linear_fwd",
     "{}",
     LINEAR({0}),
     {{"y", "BF16", 3, {4, 2, 6}}},
     "slot y: expected dtype F32, found BF16"},
    {"rmsnorm_fwd",
     "{\"eps\":1e-5}",
     {{"x", "BF16", 2, {4, 8}}, {"gamma", "BF16", 1, {8}}},
     {{"y", "BF16", 2, {4, 8}}, {"rstd", "BF16", 1, {4}}},
     "slot rstd: expected dtype F32, found BF16"},
    {"embedding_fwd",
     "{}",
     {{"ids", "F32", 1, {4}}, {"weight", "F32", 2, {9, 8}}},
     {{"y", "F32", 2, {4, 8}}},
     "slot ids: expected dtype I64, found F32"},
    {"cast",
     "{\"dtype\":\"BF16\"}",
     {{"x", "F32", 1, {4}}},
     {{"y", "F32", 1, {4}}},
     "slot y: expected dtype BF16, found F32"},
    {"cast",
     "{\"dtype\":\"BF16\"}",
     {{"x", "I64", 1, {4}}},
     {{"y", "BF16", 1, {4}}},
     "slot x: expected dtype of a real number, found I64"},
    /* shapes */
    {"linear_fwd",
     "{}",
     {{"x", "F32", 1, {8}}, {"weight", "F32", 2, {6, 8}}},
     {{"y", "F32", 1, {6}}},
     "slot x: expected shape [T,K], found [8]"},
    {"linear_fwd",
     "{}",
     {{"x", "F32", 2, {4, 9}}, {"weight", "F32", 2, {6, 8}}},
     Y_LINEAR,
     "slot weight: expected shape [N,K=9], found [6,8]"},
    /* not the first one's symbol, which the second would contradict */
    {"linear_fwd",
     "{}",
     {{"x", "F32", 2, {4, 8}}, {"weight", "F32", 2, {-1, 8}}, {"bias", "F32", 1, {6}}},
     Y_LINEAR,
     "slot weight: expected extents that are not negative, found [-1,8]"},
    /* of a call with bracketed dimensions is said what is wrong with them, not that it has them */
    {"router_aux_loss",
     "{\"topk\":2,\"tokens\":4,\"aux_coeff\":0.1,\"z_coeff\":0.1}",
     {{"score_sums", "F32", 2, {3, 8}}, {"tokens_per_expert", "I64", 2, {3, 7}}},
     {{"losses", "F32", 1, {2}}},
     "slot tokens_per_expert: expected shape"},
    {"linear_fwd", "{}", LINEAR({"bias", "F32", 1, {7}}), Y_LINEAR,
     "slot bias: expected shape [N=6], found [7]"},
    {"linear_fwd",
     "{}",
     LINEAR({0}),
     {{"y", "F32", 2, {4, 6}}},
     "slot y: expected shape [T=8,N=6], found [4,6]"},
    /* only a row of rmsnorm may have several extents for its width */
    {"linear_fwd",
     "{}",
     LINEAR({0}),
     {{"y", "F32", 4, {4, 2, 2, 3}}},
     "slot y: expected shape [T=8,N=6], found [4,2,2,3]"},
    {"linear_bwd_weight",
     "{}",
     {{"dy", "F32", 2, {4, 6}}, {"x", "F32", 2, {5, 8}}, {"dweight_in", "F32", 2, {6, 8}}},
     {{"dweight", "F32", 2, {6, 8}}},
     "slot x: expected shape [T=4,K], found [5,8]"},
    {"grouped_linear_fwd",
     "{}",
     {{"x", "F32", 2, {4, 8}}, {"weight", "F32", 3, {2, 6, 8}}, {"tokens_per_expert", "I64", 1, {3}}},
     {{"y", "F32", 2, {4, 6}}},
     "slot tokens_per_expert: expected shape [El=2], found [3]"},
    {"attention_fwd",
     ATTENTION,
     {{"q", "F32", 4, {4, 2, 2, 8}},
      {"k", "F32", 3, {8, 2, 8}},
      {"v", "F32", 4, {4, 2, 2, 8}},
      {"q_position", "I64", 2, {4, 2}},
      {"k_position", "I64", 1, {8}}},
     {{"o", "F32", 3, {4, 2, 32}}, {"lse", "F32", 3, {4, 2, 4}}},
     "slot q: expected shape [Tq=8,A=4,D=8], found [4,2,2,8]"},
    {"swiglu_fwd",
     "{}",
     {{"x", "F32", 2, {4, 7}}},
     {{"y", "F32", 2, {4, 3}}},
     "slot x: expected shape [T,2*F], found [4,7]"},
    {"sum", "{}", {{"x", "F32", 1, {4}}}, {{"y", "F64", 1, {2}}}, "slot y: expected shape [1], found [2]"},
    {"rmsnorm_fwd", /* two heads of three are no row */
     "{\"eps\":1e-5}",
     {{"x", "BF16", 4, {4, 2, 3, 8}}, {"gamma", "BF16", 1, {16}}},
     {{0}},
     "slot x: expected shape [T,H=16], found [4,2,3,8]"},
    {"rmsnorm_fwd", /* no row is left */
     "{\"eps\":1e-5}",
     {{"x", "BF16", 2, {3, 8}}, {"gamma", "BF16", 1, {24}}},
     {{0}},
     "slot x: expected shape [T,H=24], found [3,8]"},
    /* attributes */
    {"rmsnorm_fwd",
     "{}",
     {{"x", "F32", 2, {4, 8}}, {"gamma", "F32", 1, {8}}},
     {{0}},
     "rmsnorm_fwd: attribute eps: expected a number, found none"},
    {"rmsnorm_fwd",
     "{\"eps\":-1}",
     {{"x", "F32", 2, {4, 8}}, {"gamma", "F32", 1, {8}}},
     {{0}},
     "attribute eps: expected a value in [0, 1.26765e+30], found -1"},
    {"rmsnorm_fwd",
     "{\"eps\":\"small\"}",
     {{"x", "F32", 2, {4, 8}}, {"gamma", "F32", 1, {8}}},
     {{0}},
     "attribute eps: expected a number, found \"small\""},
    {"rmsnorm_fwd",
     "{\"eps\":0.1,\"epsilon\":1}",
     {{"x", "F32", 2, {4, 8}}, {"gamma", "F32", 1, {8}}},
     {{0}},
     "the operation has no attribute epsilon"},
    {"rope_table",
     "{\"rope_type\":\"dynamic\",\"rotary_dim\":8,\"rotary_base\":1e4,\"positions\":4}",
     {{0}},
     {{0}},
     "attribute rope_type: expected one of default|linear|llama3|yarn, found \"dynamic\""},
    {"cast",
     "{\"dtype\":\"F33\"}",
     {{"x", "F32", 1, {4}}},
     {{0}},
     "attribute dtype: expected a dtype, found \"F33\""},
    {"all_gather",
     "{\"counts\":[1,-1]}",
     {{"send", "F32", 1, {4}}},
     {{0}},
     "attribute counts: expected a list of counts, found [1,-1]"},
    {"adamw",
     "{\"lr\":1,\"beta1\":0.9,\"beta2\":1.5,\"eps\":0,\"weight_decay\":0,\"step\":1}",
     {{0}},
     {{0}},
     "attribute beta2: expected a value in [0, 1], found 1.5"},
    {"router_fwd", "{\"topk\":2.0}", {{0}}, {{0}}, "attribute topk: expected an integer, found 2.0"},
};

Test(ops, calls_are_legal_or_refused_by_name)
{
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        const sample *s = &samples[i];
        assay_op_operand in[9], out[6];
        json_t *attrs = json_loads(s->attrs, 0, NULL);
        const assay_op *op = assay_op_find(s->op);
        cr_assert(attrs && op, "%s %s", s->op, s->attrs);
        const int n_in = operands(s->in, 9, in), n_out = operands(s->out, 6, out);
        const assay_status st = assay_op_check(op, attrs, ASSAY_DTYPE_COUNT, ASSAY_DTYPE_COUNT, in, n_in, out,
                                               n_out > 0 ? n_out : -1, NULL);
        if (s->refusal == NULL)
            cr_expect_eq(st, ASSAY_OK, "sample %zu, %s: %s", i, s->op, assay_error_message());
        else
            cr_expect(st == ASSAY_INVALID_ARGUMENT && strstr(assay_error_message(), s->refusal),
                      "sample %zu, %s: %s", i, s->op,
                      st == ASSAY_OK ? "was accepted" : assay_error_message());
        assay_error_clear();
        json_decref(attrs);
    }
}

/* The recipe says act; a slot may not choose. */
Test(ops, the_recipe_decides_the_dtype)
{
    const int64_t shape[1] = {4};
    const assay_op_operand in[] = {{"a", ASSAY_F32, 1, shape}, {"b", ASSAY_F32, 1, shape}};
    cr_expect_eq(assay_op_check(assay_op_find("add"), NULL, ASSAY_BF16, ASSAY_BF16, in, 2, NULL, -1, NULL),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect(strstr(assay_error_message(), "slot a: expected dtype BF16, found F32"), "%s",
              assay_error_message());
}

Test(ops, outputs_follow_from_inputs_and_attributes)
{
    const int64_t x[3] = {4, 2, 8}, w[2] = {6, 8};
    const assay_op_operand in[] = {{"x", ASSAY_BF16, 3, x}, {"weight", ASSAY_BF16, 2, w}};
    const assay_op *op = assay_op_find("linear_fwd");
    assay_op_binding b;
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_OP_DIMS];
    cr_assert_eq(assay_op_check(op, NULL, ASSAY_DTYPE_COUNT, ASSAY_DTYPE_COUNT, in, 2, NULL, -1, &b),
                 ASSAY_OK);
    cr_assert_eq(
        assay_op_output(op, assay_op_slot_find(op, "y", true), NULL, in, 2, &b, &dtype, &ndim, shape),
        ASSAY_OK);
    cr_expect(dtype == ASSAY_BF16 && ndim == 2 && shape[0] == 8 && shape[1] == 6);
}

Test(ops, absent_attributes_have_the_value_of_the_row)
{
    int64_t n = 0;
    double factor = 0.0;
    int word = -1;
    json_t *attrs = json_pack("{s:i}", "head_dim", 16);
    cr_assert_eq(assay_op_attr_int(assay_op_find("attention_fwd"), attrs, "head_dim_v", &n), ASSAY_OK);
    cr_expect_eq(n, 16);
    cr_assert_eq(assay_op_attr_double(assay_op_find("rope_table"), attrs, "factor", &factor), ASSAY_OK);
    cr_expect_eq(factor, 1.0);
    cr_assert_eq(assay_op_attr_word(assay_op_find("router_fwd"), attrs, "score_function", &word), ASSAY_OK);
    cr_expect_eq(word, 0);
    json_decref(attrs);
}

/* Every part of a fused operation is a row, each of its slots and attributes is one of the whole, and what a part takes from another is
 * an output of both. */
Test(ops, the_parts_of_a_fused_operation_are_rows)
{
    int n = 0;
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        n += assay_op_n_parts(op) > 0;
        cr_expect_neq(assay_op_n_parts(op), 1, "%s", op->name);
        for (int k = 0; k < assay_op_n_parts(op); k++) {
            const assay_op *part = assay_op_part_of(op, k);
            cr_assert_not_null(part, "%s: %s", op->name, op->parts[k].op);
            cr_expect_eq(assay_op_n_parts(part), 0, "%s: parts have none", part->name);
            for (int s = 0; s < assay_op_n_slots(part); s++)
                cr_expect_not_null(assay_op_part_slot(op, k, part->slots[s].name), "%s: %s of %s", op->name,
                                   part->slots[s].name, part->name);
            for (int a = 0; a < assay_op_n_attrs(part); a++)
                cr_expect_not_null(assay_op_part_attr(op, k, part->attrs[a].name), "%s: %s of %s", op->name,
                                   part->attrs[a].name, part->name);
        }
    }
    cr_expect_geq(n, 2);
    const assay_op *op = assay_op_find("add_rmsnorm_fwd");
    const char *output = NULL;
    cr_expect_eq(assay_op_part_source(op, 1, "x", &output), 0);
    cr_expect_str_eq(output, "y");
    cr_expect_eq(assay_op_part_source(op, 1, "gamma", &output), -1);
    cr_expect_eq(assay_op_part_source(op, 0, "a", &output), -1);
    cr_expect_str_eq(assay_op_part_slot(op, 0, "y"), "residual");
    cr_expect_str_eq(assay_op_part_slot(op, 1, "y"), "y");
    cr_expect_null(assay_op_part_slot(op, 0, "weight"));
    cr_expect_null(assay_op_part_of(op, 2));
    op = assay_op_find("rmsnorm_bwd_add");
    cr_expect_eq(assay_op_part_source(op, 1, "b", &output), 0);
    cr_expect_str_eq(output, "dx");
    cr_expect_eq(assay_op_part_source(op, 1, "a", &output), -1);
    cr_expect_eq(assay_op_part_source(op, 0, "dgamma_in", &output), -1);
    cr_expect_str_eq(assay_op_part_slot(op, 0, "dgamma_in"), "dgamma");
    cr_expect_str_eq(assay_op_part_slot(op, 1, "a"), "dresidual");
    cr_expect_eq(assay_op_n_parts(assay_op_find("add")), 0);
}

/* An in-out slot of two names: what it was is what the part before left in it; attributes have the names of their part. */
Test(ops, parts_hand_on_an_in_out_slot)
{
    static const struct {
        const char *own, *whole[4];
        bool slot;
    } rows[] = {{"dlogits_in", {NULL, "dlogits_0", "dlogits_1", "dlogits_2"}, true},
                {"dlogits", {"dlogits_0", "dlogits_1", "dlogits_2", "dlogits"}, true},
                {"tokens_per_expert",
                 {NULL, "tokens_per_expert", "tokens_per_expert_2", "tokens_per_expert_3"},
                 true},
                {"logits", {"logits", "logits", "logits", "logits"}, true},
                {"loss_scale", {NULL, "loss_scale", "loss_scale_2", "loss_scale_3"}, false},
                {"divisor", {NULL, "divisor", "divisor_2", "divisor_3"}, false},
                {"topk", {"topk", "topk", "topk", "topk"}, false}};
    const assay_op *op = assay_op_find("router_balanced_bwd_three");
    const char *output = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 4; k++)
            if (rows[i].whole[k])
                cr_expect_str_eq(rows[i].slot ? assay_op_part_slot(op, k, rows[i].own)
                                              : assay_op_part_attr(op, k, rows[i].own),
                                 rows[i].whole[k]);
    for (int k = 1; k < 4; k++) {
        cr_expect_eq(assay_op_part_source(op, k, "dlogits_in", &output), k - 1);
        cr_expect_str_eq(output, "dlogits");
        cr_expect_eq(assay_op_part_source(op, k, "logits", &output), -1);
    }
    cr_expect_null(assay_op_part_attr(op, 0, "eps"));
}
