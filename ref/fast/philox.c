/* Philox4x32-10 for many counters at once: a perturbed run draws a number for every element that it stores. */
#include "ref/fast/philox.h"
#include "ref/fast/vector.h"

#include <string.h>

enum { ROUNDS = 10, N = REF_PHILOX_BLOCKS };

/* Four arrays of N and indices below it: the address sanitizer would find nothing in the rounds, and take a quarter of the time of
 * `assay bisect` for it.  clang takes one of the two attributes. */
#if defined(__SANITIZE_ADDRESS__)
#define OF_ROUNDS __attribute__((no_sanitize("address", "undefined")))
#else
#define OF_ROUNDS REF_WIDE
#endif

/* Static: clang gives a function of several targets that others call another name. */
OF_ROUNDS static void rounds(uint64_t seed, uint64_t stream, uint64_t first, uint32_t *restrict c0,
                             uint32_t *restrict c1)
{
    const uint32_t multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u;
    uint32_t c2[N], c3[N];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < N; i++) {
        c0[i] = (uint32_t)(first + (uint64_t)i);
        c1[i] = (uint32_t)((first + (uint64_t)i) >> 32);
        c2[i] = (uint32_t)stream;
        c3[i] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            const uint64_t p0 = (uint64_t)multiplier_0 * c0[i], p1 = (uint64_t)multiplier_1 * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

void ref_philox_blocks(uint64_t seed, uint64_t stream, uint64_t first, uint32_t word_0[REF_PHILOX_BLOCKS],
                       uint32_t word_1[REF_PHILOX_BLOCKS])
{
    uint32_t c0[N], c1[N];
    rounds(seed, stream, first, c0, c1);
    memcpy(word_0, c0, sizeof c0);
    memcpy(word_1, c1, sizeof c1);
}
