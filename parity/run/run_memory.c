/* `assay run`: how many tasks run side by side, by the memory that they need.
 *
 * A small case needs some tens of MiB; a layer at the width of a real model needs gigabytes, and a judge that the kernel kills
 * has checked nothing.  Need is estimated from the model: bytes for each element of a parameter (docs/TOLERANCES.md section 10 has what
 * was measured).  A task alone is always started; one that has to wait for memory lets smaller ones pass, and what runs nearly alone has
 * the processors of those that cannot run beside it. */
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>

/* Of the engine, whose ranks hold pieces, and then of the judge; what copies of single tensors cost is in it.  Whole holds the weights, the truth and four more runs in
 * double precision, and their gradients. */
static const double BYTES_OF_AN_ELEMENT = 26.0, BYTES_FOR_WHOLE = 80.0, BYTES_OF_A_TASK = 0x1p26;

double parity_run_memory(const parity_run_options *o, const parity_task *t, double parameters)
{
    const bool whole =
        t->c != NULL && (o->check[0] == '\0' ? t->c->checks[PARITY_CHECK_WHOLE] : o->check[0] == 'w');
    return BYTES_OF_A_TASK + parameters * (whole ? BYTES_FOR_WHOLE : BYTES_OF_AN_ELEMENT);
}

double parity_run_memory_available(void)
{
    char line[128];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f != NULL && kib == 0 && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "MemAvailable:", 13) == 0)
            kib = strtoull(line + 13, NULL, 10);
    if (f != NULL)
        fclose(f);
    return kib > 0 ? (double)kib * 1024.0 : 0x1p62; /* no such file: nothing is known, nothing waits */
}

int parity_run_next(parity_run_state *s)
{
    double taken = 0.0;
    for (int k = 0; k < s->o.jobs; k++)
        if (s->running[k] >= 0)
            taken += s->tasks[s->running[k]].memory;
    for (int i = 0; i < s->n_tasks; i++) {
        const int task = s->order[i];
        if (task >= 0 && (taken == 0.0 || taken + s->tasks[task].memory <= s->available)) {
            s->order[i] = -1;
            return task;
        }
    }
    return -1;
}

int parity_run_threads(const parity_run_state *s, int index, int processors)
{
    const double beside = s->available / s->tasks[index].memory;
    const int tasks = beside >= (double)s->o.jobs ? s->o.jobs : beside >= 2.0 ? (int)beside : 1;
    return processors > tasks ? processors / tasks : 1;
}
