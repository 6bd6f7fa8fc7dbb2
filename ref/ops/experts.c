/* Rows of experts: the plan of the permutation (integers), gathering rows, adding the rows of a token. */
#include "ref/ops.h"
#include "ref/ops/vector.h"

void ref_permute_plan(int64_t *row_token, int64_t *row_slot, int64_t *tokens_per_expert, int64_t *token_row,
                      const int64_t *indices, int64_t t, int64_t k, int64_t e)
{
    for (int64_t i = 0; i < e; i++)
        tokens_per_expert[i] = 0;
    for (int64_t i = 0; i < t * k; i++) {
        assert(indices[i] >= 0 && indices[i] < e);
        tokens_per_expert[indices[i]]++;
    }
    /* tokens_per_expert holds the next free row of each expert while rows are dealt out. */
    int64_t start = 0;
    for (int64_t i = 0; i < e; i++) {
        const int64_t count = tokens_per_expert[i];
        tokens_per_expert[i] = start;
        start += count;
    }
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < k; j++) {
            const int64_t row = tokens_per_expert[indices[i * k + j]]++;
            row_token[row] = i;
            row_slot[row] = j;
            token_row[i * k + j] = row;
        }
    for (int64_t i = e - 1; i > 0; i--)
        tokens_per_expert[i] -= tokens_per_expert[i - 1];
}

void ref_gather_rows(double *y, const double *x, const int64_t *index, int64_t rows, int64_t h)
{
    for (int64_t i = 0; i < rows; i++) {
        assert(index[i] >= 0);
        ref_vec_copy(y + i * h, x + index[i] * h, h);
    }
}

void ref_combine_rows(double *y, const double *x, const int64_t *token_row, int64_t t, int64_t k, int64_t h)
{
    for (int64_t i = 0; i < t; i++) {
        ref_vec_zero(y + i * h, h);
        for (int64_t j = 0; j < k; j++)
            ref_vec_axpy(y + i * h, 1.0, x + token_row[i * k + j] * h, h);
    }
}
