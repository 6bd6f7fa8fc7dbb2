/* Checkpoints: any layout reads what any layout wrote; what does not verify is refused. */
#include "core/base/file.h"
#include "core/files/checkpoint.h"
#include "core/model/grid.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[64];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/assay-ckpt-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void drop_root(void)
{
    assay_remove_tree(root, "/tmp/");
}

static const char *path_of(const char *name)
{
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

/* [rows, cols] cut in rows over `parts` by two blocks ([gate; up]). */
static assay_shard blocks_of(int64_t rows, int64_t cols, int parts, int index)
{
    assay_shard s;
    assay_shard_whole(&s, (int64_t[]){rows, cols}, 2);
    s.n_segments[0] = 0;
    s.local_shape[0] = 0;
    for (int b = 0; b < 2; b++) {
        int64_t start, length;
        assay_split(rows / 2, parts, index, &start, &length);
        if (length > 0)
            s.segments[0][s.n_segments[0]++] = (assay_segment){b * (rows / 2) + start, length};
        s.local_shape[0] += length;
    }
    return s;
}

static void fill(const assay_shard *s, float *out)
{
    for (int64_t i = 0; i < s->local_shape[0]; i++)
        for (int64_t j = 0; j < s->local_shape[1]; j++)
            out[i * s->local_shape[1] + j] =
                (float)(assay_shard_global_index(s, 0, i) * 100 + assay_shard_global_index(s, 1, j));
}

/* Writes "w" of [10,3] as `parts` ranks; rank `skip` leaves its piece out, rank `spoil` changes one element
 * of a replica. */
static void save(const char *dir, int parts, int skip, int spoil)
{
    assay_checkpoint_writer *w[8];
    float data[64];
    for (int r = 0; r < parts; r++) {
        const assay_shard s = blocks_of(10, 3, parts, r);
        cr_assert_eq(assay_checkpoint_writer_open(&w[r], dir, r, parts), ASSAY_OK, "%s",
                     assay_error_message());
        fill(&s, data);
        if (r != skip)
            cr_assert_eq(assay_checkpoint_add(w[r], "main_param", "w", ASSAY_F32, &s, data), ASSAY_OK);
        assay_shard whole;
        assay_shard_whole(&whole, (int64_t[]){2}, 1);
        const float replica[2] = {7, r == spoil ? 9.0f : 8.0f};
        cr_assert_eq(assay_checkpoint_add(w[r], "main_param", "norm", ASSAY_F32, &whole, replica), ASSAY_OK);
        cr_assert_eq(assay_checkpoint_writer_finish(w[r]), ASSAY_OK, "%s", assay_error_message());
    }
    json_t *header = json_pack("{s:i}", "step", 3);
    cr_assert_eq(assay_checkpoint_publish(w[0], header), ASSAY_OK, "%s", assay_error_message());
    json_decref(header);
    for (int r = 0; r < parts; r++)
        assay_checkpoint_writer_destroy(w[r]);
}

TestSuite(core_checkpoint, .init = make_root, .fini = drop_root);

Test(core_checkpoint, every_layout_reads_what_every_layout_wrote)
{
    for (int a = 1; a <= 7; a++) {
        char name[16];
        assay_checkpoint *c;
        snprintf(name, sizeof name, "c%d", a);
        save(path_of(name), a, -1, -1);
        cr_assert_eq(assay_checkpoint_open(&c, path_of(name)), ASSAY_OK, "%s", assay_error_message());
        cr_expect_eq(assay_checkpoint_count(c), 2);
        cr_expect_eq(json_integer_value(json_object_get(assay_checkpoint_header(c), "step")), 3);
        for (int b = 1; b <= 7; b++)
            for (int r = 0; r < b; r++) {
                const assay_shard want = blocks_of(10, 3, b, r);
                float got[64], expected[64];
                memset(got, 0xff, sizeof got);
                cr_assert_eq(assay_checkpoint_read(c, "main_param", "w", ASSAY_F32, &want, got), ASSAY_OK,
                             "%s", assay_error_message());
                fill(&want, expected);
                cr_assert_arr_eq(got, expected, (size_t)assay_shard_count(&want) * sizeof(float),
                                 "%d -> %d/%d", a, r, b);
            }
        assay_checkpoint_close(c);
    }
}

Test(core_checkpoint, a_narrowed_piece_is_read_from_the_right_place)
{
    assay_checkpoint *c;
    float got[4] = {0};
    save(path_of("c"), 3, -1, -1);
    cr_assert_eq(assay_checkpoint_open(&c, path_of("c")), ASSAY_OK);
    assay_shard want = blocks_of(10, 3, 2, 1);
    cr_assert_eq(assay_shard_narrow(&want, 0, 1, 2), ASSAY_OK);
    cr_assert_eq(assay_shard_narrow(&want, 1, 2, 1), ASSAY_OK);
    cr_assert_eq(assay_checkpoint_read(c, "main_param", "w", ASSAY_F32, &want, got), ASSAY_OK);
    cr_expect_float_eq(got[0], 402.0f, 0); /* local rows 1, 2 of {3,4 | 8,9} are 4 and 8 */
    cr_expect_float_eq(got[1], 802.0f, 0);
    assay_checkpoint_close(c);
}

Test(core_checkpoint, an_existing_folder_is_not_overwritten)
{
    assay_checkpoint_writer *w = NULL;
    save(path_of("c"), 1, -1, -1);
    cr_expect_eq(assay_checkpoint_writer_open(&w, path_of("c"), 0, 1), ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "exists already"));
    cr_expect_null(w);
}

