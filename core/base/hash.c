/* Hashes over bytes; libsodium does the work, and the processor where it knows SHA-256. */
#include "core/base/hash.h"

#include "core/base/sha256.h"
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum { CONTENT_HASH_BYTES = 16 };
_Static_assert(ASSAY_HASH_HEX == 2 * CONTENT_HASH_BYTES + 1, "two digits for each byte and NUL");
_Static_assert(ASSAY_SHA256_HEX == 2 * crypto_hash_sha256_BYTES + 1, "two digits for each byte and NUL");

assay_status assay_hash_init(void)
{
    ASSAY_CHECK(sodium_init() >= 0, ASSAY_INTERNAL, "libsodium could not be initialised");
    return ASSAY_OK;
}

static void put_le64(unsigned char out[8], uint64_t value)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(value >> (8 * i));
}

void assay_hash_tensor(assay_dtype dtype, const int64_t *shape, int ndim, const void *data, size_t bytes,
                       char out[ASSAY_HASH_HEX])
{
    /* dtype name, NUL, number of dimensions, every extent, then the bytes: no two tensors that differ in one
     * of these share the hashed text. */
    crypto_generichash_state state;
    unsigned char word[8], digest[CONTENT_HASH_BYTES];
    const char *name = assay_dtype_name(dtype);
    crypto_generichash_init(&state, NULL, 0, sizeof digest);
    crypto_generichash_update(&state, (const unsigned char *)name, strlen(name) + 1);
    put_le64(word, (uint64_t)ndim);
    crypto_generichash_update(&state, word, sizeof word);
    for (int i = 0; i < ndim; i++) {
        put_le64(word, (uint64_t)shape[i]);
        crypto_generichash_update(&state, word, sizeof word);
    }
    if (bytes > 0)
        crypto_generichash_update(&state, data, bytes);
    crypto_generichash_final(&state, digest, sizeof digest);
    sodium_bin2hex(out, ASSAY_HASH_HEX, digest, sizeof digest);
}

/* SHA-256 by the processor or by libsodium. */
typedef struct sha256 {
    bool own;
    assay_sha256 instructions;
    crypto_hash_sha256_state portable;
} sha256;

static void sha256_begin(sha256 *h)
{
    h->own = assay_sha256_has_instructions();
    if (h->own)
        assay_sha256_begin(&h->instructions);
    else
        crypto_hash_sha256_init(&h->portable);
}

static void sha256_update(sha256 *h, const void *data, size_t bytes)
{
    if (h->own)
        assay_sha256_update(&h->instructions, data, bytes);
    else
        crypto_hash_sha256_update(&h->portable, data, bytes);
}

static void sha256_end(sha256 *h, char out[ASSAY_SHA256_HEX])
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    if (h->own)
        assay_sha256_end(&h->instructions, digest);
    else
        crypto_hash_sha256_final(&h->portable, digest);
    sodium_bin2hex(out, ASSAY_SHA256_HEX, digest, sizeof digest);
}

void assay_sha256_bytes(const void *data, size_t bytes, char out[ASSAY_SHA256_HEX])
{
    sha256 h;
    sha256_begin(&h);
    if (bytes > 0)
        sha256_update(&h, data, bytes);
    sha256_end(&h, out);
}

assay_status assay_sha256_file(const char *path, char out[ASSAY_SHA256_HEX])
{
    FILE *in = fopen(path, "rb");
    ASSAY_CHECK(in != NULL, errno == ENOENT ? ASSAY_NOT_FOUND : ASSAY_IO, "%s: cannot open: %s", path,
                strerror(errno));
    sha256 h;
    unsigned char block[1 << 16];
    setvbuf(in, NULL, _IONBF, 0); /* the blocks are large enough */
    sha256_begin(&h);
    size_t got;
    while ((got = fread(block, 1, sizeof block, in)) > 0)
        sha256_update(&h, block, got);
    const bool whole = !ferror(in);
    const int code = errno;
    fclose(in);
    ASSAY_CHECK(whole, ASSAY_IO, "%s: cannot read: %s", path, strerror(code));
    sha256_end(&h, out);
    return ASSAY_OK;
}

uint64_t assay_name_hash(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name != '\0'; name++) {
        hash ^= (unsigned char)*name;
        hash *= UINT64_C(0x100000001b3);
    }
    return hash;
}
