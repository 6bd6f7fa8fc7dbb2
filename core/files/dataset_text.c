/* Text documents: files and folders, tokens of bytes or of a byte-level BPE.  A folder gives every regular text file below it,
 * sorted by path as bytes (not by locale), so that two machines agree on the order.  Skipped in folders:
 * names that begin with a dot, symbolic links, empty files, binary files (a NUL byte). */
#include "core/files/dataset_internal.h"

#include "core/base/file.h"
#include "core/files/tokenizer.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 32 };
#define MAX_FILE_BYTES ((uint64_t)1 << 32)

typedef struct path_list {
    int64_t n, capacity;
    char **paths;
} path_list;

static void free_paths(path_list *list)
{
    for (int64_t i = 0; i < list->n; i++)
        free(list->paths[i]);
    free(list->paths);
}

static assay_status add_path(path_list *list, const char *path)
{
    if (list->n == list->capacity) {
        const int64_t capacity = list->capacity ? 2 * list->capacity : 64;
        char **grown = realloc(list->paths, (size_t)capacity * sizeof *grown);
        ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
        list->paths = grown;
        list->capacity = capacity;
    }
    list->paths[list->n] = strdup(path);
    ASSAY_CHECK(list->paths[list->n], ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    list->n++;
    return ASSAY_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static assay_status collect(path_list *list, const char *folder, int depth)
{
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(depth < MAX_DEPTH, ASSAY_LIMIT, "%s: folders nested deeper than %d", folder, MAX_DEPTH);
    DIR *dir = opendir(folder);
    ASSAY_CHECK(dir, ASSAY_IO, "%s: cannot open: %s", folder, strerror(errno));
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        char path[PATH_MAX];
        struct stat sb;
        if (e->d_name[0] == '.')
            continue;
        const int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ASSAY_CHECK_GOTO(n > 0 && (size_t)n < sizeof path, ASSAY_LIMIT, st, done,
                         "%.200s: the path is too long", folder);
        ASSAY_CHECK_GOTO(lstat(path, &sb) == 0, ASSAY_IO, st, done, "%s: cannot stat: %s", path,
                         strerror(errno));
        if (S_ISDIR(sb.st_mode))
            ASSAY_TRY_GOTO(collect(list, path, depth + 1), st, done);
        else if (S_ISREG(sb.st_mode))
            ASSAY_TRY_GOTO(add_path(list, path), st, done);
    }
done:
    closedir(dir);
    return st;
}

static assay_status reserve(assay_dataset *d, const char *path, int64_t more)
{
    const int64_t needed = d->n_tokens + more;
    if (needed <= d->text_capacity)
        return ASSAY_OK;
    const int64_t capacity = needed > 2 * d->text_capacity ? needed : 2 * d->text_capacity;
    int32_t *grown = realloc(d->text, (size_t)capacity * sizeof *grown);
    ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "%s: out of memory for %lld tokens", path, (long long)capacity);
    d->text = grown;
    d->text_capacity = capacity;
    return ASSAY_OK;
}

static assay_status append_tokens(assay_dataset *d, const char *path, const char *text, uint64_t bytes)
{
    assay_tokens tokens = {0};
    assay_status st = ASSAY_OK;
    if (d->how.bpe == NULL) {
        ASSAY_TRY(reserve(d, path, (int64_t)bytes));
        for (uint64_t i = 0; i < bytes; i++)
            d->text[d->n_tokens++] = (uint8_t)text[i];
        return ASSAY_OK;
    }
    ASSAY_TRY_GOTO(assay_bpe_encode(d->how.bpe, text, bytes, true, &tokens), st, done);
    ASSAY_TRY_GOTO(reserve(d, path, tokens.n), st, done);
    for (int64_t i = 0; i < tokens.n; i++) /* ids are below 2^31: core/files/bpe_read.c */
        d->text[d->n_tokens++] = (int32_t)tokens.ids[i];
done:
    assay_tokens_free(&tokens);
    return st == ASSAY_OK ? st : assay_context(st, "%s", path);
}

static assay_status append_document(assay_dataset *d, const char *path, const char *text, uint64_t bytes)
{
    ASSAY_TRY(append_tokens(d, path, text, bytes));
    ASSAY_TRY(reserve(d, path, 1));
    d->text[d->n_tokens++] = (int32_t)d->how.eod;
    d->n_documents++;
    d->vocab = d->how.bpe != NULL ? assay_bpe_vocab(d->how.bpe) : ASSAY_BYTE_VOCAB;
    return ASSAY_OK;
}

/* *added tells whether it was text.  In a folder, empty and binary files are passed over. */
static assay_status add_file(assay_dataset *d, const char *path, bool in_folder, bool *added)
{
    char *text = NULL;
    uint64_t bytes = 0;
    assay_status st = ASSAY_OK;
    *added = false;
    ASSAY_TRY(assay_read_file(path, MAX_FILE_BYTES, &text, &bytes));
    const bool binary = memchr(text, '\0', (size_t)bytes) != NULL;
    ASSAY_CHECK_GOTO(in_folder || bytes > 0, ASSAY_INVALID_ARGUMENT, st, done, "%s: the token file is empty",
                     path);
    ASSAY_CHECK_GOTO(in_folder || !binary, ASSAY_FORMAT, st, done,
                     "%s: expected a text file, found a NUL byte in it", path);
    if (bytes > 0 && !binary) {
        ASSAY_TRY_GOTO(append_document(d, path, text, bytes), st, done);
        *added = true;
    }
done:
    free(text);
    return st;
}

assay_status assay_dataset_add_text(assay_dataset *d, const char *path)
{
    bool added = false;
    return add_file(d, path, false, &added);
}

assay_status assay_dataset_add_text_folder(assay_dataset *d, const char *folder)
{
    path_list list = {0};
    assay_status st = ASSAY_OK;
    int64_t n_added = 0;
    ASSAY_TRY_GOTO(collect(&list, folder, 0), st, done);
    if (list.n > 0)
        qsort(list.paths, (size_t)list.n, sizeof *list.paths, compare_paths);
    for (int64_t i = 0; i < list.n; i++) {
        bool added = false;
        ASSAY_TRY_GOTO(add_file(d, list.paths[i], true, &added), st, done);
        n_added += added;
    }
    ASSAY_CHECK_GOTO(n_added > 0, ASSAY_INVALID_ARGUMENT, st, done,
                     "%s: no text in this folder (%lld files, all empty or binary)", folder,
                     (long long)list.n);
done:
    free_paths(&list);
    return st;
}
