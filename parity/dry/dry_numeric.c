/* Dry run: the shrunk layout for real, in both engines under the judge. */
#include "core/base/file.h"
#include "parity/dry/dry.h"

#include <stdlib.h>
#include <string.h>

static assay_status write_case(const dry *d, FILE *out, const char *path)
{
    char layout[ASSAY_LAYOUT_TEXT];
    json_t *root = NULL;
    ASSAY_TRY(dry_shrink(d, out, layout, &root));
    const assay_status st = assay_json_save(root, path);
    json_decref(root);
    return st;
}

int dry_numeric(const dry *d, FILE *out)
{
    char dir[ASSAY_PATH], path[ASSAY_PATH + 16], report[ASSAY_PATH + 16], verb[] = "assay run",
                                                                          option[] = "--report";
    int code = 2;
    if (assay_scratch_make("dry", dir, sizeof dir) != ASSAY_OK) {
        assay_error_print(stderr, "assay layout", 0);
        return 2;
    }
    snprintf(path, sizeof path, "%s/dry_run.json", dir);
    snprintf(report, sizeof report, "%s/report", dir);
    if (write_case(d, out, path) == ASSAY_OK) {
        char *argv[] = {verb, path, option, report, NULL};
        fputc('\n', out);
        fflush(out);
        code = parity_main_run(4, argv);
    } else {
        assay_error_print(stderr, "assay layout", 0);
    }
    /* What went wrong is to be looked at. */
    if (code == 0)
        assay_scratch_remove(dir);
    return code;
}
