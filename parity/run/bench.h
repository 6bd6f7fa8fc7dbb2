/* `assay bench`: ranks measured by the engine's verb `bench`, gathered, printed, written.  Private to parity/run/.
 *
 * A result is a JSON object of format "assay-bench-1" (docs/BENCH.md has its members); golden/bench_torch.py writes the
 * same of PyTorch. */
#ifndef PARITY_BENCH_H
#define PARITY_BENCH_H

#include "core/base/json.h"
#include <stdio.h>

#define PARITY_BENCH_FORMAT "assay-bench-1"

/* DIR/rank-00000.json ... of `world` ranks as one result.  Of each step the slowest rank counts, of each operation the rank
 * with the largest median.  devices: that the ranks share (at least 1).  ASSAY_FORMAT, ASSAY_MISMATCH: a file that is not of this run. */
assay_status parity_bench_gather(const char *dir, int world, int devices, json_t **out);
/* Adds another program's result for the same work to the member "beside", with the ratio of the medians.  ASSAY_MISMATCH:
 * other precision, tokens in a step, or optimizer. */
assay_status parity_bench_add_beside(json_t *result, const char *path);
/* The result as a table. */
void parity_bench_print(const json_t *result, FILE *out);

/* {"median", "min", "max", "all"} of n > 0 numbers. */
json_t *parity_bench_summary(const double *values, size_t n);

#endif
