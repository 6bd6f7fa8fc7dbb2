/* `assay bench`: structure of its table and file, laws between layouts, refusals.  No test looks at how long anything took. */
#include "core/base/json.h"
#include "parity/run/bench.h"
#include "tests/support/cli.h"

TestSuite(cli_bench, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

static json_t *load(const char *name)
{
    json_t *root = NULL;
    cr_assert_eq(assay_json_load(&root, cli_file(name)), ASSAY_OK, "%s", assay_error_message());
    return root;
}

static double number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    cr_expect(json_is_number(v), "%s is no number", key);
    return json_number_value(v);
}

/* --- structure ---------------------------------------------------------------------------------------------- */
static void expect_summary(const json_t *s, size_t n, const char *what)
{
    cr_expect(number(s, "min") > 0.0 && number(s, "min") <= number(s, "median") &&
                  number(s, "median") <= number(s, "max"),
              "%s: least, median, most", what);
    cr_expect_eq(json_array_size(json_object_get(s, "all")), n, "%s: %zu values", what, n);
}

static void expect_rows(const json_t *root, size_t steps)
{
    const json_t *row, *rows = json_object_get(root, "operations"), *rank;
    size_t i;
    cr_assert_gt(json_array_size(rows), 10);
    json_array_foreach(rows, i, row)
    {
        const char *op = json_string_value(json_object_get(row, "op"));
        const bool wire = json_object_get(row, "bus_factor") != NULL;
        expect_summary(json_object_get(row, "ms"), steps, op);
        cr_expect(number(row, "calls") >= 1.0 && number(row, "share") > 0.0, "%s", op);
        const double s = number(json_object_get(row, "ms"), "median") * 1e-3;
        const double rate = number(row, wire ? "algbw_gb_per_s" : "gb_per_s") * 1e9 * s;
        cr_expect(fabs(rate - number(row, "bytes")) <= 1e-6 * rate, "%s: bytes are rate times time", op);
        if (wire)
            cr_expect(fabs(number(row, "busbw_gb_per_s") -
                           number(row, "algbw_gb_per_s") * number(row, "bus_factor")) <=
                          1e-9 * number(row, "algbw_gb_per_s"),
                      "%s", op);
        else
            cr_expect(number(row, "share_of_copy") >= 0.0 && number(row, "share_of_peak") >= 0.0, "%s", op);
    }
    json_array_foreach(json_object_get(root, "ranks"), i, rank)
    {
        const double inside = number(rank, "ms_inside_operations"), step = number(rank, "ms_between_events");
        cr_expect(inside > 0.0 && inside <= step * 1.001, "rank %zu: %g ms of %g", i, inside, step);
        cr_expect(fabs(step - inside - number(rank, "ms_outside_operations")) <= 1e-9 * step, "rank %zu", i);
    }
}

Test(cli_bench, the_file_holds_what_the_table_shows)
{
    cli_result r = cli_run("bench --engine sim --case llama --steps 3 --warmup 1 --precision fp32");
    cli_expect_success(&r, "bench");
    json_t *root = load("bench/bench.json");
    cr_expect_str_eq(json_string_value(json_object_get(root, "format")), PARITY_BENCH_FORMAT);
    cr_expect_str_eq(json_string_value(json_object_get(root, "measured_with")),
                     "wall clock of the simulator");
    cr_expect_str_eq(json_string_value(json_object_get(root, "precision")), "fp32");
    expect_summary(json_object_get(root, "s_per_step"), 3, "s_per_step");
    expect_summary(json_object_get(root, "s_per_step_with_events"), 3, "s_per_step_with_events");
    expect_rows(root, 3);
    const double s = number(json_object_get(root, "s_per_step"), "median");
    cr_expect(fabs(number(root, "tokens_per_s") * s - number(root, "tokens_per_step")) <=
              1e-6 * number(root, "tokens_per_step"));
    cr_expect(number(root, "model_flops_utilization") > 0.0);
    static const char *const words[] = {"operations: wall clock of the simulator",
                                        "say nothing about a GPU",
                                        "linear_fwd",
                                        "attention_bwd",
                                        "adamw",
                                        "s/step",
                                        "with events",
                                        "tokens/s",
                                        "utilization",
                                        "wrote bench/bench.json",
                                        NULL};
    for (int i = 0; words[i]; i++)
        cr_expect(strstr(r.out, words[i]), "expected '%s' in\n%s", words[i], r.out);
    json_decref(root);
    cli_free(&r);
}

