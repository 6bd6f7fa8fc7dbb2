/* Files and folders: whole files, folders, trees. */
#ifndef ASSAY_CORE_FILE_H
#define ASSAY_CORE_FILE_H

#include "core/base/status.h"
#include <limits.h>
#include <stdint.h>
#include <stdio.h>

ASSAY_BEGIN_DECLS

/* mkdir -p: the last component must not be a symbolic link. */
assay_status assay_mkdir_p(const char *path);
/* mkdir -p of the folder in which `path` lies: any of its components may be a link to a folder, as `runs` often is one into a scratch file
 * system; what is made as `path` is new there. */
assay_status assay_mkdir_above(const char *path);
/* The folder in which a path lies, in its place: of `a/b//` and `a/b` a, of `/a` the root, of `a` (a name of a byte or more) ".". */
void assay_cut_name(char *path);
/* Renames the folder `from` as `to`, which must not exist (EEXIST; rename alone would replace an empty folder).  0, or errno. */
int assay_rename_folder(const char *from, const char *to);
/* The tree must lie strictly below `root_must_contain` (both resolved) and not be a link itself; links inside
 * are unlinked, never followed; an absent tree is ASSAY_OK. */
assay_status assay_remove_tree(const char *path, const char *root_must_contain);
/* A new folder in TMPDIR (else /tmp) for what one run needs: assay-WORD-...; out [capacity] is its path. */
assay_status assay_scratch_make(const char *word, char *out, size_t capacity);
/* Removes it.  What stays harms no verdict: a warning names it, and an error that is on its way keeps its message. */
void assay_scratch_remove(const char *dir);
/* Writes bytes beside, fsyncs, renames, fsyncs the folder. */
assay_status assay_write_file(const char *path, const void *data, uint64_t bytes);
/* The same of what `put` writes, which is never in memory as a whole.  A status that it returns is handed on, and leaves no file; what
 * f could not take is found here. */
typedef assay_status (*assay_file_put)(void *user, FILE *f);
assay_status assay_write_file_by(const char *path, assay_file_put put, void *user);
/* A name beside `path` that nobody has and nobody can foresee, .NAME.tmp-RANDOM: of a new file (*fd < 0, then open for reading and writing), or
 * of the one that is open and has none.  0, or errno. */
int assay_name_beside(const char *path, char beside[PATH_MAX], int *fd);
/* pwrite until all is written: 0, or errno (ENOSPC where nothing more is taken without a word). */
int assay_pwrite_all(int fd, const void *data, int64_t bytes, int64_t offset);
/* Makes f write in blocks of 64 KiB.  Before its first output; the buffer is freed by the caller once f is closed.  NULL: no memory, and f keeps
 * its own. */
void *assay_buffer_file(FILE *f);
/* fsync; nothing where the environment says ASSAY_FSYNC=0, as `assay run` does for what its tasks write into their scratch
 * folders.  `path` is for the message. */
assay_status assay_sync_file(int fd, const char *path);
/* The same of the folder in which `path` lies: a new name is only safe on disk once its folder is. */
assay_status assay_sync_folder_of(const char *path);
/* Reads a whole regular file; refuses more than `limit` bytes.  *out is NUL-terminated and freed by the
 * caller. */
assay_status assay_read_file(const char *path, uint64_t limit, char **out, uint64_t *bytes);

ASSAY_END_DECLS

#endif
