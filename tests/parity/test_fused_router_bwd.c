/* Records of the router's backward and two balancing losses in one launch: each loss is added to what the part before it left, so that a
 * chain that is broken, and a gradient on the way that nobody reads afterwards, are named. */
#include "tests/support/parity_fused.h"

TestSuite(parity_fused_router_bwd, .timeout = 60);

enum { T = 4, E = 6, K = 2, ROWS = 2, PARTS = 3 };
#define AT "decoder.layers.0.mlp.router"

typedef struct launch {
    bool internal;  /* the records say that what is between two parts stayed inside */
    int wrong;      /* this part's gradient is stored with a wrong number ... */
    bool read;      /* ... which the next part reads */
    int from;       /* the second loss starts from what this part left; 0: from the first loss's */
    bool zeros;     /* the first loss starts from zeros */
    int forgotten;  /* this part's record has no dlogits_in */
    int other;      /* this part reads other logits */
    int topk;       /* added to the second loss's topk */
    bool same_loss; /* the second loss has the weights of the first */
    bool first_row; /* ... the counts of the first sequence for all */
    bool order;     /* the losses are recorded in the other order */
} launch;

typedef struct loss {
    const char *at;
    double aux_coeff, z_coeff, loss_scale;
    int tokens, divisor, rows;
    int64_t counts[ROWS * E];
} loss;

static const loss losses[2] = {
    {AT ".aux", 0.5, 0.25, 0.5, T, 1, 1, {3, 0, 2, 0, 1, 2}},
    {AT ".seq_aux", 0.75, 0.0, 0.25, T / ROWS, ROWS, ROWS, {2, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1}}};

typedef struct numbers {
    float logits[T * E], scores[T * E], dprobs[T * K], dlogits[PARTS][T * E];
    int64_t indices[T * K];
} numbers;

/* A softmax of E logits; its logsumexp. */
static float softmax_of(float *p, const float *l)
{
    float sum = 0.0f;
    for (int e = 0; e < E; e++)
        sum += expf(l[e]);
    for (int e = 0; e < E; e++)
        p[e] = expf(l[e]) / sum;
    return logf(sum);
}

/* The scores' softmax is before the choice, and the probabilities are not normed. */
static void choice_back(numbers *x)
{
    for (int t = 0; t < T; t++) {
        const float *s = x->scores + t * E;
        float ds[E] = {0.0f}, dot = 0.0f;
        for (int k = 0; k < K; k++)
            ds[x->indices[t * K + k]] = 1.5f * x->dprobs[t * K + k];
        for (int e = 0; e < E; e++)
            dot = fmaf(ds[e], s[e], dot);
        for (int e = 0; e < E; e++)
            x->dlogits[0][t * E + e] = s[e] * (ds[e] - dot);
    }
}

static void loss_back(float *out, const float *before, const float *logits, const loss *l, bool first_row)
{
    const float aux = (float)(l->aux_coeff * E / ((double)K * l->tokens * l->tokens * l->divisor)),
                z = (float)(2.0 * l->z_coeff / l->tokens);
    for (int t = 0; t < T; t++) {
        const int64_t *n = l->counts + (first_row ? 0 : t % l->rows * E);
        float p[E], dot = 0.0f;
        const float lse = softmax_of(p, logits + t * E);
        for (int e = 0; e < E; e++)
            dot = fmaf(p[e], (float)n[e], dot);
        for (int e = 0; e < E; e++)
            out[t * E + e] = fmaf((float)l->loss_scale, aux * p[e] * ((float)n[e] - dot) + z * lse * p[e],
                                  before[t * E + e]);
    }
}

static int64_t put_i64(assay_trace_writer *w, const char *name, int64_t rows, int64_t columns,
                       const int64_t *data)
{
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_BACKWARD, ASSAY_I64, 2, (int64_t[]){rows, columns});
    must(assay_trace_write_tensor(w, &t, data));
    return t.id;
}

