/* Layouts, ranks and groups. */
#include "core/model/grid.h"
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

static const char *const layouts[] = {"1",
                                      "dp2",
                                      "tp2",
                                      "tp2,sp",
                                      "ep2",
                                      "dp2,ep2",
                                      "pp2",
                                      "tp2,sp,ep2,dp2",
                                      "tp4,sp,ep2",
                                      "tp2,sp,ep4,dp2",
                                      "tp2,pp2,dp3",
                                      "tp2,sp,cp2,dp2",
                                      "cp2,ep2,dp2,pp3",
                                      "tp2,ep2,etp2,dp4",
                                      "tp2,cp2,pp2,ep8,dp2,zero1",
                                      "pp4,vpp2",
                                      "dp7",
                                      "tp2,sp,ep4,dp4,pp2",
                                      "cp2,dp6,zero1,hsdp3",
                                      "tp2,pp2,ep2,dp4,zero3,hsdp2"};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* --- short form ------------------------------------------------------------------------------------------
 */

Test(core_grid, layouts_parse_to_their_canonical_text)
{
    static const struct {
        const char *text, *canonical;
        int dp, world, edp;
    } rows[] = {
        {"1", "1", 1, 1, 1},
        {"tp1", "1", 1, 1, 1},
        {"dp2", "dp2", 2, 2, 2},
        {"sp,tp2", "tp2,sp", 1, 2, 2},
        {"ep2", "ep2,dp2", 2, 2, 1},
        {"dp2,ep2", "ep2,dp2", 2, 2, 1},
        {"tp2,sp,ep2", "tp2,sp,ep2", 1, 2, 1},
        {"tp2,sp,ep4", "tp2,sp,ep4,dp2", 2, 4, 1},
        {"tp2,sp,ep2,dp2", "tp2,sp,ep2,dp2", 2, 4, 2},
        {"zero1,dp2,ep2,sp,tp2", "tp2,sp,ep2,dp2,zero1", 2, 4, 2},
        {"pp2", "pp2", 1, 2, 1},
        {"pp2,ep2", "pp2,ep2,dp2", 2, 4, 1},
        {"tp2,ep3", "tp2,ep3,dp3", 3, 6, 2},
        {"pp2,vpp2", "pp2,vpp2", 1, 2, 1},
        {"cp2,dp2,ep4", "cp2,ep4,dp2", 2, 4, 1},
        {"all_gather,cp2", "cp2", 1, 2, 2},
        {"pp2,a2a,cp2", "cp2,a2a,pp2", 1, 4, 2},
        {"dp2,p2p,cp4,tp2,sp", "tp2,sp,cp4,p2p,dp2", 2, 16, 16},
        {"ep2,etp2", "ep2,etp2,dp4", 4, 4, 1},
        {"zero3", "zero3", 1, 1, 1},
        {"zero0", "1", 1, 1, 1},
        {"first2,pp3,last1", "pp3,first2,last1", 1, 3, 1},
        {"loss,embed,pp2", "pp2,embed,loss", 1, 2, 1},
        {"stages=Et|tt|t|L,pp2,tp2", "tp2,pp2,stages=Et|t*2|t|L", 1, 4, 2},
        {"pp2,vpp2,stages=E(t|)*3L,zero1", "pp2,zero1,stages=Et|(t|)*2L", 1, 2, 1},
        {"hsdp2,dp4,zero2", "dp4,zero2,hsdp2", 4, 4, 4},
        {"dp4,zero3,hsdp1", "dp4,zero3", 4, 4, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_parallel_config p, again;
        char text[ASSAY_LAYOUT_TEXT];
        expect_ok(assay_layout_parse(rows[i].text, &p));
        assay_layout_format(&p, text);
        cr_expect_str_eq(text, rows[i].canonical);
        expect_ok(assay_layout_parse(text, &again));
        char second[ASSAY_LAYOUT_TEXT];
        assay_layout_format(&again, second);
        cr_expect_str_eq(text, second);
        assay_grid g = grid_of(rows[i].text);
        cr_expect_eq(g.p.data_parallel_size, rows[i].dp, "%s", rows[i].text);
        cr_expect_eq(g.world, rows[i].world, "%s", rows[i].text);
        cr_expect_eq(g.edp, rows[i].edp, "%s", rows[i].text);
    }
}

Test(core_grid, wrong_words_are_named)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", "unknown word ''"},
        {"tp", "unknown word 'tp'"},
        {"tp2,", "unknown word ''"},
        {"tp2,,sp", "unknown word ''"},
        {"2tp", "unknown word '2tp'"},
        {"tp2 ,sp", "unknown word 'tp2 '"},
        {"tp-2", "unknown word 'tp-2'"},
        {"tp+2", "unknown word 'tp+2'"},
        {"tp2.0", "unknown word 'tp2.0'"},
        {"TP2", "unknown word 'TP2'"},
        {"spp2", "unknown word 'spp2'"},
        {"sp2", "unknown word 'sp2'"},
        {"tp999999", "'tp999999': expected tp1 to tp16384"},
        {"dp100000", "'dp100000': expected dp1 to dp16384"},
        {"dp18446744073709551617", "'dp18446744073709551617': expected dp1 to dp16384"},
        {"1,tp2", "unknown word '1'"},
        {"fsdp2", "unknown word 'fsdp2'"},
        {"tp2,tp2", "'tp' is given twice"},
        {"cp2,a2a,p2p", "'p2p' is a second word for how attention talks over cp"},
        {"a2a", "'a2a' needs cp of at least 2, found cp1"},
        {"sp,tp2,sp", "'sp' is given twice"},
        {"zero1,zero0", "'zero' is given twice"},
        {"tp0", "'tp0': expected tp1 to tp16384"},
        {"dp16385", "'dp16385': expected dp1 to dp16384"},
        {"zero4", "'zero4': expected zero0 to zero3"},
        {"pp2,first0", "'first0': expected first1 to first65536"},
        {"pp2,last1,last2", "'last' is given twice"},
        {"pp2,embed,embed", "'embed' is given twice"},
        {"pp2,loss2", "unknown word 'loss2'"},
        {"pp2,stages=EtL,stages=EtL", "'stages' is given twice"},
        {"pp2,stages=", "there is no E"},
        {"pp2,stages=Et|t|L", "has 3 virtual stages, which pp2 does not divide"},
        {"pp2,vpp3,stages=Et|t|t|L", "has 4 virtual stages, pp2,vpp3 has 6"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_parallel_config p;
        char quoted[64];
        snprintf(quoted, sizeof quoted, "layout '%s': ", rows[i].text);
        expect_error(assay_layout_parse(rows[i].text, &p), ASSAY_INVALID_ARGUMENT, rows[i].message);
        cr_expect(strstr(assay_error_message(), quoted), "%s", assay_error_message());
    }
    char text[300];
    memset(text, 't', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assay_parallel_config p;
    expect_error(assay_layout_parse(text, &p), ASSAY_INVALID_ARGUMENT, "more than 255 characters");
}

Test(core_grid, impossible_grids_are_refused)
{
    static const struct {
        const char *text;
        assay_status st;
        const char *message;
    } rows[] = {
        {"sp", ASSAY_INVALID_ARGUMENT, "sp needs tp of at least 2, found tp1"},
        {"vpp2", ASSAY_INVALID_ARGUMENT, "vpp2 needs pp of at least 2"},
        {"ep2,dp3", ASSAY_INVALID_ARGUMENT, "ep*etp = 2 must divide tp*cp*dp = 3"},
        {"ep4,dp2", ASSAY_INVALID_ARGUMENT, "ep*etp = 4 must divide tp*cp*dp = 2"},
        {"tp2,ep2,etp4,dp2", ASSAY_INVALID_ARGUMENT, "ep*etp = 8 must divide tp*cp*dp = 4"},
        {"dp2,hsdp2", ASSAY_INVALID_ARGUMENT, "hsdp2 needs zero1, zero2 or zero3"},
        {"dp3,zero2,hsdp2", ASSAY_INVALID_ARGUMENT, "hsdp2 does not divide dp*cp = 3"},
        {"dp6,ep2,zero3,hsdp2", ASSAY_INVALID_ARGUMENT, "hsdp2 does not divide the 3 replicas of an expert"},
        {"tp64,dp257", ASSAY_LIMIT, "16448 ranks, at most 16384"},
        {"tp16384,dp16384,pp16384,cp16384", ASSAY_LIMIT, "ranks, at most 16384"},
        {"first2", ASSAY_INVALID_ARGUMENT, "they need pp of at least 2, found pp1"},
        {"pp2,first2,embed", ASSAY_INVALID_ARGUMENT, "found first or last with embed or loss"},
        {"pp2,last2,stages=Et|tL", ASSAY_INVALID_ARGUMENT, "found first or last with stages"},
        {"pp2,loss,stages=Et|tL", ASSAY_INVALID_ARGUMENT, "found embed or loss with stages"},
        {"pp2,loss,first1,stages=Et|tL", ASSAY_INVALID_ARGUMENT, "found all three"},
        {"ep4096,etp4096", ASSAY_INVALID_ARGUMENT, "ep*etp = 16777216 must divide"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_parallel_config p;
        assay_grid g;
        expect_ok(assay_layout_parse(rows[i].text, &p));
        expect_error(assay_grid_make(&p, &g), rows[i].st, rows[i].message);
    }
    assay_parallel_config p;
    assay_grid g;
    expect_ok(assay_layout_parse("1", &p));
    p.context_parallel_size = 0;
    expect_error(assay_grid_make(&p, &g), ASSAY_INVALID_ARGUMENT, "cp: expected 1 to 16384, found 0");
    p.context_parallel_size = 1;
    p.zero_stage = -1;
    expect_error(assay_grid_make(&p, &g), ASSAY_INVALID_ARGUMENT, "zero: expected 0 to 3, found -1");
}

/* --- coordinates and groups -------------------------------------------------------------------------------
 */

Test(core_grid, ranks_follow_megatrons_order)
{
    assay_grid g = grid_of("tp2,sp,cp2,dp3,pp2,ep4");
    for (int rank = 0; rank < g.world; rank++) {
        assay_coords at;
        assay_grid_coords(&g, rank, &at);
        cr_expect_eq(rank, at.tp + 2 * (at.cp + 2 * (at.dp + 3 * at.pp)));
        cr_expect_eq(rank, at.etp + 1 * (at.ep + 4 * (at.edp + 3 * at.pp)));
        cr_expect_eq(assay_grid_rank(&g, at.tp, at.cp, at.dp, at.pp), rank);
    }
}

/* Groups of a small grid written out by hand: tp2, dp2, pp2, ep2. */
Test(core_grid, groups_of_a_known_grid)
{
    static const struct {
        assay_group kind;
        int rank, count, members[8], index, color;
    } rows[] = {
        {ASSAY_GROUP_WORLD, 5, 8, {0, 1, 2, 3, 4, 5, 6, 7}, 5, 0},
        {ASSAY_GROUP_TP, 5, 2, {4, 5}, 1, 4},
        {ASSAY_GROUP_CP, 5, 1, {5}, 0, 5},
        {ASSAY_GROUP_DP, 5, 2, {5, 7}, 0, 5},
        {ASSAY_GROUP_DP_CP, 3, 2, {1, 3}, 1, 1},
        {ASSAY_GROUP_TP_CP, 3, 2, {2, 3}, 1, 2},
        {ASSAY_GROUP_TP_DP_CP, 6, 4, {4, 5, 6, 7}, 2, 4},
        {ASSAY_GROUP_PP, 6, 2, {2, 6}, 1, 2},
        {ASSAY_GROUP_EP, 3, 2, {2, 3}, 1, 2},
        {ASSAY_GROUP_ETP, 3, 1, {3}, 0, 3},
        {ASSAY_GROUP_EDP, 3, 2, {1, 3}, 1, 1},
        {ASSAY_GROUP_MODEL, 3, 4, {2, 3, 6, 7}, 1, 2},
        {ASSAY_GROUP_EMBEDDING, 5, 2, {1, 5}, 1, 1},
        {ASSAY_GROUP_INTRA_DP_CP, 3, 2, {1, 3}, 1, 1},
        {ASSAY_GROUP_INTER_DP_CP, 3, 1, {3}, 0, 3},
        {ASSAY_GROUP_INTRA_EDP, 3, 2, {1, 3}, 1, 1},
        {ASSAY_GROUP_INTER_EDP, 3, 1, {3}, 0, 3},
    };
    assay_grid g = grid_of("tp2,sp,dp2,pp2,ep2");
    cr_assert_eq(g.world, 8);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int members[8], index = -5;
        const char *name = assay_group_name(rows[i].kind);
        cr_expect_eq(assay_grid_group(&g, rows[i].kind, rows[i].rank, members, &index), rows[i].count, "%s",
                     name);
        cr_expect_arr_eq(members, rows[i].members, (size_t)rows[i].count * sizeof members[0], "%s", name);
        cr_expect_eq(index, rows[i].index, "%s", name);
        cr_expect_eq(assay_grid_color(&g, rows[i].kind, rows[i].rank), rows[i].color, "%s", name);
        cr_expect_eq(assay_grid_group(&g, rows[i].kind, rows[i].rank, NULL, NULL), rows[i].count);
    }
}

Test(core_grid, groups_partition_the_ranks)
{
    for (int l = 0; l < N_LAYOUTS; l++) {
        assay_grid g = grid_of(layouts[l]);
        for (int kind = 0; kind < ASSAY_GROUP_COUNT; kind++) {
            for (int rank = 0; rank < g.world; rank++) {
                int members[128], theirs[128], index, other;
                cr_assert(g.world <= 128);
                const int n = assay_grid_group(&g, (assay_group)kind, rank, members, &index);
                if (n == 0) {
                    cr_expect_eq(index, -1);
                    cr_expect_eq(assay_grid_color(&g, (assay_group)kind, rank), -1);
                    continue;
                }
                cr_assert_eq(members[index], rank);
                cr_expect_eq(assay_grid_color(&g, (assay_group)kind, rank), members[0]);
                for (int i = 0; i < n; i++) {
                    cr_expect(i == 0 || members[i] > members[i - 1]);
                    cr_expect_eq(assay_grid_group(&g, (assay_group)kind, members[i], theirs, &other), n);
                    cr_expect_arr_eq(theirs, members, (size_t)n * sizeof members[0]);
                    cr_expect_eq(other, i);
                }
            }
        }
    }
}

/* Whether two ranks are in the same group, from the definition: every coordinate that the group does not span is
 * equal. */
static bool same_group(const assay_grid *g, assay_group kind, const assay_coords *a, const assay_coords *b)
{
    const int last = g->p.pipeline_model_parallel_size - 1;
    const bool tp = a->tp == b->tp, cp = a->cp == b->cp, dp = a->dp == b->dp, pp = a->pp == b->pp;
    switch (kind) {
    case ASSAY_GROUP_WORLD:
        return true;
    case ASSAY_GROUP_TP:
        return cp && dp && pp;
    case ASSAY_GROUP_CP:
        return tp && dp && pp;
    case ASSAY_GROUP_DP:
        return tp && cp && pp;
    case ASSAY_GROUP_DP_CP:
        return tp && pp;
    case ASSAY_GROUP_TP_CP:
        return dp && pp;
    case ASSAY_GROUP_TP_DP_CP:
        return pp;
    case ASSAY_GROUP_PP:
        return tp && cp && dp;
    case ASSAY_GROUP_EP:
        return a->etp == b->etp && a->edp == b->edp && pp;
    case ASSAY_GROUP_ETP:
        return a->ep == b->ep && a->edp == b->edp && pp;
    case ASSAY_GROUP_ETP_EP:
        return a->edp == b->edp && pp;
    case ASSAY_GROUP_EDP:
        return a->etp == b->etp && a->ep == b->ep && pp;
    case ASSAY_GROUP_MODEL:
        return cp && dp;
    case ASSAY_GROUP_KV:
        return a->tp / g->size[ASSAY_AXIS_KV] == b->tp / g->size[ASSAY_AXIS_KV] && cp && dp && pp;
    case ASSAY_GROUP_KV_HEAD:
        return a->tp % g->size[ASSAY_AXIS_KV] == b->tp % g->size[ASSAY_AXIS_KV] && cp && dp && pp;
    case ASSAY_GROUP_EMBEDDING:
        return tp && cp && dp && (a->pp == 0 || a->pp == last) && (b->pp == 0 || b->pp == last);
    case ASSAY_GROUP_INTRA_DP_CP:
    case ASSAY_GROUP_INTER_DP_CP: {
        const int shards =
            g->size[ASSAY_AXIS_DP] * g->size[ASSAY_AXIS_CP] / g->p.num_distributed_optimizer_instances;
        const int i = a->cp + g->size[ASSAY_AXIS_CP] * a->dp, j = b->cp + g->size[ASSAY_AXIS_CP] * b->dp;
        return tp && pp &&
               (kind == ASSAY_GROUP_INTRA_DP_CP ? i / shards == j / shards : i % shards == j % shards);
    }
    case ASSAY_GROUP_INTRA_EDP:
    case ASSAY_GROUP_INTER_EDP: {
        const int shards = g->edp / g->p.num_distributed_optimizer_instances;
        return a->etp == b->etp && a->ep == b->ep && pp &&
               (kind == ASSAY_GROUP_INTRA_EDP ? a->edp / shards == b->edp / shards
                                              : a->edp % shards == b->edp % shards);
    }
    case ASSAY_GROUP_COUNT:
        break;
    }
    return false;
}

/* The group of `rank` by asking every rank of the world. */
static void expect_brute_force(const assay_grid *g, const char *layout, assay_group kind, int rank)
{
    const assay_group_shape shape = assay_grid_group_shape(g, kind, rank);
    assay_coords mine, other;
    int count = 0;
    assay_grid_coords(g, rank, &mine);
    for (int r = 0; r < g->world; r++) {
        assay_grid_coords(g, r, &other);
        const bool member = same_group(g, kind, &mine, &other);
        cr_assert_eq(assay_group_index(&shape, r), member ? count : -1, "%s %s of %d: rank %d", layout,
                     assay_group_name(kind), rank, r);
        if (member)
            cr_assert_eq(assay_group_member(&shape, count++), r, "%s %s of %d", layout,
                         assay_group_name(kind), rank);
    }
    cr_assert_eq(shape.size, count, "%s %s of %d", layout, assay_group_name(kind), rank);
    cr_assert_eq(assay_group_index(&shape, -1), -1);
    cr_assert_eq(assay_group_index(&shape, g->world), -1);
}

Test(core_grid, groups_in_closed_form_are_those_of_brute_force)
{
    for (int l = 0; l < N_LAYOUTS; l++) {
        assay_grid g = grid_of(layouts[l]);
        for (int kind = 0; kind < ASSAY_GROUP_COUNT; kind++)
            for (int rank = 0; rank < g.world; rank++)
                expect_brute_force(&g, layouts[l], (assay_group)kind, rank);
    }
}

Test(core_grid, groups_of_16384_ranks)
{
    static const char layout[] = "tp8,sp,cp2,pp16,vpp2,ep32,etp2,dp64,zero1";
    assay_grid g = grid_of(layout);
    cr_assert_eq(g.world, 16384);
    for (int kind = 0; kind < ASSAY_GROUP_COUNT; kind++)
        for (int rank = 0; rank < g.world; rank += 1021)
            expect_brute_force(&g, layout, (assay_group)kind, rank);
    expect_brute_force(&g, layout, ASSAY_GROUP_EMBEDDING, 16383);
}

Test(core_grid, every_axis_has_its_group)
{
    for (int l = 0; l < N_LAYOUTS; l++) {
        assay_grid g = grid_of(layouts[l]);
        for (int a = ASSAY_AXIS_NONE + 1; a < ASSAY_AXIS_COUNT; a++) {
            const assay_axis axis = (assay_axis)a;
            const assay_group kind = assay_axis_group(axis);
            cr_expect_str_eq(assay_axis_name(axis), assay_group_name(kind));
            for (int rank = 0; rank < g.world; rank++) {
                const assay_group_shape shape = assay_grid_group_shape(&g, kind, rank);
                cr_expect_eq(shape.size, g.size[axis], "%s %s", layouts[l], assay_axis_name(axis));
                cr_expect_eq(assay_group_index(&shape, rank), assay_grid_coord(&g, axis, rank), "%s %s",
                             layouts[l], assay_axis_name(axis));
            }
        }
        cr_expect_eq(assay_grid_coord(&g, ASSAY_AXIS_NONE, g.world - 1), 0);
    }
}

Test(core_grid, group_sizes_are_products_of_axes)
{
    for (int l = 0; l < N_LAYOUTS; l++) {
        assay_grid g = grid_of(layouts[l]);
        const assay_parallel_config *p = &g.p;
        const int tp = p->tensor_model_parallel_size, cp = p->context_parallel_size,
                  dp = p->data_parallel_size, pp = p->pipeline_model_parallel_size;
        const int sizes[ASSAY_GROUP_COUNT] = {
            [ASSAY_GROUP_WORLD] = g.world,
            [ASSAY_GROUP_TP] = tp,
            [ASSAY_GROUP_CP] = cp,
            [ASSAY_GROUP_DP] = dp,
            [ASSAY_GROUP_DP_CP] = dp * cp,
            [ASSAY_GROUP_TP_CP] = tp * cp,
            [ASSAY_GROUP_TP_DP_CP] = tp * dp * cp,
            [ASSAY_GROUP_PP] = pp,
            [ASSAY_GROUP_EP] = p->expert_model_parallel_size,
            [ASSAY_GROUP_ETP] = p->expert_tensor_parallel_size,
            [ASSAY_GROUP_ETP_EP] = p->expert_tensor_parallel_size * p->expert_model_parallel_size,
            [ASSAY_GROUP_EDP] = g.edp,
            [ASSAY_GROUP_KV] = 1, /* until a model with few query groups lays them: test_spec.c */
            [ASSAY_GROUP_KV_HEAD] = tp,
            [ASSAY_GROUP_MODEL] = tp * pp,
            [ASSAY_GROUP_EMBEDDING] = pp > 1 ? 2 : 1,
            [ASSAY_GROUP_INTRA_DP_CP] = dp * cp / p->num_distributed_optimizer_instances,
            [ASSAY_GROUP_INTER_DP_CP] = p->num_distributed_optimizer_instances,
            [ASSAY_GROUP_INTRA_EDP] = g.edp / p->num_distributed_optimizer_instances,
            [ASSAY_GROUP_INTER_EDP] = p->num_distributed_optimizer_instances,
        };
        for (int kind = 0; kind < ASSAY_GROUP_COUNT; kind++)
            cr_expect_eq(assay_grid_group(&g, (assay_group)kind, 0, NULL, NULL), sizes[kind], "%s %s",
                         layouts[l], assay_group_name((assay_group)kind));
    }
}

Test(core_grid, middle_stages_are_in_no_embedding_group)
{
    assay_grid g = grid_of("pp3");
    int index = 0;
    cr_expect_eq(assay_grid_group(&g, ASSAY_GROUP_EMBEDDING, 1, NULL, &index), 0);
    cr_expect_eq(index, -1);
    cr_expect_eq(assay_grid_group(&g, ASSAY_GROUP_EMBEDDING, 2, NULL, &index), 2);
}

Test(core_grid, group_names)
{
    cr_expect_str_eq(assay_group_name(ASSAY_GROUP_TP_DP_CP), "tp_dp_cp");
    cr_expect_str_eq(assay_group_name(ASSAY_GROUP_EMBEDDING), "embedding");
    cr_expect_str_eq(assay_group_name(ASSAY_GROUP_COUNT), "?");
}

/* --- the model ---------------------------------------------------------------------------------------------- */

static assay_model_config small_model(void)
{
    assay_model_config c;
    memset(&c, 0, sizeof c);
    c.num_layers = 4;
    c.num_attention_heads = 4;
    c.num_query_groups = 2;
    c.ffn_hidden_size = 12;
    c.num_moe_experts = 6;
    c.moe_ffn_hidden_size = 12;
    c.moe_shared_expert_intermediate_size = 8;
    c.mlp[1] = c.mlp[3] = ASSAY_MLP_MOE;
    return c;
}

Test(core_grid, what_does_not_divide_the_model_is_named)
{
    static const struct {
        const char *layout;
        assay_status st;
        const char *message;
    } rows[] = {
        {"tp3", ASSAY_INVALID_ARGUMENT, "tp3 does not divide 4 attention heads"},
        {"tp6", ASSAY_INVALID_ARGUMENT, "tp6 does not divide 4 attention heads"},
        {"ep4", ASSAY_INVALID_ARGUMENT, "ep4 does not divide 6 experts"},
        {"pp8", ASSAY_INVALID_ARGUMENT, "pp8,vpp1: 8 virtual stages, but the model has 4 layers"},
        {"pp2,first5", ASSAY_INVALID_ARGUMENT, "first5, last0 leave -1 of 4 layers to 1 stages"},
        {"pp2,first2,last1", ASSAY_INVALID_ARGUMENT, "first2, last1 leave 1 of 4 layers to 0 stages"},
        {"pp3,first1", ASSAY_INVALID_ARGUMENT, "leave 3 layers, which 2 stages of 1 chunks do not divide"},
        {"pp2,vpp2,first3", ASSAY_INVALID_ARGUMENT, "first3, last0: expected multiples of vpp2"},
        {"pp2,embed", ASSAY_INVALID_ARGUMENT, "2 virtual stages do not divide 5 layers (4, and one for each"},
        {"pp2,stages=Et|tL", ASSAY_INVALID_ARGUMENT, "stages=Et|tL has 2 layers, the model 4"},
        {"cp4,a2a", ASSAY_UNSUPPORTED,
         "cp4,a2a does not divide the 2 query groups of a tensor-parallel rank"},
        {"tp2,cp2,a2a", ASSAY_UNSUPPORTED, "cp2,a2a does not divide the 1 query groups"},
        {"cp129", ASSAY_UNSUPPORTED, "cp129: at most cp128 is supported"},
        {"etp5,dp5", ASSAY_INVALID_ARGUMENT, "etp5 does not divide 12 rows of moe_ffn_hidden_size"},
        {"pp2,vpp3", ASSAY_INVALID_ARGUMENT, "pp2,vpp3: 6 virtual stages, but the model has 4 layers"},
    };
    assay_model_config c = small_model();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_grid g = grid_of(rows[i].layout);
        expect_error(assay_grid_check_model(&g, &c), rows[i].st, rows[i].message);
    }
    static const char *const good[] = {"1",        "tp2",      "tp2,sp",    "ep2",      "ep3",
                                       "ep6",      "pp2",      "dp5,zero1", "pp2,vpp2", "pp4",
                                       "tp2,etp2", "etp3,ep2", "pp3"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assay_grid g = grid_of(good[i]);
        expect_ok(assay_grid_check_model(&g, &c));
    }
    assay_grid tp2 = grid_of("tp2"), ep2 = grid_of("ep2");
    c.ffn_hidden_size = 13;
    expect_error(assay_grid_check_model(&tp2, &c), ASSAY_INVALID_ARGUMENT,
                 "tp2 does not divide 13 rows of ffn");
    for (int l = 0; l < 4; l++)
        c.mlp[l] = ASSAY_MLP_MOE;
    expect_ok(assay_grid_check_model(&tp2, &c));
    c.moe_shared_expert_intermediate_size = 7;
    expect_error(assay_grid_check_model(&tp2, &c), ASSAY_INVALID_ARGUMENT, "7 rows of the shared expert");
    c = small_model();
    c.num_moe_experts = 0;
    expect_error(assay_grid_check_model(&ep2, &c), ASSAY_INVALID_ARGUMENT,
                 "ep2, but the model has no experts");
}

