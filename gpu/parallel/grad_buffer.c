/* Contiguous main gradients and their reduction by buckets. */
#include "gpu/parallel/grad_buffer.h"

#include "gpu/fault.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN_ELEMENTS = 64 }; /* parameters start on 256-byte boundaries */

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static assay_status close_bucket(gpu_grad_buffer *b, int64_t start, int64_t *end)
{
    ASSAY_CHECK(b->n_buckets < GPU_MAX_BUCKETS, ASSAY_LIMIT, "gradient buffer: more than %d buckets",
                GPU_MAX_BUCKETS);
    const int64_t length = round_up(*end - start, (int64_t)ALIGN_ELEMENTS * b->size);
    b->buckets[b->n_buckets].start = start;
    b->buckets[b->n_buckets++].length = length;
    *end = start + length;
    return ASSAY_OK;
}

/* What a bucket of a unit holds: a layer's, the output's; an embedding alone, so that a tied one is cut alike on the
 * first and the last stage. */
enum { EMBEDDING_UNIT = -2 };

static int64_t unit_of(const gpu_model *m, const gpu_param *p)
{
    return p == m->word_embeddings ? EMBEDDING_UNIT : p->spec->layer;
}

/* ZeRO-1 has no units, but a tied embedding is cut alike on both stages there, too. */
static bool ends_unit(const gpu_grad_buffer *b, const gpu_model *m, const gpu_param *p, const gpu_param *next)
{
    const bool stages = m->config->tie_word_embeddings && m->grid->p.zero_stage >= 1 &&
                        m->run->comm.group[ASSAY_GROUP_EMBEDDING].size > 1;
    if (next == NULL || unit_of(m, p) == unit_of(m, next))
        return false;
    return b->scattered || (stages && (p == m->word_embeddings || next == m->word_embeddings));
}

/* Elements that the parameter takes in the buffer: the same on every tp rank, which an uneven vocabulary's pieces are not, so
 * that what tp ranks hold alike is cut alike.  Rank 0 of tp has the largest piece. */
static assay_status room_of(const gpu_model *m, const gpu_param *p, int64_t *elements)
{
    const gpu_comm *comm = &m->run->comm;
    const gpu_comm_group *tp = &comm->group[ASSAY_GROUP_TP];
    assay_shard largest;
    ASSAY_TRY(assay_param_shard(p->spec, m->grid, tp->size > 1 ? tp->ranks[0] : comm->rank, &largest));
    const int64_t count = assay_shard_count(&largest);
    *elements = round_up(count > p->count ? count : p->count, ALIGN_ELEMENTS);
    return ASSAY_OK;
}

static bool belongs(const gpu_grad_buffer *b, const gpu_param *p)
{
    return assay_param_needs_grad(p->spec) && assay_param_reduce_group(p->spec) == b->whole;
}

static const gpu_param *next_of(const gpu_grad_buffer *b, const gpu_model *m, int64_t i)
{
    for (i++; i < m->n_params; i++)
        if (belongs(b, &m->params[i]))
            return &m->params[i];
    return NULL;
}

/* Its place in the slot is behind the unit's earlier buckets, which are there at the same time. */
static int deal_slot(gpu_slot *slots, const gpu_bucket *k, int turn)
{
    if (k->in_slot + k->length > slots[turn].length)
        slots[turn].length = k->in_slot + k->length;
    return turn;
}

/* Neighbouring units take turns; a tied embedding is used together with the output's buckets. */
static assay_status deal_slots(gpu_grad_buffer *b, const gpu_model *m)
{
    const assay_train_options *o = m->options;
    int units = 0;
    for (int i = 0; i < b->n_buckets; i++) {
        gpu_bucket *k = &b->buckets[i], *last = i > 0 ? k - 1 : NULL;
        const gpu_param *p = b->params[k->first_param];
        ASSAY_CHECK(p != NULL, ASSAY_INTERNAL, "gradient buffer: bucket %d has no parameter", i);
        const int64_t unit = unit_of(m, p);
        const bool tied = m->config->tie_word_embeddings && unit == EMBEDDING_UNIT;
        if (last && unit == unit_of(m, b->params[last->first_param]))
            k->in_slot = last->in_slot + last->length;
        else
            units++;
        const int turn = (units - 1) % 2;
        k->grad_slot = deal_slot(b->grads, k, tied ? GPU_SLOT_TIED : o->overlap_grad_reduce ? turn : 0);
        k->weight_slot = deal_slot(b->weights, k, tied ? GPU_SLOT_TIED : o->overlap_param_gather ? turn : 0);
    }
    return ASSAY_OK;
}

