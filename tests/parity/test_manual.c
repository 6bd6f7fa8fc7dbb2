/* Manual page and completion hold what the verbs parse: every option that --help lists is in both, and completion offers nothing
 * else. */
#include "tests/support/cli.h"

TestSuite(cli_manual, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

enum { NAMES = 128, NAME = 64 };
typedef struct names {
    int n;
    char of[NAMES][NAME];
} names;

static void add(names *list, const char *text, size_t n)
{
    cr_assert(list->n < NAMES && n < NAME, "%.80s", text);
    memcpy(list->of[list->n], text, n);
    list->of[list->n++][n] = '\0';
}

static bool has(const names *list, const char *name)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->of[i], name) == 0)
            return true;
    return false;
}

/* Options stand at the beginning of lines: "      --data=PATH   ...", "  -h, --help"; deeper stands text. */
static void options_of(const char *help, names *out)
{
    out->n = 0;
    for (const char *line = help; line != NULL; line = strchr(line, '\n')) {
        line += line[0] == '\n';
        const char *at = line + strspn(line, " ");
        if (strncmp(at, "-h, ", 4) == 0)
            at += 4;
        if (at > line && at - line <= 6 && strncmp(at, "--", 2) == 0)
            add(out, at, 2 + strcspn(at + 2, "=[ \n"));
    }
}

/* The verbs that `assay help` lists. */
static void verbs_of(names *out)
{
    cli_result r = cli_run("help");
    cli_expect_success(&r, "help");
    out->n = 0;
    for (const char *line = strstr(r.out, "\n  "); line != NULL; line = strstr(line + 1, "\n  "))
        add(out, line + 3, strcspn(line + 3, " "));
    cli_free(&r);
    cr_assert_geq(out->n, 14);
    cr_assert(has(out, "run") && has(out, "completion"));
}

/* "\\-" for each hyphen, as the page has it. */
static void escape(const char *text, char *out, size_t capacity)
{
    size_t n = 0;
    out[0] = '\0';
    for (const char *c = text; *c != '\0' && n + 2 < capacity; c++)
        n += (size_t)snprintf(out + n, capacity - n, *c == '-' ? "\\-" : "%c", *c);
}

/* The first option of the list that the section of the page lacks, "" when there is none. */
static const char *missing(const char *page, const char *verb, const names *options)
{
    char head[2 * NAME + 16], escaped[2 * NAME];
    escape(verb, escaped, sizeof escaped);
    snprintf(head, sizeof head, "\n.SS assay %s ", escaped);
    const char *section = strstr(page, head);
    const char *end = section != NULL ? strstr(section + 1, "\n.S") : NULL;
    if (end == NULL)
        return "the section";
    for (int i = 0; i < options->n; i++) {
        char name[2 * NAME + 8];
        escape(options->of[i], escaped, sizeof escaped);
        snprintf(name, sizeof name, "\\fB%s\\fR", escaped);
        const bool always = strcmp(options->of[i], "--help") == 0 || strcmp(options->of[i], "--usage") == 0 ||
                            strcmp(options->of[i], "--version") == 0;
        const char *found = strstr(always ? page : section, name);
        if (found == NULL || (!always && found > end))
            return options->of[i];
    }
    return "";
}

static void help_of(const char *verb, names *options)
{
    cli_result r = cli_run("%s --help", verb);
    cli_expect_success(&r, verb);
    options_of(r.out, options);
    cli_free(&r);
    cr_assert_geq(options->n, 3, "%s", verb);
}

Test(cli_manual, every_option_of_every_verb_is_on_the_page)
{
    static names verbs, options;
    cli_result page = cli_run("help --man");
    cli_expect_success(&page, "help --man");
    verbs_of(&verbs);
    for (int v = 0; v < verbs.n; v++) {
        help_of(verbs.of[v], &options);
        cr_expect_str_empty(missing(page.out, verbs.of[v], &options), "%s: %s is not on the page",
                            verbs.of[v], missing(page.out, verbs.of[v], &options));
    }
    help_of("diff", &options);
    char *planted = strstr(page.out, "\\fB\\-\\-tolerance");
    cr_assert_not_null(planted);
    memcpy(planted, "\\fB\\-\\-tolorance", strlen("\\fB\\-\\-tolorance"));
    cr_expect_str_eq(missing(page.out, "diff", &options), "--tolerance");
    cli_free(&page);
}

/* Of a shell: standard output. */
static char *shell(const char *command)
{
    FILE *f = popen(command, "r");
    cr_assert_not_null(f);
    char *text = calloc(1, 1 << 18);
    cr_assert_not_null(text);
    const size_t n = fread(text, 1, (1 << 18) - 1, f);
    const int code = pclose(f);
    cr_expect_eq(code, 0, "%s: exit status %d: %.*s", command, code, (int)n, text);
    return text;
}