/* Closed form of the products of golden/models/llama: 2 layers, hidden 64, 4 heads of 16, 2 groups, ffn 56, vocabulary 131; forward,
 * and twice as much backward. */
static double llama_flops(double sequences, double s)
{
    const double linear = 2.0 * (64.0 * (4 + 2 * 2) * 16 + 64.0 * 64 + 3.0 * 64 * 56) + 64.0 * 131,
                 attention = 2.0 * 2 * (16 + 16) * 4 * (s * (s + 1) / 2);
    return 3.0 * sequences * (2.0 * s * linear + attention);
}

static double model_flops(const char *name)
{
    json_t *root = load(name);
    const double flops = number(root, "model_flops_per_step");
    json_decref(root);
    return flops;
}

Test(cli_bench, model_flops_are_the_closed_form_in_every_layout)
{
    static const char *const layouts[] = {"1", "tp2,sp", "dp2,zero1", "pp2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        cli_result r = cli_run("bench --engine sim --model " MODELS
                               "llama --microbatches 2 --micro-batch-size 2 --seq-length 12 "
                               "--steps 1 --warmup 1 --layout %s",
                               layouts[i]);
        cli_expect_success(&r, layouts[i]);
        cr_expect_eq(model_flops("bench/bench.json"), llama_flops(4.0, 12.0), "%s: %.17g, expected %.17g",
                     layouts[i], model_flops("bench/bench.json"), llama_flops(4.0, 12.0));
        cr_expect(i == 0 || strstr(r.out, "on each of 2 devices"), "%s", r.out);
        cli_free(&r);
    }
}

/* Without sp experts take a slice of the tokens: 4 of 8 positions, each of which is a row of 32 numbers for both sequences. */
Test(cli_bench, slices_of_a_batch_are_counted)
{
    const double one = 4 * 2 * 32 * 4;
    cli_result r = cli_run("bench --engine sim --model " MODELS
                           "qwen3_moe --microbatches 2 --micro-batch-size 2 --seq-length 8 "
                           "--steps 1 --warmup 1 --layout tp2");
    cli_expect_success(&r, "tp2");
    json_t *root = load("bench/bench.json"), *row, *rows = json_object_get(root, "operations");
    size_t i, found = 0;
    json_array_foreach(rows, i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "op")), "slice_rows") != 0)
            continue;
        found++;
        cr_expect(number(row, "calls") > 0.0 && number(row, "bytes") == number(row, "calls") * one,
                  "%g calls, %g bytes", number(row, "calls"), number(row, "bytes"));
    }
    cr_expect_gt(found, 0);
    json_decref(root);
    cli_free(&r);
}

Test(cli_bench, a_layer_that_runs_again_adds_rows_and_no_model_flops)
{
    cli_result r = cli_run("bench --engine sim --model " MODELS
                           "llama --seq-length 16 --steps 1 --warmup 1 --recompute-granularity full");
    cli_expect_success(&r, "recompute");
    cr_expect(strstr(r.out, "attention_fwd (again)") && strstr(r.out, "linear_fwd (again)"), "%s", r.out);
    cr_expect_eq(model_flops("bench/bench.json"), llama_flops(1.0, 16.0));
    cli_free(&r);
}

