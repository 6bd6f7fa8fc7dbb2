/* Lattice requests of operations that our engines do not have: for kernels under certification. */
#include "parity/checks/request.h"

static double half(const parity_ask *q, int64_t i)
{
    (void)q;
    return i % 2 == 0 ? 0.5 : 0.25;
}

/* 1, -1, 1, ...: in rows of even length the mean is 0 and the variance 1. */
static double alternating(const parity_ask *q, int64_t i)
{
    (void)q;
    return i % 2 == 0 ? 1.0 : -1.0;
}

/* h even; with eps 3 rstd is 1/2. */
static void add_layernorm(parity_ask *q, int64_t t, int64_t h, bool beta)
{
    parity_ask_begin(q, "layernorm_fwd");
    parity_ask_2d(q, "x", q->act, t, h, alternating);
    parity_ask_real(q, "gamma", q->act, 1, &h, parity_lattice);
    if (beta)
        parity_ask_real(q, "beta", q->act, 1, &h, parity_lattice);
    parity_ask_real_attr(q, "eps", 3.0);
    parity_ask_finish(q);
}

/* h a power of two: means are exact. */
static void add_layernorm_backward(parity_ask *q, int64_t t, int64_t h, bool beta)
{
    parity_ask_begin(q, "layernorm_bwd");
    parity_ask_2d(q, "dy", q->act, t, h, parity_lattice);
    parity_ask_2d(q, "x", q->act, t, h, parity_lattice);
    parity_ask_real(q, "gamma", q->act, 1, &h, parity_lattice);
    parity_ask_real(q, "mean", ASSAY_F32, 1, &t, parity_lattice);
    parity_ask_real(q, "rstd", ASSAY_F32, 1, &t, half);
    parity_ask_real(q, "dgamma_in", ASSAY_F32, 1, &h, parity_lattice);
    if (beta)
        parity_ask_real(q, "dbeta_in", ASSAY_F32, 1, &h, parity_lattice);
    parity_ask_finish(q);
}

void parity_ask_lattice_foreign(parity_ask *q)
{
    add_layernorm(q, 5, 4, true);
    add_layernorm(q, 1, 2, false);
    add_layernorm(q, 0, 8, true);
    add_layernorm(q, 37, 66, false);
    add_layernorm(q, 3, 256, true);
    add_layernorm_backward(q, 5, 4, true);
    add_layernorm_backward(q, 1, 1, false);
    add_layernorm_backward(q, 0, 8, true);
    add_layernorm_backward(q, 37, 64, true);
    add_layernorm_backward(q, 3, 256, false);
}
