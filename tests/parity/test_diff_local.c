/* Laws: what a rank has for itself (kind local) is compared between two runs that are alike, rank by rank; between others it is
 * said that it is not. */
#include "tests/support/parity.h"

static void write_ranks(char dir[256], const char *layout, const char *local, const float *of_rank,
                        assay_piece_kind kind)
{
    static const float same[4] = {1, 2, 3, 4};
    static const int64_t shape[2] = {2, 2};
    fresh_path(dir, "local");
    for (int rank = 0; rank < 2; rank++) {
        assay_trace_writer *w = open_writer(dir, rank, 2, layout);
        put_f32(w, "x", ASSAY_PHASE_FORWARD, 2, 2, same);
        if (local != NULL) {
            const float data[4] = {5, 6, of_rank[rank], 8};
            assay_trace_tensor t = tensor_of(local, ASSAY_PHASE_FORWARD, ASSAY_F32, 2, shape);
            t.kind = kind;
            must(assay_trace_write_tensor(w, &t, data));
        }
        close_writer(w);
    }
}

static const parity_diff_options BITS = {.tolerance = -1.0}, LOOSE = {.tolerance = 1e-1},
                                 NOISE = {.tolerance = -1.0, .noise = PARITY_NOISE_FP32};
static const float RIGHT[2] = {7, 9}, WRONG[2] = {7, 9.5f}, CLOSE[2] = {7, 9.000001f},
                   UNWRITTEN[2] = {NAN, 9};

static const struct {
    const char *layout, *name; /* of the second run */
    const float *values;
    assay_piece_kind kind;
    const parity_diff_options *options;
    int code;
    const char *said;
} RUNS[] = {
    {"tp2", "counts", RIGHT, ASSAY_PIECE_LOCAL, &BITS, 0, "no difference in 2 tensors, bit for bit"},
    {"tp2", "counts", WRONG, ASSAY_PIECE_LOCAL, &BITS, 1,
     "first difference: counts  (phase forward, step 0, microbatch 0)\n    rank 1: "},
    {"tp2", "counts", CLOSE, ASSAY_PIECE_LOCAL, &BITS, 1, "rank 1: "},
    {"tp2", "counts", WRONG, ASSAY_PIECE_LOCAL, &LOOSE, 0, "no difference in 2 tensors"},
    {"tp2", "counts", CLOSE, ASSAY_PIECE_LOCAL, &NOISE, 0, "no difference in 2 tensors"},
    {"tp2", "counts", WRONG, ASSAY_PIECE_LOCAL, &NOISE, 1, "rank 1: "},
    {"tp2", "others", RIGHT, ASSAY_PIECE_LOCAL, &BITS, 1, "missing from the second trace"},
    {"tp2", NULL, RIGHT, ASSAY_PIECE_LOCAL, &BITS, 1, "missing from the second trace"},
    {"tp2", "counts", RIGHT, ASSAY_PIECE_SHARD, &BITS, 1,
     "a local tensor of rank 0 in the first trace, a shard tensor of rank 0 in the second"},
    {"dp2", "counts", WRONG, ASSAY_PIECE_LOCAL, &BITS, 0,
     "1 tensors are those of one rank each (local): between runs that are not alike they are not compared"},
};

Test(parity_diff_local, alike_runs_hold_the_same_on_each_rank)
{
    char a[256], b[256], text[8192];
    write_ranks(a, "tp2", "counts", RIGHT, ASSAY_PIECE_LOCAL);
    for (size_t i = 0; i < sizeof RUNS / sizeof RUNS[0]; i++) {
        write_ranks(b, RUNS[i].layout, RUNS[i].name, RUNS[i].values, RUNS[i].kind);
        cr_expect_eq(diff_traces_text(a, b, RUNS[i].options, text), RUNS[i].code, "row %zu: %s", i, text);
        cr_expect(strstr(text, RUNS[i].said), "row %zu: expected '%s' in %s", i, RUNS[i].said, text);
        cr_expect_eq(diff_traces_text(b, a, RUNS[i].options, text), RUNS[i].code, "row %zu, back: %s", i,
                     text);
        remove_path(b);
    }
    remove_path(a);
}

/* A rank whose own agrees has no first difference there. */
Test(parity_diff_local, the_ranks_that_differ_are_named)
{
    static const float both[2] = {7.5f, 9.5f}, first[2] = {7.5f, 9};
    static const struct {
        const float *values;
        const char *says, *not ;
    } rows[] = {{WRONG, "    rank 1: ", "first difference in counts"},
                {first, "    rank 0: ", "first difference in counts"},
                {both, "  rank 1: first difference in counts", "no difference"}};
    char a[256], b[256], text[8192];
    write_ranks(a, "tp2", "counts", RIGHT, ASSAY_PIECE_LOCAL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_ranks(b, "tp2", "counts", rows[i].values, ASSAY_PIECE_LOCAL);
        cr_expect_eq(diff_traces_text(a, b, &BITS, text), 1, "row %zu: %s", i, text);
        cr_expect(strstr(text, rows[i].says) != NULL && strstr(text, rows[i].not ) == NULL, "row %zu: %s", i,
                  text);
        remove_path(b);
    }
    remove_path(a);
}

/* Memory that nobody wrote yet is recorded as it is: a pattern of NaNs, the same in both runs. */
Test(parity_diff_local, the_same_bits_are_the_same)
{
    static const parity_diff_options *const options[] = {&BITS, &LOOSE, &NOISE};
    char a[256], b[256], text[8192];
    write_ranks(a, "tp2", "counts", UNWRITTEN, ASSAY_PIECE_LOCAL);
    write_ranks(b, "tp2", "counts", RIGHT, ASSAY_PIECE_LOCAL);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(diff_traces_text(a, a, options[i], text), 0, "%d: %s", i, text);
        cr_expect_eq(diff_traces_text(a, b, options[i], text), 1, "%d: %s", i, text);
        cr_expect_eq(diff_traces_text(b, a, options[i], text), 1, "%d, back: %s", i, text);
    }
    remove_path(b);
    remove_path(a);
}
