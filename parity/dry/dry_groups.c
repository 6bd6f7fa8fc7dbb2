/* Dry run: every kind of group partitions the ranks, and the batch is dealt out once. */
#include "core/model/sequence.h"
#include "parity/dry/dry.h"

#include <stdlib.h>
#include <string.h>

/* A planted group: the last rank names the members of the first one's. */
static assay_group_shape shape_of(const dry *d, assay_group kind, int rank)
{
    const char *planted = dry_fault(d, "group");
    if (planted != NULL && strcmp(planted, assay_group_name(kind)) == 0 && rank == d->grid.world - 1)
        rank = 0;
    return assay_grid_group_shape(&d->grid, kind, rank);
}

static bool same_shape(const assay_group_shape *a, const assay_group_shape *b)
{
    if (a->start != b->start || a->size != b->size || a->n_levels != b->n_levels)
        return false;
    for (int l = 0; l < a->n_levels; l++)
        if (a->level[l].stride != b->level[l].stride || a->level[l].count != b->level[l].count)
            return false;
    return true;
}

/* A rank is a member of the group that it names, and nobody names another group by the same number; as many ranks name a
 * group as it has members, so that every rank is in exactly one. */
static void check_kind(dry *d, assay_group kind, assay_group_shape *first, int *named)
{
    const char *name = assay_group_name(kind);
    const int before = d->n_findings;
    memset(named, 0, (size_t)d->grid.world * sizeof *named);
    for (int r = 0; r < d->grid.world; r++) {
        const assay_group_shape s = shape_of(d, kind, r);
        const int pp = assay_grid_coord(&d->grid, ASSAY_AXIS_PP, r);
        if (s.size == 0 && kind == ASSAY_GROUP_EMBEDDING && pp != 0 && pp != d->stages - 1)
            continue;
        const int index = assay_group_index(&s, r);
        if (s.start < 0 || s.start >= d->grid.world || index < 0 || assay_group_member(&s, index) != r ||
            assay_group_member(&s, s.size - 1) >= d->grid.world) {
            dry_fails(d, DRY_GROUPS,
                      "%s: rank %d is no member of the group that it names (number %d, %d ranks)", name, r,
                      s.start, s.size);
            continue;
        }
        if (named[s.start]++ == 0)
            first[s.start] = s;
        else if (!same_shape(&first[s.start], &s))
            dry_fails(d, DRY_GROUPS, "%s: rank %d names other members of group %d than an earlier rank", name,
                      r, s.start);
    }
    for (int r = 0; r < d->grid.world; r++)
        if (named[r] > 0 && named[r] != first[r].size)
            dry_fails(d, DRY_GROUPS, "%s: group %d has %d ranks, but %d name it", name, r, first[r].size,
                      named[r]);
        else if (named[r] > 0)
            dry_holds(d, DRY_GROUPS, 1);
    if (d->n_findings == before)
        dry_holds(d, DRY_GROUPS, 1);
}

assay_status dry_check_groups(dry *d)
{
    const size_t n = (size_t)d->grid.world;
    assay_group_shape *first = calloc(n, sizeof *first);
    int *named = calloc(n, sizeof *named);
    const bool have = first != NULL && named != NULL;
    for (int k = 0; have && k < ASSAY_GROUP_COUNT; k++)
        check_kind(d, (assay_group)k, first, named);
    free(first);
    free(named);
    ASSAY_CHECK(have, ASSAY_OUT_OF_MEMORY, "groups of %zu ranks", n);
    return ASSAY_OK;
}

/* --- data --------------------------------------------------------------------------------------------------- */

static void check_shares(dry *d, const assay_batch_share *share, int dp, int64_t *next)
{
    if (share->rows_split || share->first_row != 0 || share->n_rows != d->o.micro_batch_size ||
        share->first_microbatch != *next)
        dry_fails(d, DRY_DATA, "dp rank %d takes microbatches from %lld on, expected from %lld on", dp,
                  (long long)share->first_microbatch, (long long)*next);
    else
        dry_holds(d, DRY_DATA, 1);
    *next = share->first_microbatch + share->n_microbatches;
}

static int by_start(const void *a, const void *b)
{
    const assay_segment *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* The pieces of the sequence of all cp ranks (and in each of all tp ranks) tile the positions. */
static assay_status check_sequence(dry *d, bool shard)
{
    const int cp = d->grid.size[ASSAY_AXIS_CP], tp = shard ? d->grid.size[ASSAY_AXIS_TP] : 1;
    const size_t room = (size_t)cp * (size_t)tp * ASSAY_MAX_SEGMENTS;
    assay_segment *all = calloc(room, sizeof *all);
    size_t n = 0;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(all != NULL, ASSAY_OUT_OF_MEMORY, "%zu segments", room);
    for (int c = 0; c < cp && st == ASSAY_OK; c++)
        for (int t = 0; t < tp && st == ASSAY_OK; t++) {
            assay_sequence_map map;
            st = assay_sequence_map_make(&d->grid, assay_grid_rank(&d->grid, t, c, 0, 0), d->o.seq_length,
                                         &map);
            const assay_sequence *q = shard ? &map.shard : &map.region;
            for (int i = 0; st == ASSAY_OK && i < q->n_segments; i++)
                if (q->segments[i].length > 0)
                    all[n++] = q->segments[i];
        }
    if (st == ASSAY_OK) {
        int64_t next = 0;
        qsort(all, n, sizeof *all, by_start);
        for (size_t i = 0; i < n && next >= 0; i++)
            next = all[i].start == next ? next + all[i].length : -1;
        if (next == d->o.seq_length)
            dry_holds(d, DRY_DATA, cp * tp);
        else
            dry_fails(d, DRY_DATA, "the pieces of cp%s do not tile the %lld positions",
                      shard ? " and tp" : "", (long long)d->o.seq_length);
    }
    free(all);
    return st;
}

assay_status dry_check_data(dry *d)
{
    const int dp = d->grid.size[ASSAY_AXIS_DP];
    const int64_t microbatches = d->o.num_microbatches * dp;
    int64_t next = 0;
    for (int r = 0; r < dp; r++) {
        assay_batch_share share;
        ASSAY_TRY(assay_batch_share_make(false, microbatches, d->o.micro_batch_size, dp, r, &share));
        check_shares(d, &share, r, &next);
    }
    if (next == microbatches)
        dry_holds(d, DRY_DATA, 1);
    else
        dry_fails(d, DRY_DATA, "dp ranks take %lld of %lld microbatches", (long long)next,
                  (long long)microbatches);
    ASSAY_TRY(check_sequence(d, false));
    return d->grid.p.sequence_parallel ? check_sequence(d, true) : ASSAY_OK;
}
