/* Split, norm and rope in one launch, there and back: when the engine does it, its records, and what is stored where nobody sees it. */
#include "tests/support/engine_fused.h"

TestSuite(engine_fused_qkv, .timeout = 120, .init = engine_setup, .fini = engine_teardown);

enum { T = 3, A = 4, G = 2, POSITIONS = 5 };

typedef struct fixture {
    fused_run f;
    gpu_value qkv, gamma, cosine, sine, position, q_raw, k_raw, q_norm, k_norm, q_rstd, k_rstd, q, k, v;
    gpu_value dq, dk, dv, dq_norm, dk_norm, dq_raw, dk_raw, dqkv, q_dgamma, k_dgamma;
    int64_t d, pairs;
} fixture;

static gpu_value heads(fixture *x, int64_t n)
{
    return fused_described(&x->f, T, n, x->d);
}

static void make(fixture *x, gpu_value *v, const char *name, float from, gpu_value described)
{
    *v = described;
    fused_fill(&x->f, v, name, from);
}

static void open_run(fixture *x, int64_t d, int64_t pairs, const char *variants, bool traced)
{
    static const int64_t positions[T] = {4, 0, 2};
    memset(x, 0, sizeof *x);
    fused_open(&x->f, variants, traced);
    x->d = d;
    x->pairs = pairs;
    make(x, &x->qkv, "qkv", 0.25f, fused_described(&x->f, T, (A + 2 * G) * d, 0));
    make(x, &x->gamma, "gamma", 0.25f, fused_described(&x->f, d, 0, 0));
    make(x, &x->cosine, "cos", 0.25f, fused_described(&x->f, POSITIONS, pairs, 0));
    make(x, &x->sine, "sin", 0.25f, fused_described(&x->f, POSITIONS, pairs, 0));
    fused_positions(&x->f, &x->position, positions, T);
}

#define ROTATION(x) GPU_T("cos", &(x)->cosine), GPU_T("sin", &(x)->sine), GPU_T("position", &(x)->position)
#define SPLIT_ATTRS(x) GPU_I("heads", A), GPU_I("groups", G), GPU_I("head_dim", (x)->d)
#define PART(operation, name, ...)                                                                           \
    {                                                                                                        \
        .op = (operation), .at = (name), .arg = { __VA_ARGS__ }                                              \
    }
#define SPLIT(x)                                                                                             \
    PART("qkv_split_fwd", "split", GPU_T("qkv", &(x)->qkv), SPLIT_ATTRS(x),                                  \
         GPU_NEW("q", &(x)->q_raw, heads((x), A)), GPU_NEW("k", &(x)->k_raw, heads((x), G)),                 \
         GPU_NEW("v", &(x)->v, heads((x), G)))
#define TURN(x, name, from, to, n)                                                                           \
    PART("rope_fwd", name, GPU_T("x", &(x)->from), ROTATION(x), GPU_NEW("y", &(x)->to, heads((x), n)))
#define NORM(x, name, from, to, statistics, n, epsilon)                                                      \
    PART("rmsnorm_fwd", name, GPU_T("x", &(x)->from), GPU_T("gamma", &(x)->gamma), GPU_F("eps", epsilon),    \
         GPU_NEW("y", &(x)->to, heads((x), n)),                                                              \
         GPU_NEW("rstd", &(x)->statistics, fused_described(&(x)->f, T, n, 0)))

static assay_status call(fixture *x, bool norm, double k_eps)
{
    if (!norm) {
        const gpu_call_args parts[] = {SPLIT(x), TURN(x, "rope_q", q_raw, q, A),
                                       TURN(x, "rope_k", k_raw, k, G)};
        return gpu_call_fused(&x->f.run, "qkv_rope_fwd", parts, 3);
    }
    const gpu_call_args parts[] = {SPLIT(x), NORM(x, "q_norm", q_raw, q_norm, q_rstd, A, 1e-5),
                                   NORM(x, "k_norm", k_raw, k_norm, k_rstd, G, k_eps),
                                   TURN(x, "rope_q", q_norm, q, A), TURN(x, "rope_k", k_norm, k, G)};
    return gpu_call_fused(&x->f.run, "qkv_norm_rope_fwd", parts, 5);
}

