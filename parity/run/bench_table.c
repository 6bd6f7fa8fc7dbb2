/* A result of `assay bench` as a table, and another program's beside it. */
#include "core/run/options.h"
#include "parity/run/bench.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static const char *word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* --- head --------------------------------------------------------------------------------------------------- */
static void print_peak(const json_t *rank, FILE *out)
{
    const json_t *p = json_object_get(rank, "peak");
    const json_t *flops = json_object_get(p, "flops_per_s"), *copy = json_object_get(p, "copy_bytes_per_s");
    if (flops == NULL) {
        fprintf(out, "  rank %d: no peak: %s\n", (int)number(rank, "rank"), word(p, "not_measured"));
        return;
    }
    fprintf(out,
            "  rank %d: product of %d^3 in %s %.4g TFLOP/s before the steps, %.4g after; copy of %.4g MB "
            "%.4g GB/s "
            "(read + written), %.4g\n",
            (int)number(rank, "rank"), (int)number(p, "product"), word(p, "dtype"),
            json_number_value(json_array_get(flops, 0)) * 1e-12,
            json_number_value(json_array_get(flops, 1)) * 1e-12, number(p, "copy_bytes") * 1e-6,
            json_number_value(json_array_get(copy, 0)) * 1e-9,
            json_number_value(json_array_get(copy, 1)) * 1e-9);
}

static void print_head(const json_t *r, FILE *out)
{
    size_t i;
    const json_t *rank;
    fprintf(out, "layout %s, %s, kernels %s, %d rank%s on %s\n", word(r, "layout"), word(r, "precision"),
            word(r, "variant")[0] != '\0' ? word(r, "variant") : "fastest", (int)number(r, "world"),
            number(r, "world") > 1.0 ? "s" : "", word(r, "device"));
    fprintf(out, "a step: %d microbatch%s of %d x %d tokens, %s; %d to warm up, %d measured\n",
            (int)number(r, "microbatches"), number(r, "microbatches") > 1.0 ? "es" : "",
            (int)number(r, "micro_batch_size"), (int)number(r, "seq_length"),
            json_is_true(json_object_get(r, "optimizer_steps")) ? "forward, backward, optimizer"
                                                                : "forward and backward, no optimizer",
            (int)number(r, "warmup"), (int)number(r, "steps"));
    fprintf(out, "operations: %s; steps: the host's clock, without events\n", word(r, "measured_with"));
    if (json_is_true(json_object_get(r, "simulated")))
        fputs("times of the simulator are this CPU's: they say nothing about a GPU\n", out);
    fputs("what shares refer to, measured here:\n", out);
    json_array_foreach(json_object_get(r, "ranks"), i, rank) print_peak(rank, out);
}

/* --- operations --------------------------------------------------------------------------------------------- */
/* A number with so many digits behind the point ('f', and as percent '%') or in all ('g'); "-" for what is not known. */
static void cell(FILE *out, int width, char kind, int digits, double value)
{
    char text[32];
    if (!isfinite(value))
        snprintf(text, sizeof text, "-");
    else if (kind == 'g')
        snprintf(text, sizeof text, "%.*g", digits, value);
    else
        snprintf(text, sizeof text, "%.*f%s", digits, value, kind == '%' ? "%" : "");
    fprintf(out, " %*s", width, text);
}

