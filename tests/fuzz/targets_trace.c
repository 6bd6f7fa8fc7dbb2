/* Traces. */
#include "core/files/trace_internal.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void walk(const assay_trace *t)
{
    for (int rank = 0; rank < assay_trace_world(t); rank++) {
        for (int64_t i = 0; i < assay_trace_n_tensors(t, rank); i++) {
            const assay_trace_tensor *r = assay_trace_tensor_at(t, rank, i);
            FUZZ_LAW(assay_trace_tensor_by_id(t, rank, r->id) == r, "record %lld", (long long)r->id);
            if (r->data != NULL)
                (void)fuzz_touch(r->data, r->bytes);
            if (r->kind == ASSAY_PIECE_ROWS)
                FUZZ_LAW(assay_trace_tensor_by_id(t, rank, r->rows_id) != NULL, "rows");
            if (r->has_scale)
                FUZZ_LAW(assay_trace_tensor_by_id(t, rank, r->scale_id) != NULL, "scale");
        }
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            FUZZ_LAW(json_is_object(op->attrs), "attrs");
            for (int k = 0; k < op->n_inputs; k++)
                FUZZ_LAW(assay_trace_op_tensor(t, op, op->inputs[k].slot) != NULL, "%s", op->inputs[k].slot);
            for (int k = 0; k < op->n_outputs; k++)
                FUZZ_LAW(assay_trace_op_tensor(t, op, op->outputs[k].slot) != NULL, "%s",
                         op->outputs[k].slot);
            for (int k = 0; k < op->n_group_ranks; k++)
                FUZZ_LAW(op->group_ranks[k] >= 0 && op->group_ranks[k] < assay_trace_world(t), "group");
        }
        const char *why = assay_trace_aborted(t, rank);
        FUZZ_LAW(why == NULL || why[0] != '\0', "aborted");
    }
}

void fuzz_trace(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"index.json",
                                        "rank-00000.jsonl",
                                        "rank-00001.jsonl",
                                        "rank-00000-step-00000.safetensors",
                                        "rank-00000-step-00001.safetensors",
                                        "rank-00001-step-00000.safetensors",
                                        NULL};
    fuzz_section sections[FUZZ_SECTIONS];
    const int n = fuzz_sections(data, bytes, names, sections);
    assay_trace *t;
    if (n == 0)
        return;
    fuzz_write_sections(sections, n);
    for (int verify = 0; verify < 2; verify++) {
        if (assay_trace_open(&t, fuzz_path(""), verify == 1) != ASSAY_OK)
            return;
        walk(t);
        assay_trace_close(t);
    }
}

static bool same_shard(const assay_shard *a, const assay_shard *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->global_shape[d] == b->global_shape[d] && a->local_shape[d] == b->local_shape[d] &&
               a->n_segments[d] == b->n_segments[d] &&
               (a->n_segments[d] == 0 || memcmp(a->segments[d], b->segments[d],
                                                (size_t)a->n_segments[d] * sizeof *a->segments[d]) == 0);
    return same;
}

/* What the quick reader of records accepts, the strict one accepts, and reads the same. */
void fuzz_record(const uint8_t *data, size_t bytes)
{
    static assay_trace_tensor quick, strict;
    char key[ASSAY_TRACE_KEY];
    json_t *line;
    char *text = malloc(bytes + 1);
    FUZZ_LAW(text != NULL, "%zu bytes", bytes);
    if (bytes > 0)
        memcpy(text, data, bytes);
    const bool accepted = assay_trace_tensor_from_text(text, bytes, &quick);
    const bool is_json = assay_json_parse(&line, text, bytes, "line") == ASSAY_OK;
    free(text);
    FUZZ_LAW(!accepted || is_json, "a record that is no JSON");
    if (!is_json)
        return;
    const bool also = assay_trace_tensor_from_json(line, &strict, key) == ASSAY_OK;
    FUZZ_LAW(!accepted || also, "%s", assay_error_message());
    if (accepted)
        FUZZ_LAW(quick.id == strict.id && strcmp(quick.name, strict.name) == 0 &&
                     quick.phase == strict.phase && quick.step == strict.step &&
                     quick.microbatch == strict.microbatch && quick.dtype == strict.dtype &&
                     quick.kind == strict.kind && quick.rows_id == strict.rows_id &&
                     quick.has_scale == strict.has_scale && quick.scale_id == strict.scale_id &&
                     quick.bytes == strict.bytes && strcmp(quick.hash, strict.hash) == 0 &&
                     strcmp(quick.partial_group, strict.partial_group) == 0 && key[0] == '\0' &&
                     same_shard(&quick.shard, &strict.shard),
                 "record %lld read otherwise", (long long)quick.id);
    if (json_is_string(json_object_get(line, "op"))) {
        assay_trace_op op;
        if (assay_trace_op_from_json(line, 0, 4, &op) == ASSAY_OK)
            FUZZ_LAW(op.n_inputs <= ASSAY_MAX_SLOTS && op.n_outputs <= ASSAY_MAX_SLOTS, "slots");
        json_decref(op.attrs);
        free((void *)(uintptr_t)op.group_ranks);
    }
    json_decref(line);
}
