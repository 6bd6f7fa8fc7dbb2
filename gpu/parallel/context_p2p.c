/* Attention over cp by a ring of sends: blocks of keys travel, outputs of blocks are merged. */
#include "gpu/parallel/context_internal.h"

#include "gpu/documents.h"

#include <stdio.h>

/* "self_attention." + what + "." + step */
static const char *step_of(const char *what, int step, char out[ASSAY_NAME])
{
    snprintf(out, ASSAY_NAME, "self_attention.%s.%d", what, step);
    return out;
}

/* Memory of two blocks that take turns: what a step reads stays while the next is made, however long the ring is. */
typedef struct turns {
    void *data[2];
    assay_dtype dtype;
} turns;

/* width: elements of a token; longest: positions of the longest block. */
static assay_status take_turns(gpu_model *m, turns *t, assay_dtype dtype, int64_t width)
{
    int64_t longest = 0;
    for (int r = 0; r < m->cp; r++)
        longest = m->region_rows[r] > longest ? m->region_rows[r] : longest;
    t->dtype = dtype;
    for (int i = 0; i < 2; i++)
        ASSAY_TRY(gpu_arena_take(
            &m->scratch, (size_t)(longest * m->B * width) * (size_t)assay_dtype_bytes(dtype), &t->data[i]));
    return ASSAY_OK;
}

/* A described and named value in the memory of the step. */
static gpu_value in_turn(gpu_value v, const turns *t, int step)
{
    gpu_value_place(&v, t->dtype, t->data[step % 2]);
    return v;
}

/* Two values on their way around the ring: to the cp rank behind, from the one before. */
typedef struct journey {
    gpu_value *sent[2], *arrived[2];
} journey;

/* The arrived ones are described, under their names. */
static assay_status travel(gpu_model *m, int step, const char *const slots[2], const journey *j)
{
    const int before = (m->at.cp + m->cp - 1) % m->cp, behind = (m->at.cp + 1) % m->cp;
    gpu_transfer list[4];
    char at[4][ASSAY_NAME];
    for (int i = 0; i < 4; i++) {
        const bool send = i < 2;
        const char *slot = slots[i % 2];
        gpu_value *v = send ? j->sent[i % 2] : j->arrived[i % 2];
        snprintf(at[i], sizeof at[i], "self_attention.ring.%d.%s_%s", step, send ? "send" : "recv", slot);
        if (!send && v->arena)
            ASSAY_TRY(gpu_value_make(v, m->act));
        list[i] = (gpu_transfer){
            .args = {.op = send ? "send" : "recv",
                     .at = at[i],
                     .group = ASSAY_GROUP_CP,
                     .arg = {GPU_T(send ? "send" : "recv", v), GPU_I("peer", send ? behind : before)}},
            .phase = m->run->phase,
            .microbatch = m->run->microbatch};
    }
    return gpu_call_exchange(m->run, list, 4);
}

/* Keys or values, or gradients of theirs, of the block that the rank has after `step` journeys. */
static gpu_value block_of(gpu_model *m, const gpu_value *own, int step, const char *at, const char *slot)
{
    gpu_value v = gpu_value_describe(&m->scratch, own->ndim, own->dim, own->merge);
    v.dim[0] = gpu_dim_positions(m->S, &m->ring[step]);
    return gpu_named(m, v, at, slot);
}

static const char *const keys_and_values[2] = {"k", "v"}, *const their_gradients[2] = {"dk", "dv"};

/* The block of the step: this rank's own, then what arrives. */
static assay_status next_block(gpu_model *m, const gpu_attention_acts *a, int step, gpu_value block[2],
                               const turns memory[2])
{
    const gpu_value *own[2] = {&a->k, &a->v};
    gpu_value last[2] = {block[0], block[1]};
    char at[ASSAY_NAME];
    for (int i = 0; i < 2; i++)
        block[i] = step == 0
                       ? *own[i]
                       : in_turn(block_of(m, own[i], step, step_of("ring", step, at), keys_and_values[i]),
                                 &memory[i], step);
    return step == 0 ? ASSAY_OK
                     : travel(m, step, keys_and_values,
                              &(journey){.sent = {&last[0], &last[1]}, .arrived = {&block[0], &block[1]}});
}

