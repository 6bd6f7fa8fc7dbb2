/* The recipes against the columns of docs/OPS.md. */
#include "core/model/ops.h"
#include "core/run/options.h"
#include "tests/support/core.h"

Test(core_recipe, rows_are_the_columns_of_the_contract)
{
    static const struct {
        assay_precision precision;
        const char *name;
        assay_dtype act, state;
    } rows[] = {
        {ASSAY_PRECISION_FP64, "fp64", ASSAY_F64, ASSAY_F64},
        {ASSAY_PRECISION_FP32, "fp32", ASSAY_F32, ASSAY_F32},
        {ASSAY_PRECISION_BF16, "bf16", ASSAY_BF16, ASSAY_F32},
    };
    cr_assert_eq(sizeof rows / sizeof rows[0], ASSAY_PRECISION_COUNT);
    for (int i = 0; i < ASSAY_PRECISION_COUNT; i++) {
        const assay_recipe *r = assay_recipe_of(rows[i].precision);
        cr_expect_eq(r->precision, rows[i].precision);
        cr_expect_str_eq(r->name, rows[i].name);
        cr_expect_str_eq(assay_precision_name(rows[i].precision), rows[i].name);
        for (int c = 0; c < ASSAY_OPS_COUNT; c++) {
            const assay_op_recipe *op = &r->op[c];
            const bool keeps = c == ASSAY_OPS_ROUTER || c == ASSAY_OPS_LOSS || c == ASSAY_OPS_OPTIMIZER;
            const assay_dtype stored = keeps ? rows[i].state : rows[i].act;
            const char *name = assay_op_class_name((assay_op_class)c);
            cr_expect(op->act == stored && op->weight == stored && op->grad == stored, "%s %s", r->name,
                      name);
            cr_expect_eq(op->accumulate, rows[i].state, "%s %s", r->name, name);
            cr_expect(op->scaling == ASSAY_SCALING_NONE && op->operand_precision == 0, "%s %s", r->name,
                      name);
        }
    }
    cr_expect_str_eq(assay_precision_name(ASSAY_PRECISION_COUNT), "?");
    cr_expect_str_eq(assay_op_class_name(ASSAY_OPS_COUNT), "?");
    cr_expect_str_eq(assay_op_class_name(ASSAY_OPS_ROUTER), "router");
}

/* Every word of --precision is a recipe of that name. */
Test(core_recipe, words_of_the_option_are_recipes)
{
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++) {
        if (strcmp(row->name, "precision") != 0)
            continue;
        int n = 0;
        for (; row->words[n] != NULL; n++)
            cr_expect_str_eq(row->words[n], assay_precision_name((assay_precision)n));
        cr_expect_eq(n, ASSAY_PRECISION_COUNT);
        return;
    }
    cr_assert_fail("no option precision");
}

/* An engine without scales and rounded operands refuses a recipe that has them in any class, and names the class. */
Test(core_recipe, scales_and_rounded_operands_are_refused_by_class)
{
    for (int i = 0; i < ASSAY_PRECISION_COUNT; i++)
        cr_expect_eq(assay_recipe_check_plain(assay_recipe_of((assay_precision)i), "it"), ASSAY_OK);
    for (int c = 0; c < ASSAY_OPS_COUNT; c++)
        for (int form = 0; form < 2; form++) {
            assay_recipe r = *assay_recipe_of(ASSAY_PRECISION_BF16);
            if (form == 0)
                r.op[c].scaling = ASSAY_SCALING_BLOCK;
            else
                r.op[c].operand_precision = 11;
            cr_expect_eq(assay_recipe_check_plain(&r, "it"), ASSAY_UNSUPPORTED);
            cr_expect(strstr(assay_error_message(), assay_op_class_name((assay_op_class)c)), "%s",
                      assay_error_message());
        }
}

/* What slots of the operations are stored in, under a recipe whose classes all differ. */
Test(core_recipe, slots_read_the_class_of_their_operation)
{
    static const struct {
        const char *op;
        assay_op_class own, operand;
    } rows[] = {
        {"linear_fwd", ASSAY_OPS_LINEAR, ASSAY_OPS_LINEAR},
        {"grouped_linear_bwd_input", ASSAY_OPS_LINEAR, ASSAY_OPS_LINEAR},
        {"attention_fwd", ASSAY_OPS_ATTENTION, ASSAY_OPS_ATTENTION},
        {"qkv_split_bwd", ASSAY_OPS_ATTENTION, ASSAY_OPS_ATTENTION},
        {"rmsnorm_fwd", ASSAY_OPS_ELEMENTWISE, ASSAY_OPS_ELEMENTWISE},
        {"add", ASSAY_OPS_ELEMENTWISE, ASSAY_OPS_ELEMENTWISE},
        {"gather_rows", ASSAY_OPS_ELEMENTWISE, ASSAY_OPS_ELEMENTWISE},
        {"all_reduce", ASSAY_OPS_ELEMENTWISE, ASSAY_OPS_ELEMENTWISE},
        {"router_fwd", ASSAY_OPS_ROUTER, ASSAY_OPS_LINEAR},
        {"cross_entropy_bwd", ASSAY_OPS_LOSS, ASSAY_OPS_LINEAR},
        {"adamw", ASSAY_OPS_OPTIMIZER, ASSAY_OPS_LINEAR},
        {"expert_bias_update", ASSAY_OPS_OPTIMIZER, ASSAY_OPS_LINEAR},
    };
    assay_recipe r = {.name = "all different"};
    for (int c = 0; c < ASSAY_OPS_COUNT; c++) /* numbers, not types that anything could store */
        r.op[c] = (assay_op_recipe){.act = (assay_dtype)(100 + c),
                                    .grad = (assay_dtype)(200 + c),
                                    .weight = (assay_dtype)(300 + c),
                                    .accumulate = (assay_dtype)(400 + c)};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const assay_op *op = assay_op_find(rows[i].op);
        const int own = (int)rows[i].own, operand = (int)rows[i].operand;
        cr_expect_eq(assay_op_class_of(op), rows[i].own, "%s", rows[i].op);
        cr_expect_eq((int)assay_op_dtype(op, &r, ASSAY_CLASS_ACT, false), 100 + operand, "%s", rows[i].op);
        cr_expect_eq((int)assay_op_dtype(op, &r, ASSAY_CLASS_ACT, true), 200 + operand, "%s", rows[i].op);
        cr_expect_eq((int)assay_op_dtype(op, &r, ASSAY_CLASS_PAR, false), 300 + ASSAY_OPS_LINEAR, "%s",
                     rows[i].op);
        cr_expect_eq((int)assay_op_dtype(op, &r, ASSAY_CLASS_F32, false), 400 + own, "%s", rows[i].op);
    }
}
