/* The engine's pipeline schedule as a list. */
#include "core/base/log.h"
#include "gpu/parallel/pipeline.h"
#include <criterion/criterion.h>
#include <stdlib.h>

/* "F0 F1 B0 ..." of one stage. */
static void text_of(int stages, int stage, int64_t microbatches, char out[256])
{
    gpu_action *list;
    size_t used = 0;
    cr_assert_eq(gpu_pipeline_schedule(stages, stage, microbatches, &list), ASSAY_OK);
    out[0] = '\0';
    for (int64_t i = 0; i < 2 * microbatches; i++)
        used += (size_t)snprintf(out + used, 256 - used, "%s%c%lld", i ? " " : "",
                                 list[i].forward ? 'F' : 'B', (long long)list[i].microbatch);
    free(list);
}

Test(engine_schedule, is_1f1b_as_in_megatron)
{
    static const struct {
        int stages, stage;
        int64_t microbatches;
        const char *text;
    } rows[] = {
        {1, 0, 2, "F0 B0 F1 B1"},
        {2, 0, 3, "F0 F1 B0 F2 B1 B2"},
        {2, 1, 3, "F0 B0 F1 B1 F2 B2"},
        {3, 0, 2, "F0 F1 B0 B1"},
        {3, 0, 4, "F0 F1 F2 B0 F3 B1 B2 B3"},
        {3, 1, 4, "F0 F1 B0 F2 B1 F3 B2 B3"},
        {4, 0, 1, "F0 B0"},
        {4, 3, 2, "F0 B0 F1 B1"},
        {2, 0, 0, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[256];
        text_of(rows[i].stages, rows[i].stage, rows[i].microbatches, text);
        cr_expect_str_eq(text, rows[i].text, "stage %d of %d, %lld microbatches", rows[i].stage,
                         rows[i].stages, (long long)rows[i].microbatches);
    }
}
