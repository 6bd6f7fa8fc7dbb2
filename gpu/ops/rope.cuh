/* What kernels that turn share: the rotation of a pair of rope, so that the bits are the same whoever does it, and a check of the call. */
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

/* Outputs are memory of their own: a head or a pair is read behind the stores of others. */
static inline assay_status rope_check_apart(const gpu_operands *o)
{
    for (int i = 0; i < assay_op_n_slots(o->op); ++i) {
        const assay_op_slot *row = &o->op->slots[i];
        for (int k = 0; k < i && row->role != ASSAY_SLOT_IN && gpu_tensor_bytes(o->slot[i]) > 0; ++k)
            ASSAY_CHECK(gpu_tensor_bytes(o->slot[k]) == 0 || o->slot[k].data != o->slot[i].data,
                        ASSAY_INVALID_ARGUMENT, "%s: %s: expected memory of its own, found that of %s",
                        o->op->name, row->name, o->op->slots[k].name);
    }
    return ASSAY_OK;
}

#endif
