/* Distance of words: insertions, deletions, changes and swaps of neighbours, each one step. */
#include "core/base/suggest.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void assay_suggest_begin(assay_suggestion *s, const char *word, size_t length)
{
    memset(s, 0, sizeof *s);
    s->distance = INT_MAX;
    if (length < sizeof s->word) /* nobody mistypes that many letters */
        memcpy(s->word, word, length);
}

static char plain(char c)
{
    if (c == '_')
        return '-';
    return c;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Both shorter than ASSAY_SUGGEST_WORD. */
static int distance(const char *a, const char *b)
{
    int rows[3][ASSAY_SUGGEST_WORD + 1];
    const int n = (int)strlen(a), m = (int)strlen(b);
    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = rows[i % 3];
        const int *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            const bool same = plain(a[i - 1]) == plain(b[j - 1]);
            now[j] = least(before[j - 1] + !same, least(before[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) && plain(a[i - 2]) == plain(b[j - 1]))
                now[j] = least(now[j], earlier[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

void assay_suggest_add(assay_suggestion *s, const char *known)
{
    if (s->word[0] == '\0' || strlen(known) >= sizeof s->best)
        return;
    const int d = distance(s->word, known);
    if (d < s->distance) {
        s->distance = d;
        snprintf(s->best, sizeof s->best, "%s", known);
    }
}

const char *assay_suggest_end(assay_suggestion *s, const char *prefix)
{
    const size_t letters = strlen(s->best);
    if (letters == 0 || s->distance > (int)(letters < 3 ? 0 : letters / 3))
        return "";
    snprintf(s->text, sizeof s->text, "; did you mean %.8s%s?", prefix, s->best);
    return s->text;
}