#define TURN_BACK(x, name, from, to)                                                                         \
    PART("rope_bwd", name, GPU_T("dy", &(x)->from), ROTATION(x), GPU_T("dx", &(x)->to))
#define NORM_BACK(x, name, from, raw, statistics, to, sums)                                                  \
    PART("rmsnorm_bwd", name, GPU_T("dy", &(x)->from), GPU_T("x", &(x)->raw), GPU_T("gamma", &(x)->gamma),   \
         GPU_T("rstd", &(x)->statistics), GPU_T("dgamma", sums), GPU_F("eps", 1e-5), GPU_T("dx", &(x)->to))
#define SPLIT_BACK(x)                                                                                        \
    PART("qkv_split_bwd", "split", GPU_T("dq", &(x)->dq_raw), GPU_T("dk", &(x)->dk_raw),                     \
         GPU_T("dv", &(x)->dv), SPLIT_ATTRS(x), GPU_T("dqkv", &(x)->dqkv))

/* What the forward left, and gradients; what the launch makes has memory before, of 7s. */
static void make_gradients(fixture *x)
{
    make(x, &x->dq, "dq", -0.5f, heads(x, A));
    make(x, &x->dk, "dk", -0.25f, heads(x, G));
    make(x, &x->dv, "dv", 0.5f, heads(x, G));
    make(x, &x->q_raw, "q_raw", 0.5f, heads(x, A));
    make(x, &x->k_raw, "k_raw", 1.0f, heads(x, G));
    make(x, &x->q_rstd, "q_rstd", 0.5f, fused_described(&x->f, T, A, 0));
    make(x, &x->k_rstd, "k_rstd", 0.25f, fused_described(&x->f, T, G, 0));
    make(x, &x->q_dgamma, "q_dgamma", 1.0f, fused_described(&x->f, x->d, 0, 0));
    make(x, &x->k_dgamma, "k_dgamma", 2.0f, fused_described(&x->f, x->d, 0, 0));
    make(x, &x->dq_norm, "dq_norm", 7.0f, heads(x, A));
    make(x, &x->dk_norm, "dk_norm", 7.0f, heads(x, G));
    make(x, &x->dq_raw, "dq_raw", 7.0f, heads(x, A));
    make(x, &x->dk_raw, "dk_raw", 7.0f, heads(x, G));
    make(x, &x->dqkv, "dqkv", 7.0f, fused_described(&x->f, T, (A + 2 * G) * x->d, 0));
}

static assay_status call_bwd(fixture *x, bool norm, bool frozen)
{
    if (!norm) {
        const gpu_call_args parts[] = {TURN_BACK(x, "rope_q", dq, dq_raw), TURN_BACK(x, "rope_k", dk, dk_raw),
                                       SPLIT_BACK(x)};
        return gpu_call_fused(&x->f.run, "qkv_rope_bwd", parts, 3);
    }
    const gpu_call_args parts[] = {
        TURN_BACK(x, "rope_q", dq, dq_norm), TURN_BACK(x, "rope_k", dk, dk_norm),
        NORM_BACK(x, "q_norm", dq_norm, q_raw, q_rstd, dq_raw, &x->q_dgamma),
        NORM_BACK(x, "k_norm", dk_norm, k_raw, k_rstd, dk_raw, frozen ? NULL : &x->k_dgamma), SPLIT_BACK(x)};
    return gpu_call_fused(&x->f.run, "qkv_norm_rope_bwd", parts, 5);
}

/* The records: each part by itself, marked or not, what it read and what the kernel declares of its output. */
static void hold_records(fixture *x, bool norm, bool together)
{
    static const char *const with[] = {"split", "q_norm", "k_norm", "rope_q", "rope_k"}, *const without[] = {
                                                                                             "split",
                                                                                             "rope_q",
                                                                                             "rope_k"};
    fused_records(&x->f, norm ? "qkv_norm_rope_fwd" : "qkv_rope_fwd", norm ? with : without, together);
}

static void hold_records_bwd(fixture *x, bool norm, bool together)
{
    static const char *const with[] = {"rope_q", "rope_k", "q_norm", "k_norm", "split"}, *const without[] = {
                                                                                             "rope_q",
                                                                                             "rope_k",
                                                                                             "split"};
    fused_records(&x->f, norm ? "qkv_norm_rope_bwd" : "qkv_rope_bwd", norm ? with : without, together);
}

