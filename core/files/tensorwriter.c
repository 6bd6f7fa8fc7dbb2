/* safetensors writer.  A temporary file in the target's folder is opened at once, so that an unwritable place is
 * known before the work is done; finish writes, syncs, names and renames it.  Until then it has no name where the file system can do
 * that: a kill leaves nothing.  Tensors stand in descending order of
 * the dtype enum (alignment), then by name, as the reference writer orders them; the header is padded with
 * spaces to a multiple of 8, so that data is aligned to 8 bytes. */
#include "core/files/tensorwriter.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/files/tensorfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_HEADER_BYTES ((size_t)100000000)
enum { KEPT_BYTES = 1 << 20 };

typedef struct tensor {
    char *name;
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_TENSOR_MAX_DIMS];
    size_t bytes;
    const void *data;
    void *owned;
    int64_t spooled; /* where it waits in the spool; -1: in memory */
} tensor;

struct assay_tensorwriter {
    char *path;
    char *temp; /* NULL while it has no name, and once renamed */
    FILE *file;
    FILE *spool; /* NULL until a tensor waits there */
    char *file_buffer, *spool_buffer;
    int64_t spool_bytes;
    size_t kept_bytes; /* of spooled tensors that wait in memory */
    bool finished, unsynced;
    json_t *metadata;
    int64_t n, capacity;
    tensor *tensors;
};

/* A name beside the target: of a new file (*fd < 0), or of the one that is open and has none. */
static assay_status name_temp(assay_tensorwriter *w, int *fd)
{
    char temp[PATH_MAX];
    const int code = assay_name_beside(w->path, temp, fd);
    ASSAY_CHECK(code != ENAMETOOLONG, ASSAY_LIMIT, "%.200s: the path is too long", w->path);
    ASSAY_CHECK(code == 0, ASSAY_IO, "%s: cannot create a file beside it: %s", w->path, strerror(code));
    w->temp = strdup(temp);
    if (w->temp)
        return ASSAY_OK;
    unlink(temp);
    ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: out of memory", w->path);
}

/* A file without a name in the target's folder; -1: the file system or the machine cannot. */
static int open_nameless(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const int n = snprintf(folder, sizeof folder, "%.*s.", slash ? (int)(slash - path) + 1 : 0, path);
    if (n <= 0 || (size_t)n >= sizeof folder || access("/proc/self/fd", F_OK) != 0)
        return -1;
    return open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
}

/* The file of add_spooled never has a name for longer than it takes to open it. */
static assay_status open_spool(assay_tensorwriter *w)
{
    int fd = open_nameless(w->path);
    if (fd < 0) {
        char *kept = w->temp;
        w->temp = NULL;
        const assay_status st = name_temp(w, &fd);
        if (w->temp)
            unlink(w->temp);
        free(w->temp);
        w->temp = kept;
        ASSAY_TRY(st);
    }
    w->spool = fdopen(fd, "w+b");
    if (w->spool) {
        w->spool_buffer = assay_buffer_file(w->spool);
        return ASSAY_OK;
    }
    close(fd);
    ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: out of memory", w->path);
}

static assay_status open_temp(assay_tensorwriter *w)
{
    int fd = open_nameless(w->path);
    if (fd < 0)
        ASSAY_TRY(name_temp(w, &fd));
    w->file = fdopen(fd, "wb");
    if (w->file) {
        w->file_buffer = assay_buffer_file(w->file); /* many tensors are small */
        return ASSAY_OK;
    }
    close(fd);
    ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: out of memory", w->path);
}

