/* Hashes over bytes (libsodium).  Content hashes of tensors are BLAKE2b-128 over dtype name, shape and bytes;
 * file manifests use SHA-256. */
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
void assay_sha256_bytes(const void *data, size_t bytes, char out[ASSAY_SHA256_HEX]);
assay_status assay_sha256_file(const char *path, char out[ASSAY_SHA256_HEX]);
/* FNV-1a 64 of a NUL-terminated name: the Philox stream of a parameter. */
uint64_t assay_name_hash(const char *name);

ASSAY_END_DECLS

#endif
