/* Parts: how a task's child hands its results to the parent.  The two are one program on one machine, so numbers are
 * the bytes of memory and texts end with NUL, and a text that is that of the result before is not said again; what other programs read is
 * results.jsonl. */
#include "core/base/file.h"
#include "parity/judge/judge.h"
#include "parity/report/report_files.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Before each result: which of its texts follow, as bits, and above them whether a drawing does. */
enum { DRAWN = 1 << PARITY_TEXTS };
enum { NUMBERS = offsetof(parity_claim, text) }; /* bytes of a claim's numbers */

static bool save_claim(FILE *f, const parity_report *r, const parity_claim *c, const parity_claim *last)
{
    const parity_drawn drawn = parity_report_drawn(r, c);
    const bool draws = drawn.picture != NULL || drawn.excerpt != NULL || drawn.curve != NULL;
    uint32_t head = draws ? DRAWN : 0;
    for (int k = 0; k < PARITY_TEXTS; k++)
        head |= c->text[k] != last->text[k] ? 1u << k : 0u;
    bool ok = fwrite(&head, sizeof head, 1, f) == 1 && fwrite(c, NUMBERS, 1, f) == 1;
    for (int k = 0; k < PARITY_TEXTS && ok; k++)
        if ((head >> k & 1u) != 0)
            ok = fwrite(c->text[k], strlen(c->text[k]) + 1, 1, f) == 1;
    return ok && (!draws || parity_drawn_save(f, &drawn));
}

/* Number of results, then each of them. */
assay_status parity_report_save_part(const parity_report *r, const char *path)
{
    const int64_t n = parity_report_count(r);
    parity_claim none;
    parity_claim_init(&none);
    FILE *f = fopen(path, "wb");
    ASSAY_CHECK(f != NULL, ASSAY_IO, "%s: %s", path, strerror(errno));
    void *buffer = assay_buffer_file(f);
    bool ok = fwrite(&n, sizeof n, 1, f) == 1;
    const parity_claim *last = &none;
    for (int64_t i = 0; i < n && ok; i++) {
        const parity_claim *c = parity_report_at(r, i);
        ok = save_claim(f, r, c, last);
        last = c;
    }
    ok = fclose(f) == 0 && ok;
    const int code = errno;
    free(buffer);
    ASSAY_CHECK(ok, ASSAY_IO, "%s: write failed: %s", path, strerror(code));
    return ASSAY_OK;
}

/* One result at *at, after *c, whose texts lie in the part, too; a part that was cut off is an error. */
static assay_status read_claim(const char *path, const char **at, const char *end, parity_claim *c,
                               bool *draws)
{
    uint32_t head = 0;
    ASSAY_TRY(parity_part_take(path, at, end, &head, sizeof head));
    ASSAY_TRY(parity_part_take(path, at, end, c, NUMBERS));
    ASSAY_CHECK(head < 2 * DRAWN && c->index_ndim >= 0 && c->index_ndim <= ASSAY_MAX_DIMS, ASSAY_FORMAT,
                "%s: a result that is none", path);
    *draws = (head & DRAWN) != 0;
    for (int k = 0; k < PARITY_TEXTS; k++) {
        if ((head >> k & 1u) == 0)
            continue;
        const char *nul = memchr(*at, 0, (size_t)(end - *at));
        ASSAY_CHECK(nul != NULL && (size_t)(nul - *at) < parity_claim_text_bytes(k), ASSAY_FORMAT,
                    "%s: truncated, or a text that is too long", path);
        c->text[k] = *at;
        *at = nul + 1;
    }
    return ASSAY_OK;
}

assay_status parity_report_load_part(parity_report *r, const char *path)
{
    char *text = NULL;
    uint64_t bytes = 0;
    int64_t n = 0;
    parity_claim c;
    parity_drawing d = {.has_picture = false};
    assay_status st = ASSAY_OK;
    parity_claim_init(&c);
    ASSAY_TRY(assay_read_file(path, (uint64_t)1 << 32, &text, &bytes));
    const char *at = text, *end = text + bytes;
    ASSAY_TRY_GOTO(parity_part_take(path, &at, end, &n, sizeof n), st, done);
    for (int64_t i = 0; i < n; i++) {
        bool draws = false;
        ASSAY_TRY_GOTO(read_claim(path, &at, end, &c, &draws), st, done);
        if (draws)
            ASSAY_TRY_GOTO(parity_drawn_read(path, &at, end, &d), st, done);
        const parity_drawn drawn = parity_drawing_of(&d);
        ASSAY_TRY_GOTO(parity_report_add_claim(r, &c, draws ? &drawn : NULL), st, done);
        free(d.curve.points);
        d.curve = (parity_curve){0};
    }
    ASSAY_CHECK_GOTO(at == end, ASSAY_FORMAT, st, done, "%s: more than its %lld results", path, (long long)n);
done:
    free(d.curve.points);
    free(text);
    return st;
}