Test(cli_bench, instances_add_up_to_their_operation)
{
    double calls[2] = {0.0, 0.0};
    for (int k = 0; k < 2; k++) {
        cli_result r = cli_run("bench --engine sim --model " MODELS
                               "llama --seq-length 16 --steps 1 --warmup 1 --report r%d%s",
                               k, k ? " --instances" : "");
        cli_expect_success(&r, "bench");
        json_t *root = load(k ? "r1/bench.json" : "r0/bench.json");
        const json_t *row;
        size_t i;
        json_array_foreach(json_object_get(root, "operations"), i, row)
        {
            calls[k] += number(row, "calls");
            cr_expect_eq(json_string_length(json_object_get(row, "instance")) > 0, k == 1);
        }
        cr_expect(k == 0 || strstr(r.out, "mlp.linear_fc1"), "%s", r.out);
        json_decref(root);
        cli_free(&r);
    }
    cr_expect_eq(calls[0], calls[1]);
}

/* The tokens that --seed draws are other tokens: a drawn batch is written beside the result. */
Test(cli_bench, a_seed_draws_the_data)
{
    char *bytes[3];
    uint64_t n[3];
    static const char *const seeds[] = {"--seed 7", "--seed 7", "--seed 8"};
    for (int k = 0; k < 3; k++) {
        cli_result r = cli_run(
            "bench --engine sim --model " MODELS "llama --seq-length 16 --steps 1 --warmup 1 %s", seeds[k]);
        cli_expect_success(&r, seeds[k]);
        cr_assert_eq(assay_read_file(cli_file("bench/batch.safetensors"), 1 << 20, &bytes[k], &n[k]),
                     ASSAY_OK);
        cli_free(&r);
    }
    cr_expect(n[0] == n[1] && memcmp(bytes[0], bytes[1], n[0]) == 0, "the same seed draws the same tokens");
    cr_expect(n[0] != n[2] || memcmp(bytes[0], bytes[2], n[0]) != 0, "another seed draws others");
    for (int k = 0; k < 3; k++)
        free(bytes[k]);
}

