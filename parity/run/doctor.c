/* The verb doctor: what is installed, which engine will be used and why, and the ladder of every operation. */
#include "core/model/ops.h"
#include "parity/run/cases.h"
#include "parity/run/engine.h"
#include "ref/fast/blas_core.h"
#include "ref/fast/restart.h"
#include <cblas.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>
static void print_engine(const char *wish)
{
    parity_engine e;
    if (parity_engine_find(wish, NULL, &e) != ASSAY_OK) {
        printf("%-14s no: %s\n", wish, assay_error_message());
        assay_error_clear();
        return;
    }
    printf("%-14s %s: %s\n               %s\n", wish, e.name, e.reason, e.program);
    const char *key;
    json_t *value;
    json_object_foreach(e.doctor, key, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        printf("               %s %s\n", key, text != NULL ? text : "?");
        free(text);
    }
    parity_engine_free(&e);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* One line for each set of outputs; the first has the names before it. */
static void print_outputs(const json_t *rung)
{
    const json_t *outputs = json_object_get(rung, "outputs"), *entry;
    size_t i;
    json_array_foreach(outputs, i, entry)
    {
        assay_arith a;
        char text[160] = "?";
        const char *how = text_of(entry, "how");
        if (assay_arith_from_json(json_object_get(entry, "arith"), "arith", &a) == ASSAY_OK)
            assay_arith_describe(&a, text, sizeof text);
        if (i > 0)
            printf("%-39s", "");
        printf("%s: %s%s%s%s\n", text_of(entry, "outputs"), text, *how ? " (" : "", how, *how ? ")" : "");
    }
}

static void print_ladder(const json_t *op)
{
    const json_t *variants = json_object_get(op, "variants"), *rung;
    const assay_op *row = assay_op_find(text_of(op, "op"));
    size_t k;
    if (json_array_size(variants) == 0)
        printf("%-26s %s\n", text_of(op, "op"), row && row->collective ? "NCCL" : "not in this engine");
    json_array_foreach(variants, k, rung)
    {
        char capability[16];
        snprintf(capability, sizeof capability, "sm_%d",
                 (int)json_integer_value(json_object_get(rung, "least_capability")));
        const char *act = text_of(rung, "act");
        printf("%-26s %-4s %-6s %s%s%s%s\n%-39s", k == 0 ? text_of(op, "op") : "", text_of(rung, "name"),
               capability, text_of(rung, "buys"), *act ? "; only " : "", act,
               json_object_get(rung, "most_capability") ? "; on no later device" : "", "");
        print_outputs(rung);
    }
}

/* The ladder of every operation: one line for each variant. */
static assay_status print_operations(const char *wish)
{
    parity_engine e;
    json_t *all = NULL, *op;
    size_t i;
    ASSAY_TRY(parity_engine_find(wish, NULL, &e));
    const assay_status st = parity_engine_operations(&e, &all);
    if (st == ASSAY_OK)
        printf("\n%-26s %-4s %-6s %s\n", "operation", "", "least",
               "what it buys, then the arithmetic of each output");
    json_array_foreach(all, i, op) print_ladder(op);
    json_decref(all);
    parity_engine_free(&e);
    return st;
}

typedef struct doctor_options {
    bool operations;
    const char *stray;
} doctor_options;

static assay_status on_option(void *user, const char *name, const char *text)
{
    doctor_options *o = user;
    if (name == NULL)
        o->stray = text;
    else
        o->operations = true;
    return ASSAY_OK;
}

static int fail(void)
{
    assay_error_print(stderr, "assay doctor", 0);
    return 2;
}

int parity_main_doctor(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"ops", NULL, "also every operation with its kernel variants and what they declare"},
        {NULL, NULL, NULL}};
    char cases[ASSAY_PATH];
    doctor_options o = {0};
    if (assay_options_parse(argc, argv, "What is installed, which engine will be used, and why.", "", NULL, 0,
                            extra, on_option, &o) != ASSAY_OK)
        return fail();
    if (o.stray != NULL) {
        fprintf(stderr, "assay doctor: expected no arguments, found %s\n", o.stray);
        return 2;
    }
    printf("%-14s %s\n", "assay", parity_version());
    printf("%-14s %ld processors\n", "machine", sysconf(_SC_NPROCESSORS_ONLN));
    char core[160];
    ref_blas_core_describe(core, sizeof core);
    printf("%-14s %s\n", "OpenBLAS", openblas_get_config());
    printf("%-14s core type %s\n", "", core);
    printf("%-14s threads: %d\n", "", openblas_get_num_threads());
    ref_omp_wait_describe(core, sizeof core);
    printf("%-14s threads wait: %s\n", "OpenMP", core);
    printf("%-14s %s\n", "Jansson", jansson_version_str());
    printf("%-14s %s\n", "libsodium", sodium_version_string());
    printf("%-14s %s, Unicode %s\n", "utf8proc", utf8proc_version(), utf8proc_unicode_version());
    if (parity_cases_dir(cases, sizeof cases) == ASSAY_OK)
        printf("%-14s %s\n", "cases", cases);
    print_engine("sim");
    print_engine("gpu");
    print_engine("auto");
    return !o.operations || print_operations("auto") == ASSAY_OK ? 0 : fail();
}
