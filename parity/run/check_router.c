/* What chosen probabilities that are wrong look like. */
#include "parity/run/check.h"

#include <math.h>

/* The sum that all rows of k share; NAN: they do not. */
static double common_sum(const double *x, int64_t rows, int64_t k)
{
    double first = (double)NAN;
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < k; j++)
            sum += x[i * k + j];
        if (i == 0)
            first = sum;
        if (!(fabs(sum - first) <= 0.01 * fabs(first)))
            return (double)NAN;
    }
    return first;
}

/* Their number first: rows of another length add up to nothing that is known. */
void check_explain_probs(const check_state *c, const double *found, int64_t count, int64_t tokens,
                         char text[PARITY_TEXT])
{
    const assay_model_config *m = c->names->config;
    const double factor = m->moe_router_topk_scaling_factor;
    if (tokens <= 0 || count <= 0 || count % tokens != 0 || m->moe_router_topk <= 0)
        return;
    if (count / tokens != m->moe_router_topk) {
        snprintf(text, PARITY_TEXT,
                 "every token chooses %lld expert%s, the model's num_experts_per_tok is %lld",
                 (long long)(count / tokens), count == tokens ? "" : "s", (long long)m->moe_router_topk);
        return;
    }
    const double sum = common_sum(found, tokens, m->moe_router_topk);
    const bool one = fabs(sum - 1.0) <= 0.01, whole = fabs(sum / factor - 1.0) <= 0.01;
    if (m->norm_topk_prob && one && !whole)
        snprintf(text, PARITY_TEXT,
                 "the chosen probabilities of every token add up to 1, the model's to %.6g: "
                 "routed_scaling_factor is not applied",
                 factor);
    else if (m->norm_topk_prob && !whole && !isnan(sum))
        snprintf(text, PARITY_TEXT,
                 "the chosen probabilities of every token add up to %.6g, the model's to %.6g "
                 "(routed_scaling_factor)",
                 sum, factor);
    else if (m->norm_topk_prob && !whole)
        snprintf(text, PARITY_TEXT,
                 "the chosen probabilities of the tokens add up to different numbers, the model's to %.6g: "
                 "norm_topk_prob is not applied",
                 factor);
    else if (!m->norm_topk_prob && (one || whole))
        snprintf(
            text, PARITY_TEXT,
            "the chosen probabilities of every token add up to %.6g: norm_topk_prob is applied, where the "
            "model's is false",
            sum);
}
