/* The backward of a norm in one pass, alone and with the residual's gradient added in the same launch: bounds of every width and number
 * of rows that choose another kernel, the bits of the two operations, dx that nobody asks for, what is refused. */
#include "tests/support/gpu_judge.h"

TestSuite(gpu_residual_norm_bwd, .timeout = 240);

/* Threads of a row: 16 up to 128 columns, 32 up to 256, 128 up to 1024, then a block. */
static const op_sizes sizes[] = {
    {{0, 8}},    {{1, 1}},   {{2, 3}},    {{5, 31}},   {{33, 32}},  {{17, 40}},  {{16, 128}},
    {{37, 136}}, {{9, 256}}, {{5, 1024}}, {{3, 1032}}, {{3, 2048}}, {{2, 2056}}, {{2, 4104}},
};

/* rows, columns, whether gamma is trained */
static void norm_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 2, d[0], d[1]);
    DRAW(c, "x", act, mode, 2.0, 2, d[0], d[1]);
    put(c, "gamma", act, 0.5, 1.5, 1, d[1]);
    put(c, "rstd", ASSAY_F32, 0.1, 2.0, 1, d[0]);
    if (d[2] == 0)
        DRAW(c, "dgamma_in", ASSAY_F32, mode, 1.0, 1, d[1]);
}

static void norm_bwd_add(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    norm_bwd(c, act, mode, d);
    DRAW(c, "dresidual", act, mode, 0.5, 2, d[0], d[1]);
}

Test(gpu_residual_norm_bwd, one_pass_is_within_its_bounds)
{
    hold(&(op_law){"rmsnorm_bwd", "rmsnorm", 4, false, norm_bwd, OP_SIZES(sizes)});
}

Test(gpu_residual_norm_bwd, is_within_the_bounds_of_its_parts)
{
    hold(&(op_law){"rmsnorm_bwd_add", "residual_norm", 2, false, norm_bwd_add, OP_SIZES(sizes)});
}

/* rmsnorm_bwd, then add, each by its highest rung. */
static void two_operations(gpu_ctx *ctx, const op_call *whole, assay_dtype act, const int64_t *d)
{
    op_call norm, sum;
    call_begin(&norm, ctx, 1);
    put_values(&norm, "dy", act, whole->value[0], d[0], d[1]);
    put_values(&norm, "x", act, whole->value[1], d[0], d[1]);
    put_values(&norm, "gamma", act, whole->value[2], d[1], -1);
    put_values(&norm, "rstd", ASSAY_F32, whole->value[3], d[0], -1);
    if (d[2] == 0)
        put_values(&norm, "dgamma_in", ASSAY_F32, whole->value[4], d[1], -1);
    run_op(&norm, "rmsnorm_bwd", act);
    call_begin(&sum, ctx, 1);
    put_values(&sum, "a", act, whole->value[whole->n_in - 1], d[0], d[1]);
    feed(&sum, "b", &norm, "dx");
    run_op(&sum, "add", act);
    cr_expect(gpu_ladder_find("rmsnorm_bwd", norm.declared.variant + 1) == NULL &&
              gpu_ladder_find("add", sum.declared.variant + 1) == NULL);
    expect_same_bits(whole, "dx", &norm, "dx", d[1]);
    expect_same_bits(whole, "y", &sum, "y", d[1]);
    if (d[2] == 0)
        expect_same_bits(whole, "dgamma", &norm, "dgamma", d[1]);
    cr_expect_eq(output_of(whole, "dgamma") == NULL, d[2] == 1);
    call_end(&sum);
    call_end(&norm);
}

Test(gpu_residual_norm_bwd, has_the_bits_of_the_two_operations)
{
    static const int64_t rows[][3] = {{37, 8, 0},   {37, 32, 1},  {300, 40, 0}, {37, 64, 0},  {5, 128, 0},
                                      {3, 136, 1},  {9, 256, 0},  {5, 264, 0},  {3, 1024, 0}, {3, 1032, 0},
                                      {3, 2048, 1}, {3, 2056, 0}, {2, 4096, 0}, {2, 4104, 0}, {2, 8192, 0},
                                      {2, 8200, 0}, {1, 16384, 0}};
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; a++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            op_call whole;
            call_begin(&whole, &ctx, 3 + i);
            norm_bwd_add(&whole, acts[a], ZERO_MEAN, rows[i]);
            run_op(&whole, "rmsnorm_bwd_add", acts[a]);
            cr_expect_eq(whole.declared.variant, rows[i][1] <= (acts[a] == ASSAY_BF16 ? 16384 : 8192),
                         "%lld columns in %s", (long long)rows[i][1], assay_dtype_name(acts[a]));
            if (whole.declared.variant == 1)
                two_operations(&ctx, &whole, acts[a], rows[i]);
            call_end(&whole);
        }
    gpu_ctx_destroy(&ctx);
}

