/* Checkpoints: any layout reads what any layout wrote; what does not verify is refused. */
#include "core/base/file.h"
#include "core/files/checkpoint_internal.h"
#include "core/model/grid.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
    assay_segment cut[2];
    int n = 0;
    s.local_shape[0] = 0;
    for (int b = 0; b < 2; b++) {
        int64_t start, length;
        assay_split(rows / 2, parts, index, &start, &length);
        if (length > 0)
            cut[n++] = (assay_segment){b * (rows / 2) + start, length};
        s.local_shape[0] += length;
    }
    assay_shard_set(&s, 0, cut, n);
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
    const uint64_t job = assay_checkpoint_job();
    for (int r = 0; r < parts; r++) {
        const assay_shard s = blocks_of(10, 3, parts, r);
        cr_assert_eq(assay_checkpoint_writer_open(&w[r], dir, job, 3, r, parts), ASSAY_OK, "%s",
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
    json_t *header = json_pack("{s:s}", "layout", "1");
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
    cr_expect_eq(assay_checkpoint_writer_open(&w, path_of("c"), 7, 0, 0, 1), ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "exists already"));
    cr_expect_null(w);
}

Test(core_checkpoint, a_rank_that_did_not_finish_prevents_publication)
{
    assay_checkpoint_writer *w = NULL;
    json_t *header = json_object();
    cr_assert_eq(assay_checkpoint_writer_open(&w, path_of("c/"), 7, 0, 0, 2), ASSAY_OK);
    cr_assert_eq(assay_checkpoint_writer_finish(w), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_publish(w, header), ASSAY_NOT_FOUND);
    cr_expect_not_null(strstr(assay_error_message(), "rank 1 did not finish"));
    cr_expect_neq(access(path_of("c"), F_OK), 0);
    json_decref(header);
    assay_checkpoint_writer_destroy(w);
}

