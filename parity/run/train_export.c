/* The folder of `assay train --export`. */
#include "parity/run/train_export.h"

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/files/tensorfile.h"
#include "core/files/tensorwriter.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FOLDER = ASSAY_PATH + 32, INSIDE = ASSAY_PATH + 64 };

static assay_status write_weights(const assay_tensorfile *f, const char *path, assay_dtype *dtype)
{
    static const char prefix[] = "weight.";
    assay_tensorwriter *w = NULL;
    assay_status st = ASSAY_OK;
    int64_t n = 0;
    ASSAY_TRY(assay_tensorwriter_create(&w, path));
    ASSAY_TRY_GOTO(assay_tensorwriter_metadata(w, "format", "pt"), st, done);
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        if (strncmp(t->name, prefix, sizeof prefix - 1) != 0)
            continue;
        *dtype = t->dtype;
        n++;
        ASSAY_TRY_GOTO(
            assay_tensorwriter_add_ref(w, t->name + sizeof prefix - 1, t->dtype, t->shape, t->ndim, t->data),
            st, done);
    }
    ASSAY_CHECK_GOTO(n > 0, ASSAY_INTERNAL, st, done, "export: the run left no weights");
    ASSAY_TRY_GOTO(assay_tensorwriter_finish(w), st, done);
done:
    assay_tensorwriter_destroy(w);
    return st;
}

/* Where the configuration says a dtype, it is that of the weights now; they are not quantized any more. */
static assay_status write_config(const char *model, const char *path, assay_dtype dtype)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    char from[INSIDE];
    json_t *config = NULL;
    snprintf(from, sizeof from, "%s/config.json", model);
    ASSAY_TRY(assay_json_load(&config, from));
    for (size_t i = 0; i < 2; i++)
        if (json_object_get(config, keys[i]) != NULL)
            json_object_set_new(config, keys[i], json_string(dtype == ASSAY_F64 ? "float64" : "float32"));
    (void)json_object_del(config, "quantization_config");
    const assay_status st = assay_json_save(config, path);
    json_decref(config);
    return st;
}

static assay_status copy(const char *from, const char *path)
{
    char *text = NULL;
    uint64_t n = 0;
    ASSAY_TRY(assay_read_file(from, ASSAY_JSON_MAX_BYTES, &text, &n));
    const assay_status st = assay_write_file(path, text, n);
    free(text);
    return st;
}

static assay_status fill(const char *folder, const assay_tensorfile *f, const char *model,
                         const char *tokenizer)
{
    char path[INSIDE];
    assay_dtype dtype = ASSAY_F32;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    ASSAY_TRY(write_weights(f, path, &dtype));
    snprintf(path, sizeof path, "%s/config.json", folder);
    ASSAY_TRY(write_config(model, path, dtype));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    return strcmp(tokenizer, "bytes") == 0 ? ASSAY_OK : copy(tokenizer, path);
}

assay_status parity_train_export(const char *dir, const char *out, const char *model, const char *tokenizer)
{
    char staged[FOLDER];
    assay_tensorfile *f = NULL;
    snprintf(staged, sizeof staged, "%s.tmp-%ld", dir, (long)getpid());
    ASSAY_CHECK(mkdir(staged, 0777) == 0, ASSAY_IO, "--export %s: cannot make %s: %s", dir, staged,
                strerror(errno));
    assay_status st = assay_tensorfile_open(&f, out);
    if (st == ASSAY_OK)
        st = fill(staged, f, model, tokenizer);
    assay_tensorfile_close(f);
    const int failed = st == ASSAY_OK ? assay_rename_folder(staged, dir) : 0;
    if (failed != 0)
        st = ASSAY_ERROR(ASSAY_IO, "--export %s: cannot rename %s: %s", dir, staged, strerror(failed));
    if (st != ASSAY_OK) {
        assay_scratch_remove(staged); /* the error on its way keeps its message */
        return st;
    }
    return assay_sync_folder_of(dir);
}
