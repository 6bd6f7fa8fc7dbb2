/* The ranks of a collective under trial: threads of one process that take turns.  One rank runs at a time, and who goes on is decided
 * where a rank calls the communicator, in an order that the trial chooses: a result that depends on who comes first differs between
 * orders, and memory that is read before its writer came by is still garbage.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_COMM_H
#define PARITY_CERTIFY_COMM_H

#include "parity/certify/certify.h"

enum { COMM_RANKS = 8 };

typedef enum {
    COMM_ASCENDING,  /* the lowest rank that can go on */
    COMM_DESCENDING, /* the highest */
    COMM_SHUFFLED    /* drawn at every turn */
} comm_order;

/* How messages and barriers go where tensors lie on a device.  0, or an error of the runtime, which error_name() names. */
typedef struct comm_carrier {
    void *user;
    int (*post)(void *user, int from, const void *data, size_t bytes, void **handle);
    int (*take)(void *user, int to, void *handle, void *data, size_t bytes);
    int (*arrive)(void *user, int rank); /* at a barrier */
    int (*leave)(void *user, int rank);  /* where all have arrived */
    const char *(*error_name)(void *user, int error);
} comm_carrier;

typedef struct comm_world comm_world;
/* Threads for n ranks, which wait. */
assay_status comm_create(comm_world **out, int n);
void comm_destroy(comm_world *w);
/* NULL: host memory. */
void comm_carry(comm_world *w, const comm_carrier *carrier);
/* What rank r hands to its kernel; valid until the next comm_begin. */
const assay_kernel_comm *comm_of(comm_world *w, int rank);
/* A new call: forgets messages; `takes_part` and `workspace` by rank. */
void comm_begin(comm_world *w, const bool *takes_part, void *const *workspace, comm_order order,
                uint64_t seed);
/* body(user, rank) on every rank that takes part, or on rank `only` of them alone (-1: all), each on its thread, until all have
 * returned. */
void comm_run(comm_world *w, int only, void (*body)(void *user, int rank), void *user);
/* What the ranks did wrong with each other; NULL: nothing. */
const char *comm_finding(const comm_world *w);

#endif
