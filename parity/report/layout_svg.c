/* The drawing of a layout: who is who, and who holds how much.  A column for each pipeline stage; in it a line for each dp and
 * cp, ranks of a tp group side by side. */
#include "parity/report/page.h"
#include <string.h>

enum { BOX = 128, HIGH = 64, GAP = 8, SMALL = 16, LARGE_WORLD = 64, HEAD = 34 };

typedef struct geometry {
    int box, high, gap, tp, stage, wide, tall;
    bool small;
} geometry;

static geometry geometry_of(const assay_grid *g)
{
    geometry m;
    const int tp = g->p.tensor_model_parallel_size, pp = g->p.pipeline_model_parallel_size;
    m.small = g->world > LARGE_WORLD;
    m.box = m.small ? SMALL : BOX;
    m.high = m.small ? SMALL : HIGH;
    m.gap = m.small ? 2 : GAP;
    m.tp = tp;
    m.stage = tp * (m.box + m.gap) + GAP;
    if (!m.small && m.stage < 190)
        m.stage = 190;
    m.wide = pp * m.stage + GAP;
    m.tall = g->world / (tp * pp) * (m.high + m.gap) + HEAD + GAP + 22;
    return m;
}

static void put_bytes(FILE *f, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int k = 0;
    while (bytes >= 10000.0 && k < 4) {
        bytes /= 1024.0;
        k++;
    }
    fprintf(f, k == 0 ? "%.0f %s" : "%.1f %s", bytes, units[k]);
}

static double total_of(const parity_rank_bytes *r)
{
    return r->parameters + r->gradients + r->masters + r->moments + r->activations;
}

static const char *const parts[] = {"parameters", "gradients", "masters", "moments", "activations"};

static double part_of(const parity_rank_bytes *r, int k)
{
    const double all[] = {r->parameters, r->gradients, r->masters, r->moments, r->activations};
    return all[k];
}

static void put_bar(FILE *f, const parity_rank_bytes *r, double most, const geometry *m)
{
    const double wide = m->box - 12.0;
    double x = 6.0;
    for (int k = 0; k < 5 && most > 0.0; k++) {
        const double w = wide * part_of(r, k) / most;
        if (w > 0.0)
            fprintf(f, "<rect class=\"m%d\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"7\"/>", k, x,
                    m->high - 13, w);
        x += w;
    }
}

static void put_rank(FILE *f, const parity_layout_drawing *d, const geometry *m, int rank, double most)
{
    const assay_grid *g = d->grid;
    assay_coords c;
    assay_grid_coords(g, rank, &c);
    const int row = c.dp * g->p.context_parallel_size + c.cp;
    const parity_rank_bytes *r = d->ranks != NULL ? &d->ranks[rank] : NULL;
    fprintf(f, "<g class=\"rank\" data-rank=\"%d\"", rank);
    for (int k = 0; k < (d->activations ? 5 : 4) && r != NULL; k++)
        fprintf(f, " data-%s=\"%.0f\"", parts[k], part_of(r, k));
    fprintf(
        f,
        " transform=\"translate(%d %d)\"><title>rank %d: tp %d, cp %d, dp %d, pp %d; etp %d, ep %d, edp %d",
        GAP + c.pp * m->stage + c.tp * (m->box + m->gap), HEAD + row * (m->high + m->gap), rank, c.tp, c.cp,
        c.dp, c.pp, c.etp, c.ep, c.edp);
    for (int k = 0; k < (d->activations ? 5 : 4) && r != NULL; k++) {
        fprintf(f, "%s %s ", k == 0 ? ";" : ",", parts[k]);
        put_bytes(f, part_of(r, k));
    }
    fprintf(f, "</title><rect class=\"%s\" width=\"%d\" height=\"%d\" rx=\"3\" stroke-width=\"%d\"/>",
            rank == d->marked ? "out-l" : "edge-l", m->box, m->high, rank == d->marked ? 3 : 1);
    if (m->small) {
        if (r != NULL && most > 0.0) {
            const double high = (m->high - 2.0) * total_of(r) / most;
            fprintf(f, "<rect class=\"m0\" x=\"1\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/>",
                    m->high - 1.0 - high, m->box - 2, high);
        }
        fputs("</g>\n", f);
        return;
    }
    fprintf(f, "<text x=\"6\" y=\"15\" font-weight=\"bold\">rank %d</text>", rank);
    if (rank == d->marked)
        fprintf(f, "<text x=\"%d\" y=\"29\" text-anchor=\"end\" font-weight=\"bold\">failed</text>",
                m->box - 6);
    fprintf(f, "<text class=\"d\" x=\"6\" y=\"29\">tp %d  cp %d  dp %d</text>", c.tp, c.cp, c.dp);
    if (g->p.expert_model_parallel_size * g->p.expert_tensor_parallel_size > 1)
        fprintf(f, "<text class=\"d\" x=\"6\" y=\"42\">etp %d  ep %d  edp %d</text>", c.etp, c.ep, c.edp);
    if (r != NULL) {
        fprintf(f, "<text x=\"%d\" y=\"15\" text-anchor=\"end\">", m->box - 6);
        put_bytes(f, total_of(r));
        fputs("</text>", f);
        put_bar(f, r, most, m);
    }
    fputs("</g>\n", f);
}

