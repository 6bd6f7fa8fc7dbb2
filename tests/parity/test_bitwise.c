/* Laws: equal bits pass, one different bit is found and named, a restarted run is compared from its step on.
 */
#include "tests/support/parity.h"

#include "core/files/tensorwriter.h"

static void write_run(const char *dir, int64_t first, int64_t steps, float change)
{
    assay_trace_writer *w = open_writer(dir, 0, 1, "1");
    for (int64_t s = first; s < first + steps; s++) {
        const int64_t shape[2] = {2, 2};
        float data[4] = {1, 2, (float)s, 4};
        if (s == 2)
            data[3] += change;
        assay_trace_tensor t = tensor_of("x", ASSAY_PHASE_OPTIMIZER, ASSAY_F32, 2, shape);
        t.step = s;
        t.microbatch = -1;
        must(assay_trace_write_tensor(w, &t, data));
        must(assay_trace_end_step(w));
    }
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
}

static parity_report *compare(int64_t first, int64_t steps, float change, int64_t first_of_b)
{
    char a[256], b[256];
    write_run(fresh_path(a, "a"), 0, 3, 0);
    write_run(fresh_path(b, "b"), first, steps, change);
    assay_trace *s = open_trace(a), *t = open_trace(b);
    parity_report *r = new_report();
    must(parity_check_bitwise_traces(s, t, "restart", first_of_b, r));
    assay_trace_close(t);
    assay_trace_close(s);
    remove_path(b);
    remove_path(a);
    return r;
}

Test(parity_bitwise, equal_runs_pass)
{
    parity_report *r = compare(0, 3, 0, 0);
    cr_assert_eq(n_failed(r), 0);
    cr_assert_eq(n_passed(r), 1);
    cr_assert_eq(parity_report_at(r, 0)->count, 12);
    parity_report_destroy(r);
}

Test(parity_bitwise, one_element_is_found_and_named)
{
    parity_report *r = compare(0, 3, 4.76837158e-07f, 0);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_eq(f->n_bad, 1);
    cr_assert_eq(f->step, 2);
    cr_assert_eq(f->index[0], 1);
    cr_assert_eq(f->index[1], 1);
    cr_assert(isinf(f->ratio));
    parity_report_destroy(r);
}

/* Rows `first` to `end` of a tensor of four, as pieces of at most `piece` rows. */
static void write_pieces(const char *dir, int64_t first, int64_t end, int64_t piece)
{
    assay_trace_writer *w = open_writer(dir, 0, 1, "1");
    const int64_t shape[2] = {4, 2};
    const float data[4] = {1, 2, 3, 4};
    for (int64_t at = first; at < end; at += piece) {
        assay_trace_tensor t = tensor_of("x", ASSAY_PHASE_OPTIMIZER, ASSAY_F32, 2, shape);
        t.step = 0;
        t.microbatch = -1;
        must(assay_shard_narrow(&t.shard, 0, at, end - at < piece ? end - at : piece));
        must(assay_trace_write_tensor(w, &t, data));
    }
    must(assay_trace_end_step(w));
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
}

