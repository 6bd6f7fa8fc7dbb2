/* Dry run: the calls between ranks, from the judge's plan of single ranks. */
#include "parity/dry/dry.h"

#include <stdlib.h>
#include <string.h>

static const char *const op_names[DRY_OPS] = {"all_reduce", "all_gather", "reduce_scatter",
                                              "all_to_all", "send",       "recv"};

const char *dry_op_name(dry_op op)
{
    return op_names[op];
}

void dry_call_text(const dry *d, const dry_call *c, char out[DRY_TEXT / 2])
{
    char microbatch[40] = "";
    if (c->microbatch >= 0)
        snprintf(microbatch, sizeof microbatch, ", microbatch %lld", (long long)c->microbatch);
    snprintf(out, DRY_TEXT / 2, "%s %s (%s, %s, %s%s)", op_names[c->op], d->names.text[c->name],
             assay_group_name(c->group), assay_phase_name(c->phase), assay_dtype_name(c->dtype), microbatch);
}

static assay_status name_number(dry *d, const char *text, int *out)
{
    dry_names *n = &d->names;
    const int64_t known = parity_map_get(n->map, text);
    if (known >= 0) {
        *out = (int)known;
        return ASSAY_OK;
    }
    if (n->n == n->capacity) {
        const int more = n->capacity > 0 ? 2 * n->capacity : 1024;
        char **grown = realloc(n->text, (size_t)more * sizeof *grown);
        ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "%d instances", more);
        n->text = grown;
        n->capacity = more;
    }
    n->text[n->n] = strdup(text);
    ASSAY_CHECK(n->text[n->n] != NULL, ASSAY_OUT_OF_MEMORY, "%s", text);
    *out = n->n++;
    return parity_map_put(n->map, text, *out);
}

/* --- one rank ----------------------------------------------------------------------------------------------- */

static const plan_attr *attr_of(const plan *p, const plan_op *op, const char *name)
{
    for (int64_t i = 0; i < op->n_attrs; i++)
        if (strcmp(p->attrs[op->first_attr + i].name, name) == 0)
            return &p->attrs[op->first_attr + i];
    return NULL;
}

static assay_status add_call(dry *d, const plan *p, const plan_op *op, dry_list *out)
{
    dry_call c = {.phase = op->phase, .group = (assay_group)op->group, .op = DRY_OPS, .peer = -1};
    for (int i = 0; i < DRY_OPS; i++)
        if (strcmp(op->op, op_names[i]) == 0)
            c.op = (dry_op)i;
    ASSAY_CHECK(c.op != DRY_OPS, ASSAY_UNSUPPORTED, "dry run: %s: a call '%s' that it does not know",
                op->instance, op->op);
    const plan_attr *dtype = attr_of(p, op, "dtype"), *peer = attr_of(p, op, "peer");
    ASSAY_CHECK(dtype != NULL, ASSAY_INTERNAL, "%s: a call without dtype", op->instance);
    ASSAY_TRY(assay_dtype_from_name(dtype->text, &c.dtype));
    if (peer != NULL)
        c.peer = (int)peer->integer;
    if (peer != NULL && c.group == ASSAY_GROUP_CP)
        c.peer = (c.peer - p->at.cp + p->cp) % p->cp;
    c.block = op->block;
    c.microbatch = op->microbatch < 0 ? -1 : op->microbatch - p->share.first_microbatch;
    ASSAY_TRY(name_number(d, op->instance, &c.name));
    if (out->n == out->capacity) {
        const int64_t more = out->capacity > 0 ? 2 * out->capacity : 1024;
        dry_call *grown = realloc(out->calls, (size_t)more * sizeof *grown);
        ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "%lld calls", (long long)more);
        out->calls = grown;
        out->capacity = more;
    }
    out->calls[out->n++] = c;
    return ASSAY_OK;
}