/* Those of the simulator stand in docs/SIMULATOR.md. */
Test(cli_manual, every_variable_that_is_read_is_on_the_page)
{
    char *read =
        shell("cd " ASSAY_SOURCE_DIR
              " && grep -rhoE 'getenv\\(\"ASSAY_[A-Z_]+\"' core gpu parity ref | grep -v ASSAY_SIM_ | "
              "sed 's/.*(\"//; s/\"//' | sort -u");
    cli_result page = cli_run("help --man");
    const char *section = strstr(page.out, ".SH ENVIRONMENT\n");
    cr_assert_not_null(section);
    int n = 0;
    for (char *name = strtok(read, "\n"); name != NULL; name = strtok(NULL, "\n"), n++) {
        char head[80];
        snprintf(head, sizeof head, "\n.B %s\n", name);
        cr_expect_not_null(strstr(section, head), "%s is not on the page", name);
    }
    cr_expect_geq(n, 8);
    free(read);
    cli_free(&page);
}

/* groff would print the page; mandoc says what is wrong with it, too. */
Test(cli_manual, the_page_is_clean)
{
    char command[CLI_PATH + 80];
    snprintf(command, sizeof command, ASSAY_BIN_DIR "/assay help --man >%s && mandoc -Tlint -W warning %s",
             cli_file("assay.1"), cli_file("assay.1"));
    char *said = shell(command);
    cr_expect_str_empty(said, "%s", said);
    free(said);
    snprintf(command, sizeof command,
             "printf '.TH\\n.SH NAME\\n.XX' >%s; mandoc -Tlint -W warning %s || true", cli_file("bad.1"),
             cli_file("bad.1"));
    said = shell(command);
    cr_expect(strstr(said, "WARNING") != NULL, "%s", said);
    free(said);
}

/* What bash offers behind the words, the last of which is being typed; in order, blanks between. */
static char *complete(const char *words)
{
    char command[CLI_PATH + 400];
    snprintf(command, sizeof command,
             "bash --norc --noprofile -c 'source %s; COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
             "_assay; echo \"${COMPREPLY[*]}\"'",
             cli_file("assay.bash"), words);
    char *text = shell(command);
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static void write_script(void)
{
    cli_result r = cli_run("completion bash");
    cli_expect_success(&r, "completion bash");
    cli_write_text(cli_file("assay.bash"), r.out);
    cli_free(&r);
}

static void split(const char *text, names *out)
{
    out->n = 0;
    for (size_t n; *text != '\0'; text += n + (text[n] == ' ')) {
        n = strcspn(text, " ");
        add(out, text, n);
    }
}

Test(cli_manual, completion_offers_the_options_of_every_verb_and_no_others)
{
    static names verbs, options, offered;
    write_script();
    verbs_of(&verbs);
    char *text = complete("assay \"\"");
    split(text, &offered);
    free(text);
    cr_expect_eq(offered.n, verbs.n + 2);
    for (int v = 0; v < verbs.n; v++) {
        char words[80];
        cr_expect(has(&offered, verbs.of[v]), "%s is not offered", verbs.of[v]);
        snprintf(words, sizeof words, "assay %s --", verbs.of[v]);
        text = complete(words);
        static names found;
        split(text, &found);
        free(text);
        help_of(verbs.of[v], &options);
        cr_expect_eq(found.n, options.n, "%s: %d offered, --help has %d", verbs.of[v], found.n, options.n);
        for (int i = 0; i < options.n; i++)
            cr_expect(has(&found, options.of[i]), "%s: %s is not offered", verbs.of[v], options.of[i]);
    }
}

Test(cli_manual, completion_knows_values)
{
    static const struct {
        const char *words, *offered;
    } rows[] = {
        {"assay lay", "layout"},
        {"assay report \"\"", "merge"},
        {"assay help rep", "replay report"},
        {"assay step --precision \"\"", "fp64 fp32 bf16"},
        {"assay step --precision =", "fp64 fp32 bf16"},
        {"assay step --precision = b", "bf16"},
        {"assay step --precision=b", "--precision=bf16"},
        {"assay diff --noise \"\"", "auto fp32 bf16"},
        {"assay train --tokenizer b", "bytes"},
        {"assay step --moe-router-load-balancing-type aux_loss,g", "aux_loss,global_aux_loss"},
        {"assay step --overlap-grad-reduce =", "true false"},
        /* a flag has no value of its own: what follows is a word by itself */
        {"assay report --summary x m", "merge"},
        {"assay step --overlap-grad-reduce --clip-g", "--clip-grad"},
        {"assay step --no-such", ""},
    };
    write_script();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = complete(rows[i].words);
        cr_expect_str_eq(text, rows[i].offered, "%s: expected '%s', found '%s'", rows[i].words,
                         rows[i].offered, text);
        free(text);
    }
    char *folders = complete("assay run --model /us");
    cr_expect_str_eq(folders, "/usr");
    free(folders);
}

Test(cli_manual, what_is_not_known_is_refused)
{
    static const struct {
        const char *line, *word;
    } rows[] = {{"help rum", "did you mean run"},
                {"help --man run", "expected no verb"},
                {"help run step", "expected one word"},
                {"completion zsh", "expected the shell bash, found zsh"},
                {"completion", "found none"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("%s", rows[i].line);
        const char *const words[] = {rows[i].word, NULL};
        cli_expect_refusal(&r, rows[i].line, words);
        cli_free(&r);
    }
    cli_result r = cli_run("help diff"), same = cli_run("diff --help");
    cli_expect_success(&r, "help diff");
    cr_expect_str_eq(r.out, same.out);
    cli_free(&r);
    cli_free(&same);
}
