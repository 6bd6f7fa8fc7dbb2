/* Collectives as loops in rank order. */
#include "ref/parallel/collectives.h"

#include <math.h>
#include <string.h>

static void copy(double *to, const double *from, int64_t n)
{
    if (n > 0)
        memcpy(to, from, (size_t)n * sizeof *to);
}

void ref_all_reduce(double *const *data, int n, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double sum = 0.0;
        for (int r = 0; r < n; r++)
            sum += data[r][i];
        for (int r = 0; r < n; r++)
            data[r][i] = sum;
    }
}

void ref_all_reduce_max(double *const *data, int n, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double max = -HUGE_VAL;
        for (int r = 0; r < n; r++)
            if (isnan(data[r][i]) || data[r][i] > max)
                max = data[r][i];
        for (int r = 0; r < n; r++)
            data[r][i] = max;
    }
}

void ref_all_reduce_i64(int64_t *const *data, int n, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t sum = 0;
        for (int r = 0; r < n; r++)
            sum += data[r][i];
        for (int r = 0; r < n; r++)
            data[r][i] = sum;
    }
}

void ref_all_gather(double *const *recv, double *const *send, const int64_t *counts, int n)
{
    for (int r = 0; r < n; r++) {
        int64_t at = 0;
        for (int j = 0; j < n; j++) {
            copy(recv[r] + at, send[j], counts[j]);
            at += counts[j];
        }
    }
}

void ref_reduce_scatter(double *const *recv, double *const *send, const int64_t *counts, int n)
{
    int64_t at = 0;
    for (int r = 0; r < n; r++) {
        for (int64_t i = 0; i < counts[r]; i++) {
            double sum = 0.0;
            for (int j = 0; j < n; j++)
                sum += send[j][at + i];
            recv[r][i] = sum;
        }
        at += counts[r];
    }
}

void ref_all_to_all(double *const *recv, double *const *send, const int64_t *counts, int n)
{
    for (int j = 0; j < n; j++) {
        int64_t to = 0;
        for (int i = 0; i < n; i++) {
            int64_t from = 0;
            for (int before = 0; before < j; before++)
                from += counts[i * n + before];
            copy(recv[j] + to, send[i] + from, counts[i * n + j]);
            to += counts[i * n + j];
        }
    }
}

void ref_broadcast(double *const *data, int root, int n, int64_t count)
{
    for (int r = 0; r < n; r++)
        if (r != root)
            copy(data[r], data[root], count);
}

void ref_send_recv(double *recv, const double *send, int64_t count)
{
    copy(recv, send, count);
}