assay_status assay_tensorwriter_create(assay_tensorwriter **out, const char *path)
{
    assay_status st = ASSAY_OK;
    struct stat sb;
    *out = NULL;
    assay_tensorwriter *w = calloc(1, sizeof *w);
    ASSAY_CHECK(w, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    w->path = strdup(path);
    w->metadata = json_object();
    ASSAY_CHECK_GOTO(w->path && w->metadata, ASSAY_OUT_OF_MEMORY, st, fail, "%s: out of memory", path);
    ASSAY_CHECK_GOTO(stat(path, &sb) != 0 || S_ISREG(sb.st_mode), ASSAY_INVALID_ARGUMENT, st, fail,
                     "%s: exists and is not a regular file", path);
    ASSAY_TRY_GOTO(open_temp(w), st, fail);
    *out = w;
    return ASSAY_OK;
fail:
    assay_tensorwriter_destroy(w);
    return st;
}

void assay_tensorwriter_destroy(assay_tensorwriter *w)
{
    if (!w)
        return;
    if (w->file)
        fclose(w->file);
    if (w->spool)
        fclose(w->spool);
    if (w->temp)
        unlink(w->temp);
    for (int64_t i = 0; i < w->n; i++) {
        free(w->tensors[i].name);
        free(w->tensors[i].owned);
    }
    json_decref(w->metadata);
    free(w->file_buffer);
    free(w->spool_buffer);
    free(w->tensors);
    free(w->temp);
    free(w->path);
    free(w);
}

assay_status assay_tensorwriter_metadata(assay_tensorwriter *w, const char *key, const char *value)
{
    ASSAY_CHECK(!w->finished, ASSAY_INVALID_ARGUMENT, "%s: already finished", w->path);
    ASSAY_CHECK(!json_object_get(w->metadata, key), ASSAY_INVALID_ARGUMENT,
                "%s: metadata key '%s' was given before", w->path, key);
    json_t *text = json_string(value);
    ASSAY_CHECK(text, ASSAY_INVALID_ARGUMENT, "%s: the metadata value of '%s' is not UTF-8", w->path, key);
    ASSAY_CHECK(json_object_set_new(w->metadata, key, text) == 0, ASSAY_INVALID_ARGUMENT,
                "%s: a metadata key is not UTF-8", w->path);
    return ASSAY_OK;
}

static assay_status tensor_bytes(const assay_tensorwriter *w, const char *name, assay_dtype dtype,
                                 const int64_t *shape, int ndim, size_t *bytes)
{
    int64_t count = 0, bits = 0;
    ASSAY_CHECK(dtype < ASSAY_DTYPE_COUNT, ASSAY_INVALID_ARGUMENT, "%s: tensor '%s': no such dtype", w->path,
                name);
    ASSAY_CHECK(ndim >= 0 && ndim <= ASSAY_TENSOR_MAX_DIMS, ASSAY_INVALID_ARGUMENT,
                "%s: tensor '%s' has %d dimensions, expected 0...%d", w->path, name, ndim,
                ASSAY_TENSOR_MAX_DIMS);
    ASSAY_CHECK(
        assay_shape_count(shape, ndim, &count) && assay_mul_i64(count, assay_dtype_bits(dtype), &bits),
        ASSAY_INVALID_ARGUMENT, "%s: tensor '%s': a negative extent or a size above 64 bits", w->path, name);
    ASSAY_CHECK(bits % 8 == 0, ASSAY_INVALID_ARGUMENT,
                "%s: tensor '%s': %lld elements of %s are not a whole number of bytes", w->path, name,
                (long long)count, assay_dtype_name(dtype));
    *bytes = (size_t)(bits / 8);
    return ASSAY_OK;
}

/* Who holds the data until finish. */
typedef enum { KEEP_REFERENCE, KEEP_COPY, KEEP_SPOOL } keep;

static assay_status spool(assay_tensorwriter *w, const void *data, size_t bytes, int64_t *at)
{
    if (!w->spool)
        ASSAY_TRY(open_spool(w));
    if (bytes > 0)
        ASSAY_CHECK(fwrite(data, 1, bytes, w->spool) == bytes, ASSAY_IO,
                    "%s: cannot write the file beside it: %s", w->path, strerror(errno));
    *at = w->spool_bytes;
    w->spool_bytes += (int64_t)bytes;
    return ASSAY_OK;
}

static assay_status add(assay_tensorwriter *w, const char *name, assay_dtype dtype, const int64_t *shape,
                        int ndim, const void *data, keep how)
{
    size_t bytes = 0;
    ASSAY_CHECK(!w->finished, ASSAY_INVALID_ARGUMENT, "%s: already finished", w->path);
    ASSAY_CHECK(strcmp(name, "__metadata__") != 0, ASSAY_INVALID_ARGUMENT,
                "%s: a tensor cannot be named __metadata__", w->path);
    ASSAY_TRY(tensor_bytes(w, name, dtype, shape, ndim, &bytes));
    ASSAY_CHECK(data || bytes == 0, ASSAY_INVALID_ARGUMENT, "%s: tensor '%s': no data", w->path, name);
    if (w->n == w->capacity) {
        const int64_t capacity = w->capacity ? 2 * w->capacity : 64;
        tensor *grown = realloc(w->tensors, (size_t)capacity * sizeof *grown);
        ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "%s: out of memory for %lld tensors", w->path,
                    (long long)capacity);
        w->tensors = grown;
        w->capacity = capacity;
    }
    tensor t = {.dtype = dtype, .ndim = ndim, .bytes = bytes, .data = data, .spooled = -1};
    /* Little is not worth a second file. */
    const bool in_memory = how == KEEP_SPOOL && !w->spool && bytes <= KEPT_BYTES - w->kept_bytes;
    const bool copy = how == KEEP_COPY || in_memory;
    if (in_memory) {
        w->kept_bytes += bytes;
    } else if (how == KEEP_SPOOL) {
        t.data = NULL;
        ASSAY_TRY(spool(w, data, bytes, &t.spooled));
    }
    for (int i = 0; i < ndim; i++)
        t.shape[i] = shape[i];
    t.name = strdup(name);
    if (copy && bytes > 0)
        t.owned = malloc(bytes);
    if (!t.name || (copy && bytes > 0 && !t.owned)) {
        free(t.name);
        free(t.owned);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: tensor '%s': out of memory for %zu bytes", w->path, name, bytes);
    }
    if (t.owned) {
        memcpy(t.owned, data, bytes);
        t.data = t.owned;
    }
    w->tensors[w->n++] = t;
    return ASSAY_OK;
}

