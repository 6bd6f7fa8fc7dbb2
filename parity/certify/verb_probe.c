/* The verb probe. */
#include "parity/certify/probe.h"

#include "core/base/file.h"
#include "core/run/options.h"
#include <string.h>

typedef struct probe_options {
    certify_options o;
    int64_t stride;
    char json[ASSAY_PATH];
} probe_options;

static int fail(void)
{
    assay_error_print(stderr, "assay probe", 0);
    return 2;
}

static assay_status on_option(void *user, const char *name, const char *text)
{
    probe_options *p = user;
    ASSAY_CHECK(name != NULL, ASSAY_INVALID_ARGUMENT, "expected no arguments, found %s", text);
    if (strcmp(name, "stride") == 0)
        return assay_option_count(name, text, 1, INT32_MAX, &p->stride);
    if (strcmp(name, "engine") == 0)
        return assay_option_text(name, text, p->o.engine, sizeof p->o.engine);
    if (strcmp(name, "program") == 0)
        return assay_option_text(name, text, p->o.program, sizeof p->o.program);
    return assay_option_text(name, text, p->json, sizeof p->json);
}

int parity_main_probe(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"engine", "auto|sim|gpu", "whose device (default auto)"},
        {"program", "FILE", "this engine program"},
        {"stride", "N", "every N-th of the 2^32 numbers in F32 (default 65537; 1: all)"},
        {"json", "FILE", "write what was found there, too"},
        {NULL, NULL, NULL}};
    static probe_options p;
    certify_probe probe;
    char work[ASSAY_PATH], why[2 * PROBE_TEXT] = "";
    p = (probe_options){.o = {.engine = "auto", .limit = 36000.0}, .stride = 65537};
    if (assay_options_parse(
            argc, argv,
            "How a device's matrix units add (products in one sum, guard bits, truncation) and whether "
            "its functions meet their documented error.  Exit code 1: they do not.",
            "", NULL, 0, extra, on_option, &p) != ASSAY_OK)
        return fail();
    if (assay_scratch_make("probe", work, sizeof work) != ASSAY_OK)
        return fail();
    assay_status st = probe_run(&p.o, work, (uint32_t)p.stride, &probe);
    if (st == ASSAY_OK)
        probe_print(&probe, stdout);
    if (st == ASSAY_OK && p.json[0] != '\0') {
        json_t *text = probe_json(&probe);
        st = assay_json_save(text, p.json);
        json_decref(text);
    }
    assay_scratch_remove(work);
    if (st != ASSAY_OK)
        return fail();
    return probe_good(&probe, why, sizeof why) ? 0 : 1;
}
