/* Tokens of interleaved sequences: what the files of the balancing losses share. */
#ifndef GPU_OPS_ROUTER_ROWS_CUH
#define GPU_OPS_ROUTER_ROWS_CUH

#include "gpu/device.cuh"

/* Tokens are of `rows` interleaved sequences. */
static inline assay_status router_check_rows(const char *op, int64_t tokens, int64_t rows)
{
    ASSAY_CHECK(rows >= 1 && tokens % rows == 0, ASSAY_INVALID_ARGUMENT,
                "%s: expected tokens of whole rows, found %" PRId64 " tokens in %" PRId64 " rows", op, tokens,
                rows);
    return ASSAY_OK;
}

#endif
