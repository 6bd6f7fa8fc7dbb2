/* Files and folders: whole files, folders, trees. */
#include "core/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static assay_status status_of(int code)
{
    return code == ENOENT || code == ENOTDIR ? ASSAY_NOT_FOUND : ASSAY_IO;
}

/* --- folders ------------------------------------------------------------------------------------------------ */

static assay_status make_one(const char *path)
{
    if (mkdir(path, 0777) == 0)
        return ASSAY_OK;
    const int code = errno;
    ASSAY_CHECK(code == EEXIST, status_of(code), "%s: cannot create the folder: %s", path, strerror(code));
    struct stat info;
    ASSAY_CHECK(stat(path, &info) == 0 && S_ISDIR(info.st_mode), ASSAY_IO,
                "%s: expected a folder, found something else", path);
    return ASSAY_OK;
}

/* Without the slashes at its end. */
static assay_status take_path(const char *path, char out[PATH_MAX])
{
    const size_t length = strlen(path);
    ASSAY_CHECK(length > 0 && length < PATH_MAX, ASSAY_INVALID_ARGUMENT,
                "mkdir: a path of 1 to %d bytes is expected, found %zu", PATH_MAX - 1, length);
    memcpy(out, path, length + 1);
    for (size_t i = length; i > 1 && out[i - 1] == '/'; i--)
        out[i - 1] = '\0';
    return ASSAY_OK;
}

void assay_cut_name(char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        path[--n] = '\0';
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        memcpy(path, ".", sizeof "."); /* a path has a byte and its end */
    else
        slash[slash == path ? 1 : 0] = '\0';
}

static assay_status make_above(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        ASSAY_TRY(make_one(path));
        *slash = '/';
    }
    return ASSAY_OK;
}

assay_status assay_mkdir_p(const char *path)
{
    char prefix[PATH_MAX];
    struct stat info;
    ASSAY_TRY(take_path(path, prefix));
    ASSAY_CHECK(lstat(prefix, &info) != 0 || !S_ISLNK(info.st_mode), ASSAY_INVALID_ARGUMENT,
                "%s: is a symbolic link, expected a folder or nothing", prefix);
    ASSAY_TRY(make_above(prefix));
    return make_one(prefix);
}

assay_status assay_mkdir_above(const char *path)
{
    char prefix[PATH_MAX];
    ASSAY_TRY(take_path(path, prefix));
    return make_above(prefix);
}

/* Some file systems know no flags (EINVAL: NFS, 9p), nor do old kernels (ENOSYS). */
static bool knows_no_flags(int code)
{
    return code == EINVAL || code == ENOSYS || code == EOPNOTSUPP;
}

/* mkdir is what claims the name there, and rename takes the place of the empty folder that it made.  Between the two the name is there
 * and empty: who looks then finds an empty folder, a kill leaves one, and what another process puts into it in that moment makes rename
 * fail (ENOTEMPTY), overwriting nothing.  Only a plain rename of another program onto the empty folder would be lost. */
int assay_rename_folder(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (!knows_no_flags(errno))
        return errno;
    struct stat info;
    if (lstat(from, &info) != 0)
        return errno;
    if (!S_ISDIR(info.st_mode))
        return ENOTDIR;
    if (mkdir(to, 0777) != 0)
        return errno;
    if (rename(from, to) == 0)
        return 0;
    const int code = errno;
    rmdir(to); /* no error of its own: it is empty, or no longer ours */
    return code;
}

