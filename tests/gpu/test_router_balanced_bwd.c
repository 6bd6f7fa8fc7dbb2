/* The router's backward and the gradients of its balancing losses in one pass: within the bounds of the parts, the bits of the operations
 * one behind the other, also of what lies between them, and the same result where nobody wants that; what is refused. */
#include "tests/support/gpu_judge.h"

TestSuite(gpu_router_balanced_bwd, .timeout = 120);

/* T, E, K, mode, norm_topk_prob, rows of counts of the three losses */
enum { SOFTMAX_PRE, SOFTMAX_POST, SIGMOID };
static const op_sizes sizes[] = {
    {{3, 4, 1, SOFTMAX_PRE, 0, 1, 3, 1}},   {{8, 8, 2, SOFTMAX_PRE, 1, 1, 4, 1}},
    {{6, 33, 5, SOFTMAX_POST, 0, 1, 2, 3}}, {{38, 64, 8, SIGMOID, 1, 1, 2, 1}},
    {{4, 65, 4, SIGMOID, 0, 2, 4, 1}},      {{9, 128, 8, SOFTMAX_PRE, 1, 1, 3, 1}},
    {{3, 256, 8, SIGMOID, 1, 1, 1, 1}},     {{33, 129, 32, SOFTMAX_POST, 0, 1, 11, 1}},
    {{2, 257, 8, SOFTMAX_PRE, 0, 1, 2, 1}}, {{3, 512, 4, SIGMOID, 1, 3, 1, 1}},
    {{1, 1, 1, SOFTMAX_PRE, 1, 1, 1, 1}},   {{0, 8, 2, SOFTMAX_PRE, 1, 1, 2, 1}},
};

static const char *const wholes[] = {"router_balanced_bwd", "router_balanced_bwd_two",
                                     "router_balanced_bwd_three"};

static const char *end_of(int loss)
{
    static const char *const ends[] = {"", "_2", "_3"};
    return ends[loss];
}

static void put_double(op_call *c, const char *name, int as, double x)
{
    char full[32];
    snprintf(full, sizeof full, "%s%s", name, end_of(as));
    attr_d(c, full, x);
}

static void put_integer(op_call *c, const char *name, int as, int64_t n)
{
    char full[32];
    snprintf(full, sizeof full, "%s%s", name, end_of(as));
    attr_i(c, full, n);
}

/* Loss number `loss`, under the names of number `as`; some experts have no token. */
static void put_loss(op_call *c, int loss, int as, const int64_t *d)
{
    const int64_t cells = d[5 + loss] * d[1];
    char slot[32];
    double *n = calloc((size_t)cells + 1, sizeof *n);
    snprintf(slot, sizeof slot, "tokens_per_expert%s", end_of(as));
    for (int64_t i = 0; i < cells; i++)
        n[i] = i % 3 == 1 ? 0.0 : (double)((i * 7 + loss) % 11);
    put_values(c, slot, ASSAY_I64, n, d[5 + loss], d[1]);
    free(n);
    put_double(c, "aux_coeff", as, 0.5 * (loss + 1));
    put_double(c, "z_coeff", as, loss == 0 ? 0.25 : 0.0);
    put_integer(c, "tokens", as, d[0] + loss);
    put_integer(c, "divisor", as, 1 + loss);
    put_double(c, "loss_scale", as, 0.5 + 0.25 * loss);
}

static void put_choice(op_call *c, const int64_t *d)
{
    attr_i(c, "topk", d[2]);
    attr_s(c, "score_function", d[3] == SIGMOID ? "sigmoid" : "softmax");
    attr_b(c, "pre_softmax", d[3] == SOFTMAX_PRE);
    attr_b(c, "norm_topk_prob", d[4]);
    attr_d(c, "scaling_factor", 1.5);
    attr_i(c, "num_groups", 0);
    attr_i(c, "group_topk", 0);
}

