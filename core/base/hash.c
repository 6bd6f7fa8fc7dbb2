/* Hashes over bytes; libsodium and libxxhash do the work, and the processor where it knows SHA-256. */
#include "core/base/hash.h"

#include "core/base/sha256.h"
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL /* its state lies on the stack, and no library is linked */
#include <xxhash.h>

enum { CONTENT_HASH_BYTES = 16 };
_Static_assert(ASSAY_HASH_HEX == 2 * CONTENT_HASH_BYTES + 1, "two digits for each byte and NUL");
_Static_assert(ASSAY_SHA256_HEX == 2 * crypto_hash_sha256_BYTES + 1, "two digits for each byte and NUL");

assay_status assay_hash_init(void)
{
    ASSAY_CHECK(sodium_init() >= 0, ASSAY_INTERNAL, "libsodium could not be initialised");
    return ASSAY_OK;
}

static const char *const KINDS[] = {[ASSAY_HASH_BLAKE2B] = "blake2b-128", [ASSAY_HASH_XXH3] = "xxh3-128"};

const char *assay_hash_kind_name(assay_hash_kind kind)
{
    return KINDS[kind];
}

assay_status assay_hash_kind_from_name(const char *name, assay_hash_kind *out)
{
    for (int i = 0; i < (int)(sizeof KINDS / sizeof *KINDS); i++) {
        if (strcmp(name, KINDS[i]) == 0) {
            *out = (assay_hash_kind)i;
            return ASSAY_OK;
        }
    }
    return ASSAY_ERROR(ASSAY_UNSUPPORTED, "content hash: expected %s or %s, found \"%.60s\"",
                       KINDS[ASSAY_HASH_BLAKE2B], KINDS[ASSAY_HASH_XXH3], name);
}

static size_t put_le64(unsigned char *out, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(value >> (8 * i));
    return 8;
}

/* dtype name, NUL, number of dimensions, every extent: with the bytes behind them no two tensors that differ in one of
 * these share the hashed text. */
enum { MAX_DIMS = 8, HEAD_BYTES = 16 + 8 + 8 * MAX_DIMS }; /* as many as a tensor file has */
static size_t put_head(unsigned char out[HEAD_BYTES], assay_dtype dtype, const int64_t *shape, int ndim)
{
    const char *name = assay_dtype_name(dtype);
    size_t n = strlen(name) + 1;
    memcpy(out, name, n);
    n += put_le64(out + n, (uint64_t)ndim);
    for (int i = 0; i < ndim; i++)
        n += put_le64(out + n, (uint64_t)shape[i]);
    return n;
}

static void blake2b(const unsigned char *head, size_t n_head, const void *data, size_t bytes,
                    unsigned char digest[CONTENT_HASH_BYTES])
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, CONTENT_HASH_BYTES);
    crypto_generichash_update(&state, head, n_head);
    if (bytes > 0)
        crypto_generichash_update(&state, data, bytes);
    crypto_generichash_final(&state, digest, CONTENT_HASH_BYTES);
}

static void xxh3(const unsigned char *head, size_t n_head, const void *data, size_t bytes,
                 unsigned char digest[CONTENT_HASH_BYTES])
{
    XXH3_state_t state;
    XXH128_canonical_t canonical;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, head, n_head);
    if (bytes > 0)
        XXH3_128bits_update(&state, data, bytes);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(digest, canonical.digest, CONTENT_HASH_BYTES);
}

void assay_hash_tensor_as(assay_hash_kind kind, assay_dtype dtype, const int64_t *shape, int ndim,
                          const void *data, size_t bytes, char out[ASSAY_HASH_HEX])
{
    unsigned char head[HEAD_BYTES], digest[CONTENT_HASH_BYTES];
    const size_t n_head = put_head(head, dtype, shape, ndim);
    if (kind == ASSAY_HASH_XXH3)
        xxh3(head, n_head, data, bytes, digest);
    else
        blake2b(head, n_head, data, bytes, digest);
    sodium_bin2hex(out, ASSAY_HASH_HEX, digest, sizeof digest);
}

void assay_hash_tensor(assay_dtype dtype, const int64_t *shape, int ndim, const void *data, size_t bytes,
                       char out[ASSAY_HASH_HEX])
{
    assay_hash_tensor_as(ASSAY_HASH_BLAKE2B, dtype, shape, ndim, data, bytes, out);
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

uint64_t assay_text_hash(const char *text)
{
    return XXH3_64bits(text, strlen(text));
}
