/* A text that grows.  Out of memory ends the program: a compiler's driver has nothing else to do then. */
#ifndef ASSAY_SIM_TRANSLATE_TEXT_H
#define ASSAY_SIM_TRANSLATE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct text {
    char *at; /* always terminated */
    size_t bytes, room;
} text;

void text_append(text *t, const char *from, size_t bytes);
void text_add(text *t, const char *string);
void text_addf(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_free(text *t);
/* false: errno says why. */
bool text_read_file(text *t, const char *path);
bool text_write_file(const text *t, const char *path);

void *list_room(void *items, size_t *room, size_t count, size_t size); /* realloc for one more item */

#endif
