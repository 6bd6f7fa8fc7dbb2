/* index.html: drawings of the layouts, with what the tasks told about who holds what. */
#include "core/model/layout.h"
#include "parity/report/page.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_DRAWN = 48, MAX_RANKS = 64, MAX_STAGES = 64 };

static const json_t *held_of(const parity_page *p, const parity_column *c)
{
    char label[PARITY_TASK_LABEL];
    parity_task_label(c->case_name, c->precision, c->layout, c->variants, label);
    return json_object_get(json_object_get(json_object_get(p->facts, "times"), label), "held");
}

/* Bytes of each rank and words of each stage, where the task told them for this grid. */
static bool read_held(const json_t *held, const assay_grid *g, parity_rank_bytes *ranks,
                      const char *stages[MAX_STAGES], bool *staged)
{
    const json_t *all = json_object_get(held, "ranks"), *words = json_object_get(held, "stages");
    const size_t pp = (size_t)g->p.pipeline_model_parallel_size;
    *staged = json_array_size(words) == pp && pp <= MAX_STAGES;
    for (size_t s = 0; s < pp && *staged; s++) {
        stages[s] = json_string_value(json_array_get(words, s));
        *staged = stages[s] != NULL;
    }
    if (json_array_size(all) != (size_t)g->world)
        return false;
    for (size_t r = 0; r < (size_t)g->world; r++) {
        const json_t *one = json_array_get(all, r);
        if (json_array_size(one) != 4)
            return false;
        ranks[r] = (parity_rank_bytes){
            json_number_value(json_array_get(one, 0)), json_number_value(json_array_get(one, 1)),
            json_number_value(json_array_get(one, 2)), json_number_value(json_array_get(one, 3)), 0.0};
    }
    return true;
}

static bool grid_of(const char *layout, assay_grid *g)
{
    assay_parallel_config c;
    if (assay_layout_parse(layout, &c) == ASSAY_OK && assay_grid_make(&c, g) == ASSAY_OK &&
        g->world <= MAX_RANKS)
        return true;
    assay_error_clear(); /* a trace of other people's code names its layout as it likes */
    return false;
}

static void put_drawing(const parity_page *p, const parity_column *c, const assay_grid *g, int marked)
{
    parity_rank_bytes ranks[MAX_RANKS];
    const char *stages[MAX_STAGES];
    bool staged;
    const bool known = read_held(held_of(p, c), g, ranks, stages, &staged);
    const parity_layout_drawing d = {.grid = g,
                                     .name = c->layout,
                                     .ranks = known ? ranks : NULL,
                                     .stages = staged ? stages : NULL,
                                     .marked = marked};
    fputs("<div class=wrap>", p->f);
    parity_put_layout_svg(p->f, &d);
    fputs("</div>", p->f);
}

void parity_put_column_layout(const parity_page *p, const parity_column *c, int marked)
{
    assay_grid g;
    if (!grid_of(c->layout, &g) || g.world == 1)
        return;
    fprintf(p->f, "<figure class=w><figcaption>Layout ");
    parity_put_escaped(p->f, c->layout);
    fputs("</figcaption>", p->f);
    put_drawing(p, c, &g, marked);
    fputs("</figure>", p->f);
}

void parity_page_layouts(const parity_page *p)
{
    int64_t drawn = 0, left_out = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const parity_column *c = &p->columns[i];
        assay_grid g;
        bool first = true;
        for (int64_t k = 0; k < i && first; k++)
            first = strcmp(p->columns[k].layout, c->layout) != 0;
        if (!first || !grid_of(c->layout, &g))
            continue;
        if (drawn == MAX_DRAWN) {
            left_out++;
            continue;
        }
        if (drawn++ == 0)
            fputs("<h2 id=layouts>Who holds what</h2><p class=dim>Ranks of every layout, with the bytes that "
                  "parameters, "
                  "gradients and states of the optimizer take of the first case that runs in it.  Of a model "
                  "of your own: "
                  "<code>assay layout --layout L --model DIR --svg FILE</code>.</p>",
                  p->f);
        fputs("<details data-g=\"", p->f);
        parity_put_escaped(p->f, c->layout);
        fputs("\"><summary>", p->f);
        parity_put_escaped(p->f, c->layout);
        fprintf(p->f, ", %d rank%s</summary><p class=dim>", g.world, g.world == 1 ? "" : "s");
        parity_put_escaped(p->f, c->case_name);
        fputc(' ', p->f);
        parity_put_escaped(p->f, c->precision);
        fputs("</p>", p->f);
        put_drawing(p, c, &g, -1);
        fputs("</details>", p->f);
    }
    if (left_out > 0)
        fprintf(p->f, "<p>%lld more layouts are not drawn.</p>", (long long)left_out);
}
