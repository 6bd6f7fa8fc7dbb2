/* Headers as our own writer puts them, read without a JSON tree: a rank of a traced step has a thousand tensors.  Anything else that is legal, and everything that is not, is left to the JSON reader (tensorfile.c), which says
 * what is wrong. */
#include "core/base/hash.h"
#include "core/base/json_cursor.h"
#include "core/files/tensorfile_internal.h"

#include <stdlib.h>

enum { NAME_ROOM = 4096, FIRST_ROOM = 64, MOST_STEPS = 64 };

/* {"format":"pt"} */
static void metadata(assay_cursor *c, json_t **out)
{
    char key[64], value[256];
    json_t *all = json_object();
    assay_cursor_expect(c, "{");
    while (c->good && !assay_cursor_is(c, "}")) {
        assay_cursor_expect(c, json_object_size(all) > 0 ? ",\"" : "\"");
        assay_cursor_string(c, key, sizeof key);
        assay_cursor_expect(c, ":\"");
        assay_cursor_string(c, value, sizeof value);
        c->good = c->good && json_object_get(all, key) == NULL &&
                  json_object_set_new(all, key, json_string(value)) == 0;
    }
    *out = all;
}

static void members(assay_cursor *c, assay_tensor_entry *e)
{
    int64_t offsets[2] = {-1, -1};
    assay_cursor_expect(c, ":{\"dtype\":\"");
    assay_cursor_dtype(c, &e->info.dtype);
    assay_cursor_expect(c, ",\"shape\":");
    e->info.ndim = assay_cursor_integers(c, e->info.shape, ASSAY_TENSOR_MAX_DIMS);
    for (int d = 0; d < e->info.ndim; d++)
        c->good = c->good && e->info.shape[d] >= 0;
    assay_cursor_expect(c, ",\"data_offsets\":");
    const int n = assay_cursor_integers(c, offsets, 2);
    assay_cursor_expect(c, "}");
    c->good = c->good && n == 2 && offsets[0] >= 0 && offsets[1] >= 0;
    e->begin = offsets[0];
    e->end = offsets[1];
}

static bool grow(assay_tensor_header *h, int64_t *room)
{
    if (h->n < *room)
        return true;
    const int64_t more = *room > 0 ? 2 * *room : FIRST_ROOM;
    assay_tensor_entry *grown = realloc(h->entries, (size_t)more * sizeof *grown);
    if (grown == NULL)
        return false;
    h->entries = grown;
    *room = more;
    return true;
}

/* Whether no name comes twice.  Of names that somebody chose to fall into one place it says no. */
static bool distinct(const assay_tensor_header *h)
{
    size_t room = 16;
    while (room < 2 * (size_t)h->n)
        room *= 2;
    const char **seen = calloc(room, sizeof *seen);
    bool all = seen != NULL;
    for (int64_t i = 0; i < h->n && all; i++) {
        const char *name = h->entries[i].info.name;
        size_t at = (size_t)assay_text_hash(name) & (room - 1);
        for (int steps = 0; steps < MOST_STEPS && seen[at] != NULL && strcmp(seen[at], name) != 0; steps++)
            at = (at + 1) & (room - 1);
        all = seen[at] == NULL;
        seen[at] = name;
    }
    free(seen);
    return all;
}

static void tensors(assay_cursor *c, assay_tensor_header *h)
{
    char name[NAME_ROOM];
    int64_t room = 0;
    while (c->good && !assay_cursor_is(c, "}")) {
        assay_cursor_expect(c, h->n > 0 || h->metadata != NULL ? ",\"" : "\"");
        assay_cursor_string(c, name, sizeof name);
        c->good = c->good && strcmp(name, "__metadata__") != 0 && grow(h, &room);
        if (!c->good)
            return;
        assay_tensor_entry *e = &h->entries[h->n];
        *e = (assay_tensor_entry){.info.name = strdup(name)};
        c->good = e->info.name != NULL;
        h->n += c->good;
        members(c, e);
    }
}

void assay_tensor_header_free(assay_tensor_header *h)
{
    for (int64_t i = 0; i < h->n; i++)
        free((char *)(uintptr_t)h->entries[i].info.name);
    free(h->entries);
    json_decref(h->metadata);
    *h = (assay_tensor_header){0};
}

bool assay_tensor_header_from_text(const char *text, size_t bytes, assay_tensor_header *h)
{
    assay_cursor c = {.at = text, .end = text + bytes, .good = true};
    *h = (assay_tensor_header){0};
    while (c.end > c.at && c.end[-1] == ' ') /* so that the data begins at a multiple of 8 */
        c.end--;
    assay_cursor_expect(&c, "{");
    if (assay_cursor_is(&c, "\"__metadata__\":"))
        metadata(&c, &h->metadata);
    tensors(&c, h);
    if (c.good && c.at == c.end && distinct(h))
        return true;
    assay_tensor_header_free(h);
    return false;
}
