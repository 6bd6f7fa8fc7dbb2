/* What the optimizer of this rank holds. */
#include "gpu/ladder.h"
#include "gpu/optimizer.h"
#include "gpu/parallel/fsdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether this rank's copy of the piece enters the norm: one of every set of replicas.  A part exists once along the
 * group that shares a copy, so it counts when any replica of the parameter along that group would. */
static bool piece_in_norm(const gpu_optimizer *o, const gpu_grad_buffer *b, const gpu_param *p, int64_t start)
{
    const gpu_model *m = o->model;
    const gpu_comm *comm = &m->run->comm;
    const int n = o->sharded ? b->size : 1;
    for (int i = 0; i < n; i++) {
        const int rank = n > 1 ? comm->group[b->group].ranks[i] : comm->rank;
        if (start < assay_param_counted(p->spec, m->grid, m->config, rank, p->count))
            return true;
    }
    return p->count == 0 && n == 1 && assay_param_counts_in_norm(p->spec, m->grid, m->config, comm->rank);
}

static void piece_value(gpu_piece *piece, gpu_value *v, const char *suffix, assay_dtype dtype)
{
    memset(v, 0, sizeof *v);
    snprintf(v->name, sizeof v->name, "%.*s%s", ASSAY_NAME - 16, piece->param->spec->name, suffix);
    v->phase = ASSAY_PHASE_OPTIMIZER;
    v->microbatch = -1;
    v->shard = &piece->shard;
    v->t = gpu_tensor_1d(NULL, dtype, piece->count);
}

static void piece_init(gpu_optimizer *o, int buffer, gpu_param *p, const assay_shard *shard, int64_t start)
{
    gpu_piece *piece = &o->pieces[o->n_pieces++];
    if (p->n_pieces++ == 0)
        p->first_piece = o->n_pieces - 1;
    piece->param = p;
    piece->buffer = buffer;
    piece->shard = *shard;
    piece->start = start;
    piece->count = assay_shard_count(shard);
    piece->in_norm = piece_in_norm(o, &o->buffer[buffer], p, start);
    piece_value(piece, &piece->main_param, ".main_param", ASSAY_F32);
    for (int k = 0; k < o->n_states; k++) {
        char suffix[32];
        snprintf(suffix, sizeof suffix, ".%s", o->state_names[k]);
        piece_value(piece, &piece->state[k], suffix, ASSAY_F32);
    }
    piece_value(piece, &piece->grad, ".main_grad", ASSAY_F32);
    piece_value(piece, &piece->weight, "", o->model->act);
    piece->grad.phase = ASSAY_PHASE_REDUCED_GRAD;
    o->n_norm += piece->in_norm ? 1 : 0;
}

/* Part of parameter i that this rank owns: flat range in the parameter. */
static void owned_range(const gpu_grad_buffer *b, int64_t i, int64_t *start, int64_t *length)
{
    const int64_t offset = b->offsets[i], count = b->params[i]->count;
    int64_t part, n;
    gpu_bucket_part(b, b->params[i]->bucket, b->rank, &part, &n);
    const int64_t from = part > offset ? part : offset;
    const int64_t to = part + n < offset + count ? part + n : offset + count;
    *start = to > from ? from - offset : 0;
    *length = to > from ? to - from : 0;
}

/* The rectangles of a flat range of a parameter; offset: of the parameter in its buffer when the buffer is cut, or -1. */
static void pieces_of(gpu_optimizer *o, int buffer, gpu_param *p, int64_t offset, int64_t start,
                      int64_t length)
{
    int64_t flat[GPU_MAX_PIECES];
    assay_shard boxes[GPU_MAX_PIECES];
    const int n = gpu_flat_rectangles(&p->shard, start, length, boxes, flat);
    for (int box = 0; box < n; box++) {
        piece_init(o, buffer, p, &boxes[box], flat[box]);
        if (offset >= 0) {
            int64_t part, part_length;
            gpu_bucket_part(&o->buffer[buffer], p->bucket, o->buffer[buffer].rank, &part, &part_length);
            o->pieces[o->n_pieces - 1].in_part = offset + flat[box] - part;
        }
    }
}

static assay_status pieces_create(gpu_optimizer *o)
{
    const gpu_model *m = o->model;
    o->pieces = calloc((size_t)(m->n_params * GPU_MAX_PIECES), sizeof *o->pieces);
    ASSAY_CHECK(o->pieces, ASSAY_OUT_OF_MEMORY, "optimizer: pieces of %lld parameters",
                (long long)m->n_params);
    for (int k = 0; k < 2; k++) {
        const gpu_grad_buffer *b = &o->buffer[k];
        for (int64_t i = 0; i < b->n_params; i++) {
            gpu_param *p = b->params[i];
            const int64_t shared = assay_param_shared_from(p->spec, m->grid, p->count);
            const bool cut = o->sharded && b->size > 1;
            int64_t start = 0, length = p->count;
            p->n_pieces = 0;
            if (cut) {
                owned_range(b, i, &start, &length);
            } else if (shared == p->count) {
                piece_init(o, k, p, &p->shard, 0);
                continue;
            }
            /* What a kv group shares is a piece of its own: one rank of the group speaks for it. */
            const int64_t own = shared <= start ? 0 : shared < start + length ? shared - start : length;
            pieces_of(o, k, p, cut ? b->offsets[i] : -1, start, own);
            pieces_of(o, k, p, cut ? b->offsets[i] : -1, start + own, length - own);
        }
    }
    return ASSAY_OK;
}

