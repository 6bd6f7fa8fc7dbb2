/* A list of expected operations under construction. */
#include "parity/checks/plan.h"

#include "core/base/text.h"
#include "ref/yarn.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* --- memory ------------------------------------------------------------------------------------------------- */

typedef struct block {
    struct block *next;
    size_t used, size;
    max_align_t data[];
} block;
struct plan_arena {
    block *blocks;
};

void *plan_alloc(plan *p, size_t bytes)
{
    enum { BLOCK = 1 << 18 };
    const size_t unit = sizeof(max_align_t), need = (bytes / unit + 1) * unit;
    if (p->st != ASSAY_OK)
        return NULL;
    block *b = p->arena->blocks;
    if (b == NULL || b->size - b->used < need) {
        const size_t size = need > BLOCK ? need : BLOCK;
        b = malloc(sizeof *b + size);
        if (b == NULL) {
            p->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "plan: %zu bytes", size);
            return NULL;
        }
        b->next = p->arena->blocks;
        b->used = 0;
        b->size = size;
        p->arena->blocks = b;
    }
    void *out = (char *)b->data + b->used;
    b->used += need;
    return memset(out, 0, need);
}

int64_t *plan_integers(plan *p, int64_t n)
{
    return plan_alloc(p, (size_t)(n > 0 ? n : 0) * sizeof(int64_t));
}

const char *plan_text(plan *p, const char *fmt, ...)
{
    char text[2 * ASSAY_NAME];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    char *out = plan_alloc(p, (size_t)(n > 0 ? n : 0) + 1);
    if (out == NULL || n < 0)
        return "";
    assay_copy_text(out, (size_t)n + 1, text);
    return out;
}

const char *plan_joined(plan *p, const char *a, const char *b, const char *c)
{
    const size_t room = strlen(a) + strlen(b) + strlen(c) + 1;
    char *out = plan_alloc(p, room);
    if (out == NULL)
        return "";
    size_t n = assay_copy_text(out, room, a);
    n += assay_copy_text(out + n, room - n, b);
    assay_copy_text(out + n, room - n, c);
    return out;
}

const char *plan_at(plan *p, const char *at)
{
    return p->layer >= 0 ? plan_text(p, "decoder.layers.%lld.%s", (long long)p->layer, at)
                         : plan_joined(p, at, "", "");
}

/* Room for one element more of an array of the plan. */
static void *grown(plan *p, void *array, int64_t n, int64_t *capacity, size_t width)
{
    if (p->st != ASSAY_OK)
        return NULL;
    if (n < *capacity)
        return array;
    const int64_t more = *capacity > 0 ? 2 * *capacity : 512;
    void *out = realloc(array, (size_t)more * width);
    if (out == NULL)
        p->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "plan of %lld entries", (long long)more);
    else
        *capacity = more;
    return out;
}

/* --- operations --------------------------------------------------------------------------------------------- */

void plan_add(plan *p, const char *op, const char *at)
{
    plan_op *ops = grown(p, p->ops, p->n, &p->capacity, sizeof *ops);
    if (ops == NULL)
        return;
    p->ops = ops;
    ops[p->n] = (plan_op){.op = op,
                          .instance = plan_at(p, at),
                          .phase = p->phase,
                          .microbatch = p->microbatch,
                          .group = -1,
                          .block = p->block,
                          .recompute = p->recompute,
                          .after = -1,
                          .order = {.part = p->part, .pass = p->pass, .stage = p->stage, .at = p->n},
                          .first_slot = p->n_slots,
                          .first_attr = p->n_attrs};
    p->n++;
}

void plan_add_collective(plan *p, const char *op, const char *at, assay_group group, assay_dtype dtype)
{
    plan_add(p, op, at);
    if (p->st == ASSAY_OK)
        p->ops[p->n - 1].group = (int)group;
    plan_word(p, "dtype", assay_dtype_name(dtype));
    if (strcmp(op, "all_reduce") == 0 || strcmp(op, "reduce_scatter") == 0)
        plan_word(p, "reduction", "sum");
}

static void add_slot(plan *p, const char *slot, bool output, plan_tensor t)
{
    if (t.name == NULL)
        return;
    plan_slot *slots = grown(p, p->slots, p->n_slots, &p->slot_capacity, sizeof *slots);
    if (slots == NULL)
        return;
    p->slots = slots;
    slots[p->n_slots++] = (plan_slot){.slot = slot, .output = output, .tensor = t};
    p->ops[p->n - 1].n_slots++;
}

void plan_in(plan *p, const char *slot, plan_tensor t)
{
    add_slot(p, slot, false, t);
}

