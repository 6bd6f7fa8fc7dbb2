/* The name of a run, by which `assay report merge` knows its parts: a hash of what it was asked for, whichever part of it runs
 * here, and of every file that it reads.  Beside it the engine and the judge that answer: a version is that of many builds. */
#include "core/base/hash.h"
#include "parity/certify/certify.h"
#include "parity/run/run.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 16 };

static assay_status put_file(FILE *f, const char *path)
{
    char hex[ASSAY_SHA256_HEX];
    ASSAY_TRY(assay_sha256_file(path, hex));
    fprintf(f, "%s\n", hex);
    return ASSAY_OK;
}

static bool ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static int not_hidden(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* What a model folder is read for. */
static int of_a_model(const struct dirent *e)
{
    return ends_with(e->d_name, ".safetensors") || ends_with(e->d_name, ".json");
}

/* A file, or the chosen files of a folder and of those below it, in the order of their names. */
static assay_status put_tree(FILE *f, const char *path, int (*chosen)(const struct dirent *), int depth)
{
    struct stat sb;
    struct dirent **names = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(stat(path, &sb) == 0, ASSAY_IO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(sb.st_mode))
        return S_ISREG(sb.st_mode) ? put_file(f, path) : ASSAY_OK;
    ASSAY_CHECK(depth < MAX_DEPTH, ASSAY_LIMIT, "%s: folders nested deeper than %d", path, MAX_DEPTH);
    const int n = scandir(path, &names, chosen, alphasort);
    ASSAY_CHECK(n >= 0, ASSAY_IO, "%s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char inner[2 * ASSAY_PATH];
        const int length = snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name);
        if (st == ASSAY_OK && (length < 0 || (size_t)length >= sizeof inner))
            st = ASSAY_ERROR(ASSAY_LIMIT, "%s: the path is too long", path);
        fprintf(f, "%s\n", names[i]->d_name);
        if (st == ASSAY_OK)
            st = put_tree(f, inner, chosen, depth + 1);
        free(names[i]);
    }
    free(names);
    return st;
}

static assay_status put_case(FILE *f, const parity_case *c)
{
    fprintf(f, "%s\n", c->name);
    if (!c->is_folder)
        ASSAY_TRY(put_file(f, c->file));
    if (c->batch_file[0] != '\0')
        ASSAY_TRY(put_file(f, c->batch_file));
    for (int i = 0; i < c->n_data_paths; i++) {
        const assay_status st = put_tree(f, c->data_paths[i], not_hidden, 0);
        if (st != ASSAY_OK)
            return assay_context(st, "%s: data: paths[%d]", c->file, i);
    }
    return c->model_dir[0] != '\0' ? put_tree(f, c->model_dir, of_a_model, 0) : ASSAY_OK;
}

assay_status parity_run_name(parity_run_state *s, const bool *chosen)
{
    char *text = NULL, sha[ASSAY_SHA256_HEX];
    size_t bytes = 0;
    assay_status st = ASSAY_OK;
    FILE *f = open_memstream(&text, &bytes);
    ASSAY_CHECK(f != NULL, ASSAY_OUT_OF_MEMORY, "name of the run");
    fprintf(f, "%s %s %s%s\n", parity_version(), s->engine.name, s->o.check, s->o.overrides);
    for (int i = 0; i < s->n_tasks; i++)
        if (chosen[i])
            fprintf(f, "%s %s %s %s\n", parity_task_name(&s->tasks[i]),
                    assay_precision_name(s->tasks[i].precision), s->tasks[i].layout, s->tasks[i].variant);
    for (int i = 0; i < s->n_cases && st == ASSAY_OK; i++)
        st = put_case(f, &s->cases[i]);
    if (fclose(f) != 0 && st == ASSAY_OK)
        st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "name of the run");
    if (st == ASSAY_OK) {
        assay_sha256_bytes(text, bytes, sha);
        s->origin.shard = s->o.shards > 0 ? s->o.shard : 1;
        s->origin.shards = s->o.shards > 0 ? s->o.shards : 1;
        snprintf(s->origin.run, sizeof s->origin.run, "%.32s", sha);
    }
    free(text);
    return st;
}

assay_status parity_run_builds(parity_run_state *s)
{
    snprintf(s->origin.judge, sizeof s->origin.judge, "%s", certify_source_hash());
    return assay_sha256_file(s->engine.program, s->origin.engine);
}
