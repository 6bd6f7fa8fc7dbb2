/* Hashes over bytes (libsodium, libxxhash).  Content hashes of tensors are over dtype name, shape and bytes: BLAKE2b-128, or
 * XXH3-128 where a trace says so; file manifests use SHA-256. */
#ifndef ASSAY_CORE_HASH_H
#define ASSAY_CORE_HASH_H

#include "core/base/dtype.h"
#include <stddef.h>

ASSAY_BEGIN_DECLS

enum { ASSAY_HASH_HEX = 33, ASSAY_SHA256_HEX = 65 };

/* Must be called before the others (idempotent, thread-safe). */
assay_status assay_hash_init(void);
/* 32 hexadecimal digits and NUL. Two tensors hash equal iff dtype, shape and bytes are equal. */
void assay_hash_tensor(assay_dtype dtype, const int64_t *shape, int ndim, const void *data, size_t bytes,
                       char out[ASSAY_HASH_HEX]);
/* Kinds of content hashes: nobody finds two contents with one BLAKE2b; XXH3 is many times as fast and tells contents apart that
 * nobody made to collide. */
typedef enum assay_hash_kind { ASSAY_HASH_BLAKE2B = 0, ASSAY_HASH_XXH3 } assay_hash_kind;
/* "blake2b-128", "xxh3-128". */
const char *assay_hash_kind_name(assay_hash_kind kind);
/* ASSAY_UNSUPPORTED: no kind of this name; the message lists them. */
assay_status assay_hash_kind_from_name(const char *name, assay_hash_kind *out);
/* As assay_hash_tensor, by any kind; the 128 bits of XXH3 in its canonical order, highest byte first. */
void assay_hash_tensor_as(assay_hash_kind kind, assay_dtype dtype, const int64_t *shape, int ndim,
                          const void *data, size_t bytes, char out[ASSAY_HASH_HEX]);
void assay_sha256_bytes(const void *data, size_t bytes, char out[ASSAY_SHA256_HEX]);
assay_status assay_sha256_file(const char *path, char out[ASSAY_SHA256_HEX]);
/* FNV-1a 64 of a NUL-terminated name: the Philox stream of a parameter. */
uint64_t assay_name_hash(const char *name);
/* Of a text, for tables in memory: XXH3, which takes eight bytes where FNV-1a takes one.  Nothing that is kept depends on it. */
uint64_t assay_text_hash(const char *text);

ASSAY_END_DECLS

#endif
