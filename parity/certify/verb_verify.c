/* The verbs keygen, verify and gate. */
#include "parity/certify/certify.h"
#include "parity/certify/shapes.h"

#include "core/base/text.h"
#include "core/run/options.h"
#include <dirent.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_KEYS = 16, MAX_CERTIFICATES = 4096, MAX_PATHS = 64 };
typedef struct verify_options {
    char key[MAX_KEYS][ASSAY_PATH];
    int n_keys, n_paths;
    const char *path[MAX_PATHS];
    char so[ASSAY_PATH], tier[16], require[1024];
    char device[128];     /* a shell pattern of the device's name; "": any, and none */
    char activations[16]; /* dtypes that the outputs were judged in; "": any */
    int64_t max_age;      /* seconds, -1: any */
    int64_t min_seeds;
    bool any_shape, same_sources;
} verify_options;

static int fail(const char *program)
{
    assay_error_print(stderr, program, 0);
    return 2;
}

/* "30d", "12h" */
static assay_status read_age(const char *text, int64_t *out)
{
    char *end = NULL;
    const int64_t hour = 3600, day = 24 * hour;
    const long long n = strtoll(text, &end, 10);
    ASSAY_CHECK(end != text && n > 0 && n <= 100000 && (strcmp(end, "d") == 0 || strcmp(end, "h") == 0),
                ASSAY_INVALID_ARGUMENT, "--max-age: expected days or hours such as 30d or 12h, found %s",
                text);
    *out = n * (*end == 'd' ? day : hour);
    return ASSAY_OK;
}

static assay_status read_activations(verify_options *o, const char *text)
{
    ASSAY_CHECK(strcmp(text, "F32") == 0 || strcmp(text, "BF16") == 0 || strcmp(text, "F32,BF16") == 0,
                ASSAY_INVALID_ARGUMENT, "--activations: expected F32, BF16 or F32,BF16, found %s", text);
    return assay_option_text("activations", text, o->activations, sizeof o->activations);
}

static assay_status on_option(void *user, const char *name, const char *text)
{
    verify_options *o = user;
    if (name == NULL) {
        ASSAY_CHECK(o->n_paths < MAX_PATHS, ASSAY_LIMIT, "at most %d arguments", MAX_PATHS);
        o->path[o->n_paths++] = text;
        return ASSAY_OK;
    }
    if (strcmp(name, "key") == 0) {
        ASSAY_CHECK(o->n_keys < MAX_KEYS, ASSAY_LIMIT, "at most %d keys", MAX_KEYS);
        return assay_option_text(name, text, o->key[o->n_keys++], ASSAY_PATH);
    }
    if (strcmp(name, "any_shape") == 0 || strcmp(name, "same_sources") == 0) {
        *(name[0] == 'a' ? &o->any_shape : &o->same_sources) = true;
        return ASSAY_OK;
    }
    if (strcmp(name, "activations") == 0)
        return read_activations(o, text);
    if (strcmp(name, "min_seeds") == 0)
        return assay_option_count(name, text, 1, 1000, &o->min_seeds);
    if (strcmp(name, "max_age") == 0)
        return read_age(text, &o->max_age);
    if (strcmp(name, "tier") == 0) {
        ASSAY_CHECK(strcmp(text, "host") == 0 || strcmp(text, "sim") == 0 || strcmp(text, "gpu") == 0,
                    ASSAY_INVALID_ARGUMENT, "--tier: expected host, sim or gpu, found %s", text);
        return assay_option_text(name, text, o->tier, sizeof o->tier);
    }
    if (strcmp(name, "device") == 0) {
        ASSAY_CHECK(text[0] != '\0', ASSAY_INVALID_ARGUMENT,
                    "--device: expected a device's name or a pattern such as '*H100*', found nothing");
        return assay_option_text(name, text, o->device, sizeof o->device);
    }
    if (strcmp(name, "require") == 0)
        return assay_option_text(name, text, o->require, sizeof o->require);
    return assay_option_text(name, text, o->so, sizeof o->so);
}

int parity_main_keygen(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"key", "FILE", "the secret key (default ~/.config/assay/certify.key); the public one is FILE.pub"},
        {NULL, NULL, NULL}};
    verify_options o = {.max_age = -1};
    char path[ASSAY_PATH];
    if (assay_options_parse(argc, argv, "Makes a pair of keys for certificates, outside any git tree.", "",
                            NULL, 0, extra, on_option, &o) != ASSAY_OK)
        return fail("assay keygen");
    if (o.n_paths > 0) {
        fprintf(stderr, "assay keygen: error: expected no arguments, found %s\n", o.path[0]);
        return 2;
    }
    if (certify_key_path(o.n_keys > 0 ? o.key[0] : "", "", path) != ASSAY_OK ||
        certify_key_create(path) != ASSAY_OK)
        return fail("assay keygen");
    printf("secret key: %s (keep it to yourself)\npublic key: %s.pub\n", path, path);
    return 0;
}

