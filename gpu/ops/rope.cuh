/* The rotation of a pair of rope, one place for all kernels that turn: the same bits whoever does it. */
#ifndef GPU_OPS_ROPE_CUH
#define GPU_OPS_ROPE_CUH

#include "gpu/device.cuh"

/* (a, b) -> (a c - b s, b c + a s).  The multiply-adds are written out: what a compiler contracts is its choice, kernel by kernel. */
__device__ static __forceinline__ void rope_turn(float &a, float &b, float c, float s)
{
    const float first = fmaf(a, c, -(b * s));
    b = fmaf(b, c, a * s);
    a = first;
}

#endif
