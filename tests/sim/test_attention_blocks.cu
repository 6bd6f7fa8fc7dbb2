/* Which rows or keys a block of attention's kernels takes: each once, those with the most work of all planes first, so that no multiprocessor
 * is busy for long when the others have ended. */
#include "tests/support/sim.h"

#include "gpu/ops/attention.cuh"

#include <algorithm>
#include <numeric>
#include <vector>

enum { MULTIPROCESSORS = 132 };

Test(sim_attention_blocks, each_is_taken_once_and_the_longest_come_first)
{
    static const int sizes[][3] = {
        {1, 1, 1}, {7, 1, 1}, {1, 3, 2}, {5, 2, 3}, {64, 4, 8}}; /* blocks, batch, planes */
    for (auto &size : sizes)
        for (int last_first = 0; last_first < 2; ++last_first) {
            const int blocks = size[0], batch = size[1], planes = size[2];
            std::vector<int> seen((size_t)(blocks * batch * planes));
            int before = last_first != 0 ? blocks - 1 : 0;
            for (int i = 0; i < blocks * batch * planes; ++i) {
                const attention_block x = attention_block_of(i, blocks, batch, planes, last_first != 0);
                cr_assert(x.number >= 0 && x.number < blocks && x.plane >= 0 && x.plane < planes &&
                          x.b >= 0 && x.b < batch);
                ++seen[(size_t)((x.b * planes + x.plane) * blocks + x.number)];
                cr_assert(last_first != 0 ? x.number <= before : x.number >= before, "block %d of %d", i,
                          blocks * batch * planes);
                before = x.number;
            }
            for (const int n : seen)
                cr_assert_eq(n, 1);
        }
}

/* Blocks of `cost` are dealt in the order of the launch, each to the place that is free first: how long the last place is busy, of the mean. */
static double last_of_the_mean(const std::vector<double> &cost, int places)
{
    std::vector<double> busy((size_t)places);
    for (const double c : cost)
        *std::min_element(busy.begin(), busy.end()) += c;
    return *std::max_element(busy.begin(), busy.end()) /
           (std::accumulate(cost.begin(), cost.end(), 0.0) / places);
}

/* A causal mask, 4096 tokens: a block of 64 keys sees the tiles of 64 rows (query, head of a group of four) behind them, two blocks on a
 * multiprocessor.  Group by group it would be 1.59 (docs/BENCH.md). */
Test(sim_attention_blocks, no_multiprocessor_is_busy_for_long_when_the_others_have_ended)
{
    const int tokens = 4096, groups = 8, blocks = tokens / 64, tiles = tokens * 4 / 64;
    std::vector<double> keys, rows;
    for (int i = 0; i < blocks * groups; ++i)
        keys.push_back(tiles - attention_block_of(i, blocks, 1, groups, false).number * 4);
    for (int i = 0; i < tiles * groups; ++i)
        rows.push_back(attention_block_of(i, tiles, 1, groups, true).number / 4 + 1);
    cr_expect_leq(last_of_the_mean(keys, 2 * MULTIPROCESSORS), 1.02, "%g",
                  last_of_the_mean(keys, 2 * MULTIPROCESSORS));
    cr_expect_leq(last_of_the_mean(rows, 2 * MULTIPROCESSORS), 1.01, "%g",
                  last_of_the_mean(rows, 2 * MULTIPROCESSORS));
}
