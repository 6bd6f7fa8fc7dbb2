/* Descriptions that assay certify refuses by name. */
#include "kernels.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int32_t nothing(const assay_kernel_call *c)
{
    (void)c;
    return ASSAY_KERNEL_INTERNAL;
}

static const assay_kernel_output no_slot[] = {
    {.size = sizeof(assay_kernel_output), .slot = 7, .arith = ELEMENTWISE(2)}};
static const assay_kernel_output twice[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(2)},
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(2)}};
static const assay_kernel_output too_wide[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(99)}};
static const assay_kernel_output add_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(0)}};

DESCRIBE(unknown_operation, "rmsnorm_forward", 0, nothing, add_y, 1)
DESCRIBE(receives_alone, "recv", 0, nothing, add_y, 1)
DESCRIBE(rows_of_a_collective, "broadcast", ASSAY_KERNEL_BATCH_INVARIANT, nothing, add_y, 1)
DESCRIBE(no_arithmetic, "add", 0, nothing, NULL, 0)
DESCRIBE(arithmetic_of_no_output, "add", 0, nothing, no_slot, 1)
DESCRIBE(arithmetic_twice, "add", 0, nothing, twice, 2)
DESCRIBE(arithmetic_without_end, "add", 0, nothing, too_wide, 1)
DESCRIBE(shapes_of_no_symbol, "add", 0, nothing, add_y, 1, .shapes = "H>=1")
DESCRIBE(in_place_of_no_input, "add", 0, nothing, add_y, 1, .in_place = "y=c")
DESCRIBE(no_dtype, "add", 0, nothing, add_y, 1, .dtypes = 0)
DESCRIBE(device_memory, "add", 0, nothing, add_y, 1, .memory = ASSAY_KERNEL_MEMORY_DEVICE)
DESCRIBE(later_version, "add", 0, nothing, add_y, 1, .abi = 2)
DESCRIBE(too_small, "add", 0, nothing, add_y, 1, .size = 16)
DESCRIBE(contradiction, "add", ASSAY_KERNEL_DETERMINISTIC | ASSAY_KERNEL_ATOMICS, nothing, add_y, 1)

/* A file that becomes another while it is tried: every call adds a byte to the one that CERTIFY_APPENDS names. */
static int32_t append(const assay_kernel_call *c)
{
    const char *path = getenv("CERTIFY_APPENDS");
    const int fd = path != NULL ? open(path, O_WRONLY | O_APPEND) : -1;
    (void)c;
    if (fd >= 0) {
        (void)!write(fd, "\n", 1);
        (void)close(fd);
    }
    return ASSAY_KERNEL_INTERNAL;
}
DESCRIBE(changes_its_file, "add", 0, append, add_y, 1)

/* adapt() that changes more than the order of a sum. */
#define ADAPTS(member, value)                                                                                \
    static void adapt_##member(const assay_kernel_call *c, int32_t slot, assay_kernel_arith *a)              \
    {                                                                                                        \
        (void)c;                                                                                             \
        (void)slot;                                                                                          \
        a->member = value;                                                                                   \
    }                                                                                                        \
    DESCRIBE(adapts_##member, "add", 0, nothing, add_y, 1, .adapt = adapt_##member)
ADAPTS(accumulate, ASSAY_KERNEL_F64)
ADAPTS(k_step, 8)
ADAPTS(guard_bits, 1)
ADAPTS(fma, 1)
ADAPTS(atomics, 1)
ADAPTS(math_ulp, 4)
ADAPTS(rounding, ASSAY_KERNEL_ROUND_PRODUCTS)

const assay_kernel *knows_no_version(uint32_t abi);
const assay_kernel *knows_no_version(uint32_t abi)
{
    (void)abi;
    return NULL;
}
