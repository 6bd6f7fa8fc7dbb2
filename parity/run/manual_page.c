/* The manual page, in the macros of man(7): every verb with its own options, then the options of a run, which several verbs
 * share, once. */
#include "parity/parity.h"
#include "parity/run/manual.h"

#include <string.h>

/* Text between requests: nothing in it is one. */
static void put(FILE *f, const char *text, size_t n)
{
    bool at_start = true;
    for (size_t i = 0; i < n; i++) {
        if (at_start && (text[i] == '.' || text[i] == '\''))
            fputs("\\&", f);
        at_start = text[i] == '\n';
        if (text[i] == '\\')
            fputs("\\e", f);
        else if (text[i] == '-')
            fputs("\\-", f);
        else
            fputc(text[i], f);
    }
}

static void put_text(FILE *f, const char *text)
{
    put(f, text, strlen(text));
}

/* Lines that begin with a blank stand as they are; an empty line ends a paragraph. */
static void put_lines(FILE *f, const char *text)
{
    bool as_it_is = false;
    for (size_t n; *text != '\0'; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        if ((text[0] == ' ') != as_it_is) {
            fputs(as_it_is ? ".fi\n.RE\n" : ".RS 2\n.nf\n", f);
            as_it_is = !as_it_is;
        }
        const size_t skip = as_it_is ? strspn(text, " ") : 0;
        if (n == 0)
            fputs(text[1] != '\0' ? ".PP\n" : "", f);
        else {
            put(f, text + skip, n - skip);
            fputc('\n', f);
        }
    }
    if (as_it_is)
        fputs(".fi\n.RE\n", f);
}

static void put_name(FILE *f, const char *name, const char *argument, bool optional)
{
    fputs("\\fB\\-\\-", f);
    put_text(f, name);
    fputs("\\fR", f);
    if (argument == NULL)
        return;
    fputs(optional ? "[=\\fI" : "=\\fI", f);
    put_text(f, argument);
    fputs(optional ? "\\fR]" : "\\fR", f);
}

static void put_option(FILE *f, const char *name, const char *argument, bool optional, const char *help)
{
    fputs(".TP\n", f);
    put_name(f, name, argument, optional);
    fputc('\n', f);
    put_text(f, help);
    fputc('\n', f);
}

/* In the process of the verb. */
static void describe(void *user, const assay_program_text *t)
{
    const parity_verb *verb = user;
    FILE *f = stdout;
    const char *doc = t->doc, *behind = strchr(doc, '\v');
    fputs(".SS assay ", f);
    put_text(f, verb->name);
    fputs(" [\\fIOPTION\\fR...]", f);
    if (t->args_doc != NULL && t->args_doc[0] != '\0') {
        fputc(' ', f);
        put_text(f, t->args_doc);
    }
    fputc('\n', f);
    put(f, doc, behind != NULL ? (size_t)(behind - doc) : strlen(doc));
    fputc('\n', f);
    int shared = 0;
    for (int i = 0; i < t->n_options; i++) {
        const assay_option_view *o = &t->options[i];
        const bool own = o->group != NULL && (o->group[0] == '\0' || o->own_text);
        shared += o->group != NULL && !own;
        if (own)
            put_option(f, o->name, o->argument, o->optional, o->help);
    }
    if (shared > 0)
        fputs(".PP\nOptions of a run that it takes:\n", f);
    for (int i = 0, left = shared; i < t->n_options; i++)
        if (t->options[i].group != NULL && t->options[i].group[0] != '\0' && !t->options[i].own_text) {
            put_name(f, t->options[i].name, NULL, false);
            fputs(--left > 0 ? ",\n" : ".\n", f);
        }
    if (behind != NULL) {
        fputs(".PP\n", f);
        put_lines(f, behind + 1);
    }
}