/* Empties the folder behind `fd` (closed on return) and never leaves it: links are unlinked, not followed. */
static assay_status empty_folder(int fd, const char *path, int depth)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        const int code = errno;
        close(fd);
        ASSAY_FAIL(ASSAY_IO, "%s: cannot read the folder: %s", path, strerror(code));
    }
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(depth < 64, ASSAY_LIMIT, st, done, "%s: folders nested deeper than 64", path);
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            ASSAY_CHECK_GOTO(errno == 0, ASSAY_IO, st, done, "%s: cannot read the folder: %s", path,
                             strerror(errno));
            break;
        }
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (unlinkat(dirfd(dir), name, 0) == 0)
            continue;
        ASSAY_CHECK_GOTO(errno == EISDIR || errno == EPERM, ASSAY_IO, st, done, "%s/%s: cannot remove: %s",
                         path, name, strerror(errno));
        const int child = openat(dirfd(dir), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        ASSAY_CHECK_GOTO(child >= 0, ASSAY_IO, st, done, "%s/%s: cannot open: %s", path, name,
                         strerror(errno));
        ASSAY_TRY_GOTO(empty_folder(child, path, depth + 1), st, done);
        ASSAY_CHECK_GOTO(unlinkat(dirfd(dir), name, AT_REMOVEDIR) == 0, ASSAY_IO, st, done,
                         "%s/%s: cannot remove: %s", path, name, strerror(errno));
    }
done:
    closedir(dir);
    return st;
}

assay_status assay_remove_tree(const char *path, const char *root_must_contain)
{
    struct stat info;
    if (lstat(path, &info) != 0) {
        ASSAY_CHECK(errno == ENOENT, ASSAY_IO, "%s: %s", path, strerror(errno));
        return ASSAY_OK;
    }
    ASSAY_CHECK(S_ISDIR(info.st_mode), ASSAY_INVALID_ARGUMENT, "%s: expected a folder, found %s", path,
                S_ISLNK(info.st_mode) ? "a symbolic link" : "something else");
    char root[PATH_MAX], target[PATH_MAX];
    ASSAY_CHECK(realpath(root_must_contain, root) != NULL, status_of(errno), "%s: %s", root_must_contain,
                strerror(errno));
    ASSAY_CHECK(realpath(path, target) != NULL, status_of(errno), "%s: %s", path, strerror(errno));
    const size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    ASSAY_CHECK(strncmp(target, root, length) == 0 && target[length] == '/' && target[length + 1] != '\0',
                ASSAY_INVALID_ARGUMENT, "%s: not below %s, nothing was removed", target, root);
    const int fd = open(target, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: cannot open: %s", target, strerror(errno));
    ASSAY_TRY(empty_folder(fd, target, 0));
    ASSAY_CHECK(rmdir(target) == 0, ASSAY_IO, "%s: cannot remove: %s", target, strerror(errno));
    return ASSAY_OK;
}

/* --- scratch folders ---------------------------------------------------------------------------------------- */

assay_status assay_scratch_make(const char *word, char *out, size_t capacity)
{
    const char *base = getenv("TMPDIR");
    base = base != NULL && base[0] != '\0' ? base : "/tmp";
    const int n = snprintf(out, capacity, "%s/assay-%s-XXXXXX", base, word);
    if (n < 0 || (size_t)n >= capacity || mkdtemp(out) == NULL) {
        const bool fits = n >= 0 && (size_t)n < capacity;
        out[0] = '\0';
        ASSAY_CHECK(fits, ASSAY_LIMIT, "TMPDIR %s: expected a path below %zu bytes", base, capacity);
        ASSAY_FAIL(ASSAY_IO, "TMPDIR %s: cannot make a folder assay-%s-...: %s", base, word, strerror(errno));
    }
    return ASSAY_OK;
}

void assay_scratch_remove(const char *dir)
{
    char base[PATH_MAX], pending[1024];
    const assay_status st = assay_error_status();
    const char *slash = strrchr(dir, '/');
    snprintf(pending, sizeof pending, "%s", assay_error_message());
    snprintf(base, sizeof base, "%.*s", slash != NULL ? (int)(slash - dir) : 1, slash != NULL ? dir : ".");
    if (assay_remove_tree(dir, base[0] != '\0' ? base : "/") == ASSAY_OK)
        return;
    fprintf(stderr, "WARNING: %s stays: %s\n", dir, assay_error_message());
    assay_error_clear();
    if (st != ASSAY_OK)
        (void)ASSAY_ERROR(st, "%s", pending);
}

/* --- whole files -------------------------------------------------------------------------------------------- */

static assay_status write_all(int fd, const char *data, uint64_t bytes, const char *path)
{
    while (bytes > 0) {
        const size_t chunk = bytes < ((uint64_t)1 << 30) ? (size_t)bytes : (size_t)1 << 30;
        const ssize_t n = write(fd, data, chunk);
        if (n < 0 && errno == EINTR)
            continue;
        ASSAY_CHECK(n > 0, ASSAY_IO, "%s: cannot write: %s", path, n < 0 ? strerror(errno) : "no progress");
        data += n;
        bytes -= (uint64_t)n;
    }
    return ASSAY_OK;
}

int assay_pwrite_all(int fd, const void *data, int64_t bytes, int64_t offset)
{
    const char *at = data;
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, at, (size_t)bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENOSPC;
        at += n;
        offset += n;
        bytes -= n;
    }
    return 0;
}

