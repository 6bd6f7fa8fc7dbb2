/* Requests of single operations: what one asks depends on precision and number of ranks alone, so that tasks of different
 * kernels share it.  The first task writes it, the others wait. */
#include "core/base/file.h"
#include "parity/run/run_task.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static assay_status write_once(const parity_task *t, int world, const char *path)
{
    char
        part[ASSAY_PATH + 8]; /* the last name is given to a whole request: whoever was stopped leaves none */
    const char *act = t->precision == ASSAY_PRECISION_BF16 ? "BF16" : "F32";
    if (access(path, F_OK) == 0)
        return ASSAY_OK;
    snprintf(part, sizeof part, "%s.part", path);
    ASSAY_TRY(assay_remove_tree(part, t->case_dir));
    ASSAY_TRY(t->widths ? parity_widths_request(part, act) : parity_exact_request(part, world, act));
    ASSAY_CHECK(rename(part, path) == 0, ASSAY_IO, "%s: cannot be renamed to %s: %s", part, path,
                strerror(errno));
    return ASSAY_OK;
}

assay_status parity_task_request(const parity_task *t, char out[ASSAY_PATH])
{
    char lock[ASSAY_PATH + 8];
    int world = 1, taken;
    ASSAY_TRY(parity_layout_world(t->layout, &world));
    ASSAY_CHECK(snprintf(out, ASSAY_PATH, "%s/request-%s-%d", t->case_dir, assay_precision_name(t->precision),
                         world) < ASSAY_PATH,
                ASSAY_LIMIT, "%s: path too long", t->case_dir);
    snprintf(lock, sizeof lock, "%s.lock", out);
    const int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: %s", lock, strerror(errno));
    while ((taken = flock(fd, LOCK_EX)) != 0 && errno == EINTR)
        continue;
    const assay_status st =
        taken == 0 ? write_once(t, world, out) : ASSAY_ERROR(ASSAY_IO, "%s: %s", lock, strerror(errno));
    close(fd); /* gives up the lock */
    return st;
}
