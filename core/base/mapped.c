/* Read-only mappings of regular files. */
#include "core/base/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

assay_status assay_mapped_open(assay_mapped *out, const char *path)
{
    struct stat sb;
    assay_status st = ASSAY_OK;
    *out = (assay_mapped){0};
    /* O_NONBLOCK: a named pipe must not block before it is recognised and refused. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ASSAY_CHECK(fd >= 0, errno == ENOENT || errno == ENOTDIR ? ASSAY_NOT_FOUND : ASSAY_IO,
                "%s: cannot open: %s", path, strerror(errno));
    ASSAY_CHECK_GOTO(fstat(fd, &sb) == 0, ASSAY_IO, st, done, "%s: cannot stat: %s", path, strerror(errno));
    ASSAY_CHECK_GOTO(S_ISREG(sb.st_mode), ASSAY_INVALID_ARGUMENT, st, done, "%s: not a regular file", path);
    if (sb.st_size > 0) {
        void *base = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        ASSAY_CHECK_GOTO(base != MAP_FAILED, ASSAY_IO, st, done, "%s: cannot map %lld bytes: %s", path,
                         (long long)sb.st_size, strerror(errno));
        *out = (assay_mapped){.base = base, .bytes = (size_t)sb.st_size};
    }
done:
    close(fd);
    return st;
}

void assay_mapped_close(assay_mapped *m)
{
    if (m->base)
        munmap((void *)(uintptr_t)m->base, m->bytes);
    *m = (assay_mapped){0};
}
