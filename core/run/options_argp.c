/* Command line: the option table through glibc argp.  argp's own messages and exits are switched off; every
 * error comes back as a status. */
#include "core/base/suggest.h"
#include "core/run/options.h"
#include "core/run/outputs.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifndef ASSAY_VERSION
#define ASSAY_VERSION "0.1.0"
#endif

enum {
    KEY_TABLE = 0x1000, /* + row */
    KEY_EXTRA = 0x2000, /* + row */
    KEY_HELP = 0x3000,
    KEY_USAGE,
    KEY_VERSION,
    MAX_NAME = 64
};

/* Rows that mean in one program what they do not in the others. */
typedef struct own_text {
    unsigned where;
    const char *name, *argument /* NULL: the row's */, *help;
} own_text;
static const own_text own_texts[] = {
    {ASSAY_FOR_TRAIN, "load", NULL,
     "checkpoint to go on from, or a folder of them, of which the last is meant"},
    {ASSAY_FOR_TRAIN, "save", NULL,
     "folder of checkpoints (iter_0000010, ..., latest, best) and of metrics.jsonl: new, or that of --load"},
    {ASSAY_FOR_TRAIN, "save_interval", NULL,
     "a checkpoint every N steps and behind the last (default: behind the last alone)"},
    {ASSAY_FOR_TRAIN, "metrics", NULL,
     "one JSON object for each step (default: metrics.jsonl in --save; docs/TRAIN.md)"},
    {ASSAY_FOR_TRAIN, "log_interval", NULL, "a line of output every so many steps (default 10)"},
    {ASSAY_FOR_TRAIN, "train_iters", NULL,
     "optimizer steps; with text they have to be said, of a batch file all are the default"},
    {ASSAY_FOR_TRAIN, "seed", NULL,
     "of the order of the data, of masked labels, and of the weights of --config where --draw-weights names "
     "no other (default 1234)"},
    {ASSAY_FOR_TRAIN, "draw_weights", NULL,
     "draw the weights of --config, or of a --model that holds a configuration alone"},
    {ASSAY_FOR_BENCH, "precision", "fp32|bf16", "fp32 or bf16"},
};

typedef struct parser {
    assay_train_options *o;
    unsigned where;
    const assay_extra_option *extra;
    assay_option_callback callback;
    void *user;
    const char *doc, *args_doc, *program;
    struct argp_option *options;
    char (*names)[MAX_NAME]; /* spelling with '-' */
    const char **given;      /* of each key: its value so far */
    int n_options, n_names, n_table;
    assay_status status;
} parser;

static error_t give_argument(parser *p, const char *name, const char *text)
{
    if (p->callback == NULL)
        p->status = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "unexpected argument '%.64s'", text);
    else
        p->status = p->callback(p->user, name, text);
    return p->status == ASSAY_OK ? 0 : EINVAL;
}

static void print_help(const parser *p, unsigned flags)
{
    const struct argp argp = {.options = p->options, .doc = p->doc, .args_doc = p->args_doc};
    char name[256];
    snprintf(name, sizeof name, "%s", p->program);
    argp_help(&argp, stdout, flags, name);
    exit(assay_outputs_finish(p->program, 0));
}

static bool is_extra(const assay_extra_option *extra, const char *name)
{
    for (; extra != NULL && extra->name != NULL; extra++) {
        if (strcmp(extra->name, name) == 0)
            return true;
    }
    return false;
}

/* Whether the word is a row of the table that this program does not take. */
static bool meant_elsewhere(const parser *p, const char *name, size_t length)
{
    char word[MAX_NAME];
    if (length >= sizeof word)
        return false;
    snprintf(word, sizeof word, "%.*s", (int)length, name);
    for (char *c = word; *c != '\0'; c++)
        if (*c == '-')
            *c = '_';
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++)
        if (strcmp(row->name, word) == 0)
            return p->o != NULL && (row->where & p->where) == 0 && !is_extra(p->extra, row->name);
    return false;
}

