/* index.html: what ran, and the filter. */
#include "parity/report/page.h"
#include <stdlib.h>
#include <string.h>

/* The page is whole without it: it hides what does not match the words in the box, and opens what a link leads into. */
#define SCRIPT                                                                                               \
    "(function(){var q=document.getElementById('q'),a='table:not(.map)>tbody>tr,.card,ol "                   \
    "li,figure.g,details[data-g]';"                                                                          \
    "function show(){var w=q.value.toLowerCase().split(/\\s+/).filter(Boolean);"                             \
    "document.querySelectorAll(a).forEach(function(e){var "                                                  \
    "t=e.textContent,p=e.parentElement.closest('[data-g]');"                                                 \
    "t=((e.dataset.g||'')+' '+(p?p.dataset.g:'')+' '+t).toLowerCase();"                                      \
    "e.hidden=!w.every(function(x){return t.indexOf(x)>=0})})}"                                              \
    "function open(){var e=document.getElementById(location.hash.slice(1));"                                 \
    "for(var p=e;p;p=p.parentElement){p.hidden=false;if(p.tagName==='DETAILS')p.open=true}"                  \
    "if(e)e.scrollIntoView()}"                                                                               \
    "q.parentElement.hidden=false;q.addEventListener('input',show);window.addEventListener('hashchange',"    \
    "open);"                                                                                                 \
    "open()})()"

void parity_page_script(const parity_page *p)
{
    fputs("<script>" SCRIPT "</script>", p->f);
}

static void put_fact(FILE *f, const char *key, const json_t *value)
{
    char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    fputs("<dt>", f);
    parity_put_escaped(f, key);
    fputs("</dt><dd>", f);
    parity_put_escaped(f, text != NULL ? text : json_is_string(value) ? json_string_value(value) : "");
    fputs("</dd>", f);
    free(text);
}

static void put_facts(FILE *f, const json_t *facts)
{
    static const char *const first[] = {"date",    "commit", "host",
                                        "command", "engine", "weights drawn from a seed"};
    enum { N_FIRST = sizeof first / sizeof *first };
    const char *key;
    json_t *value;
    fputs("<dl>", f);
    for (int k = 0; k < N_FIRST; k++)
        if (json_object_get(facts, first[k]) != NULL)
            put_fact(f, first[k], json_object_get(facts, first[k]));
    fputs("</dl><details><summary>more about this run</summary><dl>", f);
    json_object_foreach((json_t *)(uintptr_t)facts, key, value)
    {
        bool told = strcmp(key, "times") == 0; /* drawn below */
        for (int k = 0; k < N_FIRST; k++)
            told = told || strcmp(key, first[k]) == 0;
        if (!told)
            put_fact(f, key, value);
    }
    fputs("</dl></details>", f);
}

void parity_page_head(const parity_page *p, const char *title)
{
    int64_t passed, failed, skipped;
    FILE *f = p->f;
    parity_report_totals(p->r, &passed, &failed, &skipped);
    fputs("<h1>", f);
    parity_put_escaped(f, title);
    fprintf(f,
            "</h1><p class=sum><span class=ok>%lld passed</span>, <span class=%s>%lld failed</span>, <span "
            "class=%s>%lld skipped</span></p>",
            (long long)passed, failed > 0 ? "bad" : "dim", (long long)failed, skipped > 0 ? "skip" : "dim",
            (long long)skipped);
    if (p->facts != NULL)
        put_facts(f, p->facts);
    fputs("<p hidden><input id=q type=search placeholder=\"Filter: words of a case, layout, operation ...\" "
          "aria-label=\"Filter the page\"></p>",
          f);
}
