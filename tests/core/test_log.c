/* Progress lines and small file operations. */
#include "core/base/log.h"
#include "tests/support/core.h"
#include "tests/support/rename_flags.h"
#include <criterion/parameterized.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pty.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads back what was written to a temporary file. */
static char *text_of(FILE *file, char *out, size_t capacity)
{
    fflush(file);
    rewind(file);
    out[fread(out, 1, capacity - 1, file)] = '\0';
    return out;
}

static int count_of(const char *text, char c)
{
    int n = 0;
    for (; *text != '\0'; text++)
        n += *text == c;
    return n;
}

Test(core_log, plain_output_is_a_few_lines_and_always_the_last)
{
    static char text[1 << 16];
    FILE *out = tmpfile();
    assay_progress *p = NULL;
    const double start = assay_monotonic_s();
    expect_ok(assay_progress_create(&p, out, "cases", 1000));
    for (int64_t i = 1; i <= 1000; i++)
        assay_progress_update(p, i, "tp2,sp");
    assay_progress_destroy(p);
    const int allowed = 2 + (int)((assay_monotonic_s() - start) / 5.0);
    text_of(out, text, sizeof text);
    cr_expect(count_of(text, '\n') >= 1 && count_of(text, '\n') <= allowed, "%s", text);
    cr_expect(strstr(text, "cases 1000/1000 (100%)") != NULL, "%s", text);
    cr_expect(strstr(text, "tp2,sp\n") != NULL, "%s", text);
    cr_expect_eq(count_of(text, '\r') + count_of(text, '\033'), 0, "no terminal codes in a file");
    fclose(out);
}

Test(core_log, nothing_done_is_nothing_printed)
{
    char text[64];
    FILE *out = tmpfile();
    assay_progress *p = NULL;
    expect_ok(assay_progress_create(&p, out, "cases", 10));
    assay_progress_destroy(p);
    assay_progress_destroy(NULL);
    assay_progress_update(NULL, 1, "x");
    cr_expect_str_eq(text_of(out, text, sizeof text), "");
    fclose(out);
}

Test(core_log, unknown_totals_show_the_count_alone)
{
    char text[256];
    FILE *out = tmpfile();
    assay_progress *p = NULL;
    expect_ok(assay_progress_create(&p, out, "tokens", 0));
    assay_progress_update(p, 7, NULL);
    assay_progress_destroy(p);
    text_of(out, text, sizeof text);
    cr_expect_eq(strncmp(text, "tokens 7  ", 10), 0, "%s", text);
    cr_expect_null(strchr(text, '%'));
    fclose(out);
    expect_error(assay_progress_create(&p, stderr, "x", -1), ASSAY_INVALID_ARGUMENT, "progress of -1 items");
}

Test(core_log, print_writes_a_line_of_its_own)
{
    char text[256];
    FILE *out = tmpfile();
    assay_progress *p = NULL;
    expect_ok(assay_progress_create(&p, out, "cases", 2));
    assay_progress_print(p, "%s failed", "case 1");
    assay_progress_destroy(p);
    cr_expect_str_eq(text_of(out, text, sizeof text), "case 1 failed\n");
    fclose(out);
}

Test(core_log, a_terminal_gets_one_line_that_is_rewritten)
{
    int controller, terminal;
    static char text[1 << 14];
    cr_assert_eq(openpty(&controller, &terminal, NULL, NULL, NULL), 0);
    FILE *out = fdopen(terminal, "w");
    assay_progress *p = NULL;
    expect_ok(assay_progress_create(&p, out, "cases", 2));
    assay_progress_update(p, 1, "first");
    assay_progress_update(p, 2, "second");
    assay_progress_destroy(p);
    /* A terminal hands on what it has; the last line may come with a later read. */
    for (size_t n = 0; strchr(text, '\n') == NULL && n < sizeof text - 1;) {
        const ssize_t got = read(controller, text + n, sizeof text - 1 - n);
        cr_assert(got > 0);
        n += (size_t)got;
    }
    cr_expect(strstr(text, "\r\033[Kcases 2/2 (100%)"), "%s", text);
    cr_expect_eq(count_of(text, '\n'), 1);
    fclose(out);
    close(controller);
}

/* --- files -------------------------------------------------------------------------------------------------- */

static char root[64];

static void setup(void)
{
    make_scratch(root);
}

static void teardown(void)
{
    drop_scratch(root);
}