assay_status assay_tensorwriter_add_ref(assay_tensorwriter *w, const char *name, assay_dtype dtype,
                                        const int64_t *shape, int ndim, const void *data)
{
    return add(w, name, dtype, shape, ndim, data, KEEP_REFERENCE);
}

assay_status assay_tensorwriter_add_copy(assay_tensorwriter *w, const char *name, assay_dtype dtype,
                                         const int64_t *shape, int ndim, const void *data)
{
    return add(w, name, dtype, shape, ndim, data, KEEP_COPY);
}

assay_status assay_tensorwriter_add_spooled(assay_tensorwriter *w, const char *name, assay_dtype dtype,
                                            const int64_t *shape, int ndim, const void *data)
{
    return add(w, name, dtype, shape, ndim, data, KEEP_SPOOL);
}

static int compare_tensors(const void *pa, const void *pb)
{
    const tensor *a = pa, *b = pb;
    if (a->dtype != b->dtype)
        return a->dtype > b->dtype ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int compare_names(const void *pa, const void *pb)
{
    return strcmp(*(const char *const *)pa, *(const char *const *)pb);
}

/* Names are sorted within a dtype alone. */
static assay_status check_names(const assay_tensorwriter *w)
{
    const char **names = malloc(((size_t)w->n + 1) * sizeof *names);
    ASSAY_CHECK(names, ASSAY_OUT_OF_MEMORY, "out of memory");
    for (int64_t i = 0; i < w->n; i++)
        names[i] = w->tensors[i].name;
    int64_t n = w->n;
    if (json_object_size(w->metadata) > 0)
        names[n++] = "__metadata__";
    qsort(names, (size_t)n, sizeof *names, compare_names);
    int64_t i = 1;
    while (i < n && strcmp(names[i - 1], names[i]) != 0)
        i++;
    const assay_status st =
        i < n ? ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "tensor '%s' was added more than once", names[i])
              : ASSAY_OK;
    free(names);
    return st;
}

/* The header as JSON in file order.  A name that comes twice, or is not UTF-8, is found here. */
static assay_status make_header(const assay_tensorwriter *w, assay_json_text *header)
{
    int64_t at = 0;
    ASSAY_TRY(check_names(w));
    assay_json_text_begin(header);
    assay_json_text_open(header, '{');
    if (json_object_size(w->metadata) > 0) {
        assay_json_text_key(header, "__metadata__");
        assay_json_text_value(header, w->metadata);
    }
    for (int64_t i = 0; i < w->n; i++) {
        const tensor *t = &w->tensors[i];
        int64_t end = 0;
        ASSAY_CHECK(assay_add_i64(at, (int64_t)t->bytes, &end), ASSAY_LIMIT, "the file would exceed 64 bits");
        assay_json_text_key(header, t->name);
        assay_json_text_open(header, '{');
        assay_json_text_key(header, "dtype");
        assay_json_text_string(header, assay_dtype_name(t->dtype));
        assay_json_text_key(header, "shape");
        assay_json_text_open(header, '[');
        for (int d = 0; d < t->ndim; d++)
            assay_json_text_integer(header, t->shape[d]);
        assay_json_text_close(header, ']');
        assay_json_text_key(header, "data_offsets");
        assay_json_text_open(header, '[');
        assay_json_text_integer(header, at);
        assay_json_text_integer(header, end);
        assay_json_text_close(header, ']');
        assay_json_text_close(header, '}');
        at = end;
    }
    assay_json_text_close(header, '}');
    return assay_json_text_end(header, "the name of a tensor");
}

