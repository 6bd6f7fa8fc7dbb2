/* Strict safetensors reader: one file, mapped.  The checks run in the order of the reference parser and carry
 * its error names, so that a message here can be looked up there.  Stricter on purpose: a name that appears
 * twice is refused (the format forbids it, the reference parser lets the last one win), integers above int64
 * are refused, at most ASSAY_TENSOR_MAX_DIMS dimensions, no U+0000 in names.
 *
 * A file that somebody shortens while it is mapped is out of scope: reading the lost part ends in SIGBUS.
 * Our own writer never does that (it renames a new file over the old name).
 *
 * Source: safetensors README "Format" and tensor.rs. */
#include "core/files/tensorfile_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_HEADER_BYTES ((uint64_t)100000000)

typedef assay_tensor_entry entry;

static int compare_entries(const void *pa, const void *pb)
{
    const entry *a = pa, *b = pb;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return strcmp(a->info.name, b->info.name);
}

static int compare_infos(const void *pa, const void *pb)
{
    return strcmp(((const assay_tensor_info *)pa)->name, ((const assay_tensor_info *)pb)->name);
}

/* A non-negative integer that fits int64; Jansson tells 1 from 1.0 and 1e3, which are reals. */
static assay_status read_size(const json_t *value, const char *name, const char *member, int64_t *out)
{
    ASSAY_CHECK(json_is_integer(value), ASSAY_FORMAT,
                "InvalidHeaderDeserialization: tensor '%.160s': %s must hold non-negative integers", name,
                member);
    *out = (int64_t)json_integer_value(value);
    ASSAY_CHECK(*out >= 0, ASSAY_FORMAT,
                "InvalidHeaderDeserialization: tensor '%.160s': %s holds the negative number %lld", name,
                member, (long long)*out);
    return ASSAY_OK;
}

static assay_status read_shape(const json_t *shape, entry *e)
{
    ASSAY_CHECK(json_is_array(shape), ASSAY_FORMAT,
                "InvalidHeaderDeserialization: tensor '%.160s': shape must be an array of integers",
                e->info.name);
    const size_t n = json_array_size(shape);
    for (size_t i = 0; i < n; i++) {
        int64_t extent = 0;
        ASSAY_TRY(read_size(json_array_get(shape, i), e->info.name, "shape", &extent));
        if (i < ASSAY_TENSOR_MAX_DIMS)
            e->info.shape[i] = extent;
    }
    ASSAY_CHECK(n <= ASSAY_TENSOR_MAX_DIMS, ASSAY_LIMIT,
                "tensor '%.160s' has %zu dimensions; this reader holds at most %d", e->info.name, n,
                ASSAY_TENSOR_MAX_DIMS);
    e->info.ndim = (int)n;
    return ASSAY_OK;
}

/* Members that are not known are ignored, as the reference parser does. */
static assay_status read_entry(const json_t *object, entry *e)
{
    const char *name = e->info.name;
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT,
                "InvalidHeaderDeserialization: tensor '%.160s': expected an object with dtype, shape and "
                "data_offsets",
                name);
    const json_t *dtype = json_object_get(object, "dtype");
    ASSAY_CHECK(json_is_string(dtype), ASSAY_FORMAT,
                "InvalidHeaderDeserialization: tensor '%.160s': dtype must be a string", name);
    const assay_status st = assay_dtype_from_name(json_string_value(dtype), &e->info.dtype);
    if (st != ASSAY_OK)
        ASSAY_FAIL(ASSAY_FORMAT, "InvalidHeaderDeserialization: tensor '%.160s': unknown dtype '%.32s'", name,
                   json_string_value(dtype));
    ASSAY_TRY(read_shape(json_object_get(object, "shape"), e));
    const json_t *offsets = json_object_get(object, "data_offsets");
    ASSAY_CHECK(json_is_array(offsets), ASSAY_FORMAT,
                "InvalidHeaderDeserialization: tensor '%.160s': data_offsets must be an array of two "
                "integers",
                name);
    ASSAY_CHECK(json_array_size(offsets) == 2, ASSAY_FORMAT,
                "InvalidHeaderDeserialization: tensor '%.160s': data_offsets must be two integers, found "
                "%zu values",
                name, json_array_size(offsets));
    ASSAY_TRY(read_size(json_array_get(offsets, 0), name, "data_offsets", &e->begin));
    ASSAY_TRY(read_size(json_array_get(offsets, 1), name, "data_offsets", &e->end));
    return ASSAY_OK;
}

