/* What the ranks of a save tell each other by files of the staged folder: pieces and hashes, "pieces-00003.json". */
#include "core/base/file.h"
#include "core/files/checkpoint_internal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void assay_checkpoint_rank_file(char *out, const char *dir, const char *word, int rank)
{
    snprintf(out, ASSAY_CHECKPOINT_PATH + 64, "%s/%s-%05d.json", dir, word, rank);
}

void assay_checkpoint_piece_hash(const void *data, int64_t bytes, char out[ASSAY_HASH_HEX])
{
    assay_hash_tensor_as(ASSAY_HASH_XXH3, ASSAY_U8, &bytes, 1, data, (size_t)bytes, out);
}

void assay_checkpoint_lock_file(char *out, const char *dir, int rank)
{
    snprintf(out, ASSAY_CHECKPOINT_PATH + 64, "%s/writer-%05d.lock", dir, rank);
}

assay_status assay_checkpoint_rank_save(const assay_checkpoint_writer *w, const char *word,
                                        assay_json_text *said)
{
    char path[ASSAY_CHECKPOINT_PATH + 64], part[ASSAY_CHECKPOINT_PATH + 72];
    assay_checkpoint_rank_file(path, w->tmp, word, w->rank);
    snprintf(part, sizeof part, "%s.part", path);
    ASSAY_TRY(assay_json_text_end(said, path));
    /* Read by the other ranks before publication, which removes it: nothing to sync. */
    FILE *f = fopen(part, "wbe");
    ASSAY_CHECK(f != NULL, ASSAY_IO, "%s: cannot write: %s", part, strerror(errno));
    int failed = fwrite(said->text, 1, said->n, f) == said->n ? 0 : errno;
    if (fclose(f) != 0 && failed == 0)
        failed = errno;
    ASSAY_CHECK(failed == 0, ASSAY_IO, "%s: cannot write: %s", part, strerror(failed));
    ASSAY_CHECK(rename(part, path) == 0, ASSAY_IO, "%s: cannot write: %s", path, strerror(errno));
    return ASSAY_OK;
}

assay_status assay_checkpoint_rank_read(const assay_checkpoint_writer *w, const char *word, int rank,
                                        char **text, uint64_t *bytes)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    assay_checkpoint_rank_file(path, w->tmp, word, rank);
    ASSAY_CHECK(access(path, R_OK) == 0, ASSAY_NOT_FOUND,
                "%s: rank %d did not %s its part of the checkpoint (%s)", path, rank,
                strcmp(word, ASSAY_RANK_PIECES) == 0 ? "finish" : "seal", strerror(errno));
    return assay_read_file(path, ASSAY_JSON_MAX_BYTES, text, bytes);
}

assay_status assay_checkpoint_rank_load(const assay_checkpoint_writer *w, const char *word, int rank,
                                        json_t **said)
{
    char path[ASSAY_CHECKPOINT_PATH + 64], *text = NULL;
    uint64_t bytes = 0;
    *said = NULL;
    assay_checkpoint_rank_file(path, w->tmp, word, rank);
    ASSAY_TRY(assay_checkpoint_rank_read(w, word, rank, &text, &bytes));
    const assay_status st = assay_json_parse(said, text, (size_t)bytes, path);
    free(text);
    return st;
}