/* Public keys that are trusted: --key, else one's own, if there is one. */
static assay_status read_keys(const verify_options *o, char (*keys)[CERTIFY_KEY_HEX], int *n, bool needed)
{
    char path[ASSAY_PATH];
    *n = 0;
    for (int i = 0; i < o->n_keys; i++)
        ASSAY_TRY(certify_key_read_public(o->key[i], keys[(*n)++]));
    if (*n > 0)
        return ASSAY_OK;
    if (certify_key_path("", ".pub", path) == ASSAY_OK &&
        certify_key_read_public(path, keys[0]) == ASSAY_OK) {
        *n = 1;
        return ASSAY_OK;
    }
    ASSAY_CHECK(!needed, ASSAY_NOT_FOUND, "no public key to trust: expected --key FILE.pub");
    assay_error_clear();
    return ASSAY_OK;
}

/* A line of what files say, and of their names: nothing in it ends the line or moves a terminal's cursor. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static void
say(const char *fmt, ...)
{
    char line[4 * ASSAY_PATH];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    assay_clean_text(line);
    puts(line);
}

static assay_status check_sources(const verify_options *o, const certify_checked *c, const char *path)
{
    ASSAY_CHECK(!o->same_sources || certify_same_sources(c), ASSAY_MISMATCH,
                "%s: judged by sources of SHA-256 %.16s..., this program's are %.16s... (--same-sources)",
                path, c->sources, certify_source_hash());
    return ASSAY_OK;
}

static assay_status check_library(const verify_options *o, const certify_checked *c, const char *path)
{
    char sha[ASSAY_SHA256_HEX];
    if (o->so[0] == '\0')
        return ASSAY_OK;
    ASSAY_TRY(assay_sha256_file(o->so, sha));
    ASSAY_CHECK(strcmp(sha, c->sha256) == 0, ASSAY_MISMATCH,
                "%s: certifies a file of SHA-256 %.16s..., %s has %.16s...", path, c->sha256, o->so, sha);
    return certify_check_includes(json_object_get(c->certificate, "subject"), o->so, path);
}

static int verify_one(const verify_options *o, const char *path, const char (*keys)[CERTIFY_KEY_HEX],
                      int n_keys)
{
    certify_checked c;
    char issued[32], until[32], extent[1024];
    assay_status st = certify_verify(path, keys, n_keys, (int64_t)time(NULL), &c);
    if (st == ASSAY_OK)
        st = check_library(o, &c, path);
    if (st == ASSAY_OK)
        st = check_sources(o, &c, path);
    if (st == ASSAY_OK) {
        certify_good_for(&c, extent, sizeof extent);
        certify_time_text(c.issued, issued);
        certify_time_text(c.valid_until, until);
        say("good %s: %s by %s, tier %s, %s, issued %s, valid until %s, key %.16s...%s%s", path, c.operation,
            c.name, c.tier, extent, issued, until, c.key,
            n_keys == 0 ? " (no key was given to hold it to: nothing is said about who "
                          "signed)"
                        : "",
            o->so[0] != '\0' ? ", and it is of this file" : "");
    } else {
        say("BAD  %s", assay_error_message());
    }
    json_decref(c.certificate);
    return st == ASSAY_OK ? 0 : st == ASSAY_MISMATCH || st == ASSAY_FORMAT ? 1 : 2;
}

int parity_main_verify(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"key", "FILE.pub...", "a public key to trust; may be repeated (default: one's own)"},
        {"so", "FILE", "the certified library or program: its hash has to be the certificate's"},
        {"same_sources", NULL, "refuse what a judge of other sources than this program's made"},
        {NULL, NULL, NULL}};
    static char keys[MAX_KEYS][CERTIFY_KEY_HEX];
    static verify_options o;
    int n_keys = 0, worst = 0;
    o = (verify_options){.max_age = -1};
    if (assay_options_parse(
            argc, argv,
            "Verifies certificates offline: form, signature, key, validity, and that the checks were those "
            "of "
            "this version.  Exit code 1: a certificate is refused; 2: it could not be checked.",
            "CERTIFICATE ...", NULL, 0, extra, on_option, &o) != ASSAY_OK ||
        read_keys(&o, keys, &n_keys, false) != ASSAY_OK)
        return fail("assay verify");
    if (o.n_paths == 0) {
        fputs("assay verify: error: expected certificates\n", stderr);
        return 2;
    }
    for (int i = 0; i < o.n_paths; i++) {
        const int code = verify_one(&o, o.path[i], (const char(*)[CERTIFY_KEY_HEX])keys, n_keys);
        worst = code == 1 || worst == 1 ? 1 : code > worst ? code : worst;
    }
    return worst;
}

/* --- gate ------------------------------------------------------------------------------------------------------ */
typedef struct gate {
    const verify_options *o;
    int64_t now;
    int n, refused;
    certify_checked *found;
} gate;

