/* Options: one table for the command line and the case file. */
#include "core/run/options.h"
#include "tests/support/core.h"
#include <criterion/redirect.h>
#include <unistd.h>

enum { ALL = ASSAY_FOR_STEP | ASSAY_FOR_RUN | ASSAY_FOR_CASE };

static assay_train_options defaults(void)
{
    assay_train_options o;
    memset(&o, 0xff, sizeof o);
    assay_train_options_default(&o);
    return o;
}

Test(core_options, defaults_are_megatrons)
{
    const assay_train_options o = defaults();
    cr_expect(o.adam_beta1 == 0.9 && o.adam_beta2 == 0.999 && o.adam_eps == 1e-8 && o.weight_decay == 0.01);
    cr_expect(o.clip_grad == 1.0 && o.lr == 1e-3 && o.min_lr == 0.0 && o.lr_warmup_init == 0.0);
    cr_expect(o.moe_aux_loss_coeff.n == 1 && o.moe_aux_loss_coeff.of[0] == 0.0 &&
              o.moe_router_load_balancing_type.n == 1 &&
              o.moe_router_load_balancing_type.of[0] == ASSAY_BALANCING_AUX && o.moe_z_loss_coeff == 0.0 &&
              o.moe_router_bias_update_rate == 1e-3);
    cr_expect(o.seed == 1234 && o.draw_weights == -1 && o.train_iters == 0 && o.save_after == 0);
    cr_expect(o.lr_decay_style == ASSAY_LR_CONSTANT && o.lr_warmup_iters == 0 && o.lr_decay_iters == 0);
    cr_expect(o.lr_wsd_decay_style == ASSAY_WSD_EXPONENTIAL && o.optimizer == ASSAY_OPTIMIZER_ADAM);
    cr_expect_str_eq(o.layout, "1");
    cr_expect(o.model[0] == '\0' && o.trace[0] == '\0' && o.variant[0] == '\0' && !o.trace_hash_only);
    expect_ok(assay_train_options_check(&o));
}

Test(core_options, every_row_is_well_formed)
{
    int rows = 0;
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++, rows++) {
        cr_expect(row->offset + row->size <= sizeof(assay_train_options), "%s", row->name);
        cr_expect(row->help != NULL && row->help[0] != '\0' && row->group != NULL, "%s", row->name);
        cr_expect_eq(row->words != NULL, row->type == ASSAY_OPT_ENUM || row->type == ASSAY_OPT_ENUM_LIST,
                     "%s", row->name);
        cr_expect_null(strpbrk(row->name, "-ABCDEFGHIJKLMNOPQRSTUVWXYZ"), "%s", row->name);
        for (const assay_option_row *other = assay_train_option_table(); other != row; other++)
            cr_expect(strcmp(other->name, row->name) != 0 && other->offset != row->offset, "%s", row->name);
    }
    cr_expect_geq(rows, 40, "the table is cut short: %d rows", rows);
}

/* "... (default X)", "... (default X; ...", "X (default), ...": X is what assay_train_options_default sets; and a default that is not 0
 * is said.  Those of `layout`, `precision` and `seed` are of the verb or the case. */
Test(core_options, help_tells_the_default)
{
    const assay_train_options o = defaults();
    int told = 0;
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++) {
        const char *member = (const char *)&o + row->offset, *at = strstr(row->help, "(default");
        char text[64];
        bool zero = true;
        for (size_t i = 0; i < row->size; i++)
            zero = zero && member[i] == 0;
        const bool verbs = strcmp(row->name, "layout") == 0 || strcmp(row->name, "precision") == 0 ||
                           strcmp(row->name, "seed") == 0;
        cr_expect(at != NULL || zero || verbs, "%s: the default is not in: %s", row->name, row->help);
        if (at == NULL)
            continue;
        if (at[8] == ' ') {
            snprintf(text, sizeof text, "%.*s", (int)strcspn(at + 9, "):;,"), at + 9);
        } else {
            const char *end = at - 1, *begin = end;
            while (begin > row->help && begin[-1] != ' ')
                begin--;
            snprintf(text, sizeof text, "%.*s", (int)(end - begin), begin);
        }
        assay_train_options set = o;
        memset((char *)&set + row->offset, 0xa5, row->size);
        if (row->type == ASSAY_OPT_STRING)
            memset((char *)&set + row->offset, 0, row->size);
        expect_ok(assay_train_option_set(&set, row->name, text));
        cr_expect_eq(memcmp((const char *)&set + row->offset, member, row->size), 0, "%s: %s", row->name,
                     row->help);
        told++;
    }
    cr_expect_geq(told, 20, "%d defaults", told);
}