static assay_status check_metadata(const json_t *metadata)
{
    if (!metadata || json_is_null(metadata))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_object(metadata), ASSAY_FORMAT,
                "InvalidHeaderDeserialization: __metadata__ must be an object of strings");
    void *it = json_object_iter((json_t *)(uintptr_t)metadata);
    for (; it; it = json_object_iter_next((json_t *)(uintptr_t)metadata, it))
        ASSAY_CHECK(json_is_string(json_object_iter_value(it)), ASSAY_FORMAT,
                    "InvalidHeaderDeserialization: __metadata__: the value of '%.160s' must be a string",
                    json_object_iter_key(it));
    return ASSAY_OK;
}

/* Entries must tile [0, data_bytes) without a hole or an overlap, and each must have the size that its dtype
 * and shape say.  The product runs in shape order and does not stop at a zero: [2^62,4,0] is an overflow,
 * [0,2^62,4] is not. */
static assay_status check_layout(entry *entries, int64_t n, uint64_t data_bytes)
{
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        entry *e = &entries[i];
        const char *name = e->info.name;
        int64_t bits = 0;
        ASSAY_CHECK(e->begin == at && e->end >= e->begin, ASSAY_FORMAT,
                    "InvalidOffset: tensor '%.160s' has data_offsets [%lld,%lld], expected them to begin at "
                    "%lld and not to run backwards (no holes, no overlaps)",
                    name, (long long)e->begin, (long long)e->end, (long long)at);
        at = e->end;
        ASSAY_CHECK(assay_shape_count(e->info.shape, e->info.ndim, &e->info.count) &&
                        assay_mul_i64(e->info.count, assay_dtype_bits(e->info.dtype), &bits),
                    ASSAY_FORMAT, "ValidationOverflow: the size of tensor '%.160s' overflows 64 bits", name);
        ASSAY_CHECK(bits % 8 == 0, ASSAY_FORMAT,
                    "MisalignedSlice: tensor '%.160s' has %lld elements of %s, which is not a whole number "
                    "of bytes",
                    name, (long long)e->info.count, assay_dtype_name(e->info.dtype));
        ASSAY_CHECK(e->end - e->begin == bits / 8, ASSAY_FORMAT,
                    "TensorInvalidInfo: tensor '%.160s': dtype and shape need %lld bytes, data_offsets hold "
                    "%lld",
                    name, (long long)(bits / 8), (long long)(e->end - e->begin));
        e->info.bytes = (size_t)(e->end - e->begin);
    }
    ASSAY_CHECK((uint64_t)at == data_bytes, ASSAY_FORMAT,
                "MetadataIncompleteBuffer: the header describes %lld bytes of data, the file holds %llu",
                (long long)at, (unsigned long long)data_bytes);
    return ASSAY_OK;
}

static assay_status append_infos(assay_tensorfile *f, entry *entries, int64_t n, const uint8_t *data)
{
    if (n == 0)
        return ASSAY_OK;
    assay_tensor_info *grown = realloc(f->infos, (size_t)(f->n + n) * sizeof *grown);
    ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "out of memory for %lld tensors", (long long)(f->n + n));
    f->infos = grown;
    for (int64_t i = 0; i < n; i++) {
        entries[i].info.data = data + entries[i].begin;
        f->infos[f->n++] = entries[i].info;
        entries[i].info.name = NULL; /* ownership moved */
    }
    return ASSAY_OK;
}

static assay_status read_header(json_t *header, assay_tensor_header *h)
{
    json_t *metadata = json_object_get(header, "__metadata__");
    const int64_t capacity = (int64_t)json_object_size(header);
    h->entries = calloc((size_t)capacity + 1, sizeof *h->entries);
    ASSAY_CHECK(h->entries, ASSAY_OUT_OF_MEMORY, "out of memory for %lld tensors", (long long)capacity);
    ASSAY_TRY(check_metadata(metadata));
    for (void *it = json_object_iter(header); it; it = json_object_iter_next(header, it)) {
        const char *name = json_object_iter_key(it);
        if (strcmp(name, "__metadata__") == 0)
            continue;
        entry *e = &h->entries[h->n];
        e->info.name = strdup(name);
        ASSAY_CHECK(e->info.name, ASSAY_OUT_OF_MEMORY, "out of memory for a tensor name");
        h->n++;
        ASSAY_TRY(read_entry(json_object_iter_value(it), e));
    }
    if (json_is_object(metadata))
        h->metadata = json_incref(metadata);
    return ASSAY_OK;
}

