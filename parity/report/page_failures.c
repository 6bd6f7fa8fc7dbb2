/* index.html: what is wrong, the first failure before what follows from it, and what was not checked. */
#include "parity/report/page.h"
#include <stdlib.h>
#include <string.h>

/* On the page; all of them are in results.jsonl. */
enum { CHAINS = 60, FIRST_CHAIN = 60, OTHER_CHAIN = 4, SHOWN_SKIPS = 40, SKIPS_OPEN = 4 };

int parity_check_rank(parity_check c)
{
    static const parity_check order[] = {
        PARITY_CHECK_PLAN,    PARITY_CHECK_LOCAL,      PARITY_CHECK_EXACT,
        PARITY_CHECK_ROUTING, PARITY_CHECK_FLOW,       PARITY_CHECK_WHOLE,
        PARITY_CHECK_BITWISE, PARITY_CHECK_CHECKPOINT, PARITY_CHECK_ASSEMBLE};
    _Static_assert(sizeof order / sizeof *order == PARITY_CHECK_COUNT, "every check has a place");
    int rank = 0;
    while (rank < PARITY_CHECK_COUNT && order[rank] != c)
        rank++;
    return rank;
}

typedef struct failure {
    int64_t result, column;
    int rank;
} failure;

/* Of one combination: what explains others first, then in order of execution. */
static int compare(const void *a, const void *b)
{
    const failure *x = a, *y = b;
    if (x->column != y->column)
        return x->column < y->column ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->result > y->result) - (x->result < y->result);
}

static void put_combination(FILE *f, const parity_claim *x)
{
    const char *const words[] = {x->case_name, x->precision, x->layout, x->variants};
    for (int k = 0; k < 4; k++) {
        if (words[k][0] == 0)
            continue;
        fputs(k > 0 ? " " : "", f);
        parity_put_escaped(f, words[k]);
    }
}

static void put_place(FILE *f, const parity_claim *x)
{
    char place[PARITY_TEXT];
    parity_claim_place(x, place, sizeof place);
    if (place[0] == 0)
        return;
    fputs(" <code>", f);
    parity_put_escaped(f, place);
    fputs("</code>", f);
}

static void put_numbers(FILE *f, const parity_claim *x)
{
    if (x->index_ndim > 0 && x->is_distance)
        fprintf(f, "<br>distance %.3g, at most %.3g allowed: %.3g times the allowance", x->found,
                x->allowance, x->ratio);
    else if (x->index_ndim > 0 && x->allowance != 0.0) /* what must be equal has its excerpt */
        fprintf(f,
                "<br>found %.9g, expected %.9g, allowance %.3g: %.3g times the allowance; %lld of %lld "
                "elements",
                x->found, x->expected, x->allowance, x->ratio, (long long)x->n_bad, (long long)x->count);
}

/* What the claim saw as a table, then where and by how much it is wrong. */
static void put_drawn(const parity_page *p, const parity_claim *x)
{
    const parity_drawn d = parity_report_drawn(p->r, x);
    if (d.excerpt != NULL)
        parity_put_excerpt(p->f, d.excerpt);
    if (d.picture == NULL)
        return;
    fputs("<div class=figs>", p->f);
    parity_put_picture(p->f, d.picture, x->is_distance);
    fputs("</div>", p->f);
}

static void put_card(const parity_page *p, int64_t i, bool with_layout)
{
    FILE *f = p->f;
    const parity_claim *x = parity_report_at(p->r, i);
    fprintf(f, "<div class=\"card%s\" id=f%lld><b class=%s>%s</b> ", x->verdict == PARITY_SKIP ? " s" : "",
            (long long)i, x->verdict == PARITY_SKIP ? "skip" : "bad", parity_verdict_name(x->verdict));
    put_combination(f, x);
    fprintf(f, ", %s:", parity_check_name(x->check));
    put_place(f, x);
    fputs("<br>", f);
    parity_put_escaped(f, x->message);
    put_numbers(f, x);
    if (x->diagnosis[0] != 0) {
        fputs("<br>Looks like: ", f);
        parity_put_escaped(f, x->diagnosis);
    }
    put_drawn(p, x);
    if (with_layout)
        parity_put_column_layout(p, &p->columns[p->column_of[i]], x->rank);
    if (x->reproduce[0] != 0) {
        fputs("<pre>", f);
        parity_put_escaped(f, x->reproduce);
        fputs("</pre>", f);
    }
    fputs("</div>", f);
}

/* A line of the chain. */
static void put_line(const parity_page *p, int64_t i)
{
    FILE *f = p->f;
    const parity_claim *x = parity_report_at(p->r, i);
    fprintf(f, "<li id=f%lld>%s", (long long)i, parity_check_name(x->check));
    put_place(f, x);
    fputs(" ", f);
    parity_put_escaped(f, x->message);
    if (x->diagnosis[0] != 0) {
        fputs(" Looks like: ", f);
        parity_put_escaped(f, x->diagnosis);
    }
    put_drawn(p, x);
}