static void find_group(gpu_grad_buffer *b, const gpu_model *m, assay_group whole)
{
    const bool several = m->grid->p.num_distributed_optimizer_instances > 1,
               experts = whole == ASSAY_GROUP_EDP;
    b->whole = whole;
    b->group = !several ? whole : experts ? ASSAY_GROUP_INTRA_EDP : ASSAY_GROUP_INTRA_DP_CP;
    b->replicas = experts ? ASSAY_GROUP_INTER_EDP : ASSAY_GROUP_INTER_DP_CP;
    b->size = m->run->comm.group[b->group].size;
    b->rank = m->run->comm.group[b->group].rank;
    b->copies = m->run->comm.group[b->replicas].size;
    b->scattered = b->size > 1 && m->grid->p.zero_stage >= 2;
    b->gathered = b->size > 1 && m->grid->p.zero_stage >= 3;
}

assay_status gpu_grad_buffer_create(gpu_grad_buffer *b, gpu_model *m, assay_group whole)
{
    memset(b, 0, sizeof *b);
    find_group(b, m, whole);
    b->act = m->run->recipe->op[ASSAY_OPS_LINEAR].weight;
    b->params = calloc((size_t)m->n_params, sizeof *b->params);
    b->offsets = calloc((size_t)m->n_params, sizeof *b->offsets);
    b->buckets = calloc(GPU_MAX_BUCKETS, sizeof *b->buckets);
    b->ready = calloc(GPU_MAX_BUCKETS, sizeof *b->ready);
    ASSAY_CHECK(b->params && b->offsets && b->buckets && b->ready, ASSAY_OUT_OF_MEMORY,
                "gradient buffer: %lld parameters", (long long)m->n_params);
    const int64_t asked = m->options->ddp_bucket_size;
    const int64_t elements = asked > 0 ? asked : b->scattered ? INT64_MAX : GPU_BUCKET_ELEMENTS;
    int64_t at = 0, bucket_start = 0;
    for (int64_t i = 0; i < m->n_params; i++) {
        gpu_param *p = &m->params[i];
        int64_t room;
        if (!belongs(b, p))
            continue;
        ASSAY_TRY(room_of(m, p, &room));
        ASSAY_CHECK(b->n_buckets < GPU_MAX_BUCKETS, ASSAY_LIMIT, "gradient buffer: more than %d buckets",
                    GPU_MAX_BUCKETS);
        p->bucket = b->n_buckets;
        if (b->buckets[p->bucket].n_params++ == 0)
            b->buckets[p->bucket].first_param = b->n_params;
        b->params[b->n_params] = p;
        b->offsets[b->n_params++] = at;
        at += room;
        if (ends_unit(b, m, p, next_of(b, m, i)) || at - bucket_start >= elements) {
            ASSAY_TRY(close_bucket(b, bucket_start, &at));
            bucket_start = at;
        }
    }
    if (at > bucket_start)
        ASSAY_TRY(close_bucket(b, bucket_start, &at));
    b->length = at;
    return b->scattered ? deal_slots(b, m) : ASSAY_OK;
}

void gpu_grad_buffer_destroy(gpu_grad_buffer *b)
{
    for (int i = 0; i < GPU_SLOTS; i++) {
        if (b->grads[i].done)
            (void)cudaEventDestroy(b->grads[i].done);
        if (b->weights[i].done)
            (void)cudaEventDestroy(b->weights[i].done);
    }
    for (int k = 0; k < b->n_buckets; k++)
        if (b->buckets[k].synced)
            (void)cudaEventDestroy(b->buckets[k].synced);
    free(b->params);
    free(b->offsets);
    free(b->buckets);
    free(b->ready);
    memset(b, 0, sizeof *b);
}

static assay_status take(gpu_arena *arena, int64_t elements, assay_dtype dtype, void **out)
{
    return gpu_arena_take(arena, (size_t)(elements * assay_dtype_bytes(dtype)), out);
}

static assay_status take_slots(gpu_arena *arena, gpu_slot *slots, assay_dtype dtype)
{
    for (int i = 0; i < GPU_SLOTS; i++) {
        void *data;
        ASSAY_TRY(take(arena, slots[i].length, dtype, &data));
        slots[i].data = data;
        if (!arena->counting && slots[i].done == NULL)
            CUDA_TRY(cudaEventCreateWithFlags(&slots[i].done, cudaEventDisableTiming));
        slots[i].waited = true;
    }
    return ASSAY_OK;
}

