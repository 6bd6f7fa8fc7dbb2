/* A law of `assay check` on runs in several ranks: those that hold the same piece of a parameter step it alike. */
#include "parity/run/check.h"
#include "tests/support/parity.h"

enum { N = 8, WORLD = 2 };
#define MODEL ASSAY_SOURCE_DIR "/golden/planted/models/llama"
static const char parameter[] = "model.norm.weight";

typedef struct plant {
    double lr;    /* of rank 1 */
    float add;    /* to what it leaves */
    bool reduced; /* gradients behind a reduction over ranks are recorded */
    bool cut;     /* each rank has a half */
    int steps;    /* 0: one */
    bool skips;   /* rank 1 leaves AdamW out of its last step */
} plant;

static int64_t put(assay_trace_writer *w, const plant *p, const char *word, assay_phase phase, int rank,
                   int64_t step, float value)
{
    const int64_t n = N, local = p->cut ? N / 2 : N;
    const assay_segment half = {rank * local, local};
    float x[N];
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "%s.%s", parameter, word);
    assay_trace_tensor t = tensor_of(name, phase, ASSAY_F32, 1, &n);
    t.microbatch = -1;
    t.step = step;
    if (p->cut) {
        t.shard.local_shape[0] = local;
        assay_shard_set(&t.shard, 0, &half, 1);
    }
    for (int i = 0; i < N; i++)
        x[i] = value;
    must(assay_trace_write_tensor(w, &t, x));
    return t.id;
}

static void put_step(assay_trace_writer *w, const plant *p, int rank, int64_t step)
{
    static const char *const words[] = {"main_param_in", "exp_avg_in", "exp_avg_sq_in", "grad",
                                        "main_param",    "exp_avg",    "exp_avg_sq"};
    put(w, p, "grad", p->reduced ? ASSAY_PHASE_REDUCED_GRAD : ASSAY_PHASE_GRAD, rank, step, 0.5f);
    if (p->skips && rank == 1 && step == p->steps - 1)
        return;
    assay_trace_op op = {
        .phase = ASSAY_PHASE_OPTIMIZER, .microbatch = -1, .step = step, .n_inputs = 4, .n_outputs = 3};
    for (int k = 0; k < 7; k++) {
        const int from = k < 3 && step > 0 ? k + 4 : k; /* what the step before left */
        const float more = rank == 1 && k == 4 ? p->add : 0.0f;
        const int64_t id =
            put(w, p, words[k], ASSAY_PHASE_OPTIMIZER, rank, step, 0.1f * (float)(from + 1) + more);
        assay_trace_slot *slot = k < 4 ? &op.inputs[k] : &op.outputs[k - 4];
        snprintf(slot->slot, sizeof slot->slot, "%s", words[k]);
        slot->tensor = id;
    }
    snprintf(op.op, sizeof op.op, "adamw");
    snprintf(op.instance, sizeof op.instance, "%s", parameter);
    op.arith = assay_declaration_make(assay_arith_elementwise());
    op.attrs = json_pack("{s:f,s:f,s:f,s:f,s:f,s:i}", "lr", rank == 1 ? p->lr : 0.01, "beta1", 0.9, "beta2",
                         0.95, "eps", 1e-8, "weight_decay", 0.1, "step", (int)step + 1);
    must(assay_trace_write_op(w, &op));
    json_decref(op.attrs);
}

static void put_rank(const char *dir, const plant *p, int rank)
{
    assay_trace_writer *w;
    json_t *header =
        json_pack("{s:s,s:s,s:s}", "engine", "pytorch", "precision", "fp32", "names", "huggingface");
    must(assay_trace_writer_open(&w, dir, rank, WORLD, header, false));
    for (int64_t step = 0; step < (p->steps > 0 ? p->steps : 1); step++) {
        put_step(w, p, rank, step);
        must(assay_trace_end_step(w));
    }
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    json_decref(header);
}

Test(parity_check_replicas, ranks_that_hold_the_same_piece_step_it_alike)
{
    static const char apart[] = "both ranks hold this piece of the parameter, and train it apart";
    static const struct {
        plant p;
        const char *words;
        bool wrong; /* else nothing is said, or that it was not checked */
    } rows[] = {
        {{.lr = 0.01, .reduced = true}, NULL, false},
        {{.lr = 0.02, .reduced = true}, "has lr 0.02 on rank 1, 0.01 on rank 0: both ranks", true},
        {{.lr = 0.01, .add = 1e-3f, .reduced = true},
         "leaves another main_param on rank 1 than on rank 0: both ranks",
         true},
        {{.lr = 0.02, .add = 1e-3f, .reduced = true, .cut = true}, NULL, false},
        {{.lr = 0.01, .reduced = true, .steps = 2}, NULL, false},
        {{.lr = 0.01, .reduced = true, .steps = 2, .skips = true},
         "in step 1 is called on rank 0 and not on rank 1: both ranks",
         true},
        {{.lr = 0.01, .reduced = true, .cut = true, .steps = 2, .skips = true}, NULL, false},
        {{.lr = 0.02}, "they may be runs of their own", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[256], text[16384];
        int code;
        fresh_path(dir, "t");
        for (int rank = 0; rank < WORLD; rank++)
            put_rank(dir, &rows[i].p, rank);
        FILE *out = tmpfile();
        must(parity_check_run(dir, MODEL, NULL, false, out, &code));
        rewind(out);
        text[fread(text, 1, sizeof text - 1, out)] = '\0';
        fclose(out);
        remove_path(dir);
        const char *line = strstr(text, "continuity");
        cr_assert_not_null(line, "%zu: %s", i, text);
        const bool wrong = strstr(line, "wrong, the first: AdamW") != NULL;
        cr_expect_eq(wrong, rows[i].wrong, "%zu: %s", i, text);
        cr_expect_eq(strstr(text, apart) != NULL, rows[i].words != NULL, "%zu: %s", i, text);
        cr_expect(rows[i].words == NULL || strstr(text, rows[i].words), "%zu: %s", i, text);
    }
}