/* 256 blocks take two rows at a time: rows of the third turn, which find the block's sums of the turns before, have the bits that they
 * have in a call of their own. */
Test(gpu_residual_norm_bwd, rows_of_later_turns_have_their_bits)
{
    enum { ROWS = 1100, COLUMNS = 264, ALONE = 5, FROM = ROWS - ALONE };
    const int64_t d[3] = {ROWS, COLUMNS, 1};
    gpu_ctx ctx;
    op_call all, own;
    open_ctx(&ctx);
    call_begin(&all, &ctx, 5);
    norm_bwd(&all, ASSAY_F32, ZERO_MEAN, d);
    run_op(&all, "rmsnorm_bwd", ASSAY_F32);
    call_begin(&own, &ctx, 1);
    put_values(&own, "dy", ASSAY_F32, all.value[0] + FROM * COLUMNS, ALONE, COLUMNS);
    put_values(&own, "x", ASSAY_F32, all.value[1] + FROM * COLUMNS, ALONE, COLUMNS);
    put_values(&own, "gamma", ASSAY_F32, all.value[2], COLUMNS, -1);
    put_values(&own, "rstd", ASSAY_F32, all.value[3] + FROM, ALONE, -1);
    run_op(&own, "rmsnorm_bwd", ASSAY_F32);
    cr_expect(all.declared.variant == 3 && own.declared.variant == 3);
    const float *of_all = (const float *)output_of(&all, "dx")->data,
                *of_own = (const float *)output_of(&own, "dx")->data;
    cr_expect(memcmp(of_all + FROM * COLUMNS, of_own, sizeof *of_own * ALONE * COLUMNS) == 0);
    call_end(&all);
    call_end(&own);
    gpu_ctx_destroy(&ctx);
}

/* Columns that are no multiple of eight, or more than a block's registers hold. */
Test(gpu_residual_norm_bwd, other_widths_take_another_rung)
{
    static const struct {
        int64_t d[3];
        assay_dtype act;
        int norm, whole;
    } rows[] = {{{3, 40, 0}, ASSAY_BF16, 3, 1},
                {{3, 41, 0}, ASSAY_BF16, 1, 0},
                {{1, 8200, 0}, ASSAY_F32, 2, 0},
                {{1, 16392, 0}, ASSAY_BF16, 2, 0}};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        op_call norm, whole;
        call_begin(&norm, &ctx, 1);
        norm_bwd(&norm, rows[i].act, ZERO_MEAN, rows[i].d);
        run_op(&norm, "rmsnorm_bwd", rows[i].act);
        call_begin(&whole, &ctx, 1);
        norm_bwd_add(&whole, rows[i].act, ZERO_MEAN, rows[i].d);
        run_op(&whole, "rmsnorm_bwd_add", rows[i].act);
        cr_expect(norm.declared.variant == rows[i].norm && whole.declared.variant == rows[i].whole,
                  "row %zu: k%d, k%d", i, norm.declared.variant, whole.declared.variant);
        call_end(&norm);
        call_end(&whole);
    }
    gpu_ctx_destroy(&ctx);
}

