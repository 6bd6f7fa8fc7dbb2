/* Philox4x32-10.  Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011),
 * section 4.3 and table 2; known answers in tests/core/test_philox.c. */
#include "core/base/philox.h"

#include <assert.h>

enum { ROUNDS = 10 };
static const uint32_t multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u;
static const uint32_t weyl_0 = 0x9E3779B9u, weyl_1 = 0xBB67AE85u;

__extension__ typedef unsigned __int128 uint128;

void assay_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)multiplier_0 * c0;
        const uint64_t p1 = (uint64_t)multiplier_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += weyl_0;
        k1 += weyl_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void assay_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    assay_philox4x32_10(counter, key, out);
}

uint64_t assay_philox_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    assert(n >= 1);
    uint32_t w[4];
    assay_philox(seed, stream, index, w);
    const uint64_t word = (uint64_t)w[1] << 32 | w[0];
    return (uint64_t)((uint128)word * n >> 64);
}

int64_t assay_philox_normal4(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t w[4];
    assay_philox(seed, stream, index, w);
    const int64_t sum = (int64_t)w[0] + (int64_t)w[1] + (int64_t)w[2] + (int64_t)w[3];
    return sum - 2 * (int64_t)UINT32_MAX;
}