/* Two jobs write to one DIR at once: each stages alone; the first to publish wins, the other is told where its own lies. */
Test(core_checkpoint, two_jobs_never_mix)
{
    assay_checkpoint_writer *w[2][2];
    assay_checkpoint *c;
    assay_shard whole;
    float got[2] = {0};
    assay_shard_whole(&whole, (int64_t[]){2}, 1);
    for (int rank = 0; rank < 2; rank++)
        for (int job = 0; job < 2; job++) {
            const float data[2] = {(float)job, 5};
            cr_assert_eq(assay_checkpoint_writer_open(&w[job][rank], path_of("c"), (uint64_t)(job + 1),
                                                      3 + job, rank, 2),
                         ASSAY_OK, "%s", assay_error_message());
            cr_assert_eq(assay_checkpoint_add(w[job][rank], "main_param", "w", ASSAY_F32, &whole, data),
                         ASSAY_OK);
            cr_assert_eq(assay_checkpoint_writer_finish(w[job][rank]), ASSAY_OK);
        }
    json_t *first = json_object(), *second = json_object();
    cr_assert_eq(assay_checkpoint_publish(w[1][0], first), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(assay_checkpoint_publish(w[0][0], second), ASSAY_IO);
    cr_expect_not_null(strstr(assay_error_message(), "c.tmp-00000000000001: cannot publish as"), "%s",
                       assay_error_message());
    cr_assert_eq(assay_checkpoint_open(&c, path_of("c")), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(json_integer_value(json_object_get(assay_checkpoint_header(c), "step")), 4);
    cr_assert_eq(assay_checkpoint_read(c, "main_param", "w", ASSAY_F32, &whole, got), ASSAY_OK);
    cr_expect_eq(got[0], 1.0f);
    assay_checkpoint_close(c);
    json_decref(first);
    json_decref(second);
    for (int job = 0; job < 2; job++)
        for (int rank = 0; rank < 2; rank++)
            assay_checkpoint_writer_destroy(w[job][rank]);
}

Test(core_checkpoint, a_staging_folder_is_nobody_else_s)
{
    assay_checkpoint_writer *w = NULL, *again = NULL;
    cr_assert_eq(assay_checkpoint_writer_open(&w, path_of("c"), 9, 0, 0, 1), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_writer_open(&again, path_of("c"), 9, 0, 0, 1), ASSAY_IO);
    cr_expect_not_null(strstr(assay_error_message(), "File exists"), "%s", assay_error_message());
    /* A rank whose rank 0 works elsewhere. */
    cr_expect_eq(assay_checkpoint_writer_open(&again, path_of("c"), 10, 0, 1, 2), ASSAY_IO);
    cr_expect_not_null(strstr(assay_error_message(), "the folder that rank 0 made"), "%s",
                       assay_error_message());
    /* An empty folder that appears meanwhile is somebody's. */
    cr_assert_eq(assay_checkpoint_writer_finish(w), ASSAY_OK);
    cr_assert_eq(mkdir(path_of("c"), 0700), 0);
    json_t *header = json_object();
    cr_expect_eq(assay_checkpoint_publish(w, header), ASSAY_IO);
    cr_expect_not_null(strstr(assay_error_message(), "cannot publish as"), "%s", assay_error_message());
    json_decref(header);
    assay_checkpoint_writer_destroy(w);
}

/* Every change to a published checkpoint is found, with the manifest's own text, too. */
Test(core_checkpoint, what_does_not_belong_is_refused)
{
    static const struct {
        const char *shell, *message;
    } rows[] = {
        {"sed -i 's/\"world_size\": 2/\"world_size\": 1/' a/manifest.json", "was changed: it says SHA-256"},
        {"sed -i 's/\"step\": 3/\"step\": 4/' a/manifest.json", "was changed: it says SHA-256"},
        {"sed -i '/\"sha256\": \"[0-9a-f]*\"$/d' a/manifest.json", "manifest.json"},
        {"touch a/rank-00002.json", "a/rank-00002.json: the manifest does not name this file"},
        {"touch a/rank-00000.safetensors.tmp", "the manifest does not name this file"},
        {"touch a/notes.txt", "a/notes.txt: the manifest does not name this file"},
        {"cp b/rank-00001.json b/rank-00001.safetensors a", "expected SHA-256"},
        {"rm a/rank-00001.json", "rank-00001.json: listed in the manifest"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char command[600];
        assay_checkpoint *c = NULL;
        snprintf(command, sizeof command, "cd '%s' && rm -rf a b", root);
        cr_assert_eq(system(command), 0);
        save(path_of("a"), 2, -1, -1);
        save(path_of("b"), 2, -1, -1);
        cr_assert_eq(assay_checkpoint_open(&c, path_of("a")), ASSAY_OK);
        assay_checkpoint_close(c);
        snprintf(command, sizeof command, "cd '%s' && %s", root, rows[i].shell);
        cr_assert_eq(system(command), 0, "%s", command);
        cr_expect_neq(assay_checkpoint_open(&c, path_of("a")), ASSAY_OK, "%s", rows[i].shell);
        cr_expect_not_null(strstr(assay_error_message(), rows[i].message), "%s: %s", rows[i].shell,
                           assay_error_message());
    }
}

/* The rank files of another save, listed with their true hashes by a manifest that hashes itself truly. */
Test(core_checkpoint, files_of_two_saves_are_refused)
{
    static const char *const what[] = {"job", "step", "rank"};
    for (int k = 0; k < 3; k++) {
        assay_checkpoint *c = NULL;
        char hash[ASSAY_SHA256_HEX], command[400];
        json_t *index = NULL, *manifest = NULL;
        snprintf(command, sizeof command, "rm -rf '%s'", path_of("a"));
        cr_assert_eq(system(command), 0);
        save(path_of("a"), 2, -1, -1);
        cr_assert_eq(assay_json_load(&index, path_of("a/rank-00001.json")), ASSAY_OK);
        json_object_set_new(index, what[k], k == 0 ? json_string("00000000000abc") : json_integer(0));
        cr_assert_eq(assay_json_save(index, path_of("a/rank-00001.json")), ASSAY_OK);
        cr_assert_eq(assay_json_load(&manifest, path_of("a/manifest.json")), ASSAY_OK);
        json_t *entry = json_array_get(json_object_get(manifest, "files"), 2);
        struct stat sb;
        cr_assert_eq(stat(path_of("a/rank-00001.json"), &sb), 0);
        cr_assert_eq(assay_sha256_file(path_of("a/rank-00001.json"), hash), ASSAY_OK);
        json_object_set_new(entry, "bytes", json_integer(sb.st_size));
        json_object_set_new(entry, "sha256", json_string(hash));
        cr_assert_eq(assay_checkpoint_manifest_hash(manifest, hash), ASSAY_OK);
        json_object_set_new(manifest, "sha256", json_string(hash));
        cr_assert_eq(assay_json_save(manifest, path_of("a/manifest.json")), ASSAY_OK);
        cr_expect_eq(assay_checkpoint_open(&c, path_of("a")), ASSAY_MISMATCH, "%s: %s", what[k],
                     assay_error_message());
        cr_expect_not_null(strstr(assay_error_message(), "rank-00001.json: of another save"), "%s",
                           assay_error_message());
        json_decref(index);
        json_decref(manifest);
    }
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
