/* Shared by trace_writer.c, trace_reader.c and trace_record.c only. */
#ifndef ASSAY_CORE_TRACE_INTERNAL_H
#define ASSAY_CORE_TRACE_INTERNAL_H

#include "core/files/trace.h"

#define ASSAY_TRACE_FORMAT "assay-trace"
enum { ASSAY_TRACE_VERSION = 1, ASSAY_TRACE_MAX_LINE = 1 << 20 };

/* DIR/index.json, DIR/rank-00000.jsonl, DIR/rank-00000-step-00000.safetensors.  ASSAY_LIMIT: path too long.
 */
assay_status assay_trace_index_path(const char *dir, char *out, size_t capacity);
assay_status assay_trace_rank_path(const char *dir, int rank, char *out, size_t capacity);
assay_status assay_trace_data_path(const char *dir, int rank, int64_t step, char *out, size_t capacity);

assay_status assay_piece_kind_from_name(const char *name, assay_piece_kind *out);

/* Whether the piece is the whole tensor: one full segment per dimension. */
bool assay_trace_is_whole(const assay_shard *s);
/* What a record must satisfy by itself: name, step, microbatch, shard, members that belong to its kind; fills
 * t->bytes. */
assay_status assay_trace_check_tensor(assay_trace_tensor *t);
/* The rows record of a ROWS record: 1-D I64 of local_shape[0] entries. */
assay_status assay_trace_check_rows(const assay_trace_tensor *t, const assay_trace_tensor *rows);

/* The scale record of a scaled one: floating point; one element, or one for each block: as many dimensions as t,
 * and k blocks of ceil(n / k) cover n elements of a dimension. */
assay_status assay_trace_check_scale(const assay_trace_tensor *t, const assay_trace_tensor *scale);

/* Ranks of a collective: *problem is the first entry that is outside the world or there twice, -1 when there is
 * none.  ASSAY_FORMAT: `rank` is not among them. */
assay_status assay_trace_check_group(const int *ranks, int n, int world, int rank, int *problem);

/* An arithmetic of its own has only an output that the record has.  ASSAY_FORMAT names it. */
assay_status assay_trace_check_declaration(const assay_trace_op *op);

/* A record from its JSON line, validated by itself; `hash` and *key are "" when absent (key: room for
 * 4096). */
enum { ASSAY_TRACE_KEY = 256 };
assay_status assay_trace_tensor_from_json(const json_t *line, assay_trace_tensor *t,
                                          char key[ASSAY_TRACE_KEY]);
/* The same from the text of a line exactly as assay_trace_write_tensor writes it; false where it is not (and *t is then
 * unspecified).  Such a record has no key: its data lies under its hash. */
bool assay_trace_tensor_from_text(const char *text, size_t bytes, assay_trace_tensor *t);
/* Slots name records by id; that these exist is for the caller to check.  Allocates attrs (a reference) and
 * group_ranks. */
assay_status assay_trace_op_from_json(const json_t *line, int rank, int world, assay_trace_op *op);
/* What lines of operations of one rank have between their numbers and their slots (declarations, attributes, group), each as
 * the JSON reader read it when it came first. */
typedef struct assay_trace_parts assay_trace_parts;
assay_trace_parts *assay_trace_parts_create(void);
void assay_trace_parts_destroy(assay_trace_parts *p);
/* Remembers the part of a line that was read as *op, where it is one that the writer puts. */
void assay_trace_parts_add(assay_trace_parts *p, const char *text, size_t bytes, const assay_trace_op *op);
/* assay_trace_op_from_json from the text of a line whose part is known; false where it is not (and *op then owns nothing). */
bool assay_trace_op_from_text(const assay_trace_parts *p, const char *text, size_t bytes, int rank,
                              assay_trace_op *op);

#endif
