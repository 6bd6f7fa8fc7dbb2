/* For each parallel axis: over the layouts that use it, how many cells there are and the worst error of the checks that have
 * bounds.  A layout of several axes counts in each of them. */
#include "core/model/layout.h"
#include "parity/report/page.h"

#include <math.h>

typedef struct axis {
    const char *name;
    bool (*uses)(const assay_parallel_config *p);
} axis;

#define USES(name, condition)                                                                                \
    static bool name(const assay_parallel_config *p)                                                         \
    {                                                                                                        \
        return condition;                                                                                    \
    }
USES(one, p->tensor_model_parallel_size * p->context_parallel_size * p->pipeline_model_parallel_size *
                  p->expert_model_parallel_size * p->expert_tensor_parallel_size * p->data_parallel_size ==
              1)
USES(tp, p->tensor_model_parallel_size > 1)
USES(sp, p->sequence_parallel)
USES(cp, p->context_parallel_size > 1)
USES(pp, p->pipeline_model_parallel_size > 1)
USES(vpp, p->virtual_pipeline_model_parallel_size > 1)
USES(ep, p->expert_model_parallel_size > 1)
USES(etp, p->expert_tensor_parallel_size > 1)
USES(dp, p->data_parallel_size > 1)
USES(zero1, p->zero_stage == 1)
USES(zero2, p->zero_stage == 2)
USES(zero3, p->zero_stage == 3)
USES(hsdp, p->num_distributed_optimizer_instances > 1)

static const axis axes[] = {{"1", one},       {"tp", tp},       {"sp", sp},    {"cp", cp}, {"pp", pp},
                            {"vpp", vpp},     {"ep", ep},       {"etp", etp},  {"dp", dp}, {"zero1", zero1},
                            {"zero2", zero2}, {"zero3", zero3}, {"hsdp", hsdp}};
static const parity_check bounded[] = {PARITY_CHECK_LOCAL, PARITY_CHECK_WHOLE};
enum { N_AXES = sizeof axes / sizeof *axes, N_BOUNDED = sizeof bounded / sizeof *bounded };

int parity_report_axes(const parity_column *columns, int64_t n, parity_axis_row out[PARITY_MAX_AXES])
{
    int rows = 0;
    for (int a = 0; a < N_AXES; a++) {
        parity_axis_row row = {.name = axes[a].name};
        for (int64_t i = 0; i < n; i++) {
            assay_parallel_config p;
            if (assay_layout_parse(columns[i].layout, &p) != ASSAY_OK) {
                assay_error_clear(); /* a trace of other people's code names its layout as it likes */
                continue;
            }
            if (!axes[a].uses(&p))
                continue;
            row.cells++;
            for (int k = 0; k < N_BOUNDED; k++) {
                const parity_check c = bounded[k];
                const bool asked = columns[i].passed[c] + columns[i].failed[c] > 0;
                row.asked[k] = row.asked[k] || asked;
                if (asked && !isnan(row.worst[k]) &&
                    !(columns[i].worst[c] <= row.worst[k])) /* a NaN is the worst */
                    row.worst[k] = columns[i].worst[c];
            }
        }
        if (row.cells > 0)
            out[rows++] = row;
    }
    return rows;
}

void parity_put_axes(FILE *f, const parity_column *columns, int64_t n)
{
    parity_axis_row rows[PARITY_MAX_AXES];
    const int n_rows = parity_report_axes(columns, n, rows);
    if (n_rows == 0)
        return;
    fputs("<h2>Worst error by axis, as a share of its allowance</h2><div class=wrap><table class=\"h "
          "two\"><thead><tr>"
          "<th class=l>axis</th><th>cells</th><th>local</th><th>whole</th></tr></thead><tbody>",
          f);
    for (int i = 0; i < n_rows; i++) {
        fprintf(f, "<tr><td class=l>%s</td><td>%lld</td>", rows[i].name, (long long)rows[i].cells);
        for (int k = 0; k < N_BOUNDED; k++)
            parity_put_heat(f,
                            rows[i].asked[k] ? parity_heat_of(HUGE_VAL, rows[i].worst[k]) : PARITY_HEAT_NONE,
                            rows[i].worst[k], -1);
        fputs("</tr>", f);
    }
    fputs("</tbody></table></div><p class=dim>Of all cells whose layout uses the axis; local beyond the "
          "rounding of the output itself.</p>",
          f);
}
