/* Files of ranks into one result. */
#include "core/run/options.h"
#include "parity/run/bench.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers ------------------------------------------------------------------------------------------------ */
static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double *values, size_t n)
{
    double *sorted = n > 0 ? malloc(n * sizeof *sorted) : NULL, median = (double)NAN;
    if (sorted != NULL) {
        memcpy(sorted, values, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_value);
        median = n % 2 == 1 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
    }
    free(sorted);
    return median;
}

static json_t *list_of(const double *values, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_real(values[i]));
    return list;
}

json_t *parity_bench_summary(const double *values, size_t n)
{
    double least = values[0], most = values[0];
    for (size_t i = 1; i < n; i++) {
        least = fmin(least, values[i]);
        most = fmax(most, values[i]);
    }
    return json_pack("{s:f, s:f, s:f, s:o}", "median", median_of(values, n), "min", least, "max", most, "all",
                     list_of(values, n));
}

/* --- files -------------------------------------------------------------------------------------------------- */
typedef struct gather {
    json_t **ranks;
    int world, devices;
    size_t steps;
    double *scratch; /* [steps] */
} gather;

static assay_status check_numbers(const json_t *object, const char *key, size_t n, const char *what)
{
    const json_t *list = json_object_get(object, key);
    ASSAY_CHECK(json_array_size(list) == n && n > 0, ASSAY_FORMAT,
                "%s: %s: expected a list of %zu numbers, found %zu", what, key, n, json_array_size(list));
    for (size_t i = 0; i < n; i++) {
        const double v = json_number_value(json_array_get(list, i));
        ASSAY_CHECK(json_is_number(json_array_get(list, i)) && v >= 0.0, ASSAY_FORMAT,
                    "%s: %s: expected times, found another value", what, key);
    }
    return ASSAY_OK;
}

static assay_status check_row(const json_t *row, size_t steps, const char *what)
{
    static const char *const words[] = {"phase", "op", "instance", "variant", NULL},
                             *const counts[] = {"calls", "launches", "flops", "model_flops", "bytes", NULL};
    char text[256];
    int64_t n;
    bool flag;
    for (int i = 0; words[i] != NULL; i++)
        ASSAY_TRY(assay_json_get_string(row, words[i], true, what, text, sizeof text));
    for (int i = 0; counts[i] != NULL; i++)
        ASSAY_TRY(assay_json_get_i64(row, counts[i], true, 0, INT64_MAX, what, &n));
    ASSAY_TRY(assay_json_get_bool(row, "recompute", true, what, &flag));
    return check_numbers(row, "ms", steps, what);
}

static assay_status check_rank(const gather *g, const json_t *root, int rank, const char *path)
{
    static const char *const times[] = {"s", "s_with_events", "ms_between_events", "ms_inside_operations",
                                        NULL};
    static const char *const same[] = {"layout",       "precision",        "variant",       "simulated",
                                       "microbatches", "micro_batch_size", "seq_length",    "warmup",
                                       "steps",        "optimizer_steps",  "measured_with", NULL};
    char format[32];
    int64_t n;
    ASSAY_TRY(assay_json_get_string(root, "format", true, path, format, sizeof format));
    ASSAY_CHECK(strcmp(format, "assay-bench-rank-1") == 0, ASSAY_FORMAT,
                "%s: format: expected assay-bench-rank-1, found %s", path, format);
    ASSAY_TRY(assay_json_get_i64(root, "rank", true, rank, rank, path, &n));
    ASSAY_TRY(assay_json_get_i64(root, "world", true, g->world, g->world, path, &n));
    ASSAY_TRY(assay_json_get_i64(root, "steps", true, 1, 1 << 30, path, &n));
    for (int i = 0; same[i] != NULL; i++) {
        const json_t *here = json_object_get(root, same[i]);
        ASSAY_CHECK(here != NULL && json_equal(here, json_object_get(g->ranks[0], same[i])), ASSAY_MISMATCH,
                    "%s: %s: expected that of rank 0", path, same[i]);
    }
    for (int i = 0; times[i] != NULL; i++)
        ASSAY_TRY(check_numbers(root, times[i], (size_t)n, path));
    ASSAY_CHECK(
        json_is_string(json_object_get(root, "device")) && json_is_object(json_object_get(root, "peak")) &&
            json_is_array(json_object_get(root, "loss")) && json_is_array(json_object_get(root, "grad_norm")),
        ASSAY_FORMAT, "%s: expected device, peak, loss and grad_norm", path);
    size_t index;
    const json_t *row, *rows = json_object_get(root, "operations");
    ASSAY_CHECK(json_array_size(rows) > 0, ASSAY_FORMAT, "%s: operations: expected a list, found none", path);
    json_array_foreach(rows, index, row) ASSAY_TRY(check_row(row, (size_t)n, path));
    return ASSAY_OK;
}

