/* Costs of calls: closed forms written a second time here, and refusal of what has no formula. */
#include "core/model/ops_cost.h"
#include "tests/support/core.h"

#include <ctype.h>
#include <string.h>

enum { SLOTS = 8, ATTRS = 8 };
typedef struct sample {
    const char *op, *what;
    struct {
        const char *slot;
        assay_dtype dtype;
        int ndim;
        int64_t shape[4];
    } slots[SLOTS];
    assay_op_given attrs[ATTRS];
    int64_t flops, model_flops, bytes;
} sample;

#define BF ASSAY_BF16
#define F ASSAY_F32
#define I ASSAY_I64
#define ATTENTION(window_, groups_)                                                                          \
    {                                                                                                        \
        {"batch", 2}, {"seq_q", 5}, {"seq_k", 5}, {"heads", 4}, {"groups", groups_}, {"head_dim", 8},        \
        {                                                                                                    \
            "window", window_                                                                                \
        }                                                                                                    \
    }
/* clang-format off */
static const sample samples[] = {
    {"linear_fwd", "T 6, K 7, N 5", {{"x", BF, 2, {6, 7}}, {"weight", BF, 2, {5, 7}}, {"y", BF, 2, {6, 5}}}, {{NULL, 0}},
     2 * 6 * 5 * 7, 2 * 6 * 5 * 7, 2 * (6 * 7 + 5 * 7 + 6 * 5)},
    {"linear_fwd", "rows of two extents, logits in F32", {{"x", BF, 3, {3, 2, 7}}, {"weight", BF, 2, {5, 7}}, {"y", F, 3, {3, 2, 5}}}, {{NULL, 0}},
     2 * 6 * 5 * 7, 2 * 6 * 5 * 7, 2 * (6 * 7 + 5 * 7) + 4 * 6 * 5},
    {"linear_bwd_weight", "dweight is read and written", {{"dy", BF, 2, {6, 5}}, {"x", BF, 2, {6, 7}}, {"dweight", F, 2, {5, 7}}}, {{NULL, 0}},
     2 * 6 * 5 * 7, 2 * 6 * 5 * 7, 2 * (6 * 5 + 6 * 7) + 2 * 4 * 5 * 7},
    {"attention_fwd", "causal", {{"q", BF, 3, {10, 4, 8}}, {"k", BF, 3, {10, 4, 8}}, {"v", BF, 3, {10, 4, 8}}, {"o", BF, 3, {10, 4, 8}}, {"lse", F, 2, {10, 4}}},
     ATTENTION(0, 4), 2 * (8 + 8) * 4 * 2 * 15, 2 * (8 + 8) * 4 * 2 * 15, 4 * 2 * 10 * 4 * 8 + 4 * 10 * 4},
    {"attention_fwd", "grouped heads: as many FLOPs, fewer bytes", {{"q", BF, 3, {10, 4, 8}}, {"k", BF, 3, {10, 2, 8}}, {"v", BF, 3, {10, 2, 8}}, {"o", BF, 3, {10, 4, 8}}, {"lse", F, 2, {10, 4}}},
     ATTENTION(0, 2), 2 * (8 + 8) * 4 * 2 * 15, 2 * (8 + 8) * 4 * 2 * 15, 2 * 2 * 10 * (4 + 2) * 8 + 4 * 10 * 4},
    {"attention_fwd", "window 3: 1 + 2 + 3 + 3 + 3 keys", {{"q", BF, 3, {10, 4, 8}}, {"k", BF, 3, {10, 4, 8}}, {"v", BF, 3, {10, 4, 8}}, {"o", BF, 3, {10, 4, 8}}, {"lse", F, 2, {10, 4}}},
     ATTENTION(3, 4), 2 * (8 + 8) * 4 * 2 * 12, 2 * (8 + 8) * 4 * 2 * 12, 4 * 2 * 10 * 4 * 8 + 4 * 10 * 4},
    {"attention_bwd", "five products, four of the model", {{"q", BF, 3, {10, 4, 8}}, {"k", BF, 3, {10, 4, 8}}, {"v", BF, 3, {10, 4, 8}}}, ATTENTION(0, 4),
     5 * 2 * 8 * 4 * 2 * 15, 4 * 2 * 8 * 4 * 2 * 15, 3 * 2 * 10 * 4 * 8},
    {"grouped_linear_fwd", "9 rows on 3 experts", {{"x", BF, 2, {9, 7}}, {"weight", BF, 3, {3, 5, 7}}, {"tokens_per_expert", I, 1, {3}}, {"y", BF, 2, {9, 5}}}, {{NULL, 0}},
     2 * 9 * 5 * 7, 2 * 9 * 5 * 7, 2 * (9 * 7 + 3 * 5 * 7 + 9 * 5) + 8 * 3},
    {"embedding_fwd", "rows of the tokens, not the table", {{"ids", I, 1, {6}}, {"weight", BF, 2, {100, 7}}, {"y", BF, 2, {6, 7}}}, {{NULL, 0}},
     0, 0, 8 * 6 + 2 * 6 * 7 + 2 * 6 * 7},
    {"gather_rows", "a vector", {{"x", F, 1, {50}}, {"index", I, 1, {6}}, {"y", F, 1, {6}}}, {{NULL, 0}}, 0, 0, 4 * 6 + 8 * 6 + 4 * 6},
    {"router_balanced_bwd", "counts of a microbatch, a vector", {{"dprobs", F, 2, {6, 2}}, {"indices", I, 2, {6, 2}}, {"scores", F, 2, {6, 4}}, {"logits", F, 2, {6, 4}}, {"tokens_per_expert", I, 1, {4}}, {"dlogits", F, 2, {6, 4}}},
     {{"topk", 2}}, 12 * 6 * 4, 0, (4 + 8) * 6 * 2 + 3 * 4 * 6 * 4 + 8 * 4},
    {"mla_rope_kv_fwd", "T 6, A 4, N 5, V 7, h 3", {{"kv", BF, 2, {6, 48}}, {"k_pos_emb", BF, 2, {6, 6}}, {"cos", F, 2, {9, 3}}, {"sin", F, 2, {9, 3}}, {"position", I, 1, {6}}, {"k", BF, 3, {6, 4, 11}}, {"v", BF, 3, {6, 4, 7}}},
     {{"heads", 4}, {"qk_head_dim", 5}, {"v_head_dim", 7}}, 6 * 6 * 3, 0, 2 * 6 * (48 + 6 + 44 + 28) + 2 * 4 * 9 * 3 + 8 * 6},
    {"mla_rope_kv_bwd", "a sum over the heads before the turn", {{"cos", F, 2, {9, 3}}, {"sin", F, 2, {9, 3}}, {"position", I, 1, {6}}, {"dk", BF, 3, {6, 4, 11}}, {"dv", BF, 3, {6, 4, 7}}, {"dkv", BF, 2, {6, 48}}, {"dk_pos_emb", BF, 2, {6, 6}}},
     {{"heads", 4}, {"qk_head_dim", 5}, {"v_head_dim", 7}}, 6 * 6 * 3 + 2 * 6 * 4 * 3, 0, 2 * 6 * (48 + 6 + 44 + 28) + 2 * 4 * 9 * 3 + 8 * 6},
    {"adamw", "reads and writes its states", {{"grad", F, 1, {10}}, {"main_param", F, 1, {10}}, {"exp_avg", F, 1, {10}}, {"exp_avg_sq", F, 1, {10}}, {"param", BF, 1, {10}}}, {{NULL, 0}},
     160, 0, 4 * 10 + 3 * 2 * 4 * 10 + 2 * 10},
};
/* clang-format on */

