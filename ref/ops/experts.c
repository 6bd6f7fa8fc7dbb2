/* Rows of experts: the plan of the permutation (integers), gathering rows, adding the rows of a token. */
#include "ref/ops.h"
#include "ref/ops/vector.h"
#include <math.h>

int64_t ref_expert_capacity(int64_t tokens, int64_t k, int64_t e, double factor)
{
    return (int64_t)ceil((double)(tokens * k) / (double)e * factor);
}

void ref_router_drop(int64_t *routed, int64_t *tokens_per_expert, const int64_t *all_indices,
                     const double *all_probs, const int64_t *token, int64_t n, int64_t k, int64_t e,
                     int64_t capacity, int64_t start, int64_t t)
{
    for (int64_t i = 0; i < e; i++)
        tokens_per_expert[i] = 0;
    for (int64_t mine = start * k; mine < (start + t) * k; mine++) {
        int64_t before = 0;
        for (int64_t i = 0; i < n * k; i++) {
            if (i == mine || all_indices[i] != all_indices[mine])
                continue;
            const bool earlier = token[i / k] < token[mine / k];
            const bool larger = all_probs && all_probs[i] > all_probs[mine];
            const bool equal = !all_probs || all_probs[i] == all_probs[mine];
            before += larger || (equal && earlier);
        }
        const bool stays = before < capacity;
        routed[mine - start * k] = stays ? all_indices[mine] : -1;
        if (stays)
            tokens_per_expert[all_indices[mine]]++;
    }
}

void ref_permute_plan(int64_t *row_token, int64_t *row_entry, int64_t *tokens_per_expert, int64_t *token_row,
                      const int64_t *indices, int64_t t, int64_t k, int64_t e, int64_t first, int64_t local)
{
    for (int64_t i = 0; i < e; i++)
        tokens_per_expert[i] = 0;
    for (int64_t i = 0; i < t * k; i++) {
        assert(indices[i] >= -1 && indices[i] < e);
        if (indices[i] >= 0)
            tokens_per_expert[indices[i]]++;
        token_row[i] = -1;
    }
    int64_t row = 0;
    for (int64_t x = first; x < first + local; x++)
        for (int64_t i = 0; i < t * k && tokens_per_expert[x] > 0; i++)
            if (indices[i] == x) {
                row_token[row] = i / k;
                row_entry[row] = i;
                token_row[i] = row++;
            }
}

void ref_gather_rows(double *y, const double *x, const int64_t *index, int64_t rows, int64_t h)
{
    for (int64_t i = 0; i < rows; i++) {
        assert(index[i] >= -1);
        if (index[i] < 0)
            ref_vec_zero(y + i * h, h);
        else
            ref_vec_copy(y + i * h, x + index[i] * h, h);
    }
}

void ref_combine_rows(double *y, const double *x, const int64_t *token_row, int64_t t, int64_t k, int64_t h)
{
    for (int64_t i = 0; i < t; i++) {
        ref_vec_zero(y + i * h, h);
        for (int64_t j = 0; j < k; j++)
            if (token_row[i * k + j] >= 0)
                ref_vec_axpy(y + i * h, 1.0, x + token_row[i * k + j] * h, h);
    }
}
