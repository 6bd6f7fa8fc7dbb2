/* Laws: the first difference in order of execution is named; a missing tensor is a difference; nothing
 * compared is not a pass. */
#include "core/files/tensorwriter.h"
#include "tests/support/parity.h"

Test(parity_diff, finds_the_fault_planted_in_the_golden_trace)
{
    char text[8192];
    const int code =
        diff_text(ASSAY_SOURCE_DIR "/golden/trace/a", ASSAY_SOURCE_DIR "/golden/trace/b", -1.0, text);
    cr_assert_eq(code, 1, "%s", text);
    const char *first = strstr(text, "first difference: ");
    cr_assert_not_null(first, "%s", text);
    const char *expected =
        "first difference: model.layers.1.mlp.down_proj  (phase forward, step 1, microbatch 1)\n";
    cr_assert_eq(strncmp(first, expected, strlen(expected)), 0, "%s", text);
    cr_assert(strstr(first, "1.25 times the expected"), "%s", text);
}

Test(parity_diff, a_trace_equals_itself)
{
    char text[8192];
    const char *a = ASSAY_SOURCE_DIR "/golden/trace/a";
    cr_assert_eq(diff_text(a, a, -1.0, text), 0, "%s", text);
    cr_assert(strstr(text, " passed, 0 failed, 0 skipped\n"));
}

static void write_one(const char *dir, const char *name, float last)
{
    const float data[4] = {1, 2, 3, last};
    assay_trace_writer *w = open_writer(dir, 0, 1, NULL);
    if (name)
        put_f32(w, name, ASSAY_PHASE_FORWARD, 2, 2, data);
    close_writer(w);
}

static int diff_pair(const char *name_a, float last_a, const char *name_b, float last_b, double tolerance,
                     char text[8192])
{
    char a[256], b[256];
    write_one(fresh_path(a, "a"), name_a, last_a);
    write_one(fresh_path(b, "b"), name_b, last_b);
    const int code = diff_text(a, b, tolerance, text);
    remove_path(b);
    remove_path(a);
    return code;
}

Test(parity_diff, tolerance_is_relative_to_the_largest_value)
{
    char text[8192];
    cr_assert_eq(diff_pair("x", 4.0f, "x", 4.001f, 1e-3, text), 0, "%s", text);
    cr_assert_eq(diff_pair("x", 4.0f, "x", 4.01f, 1e-3, text), 1, "%s", text);
    cr_assert_eq(diff_pair("x", 4.0f, "x", NAN, 1e3, text), 1, "%s", text);
    cr_assert_eq(diff_pair("x", NAN, "x", 4.0f, 1e3, text), 1, "%s", text);
}

