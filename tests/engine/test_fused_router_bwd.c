/* The router's backward and its balancing losses in one launch: a chain of in-out slots, which lies in one memory where nobody looks and has
 * memory for each part where somebody does; the same bits together, apart, traced and untraced. */
#include "tests/support/engine_fused.h"

TestSuite(engine_fused_router_bwd, .timeout = 120, .init = engine_setup, .fini = engine_teardown);

enum { T = 4, K = 2, ROWS = 2, LOSSES = 3, EXPERTS = 33, MOST_EXPERTS = 512 };

static const char *const whole_of[LOSSES + 1] = {NULL, "router_balanced_bwd", "router_balanced_bwd_two",
                                                 "router_balanced_bwd_three"};
static const char *const instance[LOSSES + 1] = {"router", "aux", "seq_aux", "global_aux"};

typedef struct fixture {
    fused_run f;
    int64_t e;
    int losses;
    gpu_value logits, scores, dprobs, indices, counts[LOSSES], dlogits[LOSSES + 1];
    gpu_arena out; /* of dlogits alone */
} fixture;

/* What each part leaves, as it is on record. */
typedef struct gradients {
    float part[LOSSES + 1][T * EXPERTS];
} gradients;

static size_t row_bytes(const fixture *x)
{
    return ((size_t)(T * x->e) * sizeof(float) + 255) / 256 * 256;
}

static void fill_integers(fixture *x)
{
    int64_t indices[T * K], counts[ROWS * MOST_EXPERTS];
    for (int i = 0; i < T * K; i++)
        indices[i] = (i * 5 + i / K) % x->e;
    x->indices = fused_described(&x->f, T, K, 0);
    fused_integers(&x->f, &x->indices, "indices", indices);
    for (int k = 0; k < LOSSES; k++) {
        const int64_t rows = k == 1 ? ROWS : 1;
        for (int64_t i = 0; i < rows * x->e; i++)
            counts[i] = i % 3 == 1 ? 0 : (i * 7 + k) % 11;
        x->counts[k] = fused_described(&x->f, rows, x->e, 0);
        fused_integers(&x->f, &x->counts[k], instance[k + 1], counts);
    }
}

static void open_run(fixture *x, int losses, int64_t e, const char *variants, bool traced)
{
    memset(x, 0, sizeof *x);
    fused_open(&x->f, variants, traced);
    x->e = e;
    x->losses = losses;
    x->logits = fused_described(&x->f, T, e, 0);
    x->scores = fused_described(&x->f, T, e, 0);
    x->dprobs = fused_described(&x->f, T, K, 0);
    fused_fill(&x->f, &x->logits, "logits", -0.5f);
    fused_fill(&x->f, &x->scores, "scores", 0.0625f);
    fused_fill(&x->f, &x->dprobs, "dprobs", -0.25f);
    fill_integers(x);
    must(gpu_arena_create(&x->out, (size_t)1 << 16));
}

static void close_run(fixture *x)
{
    gpu_arena_destroy(&x->out);
    fused_close(&x->f);
}

/* As the model does it: each loss is added to what the part before it left. */
static assay_status call(fixture *x)
{
    gpu_call_args parts[LOSSES + 1];
    for (int k = 0; k <= x->losses; k++) {
        x->dlogits[k] = fused_described(&x->f, T, x->e, 0);
        x->dlogits[k].arena = &x->out;
    }
    parts[0] = (gpu_call_args){
        .op = "router_bwd",
        .at = instance[0],
        .arg = {GPU_T("dprobs", &x->dprobs), GPU_T("indices", &x->indices), GPU_T("scores", &x->scores),
                GPU_T("logits", &x->logits), GPU_I("topk", K), GPU_W("score_function", "softmax"),
                GPU_I("pre_softmax", 1), GPU_F("scaling_factor", 1.5), GPU_T("dlogits", &x->dlogits[0])}};
    for (int k = 1; k <= x->losses; k++)
        parts[k] = (gpu_call_args){
            .op = "router_aux_bwd",
            .at = instance[k],
            .arg = {GPU_T("logits", &x->logits), GPU_T("tokens_per_expert", &x->counts[k - 1]),
                    GPU_T("dlogits_in", &x->dlogits[k - 1]), GPU_F("aux_coeff", 0.5 * k),
                    GPU_F("z_coeff", k == 1 ? 0.25 : 0.0), GPU_I("topk", K),
                    GPU_W("score_function", "softmax"), GPU_I("tokens", T + k), GPU_I("divisor", k),
                    GPU_F("loss_scale", 0.5 + 0.25 * k), GPU_T("dlogits", &x->dlogits[k])}};
    return gpu_call_fused(&x->f.run, whole_of[x->losses], parts, x->losses + 1);
}

