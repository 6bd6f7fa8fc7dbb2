/* What a plain CUDA file includes: the compiler's list (-MM), each with its hash, so that a certificate is of all of it. */
#include "parity/certify/launch.h"

#include "core/base/sha256.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* One word of a rule of make, "a\\ b.h" read as "a b.h"; false: none is left. */
static bool next_word(const char **at, char out[ASSAY_PATH])
{
    const char *p = *at;
    size_t n = 0;
    while (*p == ' ' || *p == '\n' || *p == '\t' || (*p == '\\' && (p[1] == '\n' || p[1] == '\r')))
        p += *p == '\\' ? 2 : 1;
    for (; *p != '\0' && strchr(" \n\t", *p) == NULL; p++) {
        if (*p == '\\' && (p[1] == ' ' || p[1] == '#'))
            p++;
        if (*p == '\\' && p[1] == '\n')
            break;
        if (n + 1 < ASSAY_PATH)
            out[n++] = *p;
    }
    out[n] = '\0';
    *at = p;
    return n > 0;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Below the folder of `file` from there, else as it is. */
static const char *from_folder(const char *path, const char *file)
{
    const char *slash = strrchr(file, '/');
    const size_t n = slash != NULL ? (size_t)(slash - file) + 1 : 0;
    return strncmp(path, file, n) == 0 ? path + n : path;
}

/* Headers of the compiler's own toolkit, which nvcc counts among those that are not the system's: in the description, `built` says its version. */
static bool of_toolkit(const char *path, const char *toolkit)
{
    const size_t n = strlen(toolkit);
    return n > 0 && strncmp(path, toolkit, n) == 0 &&
           (strncmp(path + n, "/include/", 9) == 0 || strncmp(path + n, "/targets/", 9) == 0);
}

/* assay_kernel.h and its like, which `include` is the folder of. */
static bool ours(const char *path, const char *include)
{
    size_t n = strlen(include);
    while (n > 0 && include[n - 1] == '/')
        n--;
    return n > 0 && strncmp(path, include, n) == 0 && path[n] == '/' && strstr(path + n, "/../") == NULL;
}

assay_status launch_read_includes(const char *rule, const char *source, const char *file, const char *include,
                                  const char *toolkit, json_t **out)
{
    const char *p = strstr(rule, ": ");
    char word[ASSAY_PATH], sha[ASSAY_SHA256_HEX];
    *out = json_object();
    for (p = p != NULL ? p + 2 : ""; next_word(&p, word);) {
        /* nvcc takes a #line for an include */
        if (strcmp(word, "--launch") == 0 || same_file(word, source) || same_file(word, file) ||
            ours(word, include))
            continue;
        char *whole = realpath(word, NULL);
        ASSAY_CHECK(whole != NULL, ASSAY_IO, "%s: included, and cannot be read", word);
        const bool theirs = of_toolkit(whole, toolkit);
        const assay_status st = theirs ? ASSAY_OK : assay_sha256_file(whole, sha);
        if (st == ASSAY_OK && !theirs)
            json_object_set_new(*out, from_folder(whole, file), json_string(sha));
        free(whole);
        ASSAY_TRY(st);
    }
    return ASSAY_OK;
}

assay_status certify_check_includes(const json_t *subject, const char *file, const char *who)
{
    const char *name, *slash = strrchr(file, '/');
    char path[ASSAY_PATH], sha[ASSAY_SHA256_HEX];
    json_t *expected;
    json_object_foreach(json_object_get(subject, "includes"), name, expected)
    {
        const bool beside = name[0] != '/' && slash != NULL;
        snprintf(path, sizeof path, "%.*s%.500s", beside ? (int)(slash - file) + 1 : 0, file, name);
        ASSAY_TRY(assay_sha256_file(path, sha));
        ASSAY_CHECK(json_is_string(expected) && strcmp(json_string_value(expected), sha) == 0, ASSAY_MISMATCH,
                    "%s: certifies a file that includes %s of SHA-256 %.16s..., which has %.16s... now", who,
                    name, json_is_string(expected) ? json_string_value(expected) : "-", sha);
    }
    return ASSAY_OK;
}
