/* Collectives in lockstep: loops over the members of one group, in rank order.
 *
 * Arrays of pointers are indexed by the member's position in the group.  Sums start at 0.0 and add member 0,
 * 1, 2, ...; uneven pieces and pieces of 0 elements are legal. */
#ifndef REF_PARALLEL_COLLECTIVES_H
#define REF_PARALLEL_COLLECTIVES_H

#include <stdint.h>

/* data[i] [count] = sum over members, on every member */
void ref_all_reduce(double *const *data, int n, int64_t count);
/* data[i] [count] = max over members; a NaN wins */
void ref_all_reduce_max(double *const *data, int n, int64_t count);
void ref_all_reduce_i64(int64_t *const *data, int n, int64_t count);
/* recv[i] [sum counts] = send[0], send[1], ... one after the other; send[j] [counts[j]] */
void ref_all_gather(double *const *recv, double *const *send, const int64_t *counts, int n);
/* recv[i] [counts[i]] = sum over members of their piece i; send[j] [sum counts] */
void ref_reduce_scatter(double *const *recv, double *const *send, const int64_t *counts, int n);
/* counts [n,n]: member i sends counts[i*n+j] elements to member j, its send buffer ordered by j; recv of j is
 * ordered by i. */
void ref_all_to_all(double *const *recv, double *const *send, const int64_t *counts, int n);
/* data[i] = data[root] */
void ref_broadcast(double *const *data, int root, int n, int64_t count);
void ref_send_recv(double *recv, const double *send, int64_t count);

#endif
