/* Laws: shards tile, replicas are equal, partial pieces add up, rows go where they say. */
#include "tests/support/parity.h"

static const float eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};

/* Two ranks; rank r writes rows [start[r], +length[r]) of a 4x2 matrix. */
static parity_report *assemble_two(const int64_t start[2], const int64_t length[2], const float *second)
{
    char dir[256];
    fresh_path(dir, "t");
    for (int rank = 0; rank < 2; rank++) {
        assay_trace_writer *w = open_writer(dir, rank, 2, "tp2");
        put_rows_f32(w, "x.y", 4, 2, start[rank], length[rank],
                     rank && second ? second : eight + 2 * start[rank]);
        close_writer(w);
    }
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_assemble(t, r));
    parity_global g;
    must(parity_assemble(t, "x.y", ASSAY_PHASE_FORWARD, 0, 0, &g, NULL));
    if (n_failed(r) == 0) {
        cr_assert(g.complete);
        cr_assert_arr_eq(g.data, eight, sizeof eight);
    } else {
        cr_assert_not(g.complete);
    }
    parity_global_free(&g);
    assay_trace_close(t);
    remove_path(dir);
    return r;
}

Test(parity_assemble, shards_tile_the_global_tensor)
{
    parity_report *r = assemble_two((int64_t[]){0, 2}, (int64_t[]){2, 2}, NULL);
    cr_assert_eq(n_failed(r), 0);
    cr_assert_eq(parity_report_at(r, 0)->count, 8);
    parity_report_destroy(r);
}

Test(parity_assemble, a_gap_is_a_missing_shard_with_its_index)
{
    parity_report *r = assemble_two((int64_t[]){0, 3}, (int64_t[]){2, 1}, NULL);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_str_eq(f->tensor, "x.y");
    cr_assert(strstr(f->message, "missing shard"), "%s", f->message);
    parity_report_destroy(r);
    /* Replicas hold enough elements, still nobody holds row 2. */
    r = assemble_two((int64_t[]){0, 0}, (int64_t[]){2, 2}, NULL);
    f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert(strstr(f->message, "at [2, 0]"), "%s", f->message);
    parity_report_destroy(r);
}

Test(parity_assemble, overlapping_pieces_are_named)
{
    /* Elements that both hold are replicas: a key and value head on several ranks. */
    parity_report *r = assemble_two((int64_t[]){0, 1}, (int64_t[]){2, 3}, NULL);
    cr_assert_eq(n_failed(r), 0);
    parity_report_destroy(r);
    float other[6];
    memcpy(other, eight + 2, sizeof other);
    other[1] += 0.5f;
    r = assemble_two((int64_t[]){0, 1}, (int64_t[]){2, 3}, other);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert(strstr(f->message, "pieces overlap and differ"), "%s", f->message);
    cr_assert_eq(f->index[0], 1);
    cr_assert_eq(f->index[1], 1);
    cr_assert_eq(f->rank, 1);
    parity_report_destroy(r);
}

Test(parity_assemble, equal_replicas_pass_and_differing_replicas_fail)
{
    parity_report *r = assemble_two((int64_t[]){0, 0}, (int64_t[]){4, 4}, NULL);
    cr_assert_eq(n_failed(r), 0);
    parity_report_destroy(r);
    float other[8];
    memcpy(other, eight, sizeof other);
    other[5] = 6.5f;
    r = assemble_two((int64_t[]){0, 0}, (int64_t[]){4, 4}, other);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert(strstr(f->message, "replicas differ"), "%s", f->message);
    cr_assert_eq(f->check, PARITY_CHECK_ASSEMBLE);
    cr_assert_eq(f->index[0], 2);
    cr_assert_eq(f->index[1], 1);
    parity_report_destroy(r);
}

Test(parity_assemble, partial_pieces_are_summed_over_their_group)
{
    char dir[256];
    fresh_path(dir, "t");
    /* tp2,dp2: ranks {0,1} and {2,3} each sum to the same tensor. */
    for (int rank = 0; rank < 4; rank++) {
        assay_trace_writer *w = open_writer(dir, rank, 4, "tp2,dp2");
        const int64_t shape[1] = {3};
        assay_trace_tensor t = tensor_of("p", ASSAY_PHASE_FORWARD, ASSAY_F32, 1, shape);
        const float even[3] = {1, 2, 3}, odd[3] = {10, 20, 30};
        t.kind = ASSAY_PIECE_PARTIAL;
        strcpy(t.partial_group, "tp");
        must(assay_trace_write_tensor(w, &t, rank % 2 ? odd : even));
        close_writer(w);
    }
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    parity_global g;
    must(parity_assemble(t, "p", ASSAY_PHASE_FORWARD, 0, 0, &g, r));
    cr_assert_eq(n_failed(r), 0);
    cr_assert_eq(g.dtype, ASSAY_F64);
    const double sum[3] = {11, 22, 33};
    cr_assert_arr_eq(g.data, sum, sizeof sum);
    parity_global_free(&g);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

/* Without the part of rank 3 the sum of its group is another. */
Test(parity_assemble, a_sum_lacks_no_rank_of_its_group)
{
    char dir[256];
    fresh_path(dir, "t");
    for (int rank = 0; rank < 4; rank++) {
        assay_trace_writer *w = open_writer(dir, rank, 4, "tp2,dp2");
        const int64_t shape[1] = {2};
        const float values[2] = {1, 2};
        assay_trace_tensor t = tensor_of("p", ASSAY_PHASE_FORWARD, ASSAY_F32, 1, shape);
        t.kind = ASSAY_PIECE_PARTIAL;
        strcpy(t.partial_group, "tp");
        if (rank != 3)
            must(assay_trace_write_tensor(w, &t, values));
        close_writer(w);
    }
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_assemble(t, r));
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f);
    cr_assert_eq(f->rank, 3);
    cr_assert(strstr(f->message, "missing part: rank 3"), "%s", f->message);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

