/* Thread-local error chain. */
#include "core/base/status.h"
#include "core/base/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024, MAX_HOPS = 32 };

typedef struct error_hop {
    const char *file, *func;
    int line;
} error_hop;

typedef struct error_chain {
    assay_status status;
    char message[MESSAGE_BYTES];
    int n_hops;    /* kept in `hops` */
    int n_dropped; /* hops beyond MAX_HOPS */
    error_hop hops[MAX_HOPS];
} error_chain;

static _Thread_local error_chain chain;

const char *assay_status_name(assay_status st)
{
    switch (st) {
#define ASSAY_STATUS_NAME(name, text)                                                                        \
    case ASSAY_##name:                                                                                       \
        return #name;
        ASSAY_STATUS_MAP(ASSAY_STATUS_NAME)
#undef ASSAY_STATUS_NAME
    }
    return "UNKNOWN";
}

const char *assay_status_text(assay_status st)
{
    switch (st) {
#define ASSAY_STATUS_TEXT(name, text)                                                                        \
    case ASSAY_##name:                                                                                       \
        return text;
        ASSAY_STATUS_MAP(ASSAY_STATUS_TEXT)
#undef ASSAY_STATUS_TEXT
    }
    return "UNKNOWN";
}

static void push_hop(const char *file, int line, const char *func)
{
    if (chain.n_hops == MAX_HOPS) {
        chain.n_dropped++;
        return;
    }
    chain.hops[chain.n_hops++] = (error_hop){.file = file, .func = func, .line = line};
}

static void start_chain(assay_status st, const char *message)
{
    chain.status = st;
    chain.n_hops = 0;
    chain.n_dropped = 0;
    snprintf(chain.message, sizeof chain.message, "%s", message);
}

/* A cut message ends in "..." so that nobody takes it for whole. */
static void mark_cut(char *text, size_t capacity, int wanted)
{
    if (wanted < 0) {
        snprintf(text, capacity, "(message could not be formatted)");
    } else if ((size_t)wanted >= capacity) {
        memcpy(text + capacity - 4, "...", 4);
    }
}

assay_status assay_fail(assay_status st, const char *file, int line, const char *func, const char *fmt, ...)
{
    /* Formatted beside first: an argument may be the current message itself. */
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    const int wanted = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    mark_cut(text, sizeof text, wanted);
    assay_clean_text(text); /* names in it may be anybody's */
    /* A failure that reports success would be believed; it is a bug of the caller. */
    const assay_status code = st == ASSAY_OK ? ASSAY_INTERNAL : st;
    start_chain(code, text);
    push_hop(file, line, func);
    return code;
}

assay_status assay_hop(assay_status st, const char *file, int line, const char *func)
{
    if (chain.status != st)
        start_chain(st, "(no message was recorded)");
    push_hop(file, line, func);
    return st;
}

assay_status assay_context(assay_status st, const char *fmt, ...)
{
    if (st == ASSAY_OK)
        return st;
    if (chain.status != st)
        start_chain(st, "(no message was recorded)");
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    const int wanted = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    mark_cut(text, sizeof text, wanted);
    const size_t used = strlen(text);
    const int more = snprintf(text + used, sizeof text - used, ": %s", chain.message);
    mark_cut(text, sizeof text, more < 0 ? more : (int)used + more);
    assay_clean_text(text);
    memcpy(chain.message, text, sizeof text);
    return st;
}

const char *assay_error_message(void)
{
    return chain.message;
}

assay_status assay_error_status(void)
{
    return chain.status;
}

void assay_error_print(FILE *out, const char *program, int with_hops)
{
    fprintf(out, "%s: error: %s (%s)\n", program, chain.message, assay_status_text(chain.status));
    if (!with_hops)
        return;
    for (int i = 0; i < chain.n_hops; i++)
        fprintf(out, "    %s %s (%s:%d)\n", i == 0 ? "at" : "from", chain.hops[i].func, chain.hops[i].file,
                chain.hops[i].line);
    if (chain.n_dropped > 0)
        fprintf(out, "    ... %d more\n", chain.n_dropped);
}

void assay_error_clear(void)
{
    chain.status = ASSAY_OK;
    chain.message[0] = '\0';
    chain.n_hops = 0;
    chain.n_dropped = 0;
}
