/* What the pieces of the ranks tell beside the tensor that they should be: copies whose sum or mean it is, or a factor of each
 * rank's own.  Hints for people, proven on every element of the tensor; they change no verdict. */
#include "parity/run/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How far apart two numbers are the same: runs in another order, in single precision at the least. */
static const double CLOSE = 1e-4;

typedef struct pieces {
    const parity_index *x;
    const parity_entry *e;
    const double *expected;
    double factor;  /* what the entry's values are multiplied by */
    double largest; /* |expected| */
} pieces;

static int64_t place_of(const assay_shard *s, int64_t flat)
{
    int64_t local[ASSAY_MAX_DIMS], global = 0;
    parity_unflatten(flat, s->local_shape, s->ndim, local);
    for (int d = 0; d < s->ndim; d++)
        global = global * s->global_shape[d] + assay_shard_global_index(s, d, local[d]);
    return global;
}

static double value_at(const pieces *v, const assay_trace_tensor *t, int64_t i)
{
    return v->factor * parity_decode(t->data, i, t->dtype);
}

static bool is_close(const pieces *v, double found, double expected)
{
    return fabs(found - expected) <= CLOSE * v->largest;
}

/* Whether the ranks that hold copies of piece `first` are the members of one group. */
static bool is_group(const pieces *v, int64_t first, assay_group kind)
{
    const assay_trace_tensor *of = v->e->pieces[first].record;
    const assay_group_shape g = assay_grid_group_shape(&v->x->grid, kind, of->rank);
    int64_t members = 0;
    for (int64_t i = 0; i < v->e->n; i++) {
        const assay_trace_tensor *t = v->e->pieces[i].record;
        if (!parity_same_shard(&t->shard, &of->shard))
            continue;
        if (assay_group_index(&g, t->rank) < 0)
            return false;
        members++;
    }
    return members == g.size;
}

static const char *group_of(const pieces *v, int64_t first)
{
    static const assay_group dense[] = {ASSAY_GROUP_TP,    ASSAY_GROUP_CP,    ASSAY_GROUP_DP,
                                        ASSAY_GROUP_TP_CP, ASSAY_GROUP_DP_CP, ASSAY_GROUP_TP_DP_CP};
    static const assay_group experts[] = {ASSAY_GROUP_EDP, ASSAY_GROUP_ETP};
    const bool expert = strstr(v->e->name, ".experts.") != NULL;
    const assay_group *order = expert ? experts : dense;
    const size_t n = expert ? sizeof experts / sizeof experts[0] : sizeof dense / sizeof dense[0];
    for (size_t k = 0; v->x->has_grid && k < n; k++)
        if (is_group(v, first, order[k]))
            return assay_group_name(order[k]);
    return "the run";
}

/* Copies of one piece: is their sum, their mean, one of them what belongs there? */
typedef struct copies {
    int64_t n, right;
    int first_right, first_wrong; /* ranks */
    bool sum, mean;
} copies;

/* The records of piece `first` into list; 0: an earlier one was asked about with them. */
static int64_t copies_of(const pieces *v, int64_t first, const assay_trace_tensor **list)
{
    const assay_shard *s = &v->e->pieces[first].record->shard;
    int64_t n = 0;
    for (int64_t i = 0; i < v->e->n; i++) {
        if (!parity_same_shard(&v->e->pieces[i].record->shard, s))
            continue;
        if (i < first)
            return 0;
        list[n++] = v->e->pieces[i].record;
    }
    return n;
}

static void weigh(const pieces *v, const assay_trace_tensor *const *list, copies *c)
{
    const assay_shard *s = &list[0]->shard;
    const int64_t count = assay_shard_count(s);
    c->first_right = c->first_wrong = -1;
    c->sum = c->mean = true;
    for (int64_t k = 0; k < count && (c->sum || c->mean); k++) {
        double sum = 0.0;
        const double expected = v->expected[place_of(s, k)];
        for (int64_t i = 0; i < c->n; i++)
            sum += value_at(v, list[i], k);
        c->sum = c->sum && is_close(v, sum, expected);
        c->mean = c->mean && is_close(v, sum / (double)c->n, expected);
    }
    for (int64_t i = 0; i < c->n; i++) {
        bool right = true;
        for (int64_t k = 0; k < count && right; k++)
            right = is_close(v, value_at(v, list[i], k), v->expected[place_of(s, k)]);
        c->right += right;
        int *of = right ? &c->first_right : &c->first_wrong;
        *of = *of < 0 ? list[i]->rank : *of;
    }
}

