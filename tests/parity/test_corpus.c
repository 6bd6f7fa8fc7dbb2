/* Every input of tests/fuzz/corpus through its target: seeds, and what ever broke a reader.  ci/fuzz.sh makes new ones. */
#include "tests/fuzz/fuzz.h"
#include <criterion/criterion.h>

#include "core/base/file.h"
#include <criterion/logging.h>
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>

#define CORPUS ASSAY_SOURCE_DIR "/tests/fuzz/corpus/"

static int run_folder(const fuzz_target *target)
{
    char path[1024];
    int n = 0;
    snprintf(path, sizeof path, CORPUS "%s", target->name);
    DIR *d = opendir(path);
    cr_assert_not_null(d, "%s", path);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char *data;
        uint64_t bytes;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, CORPUS "%s/%s", target->name, e->d_name);
        fuzz_must(assay_read_file(path, 1 << 20, &data, &bytes));
        cr_log_info("%s", path); /* with --verbose: the last one is where a process ended */
        target->run((const uint8_t *)data, (size_t)bytes);
        free(data);
        n++;
    }
    closedir(d);
    return n;
}

TestSuite(parity_corpus, .fini = fuzz_folder_remove);

Test(parity_corpus, no_input_breaks_its_reader)
{
    int targets = 0;
    for (const fuzz_target *t = fuzz_targets; t->name != NULL; t++, targets++)
        cr_expect_geq(run_folder(t), 1, "%s", t->name);
    /* A folder without a target would never run. */
    DIR *d = opendir(CORPUS);
    cr_assert_not_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        targets -= e->d_name[0] != '.';
    closedir(d);
    cr_expect_eq(targets, 0);
}

Test(parity_corpus, sections_are_found)
{
    static const char *const names[] = {"a", "b.safetensors", NULL};
    static const char text[] = "@@a\nx\n\n@@c\nleft out\n@@b.safetensors\n{}\nzz";
    fuzz_section s[FUZZ_SECTIONS];
    char *data;
    uint64_t bytes;
    cr_assert_eq(fuzz_sections((const uint8_t *)text, sizeof text - 1, names, s), 2);
    cr_expect(s[0].bytes == 2 && memcmp(s[0].data, "x\n", 2) == 0);
    fuzz_write_sections(s, 2);
    fuzz_must(assay_read_file(fuzz_path("b.safetensors"), 64, &data, &bytes));
    cr_expect(bytes == 12 && memcmp(data, "\2\0\0\0\0\0\0\0{}zz", 12) == 0);
    free(data);
}

/* A law that does not hold ends the process: were it otherwise, nothing above could fail. */
Test(parity_corpus, a_broken_law_is_fatal, .signal = SIGABRT)
{
    FUZZ_LAW(1 + 1 == 3, "as it must");
}