static assay_status cost(const sample *s, const assay_op *op, assay_op_cost *out)
{
    assay_op_operand list[SLOTS];
    int n = 0, n_attrs = 0;
    for (; n < SLOTS && s->slots[n].slot; n++)
        list[n] =
            (assay_op_operand){s->slots[n].slot, s->slots[n].dtype, s->slots[n].ndim, s->slots[n].shape};
    while (n_attrs < ATTRS && s->attrs[n_attrs].name)
        n_attrs++;
    return assay_op_cost_of(op, s->attrs, n_attrs, list, n, -1, out);
}

Test(ops_cost, closed_forms)
{
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const sample *s = &samples[i];
        assay_op_cost c;
        expect_ok(cost(s, assay_op_find(s->op), &c));
        cr_expect_eq(c.flops, s->flops, "%s, %s: %lld FLOPs, expected %lld", s->op, s->what,
                     (long long)c.flops, (long long)s->flops);
        cr_expect_eq(c.model_flops, s->model_flops, "%s, %s: %lld of the model, expected %lld", s->op,
                     s->what, (long long)c.model_flops, (long long)s->model_flops);
        cr_expect_eq(c.bytes, s->bytes, "%s, %s: %lld bytes, expected %lld", s->op, s->what,
                     (long long)c.bytes, (long long)s->bytes);
    }
}

Test(ops_cost, pairs_are_those_of_the_mask)
{
    for (int64_t seq = 0; seq <= 12; seq++)
        for (int64_t window = 0; window <= 14; window++) {
            int64_t counted = 0;
            for (int64_t q = 0; q < seq; q++)
                for (int64_t k = 0; k <= q; k++)
                    counted += window == 0 || k > q - window;
            cr_expect_eq(assay_op_causal_pairs(3, seq, window), 3 * counted, "seq %lld, window %lld",
                         (long long)seq, (long long)window);
        }
    cr_expect_eq(assay_op_causal_pairs(1, INT64_MAX - 1, 0), -1);
    cr_expect_eq(assay_op_causal_pairs(-1, 4, 0), -1);
}

