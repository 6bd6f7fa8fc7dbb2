/* The page of a planted fault says what is wrong at a glance: each kind of failure has its picture, with the words and elements
 * that were planted. */
#include "tests/support/cli.h"
#include "tests/support/page.h"

TestSuite(parity_page_planted, .init = make_root, .fini = drop_root);

/* The page of `assay selftest --only NAME`. */
static char *page_of_fault(const char *name)
{
    char command[512];
    uint64_t n;
    snprintf(command, sizeof command, ASSAY_BIN_DIR "/assay selftest --only %s --report %s >%s/log 2>&1",
             name, root, root);
    cr_assert_eq(system(command), 0, "%s", read_whole("log", &n));
    return read_whole("index.html", &n);
}

/* Words in the order in which they must stand. */
static void expect_in_order(const char *text, const char *const *words)
{
    const char *at = text;
    for (; *words != NULL && at != NULL; words++) {
        const char *next = strstr(at, *words);
        cr_assert_not_null(next, "expected, behind what stands before it: %s", *words);
        at = next;
    }
}

#define EXPECT_IN_ORDER(text, ...) expect_in_order(text, (const char *const[]){__VA_ARGS__, NULL})

/* An attribute: its operation in the plan, expected beside found. */
Test(parity_page_planted, an_attribute_of_the_plan)
{
    char *text = page_of_fault("plan_norm_eps");
    EXPECT_IN_ORDER(
        text, "id=f0", "The plan of rank 0 in step 1 around the place",
        "aria-label=same>=", "linear_proj<td class=l>done, as", "<tr><td class=hv aria-label=wrong>&ne;",
        "rmsnorm_fwd decoder.layers.1.pre_mlp_layernorm<td class=l>done, as",
        "<td class=l>attribute eps<td class=l>9.9999999747524271e-07<td class=l>1.0000000000000001e-5",
        "aria-label=same>=", "mlp.router.gating", "<tr\n><td>rmsnorm_fwd", "<a href=#f0>");
    free(text);
}

/* An operation that was not done, and one that nobody asked for. */
Test(parity_page_planted, operations_of_the_plan)
{
    char *text = page_of_fault("plan_missing_reduction");
    EXPECT_IN_ORDER(text, "The plan of rank 1 in step 1", "<tr><td class=hv aria-label=missing>&minus;",
                    "all_reduce decoder.layers.0.self_attention.q_layernorm.weight<td class=l>missing",
                    "aria-label=same>=", "rank 1", ">failed</text>");
    free(text);
    text = page_of_fault("plan_extra_reduction");
    EXPECT_IN_ORDER(text, "The plan of rank", "aria-label=same>=", "<tr><td class=hn aria-label=extra>+",
                    "<td class=l>nothing<td class=l>all_reduce ");
    free(text);
}

/* Which token went where, and by how much it should not have. */
Test(parity_page_planted, a_token_at_another_expert)
{
    char *text = page_of_fault("inadmissible_expert");
    EXPECT_IN_ORDER(
        text, "Tokens that went to other experts: 1 of 1;", "<th class=l>margin",
        "<tr><td class=hv aria-label=wrong>&ne;<td class=l>0<td class=l>5 7<td class=l>0 7<td "
        "class=l>\u2715\u00b7\u00b7\u00b7\u00b7\u25cb\u00b7\u25cf<td class=l>0.0399<td class=l>5: 0.1398",
        ", 0: 0.0998", "<summary>routing: <b class=bad>1 of", "<tr\n><td>router_fwd indices");
    free(text);
}

/* Bits: the element, how far, and where in the tensor. */
Test(parity_page_planted, an_element_of_a_checkpoint)
{
    char *text = page_of_fault("checkpoint_element");
    EXPECT_IN_ORDER(text, "The 1 element that differs, F32; expected they are equal", "<td class=l>[64, 0]",
                    "<td class=l>1 ulp<td class=l>",
                    "In this comparison 1 of 5120 elements differ, of [128, 40]",
                    "<title>equal: 5119 elements</title>", "<title>at most 1 ulp: 1 elements</title>");
    free(text);
    text = page_of_fault("run_not_repeatable");
    EXPECT_IN_ORDER(text, "The 1 element that differs", "In this comparison 1 of", "elements differ");
    free(text);
}

/* A lattice value. */
Test(parity_page_planted, a_lattice_element)
{
    char *text = page_of_fault("lattice_element");
    EXPECT_IN_ORDER(text, "The 1 element that differs, F32", "<th class=l>expected", "<th class=l>found",
                    "<td class=l>[7, 0]<td class=l>6<td class=l>10",
                    "In this comparison 1 of 70 elements differ", "<summary>exact: <b class=bad>1 of");
    free(text);
}

/* Who wrote, who read, what else has the content. */
Test(parity_page_planted, an_edge_of_the_flow)
{
    char *text = page_of_fault("engine_stale_weight");
    EXPECT_IN_ORDER(text, "What was written and what was read, on rank 0",
                    "<td class=l>written by<td class=l>",
                    "<tr><td class=hv aria-label=wrong>&ne;<td class=l>read by<td class=l>",
                    "Distance in units of the last place");
    free(text);
}

/* Who holds which elements. */
Test(parity_page_planted, pieces_that_do_not_tile)
{
    char *text = page_of_fault("missing_shard");
    EXPECT_IN_ORDER(text, "1 piece of decoder.layers.0.self_attention.linear_qkv.y [15, 2, 128]",
                    "elements, from-to of each dimension",
                    "<td class=l>0<td class=l>shard<td class=l>0-14, 0-1, 0-63",
                    "<tr><td class=hv aria-label=missing>&minus;<td class=l>none");
    free(text);
}
