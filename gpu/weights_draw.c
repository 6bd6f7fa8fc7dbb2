/* Drawn weights: Philox at global indices, so that no layout and no number of threads can change them. */
#include "core/base/hash.h"
#include "core/base/philox.h"
#include "gpu/model.h"

#include <math.h>
#include <pthread.h>

double gpu_init_std(const assay_param_spec *spec, const assay_model_config *config)
{
    switch (spec->init) {
    case ASSAY_INIT_NORMAL:
        return config->init_method_std;
    case ASSAY_INIT_OUTPUT_NORMAL:
        return config->init_method_std / sqrt(2.0 * (double)config->num_layers);
    case ASSAY_INIT_ONE:
    case ASSAY_INIT_ZERO:
        return config->init_constant_std;
    }
    return 0.0;
}

enum { MOST_THREADS = 64, ELEMENTS_OF_A_THREAD = 1 << 15 };

/* Local elements [from, to) of one piece; out[0] is element `first`. */
typedef struct draw_range {
    const assay_shard *shard;
    uint64_t seed, stream;
    double scale, middle;
    int64_t from, to, first;
    float *out;
} draw_range;

int64_t gpu_shard_row_start(const assay_shard *s, int64_t row)
{
    int64_t index[ASSAY_MAX_DIMS], flat = 0;
    for (int d = s->ndim - 2; d >= 0; d--) {
        index[d] = assay_shard_global_index(s, d, row % s->local_shape[d]);
        row /= s->local_shape[d];
    }
    for (int d = 0; d < s->ndim - 1; d++)
        flat = flat * s->global_shape[d] + index[d];
    return flat * s->global_shape[s->ndim - 1];
}

static void draw_row(const draw_range *r, int64_t row, int64_t from, int64_t to)
{
    const assay_shard *s = r->shard;
    const int last = s->ndim - 1;
    const int64_t global = gpu_shard_row_start(s, row);
    const int64_t place = row * s->local_shape[last] - r->first; /* of column 0 */
    int64_t begin = 0; /* local column at which the segment begins */
    for (int k = 0; k < s->n_segments[last]; k++) {
        const assay_segment *g = &s->segments[last][k];
        const int64_t a = from > begin ? from : begin, end = begin + g->length, b = to < end ? to : end;
        for (int64_t i = a; i < b; i++)
            r->out[place + i] =
                (float)(r->middle + (double)assay_philox_normal4(r->seed, r->stream,
                                                                 (uint64_t)(global + g->start + i - begin)) *
                                        r->scale);
        begin = end;
    }
}

static void *draw_elements(void *user)
{
    const draw_range *r = user;
    const int64_t columns = r->shard->local_shape[r->shard->ndim - 1];
    for (int64_t i = r->from; i < r->to;) {
        const int64_t row = i / columns, left = r->to - row * columns;
        draw_row(r, row, i - row * columns, left < columns ? left : columns);
        i = (row + 1) * columns;
    }
    return NULL;
}

void gpu_draw_part(const assay_param_spec *spec, const assay_shard *s, double std, uint64_t seed, int threads,
                   int64_t first, int64_t n, float *out)
{
    const int64_t useful = n / ELEMENTS_OF_A_THREAD;
    draw_range range[MOST_THREADS];
    pthread_t thread[MOST_THREADS];
    bool started[MOST_THREADS] = {false};
    int64_t many = threads < MOST_THREADS ? threads : MOST_THREADS;
    many = useful < many ? useful : many;
    many = many < 1 ? 1 : many;
    for (int64_t k = 0; k < many; k++)
        range[k] = (draw_range){.shard = s,
                                .seed = seed,
                                .stream = assay_name_hash(spec->name),
                                .scale = std * ASSAY_PHILOX_UNIT,
                                .middle = spec->init == ASSAY_INIT_ONE ? 1.0 : 0.0,
                                .from = first + n * k / many,
                                .to = first + n * (k + 1) / many,
                                .first = first,
                                .out = out};
    for (int64_t k = 1; k < many; k++)
        started[k] = pthread_create(&thread[k], NULL, draw_elements, &range[k]) == 0;
    for (int64_t k = 0; k < many; k++) /* its own part, and those that no thread could be made for */
        if (!started[k])
            (void)draw_elements(&range[k]);
    for (int64_t k = 1; k < many; k++)
        if (started[k])
            (void)pthread_join(thread[k], NULL);
}
