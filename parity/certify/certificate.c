/* A certificate: canonical JSON (sorted keys, no spaces, ASCII), signed with Ed25519, offline to verify. */
#include "parity/certify/certify.h"

#include "core/base/file.h"
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CERTIFICATE_VERSION = 1, CERTIFICATE_BYTES = 1 << 20 };
enum { CANONICAL = JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(17) };
/* In front of the signed text: a signature of another kind of file is none of this. */
static const char domain[] = "assay certificate 1\n";

void certify_time_text(int64_t t, char out[32])
{
    const time_t seconds = (time_t)t;
    struct tm parts;
    (void)gmtime_r(&seconds, &parts);
    (void)strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

/* "2026-01-31T12:00:00Z": digits in their places, and what they mean says the same text again. */
assay_status certify_time_read(const char *text, int64_t *out)
{
    static const int first[] = {0, 5, 8, 11, 14, 17}, length[] = {4, 2, 2, 2, 2, 2};
    struct tm parts;
    int value[6] = {0};
    char again[32];
    const bool whole = text != NULL && strlen(text) == 20;
    for (int i = 0; i < 6 && whole; i++)
        for (int k = 0; k < length[i]; k++)
            value[i] = 10 * value[i] + (text[first[i] + k] - '0');
    memset(&parts, 0, sizeof parts);
    parts.tm_year = value[0] - 1900;
    parts.tm_mon = value[1] - 1;
    parts.tm_mday = value[2];
    parts.tm_hour = value[3];
    parts.tm_min = value[4];
    parts.tm_sec = value[5];
    *out = whole ? (int64_t)timegm(&parts) : 0;
    certify_time_text(*out, again);
    ASSAY_CHECK(whole && strcmp(again, text) == 0, ASSAY_FORMAT,
                "expected a time such as 2026-01-31T12:00:00Z, found %.40s", text != NULL ? text : "nothing");
    return ASSAY_OK;
}

/* --- contents ----------------------------------------------------------------------------------------------- */

/* JSON has no infinity. */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_string("infinite");
}

static json_t *trials_of(const certify_result *r)
{
    json_t *trials = json_object();
    for (int t = 0; t < CERTIFY_TRIALS; t++)
        if (r->board.trial[t].calls > 0)
            json_object_set_new(trials, certify_trial_name((certify_trial)t),
                                json_pack("{s:I, s:I}", "checks", (json_int_t)r->board.trial[t].calls,
                                          "failed", (json_int_t)r->board.trial[t].bad));
    return trials;
}

static json_t *outputs_of(const certify_result *r)
{
    json_t *outputs = json_array();
    for (int i = 0; i < r->n_outputs; i++) {
        const certify_output *o = &r->output[i];
        json_array_append_new(outputs, json_pack("{s:s, s:s, s:I, s:o, s:o, s:s}", "output", o->slot,
                                                 "activations", o->dtype, "elements", (json_int_t)o->elements,
                                                 "worst_ratio", number(o->ratio), "worst_beyond_rounding",
                                                 number(o->share), "where", o->place));
    }
    return outputs;
}

static assay_status contents(const certify_result *r, int64_t valid_days, json_t **out)
{
    char digest[ASSAY_SHA256_HEX], issued[32], until[32];
    const int64_t now = (int64_t)time(NULL), day = 86400;
    ASSAY_TRY(certify_plan_digest(&r->plan, digest));
    certify_time_text(now, issued);
    certify_time_text(now + valid_days * day, until);
    *out = json_pack(
        "{s:s, s:i, s:s, s:O, s:O, s:{s:s, s:s, s:s}, s:{s:I, s:I, s:o, s:o}, s:o, s:O, s:s, s:s, s:s}",
        "format", "assay certificate", "version", CERTIFICATE_VERSION, "verdict", "pass", "subject",
        r->subject, "where", r->where, "assay", "version", parity_version(), "sources", certify_source_hash(),
        "checks", digest, "tried", "calls", (json_int_t)r->calls, "runs", (json_int_t)r->board.runs, "trials",
        trials_of(r), "plan", certify_plan_json(&r->plan), "outputs", outputs_of(r), "not_tried",
        r->not_tried, "issued", issued, "valid_until", until, "operation", r->op->name);
    ASSAY_CHECK(*out != NULL, ASSAY_INTERNAL, "certificate of %s", r->op->name);
    if (r->throughput != NULL)
        json_object_set(*out, "throughput", r->throughput);
    return ASSAY_OK;
}

