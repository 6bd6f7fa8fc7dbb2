/* 1F1B and its interleaved form.  Source: Megatron-LM schedules.py. */
#include "ref/parallel/schedule.h"

#include <stdlib.h>

/* Number `index` of all forwards (or, with the chunks the other way round, backwards) of a stage. */
static ref_action pick(int stages, int chunks, int64_t microbatches, int64_t index, bool forward)
{
    const int64_t group = index / ((int64_t)stages * chunks) * stages; /* its first microbatch */
    const int64_t left = microbatches - group, size = left < stages ? left : stages;
    const int64_t at = index - group * chunks;
    const int chunk = (int)(at / size);
    return (ref_action){
        .forward = forward, .microbatch = group + at % size, .chunk = forward ? chunk : chunks - 1 - chunk};
}

static int64_t warmup_of(int stages, int chunks, int stage, int64_t total)
{
    const int64_t behind = stages - stage - 1;
    const int64_t warmup = chunks == 1 ? behind : 2 * behind + (int64_t)(chunks - 1) * stages;
    return warmup < total ? warmup : total;
}

assay_status ref_pipeline_schedule(int stages, int chunks, int stage, int64_t microbatches,
                                   ref_action **actions)
{
    const int64_t total = microbatches * chunks, warmup = warmup_of(stages, chunks, stage, total);
    ref_action *list = calloc((size_t)(2 * total) + 1, sizeof *list);
    *actions = list;
    ASSAY_CHECK(list, ASSAY_OUT_OF_MEMORY, "out of memory: a schedule of %lld actions", (long long)total * 2);
    int64_t n = 0;
    for (int64_t i = 0; i < total + warmup; i++) {
        if (i < total)
            list[n++] = pick(stages, chunks, microbatches, i, true);
        if (i >= warmup)
            list[n++] = pick(stages, chunks, microbatches, i - warmup, false);
    }
    return ASSAY_OK;
}
