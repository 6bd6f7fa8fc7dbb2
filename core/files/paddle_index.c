/* The files of a folder of PaddleNLP's: what lies there, what its indexes name, and which of them are tensors. */
#include "core/files/paddle_internal.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void assay_paddle_say(const assay_paddle *p, bool wrong, const char *format, ...)
{
    char text[ASSAY_PADDLE_TEXT];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (p->sink != NULL)
        p->sink(p->user, wrong, text);
}

void assay_paddle_say_error(const assay_paddle *p)
{
    assay_paddle_say(p, true, "%s", assay_error_message());
    assay_error_clear();
}

assay_status assay_paddle_path(const assay_paddle *p, const char *name, char out[ASSAY_PADDLE_PATH + 300])
{
    const int n = snprintf(out, ASSAY_PADDLE_PATH + 300, "%s/%s", p->dir, name);
    ASSAY_CHECK(n > 0 && n < ASSAY_PADDLE_PATH + 300, ASSAY_LIMIT, "%s: the path is too long", p->dir);
    return ASSAY_OK;
}

/* --- what lies there ---------------------------------------------------------------------------------------- */
static int compare(const void *pa, const void *pb)
{
    return strcmp(*(char *const *)pa, *(char *const *)pb);
}

static assay_status list_folder(assay_paddle *p)
{
    DIR *d = opendir(p->dir);
    int64_t capacity = 0;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(d != NULL, ASSAY_NOT_FOUND, "%s: %s", p->dir, strerror(errno));
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (p->n_listing == capacity) {
            capacity = capacity > 0 ? 2 * capacity : 32;
            char **more = realloc(p->listing, (size_t)capacity * sizeof *more);
            ASSAY_CHECK_GOTO(more != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: names", p->dir);
            p->listing = more;
        }
        p->listing[p->n_listing] = strdup(e->d_name);
        ASSAY_CHECK_GOTO(p->listing[p->n_listing] != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: names",
                         p->dir);
        p->n_listing++;
    }
    qsort(p->listing, (size_t)p->n_listing, sizeof *p->listing, compare);
done:
    closedir(d);
    return st;
}

bool assay_paddle_listed(const assay_paddle *p, const char *name)
{
    return p->n_listing > 0 &&
           bsearch(&name, p->listing, (size_t)p->n_listing, sizeof *p->listing, compare) != NULL;
}

/* What is not read at all: pickled weights and states, whose loading executes what they say, and adapters. */
static assay_status refuse_unread(const assay_paddle *p)
{
    static const char *const names[] = {"model_state.pdparams", "optimizer.pdopt",
                                        "peft_model.safetensors.index.json", "prefix_config.json",
                                        "lora_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ASSAY_CHECK(
            !assay_paddle_listed(p, names[i]), ASSAY_UNSUPPORTED, "%s/%s: is not read: %s", p->dir, names[i],
            i < 2 ? "it is pickled, and reading a pickle executes what it says; let PaddleNLP save with "
                    "--unified_checkpoint 1"
                  : "adapters of PaddleNLP's; merge them into the model there");
    for (int64_t i = 0; i < p->n_listing; i++) {
        const char *name = p->listing[i], *dot = strrchr(name, '.');
        ASSAY_CHECK(dot == NULL || (strcmp(dot, ".pdopt") != 0 && !(strcmp(dot, ".pdparams") == 0 &&
                                                                    strncmp(name, "model_state", 11) == 0)),
                    ASSAY_UNSUPPORTED,
                    "%s/%s: is not read: it is pickled, and reading a pickle executes what it says; let "
                    "PaddleNLP save "
                    "with --unified_checkpoint 1",
                    p->dir, name);
    }
    return ASSAY_OK;
}

/* --- names of shards ---------------------------------------------------------------------------------------- */
/* Reads `word` and then exactly `digits` digits at *at; moves *at behind them. */
static bool word_number(const char **at, const char *word, int digits, int *out)
{
    const size_t n = strlen(word);
    if (strncmp(*at, word, n) != 0)
        return false;
    *out = 0;
    for (int i = 0; i < digits; i++) {
        const char c = (*at)[n + (size_t)i];
        if (c < '0' || c > '9')
            return false;
        *out = *out * 10 + (c - '0');
    }
    *at += n + (size_t)digits;
    return true;
}

