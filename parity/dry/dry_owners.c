/* Dry run: every element of a parameter, of its gradient and of its optimizer states has exactly the owners that it should.
 *
 * Every rank is asked for its piece of every parameter that it holds.  What a dimension is cut into is a short list of
 * distinct pieces (found by their segments, not by the rank's coordinates), so that one pass over the ranks counts the
 * holders of every rectangle. */
#include "parity/dry/dry.h"

#include <stdlib.h>
#include <string.h>

/* Distinct pieces of one dimension. */
typedef struct dimension {
    int n, capacity;
    struct piece {
        int n_segments;
        const assay_segment *segments;
    } * pieces;
} dimension;

/* What is known of one parameter. */
typedef struct owners {
    dry *d;
    const assay_param_spec *p;
    int64_t index; /* in the table */
    dimension dim[ASSAY_MAX_DIMS];
    int64_t n_tuples, capacity; /* rectangles: one piece of each dimension */
    int *holders;               /* [stages][n_tuples] */
    int *counted;               /* [n_tuples]: ranks that count it in the norm */
    int *tuple_of_color;        /* [world]: rectangle that the reduce group holds, -1 */
    int *tuple_of_rank;         /* [world]: of every rank, -1: none */
} owners;

/* A planted owner: rank 0 of the holders is given its neighbour's piece. */
static assay_status shard_of(const owners *w, int rank, assay_shard *out)
{
    const char *planted = dry_fault(w->d, "owner");
    if (planted != NULL && strcmp(planted, w->p->name) == 0 && rank % w->d->stage_ranks == 0)
        rank++;
    return assay_param_shard(w->p, &w->d->grid, rank % w->d->grid.world, out);
}

static bool equal_piece(const struct piece *a, const assay_shard *s, int dim)
{
    if (a->n_segments != s->n_segments[dim])
        return false;
    for (int i = 0; i < a->n_segments; i++)
        if (a->segments[i].start != s->segments[dim][i].start ||
            a->segments[i].length != s->segments[dim][i].length)
            return false;
    return true;
}

/* Number of the piece; the coordinate along the axis is the first guess. */
static int piece_number(dimension *m, const assay_shard *s, int dim, int guess)
{
    if (guess < m->n && equal_piece(&m->pieces[guess], s, dim))
        return guess;
    for (int i = 0; i < m->n; i++)
        if (equal_piece(&m->pieces[i], s, dim))
            return i;
    if (m->n == m->capacity) {
        const int more = m->capacity > 0 ? 2 * m->capacity : 16;
        struct piece *grown = realloc(m->pieces, (size_t)more * sizeof *grown);
        if (grown == NULL)
            return -1;
        m->pieces = grown;
        m->capacity = more;
    }
    struct piece *p = &m->pieces[m->n];
    p->n_segments = s->n_segments[dim];
    p->segments = s->segments[dim];
    return m->n++;
}

