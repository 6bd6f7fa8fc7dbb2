/* Philox blocks side by side: core/base/philox.h in vector registers. */
#ifndef REF_FAST_PHILOX_H
#define REF_FAST_PHILOX_H

#include <stdint.h>

enum { REF_PHILOX_BLOCKS = 64 };

/* Words 0 and 1 of assay_philox(seed, stream, first + i, ...), i < REF_PHILOX_BLOCKS. */
void ref_philox_blocks(uint64_t seed, uint64_t stream, uint64_t first, uint32_t word_0[REF_PHILOX_BLOCKS],
                       uint32_t word_1[REF_PHILOX_BLOCKS]);

#endif
