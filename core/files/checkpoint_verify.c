/* Whether a folder is a checkpoint that nobody changed: the manifest's own hash, exactly its files, their sizes and hashes. */
#include "core/files/checkpoint_folder.h"
#include "core/files/checkpoint_internal.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Files lie in the folder itself. */
static assay_status plain_name(const char *dir, const char *name, size_t i)
{
    ASSAY_CHECK(name != NULL && name[0] != '\0' && name[0] != '.' && strlen(name) < 64 &&
                    strchr(name, '/') == NULL && strcmp(name, "manifest.json") != 0,
                ASSAY_FORMAT, "%s/manifest.json: files: entry %zu: expected a plain file name, found %.80s",
                dir, i, name != NULL ? name : "none");
    return ASSAY_OK;
}

static assay_status verify_file(const char *dir, const json_t *entry, bool hashed)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const char *want = json_string_value(json_object_get(entry, "sha256"));
    const json_t *bytes = json_object_get(entry, "bytes");
    char path[ASSAY_CHECKPOINT_PATH + 64], hash[ASSAY_SHA256_HEX];
    struct stat sb;
    ASSAY_CHECK(want != NULL && json_is_integer(bytes), ASSAY_FORMAT,
                "%s/manifest.json: files: %s: expected bytes and sha256", dir, name);
    assay_checkpoint_file(path, dir, name);
    ASSAY_CHECK(lstat(path, &sb) == 0, ASSAY_NOT_FOUND, "%s: listed in the manifest: %s", path,
                strerror(errno));
    ASSAY_CHECK(S_ISREG(sb.st_mode), ASSAY_FORMAT, "%s: listed in the manifest: expected a regular file",
                path);
    ASSAY_CHECK(sb.st_size == json_integer_value(bytes), ASSAY_FORMAT, "%s: expected %lld bytes, found %lld",
                path, (long long)json_integer_value(bytes), (long long)sb.st_size);
    if (!hashed)
        return ASSAY_OK;
    ASSAY_TRY(assay_sha256_file(path, hash));
    ASSAY_CHECK(strcmp(hash, want) == 0, ASSAY_FORMAT, "%s: expected SHA-256 %s, found %s", path, want, hash);
    return ASSAY_OK;
}

static bool is_listed(const json_t *files, const char *name)
{
    for (size_t i = 0; i < json_array_size(files); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(files, i), "name")), name) == 0)
            return true;
    return false;
}

/* Each file that the manifest does not name.  `visit` returns whether to go on. */
static assay_status each_extra(const char *dir, const json_t *files,
                               bool (*visit)(void *user, const char *name), void *user)
{
    DIR *d = opendir(dir);
    ASSAY_CHECK(d != NULL, ASSAY_IO, "%s: %s", dir, strerror(errno));
    bool more = true;
    for (const struct dirent *e = readdir(d); e != NULL && more; e = readdir(d))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            strcmp(e->d_name, "manifest.json") != 0 && !is_listed(files, e->d_name))
            more = visit(user, e->d_name);
    closedir(d);
    return ASSAY_OK;
}

/* By its name.  An adapter beside a model is applied by transformers unasked. */
static bool could_be_weights(const char *name)
{
    return assay_is_weights_name(name) || strcmp(name, "adapter_config.json") == 0;
}

static bool keep_weights(void *user, const char *name)
{
    char *extra = user;
    if (could_be_weights(name))
        snprintf(extra, 256, "%s", name);
    return extra[0] == '\0';
}

/* Beside the manifest and its files the folder holds nothing that a reader could take for weights.  A tokenizer, a README.md are
 * what users of transformers put there. */
static assay_status verify_set(const char *dir, const json_t *files)
{
    char extra[256] = "";
    ASSAY_TRY(each_extra(dir, files, keep_weights, extra));
    ASSAY_CHECK(extra[0] == 0, ASSAY_FORMAT, "%s/%s: the manifest does not name this file", dir, extra);
    return ASSAY_OK;
}