Test(core_grid, stages_hold_every_layer_once)
{
    assay_model_config c = small_model();
    static const char *const stages[] = {"1", "pp2", "pp4"};
    for (int i = 0; i < 3; i++) {
        assay_grid g = grid_of(stages[i]);
        int64_t next = 0;
        for (int pp = 0; pp < g.p.pipeline_model_parallel_size; pp++) {
            int64_t first, count;
            assay_grid_stage_layers(&g, &c, pp, 0, &first, &count);
            cr_expect_eq(first, next);
            next += count;
        }
        cr_expect_eq(next, c.num_layers);
    }
}

/* Megatron-LM's interleaving: chunk 0 of every stage, then chunk 1 of every stage, ... */
Test(core_grid, chunks_hold_every_layer_once_in_virtual_stage_order)
{
    static const char *const stages[] = {
        "1",
        "pp2",
        "pp2,vpp2",
        "pp2,vpp3",
        "pp4,vpp3",
        "pp5",
        "pp7,vpp2",
        "pp4,vpp5",
        "pp3,first4",
        "pp3,vpp2,first4,last4",
        "pp4,last3",
        "pp5,embed",
        "pp2,loss,vpp1",
        "pp2,embed,loss",
        "pp13,embed,loss",
        "pp2,stages=E|t*24|(|)*3tL",
        "pp3,stages=Et*7|(t*3|)*4t*5L",
        "pp24,stages=E(t|)*23tL",
    };
    assay_model_config c = small_model();
    c.num_layers = 24;
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        assay_grid g = grid_of(stages[i]);
        int64_t next = 0;
        c.num_layers = strstr(stages[i], "loss") && !strstr(stages[i], "embed") ? 23
                       : strcmp(stages[i], "pp2,stages=E|t*24|(|)*3tL") == 0    ? 25
                                                                                : 24;
        expect_ok(assay_grid_check_cut(&g, &c));
        for (int chunk = 0; chunk < g.p.virtual_pipeline_model_parallel_size; chunk++)
            for (int pp = 0; pp < g.p.pipeline_model_parallel_size; pp++) {
                int64_t first, count;
                assay_grid_stage_layers(&g, &c, pp, chunk, &first, &count);
                cr_expect_eq(first, next, "%s", stages[i]);
                for (int64_t l = first; l < first + count; l++) {
                    int its_pp, its_chunk;
                    assay_grid_layer_stage(&g, &c, l, &its_pp, &its_chunk);
                    cr_expect(its_pp == pp && its_chunk == chunk, "%s layer %lld", stages[i], (long long)l);
                }
                next += count;
            }
        cr_expect_eq(next, c.num_layers);
    }
}