/* What router_bwd reads; of a choice that the router made. */
static void choice_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    op_call f;
    call_begin(&f, c->ctx, c->seed);
    DRAW(&f, "logits", act, mode, 4.0, 2, d[0], d[1]);
    put_choice(&f, d);
    run_op(&f, "router_fwd", act);
    c->seed = f.seed;
    DRAW(c, "dprobs", ASSAY_F32, mode, 1.0, 2, d[0], d[2]);
    feed(c, "indices", &f, "indices");
    feed(c, "scores", &f, "scores");
    put_values(c, "logits", act, f.value[0], d[0], d[1]);
    put_choice(c, d);
    call_end(&f);
}

static void balanced(op_call *c, int losses, assay_dtype act, data_mode mode, const int64_t *d)
{
    choice_bwd(c, act, mode, d);
    for (int i = 0; i < losses; i++)
        put_loss(c, i, i, d);
}

static void balanced_1(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    balanced(c, 1, act, mode, d);
}

static void balanced_2(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    balanced(c, 2, act, mode, d);
}

static void balanced_3(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    balanced(c, 3, act, mode, d);
}

Test(gpu_router_balanced_bwd, is_within_the_bounds_of_its_parts)
{
    static const op_build build[] = {balanced_1, balanced_2, balanced_3};
    for (int i = 0; i < 3; i++)
        hold(&(op_law){wholes[i], "router_balanced", 2, false, build[i], OP_SIZES(sizes)});
}

/* One behind the other, the highest rung of each. */
static void one_by_one(op_call *part, gpu_ctx *ctx, int losses, assay_dtype act, uint64_t seed,
                       const int64_t *d)
{
    call_begin(&part[0], ctx, seed);
    choice_bwd(&part[0], act, ZERO_MEAN, d);
    run_op(&part[0], "router_bwd", act);
    for (int i = 0; i < losses; i++) {
        op_call *c = &part[i + 1];
        call_begin(c, ctx, seed);
        put_values(c, "logits", act, part[0].value[3], d[0], d[1]);
        put_loss(c, i, 0, d);
        put_values(c, "dlogits_in", ASSAY_F32, result(&part[i], "dlogits"), d[0], d[1]);
        attr_i(c, "topk", d[2]);
        attr_s(c, "score_function", d[3] == SIGMOID ? "sigmoid" : "softmax");
        run_op(c, "router_aux_bwd", act);
    }
    cr_expect(gpu_ladder_find("router_bwd", part[0].declared.variant + 1) == NULL &&
              gpu_ladder_find("router_aux_bwd", part[1].declared.variant + 1) == NULL);
}

/* Every number of registers, every mode, every number of losses, the result and what is between two parts. */
Test(gpu_router_balanced_bwd, has_the_bits_of_the_operations)
{
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int losses = 1; losses <= 3; losses++)
        for (size_t k = 0; k < 2 * sizeof sizes / sizeof *sizes; k++) {
            const int64_t *d = sizes[k / 2].d;
            op_call whole, part[4];
            call_begin(&whole, &ctx, 3 + k);
            balanced(&whole, losses, acts[k % 2], ZERO_MEAN, d);
            run_op(&whole, wholes[losses - 1], acts[k % 2]);
            cr_expect_eq(whole.declared.variant, 1);
            one_by_one(part, &ctx, losses, acts[k % 2], 3 + k, d);
            for (int i = 0; i <= losses; i++) {
                char slot[16];
                snprintf(slot, sizeof slot, i < losses ? "dlogits_%d" : "dlogits", i);
                expect_same_bits(&whole, slot, &part[i], "dlogits", d[1]);
            }
            for (int i = 0; i <= losses; i++)
                call_end(&part[i]);
            call_end(&whole);
        }
    gpu_ctx_destroy(&ctx);
}

/* --- launches as they are ------------------------------------------------------------------------------------ */
enum { T = 6, E = 33, K = 2 };
typedef struct raw_call {
    gpu_ctx ctx;
    float dprobs[T * K], scores[T * E], logits[T * E], between[2][T * E], dlogits[T * E];
    int64_t indices[T * K], counts[2 * E];
} raw_call;