static bool same_call(const dry_call *a, const dry_call *b)
{
    return a->op == b->op && a->name == b->name && a->phase == b->phase && a->group == b->group &&
           a->dtype == b->dtype && a->peer == b->peer && a->microbatch == b->microbatch;
}

/* A planted order: the first two neighbours on different groups, or with different names, change places; a planted loss:
 * the first call within a stage is left out. */
static void plant(const dry *d, int rank, dry_list *list)
{
    const char *swap = dry_fault(d, "swap"), *lost = dry_fault(d, "lost");
    const char *text = swap != NULL ? swap : lost;
    if (text == NULL || strtol(text, NULL, 10) != rank)
        return;
    for (int64_t i = 0; i + 1 < list->n; i++) {
        dry_call *a = &list->calls[i], *b = &list->calls[i + 1];
        const bool p2p = a->op == DRY_SEND || a->op == DRY_RECV || b->op == DRY_SEND || b->op == DRY_RECV;
        if (p2p || (swap != NULL && same_call(a, b)))
            continue;
        const dry_call first = *a;
        if (swap != NULL) {
            *a = *b;
            *b = first;
        } else {
            memmove(a, b, (size_t)(list->n - i - 1) * sizeof *a);
            list->n--;
        }
        return;
    }
}

/* The order of calls depends on S only by what is left of it by the pieces, and on whether pieces are empty: a short
 * sequence of the same remainder has the same plan. */
static int64_t short_sequence(const dry *d)
{
    const int64_t unit = 2 * (int64_t)d->grid.size[ASSAY_AXIS_CP] * d->grid.size[ASSAY_AXIS_TP];
    return d->o.seq_length < 2 * unit ? d->o.seq_length : unit + d->o.seq_length % unit;
}

assay_status dry_calls(dry *d, int rank, int64_t microbatches, dry_list *out)
{
    assay_train_options options;
    assay_train_options_default(&options);
    options.precision = d->o.precision;
    options.moe_aux_loss_coeff.of[0] = d->o.moe_aux_loss_coeff;
    assay_batches b = {.training = true,
                       .steps = 1,
                       .microbatches = microbatches * d->grid.size[ASSAY_AXIS_DP],
                       .b = d->o.micro_batch_size,
                       .s = short_sequence(d)};
    plan_job job = {.spec = d->spec,
                    .config = &d->config,
                    .grid = &d->grid,
                    .options = &options,
                    .batches = &b,
                    .steps = 1};
    plan p = {0};
    const size_t n = (size_t)(b.microbatches * b.b * b.s);
    b.input_ids = calloc(n, sizeof *b.input_ids);
    b.labels = calloc(n, sizeof *b.labels);
    assay_status st = ASSAY_OK;
    out->n = 0;
    ASSAY_CHECK_GOTO(b.input_ids && b.labels, ASSAY_OUT_OF_MEMORY, st, done, "%zu tokens", n);
    ASSAY_TRY_GOTO(plan_make(&p, &job, rank, 0), st, done);
    for (int64_t i = 0; i < p.n && st == ASSAY_OK; i++)
        if (p.ops[i].group >= 0)
            st = add_call(d, &p, &p.ops[i], out);
    if (st == ASSAY_OK)
        plant(d, rank, out);
done:
    plan_destroy(&p);
    free(b.input_ids);
    free(b.labels);
    return st;
}

/* --- ranks of one stage ------------------------------------------------------------------------------------- */

/* The first call in which a rank differs from the first rank of its stage. */
static void compare(dry *d, int first, const dry_list *wanted, int rank, const dry_list *found)
{
    char a[DRY_TEXT / 2] = "nothing more", b[DRY_TEXT / 2] = "nothing more";
    int64_t i = 0;
    while (i < wanted->n && i < found->n && same_call(&wanted->calls[i], &found->calls[i]))
        i++;
    if (i == wanted->n && i == found->n) {
        dry_holds(d, DRY_CALLS, i);
        return;
    }
    if (i < wanted->n)
        dry_call_text(d, &wanted->calls[i], a);
    if (i < found->n)
        dry_call_text(d, &found->calls[i], b);
    dry_fails(d, DRY_CALLS, "call %lld: rank %d calls %.180s where rank %d of the same stage calls %.180s",
              (long long)i, rank, b, first, a);
}

