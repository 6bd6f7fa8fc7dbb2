/* Output of ranks: whole lines only, so that two ranks never mix inside one. */
#include "core/run/launch_output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 16 };

static void emit(const assay_stream *s, FILE *out, const char *text, size_t n)
{
    if (!out)
        return;
    if (s->prefix)
        fprintf(out, "[rank %d] ", s->rank);
    fwrite(text, 1, n, out);
    fputc('\n', out);
}

static void emit_line(const assay_stream *s, const char *text, size_t n)
{
    emit(s, s->to, text, n);
    emit(s, s->log, text, n);
}

/* Forwards every whole line of s->line and keeps the rest. */
static void emit_lines(assay_stream *s, bool at_end)
{
    size_t start = 0;
    for (;;) {
        const char *feed = memchr(s->line + start, '\n', s->used - start);
        const size_t left = s->used - start;
        const size_t n = feed ? (size_t)(feed - (s->line + start)) : left;
        if (!feed && left < ASSAY_STREAM_MAX_LINE && !(at_end && left > 0))
            break;
        const size_t cut = n < ASSAY_STREAM_MAX_LINE ? n : ASSAY_STREAM_MAX_LINE;
        emit_line(s, s->line + start, cut);
        start += cut;
        if (feed && cut == n)
            start++;
    }
    memmove(s->line, s->line + start, s->used - start);
    s->used -= start;
    if (start > 0 && s->to)
        fflush(s->to);
    if (start > 0 && s->log)
        fflush(s->log);
}

static assay_status make_room(assay_stream *s)
{
    if (s->capacity - s->used >= BLOCK)
        return ASSAY_OK;
    const size_t capacity = s->used + 2 * BLOCK;
    char *grown = realloc(s->line, capacity);
    ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "rank %d: out of memory for its output", s->rank);
    s->line = grown;
    s->capacity = capacity;
    return ASSAY_OK;
}

assay_status assay_stream_pump(assay_stream *s)
{
    if (s->fd < 0)
        return ASSAY_OK;
    ASSAY_TRY(make_room(s));
    const ssize_t n = read(s->fd, s->line + s->used, BLOCK);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return ASSAY_OK;
    if (n > 0)
        s->used += (size_t)n;
    emit_lines(s, n <= 0);
    if (n <= 0) {
        close(s->fd);
        s->fd = -1;
    }
    return ASSAY_OK;
}

void assay_stream_close(assay_stream *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    free(s->line);
    s->line = NULL;
    s->used = s->capacity = 0;
}