static void put_shared(FILE *f)
{
    const char *group = "";
    fputs(".SH OPTIONS OF A RUN\nThe same names, with _ for \\-, are members of a case file.\n", f);
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++) {
        char name[64];
        snprintf(name, sizeof name, "%s", row->name);
        for (char *c = name; *c != '\0'; c++)
            if (*c == '_')
                *c = '-';
        if (strcmp(group, row->group) != 0)
            fprintf(f, ".SS %s\n", group = row->group);
        put_option(f, name, row->argument, row->type == ASSAY_OPT_BOOL, row->help);
    }
}

assay_status parity_manual_page(FILE *out)
{
    int n;
    const parity_verb *verbs = parity_verbs(&n);
    fprintf(
        out,
        ".\\\" Made by `assay help --man`.\n.TH ASSAY 1 %s \"assay %s\" \"User Commands\"\n.nh\n.SH "
        "NAME\nassay "
        "\\- judge "
        "whether two implementations of one LLM training stack agree\n.SH SYNOPSIS\n.B assay\n\\fIVERB\\fR "
        "[\\fIOPTION\\fR...]\n.SH DESCRIPTION\n",
        ASSAY_DATE, parity_version());
    put_text(
        out,
        "One training stack (dense and mixture-of-experts transformers) twice: a reference on the CPU in "
        "double precision, and an engine in C and CUDA C, which a simulator runs where there is no GPU.  A "
        "judge "
        "says whether they agree, and where and how if they do not.\n");
    for (int i = 0; i < n; i++) {
        fputs(".TP\n\\fB", out);
        put_text(out, verbs[i].name);
        fputs("\\fR\n", out);
        put_text(out, verbs[i].help);
        fputc('\n', out);
    }
    fputs(".SH VERBS\nEvery verb takes \\fB\\-\\-help\\fR, \\fB\\-\\-usage\\fR and \\fB\\-\\-version\\fR.\n",
          out);
    for (int i = 0; i < n; i++)
        ASSAY_TRY(parity_verb_describe(&verbs[i], describe));
    put_shared(out);
    fputs(
        ".SH EXIT STATUS\n.TP\n0\nall within bounds\n.TP\n1\nsomething is wrong\n.TP\n2\nsomething could not "
        "be "
        "checked\n.SH ENVIRONMENT\n.TP\n.B ASSAY_CASES\nthe folder of the cases, in place of those that come "
        "with "
        "assay\n.TP\n.B ASSAY_COLLECTIVE_TIMEOUT_S\nlongest wait for a collective, in seconds\n.TP\n"
        ".B ASSAY_PRODUCT_PLANS\nfolder of the algorithms that matrix products use on a device "
        "(docs/BENCH.md)\n.TP\n"
        ".B ASSAY_PRODUCT_PLANS_TIME\n1: time products that the folder's file does not know\n.TP\n"
        ".B ASSAY_REFERENCE_WAIT\nlongest wait for a reference run that another process makes, in seconds "
        "(3600)\n.TP\n"
        ".B ASSAY_DOCTOR_TIMEOUT\nlongest wait for an engine to say what it is, in seconds (60)\n.TP\n"
        ".B ASSAY_FSYNC\n0: no file and no folder is synced to disk, so that what was written may be lost "
        "with the power; "
        "\\fBassay run\\fR and a campaign of \\fBassay certify\\fR set it for their scratch folders where it "
        "is "
        "not set\n.TP\n"
        ".B ASSAY_DEBUG\nset to anything: the engines print behind an error the functions that handed it "
        "on\n.TP\n"
        ".B ASSAY_SIM_...\nof the simulator (docs/SIMULATOR.md)\n"
        ".SH ENGINES\n"
        "\\fBassay\\-sim\\fR and, where CUDA was found, \\fBassay\\-gpu\\fR lie beside \\fBassay\\fR, which "
        "starts them, "
        "one process for each rank; a launcher may do it, too (docs/LAUNCH.md).  \\fBassay\\-sim "
        "\\-\\-help\\fR lists what "
        "they take.\n.SH SEE ALSO\nthe pages under share/assay/docs; README.md has a list of them\n",
        out);
    return ASSAY_OK;
}
