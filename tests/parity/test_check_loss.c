/* Laws of `assay check` about losses: every honest way to make one is right, with the mean that its gradients are of; what is scaled,
 * asked of other positions or asked of nobody is not.  Traces are made of what the reference itself gives, under Hugging Face's
 * names. */
#include "core/base/json.h"
#include "parity/checks/reference.h"
#include "parity/judge/align.h"
#include "tests/support/parity.h"

enum { B = 2, S = 7, V = 29, N = B * S, MICROBATCHES = 2 };
enum { ALL = 3 }; /* parameters */
#define MODEL ASSAY_SOURCE_DIR "/golden/planted/models/llama"

typedef enum { MEANS, TOKENS, PLAIN } convention; /* PLAIN: the loss of every microbatch counts whole */
typedef struct run {
    int microbatches;
    bool mask;             /* of the last microbatch, so that the numbers of targets differ */
    convention weights;    /* of the losses in the objective */
    convention gradients;  /* of the parameters */
    const char *reduction; /* NULL: no cross entropy is recorded */
    bool divided; /* the model's loss is the sum over the step's targets, as with num_items_in_batch */
    bool outside; /* no labels go through the call */
    int ahead;    /* the token that a position is asked for: 1 */
    bool documents, positions; /* the run hides documents from each other; the trace says their positions */
    double untrained; /* the head's weights are so small, and the others not the folder's; 0: as they are */
    double off;       /* of the recorded loss; 0: 1 */
    double clip; /* gradients are recorded as the optimizer took them, behind this clip; 0: as they are */
    int twice;   /* this parameter's is twice as long; -1 */
    int omit;    /* this parameter has no gradient; -1: all have one, ALL: none has */
} run;
static const run honest = {.microbatches = MICROBATCHES,
                           .mask = true,
                           .weights = MEANS,
                           .gradients = MEANS,
                           .reduction = "mean",
                           .ahead = 1,
                           .twice = -1,
                           .omit = -1};
static const char *const parameters[][2] = {
    {"model.norm.weight", "decoder.final_layernorm.weight"},
    {"lm_head.weight", "output_layer.weight"},
    {"model.embed_tokens.weight", "embedding.word_embeddings.weight"}};

static int64_t id_of(int m, int64_t i)
{
    return (i * i * 7 + i * 3 + 5 * m + i / 3) % V;
}

static int64_t label_of(const run *r, int m, int64_t i)
{
    const int64_t s = i % S, from = s + r->ahead - 1;
    if (from < 0 || from >= S || (r->mask && m == r->microbatches - 1 && s < 4))
        return ASSAY_IGNORE_INDEX;
    return id_of(m, i + r->ahead - 1);
}

static int64_t target_of(const run *r, int m, int64_t i)
{
    return i % S < S - 1 ? label_of(r, m, i + 1) : ASSAY_IGNORE_INDEX;
}

static int64_t targets_of(const run *r, int m)
{
    int64_t n = 0;
    for (int64_t i = 0; i < N; i++)
        n += target_of(r, m, i) != ASSAY_IGNORE_INDEX;
    return n;
}

static double weight_of(const run *r, int m, convention which)
{
    double all = 0.0;
    for (int k = 0; k < r->microbatches; k++)
        all += (double)targets_of(r, k);
    return which == MEANS ? 1.0 / r->microbatches : which == TOKENS ? (double)targets_of(r, m) / all : 1.0;
}

/* --- writing ------------------------------------------------------------------------------------------------ */

static int64_t put(assay_trace_writer *w, const char *name, assay_phase phase, int microbatch,
                   assay_dtype dtype, int ndim, const int64_t *shape, const void *data)
{
    assay_trace_tensor t = tensor_of(name, phase, dtype, ndim, shape);
    t.microbatch = microbatch;
    must(assay_trace_write_tensor(w, &t, data));
    return t.id;
}