static assay_status write_bytes(assay_tensorwriter *w, const void *data, size_t bytes)
{
    if (bytes > 0)
        ASSAY_CHECK(fwrite(data, 1, bytes, w->file) == bytes, ASSAY_IO, "cannot write: %s", strerror(errno));
    return ASSAY_OK;
}

static assay_status write_tensor(assay_tensorwriter *w, const tensor *t)
{
    char block[1 << 16];
    if (t->spooled < 0)
        return write_bytes(w, t->data, t->bytes);
    ASSAY_CHECK(fseeko(w->spool, (off_t)t->spooled, SEEK_SET) == 0, ASSAY_IO, "cannot read back: %s",
                strerror(errno));
    for (size_t done = 0; done < t->bytes;) {
        const size_t n = t->bytes - done < sizeof block ? t->bytes - done : sizeof block;
        ASSAY_CHECK(fread(block, 1, n, w->spool) == n, ASSAY_IO, "cannot read back tensor '%s'", t->name);
        ASSAY_TRY(write_bytes(w, block, n));
        done += n;
    }
    return ASSAY_OK;
}

static assay_status write_header(assay_tensorwriter *w, const char *text)
{
    const size_t used = strlen(text);
    const size_t n = (used + 7) / 8 * 8;
    uint8_t length[8];
    ASSAY_CHECK(n <= MAX_HEADER_BYTES, ASSAY_LIMIT,
                "HeaderTooLarge: the header would have %zu bytes, at most %zu are legal", n,
                MAX_HEADER_BYTES);
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)n >> (8 * i));
    ASSAY_TRY(write_bytes(w, length, sizeof length));
    ASSAY_TRY(write_bytes(w, text, used));
    return write_bytes(w, "       ", n - used);
}

/* Gives the whole file its name.  Where another file has it, no single call replaces that by one without a name: a kill
 * between the two leaves a whole file under the name beside it. */
static assay_status publish(assay_tensorwriter *w)
{
    char self[64];
    int fd = fileno(w->file);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (!w->temp && linkat(AT_FDCWD, self, AT_FDCWD, w->path, AT_SYMLINK_FOLLOW) == 0)
        return ASSAY_OK;
    if (!w->temp)
        ASSAY_TRY(name_temp(w, &fd));
    ASSAY_CHECK(rename(w->temp, w->path) == 0, ASSAY_IO, "cannot rename %s: %s", w->temp, strerror(errno));
    free(w->temp);
    w->temp = NULL;
    return ASSAY_OK;
}

static assay_status write_all(assay_tensorwriter *w)
{
    assay_status st = ASSAY_OK;
    assay_json_text header = {0};
    if (w->n > 0)
        qsort(w->tensors, (size_t)w->n, sizeof *w->tensors, compare_tensors);
    ASSAY_TRY_GOTO(make_header(w, &header), st, done);
    ASSAY_TRY_GOTO(write_header(w, header.text), st, done);
    for (int64_t i = 0; i < w->n; i++)
        ASSAY_TRY_GOTO(write_tensor(w, &w->tensors[i]), st, done);
    ASSAY_CHECK_GOTO(fflush(w->file) == 0, ASSAY_IO, st, done, "cannot write: %s", strerror(errno));
    if (!w->unsynced)
        ASSAY_TRY_GOTO(assay_sync_file(fileno(w->file), w->path), st, done);
    ASSAY_TRY_GOTO(publish(w), st, done);
    const int closed = fclose(w->file);
    w->file = NULL;
    ASSAY_CHECK_GOTO(closed == 0, ASSAY_IO, st, done, "cannot close: %s", strerror(errno));
    if (!w->unsynced)
        ASSAY_TRY_GOTO(assay_sync_folder_of(w->path), st, done);
done:
    assay_json_text_free(&header);
    return st;
}

void assay_tensorwriter_unsynced(assay_tensorwriter *w)
{
    w->unsynced = true;
}

assay_status assay_tensorwriter_finish(assay_tensorwriter *w)
{
    ASSAY_CHECK(!w->finished, ASSAY_INVALID_ARGUMENT, "%s: already finished", w->path);
    w->finished = true;
    const assay_status st = write_all(w);
    return st == ASSAY_OK ? st : assay_context(st, "%s", w->path);
}