static void write_file(char path[256], const char *name, const char *tensor, double last, bool narrow)
{
    const int64_t shape[1] = {3};
    const double wide[3] = {1.0, 0.1, last};
    const float thin[3] = {1.0f, 0.1f, (float)last};
    assay_tensorwriter *w;
    must(assay_tensorwriter_create(&w, fresh_path(path, name)));
    must(assay_tensorwriter_add_copy(w, tensor, narrow ? ASSAY_F32 : ASSAY_F64, shape, 1,
                                     narrow ? (const void *)thin : (const void *)wide));
    must(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
}

Test(parity_diff, result_files_are_compared_by_name)
{
    static const struct {
        const char *tensor;
        double last;
        bool narrow;
        double tolerance;
        int code;
        const char *text;
    } rows[] = {
        {"loss", 4.0, false, -1.0, 0, "no difference in 1 tensors, bit for bit"},
        {"loss", 4.0, true, -1.0, 0, "1 passed"},
        {"loss", -0.0, false, -1.0, 1, "loss: 1 of 3 elements differ"},
        {"loss", 4.001, true, 1e-3, 0, "1 passed"},
        {"loss", 4.01, true, 1e-3, 1, "loss: 1 of 3 elements differ, the worst at 2: 4, 4.01"},
        {"loss", (double)NAN, false, 1e3, 1, "1 of 3 elements differ"},
        {"other", 4.0, false, -1.0, 1, "loss: in the first file only"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char a[256], b[256], text[2048] = "";
        int code = -1;
        write_file(a, "a.safetensors", "loss", 4.0, false);
        write_file(b, "b.safetensors", rows[i].tensor, rows[i].last, rows[i].narrow);
        FILE *out = fmemopen(text, sizeof text, "w");
        must(parity_diff_files(a, b, rows[i].tolerance, out, &code));
        fclose(out);
        cr_expect_eq(code, rows[i].code, "row %zu: %s", i, text);
        cr_expect(strstr(text, rows[i].text), "row %zu: %s", i, text);
        remove_path(a);
        remove_path(b);
    }
}

Test(parity_diff, missing_tensors_and_empty_traces_are_no_pass)
{
    char text[8192];
    cr_assert_eq(diff_pair("x", 4, "y", 4, -1, text), 1);
    cr_assert(strstr(text, "missing from the second trace"));
    cr_assert(strstr(text, "missing from the first trace"));
    cr_assert_eq(diff_pair(NULL, 4, NULL, 4, -1, text), 2, "%s", text);
    cr_assert(strstr(text, "\nNOT CHECKED: "), "%s", text);
}

typedef struct kept {
    const char *name;
    float last;
} kept;

/* A trace of one rank: tensors of four elements, F32 or F64. */
static void write_trace(const char *dir, const char *engine, assay_dtype dtype, bool hash_only,
                        const kept *tensors, int n)
{
    assay_trace_writer *w;
    const int64_t shape[1] = {4};
    json_t *header = json_pack("{s:s,s:s,s:s}", "engine", engine, "layout", "1", "precision",
                               dtype == ASSAY_F64 ? "fp64" : "fp32");
    must(assay_trace_writer_open(&w, dir, 0, 1, header, hash_only));
    json_decref(header);
    for (int i = 0; i < n; i++) {
        const float single[4] = {1, 2, 3, tensors[i].last};
        const double wide[4] = {1, 2 + 1e-12, 3, (double)tensors[i].last};
        assay_trace_tensor x = tensor_of(tensors[i].name, ASSAY_PHASE_FORWARD, dtype, 1, shape);
        must(assay_trace_write_tensor(w, &x, dtype == ASSAY_F64 ? (const void *)wide : single));
    }
    close_writer(w);
}

/* Values name the culprit; what is missing follows from the kind of run. */
Test(parity_diff, values_come_first_and_missing_tensors_last)
{
    char a[256], b[256], text[8192];
    write_trace(fresh_path(a, "a"), "sim", ASSAY_F32, false, (kept[]){{"gone", 4}, {"x", 4}}, 2);
    write_trace(fresh_path(b, "b"), "sim", ASSAY_F32, false, (kept[]){{"x", 5}, {"new", 4}}, 2);
    cr_assert_eq(diff_text(a, b, -1, text), 1);
    const char *x = strstr(text, "first difference: x "), *gone = strstr(text, "then: gone "),
               *new = strstr(text, "then: new ");
    cr_assert(x && gone && new &&x < gone &&gone < new, "%s", text);
    cr_assert(strstr(text, "0 passed, 3 failed, 0 skipped"), "%s", text);
    cr_assert(strstr(text, "\nWRONG: x (forward, step 0, microbatch 0): "), "%s", text);
    remove_path(b);
    remove_path(a);
}

/* Two ranks of tp2 hold copies of x; the whole run holds {1, 2, 3, 4}. */
static int copies_text(const double left[4], const double right[4], char text[8192])
{
    static const double whole[4] = {1, 2, 3, 4};
    char a[256], b[256];
    assay_trace_writer *w;
    fresh_path(a, "a");
    fresh_path(b, "b");
    for (int run = 0; run < 2; run++)
        for (int rank = 0; rank < 1 + run; rank++) {
            const int64_t shape[1] = {4};
            json_t *header =
                json_pack("{s:s,s:s,s:s}", "engine", "x", "layout", run ? "tp2" : "1", "precision", "fp64");
            must(assay_trace_writer_open(&w, run ? b : a, rank, 1 + run, header, false));
            json_decref(header);
            assay_trace_tensor x = tensor_of("x", ASSAY_PHASE_FORWARD, ASSAY_F64, 1, shape);
            must(assay_trace_write_tensor(w, &x, run == 0 ? whole : rank ? right : left));
            close_writer(w);
        }
    const int code = diff_text(a, b, 1e-9, text);
    remove_path(b);
    remove_path(a);
    return code;
}

/* The null hypothesis has the last word: copies that add up to nothing are only said to differ. */
Test(parity_diff, copies_on_ranks_are_explained_beside_the_whole_run)
{
    static const struct {
        double left[4], right[4];
        const char *word;
    } rows[] = {
        {{0.25, 1, 2, 5}, {0.75, 1, 1, -1}, "not summed over tp"},
        {{0, 1, 4, 5}, {2, 3, 2, 3}, "not averaged over tp"},
        {{1, 2, 3, 4}, {1, 2, 3, 5}, "rank 0 holds what belongs there, rank 1 does not"},
        {{1, 2, 3, 5}, {1, 2, 4, 4}, "replicas differ"},
        {{0, 1, 4, 5}, {2, 3, 2, 3.01}, "replicas differ"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[8192];
        cr_expect_eq(copies_text(rows[i].left, rows[i].right, text), 1, "row %zu: %s", i, text);
        const char *sentence = strstr(text, "\nWRONG: ");
        cr_expect(sentence && strstr(sentence, rows[i].word), "row %zu: %s", i, text);
    }
}

Test(parity_diff, another_engine_is_compared_in_what_both_hold)
{
    char a[256], b[256], text[8192];
    write_trace(fresh_path(a, "a"), "ref", ASSAY_F64, false, (kept[]){{"x", 4}, {"only", 4}}, 2);
    write_trace(fresh_path(b, "b"), "sim", ASSAY_F32, false, (kept[]){{"x", 4}}, 1);
    cr_assert_eq(diff_text(a, b, -1, text), 0, "%s", text);
    cr_assert(strstr(text, "1 in the first, 0 in the second") &&
                  strstr(text, "1 passed, 0 failed, 0 skipped"),
              "%s", text);
    remove_path(b);
    write_trace(fresh_path(b, "b"), "sim", ASSAY_F32, false, (kept[]){{"x", 4.5f}}, 1);
    cr_assert_eq(diff_text(a, b, 1e-3, text), 1, "%s", text);
    cr_assert_eq(diff_text(a, b, -1, text), 1, "%s", text);
    cr_assert(strstr(text, "--tolerance"), "%s", text);
    remove_path(b);
    write_trace(fresh_path(b, "b"), "sim", ASSAY_F32, false, (kept[]){{"y", 4}}, 1);
    cr_assert_eq(diff_text(a, b, -1, text), 2, "nothing in common is no pass: %s", text);
    remove_path(b);
    remove_path(a);
}

Test(parity_diff, hashes_tell_equal_from_different)
{
    char a[256], b[256], c[256], text[8192];
    write_trace(fresh_path(a, "a"), "sim", ASSAY_F32, true, (kept[]){{"x", 4}, {"y", 4}}, 2);
    write_trace(fresh_path(b, "b"), "sim", ASSAY_F32, true, (kept[]){{"x", 4}, {"y", 5}}, 2);
    write_trace(fresh_path(c, "c"), "sim", ASSAY_F32, false, (kept[]){{"x", 4}, {"y", 4}}, 2);
    cr_assert_eq(diff_text(a, a, -1, text), 0, "%s", text);
    cr_assert_eq(diff_text(a, c, -1, text), 0, "hashes against values: %s", text);
    cr_assert_eq(diff_text(a, b, -1, text), 1, "%s", text);
    cr_assert(strstr(text, "first difference: y ") && strstr(text, "another content"), "%s", text);
    cr_assert_eq(diff_text(a, b, 1e-3, text), 2, "a tolerance needs values: %s", text);
    remove_path(c);
    remove_path(b);
    remove_path(a);
}

/* Digits of XXH3 under the name of BLAKE2b: with another trace of hashes there is nothing to compare, with values they are wrong. */
Test(parity_diff, hashes_of_two_kinds_need_values_on_one_side)
{
    char a[256], b[256], c[256], index[300], text[8192];
    write_trace(fresh_path(a, "a"), "sim", ASSAY_F32, true, (kept[]){{"x", 4}}, 1);
    write_trace(fresh_path(b, "b"), "sim", ASSAY_F32, true, (kept[]){{"x", 4}}, 1);
    write_trace(fresh_path(c, "c"), "sim", ASSAY_F32, false, (kept[]){{"x", 4}}, 1);
    snprintf(index, sizeof index, "%s/index.json", a);
    json_t *header = NULL;
    must(assay_json_load(&header, index));
    json_object_set_new(header, "hash", json_string("blake2b-128"));
    cr_assert_eq(json_dump_file(header, index, 0), 0);
    json_decref(header);
    cr_assert_eq(diff_text(a, b, -1, text), 2, "%s", text);
    cr_assert(strstr(text, "hashes of two kinds (blake2b-128 and xxh3-128) and no values"), "%s", text);
    cr_assert_eq(diff_text(a, c, -1, text), 1, "%s", text);
    cr_assert(strstr(text, "another content"), "%s", text);
    remove_path(c);
    remove_path(b);
    remove_path(a);
}

Test(parity_diff, sharded_and_whole_runs_compare_as_global_tensors)
{
    char a[256], b[256], text[8192];
    const float data[4] = {1, 2, 3, 4};
    write_one(fresh_path(a, "a"), "x", 4);
    fresh_path(b, "b");
    for (int rank = 0; rank < 2; rank++) {
        assay_trace_writer *w = open_writer(b, rank, 2, "tp2");
        put_rows_f32(w, "x", 2, 2, rank, 1, data + 2 * rank);
        close_writer(w);
    }
    cr_assert_eq(diff_text(a, b, -1, text), 0, "%s", text);
    remove_path(b);
    remove_path(a);
}

Test(parity_diff, hostile_names_reach_no_terminal)
{
    char text[8192];
    cr_assert_eq(diff_pair("x\033[2J\xc2\x9b", 4.0f, "x\033[2J\xc2\x9b", 5.0f, -1.0, text), 1, "%s", text);
    cr_expect(strstr(text, "first difference: x?[2J?"), "%s", text);
    cr_expect_not(strchr(text, '\033'), "%s", text);
    cr_assert_eq(diff_pair("y\033[2J", 4.0f, "x", 4.0f, -1.0, text), 1, "%s", text);
    cr_expect_not(strchr(text, '\033'), "%s", text);
}

/* Choices of experts, ids and counts are right or wrong. */
Test(parity_diff, integers_have_no_tolerance)
{
    static const int64_t shape[1] = {3};
    static const int64_t of[2][3] = {{5, 127, 3}, {6, 127, 3}};
    char dir[2][256], text[8192];
    for (int k = 0; k < 2; k++) {
        assay_trace_writer *w = open_writer(fresh_path(dir[k], "t"), 0, 1, NULL);
        assay_trace_tensor t = tensor_of("router.indices", ASSAY_PHASE_FORWARD, ASSAY_I64, 1, shape);
        must(assay_trace_write_tensor(w, &t, of[k]));
        close_writer(w);
    }
    cr_expect_eq(diff_text(dir[0], dir[1], 1e-1, text), 1, "%s", text);
    cr_expect_eq(diff_text(dir[0], dir[0], 1e-1, text), 0, "%s", text);
    remove_path(dir[1]);
    remove_path(dir[0]);
}

/* What agrees until a run ended is no answer. */
Test(parity_diff, a_run_that_ended_early_is_not_right)
{
    char a[256], b[256], text[8192], path[512];
    write_one(fresh_path(a, "a"), "x", 4);
    write_one(fresh_path(b, "b"), "x", 4);
    snprintf(path, sizeof path, "%s/rank-00000.jsonl", b);
    FILE *f = fopen(path, "r+");
    cr_assert_not_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    char *end = strstr(text, "{\"type\":\"end\"");
    cr_assert_not_null(end, "%s", text);
    char rest[1024];
    snprintf(rest, sizeof rest, "%s", end + strlen("{\"type\":\"end\""));
    fseek(f, end - text, SEEK_SET);
    fprintf(f, "{\"type\":\"end\",\"aborted\":\"out of patience\"%s", rest);
    fclose(f);
    cr_expect_eq(diff_text(a, b, -1.0, text), 2, "%s", text);
    cr_expect(
        strstr(text,
               "NOT CHECKED: 1 tensors agree, but rank 0 of the second run ended early: out of patience"),
        "%s", text);
    remove_path(b);
    remove_path(a);
}
