/* Tensor files: safetensors, folders with an index, batch files, checkpoints. */
#include "core/base/file.h"
#include "core/files/batches.h"
#include "core/files/checkpoint_internal.h"
#include "core/files/tensorfile.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* What an open file says of itself holds: names ascend and are found, data lies where it can be read. */
static void walk(const assay_tensorfile *f)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i), *found = NULL;
        int64_t count = 1;
        FUZZ_LAW(i == 0 || strcmp(assay_tensorfile_at(f, i - 1)->name, t->name) < 0, "%s: order", t->name);
        FUZZ_LAW(assay_tensorfile_find(f, t->name) == t, "%s: not found", t->name);
        FUZZ_LAW(assay_tensorfile_get(f, t->name, t->dtype, t->shape, t->ndim, &found) == ASSAY_OK, "%s",
                 t->name);
        for (int d = 0; d < t->ndim; d++)
            FUZZ_LAW(!__builtin_mul_overflow(count, t->shape[d], &count), "%s: count", t->name);
        FUZZ_LAW(count == t->count && t->bytes * 8 == (size_t)count * (size_t)assay_dtype_bits(t->dtype),
                 "%s: size", t->name);
        FUZZ_LAW(strcmp(t->name, "outside") != 0, "a file outside the folder was opened");
        sum += fuzz_touch(t->data, t->bytes);
    }
    const char *format = assay_tensorfile_metadata(f, "format");
    if (format != NULL)
        sum += strlen(format);
    volatile uint64_t used = sum;
    (void)used;
}

void fuzz_safetensors(const uint8_t *data, size_t bytes)
{
    assay_tensorfile *f;
    fuzz_folder_make();
    fuzz_write("a.safetensors", data, bytes);
    if (assay_tensorfile_open(&f, fuzz_path("a.safetensors")) != ASSAY_OK)
        return;
    walk(f);
    assay_tensorfile_close(f);
}

void fuzz_folder(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors", "a.safetensors",
                                        "b.safetensors", NULL};
    fuzz_section sections[FUZZ_SECTIONS];
    assay_tensorfile *f;
    bool stored;
    const int n = fuzz_sections(data, bytes, names, sections);
    fuzz_write_sections(sections, n);
    (void)assay_tensorfile_in_folder(fuzz_path(""), &stored);
    if (n == 0 || assay_tensorfile_open(&f, fuzz_path("")) != ASSAY_OK)
        return;
    walk(f);
    assay_tensorfile_close(f);
}

void fuzz_batches(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"batch.safetensors", NULL};
    fuzz_section sections[FUZZ_SECTIONS];
    assay_batches b;
    if (fuzz_sections(data, bytes, names, sections) == 0)
        return;
    fuzz_write_sections(sections, 1);
    if (assay_batches_open(&b, fuzz_path("batch.safetensors"), 32) != ASSAY_OK)
        return;
    for (int64_t s = 0; s < (b.training ? b.steps : 1); s++)
        for (int64_t m = 0; m < (b.training ? b.microbatches : 1); m++)
            for (int64_t i = 0; i < b.b * b.s; i++) {
                const int64_t id = assay_batches_ids(&b, s, m)[i], label = assay_batches_labels(&b, s, m)[i];
                const int64_t *positions = assay_batches_positions(&b, s, m);
                FUZZ_LAW(id >= 0 && id < 32 && (label == ASSAY_IGNORE_INDEX || (label >= 0 && label < 32)),
                         "id %lld, label %lld", (long long)id, (long long)label);
                FUZZ_LAW(positions == NULL || (positions[i] >= 0 && positions[i] < b.s), "position %lld",
                         (long long)positions[i]);
            }
    assay_batches_close(&b);
}

/* --- checkpoints ---------------------------------------------------------------------------------------------- */

/* Nobody finds a SHA-256 by trying: sizes and hashes of the manifest are made right, everything else stays as it is. */
static void seal(const fuzz_section *sections, int n)
{
    json_t *manifest = NULL;
    char hash[ASSAY_SHA256_HEX];
    if (assay_json_load(&manifest, fuzz_path("manifest.json")) != ASSAY_OK)
        return;
    json_t *files = json_object_get(manifest, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        json_t *entry = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        for (int k = 0; k < n && name != NULL; k++)
            if (strcmp(sections[k].name, name) == 0) {
                char *text;
                uint64_t size;
                fuzz_must(assay_sha256_file(fuzz_path(name), hash));
                fuzz_must(assay_read_file(fuzz_path(name), 1 << 24, &text, &size));
                free(text);
                json_object_set_new(entry, "sha256", json_string(hash));
                json_object_set_new(entry, "bytes", json_integer((json_int_t)size));
                break;
            }
    }
    if (json_is_object(manifest) && assay_checkpoint_manifest_hash(manifest, hash) == ASSAY_OK) {
        json_object_set_new(manifest, "sha256", json_string(hash));
        char *text = json_dumps(manifest, JSON_REAL_PRECISION(17));
        FUZZ_LAW(text != NULL, "manifest");
        fuzz_write("manifest.json", text, strlen(text));
        free(text);
    }
    json_decref(manifest);
}

void fuzz_checkpoint(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"manifest.json",
                                        "state.json",
                                        "config.json",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00001.safetensors",
                                        "optimizer.safetensors.index.json",
                                        "optimizer-00001-of-00001.safetensors",
                                        "master_weights.safetensors.index.json",
                                        "master_weights-00001-of-00001.safetensors",
                                        NULL};
    fuzz_section sections[FUZZ_SECTIONS];
    assay_checkpoint *c;
    const int n = fuzz_sections(data, bytes, names, sections);
    if (n == 0)
        return;
    fuzz_must(assay_hash_init());
    fuzz_write_sections(sections, n);
    seal(sections, n);
    if (assay_checkpoint_open(&c, fuzz_path("")) != ASSAY_OK)
        return;
    FUZZ_LAW(json_is_object(assay_checkpoint_header(c)), "header");
    for (int64_t i = 0; i < assay_checkpoint_count(c); i++) {
        const char *family, *name;
        assay_dtype dtype;
        assay_shard whole;
        assay_checkpoint_at(c, i, &family, &name, &dtype, &whole);
        int64_t count = 1;
        for (int d = 0; d < whole.ndim; d++)
            if (__builtin_mul_overflow(count, whole.global_shape[d], &count))
                count = INT64_MAX;
        if (count > 1 << 20)
            continue;
        const size_t size = (size_t)count * (size_t)assay_dtype_bytes(dtype);
        void *to = malloc(size + 1);
        FUZZ_LAW(to != NULL, "%zu bytes", size);
        if (assay_checkpoint_read(c, family, name, dtype, &whole, to) == ASSAY_OK)
            (void)fuzz_touch(to, size);
        free(to);
    }
    for (int64_t i = 0; i < assay_checkpoint_stored_count(c); i++) {
        assay_checkpoint_stored t;
        if (assay_checkpoint_stored_at(c, i, &t) == ASSAY_OK)
            (void)fuzz_touch(t.data, t.bytes);
    }
    assay_checkpoint_close(c);
}
