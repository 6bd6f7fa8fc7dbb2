/* The precision policy: what is rounded where, perturbation, and the trace of a run. */
#include "core/files/trace.h"
#include "ref/policy.h"
#include "ref/replay.h"
#include "tests/support/ref_model.h"

/* Every class of the recipe is read: which entry a stored tensor takes, in the forward and in the backward pass. */
Test(ref_policy, every_class_reads_its_entry)
{
    static const struct {
        ref_store_class store;
        assay_dtype bf16, gradient;
    } rows[] = {
        {REF_STORE_LINEAR, ASSAY_BF16, ASSAY_BF16},  {REF_STORE_ATTENTION, ASSAY_BF16, ASSAY_BF16},
        {REF_STORE_ACT, ASSAY_BF16, ASSAY_BF16},     {REF_STORE_LSE, ASSAY_F32, ASSAY_F32},
        {REF_STORE_STATISTIC, ASSAY_F32, ASSAY_F32}, {REF_STORE_ROUTER, ASSAY_F32, ASSAY_F32},
        {REF_STORE_LOSS, ASSAY_F32, ASSAY_F32},      {REF_STORE_PAR, ASSAY_BF16, ASSAY_BF16},
        {REF_STORE_STATE, ASSAY_F32, ASSAY_F32},     {REF_STORE_F64, ASSAY_F64, ASSAY_F64},
        {REF_STORE_EXACT, ASSAY_F64, ASSAY_F64},
    };
    cr_assert_eq(sizeof rows / sizeof rows[0], REF_STORE_EXACT + 1);
    for (int i = 0; i <= REF_STORE_EXACT; i++)
        for (int g = 0; g < 2; g++) {
            const ref_policy fp64 = {.precision = ASSAY_PRECISION_FP64},
                             bf16 = {.precision = ASSAY_PRECISION_BF16},
                             fp32 = {.precision = ASSAY_PRECISION_FP32};
            const bool wide = rows[i].store >= REF_STORE_F64;
            cr_expect_eq(ref_policy_dtype(&fp64, rows[i].store, g), ASSAY_F64);
            cr_expect_eq(ref_policy_dtype(&fp32, rows[i].store, g), wide ? ASSAY_F64 : ASSAY_F32);
            cr_expect_eq(ref_policy_dtype(&bf16, rows[i].store, g), g ? rows[i].gradient : rows[i].bf16,
                         "row %d", i);
        }
}

Test(ref_policy, store_rounds_once)
{
    double x[3] = {1.0 + 0x1p-8, 1.0 + 0x1p-8 + 0x1p-20, 3.0};
    const ref_policy bf16 = {.precision = ASSAY_PRECISION_BF16};
    ref_policy_store(&bf16, REF_STORE_ACT, false, "x", 0, 0, x, 3);
    cr_expect(x[0] == 1.0 && x[1] == 1.0 + 0x1p-7 && x[2] == 3.0);
}

