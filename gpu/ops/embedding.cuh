/* Backward of the embedding by sorted tokens, k2; embedding_sorted.cu. */
#ifndef GPU_OPS_EMBEDDING_CUH
#define GPU_OPS_EMBEDDING_CUH

#include "gpu/device.cuh"

/* The rows of an id are cut in this many chains at most, of which each adds ceil(n / chains) rows in order. */
enum { EMBEDDING_CHAINS = 64 };

/* dweight [v,h] += rows of dy [t,h] whose id, less vocab_start, is 0 ... v-1, and is not padding_idx. */
typedef struct embedding_bwd_call {
    gpu_tensor dweight, dy, ids;
    int64_t vocab_start, padding_idx, v, t, h;
    bool eights; /* gpu_eights */
} embedding_bwd_call;

cudaError_t gpu_embedding_bwd_sorted(const embedding_bwd_call *c, void *workspace, cudaStream_t stream);
size_t gpu_embedding_bwd_sorted_bytes(int64_t t, int64_t h);

#endif