static gpu_context_attention over_block(gpu_model *m, gpu_attention_acts *a, gpu_value block[2], int step,
                                        const char *at)
{
    return (gpu_context_attention){.at = at,
                                   .q = &a->q,
                                   .k = &block[0],
                                   .v = &block[1],
                                   .q_position = &m->position,
                                   .k_position = &m->ring_position[step],
                                   .first_key = gpu_documents_start(a->documents, false),
                                   .seq_q = m->sequence.region.length,
                                   .seq_k = m->ring[step].length,
                                   .parts = 1};
}

/* o, lse (described) = what was seen so far (a->o, a->lse) and what one more block shows. */
static assay_status merge(gpu_model *m, const char *at, gpu_attention_acts *a, gpu_value *o, gpu_value *lse,
                          assay_dtype dtype, gpu_value *o_b, gpu_value *lse_b)
{
    ASSAY_TRY(GPU_CALL(m->run, "attention_merge", at, GPU_T("o_a", &a->o), GPU_T("lse_a", &a->lse),
                       GPU_T("o_b", o_b), GPU_T("lse_b", lse_b), GPU_I("heads", m->heads),
                       GPU_I("head_dim", assay_config_value_dim(m->config)),
                       GPU_W("dtype", assay_dtype_name(dtype)), GPU_T("o", o), GPU_T("lse", lse)));
    a->o = *o;
    a->lse = *lse;
    return ASSAY_OK;
}

/* The running result takes turns in F32; the last merge makes what attention alone would. */
assay_status gpu_context_p2p_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a)
{
    const int64_t d = assay_config_value_dim(m->config);
    const assay_op_recipe *recipe = &m->run->recipe->op[ASSAY_OPS_ATTENTION];
    turns blocks[2], running[2];
    gpu_value block[2] = {a->k, a->v};
    ASSAY_TRY(take_turns(m, &blocks[0], m->act, m->groups * m->config->kv_channels));
    ASSAY_TRY(take_turns(m, &blocks[1], m->act, m->groups * d));
    ASSAY_TRY(take_turns(m, &running[0], recipe->accumulate, m->heads * d));
    ASSAY_TRY(take_turns(m, &running[1], recipe->accumulate, m->heads));
    for (int step = 0; step < m->cp; step++) {
        const size_t mark = m->scratch.used;
        const bool last = step == m->cp - 1;
        char at[ASSAY_NAME], at_merge[ASSAY_NAME];
        ASSAY_TRY(next_block(m, a, step, block, blocks));
        const gpu_context_attention x = over_block(m, a, block, step, step_of("core_attention", step, at));
        gpu_value part = gpu_context_result(m, &m->scratch, &x, d),
                  part_lse = gpu_context_result(m, &m->scratch, &x, 1);
        if (step == 0) { /* the first running result is of act */
            a->o = gpu_named(m, part, at, "o");
            gpu_value_place(&a->o, recipe->act, running[0].data[0]);
            a->lse = in_turn(gpu_named(m, part_lse, at, "lse"), &running[1], 0);
            ASSAY_TRY(gpu_context_call_fwd(m, l, &x, &a->o, &a->lse));
            continue;
        }
        ASSAY_TRY(gpu_context_call_fwd(m, l, &x, &part, &part_lse));
        step_of("merge", step, at_merge);
        gpu_value o = gpu_context_result(m, keep, &x, d), lse = gpu_context_result(m, keep, &x, 1);
        if (!last) {
            o = in_turn(gpu_named(m, o, at_merge, "o"), &running[0], step);
            lse = in_turn(gpu_named(m, lse, at_merge, "lse"), &running[1], step);
        }
        ASSAY_TRY(merge(m, last ? "self_attention.core_attention" : at_merge, a, &o, &lse,
                        last ? recipe->act : recipe->accumulate, &part, &part_lse));
        gpu_arena_reset(&m->scratch, mark);
    }
    a->attended = a->o;
    return ASSAY_OK;
}

/* What a step's backward adds to: the gradient of q, and those of the block that is here. */
typedef struct sums {
    gpu_value dq, block[2];
    turns dq_memory, block_memory[2];
} sums;

