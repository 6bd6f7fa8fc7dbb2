/* Times of a library on a device: requests of large sizes, the child's times, the engine's, and what they say together. */
#include "parity/certify/throughput.h"
#include "parity/certify/shapes.h"

#include "core/base/file.h"
#include "parity/checks/random_request.h"
#include "parity/run/engine.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const acts[] = {"F32", "BF16"};

/* --- requests ----------------------------------------------------------------------------------------------- */
static const parity_ask_large_row *large_row(const char *op)
{
    for (const parity_ask_large_row *row = parity_ask_large_table; row->op != NULL; row++)
        if (strcmp(row->op, op) == 0)
            return row;
    return NULL;
}

static const char *text_of(const certify_result *r, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(r->subject, "description"), key));
    return text != NULL ? text : "";
}

static bool takes_dtype(const certify_result *r, const char *act)
{
    const json_t *dtypes = json_object_get(json_object_get(r->subject, "description"), "dtypes");
    for (size_t i = 0; i < json_array_size(dtypes); i++)
        if (strcmp(json_string_value(json_array_get(dtypes, i)), act) == 0)
            return true;
    return false;
}

/* The sizes that the description takes, largest first; how many. */
static int choose_sizes(const certify_result *r, const char *sizes[THROUGHPUT_SIZES])
{
    const parity_ask_large_row *row = large_row(r->op->name);
    int n = 0;
    for (int i = 0; row != NULL && i < ASK_LARGE_SIZES && row->sizes[i] != NULL && n < THROUGHPUT_SIZES;
         i++) {
        assay_op_binding binding;
        char why[96];
        if (parity_ask_bind(r->op, row->sizes[i], &binding) == ASSAY_OK &&
            certify_shapes_take(text_of(r, "shapes"), r->op, &binding, NULL, why, sizeof why) == 1)
            sizes[n++] = row->sizes[i];
        assay_error_clear();
    }
    return n;
}

static assay_status write_request(const char *path, const char *act, const char *op, const char *const *sizes,
                                  int n)
{
    int rank = 0;
    parity_ask q = {.world = 1, .ranks = &rank, .tier = "time", .only = op, .n = 1};
    json_t *header =
        json_pack("{s:s, s:s}", "engine", "request", "precision", strcmp(act, "F32") == 0 ? "fp32" : "bf16");
    q.st = assay_dtype_from_name(act, &q.act);
    if (q.st == ASSAY_OK)
        q.st = assay_trace_writer_open(&q.w, path, 0, 1, header, false);
    json_decref(header);
    for (int i = 0; i < n && q.st == ASSAY_OK; i++)
        parity_ask_size(&q, "time", op, sizes[i]);
    q.st = q.st == ASSAY_OK ? assay_trace_end_step(q.w) : q.st;
    q.st = q.st == ASSAY_OK ? assay_trace_writer_close(q.w) : q.st;
    assay_trace_writer_destroy(q.w);
    json_decref(q.attrs);
    return q.st;
}

/* --- what the numbers say ------------------------------------------------------------------------------------- */
static double number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) && json_number_value(v) > 0.0 ? json_number_value(v) : (double)NAN;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* {"min", "median", "runs"}; NULL: something that is no time. */
static json_t *summary(const json_t *seconds)
{
    double s[THROUGHPUT_RUNS];
    const size_t n = json_array_size(seconds);
    if (n == 0 || n > THROUGHPUT_RUNS)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        s[i] = json_number_value(json_array_get(seconds, i));
        if (!(s[i] >= 0.0 && s[i] < 1e9))
            return NULL;
    }
    qsort(s, n, sizeof *s, by_value);
    return json_pack("{s:f, s:f, s:I}", "min", s[0], "median",
                     n % 2 == 1 ? s[n / 2] : 0.5 * (s[n / 2 - 1] + s[n / 2]), "runs", (json_int_t)n);
}

static void put(json_t *row, const char *key, double value)
{
    json_object_set_new(row, key, isfinite(value) ? json_real(value) : json_null());
}

json_t *throughput_row(const json_t *mine, const json_t *peaks, const json_t *engine)
{
    json_t *times = summary(json_object_get(mine, "seconds"));
    if (times == NULL)
        return NULL;
    const double s = number(times, "median"), bytes = number(mine, "bytes"), flops = number(mine, "flops"),
                 copy = number(peaks, "copy_bytes_per_s"), product = number(peaks, "flops_per_s");
    /* the least time by either, of what is known */
    const double least = fmax(bytes / copy, flops / product);
    json_t *row = json_object(), *other = engine != NULL ? summary(json_object_get(engine, "seconds")) : NULL;
    json_object_set_new(row, "seconds", times);
    json_object_set(row, "bytes", json_object_get(mine, "bytes"));
    json_object_set(row, "flops", json_object_get(mine, "flops"));
    put(row, "bytes_per_s", bytes / s);
    put(row, "flops_per_s", flops / s);
    put(row, "share_of_copy", bytes / s / copy);
    put(row, "share_of_product", flops / s / product);
    put(row, "share_of_roofline", least / s);
    if (other == NULL) {
        json_object_set_new(row, "engine", json_null());
        return row;
    }
    json_object_set(row, "engine", other);
    json_object_set(other, "variant", json_object_get(engine, "variant"));
    put(other, "ratio", s / number(other, "median"));
    json_decref(other);
    return row;
}

