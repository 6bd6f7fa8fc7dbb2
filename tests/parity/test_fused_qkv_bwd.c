/* Records of rope, q/k norm and split of a backward in one launch: gradients that stayed inside are gone through, and what does not fit is
 * named at its part. */
#include "tests/support/parity_fused.h"

TestSuite(parity_fused_qkv_bwd, .timeout = 60);

enum { T = 3, D = 8, HALF = 4, POSITIONS = 5 };
#define AT "decoder.layers.0.self_attention."

typedef struct launch {
    bool unrounded;      /* the norm reads what turned back before it is stored in bf16 */
    bool internal;       /* ... and the records say so */
    bool split_internal; /* the split's gradients stayed inside, too */
    bool forward;        /* the key turns forward */
    bool no_mean;        /* the key's norm forgets the mean */
    bool overwrites;     /* the query's dgamma starts from zero */
    bool other_value;    /* the packed gradient has the query's in the value's place */
    bool other_dx;       /* the split's record names what turned back */
} launch;

/* A head of each token: query and key, one group. */
typedef struct head {
    float dy[T * D], x[T * D], rstd[T], inside[T * D], norm[T * D], raw[T * D], old[D], dgamma[D];
} head;

static void turn_back(head *h, const float *c, const float *s, const int64_t *position, const launch *l,
                      bool forward)
{
    for (int t = 0; t < T; t++)
        for (int j = 0; j < HALF; j++) {
            const float a = h->dy[t * D + j], b = h->dy[t * D + HALF + j];
            const float cj = c[position[t] * HALF + j],
                        sj = (forward ? 1.0f : -1.0f) * s[position[t] * HALF + j];
            h->inside[t * D + j] = a * cj - b * sj;
            h->inside[t * D + HALF + j] = b * cj + a * sj;
        }
    for (int i = 0; i < T * D; i++) {
        h->norm[i] = rounded(h->inside[i]);
        h->inside[i] = l->unrounded ? h->inside[i] : h->norm[i];
    }
}

static void norm_back(head *h, const float *gamma, bool no_mean, bool overwrites)
{
    float sums[D] = {0.0f};
    for (int t = 0; t < T; t++) {
        float sum = 0.0f;
        for (int j = 0; j < D; j++) {
            const float xh = h->x[t * D + j] * h->rstd[t];
            sum = fmaf(h->inside[t * D + j] * gamma[j], xh, sum);
            sums[j] = fmaf(h->inside[t * D + j], xh, sums[j]);
        }
        const float mean = no_mean ? 0.0f : sum / (float)D;
        for (int j = 0; j < D; j++) {
            const float xh = h->x[t * D + j] * h->rstd[t];
            h->raw[t * D + j] = rounded(h->rstd[t] * fmaf(-xh, mean, h->inside[t * D + j] * gamma[j]));
        }
    }
    for (int j = 0; j < D; j++)
        h->dgamma[j] = sums[j] + (overwrites ? 0.0f : h->old[j]);
}

static void fill(head h[2], float *gamma, float *dv, float *c, float *s)
{
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < T * D; i++) {
            h[k].dy[i] = rounded(sinf(0.7f * (float)i + (float)k));
            h[k].x[i] = rounded(cosf(1.3f * (float)i - (float)k));
            h[k].rstd[i / D] = 0.6f + 0.2f * (float)(i / D);
            h[k].old[i % D] = 0.25f * (float)(i % D);
        }
    for (int i = 0; i < T * D; i++)
        dv[i] = rounded(0.1f * (float)i);
    for (int j = 0; j < D; j++)
        gamma[j] = rounded(0.5f + 0.07f * (float)j);
    for (int i = 0; i < POSITIONS * HALF; i++) {
        c[i] = cosf(0.37f * (float)i);
        s[i] = sinf(0.37f * (float)i);
    }
}

static void write_split(assay_trace_writer *w, const launch *l, const head h[2], const float *dv,
                        const int64_t raw[2], const int64_t norm[2])
{
    const int64_t heads[3] = {T, 1, D};
    float dqkv[T * 3 * D];
    for (int i = 0; i < T * 3 * D; i++) {
        const int at = i / (3 * D) * D + i % D, which = i / D % 3;
        dqkv[i] = which == 2 && !l->other_value ? dv[at] : h[which % 2].raw[at];
    }
    assay_trace_op o = op_of("qkv_split_bwd", AT "qkv_split", ASSAY_PHASE_FORWARD);
    op_reads(&o, "dq", l->other_dx ? norm[0] : raw[0], l->split_internal);
    op_reads(&o, "dk", raw[1], l->split_internal);
    op_in(&o, "dv", put_bf16(w, "dv", 3, heads, dv));
    op_out(&o, "dqkv", put_bf16(w, "dqkv", 2, (int64_t[]){T, 3 * D}, dqkv));
    o.attrs = json_pack("{s:i, s:i, s:i}", "heads", 1, "groups", 1, "head_dim", D);
    write_part(w, &o, "qkv_norm_rope_bwd", 4);
}

