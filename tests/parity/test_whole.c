/* Laws of the whole check: a run that differs by rounding alone passes, a fault in one head, a wrong scale
 * and a missing tensor fail. */
#include "parity/checks/plan.h"
#include "parity/checks/whole.h"
#include "parity/checks/whole_store.h"
#include "parity/run/trace_mutate.h"
#include "tests/support/parity.h"
#include "tests/support/ref.h"
#include <fcntl.h>
#include <sys/file.h>

typedef struct setting {
    assay_model_config *config;
    assay_model_spec *spec;
    assay_batches batches;
    assay_train_options options;
    double **weights;
} setting;

static void set_up_with_clip(setting *s, double clip_qkv)
{
    const char *model = ASSAY_SOURCE_DIR "/golden/models/qwen3_moe";
    memset(s, 0, sizeof *s);
    s->config = malloc(sizeof *s->config);
    must(assay_config_load(model, s->config));
    s->config->clip_qkv = clip_qkv;
    must(assay_spec_build(s->config, &s->spec));
    must(assay_batches_open(&s->batches, ASSAY_SOURCE_DIR "/golden/models/qwen3_moe/train_batch.safetensors",
                            s->config->vocab_size));
    assay_train_options_default(&s->options);
    s->options.train_iters = 1;
    s->options.lr = 1e-3;
    s->options.clip_grad = 1.0;
    s->options.moe_aux_loss_coeff.of[0] = 0.01;
    must(ref_weights_load(s->spec, model, NULL, -1, &s->weights));
}

static void set_up(setting *s)
{
    set_up_with_clip(s, 0.0);
}

static void tear_down(setting *s)
{
    ref_weights_free(s->spec, s->weights);
    assay_batches_close(&s->batches);
    assay_spec_destroy(s->spec);
    free(s->config);
}

/* The reference itself, rounded as the recipe of a precision rounds; clip: NULL, or who decides what a clip lets pass. */
static assay_trace *candidate_in(setting *s, char dir[256], bool run, assay_precision precision,
                                 ref_clip_lookup clip)
{
    json_t *header = json_pack("{s:s, s:s, s:s}", "engine", "ref", "precision",
                               assay_precision_name(precision), "layout", "1");
    ref_run_config c = {.spec = s->spec, .options = &s->options, .batches = &s->batches, .clip = clip};
    assay_parallel_config p;
    ref_run_result result;
    must(assay_layout_parse("1", &p));
    must(assay_grid_make(&p, &c.grid));
    c.policy.precision = precision;
    must(assay_trace_writer_open(&c.trace, fresh_path(dir, "t"), 0, 1, header, false));
    if (run) {
        must(ref_run(&c, s->weights, &result));
        ref_run_result_free(&result);
    }
    must(assay_trace_writer_close(c.trace));
    assay_trace_writer_destroy(c.trace);
    json_decref(header);
    return open_trace(dir);
}

static assay_trace *candidate(setting *s, char dir[256], bool run)
{
    return candidate_in(s, dir, run, ASSAY_PRECISION_FP32, NULL);
}

static parity_report *judge(setting *s, assay_trace *t)
{
    parity_whole_cache *cache;
    parity_report *r = new_report();
    must(parity_whole_cache_create(&cache, s->spec, &s->options, &s->batches, s->weights));
    must(parity_check_whole(cache, t, r));
    const int64_t n = parity_report_count(r), failed = n_failed(r);
    must(parity_check_whole(cache, t, r)); /* from the cache: the same again */
    cr_assert_eq(parity_report_count(r), 2 * n);
    cr_assert_eq(n_failed(r), 2 * failed);
    parity_whole_cache_destroy(cache);
    return r;
}

static const parity_claim *result_of(const parity_report *r, const char *tensor)
{
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        if (strcmp(parity_report_at(r, i)->tensor, tensor) == 0)
            return parity_report_at(r, i);
    }
    cr_assert(false, "no result of %s", tensor);
    return NULL;
}