/* Where the whole parameter i lies. */
static void point(const gpu_grad_buffer *b, int64_t i)
{
    gpu_param *p = b->params[i];
    const gpu_bucket *k = &b->buckets[p->bucket];
    const int64_t bytes = assay_dtype_bytes(b->act), inside = k->in_slot + b->offsets[i] - k->start;
    p->main_grad.t.data =
        b->scattered ? (float *)(void *)b->grads[k->grad_slot].data + inside : b->data + b->offsets[i];
    p->weight.t.data = b->gathered ? b->weights[k->weight_slot].data + inside * bytes
                                   : b->param_data + b->offsets[i] * bytes;
}

assay_status gpu_grad_buffer_alloc(gpu_grad_buffer *b, gpu_arena *arena)
{
    void *data, *params, *received = NULL;
    int64_t largest = 0;
    for (int k = 0; k < b->n_buckets; k++)
        largest = b->buckets[k].length > largest ? b->buckets[k].length : largest;
    ASSAY_TRY(take(arena, b->scattered ? b->length / b->size : b->length, ASSAY_F32, &data));
    ASSAY_TRY(take(arena, b->gathered ? b->length / b->size : b->length, b->act, &params));
    if (b->scattered) {
        ASSAY_TRY(take(arena, largest / b->size, ASSAY_F32, &received));
        ASSAY_TRY(take_slots(arena, b->grads, ASSAY_F32));
    }
    if (b->gathered)
        ASSAY_TRY(take_slots(arena, b->weights, b->act));
    b->data = data;
    b->param_data = params;
    b->received = received;
    for (int64_t i = 0; !arena->counting && i < b->n_params; i++)
        point(b, i);
    return ASSAY_OK;
}

assay_status gpu_grad_buffer_clear(gpu_grad_buffer *b, gpu_model *m)
{
    const cudaStream_t stream = m->run->ctx.stream;
    const int64_t n = b->gathered ? b->length / b->size : b->length, bytes = assay_dtype_bytes(b->act);
    if (n > 0) /* the gaps between parameters travel with their bucket */
        CUDA_TRY(cudaMemsetAsync(b->param_data, 0, (size_t)(n * bytes), stream));
    if (!b->scattered && b->length > 0)
        CUDA_TRY(cudaMemsetAsync(b->data, 0, (size_t)b->length * sizeof(float), stream));
    for (int i = 0; i < GPU_SLOTS; i++) {
        const size_t grads = b->scattered ? (size_t)b->grads[i].length * sizeof(float) : 0;
        const size_t weights = b->gathered ? (size_t)(b->weights[i].length * bytes) : 0;
        if (grads > 0)
            CUDA_TRY(cudaMemsetAsync(b->grads[i].data, GPU_POISON, grads, stream));
        if (weights > 0)
            CUDA_TRY(cudaMemsetAsync(b->weights[i].data, GPU_POISON, weights, stream));
    }
    return ASSAY_OK;
}

assay_status gpu_grads_clear(const gpu_grad_buffer *b, gpu_model *m, int64_t first, int64_t n)
{
    const cudaStream_t stream = m->run->ctx.stream;
    const bool poison = m->run->ctx.simulated || m->run->trace;
    for (int64_t i = first; i < first + n; i++) {
        const gpu_param *p = b->params[i], *last = p;
        if (p->by_product) {
            if (poison && p->count > 0)
                CUDA_TRY(cudaMemsetAsync(p->main_grad.t.data, GPU_POISON, (size_t)p->count * sizeof(float),
                                         stream));
            continue;
        }
        while (i + 1 < first + n && !b->params[i + 1]->by_product) /* one after the other in memory */
            last = b->params[++i];
        const char *begin = p->main_grad.t.data,
                   *end = (const char *)last->main_grad.t.data + (size_t)last->count * sizeof(float);
        if (end > begin)
            CUDA_TRY(cudaMemsetAsync(p->main_grad.t.data, 0, (size_t)(end - begin), stream));
    }
    return ASSAY_OK;
}