static const gpu_param_hooks hooks = {.before = gpu_unit_before,
                                      .after = gpu_unit_after,
                                      .reduce = gpu_unit_reduce,
                                      .grad_ready = gpu_optimizer_grad_ready};

assay_status gpu_optimizer_create(gpu_optimizer *o, gpu_model *m, bool states)
{
    memset(o, 0, sizeof *o);
    o->model = m;
    o->states = states;
    o->n_states = assay_optimizer_states(m->options->optimizer, &o->state_names);
    o->sharded = m->grid->p.zero_stage >= (states ? 1 : 2);
    m->hooks = &hooks;
    m->hooks_user = o;
    ASSAY_TRY(gpu_grad_buffer_create(&o->buffer[0], m, ASSAY_GROUP_DP_CP));
    ASSAY_TRY(gpu_grad_buffer_create(&o->buffer[1], m, ASSAY_GROUP_EDP));
    return pieces_create(o);
}

void gpu_optimizer_destroy(gpu_optimizer *o)
{
    if (o == NULL)
        return;
    gpu_grad_buffer_destroy(&o->buffer[0]);
    gpu_grad_buffer_destroy(&o->buffer[1]);
    free(o->pieces);
    memset(o, 0, sizeof *o);
}

static assay_status take(gpu_arena *arena, gpu_tensor *t)
{
    return gpu_arena_take(arena, gpu_tensor_bytes(*t), &t->data);
}

/* In the whole gradient and parameter, or where only this rank's parts are in them. */
static void place_piece(const gpu_grad_buffer *b, gpu_piece *q)
{
    const gpu_param *p = q->param;
    const int64_t bytes = assay_dtype_bytes(b->act);
    q->grad.t.data = b->scattered ? b->data + gpu_bucket_place(b, p->bucket, true) + q->in_part
                                  : (float *)p->main_grad.t.data + q->start;
    q->weight.t.data = b->gathered
                           ? b->param_data + (gpu_bucket_place(b, p->bucket, false) + q->in_part) * bytes
                           : (char *)p->weight.t.data + q->start * bytes;
}

assay_status gpu_optimizer_alloc(gpu_optimizer *o)
{
    gpu_model *m = o->model;
    gpu_arena *arena = &m->state;
    void *taken;
    ASSAY_TRY(gpu_grad_buffer_alloc(&o->buffer[0], arena));
    ASSAY_TRY(gpu_grad_buffer_alloc(&o->buffer[1], arena));
    for (int64_t i = 0; i < m->n_params; i++)
        if (!assay_param_needs_grad(m->params[i].spec))
            ASSAY_TRY(take(arena, &m->params[i].weight.t));
    for (int64_t i = 0; i < o->n_pieces; i++) {
        gpu_piece *p = &o->pieces[i];
        if (!arena->counting)
            place_piece(&o->buffer[p->buffer], p);
        if (!o->states)
            continue;
        ASSAY_TRY(take(arena, &p->main_param.t));
        for (int k = 0; k < o->n_states; k++)
            ASSAY_TRY(take(arena, &p->state[k].t));
    }
    ASSAY_TRY(gpu_arena_take(arena, (size_t)(o->n_norm + 1) * sizeof(double), &taken));
    o->sums = taken;
    ASSAY_TRY(gpu_arena_take(arena, (size_t)(o->n_norm + 1) * sizeof(int64_t), &taken));
    o->zeros = taken;
    ASSAY_TRY(gpu_arena_take(arena, sizeof(gpu_numbers), &taken));
    o->numbers = taken;
    ASSAY_TRY(gpu_arena_take(arena, sizeof(double), &taken));
    o->scalar = taken;
    ASSAY_TRY(gpu_arena_take(
        arena, (size_t)(gpu_model_layers(m) * m->config->num_moe_experts + 1) * sizeof(int64_t), &taken));
    o->counts = taken;
    return ASSAY_OK;
}

