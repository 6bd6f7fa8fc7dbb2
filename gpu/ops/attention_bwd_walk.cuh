/* The walk of a warpgroup over the tiles of attention backward k3 (attention_bwd_parts.cuh has what it is made of). */
#ifndef GPU_OPS_ATTENTION_BWD_WALK_CUH
#define GPU_OPS_ATTENTION_BWD_WALK_CUH

#include "gpu/ops/attention_bwd_parts.cuh"

/* Whether a tile is added pair by pair: it hides something and holds an infinity or a NaN.  NX, NY: numbers of the tiles that are looked
 * at, by the warpgroup, which meets. */
template <int NX, int NY>
__device__ static __forceinline__ bool bwd_by_pairs(bool all, const bf16 *x, const bf16 *y,
                                                    int (&unbounded)[2], int group, int *checks)
{
    *checks += all ? 0 : 1;
    return !all && is_unbounded<NX, NY>(x, y, &unbounded[*checks % 2], group, *checks);
}

/* No product of the warpgroup reads its own rows any more.  Two that share them (S::SPLIT) meet behind the walk, in one place. */
template <class S> __device__ static __forceinline__ void bwd_end(int group)
{
    if constexpr (!S::SPLIT)
        named_barrier_sync(OWN_GROUP + group, WGMMA_THREADS);
}

/* A warpgroup's 64 own rows over all tiles: OF_X: of_x += dS x; OF_Y: of_y += P y.  tile_of(n, stage): what `sees(h, x)`, of a
 * tile that is near near()(h, x), and `known<DELTA>(x)` of a tile. */
template <class S, int D, int DV, bool OF_X, bool OF_Y, int NX, int NY, class F>
__device__ static __forceinline__ void bwd_walk(float (&of_x)[NX][4], float (&of_y)[NY][4],
                                                const bwd_places<S> &at, int group, int rows, float scale2,
                                                F tile_of)
{
    constexpr int CHECKED_X = OF_X ? S::X : 0, CHECKED_Y = OF_Y ? S::Y : 0;
    const bf16 *own_x = at.own_x + group % S::OWNERS * S::X, *own_y = at.own_y + group % S::OWNERS * S::Y;
    float s[WGMMA_TERMS / 8][4], dp[WGMMA_TERMS / 8][4];
    unsigned p[4][4], ds[4][4];
    int checks = 0;
    mbarrier_wait(&at.bar->own, 0);
    for (int item = 0;; ++item) {
        const int x_stage = item % S::X_STAGES, y_stage = item % S::Y_STAGES;
        bf16 *x_tile = at.x + x_stage * S::X, *y_tile = at.y + y_stage * S::Y;
        mbarrier_wait(&at.bar->x_full[x_stage], item / S::X_STAGES % 2);
        const stage_tile tile = at.bar->tile[x_stage];
        if (tile.n < 0)
            break;
        const auto of_tile = tile_of(tile.n, x_stage);
        wgmma_fence();
        bwd_scores<D>(s, own_x, x_tile);
        mbarrier_wait(&at.bar->y_full[y_stage], item / S::Y_STAGES % 2);
        if constexpr (OF_X) {
            wgmma_fence(); /* behind each wait: the compiler wants it where the products are */
            bwd_scores<DV>(dp, own_y, y_tile);
        }
        const bool all = tile.sight == ATTENTION_SEES_ALL;
        auto sees = [&](int h, int x) { return of_tile.sees(h, x); };
        bwd_values<S, false, decltype(of_tile)> lse2(of_tile);
        bwd_values<S, true, decltype(of_tile)> delta(of_tile);
        const unsigned seen = all ? ~0u : bwd_seen<S>(of_tile, tile.near);
        const bool by_pairs =
            bwd_by_pairs<CHECKED_X, CHECKED_Y>(all, x_tile, y_tile, at.bar->unbounded[group], group, &checks);
        wgmma_wait<OF_X ? 1 : 0>(s);
        lse2.read();
        bwd_exponentials<true>(s, scale2, seen, lse2);
        if constexpr (OF_X) {
            wgmma_wait<0>(dp);
            delta.read();
            bwd_differences<true>(dp, s, seen, delta);
            wgmma_round(ds, dp, 0);
        }
        if constexpr (OF_Y)
            wgmma_round(p, s, 0);
        if constexpr (!S::KEEPS_Y)
            leave(&at.bar->y_empty[y_stage]);
        if (by_pairs) {
            const int there = min((int)WGMMA_TERMS, rows - tile.n * WGMMA_TERMS);
            if constexpr (OF_X)
                add_pairs(of_x, ds, x_tile, there, sees);
            if constexpr (OF_Y)
                add_pairs(of_y, p, y_tile, there, sees);
        } else {
            wgmma_fence();
            if constexpr (OF_Y)
                bwd_add(of_y, p, y_tile);
            if constexpr (OF_X)
                bwd_add(of_x, ds, x_tile);
            wgmma_commit();
            wgmma_wait<0>(of_x);
            wgmma_wait<0>(of_y);
        }
        leave(&at.bar->empty[x_stage]);
    }
    bwd_end<S>(group);
}

/* The same, of_x always, where registers hold the next tile's scores beside the factors of this one's sums (S::AHEAD): S and (S::AHEAD_DP)
 * dP of the next tile and the sums of this one are under way together, in this order, so that exponentials and slopes lie under sums.
 * Nothing is under way where the loop turns: the compiler would wait for it. */
