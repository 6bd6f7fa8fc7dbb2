/* What the tests of file formats share: a folder of their own, files from bytes, checks of messages. */
#ifndef TEST_CORE_FILES_H
#define TEST_CORE_FILES_H

#include "core/base/file.h"
#include "core/base/status.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEST_PATH = 512 };

/* A fresh folder below /tmp; removed by test_folder_remove. */
static inline void test_folder_make(char folder[TEST_PATH])
{
    snprintf(folder, TEST_PATH, "/tmp/assay-test-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static inline void test_folder_remove(const char *folder)
{
    cr_assert_eq(assay_remove_tree(folder, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

static inline const char *test_path(char out[TEST_PATH], const char *folder, const char *name)
{
    cr_assert_lt(snprintf(out, TEST_PATH, "%s/%s", folder, name), TEST_PATH);
    return out;
}

static inline void test_write(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fwrite(bytes, 1, n, f), n);
    cr_assert_eq(fclose(f), 0);
}

static inline void test_write_text(const char *path, const char *text)
{
    test_write(path, text, strlen(text));
}

/* A safetensors file: `n` (the header length that it states), header, `data_bytes` bytes 0, 1, 2, ... */
static inline void test_write_safetensors_n(const char *path, uint64_t n, const char *header,
                                            size_t header_bytes, size_t data_bytes)
{
    uint8_t *bytes = malloc(8 + header_bytes + data_bytes);
    cr_assert_not_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(n >> (8 * i));
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + header_bytes + i] = (uint8_t)i;
    test_write(path, bytes, 8 + header_bytes + data_bytes);
    free(bytes);
}

static inline void test_write_safetensors(const char *path, const char *header, size_t data_bytes)
{
    test_write_safetensors_n(path, strlen(header), header, strlen(header), data_bytes);
}

static inline char *test_read(const char *path, uint64_t *bytes)
{
    char *text = NULL;
    uint64_t n = 0;
    cr_assert_eq(assay_read_file(path, (uint64_t)1 << 30, &text, &n), ASSAY_OK, "%s", assay_error_message());
    if (bytes)
        *bytes = n;
    return text;
}

/* Files in a folder, "." and ".." not counted. */
static inline int test_count_files(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    cr_assert_not_null(dir);
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return n;
}

/* The call failed with `want` and its message holds `text`. */
#define TEST_FAILS(call, want, text)                                                                         \
    do {                                                                                                     \
        const assay_status test_st_ = (call);                                                                \
        cr_assert_eq(test_st_, (want), "expected %s, found %s: %s", assay_status_name(want),                 \
                     assay_status_name(test_st_), test_st_ ? assay_error_message() : "");                    \
        cr_assert_not_null(strstr(assay_error_message(), (text)), "expected '%s' in '%s'", (text),           \
                           assay_error_message());                                                           \
    } while (0)
#define TEST_OK(call)                                                                                        \
    do {                                                                                                     \
        const assay_status test_st_ = (call);                                                                \
        cr_assert_eq(test_st_, ASSAY_OK, "%s: %s", assay_status_name(test_st_),                              \
                     test_st_ ? assay_error_message() : "");                                                 \
    } while (0)

#endif