Test(parity_whole, rounding_alone_passes_and_is_measured)
{
    setting s;
    char dir[256];
    set_up(&s);
    assay_trace *t = candidate(&s, dir, true);
    parity_report *r = judge(&s, t);
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    const parity_claim *x = result_of(r, "decoder.layers.0.self_attention.linear_qkv.weight.main_grad");
    cr_assert(x->ratio > 0.0 && x->ratio <= 1.0, "%g", x->ratio);
    cr_assert_eq(result_of(r, "loss")->verdict, PARITY_PASS);
    cr_assert_eq(result_of(r, "output_layer.y")->verdict, PARITY_PASS);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
    tear_down(&s);
}

/* A choice that no whole tensor can be made of is not replaced by the reference's own. */
Test(parity_whole, a_choice_that_cannot_be_read_fails)
{
    setting s;
    char dir[256], other[256];
    set_up(&s);
    assay_trace *t = candidate(&s, dir, true);
    parity_mutation m = {
        .kind = "local", .instance = "decoder.layers.0.mlp.router.indices", .step = 0, .microbatch = 0};
    must(parity_trace_mutate(t, fresh_path(other, "m"), &m));
    assay_trace *changed = open_trace(other);
    parity_report *r = judge(&s, changed);
    const parity_claim *x = result_of(r, "decoder.layers.0.mlp.router.indices");
    cr_assert_eq(x->verdict, PARITY_FAIL);
    cr_assert(strstr(x->message, "recorded and cannot be read"), "%s", x->message);
    parity_report_destroy(r);
    assay_trace_close(changed);
    assay_trace_close(t);
    remove_path(other);
    remove_path(dir);
    tear_down(&s);
}

/* The first layer's q behind a clamp in step 0, or its gradient. */
static double *clipped_q(assay_trace *t, assay_phase phase, int64_t *n)
{
    parity_index *x;
    parity_global g = {0};
    parity_result finding;
    double *value;
    must(parity_index_create(&x, t));
    parity_result_init(&finding);
    const char *name = phase == ASSAY_PHASE_BACKWARD ? "decoder.layers.0.self_attention.clip_q.y.grad"
                                                     : "decoder.layers.0.self_attention.clip_q.y";
    const parity_entry *e = parity_index_find(x, name, phase, 0, 0);
    cr_assert_not_null(e);
    must(parity_entry_assemble(x, e, &g, &finding));
    must(parity_decode_all(g.data, g.count, g.dtype, &value));
    *n = g.count;
    parity_global_free(&g);
    parity_index_destroy(x);
    return value;
}

/* A limit that a value of q reaches in bf16 and does not reach in double: of those with a gradient above the average, the one farthest away,
 * which other roundings hardly take there. */
static double limit_that_rounding_crosses(void)
{
    static const assay_precision in[] = {ASSAY_PRECISION_BF16, ASSAY_PRECISION_FP64};
    double *q[2], *gradient[2], limit = 0.0, farthest = 0.0, average = 0.0;
    int64_t n = 0;
    for (int k = 0; k < 2; k++) {
        setting s;
        char dir[256];
        set_up_with_clip(&s, 1e6);
        assay_trace *t = candidate_in(&s, dir, true, in[k], NULL);
        q[k] = clipped_q(t, ASSAY_PHASE_FORWARD, &n);
        gradient[k] = clipped_q(t, ASSAY_PHASE_BACKWARD, &n);
        assay_trace_close(t);
        remove_path(dir);
        tear_down(&s);
    }
    for (int64_t i = 0; i < n; i++)
        average += fabs(gradient[0][i]) / (double)n;
    for (int64_t i = 0; i < n; i++) {
        const double crossed = 1.0 - fabs(q[1][i]) / fabs(q[0][i]);
        if (fabs(gradient[0][i]) > average && crossed > farthest) {
            limit = fabs(q[0][i]);
            farthest = crossed;
        }
    }
    for (int k = 0; k < 2; k++) {
        free(q[k]);
        free(gradient[k]);
    }
    return limit;
}

static bool lets_all_pass(void *user, int64_t step, int64_t microbatch, int64_t layer,
                          ref_clip_operand operand, bool *passes, int64_t n)
{
    (void)user, (void)step, (void)microbatch, (void)layer, (void)operand;
    for (int64_t i = 0; i < n; i++)
        passes[i] = true;
    return true;
}