static int64_t put(assay_trace_writer *w, const char *name, const float *data)
{
    return put_f32(w, name, ASSAY_PHASE_BACKWARD, T, E, data);
}

static void fill(numbers *x)
{
    for (int i = 0; i < T * E; i++)
        x->logits[i] = sinf(0.7f * (float)i);
    for (int i = 0; i < T * K; i++) {
        x->dprobs[i] = cosf(1.3f * (float)i);
        x->indices[i] = (i * 5 + i / K) % E;
    }
    for (int t = 0; t < T; t++)
        (void)softmax_of(x->scores + t * E, x->logits + t * E);
}

/* What the launch stores, and what each loss was added to. */
static void compute(numbers *x, const float *start[2], const launch *l)
{
    static const float zeros[T * E];
    static float right[T * E];
    choice_back(x);
    memcpy(right, x->dlogits[0], sizeof right);
    if (l->wrong == 1)
        x->dlogits[0][T * E - 1] *= 1.5f;
    start[0] = l->zeros ? zeros : x->dlogits[0];
    loss_back(x->dlogits[1], l->wrong == 1 && !l->read ? right : start[0], x->logits, &losses[0], false);
    memcpy(right, x->dlogits[1], sizeof right);
    if (l->wrong == 2)
        x->dlogits[1][T * E - 1] *= 1.5f;
    start[1] = l->from == 1 ? x->dlogits[0] : x->dlogits[1];
    loss second = losses[1];
    if (l->same_loss) {
        second.loss_scale = losses[0].loss_scale;
        second.aux_coeff = losses[0].aux_coeff;
    }
    loss_back(x->dlogits[2], l->wrong == 2 && !l->read ? right : start[1], x->logits, &second, l->first_row);
}

static void write_choice(assay_trace_writer *w, const numbers *x, int64_t logits, int64_t dlogits)
{
    assay_trace_op o = op_of("router_bwd", AT, ASSAY_PHASE_BACKWARD);
    op_in(&o, "dprobs", put_f32(w, "dprobs", ASSAY_PHASE_BACKWARD, T, K, x->dprobs));
    op_in(&o, "indices", put_i64(w, "indices", T, K, x->indices));
    op_in(&o, "scores", put(w, "scores", x->scores));
    op_in(&o, "logits", logits);
    op_out(&o, "dlogits", dlogits);
    o.attrs = json_pack("{s:i, s:s, s:b, s:b, s:f, s:i, s:i}", "topk", K, "score_function", "softmax",
                        "pre_softmax", 1, "norm_topk_prob", 0, "scaling_factor", 1.5, "num_groups", 0,
                        "group_topk", 0);
    write_part(w, &o, "router_balanced_bwd_two", 0);
}

static void write_loss(assay_trace_writer *w, const launch *l, int number, int part, int64_t logits,
                       int64_t before, int64_t dlogits)
{
    const loss *s = &losses[number];
    assay_trace_op o = op_of("router_aux_bwd", s->at, ASSAY_PHASE_BACKWARD);
    op_in(&o, "logits", logits);
    op_in(&o, "tokens_per_expert",
          s->rows > 1 ? put_i64(w, "seq_counts", s->rows, E, s->counts)
                      : put_i64(w, "counts", 1, E, s->counts));
    if (l->forgotten != number + 1)
        op_reads(&o, "dlogits_in", before, l->internal);
    op_out(&o, "dlogits", dlogits);
    o.attrs = json_pack("{s:f, s:f, s:i, s:s, s:i, s:i, s:f}", "aux_coeff", s->aux_coeff, "z_coeff",
                        s->z_coeff, "topk", K + (number == 1 ? l->topk : 0), "score_function", "softmax",
                        "tokens", s->tokens, "divisor", s->divisor, "loss_scale", s->loss_scale);
    write_part(w, &o, "router_balanced_bwd_two", part);
}