static assay_status raw(raw_call *c, bool between, int64_t rows, double tokens)
{
    const gpu_tensor none = gpu_tensor_none();
    const assay_status st =
        RAW(&c->ctx, "router_balanced_bwd_two", RAW_T("dprobs", gpu_tensor_2d(c->dprobs, ASSAY_F32, T, K)),
            RAW_T("indices", gpu_tensor_2d(c->indices, ASSAY_I64, T, K)),
            RAW_T("scores", gpu_tensor_2d(c->scores, ASSAY_F32, T, E)),
            RAW_T("logits", gpu_tensor_2d(c->logits, ASSAY_F32, T, E)),
            RAW_T("tokens_per_expert", gpu_tensor_1d(c->counts, ASSAY_I64, E)),
            RAW_T("tokens_per_expert_2", gpu_tensor_1d(c->counts, ASSAY_I64, rows)),
            RAW_T("dlogits_0", between ? gpu_tensor_2d(c->between[0], ASSAY_F32, T, E) : none),
            RAW_T("dlogits_1", between ? gpu_tensor_2d(c->between[1], ASSAY_F32, T, E) : none),
            RAW_T("dlogits", gpu_tensor_2d(c->dlogits, ASSAY_F32, T, E)), {"topk", .number = K},
            {"pre_softmax", .number = 1}, {"aux_coeff", .number = 0.5}, {"z_coeff", .number = 0.25},
            {"tokens", .number = T}, {"aux_coeff_2", .number = 2}, {"z_coeff_2", .number = 0},
            {"tokens_2", .number = tokens});
    cr_assert_eq(cudaStreamSynchronize(c->ctx.stream), cudaSuccess);
    return st;
}

static void fill(raw_call *c)
{
    for (int i = 0; i < T * E; i++) {
        c->logits[i] = 0.25f * (float)(i % 13) - 1.0f;
        c->scores[i] = 0.03f * (float)(1 + i % 7);
    }
    for (int i = 0; i < T * K; i++) {
        c->dprobs[i] = 0.5f * (float)(i % 5) - 1.0f;
        c->indices[i] = i % K * 20 + i;
    }
    for (int i = 0; i < 2 * E; i++)
        c->counts[i] = i % 4;
    open_ctx(&c->ctx);
}

/* In both rungs: the same bits whether what is between two parts is stored or not. */
Test(gpu_router_balanced_bwd, what_is_between_may_stay_inside)
{
    static const char *const variants[] = {"", "router_balanced=k0"};
    for (int i = 0; i < 2; i++) {
        raw_call c = {0};
        float with[T * E];
        fill(&c);
        cr_assert_eq(gpu_ctx_set_variants(&c.ctx, variants[i]), ASSAY_OK);
        cr_assert_eq(raw(&c, true, 2 * E, 3), ASSAY_OK, "%s", assay_error_message());
        cr_expect(c.between[0][9] != c.between[1][9] && c.between[1][9] != c.dlogits[9]);
        memcpy(with, c.dlogits, sizeof with);
        memset(c.dlogits, 0, sizeof c.dlogits);
        memset(c.between, 0, sizeof c.between);
        cr_assert_eq(raw(&c, false, 2 * E, 3), ASSAY_OK, "%s", assay_error_message());
        cr_expect(memcmp(with, c.dlogits, sizeof with) == 0, "%s", variants[i]);
        cr_expect(c.between[0][9] == 0.0f && c.between[1][9] == 0.0f);
        gpu_ctx_destroy(&c.ctx);
    }
}

Test(gpu_router_balanced_bwd, what_is_wrong_is_named)
{
    static const struct {
        int64_t rows;
        double tokens;
        const char *words;
    } rows[] = {{2 * E - 1, 3, "router_balanced_bwd_two: tokens_per_expert_2: "},
                {E, -1, "router_balanced_bwd_two: expected tokens of 0 or more"},
                {0, 3, "router_balanced_bwd_two: expected tokens of whole rows, found 6 tokens in 0 rows"}};
    raw_call c = {0};
    fill(&c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(raw(&c, true, rows[i].rows, rows[i].tokens), ASSAY_INVALID_ARGUMENT);
        cr_expect(strstr(assay_error_message(), rows[i].words), "%s", assay_error_message());
        assay_error_clear();
    }
    gpu_ctx_destroy(&c.ctx);
}