static void write_launch(assay_trace_writer *w, const launch *l)
{
    static const char *const norm_at[] = {AT "q_layernorm", AT "k_layernorm"}, *const rope_at[] = {
                                                                                   AT "rope_q", AT "rope_k"};
    const int64_t position[T] = {4, 0, 2}, heads[3] = {T, 1, D};
    float gamma[D], dv[T * D], c[POSITIONS * HALF], s[POSITIONS * HALF];
    int64_t raw[2], norm[2];
    static head h[2];
    fill(h, gamma, dv, c, s);
    const int64_t cosine = put_f32(w, "cos", ASSAY_PHASE_FORWARD, POSITIONS, HALF, c),
                  sine = put_f32(w, "sin", ASSAY_PHASE_FORWARD, POSITIONS, HALF, s),
                  weight = put_bf16(w, "gamma", 1, (int64_t[]){D}, gamma);
    assay_trace_tensor p = tensor_of("position", ASSAY_PHASE_FORWARD, ASSAY_I64, 1, (int64_t[]){T});
    must(assay_trace_write_tensor(w, &p, position));
    for (int k = 0; k < 2; k++) {
        assay_trace_op o = op_of("rope_bwd", rope_at[k], ASSAY_PHASE_FORWARD);
        turn_back(&h[k], c, s, position, l, k == 1 && l->forward);
        norm_back(&h[k], gamma, k == 1 && l->no_mean, k == 0 && l->overwrites);
        norm[k] = put_bf16(w, k ? "dk_norm" : "dq_norm", 3, heads, h[k].norm);
        op_in(&o, "dy", put_bf16(w, k ? "dk" : "dq", 3, heads, h[k].dy));
        op_in(&o, "cos", cosine);
        op_in(&o, "sin", sine);
        op_in(&o, "position", p.id);
        op_out(&o, "dx", norm[k]);
        write_part(w, &o, "qkv_norm_rope_bwd", k);
    }
    for (int k = 0; k < 2; k++) {
        assay_trace_op o = op_of("rmsnorm_bwd", norm_at[k], ASSAY_PHASE_FORWARD);
        raw[k] = put_bf16(w, k ? "dk_raw" : "dq_raw", 3, heads, h[k].raw);
        op_in(&o, "gamma", weight);
        op_reads(&o, "dy", norm[k], l->internal);
        op_in(&o, "x", put_bf16(w, k ? "k_raw" : "q_raw", 3, heads, h[k].x));
        op_in(&o, "rstd", put_f32(w, k ? "k_rstd" : "q_rstd", ASSAY_PHASE_FORWARD, T, 1, h[k].rstd));
        op_in(&o, "dgamma_in", put_vector_f32(w, "before", D, h[k].old));
        op_out(&o, "dx", raw[k]);
        op_out(&o, "dgamma", put_vector_f32(w, "after", D, h[k].dgamma));
        o.attrs = json_pack("{s:f}", "eps", 1e-2);
        write_part(w, &o, "qkv_norm_rope_bwd", 2 + k);
    }
    write_split(w, l, h, dv, raw, norm);
}

static parity_report *judge(const launch *l)
{
    char dir[256];
    assay_trace_writer *w = open_writer(fresh_path(dir, "fused_qkv_bwd"), 0, 1, "1");
    write_launch(w, l);
    close_writer(w);
    return judge_local(dir);
}

Test(parity_fused_qkv_bwd, parts_of_one_launch_are_judged_by_what_they_read)
{
    static const launch honest[] = {{.unrounded = false},
                                    {.unrounded = true, .internal = true},
                                    {.split_internal = true},
                                    {.unrounded = true, .internal = true, .split_internal = true}};
    for (size_t i = 0; i < 4; i++)
        expect_passed(judge(&honest[i]), 7, i);
}

Test(parity_fused_qkv_bwd, what_does_not_fit_is_named)
{
    static const struct {
        launch l;
        const char *instance, *words;
    } rows[] = {
        {{.unrounded = true}, AT "q_layernorm", "dx"}, /* the records say that it read the stored gradient */
        {{.internal = true}, AT "q_layernorm", "dgamma"}, /* the records say that it did not */
        {{.forward = true}, AT "rope_k", "dx"},
        {{.forward = true, .unrounded = true, .internal = true}, AT "rope_k", "dx"},
        {{.no_mean = true}, AT "k_layernorm", "dx"},
        {{.no_mean = true, .unrounded = true, .internal = true}, AT "k_layernorm", "dx"},
        {{.overwrites = true}, AT "q_layernorm", "dgamma"},
        {{.overwrites = true, .unrounded = true, .internal = true}, AT "q_layernorm", "dgamma"},
        {{.other_value = true}, AT "qkv_split", "dqkv"},
        {{.other_value = true, .split_internal = true}, AT "qkv_split", "dqkv"},
        {{.other_dx = true},
         AT "rope_q",
         "dq of qkv_split_bwd is expected to be what rmsnorm_bwd stored in dx, or internal: found another "
         "tensor"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_named(judge(&rows[i].l), rows[i].instance, rows[i].words, i);
}