static int by_start(const void *a, const void *b)
{
    const assay_segment *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Query groups fewer than tp ranks: each row of a key and value head is in the pieces of a kv group, each other row in one. */
static assay_status check_shared_tiles(owners *w)
{
    const assay_param_spec *p = w->p;
    const dimension *m = &w->dim[0];
    const int64_t rows = p->shape[0], block = rows / p->query_groups;
    const int sharing = w->d->grid.size[ASSAY_AXIS_KV];
    int *holders = calloc((size_t)rows + 1, sizeof *holders);
    int64_t wrong = -1;
    ASSAY_CHECK(holders != NULL, ASSAY_OUT_OF_MEMORY, "%s", p->name);
    for (int i = 0; i < m->n; i++)
        for (int k = 0; k < m->pieces[i].n_segments; k++)
            for (int64_t r = 0; r < m->pieces[i].segments[k].length; r++)
                holders[m->pieces[i].segments[k].start + r]++;
    for (int64_t r = 0; r < rows && wrong < 0; r++)
        if (holders[r] != (r % block >= block - p->kv_rows ? sharing : 1))
            wrong = r;
    if (wrong < 0)
        dry_holds(w->d, DRY_OWNERS, 1);
    else
        dry_fails(w->d, DRY_OWNERS, "%s: row %lld is in %d pieces, expected %d", p->name, (long long)wrong,
                  holders[wrong], wrong % block >= block - p->kv_rows ? sharing : 1);
    free(holders);
    return ASSAY_OK;
}

/* The pieces of a dimension tile it. */
static assay_status check_tiles(owners *w, int dim)
{
    const dimension *m = &w->dim[dim];
    if (dim == 0 && w->p->query_groups > 0 && w->d->grid.size[ASSAY_AXIS_KV] > 1)
        return check_shared_tiles(w);
    assay_segment *all = calloc((size_t)m->n * ASSAY_MAX_SEGMENTS + 1, sizeof *all);
    size_t n = 0;
    int64_t next = 0;
    ASSAY_CHECK(all != NULL, ASSAY_OUT_OF_MEMORY, "%s", w->p->name);
    for (int i = 0; i < m->n; i++)
        for (int k = 0; k < m->pieces[i].n_segments; k++)
            if (m->pieces[i].segments[k].length > 0)
                all[n++] = m->pieces[i].segments[k];
    qsort(all, n, sizeof *all, by_start);
    for (size_t i = 0; i < n; i++) {
        if (all[i].start != next) {
            dry_fails(w->d, DRY_OWNERS, "%s: dimension %d: elements from %lld on have %s owner", w->p->name,
                      dim, (long long)(all[i].start < next ? all[i].start : next),
                      all[i].start < next ? "more than one" : "no");
            free(all);
            return ASSAY_OK;
        }
        next += all[i].length;
    }
    free(all);
    if (next == w->p->shape[dim])
        dry_holds(w->d, DRY_OWNERS, 1);
    else
        dry_fails(w->d, DRY_OWNERS, "%s: dimension %d: elements from %lld on have no owner", w->p->name, dim,
                  (long long)next);
    return ASSAY_OK;
}

/* --- one pass over the ranks -------------------------------------------------------------------------------- */

/* Rectangle of a rank as a mixed-radix number of the axes' sizes; -1: it holds none, or an empty one. */
static assay_status rectangle(owners *w, int rank, int64_t *count, int *out)
{
    const assay_param_spec *p = w->p;
    assay_shard s;
    *out = -1;
    ASSAY_TRY(shard_of(w, rank, &s));
    *count = assay_shard_count(&s);
    if (*count == 0)
        return ASSAY_OK;
    int64_t at = 0;
    for (int k = 0; k < p->ndim; k++) {
        const int number = piece_number(&w->dim[k], &s, k, assay_grid_coord(&w->d->grid, p->axis[k], rank));
        ASSAY_CHECK(number >= 0, ASSAY_OUT_OF_MEMORY, "%s", p->name);
        const int size = w->d->grid.size[p->axis[k]];
        if (number >= size) {
            dry_fails(w->d, DRY_OWNERS, "%s: dimension %d: rank %d holds a piece beside the %d of %s",
                      p->name, k, rank, size, assay_axis_name(p->axis[k]));
            return ASSAY_OK;
        }
        at = at * size + number;
    }
    *out = (int)at;
    return ASSAY_OK;
}

static assay_status visit(owners *w, int rank)
{
    dry *d = w->d;
    const assay_param_spec *p = w->p;
    dry_rank *mine = &d->ranks[rank];
    int64_t count;
    int at;
    w->tuple_of_rank[rank] = -1;
    if (!assay_param_on_rank(p, &d->grid, &d->config, rank))
        return ASSAY_OK;
    ASSAY_TRY(rectangle(w, rank, &count, &at));
    *(!p->trained ? &mine->buffers : p->is_expert ? &mine->experts : &mine->dense) += count;
    if (at < 0)
        return ASSAY_OK;
    w->tuple_of_rank[rank] = at;
    w->holders[(int64_t)(rank / d->stage_ranks) * w->n_tuples + at]++;
    if (!assay_param_needs_grad(p))
        return ASSAY_OK;
    /* Of a piece that a kv group shares one rank counts all, the others nothing. */
    w->counted[at] += count > 0 ? assay_param_counted(p, &d->grid, &d->config, rank, count) > 0
                                : assay_param_counts_in_norm(p, &d->grid, &d->config, rank);
    const assay_group_shape group = assay_grid_group_shape(&d->grid, assay_param_reduce_group(p), rank);
    int *seen = &w->tuple_of_color[group.start];
    if (*seen >= 0 && *seen != at)
        dry_fails(d, DRY_OWNERS, "%s: rank %d holds another piece than the other ranks of its %s group %d",
                  p->name, rank, assay_group_name(assay_param_reduce_group(p)), group.start);
    *seen = at;
    int64_t first = 0, length = count;
    if (d->grid.p.zero_stage > 0) {
        const assay_group_shape shards =
            assay_grid_group_shape(&d->grid, assay_param_shard_group(p, &d->grid), rank);
        assay_param_owned_range(p, w->index, count, shards.size, assay_group_index(&shards, rank), &first,
                                &length);
    }
    mine->owned += length;
    return ASSAY_OK;
}

/* --- claims ------------------------------------------------------------------------------------------------- */

/* Holders of every rectangle: the ranks of a stage, less those that the cut tells apart; on one stage, on two when it is
 * tied. */
static void check_holders(owners *w, int *replicas)
{
    dry *d = w->d;
    const assay_param_spec *p = w->p;
    int cut = 1, wrong = 0, stages = 0;
    for (int k = 0; k < p->ndim; k++)
        cut *= d->grid.size[p->axis[k]];
    *replicas = d->stage_ranks / cut;
    for (int s = 0; s < d->stages; s++) {
        int64_t present = 0, total = 1;
        for (int k = 0; k < p->ndim; k++)
            total *= w->dim[k].n;
        for (int64_t t = 0; t < w->n_tuples; t++) {
            const int n = w->holders[s * w->n_tuples + t];
            present += n > 0;
            if (n == 0 || n == *replicas)
                continue;
            if (wrong++ == 0)
                dry_fails(d, DRY_OWNERS, "%s: a piece has %d owners on stage %d, expected %d", p->name, n, s,
                          *replicas);
        }
        if (present > 0 && present != total && wrong++ == 0)
            dry_fails(d, DRY_OWNERS, "%s: %lld of %lld pieces have an owner on stage %d", p->name,
                      (long long)present, (long long)total, s);
        stages += present > 0;
    }
    const bool tied = p->layer < 0 && p->on_first_stage && p->on_last_stage && d->stages > 1;
    if (stages != (tied ? 2 : 1))
        dry_fails(d, DRY_OWNERS, "%s: on %d stages, expected %d", p->name, stages, tied ? 2 : 1);
    else if (wrong == 0)
        dry_holds(d, DRY_OWNERS, 1);
}

/* A gradient is summed over its reduce group: what holds a piece besides is a copy along axes that do not cut it.  It
 * counts once in the norm, and the parts of a distributed optimizer tile the piece. */
static void check_gradient(owners *w, int replicas)
{
    dry *d = w->d;
    const assay_param_spec *p = w->p;
    static const assay_axis dense[] = {ASSAY_AXIS_TP}, expert[] = {ASSAY_AXIS_ETP, ASSAY_AXIS_EP};
    const assay_axis *axes = p->is_expert ? expert : dense;
    const int n_axes = p->is_expert ? 2 : 1;
    int copies = 1;
    for (int i = 0; i < n_axes; i++) {
        bool cut = false, by_key_heads = false; /* which neighbours in tp may share */
        for (int k = 0; k < p->ndim; k++) {
            cut = cut || p->axis[k] == axes[i];
            by_key_heads = by_key_heads || (axes[i] == ASSAY_AXIS_TP && p->axis[k] == ASSAY_AXIS_KV_HEAD);
        }
        copies *= cut ? 1 : d->grid.size[by_key_heads ? ASSAY_AXIS_KV : axes[i]];
    }
    const int members = assay_grid_group_shape(&d->grid, assay_param_reduce_group(p), 0).size;
    if (replicas == copies * members)
        dry_holds(d, DRY_OWNERS, 1);
    else
        dry_fails(d, DRY_OWNERS,
                  "%s: %d ranks hold a piece, but its gradient is summed over %d of %s in %d copies", p->name,
                  replicas, members, assay_group_name(assay_param_reduce_group(p)), copies);
    const int shards = assay_grid_group_shape(&d->grid, assay_param_shard_group(p, &d->grid), 0).size;
    const int instances = d->grid.p.num_distributed_optimizer_instances;
    if (shards * instances != members ||
        (instances > 1 &&
         assay_grid_group_shape(&d->grid, assay_param_replica_group(p), 0).size != instances))
        dry_fails(d, DRY_OWNERS,
                  "%s: %d ranks share one copy of the states and there are %d copies on %d ranks", p->name,
                  shards, instances, members);
    for (int64_t t = 0; t < w->n_tuples; t++) {
        int held = 0;
        for (int s = 0; s < d->stages; s++)
            held += w->holders[s * w->n_tuples + t];
        if (held > 0 && w->counted[t] != 1) {
            dry_fails(d, DRY_OWNERS, "%s: a piece counts %d times in the gradient norm, expected once",
                      p->name, w->counted[t]);
            return;
        }
    }
    dry_holds(d, DRY_OWNERS, 1);
}

/* Parts of pieces of `count` elements. */
static void check_parts(owners *w, int64_t count)
{
    const int members =
        assay_grid_group_shape(&w->d->grid, assay_param_shard_group(w->p, &w->d->grid), 0).size;
    int64_t next = 0;
    for (int m = 0; m < members; m++) {
        int64_t first, length;
        assay_param_owned_range(w->p, w->index, count, members, m, &first, &length);
        if (length > 0 && first != next) {
            dry_fails(w->d, DRY_OWNERS, "%s: optimizer states from element %lld on have %s owner", w->p->name,
                      (long long)(first < next ? first : next), first < next ? "more than one" : "no");
            return;
        }
        next += length;
    }
    if (next == count)
        dry_holds(w->d, DRY_OWNERS, 1);
    else
        dry_fails(w->d, DRY_OWNERS, "%s: optimizer states of %lld of %lld elements have an owner", w->p->name,
                  (long long)next, (long long)count);
}

/* Sizes of pieces differ by a row where a cut is uneven: each size once. */
static void check_all_parts(owners *w)
{
    int64_t seen[4] = {-1, -1, -1, -1};
    int n = 0;
    for (int r = 0; r < w->d->grid.world; r++) {
        assay_shard s;
        if (w->tuple_of_rank[r] < 0 || assay_param_shard(w->p, &w->d->grid, r, &s) != ASSAY_OK)
            continue;
        const int64_t count = assay_shard_count(&s);
        bool known = false;
        for (int i = 0; i < n; i++)
            known = known || seen[i] == count;
        if (known)
            continue;
        check_parts(w, count);
        if (n < 4)
            seen[n++] = count;
    }
}

static assay_status check_param(owners *w)
{
    dry *d = w->d;
    int64_t n = 1;
    int replicas;
    for (int k = 0; k < w->p->ndim; k++) {
        n *= d->grid.size[w->p->axis[k]];
        w->dim[k].n = 0;
    }
    if (n > w->capacity) {
        free(w->holders);
        free(w->counted);
        w->holders = calloc((size_t)n * (size_t)d->stages, sizeof *w->holders);
        w->counted = calloc((size_t)n, sizeof *w->counted);
        w->capacity = 0;
        ASSAY_CHECK(w->holders && w->counted, ASSAY_OUT_OF_MEMORY, "%s: %lld pieces", w->p->name,
                    (long long)n);
        w->capacity = n;
    }
    w->n_tuples = n;
    memset(w->holders, 0, (size_t)n * (size_t)d->stages * sizeof *w->holders);
    memset(w->counted, 0, (size_t)n * sizeof *w->counted);
    for (int r = 0; r < d->grid.world; r++)
        w->tuple_of_color[r] = -1;
    for (int r = 0; r < d->grid.world; r++)
        ASSAY_TRY(visit(w, r));
    for (int k = 0; k < w->p->ndim; k++)
        ASSAY_TRY(check_tiles(w, k));
    check_holders(w, &replicas);
    if (!assay_param_needs_grad(w->p))
        return ASSAY_OK;
    check_gradient(w, replicas);
    if (d->grid.p.zero_stage > 0)
        check_all_parts(w);
    return ASSAY_OK;
}

assay_status dry_check_owners(dry *d)
{
    const size_t world = (size_t)d->grid.world;
    owners w = {.d = d};
    assay_status st = ASSAY_OK;
    w.tuple_of_color = calloc(world, sizeof *w.tuple_of_color);
    w.tuple_of_rank = calloc(world, sizeof *w.tuple_of_rank);
    ASSAY_CHECK_GOTO(w.tuple_of_color && w.tuple_of_rank, ASSAY_OUT_OF_MEMORY, st, done, "owners");
    for (int64_t i = 0; i < d->spec->n_params && st == ASSAY_OK; i++) {
        w.p = &d->spec->params[i];
        w.index = i;
        st = check_param(&w);
    }
done:
    for (int k = 0; k < ASSAY_MAX_DIMS; k++)
        free(w.dim[k].pieces);
    free(w.holders);
    free(w.counted);
    free(w.tuple_of_color);
    free(w.tuple_of_rank);
    return st;
}