/* --- weights ------------------------------------------------------------------------------------------------ */
/* Nearest even; NaN stays NaN. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

assay_status gpu_upload_rounded(gpu_run *run, gpu_tensor to, const float *from)
{
    const int64_t n = gpu_tensor_count(to);
    if (to.dtype == ASSAY_F32)
        return gpu_run_upload(run, to.data, from, (size_t)n * sizeof *from, "weights");
    uint16_t *narrow = malloc((size_t)(n > 0 ? n : 1) * sizeof *narrow);
    ASSAY_CHECK(narrow, ASSAY_OUT_OF_MEMORY, "weights: %lld elements", (long long)n);
    for (int64_t i = 0; i < n; i++)
        narrow[i] = to_bf16(from[i]);
    const assay_status st = gpu_run_upload(run, to.data, narrow, (size_t)n * sizeof *narrow, "weights");
    free(narrow);
    return st;
}

/* Master and states of a piece; its weight, too, where nothing but parts is held. */
static assay_status set_piece(const gpu_optimizer *o, const gpu_piece *q, bool gathered, const float *values)
{
    gpu_run *run = o->model->run;
    const size_t bytes = (size_t)q->count * sizeof(float);
    if (gathered)
        ASSAY_TRY(gpu_upload_rounded(run, q->weight.t, values));
    if (!o->states)
        return ASSAY_OK;
    ASSAY_TRY(gpu_run_upload(run, q->main_param.t.data, values, bytes, "masters"));
    for (int k = 0; bytes > 0 && k < o->n_states; k++)
        CUDA_TRY(cudaMemsetAsync(q->state[k].t.data, 0, bytes, run->ctx.stream));
    return ASSAY_OK;
}

/* Whole on this rank, of which it owns pieces; or (ZeRO-3) its pieces alone, one after the other. */
assay_status gpu_optimizer_set_weight(void *optimizer, gpu_param *p, gpu_weight_read read, void *from)
{
    gpu_optimizer *o = optimizer;
    const bool experts = assay_param_reduce_group(p->spec) == ASSAY_GROUP_EDP;
    const bool gathered = assay_param_needs_grad(p->spec) && o->buffer[experts].gathered;
    assay_status st = ASSAY_OK;
    int64_t most = gathered ? 0 : p->count;
    for (int i = 0; gathered && i < p->n_pieces; i++)
        most = o->pieces[p->first_piece + i].count > most ? o->pieces[p->first_piece + i].count : most;
    float *values = malloc((size_t)(most > 0 ? most : 1) * sizeof *values);
    ASSAY_CHECK(values, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", p->spec->name, (long long)most);
    if (!gathered) {
        ASSAY_TRY_GOTO(read(from, 0, p->count, values), st, done);
        ASSAY_TRY_GOTO(gpu_upload_rounded(o->model->run, p->weight.t, values), st, done);
    }
    for (int i = 0; i < p->n_pieces; i++) {
        const gpu_piece *q = &o->pieces[p->first_piece + i];
        if (gathered)
            ASSAY_TRY_GOTO(read(from, q->start, q->count, values), st, done);
        ASSAY_TRY_GOTO(set_piece(o, q, gathered, gathered ? values : values + q->start), st, done);
    }
done:
    free(values);
    return st;
}

/* weight = master, rounded; outside a step, so nothing is recorded. */
static assay_status round_master(gpu_ctx *ctx, gpu_tensor weight, gpu_tensor master)
{
    gpu_operands o;
    int variant;
    gpu_operands_init(&o, assay_op_find("cast"));
    gpu_operands_put(&o, "y", weight);
    gpu_operands_put(&o, "x", master);
    return gpu_ladder_run(ctx, &o, 1, ctx->stream, &variant);
}

assay_status gpu_optimizer_refresh_weights(gpu_optimizer *o)
{
    gpu_run *run = o->model->run;
    for (int64_t i = 0; i < o->n_pieces; i++) {
        gpu_piece *p = &o->pieces[i];
        if (p->count > 0)
            ASSAY_TRY(round_master(&run->ctx, p->weight.t, p->main_param.t));
    }
    for (int k = 0; o->sharded && k < 2; k++)
        if (!o->buffer[k].gathered)
            ASSAY_TRY(gpu_param_sync(&o->buffer[k], o->model, false));
    return ASSAY_OK;
}

assay_status gpu_optimizer_gather_grads(gpu_optimizer *o)
{
    gpu_run *run = o->model->run;
    for (int k = 0; o->sharded && k < 2; k++)
        if (!o->buffer[k].scattered)
            ASSAY_TRY(gpu_param_sync(&o->buffer[k], o->model, true));
    return gpu_comm_wait(&run->comm, run->ctx.stream, "gather for export");
}

assay_status gpu_optimizer_gather_family(gpu_optimizer *o, int family)
{
    gpu_run *run = o->model->run;
    for (int64_t i = 0; i < o->n_pieces; i++) {
        gpu_piece *p = &o->pieces[i];
        const gpu_value *v = family == 0 ? &p->main_param : &p->state[family - 1];
        if (p->count > 0)
            CUDA_TRY(cudaMemcpyAsync(p->grad.t.data, v->t.data, gpu_tensor_bytes(p->grad.t),
                                     cudaMemcpyDeviceToDevice, run->ctx.stream));
    }
    return gpu_optimizer_gather_grads(o);
}
