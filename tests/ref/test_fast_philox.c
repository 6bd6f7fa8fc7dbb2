/* Philox blocks in vector registers are those of core/base/philox.h. */
#include "core/base/philox.h"
#include "ref/fast/philox.h"
#include <criterion/criterion.h>

Test(ref_fast_philox, equals_plain)
{
    static const uint64_t firsts[] = {0, 1, 63, ((uint64_t)1 << 32) - 7, UINT64_MAX - 5, 123456789012345};
    for (uint64_t seed = 0; seed < 3; seed++)
        for (size_t k = 0; k < sizeof firsts / sizeof *firsts; k++) {
            const uint64_t key = seed * 0x9E3779B97F4A7C15u, stream = ~key + k;
            uint32_t word_0[REF_PHILOX_BLOCKS], word_1[REF_PHILOX_BLOCKS], w[4];
            ref_philox_blocks(key, stream, firsts[k], word_0, word_1);
            for (uint64_t i = 0; i < REF_PHILOX_BLOCKS; i++) {
                assay_philox(key, stream, firsts[k] + i, w);
                cr_assert(word_0[i] == w[0] && word_1[i] == w[1], "seed %llu, block %llu + %llu",
                          (unsigned long long)seed, (unsigned long long)firsts[k], (unsigned long long)i);
            }
        }
}
