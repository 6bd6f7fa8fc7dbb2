/* index.html: where the time went. */
#include "parity/report/page.h"
#include <stdlib.h>
#include <string.h>

enum { SLOWEST = 10 };

typedef struct stages {
    double train, checks[PARITY_CHECK_COUNT], task;
    int64_t tasks;
} stages;

static double seconds(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void add(stages *s, const json_t *task)
{
    const json_t *checks = json_object_get(task, "check_s");
    s->train += seconds(task, "train_s");
    s->task += seconds(task, "task_s");
    s->tasks++;
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        s->checks[k] += seconds(checks, parity_check_name((parity_check)k));
}

static void put_row(FILE *f, const char *what, double s, double most)
{
    fprintf(f, "<tr><td class=l>");
    parity_put_escaped(f, what);
    fprintf(f, "<td>%.2f<td class=l><span class=bar style=\"width:%.1frem\"></span>\n", s,
            most > 0 ? 16.0 * s / most : 0.0);
}

typedef struct task {
    const char *label;
    double seconds;
} task;

static int compare(const void *a, const void *b)
{
    const task *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds > y->seconds ? -1 : 1;
    return strcmp(x->label, y->label);
}

static void put_slowest(FILE *f, json_t *times)
{
    const char *label;
    json_t *one;
    size_t n = 0;
    task *all = malloc((json_object_size(times) + 1) * sizeof *all);
    if (all == NULL)
        return; /* the page is none without memory: its stream fails */
    json_object_foreach(times, label, one) all[n++] = (task){label, seconds(one, "task_s")};
    qsort(all, n, sizeof *all, compare);
    fputs("<details><summary>the slowest tasks</summary><div "
          "class=wrap><table><thead><tr><th>task</th><th>s</th><th></th>"
          "</tr></thead><tbody>",
          f);
    for (size_t i = 0; i < n && i < SLOWEST; i++)
        put_row(f, all[i].label, all[i].seconds, all[0].seconds);
    fputs("</tbody></table></div></details>", f);
    free(all);
}

void parity_page_times(const parity_page *p)
{
    json_t *times = json_object_get(p->facts, "times");
    const char *label;
    json_t *one;
    stages s = {0};
    json_object_foreach(times, label, one) add(&s, one);
    if (s.tasks == 0 || s.task <= 0.0)
        return;
    double most = s.train;
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        most = s.checks[k] > most ? s.checks[k] : most;
    fprintf(p->f,
            "<h2 id=times>Time per stage</h2><p class=dim>Seconds of all %lld tasks together, %.1f; tasks "
            "run side by "
            "side.  A check's engine runs (repeat, restart, ...) are among its seconds.</p><div "
            "class=wrap><table><thead>"
            "<tr><th>stage</th><th>s</th><th></th></tr></thead><tbody>",
            (long long)s.tasks, s.task);
    put_row(p->f, "engine, traced run", s.train, most);
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        if (s.checks[k] > 0.0)
            put_row(p->f, parity_check_name((parity_check)k), s.checks[k], most);
    fputs("</tbody></table></div>", p->f);
    put_slowest(p->f, times);
}
