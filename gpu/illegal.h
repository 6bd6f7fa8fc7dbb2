/* Calls that break the contract, made of legal ones: what `assay certify --engine` asks of every operation.  The program runs them
 * one after the other; each has to be refused, before anything is written. */
#ifndef GPU_ILLEGAL_H
#define GPU_ILLEGAL_H

#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

/* `ops --illegal FILE`: FILE is a JSON array; each entry takes one record of the request and breaks one thing of it:
 *   {"record":3, "slot":"x", "what":"absent"}                            before the table of operations sees the call
 *   {"record":3, "slot":"x", "what":"extent", "value":1, "kernel":true}  behind the table: what the operation's own function gets
 *   {"record":3, "attr":"eps", "value":-1}                               "what":"absent": without it
 *   {"record":3, "operation":"add_"}   {"variant":"rmsnorm=k99"}   {"record":3, "what":"workspace", "kernel":true}
 * what: absent; no_data: a pointer that is NULL; dtype: "value" names it; extent: one more in dimension "value"; empty: 0 in dimension
 * "value"; negative: -1 in dimension 0; index: element 0 is "value"; unknown: a slot that no row has; workspace: one byte less than is asked for;
 * behind the table also address: one byte behind.
 * `out` gets a line before each entry, {"entry":0}, so that a crash has a name, and one behind it,
 * {"entry":0, "status":"INVALID_ARGUMENT", "message":"..."}; status OK: it was accepted, NOTHING: there was nothing to break (no workspace).  Ends at the first entry whose status is neither
 * OK nor a refusal (gpu_execute): what comes behind a fault of the device says nothing. */
assay_status gpu_ops_illegal_verb(const char *request, const char *illegal, const char *out,
                                  const char *variants);

ASSAY_END_DECLS

#endif
