/* assert in translated files: in a kernel a report with kernel, block and thread, and cudaErrorAssert; on the host the C
 * library's.  Included anew each time, as <assert.h> is. */
#include_next <assert.h>
#if !defined(NDEBUG)
#undef assert
#define assert(condition)                                                                                    \
    ((condition) ? (void)0 : ::assay_sim::failed_assert(#condition, __FILE__, __LINE__, __func__))
#endif
