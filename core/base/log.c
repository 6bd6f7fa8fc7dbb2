/* Progress lines and small file operations. */
#include "core/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TITLE_BYTES = 64, LABEL_BYTES = 96 };
static const double live_interval_s = 0.1, plain_interval_s = 5.0;

struct assay_progress {
    FILE *out;
    bool live; /* `out` is a terminal */
    bool live_line_shown;
    bool last_shown; /* the state in `done` is already on the screen */
    char title[TITLE_BYTES], label[LABEL_BYTES];
    int64_t total, done;
    double started, shown_at;
};

double assay_monotonic_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

assay_status assay_progress_create(assay_progress **p, FILE *out, const char *title, int64_t total)
{
    *p = NULL;
    ASSAY_CHECK(total >= 0, ASSAY_INVALID_ARGUMENT, "%s: progress of %lld items", title, (long long)total);
    assay_progress *q = calloc(1, sizeof *q);
    ASSAY_CHECK(q != NULL, ASSAY_OUT_OF_MEMORY, "progress: %zu bytes", sizeof *q);
    q->out = out;
    q->live = isatty(fileno(out)) == 1;
    q->last_shown = true;
    snprintf(q->title, sizeof q->title, "%s", title);
    q->total = total;
    q->started = assay_monotonic_s();
    q->shown_at = q->started;
    *p = q;
    return ASSAY_OK;
}

static void format_line(const assay_progress *p, double now, char *out, size_t capacity)
{
    const double elapsed = now - p->started;
    const double rate = elapsed > 0.0 ? (double)p->done / elapsed : 0.0;
    int used;
    if (p->total > 0)
        used = snprintf(out, capacity, "%s %lld/%lld (%lld%%)", p->title, (long long)p->done,
                        (long long)p->total, (long long)(100.0 * (double)p->done / (double)p->total));
    else
        used = snprintf(out, capacity, "%s %lld", p->title, (long long)p->done);
    if (used >= 0 && (size_t)used < capacity && rate > 0.0)
        used += snprintf(out + used, capacity - (size_t)used, "  %.3g/s", rate);
    if (used >= 0 && (size_t)used < capacity && rate > 0.0 && p->total > p->done) {
        const double left = (double)(p->total - p->done) / rate;
        if (left < 360000.0)
            used += snprintf(out + used, capacity - (size_t)used, "  %lld:%02lld left", (long long)left / 60,
                             (long long)left % 60);
    }
    if (used >= 0 && (size_t)used < capacity && p->label[0] != '\0')
        snprintf(out + used, capacity - (size_t)used, "  %s", p->label);
}

static void show(assay_progress *p, double now)
{
    char line[TITLE_BYTES + LABEL_BYTES + 128];
    format_line(p, now, line, sizeof line);
    if (p->live) {
        fprintf(p->out, "\r\033[K%s", line);
        p->live_line_shown = true;
    } else {
        fprintf(p->out, "%s\n", line);
    }
    fflush(p->out);
    p->shown_at = now;
    p->last_shown = true;
}

void assay_progress_update(assay_progress *p, int64_t done, const char *label)
{
    if (p == NULL)
        return;
    p->done = done;
    snprintf(p->label, sizeof p->label, "%s", label ? label : "");
    p->last_shown = false;
    const double now = assay_monotonic_s();
    if (now - p->shown_at >= (p->live ? live_interval_s : plain_interval_s))
        show(p, now);
}

void assay_progress_print(assay_progress *p, const char *fmt, ...)
{
    FILE *out = p ? p->out : stderr;
    if (p != NULL && p->live_line_shown)
        fputs("\r\033[K", out);
    va_list args;
    va_start(args, fmt);
    vfprintf(out, fmt, args);
    va_end(args);
    fputc('\n', out);
    if (p != NULL && p->live_line_shown)
        show(p, assay_monotonic_s());
    fflush(out);
}

void assay_progress_destroy(assay_progress *p)
{
    if (p == NULL)
        return;
    if (!p->last_shown)
        show(p, assay_monotonic_s());
    if (p->live_line_shown)
        fputc('\n', p->out);
    fflush(p->out);
    free(p);
}