/* A rank may have several pieces of a tensor: each has to be in both runs, and where it is in the other. */
Test(parity_bitwise, every_piece_is_in_both_runs)
{
    static const struct {
        const char *what;
        int64_t a[3], b[3]; /* first and last row, rows of a piece */
        bool equal;
    } rows[] = {{"the same pieces", {0, 4, 2}, {0, 4, 2}, true},
                {"half of them", {0, 4, 2}, {0, 2, 2}, false},
                {"more of them", {2, 4, 2}, {0, 4, 2}, false},
                {"one, of other rows", {0, 2, 2}, {2, 4, 2}, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char a[256], b[256];
        write_pieces(fresh_path(a, "a"), rows[i].a[0], rows[i].a[1], rows[i].a[2]);
        write_pieces(fresh_path(b, "b"), rows[i].b[0], rows[i].b[1], rows[i].b[2]);
        assay_trace *s = open_trace(a), *t = open_trace(b);
        parity_report *r = new_report();
        must(parity_check_bitwise_traces(s, t, "repeat", 0, r));
        cr_expect_eq(n_failed(r) == 0, rows[i].equal, "%s", rows[i].what);
        parity_report_destroy(r);
        assay_trace_close(t);
        assay_trace_close(s);
        remove_path(b);
        remove_path(a);
    }
}

Test(parity_bitwise, a_restart_is_compared_from_its_first_step)
{
    parity_report *r = compare(1, 2, 0, 1);
    cr_assert_eq(n_failed(r), 0);
    cr_assert_eq(parity_report_at(r, 0)->count, 8);
    parity_report_destroy(r);
    r = compare(1, 1, 0, 1);
    cr_assert_eq(n_failed(r), 1, "the restarted run stopped early");
    parity_report_destroy(r);
}

static void write_file(const char *path, const char *name, float last)
{
    assay_tensorwriter *w;
    const int64_t shape[1] = {3};
    const float data[3] = {1, 2, last};
    must(assay_tensorwriter_create(&w, path));
    must(assay_tensorwriter_add_copy(w, name, ASSAY_F32, shape, 1, data));
    must(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
}

Test(parity_bitwise, result_files_are_compared_by_name)
{
    char a[256], b[256];
    fresh_path(a, "a.safetensors");
    fresh_path(b, "b.safetensors");
    parity_report *r = new_report();
    write_file(a, "loss", 3);
    write_file(b, "loss", 3);
    must(parity_check_bitwise_files(a, b, "repeat", r));
    cr_assert_eq(n_failed(r), 0);
    write_file(b, "loss", NAN);
    must(parity_check_bitwise_files(a, b, "repeat", r));
    cr_assert_eq(n_failed(r), 1);
    cr_assert_eq(first_failure(r)->index[0], 2);
    write_file(b, "loss2", 3);
    must(parity_check_bitwise_files(a, b, "repeat", r));
    cr_assert_eq(n_failed(r), 3, "missing on both sides");
    for (int64_t i = 0; i < parity_report_count(r); i++)
        cr_assert_eq(parity_report_at(r, i)->check, PARITY_CHECK_BITWISE);
    cr_assert_neq(parity_check_bitwise_files(a, "/nonexistent", "repeat", r), ASSAY_OK);
    parity_report_destroy(r);
    remove_path(b);
    remove_path(a);
}

/* A series of two steps and three tensors of a parameter, each at another number in a changed file. */
static void write_result(const char *path, float loss, const float *last)
{
    static const char *const names[] = {"exp_avg.w", "grad.w", "weight.w"};
    assay_tensorwriter *w;
    const int64_t shape[1] = {2};
    const float series[2] = {loss, last[0]};
    must(assay_tensorwriter_create(&w, path));
    must(assay_tensorwriter_add_copy(w, "aux_loss", ASSAY_F32, shape, 1, series));
    for (int i = 0; i < 3; i++) {
        const float data[2] = {1, last[i + 1]};
        must(assay_tensorwriter_add_copy(w, names[i], ASSAY_F32, shape, 1, data));
    }
    must(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
}

/* What differed first in the run is named first, whatever its name: the first step's forward, then its gradients. */
Test(parity_bitwise, what_a_run_makes_first_is_told_first)
{
    static const struct {
        float loss, last[4];
        const char *first;
    } rows[] = {
        {5, {7, 7, 7, 7}, "aux_loss"},
        {1, {7, 7, 7, 7}, "grad.w"},
        {1, {7, 7, 2, 7}, "aux_loss"},
        {1, {2, 7, 2, 7}, "exp_avg.w"},
    };
    static const float right[4] = {2, 2, 2, 2};
    char a[256], b[256];
    fresh_path(a, "a.safetensors");
    fresh_path(b, "b.safetensors");
    write_result(a, 1, right);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        parity_report *r = new_report();
        write_result(b, rows[i].loss, rows[i].last);
        must(parity_check_bitwise_files(a, b, "repeat", r));
        cr_expect_str_eq(first_failure(r)->tensor, rows[i].first, "row %zu: %s", i, first_failure(r)->tensor);
        cr_expect_eq(parity_report_count(r), 4, "row %zu", i);
        parity_report_destroy(r);
    }
    remove_path(b);
    remove_path(a);
}