static assay_status take_header(assay_tensorfile *f, assay_mapping *m, assay_tensor_header *h,
                                size_t header_bytes)
{
    if (h->n > 0)
        qsort(h->entries, (size_t)h->n, sizeof *h->entries, compare_entries);
    ASSAY_TRY(check_layout(h->entries, h->n, m->file.bytes - 8 - header_bytes));
    ASSAY_TRY(append_infos(f, h->entries, h->n, (const uint8_t *)m->file.base + 8 + header_bytes));
    m->metadata = json_incref(h->metadata);
    return ASSAY_OK;
}

static assay_status parse_header(const char *text, size_t n, assay_tensor_header *h)
{
    json_t *header = NULL;
    assay_status st = assay_json_parse(&header, text, n, "header");
    if (st != ASSAY_OK) {
        const char *message = assay_error_message();
        if (strstr(message, "unable to decode byte"))
            return assay_context(st, "InvalidHeader");
        if (strstr(message, "too big") && strstr(message, "integer"))
            return assay_context(st, "InvalidHeaderDeserialization: a number overflows int64");
        return assay_context(st, "InvalidHeaderDeserialization");
    }
    if (json_is_object(header))
        st = read_header(header, h);
    else
        st = ASSAY_ERROR(ASSAY_FORMAT, "InvalidHeaderDeserialization: the header must be a JSON object");
    json_decref(header);
    return st;
}

static assay_status parse_mapping(assay_tensorfile *f, assay_mapping *m)
{
    const uint8_t *base = m->file.base;
    ASSAY_CHECK(m->file.bytes >= 8, ASSAY_FORMAT,
                "HeaderTooSmall: the file has %zu bytes, expected at least 8", m->file.bytes);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | base[i];
    ASSAY_CHECK(n <= MAX_HEADER_BYTES, ASSAY_LIMIT,
                "HeaderTooLarge: the header says it has %llu bytes, at most %llu are legal",
                (unsigned long long)n, (unsigned long long)MAX_HEADER_BYTES);
    ASSAY_CHECK(n <= m->file.bytes - 8, ASSAY_FORMAT,
                "InvalidHeaderLength: the header says it has %llu bytes, the file has %zu behind its length",
                (unsigned long long)n, m->file.bytes - 8);
    const char *text = (const char *)base + 8;
    assay_tensor_header h = {0};
    assay_status st =
        assay_tensor_header_from_text(text, (size_t)n, &h) ? ASSAY_OK : parse_header(text, (size_t)n, &h);
    if (st == ASSAY_OK)
        st = take_header(f, m, &h, (size_t)n);
    assay_tensor_header_free(&h);
    return st;
}

