/* Case files: what is wrong is named with file and member. */
#include "core/base/file.h"
#include "parity/run/cases.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static char root[64];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/assay-cases-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void drop_root(void)
{
    cr_assert_eq(assay_remove_tree(root, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

TestSuite(parity_cases, .init = make_root, .fini = drop_root);

#define DATA                                                                                                 \
    "\"data\":{\"paths\":[\"x\"],\"steps\":2,\"microbatches\":1,\"micro_batch_size\":1,\"seq_length\":8}"

static assay_status load(const char *text, parity_case *c)
{
    char path[256];
    snprintf(path, sizeof path, "%s/case.json", root);
    cr_assert_eq(assay_write_file(path, text, strlen(text)), ASSAY_OK);
    return parity_case_load(path, c);
}

Test(parity_cases, a_case_is_read_with_paths_relative_to_its_file)
{
    parity_case *c = malloc(sizeof *c);
    char expected[256];
    cr_assert_eq(load("{\"name\":\"a\",\"model\":\"m\"," DATA
                      ",\"layouts\":[\"1\",\"tp2,sp\"],\"precision\":[\"bf16\"],"
                      "\"training\":{\"lr\":0.5},\"checks\":[\"local\"]}",
                      c),
                 ASSAY_OK, "%s", assay_error_message());
    snprintf(expected, sizeof expected, "%s/m", root);
    cr_expect_str_eq(c->model_dir, expected);
    cr_expect_eq(c->n_layouts, 2);
    cr_expect_eq(c->precisions[0], ASSAY_PRECISION_BF16);
    cr_expect_float_eq(c->options.lr, 0.5, 0);
    cr_expect_eq(c->n_variants, 1);
    cr_expect_str_eq(c->variants[0], "fastest");
    cr_expect(c->checks[PARITY_CHECK_LOCAL]);
    cr_expect_not(c->checks[PARITY_CHECK_WHOLE]);
    parity_case_free(c);
    free(c);
}

Test(parity_cases, every_mistake_is_named)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{\"name\":\"A b\",\"model\":\"m\"}", "name: expected [a-z0-9_-]+, found \"A b\""},
        {"{\"name\":\"a\",\"model\":3}", "model: expected a folder or a configuration"},
        {"{\"name\":\"a\",\"matrix\":\"pairwise\"}", "matrix: expected \"full\", or no such member"},
        {"{\"name\":\"a\",\"matrix\":true}", "matrix: expected \"full\", or no such member"},
        {"{\"name\":\"a\",\"model\":\"m\"}", "data: expected an object"},
        {"{\"name\":\"a\",\"model\":\"m\",\"data\":{\"paths\":3}}", "paths: expected an array"},
        {"{\"name\":\"a\",\"model\":\"m\",\"data\":{\"paths\":[\"x\"],\"stepz\":1}}", "stepz"},
        {"{\"name\":\"a\",\"model\":\"m\",\"data\":{\"paths\":[\"x\"],\"steps\":-1}}", "steps"},
        {"{\"name\":\"a\",\"model\":\"m\",\"data\":{\"paths\":[\"x\"],\"steps\":0,\"microbatches\":2}}",
         "steps 0 is one batch [b,s] without an optimizer: expected 1 microbatch, found 2"},
        {"{\"name\":\"a\",\"model\":\"m\"," DATA "}", "layouts: expected 1 to"},
        {"{\"name\":\"a\",\"model\":\"m\"," DATA ",\"layouts\":[\"tq2\"],\"precision\":[\"fp32\"]}", "tq2"},
        {"{\"name\":\"a\",\"model\":\"m\"," DATA ",\"layouts\":[\"1\"],\"precision\":[\"fp8\"]}", "fp8"},
        {"{\"name\":\"a\",\"model\":\"m\"," DATA
         ",\"layouts\":[\"1\"],\"precision\":[\"fp32\"],\"checks\":[\"luck\"]}",
         "checks[0]: unknown check luck"},
        {"{\"name\":\"a\",\"model\":\"m\"," DATA
         ",\"layouts\":[\"1\"],\"precision\":[\"fp32\"],\"training\":{\"lrr\":1}}",
         "lrr"},
        {"{\"name\":\"a\",\"model\":\"m\"," DATA
         ",\"layouts\":[\"1\"],\"precision\":[\"fp32\"],\"variants\":[]}",
         "variants: expected 1 to"},
        {"{\"name\":\"a\",\"model\":\"m\"," DATA
         ",\"layouts\":[\"1\"],\"precision\":[\"fp32\"],\"variants\":[\"k0\",\"K 1\"]}",
         "variants[1]: expected \"fastest\""},
        {"{\"name\":\"a\",\"name\":\"b\"}", "case.json"},
        {"{\"name\":\"a\",\"colour\":1}", "colour"},
    };
    parity_case *c = malloc(sizeof *c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_neq(load(rows[i].text, c), ASSAY_OK, "%s", rows[i].text);
        cr_expect_not_null(strstr(assay_error_message(), rows[i].message), "%s\n  says %s", rows[i].text,
                           assay_error_message());
    }
    free(c);
}

Test(parity_cases, the_cases_that_come_with_assay_are_valid)
{
    char **paths;
    int n;
    parity_case *c = malloc(sizeof *c);
    cr_assert_eq(parity_cases_list(ASSAY_SOURCE_DIR "/parity/cases", &paths, &n), ASSAY_OK);
    cr_assert_geq(n, 2);
    for (int i = 0; i < n; i++) {
        cr_expect_eq(parity_case_load(paths[i], c), ASSAY_OK, "%s", assay_error_message());
        parity_case_free(c);
        free(paths[i]);
    }
    free(paths);
    free(c);
}
