/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), keyed by global indices: no layout can change a draw. */
#ifndef ASSAY_CORE_PHILOX_H
#define ASSAY_CORE_PHILOX_H

#include "core/base/status.h"
#include <stdint.h>

ASSAY_BEGIN_DECLS

/* One block: four 32-bit words from a 128-bit counter and a 64-bit key. */
void assay_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Block number `index` of stream `stream` under `seed`: key = seed, counter = (index lo, index hi, stream lo,
 * stream hi). */
void assay_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]);

/* Uniform integer in [0, n), n >= 1, without modulo bias beyond 2^-32 (multiply-shift of one 64-bit word). */
uint64_t assay_philox_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);

/* Integer z = w0+w1+w2+w3 - 2*(2^32-1): Irwin-Hall of 4, mean 0, |z| < 2^33, variance (2^64-1)/3.
 * An initial weight is   (double)z * (std * ASSAY_PHILOX_UNIT)   rounded once to the storage type; the
 * product is made by each engine.  Exact integers, so that both engines draw the same bits without a math
 * library. */
int64_t assay_philox_normal4(uint64_t seed, uint64_t stream, uint64_t index);
/* sqrt(3) * 2^-32 */
#define ASSAY_PHILOX_UNIT 0x1.bb67ae8584caap-32

ASSAY_END_DECLS

#endif
