/* What must not change a bit: a second run, communication beside compute, layers that run again, microbatches launched as graphs. */
#include "parity/run/run_task.h"

#include "core/base/file.h"
#include "core/files/batches.h"
#include "core/run/inputs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CHANGES = 5 };

/* Changes the options of a run; false in *any when there is nothing to change in this task. */
typedef assay_status (*change_options)(const parity_task_state *s, assay_train_options *o, bool *any);

typedef struct change {
    const char *claim;
    change_options make; /* NULL: nothing but that there is no trace */
} change;

/* Communication beside compute is the same communication, a shared expert beside the dispatch the same expert, and rows that travel in
 * halves are the same rows: without it what had it, with it what had it not.  Splits over tp are products of fewer rows and shorter
 * sums: the same bits where a row's and an element's do not depend on the others, which neither cuBLASLt nor NCCL promises on a device.
 * The bits name an option of Megatron-LM, or of ours (overlap_parts below). */
enum { GRAD_REDUCE = 1, SHARED_EXPERT = 2, TP_COMM = 4, HALVES = 8, EVERY_OVERLAP = 15 };

static assay_status turn_overlaps(const parity_task_state *s, unsigned which, assay_train_options *o,
                                  bool *any)
{
    assay_parallel_config p;
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    assay_status st = parity_case_config(s->t->c, config);
    const bool shared =
        st == ASSAY_OK && (which & SHARED_EXPERT) && config->moe_shared_expert_intermediate_size > 0;
    if (st == ASSAY_OK)
        st = assay_layout_parse(s->t->layout, &p);
    const bool halves = st == ASSAY_OK && (which & HALVES) && assay_inputs_halves(o, config, &p) == ASSAY_OK;
    free(config);
    ASSAY_TRY(st);
    assay_error_clear();
    const bool reduces = (which & GRAD_REDUCE) && p.data_parallel_size * p.context_parallel_size > 1;
    if (reduces) {
        o->overlap_grad_reduce = !o->overlap_grad_reduce;
        o->overlap_param_gather = p.zero_stage > 0 && !o->overlap_param_gather;
    }
    if (shared)
        o->moe_shared_expert_overlap = !o->moe_shared_expert_overlap;
    const bool sums = (which & TP_COMM) && p.tensor_model_parallel_size > 1,
               simulated = json_is_true(json_object_get(s->e->doctor, "simulated"));
    if (sums) {
        o->async_tensor_model_parallel_allreduce = !o->async_tensor_model_parallel_allreduce;
        o->tp_comm_overlap = simulated && !o->tp_comm_overlap;
    }
    if (halves)
        o->moe_alltoall_halves = !o->moe_alltoall_halves;
    *any = reduces || shared || sums || halves;
    return ASSAY_OK;
}

static assay_status turn_overlap(const parity_task_state *s, assay_train_options *o, bool *any)
{
    return turn_overlaps(s, EVERY_OVERLAP, o, any);
}

static assay_status turn_grad_reduce(const parity_task_state *s, assay_train_options *o, bool *any)
{
    return turn_overlaps(s, GRAD_REDUCE, o, any);
}

static assay_status turn_shared_expert(const parity_task_state *s, assay_train_options *o, bool *any)
{
    return turn_overlaps(s, SHARED_EXPERT, o, any);
}

static assay_status turn_tp_comm(const parity_task_state *s, assay_train_options *o, bool *any)
{
    return turn_overlaps(s, TP_COMM, o, any);
}

static assay_status turn_halves(const parity_task_state *s, assay_train_options *o, bool *any)
{
    return turn_overlaps(s, HALVES, o, any);
}

/* What runs its forward again before its backward keeps less and computes the same: whole layers in fp32, modules of layers
 * in bf16; a case that recomputes is compared with one that keeps everything. */
static assay_status turn_recompute(const parity_task_state *s, assay_train_options *o, bool *any)
{
    const bool off = o->recompute_granularity == ASSAY_RECOMPUTE_NONE;
    o->recompute_granularity = !off                                      ? ASSAY_RECOMPUTE_NONE
                               : s->t->precision == ASSAY_PRECISION_BF16 ? ASSAY_RECOMPUTE_SELECTIVE
                                                                         : ASSAY_RECOMPUTE_FULL;
    o->recompute_method = ASSAY_RECOMPUTE_UNIFORM;
    o->recompute_num_layers = 0;
    snprintf(o->recompute_modules, sizeof o->recompute_modules, "%s",
             o->recompute_granularity == ASSAY_RECOMPUTE_SELECTIVE
                 ? "core_attn,layernorm,mlp,moe_act,shared_experts"
                 : "");
    *any = true;
    return ASSAY_OK;
}

static const char *const fused_families[] = {"residual_norm", "router_balanced", "qkv_rope"};
enum { FUSED_FAMILIES = sizeof fused_families / sizeof *fused_families };

