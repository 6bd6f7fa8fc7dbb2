/* Forwarding the output of ranks line by line.  Used by launch.c only. */
#ifndef ASSAY_CORE_LAUNCH_OUTPUT_H
#define ASSAY_CORE_LAUNCH_OUTPUT_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stddef.h>

/* One stream (stdout or stderr) of one rank: what has come since the last line feed waits in `line`. */
typedef struct assay_stream {
    int fd; /* read end, non-blocking; -1 once closed */
    int rank;
    FILE *to;  /* ours; NULL: nowhere */
    FILE *log; /* NULL: none */
    bool prefix;
    char *line;
    size_t used, capacity;
} assay_stream;

/* A line longer than this is broken with a line feed: a rank cannot make us keep all it writes. */
enum { ASSAY_STREAM_MAX_LINE = 1 << 20 };

/* Reads what is there and forwards whole lines.  At the end of the stream an unfinished line is completed
 * with a line feed and fd is closed. */
assay_status assay_stream_pump(assay_stream *s);
void assay_stream_close(assay_stream *s);

#endif