enum { MAX_CLASSES = 128 };

static void add_rank(int *ranks, int *n, int rank)
{
    for (int i = 0; i < *n; i++)
        if (ranks[i] == rank)
            return;
    if (*n < MAX_CLASSES)
        ranks[(*n)++] = rank;
}

/* One rank of every class of a stage: first, second and last along every axis of both grids, in all combinations; and
 * the rank of a planted fault. */
static int class_ranks(const dry *d, int stage, int *ranks)
{
    static const assay_axis axes[2][3] = {{ASSAY_AXIS_TP, ASSAY_AXIS_CP, ASSAY_AXIS_DP},
                                          {ASSAY_AXIS_ETP, ASSAY_AXIS_EP, ASSAY_AXIS_EDP}};
    const int base = stage * d->stage_ranks;
    const char *planted = dry_fault(d, "swap") ? dry_fault(d, "swap") : dry_fault(d, "lost");
    int n = 0;
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 27; i++) {
            int rank = base;
            for (int k = 0, at = i; k < 3; k++, at /= 3) {
                const int size = d->grid.size[axes[g][k]];
                const int coord = at % 3 == 2 ? size - 1 : at % 3 < size ? at % 3 : 0;
                rank += coord * d->grid.stride[axes[g][k]];
            }
            add_rank(ranks, &n, rank);
        }
    if (planted != NULL && (int)strtol(planted, NULL, 10) / d->stage_ranks == stage)
        add_rank(ranks, &n, (int)strtol(planted, NULL, 10));
    return n;
}

/* Whom to believe when ranks differ: the first, unless it differs from most others. */
static int reference_of(const dry_list *lists, int n)
{
    int same = 0;
    for (int i = 1; i < n; i++) {
        bool equal = lists[i].n == lists[0].n;
        for (int64_t k = 0; equal && k < lists[0].n; k++)
            equal = same_call(&lists[0].calls[k], &lists[i].calls[k]);
        same += equal;
    }
    return n > 2 && 2 * same < n - 1 ? n - 1 : 0;
}

/* Passes of further microbatches are the same function again: two show what is the first's alone. */
static assay_status compare_classes(dry *d, int stage)
{
    int ranks[MAX_CLASSES];
    const int n = class_ranks(d, stage, ranks);
    const int64_t few = d->o.num_microbatches < 2 ? d->o.num_microbatches : 2;
    dry_list lists[MAX_CLASSES] = {0};
    assay_status st = ASSAY_OK;
    for (int i = 0; i < n && st == ASSAY_OK; i++)
        st = dry_calls(d, ranks[i], few, &lists[i]);
    const int reference = reference_of(lists, n);
    for (int i = 0; i < n && st == ASSAY_OK; i++)
        if (i != reference)
            compare(d, ranks[reference], &lists[reference], ranks[i], &lists[i]);
    d->n_asked += n;
    for (int i = 0; i < n; i++)
        free(lists[i].calls);
    return st;
}

static assay_status match_stages(dry *d)
{
    const size_t n = (size_t)d->stages;
    int *ranks = calloc(n, sizeof *ranks);
    const dry_list **lists = calloc(n, sizeof *lists);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(ranks && lists, ASSAY_OUT_OF_MEMORY, st, done, "%zu stages", n);
    for (int s = 0; s < d->stages; s++) {
        ranks[s] = s * d->stage_ranks;
        lists[s] = &d->lists[s];
    }
    st = dry_match(d, d->stages, ranks, lists);
done:
    free(ranks);
    free((void *)lists);
    return st;
}