Test(core_checkpoint, a_rank_that_did_not_finish_prevents_publication)
{
    assay_checkpoint_writer *w = NULL;
    json_t *header = json_object();
    cr_assert_eq(assay_checkpoint_writer_open(&w, path_of("c/"), 0, 2), ASSAY_OK);
    cr_assert_eq(assay_checkpoint_writer_finish(w), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_publish(w, header), ASSAY_NOT_FOUND);
    cr_expect_not_null(strstr(assay_error_message(), "rank 1 did not finish"));
    cr_expect_neq(access(path_of("c"), F_OK), 0);
    json_decref(header);
    assay_checkpoint_writer_destroy(w);
}

Test(core_checkpoint, a_changed_byte_is_refused)
{
    assay_checkpoint *c = NULL;
    save(path_of("c"), 2, -1, -1);
    FILE *f = fopen(path_of("c/rank-00001.safetensors"), "r+b");
    cr_assert_not_null(f);
    fseek(f, -1, SEEK_END);
    const int last = fgetc(f);
    fseek(f, -1, SEEK_END);
    fputc(last ^ 1, f);
    fclose(f);
    cr_expect_eq(assay_checkpoint_open(&c, path_of("c")), ASSAY_FORMAT);
    cr_expect_not_null(strstr(assay_error_message(), "rank-00001.safetensors: expected SHA-256"));
    cr_expect_null(c);
}

Test(core_checkpoint, a_truncated_file_and_a_missing_manifest_are_refused)
{
    assay_checkpoint *c = NULL;
    save(path_of("c"), 1, -1, -1);
    cr_assert_eq(truncate(path_of("c/rank-00000.safetensors"), 10), 0);
    cr_expect_eq(assay_checkpoint_open(&c, path_of("c")), ASSAY_FORMAT);
    cr_expect_not_null(strstr(assay_error_message(), "bytes, found 10"));
    cr_assert_eq(unlink(path_of("c/manifest.json")), 0);
    cr_expect_neq(assay_checkpoint_open(&c, path_of("c")), ASSAY_OK);
    cr_expect_null(c);
}

static void expect_read(const char *dir, const char *name, assay_dtype dtype, int64_t rows,
                        assay_status expected, const char *message)
{
    assay_checkpoint *c;
    float got[64];
    assay_shard want;
    cr_assert_eq(assay_checkpoint_open(&c, dir), ASSAY_OK, "%s", assay_error_message());
    assay_shard_whole(&want, (int64_t[]){rows, 3}, strcmp(name, "norm") == 0 ? 1 : 2);
    cr_expect_eq(assay_checkpoint_read(c, "main_param", name, dtype, &want, got), expected, "%s", name);
    cr_expect_not_null(strstr(assay_error_message(), message), "%s", assay_error_message());
    assay_checkpoint_close(c);
}

Test(core_checkpoint, wrong_requests_are_named)
{
    save(path_of("c"), 2, -1, -1);
    expect_read(path_of("c"), "v", ASSAY_F32, 10, ASSAY_NOT_FOUND, "no tensor main_param/v");
    expect_read(path_of("c"), "w", ASSAY_F64, 10, ASSAY_MISMATCH, "expected dtype F64, found F32");
    expect_read(path_of("c"), "w", ASSAY_F32, 12, ASSAY_MISMATCH, "dimension 0: expected 12, found 10");
}

Test(core_checkpoint, a_gap_is_an_error)
{
    save(path_of("c"), 3, 1, -1);
    expect_read(path_of("c"), "w", ASSAY_F32, 10, ASSAY_FORMAT, "no piece holds local element 6 of 30");
}

Test(core_checkpoint, replicas_that_differ_are_an_error)
{
    save(path_of("c"), 3, -1, 2);
    expect_read(path_of("c"), "norm", ASSAY_F32, 2, ASSAY_MISMATCH, "replicas differ at local element 1");
}
