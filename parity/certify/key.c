/* Keys: Ed25519, as text files.  The secret one is the reader's alone and lies in no source tree. */
#include "parity/certify/certify.h"

#include "core/base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char secret_word[] = "assay-secret-key ", public_word[] = "assay-public-key ";

assay_status certify_key_path(const char *given, const char *ending, char out[ASSAY_PATH])
{
    const char *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME");
    int n;
    if (given[0] != '\0') {
        n = snprintf(out, ASSAY_PATH, "%s%s", given, ending);
    } else if (config != NULL && config[0] == '/') {
        n = snprintf(out, ASSAY_PATH, "%s/assay/certify.key%s", config, ending);
    } else {
        ASSAY_CHECK(home != NULL && home[0] != '\0', ASSAY_NOT_FOUND,
                    "no HOME for keys: expected --key FILE");
        n = snprintf(out, ASSAY_PATH, "%s/.config/assay/certify.key%s", home, ending);
    }
    ASSAY_CHECK(n > 0 && n < ASSAY_PATH, ASSAY_LIMIT, "the path of the key is too long");
    return ASSAY_OK;
}

static assay_status refuse_tree(const char *folder)
{
    char at[ASSAY_PATH + 8];
    char *whole = realpath(folder, NULL);
    ASSAY_CHECK(whole != NULL, ASSAY_IO, "%s: %s", folder, strerror(errno));
    assay_status st = ASSAY_OK;
    for (size_t n = strlen(whole); st == ASSAY_OK && n > 0; n--) {
        if (whole[n] != '\0' && whole[n] != '/')
            continue;
        snprintf(at, sizeof at, "%.*s/.git", (int)n, whole);
        if (access(at, F_OK) == 0)
            st = ASSAY_ERROR(
                ASSAY_INVALID_ARGUMENT,
                "%s lies in the git tree %.*s: expected a place outside, a secret key is never in a tree",
                folder, (int)n, whole);
    }
    free(whole);
    return st;
}

static assay_status write_new(const char *path, mode_t mode, const char *word, const char *hex)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: %s", path, strerror(errno));
    const bool written = dprintf(fd, "%s%s\n", word, hex) > 0 && fsync(fd) == 0;
    const bool closed = close(fd) == 0;
    ASSAY_CHECK(written && closed, ASSAY_IO, "%s: %s", path, strerror(errno));
    return ASSAY_OK;
}

assay_status certify_key_create(const char *path)
{
    unsigned char public_key[crypto_sign_PUBLICKEYBYTES], secret[crypto_sign_SECRETKEYBYTES];
    char hex[CERTIFY_SECRET_HEX], folder[ASSAY_PATH], public_path[ASSAY_PATH + 8];
    ASSAY_TRY(assay_hash_init());
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
    else
        snprintf(folder, sizeof folder, ".");
    ASSAY_TRY(assay_mkdir_p(folder[0] != '\0' ? folder : "/"));
    ASSAY_TRY(refuse_tree(folder[0] != '\0' ? folder : "/"));
    snprintf(public_path, sizeof public_path, "%s.pub", path);
    ASSAY_CHECK(access(path, F_OK) != 0 && access(public_path, F_OK) != 0, ASSAY_INVALID_ARGUMENT,
                "%s: a key is there already; expected a new place (--key FILE)", path);
    (void)crypto_sign_keypair(public_key, secret);
    sodium_bin2hex(hex, sizeof hex, secret, sizeof secret);
    assay_status st = write_new(path, 0600, secret_word, hex);
    sodium_memzero(secret, sizeof secret);
    sodium_bin2hex(hex, sizeof hex, public_key, sizeof public_key);
    if (st == ASSAY_OK)
        st = write_new(public_path, 0644, public_word, hex);
    return st;
}

/* The line after its first word, as bytes. */
static assay_status read_line(const char *path, const char *word, unsigned char *out, size_t bytes)
{
    char *text = NULL;
    uint64_t n = 0;
    size_t got = 0;
    const char *end = NULL;
    ASSAY_TRY(assay_read_file(path, 4096, &text, &n));
    const size_t skip = strlen(word);
    const bool good = n > skip && strncmp(text, word, skip) == 0 &&
                      sodium_hex2bin(out, bytes, text + skip, n - skip, NULL, &got, &end) == 0 &&
                      got == bytes && strcmp(end, "\n") == 0;
    sodium_memzero(text, n);
    free(text);
    ASSAY_CHECK(good, ASSAY_FORMAT, "%s: expected a line \"%s\" with %zu bytes in hexadecimal", path, word,
                bytes);
    return ASSAY_OK;
}

assay_status certify_key_read(const char *path, certify_key *out)
{
    struct stat s;
    ASSAY_TRY(assay_hash_init());
    ASSAY_CHECK(stat(path, &s) == 0, ASSAY_NOT_FOUND, "%s: no key: `assay keygen` makes one", path);
    ASSAY_CHECK((s.st_mode & 077) == 0, ASSAY_INVALID_ARGUMENT,
                "%s: others can read the secret key: expected mode 0600, found %04o", path,
                (unsigned)s.st_mode & 0777u);
    ASSAY_TRY(read_line(path, secret_word, out->secret, sizeof out->secret));
    unsigned char public_key[crypto_sign_PUBLICKEYBYTES];
    (void)crypto_sign_ed25519_sk_to_pk(public_key, out->secret);
    sodium_bin2hex(out->public_hex, sizeof out->public_hex, public_key, sizeof public_key);
    return ASSAY_OK;
}

assay_status certify_key_read_public(const char *path, char out[CERTIFY_KEY_HEX])
{
    unsigned char key[crypto_sign_PUBLICKEYBYTES];
    ASSAY_TRY(assay_hash_init());
    ASSAY_TRY(read_line(path, public_word, key, sizeof key));
    sodium_bin2hex(out, CERTIFY_KEY_HEX, key, sizeof key);
    return ASSAY_OK;
}
