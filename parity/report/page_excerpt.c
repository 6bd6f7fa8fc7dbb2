/* index.html: what a failing claim saw, expected beside found. */
#include "parity/report/page.h"

static const struct look {
    const char *class, *sign;
} looks[PARITY_ROW_MARKS] = {[PARITY_ROW_SAME] = {"hr", "="},
                             [PARITY_ROW_WRONG] = {"hv", "&ne;"},
                             [PARITY_ROW_MISSING] = {"hv", "&minus;"},
                             [PARITY_ROW_EXTRA] = {"hn", "+"}};

/* Words for those who do not see the sign. */
static void put_mark(FILE *f, parity_row_mark mark)
{
    fprintf(f, "<tr%s><td class=%s aria-label=%s>%s", mark == PARITY_ROW_SAME ? " class=dim" : "",
            looks[mark].class, parity_row_mark_name(mark), looks[mark].sign);
}

void parity_put_excerpt(FILE *f, const parity_excerpt *e)
{
    fputs("<figure class=x><figcaption>", f);
    parity_put_escaped(f, e->title);
    fputs("</figcaption><div class=wrap><table><thead><tr><th>", f);
    for (int c = 0; c < e->n_columns; c++) {
        fputs("<th class=l>", f);
        parity_put_escaped(f, e->heads[c]);
    }
    fputs("<tbody>", f);
    for (int i = 0; i < e->n_rows; i++) {
        put_mark(f, e->rows[i].mark);
        for (int c = 0; c < e->n_columns; c++) {
            fputs("<td class=l>", f);
            parity_put_escaped(f, e->rows[i].cells[c]);
        }
        fputc('\n', f);
    }
    fputs("</table></div></figure>", f);
}