static assay_status verify_own_hash(const json_t *manifest, const char *path)
{
    char said[ASSAY_SHA256_HEX], found[ASSAY_SHA256_HEX];
    ASSAY_TRY(assay_json_get_string(manifest, "sha256", true, path, said, sizeof said));
    ASSAY_TRY(assay_checkpoint_manifest_hash(manifest, found));
    ASSAY_CHECK(strcmp(said, found) == 0, ASSAY_FORMAT,
                "%s: was changed: it says SHA-256 %s, its content has %s", path, said, found);
    return ASSAY_OK;
}

/* The manifest alone; `hashed`: its own hash, too. */
static assay_status verify_manifest(const char *dir, const char *path, const json_t *manifest, bool hashed)
{
    char format[64] = "";
    int64_t version = 0;
    ASSAY_TRY(assay_json_get_string(manifest, "format", true, path, format, sizeof format));
    ASSAY_CHECK(strcmp(format, ASSAY_CHECKPOINT_FORMAT) == 0, ASSAY_FORMAT,
                "%s: format: expected %s, found %s", path, ASSAY_CHECKPOINT_FORMAT, format);
    ASSAY_TRY(assay_json_get_i64(manifest, "version", true, 1, INT32_MAX, path, &version));
    ASSAY_CHECK(version == ASSAY_CHECKPOINT_VERSION, ASSAY_UNSUPPORTED,
                "%s: version: expected %d, found %lld%s", path, ASSAY_CHECKPOINT_VERSION, (long long)version,
                version < ASSAY_CHECKPOINT_VERSION
                    ? " (pieces of ranks): the assay that wrote it takes its weights out with `assay train "
                      "--load ... --export DIR`, and DIR is a model folder"
                    : "");
    if (hashed)
        ASSAY_TRY(verify_own_hash(manifest, path));
    const json_t *files = json_object_get(manifest, "files");
    ASSAY_CHECK(json_is_array(files), ASSAY_FORMAT, "%s: files: expected an array", path);
    for (size_t i = 0; i < json_array_size(files); i++)
        ASSAY_TRY(plain_name(dir, json_string_value(json_object_get(json_array_get(files, i), "name")), i));
    return ASSAY_OK;
}

/* ASSAY_NOT_FOUND, ASSAY_UNSUPPORTED: no checkpoint, which is no finding about one. */
static assay_status load_manifest(const char *dir, const char *path, json_t **manifest)
{
    struct stat sb;
    ASSAY_TRY(assay_checkpoint_refuse_torch(dir));
    ASSAY_CHECK(lstat(path, &sb) == 0 || errno != ENOENT || stat(dir, &sb) != 0, ASSAY_NOT_FOUND,
                "%s: no checkpoint: it has no manifest.json", dir);
    return assay_json_load(manifest, path);
}

assay_status assay_checkpoint_verify(const char *dir, int rank, int world, json_t **manifest)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    *manifest = NULL;
    assay_checkpoint_file(path, dir, "manifest.json");
    ASSAY_TRY(load_manifest(dir, path, manifest));
    const json_t *files = json_object_get(*manifest, "files");
    const size_t n = json_array_size(files), ranks = (size_t)world, mine = (size_t)rank;
    /* As if it were the last file; of a caller that knows the files' hashes, too: they are in it. */
    assay_status st = verify_manifest(dir, path, *manifest, rank < 0 || n % ranks == mine);
    for (size_t i = 0; i < n && st == ASSAY_OK; i++)
        st = verify_file(dir, json_array_get(files, i), i % ranks == mine);
    if (st == ASSAY_OK)
        st = verify_set(dir, files);
    if (st != ASSAY_OK) {
        json_decref(*manifest);
        *manifest = NULL;
    }
    return st;
}

/* --- all that is wrong -------------------------------------------------------------------------------------- */
typedef struct findings {
    assay_checkpoint_finding sink;
    void *user;
    int64_t n;
} findings;

