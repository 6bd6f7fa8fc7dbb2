/* Top-k of a row of experts, shared by the router and by its auxiliary loss.
 *
 * Keys are ordered as numbers; -0 and +0 tie; ties go to the lower index; a NaN ranks below -inf.  So a row
 * of NaNs chooses experts 0 .. K-1, and nothing loops or reads outside. */
#ifndef GPU_OPS_ROUTER_TOPK_CUH
#define GPU_OPS_ROUTER_TOPK_CUH

#include "core/model/config.h"
#include "gpu/device.cuh"

enum { ROUTER_MAX_EXPERTS = 512, ROUTER_MAX_TOPK = 32, ROUTER_WORDS = ROUTER_MAX_EXPERTS / 32 };

typedef struct router_desc {
    int64_t topk;
    int score_function; /* assay_score_function; -1: none of them */
    bool pre_softmax, norm_topk_prob;
    float scaling_factor;
    int64_t num_groups, group_topk;
} router_desc;

/* The operations of the auxiliary loss have the first two attributes, or topk alone. */
static inline router_desc router_desc_of(const gpu_operands *o)
{
    static const int functions[] = {ASSAY_SCORE_SOFTMAX, ASSAY_SCORE_SIGMOID}; /* the order of the words */
    const bool whole = assay_op_attr_find(o->op, "num_groups") != NULL;
    const int word = assay_op_attr_find(o->op, "score_function") ? gpu_operand_word(o, "score_function") : 0;
    router_desc d;
    d.topk = gpu_operand_int(o, "topk");
    d.score_function = word >= 0 ? functions[word] : -1;
    d.pre_softmax = whole && gpu_operand_bool(o, "pre_softmax");
    d.norm_topk_prob = whole && gpu_operand_bool(o, "norm_topk_prob");
    d.scaling_factor = whole ? (float)gpu_operand_double(o, "scaling_factor") : 1.0f;
    d.num_groups = whole ? gpu_operand_int(o, "num_groups") : 0;
    d.group_topk = whole ? gpu_operand_int(o, "group_topk") : 0;
    return d;
}

/* What scores and sums of them are made with. */
static inline void router_ulp(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->math_ulp =
        router_desc_of(o).score_function == ASSAY_SCORE_SIGMOID ? (int)GPU_ULP_SIGMOID : (int)GPU_ULP_EXP;
}

typedef unsigned long long router_rank; /* larger = better; 0 = not a candidate */

/* Order-preserving bits of the key above, complement of the index below. */
__device__ static __forceinline__ router_rank router_rank_of(float key, int64_t index)
{
    return (router_rank)gpu_order_bits(key) << 32 | (0xffffffffu - (unsigned)index);
}
__device__ static __forceinline__ int router_index_of(router_rank rank)
{
    return (int)(0xffffffffu - (unsigned)(rank & 0xffffffffu));
}

/* Best rank of the 32 lanes: the best key, then the lowest index among those that have it. */
__device__ static __forceinline__ router_rank router_warp_best(router_rank v)
{
    const unsigned key = __reduce_max_sync(gpu_all_lanes, (unsigned)(v >> 32));
    const unsigned index = __reduce_max_sync(gpu_all_lanes, (unsigned)(v >> 32) == key ? (unsigned)v : 0u);
    return (router_rank)key << 32 | index;
}

/* Sets of experts (or groups) of one thread. */
__device__ static __forceinline__ bool router_in(const unsigned *set, int64_t e)
{
    return (set[e / 32] >> (e % 32) & 1u) != 0;
}
__device__ static __forceinline__ void router_put(unsigned *set, int64_t e)
{
    set[e / 32] |= 1u << (e % 32);
}

/* Keys of a row, made from its scores wherever they are needed: an array of them would be a stack of 2 KB in every thread that
 * the device can hold. */
typedef struct router_keys {
    const float *score, *bias; /* bias nullptr: none */
    const unsigned *kept; /* the groups that stand for election, the others have key -inf; nullptr: all */
    int64_t size;         /* experts of a group */
} router_keys;