static int64_t put_floats(assay_trace_writer *w, const char *name, assay_phase phase, int microbatch,
                          int ndim, const int64_t *shape, const double *data)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)data[i];
    const int64_t id = put(w, name, phase, microbatch, ASSAY_F32, ndim, shape, x);
    free(x);
    return id;
}

/* Sums in any order, as the tracer declares them. */
static assay_declaration any_order(void)
{
    assay_arith a = assay_arith_elementwise();
    a.order = ASSAY_ORDER_UNKNOWN;
    a.fma = true;
    a.math_ulp = 4;
    return assay_declaration_make(a);
}

static assay_trace_writer *open_foreign(char dir[256])
{
    assay_trace_writer *w;
    json_t *header =
        json_pack("{s:s,s:s,s:s}", "engine", "pytorch", "precision", "fp32", "names", "huggingface");
    json_t *model;
    must(assay_json_load(&model, MODEL "/config.json"));
    json_object_set_new(header, "model", model);
    must(assay_trace_writer_open(&w, fresh_path(dir, "t"), 0, 1, header, false));
    json_decref(header);
    return w;
}

static void put_ids(assay_trace_writer *w, const run *r, int m, bool labels, bool positions)
{
    const int64_t shape[2] = {B, S};
    int64_t x[N];
    for (int64_t i = 0; i < N; i++)
        x[i] = id_of(m, i);
    put(w, "input_ids", ASSAY_PHASE_FORWARD, m, ASSAY_I64, 2, shape, x);
    for (int64_t i = 0; i < N; i++)
        x[i] = label_of(r, m, i);
    if (labels)
        put(w, "labels", ASSAY_PHASE_FORWARD, m, ASSAY_I64, 2, shape, x);
    for (int64_t i = 0; i < N; i++)
        x[i] = i % S % 4; /* a document of four tokens, one of three */
    if (positions)
        put(w, "position_ids", ASSAY_PHASE_FORWARD, m, ASSAY_I64, 2, shape, x);
}

static double *values_of(const parity_reference *r, const char *name, assay_phase phase, int m)
{
    parity_global g;
    parity_result finding;
    double *x;
    const parity_entry *e = parity_index_find(r->truth_index, name, phase, 0, m);
    cr_assert_not_null(e, "%s", name);
    parity_result_init(&finding);
    memset(&g, 0, sizeof g);
    must(parity_entry_assemble(r->truth_index, e, &g, &finding));
    must(parity_decode_all(g.data, g.count, g.dtype, &x));
    parity_global_free(&g);
    return x;
}

static double *weights_of(const parity_reference *r, int parameter)
{
    for (int64_t i = 0; i < r->spec->n_params; i++)
        if (strcmp(r->spec->params[i].name, parameters[parameter][1]) == 0)
            return r->weights[i];
    cr_assert_fail("%s", parameters[parameter][1]);
    return NULL;
}