void plan_out(plan *p, const char *slot, plan_tensor t)
{
    add_slot(p, slot, true, t);
}

static void add_attr(plan *p, plan_attr a)
{
    plan_attr *attrs = grown(p, p->attrs, p->n_attrs, &p->attr_capacity, sizeof *attrs);
    if (attrs == NULL)
        return;
    p->attrs = attrs;
    attrs[p->n_attrs++] = a;
    p->ops[p->n - 1].n_attrs++;
}

void plan_int(plan *p, const char *name, int64_t value)
{
    add_attr(p, (plan_attr){.name = name, .type = PLAN_INT, .integer = value});
}

void plan_any(plan *p, const char *name)
{
    add_attr(p, (plan_attr){.name = name, .type = PLAN_ANY});
}

void plan_real(plan *p, const char *name, double value, double slack)
{
    add_attr(p, (plan_attr){.name = name, .type = PLAN_REAL, .real = value, .slack = slack});
}

void plan_f32(plan *p, const char *name, double value)
{
    plan_real(p, name, (double)(float)value, 0.0);
}

void plan_word(plan *p, const char *name, const char *value)
{
    add_attr(p, (plan_attr){.name = name, .type = PLAN_TEXT, .text = value});
}

void plan_bool(plan *p, const char *name, bool value)
{
    add_attr(p, (plan_attr){.name = name, .type = PLAN_BOOL, .integer = value});
}

void plan_list(plan *p, const char *name, const int64_t *values, int64_t n)
{
    add_attr(p, (plan_attr){.name = name, .type = PLAN_LIST, .integer = values ? n : -1, .list = values});
}

/* --- tensors ------------------------------------------------------------------------------------------------ */

plan_tensor plan_value(plan *p, const char *at, const char *slot, assay_dtype dtype)
{
    return (plan_tensor){.name = plan_joined(p, plan_at(p, at), ".", slot),
                         .phase = p->phase,
                         .microbatch = p->microbatch,
                         .dtype = dtype};
}

plan_tensor plan_grad(plan *p, plan_tensor forward, assay_dtype dtype)
{
    return (plan_tensor){.name = plan_joined(p, forward.name, ".grad", ""),
                         .phase = p->phase,
                         .microbatch = p->microbatch,
                         .dtype = dtype,
                         .rows = forward.rows};
}

plan_tensor plan_with_integers(plan_tensor t, const int64_t *values, int64_t n)
{
    t.integers = values;
    t.count = n;
    return t;
}

plan_tensor plan_param(plan *p, const char *at)
{
    return (plan_tensor){
        .name = plan_at(p, at), .phase = ASSAY_PHASE_FORWARD, .microbatch = -1, .dtype = p->act};
}

bool plan_is_frozen(plan *p, const char *at)
{
    const assay_param_spec *s = p->st == ASSAY_OK ? assay_spec_find(p->job->spec, plan_at(p, at)) : NULL;
    return s != NULL && !assay_param_needs_grad(s);
}

void plan_accumulate(plan *p, const char *slot, const char *at)
{
    const char *param = plan_at(p, at);
    const int64_t before = p->st == ASSAY_OK ? parity_map_get(p->touched, param) : -1;
    plan_tensor t = {.name = plan_text(p, "%s.main_grad", param),
                     .phase = ASSAY_PHASE_BACKWARD,
                     .microbatch = before > 0 ? before - 1 : -1,
                     .dtype = p->accumulated};
    plan_in(p, plan_text(p, "%s_in", slot), t);
    t.microbatch = p->microbatch;
    plan_out(p, slot, t);
    if (p->st == ASSAY_OK)
        p->st = parity_map_put(p->touched, param, p->microbatch + 1);
    if (p->st == ASSAY_OK)
        p->st = parity_map_put(p->written, param, p->n - 1);
}

void plan_accumulate_product(plan *p, const char *slot, const char *at)
{
    const bool first = p->st == ASSAY_OK && parity_map_get(p->touched, plan_at(p, at)) <= 0;
    plan_accumulate(p, slot, at);
    plan_bool(p, "accumulate", !first);
}

int64_t plan_piece(int64_t n, int parts, int index, int64_t *start)
{
    int64_t first, length;
    assay_split(n, parts, index, &first, &length);
    if (start != NULL)
        *start = first;
    return length;
}

/* --- the list ----------------------------------------------------------------------------------------------- */