/* --- the engine ----------------------------------------------------------------------------------------------- */

/* Its answer, of the same records; the caller's. */
static assay_status ask_engine(const certify_options *o, const char *tier, const char *work, const char *act,
                               json_t **out)
{
    char log[ASSAY_PATH], request[ASSAY_PATH], answer[ASSAY_PATH], runs[32], format[64];
    const char *extra[] = {request, answer, runs, NULL};
    parity_engine e;
    double wall;
    bool simulated = true;
    assay_train_options train;
    snprintf(log, sizeof log, "%.900s/engine-times.%s.log", work, act);
    snprintf(request, sizeof request, "--request=%.900s/time.%s", work, act);
    snprintf(answer, sizeof answer, "--out=%.900s/engine-times.%s.json", work, act);
    snprintf(runs, sizeof runs, "--time=%d", THROUGHPUT_RUNS);
    assay_train_options_default(&train);
    snprintf(train.layout, sizeof train.layout, "1");
    ASSAY_TRY(parity_engine_find(tier, o->program[0] != '\0' ? o->program : NULL, &e));
    const assay_status st = parity_engine_run(&e, "ops", &train, extra, log, true, o->limit, &wall);
    parity_engine_free(&e);
    ASSAY_TRY(st);
    ASSAY_TRY(assay_json_load(out, answer + strlen("--out=")));
    ASSAY_TRY(assay_json_get_string(*out, "format", true, "engine's times", format, sizeof format));
    ASSAY_TRY(assay_json_get_bool(*out, "simulated", true, "engine's times", &simulated));
    ASSAY_CHECK(strcmp(format, "assay-ops-times-1") == 0 && !simulated, ASSAY_MISMATCH,
                "engine's times: expected assay-ops-times-1 of a device, found %s%s", format,
                simulated ? " of the simulator" : "");
    return ASSAY_OK;
}

static const json_t *record_of(const json_t *list, const char *instance)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *found = json_string_value(json_object_get(json_array_get(list, i), "instance"));
        if (found != NULL && strcmp(found, instance) == 0)
            return json_array_get(list, i);
    }
    return NULL;
}

/* Rows of one dtype: instances are "time.OP.NUMBER", sizes in their order. */
static assay_status add_dtype(const certify_options *o, const char *tier, const char *work, const char *act,
                              const char *const *sizes, int n, const json_t *times, json_t *rows)
{
    json_t *engine = NULL;
    if (ask_engine(o, tier, work, act, &engine) != ASSAY_OK) {
        /* of the kernel's own times nothing is lost */
        json_decref(engine);
        engine = json_pack("{s:s}", "not_measured", assay_error_message());
        assay_error_clear();
    }
    const json_t *peaks = json_object_get(engine, "peak"), *why = json_object_get(engine, "not_measured");
    for (size_t i = 0, k = 0; i < json_array_size(times); i++) {
        const json_t *mine = json_array_get(times, i);
        const char *instance = json_string_value(json_object_get(mine, "instance")),
                   *of = json_string_value(json_object_get(mine, "act"));
        if (instance == NULL || of == NULL || strcmp(of, act) != 0 || k >= (size_t)n)
            continue;
        json_t *row = throughput_row(mine, peaks, record_of(json_object_get(engine, "operations"), instance));
        if (row == NULL) {
            json_decref(engine);
            ASSAY_FAIL(ASSAY_INTERNAL, "throughput: %s: expected seconds", instance);
        }
        json_object_set_new(row, "activations", json_string(act));
        json_object_set_new(row, "sizes", json_string(sizes[k++]));
        put(row, "copy_bytes_per_s", number(peaks, "copy_bytes_per_s"));
        put(row, "product_flops_per_s", number(peaks, "flops_per_s"));
        if (why != NULL)
            json_object_set(row, "engine_not_measured", (json_t *)(uintptr_t)why);
        json_array_append_new(rows, row);
    }
    json_decref(engine);
    return ASSAY_OK;
}

/* --- all ------------------------------------------------------------------------------------------------------ */
static assay_status add_rows(const certify_options *o, const char *work, const char *tier,
                             const char *const *sizes, int n, certify_result *r)
{
    char path[ASSAY_PATH];
    json_t *times = NULL, *rows = json_array();
    assay_status st = ASSAY_OK;
    snprintf(path, sizeof path, "%.900s/times.json", work);
    ASSAY_TRY_GOTO(assay_json_load(&times, path), st, done);
    for (size_t d = 0; d < sizeof acts / sizeof *acts; d++)
        if (takes_dtype(r, acts[d]))
            ASSAY_TRY_GOTO(add_dtype(o, tier, work, acts[d], sizes, n, times, rows), st, done);
    r->throughput = json_pack("{s:s, s:s, s:O}", "measured_with", "CUDA events", "caches",
                              "emptied by a copy before every run", "rows", rows);
done:
    json_decref(times);
    json_decref(rows);
    return st;
}