/* --- signature ---------------------------------------------------------------------------------------------- */
static assay_status signed_text(const json_t *certificate, char **out)
{
    char *text = json_dumps(certificate, CANONICAL);
    *out = text != NULL ? malloc(sizeof domain + strlen(text)) : NULL;
    if (*out != NULL)
        snprintf(*out, sizeof domain + strlen(text), "%s%s", domain, text);
    free(text);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "certificate");
    return ASSAY_OK;
}

assay_status certify_sign(json_t *certificate, const certify_key *key, const char *path)
{
    unsigned char signature[crypto_sign_BYTES];
    char hex[CERTIFY_SIGNATURE_HEX], *text = NULL, *line = NULL;
    json_t *whole = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(signed_text(certificate, &text), st, done);
    (void)crypto_sign_detached(signature, NULL, (const unsigned char *)text, strlen(text), key->secret);
    sodium_bin2hex(hex, sizeof hex, signature, sizeof signature);
    whole =
        json_pack("{s:O, s:s, s:s}", "certificate", certificate, "key", key->public_hex, "signature", hex);
    line = whole != NULL ? json_dumps(whole, CANONICAL) : NULL;
    ASSAY_CHECK_GOTO(line != NULL, ASSAY_OUT_OF_MEMORY, st, done, "certificate");
    const size_t n = strlen(line);
    line[n] = '\n'; /* in place of the end of the text */
    ASSAY_TRY_GOTO(assay_write_file(path, line, n + 1), st, done);
done:
    free(line);
    free(text);
    json_decref(whole);
    return st;
}

assay_status certify_certificate_write(const certify_result *r, const certify_key *key, int64_t valid_days,
                                       const char *path)
{
    json_t *certificate = NULL;
    ASSAY_CHECK(certify_passes(r), ASSAY_INVALID_ARGUMENT, "%s: a trial failed: there is no certificate",
                r->op->name);
    ASSAY_TRY(contents(r, valid_days, &certificate));
    const assay_status st = certify_sign(certificate, key, path);
    json_decref(certificate);
    return st;
}

/* --- reading ------------------------------------------------------------------------------------------------ */

/* The file is byte for byte what its contents are in canonical form. */
static assay_status check_canonical(const char *path, const json_t *whole, const char *found, uint64_t bytes)
{
    char *text = json_dumps(whole, CANONICAL);
    ASSAY_CHECK(text != NULL, ASSAY_OUT_OF_MEMORY, "%s", path);
    const size_t n = strlen(text);
    size_t k = 0;
    while (k < n && k < bytes && text[k] == found[k])
        k++;
    const bool same = k == n && bytes == n + 1 && found[n] == '\n';
    free(text);
    ASSAY_CHECK(same, ASSAY_MISMATCH, "%s: byte %zu: not in canonical form, the file was changed", path, k);
    return ASSAY_OK;
}

static assay_status check_signature(const char *path, const json_t *whole, char key[CERTIFY_KEY_HEX])
{
    unsigned char public_key[crypto_sign_PUBLICKEYBYTES], signature[crypto_sign_BYTES];
    static const char *const members[] = {"certificate", "key", "signature", NULL};
    char hex[CERTIFY_SIGNATURE_HEX], *text = NULL;
    size_t got = 0;
    ASSAY_TRY(assay_json_only(whole, members, path));
    ASSAY_TRY(assay_json_get_string(whole, "key", true, path, key, CERTIFY_KEY_HEX));
    ASSAY_TRY(assay_json_get_string(whole, "signature", true, path, hex, sizeof hex));
    const bool key_read =
        sodium_hex2bin(public_key, sizeof public_key, key, strlen(key), NULL, &got, NULL) == 0 &&
        got == sizeof public_key;
    ASSAY_CHECK(key_read, ASSAY_FORMAT, "%s: key: expected 32 bytes in hexadecimal", path);
    const bool signature_read =
        sodium_hex2bin(signature, sizeof signature, hex, strlen(hex), NULL, &got, NULL) == 0 &&
        got == sizeof signature;
    ASSAY_CHECK(signature_read, ASSAY_FORMAT, "%s: signature: expected 64 bytes in hexadecimal", path);
    ASSAY_TRY(signed_text(json_object_get(whole, "certificate"), &text));
    const bool good =
        crypto_sign_verify_detached(signature, (const unsigned char *)text, strlen(text), public_key) == 0;
    free(text);
    ASSAY_CHECK(good, ASSAY_MISMATCH,
                "%s: the signature is not that of key %.16s... on this text: something was changed", path,
                key);
    return ASSAY_OK;
}