/* A small world: every rank by itself. */
static assay_status match_ranks(dry *d)
{
    const size_t n = (size_t)d->grid.world;
    int *ranks = calloc(n, sizeof *ranks);
    dry_list *own = calloc(n, sizeof *own);
    const dry_list **lists = calloc(n, sizeof *lists);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(ranks && own && lists, ASSAY_OUT_OF_MEMORY, st, done, "%zu ranks", n);
    for (int r = 0; r < d->grid.world && st == ASSAY_OK; r++) {
        ranks[r] = r;
        lists[r] = &own[r];
        st = dry_calls(d, r, d->o.num_microbatches, &own[r]);
    }
    if (st == ASSAY_OK)
        st = dry_match(d, d->grid.world, ranks, lists);
done:
    for (int r = 0; own != NULL && r < d->grid.world; r++)
        free(own[r].calls);
    free(own);
    free(ranks);
    free((void *)lists);
    return st;
}

/* A call over the group on any stage, in the passes or anywhere. */
static bool has_call(const dry *d, assay_group group, bool in_passes)
{
    for (int s = 0; s < d->stages; s++)
        for (int64_t i = 0; i < d->lists[s].n; i++) {
            const dry_call *c = &d->lists[s].calls[i];
            const bool pass = c->phase == ASSAY_PHASE_FORWARD || c->phase == ASSAY_PHASE_BACKWARD;
            if (c->group == group && (pass || !in_passes))
                return true;
        }
    return false;
}

/* An axis that nobody talks over, or parameters that nobody gathers, are something that the plan does not know: nothing is
 * claimed then. */
static assay_status check_known(const dry *d)
{
    static const struct {
        assay_axis axis;
        assay_group group;
    } axes[] = {{ASSAY_AXIS_TP, ASSAY_GROUP_TP},
                {ASSAY_AXIS_CP, ASSAY_GROUP_CP},
                {ASSAY_AXIS_PP, ASSAY_GROUP_PP},
                {ASSAY_AXIS_ETP, ASSAY_GROUP_ETP},
                {ASSAY_AXIS_EP, ASSAY_GROUP_EP}};
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        ASSAY_CHECK(d->grid.size[axes[i].axis] == 1 || has_call(d, axes[i].group, true), ASSAY_UNSUPPORTED,
                    "layout %s: the judge's plan has no call over %s: a dry run of it is not supported in "
                    "this version",
                    d->canonical, assay_axis_name(axes[i].axis));
    const bool copies = d->grid.p.num_distributed_optimizer_instances > 1;
    const assay_group shards = copies ? ASSAY_GROUP_INTRA_DP_CP : ASSAY_GROUP_DP_CP;
    const bool many = assay_grid_group_shape(&d->grid, shards, 0).size > 1;
    ASSAY_CHECK(d->grid.p.zero_stage < 3 || !many || has_call(d, shards, true), ASSAY_UNSUPPORTED,
                "layout %s: the judge's plan gathers no parameters: a dry run of zero3 is not supported in "
                "this version",
                d->canonical);
    ASSAY_CHECK(!copies || !many ||
                    (has_call(d, shards, false) && has_call(d, ASSAY_GROUP_INTER_DP_CP, false)),
                ASSAY_UNSUPPORTED,
                "layout %s: the judge's plan does not sum over %s and inter_dp_cp: a dry run of hsdp is not "
                "supported in "
                "this version",
                d->canonical, assay_group_name(shards));
    return ASSAY_OK;
}

assay_status dry_check_calls(dry *d)
{
    d->exact = d->grid.world <= DRY_EXACT_WORLD && !d->o.classes;
    for (int s = 0; s < d->stages; s++) {
        ASSAY_TRY(dry_calls(d, s * d->stage_ranks, d->o.num_microbatches, &d->lists[s]));
        if (!d->exact)
            ASSAY_TRY(compare_classes(d, s));
    }
    ASSAY_TRY(check_known(d));
    if (d->exact)
        d->n_asked = d->grid.world;
    return d->exact ? match_ranks(d) : match_stages(d);
}
