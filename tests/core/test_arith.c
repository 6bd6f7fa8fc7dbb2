/* Declared arithmetic as JSON. */
#include "core/base/arith.h"
#include "core/base/json_text.h"
#include "tests/support/core.h"

static bool same(const assay_arith *a, const assay_arith *b)
{
    return a->accumulate == b->accumulate && a->order == b->order && a->lanes == b->lanes &&
           a->split == b->split && a->k_step == b->k_step && a->guard_bits == b->guard_bits &&
           a->fma == b->fma && a->atomics == b->atomics && a->math_ulp == b->math_ulp && a->tile == b->tile &&
           a->rounding == b->rounding;
}

Test(core_arith, every_member_round_trips)
{
    const assay_arith rows[] = {
        assay_arith_elementwise(),
        {ASSAY_F64, ASSAY_ORDER_SEQUENTIAL, 1, 4, 0, 0, true, false, 1, 0, 0},
        {ASSAY_F32, ASSAY_ORDER_TREE, 32, 1, 0, 0, false, false, 2, 64, ASSAY_ROUND_ANGLES},
        {ASSAY_F32, ASSAY_ORDER_TENSOR_CORE, 1, 2, 16, 1, true, true, 0, 0, 0},
        {ASSAY_F32, ASSAY_ORDER_UNKNOWN, 7, 1, 0, 0, false, true, 3, 0,
         ASSAY_ROUND_BEFORE_GAMMA | ASSAY_ROUND_BEFORE_UP | ASSAY_ROUND_PRODUCTS | ASSAY_ROUND_SCORES},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_arith back;
        memset(&back, 0xff, sizeof back);
        json_t *object = assay_arith_to_json(&rows[i]);
        cr_assert_not_null(object);
        expect_ok(assay_arith_from_json(object, "arith", &back));
        cr_expect(same(&rows[i], &back), "row %zu", i);
        json_decref(object);
    }
}

Test(core_arith, absent_members_have_the_elementwise_values)
{
    assay_arith a;
    const assay_arith expected = assay_arith_elementwise();
    json_t *object = json_object();
    expect_ok(assay_arith_from_json(object, "arith", &a));
    cr_expect(same(&a, &expected));
    cr_expect(a.accumulate == ASSAY_F32 && a.order == ASSAY_ORDER_NONE && a.math_ulp == 2 && !a.atomics);
    json_decref(object);
}

