/* The command below a failure runs the same task again: nothing that was asked for is missing from it. */
#include "parity/run/run.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void expect_word(const char *word, const char *wanted)
{
    char out[64];
    parity_shell_word(word, out, sizeof out);
    cr_expect_str_eq(out, wanted);
}

Test(reproduce, words_survive_a_shell)
{
    expect_word("tp2,sp", "tp2,sp");
    expect_word("--lr=1e-3", "--lr=1e-3");
    expect_word("", "''");
    expect_word("my model", "'my model'");
    expect_word("it's", "'it'\\''s'");
    expect_word("$(rm x)", "'$(rm x)'");
}

/* A number is the shortest text of itself. */
Test(reproduce, numbers_are_read_as_they_were)
{
    static const struct {
        double value;
        const char *wanted;
    } rows[] = {{3e-3, "--min-lr=0.003"},
                {0.5, "--min-lr=0.5"},
                {1e-7, "--min-lr=1e-07"},
                {0, "--min-lr=0"},
                {1.0 / 3.0, "--min-lr=0.3333333333333333"},
                {0.1 + 0.2, "--min-lr=0.30000000000000004"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[64];
        json_t *number = json_real(rows[i].value);
        parity_option_argument("min_lr", number, out, sizeof out);
        cr_expect_str_eq(out, rows[i].wanted);
        json_decref(number);
    }
}

Test(reproduce, keeps_every_option)
{
    char out[PARITY_TEXT];
    parity_run_options *o = calloc(1, sizeof *o);
    parity_task *t = calloc(1, sizeof *t);
    parity_case *c = calloc(1, sizeof *c);
    cr_assert(o != NULL && t != NULL && c != NULL);
    t->c = c;
    strcpy(c->name, "mine");
    strcpy(c->file, "my case.json");
    strcpy(t->layout, "tp2");
    strcpy(t->variant, "k0");
    t->precision = ASSAY_PRECISION_BF16;
    strcpy(o->engine_program, "/opt/e");
    strcpy(o->check, "local");
    strcpy(o->overrides, " --lr=0.5 '--fault=a b'");
    o->timeout_s = 30;
    o->n_files = 1;
    parity_run_reproduce(o, "sim", t, out);
    cr_expect_str_eq(
        out, "assay run --engine sim --engine-program /opt/e --case mine --precision bf16 --layout tp2 "
             "--variant k0 --check local --lr=0.5 '--fault=a b' --timeout 30 --keep 'my case.json'");
    o->timeout_s = PARITY_TIMEOUT_S;
    o->check[0] = o->engine_program[0] = o->overrides[0] = '\0';
    o->n_files = 0;
    parity_run_reproduce(o, "gpu", t, out);
    cr_expect_str_eq(out,
                     "assay run --engine gpu --case mine --precision bf16 --layout tp2 --variant k0 --keep");
    memset(o->overrides, 'x', 600);
    parity_run_reproduce(o, "gpu", t, out);
    cr_expect(strstr(out, "this is not all of it") != NULL, "%s", out);
    free(c);
    free(t);
    free(o);
}
