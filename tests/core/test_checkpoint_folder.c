/* A folder of checkpoints: pointers, rotation by step, and what a path means. */
#include "core/files/checkpoint_folder.h"
#include "tests/support/checkpoint.h"
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static char run[64];

static void make_run(void)
{
    snprintf(run, sizeof run, "/tmp/assay-folder-XXXXXX");
    cr_assert_not_null(mkdtemp(run));
}

static void drop_run(void)
{
    cr_assert_eq(assay_remove_tree(run, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

TestSuite(checkpoint_folder, .init = make_run, .fini = drop_run);

/* What looks like a published checkpoint. */
static void publish(int64_t step)
{
    char dir[128], manifest[160];
    assay_checkpoint_folder_name(run, step, dir, sizeof dir);
    cr_assert_eq(mkdir(dir, 0700), 0);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", dir);
    cr_assert_eq(assay_write_file(manifest, "{}", 2), ASSAY_OK);
}

static void add(int64_t step, double loss, int64_t keep)
{
    publish(step);
    cr_assert_eq(assay_checkpoint_folder_add(run, step, loss, keep), ASSAY_OK, "%s", assay_error_message());
}

static void expect_there(const char *steps)
{
    char found[256] = "", dir[128];
    for (int64_t s = 0; s < 100; s++) {
        assay_checkpoint_folder_name(run, s, dir, sizeof dir);
        if (access(dir, F_OK) == 0)
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%lld", found[0] ? " " : "",
                     (long long)s);
    }
    cr_expect_str_eq(found, steps);
}

static void expect_means(const char *name, const char *wanted)
{
    char path[160], found[256] = "";
    snprintf(path, sizeof path, "%s%s%s", run, name[0] ? "/" : "", name);
    const assay_status st = assay_checkpoint_folder_find(path, found, sizeof found);
    if (wanted == NULL) {
        cr_expect_neq(st, ASSAY_OK, "%s means %s", path, found);
        return;
    }
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
    cr_expect_str_eq(found + strlen(run) + 1, wanted, "%s", name);
}

static void shell(const char *text)
{
    char command[400];
    snprintf(command, sizeof command, "cd '%s' && %s", run, text);
    cr_assert_eq(system(command), 0, "%s", text);
}

Test(checkpoint_folder, the_newest_and_the_best_stay)
{
    add(2, 5.0, 2);
    add(4, 3.0, 2);
    add(6, 4.0, 2);
    expect_there("4 6");
    add(8, 3.5, 2);
    expect_there("4 6 8"); /* 4 is the best */
    expect_means("best", "iter_0000004");
    expect_means("latest", "iter_0000008");
    expect_means("", "iter_0000008");
    expect_means("iter_0000006", "iter_0000006");
    add(10, 2.0, 1);
    expect_there("10");
    add(12, 3.0, 1);
    expect_there("10 12");
    expect_means("best", "iter_0000010");
}

Test(checkpoint_folder, steps_are_ordered_as_numbers_and_not_by_time)
{
    add(9, 1.0, 0);
    add(80, 2.0, 0);
    add(7, 3.0, 0); /* the latest that was told, of a run that went back */
    expect_means("", "iter_0000080");
    expect_means("latest", "iter_0000007");
    shell("mkdir iter_0000099 && mkdir iter_12x iter_ iter_-5 && touch iter_0000098"); /* no manifests */
    shell("cp -r iter_0000080 iter_90"); /* the name of step 90 is iter_0000090 */
    expect_means("", "iter_0000080");
    add(20, 4.0, 1);
    expect_there(
        "9 20 80 98 99"); /* 9 is the best, 80 the greatest, 20 the latest; others are not checkpoints */
}

Test(checkpoint_folder, a_loss_that_is_not_a_number_is_never_the_best)
{
    add(1, (double)NAN, 0);
    expect_means("best", NULL);
    add(2, 7.0, 0);
    add(3, (double)NAN, 0);
    expect_means("best", "iter_0000002");
    expect_means("latest", "iter_0000003");
}

Test(checkpoint_folder, a_best_that_is_gone_is_replaced)
{
    add(1, 1.0, 0);
    shell("rm -r iter_0000001");
    expect_means("best", NULL);
    add(2, 7.0, 0);
    expect_means("best", "iter_0000002");
}

/* A removal that was killed behind its rename leaves no checkpoint, and the next one of that step is no trouble. */
Test(checkpoint_folder, half_a_removal_is_no_checkpoint)
{
    add(1, 1.0, 0);
    shell("mkdir removed_0000002 && touch removed_0000002/manifest.json removed_0000002/x");
    expect_means("", "iter_0000001");
    add(2, 2.0, 0);
    add(3, 3.0, 1);
    expect_there("1 3");
    shell("test ! -e removed_0000002");
}

Test(checkpoint_folder, a_pointer_leads_nowhere_else)
{
    static const char *const hostile[] = {
        "{\"checkpoint\": \"../../etc\"}",   "{\"checkpoint\": 5}", "{}", "[]", "iter_0000001",
        "{\"checkpoint\": \"iter_1/../..\"}"};
    add(1, 1.0, 0);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/best", run);
        cr_assert_eq(assay_write_file(path, hostile[i], strlen(hostile[i])), ASSAY_OK);
        expect_means("best", NULL);
        publish((int64_t)(10 + i));
        cr_expect_neq(assay_checkpoint_folder_add(run, (int64_t)(10 + i), 0.5, 1), ASSAY_OK, "%s",
                      hostile[i]);
    }
    expect_there("1 10 11 12 13 14 15"); /* nothing is removed where it is not known what the best is */
    expect_means("nothing", NULL);
}

/* --- where nothing may be written --------------------------------------------------------------------------- */
static assay_status outside(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", run, name);
    assay_error_clear();
    return assay_checkpoint_outside("--out ", path);
}

Test(checkpoint_folder, nothing_is_made_inside_a_checkpoint)
{
    static const char *const in[] = {"iter_0000003/x",         "iter_0000003/x/", "iter_0000003/new/deep/x",
                                     "iter_0000003/there/x",   "link/x",          "iter_0000003/.",
                                     "empty/../iter_0000003/x"};
    static const char *const out[] = {"iter_0000003", "iter_0000003/", "iter_0000004", "x",
                                      "new/deep/x",   "empty/x",       "others/x"};
    publish(3);
    shell("echo '{\"format\": \"assay-checkpoint\"}' > iter_0000003/manifest.json && mkdir "
          "iter_0000003/there empty others && "
          "echo '{\"name\": \"of a web page\"}' > others/manifest.json && ln -s iter_0000003 link");
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        cr_expect_eq(outside(in[i]), ASSAY_INVALID_ARGUMENT, "%s", in[i]);
        cr_expect_not_null(
            strstr(assay_error_message(), "would be written among the files of the checkpoint"), "%s: %s",
            in[i], assay_error_message());
    }
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        cr_expect_eq(outside(out[i]), ASSAY_OK, "%s: %s", out[i], assay_error_message());
}

Test(checkpoint_folder, nothing_is_made_inside_the_checkpoint_where_a_run_is)
{
    shell("echo '{\"format\": \"assay-checkpoint\"}' > manifest.json && mkdir below");
    cr_assert_eq(chdir(run), 0);
    cr_expect_eq(assay_checkpoint_outside("", "x"), ASSAY_INVALID_ARGUMENT);
    cr_expect_eq(assay_checkpoint_outside("", "below/x"), ASSAY_INVALID_ARGUMENT);
    cr_assert_eq(chdir("below"), 0);
    cr_expect_eq(assay_checkpoint_outside("", "x"), ASSAY_INVALID_ARGUMENT);
    cr_expect_eq(assay_checkpoint_outside("", "../../x"), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_outside("", "/x"), ASSAY_OK);
}
