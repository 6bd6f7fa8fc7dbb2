/* What a run may write. */
#include "core/run/outputs.h"

#include "core/base/file.h"
#include "core/files/checkpoint_folder.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool same(const struct stat *a, const char *path)
{
    struct stat b;
    return path[0] != '\0' && stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

static void folder_of(const char *path, char out[ASSAY_PATH])
{
    snprintf(out, ASSAY_PATH, "%s", path);
    assay_cut_name(out);
}

/* `folder` takes new files of `option`: none of the inputs' folders. */
static assay_status check_folder(const assay_train_options *o, const char *option, const char *path,
                                 const char *folder, bool model_too)
{
    struct stat sb;
    if (stat(folder, &sb) != 0)
        return ASSAY_OK;
    ASSAY_CHECK(!model_too || !same(&sb, o->model), ASSAY_INVALID_ARGUMENT,
                "--%s %s: would be written among the model's own files in %s", option, path, o->model);
    ASSAY_CHECK(!same(&sb, o->load), ASSAY_INVALID_ARGUMENT,
                "--%s %s: would be written among the files of the checkpoint %s", option, path, o->load);
    return ASSAY_OK;
}

static assay_status check_out(const assay_train_options *o)
{
    char folder[ASSAY_PATH];
    struct stat sb;
    folder_of(o->out, folder);
    ASSAY_CHECK(access(folder, W_OK) == 0, ASSAY_IO, "--out %s: cannot write into folder %s: %s", o->out,
                folder, strerror(errno));
    if (stat(o->out, &sb) == 0) {
        ASSAY_CHECK(S_ISREG(sb.st_mode), ASSAY_INVALID_ARGUMENT,
                    "--out %s: expected a file, found something else", o->out);
        ASSAY_CHECK(!same(&sb, o->batch), ASSAY_INVALID_ARGUMENT, "--out %s: is the batch file %s", o->out,
                    o->batch);
    }
    return check_folder(o, "out", o->out, folder, true);
}

static assay_status check_save(const assay_train_options *o)
{
    char folder[ASSAY_PATH];
    struct stat sb;
    if (o->save_interval > 0) /* a folder of checkpoints, each of which must be new */
        return ASSAY_OK;
    ASSAY_CHECK(lstat(o->save, &sb) != 0, ASSAY_INVALID_ARGUMENT,
                "--save %s: exists; a checkpoint is never overwritten", o->save);
    folder_of(o->save, folder);
    return check_folder(o, "save", o->save, folder, false);
}

/* Nothing is put into any checkpoint, that of --load or another. */
static assay_status check_checkpoints(const assay_train_options *o)
{
    char inside[ASSAY_PATH + 2];
    if (o->out[0] != '\0')
        ASSAY_TRY(assay_checkpoint_outside("--out ", o->out));
    if (o->save[0] != '\0')
        ASSAY_TRY(assay_checkpoint_outside("--save ", o->save));
    if (o->metrics[0] != '\0')
        ASSAY_TRY(assay_checkpoint_outside("--metrics ", o->metrics));
    if (o->trace[0] == '\0')
        return ASSAY_OK;
    snprintf(inside, sizeof inside, "%s/.", o->trace); /* its files: the folder may be there */
    return assay_checkpoint_outside("--trace ", inside);
}

assay_status assay_outputs_check(const assay_train_options *o)
{
    if (o->out[0] != '\0')
        ASSAY_TRY(check_out(o));
    ASSAY_CHECK(o->save_total_limit == 0 || o->save_interval > 0, ASSAY_INVALID_ARGUMENT,
                "--save-total-limit %lld without --save-interval", (long long)o->save_total_limit);
    if (o->save[0] != '\0')
        ASSAY_TRY(check_save(o));
    if (o->metrics[0] != '\0' && o->load[0] == '\0')
        ASSAY_CHECK(access(o->metrics, F_OK) != 0, ASSAY_INVALID_ARGUMENT,
                    "--metrics %s: exists, and this run begins at its first step", o->metrics);
    if (o->trace[0] != '\0')
        ASSAY_TRY(check_folder(o, "trace", o->trace, o->trace, true));
    return check_checkpoints(o);
}

int assay_outputs_finish(const char *program, int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "%s: error: standard output cannot be written: %s\n", program, strerror(errno));
    return code == 0 ? 2 : code;
}
