/* `assay draw-case`: a case file drawn from a number. */
#include "core/base/file.h"
#include "parity/run/cases.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct draw_options {
    bool given;
    long long number;
    char out[ASSAY_PATH];
} draw_options;

static assay_status on_option(void *user, const char *name, const char *text)
{
    draw_options *o = user;
    if (name != NULL)
        return assay_option_text(name, text, o->out, sizeof o->out);
    ASSAY_CHECK(!o->given, ASSAY_INVALID_ARGUMENT, "expected one number, found %s, too", text);
    char *end;
    o->given = true;
    errno = 0;
    o->number = strtoll(text, &end, 10);
    ASSAY_CHECK(end != text && *end == '\0' && errno == 0 && o->number >= 0, ASSAY_INVALID_ARGUMENT,
                "expected a number from 0 to %lld, found %s", (long long)INT64_MAX, text);
    return ASSAY_OK;
}

static assay_status draw(const draw_options *o)
{
    json_t *drawn = NULL;
    ASSAY_CHECK(o->given, ASSAY_INVALID_ARGUMENT, "expected a number: assay draw-case 7 --out case.json");
    ASSAY_TRY(parity_case_random((uint64_t)o->number, &drawn));
    assay_status st = ASSAY_OK;
    if (o->out[0] != '\0')
        st = assay_json_save(drawn, o->out);
    else if (json_dumpf(drawn, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF)
        st = ASSAY_ERROR(ASSAY_IO, "standard output: cannot be written");
    json_decref(drawn);
    return st;
}

int parity_main_draw_case(int argc, char **argv)
{
    static const assay_extra_option extra[] = {{"out", "FILE", "write it there (default: standard output)"},
                                               {NULL, NULL, NULL}};
    draw_options o = {.given = false};
    if (assay_options_parse(argc, argv,
                            "Draws a case file from a number: a model, training options, data and up to four "
                            "layouts that fit together, for assay run.  "
                            "The same number draws the same case, in this version.",
                            "NUMBER", NULL, 0, extra, on_option, &o) == ASSAY_OK &&
        draw(&o) == ASSAY_OK)
        return 0;
    assay_error_print(stderr, "assay draw-case", 0);
    return 2;
}
