/* Inputs as files: a folder of this process in memory, and inputs of several files. */
#include "tests/fuzz/fuzz.h"

#include "core/base/file.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64], folder[80], file[160];

void fuzz_broken(const char *where, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: a law is broken: ", where, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

void fuzz_must(assay_status st)
{
    if (st != ASSAY_OK)
        fuzz_broken(__FILE__, __LINE__, "%s", assay_error_message());
}

void fuzz_folder_remove(void)
{
    if (root[0] == '\0')
        return;
    (void)assay_remove_tree(root, access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    root[0] = '\0';
}

static void make_root(void)
{
    snprintf(root, sizeof root, "%s/assay-fuzz.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    FUZZ_LAW(mkdtemp(root) != NULL, "%s", root);
    /* Named by a descriptor: no part of the name is drawn, so that libFuzzer, which learns from compared texts, does the same
     * from the same seed. */
    const int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fixed = fcntl(at, F_DUPFD_CLOEXEC, 200);
    FUZZ_LAW(fixed >= 200, "%s", root);
    close(at);
    snprintf(folder, sizeof folder, "/proc/self/fd/%d/in", fixed);
    FUZZ_LAW(mkdir(folder, 0700) == 0, "%s", folder);
    atexit(fuzz_folder_remove);
    /* Beside the folder lies what no file inside may reach. */
    fuzz_write("../outside.safetensors",
               "\x37\0\0\0\0\0\0\0{\"outside\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}x",
               8 + 55 + 1);
}

const char *fuzz_folder_make(void)
{
    if (root[0] == '\0')
        make_root();
    DIR *d = opendir(folder);
    FUZZ_LAW(d != NULL, "%s", folder);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            FUZZ_LAW(unlinkat(dirfd(d), e->d_name, 0) == 0, "%s", e->d_name);
    closedir(d);
    return folder;
}

const char *fuzz_path(const char *name)
{
    snprintf(file, sizeof file, "%s/%s", folder, name);
    return file;
}

static int create(const char *name)
{
    const int fd = open(fuzz_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_LAW(fd >= 0, "%s", file);
    return fd;
}

static void put(int fd, const void *data, size_t bytes)
{
    FUZZ_LAW(bytes == 0 || write(fd, data, bytes) == (ssize_t)bytes, "%s", file);
}

void fuzz_write(const char *name, const void *data, size_t bytes)
{
    const int fd = create(name);
    put(fd, data, bytes);
    close(fd);
}

/* The first place at or behind `at` where a line begins with @@. */
static const uint8_t *next_mark(const uint8_t *at, const uint8_t *end)
{
    for (; end - at >= 3; at++)
        if (memcmp(at, "\n@@", 3) == 0)
            return at;
    return end;
}

int fuzz_sections(const uint8_t *data, size_t bytes, const char *const *names,
                  fuzz_section out[FUZZ_SECTIONS])
{
    const uint8_t *end = data + bytes;
    int n = 0;
    if (bytes < 3 || memcmp(data, "@@", 2) != 0)
        return 0;
    for (const uint8_t *at = data + 2; at < end && n < FUZZ_SECTIONS;) {
        const uint8_t *feed = memchr(at, '\n', (size_t)(end - at));
        const uint8_t *stop = next_mark(feed != NULL ? feed : end, end);
        const size_t length = (size_t)((feed != NULL ? feed : end) - at);
        for (int i = 0; names[i] != NULL; i++)
            if (strlen(names[i]) == length && memcmp(names[i], at, length) == 0) {
                fuzz_section *s = &out[n++];
                snprintf(s->name, sizeof s->name, "%s", names[i]);
                s->data = feed != NULL && feed < stop ? feed + 1 : stop;
                s->bytes = (size_t)(stop - s->data);
                break;
            }
        at = end - stop >= 3 ? stop + 3 : end;
    }
    return n;
}

void fuzz_write_sections(const fuzz_section *sections, int n)
{
    fuzz_folder_make();
    for (int i = 0; i < n; i++) {
        const fuzz_section *s = &sections[i];
        const char *dot = strrchr(s->name, '.');
        const int fd = create(s->name);
        const uint8_t *feed = s->bytes > 0 ? memchr(s->data, '\n', s->bytes) : NULL;
        if (dot != NULL && strcmp(dot, ".safetensors") == 0) {
            const size_t header = feed != NULL ? (size_t)(feed - s->data) : s->bytes;
            uint8_t length[8];
            for (int k = 0; k < 8; k++)
                length[k] = (uint8_t)((uint64_t)header >> 8 * k);
            put(fd, length, sizeof length);
            put(fd, s->data, header);
            put(fd, s->data + header + (feed != NULL), s->bytes - header - (feed != NULL));
        } else {
            put(fd, s->data, s->bytes);
        }
        close(fd);
    }
}

uint64_t fuzz_touch(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = sum * 31 + at[i];
    return sum;
}