/* Every symbol of a formula is one of the row's: a dimension, an attribute, or the pairs of a mask. */
static bool row_has(const assay_op *op, const char *symbol, size_t n)
{
    if (n == 5 && strncmp(symbol, "pairs", n) == 0)
        return true;
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (op->attrs[i].symbol && strlen(op->attrs[i].symbol) == n &&
            strncmp(op->attrs[i].symbol, symbol, n) == 0)
            return true;
    for (int i = 0; i < assay_op_n_slots(op); i++)
        for (const char *c = op->slots[i].shape; *c;) {
            size_t length = 0;
            while (isalnum((unsigned char)c[length]))
                length++;
            if (length == n && strncmp(c, symbol, n) == 0)
                return true;
            c += length > 0 ? length : 1;
        }
    return false;
}

static void expect_symbols(const assay_op *op, const char *formula)
{
    for (const char *c = formula ? formula : ""; *c;) {
        size_t n = 0;
        while (isalnum((unsigned char)c[n]))
            n++;
        cr_expect(n == 0 || isdigit((unsigned char)c[0]) || row_has(op, c, n),
                  "%s: %s: %.*s is no symbol of the row", op->name, formula, (int)n, c);
        c += n > 0 ? n : 1;
    }
}

Test(ops_cost, every_row_has_formulas_in_its_own_symbols)
{
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        cr_expect(op->flops, "%s has no formula", op->name);
        expect_symbols(op, op->flops);
        expect_symbols(op, op->model_flops);
        if (op->touches) {
            const size_t n = strcspn(op->touches, ":");
            bool slot = false;
            for (int k = 0; k < assay_op_n_slots(op); k++)
                slot = slot ||
                       (strlen(op->slots[k].name) == n && strncmp(op->slots[k].name, op->touches, n) == 0);
            cr_assert(slot && op->touches[n] == ':', "%s: touches %s", op->name, op->touches);
            expect_symbols(op, op->touches + n + 1);
        }
    }
}

/* Planted: rows as a new operation's author may leave them. */
Test(ops_cost, a_row_without_a_formula_or_with_a_foreign_symbol_is_refused)
{
    assay_op op = *assay_op_find("linear_fwd");
    assay_op_cost c;
    op.flops = NULL;
    expect_error(cost(&samples[0], &op, &c), ASSAY_UNSUPPORTED, "linear_fwd: its row has no formula");
    op.flops = "2*T*N*Q";
    expect_error(cost(&samples[0], &op, &c), ASSAY_INVALID_ARGUMENT, "2*T*N*Q: a symbol without value");
    op.flops = "2*T*N*K";
    op.touches = "weight: V*H";
    expect_error(cost(&samples[0], &op, &c), ASSAY_INVALID_ARGUMENT, "V*H");
}

Test(ops_cost, a_mask_that_nobody_counted_is_refused)
{
    static const int64_t q[] = {10, 4, 8};
    const assay_op_given attrs[] = {{"batch", 2}, {"seq_q", 5},  {"seq_k", 10},
                                    {"heads", 4}, {"groups", 4}, {"head_dim", 8}};
    const assay_op_operand list[] = {{"q", ASSAY_BF16, 3, q}, {"first_key", ASSAY_I64, 1, q}};
    const assay_op *op = assay_op_find("attention_fwd");
    assay_op_cost c;
    expect_error(assay_op_cost_of(op, attrs, 6, list, 1, -1, &c), ASSAY_UNSUPPORTED, "5 queries, 10 keys");
    const assay_op_given whole[] = {{"batch", 2}, {"seq_q", 5},  {"seq_k", 5},
                                    {"heads", 4}, {"groups", 4}, {"head_dim", 8}};
    expect_error(assay_op_cost_of(op, whole, 6, list, 2, -1, &c), ASSAY_UNSUPPORTED, "must be given");
    expect_ok(assay_op_cost_of(op, whole, 6, list, 2, 7, &c));
    cr_expect_eq(c.flops, 2 * (8 + 8) * 4 * 7);
}

Test(ops_cost, shapes_that_contradict_the_row_are_refused)
{
    static const int64_t x[] = {6, 7}, w[] = {5, 8};
    const assay_op_operand list[] = {{"x", ASSAY_F32, 2, x}, {"weight", ASSAY_F32, 2, w}};
    assay_op_cost c;
    expect_error(assay_op_cost_of(assay_op_find("linear_fwd"), NULL, 0, list, 2, -1, &c),
                 ASSAY_INVALID_ARGUMENT, "linear_fwd: slot weight");
}