Test(parity_assemble, rows_are_put_where_their_numbers_say)
{
    char dir[256];
    fresh_path(dir, "t");
    for (int rank = 0; rank < 2; rank++) {
        assay_trace_writer *w = open_writer(dir, rank, 2, NULL);
        const int64_t n[1] = {3}, shape[2] = {3, 1};
        const int64_t rows[2][3] = {{3, -1, 0}, {1, 2, 0}};
        const float values[2][3] = {{3, 99, 7}, {1, 2, 7}};
        assay_trace_tensor k = tensor_of("rows", ASSAY_PHASE_FORWARD, ASSAY_I64, 1, n);
        k.kind = ASSAY_PIECE_LOCAL;
        must(assay_trace_write_tensor(w, &k, rows[rank]));
        assay_trace_tensor x = tensor_of("x", ASSAY_PHASE_FORWARD, ASSAY_F32, 2, shape);
        x.kind = ASSAY_PIECE_ROWS;
        x.rows_id = k.id;
        must(assay_trace_write_tensor(w, &x, values[rank]));
        close_writer(w);
    }
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    parity_global g;
    must(parity_assemble(t, "x", ASSAY_PHASE_FORWARD, 0, 0, &g, r));
    cr_assert_eq(n_failed(r), 0);
    cr_assert_eq(g.shape[0], 4);
    const float whole[4] = {7, 1, 2, 3};
    cr_assert_arr_eq(g.data, whole, sizeof whole);
    parity_global_free(&g);
    must(parity_check_assemble(t, r));
    cr_assert_eq(parity_report_count(r), 1, "local tensors are not assembled");
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

Test(parity_assemble, an_absent_tensor_is_an_error_with_its_name)
{
    char dir[256];
    fresh_path(dir, "t");
    assay_trace_writer *w = open_writer(dir, 0, 1, NULL);
    put_f32(w, "x", ASSAY_PHASE_FORWARD, 2, 4, eight);
    close_writer(w);
    assay_trace *t = open_trace(dir);
    parity_global g;
    cr_assert_eq(parity_assemble(t, "y", ASSAY_PHASE_FORWARD, 0, 0, &g, NULL), ASSAY_NOT_FOUND);
    cr_assert(strstr(assay_error_message(), "recorded y"));
    assay_trace_close(t);
    remove_path(dir);
}

Test(parity_assemble, a_trace_without_operations_may_not_contradict_itself)
{
    char dir[256];
    fresh_path(dir, "t");
    assay_trace_writer *w = open_writer(dir, 0, 1, NULL);
    const float other[8] = {1, 2, 3, 4, 5, 6, 7, 9};
    put_f32(w, "x", ASSAY_PHASE_FORWARD, 2, 4, eight);
    put_f32(w, "x", ASSAY_PHASE_FORWARD, 2, 4, other);
    close_writer(w);
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_assemble(t, r));
    cr_assert_eq(n_failed(r), 1);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

/* Stored bytes in units of a scale are not values: the judge says so instead of comparing them. */
Test(parity_assemble, a_scaled_record_is_refused_by_name)
{
    char dir[256];
    fresh_path(dir, "t");
    const int64_t none[1] = {0}, shape[1] = {8};
    assay_trace_writer *w = open_writer(dir, 0, 1, "1");
    assay_trace_tensor scale = {.name = "x.y.scale", .dtype = ASSAY_F32},
                       x = {.name = "x.y", .dtype = ASSAY_F32};
    assay_shard_whole(&scale.shard, none, 0);
    assay_shard_whole(&x.shard, shape, 1);
    scale.rows_id = x.rows_id = -1;
    must(assay_trace_write_tensor(w, &scale, eight));
    x.has_scale = true;
    x.scale_id = scale.id;
    must(assay_trace_write_tensor(w, &x, eight));
    close_writer(w);
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    cr_expect_eq(parity_check_assemble(t, r), ASSAY_UNSUPPORTED);
    cr_expect(strstr(assay_error_message(), "x.y: record 1 on rank 0 is scaled by record 0"), "%s",
              assay_error_message());
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}