static assay_status read_folder(gate *g, const char *folder, const char (*keys)[CERTIFY_KEY_HEX], int n_keys)
{
    char path[ASSAY_PATH];
    DIR *d = opendir(folder);
    ASSAY_CHECK(d != NULL, ASSAY_IO, "%s: cannot be read", folder);
    const struct dirent *entry;
    assay_status st = ASSAY_OK;
    while ((entry = readdir(d)) != NULL) {
        const size_t n = strlen(entry->d_name);
        if (n < 6 || strcmp(entry->d_name + n - 5, ".json") != 0)
            continue;
        ASSAY_CHECK_GOTO(g->n < MAX_CERTIFICATES, ASSAY_LIMIT, st, done,
                         "%s: expected at most %d certificates in all folders, found more", folder,
                         MAX_CERTIFICATES);
        snprintf(path, sizeof path, "%.700s/%.255s", folder, entry->d_name);
        certify_checked *c = &g->found[g->n];
        if (certify_verify(path, keys, n_keys, g->now, c) == ASSAY_OK) {
            g->n++;
            continue;
        }
        say("refused  %s", assay_error_message());
        assay_error_clear();
        json_decref(c->certificate);
        g->refused++;
    }
done:
    (void)closedir(d);
    return st;
}

/* What a description leaves out: sizes, values of attributes. */
static void only_for(const certify_checked *c, char why[300])
{
    const assay_op *op = assay_op_find(c->operation);
    char symbols[256], attributes[256];
    certify_shapes_split(c->shapes, op, symbols, attributes, sizeof symbols);
    if (attributes[0] == '\0' || certify_shapes_narrow(symbols, op))
        snprintf(why, 300, "only for shapes %.200s (--any-shape takes it)", c->shapes);
    else
        snprintf(why, 300, "tried for %.200s alone (--any-shape takes it)", attributes);
}

static bool is_of_device(const certify_checked *c, const char *pattern)
{
    const char *name = json_string_value(json_object_get(json_object_get(c->certificate, "where"), "device"));
    return name != NULL && fnmatch(pattern, name, 0) == 0;
}

/* Why a good certificate is not enough; "": it is. */
static void not_enough(const gate *g, const certify_checked *c, char why[300])
{
    const verify_options *o = g->o;
    why[0] = '\0';
    if (o->tier[0] != '\0' && strcmp(c->tier, o->tier) != 0)
        snprintf(why, 300, "only of another tier");
    else if (o->device[0] != '\0' && !is_of_device(c, o->device))
        snprintf(why, 300, "not of a device %s (--device)", o->device);
    else if (o->max_age >= 0 && g->now - c->issued > o->max_age)
        snprintf(why, 300, "older than --max-age");
    else if (o->same_sources && !certify_same_sources(c))
        snprintf(why, 300, "only judged by other sources than this program's");
    else if (!o->any_shape && certify_shapes_narrow(c->shapes, assay_op_find(c->operation)))
        only_for(c, why);
    else if (c->seeds < o->min_seeds)
        snprintf(why, 300, "seeds: expected at least %lld (--min-seeds), found %lld", (long long)o->min_seeds,
                 (long long)c->seeds);
    else if ((strstr(o->activations, "BF16") != NULL && strstr(c->dtypes, "BF16") == NULL) ||
             (strstr(o->activations, "F32") != NULL && strstr(c->dtypes, "F32") == NULL))
        snprintf(why, 300, "tried with activations %s, expected --activations %s",
                 c->dtypes[0] != '\0' ? c->dtypes : "none", o->activations);
}

