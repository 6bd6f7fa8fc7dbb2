/* Status codes and the error chain. */
#include "tests/support/core.h"
#include <pthread.h>

Test(core_status, every_code_has_a_name_and_a_text)
{
    static const struct {
        assay_status st;
        const char *name, *text;
    } rows[] = {
        {ASSAY_OK, "OK", "ok"},
        {ASSAY_INVALID_ARGUMENT, "INVALID_ARGUMENT", "invalid argument"},
        {ASSAY_OUT_OF_MEMORY, "OUT_OF_MEMORY", "out of memory"},
        {ASSAY_IO, "IO", "input/output error"},
        {ASSAY_FORMAT, "FORMAT", "malformed file"},
        {ASSAY_LIMIT, "LIMIT", "limit exceeded"},
        {ASSAY_NOT_FOUND, "NOT_FOUND", "not found"},
        {ASSAY_MISMATCH, "MISMATCH", "mismatch"},
        {ASSAY_UNSUPPORTED, "UNSUPPORTED", "not supported"},
        {ASSAY_TIMEOUT, "TIMEOUT", "time limit exceeded"},
        {ASSAY_CHILD, "CHILD", "a child process failed"},
        {ASSAY_CUDA, "CUDA", "CUDA error"},
        {ASSAY_CUBLAS, "CUBLAS", "cuBLAS error"},
        {ASSAY_NCCL, "NCCL", "NCCL error"},
        {ASSAY_INTERNAL, "INTERNAL", "internal error"},
    };
    cr_assert_eq(sizeof rows / sizeof rows[0], ASSAY_INTERNAL + 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cr_expect_eq(rows[i].st, (assay_status)i);
        cr_expect_str_eq(assay_status_name(rows[i].st), rows[i].name);
        cr_expect_str_eq(assay_status_text(rows[i].st), rows[i].text);
    }
}

Test(core_status, success_is_zero)
{
    cr_expect_eq(ASSAY_OK, 0);
}

static assay_status innermost(int value)
{
    ASSAY_CHECK(value == 3, ASSAY_MISMATCH, "expected 3, found %d", value);
    return ASSAY_OK;
}

static assay_status middle(int value)
{
    ASSAY_TRY(innermost(value));
    return ASSAY_OK;
}

static assay_status outer(int value)
{
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(middle(value), st, done);
done:
    return st;
}

static assay_status checked_goto(int value)
{
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(value == 3, ASSAY_LIMIT, st, done, "value %d", value);
done:
    return st;
}

/* What assay_error_print writes. */
static void printed(char *out, size_t capacity, int with_hops)
{
    FILE *file = tmpfile();
    cr_assert_not_null(file);
    assay_error_print(file, "assay", with_hops);
    rewind(file);
    const size_t n = fread(out, 1, capacity - 1, file);
    out[n] = '\0';
    fclose(file);
}

Test(core_status, the_chain_names_every_function_on_the_way_up)
{
    char text[4096];
    cr_expect_eq(outer(4), ASSAY_MISMATCH);
    cr_expect_str_eq(assay_error_message(), "expected 3, found 4");
    cr_expect_eq(assay_error_status(), ASSAY_MISMATCH);
    printed(text, sizeof text, 1);
    cr_expect_eq(strncmp(text, "assay: error: expected 3, found 4 (mismatch)\n", 45), 0, "%s", text);
    const char *a = strstr(text, "at innermost ("), *b = strstr(text, "from middle ("),
               *c = strstr(text, "from outer (");
    cr_expect(a && b && c && a < b && b < c, "%s", text);
    cr_expect(strstr(text, "test_status.c:"), "%s", text);
    printed(text, sizeof text, 0);
    cr_expect_str_eq(text, "assay: error: expected 3, found 4 (mismatch)\n");
}

Test(core_status, success_passes_through_the_macros)
{
    cr_expect_eq(outer(3), ASSAY_OK);
    cr_expect_eq(checked_goto(3), ASSAY_OK);
    cr_expect_eq(checked_goto(5), ASSAY_LIMIT);
    cr_expect_str_eq(assay_error_message(), "value 5");
}

static assay_status deep(int depth)
{
    if (depth == 0)
        ASSAY_FAIL(ASSAY_IO, "bottom");
    ASSAY_TRY(deep(depth - 1));
    return ASSAY_OK;
}

Test(core_status, hops_beyond_32_are_counted_not_written)
{
    static char text[1 << 14];
    cr_expect_eq(deep(40), ASSAY_IO);
    printed(text, sizeof text, 1);
    cr_expect(strstr(text, "... 9 more"), "%s", text);
}