Test(core_arith, wrong_declarations_are_refused)
{
    static const struct {
        const char *text;
        assay_status st;
        const char *message;
    } rows[] = {
        {"[]", ASSAY_FORMAT, "k0: expected an object"},
        {"{\"accumulate\":\"BF16\"}", ASSAY_UNSUPPORTED, "k0: accumulate: expected F32 or F64, found 'BF16'"},
        {"{\"order\":\"random\"}", ASSAY_UNSUPPORTED, "found 'random'"},
        {"{\"order\":3}", ASSAY_FORMAT, "k0: order: expected a string"},
        {"{\"lanes\":0}", ASSAY_LIMIT, "k0: lanes: expected 1 to"},
        {"{\"split\":0}", ASSAY_LIMIT, "k0: split: expected 1 to"},
        {"{\"k_step\":-1}", ASSAY_LIMIT, "k0: k_step"},
        {"{\"guard_bits\":-1}", ASSAY_LIMIT, "k0: guard_bits"},
        {"{\"math_ulp\":-1}", ASSAY_LIMIT, "k0: math_ulp"},
        {"{\"tile\":-1}", ASSAY_LIMIT, "k0: tile"},
        {"{\"lanes\":1048577}", ASSAY_LIMIT, "k0: lanes: expected 1 to 1048576"},
        {"{\"split\":4097}", ASSAY_LIMIT, "k0: split: expected 1 to 4096"},
        {"{\"k_step\":257}", ASSAY_LIMIT, "k0: k_step: expected 0 to 256"},
        {"{\"guard_bits\":25}", ASSAY_LIMIT, "k0: guard_bits: expected 0 to 24"},
        {"{\"math_ulp\":9}", ASSAY_LIMIT, "k0: math_ulp: expected 0 to 8"},
        {"{\"tile\":65537}", ASSAY_LIMIT, "k0: tile: expected 0 to 65536"},
        {"{\"fma\":1}", ASSAY_FORMAT, "k0: fma: expected true or false"},
        {"{\"atomics\":\"no\"}", ASSAY_FORMAT, "k0: atomics"},
        {"{\"order\":\"tensor_core\"}", ASSAY_FORMAT, "k0: k_step: order tensor_core"},
        {"{\"rounding\":\"products\"}", ASSAY_FORMAT, "k0: rounding: expected a list"},
        {"{\"rounding\":[\"gamma\"]}", ASSAY_UNSUPPORTED, "k0: rounding: expected before_gamma"},
        {"{\"rounding\":[1]}", ASSAY_UNSUPPORTED, "found 'no word'"},
        {"{\"rounding\":[\"scores\",\"scores\"]}", ASSAY_FORMAT, "k0: rounding: scores is there twice"},
        {"{\"speed\":1}", ASSAY_FORMAT, "k0: speed: unknown member"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *object = NULL;
        assay_arith a;
        expect_ok(assay_json_parse(&object, rows[i].text, strlen(rows[i].text), "text"));
        expect_error(assay_arith_from_json(object, "k0", &a), rows[i].st, rows[i].message);
        json_decref(object);
    }
}

Test(core_arith, order_names)
{
    cr_expect_str_eq(assay_order_name(ASSAY_ORDER_TENSOR_CORE), "tensor_core");
    cr_expect_str_eq(assay_order_name((assay_order)99), "?");
}

static json_t *outputs_of(const assay_declaration *d)
{
    assay_json_text t = {0};
    assay_declaration_put_outputs(&t, d);
    expect_ok(assay_json_text_end(&t, "outputs"));
    json_t *out = json_loadb(t.text, t.n, 0, NULL);
    cr_assert(json_is_object(out));
    assay_json_text_free(&t);
    return out;
}

/* An output that declares what the others do is not listed; each of those that are listed is read back. */
Test(core_arith, each_output_has_its_own)
{
    assay_arith chain = assay_arith_elementwise();
    chain.order = ASSAY_ORDER_SEQUENTIAL;
    assay_declaration d = assay_declaration_make(chain), back;
    expect_ok(assay_declaration_set(&d, "dx", chain));
    json_t *none = outputs_of(&d);
    cr_expect_eq(json_object_size(none), 0);
    json_decref(none);
    expect_ok(assay_declaration_set(&d, "dgamma", assay_arith_elementwise()));
    json_t *all = assay_arith_to_json(&d.all), *outputs = outputs_of(&d);
    cr_assert_eq(json_object_size(outputs), 1);
    expect_ok(assay_declaration_from_json(all, outputs, &back));
    cr_expect_eq(assay_declaration_of(&back, "dx")->order, ASSAY_ORDER_SEQUENTIAL);
    cr_expect_eq(assay_declaration_of(&back, "dgamma")->order, ASSAY_ORDER_NONE);
    json_decref(all);
    json_decref(outputs);
}

Test(core_arith, outputs_of_their_own_are_few)
{
    assay_declaration d = assay_declaration_make(assay_arith_elementwise());
    assay_arith tree = d.all;
    tree.order = ASSAY_ORDER_TREE;
    for (int i = 0; i < ASSAY_DECLARED_OUTPUTS; i++) {
        char slot[8];
        snprintf(slot, sizeof slot, "y%d", i);
        expect_ok(assay_declaration_set(&d, slot, tree));
    }
    expect_error(assay_declaration_set(&d, "more", tree), ASSAY_LIMIT, "more than 8 outputs");
}

Test(core_arith, a_declaration_reads_as_one_line)
{
    char text[160];
    assay_arith a = {.accumulate = ASSAY_F32,
                     .order = ASSAY_ORDER_TREE,
                     .lanes = 32,
                     .split = 1,
                     .fma = true,
                     .math_ulp = 2,
                     .tile = 64};
    assay_arith_describe(&a, text, sizeof text);
    cr_expect_str_eq(text, "F32 tree of 32 lanes, fma, tiles of 64, math 2 ulp");
    a.rounding = ASSAY_ROUND_SCORES;
    assay_arith_describe(&a, text, sizeof text);
    cr_expect_str_eq(text, "F32 tree of 32 lanes, fma, tiles of 64, math 2 ulp, rounds scores");
}
