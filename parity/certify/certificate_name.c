/* The files of a result in the folder of certificates: one for each thing that was certified, and none of another is touched. */
#include "parity/certify/certify.h"

#include "core/base/file.h"
#include <dirent.h>
#include <string.h>
#include <unistd.h>

/* Of a path as long as ASSAY_PATH: bytes of the folder and of a name. */
enum { FOLDER = 760, LONGEST_FILE = 100, LONGEST_SYMBOL = 80, LONGEST_VARIANT = 40, DIGITS = 8 };

/* What says that two subjects are one: the file's name, the function in it, of a plain CUDA file its launch, of an engine its variant. */
static const char *const members[] = {"kind", "file", "symbol", "launch", "variant"};
enum { MEMBERS = sizeof members / sizeof *members };

static const char *member(const json_t *subject, const char *name)
{
    const char *text = json_string_value(json_object_get(subject, name));
    return text != NULL                                                                     ? text
           : strcmp(name, "variant") == 0 && strcmp(member(subject, "kind"), "engine") == 0 ? CERTIFY_FASTEST
                                                                                            : "";
}

/* "k0" as it is; of families (linear=k1|...) digits. */
static size_t add_variant(const char *variant, char *out, size_t capacity)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz0123456789_=";
    char sha[ASSAY_SHA256_HEX];
    if (variant[0] == '\0' || strcmp(variant, CERTIFY_FASTEST) == 0)
        return 0;
    if (strlen(variant) <= LONGEST_VARIANT && variant[strspn(variant, plain)] == '\0')
        return (size_t)snprintf(out, capacity, "-%s", variant);
    assay_sha256_bytes(variant, strlen(variant), sha);
    return (size_t)snprintf(out, capacity, "-%.*s", DIGITS, sha);
}

void certify_file_stem(const certify_result *r, char out[CERTIFY_STEM])
{
    char whole[2048], sha[ASSAY_SHA256_HEX],
        rest[LONGEST_FILE + LONGEST_SYMBOL + LONGEST_VARIANT + DIGITS + 8];
    const char *kind = member(r->subject, "kind"), *file = member(r->subject, "file"),
               *symbol = member(r->subject, "symbol"), *launch = member(r->subject, "launch");
    /* a module or an operation of the engine says by itself what it is */
    const bool alone = strcmp(kind, "python") == 0 || strcmp(kind, "engine") == 0;
    size_t n = 0;
    if (!alone)
        n = (size_t)snprintf(rest, sizeof rest, "%.*s", LONGEST_FILE, file);
    if (launch[0] == '\0')
        n += (size_t)snprintf(rest + n, sizeof rest - n, "%s%.*s", n > 0 ? "-" : "", LONGEST_SYMBOL, symbol);
    if (launch[0] != '\0' || strlen(file) > LONGEST_FILE || strlen(symbol) > LONGEST_SYMBOL) {
        snprintf(whole, sizeof whole, "%.400s\n%.400s\n%.1023s", file, symbol, launch);
        assay_sha256_bytes(whole, strlen(whole), sha);
        n += (size_t)snprintf(rest + n, sizeof rest - n, "-%.*s", DIGITS, sha);
    }
    n += add_variant(member(r->subject, "variant"), rest + n, sizeof rest - n);
    snprintf(out, CERTIFY_STEM, "%s-%s-%s", r->op->name, rest,
             json_string_value(json_object_get(r->where, "tier")));
}

static bool same_subject(const certify_result *r, const json_t *certificate)
{
    const json_t *subject = json_object_get(certificate, "subject");
    bool same = strcmp(member(certificate, "operation"), r->op->name) == 0 &&
                strcmp(member(json_object_get(certificate, "where"), "tier"), member(r->where, "tier")) == 0;
    for (int i = 0; i < MEMBERS; i++)
        same = same && strcmp(member(subject, members[i]), member(r->subject, members[i])) == 0;
    return same;
}

void certify_remove_older(const certify_result *r, const char *folder)
{
    char path[ASSAY_PATH], page[ASSAY_PATH], stem[CERTIFY_STEM];
    DIR *d = opendir(folder);
    const struct dirent *entry;
    certify_file_stem(r, stem);
    while (d != NULL && (entry = readdir(d)) != NULL) {
        const size_t n = strlen(entry->d_name);
        json_t *whole = NULL;
        if (n < 6 || strcmp(entry->d_name + n - 5, ".json") != 0)
            continue;
        snprintf(path, sizeof path, "%.*s/%.255s", FOLDER, folder, entry->d_name);
        snprintf(page, sizeof page, "%.*s/%.*s.html", FOLDER, folder, (int)n - 5, entry->d_name);
        if (assay_json_load(&whole, path) == ASSAY_OK &&
            same_subject(r, json_object_get(whole, "certificate"))) {
            (void)unlink(path);
            if (strncmp(entry->d_name, stem, n - 5) != 0 || stem[n - 5] != '\0')
                (void)unlink(page); /* that of this result is written anew */
        }
        assay_error_clear();
        json_decref(whole);
    }
    if (d != NULL)
        (void)closedir(d);
}
