/* assay certify: the interface, the examples, certificates and the gate. */
#include "parity/certify/certify.h"
#include "parity/certify/shapes.h"
#include "tests/support/certify.h"

#include <string.h>
#include <sys/stat.h>

#define EXAMPLES ASSAY_KERNELS

TestSuite(certify, .init = certify_setup, .fini = cli_teardown);

/* The installed indices are those of the table of operations. */
Test(certify, header_is_the_table)
{
    char *want = NULL, *have = cli_read(ASSAY_SOURCE_DIR "/parity/assay_kernel_ops.h");
    cr_assert_eq(certify_abi_header(&want), ASSAY_OK);
    cr_assert_str_eq(have, want, "assay certify --abi-header > parity/assay_kernel_ops.h");
    free(want);
    free(have);
}

/* Orders and rounding points cross the interface as numbers. */
Test(certify, words_of_the_interface)
{
    cr_assert_eq((int)ASSAY_KERNEL_ORDER_UNKNOWN, (int)ASSAY_ORDER_UNKNOWN);
    cr_assert_eq((int)ASSAY_KERNEL_ORDER_TREE, (int)ASSAY_ORDER_TREE);
    cr_assert_eq((int)ASSAY_KERNEL_ORDER_TENSOR_CORE, (int)ASSAY_ORDER_TENSOR_CORE);
    cr_assert_eq((int)ASSAY_KERNEL_ROUND_EVERY, (int)ASSAY_ROUND_EVERY);
    cr_assert_eq((int)ASSAY_KERNEL_ROUND_HEADS, (int)ASSAY_ROUND_HEADS);
    for (int32_t t = ASSAY_KERNEL_F32; t <= ASSAY_KERNEL_I64; t++)
        cr_assert_eq(certify_abi_dtype(certify_dtype_of(t)), t);
    cr_assert_eq(certify_dtype_of(0), ASSAY_DTYPE_COUNT);
    cr_assert_eq(certify_dtype_of(99), ASSAY_DTYPE_COUNT);
}

Test(certify, conditions_on_shapes)
{
    static const struct {
        const char *text;
        int takes;
    } rows[] = {{"", 1},      {"H>=8", 1},   {"H>8", 0},     {"H<=8 T=3", 1}, {"H%4=0", 1},
                {"H%3=0", 0}, {"H<8", 0},    {"T<4 H=8", 1}, {"V>=1", -1},    {"H>", -1},
                {"H", -1},    {"H%0=0", -1}, {"H=8x", -1},   {"H%4=0 T>3", 0}};
    assay_op_binding b = {0};
    char why[96];
    cr_assert(assay_op_bind(&b, "H", 8) && assay_op_bind(&b, "T", 3));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(certify_shapes_take(rows[i].text, NULL, &b, NULL, why, sizeof why), rows[i].takes, "%s",
                     rows[i].text);
}

/* On attributes: their types, what an absent one has, words of theirs alone. */
Test(certify, conditions_on_attributes)
{
    static const struct {
        const char *op, *text;
        int takes;
    } rows[] = {{"router_fwd", "score_function=softmax", 0},
                {"router_fwd", "score_function=sigmoid pre_softmax=true", 1},
                {"router_fwd", "score_function=other", -1},
                {"router_fwd", "score_function<softmax", -1},
                {"router_fwd", "norm_topk_prob=false num_groups=0", 1},
                {"router_fwd", "norm_topk_prob=1", -1},
                {"router_fwd", "topk<=2 topk%2=0", 1},
                {"router_fwd", "topk>2", 0},
                {"router_fwd", "scaling_factor>=2.5", 1},
                {"router_fwd", "scaling_factor=1", 0},
                {"router_fwd", "scaling_factor%2=0", -1},
                {"router_fwd", "eps=1", -1},
                {"attention_fwd", "dropout_p=0 window=0 p_dtype=F32", 1},
                {"attention_fwd", "dropout_p>0", 0},
                {"attention_fwd", "p_dtype=F33", -1}};
    assay_op_binding b = {0};
    char why[96];
    json_t *attrs = json_pack("{s:s, s:b, s:i, s:f}", "score_function", "sigmoid", "pre_softmax", 1, "topk",
                              2, "scaling_factor", 2.5);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const assay_op *op = assay_op_find(rows[i].op);
        cr_expect_eq(certify_shapes_take(rows[i].text, op, &b, attrs, why, sizeof why), rows[i].takes, "%s",
                     rows[i].text);
        cr_expect(certify_shapes_narrow(rows[i].text, op), "%s", rows[i].text);
    }
    json_decref(attrs);
    cr_expect_eq((int)certify_shapes_check("K>=1 H>=8 Z>=2", assay_op_find("rmsnorm_fwd"), "--shapes"),
                 (int)ASSAY_INVALID_ARGUMENT);
    cr_expect_eq((int)certify_shapes_check("H>=8 Z>=2", assay_op_find("rmsnorm_fwd"), "--shapes"),
                 (int)ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(
        strstr(assay_error_message(), "symbols of rmsnorm_fwd: H, T; attributes: eps; found Z>=2"), "%s",
        assay_error_message());
    assay_error_clear();
    cr_expect_eq((int)certify_shapes_check("H%8=0 eps<1", assay_op_find("rmsnorm_fwd"), "--shapes"),
                 (int)ASSAY_OK);
}