/* Layers of each virtual stage, chunk 0 of all stages first: the numbers of get_num_layers_to_build (Megatron-LM core
 * 0.16.1), and of the balanced cut. */
Test(core_grid, layers_of_stages_by_hand)
{
    static const struct {
        const char *layout;
        int64_t layers, stage[8];
    } rows[] = {
        {"pp3", 8, {3, 3, 2}},
        {"pp2,vpp2", 7, {2, 2, 2, 1}},
        {"pp4,first1", 10, {1, 3, 3, 3}},
        {"pp4,last1", 10, {3, 3, 3, 1}},
        {"pp4,first2,last4", 16, {2, 5, 5, 4}},
        {"pp2,vpp2,first4,last8", 12, {2, 4, 2, 4}},
        {"pp3,vpp2,first2", 10, {1, 2, 2, 1, 2, 2}},
        {"pp3,first2,last2", 4, {2, 0, 2}},
        {"pp4,embed", 7, {1, 2, 2, 2}},
        {"pp4,embed,loss", 6, {1, 2, 2, 1}},
        {"pp2,vpp2,embed,loss", 2, {0, 1, 1, 0}},
        {"pp2,vpp2,loss", 7, {2, 2, 2, 1}},
        {"pp2,stages=E|t*5|t|L", 6, {0, 5, 1, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_model_config c = small_model();
        assay_grid g = grid_of(rows[i].layout);
        const int pp = g.p.pipeline_model_parallel_size, n = pp * g.p.virtual_pipeline_model_parallel_size;
        c.num_layers = rows[i].layers;
        expect_ok(assay_grid_check_cut(&g, &c));
        for (int v = 0; v < n; v++) {
            int64_t first, count;
            assay_grid_stage_layers(&g, &c, v % pp, v / pp, &first, &count);
            cr_expect_eq(count, rows[i].stage[v], "%s: virtual stage %d: %d", rows[i].layout, v, (int)count);
        }
    }
}

Test(core_grid, split_is_balanced_and_complete)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 8, 131, 1000003};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int parts = 1; parts <= 9; parts++) {
            int64_t next = 0, previous = INT64_MAX;
            for (int i = 0; i < parts; i++) {
                int64_t start, length;
                assay_split(sizes[s], parts, i, &start, &length);
                cr_expect_eq(start, next);
                cr_expect(length <= previous && length >= sizes[s] / parts && length <= sizes[s] / parts + 1);
                next += length;
                previous = length;
            }
            cr_expect_eq(next, sizes[s]);
        }
    }
}