/* One launch where there is a kernel and the parts would run those whose bits it has. */
typedef struct choice {
    const char *variants;
    int64_t d, pairs;
    bool with_norm, without, back_with_norm;
} choice;
static const choice choices[] = {{"", 16, 8, true, true, true},
                                 {"qkv_rope=k1", 48, 24, true, true, true},
                                 {"", 40, 8, true, true, true}, /* rotated in part */
                                 {"", 264, 8, true, true, false},
                                 {"", 20, 8, false, false, false},
                                 {"", 40, 20, false, false, false},
                                 {"k0", 16, 8, false, false, false},
                                 {"qkv_rope=k0", 16, 8, false, false, false},
                                 {"attention=k0", 16, 8, false, false, false},
                                 {"elementwise=k0", 16, 8, false, false, false},
                                 {"rmsnorm=k1", 16, 8, false, true, false},
                                 {"rmsnorm=k2", 16, 8, true, true, false}};
enum { CHOICES = sizeof choices / sizeof *choices };

static void hold_launches(const fixture *x, const choice *c, bool norm, bool together, const char *whole)
{
    cr_expect_eq(x->f.n,
                 together ? 1
                 : norm   ? 5
                          : 3,
                 "%s, heads of %lld: %d launches", c->variants, (long long)c->d, x->f.n);
    if (together)
        cr_expect_str_eq(x->f.ops[0], whole);
}

Test(engine_fused_qkv, kernels_and_heads_choose)
{
    for (int i = 0; i < CHOICES; i++)
        for (int norm = 0; norm < 2; norm++) {
            const bool together = norm ? choices[i].with_norm : choices[i].without;
            fixture x;
            open_run(&x, choices[i].d, choices[i].pairs, choices[i].variants, true);
            must(call(&x, norm, 1e-5));
            hold_launches(&x, &choices[i], norm, together, norm ? "qkv_norm_rope_fwd k1" : "qkv_rope_fwd k1");
            hold_records(&x, norm, together);
            fused_close(&x.f);
        }
}

Test(engine_fused_qkv, a_backward_is_chosen_likewise)
{
    for (int i = 0; i < CHOICES; i++)
        for (int norm = 0; norm < 2; norm++) {
            const bool together = norm ? choices[i].back_with_norm : choices[i].without;
            fixture x;
            open_run(&x, choices[i].d, choices[i].pairs, choices[i].variants, true);
            make_gradients(&x);
            must(call_bwd(&x, norm, i == 1));
            hold_launches(&x, &choices[i], norm, together, norm ? "qkv_norm_rope_bwd k1" : "qkv_rope_bwd k1");
            hold_records_bwd(&x, norm, together);
            fused_close(&x.f);
        }
}

/* Without a trace what only the launch reads stays inside; the results are the same. */
Test(engine_fused_qkv, what_nobody_sees_is_not_stored)
{
    float q[2], k[2];
    for (int norm = 0; norm < 2; norm++) {
        for (int traced = 0; traced < 2; traced++) {
            static const float before = -77.0f;
            fixture x;
            open_run(&x, 16, 8, "", traced);
            gpu_value *inside = norm ? &x.q_norm : &x.q_raw;
            const size_t mark = x.f.arena.used;
            must(call(&x, norm, 1e-5)); /* where the value lies */
            x.f.arena.used = mark;
            must(gpu_run_upload(&x.f.run, inside->t.data, &before, sizeof before, "test"));
            must(call(&x, norm, 1e-5));
            cr_expect_eq(fused_first(&x.f, inside) != before, traced, "norm %d, traced %d", norm, traced);
            if (norm)
                cr_expect_neq(fused_first(&x.f, &x.q_raw), before, "its backward reads it");
            q[traced] = fused_first(&x.f, &x.q);
            k[traced] = fused_first(&x.f, &x.k);
            fused_close(&x.f);
        }
        cr_expect(q[0] == q[1] && k[0] == k[1]);
    }
}