static assay_status check_keys(const char *path, const char *key, const char (*keys)[CERTIFY_KEY_HEX],
                               int n_keys)
{
    for (int i = 0; i < n_keys; i++)
        if (strcmp(keys[i], key) == 0)
            return ASSAY_OK;
    ASSAY_CHECK(n_keys == 0, ASSAY_MISMATCH,
                "%s: signed by key %.16s..., which is none of the %d that are trusted", path, key, n_keys);
    return ASSAY_OK;
}

static void add_rounds(const json_t *arithmetic, certify_checked *out)
{
    const json_t *list = json_object_get(arithmetic, "rounding");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));
        const size_t used = strlen(out->rounds);
        if (word != NULL && strstr(out->rounds, word) == NULL)
            snprintf(out->rounds + used, sizeof out->rounds - used, "%s%s", used > 0 ? " " : "", word);
    }
}

/* Rounding points of any output, each once; of the engine those of each call. */
static void read_rounds(const json_t *description, certify_checked *out)
{
    const char *slot;
    json_t *one;
    size_t i;
    json_object_foreach(json_object_get(description, "arithmetic"), slot, one) add_rounds(one, out);
    json_array_foreach(json_object_get(description, "declared"), i, one)
        add_rounds(json_object_get(one, "arithmetic"), out);
}

/* For which sizes and activations it was tried. */
static assay_status read_extent(const char *path, const json_t *c, certify_checked *out)
{
    const json_t *shapes =
                     json_object_get(json_object_get(json_object_get(c, "subject"), "description"), "shapes"),
                 *outputs = json_object_get(c, "outputs");
    ASSAY_CHECK(shapes == NULL || json_is_string(shapes), ASSAY_FORMAT,
                "%s: subject.description.shapes: expected a text", path);
    out->shapes = shapes != NULL ? json_string_value(shapes) : "";
    read_rounds(json_object_get(json_object_get(c, "subject"), "description"), out);
    for (size_t i = 0; i < json_array_size(outputs); i++) {
        char dtype[8];
        const size_t used = strlen(out->dtypes);
        ASSAY_TRY(assay_json_get_string(json_array_get(outputs, i), "activations", true, path, dtype,
                                        sizeof dtype));
        if (strstr(out->dtypes, dtype) == NULL)
            snprintf(out->dtypes + used, sizeof out->dtypes - used, "%s%s", used > 0 ? " " : "", dtype);
    }
    return ASSAY_OK;
}

static assay_status read_words(const char *path, const json_t *c, certify_checked *out)
{
    char text[64], issued[40], until[40];
    int64_t version = 0;
    const json_t *subject = json_object_get(c, "subject"), *where = json_object_get(c, "where");
    ASSAY_TRY(assay_json_get_string(c, "format", true, path, text, sizeof text));
    ASSAY_CHECK(strcmp(text, "assay certificate") == 0, ASSAY_FORMAT, "%s: format: found '%s'", path, text);
    ASSAY_TRY(assay_json_get_i64(c, "version", true, 0, INT64_MAX, path, &version));
    ASSAY_CHECK(version == CERTIFICATE_VERSION, ASSAY_UNSUPPORTED, "%s: version: expected %d, found %lld",
                path, CERTIFICATE_VERSION, (long long)version);
    ASSAY_TRY(assay_json_get_string(c, "verdict", true, path, text, sizeof text));
    ASSAY_CHECK(strcmp(text, "pass") == 0, ASSAY_MISMATCH, "%s: verdict: found '%s'", path, text);
    ASSAY_TRY(assay_json_get_string(c, "operation", true, path, out->operation, sizeof out->operation));
    ASSAY_TRY(assay_json_get_string(subject, "name", true, path, out->name, sizeof out->name));
    ASSAY_TRY(assay_json_get_string(subject, "sha256", true, path, out->sha256, sizeof out->sha256));
    ASSAY_TRY(assay_json_get_string(where, "tier", true, path, out->tier, sizeof out->tier));
    ASSAY_TRY(assay_json_get_string(json_object_get(c, "assay"), "sources", true, path, out->sources,
                                    sizeof out->sources));
    ASSAY_TRY(read_extent(path, c, out));
    ASSAY_TRY(assay_json_get_string(c, "issued", true, path, issued, sizeof issued));
    ASSAY_TRY(assay_json_get_string(c, "valid_until", true, path, until, sizeof until));
    ASSAY_TRY(certify_time_read(issued, &out->issued));
    return certify_time_read(until, &out->valid_until);
}

