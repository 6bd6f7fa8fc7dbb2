/* The precision policy: how a stored tensor is rounded, and the perturbation that measures how much rounding
 * matters.  The recipe columns of docs/OPS.md as one table. */
#ifndef REF_POLICY_H
#define REF_POLICY_H

#include "ref/ref.h"

typedef enum {
    REF_STORE_ACT,  /* activations */
    REF_STORE_GRAD, /* gradients of activations */
    REF_STORE_PAR,  /* weights as the products read them */
    REF_STORE_F32,  /* statistics, logits, router tensors, main gradients, masters, optimizer states */
    REF_STORE_F64,  /* sums that every recipe keeps in double */
    REF_STORE_EXACT /* copies of stored values: never rounded, never perturbed */
} ref_store_class;

/* Which dtype the recipe (core/model/recipe.h) stores this class in. */
assay_dtype ref_policy_dtype(const ref_policy *p, ref_store_class class);

/* Stores x [n]: x = round(x * (1 + perturb * u * xi)), u = half an ulp (relative, 2^-p) of the stored dtype.
 * xi in [-1,1] is Philox of (perturb_seed, name, step, microbatch; element), so that it does not depend on
 * the order in which tensors are stored. */
void ref_policy_store(const ref_policy *p, ref_store_class class, const char *name, int64_t step,
                      int64_t microbatch, double *x, int64_t n);

#endif
