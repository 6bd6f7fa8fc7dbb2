/* What ref_replay must refuse or find: planted faults, missing slots and attributes, contradicting shapes,
 * hostile indices, arithmetics without a bound. */
#include "tests/support/ref_bounds.h"

enum { T = 6, N = 5, K = 40 };

static trial product(assay_dtype dtype, test_rng *r)
{
    trial x = trial_new("linear_fwd", arith_case(0));
    const double *a = trial_in(&x, "x", dtype, mode_data(r, 0, T * K, K, dtype, 1.0), SHAPE(T, K));
    const double *w = trial_in(&x, "weight", dtype, mode_data(r, 0, N * K, K, dtype, 1.0), SHAPE(N, K));
    double *y = trial_out(&x, "y", dtype, SHAPE(T, N));
    for (int64_t i = 0; i < T * N; i++) {
        float fa[K], fw[K];
        column_to_float(fa, a + i / N * K, K, 1, 0);
        column_to_float(fw, w + i % N * K, K, 1, 0);
        y[i] = (double)emulate_dot(fa, fw, K, &x.arith, r);
    }
    return x;
}

Test(ref_bounds_faults, one_element_off_by_two_bounds)
{
    test_rng r = {1};
    for (int d = 0; d < 2; d++) {
        const assay_dtype dtype = d ? ASSAY_BF16 : ASSAY_F32;
        trial x = product(dtype, &r);
        trial_expect_pass(&x, "before");
        for (int64_t i = 0; i < T * N; i++) {
            const double keep = x.out[0].value[i], y = x.result.outputs[0].value[i],
                         b = x.result.outputs[0].bound[i];
            const double allowed = b + 0.5 * ref_ulp(fabs(y) + b, dtype);
            x.out[0].value[i] = y + 2.0 * allowed;
            trial_judge(&x);
            cr_expect(x.n_bad == 1 && x.worst > 1.9);
            x.out[0].value[i] = keep;
        }
        trial_free(&x);
    }
}

Test(ref_bounds_faults, dropped_product_swapped_rows_and_nan)
{
    test_rng r = {2};
    int64_t seen = 0;
    trial x = product(ASSAY_F32, &r);
    trial_expect_pass(&x, "before");
    double *y = x.out[0].value;
    for (int64_t k = 0; k < K; k++) { /* one product of element (2,3) left out */
        const double keep = y[2 * N + 3];
        y[2 * N + 3] = ref_round(keep - x.in[0].value[2 * K + k] * x.in[1].value[3 * K + k], ASSAY_F32);
        trial_judge(&x);
        seen += x.n_bad == 1;
        y[2 * N + 3] = keep;
    }
    cr_expect(seen == K, "%d of %d dropped products seen", (int)seen, K);
    for (int64_t j = 0; j < N; j++) {
        const double keep = y[j];
        y[j] = y[N + j];
        y[N + j] = keep;
    }
    trial_judge(&x);
    cr_expect(x.n_bad == 2 * N, "swapped rows: %d elements", (int)x.n_bad);
    y[0] = NOT_A_NUMBER;
    trial_judge(&x);
    cr_expect(x.n_bad == 2 * N && x.worst == HUGE_VAL);
    trial_free(&x);
}

/* Low precision accumulation is seen on one-signed data. */
Test(ref_bounds_faults, accumulation_in_bf16)
{
    test_rng r = {3};
    trial x = trial_new("linear_fwd", arith_case(0));
    const double *a =
        trial_in(&x, "x", ASSAY_BF16, mode_data(&r, MODE_POSITIVE, T * K, K, ASSAY_BF16, 1.0), SHAPE(T, K));
    const double *w = trial_in(&x, "weight", ASSAY_BF16,
                               mode_data(&r, MODE_POSITIVE, N * K, K, ASSAY_BF16, 1.0), SHAPE(N, K));
    double *y = trial_out(&x, "y", ASSAY_BF16, SHAPE(T, N));
    for (int64_t i = 0; i < T * N; i++) {
        double s = 0.0;
        for (int64_t k = 0; k < K; k++)
            s = ref_round(s + a[i / N * K + k] * w[i % N * K + k], ASSAY_BF16);
        y[i] = s;
    }
    trial_judge(&x);
    cr_expect(x.n_bad > T * N / 2, "%d elements", (int)x.n_bad);
    trial_free(&x);
}