/* Chains of a column: the rows of a block at a time, times blocks, no more than 256; of a row: eight columns each. */
Test(gpu_residual_norm_bwd, declares_its_chains)
{
    static const struct {
        int64_t d[3];
        int row, column;
    } rows[] = {{{3, 40, 0}, 5, 16},     {{17, 128, 0}, 16, 32}, {{300, 8, 0}, 1, 512},
                {{5000, 8, 0}, 1, 4096}, {{9, 256, 0}, 32, 16},  {{3, 1024, 0}, 128, 4},
                {{3, 2048, 0}, 256, 4},  {{5, 2056, 0}, 128, 8}, {{1, 4096, 0}, 256, 1}};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        op_call c;
        call_begin(&c, &ctx, 1);
        norm_bwd(&c, ASSAY_F32, ZERO_MEAN, rows[i].d);
        run_op(&c, "rmsnorm_bwd", ASSAY_F32);
        const assay_arith *dx = assay_declaration_of(&c.declared.arith, "dx"),
                          *dgamma = assay_declaration_of(&c.declared.arith, "dgamma");
        cr_expect(dx->lanes == rows[i].row && dgamma->lanes == rows[i].column, "row %zu: %d and %d lanes", i,
                  dx->lanes, dgamma->lanes);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

enum { R = 8, H = 8 };

typedef struct raw_call {
    gpu_ctx ctx;
    float dy[R * H], x[R * H], dresidual[R * H], dx[R * H], y[R * H], gamma[H], rstd[R];
} raw_call;

static gpu_tensor rows_of(float *data)
{
    return gpu_tensor_2d(data, ASSAY_F32, R, H);
}

static assay_status raw(raw_call *c, gpu_tensor dx, gpu_tensor y)
{
    return RAW(&c->ctx, "rmsnorm_bwd_add", RAW_T("gamma", gpu_tensor_1d(c->gamma, ASSAY_F32, H)),
               RAW_T("dy", rows_of(c->dy)), RAW_T("x", rows_of(c->x)),
               RAW_T("rstd", gpu_tensor_1d(c->rstd, ASSAY_F32, R)), RAW_T("dresidual", rows_of(c->dresidual)),
               RAW_T("dx", dx), RAW_T("y", y));
}

static void fill(raw_call *c)
{
    for (int i = 0; i < R * H; i++) {
        c->dy[i] = 0.25f * (float)(i % 5) - 0.3f;
        c->x[i] = 0.125f * (float)(i % 11) - 0.5f;
        c->dresidual[i] = (float)(i % 3);
        c->gamma[i % H] = 1.0f + 0.1f * (float)(i % H);
        c->rstd[i % R] = 0.5f + 0.1f * (float)(i % R);
    }
    open_ctx(&c->ctx);
}

/* In both rungs: the sum has the same bits whether dx is stored or not. */
Test(gpu_residual_norm_bwd, dx_may_stay_inside)
{
    static const char *const variants[] = {"", "residual_norm=k0"};
    for (int i = 0; i < 2; i++) {
        raw_call c = {0};
        float with[R * H];
        fill(&c);
        cr_assert_eq(gpu_ctx_set_variants(&c.ctx, variants[i]), ASSAY_OK);
        cr_assert_eq(raw(&c, rows_of(c.dx), rows_of(c.y)), ASSAY_OK, "%s", assay_error_message());
        cr_expect_eq(c.y[9], c.dresidual[9] + c.dx[9]);
        memcpy(with, c.y, sizeof with);
        memset(c.y, 0, sizeof c.y);
        memset(c.dx, 0, sizeof c.dx);
        cr_assert_eq(raw(&c, gpu_tensor_none(), rows_of(c.y)), ASSAY_OK, "%s", assay_error_message());
        cr_expect(memcmp(with, c.y, sizeof with) == 0, "%s", variants[i]);
        cr_expect_eq(c.dx[9], 0.0f);
        gpu_ctx_destroy(&c.ctx);
    }
}

Test(gpu_residual_norm_bwd, memory_of_an_input_is_refused)
{
    raw_call c = {0};
    fill(&c);
    const struct {
        gpu_tensor dx, y;
        const char *words;
    } rows[] = {{rows_of(c.dy), rows_of(c.y), "dx: expected memory of its own, found that of an input"},
                {rows_of(c.dresidual), rows_of(c.y), "dx: expected memory of its own"},
                {rows_of(c.dx), rows_of(c.x), "y: expected memory of its own, found that of an input"},
                {rows_of(c.dx), rows_of(c.dresidual), "y: expected memory of its own"},
                {rows_of(c.dx), rows_of(c.dx), "y: expected memory of its own, found that of dx"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(raw(&c, rows[i].dx, rows[i].y), ASSAY_INVALID_ARGUMENT, "row %zu", i);
        cr_expect_not_null(strstr(assay_error_message(), rows[i].words), "%s", assay_error_message());
    }
    gpu_ctx_destroy(&c.ctx);
}