assay_status gpu_grad_buffer_zero(gpu_grad_buffer *b, gpu_model *m)
{
    const int64_t part = b->scattered ? b->length / b->size : 0;
    if (part > 0)
        CUDA_TRY(cudaMemsetAsync(b->data, 0, (size_t)part * sizeof(float), m->run->ctx.stream));
    if (!b->scattered)
        ASSAY_TRY(gpu_grads_clear(b, m, 0, b->n_params));
    b->n_ready = 0;
    for (int k = 0; k < b->n_buckets; k++) {
        b->buckets[k].n_pending = b->buckets[k].n_params;
        b->buckets[k].reduced = false;
    }
    for (int64_t i = 0; i < b->n_params; i++) {
        b->params[i]->main_grad.phase = ASSAY_PHASE_BACKWARD;
        b->params[i]->main_grad.microbatch = -1;
    }
    return ASSAY_OK;
}

assay_status gpu_grad_buffer_ready(gpu_grad_buffer *b, const gpu_param *p)
{
    gpu_bucket *k = &b->buckets[p->bucket];
    ASSAY_CHECK(k->n_pending > 0, ASSAY_INTERNAL, "%s: more gradients of its bucket are ready than it has",
                p->spec->name);
    if (--k->n_pending == 0)
        b->ready[b->n_ready++] = p->bucket;
    return ASSAY_OK;
}

void gpu_bucket_part(const gpu_grad_buffer *b, int index, int rank, int64_t *start, int64_t *length)
{
    const gpu_bucket *k = &b->buckets[index];
    *length = k->length / b->size;
    *start = k->start + rank * *length;
}

int64_t gpu_bucket_place(const gpu_grad_buffer *b, int index, bool grad)
{
    int64_t start, length;
    gpu_bucket_part(b, index, b->rank, &start, &length);
    const bool parts = grad ? b->scattered : b->gathered;
    return parts ? b->buckets[index].start / b->size : start;
}

float *gpu_bucket_gradients(const gpu_grad_buffer *b, int index)
{
    const gpu_bucket *k = &b->buckets[index];
    return (float *)(void *)b->grads[k->grad_slot].data + k->in_slot;
}

char *gpu_bucket_weights(const gpu_grad_buffer *b, int index)
{
    const gpu_bucket *k = &b->buckets[index];
    return b->weights[k->weight_slot].data + k->in_slot * assay_dtype_bytes(b->act);
}

assay_status gpu_grad_gather(gpu_grad_buffer *b, gpu_model *m, int index)
{
    int64_t start, length;
    gpu_bucket_part(b, index, b->rank, &start, &length);
    const gpu_comm_call call = {.op = GPU_COMM_ALL_GATHER,
                                .group = b->group,
                                .send = b->data + gpu_bucket_place(b, index, true),
                                .recv = gpu_bucket_gradients(b, index),
                                .count = length,
                                .dtype = ASSAY_F32};
    return gpu_comm_enqueue(&m->run->comm, &call, m->run->ctx.stream);
}

assay_status gpu_start_grad_sync(gpu_grad_buffer *b, gpu_model *m, int index, bool scatter)
{
    gpu_run *run = m->run;
    const gpu_bucket *k = &b->buckets[index];
    gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                          .group = scatter ? b->group : b->whole,
                          .send = b->data + k->start,
                          .recv = b->data + k->start,
                          .count = k->length,
                          .dtype = ASSAY_F32};
    if (b->size * b->copies == 1)
        return ASSAY_OK;
    CUDA_TRY(cudaEventRecord(run->compute_done, run->ctx.stream));
    if (!gpu_fault_switch(run, GPU_SWITCH_UNWAITED_GRADIENTS))
        CUDA_TRY(cudaStreamWaitEvent(run->comm_stream, run->compute_done, 0));
    if (scatter) {
        int64_t start, length;
        gpu_bucket_part(b, index, b->rank, &start, &length);
        call.op = GPU_COMM_REDUCE_SCATTER;
        call.recv = b->data + start;
        call.count = length;
    }
    return gpu_comm_enqueue(&run->comm, &call, run->comm_stream);
}

assay_status gpu_start_copies_sync(gpu_grad_buffer *b, gpu_model *m, int index)
{
    gpu_run *run = m->run;
    int64_t start, length;
    gpu_bucket_part(b, index, b->rank, &start, &length);
    const gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                                .group = b->replicas,
                                .send = b->data + start,
                                .recv = b->data + start,
                                .count = length,
                                .dtype = ASSAY_F32};
    CUDA_TRY(cudaEventRecord(run->compute_done, run->ctx.stream));
    CUDA_TRY(cudaStreamWaitEvent(run->comm_stream, run->compute_done, 0));
    return gpu_comm_enqueue(&run->comm, &call, run->comm_stream);
}