/* The judge's own count: positions of a row (from 1 on where the model shifts) whose label is not ignored. */
int64_t plan_targets(const assay_batches *b, int64_t step, int64_t microbatch)
{
    const int64_t *labels = assay_batches_labels(b, step, microbatch);
    int64_t n = 0;
    for (int64_t row = 0; row < b->b; row++)
        for (int64_t s = b->shifted ? 0 : 1; s < b->s; s++)
            n += labels[row * b->s + s] != ASSAY_IGNORE_INDEX;
    return n;
}

static int64_t targets_of_step(const assay_batches *b, int64_t step)
{
    int64_t n = 0;
    for (int64_t m = 0; m < b->microbatches; m++)
        n += plan_targets(b, step, m);
    return n;
}

static void rope_table(plan *p)
{
    const assay_model_config *c = p->job->config;
    plan_add(p, "rope_table", "rope");
    plan_out(p, "cos", plan_value(p, "rope", "cos", p->accumulated));
    plan_out(p, "sin", plan_value(p, "rope", "sin", p->accumulated));
    plan_word(p, "rope_type", assay_rope_name(c->rope_type));
    plan_int(p, "rotary_dim", assay_config_rotary_dim(c));
    plan_real(p, "rotary_base", c->rotary_base, 0.0);
    plan_real(p, "factor", c->rope_factor, 0.0);
    plan_real(p, "low_freq_factor", c->rope_low_freq_factor, 0.0);
    plan_real(p, "high_freq_factor", c->rope_high_freq_factor, 0.0);
    plan_int(p, "original_max_position_embeddings", c->rope_original_max_position_embeddings);
    plan_real(p, "beta_fast", c->rope_beta_fast, 0.0);
    plan_real(p, "beta_slow", c->rope_beta_slow, 0.0);
    plan_bool(p, "truncate", c->rope_truncate);
    plan_real(p, "attention_factor", ref_yarn_attention_factor(c), 1e-15 * ref_yarn_attention_factor(c));
    plan_int(p, "positions", p->S);
}

static assay_status start(plan *p, const plan_job *job, int rank, int64_t step)
{
    const assay_parallel_config *l = &job->grid->p;
    memset(p, 0, sizeof *p);
    p->job = job;
    p->rank = rank;
    p->step = step;
    assay_grid_coords(job->grid, rank, &p->at);
    p->tp = l->tensor_model_parallel_size;
    p->cp = l->context_parallel_size;
    p->ep = l->expert_model_parallel_size;
    p->etp = l->expert_tensor_parallel_size;
    p->sp = l->sequence_parallel;
    p->last_stage = p->at.pp == l->pipeline_model_parallel_size - 1;
    p->S = job->batches->s;
    const assay_precision precision = job->options->precision;
    p->accumulated = precision == ASSAY_PRECISION_FP64 ? ASSAY_F64 : ASSAY_F32;
    p->act = precision == ASSAY_PRECISION_BF16 ? ASSAY_BF16 : p->accumulated;
    p->layer = p->microbatch = -1;
    p->n_targets = targets_of_step(job->batches, step);
    ASSAY_TRY(assay_sequence_map_make(job->grid, rank, p->S, &p->sequence));
    ASSAY_TRY(assay_sequence_gathered(job->grid, p->S, &p->gathered));
    ASSAY_TRY(assay_batch_share_make(assay_needs_all_rows(job->options), job->batches->microbatches,
                                     job->batches->b, l->data_parallel_size, p->at.dp, &p->share));
    p->B = p->share.n_rows;
    p->arena = calloc(1, sizeof *p->arena);
    ASSAY_CHECK(p->arena, ASSAY_OUT_OF_MEMORY, "plan");
    ASSAY_TRY(parity_map_create(&p->written));
    return parity_map_create(&p->touched);
}

assay_status plan_make(plan *p, const plan_job *job, int rank, int64_t step)
{
    ASSAY_TRY(start(p, job, rank, step));
    ASSAY_TRY(assay_recompute_from_options(&p->again, job->options));
    p->phase = ASSAY_PHASE_FORWARD;
    rope_table(p);
    plan_microbatches(p);
    p->layer = p->microbatch = -1;
    p->stage = p->pass = 0;
    plan_reductions(p);
    plan_optimizer(p);
    return p->st;
}

void plan_destroy(plan *p)
{
    while (p->arena != NULL && p->arena->blocks != NULL) {
        block *next = p->arena->blocks->next;
        free(p->arena->blocks);
        p->arena->blocks = next;
    }
    free(p->arena);
    parity_map_destroy(p->touched);
    parity_map_destroy(p->written);
    free(p->ops);
    free(p->slots);
    free(p->attrs);
    memset(p, 0, sizeof *p);
}
