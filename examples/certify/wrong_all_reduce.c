/* all_reduce through the memory of the ranks, wrong on purpose: every rank begins its sum with its own piece, so that what was equal on all
 * ranks is so no longer. */
#include "check.h"

enum { SEND = ASSAY_KERNEL_SLOT_ALL_REDUCE_SEND, RECV = ASSAY_KERNEL_SLOT_ALL_REDUCE_RECV };

static size_t workspace(const assay_kernel_call *c)
{
    return c->slot[SEND] != NULL && c->slot[SEND]->shape[0] > 0 ? 4 * (size_t)c->slot[SEND]->shape[0] : 0;
}

static int32_t run(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || c->comm == NULL || (code = check_tensor(c->slot[SEND], ASSAY_KERNEL_F32, 1)) != 0 ||
        (code = check_tensor(c->slot[RECV], ASSAY_KERNEL_F32, 1)) != 0)
        return code;
    const int64_t count = c->slot[SEND]->shape[0],
                  start = c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_START]->integer,
                  reduction = c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_REDUCTION]->integer;
    const int32_t n = c->comm->n_ranks;
    if (c->slot[RECV]->shape[0] != count || start > count)
        return ASSAY_KERNEL_INVALID;
    if (c->workspace_bytes < workspace(c))
        return ASSAY_KERNEL_WORKSPACE;
    if (count > 0)
        memcpy(c->workspace, c->slot[SEND]->data, workspace(c));
    if (c->comm->barrier(c->comm) != 0)
        return ASSAY_KERNEL_INTERNAL;
    for (int64_t i = 0; i < count; i++) {
        float x = load(c->slot[SEND]->data, i, ASSAY_KERNEL_F32);
        for (int32_t r = 1; r < n && i >= start; r++) {
            const float y = load(c->comm->workspace[(c->comm->rank + r) % n], i, ASSAY_KERNEL_F32);
            x = reduction != 1 ? x + y : x != x || y <= x ? x : y;
        }
        store(c->slot[RECV]->data, i, ASSAY_KERNEL_F32, reduction == 2 && i >= start ? x / (float)n : x);
    }
    return ASSAY_KERNEL_OK;
}

static const assay_kernel_output outputs[] = {{.size = sizeof(assay_kernel_output),
                                               .slot = RECV,
                                               .arith = {.size = sizeof(assay_kernel_arith),
                                                         .accumulate = ASSAY_KERNEL_F32,
                                                         .order = ASSAY_KERNEL_ORDER_UNKNOWN}}};
static const assay_kernel description = {
    .size = sizeof description,
    .abi = ASSAY_KERNEL_ABI,
    .name = "example all_reduce, wrong on purpose",
    .version = "1",
    .operation = "all_reduce",
    .built = "C17 -O2",
    .memory = ASSAY_KERNEL_MEMORY_HOST,
    .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32),
    .flags = ASSAY_KERNEL_DETERMINISTIC,
    .n_outputs = 1,
    .outputs = outputs,
    .workspace = workspace,
    .run = run,
};

const assay_kernel *example_wrong_all_reduce(uint32_t abi);
const assay_kernel *example_wrong_all_reduce(uint32_t abi)
{
    return abi == ASSAY_KERNEL_ABI ? &description : NULL;
}