/* dgamma of two calls adds up, in one launch as in several. */
Test(engine_fused_qkv, gradients_that_nobody_sees_are_not_stored)
{
    for (int norm = 0; norm < 2; norm++) {
        float found[3][4];
        for (int i = 0; i < 3; i++) { /* traced, not traced, apart */
            fixture x;
            open_run(&x, 16, 8, i == 2 ? "qkv_rope=k0" : "", i == 0);
            make_gradients(&x);
            must(call_bwd(&x, norm, false));
            must(call_bwd(&x, norm, false));
            gpu_value *inside[] = {&x.dq_raw, &x.dk_raw, &x.dq_norm, &x.dk_norm};
            for (int k = 0; k < (norm ? 4 : 2); k++)
                cr_expect_eq(fused_first(&x.f, inside[k]) != 7.0f, i != 1, "norm %d, row %d: %d", norm, i, k);
            const gpu_value keys = gpu_value_flat(&x.dqkv);
            gpu_value key = keys;
            key.t = gpu_tensor_rows(keys.t, A / G * x.d, x.d);
            found[i][0] = fused_first(&x.f, &x.dqkv);
            found[i][1] = fused_first(&x.f, &key);
            found[i][2] = fused_first(&x.f, &x.q_dgamma);
            found[i][3] = fused_first(&x.f, &x.k_dgamma);
            fused_close(&x.f);
        }
        cr_expect_eq(memcmp(found[0], found[1], sizeof found[0]), 0);
        cr_expect_eq(memcmp(found[0], found[2], sizeof found[0]), 0);
        cr_expect_eq(found[0][2] != 1.0f && found[0][3] != 2.0f, norm);
    }
}

/* A fault of a part runs the parts; one of the whole is one of its kernel. */
Test(engine_fused_qkv, a_fault_of_a_part_takes_them_apart)
{
    static const struct {
        const char *fault;
        bool together;
    } rows[] = {{"negate:rope_k:y,op=rope_fwd", false},
                {"negate:split:k,op=qkv_split_fwd", false},
                {"scale:split:k=2,op=qkv_norm_rope_fwd", true},
                {"attr:split:eps=+1,op=qkv_norm_rope_fwd", true}};
    fixture x;
    open_run(&x, 16, 8, "", true);
    must(call(&x, true, 1e-5));
    const float honest = fused_first(&x.f, &x.k);
    hold_records(&x, true, true);
    fused_close(&x.f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_run(&x, 16, 8, "", true);
        must(gpu_fault_parse(rows[i].fault, &fused_place, &x.f.run.fault));
        must(call(&x, true, 1e-5));
        cr_expect_gt(x.f.run.fault->met, 0, "%s", rows[i].fault);
        cr_expect_neq(fused_first(&x.f, &x.k), honest, "%s", rows[i].fault);
        hold_records(&x, true, rows[i].together);
        fused_close(&x.f);
    }
}

Test(engine_fused_qkv, a_fault_of_a_part_of_the_backward_takes_it_apart)
{
    static const struct {
        const char *fault;
        bool together;
    } rows[] = {{"negate:rope_q:dx,op=rope_bwd", false},
                {"negate:q_norm:dx,op=rmsnorm_bwd", false},
                {"scale:split:dqkv=2,op=qkv_split_bwd", false},
                {"scale:rope_q:dqkv=2,op=qkv_norm_rope_bwd", true}};
    fixture x;
    open_run(&x, 16, 8, "", true);
    make_gradients(&x);
    must(call_bwd(&x, true, false));
    const float honest = fused_first(&x.f, &x.dqkv);
    fused_close(&x.f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_run(&x, 16, 8, "", true);
        make_gradients(&x);
        must(gpu_fault_parse(rows[i].fault, &fused_place, &x.f.run.fault));
        must(call_bwd(&x, true, false));
        cr_expect_gt(x.f.run.fault->met, 0, "%s", rows[i].fault);
        cr_expect_neq(fused_first(&x.f, &x.dqkv), honest, "%s", rows[i].fault);
        hold_records_bwd(&x, true, rows[i].together);
        fused_close(&x.f);
    }
}

/* One attribute of the whole cannot have two values. */
Test(engine_fused_qkv, parts_that_differ_in_what_they_share_are_refused)
{
    fixture x;
    open_run(&x, 16, 8, "", false);
    cr_expect_eq(call(&x, true, 2e-5), ASSAY_INTERNAL);
    cr_expect_not_null(strstr(assay_error_message(), "eps: expected one value for all parts"), "%s",
                       assay_error_message());
    fused_close(&x.f);
}
