/* Laws of the checkpoint check: equal states of two layouts pass, one different bit, a missing tensor and a
 * folder that is no checkpoint do not. */
#include "tests/support/parity.h"

#include "core/files/checkpoint.h"

/* A [4,3] tensor in `world` row pieces; the last element is `last`. */
static void write_checkpoint(const char *dir, int world, float last, bool extra)
{
    assay_checkpoint_writer *w[4] = {NULL};
    float whole[12];
    const uint64_t job = assay_checkpoint_job();
    for (int i = 0; i < 12; i++)
        whole[i] = (float)i;
    whole[11] = last;
    for (int rank = 0; rank < world; rank++) {
        const int64_t shape[2] = {4, 3};
        assay_shard s;
        int64_t start, length;
        assay_shard_whole(&s, shape, 2);
        assay_split(4, world, rank, &start, &length);
        must(assay_shard_narrow(&s, 0, start, length));
        must(assay_checkpoint_writer_open(&w[rank], dir, job, 1, rank, world));
        must(assay_checkpoint_add(w[rank], "main_param", "x", ASSAY_F32, &s, whole + 3 * start));
        if (extra)
            must(assay_checkpoint_add(w[rank], "exp_avg", "x", ASSAY_F32, &s, whole + 3 * start));
        must(assay_checkpoint_writer_finish(w[rank]));
    }
    json_t *header = json_object();
    must(assay_checkpoint_publish(w[0], header));
    json_decref(header);
    for (int rank = 0; rank < world; rank++)
        assay_checkpoint_writer_destroy(w[rank]);
}

static parity_report *compare(int world, float last, bool extra)
{
    char a[256], b[256];
    write_checkpoint(fresh_path(a, "a"), 1, 11, false);
    write_checkpoint(fresh_path(b, "b"), world, last, extra);
    parity_report *r = new_report();
    must(parity_check_checkpoints(a, b, "1 -> dp2", r));
    remove_path(b);
    remove_path(a);
    return r;
}

Test(parity_checkpoint, equal_states_of_different_layouts_pass)
{
    parity_report *r = compare(3, 11, false);
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    cr_assert_eq(parity_report_at(r, 0)->count, 12);
    cr_assert_str_eq(parity_report_at(r, 0)->op, "1 -> dp2");
    parity_report_destroy(r);
}

Test(parity_checkpoint, one_bit_is_found_and_named)
{
    parity_report *r = compare(2, nextafterf(11, 12), false);
    const parity_result *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_str_eq(f->instance, "main_param");
    cr_assert_str_eq(f->tensor, "x");
    cr_assert_eq(f->n_bad, 1);
    cr_assert_eq(f->index[0], 3);
    cr_assert_eq(f->index[1], 2);
    parity_report_destroy(r);
}

Test(parity_checkpoint, tensors_of_one_side_only_fail)
{
    parity_report *r = compare(1, 11, true);
    cr_assert_eq(n_failed(r), 1);
    cr_assert(strstr(first_failure(r)->message, "missing from the first"));
    parity_report_destroy(r);
}

Test(parity_checkpoint, a_folder_without_manifest_is_an_error)
{
    char a[256];
    write_checkpoint(fresh_path(a, "a"), 1, 11, false);
    parity_report *r = new_report();
    cr_assert_neq(parity_check_checkpoints(a, "/nonexistent", "x", r), ASSAY_OK);
    cr_assert_eq(parity_report_count(r), 0);
    parity_report_destroy(r);
    remove_path(a);
}
