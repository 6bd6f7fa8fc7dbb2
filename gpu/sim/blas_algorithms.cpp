/* The algorithms of the simulated cuBLASLt: what each needs, which are offered, and the refusal of a call that does not fit. */
#include "blas.hpp"
#include "sim.hpp"

#include "cublasLt.h"

#include <string.h>

namespace sim
{

namespace
{

/* What an algorithm needs, in the order in which they are offered: an algorithm is data {is_set, its index}. */
struct algorithm {
    const char *name;
    blas_order order;
    uint32_t align;   /* of every matrix, in bytes */
    size_t workspace; /* bytes, which it writes */
    bool takes_bias;
};
constexpr algorithm algorithms[] = {{"aligned", BLAS_ASCENDING, 16, 0, true},
                                    {"plain", BLAS_ASCENDING, 1, 0, true},
                                    {"descending", BLAS_DESCENDING, 16, 0, false},
                                    {"with workspace", BLAS_FROM_MIDDLE, 16, 4096, true}};
constexpr int n_algorithms = sizeof algorithms / sizeof algorithms[0];
constexpr int plain_algorithm = 1;

} /* namespace */

int blas_offer(const blas_desc &how, const blas_preference &wish, int most,
               cublasLtMatmulHeuristicResult_t *offered)
{
    int n = 0;
    uint32_t align = 256;
    for (const uint32_t each : wish.align) {
        align = each < align ? each : align;
    }
    for (int i = 0; i < n_algorithms && n < most; ++i) {
        const algorithm &have = algorithms[i];
        if (have.align > align || have.workspace > wish.workspace ||
            (how.epilogue == CUBLASLT_EPILOGUE_BIAS && !have.takes_bias)) {
            continue;
        }
        cublasLtMatmulHeuristicResult_t *out = &offered[n++];
        memset(out, 0, sizeof *out);
        out->algo.data[0] = blas_is_set;
        out->algo.data[1] = static_cast<uint64_t>(i);
        out->workspaceSize = have.workspace;
        out->wavesCount = 1.0f;
    }
    return n;
}

cublasStatus_t blas_take(const cublasLtMatmulAlgo_t *given, void *workspace, size_t workspace_bytes,
                         blas_product &p)
{
    if (given && (given->data[0] != blas_is_set || given->data[1] >= static_cast<uint64_t>(n_algorithms))) {
        assay_sim_report("cublasLt", "invalid: cublasLtMatmul: an algorithm that no heuristic gave");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const algorithm &a = algorithms[given ? static_cast<int>(given->data[1]) : plain_algorithm];
    const struct {
        const char *name;
        const void *ptr;
        bool used;
    } operands[] = {{"A", p.pa, true},
                    {"B", p.pb, true},
                    {"C", p.pc, p.beta != 0.0},
                    {"D", p.pd, true},
                    {"the bias", p.how.bias, p.how.epilogue == CUBLASLT_EPILOGUE_BIAS}};
    for (const auto &o : operands) {
        if (o.used && reinterpret_cast<uintptr_t>(o.ptr) % a.align != 0) {
            assay_sim_report("cublasLt",
                             "invalid: algorithm '%s' needs operands aligned to %u bytes, %s lies at %p",
                             a.name, a.align, o.name, o.ptr);
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
    }
    if (p.how.epilogue == CUBLASLT_EPILOGUE_BIAS && !a.takes_bias) {
        assay_sim_report("cublasLt", "invalid: algorithm '%s' has no epilogue BIAS", a.name);
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (a.workspace > 0 &&
        (workspace_bytes < a.workspace || assay_sim_memory_kind(workspace, a.workspace) == 0)) {
        assay_sim_report(
            "cublasLt",
            "invalid: algorithm '%s' needs %zu bytes of workspace in one device block, found %zu at %p",
            a.name, a.workspace, workspace_bytes, workspace);
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    p.order = a.order;
    p.workspace = workspace;
    p.workspace_bytes = a.workspace;
    return CUBLAS_STATUS_SUCCESS;
}

} /* namespace sim */
