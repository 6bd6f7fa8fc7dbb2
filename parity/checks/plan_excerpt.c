/* The stretch of a rank's plan around a place that is not as planned, with what was executed beside it. */
#include "parity/checks/plan.h"

#include <string.h>

enum { BEFORE = 3, AFTER = 4, EXTRAS = 2 };

/* Texts of a message "LABEL: expected WANTED, found FOUND". */
typedef struct sides {
    char label[PARITY_EXCERPT_CELL], wanted[PARITY_TEXT], found[PARITY_TEXT];
} sides;

static void copy(char *out, size_t capacity, const char *from, size_t n)
{
    n = n < capacity - 1 ? n : capacity - 1;
    memcpy(out, from, n);
    out[n] = 0;
}

static sides sides_of(const char *message)
{
    static const char expected[] = "expected ", found[] = ", found ";
    const char *p = strstr(message, expected), *q = p != NULL ? strstr(p, found) : NULL;
    sides s = {.label = ""};
    size_t n = p != NULL ? (size_t)(p - message) : strlen(message);
    while (n > 0 && (message[n - 1] == ' ' || message[n - 1] == ':'))
        n--;
    copy(s.label, sizeof s.label, message, n);
    if (p == NULL)
        return s;
    p += sizeof expected - 1;
    copy(s.wanted, sizeof s.wanted, p, q != NULL ? (size_t)(q - p) : strlen(p));
    if (q != NULL)
        snprintf(s.found, sizeof s.found, "%s", q + sizeof found - 1);
    return s;
}

static void put_sides(parity_excerpt *e, int column, const char *item, const char *message)
{
    const sides s = sides_of(message);
    if (!parity_excerpt_add(e, PARITY_ROW_WRONG))
        return;
    parity_excerpt_cell(e, column, "%s", s.label[0] != 0 ? s.label : item);
    parity_excerpt_cell(e, column + 1, "%s", s.wanted);
    parity_excerpt_cell(e, column + 2, "%s", s.found);
}

void plan_excerpt_item(parity_excerpt *e, const char *item, const char *message)
{
    static const char *const heads[] = {"what", "expected", "found", NULL};
    parity_excerpt_begin(e, heads, "What is not as planned");
    put_sides(e, 0, item, message);
}

static void put_pass(parity_excerpt *e, assay_phase phase, int64_t microbatch, bool again)
{
    if (microbatch >= 0)
        parity_excerpt_cell(e, 1, "%s %lld%s", assay_phase_name(phase), (long long)microbatch,
                            again ? ", again" : "");
    else
        parity_excerpt_cell(e, 1, "%s", assay_phase_name(phase));
}

static void put_wanted(parity_excerpt *e, const plan_match *m, int64_t i, parity_row_mark mark)
{
    const plan_op *o = &m->p->ops[i];
    if (!parity_excerpt_add(e, mark))
        return;
    parity_excerpt_cell(e, 0, "%lld", (long long)i);
    put_pass(e, o->phase, o->microbatch, o->recompute);
    parity_excerpt_cell(e, 2, "%s %s", o->op, o->instance);
    if (m->found_at[i] > 0)
        parity_excerpt_cell(e, 3, "done, as %lld", (long long)(m->found_at[i] - 1));
    else
        parity_excerpt_cell(e, 3, "missing");
}

static void put_extra(parity_excerpt *e, const plan_match *m, int64_t j)
{
    const assay_trace_op *o = m->ops[j];
    if (!parity_excerpt_add(e, PARITY_ROW_EXTRA))
        return;
    put_pass(e, o->phase, o->microbatch, o->recompute);
    parity_excerpt_cell(e, 2, "nothing");
    parity_excerpt_cell(e, 3, "%s %s, as %lld", o->op, o->instance, (long long)j);
}

/* The planned operation that the last matched one before executed operation j is, -1: none. */
static int64_t wanted_before(const plan_match *m, int64_t j)
{
    while (--j >= 0)
        if (m->wanted_of[j] > 0)
            return m->wanted_of[j] - 1;
    return -1;
}

/* Executed operations behind j that nobody planned; those beyond the room only where the place itself is among them. */
static void put_extras(parity_excerpt *e, const plan_match *m, int64_t j, int64_t place)
{
    int64_t shown = 0;
    for (; j < m->n && m->wanted_of[j] == 0; j++)
        if (shown < EXTRAS - 1 || j == place) {
            put_extra(e, m, j);
            shown++;
        }
}

void plan_excerpt_around(parity_excerpt *e, const plan_match *m, int64_t wanted, int64_t found,
                         const char *item, const char *message)
{
    static const char *const heads[] = {"", "pass", "expected", "found", NULL};
    const bool extra = wanted < 0;
    const int64_t middle = extra ? wanted_before(m, found) : wanted;
    parity_excerpt_begin(e, heads,
                         "The plan of rank %d in step %lld around the place, numbered as planned and as done",
                         m->p->rank, (long long)m->p->step);
    const int64_t first = middle > BEFORE ? middle - BEFORE : 0;
    if (extra && middle < 0)
        put_extras(e, m, 0, found);
    for (int64_t i = first; i < m->p->n && i <= middle + AFTER; i++) {
        const bool missing = m->found_at[i] == 0, place = !extra && i == wanted;
        put_wanted(e, m, i, missing ? PARITY_ROW_MISSING : place ? PARITY_ROW_WRONG : PARITY_ROW_SAME);
        if (place && !missing)
            put_sides(e, 1, item, message);
        if (!missing)
            put_extras(e, m, m->found_at[i], extra ? found : -1);
    }
}
