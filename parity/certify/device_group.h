/* The ranks of a collective whose tensors lie in device memory: one device, a stream for each rank.  Private to parity/certify/.
 *
 * What comm does on a device (parity/assay_kernel.h), in functions of the runtime: a message is copied on the sender's stream into memory of its
 * own and an event is recorded there; the receiver's stream waits for the event and copies.  At a barrier each stream records an event, and
 * waits for those of the others.  Nothing waits on the host but for its turn. */
#ifndef PARITY_CERTIFY_DEVICE_GROUP_H
#define PARITY_CERTIFY_DEVICE_GROUP_H

#include "parity/certify/comm.h"
#include "parity/certify/device_call.h"

typedef struct device_group device_group;
/* name(user, rank): the board's `now` becomes that rank's call.  ASSAY_UNSUPPORTED: the device makes no streams or events. */
assay_status device_group_create(device_group **out, certify_device *d, certify_board *board,
                                 void (*name)(void *user, int rank), void *user);
void device_group_destroy(device_group *g);
/* For comm_carry(). */
const comm_carrier *device_group_carrier(device_group *g);
/* A new call has no ranks; then each that takes part gets its twins.  Returns its workspace's address on the device. */
void device_group_begin(device_group *g);
void *device_group_add(device_group *g, int rank, const call_record *r, const call_ready *c);
/* Runs them (`only`: that rank alone, -1: all that were added), looks at everything; code by rank. */
void device_group_run(device_group *g, comm_world *w, int only, int32_t *code);

#endif
