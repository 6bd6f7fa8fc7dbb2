/* Asynchronous saves: each rank copies its pieces into memory that a writer process of its own inherits, and trains on.  The
 * writers (this program, started again: no fork of a process with threads or a device) write, seal and publish as ranks of an
 * ordinary save do.  Once every rank has committed nothing that happens to the trainers matters; before, nothing is published.
 *
 *   rank 0 opens the writer, then the others; every rank:
 *   assay_checkpoint_defer; assay_checkpoint_add ...; assay_async_save_start
 *   all ranks synchronize
 *   assay_async_save_commit; steps, assay_async_save_poll behind each; assay_async_save_wait before the next save and at the end */
#ifndef ASSAY_CORE_CHECKPOINT_ASYNC_H
#define ASSAY_CORE_CHECKPOINT_ASYNC_H

#include "core/files/checkpoint.h"

ASSAY_BEGIN_DECLS

/* First of all in main: in a process that was started as a writer it does that work, sets the exit code and returns true. */
bool assay_async_writer(int argc, char **argv, int *code);

/* The writer's pieces are copied into memory (a file without a name: gone with the last process that has it open). */
assay_status assay_checkpoint_defer(assay_checkpoint_writer *w);

/* What rank 0's writer does behind the publication: assay_checkpoint_folder_add. */
typedef struct assay_async_folder {
    const char *run; /* NULL: not a folder of checkpoints */
    double loss;
    int64_t keep;
} assay_async_folder;
typedef struct assay_async_save assay_async_save;
/* Starts this rank's writer process; `w` may be destroyed.  state: of rank 0, else NULL. */
assay_status assay_async_save_start(assay_async_save **out, const assay_checkpoint_writer *w,
                                    const json_t *state, const assay_async_folder *folder);
/* Every rank has started its own: the writers may go on. */
assay_status assay_async_save_commit(assay_async_save *s);
/* *s NULL or still at work: ASSAY_OK; over: freed, *s NULL.  ASSAY_CHILD: the writer failed, with its message. */
assay_status assay_async_save_poll(assay_async_save **s);
assay_status assay_async_save_wait(assay_async_save **s);
/* This process ends in an error: a committed save goes on without it, another one is given up. */
void assay_async_save_leave(assay_async_save **s);

ASSAY_END_DECLS

#endif
