/* Memory of a call between pages that nobody may touch, and what a fault in them says.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_GUARD_H
#define PARITY_CERTIFY_GUARD_H

#include "parity/certify/certify.h"

#include <stddef.h>

enum { GUARD_BUFFERS = ASSAY_OP_SLOTS + 2 };

typedef enum {
    GUARD_END,  /* the last byte stands before the page behind: one element too far is a fault */
    GUARD_START /* the first byte stands behind the page before, no better aligned than was declared */
} guard_place;

typedef struct guard_buffer {
    char name[32];
    unsigned char *map; /* page, room, page */
    size_t room;
    unsigned char *data; /* of the call that is prepared */
    size_t bytes;
    unsigned char *low, *high; /* from here to there lie the data and what is looked at around them */
    bool is_input;
    bool taken; /* by the call that is prepared */
    void *twin; /* device memory that stands for low to high */
    size_t twin_bytes;
} guard_buffer;

typedef struct guard_arena {
    guard_buffer buffer[GUARD_BUFFERS];
    int n;
    char of[16]; /* " of rank 2" */
    /* The buffers have twins on a device: room on both sides instead of pages; in the simulator, which guards the end of every
     * allocation itself, none behind GUARD_END. */
    bool on_device, ends_guarded;
} guard_arena;

/* Handlers of faults, of SIGABRT and of the timer: the board says what happened, and the process ends. */
assay_status guard_begin(certify_board *board, guard_arena *arena);
/* Faults are looked up in these buffers, too. */
void guard_add(const guard_arena *arena);
/* Runs `body` while the calling thread has a stack for the handlers. */
void guard_thread(void (*body)(void *user), void *user);
/* Asked by the handler of a fault that lies in no buffer: whether the simulator has said more about it. */
void guard_explain(bool (*why)(char *text, size_t capacity));
/* Whether the kernel's code runs: a fault outside of it is none of its findings. */
void guard_inside(bool inside);
/* Seconds that the next call may take; 0 ends the limit. */
void guard_limit(double seconds);

/* A buffer for `bytes`, all of its surroundings `fill`. */
assay_status guard_take(guard_arena *a, int index, const char *name, size_t bytes, size_t align,
                        guard_place place, unsigned char fill);
/* No buffer is taken from here on. */
void guard_clear(guard_arena *a);
/* Inputs of a call can be read alone until they are unlocked. */
assay_status guard_lock(guard_arena *a, int index, bool locked);
/* Bytes around the data that are not `fill`: distance of the nearest behind the end, or before the start as a negative number; 0. */
int64_t guard_damage(const guard_buffer *b, unsigned char fill);
void guard_free(guard_arena *a);

#endif