static void download(fixture *x, int part, float *out)
{
    must(gpu_run_download(&x->f.run, out, x->dlogits[part].t.data, (size_t)(T * x->e) * sizeof *out, "test"));
}

/* Ends the trace, where nobody has, and reads what each part left. */
static void read_gradients(fixture *x, gradients *out)
{
    assay_trace *t;
    fused_end_trace(&x->f);
    must(assay_trace_open(&t, x->f.dir, true));
    for (int k = 0; k <= x->losses; k++) {
        const assay_trace_tensor *made = assay_trace_op_tensor(t, assay_trace_op_at(t, 0, k), "dlogits");
        cr_assert(made && made->data && made->bytes == (size_t)(T * x->e) * sizeof(float));
        memcpy(out->part[k], made->data, made->bytes);
    }
    assay_trace_close(t);
}

static void read_records(fixture *x, bool together, gradients *out)
{
    fused_records(&x->f, whole_of[x->losses], instance, together);
    read_gradients(x, out);
}

/* One launch where there is a kernel and the parts would run those whose bits it has. */
Test(engine_fused_router_bwd, kernels_and_widths_choose)
{
    static const struct {
        const char *variants;
        int64_t e;
        bool together;
    } rows[] = {{"", EXPERTS, true},
                {"", MOST_EXPERTS, true},
                {"router_balanced=k1", EXPERTS, true},
                {"router_balanced=k0", EXPERTS, false},
                {"router=k0", EXPERTS, false},
                {"k0", EXPERTS, false},
                {"rmsnorm=k0", EXPERTS, true}};
    for (int losses = 1; losses <= LOSSES; losses++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            fixture x;
            open_run(&x, losses, rows[i].e, rows[i].variants, true);
            must(call(&x));
            cr_expect_eq(x.f.n, rows[i].together ? 1 : losses + 1, "%s, %lld experts: %d launches",
                         rows[i].variants, (long long)rows[i].e, x.f.n);
            if (rows[i].together) {
                char launch[40];
                snprintf(launch, sizeof launch, "%s k1", whole_of[losses]);
                cr_expect_str_eq(x.f.ops[0], launch);
            }
            fused_records(&x.f, whole_of[losses], instance, rows[i].together);
            close_run(&x);
        }
}

/* The result, and what is recorded between two parts. */
Test(engine_fused_router_bwd, together_apart_traced_and_untraced_have_the_same_bits)
{
    static const struct {
        const char *variants;
        bool traced, together;
    } rows[] = {{"router_balanced=k0", true, false},
                {"router_balanced=k0", false, false},
                {"", true, true},
                {"", false, true}};
    for (int losses = 1; losses <= LOSSES; losses++) {
        static gradients expected, found;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            fixture x;
            float last[T * EXPERTS];
            open_run(&x, losses, EXPERTS, rows[i].variants, rows[i].traced);
            must(call(&x));
            cr_expect_eq(x.f.n, rows[i].together ? 1 : losses + 1);
            download(&x, losses, last);
            if (rows[i].traced)
                read_records(&x, rows[i].together, i == 0 ? &expected : &found);
            cr_expect(memcmp(last, expected.part[losses], sizeof last) == 0, "%d losses, row %zu: the result",
                      losses, i);
            for (int k = 0; rows[i].traced && i > 0 && k <= losses; k++)
                cr_expect(memcmp(found.part[k], expected.part[k], sizeof last) == 0,
                          "%d losses, row %zu: part %d", losses, i, k);
            for (int k = 0; k < losses; k++)
                cr_expect(memcmp(expected.part[k], expected.part[k + 1], sizeof last) != 0,
                          "loss %d changes nothing", k);
            close_run(&x);
        }
    }
}