Test(ref_bounds_faults, wrong_eps_of_a_norm)
{
    test_rng r = {4};
    trial x = trial_new("rmsnorm_fwd", arith_case(0));
    json_object_set_new(x.attrs, "eps", json_real(1e-5));
    const double *in = trial_in(&x, "x", ASSAY_F32, mode_data(&r, 0, T * K, K, ASSAY_F32, 0.01), SHAPE(T, K));
    const double *gamma =
        trial_in(&x, "gamma", ASSAY_F32, mode_data(&r, MODE_POSITIVE, K, K, ASSAY_F32, 1.0), SHAPE(K));
    double *y = trial_out(&x, "y", ASSAY_F32, SHAPE(T, K)),
           *rstd = trial_out(&x, "rstd", ASSAY_F32, SHAPE(T));
    ref_rmsnorm_fwd(y, rstd, in, gamma, 1e-5, T, K);
    trial_expect_pass(&x, "right eps");
    ref_rmsnorm_fwd(y, rstd, in, gamma, 1e-6, T, K);
    trial_store(&x);
    trial_judge(&x);
    cr_expect(x.n_bad == T * K + T);
    trial_free(&x);
}

/* ---- refusals */
static void expect_refused(trial *x, assay_status want, const char *part)
{
    const assay_declaration declared = assay_declaration_make(x->arith);
    const assay_status st =
        ref_replay(x->op, x->attrs, &declared, x->in, x->n_in, x->out, x->n_out, &x->result);
    cr_expect(st == want, "%s: status %s, expected %s", x->op, assay_status_name(st),
              assay_status_name(want));
    cr_expect(strstr(assay_error_message(), part) != NULL, "'%s' does not name '%s'", assay_error_message(),
              part);
    cr_expect(x->result.n_outputs == 0, "a refused replay owns nothing");
}

Test(ref_bounds_faults, unknown_operation)
{
    trial x = trial_new("convolution", arith_case(0));
    expect_refused(&x, ASSAY_NOT_FOUND, "convolution");
    cr_expect(!ref_replay_knows("all_reduce") && ref_replay_knows("linear_fwd") && !ref_replay_knows(NULL));
    trial_free(&x);
}

Test(ref_bounds_faults, missing_slots_and_attributes_are_named)
{
    test_rng r = {5};
    trial x = product(ASSAY_F32, &r);
    snprintf(x.in[1].slot, sizeof x.in[1].slot, "wieght");
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "'weight'");
    trial_free(&x);
    const char *const ops[][2] = {{"rmsnorm_fwd", "eps"},         {"attention_fwd", "batch"},
                                  {"attention_bwd", "batch"},     {"adamw", "lr"},
                                  {"slice_rows", "start"},        {"router_aux_loss", "aux_coeff"},
                                  {"cross_entropy_bwd", "scale"}, {"expert_bias_update", "rate"},
                                  {"rope_table", "rotary_dim"}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        x = trial_new(ops[i][0], arith_case(0));
        expect_refused(&x, ASSAY_INVALID_ARGUMENT, ops[i][1]);
        json_decref(x.attrs);
        x.attrs = NULL;
        expect_refused(&x, ASSAY_INVALID_ARGUMENT, ops[i][1]);
        trial_free(&x);
    }
}

Test(ref_bounds_faults, contradicting_shapes_are_named)
{
    test_rng r = {6};
    trial x = product(ASSAY_F32, &r);
    x.in[0].count--; /* the count is not that of the shape */
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "slot x");
    trial_free(&x);
    x = product(ASSAY_F32, &r);
    x.in[0].shape[1] = K - 1;
    x.in[0].count = T * (K - 1); /* rows of 40 do not divide it */
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "slot x");
    trial_free(&x);
    x = product(ASSAY_F32, &r);
    x.out[0].shape[0] = T - 1;
    x.out[0].count = (T - 1) * N;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "slot y");
    trial_free(&x);
    x = product(ASSAY_F32, &r);
    x.in[0].shape[0] = INT64_MAX / 2;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "slot x");
    trial_free(&x);
    x = product(ASSAY_F32, &r);
    x.in[0].ndim = 99;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "99");
    x.in[0].ndim = 2;
    x.in[0].dtype = ASSAY_I64;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "no data");
    x.in[0].dtype = ASSAY_F32;
    trial_free(&x);
}

