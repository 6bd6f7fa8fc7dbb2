/* The sequence map against its closed form: zig-zag chunks over cp, then pieces over tp. */
#include "core/model/sequence.h"
#include "tests/support/core.h"

static assay_grid grid_of(const char *layout)
{
    assay_parallel_config p;
    assay_grid g;
    memset(&g, 0, sizeof g);
    expect_ok(assay_layout_parse(layout, &p));
    expect_ok(assay_grid_make(&p, &g));
    return g;
}

static const char *const layouts[] = {"1",           "dp3",         "tp2",        "tp3,sp",
                                      "cp2",         "cp3,dp2",     "tp2,sp,cp2", "tp4,sp,cp3,pp2",
                                      "cp8,ep4,dp2", "tp2,cp4,ep8", "cp64",       "tp2,sp,cp33"};
static const int64_t lengths[] = {0, 1, 2, 3, 5, 7, 8, 16, 31, 97, 128};
#define COUNT(a) (sizeof(a) / sizeof *(a))

Test(core_sequence, known_pieces)
{
    static const struct {
        const char *layout;
        int rank;
        int64_t s;
        int n_region, n_shard;
        assay_segment region[2], shard[2];
        int64_t shard_first;
    } rows[] = {
        {"1", 0, 7, 1, 1, {{0, 7}}, {{0, 7}}, 0},
        {"tp2,sp", 1, 7, 1, 1, {{0, 7}}, {{4, 3}}, 4},
        /* the example of docs/TRACE.md */
        {"cp2", 0, 16, 2, 2, {{0, 4}, {12, 4}}, {{0, 4}, {12, 4}}, 0},
        {"cp2", 1, 16, 1, 1, {{4, 8}}, {{4, 8}}, 0}, /* its two chunks touch */
        {"tp2,sp,cp2", 0, 16, 2, 1, {{0, 4}, {12, 4}}, {{0, 4}}, 0},
        {"tp2,sp,cp2", 1, 16, 2, 1, {{0, 4}, {12, 4}}, {{12, 4}}, 4},
        {"tp3,sp,cp2", 1, 16, 2, 2, {{0, 4}, {12, 4}}, {{3, 1}, {12, 2}}, 3},
        {"cp2", 0, 3, 1, 1, {{0, 1}}, {{0, 1}}, 0}, /* the last of four chunks is empty */
        {"cp4", 3, 2, 0, 0, {{0, 0}}, {{0, 0}}, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const assay_grid g = grid_of(rows[i].layout);
        assay_sequence_map m;
        expect_ok(assay_sequence_map_make(&g, rows[i].rank, rows[i].s, &m));
        cr_assert_eq(m.region.n_segments, rows[i].n_region, "row %zu", i);
        cr_assert_eq(m.shard.n_segments, rows[i].n_shard, "row %zu", i);
        cr_expect_arr_eq(m.region.segments, rows[i].region, (size_t)rows[i].n_region * sizeof(assay_segment),
                         "row %zu", i);
        cr_expect_arr_eq(m.shard.segments, rows[i].shard, (size_t)rows[i].n_shard * sizeof(assay_segment),
                         "row %zu", i);
        cr_expect_eq(m.shard_first, rows[i].shard_first, "row %zu", i);
    }
}

/* Position p lies in chunk j of 2*CP, which belongs to cp rank min(j, 2*CP-1-j): the ranks of a (tp) x (cp) group
 * hold every position exactly once, regions once for each tp rank. */
Test(core_sequence, pieces_tile_the_sequence)
{
    for (size_t l = 0; l < COUNT(layouts); l++) {
        const assay_grid g = grid_of(layouts[l]);
        const int cp = g.size[ASSAY_AXIS_CP], tp = g.size[ASSAY_AXIS_TP];
        for (size_t k = 0; k < COUNT(lengths); k++) {
            const int64_t s = lengths[k];
            const assay_group_shape group = assay_grid_group_shape(&g, ASSAY_GROUP_TP_CP, g.world - 1);
            for (int64_t p = 0; p < s; p++) {
                int regions = 0, shards = 0;
                for (int i = 0; i < group.size; i++) {
                    const int rank = assay_group_member(&group, i);
                    assay_sequence_map m;
                    expect_ok(assay_sequence_map_make(&g, rank, s, &m));
                    const int64_t row = assay_sequence_row(&m.region, p);
                    shards += assay_sequence_row(&m.shard, p) >= 0;
                    if (row < 0)
                        continue;
                    regions++;
                    cr_assert_eq(assay_sequence_position(&m.region, row), p);
                    int chunk = 0;
                    for (int64_t start, length; chunk < 2 * cp; chunk++) {
                        assay_split(s, 2 * cp, chunk, &start, &length);
                        if (p >= start && p < start + length)
                            break;
                    }
                    const int owner = chunk < cp ? chunk : 2 * cp - 1 - chunk;
                    cr_assert_eq(assay_grid_coord(&g, ASSAY_AXIS_CP, rank), owner, "%s s=%ld p=%ld",
                                 layouts[l], (long)s, (long)p);
                }
                cr_assert_eq(regions, tp, "%s s=%ld p=%ld", layouts[l], (long)s, (long)p);
                cr_assert_eq(shards, 1, "%s s=%ld p=%ld", layouts[l], (long)s, (long)p);
            }
        }
    }
}

/* Rows and positions are inverse, ascend, and the shard is the rows [shard_first, +length) of the region. */
Test(core_sequence, shards_are_rows_of_the_region)
{
    for (size_t l = 0; l < COUNT(layouts); l++) {
        const assay_grid g = grid_of(layouts[l]);
        for (size_t k = 0; k < COUNT(lengths); k++)
            for (int rank = 0; rank < g.world; rank++) {
                assay_sequence_map m;
                assay_shard shard;
                const int64_t shape[2] = {lengths[k], 3};
                expect_ok(assay_sequence_map_make(&g, rank, lengths[k], &m));
                cr_assert_eq(assay_sequence_position(&m.region, m.region.length), -1);
                cr_assert_eq(assay_sequence_position(&m.region, -1), -1);
                cr_assert_eq(assay_sequence_row(&m.region, lengths[k]), -1);
                for (int64_t i = 0; i < m.region.length; i++) {
                    const int64_t p = assay_sequence_position(&m.region, i);
                    cr_assert_eq(assay_sequence_row(&m.region, p), i);
                    cr_assert(i == 0 || p > assay_sequence_position(&m.region, i - 1));
                }
                for (int64_t i = 0; i < m.shard.length; i++)
                    cr_assert_eq(assay_sequence_position(&m.shard, i),
                                 assay_sequence_position(&m.region, m.shard_first + i));
                assay_shard_whole(&shard, shape, 2);
                assay_sequence_place(&m.shard, lengths[k], &shard, 0);
                expect_ok(assay_shard_check(&shard, "sequence"));
                for (int64_t i = 0; i < m.shard.length; i++)
                    cr_assert_eq(assay_shard_global_index(&shard, 0, i),
                                 assay_sequence_position(&m.shard, i));
            }
    }
}

/* Under a causal mask position p costs p + 1 keys: zig-zag pieces of equal chunks cost the same on every rank. */
Test(core_sequence, zig_zag_balances_a_causal_mask)
{
    const assay_grid g = grid_of("cp4");
    int64_t cost[4];
    for (int rank = 0; rank < 4; rank++) {
        assay_sequence_map m;
        cost[rank] = 0;
        expect_ok(assay_sequence_map_make(&g, rank, 64, &m));
        for (int64_t i = 0; i < m.region.length; i++)
            cost[rank] += assay_sequence_position(&m.region, i) + 1;
        cr_expect_eq(cost[rank], cost[0]);
    }
}

/* The regions of the cp ranks one after the other; what they have is what each map says. */
Test(core_sequence, gathered_regions_follow_each_other)
{
    for (size_t l = 0; l < COUNT(layouts); l++) {
        const assay_grid g = grid_of(layouts[l]);
        const int cp = g.size[ASSAY_AXIS_CP];
        for (size_t k = 0; k < COUNT(lengths); k++) {
            assay_sequence all;
            int64_t before = 0;
            expect_ok(assay_sequence_gathered(&g, lengths[k], &all));
            cr_assert_eq(all.length, lengths[k]);
            cr_assert_leq(all.n_segments, 2 * cp - 1);
            for (int i = 0; i < cp; i++) {
                assay_sequence_map m;
                expect_ok(assay_sequence_map_make(&g, assay_grid_rank(&g, 0, i, 0, 0), lengths[k], &m));
                cr_assert_eq(m.region.length, assay_sequence_region_length(&g, lengths[k], i));
                for (int64_t s = 0; s < m.region.length; s++)
                    cr_assert_eq(assay_sequence_position(&all, before + s),
                                 assay_sequence_position(&m.region, s), "%s s=%ld", layouts[l],
                                 (long)lengths[k]);
                before += m.region.length;
            }
        }
    }
    const assay_grid wide = grid_of("cp129");
    assay_sequence out;
    expect_error(assay_sequence_gathered(&wide, 64, &out), ASSAY_UNSUPPORTED, "cp129: 128 ranks at most");
}

Test(core_sequence, bad_arguments_are_named)
{
    const assay_grid g = grid_of("cp2");
    assay_sequence_map m;
    expect_error(assay_sequence_map_make(&g, 2, 8, &m), ASSAY_INVALID_ARGUMENT, "rank 2 of a world of 2");
    expect_error(assay_sequence_map_make(&g, 0, -1, &m), ASSAY_INVALID_ARGUMENT, "-1 positions");
}

/* Rows [first, first + n) of a region, position by position. */
Test(core_sequence, a_cut_has_the_rows_of_the_whole)
{
    for (size_t l = 0; l < COUNT(layouts); l++)
        for (size_t k = 0; k < COUNT(lengths); k++) {
            const assay_grid g = grid_of(layouts[l]);
            assay_sequence_map m;
            expect_ok(assay_sequence_map_make(&g, 0, lengths[k], &m));
            const int64_t all = m.region.length;
            for (int64_t length = 1; length <= all + 2; length += 3)
                for (int64_t first = 0; first <= all; first++) {
                    assay_sequence part;
                    assay_sequence_cut(&m.region, first, length, &part);
                    cr_assert_eq(part.length, length < all - first ? length : all - first);
                    for (int64_t i = 0; i < part.length; i++)
                        cr_assert_eq(assay_sequence_position(&part, i),
                                     assay_sequence_position(&m.region, first + i));
                }
        }
}
