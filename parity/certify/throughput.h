/* How fast a kernel on a device is, beside the device and the engine's kernel.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_THROUGHPUT_H
#define PARITY_CERTIFY_THROUGHPUT_H

#include "parity/certify/certify.h"

enum { THROUGHPUT_RUNS = 20, THROUGHPUT_SIZES = 2 };

/* Times the library at up to THROUGHPUT_SIZES large sizes that it takes, in each dtype of activations, and the engine of the same tier
 * on the same requests: r->throughput.  Where that cannot be, r->no_throughput says why.  Information: no trial fails by a number; a
 * library that crashes or hangs at these sizes fails `crash` or `time`. */
assay_status certify_throughput(const certify_options *o, const char *work, const char *tier,
                                certify_result *r);
/* What one size's times say; peaks: of the engine, NULL: none.  engine: its seconds, NULL: none.  The object is the caller's. */
json_t *throughput_row(const json_t *mine, const json_t *peaks, const json_t *engine);
/* The table, for people. */
void throughput_print(const certify_result *r, FILE *out);

#endif