/* The block's sums = what arrived of them and this rank's part. */
static assay_status add_parts(gpu_model *m, const gpu_attention_acts *a, int step, sums *s, gpu_value part[2])
{
    const gpu_value *own[2] = {&a->k, &a->v};
    gpu_value arrived[2];
    char at[ASSAY_NAME];
    for (int i = 0; i < 2; i++)
        arrived[i] =
            gpu_partial_kv(m, block_of(m, own[i], step, step_of("ring", step, at), their_gradients[i]));
    ASSAY_TRY(
        travel(m, step, their_gradients,
               &(journey){.sent = {&s->block[0], &s->block[1]}, .arrived = {&arrived[0], &arrived[1]}}));
    for (int i = 0; i < 2; i++) {
        snprintf(at, sizeof at, "self_attention.ring.%d.add_%s", step, their_gradients[i]);
        s->block[i] =
            in_turn(gpu_partial_kv(m, block_of(m, own[i], step, at, "y")), &s->block_memory[i], step);
        ASSAY_TRY(GPU_CALL(m->run, "add", at, GPU_T("a", &arrived[i]), GPU_T("b", &part[i]),
                           GPU_T("y", &s->block[i])));
    }
    return ASSAY_OK;
}

/* The last sum is the gradient of q. */
static assay_status add_queries(gpu_model *m, const gpu_attention_acts *a, int step, sums *s, gpu_value *part)
{
    gpu_value before = s->dq, sum = gpu_grad_of(m, &a->q);
    char at[ASSAY_NAME];
    snprintf(at, sizeof at, "self_attention.ring.%d.add_dq", step);
    if (step < m->cp - 1)
        gpu_value_name(m->run, &sum, at, "y");
    s->dq = in_turn(sum, &s->dq_memory, step);
    return GPU_CALL(m->run, "add", at, GPU_T("a", &before), GPU_T("b", part), GPU_T("y", &s->dq));
}

static assay_status sums_take(gpu_model *m, sums *s, turns blocks[2])
{
    const int64_t d[2] = {m->config->kv_channels, assay_config_value_dim(m->config)};
    ASSAY_TRY(take_turns(m, &s->dq_memory, m->act, m->heads * d[0]));
    for (int i = 0; i < 2; i++) {
        ASSAY_TRY(take_turns(m, &s->block_memory[i], m->act, m->groups * d[i]));
        ASSAY_TRY(take_turns(m, &blocks[i], m->act, m->groups * d[i]));
    }
    return ASSAY_OK;
}

assay_status gpu_context_p2p_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                 gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    gpu_value block[2] = {a->k, a->v};
    turns blocks[2];
    sums s;
    ASSAY_TRY(sums_take(m, &s, blocks));
    for (int step = 0; step < m->cp; step++) {
        const size_t mark = m->scratch.used;
        char at[ASSAY_NAME];
        ASSAY_TRY(next_block(m, a, step, block, blocks));
        const gpu_context_attention x = over_block(m, a, block, step, step_of("core_attention", step, at));
        gpu_value queries = gpu_named(m, gpu_grad_of(m, &a->q), at, "dq");
        gpu_value part[2] = {gpu_partial_kv(m, block_of(m, &a->k, step, at, "dk")),
                             gpu_partial_kv(m, block_of(m, &a->v, step, at, "dv"))};
        if (step == 0) {
            s.dq = in_turn(queries, &s.dq_memory, 0);
            for (int i = 0; i < 2; i++)
                s.block[i] = in_turn(part[i], &s.block_memory[i], 0);
            ASSAY_TRY(
                gpu_context_call_bwd(m, l, &x, d_o, &a->attended, &a->lse, &s.dq, &s.block[0], &s.block[1]));
            continue;
        }
        ASSAY_TRY(gpu_context_call_bwd(m, l, &x, d_o, &a->attended, &a->lse, &queries, &part[0], &part[1]));
        ASSAY_TRY(add_queries(m, a, step, &s, &queries));
        ASSAY_TRY(add_parts(m, a, step, &s, part));
        gpu_arena_reset(&m->scratch, mark);
    }
    *dq = s.dq;
    *dk = gpu_partial_kv(m, gpu_grad_of(m, &a->k)); /* home: one journey more */
    *dv = gpu_partial_kv(m, gpu_grad_of(m, &a->v));
    return travel(m, m->cp, their_gradients,
                  &(journey){.sent = {&s.block[0], &s.block[1]}, .arrived = {dk, dv}});
}