Test(core_options, set_takes_both_spellings_and_every_type)
{
    assay_train_options o = defaults();
    expect_ok(assay_train_option_set(&o, "clip-grad", "0.5"));
    expect_ok(assay_train_option_set(&o, "adam_beta2", "0.95"));
    expect_ok(assay_train_option_set(&o, "adam-beta1", ".8"));
    expect_ok(assay_train_option_set(&o, "lr-decay-style", "WSD"));
    expect_ok(assay_train_option_set(&o, "lr_wsd_decay_style", "minus_sqrt"));
    expect_ok(assay_train_option_set(&o, "precision", "bf16"));
    expect_ok(assay_train_option_set(&o, "seed", "18446744073709551615"));
    expect_ok(assay_train_option_set(&o, "train-iters", "12"));
    expect_ok(assay_train_option_set(&o, "trace_hash_only", "true"));
    expect_ok(assay_train_option_set(&o, "layout", "tp2,sp"));
    expect_ok(assay_train_option_set(&o, "model", "first"));
    expect_ok(assay_train_option_set(&o, "model", "m"));
    cr_expect(o.clip_grad == 0.5 && o.adam_beta2 == 0.95 && o.adam_beta1 == 0.8);
    cr_expect(o.lr_decay_style == ASSAY_LR_WSD && o.lr_wsd_decay_style == ASSAY_WSD_MINUS_SQRT);
    cr_expect(o.precision == ASSAY_PRECISION_BF16 && o.seed == UINT64_MAX && o.train_iters == 12);
    cr_expect(o.trace_hash_only);
    cr_expect_str_eq(o.layout, "tp2,sp");
    cr_expect_str_eq(o.model, "m");
    expect_ok(assay_train_option_set(&o, "seed", "0x10"));
    cr_expect_eq(o.seed, 16);
}

Test(core_options, every_word_of_every_enum)
{
    static const char *const lr[] = {"constant", "linear", "cosine", "WSD"};
    static const char *const wsd[] = {"linear", "cosine", "exponential", "minus_sqrt"};
    static const char *const precision[] = {"fp64", "fp32", "bf16"};
    assay_train_options o = defaults();
    for (int i = 0; i < 4; i++) {
        expect_ok(assay_train_option_set(&o, "lr_decay_style", lr[i]));
        cr_expect_eq((int)o.lr_decay_style, i);
        expect_ok(assay_train_option_set(&o, "lr_wsd_decay_style", wsd[i]));
        cr_expect_eq((int)o.lr_wsd_decay_style, i);
    }
    for (int i = 0; i < 3; i++) {
        expect_ok(assay_train_option_set(&o, "precision", precision[i]));
        cr_expect_eq((int)o.precision, i);
        cr_expect_str_eq(assay_precision_name(o.precision), precision[i]);
    }
    cr_expect_str_eq(assay_precision_name((assay_precision)9), "?");
}