assay_status assay_tensorfile_map(assay_tensorfile *f, const char *path)
{
    assay_mapping *grown = realloc(f->mappings, (size_t)(f->n_mappings + 1) * sizeof *grown);
    ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    f->mappings = grown;
    assay_mapping *m = &f->mappings[f->n_mappings++];
    *m = (assay_mapping){0};
    m->path = strdup(path);
    ASSAY_CHECK(m->path, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    ASSAY_TRY(assay_mapped_open(&m->file, path));
    const assay_status st = parse_mapping(f, m);
    return st == ASSAY_OK ? st : assay_context(st, "%s", path);
}

static bool ends_with(const char *text, const char *suffix)
{
    const size_t a = strlen(text), b = strlen(suffix);
    return a >= b && strcmp(text + a - b, suffix) == 0;
}

assay_status assay_tensorfile_open(assay_tensorfile **out, const char *path)
{
    struct stat sb;
    assay_status st = ASSAY_OK;
    *out = NULL;
    assay_tensorfile *f = calloc(1, sizeof *f);
    ASSAY_CHECK(f, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    f->path = strdup(path);
    ASSAY_CHECK_GOTO(f->path, ASSAY_OUT_OF_MEMORY, st, fail, "%s: out of memory", path);
    ASSAY_CHECK_GOTO(stat(path, &sb) == 0, errno == ENOENT ? ASSAY_NOT_FOUND : ASSAY_IO, st, fail,
                     "%s: cannot open: %s", path, strerror(errno));
    if (S_ISDIR(sb.st_mode))
        ASSAY_TRY_GOTO(assay_tensorfile_add_folder(f, path), st, fail);
    else if (ends_with(path, ".index.json"))
        ASSAY_TRY_GOTO(assay_tensorfile_add_index(f, path), st, fail);
    else
        ASSAY_TRY_GOTO(assay_tensorfile_map(f, path), st, fail);
    if (f->n > 0)
        qsort(f->infos, (size_t)f->n, sizeof *f->infos, compare_infos);
    *out = f;
    return ASSAY_OK;
fail:
    assay_tensorfile_close(f);
    return st;
}

void assay_tensorfile_close(assay_tensorfile *f)
{
    if (!f)
        return;
    for (int64_t i = 0; i < f->n; i++)
        free((char *)(uintptr_t)f->infos[i].name);
    for (int64_t i = 0; i < f->n_mappings; i++) {
        assay_mapped_close(&f->mappings[i].file);
        json_decref(f->mappings[i].metadata);
        free(f->mappings[i].path);
    }
    free(f->infos);
    free(f->mappings);
    free(f->path);
    free(f);
}

int64_t assay_tensorfile_count(const assay_tensorfile *f)
{
    return f->n;
}

const assay_tensor_info *assay_tensorfile_at(const assay_tensorfile *f, int64_t index)
{
    return index >= 0 && index < f->n ? &f->infos[index] : NULL;
}

const assay_tensor_info *assay_tensorfile_find(const assay_tensorfile *f, const char *name)
{
    const assay_tensor_info key = {.name = name};
    if (f->n == 0)
        return NULL;
    return bsearch(&key, f->infos, (size_t)f->n, sizeof *f->infos, compare_infos);
}

static void format_shape(const int64_t *shape, int ndim, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "[");
    for (int i = 0; i < ndim && used < capacity; i++) {
        const char *comma = i > 0 ? "," : "";
        const int n = shape[i] < 0
                          ? snprintf(out + used, capacity - used, "%s*", comma)
                          : snprintf(out + used, capacity - used, "%s%lld", comma, (long long)shape[i]);
        used += (size_t)n;
    }
    if (used < capacity)
        snprintf(out + used, capacity - used, "]");
}

assay_status assay_tensorfile_get(const assay_tensorfile *f, const char *name, assay_dtype dtype,
                                  const int64_t *shape, int ndim, const assay_tensor_info **out)
{
    *out = NULL;
    const assay_tensor_info *t = assay_tensorfile_find(f, name);
    ASSAY_CHECK(t, ASSAY_NOT_FOUND, "%s: there is no tensor '%s' (the file has %lld tensors)", f->path, name,
                (long long)f->n);
    ASSAY_CHECK(dtype == ASSAY_DTYPE_COUNT || t->dtype == dtype, ASSAY_MISMATCH,
                "%s: tensor '%s': expected dtype %s, found %s", f->path, name, assay_dtype_name(dtype),
                assay_dtype_name(t->dtype));
    bool same = ndim < 0 || t->ndim == ndim;
    for (int i = 0; same && i < ndim; i++)
        same = shape[i] < 0 || shape[i] == t->shape[i];
    if (!same) {
        char want[256], have[256];
        format_shape(shape, ndim, want, sizeof want);
        format_shape(t->shape, t->ndim, have, sizeof have);
        ASSAY_FAIL(ASSAY_MISMATCH, "%s: tensor '%s': expected shape %s, found %s", f->path, name, want, have);
    }
    *out = t;
    return ASSAY_OK;
}

const char *assay_tensorfile_metadata(const assay_tensorfile *f, const char *key)
{
    for (int64_t i = 0; i < f->n_mappings; i++) {
        const json_t *value = json_object_get(f->mappings[i].metadata, key);
        if (value)
            return json_string_value(value);
    }
    return NULL;
}

const char *assay_tensorfile_path(const assay_tensorfile *f)
{
    return f->path;
}

const char *assay_tensorfile_path_of(const assay_tensorfile *f, const assay_tensor_info *t)
{
    for (int64_t i = 0; i < f->n_mappings; i++) {
        const uintptr_t base = (uintptr_t)f->mappings[i].file.base, at = (uintptr_t)t->data;
        if (base != 0 && at >= base && at - base < f->mappings[i].file.bytes)
            return f->mappings[i].path;
    }
    return f->path;
}
