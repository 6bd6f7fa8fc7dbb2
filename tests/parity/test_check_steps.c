/* Laws of `assay check` that need no reference: what AdamW left in one recorded step is what the next one finds and what its forward
 * reads; a run may begin late and leave steps out.  And what the probabilities of chosen experts look like. */
#include "parity/run/check.h"
#include "tests/support/parity.h"

enum { N = 16, STEPS = 3, WORDS = 4 };
#define MODEL ASSAY_SOURCE_DIR "/golden/planted/models/llama"
static const char parameter[] = "model.norm.weight";

typedef struct plant {
    const char *word; /* of which record: "weight", or an input of adamw; NULL: none */
    int step;
    float add, times;  /* to what it is; 0, 0: all zero */
    int number[STEPS]; /* of the optimizer's step */
    bool low;          /* the weight is stored in BF16 */
    bool second;       /* another parameter has a gradient and no optimizer */
} plant;
static const plant none = {.number = {1, 2, 3}};

static float value(int word, int step, int i)
{
    return (float)(1 + word) * 0.37f + 0.01f * (float)(step * 3 + i * (1 + word) + step * i);
}

static int64_t put(assay_trace_writer *w, const plant *p, const char *word, assay_phase phase, int step,
                   const float *from)
{
    const int64_t n = N;
    float x[N];
    uint16_t low[N];
    char name[ASSAY_NAME];
    const bool weight = strcmp(word, "weight") == 0;
    snprintf(name, sizeof name, "%s%s%s", parameter, weight ? "" : ".", weight ? "" : word);
    assay_trace_tensor t = tensor_of(name, phase, weight && p->low ? ASSAY_BF16 : ASSAY_F32, 1, &n);
    t.microbatch = -1;
    t.step = step;
    for (int i = 0; i < N; i++) {
        const bool planted = p->word != NULL && strcmp(p->word, word) == 0 && p->step == step;
        x[i] = planted ? from[i] * p->times + p->add : from[i];
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        low[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
    must(assay_trace_write_tensor(w, &t, t.dtype == ASSAY_BF16 ? (const void *)low : x));
    return t.id;
}

static void put_gradients(assay_trace_writer *w, int step)
{
    static const struct {
        const char *name;
        assay_phase phase;
    } rows[] = {{"model.norm.weight.grad", ASSAY_PHASE_GRAD},
                {"lm_head.weight.grad", ASSAY_PHASE_GRAD},
                {"lm_head.weight", ASSAY_PHASE_FORWARD}};
    const int64_t n = N;
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = value(1, 0, i);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        assay_trace_tensor t = tensor_of(rows[k].name, rows[k].phase, ASSAY_F32, 1, &n);
        t.microbatch = -1;
        t.step = step;
        must(assay_trace_write_tensor(w, &t, x));
    }
}

/* What is left after a step, of master, exp_avg and exp_avg_sq. */
static void put_step(assay_trace_writer *w, const plant *p, int step)
{
    static const char *const in[WORDS] = {"main_param_in", "exp_avg_in", "exp_avg_sq_in", "grad"};
    static const char *const out[WORDS - 1] = {"main_param", "exp_avg", "exp_avg_sq"};
    assay_trace_op op = {.phase = ASSAY_PHASE_OPTIMIZER,
                         .microbatch = -1,
                         .step = step,
                         .n_inputs = WORDS,
                         .n_outputs = WORDS - 1};
    float x[WORDS][N];
    for (int k = 0; k < WORDS; k++)
        for (int i = 0; i < N; i++)
            x[k][i] = value(k, step, i);
    put(w, p, "weight", ASSAY_PHASE_FORWARD, step, x[0]);
    for (int k = 0; k < WORDS; k++) {
        snprintf(op.inputs[k].slot, sizeof op.inputs[k].slot, "%s", in[k]);
        op.inputs[k].tensor = put(w, p, in[k], ASSAY_PHASE_OPTIMIZER, step, x[k]);
    }
    for (int k = 0; k < WORDS - 1; k++) {
        for (int i = 0; i < N; i++)
            x[k][i] = value(k, step + 1, i);
        snprintf(op.outputs[k].slot, sizeof op.outputs[k].slot, "%s", out[k]);
        op.outputs[k].tensor = put(w, p, out[k], ASSAY_PHASE_OPTIMIZER, step, x[k]);
    }
    snprintf(op.op, sizeof op.op, "adamw");
    snprintf(op.instance, sizeof op.instance, "%s", parameter);
    op.arith = assay_declaration_make(assay_arith_elementwise());
    op.attrs = json_pack("{s:f,s:f,s:f,s:f,s:f,s:i}", "lr", 0.01, "beta1", 0.9, "beta2", 0.95, "eps", 1e-8,
                         "weight_decay", 0.1, "step", p->number[step]);
    must(assay_trace_write_op(w, &op));
    json_decref(op.attrs);
    if (p->second)
        put_gradients(w, step);
    must(assay_trace_end_step(w));
}

static void check(const plant *p, char *text, size_t capacity)
{
    char dir[256];
    int code;
    assay_trace_writer *w;
    json_t *header =
        json_pack("{s:s,s:s,s:s}", "engine", "pytorch", "precision", "fp32", "names", "huggingface");
    must(assay_trace_writer_open(&w, fresh_path(dir, "t"), 0, 1, header, false));
    for (int step = 0; step < STEPS; step++)
        put_step(w, p, step);
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    json_decref(header);
    FILE *out = tmpfile();
    must(parity_check_run(dir, MODEL, NULL, false, out, &code));
    rewind(out);
    text[fread(text, 1, capacity - 1, out)] = '\0';
    fclose(out);
    remove_path(dir);
}

static void expect(const plant *p, const char *words)
{
    char text[16384];
    check(p, text, sizeof text);
    cr_expect(strstr(text, words), "no \"%s\" in\n%s", words, text);
}

Test(check_steps, what_a_step_leaves_the_next_one_finds)
{
    plant p = none;
    expect(&p, "continuity     11 states from one step to the next: right");
    p.low = true;
    expect(&p, "continuity     11 states from one step to the next: right");
    p = none; /* resumed: the first recorded step is a later one */
    p.number[0] = 7;
    p.number[1] = 8;
    p.number[2] = 9;
    expect(&p, "continuity     11 states from one step to the next: right");
}

Test(check_steps, a_state_that_was_lost_is_named)
{
    plant p = none;
    p.word = "exp_avg_in"; /* all zero */
    p.step = 1;
    p.number[1] = 1;
    p.number[2] = 2;
    expect(&p, "WRONG: AdamW of model.norm.weight counts its step 1 in step 1 of the trace (rank 0), "
               "expected 2, one "
               "more than in step 0: its state was lost (exp_avg_in is zero again)");
}

Test(check_steps, what_changed_between_is_named)
{
    static const struct {
        plant p;
        const char *words;
    } rows[] = {
        {{.word = "exp_avg_in", .step = 2, .times = 1.0f, .add = 1e-3f, .number = {1, 2, 3}},
         "WRONG: exp_avg_in of model.norm.weight in step 2 is not the exp_avg that step 1 left (rank 0): 16 "
         "of 16"},
        {{.word = "exp_avg_sq_in", .step = 1, .times = 0.5f, .number = {1, 2, 3}},
         "exp_avg_sq_in of model.norm.weight in step 1 is not the exp_avg_sq that step 0 left (rank 0): 16 "
         "of 16"},
        {{.word = "weight", .step = 1, .times = 1.0f, .add = 0.01f, .number = {1, 2, 3}},
         "WRONG: the weight model.norm.weight in step 1 is not what AdamW left in step 0 (rank 0): 16 of 16"},
        {{.word = "weight", .step = 1, .times = 1.03f, .number = {1, 2, 3}, .low = true},
         "WRONG: the weight model.norm.weight in step 1 is not what AdamW left in step 0 (rank 0): 16 of 16"},
        {{.word = "main_param_in", .step = 0, .times = 0.999f, .number = {1, 2, 3}},
         "WRONG: main_param_in of AdamW of model.norm.weight in step 0 is not the weight that the forward of "
         "the same "
         "step read (lr x weight_decay is 0.001)"},
        {{.word = "main_param_in", .step = 0, .times = 0.999f, .number = {1, 2, 3}}, "is 0.999 times"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows - 1; i++)
        expect(&rows[i].p, rows[i].words);
    char text[16384];
    check(&rows[5].p, text, sizeof text);
    cr_expect(strstr(text, "every element is 0.999"), "%s", text);
}

/* Steps that nobody recorded may do anything. */
Test(check_steps, steps_between_recorded_ones_are_noted)
{
    plant p = none;
    p.word = "weight";
    p.step = 1;
    p.times = 2.0f;
    p.number[1] = 12;
    p.number[2] = 13;
    char text[16384];
    check(&p, text, sizeof text);
    cr_expect(strstr(text, "AdamW made steps between recorded ones (1 times"), "%s", text);
    cr_expect(strstr(text, "what AdamW left in step 0") == NULL, "%s", text);
}

Test(check_steps, what_the_optimizer_leaves_out_is_noted)
{
    plant p = none;
    p.second = true;
    expect(
        &p,
        "note: 1 of 2 parameters with a gradient have no step of the optimizer in step 0: lm_head.weight: ");
    expect(&p,
           "note: 1 of 2 parameters with a gradient are in step 1 what they were in step 0, where the others "
           "changed: lm_head.weight: ");
    char text[16384];
    check(&none, text, sizeof text);
    cr_expect(strstr(text, "parameters with a gradient") == NULL, "%s", text);
}

/* --- a router ----------------------------------------------------------------------------------------------- */

static const char *explain(bool norm, double factor, int k, const double *x, int64_t count)
{
    static char text[PARITY_TEXT];
    assay_model_config *m = calloc(1, sizeof *m);
    parity_aligner names = {.config = m};
    const check_state c = {.names = &names};
    m->norm_topk_prob = norm;
    m->moe_router_topk_scaling_factor = factor;
    m->moe_router_topk = k;
    text[0] = '\0';
    check_explain_probs(&c, x, count, 3, text);
    free(m);
    return text;
}

Test(check_steps, probabilities_say_what_they_add_up_to)
{
    static const double one[6] = {0.5, 0.5, 0.25, 0.75, 0.9, 0.1},
                        scaled[6] = {1.25, 1.25, 1.0, 1.5, 2.0, 0.5},
                        plain[6] = {0.4, 0.2, 0.3, 0.1, 0.5, 0.2};
    cr_expect_str_eq(explain(true, 1.0, 2, one, 3),
                     "every token chooses 1 expert, the model's num_experts_per_tok is 2");
    cr_expect(strstr(explain(true, 2.5, 2, one, 6), "routed_scaling_factor is not applied"));
    cr_expect(strstr(explain(true, 1.0, 2, scaled, 6), "add up to 2.5, the model's to 1"));
    cr_expect(strstr(explain(true, 1.0, 2, plain, 6), "norm_topk_prob is not applied"));
    cr_expect(strstr(explain(false, 1.0, 2, one, 6), "norm_topk_prob is applied"));
    cr_expect_str_eq(explain(true, 1.0, 2, one, 6), "");
    cr_expect_str_eq(explain(true, 2.5, 2, scaled, 6), "");
    cr_expect_str_eq(explain(false, 1.0, 2, plain, 6), "");
}