assay_status gpu_finish_grad_sync(gpu_model *m)
{
    gpu_run *run = m->run;
    CUDA_TRY(cudaEventRecord(run->comm_done, run->comm_stream));
    CUDA_TRY(cudaStreamWaitEvent(run->ctx.stream, run->comm_done, 0));
    return ASSAY_OK;
}

static assay_status gather_bucket(gpu_grad_buffer *b, gpu_model *m, int index, bool f32, cudaStream_t stream)
{
    char *base = f32 ? (char *)b->data : b->param_data;
    const assay_dtype dtype = f32 ? ASSAY_F32 : b->act;
    const int64_t bytes = assay_dtype_bytes(dtype);
    int64_t start, length;
    gpu_bucket_part(b, index, b->rank, &start, &length);
    const gpu_comm_call call = {.op = GPU_COMM_ALL_GATHER,
                                .group = b->group,
                                .send = base + start * bytes,
                                .recv = base + b->buckets[index].start * bytes,
                                .count = length,
                                .dtype = dtype};
    return gpu_comm_enqueue(&m->run->comm, &call, stream);
}

assay_status gpu_start_param_sync(gpu_grad_buffer *b, gpu_model *m)
{
    gpu_run *run = m->run;
    CUDA_TRY(cudaEventRecord(run->compute_done, run->ctx.stream));
    CUDA_TRY(cudaStreamWaitEvent(run->comm_stream, run->compute_done, 0));
    for (int i = 0; i < b->n_buckets; i++) {
        gpu_bucket *k = &b->buckets[i];
        ASSAY_TRY(gather_bucket(b, m, i, false, run->comm_stream));
        if (k->synced == NULL)
            CUDA_TRY(cudaEventCreateWithFlags(&k->synced, cudaEventDisableTiming));
        CUDA_TRY(cudaEventRecord(k->synced, run->comm_stream));
        k->waits = true;
    }
    return ASSAY_OK;
}

assay_status gpu_finish_param_sync(gpu_grad_buffer *b, gpu_model *m)
{
    for (int i = 0; i < b->n_buckets; i++) {
        if (b->buckets[i].waits)
            CUDA_TRY(cudaStreamWaitEvent(m->run->ctx.stream, b->buckets[i].synced, 0));
        b->buckets[i].waits = false;
    }
    return ASSAY_OK;
}

assay_status gpu_param_sync(gpu_grad_buffer *b, gpu_model *m, bool f32)
{
    for (int i = 0; b->size > 1 && i < b->n_buckets; i++)
        ASSAY_TRY(gather_bucket(b, m, i, f32, m->run->ctx.stream));
    return ASSAY_OK;
}

/* --- rectangles --------------------------------------------------------------------------------------------- */
typedef struct rectangles {
    int n;
    assay_shard *out;
    int64_t *flat_start;
} rectangles;

/* Cuts [start, start+length) of the box `s`, whose dimensions before `dim` have extent 1. */
static void cut(rectangles *r, const assay_shard *s, int dim, int64_t start, int64_t length, int64_t flat)
{
    if (length == 0 || r->n == GPU_MAX_PIECES)
        return;
    int64_t row = 1;
    for (int d = dim + 1; d < s->ndim; d++)
        row *= s->local_shape[d];
    const int64_t first = start / row, head = start % row;
    if (head != 0 || length < row) { /* a part of one row, then the rest */
        const int64_t n = head + length < row ? length : row - head;
        assay_shard one = *s;
        (void)assay_shard_narrow(&one, dim, first, 1);
        cut(r, &one, dim + 1, head, n, flat);
        cut(r, s, dim, start + n, length - n, flat + n);
        return;
    }
    assay_shard rows = *s;
    (void)assay_shard_narrow(&rows, dim, first, length / row);
    r->out[r->n] = rows;
    r->flat_start[r->n++] = flat;
    const int64_t done = length / row * row;
    cut(r, s, dim, start + done, length - done, flat + done);
}

int gpu_flat_rectangles(const assay_shard *piece, int64_t start, int64_t length, assay_shard *out,
                        int64_t *flat_start)
{
    rectangles r = {.out = out, .flat_start = flat_start};
    cut(&r, piece, 0, start, length, start);
    return r.n;
}
