/* What the simulator's tests share: expectations about reports. */
#ifndef ASSAY_TEST_SIM_SUPPORT_H
#define ASSAY_TEST_SIM_SUPPORT_H

#include <assay_sim.h>
#include <criterion/criterion.h>
#include <string.h>

/* The last report names all of these. */
static inline void expect_report(const char *a, const char *b, const char *c)
{
    char text[1024];
    assay_sim_last_report(text, sizeof text);
    cr_expect(strstr(text, a) != NULL, "expected \"%s\" in \"%s\"", a, text);
    cr_expect(strstr(text, b) != NULL, "expected \"%s\" in \"%s\"", b, text);
    cr_expect(strstr(text, c) != NULL, "expected \"%s\" in \"%s\"", c, text);
}

/* The launch was accepted; its fault arrives at the synchronization, stays, and cudaDeviceReset clears it. */
static inline void expect_fault(cudaError_t launched)
{
    cr_expect(launched == cudaSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
    cr_expect(cudaGetLastError() == cudaErrorLaunchFailure);
    cr_expect(cudaStreamSynchronize(NULL) == cudaErrorLaunchFailure);
}

static inline void quiet(void)
{
    assay_sim_print_reports(0);
}

#endif
