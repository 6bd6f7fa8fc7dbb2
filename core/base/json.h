/* Strict JSON on top of Jansson: duplicate keys refused, depth and size limited, errors with file, line and
 * column. The typed getters name the path of a wrong member ("config.json: rope_scaling.factor: expected a
 * number, found a string").  Jansson objects are used directly (json_t); this header adds only what Jansson
 * does not check. */
#ifndef ASSAY_CORE_JSON_H
#define ASSAY_CORE_JSON_H

#include "core/base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

enum { ASSAY_JSON_MAX_DEPTH = 64 };
#define ASSAY_JSON_MAX_BYTES ((size_t)256 << 20)

/* Parses exactly one JSON value (white space around it is legal).  `what` names the source in messages.
 * ASSAY_LIMIT: larger than ASSAY_JSON_MAX_BYTES or deeper than ASSAY_JSON_MAX_DEPTH; ASSAY_FORMAT: anything
 * else. */
assay_status assay_json_parse(json_t **out, const char *text, size_t bytes, const char *what);
assay_status assay_json_load(json_t **out, const char *path);
/* Writes beside, syncs, renames (core/files/tensorfile.h has the same promise for tensors). */
assay_status assay_json_save(const json_t *root, const char *path);

/* Typed members of `object`.  `required` false: an absent (or null) member leaves *out untouched and returns
 * ASSAY_OK. `what` is the path of the object for messages.  Ranges are inclusive. */
assay_status assay_json_get_i64(const json_t *object, const char *key, bool required, int64_t min,
                                int64_t max, const char *what, int64_t *out);
/* Accepts integers and reals; refuses non-finite values and values outside [min, max]. */
assay_status assay_json_get_double(const json_t *object, const char *key, bool required, double min,
                                   double max, const char *what, double *out);
assay_status assay_json_get_bool(const json_t *object, const char *key, bool required, const char *what,
                                 bool *out);
/* Copies into out[capacity]; ASSAY_LIMIT when it does not fit. */
assay_status assay_json_get_string(const json_t *object, const char *key, bool required, const char *what,
                                   char *out, size_t capacity);
/* Every member of `object` must be one of the NULL-terminated `allowed`; names the first that is not. */
assay_status assay_json_only(const json_t *object, const char *const *allowed, const char *what);

ASSAY_END_DECLS

#endif