Test(core_options, wrong_values_are_named)
{
    static char long_path[2000];
    memset(long_path, 'p', sizeof long_path - 1);
    const struct {
        const char *name, *text;
        assay_status st;
        const char *message;
    } rows[] = {
        {"learning_rate", "1", ASSAY_INVALID_ARGUMENT, "learning_rate: unknown option"},
        {"l", "1", ASSAY_INVALID_ARGUMENT, "l: unknown option"},
        {"lr", "fast", ASSAY_INVALID_ARGUMENT, "lr: expected a number, found 'fast'"},
        {"lr", "", ASSAY_INVALID_ARGUMENT, "lr: expected a number, found ''"},
        {"lr", "1e-3x", ASSAY_INVALID_ARGUMENT, "lr: expected a number, found '1e-3x'"},
        {"lr", "nan", ASSAY_INVALID_ARGUMENT, "lr: expected a number, found 'nan'"},
        {"lr", "-inf", ASSAY_INVALID_ARGUMENT, "lr: expected a number, found '-inf'"},
        {"lr", "1e999", ASSAY_INVALID_ARGUMENT, "lr: expected a number, found '1e999'"},
        {"lr", "-1", ASSAY_INVALID_ARGUMENT, "lr: expected 0 to 1000000, found -1"},
        {"lr", " 1", ASSAY_INVALID_ARGUMENT, "lr: expected a number, found ' 1'"},
        {"adam-beta1", "1.5", ASSAY_INVALID_ARGUMENT, "adam_beta1: expected 0 to 1, found 1.5"},
        {"train_iters", "1.5", ASSAY_INVALID_ARGUMENT, "train_iters: expected an integer, found '1.5'"},
        {"train_iters", "-1", ASSAY_INVALID_ARGUMENT, "train_iters: expected 0 to 1000000000000, found -1"},
        {"train_iters", "99999999999999999999", ASSAY_INVALID_ARGUMENT, "train_iters: expected an integer"},
        {"seed", "-1", ASSAY_INVALID_ARGUMENT, "seed: expected an integer from 0 to 2^64 - 1, found '-1'"},
        {"seed", "18446744073709551616", ASSAY_INVALID_ARGUMENT, "seed: expected an integer"},
        {"draw_weights", "-2", ASSAY_INVALID_ARGUMENT, "draw_weights: expected -1 to 9.2233720368547758e+18"},
        {"draw_weights", "9223372036854775808", ASSAY_INVALID_ARGUMENT, "draw_weights: expected an integer"},
        {"precision", "fp16", ASSAY_INVALID_ARGUMENT,
         "precision: expected one of fp64, fp32, bf16, found 'fp16'"},
        {"lr_decay_style", "wsd", ASSAY_INVALID_ARGUMENT, "expected one of constant, linear, cosine, WSD"},
        {"optimizer", "sgd", ASSAY_INVALID_ARGUMENT, "optimizer: expected one of adam, found 'sgd'"},
        {"trace_hash_only", "yes", ASSAY_INVALID_ARGUMENT,
         "trace_hash_only: expected true or false, found 'yes'"},
        {"model", long_path, ASSAY_LIMIT, "model: 1999 bytes, at most 1023 fit"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_train_options o = defaults();
        const assay_train_options before = defaults();
        expect_error(assay_train_option_set(&o, rows[i].name, rows[i].text), rows[i].st, rows[i].message);
        cr_expect_eq(memcmp(&o, &before, sizeof o), 0, "a refused value changes nothing");
    }
}

/* --- JSON --------------------------------------------------------------------------------------------------- */

Test(core_options, json_round_trips)
{
    assay_train_options o = defaults(), back = defaults();
    expect_ok(assay_train_option_set(&o, "seed", "18446744073709551615"));
    expect_ok(assay_train_option_set(&o, "lr", "0.1"));
    expect_ok(assay_train_option_set(&o, "layout", "tp2,sp,ep2"));
    expect_ok(assay_train_option_set(&o, "trace_hash_only", "1"));
    expect_ok(assay_train_option_set(&o, "lr_decay_style", "cosine"));
    expect_ok(assay_train_option_set(&o, "save", "/tmp/x"));
    json_t *object = assay_train_options_to_json(&o, ALL);
    cr_assert_not_null(object);
    expect_ok(assay_train_options_from_json(&back, object, ALL, "case.json"));
    memcpy(back.given, o.given, sizeof back.given); /* every member is in the object, five were set here */
    cr_expect_eq(memcmp(&o, &back, sizeof o), 0);
    json_decref(object);
}

Test(core_options, what_was_given_is_known_also_at_its_default)
{
    assay_train_options o = defaults();
    const assay_option_row *table = assay_train_option_table();
    cr_expect(o.given[0] == 0 && o.given[1] == 0);
    expect_ok(assay_train_option_set(&o, "lr", "1e-3"));
    for (int i = 0; table[i].name != NULL; i++)
        cr_expect_eq(o.given[i / 64] >> (i % 64) & 1, strcmp(table[i].name, "lr") == 0, "%s", table[i].name);
}

/* What is given replaces, also by its default; the rest stays. */
Test(core_options, a_command_line_replaces_what_it_gives)
{
    assay_train_options into = defaults(), given = defaults();
    expect_ok(assay_train_option_set(&into, "lr", "0.25"));
    expect_ok(assay_train_option_set(&into, "weight_decay", "0.5"));
    expect_ok(assay_train_option_set(&into, "variant", "a long text that another replaces"));
    expect_ok(assay_train_option_set(&into, "train_iters", "7"));
    expect_ok(assay_train_option_set(&given, "variant", "k0"));
    expect_ok(assay_train_option_set(&given, "train_iters", "3"));
    expect_ok(assay_train_option_set(&given, "clip_grad", "1"));
    assay_train_options_merge(&into, &given, (const char *const[]){"train_iters", NULL});
    cr_expect_str_eq(into.variant, "k0");
    cr_expect_eq(into.train_iters, 7, "excepted");
    cr_expect_eq(into.clip_grad, 1.0);
    cr_expect_eq(into.weight_decay, 0.5, "not given");
}

Test(core_options, values_of_a_program_s_own_options)
{
    static const char *const wrong[] = {"", "x", "3x", "2", "11", "99999999999999999999", "4.0"};
    int64_t n = 0;
    char text[4];
    expect_ok(assay_option_count("n", "10", 3, 10, &n));
    cr_expect_eq(n, 10);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_expect_eq(assay_option_count("n", wrong[i], 3, 10, &n), ASSAY_INVALID_ARGUMENT, "%s", wrong[i]);
        cr_expect(strstr(assay_error_message(), "--n: expected an integer from 3 to 10, found "), "%s",
                  assay_error_message());
        cr_expect_eq(n, 10, "changed");
    }
    expect_ok(assay_option_text("t", "abc", text, sizeof text));
    cr_expect_str_eq(text, "abc");
    cr_expect_eq(assay_option_text("t", "abcd", text, sizeof text), ASSAY_LIMIT);
    cr_expect_str_eq(text, "abc");
}