static assay_status load(gather *g, const char *dir)
{
    for (int r = 0; r < g->world; r++) {
        char path[ASSAY_PATH + 32];
        snprintf(path, sizeof path, "%s/rank-%05d.json", dir, r);
        ASSAY_TRY(assay_json_load(&g->ranks[r], path));
        ASSAY_TRY(check_rank(g, g->ranks[r], r, path));
    }
    g->steps = json_array_size(json_object_get(g->ranks[0], "s"));
    g->scratch = calloc(g->steps, sizeof *g->scratch);
    ASSAY_CHECK(g->scratch != NULL, ASSAY_OUT_OF_MEMORY, "bench: %zu steps", g->steps);
    return ASSAY_OK;
}

static double at(const json_t *object, const char *key, size_t i)
{
    return json_number_value(json_array_get(json_object_get(object, key), i));
}

/* Median of a list of a rank or of a row. */
static double median_in(gather *g, const json_t *object, const char *key)
{
    for (size_t i = 0; i < g->steps; i++)
        g->scratch[i] = at(object, key, i);
    return median_of(g->scratch, g->steps);
}

/* A step takes as long as its slowest rank. */
static json_t *slowest(gather *g, const char *key)
{
    for (size_t i = 0; i < g->steps; i++) {
        g->scratch[i] = 0.0;
        for (int r = 0; r < g->world; r++)
            g->scratch[i] = fmax(g->scratch[i], at(g->ranks[r], key, i));
    }
    return parity_bench_summary(g->scratch, g->steps);
}

/* --- peak --------------------------------------------------------------------------------------------------- */
/* The better of before and after; 0: not measured. */
static double peak_of(const json_t *rank, const char *what)
{
    const json_t *peak = json_object_get(rank, "peak");
    return fmax(at(peak, what, 0), at(peak, what, 1));
}

/* --- operations --------------------------------------------------------------------------------------------- */
static bool same_row(const json_t *a, const json_t *b)
{
    static const char *const key[] = {"phase",     "op",    "instance",    "variant",
                                      "recompute", "group", "group_ranks", NULL};
    for (int i = 0; key[i] != NULL; i++) {
        const json_t *x = json_object_get(a, key[i]), *y = json_object_get(b, key[i]);
        if (x != y && (x == NULL || y == NULL || !json_equal(x, y)))
            return false;
    }
    return true;
}

static const json_t *row_of(const json_t *rank, const json_t *like)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(rank, "operations"), i, row) if (same_row(row, like)) return row;
    return NULL;
}

static void put(json_t *object, const char *key, double value)
{
    if (isfinite(value))
        json_object_set_new(object, key, json_real(value));
}

/* Rates: of a collective algorithm and bus bandwidth (NCCL-tests' words), of others shares of what was measured. */
static void add_rates(json_t *out, const json_t *rank, double ms)
{
    const double flops = json_number_value(json_object_get(out, "flops")),
                 bytes = json_number_value(json_object_get(out, "bytes")), s = ms * 1e-3;
    const json_t *bus = json_object_get(out, "bus_factor");
    if (bus != NULL) {
        put(out, "algbw_gb_per_s", bytes / s * 1e-9);
        put(out, "busbw_gb_per_s", bytes / s * 1e-9 * json_number_value(bus));
        return;
    }
    put(out, "tflop_per_s", flops / s * 1e-12);
    put(out, "gb_per_s", bytes / s * 1e-9);
    put(out, "share_of_peak", flops / s / peak_of(rank, "flops_per_s"));
    put(out, "share_of_copy", bytes / s / peak_of(rank, "copy_bytes_per_s"));
}

static json_t *operation(gather *g, const json_t *like)
{
    const json_t *slow = NULL;
    double most = -1.0;
    int rank = 0;
    json_t *medians = json_array();
    for (int r = 0; r < g->world; r++) {
        const json_t *row = row_of(g->ranks[r], like);
        const double ms = row != NULL ? median_in(g, row, "ms") : 0.0;
        json_array_append_new(medians, row != NULL ? json_real(ms) : json_null());
        if (row != NULL && ms > most) {
            most = ms;
            slow = row;
            rank = r;
        }
    }
    json_t *out = json_deep_copy(slow);
    for (size_t i = 0; i < g->steps; i++)
        g->scratch[i] = at(slow, "ms", i);
    json_object_set_new(out, "ms", parity_bench_summary(g->scratch, g->steps));
    json_object_set_new(out, "ms_of_ranks", medians);
    json_object_set_new(out, "slowest_rank", json_integer(rank));
    put(out, "share", most / median_in(g, g->ranks[rank], "ms_between_events"));
    add_rates(out, g->ranks[rank], most);
    return out;
}