static void print_operation(const json_t *row, bool many, FILE *out)
{
    const json_t *ms = json_object_get(row, "ms");
    const bool wire = json_object_get(row, "bus_factor") != NULL;
    char name[96];
    const char *mark = json_is_true(json_object_get(row, "recompute")) ? " (again)" : "";
    snprintf(name, sizeof name, "%s%s%s%s%s", word(row, "op"), wire ? " " : "", word(row, "group"), mark,
             word(row, "instance")[0] != '\0' ? ":" : "");
    fprintf(out, "%-13s %-29s %-5s %6d", word(row, "phase"), name, word(row, "variant"),
            (int)number(row, "calls"));
    cell(out, 9, 'f', 3, number(ms, "median"));
    cell(out, 9, 'f', 3, number(ms, "min"));
    cell(out, 9, 'f', 3, number(ms, "max"));
    cell(out, 6, '%', 1, 100.0 * number(row, "share"));
    cell(out, 9, 'g', 4, wire ? (double)NAN : number(row, "flops") * 1e-9);
    cell(out, 9, 'g', 3, number(row, "tflop_per_s"));
    cell(out, 7, '%', 1, 100.0 * number(row, "share_of_peak"));
    cell(out, 9, 'g', 4, number(row, "bytes") * 1e-9);
    cell(out, 8, 'g', 3, number(row, wire ? "algbw_gb_per_s" : "gb_per_s"));
    if (wire)
        cell(out, 7, 'g', 3, number(row, "busbw_gb_per_s"));
    else
        cell(out, 7, '%', 1, 100.0 * number(row, "share_of_copy"));
    if (many)
        cell(out, 4, 'f', 0, number(row, "slowest_rank"));
    fprintf(out, "%s%s\n", word(row, "instance")[0] != '\0' ? "  " : "", word(row, "instance"));
}

static void print_operations(const json_t *r, FILE *out)
{
    const bool many = number(r, "world") > 1.0;
    bool wire = false;
    size_t i;
    const json_t *row, *rows = json_object_get(r, "operations");
    fprintf(out, "\n%-13s %-29s %-5s %6s %9s %9s %9s %6s %9s %9s %7s %9s %8s %7s%s\n", "phase", "operation",
            "kernel", "calls", "ms/step", "min", "max", "share", "GFLOP", "TFLOP/s", "of peak", "GB", "GB/s",
            "of copy", many ? " rank" : "");
    json_array_foreach(rows, i, row)
    {
        print_operation(row, many, out);
        wire = wire || json_object_get(row, "bus_factor") != NULL;
    }
    if (wire)
        fputs("collectives: GB/s is NCCL-tests' algbw, the column behind it busbw\n", out);
    if (many)
        fputs("of each operation the rank with the largest median\n", out);
    json_array_foreach(json_object_get(r, "ranks"), i, row)
        fprintf(out, "rank %d: operations %.3f ms%s, outside them %.3f ms of a step of %.3f ms\n",
                (int)number(row, "rank"), number(row, "ms_inside_operations"),
                number(row, "ms_of_operations") > 1.001 * number(row, "ms_inside_operations")
                    ? " (some at the same time)"
                    : "",
                number(row, "ms_outside_operations"), number(row, "ms_between_events"));
    json_array_foreach(json_object_get(r, "ranks"), i, row) if (json_object_get(row, "host_waits")) fprintf(
        out, "rank %d: the host waits for the device %d times a step, %d of them inside layers\n",
        (int)number(row, "rank"), (int)number(row, "host_waits"), (int)number(row, "host_waits_in_layers"));
}

/* --- totals ------------------------------------------------------------------------------------------------- */
static void print_totals(const json_t *r, FILE *out)
{
    const json_t *s = json_object_get(r, "s_per_step"), *e = json_object_get(r, "s_per_step_with_events");
    const bool many = number(r, "devices") > 1.0;
    fprintf(out, "\ns/step            %.6f  (min %.6f, max %.6f)\n", number(s, "median"), number(s, "min"),
            number(s, "max"));
    fprintf(out, "  with events     %.6f  (min %.6f, max %.6f), %+.1f %%\n", number(e, "median"),
            number(e, "min"), number(e, "max"), 100.0 * number(r, "events_cost"));
    fprintf(out, "tokens/s          %.1f", number(r, "tokens_per_s"));
    if (many)
        fprintf(out, ", %.1f on each of %d devices", number(r, "tokens_per_s_per_device"),
                (int)number(r, "devices"));
    if (isfinite(number(r, "model_flops_utilization")))
        fprintf(out, "\nmodel FLOPs       %.4g a step, utilization %.1f %% of the measured peak\n",
                number(r, "model_flops_per_step"), 100.0 * number(r, "model_flops_utilization"));
    else
        fprintf(out, "\nmodel FLOPs       %.4g a step, no utilization: the peak was not measured\n",
                number(r, "model_flops_per_step"));
}

