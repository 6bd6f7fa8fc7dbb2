/* The precision policy: how a stored tensor is rounded, and the perturbation that measures how much rounding
 * matters.  The recipe columns of docs/OPS.md as one table. */
#ifndef REF_POLICY_H
#define REF_POLICY_H

#include "ref/ref.h"

typedef enum {
    REF_STORE_LINEAR,    /* results of products; also what the loss gives back to one */
    REF_STORE_ATTENTION, /* results of core attention */
    REF_STORE_ACT,       /* every other activation */
    REF_STORE_LSE,       /* the statistic of attention */
    REF_STORE_STATISTIC, /* those of norms, tables of rope */
    REF_STORE_ROUTER,    /* what the router and its losses compute, probs of rows */
    REF_STORE_LOSS,      /* output logits, cross entropy */
    REF_STORE_PAR,       /* weights as the products read them */
    REF_STORE_STATE,     /* main gradients, masters, optimizer states, expert biases */
    REF_STORE_F64,       /* sums that every recipe keeps in double */
    REF_STORE_EXACT      /* copies of stored values: never rounded, never perturbed */
} ref_store_class;

/* Which dtype the recipe (core/model/recipe.h) stores this class in; gradient: of the backward pass. */
assay_dtype ref_policy_dtype(const ref_policy *p, ref_store_class class, bool gradient);

/* Stores x [n]: x = round(x * (1 + perturb * u * xi)), u = half an ulp (relative, 2^-p) of the stored dtype.
 * xi in [-1,1] is Philox of (perturb_seed, name, step, microbatch; element), so that it does not depend on
 * the order in which tensors are stored. */
void ref_policy_store(const ref_policy *p, ref_store_class class, bool gradient, const char *name,
                      int64_t step, int64_t microbatch, double *x, int64_t n);

/* Before it is stored: x += perturb * u * magnitude * xi, u = half an ulp of the format that the recipe adds such values up in, for what
 * is a sum of terms of that magnitude [n] together.  Where they cancel, x errs by roundings of the terms, which are none of x. */
void ref_policy_cancel(const ref_policy *p, assay_op_class ops, const char *name, int64_t step,
                       int64_t microbatch, double *x, const double *magnitude, int64_t n);

#endif
