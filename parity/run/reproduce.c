/* The command that repeats one task, ready for a shell. */
#include "parity/run/run.h"
#include <string.h>

/* One word of a shell command: in quotes where it holds more than letters, digits and plain punctuation. */
void parity_shell_word(const char *word, char *out, size_t capacity)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=,:+@%^-";
    size_t n = 0;
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        snprintf(out, capacity, "%s", word);
        return;
    }
    for (const char *c = word; n + 6 < capacity; c++) {
        if (c == word)
            out[n++] = '\'';
        if (*c == '\0')
            break;
        if (*c == '\'') { /* out of the quotes, a quoted quote, and in again */
            static const char quoted[4] = {'\'', '\\', '\'', '\''};
            memcpy(out + n, quoted, sizeof quoted);
            n += sizeof quoted;
        } else {
            out[n++] = *c;
        }
    }
    snprintf(out + n, capacity - n, "'");
}

typedef struct line {
    char *text;
    size_t used, capacity;
    bool cut;
} line;

static void add(line *l, const char *text)
{
    const size_t length = strlen(text);
    if (l->cut || l->used + length + 1 > l->capacity) {
        l->cut = true;
        return;
    }
    memcpy(l->text + l->used, text, length + 1);
    l->used += length;
}

/* " --option word", or " word" for an argument. */
static void add_option(line *l, const char *option, const char *word)
{
    char quoted[2 * ASSAY_PATH];
    add(l, option);
    add(l, " ");
    parity_shell_word(word, quoted, sizeof quoted);
    add(l, quoted);
}

void parity_run_reproduce(const parity_run_options *o, const char *engine, const parity_task *t,
                          char out[PARITY_TEXT])
{
    static const char end[] = " ... (too long: this is not all of it)";
    char number[32];
    line l = {.text = out, .capacity = PARITY_TEXT - sizeof end};
    out[0] = '\0';
    add(&l, "assay run");
    add_option(&l, " --engine", engine);
    if (o->engine_program[0] != '\0')
        add_option(&l, " --engine-program", o->engine_program);
    if (o->model[0] == '\0')
        add_option(&l, " --case", parity_task_name(t));
    add_option(&l, " --precision", assay_precision_name(t->precision));
    add_option(&l, " --layout", t->layout);
    add_option(&l, " --variant", t->variant);
    if (o->check[0] != '\0')
        add_option(&l, " --check", o->check);
    add(&l, o->overrides); /* words already, model and batch among them */
    if (o->timeout_s > 0 && o->timeout_s != PARITY_TIMEOUT_S) {
        snprintf(number, sizeof number, "%.0f", o->timeout_s);
        add_option(&l, " --timeout", number);
    }
    add(&l, " --keep");
    if (o->n_files > 0 && t->c != NULL)
        add_option(&l, "", t->c->file);
    if (l.cut)
        strcpy(out + l.used, end);
}