/* A value that rounding carries across clip_qkv loses its whole gradient: no rounding of a gradient, and no fault. */
Test(parity_whole, a_clip_is_decided_as_the_candidate_decided_it)
{
    const double limit = limit_that_rounding_crosses();
    cr_assert_gt(limit, 0.0);
    for (int k = 0; k < 2; k++) {
        setting s;
        char dir[256];
        set_up_with_clip(&s, limit);
        s.options.precision = ASSAY_PRECISION_BF16;
        assay_trace *t = candidate_in(&s, dir, true, ASSAY_PRECISION_BF16, k == 0 ? NULL : lets_all_pass);
        parity_report *r = judge(&s, t);
        if (k == 0)
            print_failures(r);
        cr_expect_eq(n_failed(r) > 0, k == 1, "%s", k == 0 ? "an honest candidate" : "nothing is held back");
        parity_report_destroy(r);
        assay_trace_close(t);
        remove_path(dir);
        tear_down(&s);
    }
}

Test(parity_whole, one_wrong_head_is_not_diluted)
{
    setting s;
    char dir[256];
    set_up(&s);
    /* The candidate starts from weights whose first head of layer 0 differs by a thousandth. */
    const assay_param_spec *p = assay_spec_find(s.spec, "decoder.layers.0.self_attention.linear_qkv.weight");
    double *w = s.weights[p - s.spec->params];
    const int64_t head = s.config->kv_channels * s.config->hidden_size;
    for (int64_t i = 0; i < head; i++)
        w[i] *= 1.001;
    assay_trace *t = candidate(&s, dir, true);
    for (int64_t i = 0; i < head; i++)
        w[i] /= 1.001;
    parity_report *r = judge(&s, t);
    const parity_claim *x = result_of(r, "decoder.layers.0.self_attention.linear_qkv.weight.main_param");
    cr_assert_eq(x->verdict, PARITY_FAIL);
    cr_assert(x->index[0] < s.config->kv_channels, "worst slice %lld", (long long)x->index[0]);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
    tear_down(&s);
}

Test(parity_whole, missing_tensors_fail)
{
    setting s;
    char dir[256];
    set_up(&s);
    assay_trace *t = candidate(&s, dir, false);
    parity_report *r = judge(&s, t);
    cr_assert_eq(n_passed(r), 0);
    cr_assert_gt(n_failed(r), 50);
    cr_assert(strstr(first_failure(r)->message, "the trace has no"));
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
    tear_down(&s);
}

/* What fails first in a step is reported first: the gradients in the order of the backward pass. */
Test(parity_whole, failures_stand_in_causal_order)
{
    setting s;
    char dir[256];
    parity_plan_tensors *order;
    set_up(&s);
    assay_trace *t = candidate(&s, dir, false);
    parity_report *r = judge(&s, t);
    must(parity_plan_tensors_create(&order, s.spec, &s.options, &s.batches));
    const int64_t n = parity_report_count(r) / 2; /* judged twice */
    cr_assert_str_eq(parity_report_at(r, 0)->tensor, "output_layer.y");
    cr_assert_str_eq(parity_report_at(r, 1)->tensor, "loss");
    for (int64_t i = 1; i < n; i++)
        cr_assert_leq(parity_plan_tensors_order(order, parity_report_at(r, i - 1)->tensor),
                      parity_plan_tensors_order(order, parity_report_at(r, i)->tensor), "%s before %s",
                      parity_report_at(r, i - 1)->tensor, parity_report_at(r, i)->tensor);
    cr_assert_lt(parity_plan_tensors_order(order, parity_report_at(r, n - 1)->tensor), INT64_MAX);
    parity_plan_tensors_destroy(order);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
    tear_down(&s);
}

/* Thresholds of bf16 would let a broken fp32 run pass: the task's precision decides. */
Test(parity_whole, a_header_of_another_precision_is_a_failure)
{
    setting s;
    char dir[256];
    set_up(&s);
    assay_trace *t = candidate(&s, dir, true);
    s.options.precision = ASSAY_PRECISION_BF16;
    parity_report *r = judge(&s, t);
    cr_assert_str_eq(first_failure(r)->tensor, "precision");
    cr_assert(strstr(first_failure(r)->message, "expected precision bf16, found fp32"));
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
    tear_down(&s);
}