Test(certify, examples)
{
    static const char *const good[] = {"rmsnorm", "swiglu", "linear"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " EXAMPLES "/%s.so:example_%s", good[i], good[i]);
        cli_expect_success(&r, good[i]);
        cr_expect(certify_passed(&r, "local") && certify_passed(&r, "exact") &&
                      certify_passed(&r, "arguments"),
                  "%s", r.out);
        cli_free(&r);
    }
    cli_result r = cli_run("certify --seeds 1 --so " EXAMPLES "/wrong_rmsnorm.so:example_wrong_rmsnorm");
    cr_expect_eq(r.code, 1);
    cr_expect(certify_failed(&r, "local") && certify_passed(&r, "guards"), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "eps="), "no attributes of a finding's call\n%s", r.out);
    cr_expect_not_null(strstr(r.out,
                              "again with: assay certify --so " EXAMPLES
                              "/wrong_rmsnorm.so:example_wrong_rmsnorm --operation rmsnorm_fwd --seeds 1 "
                              "--keep DIR\n"),
                       "%s", r.out);
    cli_free(&r);
}

/* The printed command is one for a shell, whatever a file is called. */
Test(certify, again_with_words_for_a_shell)
{
    static const char *const names[][2] = {{"it's.so", "'./it'\\''s.so:example_wrong_rmsnorm'"},
                                           {"a#~{b}.so", "'./a#~{b}.so:example_wrong_rmsnorm'"},
                                           {"a[1]!\\.so", "'./a[1]!\\.so:example_wrong_rmsnorm'"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char line[CLI_LINE];
        cr_assert_eq(symlink(EXAMPLES "/wrong_rmsnorm.so", cli_file(names[i][0])), 0);
        cli_result r = cli_run("certify --seeds 1 --fail-fast --so ./%s:example_wrong_rmsnorm", names[i][0]);
        snprintf(line, sizeof line, "again with: assay certify --so %s --operation rmsnorm_fwd", names[i][1]);
        cr_expect_not_null(strstr(r.out, line), "%s in\n%s%s", line, r.out, r.err);
        cli_free(&r);
    }
}

Test(certify, refusals)
{
    static const struct {
        const char *symbol, *words[3];
    } rows[] = {
        {"unknown_operation", {"operation", "rmsnorm_forward"}},
        {"receives_alone", {"expected send", "both ends"}},
        {"rows_of_a_collective", {"flags", "no rows"}},
        {"no_arithmetic", {"output y of add has no declared arithmetic"}},
        {"arithmetic_of_no_output", {"outputs[0]", "found 7"}},
        {"arithmetic_twice", {"outputs[1]", "once"}},
        {"arithmetic_without_end", {"math_ulp", "99"}},
        {"shapes_of_no_symbol", {"shapes", "H>=1"}},
        {"in_place_of_no_input", {"in_place", "y=c"}},
        {"no_dtype", {"dtypes", "0x0"}},
        {"device_memory", {"memory", "name one with --cuda-runtime FILE"}},
        {"later_version", {"abi", "found 2"}},
        {"too_small", {"size", "found 16"}},
        {"contradiction", {"not deterministic"}},
        {"adapts_accumulate", {"adapt: output y: accumulate: expected 1", "found 3"}},
        {"adapts_k_step", {"adapt: output y: k_step: expected 0", "found 8"}},
        {"adapts_guard_bits", {"adapt: output y: guard_bits: expected 0", "found 1"}},
        {"adapts_fma", {"adapt: output y: fma: expected 0", "found 1"}},
        {"adapts_atomics", {"adapt: output y: atomics: expected 0", "found 1"}},
        {"adapts_math_ulp", {"adapt: output y: math_ulp: expected 0", "found 4"}},
        {"adapts_rounding", {"adapt: output y: rounding: expected 0", "found 4"}},
        {"knows_no_version", {"does not know version 1"}},
        {"no_such_symbol", {"no function no_such_symbol"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("certify --so " EXAMPLES "/refused.so:%s", rows[i].symbol);
        cli_expect_refusal(&r, rows[i].symbol,
                           (const char *const[]){rows[i].words[0], rows[i].words[1], NULL});
        cli_free(&r);
    }
    static const char *const lines[][2] = {
        {"certify", "expected --so LIBRARY:SYMBOL, --cu FILE"},
        {"certify --so nothing", "expected LIBRARY:SYMBOL"},
        {"certify --so /nonexistent.so:x", "nonexistent"},
        {"certify --operation swiglu_fwd --so " EXAMPLES "/rmsnorm.so:example_rmsnorm",
         "computes rmsnorm_fwd"},
        {"certify --engine sim --operation all_reduce", "no collective"},
        {"certify --out certs --so " EXAMPLES "/rmsnorm.so:example_rmsnorm", "assay keygen"},
        {"gate --require rmsnorm .", "no public key to trust"},
        {"gate --require rmsnorm --require bogus .",
         "--require bogus: expected once, found --require rmsnorm"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        cli_result r = cli_run("%s", lines[i][0]);
        cli_expect_refusal(&r, lines[i][0], (const char *const[]){lines[i][1], NULL});
        cli_free(&r);
    }
}

/* Which of the two was tried, nobody knows. */
Test(certify, a_library_that_is_changed_while_it_is_tried)
{
    cli_copy(EXAMPLES "/refused.so", cli_file("mine.so"));
    setenv("CERTIFY_APPENDS", cli_file("mine.so"), 1);
    cli_result r = cli_run("certify --seeds 1 --so ./mine.so:changes_its_file");
    cli_expect_refusal(
        &r, "changed",
        (const char *const[]){"./mine.so: had SHA-256", "it was changed while it was tried", NULL});
    cli_free(&r);
    unsetenv("CERTIFY_APPENDS");
    r = cli_run("certify --seeds 1 --so ./mine.so:changes_its_file");
    cr_expect_eq(r.code, 1, "%s%s", r.out, r.err);
    cli_free(&r);
}

/* --- certificates --------------------------------------------------------------------------------------------- */
static const char certificate[] = "certs/rmsnorm_fwd-rmsnorm.so-example_rmsnorm-host.json";

static void make_certificate(void)
{
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --so " EXAMPLES "/rmsnorm.so:example_rmsnorm");
    cli_expect_success(&r, "certify --out");
    cli_free(&r);
    cr_assert(cli_exists(cli_file(certificate)));
}

/* Every byte that is changed is refused. */
Test(certify, one_changed_byte)
{
    make_certificate();
    char *text = cli_read(cli_file(certificate));
    const size_t n = strlen(text);
    certify_checked c;
    char path[CLI_PATH];
    const int64_t now = (int64_t)time(NULL);
    int64_t refused = 0;
    snprintf(path, sizeof path, "%s", cli_file("changed.json"));
    for (size_t i = 0; i < n; i++) {
        const char was = text[i];
        text[i] = (char)(was ^ 1);
        cli_write_text(path, text);
        const assay_status st = certify_verify(path, NULL, 0, now, &c);
        cr_expect_neq(st, ASSAY_OK, "byte %zu", i);
        cr_expect_gt(strlen(assay_error_message()), 10u);
        json_decref(c.certificate);
        refused += st != ASSAY_OK;
        text[i] = was;
    }
    cr_expect_eq(refused, (int64_t)n);
    cli_write_text(path, text);
    cr_expect_eq(certify_verify(path, NULL, 0, now, &c), ASSAY_OK, "%s", assay_error_message());
    json_decref(c.certificate);
    /* white space, a byte more, a byte less */
    text[n - 1] = ' ';
    cli_write_text(path, text);
    cr_expect_eq(certify_verify(path, NULL, 0, now, &c), ASSAY_MISMATCH);
    text[n - 1] = '\0';
    cli_write_text(path, text);
    cr_expect_eq(certify_verify(path, NULL, 0, now, &c), ASSAY_MISMATCH);
    free(text);
}

Test(certify, validity_and_keys)
{
    make_certificate();
    certify_checked c;
    char path[CLI_PATH], other[1][CERTIFY_KEY_HEX], mine[1][CERTIFY_KEY_HEX];
    const int64_t now = (int64_t)time(NULL), year = 366 * (int64_t)86400;
    snprintf(path, sizeof path, "%s", cli_file(certificate));
    cr_assert_eq(certify_key_read_public(cli_file("assay/certify.key.pub"), mine[0]), ASSAY_OK);
    memset(other, '0', sizeof other);
    other[0][CERTIFY_KEY_HEX - 1] = '\0';
    cr_expect_eq(certify_verify(path, mine, 1, now, &c), ASSAY_OK, "%s", assay_error_message());
    cr_expect_str_eq(c.operation, "rmsnorm_fwd");
    cr_expect_str_eq(c.tier, "host");
    json_decref(c.certificate);
    cr_expect_eq(certify_verify(path, other, 1, now, &c), ASSAY_MISMATCH);
    cr_expect(strstr(assay_error_message(), "none of the 1 that are trusted") != NULL, "%s",
              assay_error_message());
    json_decref(c.certificate);
    cr_expect_eq(certify_verify(path, mine, 1, now + year, &c), ASSAY_MISMATCH);
    cr_expect(strstr(assay_error_message(), "valid until") != NULL, "%s", assay_error_message());
    json_decref(c.certificate);
    cr_expect_eq(certify_verify(path, mine, 1, now - year, &c), ASSAY_MISMATCH);
    cr_expect(strstr(assay_error_message(), "issued in the future") != NULL, "%s", assay_error_message());
    json_decref(c.certificate);
}

/* What is signed by a known key but says that other checks were made is refused, too. */
Test(certify, other_checks_of_a_known_key)
{
    static const char *const swaps[][3] = {{"\"checks\":\"", "checks", "are not those of assay"},
                                           {"\"version\":\"" ASSAY_VERSION "\"", "version", "made by assay"}};
    char zeros[ASSAY_SHA256_HEX];
    memset(zeros, '0', sizeof zeros);
    zeros[sizeof zeros - 1] = '\0';
    make_certificate();
    certify_key key;
    cr_assert_eq(certify_key_read(cli_file("assay/certify.key"), &key), ASSAY_OK);
    for (size_t i = 0; i < 2; i++) {
        json_t *whole = NULL;
        cr_assert_eq(assay_json_load(&whole, cli_file(certificate)), ASSAY_OK);
        json_t *inner = json_object_get(whole, "certificate");
        json_object_set_new(json_object_get(inner, "assay"), swaps[i][1],
                            json_string(i == 0 ? zeros : "0.0.0"));
        cr_assert_eq(certify_sign(inner, &key, cli_file("resigned.json")), ASSAY_OK);
        certify_checked c;
        const assay_status st = certify_verify(cli_file("resigned.json"), NULL, 0, (int64_t)time(NULL), &c);
        cr_expect_eq(st, i == 0 ? ASSAY_MISMATCH : ASSAY_UNSUPPORTED);
        cr_expect(strstr(assay_error_message(), swaps[i][2]) != NULL, "%s", assay_error_message());
        json_decref(c.certificate);
        json_decref(whole);
    }
}

static void expect_code(const char *line, int code, const char *word)
{
    cli_result r = cli_run("%s", line);
    cr_expect_eq(r.code, code, "%s: exit code %d\n%s%s", line, r.code, r.out, r.err);
    cr_expect(word == NULL || strstr(r.out, word) != NULL || strstr(r.err, word) != NULL, "%s: '%s' in\n%s%s",
              line, word, r.out, r.err);
    cli_free(&r);
}

/* The certificate as it would be of a kernel for these shapes, by another judge, or without outputs for activations of a dtype; signed
 * by the same key. */
static void resign(const char *shapes, const char *sources, const char *without)
{
    json_t *whole = NULL;
    certify_key key;
    cr_assert_eq(certify_key_read(cli_file("assay/certify.key"), &key), ASSAY_OK);
    cr_assert_eq(assay_json_load(&whole, cli_file(certificate)), ASSAY_OK);
    json_t *inner = json_object_get(whole, "certificate");
    if (shapes != NULL)
        json_object_set_new(json_object_get(json_object_get(inner, "subject"), "description"), "shapes",
                            json_string(shapes));
    if (sources != NULL)
        json_object_set_new(json_object_get(inner, "assay"), "sources", json_string(sources));
    json_t *outputs = json_object_get(inner, "outputs");
    for (size_t i = json_array_size(outputs); i-- > 0 && without != NULL;)
        if (strcmp(json_string_value(json_object_get(json_array_get(outputs, i), "activations")), without) ==
            0)
            json_array_remove(outputs, i);
    cr_assert_eq(certify_sign(inner, &key, cli_file("others/resigned.json")), ASSAY_OK);
    json_decref(whole);
}

Test(certify, shapes_that_leave_out_sizes)
{
    static const struct {
        const char *shapes;
        bool narrow;
    } rows[] = {{"", false},     {"T>=1 H>=1", false}, {"H>0", false},      {"H>=0", false},
                {"H=8", true},   {"H>=8", true},       {"H>=10", true},     {"H%4=0", true},
                {"H<=99", true}, {"T>=1 H=1", true},   {"T>=1  K<9", true}, {"H>01", true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(certify_shapes_narrow(rows[i].shapes, NULL), rows[i].narrow, "%s", rows[i].shapes);
}

/* The lines say for what a certificate is good and who judged; one for some shapes, or by another judge, is not taken for more. */
Test(certify, what_a_certificate_is_good_for)
{
    make_certificate();
    expect_code("verify --same-sources certs/rmsnorm_fwd-rmsnorm.so-example_rmsnorm-host.json", 0,
                "tier host, every shape, activations F32 BF16, 1 seed, tried up to T 4097, H 8456, issued");
    expect_code(
        "gate --require rmsnorm_fwd --same-sources certs", 0,
        "tier host, every shape, activations F32 BF16, 1 seed, tried up to T 4097, H 8456, 0 hours old");
    cr_assert_eq(assay_mkdir_p(cli_file("others")), ASSAY_OK);
    resign("T>=1 H>=1", NULL, NULL);
    expect_code("gate --require rmsnorm_fwd others", 0, "tier host, shapes T>=1 H>=1, activations F32 BF16,");
    resign("H=8 T=1", NULL, NULL);
    expect_code("gate --require rmsnorm_fwd others", 1,
                "MISSING  rmsnorm_fwd: only for shapes H=8 T=1 (--any-shape takes it)");
    expect_code("gate --require rmsnorm_fwd --any-shape others", 0, "tier host, shapes H=8 T=1, activations");
    expect_code(
        "verify others/resigned.json", 0,
        "tier host, shapes H=8 T=1, activations F32 BF16, 1 seed, tried up to T 4097, H 8456, issued");
    resign(NULL, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", NULL);
    expect_code("verify others/resigned.json", 0,
                "judged by other sources of this version (SHA-256 0123456789abcdef..., this program's ");
    expect_code("verify --same-sources others/resigned.json", 1,
                "judged by sources of SHA-256 0123456789abcdef..., this program's are ");
    expect_code("gate --require rmsnorm_fwd others", 0,
                "judged by other sources of this version (SHA-256 0123456789abcdef...");
    expect_code("gate --require rmsnorm_fwd --same-sources others", 1,
                "MISSING  rmsnorm_fwd: only judged by other sources than this program's");
    resign(NULL, NULL, "BF16");
    expect_code("gate --require rmsnorm_fwd --activations F32 others", 0, "activations F32, 1 seed");
    expect_code("gate --require rmsnorm_fwd --activations BF16 others", 1,
                "MISSING  rmsnorm_fwd: tried with activations F32, expected --activations BF16");
}

/* What a caller has to keep to, and where it was tried. */
Test(certify, alignment_and_device_are_said)
{
    static const struct {
        int alignment;
        const char *device, *says;
    } rows[] = {{0, NULL, "H 8456, issued"},
                {2, NULL, "H 8456, issued"},
                {4, NULL, "H 8456, addresses aligned to 4 bytes, issued"},
                {16, "NVIDIA H200", "H 8456, addresses aligned to 16 bytes, on NVIDIA H200, issued"},
                {0, "NVIDIA H200", "H 8456, on NVIDIA H200, issued"}};
    json_t *whole = NULL;
    certify_key key;
    make_certificate();
    cr_assert_eq(certify_key_read(cli_file("assay/certify.key"), &key), ASSAY_OK);
    cr_assert_eq(assay_json_load(&whole, cli_file(certificate)), ASSAY_OK);
    json_t *inner = json_object_get(whole, "certificate");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_object_set_new(json_object_get(json_object_get(inner, "subject"), "description"), "alignment",
                            json_integer(rows[i].alignment));
        json_object_set_new(json_object_get(inner, "where"), "device",
                            rows[i].device != NULL ? json_string(rows[i].device) : json_null());
        cr_assert_eq(certify_sign(inner, &key, cli_file(certificate)), ASSAY_OK);
        expect_code("verify certs/rmsnorm_fwd-rmsnorm.so-example_rmsnorm-host.json", 0, rows[i].says);
    }
    expect_code("gate --require rmsnorm_fwd certs", 0, "H 8456, on NVIDIA H200, 0 hours old");
    expect_code("gate --require rmsnorm_fwd --device *H200 certs", 0, "on NVIDIA H200");
    expect_code("gate --require rmsnorm_fwd --device *H100* certs", 1,
                "rmsnorm_fwd: not of a device *H100* (--device)");
    expect_code("gate --require rmsnorm_fwd --device= certs", 2, "--device: expected a device's name");
    json_object_set_new(json_object_get(inner, "where"), "device", json_null());
    cr_assert_eq(certify_sign(inner, &key, cli_file(certificate)), ASSAY_OK);
    expect_code("gate --require rmsnorm_fwd --device * certs", 1, "not of a device * (--device)");
    json_decref(whole);
}

/* None is left unread without a word. */
Test(certify, more_certificates_than_a_gate_reads)
{
    enum { MOST = 4096 };
    char path[CLI_PATH], name[32];
    make_certificate();
    snprintf(path, sizeof path, "%s", cli_file(certificate));
    for (int i = 1; i < MOST; i++) {
        snprintf(name, sizeof name, "certs/%d.json", i);
        cr_assert_eq(link(path, cli_file(name)), 0);
    }
    expect_code("gate --require rmsnorm_fwd certs", 0, "1 passed, 0 failed");
    cr_assert_eq(link(path, cli_file("certs/more.json")), 0);
    expect_code("gate --require rmsnorm_fwd certs", 2, "certs: expected at most 4096 certificates");
}

/* A certificate's texts are its author's: none of them makes a line of its own or moves the cursor of a terminal. */
Test(certify, texts_of_a_certificate_stay_in_their_line)
{
    static const char *const lines[] = {"verify others/resigned.json", "gate --require rmsnorm_fwd others",
                                        "gate --require rmsnorm_fwd --any-shape others"};
    json_t *whole = NULL;
    certify_key key;
    make_certificate();
    cr_assert_eq(assay_mkdir_p(cli_file("others")), ASSAY_OK);
    cr_assert_eq(certify_key_read(cli_file("assay/certify.key"), &key), ASSAY_OK);
    cr_assert_eq(assay_json_load(&whole, cli_file(certificate)), ASSAY_OK);
    json_t *inner = json_object_get(whole, "certificate"), *subject = json_object_get(inner, "subject"),
           *description = json_object_get(subject, "description");
    json_object_set_new(subject, "name", json_string("a\ngood     forged: b\x1b[2K"));
    json_object_set_new(description, "shapes", json_string("H=8\ngood     forged: b\x1b[2K"));
    json_object_set_new(json_object_get(json_object_get(description, "arithmetic"), "y"), "rounding",
                        json_pack("[s]", "x\ngood     forged: b\x1b[2K"));
    cr_assert_eq(certify_sign(inner, &key, cli_file("others/resigned.json")), ASSAY_OK);
    json_decref(whole);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        cli_result r = cli_run("%s", lines[i]);
        cr_expect_null(strstr(r.out, "\ngood     forged"), "%s:\n%s", lines[i], r.out);
        cr_expect_null(strchr(r.out, '\x1b'), "%s:\n%s", lines[i], r.out);
        cr_expect_not_null(strstr(r.out, "forged"), "%s:\n%s%s", lines[i], r.out, r.err);
        cli_free(&r);
    }
}

/* A failing kernel removes what was said of it, under whatever name, and leaves what is said of a library with the same symbol. */
Test(certify, a_certificate_is_of_one_library)
{
    static const char other[] = "certs/rmsnorm_fwd-other.so-example_rmsnorm-host.json",
                      old[] = "certs/old.json";
    json_t *whole = NULL;
    make_certificate();
    cli_copy(EXAMPLES "/rmsnorm.so", cli_file("other.so"));
    expect_code("certify --seeds 1 --out certs --so ./other.so:example_rmsnorm", 0, other);
    cr_expect(cli_exists(cli_file(certificate)) && cli_exists(cli_file(other)));
    cli_copy(cli_file(other), cli_file(old)); /* as an earlier version would have called it */
    cli_copy(ASSAY_KERNELS "/broken_rmsnorm.so", cli_file("other.so"));
    /* of another symbol: nobody's certificate is touched */
    expect_code("certify --seeds 1 --fail-fast --out certs --so ./other.so:no_eps", 1, "no certificate");
    cr_expect(cli_exists(cli_file(certificate)) && cli_exists(cli_file(other)) && cli_exists(cli_file(old)));
    /* the same subject, which fails now */
    cr_assert_eq(assay_json_load(&whole, cli_file(other)), ASSAY_OK);
    json_t *subject = json_object_get(json_object_get(whole, "certificate"), "subject");
    json_object_set_new(subject, "symbol", json_string("no_eps"));
    cr_assert_eq(assay_json_save(whole, cli_file(old)), ASSAY_OK);
    json_decref(whole);
    expect_code("certify --seeds 1 --fail-fast --out certs --so ./other.so:no_eps", 1, "no certificate");
    cr_expect(cli_exists(cli_file(certificate)) && cli_exists(cli_file(other)));
    cr_expect(!cli_exists(cli_file(old)), "that of the failing kernel is still there");
}

Test(certify, verify_and_gate)
{
    make_certificate();
    char line[CLI_LINE];
    expect_code("verify certs/rmsnorm_fwd-rmsnorm.so-example_rmsnorm-host.json", 0, "good");
    expect_code("verify --so " EXAMPLES "/rmsnorm.so certs/rmsnorm_fwd-rmsnorm.so-example_rmsnorm-host.json",
                0, "of this file");
    expect_code("verify --so " EXAMPLES "/linear.so certs/rmsnorm_fwd-rmsnorm.so-example_rmsnorm-host.json",
                1, "SHA-256");
    expect_code("verify nothing.json", 2, NULL);
    expect_code("gate --require rmsnorm_fwd --tier host --max-age 30d certs", 0, "1 passed, 0 failed");
    expect_code("gate --require rmsnorm_fwd --tier gpu certs", 1, "only of another tier");
    expect_code("gate --require rmsnorm_fwd --activations F32,BF16 --min-seeds 1 certs", 0,
                "1 passed, 0 failed");
    expect_code("gate --require rmsnorm_fwd --min-seeds 2 certs", 1,
                "MISSING  rmsnorm_fwd: seeds: expected at least 2 (--min-seeds), found 1");
    expect_code("gate --require rmsnorm_fwd --activations F16 certs", 2, "expected F32, BF16 or F32,BF16");
    expect_code("gate --require rmsnorm certs", 1, "MISSING  rmsnorm_bwd");
    expect_code("gate --require , certs", 2, "expected operations or families, found none in ','");
    expect_code("gate --require rmsnorm_fwd,swiglu_fwd certs", 1, "MISSING  swiglu_fwd");
    expect_code("gate --require all_reduce_sum certs", 2, "families of docs/OPS.md, found all_reduce_sum");
    expect_code("gate --require rmsnorm_fwd --max-age soon certs", 2, "--max-age");
    expect_code("gate --require rmsnorm_fwd nowhere", 2, "cannot be read");
    char *text = cli_read(cli_file(certificate));
    *strchr(text, '1') = '2';
    cli_write_text(cli_file("certs/forged.json"), text);
    free(text);
    expect_code("gate --require rmsnorm_fwd certs", 1, "refused");
    snprintf(line, sizeof line, "keygen --key %s/assay/certify.key", cli_folder);
    expect_code(line, 2, "is there already");
    expect_code("keygen --key " ASSAY_SOURCE_DIR "/tests/k", 2, "git tree");
    cr_assert_eq(chmod(cli_file("assay/certify.key"), 0644), 0);
    expect_code("certify --out certs --so " EXAMPLES "/rmsnorm.so:example_rmsnorm", 2, "others can read");
}

/* The engine's own kernels in the same data, through its operation door. */
Test(certify, engine)
{
    cli_result r = cli_run("certify --seeds 1 --engine sim --operation rmsnorm_fwd");
    cli_expect_success(&r, "certify --engine sim");
    cr_expect(certify_passed(&r, "local") && certify_passed(&r, "special") && certify_passed(&r, "repeat"),
              "%s", r.out);
    cli_free(&r);
    r = cli_run("certify --seeds 1 --engine sim --operation add --suggest --variant k0");
    cli_expect_success(&r, "certify --suggest");
    cr_expect(strstr(r.out, "the tightest declaration") != NULL &&
                  strstr(r.out, "\"order\":\"none\"") != NULL,
              "%s", r.out);
    cli_free(&r);
}

static bool says(const json_t *list, const char *text)
{
    bool found = false;
    for (size_t i = 0; i < json_array_size(list); i++)
        found = found || strcmp(json_string_value(json_array_get(list, i)), text) == 0;
    return found;
}

/* What was declared and never met a call is not called undeclared, and a trial without calls has a line. */
Test(certify, what_was_not_tried_is_said_as_it_is)
{
    static const struct {
        const char *flag, *undeclared, *declared;
    } rows[] = {{"row_strides", "rows with gaps: not declared, a call with them has to be refused",
                 "rows with gaps: declared, and no call has two rows to put one between"},
                {"batch_invariant", "batch invariance: not declared",
                 "batch invariance: declared, and no output has rows of its own"},
                {"shadow", "F32 shadows: not declared",
                 "F32 shadows: declared, and no call has an output that has one"},
                {"in_place", "outputs in an input's memory: not declared",
                 "outputs in an input's memory: declared, and no call has an output of as many bytes"}};
    for (int declares = 0; declares < 2; declares++) {
        certify_result r = {.op = assay_op_find("rmsnorm_fwd")};
        json_t *flags = json_array();
        for (size_t i = 0; i < sizeof rows / sizeof *rows && declares; i++)
            json_array_append_new(flags, json_string(rows[i].flag));
        r.subject =
            json_pack("{s:{s:o, s:s}}", "description", "flags", flags, "in_place", declares ? "y=x" : "");
        r.board.trial[CERTIFY_LOCAL].calls = 1;
        certify_list_untried(&r, "host");
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            cr_expect(says(r.not_tried, rows[i].undeclared) == !declares, "%s", rows[i].undeclared);
            cr_expect(says(r.not_tried, rows[i].declared) == (declares == 1), "%s", rows[i].declared);
        }
        cr_expect(says(r.not_tried, "arguments: no call came to this trial"));
        cr_expect(says(r.not_tried, "written: no call came to this trial"));
        cr_expect(!says(r.not_tried, "local: no call came to this trial"));
        cr_expect(!says(r.not_tried, "messages: no call came to this trial"), "of collectives alone");
        json_decref(r.not_tried);
        json_decref(r.subject);
    }
}
