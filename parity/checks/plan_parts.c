/* The parts of a distributed optimizer: wherever an engine cuts a parameter, the parts tile it. */
#include "parity/checks/plan.h"

#include "core/files/checkpoint.h"
#include <stdlib.h>
#include <string.h>

/* The outputs of one rank's reduce_scatter; *n grows by their elements, *inside by those of the whole. */
static void cover(const plan_job *job, int rank, int64_t step, const char *param, const assay_shard *whole,
                  char *to, unsigned char *covered, int64_t *n, int64_t *inside)
{
    const assay_trace *t = plan_recorded_trace(job->recorded);
    const assay_trace_op *op = plan_recorded_scatter(job->recorded, rank, step, param);
    for (int i = 0; op != NULL && i < op->n_outputs; i++) {
        const assay_trace_tensor *part = assay_trace_tensor_by_id(t, rank, op->outputs[i].tensor);
        const int64_t count = part ? assay_shard_count(&part->shard) : 0;
        if (part == NULL || part->dtype != ASSAY_F32 || part->shard.ndim != whole->ndim)
            continue;
        char *ones = calloc(1, (size_t)count + 1);
        if (ones != NULL)
            *inside += assay_shard_copy(to, whole, ones, &part->shard, 1, covered, false, NULL);
        *n += count;
        free(ones);
    }
}

static assay_status check_param(plan_findings *f, const plan_job *job, int rank, int64_t step,
                                const assay_param_spec *s)
{
    const assay_group group = assay_param_shard_group(s, job->grid);
    const bool early = job->grid->p.zero_stage >= 2;
    const int members = assay_grid_group(job->grid, group, rank, NULL, NULL);
    const plan_place at = {.op = "reduce_scatter",
                           .instance = s->name,
                           .phase = early ? ASSAY_PHASE_BACKWARD : ASSAY_PHASE_REDUCED_GRAD,
                           .rank = rank,
                           .step = step,
                           .microbatch = -1,
                           .order = {.part = early ? 1 : 2}};
    assay_shard whole;
    ASSAY_TRY(assay_param_shard(s, job->grid, rank, &whole));
    const int64_t count = assay_shard_count(&whole);
    int *ranks = calloc((size_t)members + 1, sizeof *ranks);
    char *to = calloc(1, (size_t)count + 1);
    unsigned char *covered = calloc(1, (size_t)count + 1);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(ranks && to && covered, ASSAY_OUT_OF_MEMORY, st, done, "%s", s->name);
    (void)assay_grid_group(job->grid, group, rank, ranks, NULL);
    int64_t n = 0, inside = 0, tiled = 0;
    for (int i = 0; i < members; i++)
        cover(job, ranks[i], step, s->name, &whole, to, covered, &n, &inside);
    for (int64_t i = 0; i < count; i++)
        tiled += covered[i] != 0;
    st = tiled == count && inside == count && n == count
             ? plan_holds(f, &at)
             : plan_fails(f, &at, "recv",
                          "parts of the group %s: expected to tile %lld elements, found %lld elements, %lld "
                          "of them inside, which cover %lld",
                          assay_group_name(group), (long long)count, (long long)n, (long long)inside,
                          (long long)tiled);
done:
    free(covered);
    free(to);
    free(ranks);
    return st;
}

assay_status plan_compare_parts(plan_findings *f, const plan_job *job, int64_t step)
{
    if (job->grid->p.zero_stage == 0 || (job->grid->p.zero_stage == 1 && !job->batches->training))
        return ASSAY_OK;
    for (int rank = 0; rank < job->grid->world; rank++) {
        for (int64_t i = 0; i < job->spec->n_params; i++) {
            const assay_param_spec *s = &job->spec->params[i];
            int index = -1;
            const int members =
                assay_grid_group(job->grid, assay_param_shard_group(s, job->grid), rank, NULL, &index);
            if (assay_param_needs_grad(s) && members > 1 && index == 0 &&
                assay_param_on_rank(s, job->grid, job->config, rank))
                ASSAY_TRY(check_param(f, job, rank, step, s));
        }
    }
    return ASSAY_OK;
}