/* getopt refused argv[next - 1]; say why. */
static void explain(parser *p, const struct argp_state *state)
{
    const char *text = state->next >= 1 && state->next <= state->argc ? state->argv[state->next - 1] : "";
    const char *name = strncmp(text, "--", 2) == 0 ? text + 2 : text;
    const size_t length = strcspn(name, "=");
    bool exact = false, flag = false;
    int prefixes = 0;
    for (int i = 0; i < p->n_options; i++) {
        const struct argp_option *option = &p->options[i];
        if (option->name == NULL || strncmp(option->name, name, length) != 0)
            continue;
        prefixes += (option->flags & OPTION_HIDDEN) == 0;
        if (strlen(option->name) == length) {
            exact = true;
            flag = option->arg == NULL && (option->flags & OPTION_ALIAS) == 0;
        }
    }
    const char *why = "unknown option";
    assay_suggestion near;
    assay_suggest_begin(&near, name, text != name ? length : 0);
    for (int i = 0; i < p->n_options; i++)
        if (p->options[i].name != NULL && (p->options[i].flags & OPTION_HIDDEN) == 0)
            assay_suggest_add(&near, p->options[i].name);
    const char *suggestion = "";
    if (!exact && prefixes == 0 && meant_elsewhere(p, name, length))
        why = "the option has no meaning here";
    else if (exact)
        why = flag && name[length] == '=' ? "the option takes no value" : "the option needs a value";
    else if (length > 0 && text != name && prefixes > 1)
        why = "ambiguous option";
    else if (length > 0 && text != name && prefixes == 1)
        why = name[length] == '=' ? "the option takes no value" : "the option needs a value";
    else
        suggestion = assay_suggest_end(&near, "--");
    p->status =
        ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "'%.64s': %s%s (--help lists all)", text, why, suggestion);
}

static bool ends_in(const char *argument, const char *end)
{
    const size_t n = argument != NULL ? strlen(argument) : 0, m = strlen(end);
    return n > m && strcmp(argument + n - m, end) == 0;
}

/* "FILE..." may stand several times; "NAME,..." is a list within one value. */
static bool may_repeat(const char *argument)
{
    return ends_in(argument, "...") && isalpha((unsigned char)argument[strlen(argument) - 4]);
}

/* A second value would replace the first without a word.  Of a training option it does, as in Megatron-LM, and that is said, unless it is a
 * list, to which a second one seems to add. */
static bool given_before(parser *p, int key, const char *text)
{
    const bool extra = key >= KEY_EXTRA;
    const assay_option_row *row = &assay_train_option_table()[extra ? 0 : key - KEY_TABLE];
    const char *name = extra ? p->extra[key - KEY_EXTRA].name : row->name,
               *argument = extra ? p->extra[key - KEY_EXTRA].argument : row->argument;
    const char **before = &p->given[extra ? p->n_table + key - KEY_EXTRA : key - KEY_TABLE];
    const char *value = text != NULL ? text : "";
    if (*before != NULL && strcmp(*before, value) != 0 && !may_repeat(argument)) {
        if (extra || ends_in(argument, ",..."))
            p->status =
                ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "--%s %.300s: expected once, found --%s %.300s before it",
                            name, value, name, *before);
        else
            fprintf(stderr, "%s: warning: --%s %.300s replaces --%s %.300s before it\n", p->program, name,
                    value, name, *before);
    }
    *before = value;
    return p->status != ASSAY_OK;
}