/* Failures [0, n) of one combination: the first as a card, the others folded behind it. */
static void put_chain(parity_page *p, const failure *of, int64_t n, bool first)
{
    FILE *f = p->f;
    const int64_t lines = first ? FIRST_CHAIN : OTHER_CHAIN;
    p->shown[of[0].result] = true;
    put_card(p, of[0].result, first);
    if (n == 1)
        return;
    fprintf(f, "<details data-g=\"");
    put_combination(f, parity_report_at(p->r, of[0].result));
    fprintf(f,
            "\"><summary>%lld more claim%s of this combination fail%s: what follows from it comes after "
            "it</summary><ol>",
            (long long)(n - 1), n == 2 ? "" : "s", n == 2 ? "s" : "");
    int64_t k = 1;
    for (; k < n && k <= lines; k++) {
        p->shown[of[k].result] = true;
        put_line(p, of[k].result);
    }
    fputs("</ol>", f);
    if (k < n)
        fprintf(f, "<p>%lld more are in results.jsonl.</p>", (long long)(n - k));
    fputs("</details>", f);
}

static int64_t chain_end(const failure *all, int64_t n, int64_t i)
{
    int64_t end = i;
    while (end < n && all[end].column == all[i].column)
        end++;
    return end;
}

static void put_failures(parity_page *p, const failure *all, int64_t n)
{
    int64_t first = 0, others = 0, shown = 1;
    for (int64_t i = 0; i < n; i = chain_end(all, n, i)) {
        others++;
        if (all[i].rank < all[first].rank) /* what explains others, wherever it is */
            first = i;
    }
    others--;
    fputs("<h2 id=first>The first failure</h2><p class=dim>What explains others comes first: what was not "
          "done as "
          "planned, then the first operation that is wrong by itself, then what follows.</p>",
          p->f);
    put_chain(p, all + first, chain_end(all, n, first) - first, true);
    if (others == 0)
        return;
    fprintf(
        p->f,
        "<details id=others%s><summary><b>%lld other combination%s of case, precision, layout and kernels "
        "fail%s</b></summary>",
        others <= 3 ? " open" : "", (long long)others, others == 1 ? "" : "s", others == 1 ? "s" : "");
    for (int64_t i = 0; i < n; i = chain_end(all, n, i)) {
        if (i == first || shown == CHAINS)
            continue;
        shown++;
        put_chain(p, all + i, chain_end(all, n, i) - i, false);
    }
    if (shown < others + 1)
        fprintf(p->f, "<p>Failures of %lld more combinations are in results.jsonl.</p>",
                (long long)(others + 1 - shown));
    fputs("</details>", p->f);
}

static void put_skips(parity_page *p, int64_t n, int64_t open)
{
    int64_t shown = 0;
    fprintf(p->f,
            "<h2 id=skips>What was not checked</h2><p class=skip>%lld claim%s; none of them counts as "
            "passed.</p>",
            (long long)n, n == 1 ? "" : "s");
    for (int64_t i = 0; i < parity_report_count(p->r) && shown < SHOWN_SKIPS; i++) {
        if (parity_report_at(p->r, i)->verdict != PARITY_SKIP)
            continue;
        if (shown == open)
            fputs("<details><summary>more</summary>", p->f);
        p->shown[i] = true;
        put_card(p, i, false);
        shown++;
    }
    if (shown > open)
        fputs(n > shown ? "<p>The others are in results.jsonl.</p></details>" : "</details>", p->f);
}

assay_status parity_page_failures(parity_page *p)
{
    int64_t passed, failed, skipped, n = 0;
    parity_report_totals(p->r, &passed, &failed, &skipped);
    failure *all = malloc(((size_t)failed + 1) * sizeof *all);
    ASSAY_CHECK(all != NULL, ASSAY_OUT_OF_MEMORY, "report: %lld failures", (long long)failed);
    for (int64_t i = 0; i < parity_report_count(p->r); i++) {
        const parity_claim *x = parity_report_at(p->r, i);
        if (x->verdict != PARITY_PASS && x->verdict != PARITY_SKIP && n < failed)
            all[n++] = (failure){i, p->column_of[i], parity_check_rank(x->check)};
    }
    if (n > 0) {
        qsort(all, (size_t)n, sizeof *all, compare);
        put_failures(p, all, n);
    }
    if (skipped > 0)
        put_skips(p, skipped, n > 0 ? 0 : SKIPS_OPEN); /* what is wrong comes first */
    free(all);
    return ASSAY_OK;
}