template <class S, int D, int DV, bool OF_Y, int NX, int NY, class F>
__device__ static __forceinline__ void bwd_walk_ahead(float (&of_x)[NX][4], float (&of_y)[NY][4],
                                                      const bwd_places<S> &at, int group, int rows,
                                                      float scale2, F tile_of)
{
    constexpr int CHECKED_Y = OF_Y ? S::Y : 0;
    bwd_own<D, S::HOLDS_OWN> own_x;
    bwd_own<DV, S::HOLDS_OWN> own_y;
    float s[WGMMA_TERMS / 8][4], dp[WGMMA_TERMS / 8][4];
    unsigned p[4][4], ds[4][4];
    int checks = 0;
    bool by_pairs = false;
    mbarrier_wait(&at.bar->own, 0);
    own_x.read(at.own_x + group % S::OWNERS * S::X);
    own_y.read(at.own_y + group % S::OWNERS * S::Y);
    mbarrier_wait(&at.bar->x_full[0], 0);
    stage_tile tile = at.bar->tile[0];
    if (tile.n >= 0) {
        mbarrier_wait(&at.bar->y_full[0], 0);
        wgmma_fence();
        own_x.scores(s, at.x);
        own_y.scores(dp, at.y);
        const auto of_tile = tile_of(tile.n, 0);
        const bool all = tile.sight == ATTENTION_SEES_ALL;
        bwd_values<S, false, decltype(of_tile)> lse2(of_tile);
        bwd_values<S, true, decltype(of_tile)> delta(of_tile);
        lse2.read();
        const unsigned seen = all ? ~0u : bwd_seen<S>(of_tile, tile.near);
        by_pairs = bwd_by_pairs<S::X, CHECKED_Y>(all, at.x, at.y, at.bar->unbounded[group], group, &checks);
        wgmma_wait<1>(s);
        bwd_probabilities(s, scale2, all, seen, lse2);
        wgmma_wait<0>(dp);
        delta.read();
        bwd_slopes(dp, s, all, seen, delta);
        if constexpr (!S::KEEPS_Y)
            leave(&at.bar->y_empty[0]);
        wgmma_round(ds, dp, 0);
        if constexpr (OF_Y)
            wgmma_round(p, s, 0);
    }
    for (int item = 0; tile.n >= 0; ++item) {
        const int x_stage = item % S::X_STAGES, y_stage = item % S::Y_STAGES;
        const int x_next = (item + 1) % S::X_STAGES, y_next = (item + 1) % S::Y_STAGES;
        bf16 *x_tile = at.x + x_stage * S::X, *y_tile = at.y + y_stage * S::Y;
        if (by_pairs) { /* a branch around products would take their overlap away: they add 0 x 0 */
            const auto of_tile = tile_of(tile.n, x_stage);
            const int there = min((int)WGMMA_TERMS, rows - tile.n * WGMMA_TERMS);
            auto sees = [&](int h, int x) { return of_tile.sees(h, x); };
            add_pairs(of_x, ds, x_tile, there, sees);
            if constexpr (OF_Y)
                add_pairs(of_y, p, y_tile, there, sees);
            x_tile = y_tile = at.zeros;
            GPU_UNROLL
            for (int i = 0; i < 16; ++i) {
                ds[i / 4][i % 4] = 0;
                if constexpr (OF_Y)
                    p[i / 4][i % 4] = 0;
            }
        }
        mbarrier_wait(&at.bar->x_full[x_next], (item + 1) / S::X_STAGES % 2);
        tile = at.bar->tile[x_next];
        if (tile.n < 0) {
            wgmma_fence(); /* in each branch: the compiler wants it where the products are */
            if constexpr (OF_Y)
                bwd_add(of_y, p, y_tile);
            bwd_add(of_x, ds, x_tile);
            wgmma_commit();
            wgmma_wait<0>(of_x);
            wgmma_wait<0>(of_y);
            leave(&at.bar->empty[x_stage]);
            break;
        }
        bf16 *x_coming = at.x + x_next * S::X, *y_coming = at.y + y_next * S::Y;
        mbarrier_wait(&at.bar->y_full[y_next], (item + 1) / S::Y_STAGES % 2);
        wgmma_fence();
        own_x.scores(s, x_coming);
        if constexpr (S::AHEAD_DP)
            own_y.scores(dp, y_coming);
        if constexpr (OF_Y)
            bwd_add(of_y, p, y_tile);
        bwd_add(of_x, ds, x_tile);
        wgmma_commit();
        const auto of_tile = tile_of(tile.n, x_next);
        const bool all = tile.sight == ATTENTION_SEES_ALL;
        bwd_values<S, false, decltype(of_tile)> lse2(of_tile);
        bwd_values<S, true, decltype(of_tile)> delta(of_tile);
        lse2.read();
        const unsigned seen = all ? ~0u : bwd_seen<S>(of_tile, tile.near);
        by_pairs =
            bwd_by_pairs<S::X, CHECKED_Y>(all, x_coming, y_coming, at.bar->unbounded[group], group, &checks);
        wgmma_wait<S::AHEAD_DP ? 2 : 1>(s);
        bwd_probabilities(s, scale2, all, seen, lse2);
        if constexpr (S::AHEAD_DP) {
            delta.read();
            wgmma_wait<1>(dp);
            bwd_slopes(dp, s, all, seen, delta);
        }
        wgmma_wait<0>(of_x);
        wgmma_wait<0>(of_y);
        wgmma_hold(ds);
        if constexpr (OF_Y)
            wgmma_hold(p);
        leave(&at.bar->empty[x_stage]);
        if constexpr (!S::AHEAD_DP) {
            wgmma_fence();
            own_y.scores(dp, y_coming);
            wgmma_wait<0>(dp);
            delta.read();
            bwd_slopes(dp, s, all, seen, delta);
        }
        if constexpr (!S::KEEPS_Y)
            leave(&at.bar->y_empty[y_next]);
        wgmma_round(ds, dp, 0);
        if constexpr (OF_Y)
            wgmma_round(p, s, 0);
    }
    bwd_end<S>(group);
}

#endif