/* The fast rounding of a run is ref_round, for random bits of every exponent and at the edges. */
Test(ref_policy, store_is_ref_round)
{
    static const double edges[] = {0.0,         -0.0,        0x1p-126,       0x1.fep-127,    0x1p-133,
                                   0x1p-134,    0x1.8p-134,  0x1p-149,       0x1.fep127,     0x1.fefffffp127,
                                   0x1.ffp127,  0x1.ffp-127, 0x1.fffffep127, 0x1.ffffffp127, 0x1p128,
                                   -0x1.ffp127, HUGE_VAL,    -HUGE_VAL};
    const assay_precision precisions[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    for (int p = 0; p < 2; p++) {
        const ref_policy policy = {.precision = precisions[p]};
        const assay_dtype dtype = ref_policy_dtype(&policy, REF_STORE_ACT, false);
        for (uint64_t i = 0; i < 200000 + sizeof edges / sizeof *edges; i++) {
            uint32_t w[4];
            double x, y;
            assay_philox(9, 1, i, w);
            uint64_t u = ((uint64_t)w[0] << 32) | w[1];
            if (w[2] % 2) /* exponents of float; ties of bf16 and of float */
                u = (u & ~(UINT64_C(0x7ff) << 52)) | ((uint64_t)(1023 - 150 + w[3] % 280) << 52);
            if (w[2] % 8 == 3)
                u &= ~((UINT64_C(1) << 44) - 1);
            if (w[2] % 8 == 5)
                u &= ~((UINT64_C(1) << 28) - 1);
            memcpy(&x, &u, sizeof x);
            if (i >= 200000)
                x = edges[i - 200000];
            y = x;
            ref_policy_store(&policy, REF_STORE_ACT, false, "x", 0, 0, &y, 1);
            const double want = ref_round(x, dtype);
            cr_assert((isnan(y) && isnan(want)) || (y == want && signbit(y) == signbit(want)),
                      "%a: %a, not %a", x, y, want);
        }
    }
}

Test(ref_policy, perturbation_is_keyed_and_small)
{
    enum { N = 1000 };
    double a[N], b[N], other[N], sum = 0.0;
    const ref_policy p = {.precision = ASSAY_PRECISION_FP64, .perturb = 1.0, .perturb_seed = 3};
    for (int i = 0; i < N; i++)
        a[i] = b[i] = other[i] = 1.0;
    /* In fp64 the perturbation of 1 is half an ulp; look at it through a factor of 2^20. */
    ref_policy wide = p;
    wide.perturb = 0x1p20;
    ref_policy_store(&wide, REF_STORE_ACT, false, "x", 1, 2, a, N);
    ref_policy_store(&wide, REF_STORE_ACT, false, "x", 1, 2, b, N);
    ref_policy_store(&wide, REF_STORE_ACT, false, "x", 1, 3, other, N);
    int differ = 0;
    for (int i = 0; i < N; i++) {
        cr_assert(a[i] == b[i] && fabs(a[i] - 1.0) <= 0x1p-33);
        differ += a[i] != other[i];
        sum += (a[i] - 1.0) * 0x1p33;
    }
    cr_expect(differ > 900 && fabs(sum / N) < 0.1);
    double exact = 1.0;
    ref_policy_store(&wide, REF_STORE_EXACT, false, "x", 0, 0, &exact, 1);
    cr_expect(exact == 1.0);
}

/* A bf16 run stores logits in F32 and weights of masters in F32; results lie on those grids and near fp64. */
Test(ref_policy, bf16_run_lies_on_its_grids)
{
    model_case c;
    ref_run_result exact, r;
    open_golden(&c, "qwen3_moe", "train_batch.safetensors");
    require_ok(ref_run(&c.run, c.weights, &exact), "fp64");
    c.run.policy.precision = ASSAY_PRECISION_BF16;
    require_ok(ref_run(&c.run, c.weights, &r), "bf16");
    for (int64_t i = 0; i < r.n_tensors; i++)
        for (int64_t j = 0; j < named_count(&r.tensors[i]); j++)
            cr_assert(r.tensors[i].data[j] == ref_round(r.tensors[i].data[j], ASSAY_F32), "%s %s",
                      r.tensors[i].kind, r.tensors[i].name);
    const double e = fabs(r.loss[0] - exact.loss[0]) / exact.loss[0];
    cr_expect(e > 1e-6 && e < 0.05, "bf16 differs from fp64 by %g", e);
    ref_run_result_free(&exact);
    ref_run_result_free(&r);
    close_case(&c);
}

Test(ref_policy, perturbed_run_is_close_and_repeats)
{
    model_case c;
    ref_run_result exact, a, b;
    open_golden(&c, "llama", "batch.safetensors");
    require_ok(ref_run(&c.run, c.weights, &exact), "fp64");
    c.run.policy = (ref_policy){.precision = ASSAY_PRECISION_FP64, .perturb = 0x1p20, .perturb_seed = 1};
    require_ok(ref_run(&c.run, c.weights, &a), "perturbed");
    require_ok(ref_run(&c.run, c.weights, &b), "perturbed");
    compare_results(&a, &b, 0.0, "same seed");
    cr_expect(a.loss[0] != exact.loss[0]);
    compare_results(&a, &exact, 1e-6, "perturbed by 2^-33");
    ref_run_result_free(&exact);
    ref_run_result_free(&a);
    ref_run_result_free(&b);
    set_layout(&c, "tp2");
    cr_expect_eq(ref_run(&c.run, c.weights, &a), ASSAY_UNSUPPORTED);
    close_case(&c);
}

/* The trace of a run holds its activations and gradients under the names of docs/OPS.md 9. */
Test(ref_policy, trace_names_and_values)
{
    static const char *const names[] = {
        "embedding.y",
        "decoder.layers.0.input_layernorm.y",
        "decoder.layers.0.self_attention.linear_qkv.y",
        "decoder.layers.0.self_attention.rope_q.y",
        "decoder.layers.0.self_attention.core_attention.o",
        "decoder.layers.0.self_attention.residual.y",
        "decoder.layers.0.mlp.router.gating.y",
        "decoder.layers.0.mlp.router.indices",
        "decoder.layers.0.mlp.unpermute.y",
        "decoder.layers.1.mlp.activation.y",
        "decoder.final_layernorm.y",
        "output_layer.y",
        "loss.loss",
        "output_layer.y.grad",
        "decoder.layers.0.self_attention.linear_qkv.y.grad",
        "embedding.y.grad",
        "decoder.layers.0.mlp.router.weight.main_grad",
        "grad_norm",
    };
    model_case c;
    ref_run_result r;
    assay_trace *t;
    char dir[64] = "/tmp/assay-test-XXXXXX", command[128];
    open_golden(&c, "qwen3_moe", "batch.safetensors");
    cr_assert_not_null(mkdtemp(dir));
    json_t *header = json_pack("{s:s}", "engine", "ref");
    require_ok(assay_trace_writer_open(&c.run.trace, dir, 0, 1, header, false), "trace");
    json_decref(header);
    require_ok(ref_run(&c.run, c.weights, &r), "run");
    require_ok(assay_trace_writer_close(c.run.trace), "close");
    assay_trace_writer_destroy(c.run.trace);
    require_ok(assay_trace_open(&t, dir, true), "open");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool found = false;
        for (int64_t j = 0; j < assay_trace_n_tensors(t, 0) && !found; j++)
            found = strcmp(assay_trace_tensor_at(t, 0, j)->name, names[i]) == 0;
        cr_expect(found, "the trace has no %s", names[i]);
    }
    for (int64_t j = 0; j < assay_trace_n_tensors(t, 0); j++) {
        const assay_trace_tensor *x = assay_trace_tensor_at(t, 0, j);
        double norm;
        if (strcmp(x->name, "grad_norm") != 0)
            continue;
        memcpy(&norm, x->data, sizeof norm);
        cr_expect_eq(norm, r.grad_norm[0]);
    }
    assay_trace_close(t);
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
    ref_run_result_free(&r);
    close_case(&c);
}