/* An error of the folder is a finding; one of this machine ends the search. */
static assay_status take(findings *f, assay_status st)
{
    if (st != ASSAY_FORMAT && st != ASSAY_MISMATCH && st != ASSAY_NOT_FOUND && st != ASSAY_UNSUPPORTED)
        return st;
    f->n++;
    f->sink(f->user, assay_error_message());
    assay_error_clear();
    return ASSAY_OK;
}

static assay_status check_tensor(const char *dir, const assay_checkpoint_stored *t)
{
    char hash[ASSAY_SHA256_HEX];
    assay_sha256_bytes(t->data, t->bytes, hash);
    ASSAY_CHECK(strcmp(hash, t->sha256) == 0, ASSAY_FORMAT, "%s/%s: %s: expected SHA-256 %s, found %s", dir,
                t->file, t->name, t->sha256, hash);
    return ASSAY_OK;
}

static assay_status check_tensors(const char *dir, const assay_checkpoint_ignore *ignore, findings *f)
{
    assay_checkpoint *c = NULL;
    assay_status st = assay_checkpoint_open_share(&c, dir, ignore, ASSAY_CHECKPOINT_HASHED, 1);
    if (st != ASSAY_OK)
        return take(f, st);
    for (int64_t i = 0; i < assay_checkpoint_stored_count(c) && st == ASSAY_OK; i++) {
        assay_checkpoint_stored t;
        if (c->infos[i] == NULL) /* ignored */
            continue;
        st = assay_checkpoint_stored_at(c, i, &t);
        if (st == ASSAY_OK)
            st = check_tensor(dir, &t);
        st = take(f, st);
    }
    assay_checkpoint_close(c);
    return st;
}

assay_status assay_checkpoint_verify_each(const char *dir, const assay_checkpoint_ignore *ignore,
                                          assay_checkpoint_finding sink, void *user, int64_t *found)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    json_t *manifest = NULL;
    findings f = {.sink = sink, .user = user};
    *found = 0;
    ASSAY_TRY(assay_hash_init());
    ASSAY_CHECK(strlen(dir) < ASSAY_CHECKPOINT_PATH - 32, ASSAY_INVALID_ARGUMENT,
                "checkpoint: path too long");
    assay_checkpoint_file(path, dir, "manifest.json");
    assay_status st = load_manifest(dir, path, &manifest);
    if (st == ASSAY_NOT_FOUND || st == ASSAY_UNSUPPORTED)
        return st;
    if (st == ASSAY_OK)
        st = verify_manifest(dir, path, manifest, true);
    if (st != ASSAY_OK) { /* nothing says what the others should be */
        st = take(&f, st);
        goto done;
    }
    const json_t *files = json_object_get(manifest, "files");
    for (size_t i = 0; i < json_array_size(files) && st == ASSAY_OK; i++)
        st = take(&f, verify_file(dir, json_array_get(files, i), true));
    if (st == ASSAY_OK)
        st = take(&f, verify_set(dir, files));
    if (st == ASSAY_OK && f.n == 0)
        st = check_tensors(dir, ignore, &f);
done:
    json_decref(manifest);
    *found = f.n;
    return st;
}

typedef struct extras {
    assay_checkpoint_finding sink;
    void *user;
} extras;

static bool tell_extra(void *user, const char *name)
{
    const extras *x = user;
    if (!could_be_weights(name))
        x->sink(x->user, name);
    return true;
}

assay_status assay_checkpoint_extras(const char *dir, assay_checkpoint_finding sink, void *user)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    json_t *manifest = NULL;
    extras x = {sink, user};
    assay_checkpoint_file(path, dir, "manifest.json");
    ASSAY_TRY(load_manifest(dir, path, &manifest));
    assay_status st = verify_manifest(dir, path, manifest, false);
    if (st == ASSAY_OK)
        st = each_extra(dir, json_object_get(manifest, "files"), tell_extra, &x);
    json_decref(manifest);
    return st;
}
