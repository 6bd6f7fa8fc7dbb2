/* The folder of a report. */
#include "parity/run/report_folder.h"
#include "core/base/file.h"
#include "core/run/options.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARKER ".assay-report"
static const char first_line[] = "assay report folder: deleted and written by assay run\n";

/* A name in the folder besides the marker; "" when it is empty. */
static assay_status first_name(const char *dir, char *out, size_t capacity)
{
    DIR *d = opendir(dir);
    out[0] = '\0';
    ASSAY_CHECK(d != NULL, ASSAY_IO, "%s: %s", dir, strerror(errno));
    for (const struct dirent *e = readdir(d); e != NULL && out[0] == '\0'; e = readdir(d))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && strcmp(e->d_name, MARKER) != 0)
            snprintf(out, capacity, "%s", e->d_name);
    closedir(d);
    return ASSAY_OK;
}

static bool is_ours(int fd, char *text, size_t capacity)
{
    const ssize_t n = pread(fd, text, capacity - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return strncmp(text, first_line, strlen(first_line)) == 0;
}

/* The marker of a folder, made in one that is empty. */
static assay_status open_marker(const char *dir, int *fd)
{
    char path[ASSAY_PATH + 32], name[256], text[256];
    struct stat sb;
    snprintf(path, sizeof path, "%s/" MARKER, dir);
    ASSAY_TRY(first_name(dir, name, sizeof name));
    const int create = name[0] == '\0' ? O_CREAT : 0;
    *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | create, 0666);
    ASSAY_CHECK(*fd >= 0 || errno != ENOENT, ASSAY_INVALID_ARGUMENT,
                "%s: expected a new or empty folder, or one that assay made (it holds " MARKER
                "); found %s in it",
                dir, name);
    ASSAY_CHECK(*fd >= 0, ASSAY_IO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, &sb) == 0 && S_ISREG(sb.st_mode) &&
        (is_ours(*fd, text, sizeof text) || (create != 0 && sb.st_size == 0)))
        return ASSAY_OK;
    close(*fd);
    *fd = -1;
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "%s: expected the marker of a report folder, found something else",
               path);
}

static assay_status write_marker(int fd, const char *dir)
{
    char text[256];
    /* Always as long, over what is there: a run that is killed here leaves a marker, never an empty one. */
    const int n = snprintf(text, sizeof text, "%sprocess %-20ld\n", first_line, (long)getpid());
    const bool ok = pwrite(fd, text, (size_t)n, 0) == n;
    ASSAY_CHECK(ok, ASSAY_IO, "%s/" MARKER ": %s", dir, strerror(errno));
    return ASSAY_OK;
}

assay_status parity_report_folder_open(const char *dir, int *lock)
{
    char text[256];
    *lock = -1;
    ASSAY_CHECK(strlen(dir) < ASSAY_PATH, ASSAY_LIMIT, "report folder: path too long");
    ASSAY_TRY(assay_mkdir_p(dir));
    ASSAY_TRY(open_marker(dir, lock));
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0) {
        const assay_status st = write_marker(*lock, dir);
        if (st == ASSAY_OK)
            return ASSAY_OK;
        close(*lock);
        *lock = -1;
        return st;
    }
    const int error = errno;
    const bool known = is_ours(*lock, text, sizeof text);
    close(*lock);
    *lock = -1;
    text[strcspn(text + (known ? sizeof first_line - 1 : 0), "\n") + (known ? sizeof first_line - 1 : 0)] =
        '\0';
    ASSAY_CHECK(error == EWOULDBLOCK, ASSAY_IO, "%s/" MARKER ": cannot lock: %s", dir, strerror(error));
    ASSAY_FAIL(ASSAY_IO,
               "%s: another run works in this folder (%s, or what it started): wait for it, or name another "
               "one with --report",
               dir, known ? text + sizeof first_line - 1 : "unknown process");
}

/* Folders below are at the top of a hierarchy for ext4 (chattr +T): it gives each a group of blocks and inodes of its own.  In one group
 * for all of them, each new file would look past the inodes of every file that was removed in the last minute, thousands in a run (up to 4 %
 * of its time).  Where the file system knows no such flag nothing is lost. */
static void spread_folders(const char *work)
{
    int flags = 0;
    const int fd = open(work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= FS_TOPDIR_FL;
        (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
    }
    close(fd);
}

assay_status parity_report_folder_work(const char *dir)
{
    char work[ASSAY_PATH + 16];
    int fd = -1;
    snprintf(work, sizeof work, "%s/work", dir);
    if (access(work, F_OK) == 0) {
        ASSAY_TRY(open_marker(work, &fd)); /* a user's own folder of this name is refused */
        close(fd);
        ASSAY_TRY(assay_remove_tree(work, dir));
    }
    ASSAY_TRY(assay_mkdir_p(work));
    spread_folders(work);
    ASSAY_TRY(open_marker(work, &fd));
    const assay_status st = write_marker(fd, work);
    close(fd);
    return st;
}

assay_status parity_report_folder_clear(const char *dir)
{
    static const char *const files[] = {"results.jsonl", "junit.xml", "index.html", "facts.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[ASSAY_PATH + 16];
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        ASSAY_CHECK(unlink(path) == 0 || errno == ENOENT, ASSAY_IO, "%s: cannot be removed: %s", path,
                    strerror(errno));
    }
    return ASSAY_OK;
}

/* NAME.safetensors and NAME.lock, where NAME is a SHA-256 (parity/checks/whole_store.c). */
static bool is_run(const char *name)
{
    const size_t digits = strspn(name, "0123456789abcdef");
    return digits == 64 &&
           (strcmp(name + digits, ".safetensors") == 0 || strcmp(name + digits, ".lock") == 0);
}

assay_status parity_report_folder_drop_runs(const char *case_dir)
{
    DIR *d = opendir(case_dir);
    ASSAY_CHECK(d != NULL || errno == ENOENT, ASSAY_IO, "%s: %s", case_dir, strerror(errno));
    int error = 0;
    const struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL)
        if (is_run(e->d_name) && unlinkat(dirfd(d), e->d_name, 0) != 0)
            error = errno;
    if (d != NULL)
        closedir(d);
    ASSAY_CHECK(error == 0, ASSAY_IO, "%s: a reference run cannot be removed: %s", case_dir, strerror(error));
    return ASSAY_OK;
}