/* Drawn weights are functions of name and index, F32 values, and have the spread they were asked for. */
Test(ref_policy, drawn_weights)
{
    model_case c;
    double **other;
    open_drawn(&c,
               "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":64,\"ffn_hidden_size\":64,"
               "\"num_attention_heads\":4,\"vocab_size\":200}",
               1, 1, 1, 4);
    require_ok(ref_weights_load(c.spec, NULL, NULL, 8, &other), "seed 8");
    for (int64_t i = 0; i < c.spec->n_params; i++) {
        const assay_param_spec *p = &c.spec->params[i];
        const int64_t n = assay_param_elements(p);
        double sum = 0.0;
        for (int64_t j = 0; j < n; j++) {
            sum += c.weights[i][j] * c.weights[i][j];
            cr_assert(c.weights[i][j] == ref_round(c.weights[i][j], ASSAY_F32));
        }
        if (p->init == ASSAY_INIT_NORMAL || p->init == ASSAY_INIT_OUTPUT_NORMAL) {
            const double std = sqrt(sum / (double)n);
            const double asked = ref_init_std(p, c.config);
            cr_expect(fabs(std / asked - 1.0) < 0.05, "%s: std %g, asked %g", p->name, std, asked);
            cr_expect(c.weights[i][0] != other[i][0]);
        } else {
            cr_expect(c.weights[i][0] == (p->init == ASSAY_INIT_ONE ? 1.0 : 0.0));
        }
    }
    ref_weights_free(c.spec, other);
    close_case(&c);
}

/* Layouts add in another order, so that bf16 results differ in roundings, and in nothing else. */
Test(ref_policy, bf16_layouts_stay_close)
{
    static const char *const layouts[] = {"dp2", "tp2", "tp2,sp", "tp2,sp,ep2,dp2", "pp2", "dp2,zero1"};
    static const assay_precision precisions[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    static const double allowed[] = {1e-5, 2e-2};
    for (int p = 0; p < 2; p++) {
        model_case c;
        ref_run_result whole, r;
        open_golden(&c, "qwen3_moe", "train_batch.safetensors");
        c.run.policy.precision = precisions[p];
        c.options.moe_aux_loss_coeff.of[0] = 0.01;
        require_ok(ref_run(&c.run, c.weights, &whole), "unsharded");
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            set_layout(&c, layouts[i]);
            require_ok(ref_run(&c.run, c.weights, &r), layouts[i]);
            const double e = relative_error(r.loss, whole.loss, r.steps);
            const double n = relative_error(r.grad_norm, whole.grad_norm, r.steps);
            cr_expect(e <= allowed[p] && n <= 10 * allowed[p], "%s: loss %g, norm %g", layouts[i], e, n);
            ref_run_result_free(&r);
        }
        ref_run_result_free(&whole);
        close_case(&c);
    }
}