static error_t on_key(int key, char *text, struct argp_state *state)
{
    parser *p = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        return give_argument(p, NULL, text);
    case ARGP_KEY_ERROR:
        if (p->status == ASSAY_OK)
            explain(p, state);
        return 0;
    case 'h':
    case KEY_HELP:
        print_help(p, ARGP_HELP_LONG | ARGP_HELP_USAGE | ARGP_HELP_DOC);
        return 0;
    case KEY_USAGE:
        print_help(p, ARGP_HELP_USAGE);
        return 0;
    case KEY_VERSION:
        printf("%s %s\n", p->program, ASSAY_VERSION);
        exit(assay_outputs_finish(p->program, 0));
    default:
        break;
    }
    if (key >= KEY_TABLE && key < KEY_HELP && given_before(p, key, text))
        return EINVAL;
    if (key >= KEY_EXTRA && key < KEY_HELP)
        return give_argument(p, p->extra[key - KEY_EXTRA].name, text);
    if (key >= KEY_TABLE && key < KEY_EXTRA) {
        const assay_option_row *row = &assay_train_option_table()[key - KEY_TABLE];
        p->status = assay_train_option_set(p->o, row->name, text != NULL ? text : "true");
        return p->status == ASSAY_OK ? 0 : EINVAL;
    }
    return ARGP_ERR_UNKNOWN;
}

static const own_text *find_own_text(const assay_option_row *row, unsigned where)
{
    for (size_t i = 0; i < sizeof own_texts / sizeof *own_texts; i++)
        if (own_texts[i].where == where && strcmp(own_texts[i].name, row->name) == 0)
            return &own_texts[i];
    return NULL;
}

/* One option and, when its name has a '_', its snake_case spelling as a hidden alias. */
static void add_option(parser *p, const char *name, int key, const char *argument, int flags,
                       const char *help, int group)
{
    char *spelling = p->names[p->n_names++];
    snprintf(spelling, MAX_NAME, "%s", name);
    for (char *c = spelling; *c != '\0'; c++)
        if (*c == '_')
            *c = '-';
    p->options[p->n_options++] = (struct argp_option){
        .name = spelling, .key = key, .arg = argument, .flags = flags, .doc = help, .group = group};
    if (strchr(name, '_') != NULL)
        p->options[p->n_options++] =
            (struct argp_option){.name = name, .key = key, .flags = OPTION_ALIAS | OPTION_HIDDEN};
}

static void add_heading(parser *p, const char *text, int group)
{
    p->options[p->n_options++] = (struct argp_option){.doc = text, .group = group};
}

/* A program's own option wins over a row of the table with the same name. */
static void add_all(parser *p)
{
    int group = 1;
    for (int i = 0; p->extra != NULL && p->extra[i].name != NULL; i++)
        add_option(p, p->extra[i].name, KEY_EXTRA + i, p->extra[i].argument,
                   p->extra[i].help == NULL ? OPTION_HIDDEN : 0, p->extra[i].help, group);
    const assay_option_row *table = assay_train_option_table();
    const char *heading = "";
    for (int i = 0; p->o != NULL && table[i].name != NULL; i++) {
        if ((table[i].where & p->where) == 0)
            continue;
        if (strcmp(heading, table[i].group) != 0) {
            heading = table[i].group;
            add_heading(p, heading, ++group);
        }
        if (is_extra(p->extra, table[i].name))
            continue;
        const own_text *own = find_own_text(&table[i], p->where);
        add_option(p, table[i].name, KEY_TABLE + i,
                   own != NULL && own->argument != NULL ? own->argument : table[i].argument,
                   table[i].type == ASSAY_OPT_BOOL ? OPTION_ARG_OPTIONAL : 0,
                   own != NULL ? own->help : table[i].help, group);
    }
    p->options[p->n_options++] =
        (struct argp_option){.name = "help", .key = 'h', .doc = "Print this help", .group = -1};
    p->options[p->n_options++] =
        (struct argp_option){.name = "usage", .key = KEY_USAGE, .doc = "Print a short usage", .group = -1};
    p->options[p->n_options++] =
        (struct argp_option){.name = "version", .key = KEY_VERSION, .doc = "Print the version", .group = -1};
}

static assay_status run(parser *p, int argc, char **argv)
{
    const struct argp argp = {
        .options = p->options, .parser = on_key, .doc = p->doc, .args_doc = p->args_doc};
    const error_t code = argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, NULL, p);
    if (p->status != ASSAY_OK)
        return p->status;
    ASSAY_CHECK(code == 0, ASSAY_INVALID_ARGUMENT, "the command line cannot be read: %s", strerror(code));
    return ASSAY_OK;
}

