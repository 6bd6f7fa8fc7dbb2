/* SHA-256 with the processor's instructions (x86 SHA extensions); hash.c takes it where the processor has them and
 * libsodium elsewhere.  Source: FIPS 180-4 section 6.2; Intel SDM, SHA256RNDS2, SHA256MSG1, SHA256MSG2. */
#ifndef ASSAY_CORE_SHA256_H
#define ASSAY_CORE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct assay_sha256 {
    uint32_t state[8];
    unsigned char block[64]; /* the last total % 64 bytes */
    uint64_t total;
} assay_sha256;

bool assay_sha256_has_instructions(void);
/* The following need them. */
void assay_sha256_begin(assay_sha256 *h);
void assay_sha256_update(assay_sha256 *h, const void *data, size_t bytes);
void assay_sha256_end(assay_sha256 *h, unsigned char digest[32]);

#endif