/* The cross entropy of logits [b,s,v] and its backward, as the tracer records them; the mean over targets is returned. */
static double put_loss(assay_trace_writer *w, const run *r, int m, const double *logits)
{
    static double gradient[N * V], losses[N];
    const int64_t rows[2] = {N, V}, tokens = N;
    int64_t targets[N];
    const double n = (double)targets_of(r, m);
    const bool none = r->reduction != NULL && strcmp(r->reduction, "none") == 0,
               sum = r->reduction != NULL && strcmp(r->reduction, "sum") == 0;
    double total = 0.0;
    const double off = r->off > 0.0 ? r->off : 1.0;
    for (int64_t i = 0; i < N; i++) {
        double z = 0.0;
        targets[i] = target_of(r, m, i);
        for (int64_t v = 0; v < V; v++)
            z += exp(logits[i * V + v]);
        losses[i] = targets[i] < 0 ? 0.0 : off * (log(z) - logits[i * V + targets[i]]);
        total += losses[i];
        for (int64_t v = 0; v < V; v++)
            gradient[i * V + v] = targets[i] < 0 ? 0.0
                                                 : (exp(logits[i * V + v]) / z - (targets[i] == v)) *
                                                       weight_of(r, m, r->weights) / n;
    }
    if (r->reduction == NULL)
        return total / n;
    const int64_t x = put_floats(w, "loss_function.logits", ASSAY_PHASE_FORWARD, m, 2, rows, logits);
    const int64_t t = put(w, "loss_function.targets", ASSAY_PHASE_FORWARD, m, ASSAY_I64, 1, &tokens, targets);
    const double one = sum ? total : total / n;
    const int64_t y =
        put_floats(w, "loss_function", ASSAY_PHASE_FORWARD, m, none ? 1 : 0, &tokens, none ? losses : &one);
    assay_trace_op forward = {.phase = ASSAY_PHASE_FORWARD,
                              .microbatch = m,
                              .n_inputs = 2,
                              .n_outputs = 1,
                              .inputs = {{"logits", x}, {"targets", t}},
                              .outputs = {{"loss", y}}};
    forward.arith = any_order();
    snprintf(forward.op, sizeof forward.op, "cross_entropy_fwd");
    snprintf(forward.instance, sizeof forward.instance, "loss_function");
    forward.attrs = json_pack("{s:s}", "reduction", r->reduction);
    must(assay_trace_write_op(w, &forward));
    json_decref(forward.attrs);
    if (none)
        return total / n;
    const int64_t d = put_floats(w, "loss_function.dlogits", ASSAY_PHASE_BACKWARD, m, 2, rows, gradient);
    assay_trace_op backward = {.phase = ASSAY_PHASE_BACKWARD,
                               .microbatch = m,
                               .n_inputs = 2,
                               .n_outputs = 1,
                               .inputs = {{"logits", x}, {"targets", t}},
                               .outputs = {{"dlogits", d}},
                               .n_internal = 1,
                               .internal = {"lse"}};
    backward.arith = any_order();
    snprintf(backward.op, sizeof backward.op, "cross_entropy_bwd");
    snprintf(backward.instance, sizeof backward.instance, "loss_function");
    backward.attrs = json_pack("{s:i,s:f}", "vocab_start", 0, "scale", weight_of(r, m, r->weights) / n);
    must(assay_trace_write_op(w, &backward));
    json_decref(backward.attrs);
    return total / n;
}

/* The last write_run's trace beside the reference's own. */
static char beside[16384];
static int beside_code;

static void lay_beside(const char *ours, const char *theirs)
{
    const parity_diff_options o = {.tolerance = 1e-4, .model = MODEL};
    FILE *out = tmpfile();
    must(parity_diff_traces(ours, theirs, &o, out, &beside_code));
    rewind(out);
    beside[fread(beside, 1, sizeof beside - 1, out)] = '\0';
    fclose(out);
}

