/* `assay layout --svg`: every rank is drawn once, with the bytes that the dry run counts. */
#include "core/base/json.h"
#include "tests/support/cli.h"
#include <jansson.h>

TestSuite(layout_svg, .init = cli_setup, .fini = cli_teardown, .timeout = 100);

/* Exit status of xmllint; 127: not installed (libxml2-utils), and that is no pass. */
static int lint(const char *path)
{
    char command[CLI_PATH + 64];
    snprintf(command, sizeof command, "xmllint --noout %s", path);
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Number after NAME=" in the drawing of a rank; fails the test when the rank is not drawn exactly once. */
static double drawn(const char *svg, int rank, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "data-rank=\"%d\"", rank);
    const char *at = strstr(svg, key);
    cr_assert_not_null(at, "rank %d is not drawn", rank);
    cr_assert_null(strstr(at + 1, key), "rank %d is drawn twice", rank);
    snprintf(key, sizeof key, " data-%s=\"", name);
    const char *value = strstr(at, key), *end = strchr(at, '>');
    cr_assert(value != NULL && value < end, "rank %d has no %s", rank, name);
    return strtod(value + strlen(key), NULL);
}

static void expect_rank(const char *svg, const json_t *memory)
{
    static const char *const parts[] = {"parameters", "gradients", "masters", "moments"};
    const int rank = (int)json_integer_value(json_object_get(memory, "rank"));
    for (int k = 0; k < 4; k++)
        cr_expect_eq(drawn(svg, rank, parts[k]), json_number_value(json_object_get(memory, parts[k])),
                     "rank %d, %s", rank, parts[k]);
    cr_expect_float_eq(drawn(svg, rank, "activations"),
                       json_number_value(json_object_get(json_object_get(memory, "activations"), "none")),
                       0.5);
}

Test(layout_svg, bytes_are_those_of_the_dry_run)
{
    static const char *const layouts[] = {"tp2,sp,pp2,ep2,dp2,zero1", "pp2,vpp2,dp4,zero3", "cp2,tp2,ep2,dp2",
                                          "dp8,zero2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        cli_result r =
            cli_run("layout --layout %s --model " MODELS "qwen3_moe --seq-length 64 --svg l.svg --out l.json",
                    layouts[i]);
        json_t *plan = NULL;
        cli_expect_success(&r, layouts[i]);
        cr_expect_not_null(strstr(r.out, "0 failed"), "the dry run is told, too");
        cr_expect_eq(lint(cli_file("l.svg")), 0);
        char *svg = cli_read(cli_file("l.svg"));
        cr_assert_eq(assay_json_load(&plan, cli_file("l.json")), ASSAY_OK);
        const int world = (int)json_integer_value(json_object_get(plan, "world"));
        cr_expect_eq(cli_count(svg, "data-rank="), world);
        size_t s;
        json_t *memory;
        json_array_foreach(json_object_get(plan, "memory_of_stages"), s, memory) expect_rank(svg, memory);
        expect_rank(svg, json_object_get(plan, "smallest_rank"));
        cr_expect_eq(cli_count(svg, ">stage "),
                     (int)json_array_size(json_object_get(plan, "memory_of_stages")));
        double masters = 0.0;
        for (int rank = 0; rank < world; rank++)
            masters += drawn(svg, rank, "masters");
        if (strcmp(layouts[i], "dp8,zero2") == 0) /* every element has one owner, with four bytes */
            cr_expect_eq(masters, 4.0 * json_number_value(json_object_get(plan, "parameters")));
        json_decref(plan);
        free(svg);
        cli_free(&r);
    }
}

Test(layout_svg, stages_say_what_they_hold)
{
    cli_result r = cli_run("layout --layout pp2,vpp2 --model " MODELS "qwen3_moe --seq-length 64 --svg -");
    cli_expect_success(&r, "alone");
    cr_expect_eq(strncmp(r.out, "<svg ", 5), 0, "the drawing alone: %.80s", r.out);
    cr_expect_not_null(strstr(r.out, ">embedding, layers 0, 2<"), "%s", r.out);
    cr_expect_not_null(strstr(r.out, ">layers 1, 3, head<"));
    cr_expect_not_null(strstr(r.err, "0 failed"), "all else: %s", r.err);
    cli_free(&r);
}

Test(layout_svg, a_layout_without_a_model_shows_who_is_who)
{
    cli_result r = cli_run("layout tp2,cp2,ep2,dp2 --svg l.svg");
    cli_expect_success(&r, "grid");
    cr_expect_eq(lint(cli_file("l.svg")), 0);
    char *svg = cli_read(cli_file("l.svg"));
    cr_expect_eq(cli_count(svg, "data-rank="), 8);
    cr_expect_not_null(strstr(svg, "rank 7: tp 1, cp 1, dp 1, pp 0; etp 0, ep 1, edp 3"), "%s", svg);
    cr_expect_null(strstr(svg, "data-parameters"));
    free(svg);
    cli_free(&r);
}

/* Thousands of ranks are small squares: each is there, and the file stays small. */
Test(layout_svg, a_large_world_is_drawn)
{
    cli_result r =
        cli_run("layout --world 2304 --model llama-3.1-405b --layout tp8,sp,pp9,zero1 --svg l.svg");
    cli_expect_success(&r, "large");
    cr_expect_eq(lint(cli_file("l.svg")), 0);
    char *svg = cli_read(cli_file("l.svg"));
    cr_expect_eq(cli_count(svg, "data-rank="), 2304);
    cr_expect_lt(strlen(svg), 3000000);
    free(svg);
    cli_free(&r);
}

Test(layout_svg, a_model_needs_the_dry_run)
{
    cli_result r = cli_run("layout tp2 --model " MODELS "llama --svg l.svg");
    cli_expect_refusal(&r, "argument",
                       (const char *const[]){"--svg of a model: expected --layout tp2", NULL});
    cr_expect_not(cli_exists(cli_file("l.svg")));
    cli_free(&r);
}