/* "optimizer-00002-of-00004.safetensors" -> 2 and 4. */
static bool shard_number(const char *name, const char *word, int *number, int *of)
{
    const size_t n = strlen(word);
    const char *at = name + n;
    return strncmp(name, word, n) == 0 && word_number(&at, "-", 5, number) &&
           word_number(&at, "-of-", 5, of) && strcmp(at, ".safetensors") == 0;
}

/* "optimizer.tp01_pp00_shard01.safetensors" -> tp 1.  False: another name. */
static bool rank_suffix(const char *name, const char *word, int *tp)
{
    const size_t n = strlen(word);
    int other;
    if (strncmp(name, word, n) != 0 || name[n] != '.')
        return false;
    *tp = -1;
    for (const char *at = name + n + 1;; at++) {
        if (!word_number(&at, "tp", 2, tp) && !word_number(&at, "pp", 2, &other) &&
            !word_number(&at, "shard", 2, &other))
            return false;
        if (*at != '_')
            return strcmp(at, ".safetensors") == 0;
    }
}

/* --- files of tensors --------------------------------------------------------------------------------------- */
assay_paddle_file *assay_paddle_file_named(const assay_paddle *p, assay_paddle_files kind, const char *name)
{
    const json_t *at = name != NULL ? json_object_get(p->by_name[kind], name) : NULL;
    return at != NULL ? &p->files[json_integer_value(at)] : NULL;
}

static assay_status add_file(assay_paddle *p, assay_paddle_files kind, const char *name, int tp)
{
    char path[ASSAY_PADDLE_PATH + 300];
    struct stat sb;
    if (assay_paddle_file_named(p, kind, name) != NULL)
        return ASSAY_OK;
    if (p->by_name[kind] == NULL)
        p->by_name[kind] = json_object();
    /* A name in the folder need not be UTF-8. */
    ASSAY_CHECK(json_object_set_new_nocheck(p->by_name[kind], name, json_integer(p->n_files)) == 0,
                ASSAY_OUT_OF_MEMORY, "%s: files", p->dir);
    if ((p->n_files & (p->n_files - 1)) == 0) { /* none, or a power of two: full */
        const size_t room = p->n_files > 0 ? 2 * (size_t)p->n_files : 1;
        assay_paddle_file *more = realloc(p->files, room * sizeof *more);
        ASSAY_CHECK(more != NULL, ASSAY_OUT_OF_MEMORY, "%s: files", p->dir);
        p->files = more;
    }
    assay_paddle_file *f = &p->files[p->n_files++];
    *f = (assay_paddle_file){.kind = kind, .tp = tp};
    snprintf(f->name, sizeof f->name, "%s", name);
    p->facts.files[kind]++;
    ASSAY_TRY(assay_paddle_path(p, name, path));
    if (lstat(path, &sb) != 0) {
        assay_paddle_say(p, true, "%s: missing: %s.safetensors.index.json names it", name,
                         assay_paddle_words[kind]);
        return ASSAY_OK;
    }
    if (!S_ISREG(sb.st_mode)) {
        assay_paddle_say(p, true, "%s: expected a regular file (a link could lead out of the folder)", name);
        return ASSAY_OK;
    }
    if (assay_tensorfile_open(&f->file, path) != ASSAY_OK) {
        f->file = NULL;
        assay_paddle_say_error(p);
        return ASSAY_OK;
    }
    for (int64_t i = 0; i < assay_tensorfile_count(f->file); i++)
        p->facts.bytes[kind] += assay_tensorfile_at(f->file, i)->bytes;
    p->facts.tensors[kind] += assay_tensorfile_count(f->file);
    return ASSAY_OK;
}

/* The index is untrusted: a shard is a plain file name in the same folder. */
static bool plain_name(const json_t *value)
{
    const char *name = json_string_value(value);
    return name != NULL && name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL &&
           strlen(name) < sizeof((assay_paddle_file *)0)->name;
}

static assay_status add_mapped(assay_paddle *p, assay_paddle_files kind, json_t *map)
{
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        if (!plain_name(value)) {
            assay_paddle_say(
                p, true,
                "%s.safetensors.index.json: '%.160s' is in '%.160s', expected a plain file name in "
                "the same folder",
                assay_paddle_words[kind], key,
                json_is_string(value) ? json_string_value(value) : "no string");
            continue;
        }
        ASSAY_TRY(add_file(p, kind, json_string_value(value), -1));
    }
    return ASSAY_OK;
}