/* What the reference makes of the batch, under Hugging Face's names. */
static void write_run(const run *r, char dir[256])
{
    char first[256];
    parity_aligner *names;
    parity_index *index;
    parity_reference *reference;
    run asked = *r;
    asked.ahead = asked.ahead == 0 ? 1 : asked.ahead; /* the gradients are not looked at */
    assay_trace_writer *w = open_foreign(first);
    for (int m = 0; m < r->microbatches; m++)
        put_ids(w, &asked, m, true, r->documents);
    close_writer(w);
    assay_trace *t = open_trace(first);
    must(parity_aligner_create(&names, MODEL, NULL, NULL));
    must(parity_index_create(&index, t));
    must(parity_reference_create(&reference, names, MODEL, index, ASSAY_PRECISION_FP32));
    reference->means = r->gradients != TOKENS;
    for (int k = 0; k < 3 && r->untrained > 0.0; k++) {
        double *weights = weights_of(reference, k);
        for (int64_t i = 0; i < (k == 0 ? 16 : V * 16); i++)
            weights[i] = (double)(float)(weights[i] * (k == 1 ? r->untrained : 1.5));
    }
    must(parity_reference_run(reference, 0));
    w = open_foreign(dir);
    for (int m = 0; m < r->microbatches; m++) {
        static double logits[N * V];
        const int64_t shape[3] = {B, S, V};
        double *ours = values_of(reference, "output_layer.y", ASSAY_PHASE_FORWARD, m);
        for (int64_t i = 0; i < N; i++)
            memcpy(logits + i * V, ours + (i % S * B + i / S) * V, V * sizeof *ours);
        put_ids(w, r, m, !r->outside, r->positions);
        put_floats(w, "lm_head", ASSAY_PHASE_FORWARD, m, 3, shape, logits);
        const double mean = put_loss(w, r, m, logits), weight = weight_of(r, m, r->weights);
        const double loss = r->divided ? mean * weight_of(r, m, TOKENS) : mean;
        const double arrives = r->divided ? weight / weight_of(r, m, TOKENS) : weight;
        if (!r->outside && (r->reduction == NULL || strcmp(r->reduction, "mean") != 0))
            put_floats(w, "loss", ASSAY_PHASE_FORWARD, m, 0, NULL, &loss);
        if (!r->outside)
            put_floats(w, "loss.grad", ASSAY_PHASE_BACKWARD, m, 0, NULL, &arrives);
        free(ours);
    }
    for (int k = 0; k < 3; k++) {
        const int64_t shape[2] = {k == 0 ? 16 : V, 16};
        char name[ASSAY_NAME];
        snprintf(name, sizeof name, "%s.main_grad", parameters[k][1]);
        double *g = values_of(reference, name, ASSAY_PHASE_REDUCED_GRAD, -1);
        put_floats(w, parameters[k][0], ASSAY_PHASE_FORWARD, -1, k == 0 ? 1 : 2, shape,
                   weights_of(reference, k));
        for (int64_t i = 0; i < shape[0] * (k == 0 ? 1 : 16); i++)
            g[i] *= r->gradients == PLAIN ? (double)r->microbatches : 1.0;
        snprintf(name, sizeof name, "%s.grad", parameters[k][0]);
        for (int64_t i = 0; i < shape[0] * (k == 0 ? 1 : 16) && r->clip > 0.0; i++)
            g[i] *= k == r->twice ? 2.0 * r->clip : r->clip;
        if (k != r->omit && r->omit != ALL)
            put_floats(w, name, r->clip > 0.0 ? ASSAY_PHASE_OPTIMIZER : ASSAY_PHASE_GRAD, -1, k == 0 ? 1 : 2,
                       shape, g);
        free(g);
    }
    close_writer(w);
    char ours[ASSAY_PATH + 8];
    snprintf(ours, sizeof ours, "%s/0", reference->folder);
    lay_beside(ours, dir);
    parity_reference_destroy(reference);
    parity_index_destroy(index);
    parity_aligner_destroy(names);
    assay_trace_close(t);
    remove_path(first);
}

static int check(const run *r, char *text, size_t capacity)
{
    char dir[256];
    int code = -1;
    write_run(r, dir);
    FILE *out = tmpfile();
    must(parity_check_run(dir, MODEL, NULL, false, out, &code));
    rewind(out);
    text[fread(text, 1, capacity - 1, out)] = '\0';
    fclose(out);
    remove_path(dir);
    return code;
}

static void expect(const char *what, const run *r, int code, const char *words)
{
    char text[16384];
    const int found = check(r, text, sizeof text);
    cr_expect_eq(found, code, "%s: %d\n%s", what, found, text);
    cr_expect(words == NULL || strstr(text, words), "%s: no \"%s\" in\n%s", what, words, text);
}

/* --- laws --------------------------------------------------------------------------------------------------- */