static const char *at(const char *name)
{
    static char path[8][256];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

TestSuite(core_file, .init = setup, .fini = teardown);

Test(core_file, what_is_written_is_read)
{
    static const size_t sizes[] = {0, 1, 2, 4095, 4096, 100003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *data = malloc(sizes[i] + 1), *back = NULL;
        uint64_t bytes = 99;
        for (size_t k = 0; k < sizes[i]; k++)
            data[k] = (char)(k * 31);
        expect_ok(assay_write_file(at("f"), data, sizes[i]));
        expect_ok(assay_read_file(at("f"), sizes[i], &back, &bytes));
        cr_expect_eq(bytes, sizes[i]);
        cr_expect_eq(memcmp(back, data, sizes[i]), 0);
        cr_expect_eq(back[sizes[i]], '\0');
        free(back);
        free(data);
    }
}

enum { LINES = 50000 };

/* user: the status to end with. */
static assay_status put_numbers(void *user, FILE *f)
{
    for (int i = 0; i < LINES; i++)
        fprintf(f, "%d\n", i);
    return *(const assay_status *)user == ASSAY_OK ? ASSAY_OK : ASSAY_ERROR(ASSAY_MISMATCH, "not like this");
}

Test(core_file, what_is_put_bit_by_bit_is_read)
{
    char *text = NULL;
    uint64_t bytes = 0;
    assay_status end = ASSAY_OK;
    expect_ok(assay_write_file_by(at("f"), put_numbers, &end));
    expect_ok(assay_read_file(at("f"), 1 << 20, &text, &bytes));
    char *next = text;
    for (int i = 0; i < LINES; i++)
        cr_assert_eq(strtol(next, &next, 10), i);
    cr_expect_eq(next + 1 - text, (int64_t)bytes);
    free(text);
}

/* Names in the folder, "." and ".." left out. */
static int files_in(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    cr_assert_not_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

/* Two containers may have one process number and one folder: what lies under the name that it gives is another's. */
Test(core_file, no_file_of_another_process_is_written_over)
{
    char other[300], link_to[300], *text = NULL;
    uint64_t bytes = 0;
    snprintf(other, sizeof other, "%s.tmp.%ld", at("f"), (long)getpid());
    snprintf(link_to, sizeof link_to, "%s", at("kept"));
    const int fd = open(other, O_WRONLY | O_CREAT | O_EXCL, 0600);
    cr_assert(fd >= 0 && write(fd, "theirs", 6) == 6 && close(fd) == 0);
    cr_assert_eq(link(other, link_to), 0);
    expect_ok(assay_write_file(at("f"), "ours", 4));
    cr_assert_eq(access(other, F_OK), 0);
    expect_ok(assay_read_file(link_to, 16, &text, &bytes));
    cr_expect_str_eq(text, "theirs");
    free(text);
    cr_expect_eq(files_in(root), 3);
}

Test(core_file, names_beside_are_new_and_fit_a_long_name)
{
    char name[256], first[PATH_MAX], second[PATH_MAX];
    int a = -1, b = -1;
    memset(name, 'n', 255);
    name[255] = '\0';
    expect_ok(assay_write_file(at(name), "1", 1));
    cr_assert_eq(assay_name_beside(at(name), first, &a), 0);
    cr_assert_eq(assay_name_beside(at(name), second, &b), 0);
    cr_expect_str_neq(first, second);
    close(a);
    close(b);
    cr_expect_eq(files_in(root), 3);
}

Test(core_file, what_could_not_be_put_leaves_the_old_file)
{
    char *text = NULL;
    uint64_t bytes = 0;
    assay_status end = ASSAY_MISMATCH;
    const struct rlimit small = {.rlim_cur = 100000, .rlim_max = 100000};
    expect_ok(assay_write_file(at("f"), "old", 3));
    expect_error(assay_write_file_by(at("f"), put_numbers, &end), ASSAY_MISMATCH, "not like this");
    cr_expect_eq(files_in(root), 1);
    end = ASSAY_OK;
    expect_error(assay_write_file_by(at("no/such/f"), put_numbers, &end), ASSAY_NOT_FOUND, "cannot create");
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_error(assay_write_file_by(at("f"), put_numbers, &end), ASSAY_IO, "cannot write: File too large");
    cr_expect_eq(files_in(root), 1);
    expect_ok(assay_read_file(at("f"), 3, &text, &bytes));
    cr_expect_str_eq(text, "old");
    free(text);
}

Test(core_file, reading_refuses_what_is_not_a_small_regular_file)
{
    char *text = NULL;
    uint64_t bytes;
    expect_ok(assay_write_file(at("f"), "12345", 5));
    expect_error(assay_read_file(at("f"), 4, &text, &bytes), ASSAY_LIMIT, "f: 5 bytes, at most 4 are read");
    expect_error(assay_read_file(at("absent"), 4, &text, &bytes), ASSAY_NOT_FOUND, "absent: cannot open");
    expect_error(assay_read_file(root, 4, &text, &bytes), ASSAY_IO, "found a folder");
    cr_assert_eq(mkfifo(at("pipe"), 0600), 0);
    expect_error(assay_read_file(at("pipe"), 4, &text, &bytes), ASSAY_IO, "found something else");
    cr_expect_null(text);
}

Test(core_file, a_failed_write_leaves_the_old_file_and_no_other)
{
    char *text = NULL;
    uint64_t bytes;
    expect_error(assay_write_file(at("no/such/f"), "1", 1), ASSAY_NOT_FOUND, "cannot create");
    cr_assert_eq(mkdir(at("folder"), 0700), 0);
    expect_ok(assay_write_file(at("folder/inside"), "1", 1));
    expect_error(assay_write_file(at("folder"), "1", 1), ASSAY_IO, "cannot rename");
    expect_ok(assay_read_file(at("folder/inside"), 1, &text, &bytes));
    free(text);
    cr_expect_eq(files_in(root), 1);
}

Test(core_file, mkdir_makes_every_folder_on_the_way)
{
    expect_ok(assay_mkdir_p(at("a/b/c")));
    cr_expect(exists(at("a/b/c")));
    expect_ok(assay_mkdir_p(at("a/b/c")));
    expect_ok(assay_mkdir_p(at("a/b/d/")));
    cr_expect(exists(at("a/b/d")));
}

Test(core_file, mkdir_refuses_files_and_links)
{
    expect_ok(assay_write_file(at("f"), "1", 1));
    expect_error(assay_mkdir_p(at("f")), ASSAY_IO, "f: expected a folder");
    expect_error(assay_mkdir_p(at("f/g")), ASSAY_IO, "f: expected a folder");
    cr_assert_eq(symlink(root, at("link")), 0);
    expect_error(assay_mkdir_p(at("link")), ASSAY_INVALID_ARGUMENT, "link: is a symbolic link");
    expect_error(assay_mkdir_p(at("link/")), ASSAY_INVALID_ARGUMENT, "is a symbolic link");
    expect_error(assay_mkdir_p(""), ASSAY_INVALID_ARGUMENT, "a path of 1 to");
}

Test(core_file, folders_above_may_be_links)
{
    expect_ok(assay_mkdir_p(at("real")));
    cr_assert_eq(symlink(at("real"), at("link")), 0);
    cr_assert_eq(symlink(at("nowhere"), at("dead")), 0);
    expect_ok(assay_mkdir_above(at("link/new")));
    cr_expect(!exists(at("real/new")));
    expect_ok(assay_mkdir_above(at("link/a/b/new/")));
    cr_expect(exists(at("real/a/b")) && !exists(at("real/a/b/new")));
    expect_ok(assay_mkdir_above("new"));
    expect_ok(assay_mkdir_above("/new"));
    expect_error(assay_mkdir_above(at("dead/new")), ASSAY_IO, "dead: expected a folder");
    expect_ok(assay_write_file(at("f"), "1", 1));
    expect_error(assay_mkdir_above(at("f/new")), ASSAY_IO, "f: expected a folder");
}

/* A new name is taken; what is there, an empty folder too, stays what it is. */
static void expect_new_name_alone(void)
{
    expect_ok(assay_mkdir_p(at("from")));
    expect_ok(assay_write_file(at("from/f"), "1", 1));
    expect_ok(assay_mkdir_p(at("empty")));
    expect_ok(assay_mkdir_p(at("full")));
    expect_ok(assay_write_file(at("full/other"), "1", 1));
    expect_ok(assay_write_file(at("file"), "1", 1));
    cr_assert_eq(symlink(at("nowhere"), at("link")), 0);
    static const char *const there[] = {"empty", "full", "file", "link"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        cr_expect_eq(assay_rename_folder(at("from"), at(there[i])), EEXIST, "%s", there[i]);
    cr_expect(exists(at("from/f")) && exists(at("full/other")) && !exists(at("empty/f")));
    cr_expect_eq(assay_rename_folder(at("from"), at("none/new")), ENOENT);
    cr_expect_eq(assay_rename_folder(at("none"), at("new")), ENOENT);
    cr_expect(!exists(at("new")));
    cr_expect_eq(assay_rename_folder(at("from"), at("new")), 0);
    cr_expect(exists(at("new/f")) && !exists(at("from")));
}

Test(core_file, a_folder_gets_a_new_name_alone)
{
    expect_new_name_alone();
}

ParameterizedTestParameters(core_file, a_folder_gets_a_new_name_where_rename_knows_no_flags)
{
    static int codes[] = {EINVAL, ENOSYS, EOPNOTSUPP};
    return cr_make_param_array(int, codes, sizeof codes / sizeof *codes);
}

ParameterizedTest(int *code, core_file, a_folder_gets_a_new_name_where_rename_knows_no_flags)
{
    if (!refuse_rename_flags(*code))
        cr_skip_test("no filters of system calls here");
    expect_new_name_alone();
}

Test(core_file, remove_tree_takes_the_tree_and_nothing_a_link_points_to)
{
    expect_ok(assay_mkdir_p(at("keep")));
    expect_ok(assay_write_file(at("keep/f"), "1", 1));
    expect_ok(assay_mkdir_p(at("tree/x/y")));
    expect_ok(assay_write_file(at("tree/x/y/f"), "1", 1));
    cr_assert_eq(symlink(at("keep"), at("tree/x/link")), 0);
    expect_ok(assay_remove_tree(at("tree"), root));
    cr_expect(!exists(at("tree")));
    cr_expect(exists(at("keep/f")));
    expect_ok(assay_remove_tree(at("tree"), root));
}

Test(core_file, scratch_folders_lie_in_tmpdir_however_long_it_is)
{
    char dir[512], small[24], tmp[400];
    snprintf(tmp, sizeof tmp, "%s/%0200d", root, 7);
    expect_ok(assay_mkdir_p(tmp));
    cr_assert_eq(setenv("TMPDIR", tmp, 1), 0);
    expect_ok(assay_scratch_make("test", dir, sizeof dir));
    cr_expect(strncmp(dir, tmp, strlen(tmp)) == 0 && exists(dir), "%s", dir);
    expect_ok(assay_mkdir_p(dir));
    assay_scratch_remove(dir);
    cr_expect(!exists(dir));
    expect_error(assay_scratch_make("test", small, sizeof small), ASSAY_LIMIT,
                 "expected a path below 24 bytes");
    cr_assert_eq(setenv("TMPDIR", at("none"), 1), 0);
    expect_error(assay_scratch_make("test", dir, sizeof dir), ASSAY_IO, "cannot make a folder assay-test-");
}

Test(core_file, what_stays_of_a_scratch_folder_keeps_the_error_on_its_way)
{
    expect_ok(assay_write_file(at("f"), "1", 1));
    cr_assert_eq(ASSAY_ERROR(ASSAY_TIMEOUT, "what went wrong"), ASSAY_TIMEOUT);
    assay_scratch_remove(at("f"));
    cr_expect_eq(assay_error_status(), ASSAY_TIMEOUT);
    cr_expect_str_eq(assay_error_message(), "what went wrong");
}

Test(core_file, remove_tree_stays_below_its_root)
{
    expect_ok(assay_mkdir_p(at("a/b")));
    expect_ok(assay_mkdir_p(at("ab")));
    expect_error(assay_remove_tree(at("ab"), at("a")), ASSAY_INVALID_ARGUMENT, "nothing was removed");
    expect_error(assay_remove_tree(at("a"), at("a")), ASSAY_INVALID_ARGUMENT, "not below");
    expect_error(assay_remove_tree(at("a/b/../../ab"), at("a")), ASSAY_INVALID_ARGUMENT, "not below");
    expect_error(assay_remove_tree(at("a"), at("none")), ASSAY_NOT_FOUND, "none: ");
    cr_assert_eq(symlink(at("a"), at("link")), 0);
    expect_error(assay_remove_tree(at("link"), root), ASSAY_INVALID_ARGUMENT, "found a symbolic link");
    expect_ok(assay_write_file(at("f"), "1", 1));
    expect_error(assay_remove_tree(at("f"), root), ASSAY_INVALID_ARGUMENT, "found something else");
    cr_expect(exists(at("a/b")) && exists(at("ab")));
}