/* Gradients [E,N,K] of one step as the result of a run. */
static ref_run_result gradient(double *data, int ndim, int64_t e, int64_t n, int64_t k, ref_named_tensor *t)
{
    *t = (ref_named_tensor){.name = "w", .kind = "grad", .ndim = ndim, .data = data};
    const int64_t shape[3] = {e, n, k};
    for (int d = 0; d < ndim; d++)
        t->shape[d] = shape[3 - ndim + d];
    return (ref_run_result){.steps = 1, .n_tensors = 1, .tensors = t};
}

/* An expert with one token has a gradient of rank 1, whose columns turn at once; one with many tokens has not.  What
 * is allowed to jump in the first is a few columns, never all of it. */
Test(parity_whole, jumps_come_in_lines_where_the_gradient_has_rank_1)
{
    enum { E = 3, N = 24, K = 10 };
    double g[E * N * K], clusters[E] = {1.0, 1.0, 1.0};
    test_rng r = {7};
    double *u = random_normal(&r, N), *v = random_normal(&r, K), *full = random_normal(&r, N * K);
    for (int i = 0; i < N * K; i++) {
        g[i] = u[i / K] * v[i % K]; /* one token */
        g[N * K + i] = full[i];     /* many */
        g[2 * N * K + i] = 0.0;     /* none */
    }
    ref_named_tensor t;
    ref_run_result run = gradient(g, 3, E, N, K, &t);
    const double whole = parity_whole_clusters(&run, "w", clusters);
    cr_expect(fabs(clusters[0] - N) <= 1e-9 * N && whole == clusters[0], "%g", clusters[0]);
    cr_expect(clusters[1] >= 1.0 && clusters[1] <= (double)N / (K / 2), "%g", clusters[1]);
    cr_expect_eq(clusters[2], 1.0);
    const double rate = 1e-3, independent = parity_whole_jump_count(N * K, rate, 1.0);
    const double together = parity_whole_jump_count(N * K, rate, clusters[0]);
    cr_expect(independent < N, "a column does not fit among %g independent jumps", independent);
    cr_expect(together >= 0.999 * N && together <= 2.0 * N, "%g", together);
    free(u), free(v), free(full);
}

/* A row of a matrix is a slice: its elements share what the rank of the matrix says. */
Test(parity_whole, a_matrix_of_full_rank_jumps_element_by_element)
{
    enum { N = 64, K = 16 };
    double clusters[N];
    test_rng r = {8};
    double *full = random_normal(&r, N * K);
    ref_named_tensor t;
    ref_run_result run = gradient(full, 2, 1, N, K, &t);
    for (int i = 0; i < N; i++)
        clusters[i] = 1.0;
    (void)parity_whole_clusters(&run, "w", clusters);
    for (int i = 0; i < N; i++)
        cr_expect(clusters[i] <= 1.6, "row %d: %g", i, clusters[i]);
    free(full);
}

/* The reference run of a process that hangs is waited for within a limit, and the process is named. */
Test(parity_whole, a_reference_run_that_never_comes_is_given_up)
{
    char dir[256], path[ASSAY_PATH], hash[ASSAY_SHA256_HEX];
    ref_run_result result;
    must(assay_mkdir_p(fresh_path(dir, "store")));
    must(assay_hash_init());
    assay_sha256_bytes("key", 3, hash);
    snprintf(path, sizeof path, "%s/%s.lock", dir, hash);
    const int fd = open(path, O_RDWR | O_CREAT, 0600); /* an open file of its own, as in another process */
    cr_assert(fd >= 0 && flock(fd, LOCK_EX) == 0 && write(fd, "process 4711\n", 13) == 13);
    setenv("ASSAY_REFERENCE_WAIT", "0.05", 1);
    cr_expect_eq(parity_whole_run(dir, "key", NULL, NULL, &result), ASSAY_TIMEOUT);
    cr_expect(strstr(assay_error_message(), "(process 4711) within 0.05 s") != NULL, "%s",
              assay_error_message());
    setenv("ASSAY_REFERENCE_WAIT", "soon", 1);
    cr_expect_eq(parity_whole_run(dir, "key", NULL, NULL, &result), ASSAY_INVALID_ARGUMENT);
    cr_expect(strstr(assay_error_message(), "expected seconds, found soon") != NULL, "%s",
              assay_error_message());
    unsetenv("ASSAY_REFERENCE_WAIT");
    assay_error_clear();
    close(fd);
    remove_path(dir);
}
