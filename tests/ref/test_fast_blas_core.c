/* The type of kernels that OpenBLAS is told to run: a table of CPUs and choices. */
#include "ref/fast/blas_core.h"
#include <criterion/criterion.h>
#include <string.h>

/* Kinds of CPU, each with all of the one before. */
static const ref_cpu nothing = {0}, westmere = {.sse42 = true}, ivybridge = {.sse42 = true, .avx = true},
                     broadwell = {.sse42 = true, .avx = true, .avx2 = true, .fma = true},
                     cascadelake = {.sse42 = true, .avx = true, .avx2 = true, .fma = true, .avx512 = true},
                     sapphirerapids = {.sse42 = true,
                                       .avx = true,
                                       .avx2 = true,
                                       .fma = true,
                                       .avx512 = true,
                                       .avx512_bf16 = true};

static const char *missing; /* a type that the library was built without */

static bool has(const char *type)
{
    return missing == NULL || strcmp(type, missing) != 0;
}

static bool has_none(const char *type)
{
    (void)type;
    return false;
}

Test(ref_fast_blas_core, a_choice_that_is_too_old_is_replaced)
{
    static const struct {
        const ref_cpu *cpu;
        const char *corename, *missing, *expected;
    } rows[] = {
        {&sapphirerapids, "Prescott", NULL, "Cooperlake"},
        {&sapphirerapids, "Prescott", "Cooperlake", "SkylakeX"},
        {&sapphirerapids, "SkylakeX", NULL, "Cooperlake"},
        {&sapphirerapids, "Cooperlake", NULL, NULL},
        {&cascadelake, "Prescott", NULL, "SkylakeX"},
        {&cascadelake, "Haswell", NULL, "SkylakeX"},
        {&cascadelake, "Prescott", "SkylakeX", "Haswell"},
        {&cascadelake, "SkylakeX", NULL, NULL},
        {&cascadelake, "Cooperlake", NULL, NULL}, /* never older, whatever the library thinks */
        {&broadwell, "Prescott", NULL, "Haswell"},
        {&broadwell, "Core2", NULL, "Haswell"},
        {&broadwell, "Haswell", NULL, NULL},
        {&ivybridge, "Prescott", NULL, "Sandybridge"},
        {&westmere, "Prescott", NULL, "Nehalem"},
        {&nothing, "Nehalem", NULL, NULL},
        {&nothing, "Prescott", NULL, NULL},
        /* Another family's types, and what is not known here, stand. */
        {&sapphirerapids, "Zen", NULL, NULL},
        {&sapphirerapids, "Sapphirerapids", NULL, NULL},
        {&sapphirerapids, "neoversen1", NULL, NULL},
        {&sapphirerapids, "", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        missing = rows[i].missing;
        const char *found = ref_blas_core_choose(rows[i].cpu, rows[i].corename, has);
        cr_expect(found == rows[i].expected ||
                      (found && rows[i].expected && strcmp(found, rows[i].expected) == 0),
                  "row %d, %s: %s", (int)i, rows[i].corename, found ? found : "none");
    }
}

Test(ref_fast_blas_core, nothing_is_chosen_that_the_library_lacks)
{
    cr_expect_null(ref_blas_core_choose(&sapphirerapids, "Prescott", has_none));
}