Test(core_status, a_new_failure_starts_a_new_chain)
{
    char text[4096];
    (void)outer(1);
    (void)innermost(2);
    printed(text, sizeof text, 1);
    cr_expect(strstr(text, "from middle") == NULL, "%s", text);
    cr_expect_str_eq(assay_error_message(), "expected 3, found 2");
}

Test(core_status, context_prefixes_the_message)
{
    (void)innermost(2);
    cr_expect_eq(assay_context(ASSAY_MISMATCH, "file %d", 7), ASSAY_MISMATCH);
    cr_expect_str_eq(assay_error_message(), "file 7: expected 3, found 2");
    cr_expect_eq(assay_context(ASSAY_OK, "nothing"), ASSAY_OK);
    cr_expect_str_eq(assay_error_message(), "file 7: expected 3, found 2");
}

Test(core_status, the_current_message_may_be_an_argument)
{
    (void)innermost(2);
    (void)ASSAY_ERROR(ASSAY_FORMAT, "again: %s", assay_error_message());
    cr_expect_str_eq(assay_error_message(), "again: expected 3, found 2");
}

Test(core_status, long_messages_are_cut_and_say_so)
{
    static char many[3000];
    memset(many, 'x', sizeof many - 1);
    (void)ASSAY_ERROR(ASSAY_FORMAT, "%s", many);
    cr_expect_eq(strlen(assay_error_message()), 1023);
    cr_expect_str_eq(assay_error_message() + 1020, "...");
    (void)assay_context(ASSAY_FORMAT, "%s", "prefix");
    cr_expect_eq(strlen(assay_error_message()), 1023);
    cr_expect_eq(strncmp(assay_error_message(), "prefix: xxx", 11), 0);
    cr_expect_str_eq(assay_error_message() + 1020, "...");
    (void)assay_context(ASSAY_FORMAT, "%s", many);
    cr_expect_str_eq(assay_error_message() + 1020, "...");
}

Test(core_status, a_status_without_a_message_does_not_borrow_an_old_one)
{
    (void)innermost(2);
    cr_expect_eq(assay_hop(ASSAY_CUDA, "f.c", 1, "f"), ASSAY_CUDA);
    cr_expect_str_eq(assay_error_message(), "(no message was recorded)");
    (void)innermost(2);
    cr_expect_eq(assay_context(ASSAY_CUDA, "here"), ASSAY_CUDA);
    cr_expect_str_eq(assay_error_message(), "here: (no message was recorded)");
}

static assay_status failing(assay_status code)
{
    ASSAY_CHECK(code == ASSAY_CHILD, code, "bug");
    ASSAY_FAIL(ASSAY_OK, "bug");
}

static assay_status failing_goto(assay_status code)
{
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(false, code, st, done, "bug");
done:
    return st;
}

/* The macros return the code by themselves: it is the one that assay_fail recorded. */
Test(core_status, no_failing_check_reports_success)
{
    cr_expect_eq(failing(ASSAY_OK), ASSAY_INTERNAL);
    cr_expect_eq(failing(ASSAY_IO), ASSAY_IO);
    cr_expect_eq(failing(ASSAY_CHILD), ASSAY_INTERNAL);
    cr_expect_eq(failing_goto(ASSAY_OK), ASSAY_INTERNAL);
    cr_expect_eq(failing_goto(ASSAY_LIMIT), ASSAY_LIMIT);
    cr_expect_eq(assay_error_status(), ASSAY_LIMIT);
}

Test(core_status, a_failure_never_reports_success)
{
    cr_expect_eq(ASSAY_ERROR(ASSAY_OK, "bug"), ASSAY_INTERNAL);
}

Test(core_status, clear_empties_the_chain)
{
    (void)innermost(2);
    assay_error_clear();
    cr_expect_str_eq(assay_error_message(), "");
    cr_expect_eq(assay_error_status(), ASSAY_OK);
}

static void *fail_elsewhere(void *unused)
{
    (void)unused;
    (void)ASSAY_ERROR(ASSAY_IO, "on another thread");
    return NULL;
}

Test(core_status, the_chain_belongs_to_the_thread)
{
    pthread_t thread;
    (void)innermost(2);
    cr_assert_eq(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_expect_str_eq(assay_error_message(), "expected 3, found 2");
}

/* Names in a message are anybody's: what a terminal would obey is not handed on, and a cut falls between characters. */
Test(core_status, messages_hold_no_control_characters)
{
    const assay_status st = ASSAY_ERROR(ASSAY_FORMAT, "tensor '%s': unknown", "a\033[2Jb\nc\xc2\x9b");
    cr_expect_str_eq(assay_error_message(), "tensor 'a?[2Jb?c?': unknown");
    (void)assay_context(st, "%s", "dir\033]0;title\007");
    cr_expect_str_eq(assay_error_message(), "dir?]0;title?: tensor 'a?[2Jb?c?': unknown");
}