Test(core_options, json_accepts_what_a_case_file_says)
{
    static const char text[] =
        "{\"lr\":1,\"clip_grad\":0.25,\"adam_eps\":1e-6,\"seed\":7,\"precision\":\"fp64\","
        "\"trace_hash_only\":true,\"train_iters\":3,\"optimizer\":\"adam\"}";
    assay_train_options o = defaults();
    json_t *object = NULL;
    expect_ok(assay_json_parse(&object, text, strlen(text), "text"));
    expect_ok(assay_train_options_from_json(&o, object, ALL, "case.json"));
    cr_expect(o.lr == 1.0 && o.clip_grad == 0.25 && o.adam_eps == 1e-6 && o.seed == 7 && o.train_iters == 3);
    cr_expect(o.precision == ASSAY_PRECISION_FP64 && o.trace_hash_only);
    json_decref(object);
}

Test(core_options, wrong_json_is_named_and_changes_nothing)
{
    static const struct {
        const char *text;
        assay_status st;
        const char *message;
    } rows[] = {
        {"[]", ASSAY_FORMAT, "case.json: expected an object"},
        {"{\"lr\":1,\"learning_rate\":1}", ASSAY_FORMAT, "case.json: learning_rate: unknown option"},
        {"{\"lr\":\"1\"}", ASSAY_FORMAT, "case.json: lr: expected a number"},
        {"{\"clip_grad\":5,\"lr\":-1}", ASSAY_INVALID_ARGUMENT,
         "case.json: lr: expected 0 to 1000000, found -1"},
        {"{\"train_iters\":1.0}", ASSAY_FORMAT, "case.json: train_iters: expected an integer"},
        {"{\"train_iters\":-1}", ASSAY_INVALID_ARGUMENT, "case.json: train_iters: expected 0 to"},
        {"{\"seed\":-1}", ASSAY_INVALID_ARGUMENT, "case.json: seed: expected an integer from 0"},
        {"{\"seed\":1.5}", ASSAY_FORMAT, "case.json: seed: expected an integer"},
        {"{\"precision\":2}", ASSAY_FORMAT, "case.json: precision: expected a string"},
        {"{\"precision\":\"int8\"}", ASSAY_INVALID_ARGUMENT, "case.json: precision: expected one of"},
        {"{\"trace_hash_only\":1}", ASSAY_FORMAT, "case.json: trace_hash_only: expected true or false"},
        {"{\"model\":null}", ASSAY_FORMAT, "case.json: model: expected a string"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_train_options o = defaults();
        const assay_train_options before = defaults();
        json_t *object = NULL;
        expect_ok(assay_json_parse(&object, rows[i].text, strlen(rows[i].text), "text"));
        expect_error(assay_train_options_from_json(&o, object, ALL, "case.json"), rows[i].st,
                     rows[i].message);
        cr_expect_eq(memcmp(&o, &before, sizeof o), 0, "%s", rows[i].text);
        json_decref(object);
    }
}

/* --- rules that span options -------------------------------------------------------------------------------- */

Test(core_options, options_that_contradict_each_other)
{
    static const struct {
        const char *set[6]; /* name, text, ... */
        const char *message;
    } rows[] = {
        {{"adam_beta1", "1"}, "adam_beta1: expected less than 1"},
        {{"adam_beta2", "1"}, "adam_beta2: expected less than 1"},
        {{"adam_eps", "0"}, "adam_eps: expected more than 0"},
        {{"min_lr", "0.1"}, "min_lr 0.1"},
        {{"lr_warmup_init", "0.1"}, "lr_warmup_init 0.1"},
        {{"lr_warmup_iters", "5", "lr_decay_iters", "5"},
         "lr_warmup_iters 5 must be less than lr_decay_iters 5"},
        {{"lr_warmup_iters", "5", "train_iters", "4"},
         "lr_warmup_iters 5 must be less than lr_decay_iters 4"},
        {{"lr_wsd_decay_iters", "6", "lr_decay_iters", "5"}, "lr_wsd_decay_iters 6 must be at most"},
        {{"lr_decay_style", "WSD"}, "WSD needs lr_wsd_decay_iters"},
        {{"save_after", "2"}, "save_after 2 without save"},
        {{"max_shard_size", "10"}, "max_shard_size 10 without save"},
        {{"trace_hash_only", "1"}, "trace_hash_only without trace"},
        {{"override_checkpoint_args", "1"}, "override_checkpoint_args without load"},
        {{"layout", "tp2,tp2"}, "layout 'tp2,tp2': 'tp' is given twice"},
        {{"layout", "sp"}, "sp needs tp"},
        {{"layout", "ep2,dp3"}, "must divide"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_train_options o = defaults();
        for (int k = 0; k < 6 && rows[i].set[k] != NULL; k += 2)
            expect_ok(assay_train_option_set(&o, rows[i].set[k], rows[i].set[k + 1]));
        expect_error(assay_train_options_check(&o), ASSAY_INVALID_ARGUMENT, rows[i].message);
    }
    assay_train_options o = defaults();
    expect_ok(assay_train_option_set(&o, "lr_warmup_iters", "2"));
    expect_ok(assay_train_option_set(&o, "lr_decay_style", "WSD"));
    expect_ok(assay_train_option_set(&o, "lr_wsd_decay_iters", "3"));
    expect_ok(assay_train_option_set(&o, "train_iters", "3"));
    expect_ok(assay_train_options_check(&o));
}

/* --- command line ------------------------------------------------------------------------------------------- */

typedef struct seen {
    char text[512];
} seen;

static assay_status note(void *user, const char *name, const char *text)
{
    seen *s = user;
    const size_t used = strlen(s->text);
    if (name != NULL && strcmp(name, "bad_value") == 0)
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "bad_value: found '%s'", text);
    snprintf(s->text + used, sizeof s->text - used, "%s=%s;", name ? name : "(arg)", text ? text : "(flag)");
    return ASSAY_OK;
}

static const assay_extra_option extra[] = {{"engine", "NAME", "which engine"},
                                           {"also", "FILE...", "may be repeated"},
                                           {"keep_going", NULL, "do not stop"},
                                           {"bad_value", "X", "is never right"},
                                           {NULL, NULL, NULL}};

static assay_status parse(assay_train_options *o, seen *s, const char *const *words)
{
    static char copies[16][128];
    char *argv[17];
    int argc = 0;
    for (; words[argc] != NULL; argc++) {
        snprintf(copies[argc], sizeof copies[argc], "%s", words[argc]);
        argv[argc] = copies[argc];
    }
    argv[argc] = NULL;
    s->text[0] = '\0';
    return assay_options_parse(argc, argv, "Does things.", "COMMAND", o, ASSAY_FOR_STEP, extra, note, s);
}

#define ARGS(...) ((const char *const[]){"bin/assay", __VA_ARGS__, NULL})

Test(core_options, the_command_line_sets_rows_and_calls_back)
{
    assay_train_options o = defaults();
    seen s;
    expect_ok(parse(&o, &s,
                    ARGS("step", "--lr", "0.5", "--clip-grad=2", "--adam_beta1", "0.8", "--engine=ref",
                         "--keep-going", "--trace-hash-only", "--layout", "tp2,sp", "x", "--", "--lr")));
    cr_expect(o.lr == 0.5 && o.clip_grad == 2.0 && o.adam_beta1 == 0.8 && o.trace_hash_only);
    cr_expect_str_eq(o.layout, "tp2,sp");
    cr_expect_str_eq(s.text, "engine=ref;keep_going=(flag);(arg)=step;(arg)=x;(arg)=--lr;");
    expect_ok(parse(&o, &s, ARGS("--trace-hash-only=false", "--keep_going")));
    cr_expect(!o.trace_hash_only);
    cr_expect_str_eq(s.text, "keep_going=(flag);");
}

Test(core_options, wrong_command_lines_are_explained)
{
    static const struct {
        const char *words[4];
        const char *message;
    } rows[] = {
        {{"bin/assay", "--learning-rate", "1"}, "'--learning-rate': unknown option"},
        {{"bin/assay", "--learning-rate=1"}, "'--learning-rate=1': unknown option"},
        {{"bin/assay", "-x"}, "'-x': unknown option"},
        {{"bin/assay", "--lr"}, "'--lr': the option needs a value"},
        {{"bin/assay", "--clip_grad"}, "'--clip_grad': the option needs a value"},
        {{"bin/assay", "--keep-going=1"}, "'--keep-going=1': the option takes no value"},
        {{"bin/assay", "--adam", "1"}, "'--adam': ambiguous option"},
        {{"bin/assay", "--lr", "fast"}, "lr: expected a number, found 'fast'"},
        {{"bin/assay", "--bad-value", "7"}, "bad_value: found '7'"},
        {{"bin/assay", "--freeze=a", "--freeze=b"}, "--freeze b: expected once, found --freeze a before it"},
        {{"bin/assay", "--engine=a", "--engine=b"}, "--engine b: expected once, found --engine a before it"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_train_options o = defaults();
        seen s;
        expect_error(parse(&o, &s, rows[i].words), ASSAY_INVALID_ARGUMENT, rows[i].message);
    }
}

Test(core_options, the_same_value_again_and_what_may_be_repeated)
{
    assay_train_options o = defaults();
    seen s;
    expect_ok(parse(
        &o, &s, ARGS("--lr", "0.5", "--lr=0.5", "--also", "a", "--also=b", "--keep-going", "--keep-going")));
    cr_expect_str_eq(s.text, "also=a;also=b;keep_going=(flag);keep_going=(flag);");
}

Test(core_options, without_a_table_or_callback)
{
    seen s;
    expect_error(parse(NULL, &s, ARGS("--lr", "1")), ASSAY_INVALID_ARGUMENT, "'--lr': unknown option");
    expect_ok(parse(NULL, &s, ARGS("--engine", "sim", "file")));
    cr_expect_str_eq(s.text, "engine=sim;(arg)=file;");
    assay_train_options o = defaults();
    char program[] = "p", argument[] = "stray";
    char *argv[] = {program, argument, NULL};
    expect_error(assay_options_parse(2, argv, "", "", &o, ASSAY_FOR_STEP, NULL, NULL, NULL),
                 ASSAY_INVALID_ARGUMENT, "unexpected argument 'stray'");
}

/* --help, --usage, --version and -h leave with code 0 and write to standard output. */
Test(core_options, help_exits_with_success, .exit_code = 0, .init = cr_redirect_stdout)
{
    assay_train_options o = defaults();
    seen s;
    (void)parse(&o, &s, ARGS("--help"));
    _exit(1);
}

Test(core_options, short_help_is_help, .exit_code = 0, .init = cr_redirect_stdout)
{
    assay_train_options o = defaults();
    seen s;
    (void)parse(&o, &s, ARGS("-h"));
    _exit(1);
}

Test(core_options, usage_exits_with_success, .exit_code = 0, .init = cr_redirect_stdout)
{
    assay_train_options o = defaults();
    seen s;
    (void)parse(&o, &s, ARGS("--usage"));
    _exit(1);
}

Test(core_options, version_exits_with_success, .exit_code = 0, .init = cr_redirect_stdout)
{
    assay_train_options o = defaults();
    seen s;
    (void)parse(&o, &s, ARGS("--version"));
    _exit(1);
}

Test(core_options, parts_of_a_loss)
{
    static const struct {
        int64_t length, positions, parts;
    } rows[] = {{0, 0, 0},  {0, 9, 0}, {1, 9, 9},
                {4, 9, 3},  {4, 8, 2}, {9, 9, 1},
                {10, 9, 1}, {4, 0, 1}, {(int64_t)1 << 40, INT64_MAX, ((int64_t)1 << 23)}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const assay_train_options o = {.loss_subbatch_sequence_length = rows[i].length};
        cr_expect_eq(assay_loss_parts(&o, rows[i].positions), rows[i].parts, "row %zu", i);
    }
}
