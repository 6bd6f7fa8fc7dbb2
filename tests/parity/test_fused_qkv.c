/* Records of split, norms and rope in one launch: a norm that stayed inside is gone through, and what two parts share is one tensor and
 * one value. */
#include "tests/support/parity_fused.h"

TestSuite(parity_fused_qkv, .timeout = 60);

enum { T = 3, D = 8, HALF = 4, POSITIONS = 5, PARTS = 5 };
#define AT "decoder.layers.0.self_attention."

typedef struct launch {
    bool unrounded;   /* rope reads the norm before it is stored in bf16 */
    bool internal;    /* ... and the records say so */
    bool other_table; /* the key's record names another table of cosines */
    bool other_eps;   /* the key's norm is recorded with another eps */
    bool other_key;   /* the key is rotated by another position's angles */
} launch;

static int64_t put_table(assay_trace_writer *w, const char *name, const float *data)
{
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_FORWARD, ASSAY_F32, 2, (int64_t[]){POSITIONS, HALF});
    must(assay_trace_write_tensor(w, &t, data));
    return t.id;
}

/* A head of each token: query and key, one group. */
typedef struct head {
    float raw[T * D], inside[T * D], norm[T * D], out[T * D], rstd[T];
} head;

static void compute(head *h, const float *gamma, const float *c, const float *s, const int64_t *position,
                    bool unrounded)
{
    for (int t = 0; t < T; t++) {
        float sum = 0.0f;
        for (int j = 0; j < D; j++)
            sum = fmaf(h->raw[t * D + j], h->raw[t * D + j], sum);
        h->rstd[t] = 1.0f / sqrtf(sum / (float)D + 1e-2f);
        for (int j = 0; j < D; j++) {
            const float y = h->raw[t * D + j] * h->rstd[t] * gamma[j];
            h->norm[t * D + j] = rounded(y);
            h->inside[t * D + j] = unrounded ? y : rounded(y);
        }
        for (int j = 0; j < HALF; j++) {
            const float a = h->inside[t * D + j], b = h->inside[t * D + HALF + j];
            const float cj = c[position[t] * HALF + j], sj = s[position[t] * HALF + j];
            h->out[t * D + j] = rounded(a * cj - b * sj);
            h->out[t * D + HALF + j] = rounded(b * cj + a * sj);
        }
    }
}

static void write_launch(assay_trace_writer *w, const launch *l)
{
    static const char *const norm_at[] = {AT "q_layernorm", AT "k_layernorm"}, *const rope_at[] = {
                                                                                   AT "rope_q", AT "rope_k"};
    const int64_t position[T] = {4, 0, 2}, other[T] = {3, 1, 2}, heads[3] = {T, 1, D};
    float qkv[T * 3 * D], gamma[D], c[POSITIONS * HALF], s[POSITIONS * HALF], v[T * D];
    static head h[2];
    for (int i = 0; i < T * 3 * D; i++) {
        const int t = i / (3 * D), j = i % D, which = i / D % 3;
        qkv[i] = rounded(sinf(0.7f * (float)i) + 0.3f);
        (which == 2 ? v : h[which].raw)[t * D + j] = qkv[i];
    }
    for (int j = 0; j < D; j++)
        gamma[j] = rounded(0.5f + 0.07f * (float)j);
    for (int i = 0; i < POSITIONS * HALF; i++) {
        c[i] = cosf(0.37f * (float)i);
        s[i] = sinf(0.37f * (float)i);
    }
    compute(&h[0], gamma, c, s, position, l->unrounded);
    compute(&h[1], gamma, c, s, l->other_key ? other : position, l->unrounded);
    assay_trace_op split = op_of("qkv_split_fwd", AT "qkv_split", ASSAY_PHASE_FORWARD);
    const int64_t table[2] = {put_table(w, "cos", c), put_table(w, "sin", s)},
                  raw[2] = {put_bf16(w, "q_raw", 3, heads, h[0].raw),
                            put_bf16(w, "k_raw", 3, heads, h[1].raw)},
                  weight = put_bf16(w, "gamma", 1, (int64_t[]){D}, gamma);
    int64_t norm[2];
    assay_trace_tensor p = tensor_of("position", ASSAY_PHASE_FORWARD, ASSAY_I64, 1, (int64_t[]){T});
    must(assay_trace_write_tensor(w, &p, position));
    op_in(&split, "qkv", put_bf16(w, "qkv", 2, (int64_t[]){T, 3 * D}, qkv));
    op_out(&split, "q", raw[0]);
    op_out(&split, "k", raw[1]);
    op_out(&split, "v", put_bf16(w, "v", 3, heads, v));
    split.attrs = json_pack("{s:i, s:i, s:i}", "heads", 1, "groups", 1, "head_dim", D);
    write_part(w, &split, "qkv_norm_rope_fwd", 0);
    for (int k = 0; k < 2; k++) {
        assay_trace_op o = op_of("rmsnorm_fwd", norm_at[k], ASSAY_PHASE_FORWARD);
        norm[k] = put_bf16(w, k ? "k_norm" : "q_norm", 3, heads, h[k].norm);
        op_in(&o, "gamma", weight);
        op_in(&o, "x", raw[k]);
        op_out(&o, "y", norm[k]);
        op_out(&o, "rstd", put_vector_f32(w, k ? "k_rstd" : "q_rstd", T, h[k].rstd));
        o.attrs = json_pack("{s:f}", "eps", k && l->other_eps ? 2e-2 : 1e-2);
        write_part(w, &o, "qkv_norm_rope_fwd", 1 + k);
    }
    for (int k = 0; k < 2; k++) {
        assay_trace_op o = op_of("rope_fwd", rope_at[k], ASSAY_PHASE_FORWARD);
        op_reads(&o, "x", norm[k], l->internal);
        op_in(&o, "cos", k && l->other_table ? table[1] : table[0]);
        op_in(&o, "sin", table[1]);
        op_in(&o, "position", p.id);
        op_out(&o, "y", put_bf16(w, k ? "k" : "q", 3, heads, h[k].out));
        write_part(w, &o, "qkv_norm_rope_fwd", 3 + k);
    }
}

static parity_report *judge(const launch *l)
{
    char dir[256];
    assay_trace_writer *w = open_writer(fresh_path(dir, "fused_qkv"), 0, 1, "1");
    write_launch(w, l);
    close_writer(w);
    return judge_local(dir);
}

Test(parity_fused_qkv, parts_of_one_launch_are_judged_by_what_they_read)
{
    static const launch honest[] = {{.unrounded = false}, {.unrounded = true, .internal = true}};
    for (size_t i = 0; i < 2; i++)
        expect_passed(judge(&honest[i]), 9, i);
}

Test(parity_fused_qkv, what_does_not_fit_is_named)
{
    static const struct {
        launch l;
        const char *instance, *words;
    } rows[] = {
        {{.unrounded = true}, AT "rope_q", "y"}, /* the records say that it read the stored norm */
        {{.internal = true}, AT "rope_q", "y"},  /* the records say that it did not */
        {{.other_key = true}, AT "rope_k", "y"},
        {{.other_key = true, .unrounded = true, .internal = true}, AT "rope_k", "y"},
        {{.other_table = true},
         AT "qkv_split",
         "cos is expected to be one tensor for parts 3 and 4: found two"},
        {{.other_eps = true}, AT "qkv_split", "eps is expected to be one value for parts 1 and 2: found two"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_named(judge(&rows[i].l), rows[i].instance, rows[i].words, i);
}