/* --- what a program takes ----------------------------------------------------------------------------------- */
static struct {
    assay_describe describe;
    void *user;
} describing;

void assay_options_describe(assay_describe describe, void *user)
{
    describing.describe = describe;
    describing.user = user;
}

static assay_option_view view_of(const struct argp_option *option, const char *group)
{
    assay_option_view t = {.name = option->name,
                           .argument = option->arg,
                           .optional = (option->flags & OPTION_ARG_OPTIONAL) != 0,
                           .help = option->doc,
                           .group = group};
    if (option->key >= KEY_TABLE && option->key < KEY_EXTRA) {
        static const char *const both[] = {"true", "false", NULL};
        const assay_option_row *row = &assay_train_option_table()[option->key - KEY_TABLE];
        t.own_text = option->doc != row->help;
        t.words = row->type == ASSAY_OPT_BOOL    ? both
                  : option->arg == row->argument ? row->words
                                                 : NULL; /* the argument says them */
        t.list = row->type == ASSAY_OPT_ENUM_LIST;
    }
    return t;
}

static assay_status describe_all(const parser *p)
{
    assay_program_text text = {.doc = p->doc, .args_doc = p->args_doc};
    assay_option_view *options = calloc((size_t)p->n_options + 1, sizeof *options);
    const char *group = "";
    ASSAY_CHECK(options != NULL, ASSAY_OUT_OF_MEMORY, "%d options", p->n_options);
    for (int i = 0; i < p->n_options; i++) {
        const struct argp_option *option = &p->options[i];
        if (option->name == NULL)
            group = option->doc; /* a heading */
        else if ((option->flags & OPTION_HIDDEN) == 0)
            options[text.n_options++] = view_of(option, option->group < 0 ? NULL : group);
    }
    text.options = options;
    describing.describe(describing.user, &text);
    free(options);
    exit(assay_outputs_finish(p->program, 0));
}

assay_status assay_options_parse(int argc, char **argv, const char *doc, const char *args_doc,
                                 assay_train_options *o, unsigned where, const assay_extra_option *extra,
                                 assay_option_callback callback, void *user)
{
    int rows = 0;
    while (assay_train_option_table()[rows].name != NULL)
        rows++;
    const int n_table = rows;
    for (int i = 0; extra != NULL && extra[i].name != NULL; i++, rows++)
        ASSAY_CHECK(strlen(extra[i].name) < MAX_NAME, ASSAY_INTERNAL, "option name '%s' is too long",
                    extra[i].name);
    parser p = {.o = o,
                .where = where,
                .extra = extra,
                .callback = callback,
                .user = user,
                .doc = doc,
                .args_doc = args_doc,
                .n_table = n_table};
    p.program = argc > 0 && argv[0] != NULL ? argv[0] : "assay";
    if (strrchr(p.program, '/') != NULL)
        p.program = strrchr(p.program, '/') + 1;
    assay_status st = ASSAY_OK;
    /* Two spellings and perhaps a heading for each row, help, usage, version, and the end. */
    p.options = calloc((size_t)rows * 3 + 4, sizeof *p.options);
    p.names = calloc((size_t)rows + 1, sizeof *p.names);
    p.given = calloc((size_t)rows + 1, sizeof *p.given);
    ASSAY_CHECK_GOTO(p.options != NULL && p.names != NULL && p.given != NULL, ASSAY_OUT_OF_MEMORY, st, done,
                     "%d options", rows);
    add_all(&p);
    if (describing.describe != NULL)
        ASSAY_TRY_GOTO(describe_all(&p), st, done);
    ASSAY_TRY_GOTO(run(&p, argc, argv), st, done);
    if (o != NULL)
        ASSAY_TRY_GOTO(assay_train_options_join_layout(o), st, done);
done:
    free(p.given);
    free(p.names);
    free(p.options);
    return st;
}