__device__ static __forceinline__ float router_key(const router_keys &keys, int64_t e)
{
    if (keys.kept != nullptr && !router_in(keys.kept, e / keys.size))
        return -INFINITY;
    return keys.bias != nullptr ? keys.score[e] + keys.bias[e] : keys.score[e];
}

/* One thread: chooses k of the experts first .. first+n that are not in `taken` yet, adds them to it, and returns the sum of
 * their keys in the order chosen. */
[[maybe_unused]] __device__ static float router_take(unsigned *taken, const router_keys &keys, int64_t first,
                                                     int64_t n, int64_t k)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < k && i < n; ++i) {
        router_rank best = 0;
        for (int64_t e = first; e < first + n; ++e) {
            const router_rank rank = router_rank_of(router_key(keys, e), e);
            if (!router_in(taken, e) && rank > best)
                best = rank;
        }
        router_put(taken, router_index_of(best));
        sum += router_key(keys, router_index_of(best));
    }
    return sum;
}

/* One warp: lane holds the ranks of experts lane, lane + 32, ...  Chooses k; bit i of the result is set when
 * expert lane + 32 i was chosen.  All lanes must arrive.  The simulator looks at all lanes' ranks at once. */
template <int CHUNKS>
__device__ static __forceinline__ unsigned router_warp_take_shuffled(router_rank *rank, int64_t k)
{
    unsigned chosen = 0;
    for (int64_t n = 0; n < k; ++n) {
        router_rank best = 0;
        for (int i = 0; i < CHUNKS; ++i)
            best = rank[i] > best ? rank[i] : best;
        best = router_warp_best(best);
        for (int i = 0; i < CHUNKS; ++i)
            if (best != 0 && rank[i] == best) {
                rank[i] = 0;
                chosen |= 1u << i;
            }
    }
    return chosen;
}
#if ASSAY_SIM
struct router_takes {
    router_rank *rank;
    int64_t k;
    unsigned chosen;
};
template <int CHUNKS> static void router_warp_take_together(void *const *lane)
{
    const int64_t k = ((const router_takes *)lane[0])->k;
    for (int64_t n = 0; n < k; ++n) {
        router_rank best = 0;
        int at = 0;
        for (int i = 0; i < GPU_WARP * CHUNKS; ++i) {
            const router_rank rank = ((const router_takes *)lane[i % GPU_WARP])->rank[i / GPU_WARP];
            if (rank > best) {
                best = rank;
                at = i;
            }
        }
        if (best == 0)
            return;
        router_takes *t = (router_takes *)lane[at % GPU_WARP];
        t->rank[at / GPU_WARP] = 0;
        t->chosen |= 1u << (at / GPU_WARP);
    }
}
template <int CHUNKS> static inline unsigned router_warp_take(router_rank *rank, int64_t k)
{
    router_takes t = {rank, k, 0};
    assay_sim_warp_call(router_warp_take_together<CHUNKS>, &t, ASSAY_SIM_HERE);
    return t.chosen;
}
#else
template <int CHUNKS>
__device__ static __forceinline__ unsigned router_warp_take(router_rank *rank, int64_t k)
{
    return router_warp_take_shuffled<CHUNKS>(rank, k);
}
#endif

/* One warp: writes the chosen experts in ascending order to out[0 .. k), and value[i] of each to kept[0 ..
 * k). */
template <int CHUNKS>
__device__ static __forceinline__ void router_warp_list(int64_t *out, float *kept, const float *value,
                                                        unsigned chosen)
{
    const int lane = (int)threadIdx.x;
    int before = 0;
    for (int i = 0; i < CHUNKS; ++i) {
        const unsigned votes = __ballot_sync(gpu_all_lanes, (int)(chosen >> i & 1u));
        if ((chosen >> i & 1u) != 0) {
            const int place = before + __popc(votes & ((1u << lane) - 1u));
            out[place] = lane + GPU_WARP * i;
            kept[place] = value[i];
        }
        before += __popc(votes);
    }
}

#endif