static void put_stage(FILE *f, const parity_layout_drawing *d, const geometry *m, int stage)
{
    const int x = GAP + stage * m->stage;
    if (m->small && m->stage < 60) {
        fprintf(f, "<text x=\"%d\" y=\"14\">%d</text>", x, stage);
        return;
    }
    fprintf(f, "<text x=\"%d\" y=\"13\" font-weight=\"bold\">stage %d</text>", x, stage);
    if (d->stages != NULL && !m->small) {
        fprintf(f, "<text class=\"d\" x=\"%d\" y=\"27\">", x);
        parity_put_escaped(f, d->stages[stage]);
        fputs("</text>", f);
    }
}

static void put_legend(FILE *f, const parity_layout_drawing *d, const geometry *m)
{
    int x = GAP;
    for (int k = 0; k < (d->activations ? 5 : 4) && d->ranks != NULL && !m->small; k++) {
        fprintf(f,
                "<rect class=\"m%d\" x=\"%d\" y=\"%d\" width=\"9\" height=\"9\"/><text x=\"%d\" "
                "y=\"%d\">%s</text>",
                k, x, m->tall - 14, x + 13, m->tall - 6, parts[k]);
        x += 26 + 6 * (int)strlen(parts[k]);
    }
}

static int legend_wide(const parity_layout_drawing *d, const geometry *m)
{
    int wide = GAP;
    for (int k = 0; k < (d->activations ? 5 : 4) && d->ranks != NULL && !m->small; k++)
        wide += 26 + 6 * (int)strlen(parts[k]);
    return wide;
}

void parity_put_layout_svg(FILE *f, const parity_layout_drawing *d)
{
    geometry m = geometry_of(d->grid);
    double most = 0.0;
    const int legend = legend_wide(d, &m);
    m.wide = m.wide < legend ? legend : m.wide;
    for (int r = 0; r < d->grid->world && d->ranks != NULL; r++)
        most = total_of(&d->ranks[r]) > most ? total_of(&d->ranks[r]) : most;
    fprintf(f, "<svg%s role=\"img\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\"><title>layout ",
            d->alone ? " xmlns=\"http://www.w3.org/2000/svg\"" : "", m.wide, m.tall, m.wide, m.tall);
    parity_put_escaped(f, d->name);
    fprintf(f, ", %d rank%s</title>", d->grid->world, d->grid->world == 1 ? "" : "s");
    if (d->alone) {
        fputs("<style>", f);
        parity_put_colours(f);
        fputs("svg{background:var(--page-b)}text{font:11px "
              "system-ui,sans-serif;fill:var(--page)}.d{fill:var(--dim)}"
              "</style>\n",
              f);
    }
    for (int s = 0; s < d->grid->p.pipeline_model_parallel_size; s++)
        put_stage(f, d, &m, s);
    for (int r = 0; r < d->grid->world; r++)
        put_rank(f, d, &m, r, most);
    put_legend(f, d, &m);
    fputs("</svg>\n", f);
}
