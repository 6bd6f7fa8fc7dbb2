/* Plans of the library's products: what cuBLASLt was asked for once, kept by everything that its answer depends on; and which of its
 * algorithms was the fastest when they were timed, in a file for each device.
 *
 *   ASSAY_PRODUCT_PLANS=FOLDER     read FOLDER/DEVICE-sm_NN-cublaslt-VERSION.json when the context begins; without it every product has
 *                                  the library's first choice
 *   ASSAY_PRODUCT_PLANS_TIME=1     products that the file does not know are timed, and added to it when the context ends
 *
 * Choices are those of the file as it was when the context began: what is timed is used by later runs alone, so that a run computes
 * the same bits whether it times or not.  An entry that is there stays.  The file only recognizes an algorithm by its bytes, among
 * those that the library offers for this product: no byte of it reaches the library, and no number of it sizes anything.
 *
 * What it does not do: keep anything between devices or versions of the library; hold two processes that time at once apart (the last
 * one to end keeps what it timed, the other's products are timed again). */
#ifndef GPU_PRODUCT_PLANS_H
#define GPU_PRODUCT_PLANS_H

#include "core/base/dtype.h"
#include "core/base/status.h"
#include <cublasLt.h>
#include <stdbool.h>

ASSAY_BEGIN_DECLS

/* C [m,n] = A B^T (+ bias) (+ C) as gpu/ops/product.cuh has it; alignments in bytes, up to 256. */
typedef struct gpu_product_key {
    int64_t m, n, k, a_is_km, b_is_kn, accumulate, bias; /* flags are 0 or 1: bias in the epilogue */
    int64_t in, out;                                     /* assay_dtype */
    int64_t align_a, align_b, align_c, workspace_bytes;
} gpu_product_key;

typedef struct gpu_product_plan {
    gpu_product_key key;
    cublasLtMatmulDescOpaque_t desc; /* without the bias's address, which is the call's */
    cublasLtMatrixLayoutOpaque_t first, second, result;
    cublasLtMatmulAlgo_t algo;
    bool found; /* the library has an algorithm */
} gpu_product_plan;

enum {
    GPU_PRODUCT_PLANS = 1024,   /* kept at once: experts have new sizes in every step */
    GPU_PRODUCT_CHOICES = 4096, /* of a file */
    GPU_PRODUCT_OFFERED = 8     /* algorithms that the library is asked for, to time or to recognize one */
};
/* In all functions NULL is a context without plans: nothing is kept, chosen or timed. */
typedef struct gpu_product_plans gpu_product_plans;

/* device: cudaDeviceProp's name.  A file that is not one of this device and library, or broken, is said on stderr and not used.
 * ASSAY_LIMIT: the folder's name is too long. */
assay_status gpu_product_plans_open(gpu_product_plans **out, const char *device, int sm);
/* Writes what was timed, unless an error is on its way; a failure is said on stderr. */
void gpu_product_plans_close(gpu_product_plans *p);

/* The plan of a key; false: there is none. */
bool gpu_product_plans_find(gpu_product_plans *p, const gpu_product_key *key, gpu_product_plan *out);
/* Keeps a plan whose key is not there; of a few places the one that was not asked for the longest makes room. */
void gpu_product_plans_keep(gpu_product_plans *p, const gpu_product_plan *plan);
/* How often a plan was asked for, and was there. */
void gpu_product_plans_counts(const gpu_product_plans *p, uint64_t *asked, uint64_t *hits);

/* Whether the file has choices: products may run another algorithm than the library's first. */
bool gpu_product_plans_in_use(const gpu_product_plans *p);
/* The algorithm that the file has for a key; NULL: none. */
const cublasLtMatmulAlgo_t *gpu_product_plans_chosen(const gpu_product_plans *p, const gpu_product_key *key);
/* Whether a key is to be timed now: timing was asked for, and neither the file nor this context has it. */
bool gpu_product_plans_wants(const gpu_product_plans *p, const gpu_product_key *key);
/* The fastest of n algorithms, for later runs: the first of the least finite ms above 0. */
void gpu_product_plans_record(gpu_product_plans *p, const gpu_product_key *key,
                              const cublasLtMatmulHeuristicResult_t *offered, const float *ms, int n);

ASSAY_END_DECLS

#endif