Test(ref_bounds_faults, hostile_indices_are_named)
{
    trial x = trial_new("gather_rows", arith_case(0));
    trial_in(&x, "x", ASSAY_F32, calloc(6, 8), SHAPE(2, 3));
    int64_t *index = trial_in_int(&x, "index", new_int(2), SHAPE(2));
    index[0] = 1;
    index[1] = 2;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "index[1]");
    index[1] = -2;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "index[1]");
    trial_free(&x);

    x = trial_new("permute_plan", arith_case(0));
    json_object_set_new(x.attrs, "experts", json_integer(3));
    index = trial_in_int(&x, "indices", new_int(2), SHAPE(1, 2));
    index[0] = 0;
    index[1] = 3;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "indices[1]");
    trial_free(&x);

    x = trial_new("grouped_linear_fwd", arith_case(0));
    trial_in(&x, "x", ASSAY_F32, calloc(6, 8), SHAPE(2, 3));
    trial_in(&x, "weight", ASSAY_F32, calloc(12, 8), SHAPE(2, 2, 3));
    int64_t *counts = trial_in_int(&x, "tokens_per_expert", new_int(2), SHAPE(2));
    counts[0] = INT64_MAX / 2;
    counts[1] = INT64_MAX / 2;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "add up");
    counts[0] = -1;
    counts[1] = 3;
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "tokens_per_expert[0]");
    trial_free(&x);

    x = trial_new("slice_rows", arith_case(0));
    json_object_update_new(x.attrs, json_pack("{s:i,s:i}", "start", 1, "length", 2));
    trial_in(&x, "x", ASSAY_F32, calloc(6, 8), SHAPE(2, 3));
    expect_refused(&x, ASSAY_INVALID_ARGUMENT, "rows 1 to 3 of 2");
    trial_free(&x);
}

Test(ref_bounds_faults, arithmetics_without_a_bound)
{
    test_rng r = {7};
    const struct {
        assay_arith arith;
        const char *part;
    } bad[] = {
        {{.accumulate = ASSAY_BF16, .order = ASSAY_ORDER_SEQUENTIAL}, "BF16"},
        {{.accumulate = ASSAY_F32, .order = (assay_order)77}, "77"},
        {{.accumulate = ASSAY_F32, .order = ASSAY_ORDER_TREE, .lanes = 0}, "lanes"},
        {{.accumulate = ASSAY_F32, .order = ASSAY_ORDER_TENSOR_CORE, .k_step = 0}, "k_step"},
        {{.accumulate = ASSAY_F32, .order = ASSAY_ORDER_TREE, .lanes = 2, .guard_bits = -99}, "guard_bits"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        trial x = product(ASSAY_F32, &r);
        x.arith = bad[i].arith;
        expect_refused(&x, ASSAY_UNSUPPORTED, bad[i].part);
        trial_free(&x);
    }
}

Test(ref_bounds_faults, copies_and_plans_are_exact)
{
    test_rng r = {8};
    trial x = trial_new("gather_rows", arith_case(0));
    const double *in = trial_in(&x, "x", ASSAY_BF16, mode_data(&r, 0, 12, 3, ASSAY_BF16, 1.0), SHAPE(4, 3));
    const int64_t index[5] = {3, 0, 0, 2, 1};
    memcpy(trial_in_int(&x, "index", new_int(5), SHAPE(5)), index, sizeof index);
    double *y = trial_out(&x, "y", ASSAY_BF16, SHAPE(5, 3));
    for (int i = 0; i < 15; i++)
        y[i] = in[index[i / 3] * 3 + i % 3];
    trial_expect_pass(&x, "rows");
    y[4] = nextafter(y[4], 9.0);
    trial_judge(&x);
    cr_expect(x.n_bad == 1);
    trial_free(&x);

    x = trial_new("gather_rows", arith_case(0)); /* probs [T,K], one number for each row */
    in = trial_in(&x, "x", ASSAY_F32, mode_data(&r, 0, 4, 2, ASSAY_F32, 1.0), SHAPE(2, 2));
    const int64_t flat[4] = {2, 0, 1, 3};
    memcpy(trial_in_int(&x, "index", new_int(4), SHAPE(4)), flat, sizeof flat);
    y = trial_out(&x, "y", ASSAY_F32, SHAPE(4));
    for (int i = 0; i < 4; i++)
        y[i] = in[flat[i]];
    trial_expect_pass(&x, "probs");
    trial_free(&x);

    x = trial_new("permute_plan", arith_case(0));
    const int64_t chosen[6] = {0, 2, 1, 2, 0, 1};
    memcpy(trial_in_int(&x, "indices", new_int(6), SHAPE(3, 2)), chosen, sizeof chosen);
    int64_t *row_token = trial_out_int(&x, "row_token", SHAPE(6)),
            *row_entry = trial_out_int(&x, "row_entry", SHAPE(6)),
            *counts = trial_out_int(&x, "tokens_per_expert", SHAPE(4)),
            *token_row = trial_out_int(&x, "token_row", SHAPE(3, 2));
    ref_permute_plan(row_token, row_entry, counts, token_row, chosen, 3, 2, 4, 0, 4);
    trial_expect_pass(&x, "plan");
    row_token[0] = 1;
    trial_judge(&x);
    cr_expect(x.n_bad == 1);
    trial_free(&x);
}