/* The memory has to be ours: without one, glibc's setvbuf heeds no size, and writes go out in blocks of the file system. */
void *assay_buffer_file(FILE *f)
{
    const size_t bytes = 1 << 16;
    char *buffer = malloc(bytes);
    if (buffer == NULL || setvbuf(f, buffer, _IOFBF, bytes) == 0)
        return buffer;
    free(buffer); /* refused */
    return NULL;
}

/* Some file systems cannot sync a folder and say EINVAL; there is nothing more to do on them. */
assay_status assay_sync_file(int fd, const char *path)
{
    const char *word = getenv("ASSAY_FSYNC");
    if (word != NULL && strcmp(word, "0") == 0)
        return ASSAY_OK;
    ASSAY_CHECK(fsync(fd) == 0 || errno == EINVAL, ASSAY_IO, "%s: cannot sync: %s", path, strerror(errno));
    return ASSAY_OK;
}

assay_status assay_sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: cannot open: %s", folder, strerror(errno));
    const assay_status st = assay_sync_file(fd, folder);
    close(fd);
    return st;
}

int assay_name_beside(const char *path, char beside[PATH_MAX], int *fd)
{
    char self[64];
    const char *slash = strrchr(path, '/');
    const int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    const bool is_open = *fd >= 0;
    if (sodium_init() < 0) /* its generator is safe with threads from here on */
        return EIO;
    snprintf(self, sizeof self, "/proc/self/fd/%d", *fd);
    for (int attempt = 0; attempt < 100; attempt++) {
        uint64_t drawn;
        randombytes_buf(&drawn, sizeof drawn);
        const int n = snprintf(beside, PATH_MAX, "%.*s.%.200s.tmp-%016llx", folder, path, path + folder,
                               (unsigned long long)drawn);
        if (n <= 0 || n >= PATH_MAX)
            return ENAMETOOLONG;
        const int made = is_open ? linkat(AT_FDCWD, self, AT_FDCWD, beside, AT_SYMLINK_FOLLOW)
                                 : open(beside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (made < 0 && errno == EEXIST)
            continue;
        if (made < 0)
            return errno;
        *fd = is_open ? *fd : made;
        return 0;
    }
    return EEXIST;
}

/* The file that takes the place of `path` when it is whole. */
static assay_status open_beside(const char *path, char beside[PATH_MAX], int *fd)
{
    *fd = -1;
    const int code = assay_name_beside(path, beside, fd);
    ASSAY_CHECK(code != ENAMETOOLONG, ASSAY_INVALID_ARGUMENT, "%.64s...: path of more than %d bytes", path,
                PATH_MAX - 1);
    ASSAY_CHECK(code == 0, status_of(code), "%s: cannot create a file beside it: %s", path, strerror(code));
    return ASSAY_OK;
}

/* It does so if st, the status of writing it, is ASSAY_OK. */
static assay_status publish(assay_status st, int fd, const char *beside, const char *path)
{
    bool open_now = true;
    ASSAY_TRY_GOTO(st, st, done);
    ASSAY_TRY_GOTO(assay_sync_file(fd, beside), st, done);
    open_now = false;
    ASSAY_CHECK_GOTO(close(fd) == 0, ASSAY_IO, st, done, "%s: cannot close: %s", beside, strerror(errno));
    ASSAY_CHECK_GOTO(rename(beside, path) == 0, ASSAY_IO, st, done, "%s: cannot rename to %s: %s", beside,
                     path, strerror(errno));
    ASSAY_TRY(assay_sync_folder_of(path));
    return ASSAY_OK;
done:
    if (open_now)
        close(fd);
    unlink(beside);
    return st;
}

assay_status assay_write_file(const char *path, const void *data, uint64_t bytes)
{
    char beside[PATH_MAX];
    int fd = -1;
    ASSAY_TRY(open_beside(path, beside, &fd));
    return publish(write_all(fd, data, bytes, beside), fd, beside, path);
}

static assay_status put_into(int fd, const char *beside, assay_file_put put, void *user)
{
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* closed with its FILE */
    FILE *f = own >= 0 ? fdopen(own, "wb") : NULL;
    const int opening = errno;
    if (f == NULL && own >= 0)
        close(own);
    ASSAY_CHECK(f != NULL, ASSAY_IO, "%s: cannot write: %s", beside, strerror(opening));
    void *buffer = assay_buffer_file(f);
    const assay_status st = put(user, f);
    errno = 0;
    const bool whole = ferror(f) == 0;
    const bool ok = fclose(f) == 0 && whole;
    const int code = errno;
    free(buffer);
    ASSAY_TRY(st);
    ASSAY_CHECK(ok, ASSAY_IO, "%s: cannot write: %s", beside, code != 0 ? strerror(code) : "no progress");
    return ASSAY_OK;
}

assay_status assay_write_file_by(const char *path, assay_file_put put, void *user)
{
    char beside[PATH_MAX];
    int fd = -1;
    ASSAY_TRY(open_beside(path, beside, &fd));
    return publish(put_into(fd, beside, put, user), fd, beside, path);
}

static assay_status read_all(int fd, uint64_t limit, const char *path, char **out, uint64_t *bytes)
{
    struct stat info;
    ASSAY_CHECK(fstat(fd, &info) == 0, ASSAY_IO, "%s: %s", path, strerror(errno));
    ASSAY_CHECK(S_ISREG(info.st_mode), ASSAY_IO, "%s: expected a regular file, found %s", path,
                S_ISDIR(info.st_mode) ? "a folder" : "something else");
    const uint64_t size = (uint64_t)info.st_size;
    ASSAY_CHECK(size <= limit && size < SIZE_MAX, ASSAY_LIMIT, "%s: %llu bytes, at most %llu are read", path,
                (unsigned long long)size, (unsigned long long)limit);
    char *text = malloc((size_t)size + 1);
    ASSAY_CHECK(text != NULL, ASSAY_OUT_OF_MEMORY, "%s: %llu bytes", path, (unsigned long long)size);
    assay_status st = ASSAY_OK;
    uint64_t got = 0;
    while (got < size) {
        const ssize_t n = read(fd, text + got, (size_t)(size - got));
        if (n < 0 && errno == EINTR)
            continue;
        ASSAY_CHECK_GOTO(n > 0, ASSAY_IO, st, fail, "%s: cannot read byte %llu of %llu: %s", path,
                         (unsigned long long)got, (unsigned long long)size,
                         n < 0 ? strerror(errno) : "the file became shorter");
        got += (uint64_t)n;
    }
    text[size] = '\0';
    *out = text;
    *bytes = size;
    return ASSAY_OK;
fail:
    free(text);
    return st;
}

assay_status assay_read_file(const char *path, uint64_t limit, char **out, uint64_t *bytes)
{
    *out = NULL;
    *bytes = 0;
    /* O_NONBLOCK: a named pipe must be refused, not waited for. */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ASSAY_CHECK(fd >= 0, status_of(errno), "%s: cannot open: %s", path, strerror(errno));
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(read_all(fd, limit, path, out, bytes), st, done);
done:
    close(fd);
    return st;
}