/* What the process did that was timed is a finding of the trial that claims it. */
static void keep_findings(const certify_board *timed, certify_result *r)
{
    static const certify_trial kept[] = {CERTIFY_CRASH, CERTIFY_TIME, CERTIFY_GUARDS};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (timed->trial[kept[i]].bad > 0)
            certify_bad(&r->board, kept[i], "%s", timed->trial[kept[i]].first);
}

assay_status certify_throughput(const certify_options *o, const char *work, const char *tier,
                                certify_result *r)
{
    const char *sizes[THROUGHPUT_SIZES];
    char path[ASSAY_PATH];
    certify_board *board = NULL;
    const int n = choose_sizes(r, sizes);
    if (n == 0) {
        snprintf(r->no_throughput, sizeof r->no_throughput, "%s",
                 large_row(r->op->name) == NULL ? "this operation is small in every model"
                                                : "the description takes none of the large sizes");
        return ASSAY_OK;
    }
    for (size_t d = 0; d < sizeof acts / sizeof *acts; d++) {
        snprintf(path, sizeof path, "%.900s/time.%s", work, acts[d]);
        if (takes_dtype(r, acts[d]))
            ASSAY_TRY(write_request(path, acts[d], r->op->name, sizes, n));
    }
    ASSAY_TRY(certify_make_board(work, &board));
    memset(board, 0, sizeof *board);
    assay_status st = certify_run_child(o, work, "time", board);
    keep_findings(board, r);
    if (st == ASSAY_OK && board->done)
        st = add_rows(o, work, tier, sizes, n, r);
    else if (st == ASSAY_OK)
        snprintf(r->no_throughput, sizeof r->no_throughput, "the timed process did not come to its end");
    certify_free_board(board);
    if (st != ASSAY_OK) { /* a number that is missing is no verdict */
        snprintf(r->no_throughput, sizeof r->no_throughput, "%.250s", assay_error_message());
        assay_error_clear();
    }
    return ASSAY_OK;
}

/* --- for people ------------------------------------------------------------------------------------------------- */
/* A number with so many digits behind the point ('f', and as percent '%') or in all ('g'); "-" for what is not known. */
static void cell(FILE *out, int width, char kind, int digits, double scale, const json_t *row,
                 const char *key)
{
    char text[32] = "-";
    const json_t *v = json_object_get(row, key);
    if (json_is_number(v) && kind == 'g')
        snprintf(text, sizeof text, "%.*g", digits, scale * json_number_value(v));
    else if (json_is_number(v))
        snprintf(text, sizeof text, "%.*f%s", digits, scale * json_number_value(v), kind == '%' ? "%" : "");
    fprintf(out, " %*s", width, text);
}

void throughput_print(const certify_result *r, FILE *out)
{
    size_t i;
    const json_t *row;
    if (r->throughput == NULL)
        return;
    fprintf(out,
            "\n  throughput, by CUDA events, caches emptied before every run: information, no verdict\n"
            "  act        ms      min     GB/s  of copy  TFLOP/s  of product  of roofline  engine    ms   "
            "ratio  sizes\n");
    json_array_foreach(json_object_get(r->throughput, "rows"), i, row)
    {
        const json_t *s = json_object_get(row, "seconds"), *e = json_object_get(row, "engine");
        char variant[16] = "-";
        if (json_is_integer(json_object_get(e, "variant")))
            snprintf(variant, sizeof variant, "k%d", (int)json_integer_value(json_object_get(e, "variant")));
        fprintf(out, "  %-5s", json_string_value(json_object_get(row, "activations")));
        cell(out, 8, 'f', 4, 1e3, s, "median");
        cell(out, 8, 'f', 4, 1e3, s, "min");
        cell(out, 8, 'g', 4, 1e-9, row, "bytes_per_s");
        cell(out, 8, '%', 1, 1e2, row, "share_of_copy");
        cell(out, 8, 'g', 4, 1e-12, row, "flops_per_s");
        cell(out, 11, '%', 1, 1e2, row, "share_of_product");
        cell(out, 12, '%', 1, 1e2, row, "share_of_roofline");
        fprintf(out, "  %6s", variant);
        cell(out, 8, 'f', 4, 1e3, e, "median");
        cell(out, 7, 'f', 3, 1.0, e, "ratio");
        fprintf(out, "  %s\n", json_string_value(json_object_get(row, "sizes")));
    }
    row = json_array_get(json_object_get(r->throughput, "rows"), 0);
    if (json_is_string(json_object_get(row, "engine_not_measured")))
        fprintf(out, "  the engine was not timed: %s\n",
                json_string_value(json_object_get(row, "engine_not_measured")));
    fprintf(out, "  ratio: time of the kernel over the engine's; below 1 the kernel is faster\n");
}