Test(check_loss, every_reduction_of_an_honest_loss_is_right)
{
    static const char *const words[] = {"mean", "sum", "none", NULL};
    for (int i = 0; i < 4; i++) {
        run r = honest;
        r.reduction = words[i];
        expect(words[i] != NULL ? words[i] : "not recorded", &r, 0, "mean of the means of 2 microbatches");
        r.microbatches = 1;
        expect(words[i] != NULL ? words[i] : "not recorded", &r, 0, "RIGHT");
    }
}

/* The same of two traces: a sum is the mean times its targets, and losses of every target are no mean. */
Test(check_loss, diff_asks_for_the_reduction_too)
{
    static const struct {
        const char *reduction;
        double off;
        const char *words;
        int code;
    } rows[] = {{"mean", 0.0, "0 failed, 0 skipped", 0},
                {"sum", 0.0, "0 failed, 0 skipped", 0},
                {"none", 0.0, "0 failed, 2 skipped", 2},
                {"sum", 1.01, "first difference: loss_function = loss.loss", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        run r = honest;
        char dir[256];
        r.reduction = rows[i].reduction;
        r.off = rows[i].off;
        write_run(&r, dir);
        cr_expect(strstr(beside, rows[i].words), "%s: %s", rows[i].reduction, beside);
        cr_expect(beside_code == rows[i].code, "%s: %d %s", rows[i].reduction, beside_code, beside);
        remove_path(dir);
    }
}

Test(check_loss, both_means_are_right_and_named)
{
    run r = honest;
    expect("means", &r, 0,
           "which weighs a target of microbatch 1 (6 targets) 2 times one of microbatch 0 (12 targets)");
    r.weights = r.gradients = TOKENS;
    expect("tokens by their weights", &r, 0, "gradients are the mean over the step's 18 targets");
    static const char *const words[] = {"sum", "none", NULL};
    for (int i = 0; i < 3; i++) {
        r.reduction = words[i];
        r.divided = true;
        expect("num_items_in_batch", &r, 0, "gradients are the mean over the step's 18 targets");
    }
    r.mask = false;
    expect("num_items_in_batch, equal counts", &r, 0, "RIGHT");
}

Test(check_loss, a_loss_that_is_not_divided_is_scaled)
{
    run r = honest;
    r.weights = r.gradients = PLAIN;
    expect("unequal counts", &r, 1,
           "is 1, expected 0.5 for the mean over 2 microbatches: the loss is scaled 2 times");
    r.mask = false;
    expect("equal counts", &r, 1,
           "expected 0.5 for the mean over 2 microbatches: the loss is scaled 2 times");
    r.reduction = "none";
    expect("from the model's loss alone", &r, 1, "the loss is scaled 2 times");
}

/* The weights of the losses say one mean and the gradients are the other's. */
Test(check_loss, gradients_of_the_other_mean_are_wrong)
{
    run r = honest;
    r.gradients = TOKENS;
    expect("tokens", &r, 1, "the first tensor that differs from the reference is");
    r.weights = TOKENS;
    r.gradients = MEANS;
    expect("means", &r, 1, "the first tensor that differs from the reference is");
}

Test(check_loss, targets_come_from_the_cross_entropy_where_no_labels_go_through_the_call)
{
    run r = honest;
    r.outside = true;
    expect("outside", &r, 0, "RIGHT");
    r.ahead = 0; /* labels that nobody moved */
    expect("not shifted", &r, 1, "the labels are not shifted");
    r.ahead = 1;
    r.reduction = NULL;
    expect("nobody says", &r, 2, "what the tokens of step 0 are asked for is not recorded");
}

Test(check_loss, labels_that_are_moved_already_are_noted)
{
    run r = honest;
    r.ahead = 2;
    expect("moved twice", &r, 0, "the labels of the model's call are input_ids moved by one already");
    char text[16384];
    check(&honest, text, sizeof text);
    cr_expect(strstr(text, "moved by one") == NULL, "%s", text);
}

Test(check_loss, documents_are_taken_from_position_ids)
{
    run r = honest;
    r.documents = r.positions = true;
    expect("packed", &r, 0, "RIGHT");
    r.documents = false;
    expect("documents that see each other", &r, 1,
           "the first tensor that differs from the reference is lm_head");
    r.documents = true;
    r.positions = false;
    expect("nobody says", &r, 1, "the first tensor that differs from the reference is lm_head");
}

Test(check_loss, a_parameter_without_a_gradient_is_noted)
{
    run r = honest;
    r.omit = 1;
    expect("frozen", &r, 0, "1 of 3 parameters have no gradient in step 0: lm_head.weight: frozen");
}

/* zero_grad() inside of trace.step(). */
Test(check_loss, gradients_that_were_cleared_are_those_of_the_optimizer)
{
    run r = honest;
    char text[16384];
    r.omit = ALL;
    expect("nobody has them", &r, 2,
           "no gradient of a parameter is recorded in step 0, though it has a backward");
    r.omit = -1;
    r.clip = 0.25;
    expect("clipped", &r, 0, "are 0.25 times the reference's");
    r.clip = 1.0;
    cr_expect_eq(check(&r, text, sizeof text), 0, "%s", text);
    cr_expect(strstr(text, "clip") == NULL, "%s", text);
    r.clip = 2.0;
    expect("twice", &r, 1, "(phase optimizer, rank 0, step 0)");
    r.clip = 0.25;
    r.twice = 2;
    expect("one of them twice", &r, 1, "(phase optimizer, rank 0, step 0)");
    check(&r, text, sizeof text);
    cr_expect(strstr(text, "taken for a clip") == NULL, "%s", text);
}

Test(check_loss, what_else_differs_is_listed)
{
    run r = honest;
    char text[16384];
    r.weights = r.gradients = PLAIN;
    cr_assert_eq(check(&r, text, sizeof text), 1);
    int listed = 0;
    for (const char *at = text; (at = strstr(at, "also wrong: whole run: ")) != NULL; at++)
        listed++;
    cr_expect(strstr(text, "What else differs is listed above") && listed >= 3 && listed <= 10, "%d: %s",
              listed, text);
}

/* Near initialization every shift of the labels gives the logarithm of the vocabulary: none of them explains a loss that is wrong. */
Test(check_loss, an_untrained_model_is_not_said_to_be_shifted)
{
    run r = honest;
    char text[16384];
    r.untrained = 1e-4;
    r.reduction = "sum";
    expect("honest", &r, 0, "RIGHT");
    r.off = 1.0005;
    cr_assert_eq(check(&r, text, sizeof text), 1, "%s", text);
    cr_expect(strstr(text, "loss_function") && strstr(text, "shifted") == NULL, "%s", text);
}

/* A token of which a model is certain has a loss of zero, like one that has no target: the targets say which it is. */
Test(check_loss, a_certain_token_counts_in_the_mean)
{
    static const struct {
        int64_t targets;
        double mean;
    } rows[] = {{3, 1.0}, {0, 1.5}};
    static const assay_name_row row = {.relation = ASSAY_RELATION_MEAN};
    float losses[] = {2.0f, 0.0f, 0.0f, 1.0f}, whole = 1.0f;
    const parity_global ours = {.data = losses, .dtype = ASSAY_F32, .count = 4, .ndim = 1, .shape = {4}};
    const parity_global theirs = {.data = &whole, .dtype = ASSAY_F32, .count = 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        parity_global a, b;
        must(parity_align(&row, &theirs, &ours, rows[i].targets, &a, &b));
        cr_expect(parity_decode(b.data, 0, b.dtype) == rows[i].mean, "%lld targets",
                  (long long)rows[i].targets);
        parity_global_free(&a);
        parity_global_free(&b);
    }
}