/* A fused operation has the bits of its parts: each runs by itself. */
static assay_status turn_fusion(const parity_task_state *s, assay_train_options *o, bool *any)
{
    const json_t *variants = json_object_get(s->e->doctor, "variants");
    size_t n = 0;
    for (int i = 0; i < FUSED_FAMILIES; i++)
        if (json_object_get(variants, fused_families[i]) != NULL)
            n += (size_t)snprintf(o->variant + n, sizeof o->variant - n, "%s%s=k0", n > 0 ? "," : "",
                                  fused_families[i]);
    *any = n > 0;
    return ASSAY_OK;
}

/* Whether some pass is launched again as a graph: the first of a direction runs as it is, the next time a pass is captured, then it is
 * launched; a first forward that waits for parameters and a last backward that sends gradients are never captured (gpu/graph.c). */
static bool launches_again(const assay_train_options *o, int64_t steps, int64_t microbatches)
{
    return microbatches > 1 ? steps >= 2 : steps >= 3 && !(o->overlap_param_gather && o->overlap_grad_reduce);
}

/* Passes of a microbatch as CUDA graphs, where they can be and where one is launched without being captured.  A run with a planted fault
 * launches one by one. */
static assay_status turn_graph(const parity_task_state *s, assay_train_options *o, bool *any)
{
    assay_parallel_config p;
    assay_train_options said = *o; /* with what the model's configuration says */
    assay_batch_share share;
    assay_model_config *config = malloc(sizeof *config);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY_GOTO(parity_case_config(s->t->c, config), st, done);
    ASSAY_TRY_GOTO(assay_layout_parse(s->t->layout, &p), st, done);
    ASSAY_TRY_GOTO(assay_inputs_take_config(&said, config), st, done);
    ASSAY_TRY_GOTO(assay_batch_share_make(assay_needs_all_rows(&said), s->t->c->microbatches,
                                          s->t->c->micro_batch_size, p.data_parallel_size, 0, &share),
                   st, done);
    const bool launches = launches_again(o, s->t->c->steps, share.n_microbatches);
    const bool takes = assay_inputs_cuda_graph(&said, config, &p, share.rows_split) == ASSAY_OK;
    assay_error_clear();
    if (launches && takes && o->fault[0] == '\0')
        o->enable_cuda_graph = *any = true;
done:
    free(config);
    return st;
}

/* Selected kernels are run again as they are: what changes beside them would be theirs to choose. */
static assay_status changes_of(const parity_task_state *s, change changes[MAX_CHANGES], int *n)
{
    static const change all[] = {{"overlap", turn_overlap},
                                 {"recompute", turn_recompute},
                                 {"fusion", turn_fusion},
                                 {"graph", turn_graph}};
    assay_train_options together = s->train; /* a change may leave nothing to the next one */
    changes[0] = (change){"repeat", NULL};
    *n = 1;
    for (size_t i = 0; i < sizeof all / sizeof *all && strcmp(s->t->variant, "fastest") == 0; i++) {
        assay_train_options o = together;
        bool any = false;
        ASSAY_TRY(all[i].make(s, &o, &any));
        if (!any)
            continue;
        changes[(*n)++] = all[i];
        together = o;
    }
    return ASSAY_OK;
}

/* A family that an engine with kernel variants does not have would leave the claim without a word. */
static assay_status check_fusion(const parity_task_state *s)
{
    const json_t *variants = json_object_get(s->e->doctor, "variants");
    for (int i = 0; i < FUSED_FAMILIES && variants != NULL; i++) {
        parity_result r = parity_task_failure(PARITY_CHECK_BITWISE, "fusion");
        if (json_object_get(variants, fused_families[i]) != NULL)
            continue;
        snprintf(r.message, sizeof r.message,
                 "the engine's doctor lists no kernels of %s: nothing says that fused operations ran apart",
                 fused_families[i]);
        ASSAY_TRY(parity_report_add(s->report, &r));
    }
    return ASSAY_OK;
}

/* The number behind these words; -1: there is none. */
static long long number_behind(const char *text, const char *words)
{
    const char *at = text != NULL ? strstr(text, words) : NULL;
    char *end;
    if (at == NULL)
        return -1;
    at += strlen(words);
    const long long n = strtoll(at, &end, 10);
    return end > at ? n : -1;
}

/* That passes were launched again is the engine's word, in its log; without one the run with graphs was a run without. */
static assay_status check_launched(const parity_task_state *s, const char *claim, parity_report *report)
{
    char file[80], path[ASSAY_PATH], *text = NULL;
    uint64_t bytes = 0;
    parity_result r = parity_task_failure(PARITY_CHECK_BITWISE, claim);
    snprintf(file, sizeof file, "%s.log", claim);
    ASSAY_TRY(parity_task_path(s->t, file, path));
    ASSAY_TRY(assay_read_file(path, 64 << 20, &text, &bytes));
    const char *line = strstr(text, "graphs: ");
    const long long captured = number_behind(line, "graphs: "),
                    launched = number_behind(line, " passes captured, ");
    free(text);
    if (launched > 0)
        return ASSAY_OK;
    if (launched < 0)
        snprintf(r.message, sizeof r.message,
                 "no pass is shown to be launched again as a graph: %.300s does not say", path);
    else
        snprintf(r.message, sizeof r.message, "%lld passes were captured, none was launched again as a graph",
                 captured);
    return parity_report_add(report, &r);
}

