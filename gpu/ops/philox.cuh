/* Philox4x32-10 on the device.  Source: Salmon, Moraes, Dror, Shaw 2011.  docs/CONVENTIONS.md, random numbers. */
#ifndef GPU_OPS_PHILOX_CUH
#define GPU_OPS_PHILOX_CUH

#include "gpu/device.cuh"

typedef struct gpu_philox_block {
    unsigned word[4];
} gpu_philox_block;

__device__ static __forceinline__ gpu_philox_block gpu_philox(unsigned long long seed,
                                                              unsigned long long stream,
                                                              unsigned long long index)
{
    gpu_philox_block c = {
        {(unsigned)index, (unsigned)(index >> 32), (unsigned)stream, (unsigned)(stream >> 32)}};
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const unsigned long long a = 0xD2511F53ull * c.word[0], b = 0xCD9E8D57ull * c.word[2];
        c = {{(unsigned)(b >> 32) ^ c.word[1] ^ k0, (unsigned)b, (unsigned)(a >> 32) ^ c.word[3] ^ k1,
              (unsigned)a}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* --- dropout: docs/OPS.md 6 and 9.12 -------------------------------------------------------------------------- */
/* A mask: element e is kept where word e mod 4 of block e / 4 is not below `least`. */
typedef struct gpu_mask {
    unsigned long long seed, stream;
    unsigned least;
    float scale; /* of what is kept: 1 / (1 - p) */
} gpu_mask;

static inline gpu_mask gpu_mask_of(const gpu_operands *o, const char *p_name)
{
    const double p = gpu_operand_double(o, p_name);
    gpu_mask m;
    m.seed = (unsigned long long)gpu_operand_int(o, "seed");
    m.stream = (unsigned long long)gpu_operand_int(o, "draw") << 32 | 1ull << 31 |
               (unsigned long long)gpu_operand_int(o, "stream");
    m.least = (unsigned)(p * 0x1p32);
    m.scale = (float)(1.0 / (1.0 - p));
    return m;
}

/* What the element is multiplied by. */
__device__ static __forceinline__ float gpu_mask_factor(const gpu_mask &m, unsigned long long element)
{
    const gpu_philox_block c = gpu_philox(m.seed, m.stream, element >> 2);
    /* by selection: an index that is not known would put the block into local memory */
    const unsigned even = (element & 2) != 0 ? c.word[2] : c.word[0];
    const unsigned odd = (element & 2) != 0 ? c.word[3] : c.word[1];
    return ((element & 1) != 0 ? odd : even) >= m.least ? m.scale : 0.0f;
}

#endif