/* The newest certificate of an operation that is enough. */
static bool require(const gate *g, const char *op)
{
    const certify_checked *best = NULL;
    char extent[1024], why[300] = "no certificate", here[300];
    const int64_t hour = 3600;
    for (int i = 0; i < g->n; i++) {
        const certify_checked *c = &g->found[i];
        /* a library of send has recv, too */
        if (strcmp(c->operation, strcmp(op, "recv") == 0 ? "send" : op) != 0)
            continue;
        not_enough(g, c, here);
        if (here[0] != '\0')
            snprintf(why, sizeof why, "%s", here);
        else if (best == NULL || c->issued > best->issued)
            best = c;
    }
    if (best != NULL) {
        certify_good_for(best, extent, sizeof extent);
        say("good     %s: %s, tier %s, %s, %lld hours old", op, best->name, best->tier, extent,
            (long long)((g->now - best->issued) / hour));
    } else
        say("MISSING  %s: %s", op, why);
    return best != NULL;
}

/* An operation, or all operations of a family. */
static assay_status require_word(const gate *g, const char *word, int *passed, int *missing)
{
    int n = 0;
    for (int i = 0; assay_op_at(i) != NULL; i++) {
        const assay_op *op = assay_op_at(i);
        if (strcmp(op->name, word) != 0 && strcmp(op->family, word) != 0)
            continue;
        *(require(g, op->name) ? passed : missing) += 1;
        n++;
    }
    ASSAY_CHECK(n > 0, ASSAY_INVALID_ARGUMENT,
                "--require: expected operations or families of docs/OPS.md, found %s", word);
    return ASSAY_OK;
}

static assay_status run_gate(const verify_options *o, int *code)
{
    static char keys[MAX_KEYS][CERTIFY_KEY_HEX];
    int n_keys = 0, passed = 0, missing = 0;
    char words[1024], *rest = NULL;
    assay_status st = ASSAY_OK;
    gate g = {.o = o, .now = (int64_t)time(NULL)};
    ASSAY_TRY(read_keys(o, keys, &n_keys, true));
    g.found = calloc(MAX_CERTIFICATES + 1, sizeof *g.found);
    ASSAY_CHECK(g.found != NULL, ASSAY_OUT_OF_MEMORY, "gate");
    for (int i = 0; i < o->n_paths; i++)
        ASSAY_TRY_GOTO(read_folder(&g, o->path[i], (const char(*)[CERTIFY_KEY_HEX])keys, n_keys), st, done);
    snprintf(words, sizeof words, "%s", o->require);
    for (char *word = strtok_r(words, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest))
        ASSAY_TRY_GOTO(require_word(&g, word, &passed, &missing), st, done);
    ASSAY_CHECK_GOTO(passed + missing > 0, ASSAY_INVALID_ARGUMENT, st, done,
                     "--require: expected operations or families, found none in '%s'", o->require);
    printf("%d passed, %d failed, 0 skipped\n", passed, missing + g.refused);
    *code = missing + g.refused > 0 ? 1 : 0;
done:
    for (int i = 0; i < g.n; i++)
        json_decref(g.found[i].certificate);
    free(g.found);
    return st;
}

int parity_main_gate(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"require", "OP,FAMILY,...", "each needs a good certificate (a family: each of its operations)"},
        {"tier", "host|sim|gpu", "of this tier (default: any)"},
        {"device", "PATTERN", "tried on a device of this name: '*H100*' (default: any, or none)"},
        {"max_age", "30d", "issued at most so long ago"},
        {"activations", "F32|BF16|F32,BF16", "outputs were judged with activations of these dtypes"},
        {"min_seeds", "N", "tried with at least so many seeds (assay certify --seeds)"},
        {"any_shape", NULL,
         "also take one whose description leaves out sizes, beside empty tensors, or values of attributes"},
        {"same_sources", NULL, "made by a judge of this program's sources, not only of its version"},
        {"key", "FILE.pub...", "a public key to trust; may be repeated (default: one's own)"},
        {NULL, NULL, NULL}};
    static verify_options o;
    int code = 2;
    o = (verify_options){.max_age = -1};
    if (assay_options_parse(argc, argv,
                            "For CI: exit code 0 when the folders hold a good certificate for everything "
                            "required, 1 when one is "
                            "missing or a file is refused, 2 when that could not be checked.",
                            "DIR ...", NULL, 0, extra, on_option, &o) != ASSAY_OK)
        return fail("assay gate");
    if (o.n_paths == 0 || o.require[0] == '\0') {
        fputs("assay gate: error: expected --require OP,... and folders of certificates\n", stderr);
        return 2;
    }
    return run_gate(&o, &code) == ASSAY_OK ? code : fail("assay gate");
}
