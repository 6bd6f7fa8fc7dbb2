/* States and ownership of optimizers. */
#include "core/model/optimizer.h"

static const char *const adam_states[] = {"exp_avg", "exp_avg_sq"};

static const struct {
    const char *name;
    int n_states;
    const char *const *states;
} optimizers[ASSAY_OPTIMIZER_COUNT] = {
    [ASSAY_OPTIMIZER_ADAM] = {"adam", sizeof adam_states / sizeof adam_states[0], adam_states},
};
_Static_assert(sizeof adam_states / sizeof adam_states[0] <= ASSAY_MAX_OPTIMIZER_STATES, "states of adam");

int assay_optimizer_states(assay_optimizer optimizer, const char *const **names)
{
    *names = optimizers[optimizer].states;
    return optimizers[optimizer].n_states;
}

const char *assay_optimizer_name(assay_optimizer optimizer)
{
    const int64_t index = (int64_t)optimizer;
    return index >= 0 && index < ASSAY_OPTIMIZER_COUNT ? optimizers[index].name : "?";
}

void assay_param_owned_range(const assay_param_spec *p, int64_t index, int64_t count, int members, int member,
                             int64_t *first, int64_t *length)
{
    if (p->ownership == ASSAY_OWN_FLAT) {
        assay_split(count, members, member, first, length);
        return;
    }
    const int64_t owner = index % members;
    *first = member > owner ? count : 0; /* ranges ascend with the members and tile [0, count) */
    *length = member == owner ? count : 0;
}
