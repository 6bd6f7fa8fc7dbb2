/* Small synthetic traces for tests of the judge. */
#ifndef TESTS_PARITY_FIXTURE_H
#define TESTS_PARITY_FIXTURE_H

#include "core/base/file.h"
#include "parity/parity.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void must(assay_status st)
{
    if (st != ASSAY_OK)
        assay_error_print(stderr, "test", 1);
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

/* A fresh folder path (not created). */
static inline char *fresh_path(char out[256], const char *name)
{
    char base[64] = "/tmp/assay-parity-XXXXXX";
    cr_assert_not_null(mkdtemp(base));
    snprintf(out, 256, "%s/%s", base, name);
    return out;
}

static inline void remove_path(const char *path)
{
    char base[256];
    snprintf(base, sizeof base, "%s", path);
    *strrchr(base, '/') = '\0';
    must(assay_remove_tree(base, "/tmp"));
}

/* A copy of the trace BASE/NAME of one rank and step in `dir` where each `from` of `file` (NULL: of all records and the header) is
 * `to`, padded with blanks. */
static inline void copy_altered(char dir[256], const char *base, const char *name, const char *file,
                                const char *from, const char *to)
{
    static const char *const files[] = {"index.json", "rank-00000.jsonl",
                                        "rank-00000-step-00000.safetensors"};
    int changed = 0;
    must(assay_mkdir_p(fresh_path(dir, "t")));
    for (int i = 0; i < 3; i++) {
        char path[512], *text;
        uint64_t bytes;
        const bool here = file != NULL ? strcmp(files[i], file) == 0 : i < 2;
        snprintf(path, sizeof path, "%s/%s/%s", base, name, files[i]);
        must(assay_read_file(path, 1 << 24, &text, &bytes));
        for (char *at = text; here && (at = strstr(at, from)) != NULL; changed++) {
            memset(at, ' ', strlen(from));
            memcpy(at, to, strlen(to));
        }
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        must(assay_write_file(path, text, bytes));
        free(text);
    }
    cr_assert_gt(changed, 0, "%s: no %s", file != NULL ? file : name, from);
}

static inline assay_trace_writer *open_writer(const char *dir, int rank, int world, const char *layout)
{
    assay_trace_writer *w;
    json_t *header = json_object();
    if (layout)
        json_object_set_new(header, "layout", json_string(layout));
    json_object_set_new(header, "engine", json_string("sim"));
    must(assay_trace_writer_open(&w, dir, rank, world, header, false));
    json_decref(header);
    return w;
}

static inline void close_writer(assay_trace_writer *w)
{
    must(assay_trace_end_step(w));
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
}

static inline assay_trace_tensor tensor_of(const char *name, assay_phase phase, assay_dtype dtype, int ndim,
                                           const int64_t *shape)
{
    assay_trace_tensor t;
    memset(&t, 0, sizeof t);
    snprintf(t.name, sizeof t.name, "%s", name);
    t.phase = phase;
    t.microbatch = 0;
    t.dtype = dtype;
    t.kind = ASSAY_PIECE_SHARD;
    t.rows_id = -1;
    assay_shard_whole(&t.shard, shape, ndim);
    return t;
}

/* Whole F32 tensor; returns the record's id. */
static inline int64_t put_f32(assay_trace_writer *w, const char *name, assay_phase phase, int64_t rows,
                              int64_t columns, const float *data)
{
    const int64_t shape[2] = {rows, columns};
    assay_trace_tensor t = tensor_of(name, phase, ASSAY_F32, 2, shape);
    must(assay_trace_write_tensor(w, &t, data));
    return t.id;
}

static inline int64_t put_vector_f32(assay_trace_writer *w, const char *name, int64_t n, const float *data)
{
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_FORWARD, ASSAY_F32, 1, &n);
    must(assay_trace_write_tensor(w, &t, data));
    return t.id;
}

/* Rows [start, start+length) of a matrix of `rows` rows. */
static inline int64_t put_rows_f32(assay_trace_writer *w, const char *name, int64_t rows, int64_t columns,
                                   int64_t start, int64_t length, const float *data)
{
    const int64_t shape[2] = {rows, columns};
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_FORWARD, ASSAY_F32, 2, shape);
    must(assay_shard_narrow(&t.shard, 0, start, length));
    must(assay_trace_write_tensor(w, &t, data));
    return t.id;
}

static inline assay_trace_op op_of(const char *op, const char *instance, assay_phase phase)
{
    assay_trace_op o;
    memset(&o, 0, sizeof o);
    snprintf(o.op, sizeof o.op, "%s", op);
    snprintf(o.instance, sizeof o.instance, "%s", instance);
    o.phase = phase;
    o.arith = assay_declaration_make(assay_arith_elementwise());
    return o;
}

static inline void op_in(assay_trace_op *o, const char *slot, int64_t id)
{
    snprintf(o->inputs[o->n_inputs].slot, ASSAY_SLOT_NAME, "%s", slot);
    o->inputs[o->n_inputs++].tensor = id;
}

static inline void op_out(assay_trace_op *o, const char *slot, int64_t id)
{
    snprintf(o->outputs[o->n_outputs].slot, ASSAY_SLOT_NAME, "%s", slot);
    o->outputs[o->n_outputs++].tensor = id;
}

static inline assay_trace *open_trace(const char *dir)
{
    assay_trace *t;
    must(assay_trace_open(&t, dir, true));
    return t;
}

static inline parity_report *new_report(void)
{
    parity_report *r;
    must(parity_report_create(&r));
    return r;
}

/* What local says of the trace in `dir`, which is removed. */
static inline parity_report *judge_local(const char *dir)
{
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_local(t, r));
    assay_trace_close(t);
    remove_path(dir);
    return r;
}

/* First failed result, or NULL. */
static inline const parity_claim *first_failure(const parity_report *r)
{
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        if (parity_report_at(r, i)->verdict == PARITY_FAIL)
            return parity_report_at(r, i);
    }
    return NULL;
}

static inline int64_t n_failed(const parity_report *r)
{
    int64_t passed, failed, skipped;
    parity_report_totals(r, &passed, &failed, &skipped);
    return failed;
}

static inline int64_t n_passed(const parity_report *r)
{
    int64_t passed, failed, skipped;
    parity_report_totals(r, &passed, &failed, &skipped);
    return passed;
}

static inline int64_t n_skipped(const parity_report *r)
{
    int64_t passed, failed, skipped;
    parity_report_totals(r, &passed, &failed, &skipped);
    return skipped;
}

static inline void print_failures(const parity_report *r)
{
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *x = parity_report_at(r, i);
        if (x->verdict == PARITY_FAIL)
            fprintf(stderr, "FAIL %s %s %s %s: %s [%s]\n", parity_check_name(x->check), x->op, x->instance,
                    x->tensor, x->message, x->diagnosis);
    }
}

/* assay diff of two traces: its exit code; text: what it prints. */
static inline int diff_traces_text(const char *a, const char *b, const parity_diff_options *o,
                                   char text[8192])
{
    int code = -1;
    FILE *out = tmpfile();
    must(parity_diff_traces(a, b, o, out, &code));
    rewind(out);
    const size_t n = fread(text, 1, 8191, out);
    text[n] = '\0';
    fclose(out);
    return code;
}

static inline int diff_text(const char *a, const char *b, double tolerance, char text[8192])
{
    const parity_diff_options o = {.tolerance = tolerance};
    return diff_traces_text(a, b, &o, text);
}

#endif