static bool is_known(const json_t *list, const json_t *row)
{
    size_t i;
    const json_t *known;
    json_array_foreach(list, i, known) if (same_row(known, row)) return true;
    return false;
}

static json_t *operations(gather *g)
{
    json_t *list = json_array();
    for (int r = 0; r < g->world; r++) {
        size_t i;
        const json_t *row;
        json_array_foreach(json_object_get(g->ranks[r], "operations"), i, row) if (!is_known(list, row))
            json_array_append_new(list, operation(g, row));
    }
    return list;
}

/* --- totals ------------------------------------------------------------------------------------------------- */
static double sum_of_rows(const json_t *rank, const char *key)
{
    double sum = 0.0;
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(rank, "operations"), i,
                       row) if (!json_is_true(json_object_get(row, "recompute"))) sum +=
        json_number_value(json_object_get(row, key));
    return sum;
}

static json_t *rank_line(gather *g, int r)
{
    const json_t *rank = g->ranks[r];
    double all = 0.0;
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(rank, "operations"), i, row) all += median_in(g, row, "ms");
    const double step = median_in(g, rank, "ms_between_events"),
                 inside = median_in(g, rank, "ms_inside_operations");
    return json_pack("{s:i, s:O, s:f, s:f, s:f, s:f, s:f, s:O, s:O*, s:O*}", "rank", r, "device",
                     json_object_get(rank, "device"), "s_per_step", median_in(g, rank, "s"),
                     "ms_between_events", step, "ms_inside_operations", inside, "ms_of_operations", all,
                     "ms_outside_operations", step - inside, "peak", json_object_get(rank, "peak"),
                     "host_waits", json_object_get(rank, "host_waits"), "host_waits_in_layers",
                     json_object_get(rank, "host_waits_in_layers"));
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void add_totals(gather *g, json_t *out)
{
    const json_t *first = g->ranks[0];
    const double step = number(json_object_get(out, "s_per_step"), "median"),
                 plain = number(json_object_get(out, "s_per_step_with_events"), "median");
    const double tokens =
        number(first, "microbatches") * number(first, "micro_batch_size") * number(first, "seq_length");
    double model = 0.0, peak = 0.0;
    bool measured = true;
    for (int r = 0; r < g->world; r++) {
        const double here = peak_of(g->ranks[r], "flops_per_s");
        model += sum_of_rows(g->ranks[r], "model_flops");
        measured = measured && here > 0.0;
        peak += here;
    }
    json_object_set_new(out, "tokens_per_step", json_integer((json_int_t)tokens));
    put(out, "tokens_per_s", tokens / step);
    put(out, "tokens_per_s_per_device", tokens / step / g->devices);
    put(out, "events_cost", plain / step - 1.0);
    json_object_set_new(out, "model_flops_per_step", json_real(model));
    if (measured)
        put(out, "model_flops_utilization", model / step / peak);
}

static json_t *combine(gather *g)
{
    static const char *const copied[] = {
        "device",  "simulated",       "measured_with", "layout",           "precision",
        "variant", "optimizer_steps", "microbatches",  "micro_batch_size", "seq_length",
        "warmup",  "steps",           "loss",          "grad_norm",        NULL};
    json_t *out =
        json_pack("{s:s, s:i, s:i}", "format", PARITY_BENCH_FORMAT, "world", g->world, "devices", g->devices);
    json_t *ranks = json_array();
    for (int i = 0; copied[i] != NULL; i++)
        json_object_set(out, copied[i], json_object_get(g->ranks[0], copied[i]));
    json_object_set_new(out, "s_per_step", slowest(g, "s"));
    json_object_set_new(out, "s_per_step_with_events", slowest(g, "s_with_events"));
    add_totals(g, out);
    for (int r = 0; r < g->world; r++)
        json_array_append_new(ranks, rank_line(g, r));
    json_object_set_new(out, "ranks", ranks);
    json_object_set_new(out, "operations", operations(g));
    return out;
}

assay_status parity_bench_gather(const char *dir, int world, int devices, json_t **out)
{
    gather g = {.world = world, .devices = devices};
    assay_status st = ASSAY_OK;
    *out = NULL;
    g.ranks = calloc((size_t)world, sizeof(json_t *));
    ASSAY_CHECK(g.ranks != NULL, ASSAY_OUT_OF_MEMORY, "bench: %d ranks", world);
    ASSAY_TRY_GOTO(load(&g, dir), st, done);
    *out = combine(&g);
    ASSAY_CHECK_GOTO(*out != NULL, ASSAY_OUT_OF_MEMORY, st, done, "bench: results of %d ranks", world);
done:
    for (int r = 0; r < world; r++)
        json_decref(g.ranks[r]);
    free(g.ranks);
    free(g.scratch);
    return st;
}
