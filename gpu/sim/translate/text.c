#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *grown(void *old, size_t bytes)
{
    void *p = realloc(old, bytes);
    if (p == NULL) {
        fprintf(stderr, "assay-cc: out of memory (%zu bytes)\n", bytes);
        exit(2);
    }
    return p;
}

void *list_room(void *items, size_t *room, size_t count, size_t size)
{
    if (count < *room)
        return items;
    *room = *room ? 2 * *room : 64;
    return grown(items, *room * size);
}

void text_append(text *t, const char *from, size_t bytes)
{
    if (t->bytes + bytes + 1 > t->room) {
        t->room = 2 * (t->bytes + bytes) + 64;
        t->at = grown(t->at, t->room);
    }
    if (bytes)
        memcpy(t->at + t->bytes, from, bytes);
    t->bytes += bytes;
    t->at[t->bytes] = 0;
}

void text_add(text *t, const char *string)
{
    text_append(t, string, strlen(string));
}

void text_addf(text *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n > 0) {
        char *line = grown(NULL, (size_t)n + 1);
        vsnprintf(line, (size_t)n + 1, format, again);
        text_append(t, line, (size_t)n);
        free(line);
    }
    va_end(again);
}

void text_free(text *t)
{
    free(t->at);
    *t = (text){0};
}

bool text_read_file(text *t, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return false;
    char part[65536];
    size_t n;
    text_append(t, "", 0);
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        text_append(t, part, n);
    const bool good = !ferror(f);
    fclose(f);
    return good;
}

bool text_write_file(const text *t, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        return false;
    const bool good = fwrite(t->at, 1, t->bytes, f) == t->bytes;
    return (fclose(f) == 0) && good;
}