/* Shards that the index does not name, and how many ranks the names speak of. */
static void check_shards(const assay_paddle *p, assay_paddle_files kind)
{
    const char *word = assay_paddle_words[kind];
    int first_of = 0, here = 0;
    for (int64_t i = 0; i < p->n_listing; i++) {
        int number, of;
        if (!shard_number(p->listing[i], word, &number, &of))
            continue;
        here++;
        if (assay_paddle_file_named(p, kind, p->listing[i]) == NULL)
            assay_paddle_say(p, true,
                             "%s: stale: %s.safetensors.index.json does not name it, so PaddleNLP passes it "
                             "over without a word",
                             p->listing[i], word);
        if (first_of != 0 && of != first_of)
            assay_paddle_say(p, true, "%s: of a save of %d shards, others here are of one of %d",
                             p->listing[i], of, first_of);
        first_of = first_of == 0 ? of : first_of;
    }
    if (first_of > here)
        assay_paddle_say(p, true, "%s-*-of-%05d.safetensors: %d of %d shards are here", word, first_of, here,
                         first_of);
    if (here > 1)
        assay_paddle_say(p, false,
                         "%s: %d shards: PaddleNLP on one process reads the first alone and says nothing "
                         "(reshape with more than one process, or assay ckpt convert)",
                         word, here);
}

static assay_status find_unmerged(assay_paddle *p, assay_paddle_files kind)
{
    for (int64_t i = 0; i < p->n_listing; i++) {
        const char *name = p->listing[i];
        const char *word = assay_paddle_words[kind];
        int tp;
        if (rank_suffix(name, word, &tp)) {
            p->facts.unmerged = true;
            ASSAY_TRY(add_file(p, kind, name, tp));
        } else if (strncmp(name, word, strlen(word)) == 0 && name[strlen(word)] == '.' &&
                   strstr(name, ".safetensors") != NULL && strstr(name, ".index.json") == NULL &&
                   kind != ASSAY_PADDLE_FILES_MODEL)
            ASSAY_FAIL(ASSAY_UNSUPPORTED,
                       "%s/%s: is not read: an unmerged file is named by tp, pp and shard numbers", p->dir,
                       name);
    }
    return ASSAY_OK;
}

static assay_status find_kind(assay_paddle *p, assay_paddle_files kind)
{
    char name[64], path[ASSAY_PADDLE_PATH + 300];
    snprintf(name, sizeof name, "%s.safetensors.index.json", assay_paddle_words[kind]);
    ASSAY_TRY(assay_paddle_path(p, name, path));
    if (assay_paddle_listed(p, name) && assay_json_load(&p->index[kind], path) != ASSAY_OK) {
        p->index[kind] = NULL;
        assay_paddle_say_error(p);
        return ASSAY_OK;
    }
    json_t *map = json_object_get(p->index[kind], "weight_map");
    if (json_is_object(map))
        ASSAY_TRY(add_mapped(p, kind, map));
    else if (kind != ASSAY_PADDLE_FILES_MODEL)
        ASSAY_TRY(find_unmerged(p, kind));
    const int64_t before = p->n_files;
    check_shards(p, kind);
    if (p->index[kind] == NULL && p->n_files == before && kind == ASSAY_PADDLE_FILES_MODEL)
        assay_paddle_say(p, true, "%s: missing: there are no weights without it", name);
    return ASSAY_OK;
}

assay_status assay_paddle_find_files(assay_paddle *p)
{
    ASSAY_TRY(list_folder(p));
    ASSAY_TRY(refuse_unread(p));
    for (int k = 0; k < ASSAY_PADDLE_FILES_COUNT; k++)
        ASSAY_TRY(find_kind(p, (assay_paddle_files)k));
    p->facts.has_optimizer = p->facts.files[ASSAY_PADDLE_FILES_OPTIMIZER] > 0;
    return ASSAY_OK;
}

bool assay_paddle_is(const char *dir)
{
    static const char *const names[] = {"optimizer.safetensors.index.json",
                                        "scheduler.pdparams",
                                        "master_weights.safetensors.index.json",
                                        "optimizer.pdopt",
                                        "model_state.pdparams",
                                        "peft_model.safetensors.index.json"};
    char path[PATH_MAX];
    json_t *config = NULL;
    bool found = false;
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    if (access(path, F_OK) == 0)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        found = access(path, F_OK) == 0;
    }
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (!found && access(path, F_OK) == 0) {
        if (assay_json_load(&config, path) == ASSAY_OK)
            found = json_object_get(config, "paddlenlp_version") != NULL;
        else
            assay_error_clear();
        json_decref(config);
    }
    return found;
}
