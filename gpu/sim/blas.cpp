/* cuBLASLt's interface: descriptors, checks, and the product as stream work.  cublasLt.h declares the
 * arithmetic. */
#include "blas.hpp"
#include "sim.hpp"

#include "cublasLt.h"

#include <math.h>
#include <new>
#include <stdlib.h>
#include <string.h>
#include <vector>

namespace
{

typedef sim::blas_layout layout;
typedef sim::blas_desc desc;
typedef sim::blas_product product;
typedef sim::blas_preference preference;
static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "the opaque layout is too small");

static_assert(sizeof(desc) <= sizeof(cublasLtMatmulDescOpaque_t), "the opaque descriptor is too small");

static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t),
              "the opaque preference is too small");

constexpr int32_t is_set = sim::blas_is_set;

layout *of(cublasLtMatrixLayout_t l)
{
    layout *p = reinterpret_cast<layout *>(l);
    return p && p->set == is_set ? p : nullptr;
}

desc *of(cublasLtMatmulDesc_t d)
{
    desc *p = reinterpret_cast<desc *>(d);
    return p && p->set == is_set ? p : nullptr;
}

cublasStatus_t invalid(const char *what)
{
    assay_sim_report("cublasLt", "invalid: %s", what);
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t unsupported(const char *what, int value)
{
    assay_sim_report("unsupported", "cublasLt: %s (value %d)", what, value);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

size_t size_of(int type)
{
    return sim::blas_size_of(type);
}

/* Its matrices, of its stream's work: columns of one length, in one piece where nothing lies between them. */
void touch(const unsigned char *p, const layout &l, bool write)
{
    const size_t e = size_of(l.type);
    const bool rows = l.order == CUBLASLT_ORDER_ROW;
    const size_t length = (rows ? l.cols : l.rows) * e, step = static_cast<size_t>(l.ld) * e;
    const uint64_t columns = rows ? l.rows : l.cols;
    for (int64_t b = 0; b < l.batch; ++b) {
        const unsigned char *from = p + static_cast<size_t>(b * l.stride) * e;
        if (length == step)
            sim::race_range(from, length * columns, write);
        for (uint64_t i = 0; i < columns && length != step; ++i)
            sim::race_range(from + i * step, length, write);
    }
}

/* The bias vector of every batch. */
void touch_bias(const product &p)
{
    const size_t e = size_of(p.how.bias_type);
    const unsigned char *bias = static_cast<const unsigned char *>(p.how.bias);
    for (int64_t b = 0; b < p.d.batch; ++b)
        sim::race_range(bias + static_cast<size_t>(b * p.how.bias_stride) * e, static_cast<size_t>(p.m) * e,
                        false);
}

assay_sim_step product_step(void *state)
{
    const product *p = static_cast<const product *>(state);
    if (p->workspace_bytes > 0) {
        memset(p->workspace, 0xff, p->workspace_bytes);
        sim::race_range(p->workspace, p->workspace_bytes, true);
    }
    for (int64_t batch = 0; batch < p->d.batch; ++batch) {
        sim::blas_multiply(*p, batch);
    }
    if (p->k > 0) {
        touch(p->pa, p->a, false);
        touch(p->pb, p->b, false);
    }
    if (p->beta != 0.0)
        touch(p->pc, p->c, false);
    if (p->how.bias != nullptr)
        touch_bias(*p);
    touch(p->pd, p->d, true);
    return ASSAY_SIM_DONE;
}

void product_destroy(void *state)
{
    delete static_cast<product *>(state);
}

/* --- checks ------------------------------------------------------------------------------------------------- */

cublasStatus_t check_layout(const char *name, const layout &l)
{
    const uint64_t inner = l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols;
    if (size_of(l.type) == 0) {
        return unsupported("data type", l.type);
    }
    if (l.order != CUBLASLT_ORDER_COL && l.order != CUBLASLT_ORDER_ROW) {
        return unsupported("matrix order other than COL and ROW", l.order);
    }
    if (l.rows > INT32_MAX || l.cols > INT32_MAX || l.ld < 0 || static_cast<uint64_t>(l.ld) < inner ||
        l.batch < 1) {
        assay_sim_report("cublasLt",
                         "invalid: matrix %s: %llu x %llu, leading dimension %lld, batch count %d", name,
                         static_cast<unsigned long long>(l.rows), static_cast<unsigned long long>(l.cols),
                         static_cast<long long>(l.ld), l.batch);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_types(const product &p)
{
    const int in = p.a.type, out = p.d.type, compute = p.how.compute;
    if (in != p.b.type) {
        return unsupported("A and B of different types", p.b.type);
    }
    if (p.c.type != out) {
        return unsupported("C and D of different types", p.c.type);
    }
    if (in == CUDA_R_64F || out == CUDA_R_64F) {
        const bool ok = in == out && compute == CUBLAS_COMPUTE_64F && p.how.scale == CUDA_R_64F;
        return ok ? CUBLAS_STATUS_SUCCESS
                  : unsupported("R_64F needs compute type 64F and scale type R_64F", compute);
    }
    if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC &&
        compute != CUBLAS_COMPUTE_32F_FAST_TF32) {
        return unsupported("compute type", compute);
    }
    if (p.how.scale != CUDA_R_32F) {
        return unsupported("scale type", p.how.scale);
    }
    return out == in || out == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS
                                          : unsupported("type of D for these inputs", out);
}

cublasStatus_t check_shapes(product &p)
{
    const bool ta = p.how.op_a != CUBLAS_OP_N, tb = p.how.op_b != CUBLAS_OP_N;
    const uint64_t m = ta ? p.a.cols : p.a.rows, k = ta ? p.a.rows : p.a.cols;
    const uint64_t kb = tb ? p.b.cols : p.b.rows, n = tb ? p.b.rows : p.b.cols;
    if (k != kb || p.d.rows != m || p.d.cols != n || p.c.rows != m || p.c.cols != n ||
        p.a.batch != p.b.batch || p.a.batch != p.d.batch || p.c.batch != p.d.batch) {
        assay_sim_report(
            "cublasLt",
            "invalid: op(A) %llu x %llu, op(B) %llu x %llu, C %llu x %llu, D %llu x %llu, batches %d %d %d "
            "%d do not fit together",
            static_cast<unsigned long long>(m), static_cast<unsigned long long>(k),
            static_cast<unsigned long long>(kb), static_cast<unsigned long long>(n),
            static_cast<unsigned long long>(p.c.rows), static_cast<unsigned long long>(p.c.cols),
            static_cast<unsigned long long>(p.d.rows), static_cast<unsigned long long>(p.d.cols), p.a.batch,
            p.b.batch, p.c.batch, p.d.batch);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    p.m = static_cast<int64_t>(m);
    p.n = static_cast<int64_t>(n);
    p.k = static_cast<int64_t>(k);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(product &p)
{
    const layout *all[] = {&p.a, &p.b, &p.c, &p.d};
    const char *names[] = {"A", "B", "C", "D"};
    for (int i = 0; i < 4; ++i) {
        const cublasStatus_t s = check_layout(names[i], *all[i]);
        if (s != CUBLAS_STATUS_SUCCESS) {
            return s;
        }
    }
    cublasStatus_t s = check_types(p);
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = check_shapes(p);
    }
    if (s != CUBLAS_STATUS_SUCCESS) {
        return s;
    }
    if (p.how.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.how.epilogue != CUBLASLT_EPILOGUE_BIAS) {
        return unsupported("epilogue other than DEFAULT and BIAS", p.how.epilogue);
    }
    if (p.how.bias_type < 0) {
        p.how.bias_type = p.d.type;
    }
    if (size_of(p.how.bias_type) == 0 || (p.how.bias_type == CUDA_R_64F) != (p.d.type == CUDA_R_64F)) {
        return unsupported("bias data type", p.how.bias_type);
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* The last element touched lies inside one device allocation. */
cublasStatus_t check_memory(const char *name, const void *ptr, const layout &l)
{
    const int64_t outer = static_cast<int64_t>(l.order == CUBLASLT_ORDER_COL ? l.cols : l.rows);
    const int64_t inner = static_cast<int64_t>(l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols);
    if (outer == 0 || inner == 0) {
        return CUBLAS_STATUS_SUCCESS;
    }
    const int64_t last = (l.batch - 1) * l.stride + (outer - 1) * l.ld + inner;
    if (ptr == nullptr || l.stride < 0 ||
        assay_sim_memory_kind(ptr, static_cast<size_t>(last) * size_of(l.type)) == 0) {
        assay_sim_report(
            "out of bounds",
            "cublasLtMatmul: matrix %s at %p needs %lld elements, which are not inside one device block",
            name, ptr, static_cast<long long>(last));
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

struct field { /* an attribute's place in its struct */
    size_t offset, bytes;
};

cublasStatus_t set_field(void *object, field f, const void *buf, size_t bytes)
{
    if (buf == nullptr || bytes != f.bytes) {
        return invalid("attribute value is NULL or of the wrong size");
    }
    memcpy(static_cast<char *>(object) + f.offset, buf, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get_field(const void *object, field f, void *buf, size_t bytes, size_t *written)
{
    if (written) {
        *written = f.bytes;
    }
    if (bytes == 0) {
        return written ? CUBLAS_STATUS_SUCCESS : invalid("attribute size query without sizeWritten");
    }
    if (buf == nullptr || bytes != f.bytes) {
        return invalid("attribute buffer is NULL or of the wrong size");
    }
    memcpy(buf, static_cast<const char *>(object) + f.offset, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

bool layout_field(int attr, field *f)
{
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        *f = {offsetof(layout, type), 4};
        return true;
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        *f = {offsetof(layout, order), 4};
        return true;
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        *f = {offsetof(layout, rows), 8};
        return true;
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        *f = {offsetof(layout, cols), 8};
        return true;
    case CUBLASLT_MATRIX_LAYOUT_LD:
        *f = {offsetof(layout, ld), 8};
        return true;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        *f = {offsetof(layout, batch), 4};
        return true;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        *f = {offsetof(layout, stride), 8};
        return true;
    default:
        return false;
    }
}

bool desc_field(int attr, field *f)
{
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        *f = {offsetof(desc, compute), 4};
        return true;
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        *f = {offsetof(desc, scale), 4};
        return true;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        *f = {offsetof(desc, pointer_mode), 4};
        return true;
    case CUBLASLT_MATMUL_DESC_TRANSA:
        *f = {offsetof(desc, op_a), 4};
        return true;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        *f = {offsetof(desc, op_b), 4};
        return true;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        *f = {offsetof(desc, epilogue), 4};
        return true;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        *f = {offsetof(desc, bias), sizeof(void *)};
        return true;
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
        *f = {offsetof(desc, bias_stride), 8};
        return true;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        *f = {offsetof(desc, bias_type), 4};
        return true;
    default:
        return false;
    }
}

template <class T> cublasStatus_t make(T **out)
{
    if (out == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *out = new (std::nothrow) T{};
    return *out ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

} /* namespace */

struct cublasLtContext {
    int live;
};

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle)
{
    return make(lightHandle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle)
{
    delete lightHandle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void)
{
    return CUDART_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
        return "CUBLAS_STATUS_LICENSE_ERROR";
    }
    return "unknown cuBLAS status";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t out, cudaDataType type, uint64_t rows,
                                        uint64_t cols, int64_t ld)
{
    if (out == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memset(out, 0, sizeof *out);
    layout *l = reinterpret_cast<layout *>(out);
    *l = layout{type, CUBLASLT_ORDER_COL, rows, cols, ld, 1, is_set, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    const cublasStatus_t s = make(out);
    return s == CUBLAS_STATUS_SUCCESS ? cublasLtMatrixLayoutInit(*out, type, rows, cols, ld) : s;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t attr, const void *buf,
                                                size_t sizeInBytes)
{
    field f;
    if (of(l) == nullptr) {
        return invalid("matrix layout was not created");
    }
    return layout_field(attr, &f) ? set_field(l, f, buf, sizeInBytes)
                                  : unsupported("matrix layout attribute", attr);
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t attr, void *buf,
                                                size_t sizeInBytes, size_t *sizeWritten)
{
    field f;
    if (of(l) == nullptr) {
        return invalid("matrix layout was not created");
    }
    return layout_field(attr, &f) ? get_field(l, f, buf, sizeInBytes, sizeWritten)
                                  : unsupported("matrix layout attribute", attr);
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t out, cublasComputeType_t computeType,
                                      cudaDataType_t scaleType)
{
    if (out == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memset(out, 0, sizeof *out);
    desc *d = reinterpret_cast<desc *>(out);
    *d = desc{computeType, scaleType, 0, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, -1,
              is_set,      nullptr,   0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t computeType,
                                        cudaDataType_t scaleType)
{
    const cublasStatus_t s = make(out);
    return s == CUBLAS_STATUS_SUCCESS ? cublasLtMatmulDescInit(*out, computeType, scaleType) : s;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attr,
                                              const void *buf, size_t sizeInBytes)
{
    field f;
    if (of(d) == nullptr) {
        return invalid("matmul descriptor was not created");
    }
    if (attr == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET || attr == CUBLASLT_MATMUL_DESC_FAST_ACCUM) {
        return CUBLAS_STATUS_SUCCESS; /* tuning that changes no result here */
    }
    return desc_field(attr, &f) ? set_field(d, f, buf, sizeInBytes)
                                : unsupported("matmul descriptor attribute", attr);
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attr,
                                              void *buf, size_t sizeInBytes, size_t *sizeWritten)
{
    field f;
    if (of(d) == nullptr) {
        return invalid("matmul descriptor was not created");
    }
    return desc_field(attr, &f) ? get_field(d, f, buf, sizeInBytes, sizeWritten)
                                : unsupported("matmul descriptor attribute", attr);
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t pref)
{
    if (pref == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memset(pref, 0, sizeof *pref);
    *reinterpret_cast<preference *>(pref) = preference{0, {256, 256, 256, 256}, is_set};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    const cublasStatus_t s = make(pref);
    return s == CUBLAS_STATUS_SUCCESS ? cublasLtMatmulPreferenceInit(*pref) : s;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    delete pref;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t sizeInBytes)
{
    if (pref == nullptr || buf == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        return set_field(pref, {offsetof(preference, workspace), 8}, buf, sizeInBytes);
    }
    if (attr >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
        attr <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) {
        const size_t i = static_cast<size_t>(attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
        return set_field(pref, {offsetof(preference, align) + 4 * i, 4}, buf, sizeInBytes);
    }
    return CUBLAS_STATUS_SUCCESS; /* no algorithm here differs in it */
}

cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr, void *buf,
                                                    size_t sizeInBytes, size_t *sizeWritten)
{
    if (pref == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (attr != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        return unsupported("preference attribute", attr);
    }
    return get_field(pref, {offsetof(preference, workspace), 8}, buf, sizeInBytes, sizeWritten);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lightHandle,
                                              cublasLtMatmulDesc_t operationDesc,
                                              cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
                                              cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                                              cublasLtMatmulPreference_t pref, int requestedAlgoCount,
                                              cublasLtMatmulHeuristicResult_t heuristicResultsArray[],
                                              int *returnAlgoCount)
{
    if (lightHandle == nullptr) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    const preference *wish = reinterpret_cast<preference *>(pref);
    if (wish == nullptr || wish->set != is_set) {
        return invalid("cublasLtMatmulAlgoGetHeuristic: the preference was not created");
    }
    if (!of(operationDesc) || !of(Adesc) || !of(Bdesc) || !of(Cdesc) || !of(Ddesc) ||
        requestedAlgoCount < 1 || heuristicResultsArray == nullptr || returnAlgoCount == nullptr) {
        return invalid("cublasLtMatmulAlgoGetHeuristic: a NULL or uninitialized argument");
    }
    product p = {};
    p.a = *of(Adesc);
    p.b = *of(Bdesc);
    p.c = *of(Cdesc);
    p.d = *of(Ddesc);
    p.how = *of(operationDesc);
    *returnAlgoCount = 0;
    const cublasStatus_t s = check(p);
    if (s != CUBLAS_STATUS_SUCCESS) {
        return s;
    }
    *returnAlgoCount = sim::blas_offer(p.how, *wish, requestedAlgoCount, heuristicResultsArray);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc, const void *B,
                              cublasLtMatrixLayout_t Bdesc, const void *beta, const void *C,
                              cublasLtMatrixLayout_t Cdesc, void *D, cublasLtMatrixLayout_t Ddesc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspaceSizeInBytes,
                              cudaStream_t stream)
{
    if (lightHandle == nullptr) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (!of(computeDesc) || !of(Adesc) || !of(Bdesc) || !of(Cdesc) || !of(Ddesc) || !alpha || !beta) {
        return invalid("cublasLtMatmul: a NULL or uninitialized argument");
    }
    product p = {};
    p.a = *of(Adesc);
    p.b = *of(Bdesc);
    p.c = *of(Cdesc);
    p.d = *of(Ddesc);
    p.how = *of(computeDesc);
    cublasStatus_t s = check(p);
    if (s != CUBLAS_STATUS_SUCCESS) {
        return s;
    }
    if (p.how.pointer_mode != CUBLASLT_POINTER_MODE_HOST) {
        return unsupported("pointer mode other than HOST", p.how.pointer_mode);
    }
    p.alpha = sim::blas_load(static_cast<const unsigned char *>(alpha), p.how.scale);
    p.beta = sim::blas_load(static_cast<const unsigned char *>(beta), p.how.scale);
    p.pa = static_cast<const unsigned char *>(A);
    p.pb = static_cast<const unsigned char *>(B);
    p.pc = static_cast<const unsigned char *>(C);
    p.pd = static_cast<unsigned char *>(D);
    p.tf32 = p.how.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && sim::config().tf32;
    if (p.how.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        const size_t bytes =
            static_cast<size_t>((p.d.batch - 1) * p.how.bias_stride + p.m) * size_of(p.how.bias_type);
        if (assay_sim_memory_kind(p.how.bias, bytes) == 0 && p.m > 0) {
            return invalid("cublasLtMatmul: the bias vector is not inside one device block");
        }
    } else {
        p.how.bias = nullptr;
    }
    const struct {
        const char *name;
        const void *ptr;
        const layout *l;
        bool read;
    } operands[] = {
        {"A", A, &p.a, true}, {"B", B, &p.b, true}, {"C", C, &p.c, p.beta != 0.0}, {"D", D, &p.d, true}};
    for (const auto &o : operands) {
        if (o.read && (s = check_memory(o.name, o.ptr, *o.l)) != CUBLAS_STATUS_SUCCESS) {
            return s;
        }
    }
    if ((s = sim::blas_take(algo, workspace, workspaceSizeInBytes, p)) != CUBLAS_STATUS_SUCCESS) {
        return s;
    }
    if (p.m == 0 || p.n == 0) {
        return CUBLAS_STATUS_SUCCESS;
    }
    const assay_sim_work work = {"cublasLtMatmul", product_step, nullptr, product_destroy, new product(p)};
    return assay_sim_enqueue(stream, &work) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                           : CUBLAS_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */
