/* Colours and style of index.html. */
#include "parity/report/page.h"

static const parity_colour colours[] = {
    {"page", false, {"#1c2733", "#ffffff"}, {"#d8e0e8", "#12171d"}},
    {"dim", false, {"#556372", "#ffffff"}, {"#9fb0c0", "#12171d"}},
    {"ok", false, {"#0a6b3d", "#ffffff"}, {"#5fd39b", "#12171d"}},
    {"bad", false, {"#b3261e", "#ffffff"}, {"#ff8a80", "#12171d"}},
    {"skip", false, {"#7a5c00", "#ffffff"}, {"#e0c060", "#12171d"}},
    {"link", false, {"#0b57a4", "#ffffff"}, {"#8ec5ff", "#12171d"}},
    {"code", false, {"#1c2733", "#f1f4f8"}, {"#d8e0e8", "#1c242d"}},
    /* Heat: what is exact or correctly rounded looks calm. */
    {"hr", false, {"#245846", "#dcefe6"}, {"#b4dfcc", "#1a3027"}},
    {"hw", false, {"#1d4f7c", "#d9e8f6"}, {"#b7d8f7", "#18324c"}},
    {"hn", false, {"#5a4200", "#ffe6a0"}, {"#ffe08a", "#4a3a08"}},
    {"hv", false, {"#ffffff", "#b3261e"}, {"#ffffff", "#b3261e"}},
    {"hs", false, {"#4a4a4a", "#ececec"}, {"#c4c4c4", "#2c2c2c"}},
    /* Marks: some or all elements of a cell outside, elements within, lines, bars. */
    {"some", true, {"#c4511f", "#f1f4f8"}, {"#ff9a6b", "#1c242d"}},
    {"all", true, {"#7d1410", "#f1f4f8"}, {"#ff5a4d", "#1c242d"}},
    {"in", true, {"#4b8f74", "#ffffff"}, {"#5fa88a", "#12171d"}},
    {"out", true, {"#b3261e", "#ffffff"}, {"#ff8a80", "#12171d"}},
    {"ref", true, {"#1c2733", "#ffffff"}, {"#d8e0e8", "#12171d"}},
    {"cand", true, {"#0b6fc2", "#ffffff"}, {"#4ea8ff", "#12171d"}},
    {"edge", true, {"#6f8294", "#ffffff"}, {"#6f8294", "#12171d"}},
    {"m0", true, {"#0b6fc2", "#ffffff"}, {"#4ea8ff", "#12171d"}},
    {"m1", true, {"#b0620a", "#ffffff"}, {"#e0a04a", "#12171d"}},
    {"m2", true, {"#2f8a5b", "#ffffff"}, {"#5fd39b", "#12171d"}},
    {"m3", true, {"#8a4fb5", "#ffffff"}, {"#c79aea", "#12171d"}},
    {"m4", true, {"#6f7f8f", "#ffffff"}, {"#8d9dad", "#12171d"}},
};
enum { N_COLOURS = sizeof colours / sizeof *colours };

static const char STYLE[] =
    "*{box-sizing:border-box}[hidden]{display:none!important}"
    "body{font:15px/1.45 system-ui,sans-serif;margin:1.6rem auto;max-width:92rem;padding:0 "
    "1rem;color:var(--page);background:var(--page-b)}"
    "h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}h3{font-size:1rem;margin:1.2rem "
    "0 "
    ".4rem}"
    "a{color:var(--link)}.sum{font-size:1.05rem;margin:.4rem 0 1rem}.bad{font-weight:600}"
    "table{border-collapse:collapse;font-size:13px}th,td{padding:.25rem "
    ".6rem;text-align:right;border-bottom:1px "
    "solid "
    "var(--code-b);white-space:nowrap}th{font-weight:600}td:first-child,th:first-child,td.l,th.l{text-align:"
    "left}thead th{position:sticky;top:0;background:var(--page-b)}"
    "code,pre{font:12.5px/1.4 "
    "ui-monospace,monospace;color:var(--code);background:var(--code-b);border-radius:4px}"
    "code{padding:.1rem .3rem;overflow-wrap:anywhere}pre{padding:.6rem .8rem;overflow-x:auto;margin:.4rem 0}"
    ".card{border:1px solid var(--out);border-left-width:4px;border-radius:4px;padding:.6rem "
    ".9rem;margin:.7rem "
    "0;overflow-wrap:anywhere}.card.s{border-color:var(--skip)}.wrap{overflow-x:auto;max-width:100%}"
    "details{margin:.5rem 0}summary{cursor:pointer}ol{padding-left:1.6rem}li{margin:.3rem "
    "0;overflow-wrap:anywhere}"
    ".h td{text-align:center}.h td:not([class]){color:var(--hr);background:var(--hr-b)}.h td:empty,.h "
    "td:first-child,.h.two td:nth-child(2){color:inherit;background:var(--page-b)}.h td:first-child,.h.two "
    "td:nth-child(2){text-align:left}.h a{color:inherit}"
    ".map td{padding:.2rem .15rem;min-width:2.2rem}.map "
    "td:first-child{position:sticky;left:0;background:var(--page-"
    "b)}.map thead th{padding:.3rem .1rem;vertical-align:bottom;text-align:left;font-weight:400}.map thead "
    "th span{"
    "writing-mode:vertical-rl;transform:rotate(180deg);display:inline-block}"
    ".hs{outline:1px dashed "
    "var(--hs);outline-offset:-3px}.hv{font-weight:700}.legend{display:flex;flex-wrap:wrap;"
    "gap:.4rem .9rem;list-style:none;padding:0;font-size:13px}.legend "
    "b{display:inline-block;min-width:2.6rem;text-"
    "align:center;padding:.1rem .3rem;margin-right:.35rem;font-weight:inherit}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem "
    "1rem;font-size:13.5px}dt{color:var(--dim)}dd{"
    "margin:0;overflow-wrap:anywhere}.figs{display:flex;flex-wrap:wrap;gap:1rem "
    "1.6rem;align-items:flex-start}"
    "figure{margin:.5rem "
    "0;max-width:100%}figcaption{font-size:13px;color:var(--dim);max-width:34rem}svg{max-width:"
    "100%;height:auto;display:block}svg text{font:11px system-ui,sans-serif;fill:var(--page)}svg "
    ".d{fill:var(--dim)}"
    ".x{margin:.6rem 0}.x figcaption{max-width:none;margin-bottom:.25rem}.x "
    "td{white-space:normal;overflow-wrap:break-word;min-width:2.2rem;vertical-align:top;font:12px/1.5 "
    "ui-monospace,monospace}.x "
    "td:first-child{text-align:center;min-width:1.8rem;font-weight:700}.x "
    "th{position:static!important;color:var(--dim);font-weight:400}.x "
    "tr{background:none}.x td.l{font-variant-numeric:tabular-nums}"
    "::placeholder{color:var(--dim);opacity:1}.figs "
    "figcaption{max-width:18rem}input{font:inherit;width:100%;max-width:30rem;padding:.4rem "
    ".6rem;color:var(--page);background:var(--page-b);"
    "border:1px solid "
    "var(--edge);border-radius:4px}.bar{display:inline-block;height:.8em;background:var(--cand);"
    "vertical-align:middle}"
    "@media(max-width:40rem){body{margin:.8rem auto;padding:0 "
    ".7rem}dl{grid-template-columns:1fr}dt{margin-top:.3rem}"
    "th,td{padding:.25rem .4rem}.x td{overflow-wrap:anywhere}}";

const parity_colour *parity_page_colours(int *n)
{
    *n = N_COLOURS;
    return colours;
}

static void put_variables(FILE *f, bool dark)
{
    fputs(":root{", f);
    for (int i = 0; i < N_COLOURS; i++) {
        const char *const *c = dark ? colours[i].dark : colours[i].light;
        fprintf(f, "--%s:%s;--%s-b:%s;", colours[i].name, c[0], colours[i].name, c[1]);
    }
    fputc('}', f);
}

void parity_put_colours(FILE *f)
{
    put_variables(f, false);
    fputs("@media(prefers-color-scheme:dark){", f);
    put_variables(f, true);
    fputc('}', f);
    for (int i = 0; i < N_COLOURS; i++) {
        const char *name = colours[i].name;
        if (colours[i].mark)
            fprintf(f, ".%s{fill:var(--%s)}.%s-l{stroke:var(--%s);fill:none}", name, name, name, name);
        else
            fprintf(f, ".%s{color:var(--%s);background:var(--%s-b)}", name, name, name);
    }
}

void parity_put_style(FILE *f)
{
    fputs("<style>:root{color-scheme:light dark}", f);
    parity_put_colours(f);
    fputs(STYLE, f);
    fputs("</style>", f);
}