/* --- refusals ----------------------------------------------------------------------------------------------- */
Test(cli_bench, what_has_no_meaning_is_refused)
{
    static const struct {
        const char *arguments, *words[4];
    } rows[] = {
        {"--case llama --steps 0", {"--steps", "from 1 to 1000000", "found 0", NULL}},
        {"--case llama --warmup 0", {"--warmup", "found 0", NULL}},
        {"--case nobody", {"nobody", NULL}},
        {"--case lama", {"did you mean llama", NULL}},
        {"", {"--model DIR", "found none", NULL}},
        {"--case llama --model x", {"found two of them", NULL}},
        {"--case llama --batch x", {"a case has its own data", NULL}},
        {"--case llama --seq-length 8", {"--seq-length", "no meaning", NULL}},
        {"--model " MODELS "llama --batch x --seed 3", {"--seed", "no meaning", NULL}},
        {"--case llama --seed 3x", {"seed", "3x", NULL}},
        {"--case llama --trace t", {"--trace", "no meaning here", NULL}},
        {"--case llama --out t", {"--out", "no meaning here", NULL}},
        {"--case llama --precision fp64", {"fp64", NULL}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("bench --engine sim %s", rows[i].arguments);
        cli_expect_refusal(&r, rows[i].arguments, rows[i].words);
        cr_expect(!cli_exists(cli_file("bench/bench.json")), "%s wrote a file", rows[i].arguments);
        cli_free(&r);
    }
}

Test(cli_bench, a_folder_that_is_not_ours_is_left_alone)
{
    cr_assert_eq(assay_mkdir_p(cli_file("mine")), ASSAY_OK);
    cli_write_text(cli_file("mine/bench.json"), "precious");
    cli_result r = cli_run("bench --engine sim --case llama --report mine");
    cli_expect_refusal(&r, "mine", (const char *const[]){"expected a new or empty folder", NULL});
    char *text = cli_read(cli_file("mine/bench.json"));
    cr_expect_str_eq(text, "precious");
    free(text);
    cli_free(&r);
}

/* What every rank would refuse: once, and nothing has been touched. */
Test(cli_bench, what_cannot_run_is_refused_before_anything_starts)
{
    static const struct {
        const char *arguments, *words[3];
    } rows[] = {
        {"--model " MODELS "llama --layout tp3", {"tp3", "4 attention heads", NULL}},
        {"--case llama --layout tp3", {"case llama, layout tp3", NULL}},
        {"--case llama --layout dp64", {"dp64", NULL}},
        {"--model " MODELS "llama --batch " MODELS "llama/train_batch.safetensors --layout pp9",
         {"pp9", NULL}},
        {"--model " MODELS "llama --batch " MODELS "llama/train_batch.safetensors --moe-aux-loss-coeff 0.1",
         {"--moe_aux_loss_coeff: has no meaning here", "llama has no experts", NULL}},
        {"--case llama --variant atention=k1", {"unknown family", "did you mean", NULL}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("bench --engine sim %s", rows[i].arguments);
        cli_expect_refusal(&r, rows[i].arguments, rows[i].words);
        cr_expect_eq(cli_count(r.err, "error: "), 1, "%s: one message\n%s", rows[i].arguments, r.err);
        cr_expect(strstr(r.err, "[rank") == NULL, "%s: a rank was started\n%s", rows[i].arguments, r.err);
        cr_expect(!cli_exists(cli_file("bench")), "%s: the folder was made", rows[i].arguments);
        cli_free(&r);
    }
}

/* --- files of ranks and of others --------------------------------------------------------------------------- */
static json_t *rank_of(int rank)
{
    return json_pack(
        "{s:s, s:i, s:i, s:s, s:b, s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:{s:s}, s:[f,f], "
        "s:[f,f], "
        "s:[f,f], s:[f,f], s:[f], s:[f], s:[{s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:[f,f]}]}",
        "format", "assay-bench-rank-1", "rank", rank, "world", 2, "device", "d", "simulated", 1,
        "measured_with", "m", "layout", "dp2", "precision", "bf16", "variant", "", "optimizer_steps", 1,
        "microbatches", 2, "micro_batch_size", 1, "seq_length", 4, "warmup", 1, "steps", 2, "peak",
        "not_measured", "no memory", "s", 0.25 + rank, 0.75, "s_with_events", 1.0, 1.0, "ms_between_events",
        100.0, 100.0, "ms_inside_operations", 60.0, 60.0, "loss", 1.0, "grad_norm", 1.0, "operations",
        "phase", "forward", "op", "add", "instance", "", "variant", "k0", "recompute", 0, "calls", 1,
        "launches", 1, "flops", 1000, "model_flops", 500, "bytes", 2000, "ms", 10.0 + 20.0 * rank,
        30.0 + 20.0 * rank);
}

static void write_ranks(const char *key, json_t *value)
{
    cr_assert_eq(assay_mkdir_p(cli_file("ranks")), ASSAY_OK);
    for (int r = 0; r < 2; r++) {
        json_t *root = rank_of(r);
        cr_assert_not_null(root);
        if (key != NULL && r == 1)
            json_object_set(root, key, value);
        cr_assert_eq(assay_json_save(root, cli_file(r ? "ranks/rank-00001.json" : "ranks/rank-00000.json")),
                     ASSAY_OK);
        json_decref(root);
    }
    json_decref(value);
}

Test(cli_bench, the_slowest_rank_counts)
{
    json_t *out = NULL;
    write_ranks(NULL, NULL);
    cr_assert_eq(parity_bench_gather(cli_file("ranks"), 2, 2, &out), ASSAY_OK, "%s", assay_error_message());
    const json_t *row = json_array_get(json_object_get(out, "operations"), 0);
    cr_expect_eq(number(json_object_get(out, "s_per_step"), "median"), 0.5 * (1.25 + 0.75));
    cr_expect_eq(number(out, "tokens_per_s"), 8.0);
    cr_expect_eq(number(out, "tokens_per_s_per_device"), 4.0);
    cr_expect_eq(number(out, "model_flops_per_step"), 1000.0);
    cr_expect_eq(json_array_size(json_object_get(out, "operations")), 1);
    cr_expect_eq(number(row, "slowest_rank"), 1.0);
    cr_expect_eq(number(json_object_get(row, "ms"), "median"), 40.0);
    cr_expect_eq(number(row, "share"), 0.4);
    cr_expect_null(json_object_get(row, "share_of_peak"), "a peak that was not measured gives no share");
    cr_expect_null(json_object_get(out, "model_flops_utilization"));
    json_decref(out);
}

Test(cli_bench, files_of_another_run_are_refused)
{
    const struct {
        const char *key;
        json_t *value;
        const char *text;
    } rows[] = {
        {"layout", json_string("tp2"), "layout: expected that of rank 0"},
        {"rank", json_integer(0), "rank"},
        {"format", json_string("other"), "expected assay-bench-rank-1"},
        {"s", json_pack("[f]", 1.0), "s: expected a list of 2 numbers, found 1"},
        {"s", json_pack("[f,n]", 1.0), "s: expected times"},
        {"s", json_pack("[f,f]", 1.0, -1.0), "s: expected times"},
        {"operations", json_array(), "operations: expected a list"},
        {"operations", json_pack("[{s:s}]", "op", "add"), "phase"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *out = NULL;
        write_ranks(rows[i].key, rows[i].value);
        cr_expect_neq(parity_bench_gather(cli_file("ranks"), 2, 2, &out), ASSAY_OK, "%s", rows[i].key);
        cr_expect(strstr(assay_error_message(), rows[i].text), "expected '%s' in '%s'", rows[i].text,
                  assay_error_message());
        cr_expect_null(out);
        assay_error_clear();
    }
    cr_assert_eq(unlink(cli_file("ranks/rank-00001.json")), 0);
    json_t *out = NULL;
    cr_expect_neq(parity_bench_gather(cli_file("ranks"), 2, 2, &out), ASSAY_OK);
    assay_error_clear();
}

Test(cli_bench, another_program_beside_must_have_done_the_same_work)
{
    static const char *const torch =
        "{\"format\":\"assay-bench-1\",\"program\":\"PyTorch\",\"device\":\"d\",\"precision\":\"%s\","
        "\"tokens_per_step\":%d,\"microbatches\":2,\"seq_length\":4,\"optimizer_steps\":true,"
        "\"tokens_per_s\":16.0,\"s_per_step\":{\"median\":0.5},\"attention_backend\":\"math\"}";
    json_t *ours = NULL;
    char text[600];
    write_ranks(NULL, NULL);
    cr_assert_eq(parity_bench_gather(cli_file("ranks"), 2, 2, &ours), ASSAY_OK);
    snprintf(text, sizeof text, torch, "fp32", 8);
    cli_write_text(cli_file("t.json"), text);
    cr_expect_eq(parity_bench_add_beside(ours, cli_file("t.json")), ASSAY_MISMATCH);
    cr_expect(strstr(assay_error_message(), "precision: expected \"bf16\" as here, found \"fp32\""), "%s",
              assay_error_message());
    snprintf(text, sizeof text, torch, "bf16", 9);
    cli_write_text(cli_file("t.json"), text);
    cr_expect_eq(parity_bench_add_beside(ours, cli_file("t.json")), ASSAY_MISMATCH);
    assay_error_clear();
    snprintf(text, sizeof text, torch, "bf16", 8);
    cli_write_text(cli_file("t.json"), text);
    cr_assert_eq(parity_bench_add_beside(ours, cli_file("t.json")), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(number(json_array_get(json_object_get(ours, "beside"), 0), "ratio"), 2.0);
    json_object_set_new(ours, "program", json_string("assay"));
    json_object_set_new(ours, "device", json_string("another"));
    char *table = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&table, &bytes);
    cr_assert_not_null(out);
    parity_bench_print(ours, out);
    fclose(out);
    cr_expect(strstr(table, "PyTorch, attention math") && strstr(table, " 2.000  d\n"), "%s", table);
    cr_expect(strstr(table, "PyTorch ran on another device"), "%s", table);
    cr_expect(strstr(table, "no peak: no memory") && strstr(table, "no utilization"), "%s", table);
    free(table);
    json_decref(ours);
}
