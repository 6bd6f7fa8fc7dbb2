/* One output on lattice inputs: the same bits as the reference, but where a kernel is free, and experts by the rule for ties. */
#include "parity/checks/exact.h"

#include "ref/ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

parity_exact_freedom parity_exact_free_of(const char *op, const char *slot, int64_t count)
{
    const parity_exact_freedom all = {0, count}, none = {0, 0};
    if (strcmp(op, "add_rmsnorm_fwd") == 0)
        return strcmp(slot, "residual") != 0 ? all : none;
    if (strcmp(op, "qkv_norm_rope_fwd") == 0)
        return strcmp(slot, "q_raw") != 0 && strcmp(slot, "k_raw") != 0 && strcmp(slot, "v") != 0 ? all
                                                                                                  : none;
    if (strcmp(op, "rmsnorm_fwd") == 0 || strcmp(op, "layernorm_fwd") == 0 ||
        strcmp(op, "rmsnorm_apply") == 0 || (strcmp(op, "attention_fwd") == 0 && strcmp(slot, "lse") == 0))
        return all;
    if (strcmp(op, "router_aux_fwd") == 0)
        return strcmp(slot, "aux_indices") != 0 && strcmp(slot, "tokens_per_expert") != 0 ? all : none;
    if (strcmp(op, "router_fwd") == 0)
        return strcmp(slot, "indices") != 0 ? all : none;
    if (strcmp(op, "router_balanced_fwd") == 0 || strcmp(op, "router_balanced_seq_fwd") == 0)
        return strcmp(slot, "indices") != 0 && strcmp(slot, "aux_indices") != 0 &&
                       strcmp(slot, "tokens_per_expert") != 0 && strcmp(slot, "seq_tokens_per_expert") != 0
                   ? all
                   : none;
    if (strcmp(op, "cross_entropy_stats") == 0)
        return (parity_exact_freedom){count / 3, 2 * (count / 3)};
    return none;
}

static int64_t attr_int(const json_t *attrs, const char *key)
{
    const json_t *v = json_object_get(attrs, key);
    return json_is_integer(v) ? json_integer_value(v) : 0;
}

assay_status parity_exact_router_choice(const assay_trace_op *op, const ref_value *logits, ref_value *truth)
{
    const char *score = json_string_value(json_object_get(op->attrs, "score_function"));
    const assay_score_function function =
        score && strcmp(score, "sigmoid") == 0 ? ASSAY_SCORE_SIGMOID : ASSAY_SCORE_SOFTMAX;
    const ref_router_desc d = {
        .tokens = logits->shape[0],
        .experts = logits->shape[1],
        .topk = attr_int(op->attrs, "topk"),
        .mode = ref_router_mode_of(function, json_is_true(json_object_get(op->attrs, "pre_softmax"))),
        .scaling_factor = 1.0,
        .num_groups = attr_int(op->attrs, "num_groups"),
        .group_topk = attr_int(op->attrs, "group_topk")};
    double *scores = calloc((size_t)logits->count + 1, sizeof *scores);
    double *keys = calloc((size_t)logits->count + 1, sizeof *keys);
    truth->count = d.tokens * d.topk;
    truth->ivalue = calloc((size_t)truth->count + 1, sizeof *truth->ivalue);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(scores && keys && truth->ivalue, ASSAY_OUT_OF_MEMORY, st, done, "router choice");
    ref_router_scores(scores, keys, logits->value, NULL, &d);
    ref_router_topk(truth->ivalue, keys, &d);
done:
    free(keys);
    free(scores);
    return st;
}

static void compare_elements(const assay_trace_op *op, const ref_value *truth, const ref_value *found,
                             parity_worst *w)
{
    const parity_exact_freedom free_ones = parity_exact_free_of(op->op, found->slot, truth->count);
    for (int64_t i = 0; i < truth->count; i++) {
        if (truth->ivalue) {
            const bool same = truth->ivalue[i] == found->ivalue[i];
            parity_worst_add(w, i, (double)found->ivalue[i], (double)truth->ivalue[i], 0.0,
                             same ? 0.0 : (double)INFINITY, same);
            continue;
        }
        const double wanted = ref_round(truth->value[i], found->dtype);
        const double bound = truth->bound ? truth->bound[i] : 0.0;
        double ratio = 0.0;
        const bool free_bits = i >= free_ones.begin && i < free_ones.end;
        const bool pass = free_bits
                              ? ref_admissible(found->value[i], truth->value[i], bound, found->dtype, &ratio)
                          : truth->kind == REF_VALUE_EXACT
                              ? parity_element_passes(truth, i, found->value[i], found->dtype, &ratio)
                              : found->value[i] == wanted;
        if (!free_bits)
            ratio = pass ? 0.0 : (double)INFINITY;
        parity_worst_add(w, i, found->value[i], wanted, free_bits ? bound : 0.0, ratio, pass);
    }
}

assay_status parity_exact_compare(const assay_trace_op *op, const ref_value *truth, const ref_value *found,
                                  parity_gallery *g, parity_result *r)
{
    parity_worst w;
    parity_worst_init(&w);
    if (truth->count != found->count || (truth->ivalue != NULL) != (found->ivalue != NULL)) {
        parity_result_fail(r, "output %s: expected %lld elements, found %lld of dtype %s", found->slot,
                           (long long)truth->count, (long long)found->count, assay_dtype_name(found->dtype));
        return ASSAY_OK;
    }
    compare_elements(op, truth, found, &w);
    parity_worst_to_result(&w, found->shape, found->ndim, r);
    parity_differences d = {.found = NULL};
    ASSAY_TRY(parity_worst_redraw_equal(&w, &d, g, found->shape, found->ndim, found->dtype, r));
    if (w.differences)
        compare_elements(op, truth, found, &w);
    return ASSAY_OK;
}
