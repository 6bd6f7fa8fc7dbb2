/* libFuzzer's entry: ASSAY_FUZZ_TARGET names the target. */
#include "tests/fuzz/fuzz.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const fuzz_target *chosen;
static bool say; /* what each input was last refused for: ASSAY_FUZZ_SAY=1 */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A run from one seed is one run: what a reader draws (the key of a hash table) is the same every time. */
static uint32_t same_draw(void)
{
    return 0x5eed;
}

static void same_bytes(void *const out, const size_t bytes)
{
    memset(out, 0x5a, bytes);
}

static void nothing(void)
{
}

static const char *same_name(void)
{
    return "the same";
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static randombytes_implementation same = {
        .implementation_name = same_name, .random = same_draw, .stir = nothing, .buf = same_bytes};
    (void)argc;
    (void)argv;
    randombytes_set_implementation(&same);
    const char *name = getenv("ASSAY_FUZZ_TARGET");
    say = getenv("ASSAY_FUZZ_SAY") != NULL;
    chosen = name != NULL ? fuzz_target_find(name) : NULL;
    if (chosen != NULL)
        return 0;
    fputs("assay-fuzz: ASSAY_FUZZ_TARGET: expected one of", stderr);
    for (const fuzz_target *t = fuzz_targets; t->name != NULL; t++)
        fprintf(stderr, " %s", t->name);
    fputc('\n', stderr);
    exit(2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    assay_error_clear();
    chosen->run(data, bytes);
    if (say)
        fprintf(stderr, "%s\n", assay_error_message());
    return 0;
}