static void write_launch(assay_trace_writer *w, const launch *l)
{
    static numbers x;
    const float *start[2];
    fill(&x);
    compute(&x, start, l);
    const int64_t logits = put(w, "logits", x.logits),
                  other = l->other ? put(w, "other_logits", x.scores) : logits;
    int64_t left[PARTS], read[2];
    for (int k = 0; k < PARTS; k++) {
        static const char *const names[PARTS] = {"dlogits_0", "dlogits_1", "dlogits"};
        left[k] = put(w, names[k], x.dlogits[k]);
    }
    read[0] = l->zeros ? put(w, "zeros", start[0]) : left[0];
    read[1] = l->from == 1 ? left[0] : left[1];
    write_choice(w, &x, logits, left[0]);
    for (int k = 0; k < 2; k++) {
        const int number = l->order ? 1 - k : k;
        write_loss(w, l, number, k + 1, l->other == number + 1 ? other : logits, read[number],
                   left[number + 1]);
    }
}

static parity_report *judge(const launch *l)
{
    char dir[256];
    assay_trace_writer *w = open_writer(fresh_path(dir, "fused_router_bwd"), 0, 1, "1");
    write_launch(w, l);
    close_writer(w);
    return judge_local(dir);
}

Test(parity_fused_router_bwd, parts_of_one_launch_are_judged_by_what_they_read)
{
    static const launch honest[] = {{.internal = false}, {.internal = true}};
    for (size_t i = 0; i < sizeof honest / sizeof *honest; i++)
        expect_passed(judge(&honest[i]), 3, i);
}

/* A loss has to start from what the part before it left. */
Test(parity_fused_router_bwd, a_broken_chain_is_named)
{
    static const struct {
        launch l;
        const char *words;
    } rows[] = {
        {{.from = 1},
         "router_balanced_bwd_two: dlogits_in of router_aux_bwd is expected to be what router_aux_bwd stored "
         "in dlogits, or internal: found another tensor"},
        {{.zeros = true},
         "router_balanced_bwd_two: dlogits_in of router_aux_bwd is expected to be what router_bwd stored in "
         "dlogits, or internal: found another tensor"},
        {{.forgotten = 1}, "what router_bwd stored in dlogits, or internal: found no record"},
        {{.forgotten = 2}, "what router_aux_bwd stored in dlogits, or internal: found no record"},
        {{.order = true}, "what router_bwd stored in dlogits, or internal: found another tensor"},
        {{.other = 1}, "logits is expected to be one tensor for parts 0 and 1: found two"},
        {{.other = 2}, "logits is expected to be one tensor for parts 0 and 2: found two"},
        {{.internal = true, .other = 2}, "logits is expected to be one tensor for parts 0 and 2: found two"},
        {{.topk = 1}, "topk is expected to be one value for parts 0 and 2: found two"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_named(judge(&rows[i].l), AT, rows[i].words, i);
}

/* Also a gradient on the way, that the launch stores for the records alone, is its part's. */
Test(parity_fused_router_bwd, a_wrong_gradient_is_named_at_its_part)
{
    static const struct {
        launch l;
        const char *instance;
    } rows[] = {{{.wrong = 1, .read = true}, AT},
                {{.wrong = 1}, AT},
                {{.wrong = 1, .internal = true}, AT},
                {{.wrong = 2, .read = true}, AT ".aux"},
                {{.wrong = 2}, AT ".aux"},
                {{.wrong = 2, .internal = true}, AT ".aux"},
                {{.from = 1, .internal = true}, AT ".seq_aux"},
                {{.zeros = true, .internal = true}, AT ".aux"},
                {{.same_loss = true}, AT ".seq_aux"},
                {{.same_loss = true, .internal = true}, AT ".seq_aux"},
                {{.first_row = true}, AT ".seq_aux"},
                {{.first_row = true, .internal = true}, AT ".seq_aux"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_named(judge(&rows[i].l), rows[i].instance, "dlogits", i);
}
