/* Parts: how a task's child hands its results to the parent.  The two are one program on one machine, so numbers are
 * the bytes of memory and texts end with NUL; what other programs read is results.jsonl. */
#include "core/base/file.h"
#include "parity/report/report_files.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Texts of a result; all other members are numbers. */
#define TEXT(member)                                                                                         \
    {                                                                                                        \
        offsetof(parity_result, member), sizeof((parity_result *)NULL)->member                               \
    }
static const struct text_member {
    size_t at, bytes;
} texts[] = {TEXT(case_name), TEXT(engine),    TEXT(tier),    TEXT(layout),
             TEXT(precision), TEXT(variants),  TEXT(tensor),  TEXT(op),
             TEXT(instance),  TEXT(diagnosis), TEXT(message), TEXT(reproduce)};
#undef TEXT
enum { N_TEXTS = sizeof texts / sizeof *texts };

/* The numbers of a result. */
typedef struct numbers {
    parity_check check;
    assay_phase phase;
    parity_verdict verdict;
    int rank, index_ndim, variant;
    int64_t step, microbatch, count, n_bad, n_ambiguous;
    double ratio, share, found, expected, allowance;
    bool is_distance;
    int64_t index[ASSAY_MAX_DIMS];
} numbers;

static numbers numbers_of(const parity_result *r)
{
    numbers x;
    memset(&x, 0, sizeof x); /* padding is written, too */
    x.check = r->check, x.phase = r->phase, x.verdict = r->verdict;
    x.rank = r->rank, x.index_ndim = r->index_ndim, x.variant = r->variant;
    x.step = r->step, x.microbatch = r->microbatch, x.count = r->count;
    x.n_bad = r->n_bad, x.n_ambiguous = r->n_ambiguous;
    x.share = r->share, x.is_distance = r->is_distance;
    x.ratio = r->ratio, x.found = r->found, x.expected = r->expected, x.allowance = r->allowance;
    memcpy(x.index, r->index, sizeof x.index);
    return x;
}

static void set_numbers(parity_result *r, const numbers *x)
{
    r->check = x->check, r->phase = x->phase, r->verdict = x->verdict;
    r->rank = x->rank, r->index_ndim = x->index_ndim, r->variant = x->variant;
    r->step = x->step, r->microbatch = x->microbatch, r->count = x->count;
    r->n_bad = x->n_bad, r->n_ambiguous = x->n_ambiguous;
    r->share = x->share, r->is_distance = x->is_distance;
    r->ratio = x->ratio, r->found = x->found, r->expected = x->expected, r->allowance = x->allowance;
    memcpy(r->index, x->index, sizeof r->index);
}

/* Number of results, then for each its numbers, its texts and what is drawn of it. */
assay_status parity_report_save_part(const parity_report *r, const char *path)
{
    const int64_t n = parity_report_count(r);
    FILE *f = fopen(path, "wb");
    ASSAY_CHECK(f != NULL, ASSAY_IO, "%s: %s", path, strerror(errno));
    void *buffer = assay_buffer_file(f);
    bool ok = fwrite(&n, sizeof n, 1, f) == 1;
    for (int64_t i = 0; i < n && ok; i++) {
        const parity_result *x = parity_report_at(r, i);
        const numbers all = numbers_of(x);
        ok = fwrite(&all, sizeof all, 1, f) == 1;
        for (int k = 0; k < N_TEXTS && ok; k++) {
            const char *text = (const char *)x + texts[k].at;
            ok = fwrite(text, strlen(text) + 1, 1, f) == 1;
        }
        const parity_drawn drawn = parity_report_drawn(r, x);
        ok = ok && parity_drawn_save(f, &drawn);
    }
    ok = fclose(f) == 0 && ok;
    const int code = errno;
    free(buffer);
    ASSAY_CHECK(ok, ASSAY_IO, "%s: write failed: %s", path, strerror(code));
    return ASSAY_OK;
}

/* One result at *at; a part that was cut off is an error. */
static assay_status read_result(const char *path, const char **at, const char *end, parity_result *r)
{
    numbers all;
    parity_result_init(r);
    ASSAY_CHECK((size_t)(end - *at) >= sizeof all, ASSAY_FORMAT, "%s: truncated", path);
    memcpy(&all, *at, sizeof all);
    *at += sizeof all;
    set_numbers(r, &all);
    for (int k = 0; k < N_TEXTS; k++) {
        const char *nul = memchr(*at, 0, (size_t)(end - *at));
        ASSAY_CHECK(nul != NULL && (size_t)(nul - *at) < texts[k].bytes, ASSAY_FORMAT,
                    "%s: truncated, or a text that is too long", path);
        memcpy((char *)r + texts[k].at, *at, (size_t)(nul - *at) + 1);
        *at = nul + 1;
    }
    return ASSAY_OK;
}

assay_status parity_report_load_part(parity_report *r, const char *path)
{
    char *text = NULL;
    uint64_t bytes = 0;
    int64_t n = 0;
    parity_drawing d = {.has_picture = false};
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_read_file(path, (uint64_t)1 << 32, &text, &bytes));
    const char *at = text + sizeof n, *end = text + bytes;
    ASSAY_CHECK_GOTO(bytes >= sizeof n, ASSAY_FORMAT, st, done, "%s: truncated", path);
    memcpy(&n, text, sizeof n);
    for (int64_t i = 0; i < n; i++) {
        parity_result x;
        ASSAY_TRY_GOTO(read_result(path, &at, end, &x), st, done);
        ASSAY_TRY_GOTO(parity_drawn_read(path, &at, end, &d), st, done);
        const parity_drawn drawn = parity_drawing_of(&d);
        ASSAY_TRY_GOTO(parity_report_add_drawn(r, &x, &drawn), st, done);
        free(d.curve.points);
        d.curve = (parity_curve){0};
    }
    ASSAY_CHECK_GOTO(at == end, ASSAY_FORMAT, st, done, "%s: more than its %lld results", path, (long long)n);
done:
    free(d.curve.points);
    free(text);
    return st;
}