/* One run with changes first .. first+n-1, compared with the traced run's result file. */
static assay_status run_changed(parity_task_state *s, const change *changes, int n, const char *half,
                                const char *first_out, parity_report *report)
{
    assay_train_options o = s->train;
    char claim[64] = "", file[80];
    bool any = false;
    for (int i = 0; i < n; i++) {
        const size_t used = strlen(claim);
        snprintf(claim + used, sizeof claim - used, "%s%s", i > 0 ? "+" : "", changes[i].claim);
        if (changes[i].make != NULL)
            ASSAY_TRY(changes[i].make(s, &o, &any));
    }
    snprintf(file, sizeof file, "%s.safetensors", claim);
    ASSAY_TRY(parity_task_path(s->t, file, o.out));
    if (half != NULL) {
        snprintf(o.save, sizeof o.save, "%s", half);
        o.save_after = s->t->c->steps - 1;
    }
    ASSAY_TRY(parity_task_engine(s, claim, &o));
    if (o.enable_cuda_graph)
        ASSAY_TRY(check_launched(s, claim, report));
    return parity_check_bitwise_files(first_out, o.out, claim, report);
}

static int64_t failed(const parity_report *r)
{
    int64_t passed, bad, skipped;
    parity_report_totals(r, &passed, &bad, &skipped);
    return bad;
}

static assay_status add_all(parity_report *to, const parity_report *from)
{
    for (int64_t i = 0; i < parity_report_count(from); i++) {
        const parity_claim *c = parity_report_at(from, i);
        const parity_drawn drawn = parity_report_drawn(from, c);
        ASSAY_TRY(parity_report_add_claim(to, c, &drawn));
    }
    return ASSAY_OK;
}

/* Of an overlap that differs: which of its options does, alone; all of them are told where none does. */
static assay_status name_overlap(parity_task_state *s, const char *first_out, const parity_report *all)
{
    static const change parts[] = {{"overlap_grad_reduce", turn_grad_reduce},
                                   {"moe_shared_expert_overlap", turn_shared_expert},
                                   {"tp_comm_overlap", turn_tp_comm},
                                   {"moe_alltoall_halves", turn_halves}};
    bool found = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        parity_report *alone = NULL;
        assay_train_options o = s->train;
        assay_status st = ASSAY_OK;
        bool any = false;
        ASSAY_TRY(parts[i].make(s, &o, &any));
        if (!any)
            continue;
        ASSAY_TRY(parity_report_create(&alone));
        st = run_changed(s, &parts[i], 1, NULL, first_out, alone);
        if (st != ASSAY_OK)
            (void)add_all(s->report, all); /* which is found already; the error is said beside it */
        if (st == ASSAY_OK && failed(alone) > 0) {
            found = true;
            st = add_all(s->report, alone);
        }
        parity_report_destroy(alone);
        ASSAY_TRY(st);
    }
    return found ? ASSAY_OK : add_all(s->report, all);
}

/* Each change alone, after all together differed; `together` is told where no single one does. */
static assay_status name_change(parity_task_state *s, const change *changes, int n, const char *first_out,
                                const parity_report *together)
{
    bool found = false;
    for (int i = 0; i < n; i++) {
        parity_report *alone = NULL;
        assay_status st = ASSAY_OK;
        assay_train_options o = s->train;
        bool any = changes[i].make == NULL;
        if (!any)
            ASSAY_TRY(changes[i].make(s, &o, &any));
        if (!any) /* without the others there is nothing to change */
            continue;
        ASSAY_TRY_GOTO(parity_report_create(&alone), st, done);
        st = run_changed(s, &changes[i], 1, NULL, first_out, alone);
        if (st != ASSAY_OK) {
            (void)add_all(s->report, together); /* which is found already; the error is said beside it */
            goto done;
        }
        const bool differs = failed(alone) > 0;
        found = found || differs;
        ASSAY_TRY_GOTO(differs && changes[i].make == turn_overlap ? name_overlap(s, first_out, alone)
                                                                  : add_all(s->report, alone),
                       st, done);
    done:
        parity_report_destroy(alone);
        ASSAY_TRY(st);
    }
    return found ? ASSAY_OK : add_all(s->report, together);
}

assay_status parity_task_bits(parity_task_state *s, const char *first_out)
{
    change changes[MAX_CHANGES];
    char half[ASSAY_PATH];
    int n = 0;
    parity_report *together = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_task_path(s->t, "half", half));
    ASSAY_TRY(changes_of(s, changes, &n));
    if (strcmp(s->t->variant, "fastest") == 0)
        ASSAY_TRY(check_fusion(s));
    ASSAY_TRY(parity_report_create(&together));
    ASSAY_TRY_GOTO(run_changed(s, changes, n, s->t->c->steps > 0 ? half : NULL, first_out, together), st,
                   done);
    st = n > 1 && failed(together) > 0 ? name_change(s, changes, n, first_out, together)
                                       : add_all(s->report, together);
done:
    parity_report_destroy(together);
    return st;
}