static bool say_copies(const pieces *v, int64_t first, const assay_trace_tensor **list, char *out,
                       size_t capacity)
{
    copies c = {.n = copies_of(v, first, list)};
    if (c.n < 2)
        return false;
    weigh(v, list, &c);
    if (c.right == c.n)
        return false;
    const char *group = group_of(v, first);
    if (c.right > 0)
        snprintf(out, capacity, "rank %d holds what belongs there, rank %d does not", c.first_right,
                 c.first_wrong);
    else if (c.sum)
        snprintf(
            out, capacity,
            "the %lld ranks of %s hold parts of a sum, which together are what belongs there: not summed "
            "over %s",
            (long long)c.n, group, group);
    else if (c.mean)
        snprintf(
            out, capacity,
            "the %lld ranks of %s hold values of their own, the mean of which belongs there: not averaged "
            "over %s",
            (long long)c.n, group, group);
    else
        return false;
    return true;
}

/* found = ratio * expected, in every element of the piece. */
static bool ratio_of(const pieces *v, const assay_trace_tensor *t, double *ratio)
{
    double fe = 0.0, ee = 0.0;
    const int64_t count = assay_shard_count(&t->shard);
    for (int64_t i = 0; i < count; i++) {
        const double expected = v->expected[place_of(&t->shard, i)];
        fe += expected * value_at(v, t, i);
        ee += expected * expected;
    }
    *ratio = fe / ee;
    for (int64_t i = 0; i < count; i++)
        if (!is_close(v, value_at(v, t, i), *ratio * v->expected[place_of(&t->shard, i)]))
            return false;
    return ee > 0.0 && isfinite(*ratio) && *ratio > 0.0;
}

/* Pieces that do not meet: a factor of each rank's own.  Where the mean of the inverse factors is 1 they are the shares of a
 * whole count that every rank has replaced by its own. */
static bool say_ratios(const pieces *v, char *out, size_t capacity)
{
    double inverse = 0.0, first = 0.0;
    bool differ = false;
    int64_t elements = 0;
    size_t used = 0;
    for (int64_t i = 0; i < v->e->n; i++) {
        const assay_trace_tensor *t = v->e->pieces[i].record;
        double ratio;
        if (t->kind != ASSAY_PIECE_SHARD || !ratio_of(v, t, &ratio))
            return false;
        elements += assay_shard_count(&t->shard);
        inverse += 1.0 / ratio / (double)v->e->n;
        first = i == 0 ? ratio : first;
        differ = differ || fabs(ratio - first) > 1e-3 * first;
        if (i < 4 && used < capacity)
            used += (size_t)snprintf(out + used, capacity - used, "%srank %d holds %.6g times",
                                     i > 0 ? ", " : "", t->rank, ratio);
    }
    if (!differ || elements < 8 || used >= capacity)
        return false;
    snprintf(out + used, capacity - used, " what belongs there%s",
             fabs(inverse - 1.0) <= 1e-3 ? ": each rank divides by its own count in place of all ranks'"
                                         : "");
    return true;
}

bool diff_say_ranks(const parity_index *x, const parity_entry *e, const double *expected, int64_t count,
                    double factor, char *out, size_t capacity)
{
    pieces v = {.x = x, .e = e, .expected = expected, .factor = factor};
    for (int64_t i = 0; i < count; i++)
        v.largest = isfinite(expected[i]) ? fmax(v.largest, fabs(expected[i])) : v.largest;
    if (e->n < 2 || !(v.largest > 0.0))
        return false;
    for (int64_t i = 0; i < e->n; i++)
        if (e->pieces[i].record->kind != ASSAY_PIECE_SHARD || e->pieces[i].record->data == NULL)
            return false;
    const assay_trace_tensor **list = malloc((size_t)e->n * sizeof *list);
    bool said = false;
    for (int64_t i = 0; list != NULL && i < e->n && !said; i++)
        said = say_copies(&v, i, list, out, capacity);
    free((void *)list);
    return said || say_ratios(&v, out, capacity);
}
