/* Laws of the whole check: a run that differs by rounding alone passes, a fault in one head, a wrong scale
 * and a missing tensor fail. */
#include "parity/checks/plan.h"
#include "parity/checks/whole.h"
#include "parity/checks/whole_store.h"
#include "tests/support/ref.h"
#include "tests/support/whole.h"
#include <fcntl.h>
#include <sys/file.h>

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
