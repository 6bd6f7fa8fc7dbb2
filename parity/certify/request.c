/* The calls of a trial: lattice inputs, every data mode at every size and at every boundary, for each seed. */
#include "core/model/ops.h"
#include "parity/certify/ranks.h"
#include "parity/checks/random_request.h"

#include <stdlib.h>
#include <string.h>

/* Seeds are numbers of first records, so far apart that no two draw the same values. */
enum { SEED_STRIDE = 10000000 };

assay_status certify_request(const char *dir, assay_dtype act, const certify_plan *plan, int64_t *n_calls)
{
    int rank = 0;
    parity_ask q = {.act = act, .world = 1, .ranks = &rank, .tier = "exact", .only = plan->op};
    json_t *header =
        json_pack("{s:s, s:s}", "engine", "request", "precision", act == ASSAY_F32 ? "fp32" : "bf16");
    q.st = assay_trace_writer_open(&q.w, dir, 0, 1, header, false);
    json_decref(header);
    if (q.st == ASSAY_OK) {
        int64_t calls = 0;
        parity_ask_lattice(&q);
        parity_ask_lattice_documents(&q);
        parity_ask_lattice_sights(&q);
        parity_ask_lattice_eights(&q);
        parity_ask_lattice_foreign(&q);
        parity_ask_lattice_mla(&q);
        calls += q.n;
        for (int64_t s = 1; s <= plan->seeds; s++) {
            q.n = s * SEED_STRIDE;
            for (int m = 0; m < PARITY_MODE_COUNT; m++) {
                parity_ask_random(&q, (parity_data_mode)m);
                parity_ask_sweep(&q, (parity_data_mode)m);
            }
            parity_ask_long(&q, s);
            calls += q.n - s * SEED_STRIDE;
        }
        if (n_calls != NULL)
            *n_calls += calls;
    }
    q.st = q.st == ASSAY_OK ? assay_trace_end_step(q.w) : q.st;
    q.st = q.st == ASSAY_OK ? assay_trace_writer_close(q.w) : q.st;
    assay_trace_writer_destroy(q.w);
    json_decref(q.attrs);
    return q.st;
}

static bool is_of(const certify_plan *plan, const char *op)
{
    return plan->op == NULL ? !assay_op_find(op)->foreign : strcmp(plan->op, op) == 0;
}

static void add_long(void *user, const char *sizes, const char *symbols, int64_t value)
{
    char text[400];
    if (symbols != NULL)
        snprintf(text, sizeof text, "%s=%lld of %.300s", symbols, (long long)value, sizes);
    else
        snprintf(text, sizeof text, "%.380s", sizes);
    json_array_append_new(user, json_string(text));
}

/* What is asked once a seed. */
static json_t *long_of(const certify_plan *plan)
{
    json_t *sizes = json_array();
    for (const parity_ask_long_row *row = parity_ask_long_table; row->op != NULL; row++)
        if (is_of(plan, row->op))
            parity_ask_each_long(row, add_long, sizes);
    return sizes;
}

static json_t *modes_of(const certify_plan *plan)
{
    json_t *modes = json_array();
    for (int m = 0; m < PARITY_MODE_COUNT; m++)
        if (plan->op == NULL || parity_data_mode_refusal(plan->op, (parity_data_mode)m) == NULL)
            json_array_append_new(modes, json_string(parity_data_mode_name((parity_data_mode)m)));
    return modes;
}

json_t *certify_plan_json(const certify_plan *plan)
{
    json_t *sizes = json_array(), *swept = json_array(), *values = json_array(), *trials = json_array();
    for (const parity_ask_row *row = parity_ask_table; row->op != NULL; row++)
        for (int i = 0; is_of(plan, row->op) && i < ASK_MAX_SIZES && row->sizes[i] != NULL; i++)
            json_array_append_new(sizes, json_string(row->sizes[i]));
    for (const parity_ask_sweep_row *row = parity_ask_sweep_table; row->op != NULL; row++)
        for (int k = 0; is_of(plan, row->op) && k < 4 && row->symbols[k] != NULL; k++)
            json_array_append_new(swept, json_string(row->symbols[k]));
    for (const int64_t *v = parity_ask_boundaries; *v >= 0; v++)
        json_array_append_new(values, json_integer(*v));
    for (int t = 0; t < CERTIFY_TRIALS; t++)
        json_array_append_new(trials, json_string(certify_trial_name((certify_trial)t)));
    json_t *out = json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "seeds", (json_int_t)plan->seeds, "data",
                            modes_of(plan), "sizes", sizes, "swept", swept, "boundaries", values, "long",
                            long_of(plan), "trials", trials);
    if (out != NULL && plan->op != NULL && assay_op_find(plan->op) != NULL &&
        assay_op_find(plan->op)->collective)
        certify_ranks_plan(out);
    return out;
}

assay_status certify_plan_digest(const certify_plan *plan, char out[ASSAY_SHA256_HEX])
{
    json_t *object = certify_plan_json(plan);
    char *text = object != NULL ? json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(object);
    ASSAY_CHECK(text != NULL, ASSAY_OUT_OF_MEMORY, "plan");
    assay_sha256_bytes(text, strlen(text), out);
    free(text);
    return ASSAY_OK;
}