/* --- beside ------------------------------------------------------------------------------------------------- */
static void beside_line(const json_t *r, double ratio, FILE *out)
{
    char what[160];
    snprintf(what, sizeof what, "%s%s%s", word(r, "program"),
             word(r, "attention_backend")[0] != '\0' ? ", attention " : "", word(r, "attention_backend"));
    fprintf(out, "%-60s %10.6f %12.1f %8.3f  %s\n", what, number(json_object_get(r, "s_per_step"), "median"),
            number(r, "tokens_per_s"), ratio, word(r, "device"));
}

static void print_beside(const json_t *r, FILE *out)
{
    const json_t *list = json_object_get(r, "beside"), *other;
    size_t i;
    if (json_array_size(list) == 0)
        return;
    fprintf(out, "\n%-60s %10s %12s %8s  %s\n", "beside", "s/step", "tokens/s", "ratio", "device");
    beside_line(r, 1.0, out);
    json_array_foreach(list, i, other) beside_line(other, number(other, "ratio"), out);
    fputs("ratio: time of assay over time of the other; below 1 assay is faster\n", out);
    json_array_foreach(list, i, other) if (strcmp(word(other, "device"), word(r, "device")) != 0) fprintf(
        out, "%s ran on another device: the ratio compares devices, not programs\n", word(other, "program"));
}

void parity_bench_print(const json_t *result, FILE *out)
{
    print_head(result, out);
    print_operations(result, out);
    print_totals(result, out);
    print_beside(result, out);
}

static assay_status check_beside(const json_t *ours, const json_t *other, const char *path)
{
    static const char *const same[] = {"precision",  "tokens_per_step", "microbatches",
                                       "seq_length", "optimizer_steps", NULL};
    char text[128];
    double value;
    ASSAY_TRY(assay_json_get_string(other, "format", true, path, text, sizeof text));
    ASSAY_CHECK(strcmp(text, PARITY_BENCH_FORMAT) == 0, ASSAY_FORMAT,
                "%s: format: expected " PARITY_BENCH_FORMAT ", found %s", path, text);
    ASSAY_TRY(assay_json_get_string(other, "program", true, path, text, sizeof text));
    ASSAY_TRY(assay_json_get_string(other, "device", true, path, text, sizeof text));
    ASSAY_TRY(assay_json_get_double(other, "tokens_per_s", true, 0x1p-100, 0x1p100, path, &value));
    const json_t *s = json_object_get(other, "s_per_step");
    ASSAY_CHECK(json_is_object(s), ASSAY_FORMAT, "%s: s_per_step: expected an object", path);
    ASSAY_TRY(assay_json_get_double(s, "median", true, 0x1p-100, 0x1p100, path, &value));
    for (int i = 0; same[i] != NULL; i++) {
        char here[64] = "?", there[64] = "?";
        const json_t *a = json_object_get(ours, same[i]), *b = json_object_get(other, same[i]);
        char *x = json_dumps(a, JSON_ENCODE_ANY), *y = b != NULL ? json_dumps(b, JSON_ENCODE_ANY) : NULL;
        snprintf(here, sizeof here, "%s", x != NULL ? x : "nothing");
        snprintf(there, sizeof there, "%s", y != NULL ? y : "nothing");
        free(x);
        free(y);
        ASSAY_CHECK(b != NULL && json_equal(a, b), ASSAY_MISMATCH, "%s: %s: expected %s as here, found %s",
                    path, same[i], here, there);
    }
    return ASSAY_OK;
}

assay_status parity_bench_add_beside(json_t *result, const char *path)
{
    json_t *other = NULL, *list = json_object_get(result, "beside");
    ASSAY_TRY(assay_json_load(&other, path));
    const assay_status st = check_beside(result, other, path);
    if (st != ASSAY_OK) {
        json_decref(other);
        return st;
    }
    if (list == NULL) {
        list = json_array();
        json_object_set_new(result, "beside", list);
    }
    json_object_set_new(other, "file", json_string(path));
    json_object_set_new(other, "ratio",
                        json_real(number(json_object_get(result, "s_per_step"), "median") /
                                  number(json_object_get(other, "s_per_step"), "median")));
    json_array_append_new(list, other);
    return ASSAY_OK;
}
