/* Sizes at which kernels are timed: every row of the table is a call that the engine takes, here with its large numbers divided, and
 * `ops --time` answers for each of them. */
#include "core/model/ops_cost.h"
#include "parity/checks/random_request.h"
#include "tests/support/cli.h"

#include <jansson.h>

TestSuite(large_sizes, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

/* "T=4096 H=64 | eps=1e-5" with what is at least 512 divided by 256. */
static void shrink(const char *text, char out[256])
{
    size_t n = 0;
    for (const char *p = text; *p != '\0';) {
        char *end;
        const bool starts = p > text && p[-1] == '=';
        const long value = starts ? strtol(p, &end, 10) : 0;
        if (value >= 512 && (*end == ' ' || *end == '\0')) {
            n += (size_t)snprintf(out + n, 256 - n, "%ld", value / 256);
            p = end;
        } else {
            out[n++] = *p++;
            out[n] = '\0';
        }
        cr_assert_lt(n, 250);
    }
}

static int write_request(const char *path, assay_dtype act)
{
    int rank = 0, asked = 0;
    parity_ask q = {.act = act, .world = 1, .ranks = &rank, .n = 1};
    json_t *header = json_pack("{s:s, s:s}", "engine", "request", "precision", "fp32");
    cr_assert_eq(assay_trace_writer_open(&q.w, path, 0, 1, header, false), ASSAY_OK, "%s",
                 assay_error_message());
    json_decref(header);
    for (const parity_ask_large_row *row = parity_ask_large_table; row->op != NULL; row++)
        for (int i = 0; i < ASK_LARGE_SIZES && row->sizes[i] != NULL; i++) {
            char sizes[256];
            const int64_t before = q.n;
            shrink(row->sizes[i], sizes);
            q.only = row->op;
            parity_ask_size(&q, "time", row->op, sizes);
            cr_assert(q.st == ASSAY_OK && q.n == before + 1, "%s %s: %s", row->op, sizes,
                      assay_error_message());
            asked++;
        }
    cr_assert_eq(assay_trace_end_step(q.w), ASSAY_OK);
    cr_assert_eq(assay_trace_writer_close(q.w), ASSAY_OK);
    assay_trace_writer_destroy(q.w);
    json_decref(q.attrs);
    return asked;
}

Test(large_sizes, the_engine_times_every_row)
{
    static const char *const acts[] = {"F32", "BF16"};
    for (int d = 0; d < 2; d++) {
        char request[CLI_LINE], line[3 * CLI_LINE];
        snprintf(request, sizeof request, "%s.%s", cli_file("request"), acts[d]);
        const int asked = write_request(request, d == 0 ? ASSAY_F32 : ASSAY_BF16);
        snprintf(line, sizeof line, ASSAY_BIN_DIR "/assay-sim ops --time 2 --request %s --out %s", request,
                 cli_file("times.json"));
        cli_result r = cli_wait(cli_start(line));
        cli_expect_success(&r, line);
        cli_free(&r);
        json_t *times = json_load_file(cli_file("times.json"), 0, NULL);
        const json_t *operations = json_object_get(times, "operations"),
                     *peak = json_object_get(times, "peak");
        cr_assert_eq(json_array_size(operations), (size_t)asked);
        int unknown = 0; /* rows of other engines */
        cr_expect(json_is_true(json_object_get(times, "simulated")));
        cr_expect_str_eq(json_string_value(json_object_get(peak, "dtype")), acts[d]);
        cr_expect(json_number_value(json_object_get(peak, "flops_per_s")) > 0.0 &&
                  json_number_value(json_object_get(peak, "copy_bytes_per_s")) > 0.0);
        for (int i = 0; i < asked; i++) {
            const json_t *row = json_array_get(operations, (size_t)i),
                         *seconds = json_object_get(row, "seconds");
            const char *instance = json_string_value(json_object_get(row, "instance"));
            if (json_is_true(json_object_get(row, "unknown"))) {
                cr_expect(assay_op_find(json_string_value(json_object_get(row, "op")))->foreign, "%s",
                          instance);
                unknown++;
                continue;
            }
            cr_assert_eq(json_array_size(seconds), 2, "%s", instance);
            for (size_t k = 0; k < 2; k++)
                cr_expect(json_number_value(json_array_get(seconds, k)) >= 0.0, "%s", instance);
            cr_expect_eq(strncmp(instance, "time.", 5), 0, "%s", instance);
        }
        cr_expect_eq(unknown, 6); /* layernorm, both directions */
        json_decref(times);
    }
}

/* As they stand: beyond the 1 MiB that lies near a core, and within what a file and a device have room for. */
Test(large_sizes, sizes)
{
    for (const parity_ask_large_row *row = parity_ask_large_table; row->op != NULL; row++) {
        const assay_op *op = assay_op_find(row->op);
        cr_assert_not_null(op, "%s", row->op);
        for (int i = 0; i < ASK_LARGE_SIZES && row->sizes[i] != NULL; i++) {
            assay_op_binding b;
            int64_t bytes = 0;
            cr_assert_eq(parity_ask_bind(op, row->sizes[i], &b), ASSAY_OK, "%s: %s", row->op,
                         assay_error_message());
            b.brackets = strstr(row->sizes[i], "H=") != NULL;
            for (int k = 0; k < assay_op_n_slots(op); k++) {
                int64_t shape[ASSAY_OP_DIMS], n = 1;
                int ndim;
                if (op->slots[k].optional)
                    continue;
                const bool known = assay_op_slot_shape(op, &op->slots[k], &b, &ndim, shape) == ASSAY_OK;
                /* an attribute may say an extent of an output */
                cr_assert(known || op->slots[k].role == ASSAY_SLOT_OUT, "%s %s: %s", row->op, row->sizes[i],
                          assay_error_message());
                if (!known)
                    continue;
                for (int d = 0; d < ndim; d++)
                    n *= shape[d];
                bytes += 4 * n;
            }
            cr_expect(bytes >= 1 << 20 && bytes <= (int64_t)1 << 30, "%s %s: %lld bytes", row->op,
                      row->sizes[i], (long long)bytes);
        }
    }
}

/* Of one rank, and of no collective. */
Test(large_sizes, refused_by_name)
{
    static const char *const rows[][2] = {
        {"--time 0", "time: "}, {"--time 2 --place 1", "expected one of --place, --illegal and --time"}};
    char request[CLI_LINE], line[3 * CLI_LINE];
    snprintf(request, sizeof request, "%s", cli_file("request"));
    (void)write_request(request, ASSAY_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(line, sizeof line, ASSAY_BIN_DIR "/assay-sim ops %s --request %s --out %s", rows[i][0],
                 request, cli_file("out.json"));
        cli_result r = cli_wait(cli_start(line));
        cr_expect(r.code != 0 && strstr(r.err, rows[i][1]) != NULL, "%s: %d %s", rows[i][0], r.code, r.err);
        cli_free(&r);
    }
}
