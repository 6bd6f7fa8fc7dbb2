/* index.html: where a failing tensor is wrong, and by how much of its bound. */
#include "parity/report/page.h"
#include <math.h>

enum { WIDE = 256, CELL = 10, BAR = 13, TALL = 84 };

/* Runs of cells of one kind in a row, strokes of one path: some of a cell's elements are outside, or all are. */
static void put_cells(FILE *f, const parity_picture *p, bool all)
{
    bool begun = false;
    for (int row = 0; row < p->rows; row++)
        for (int column = 0, run; column < p->columns; column += run) {
            const uint32_t bad = p->bad[row * p->columns + column];
            run = 1;
            if (bad == 0 || (bad == parity_picture_cell_count(p, row, column)) != all)
                continue;
            while (column + run < p->columns && p->bad[row * p->columns + column + run] > 0 &&
                   (p->bad[row * p->columns + column + run] ==
                    parity_picture_cell_count(p, row, column + run)) == all)
                run++;
            fprintf(f, "%sM%d %dh%d",
                    begun ? ""
                    : all ? "<path class=all-l transform=translate(0,.5) d=\""
                          : "<path class=some-l transform=translate(0,.5) d=\"",
                    column, row, run);
            begun = true;
        }
    if (begun)
        fputs("\"/>", f);
}

static int side(int cells)
{
    return cells * CELL < WIDE ? cells * CELL : WIDE;
}

static void put_bitmap(FILE *f, const parity_picture *p, const char *what)
{
    int64_t bad = 0, cells = 0, largest = 0;
    for (int row = 0; row < p->rows; row++)
        for (int column = 0; column < p->columns; column++) {
            const int64_t n = parity_picture_cell_count(p, row, column);
            bad += p->bad[row * p->columns + column];
            cells += p->bad[row * p->columns + column] > 0;
            largest = n > largest ? n : largest;
        }
    fprintf(f,
            "<figure><svg role=img aria-label=\"%lld of %lld %s %s\" viewBox=\"0 0 %d %d\" width=%d "
            "height=%d "
            "preserveAspectRatio=none shape-rendering=crispEdges style=\"background:var(--some-b)\">",
            (long long)bad, (long long)parity_picture_count(p), what, p->ulps ? "differ" : "outside",
            p->columns, p->rows, side(p->columns), side(p->rows) > 16 ? side(p->rows) : 16);
    put_cells(f, p, false);
    put_cells(f, p, true);
    fprintf(f, "</svg><figcaption>In this comparison %lld of %lld %s %s, of ", (long long)bad,
            (long long)parity_picture_count(p), what, p->ulps ? "differ" : "are outside");
    for (int d = 0; d < p->ndim; d++)
        fprintf(f, "%s%lld", d == 0 ? "[" : ", ", (long long)p->shape[d]);
    fprintf(f, "%s, in %lld of %d x %d cells", p->ndim > 0 ? "]" : "one", (long long)cells, p->rows,
            p->columns);
    if (largest > 1)
        fprintf(f, " of up to %lld; red: all of a cell, orange: some", (long long)largest);
    fputs(p->ndim > 2 ? ".  Dimensions before the last are rows.</figcaption></figure>"
                      : ".</figcaption></figure>",
          f);
}

static void bin_words(int bin, bool ulps, char *out, size_t capacity)
{
    const char *unit = ulps ? " ulp" : "";
    if (bin == 0)
        snprintf(out, capacity, ulps ? "equal" : "no error");
    else if (bin == PARITY_BINS - 1)
        snprintf(out, capacity, "not finite");
    else if (bin == PARITY_BINS - 2)
        snprintf(out, capacity, "more than %g%s", parity_bin_edge(bin - 1, ulps), unit);
    else
        snprintf(out, capacity, "at most %g%s", parity_bin_edge(bin, ulps), unit);
}

/* What the bins are: labels under them, and a sentence. */
static void put_scale(FILE *f, const parity_picture *p, int64_t within, const char *what)
{
    const int most = (PARITY_BINS - 2) * BAR;
    if (p->ulps)
        fprintf(f,
                "<text x=2 y=%d>=</text><text x=%d y=%d text-anchor=end>1</text><text x=%d y=%d "
                "text-anchor=end>2<tspan dy=-3 font-size=8>17</tspan></text><text x=%d y=%d "
                "text-anchor=end>&infin;</text></svg><figcaption>Distance in units of the last place, of "
                "integers in ones: %lld of %lld %s are equal (left of the line).",
                TALL + 14, 2 * BAR, TALL + 14, most, TALL + 14, PARITY_BINS * BAR, TALL + 14,
                (long long)within, (long long)parity_picture_count(p), what);
    else
        fprintf(f,
                "<text x=2 y=%d>0</text><text x=%d y=%d text-anchor=end>1</text><text x=%d y=%d "
                "text-anchor=end>1024</text><text x=%d y=%d text-anchor=end>&infin;</text></svg><figcaption>"
                "Error over bound: %lld of %lld %s are within 1 (the line).",
                TALL + 14, PARITY_BINS_WITHIN * BAR, TALL + 14, most, TALL + 14, PARITY_BINS * BAR, TALL + 14,
                (long long)within, (long long)parity_picture_count(p), what);
    fputs("  Bins are powers of 2, heights logarithms; rightmost: not finite.</figcaption></figure>", f);
}

static void put_histogram(FILE *f, const parity_picture *p, const char *what)
{
    const int line = p->ulps ? 1 : PARITY_BINS_WITHIN; /* bins before it are within */
    int64_t most = 1, within = 0;
    char words[40];
    for (int k = 0; k < PARITY_BINS; k++) {
        most = p->bins[k] > most ? p->bins[k] : most;
        within += k < line ? p->bins[k] : 0;
    }
    fprintf(f,
            "<figure><svg role=img aria-label=\"%lld of %lld %s %s\" viewBox=\"0 0 %d %d\" "
            "width=%d "
            "height=%d>",
            (long long)within, (long long)parity_picture_count(p), what,
            p->ulps ? "equal" : "within the bound", PARITY_BINS * BAR, TALL + 18, PARITY_BINS * BAR,
            TALL + 18);
    for (int k = 0; k < PARITY_BINS; k++) {
        if (p->bins[k] == 0)
            continue;
        const double high = 4.0 + (TALL - 4.0) * log1p((double)p->bins[k]) / log1p((double)most);
        bin_words(k, p->ulps, words, sizeof words);
        fprintf(f, "<rect class=%s x=%d y=%.1f width=%d height=%.1f><title>%s: %lld %s</title></rect>",
                k < line ? "in" : "out", k * BAR + 1, TALL - high, BAR - 2, high, words,
                (long long)p->bins[k], what);
    }
    fprintf(f, "<path class=ref-l d=\"M%d 0v%d\"/><path class=edge-l d=\"M0 %dh%d\"/>", line * BAR, TALL,
            TALL, PARITY_BINS * BAR);
    put_scale(f, p, within, what);
}

void parity_put_picture(FILE *f, const parity_picture *p, bool slices)
{
    const char *what = slices ? "slices" : "elements";
    put_bitmap(f, p, what);
    put_histogram(f, p, what);
}