/* Untraced, and where the parts run by themselves, the chain is one memory; one launch that is recorded leaves each part's beside it. */
Test(engine_fused_router_bwd, a_chain_lies_in_one_memory_unless_somebody_looks)
{
    static const struct {
        const char *variants;
        bool traced;
        int memories; /* of a chain of three losses */
    } rows[] = {{"", false, 1},
                {"", true, LOSSES + 1},
                {"router_balanced=k0", false, 1},
                {"router_balanced=k0", true, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture x;
        int memories = 1;
        open_run(&x, LOSSES, EXPERTS, rows[i].variants, rows[i].traced);
        must(call(&x));
        for (int k = 1; k <= LOSSES; k++)
            memories += x.dlogits[k].t.data != x.dlogits[k - 1].t.data;
        cr_expect_eq(memories, rows[i].memories, "row %zu: %d memories", i, memories);
        cr_expect_eq(x.out.used, (size_t)(rows[i].traced ? LOSSES + 1 : 1) * row_bytes(&x),
                     "row %zu: %zu bytes", i, x.out.used);
        if (memories > 1) { /* none of them is written again */
            static gradients there, recorded;
            for (int k = 0; k <= LOSSES; k++)
                download(&x, k, there.part[k]);
            read_records(&x, true, &recorded);
            cr_expect(memcmp(&there, &recorded, sizeof there) == 0);
        }
        close_run(&x);
    }
}

/* Who allocates asks the same code first. */
Test(engine_fused_router_bwd, a_dry_run_counts_what_the_call_takes)
{
    for (int losses = 1; losses <= LOSSES; losses++)
        for (int i = 0; i < 4; i++) {
            fixture x;
            open_run(&x, losses, EXPERTS, i / 2 ? "router_balanced=k0" : "", i % 2);
            gpu_arena_destroy(&x.out);
            x.out = (gpu_arena){.counting = true};
            x.f.run.dry = true;
            must(call(&x));
            cr_expect_eq(x.f.n, 0);
            const size_t counted = x.out.peak;
            cr_expect_eq(counted, (size_t)(i % 2 ? losses + 1 : 1) * row_bytes(&x));
            must(gpu_arena_create(&x.out, counted));
            x.f.run.dry = false;
            must(call(&x));
            cr_expect_eq(x.out.used, counted);
            close_run(&x);
        }
}

/* A fault of a part runs the parts, in one memory; one of the whole is one of its kernel. */
Test(engine_fused_router_bwd, a_fault_of_a_part_takes_the_chain_apart)
{
    static const struct {
        const char *fault;
        bool together;
        int first; /* part whose record is another one */
        bool rest; /* and those behind it */
    } rows[] = {{"negate:router:dlogits,op=router_bwd", false, 0, true},
                {"negate:seq_aux:dlogits,op=router_aux_bwd", false, 2, true},
                {"attr:aux:loss_scale=2,op=router_aux_bwd", false, 1, true},
                {"attr:router:loss_scale_2=2,op=router_balanced_bwd_three", true, 2, true},
                {"scale:router:dlogits_1=2,op=router_balanced_bwd_three", true, 1, false},
                {"scale:router:dlogits=2,op=router_balanced_bwd_three", true, 3, false}};
    static gradients honest, found;
    fixture x;
    open_run(&x, LOSSES, EXPERTS, "", true);
    must(call(&x));
    read_records(&x, true, &honest);
    close_run(&x);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_run(&x, LOSSES, EXPERTS, "", true);
        must(gpu_fault_parse(rows[i].fault, &fused_place, &x.f.run.fault));
        must(call(&x));
        cr_expect_gt(x.f.run.fault->met, 0, "%s", rows[i].fault);
        cr_expect_eq(x.f.n, rows[i].together ? 1 : LOSSES + 1, "%s", rows[i].fault);
        read_gradients(&x, &found);
        for (int k = 0; k <= LOSSES; k++) {
            const bool differs = memcmp(found.part[k], honest.part[k], sizeof found.part[k]) != 0;
            cr_expect_eq(differs, rows[i].rest ? k >= rows[i].first : k == rows[i].first, "%s: part %d",
                         rows[i].fault, k);
        }
        close_run(&x);
    }
}