static assay_status check_time(const char *path, const certify_checked *c, int64_t now)
{
    char text[32];
    const int64_t clocks = 300; /* seconds by which two clocks may differ */
    certify_time_text(c->issued, text);
    ASSAY_CHECK(c->issued <= now + clocks, ASSAY_MISMATCH, "%s: issued in the future (%s)", path, text);
    certify_time_text(c->valid_until, text);
    ASSAY_CHECK(now <= c->valid_until, ASSAY_MISMATCH, "%s: valid until %s alone", path, text);
    return ASSAY_OK;
}

/* The checks were those of this version, for as many seeds as the certificate says. */
static assay_status check_checks(const char *path, const json_t *c, certify_checked *out)
{
    char version[64], digest[ASSAY_SHA256_HEX], mine[ASSAY_SHA256_HEX];
    const json_t *assay = json_object_get(c, "assay"),
                 *plan = json_object_get(json_object_get(c, "tried"), "plan");
    certify_plan asked = {.op = out->operation, .seeds = 0};
    ASSAY_TRY(assay_json_get_string(assay, "version", true, path, version, sizeof version));
    ASSAY_TRY(assay_json_get_string(assay, "checks", true, path, digest, sizeof digest));
    ASSAY_CHECK(strcmp(version, parity_version()) == 0, ASSAY_UNSUPPORTED,
                "%s: made by assay %s; this is %s and does not know which checks that version made", path,
                version, parity_version());
    ASSAY_CHECK(assay_op_find(asked.op) != NULL, ASSAY_MISMATCH, "%s: operation: unknown '%s'", path,
                asked.op);
    ASSAY_TRY(assay_json_get_i64(plan, "seeds", true, 1, 1000, path, &asked.seeds));
    out->seeds = asked.seeds;
    ASSAY_TRY(certify_plan_digest(&asked, mine));
    ASSAY_CHECK(strcmp(digest, mine) == 0, ASSAY_MISMATCH,
                "%s: the checks (%.16s...) are not those of assay %s (%.16s...)", path, digest, version,
                mine);
    return ASSAY_OK;
}

assay_status certify_verify(const char *path, const char (*keys)[CERTIFY_KEY_HEX], int n_keys, int64_t now,
                            certify_checked *out)
{
    char *text = NULL;
    uint64_t bytes = 0;
    json_t *whole = NULL;
    assay_status st = ASSAY_OK;
    memset(out, 0, sizeof *out);
    ASSAY_TRY(assay_hash_init());
    ASSAY_TRY(assay_read_file(path, CERTIFICATE_BYTES, &text, &bytes));
    ASSAY_TRY_GOTO(assay_json_parse(&whole, text, bytes, path), st, done);
    ASSAY_TRY_GOTO(check_canonical(path, whole, text, bytes), st, done);
    ASSAY_TRY_GOTO(check_signature(path, whole, out->key), st, done);
    ASSAY_TRY_GOTO(check_keys(path, out->key, keys, n_keys), st, done);
    out->certificate = json_incref(json_object_get(whole, "certificate"));
    ASSAY_TRY_GOTO(read_words(path, out->certificate, out), st, done);
    ASSAY_TRY_GOTO(check_time(path, out, now), st, done);
    ASSAY_TRY_GOTO(check_checks(path, out->certificate, out), st, done);
done:
    free(text);
    json_decref(whole);
    return st;
}
