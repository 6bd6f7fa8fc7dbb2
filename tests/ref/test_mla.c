/* Operations of multi-latent attention: golden files, laws, central differences, and bounds that honest single-precision kernels keep and
 * planted mistakes do not. */
#include "ref/ops.h"
#include "tests/support/ref_bounds.h"

TestSuite(ref_mla, .timeout = 60);

/* --- golden files ------------------------------------------------------------------------------------------- */
typedef struct golden_sizes {
    int64_t t, heads, nope, value, rotary, latent;
} golden_sizes;

static void down_split(const assay_tensorfile *f, const golden_sizes *z, double *pos, const double *dpos)
{
    double *combined = golden_real(f, "kv_combined"), *dcompressed = golden_real(f, "dkv_compressed");
    double *compressed = new_real(z->t * z->latent), *back = new_real(z->t * (z->latent + z->rotary));
    ref_kv_down_split_fwd(compressed, pos, combined, z->t, z->latent, z->rotary);
    ref_kv_down_split_bwd(back, dcompressed, dpos, z->t, z->latent, z->rotary);
    expect_golden(f, "kv_compressed", compressed);
    expect_golden(f, "dkv_combined", back);
    free(combined), free(dcompressed), free(compressed), free(back);
}

static void golden(const char *name)
{
    assay_tensorfile *f = golden_open(name);
    const golden_sizes z = {golden_dim(f, "q", 0),
                            golden_dim(f, "q", 1),
                            (int64_t)golden_attr(f, "qk_head_dim"),
                            (int64_t)golden_attr(f, "v_head_dim"),
                            2 * golden_dim(f, "cos", 1),
                            (int64_t)golden_attr(f, "kv_lora_rank")};
    const int64_t dim = z.nope + z.rotary, rows = z.t * z.heads;
    double *q = golden_real(f, "q"), *dq = golden_real(f, "dq_out"), *kv = golden_real(f, "kv"),
           *dk = golden_real(f, "dk"), *dv = golden_real(f, "dv"), *c = golden_real(f, "cos"),
           *s = golden_real(f, "sin");
    int64_t *position = golden_int(f, "position");
    double *y = new_real(rows * dim), *dx = new_real(rows * dim), *k = new_real(rows * dim),
           *v = new_real(rows * z.value), *dkv = new_real(rows * (z.nope + z.value)),
           *pos = new_real(z.t * z.rotary), *dpos = new_real(z.t * z.rotary);
    ref_mla_rope_q_fwd(y, q, c, s, position, z.rotary, z.t, z.heads, dim);
    ref_mla_rope_q_bwd(dx, dq, c, s, position, z.rotary, z.t, z.heads, dim);
    ref_mla_rope_kv_bwd(dkv, dpos, dk, dv, c, s, position, z.rotary, z.t, z.heads, z.nope, z.value);
    down_split(f, &z, pos, dpos);
    ref_mla_rope_kv_fwd(k, v, kv, pos, c, s, position, z.rotary, z.t, z.heads, z.nope, z.value);
    expect_golden(f, "q_out", y);
    expect_golden(f, "dq", dx);
    expect_golden(f, "k", k);
    expect_golden(f, "v", v);
    expect_golden(f, "dkv", dkv);
    free(q), free(dq), free(kv), free(dk), free(dv), free(c), free(s), free(position), free(y), free(dx),
        free(k), free(v), free(dkv), free(pos), free(dpos);
    assay_tensorfile_close(f);
}

Test(ref_mla, golden_files)
{
    golden("mla_rope");
    golden("mla_rope_narrow");
    golden("mla_rope_no_nope");
}

/* --- laws and central differences --------------------------------------------------------------------------- */
enum { T = 5, A = 3, N = 4, H = 3, V = 2, P = 7, DIM = N + 2 * H };

typedef struct tables {
    double c[P * H], s[P * H];
    int64_t position[T];
} tables;

static tables turns(void)
{
    tables m = {.position = {6, 0, 3, 3, 1}};
    const ref_rope_desc desc = {
        .type = ASSAY_ROPE_DEFAULT, .rotary_dim = 2 * H, .base = 100.0, .factor = 1.0};
    ref_rope_table(m.c, m.s, &desc, P);
    return m;
}

/* A rope of halves on columns that were taken apart is the same rotation. */
Test(ref_mla, is_rope_of_columns_taken_apart)
{
    test_rng r = {3};
    const tables m = turns();
    double *x = random_normal(&r, (int64_t)T * A * 2 * H), apart[T * A * 2 * H], want[T * A * 2 * H],
           found[T * A * 2 * H];
    for (int i = 0; i < T * A; i++)
        for (int j = 0; j < 2 * H; j++)
            apart[i * 2 * H + j % 2 * H + j / 2] = x[i * 2 * H + j];
    ref_rope_fwd(want, apart, m.c, m.s, m.position, 2 * H, T, A, 2 * H);
    ref_mla_rope_q_fwd(found, x, m.c, m.s, m.position, 2 * H, T, A, 2 * H);
    cr_expect(memcmp(want, found, sizeof want) == 0);
    double back[T * A * 2 * H];
    ref_mla_rope_q_bwd(back, found, m.c, m.s, m.position, 2 * H, T, A, 2 * H);
    cr_expect(relative_error(back, x, (int64_t)T * A * 2 * H) < 1e-14, "a rotation back is its inverse");
    free(x);
}

Test(ref_mla, the_split_inverts)
{
    test_rng r = {4};
    double *x = random_normal(&r, 5 * 7), compressed[5 * 4], pos[5 * 3], back[5 * 7];
    ref_kv_down_split_fwd(compressed, pos, x, 5, 4, 3);
    ref_kv_down_split_bwd(back, compressed, pos, 5, 4, 3);
    cr_expect(memcmp(x, back, sizeof back) == 0);
    cr_expect(compressed[4] == x[7] && pos[0] == x[4] && pos[3] == x[11]);
    free(x);
}

typedef struct kv_case {
    tables m;
    double *kv, *pos, *dk, *dv, k[T * A * DIM], v[T * A * V];
} kv_case;

static double kv_objective(void *context)
{
    kv_case *c = context;
    ref_mla_rope_kv_fwd(c->k, c->v, c->kv, c->pos, c->m.c, c->m.s, c->m.position, 2 * H, T, A, N, V);
    return dot(c->k, c->dk, (int64_t)T * A * DIM) + dot(c->v, c->dv, (int64_t)T * A * V);
}

static double q_objective(void *context)
{
    kv_case *c = context;
    ref_mla_rope_q_fwd(c->k, c->kv, c->m.c, c->m.s, c->m.position, 2 * H, T, A, DIM);
    return dot(c->k, c->dk, (int64_t)T * A * DIM);
}

Test(ref_mla, backward_against_central_differences)
{
    test_rng r = {5};
    kv_case c = {.m = turns(),
                 .kv = random_normal(&r, (int64_t)T * A * (N + V)),
                 .pos = random_normal(&r, (int64_t)T * 2 * H),
                 .dk = random_normal(&r, (int64_t)T * A * DIM),
                 .dv = random_normal(&r, (int64_t)T * A * V)};
    double dkv[T * A * (N + V)], dpos[T * 2 * H], dq[T * A * DIM];
    ref_mla_rope_kv_bwd(dkv, dpos, c.dk, c.dv, c.m.c, c.m.s, c.m.position, 2 * H, T, A, N, V);
    expect_gradient("dkv", kv_objective, &c, c.kv, dkv, (int64_t)T * A * (N + V));
    expect_gradient("dk_pos_emb", kv_objective, &c, c.pos, dpos, (int64_t)T * 2 * H);
    free(c.kv);
    c.kv = random_normal(&r, (int64_t)T * A * DIM);
    ref_mla_rope_q_bwd(dq, c.dk, c.m.c, c.m.s, c.m.position, 2 * H, T, A, DIM);
    expect_gradient("dx", q_objective, &c, c.kv, dq, (int64_t)T * A * DIM);
    free(c.kv), free(c.pos), free(c.dk), free(c.dv);
}

/* --- bounds ------------------------------------------------------------------------------------------------- */
typedef enum {
    HONEST,
    FIRST_HEAD_ALONE, /* the sum has one term */
    LAST_HEAD_MISSING,
    PAIRS_AS_HALVES, /* columns are not taken apart */
    OTHER_WAY,       /* the sign of sin */
    STORED_SUMS,     /* every partial sum in the stored type */
    OTHER_POSITION,
    N_MISTAKES
} mistake;

/* One call: sizes, data, and what is wrong in it. */
typedef struct form {
    int heads;
    assay_dtype dtype;
    int mode;
    mistake wrong;
    bool products; /* stored, and declared so */
} form;

enum { HALF = 4, ROTARY = 2 * HALF, NOPE = 3, VALUE = 5, D = NOPE + ROTARY, POSITIONS = 9, MOST = 40 };

static float stored(const form *f, float x)
{
    return f->products ? (float)ref_round((double)x, f->dtype) : x;
}

/* a, b -> out, of table entry `at`. */
static void turn(const form *f, float out[2], float a, float b, const double *c, const double *s, int64_t at,
                 bool back)
{
    const float cj = (float)c[at], sj = (back != (f->wrong == OTHER_WAY) ? -1.0f : 1.0f) * (float)s[at];
    out[0] = f->products ? stored(f, a * cj) - stored(f, b * sj) : fmaf(a, cj, -(b * sj));
    out[1] = stored(f, b * cj) + stored(f, a * sj);
}

static int64_t entry_of(const form *f, int64_t position)
{
    return (f->wrong == OTHER_POSITION ? position / 2 : position) * HALF;
}

/* ROTARY columns x -> y. */
static void turned(const form *f, double *y, const double *x, const double *c, const double *s,
                   int64_t position, bool back)
{
    float out[2];
    for (int j = 0; j < HALF; j++) {
        const int apart[2] = {f->wrong == PAIRS_AS_HALVES ? j : 2 * j,
                              f->wrong == PAIRS_AS_HALVES ? HALF + j : 2 * j + 1};
        const int from[2] = {back ? j : apart[0], back ? HALF + j : apart[1]},
                  to[2] = {back ? apart[0] : j, back ? apart[1] : HALF + j};
        turn(f, out, (float)x[from[0]], (float)x[from[1]], c, s, entry_of(f, position) + j, back);
        y[to[0]] = (double)out[0];
        y[to[1]] = (double)out[1];
    }
}

static double *drawn(trial *t, test_rng *r, const form *f, const char *slot, int64_t rows, int64_t columns)
{
    return trial_in(t, slot, f->dtype, mode_data(r, f->mode, rows * columns, columns, f->dtype, 1.0),
                    SHAPE(rows, columns));
}

static trial begin(const char *op, const form *f, const assay_arith *arith, test_rng *r, const double **c,
                   const double **s, int64_t **position)
{
    trial t = trial_new(op, *arith);
    const ref_rope_desc desc = {
        .type = ASSAY_ROPE_DEFAULT, .rotary_dim = ROTARY, .base = 100.0, .factor = 1.0};
    double *cosines = new_real(POSITIONS * HALF), *sines = new_real(POSITIONS * HALF);
    if (f->products)
        t.arith.rounding |= ASSAY_ROUND_PRODUCTS;
    ref_rope_table(cosines, sines, &desc, POSITIONS);
    for (int i = 0; i < POSITIONS * HALF; i++) {
        cosines[i] = (double)(float)cosines[i];
        sines[i] = (double)(float)sines[i];
    }
    *c = trial_in(&t, "cos", ASSAY_F32, cosines, SHAPE(POSITIONS, HALF));
    *s = trial_in(&t, "sin", ASSAY_F32, sines, SHAPE(POSITIONS, HALF));
    *position = trial_in_int(&t, "position", new_int(T), SHAPE(T));
    for (int i = 0; i < T; i++)
        (*position)[i] = 1 + rng_below(r, POSITIONS - 1);
    json_object_update_new(t.attrs, json_pack("{s:i,s:i,s:i,s:i}", "heads", f->heads, "head_dim", D,
                                              "qk_head_dim", NOPE, "v_head_dim", VALUE));
    return t;
}

static trial q_trial(const form *f, bool back, test_rng *r)
{
    const double *c, *s;
    int64_t *position;
    const assay_arith plain = assay_arith_elementwise();
    trial t = begin(back ? "mla_rope_q_bwd" : "mla_rope_q_fwd", f, &plain, r, &c, &s, &position);
    const double *x = drawn(&t, r, f, back ? "dy" : "q", (int64_t)T * f->heads, D);
    double *y = trial_out(&t, back ? "dx" : "y", f->dtype, SHAPE((int64_t)T * f->heads, D));
    for (int64_t i = 0; i < (int64_t)T * f->heads; i++) {
        memcpy(y + i * D, x + i * D, NOPE * sizeof *y);
        turned(f, y + i * D + NOPE, x + i * D + NOPE, c, s, position[i / f->heads], back);
    }
    return t;
}

static trial kv_trial(const form *f, test_rng *r)
{
    const double *c, *s;
    int64_t *position;
    const assay_arith plain = assay_arith_elementwise();
    const int64_t rows = (int64_t)T * f->heads;
    trial t = begin("mla_rope_kv_fwd", f, &plain, r, &c, &s, &position);
    const double *kv = drawn(&t, r, f, "kv", rows, NOPE + VALUE),
                 *pos = drawn(&t, r, f, "k_pos_emb", T, ROTARY);
    double *k = trial_out(&t, "k", f->dtype, SHAPE(rows, D)),
           *v = trial_out(&t, "v", f->dtype, SHAPE(rows, VALUE));
    for (int64_t i = 0; i < rows; i++) {
        memcpy(k + i * D, kv + i * (NOPE + VALUE), NOPE * sizeof *k);
        memcpy(v + i * VALUE, kv + i * (NOPE + VALUE) + NOPE, VALUE * sizeof *v);
        turned(f, k + i * D + NOPE, pos + i / f->heads * ROTARY, c, s, position[i / f->heads], false);
    }
    return t;
}

/* The sum over the heads of column j. */
static double heads_sum(const form *f, const double *dk, const assay_arith *arith, test_rng *r)
{
    float terms[MOST], sum = 0.0f;
    const int n = f->wrong == FIRST_HEAD_ALONE ? 1 : f->heads - (f->wrong == LAST_HEAD_MISSING);
    for (int a = 0; a < n; a++)
        terms[a] = (float)dk[a * D];
    if (f->wrong != STORED_SUMS)
        return (double)emulate_dot(NULL, terms, n, arith, r);
    for (int a = 0; a < n; a++)
        sum = (float)ref_round((double)(sum + terms[a]), f->dtype);
    return (double)sum;
}

static trial kv_back_trial(const form *f, const assay_arith *arith, test_rng *r)
{
    const double *c, *s;
    int64_t *position;
    const int64_t rows = (int64_t)T * f->heads;
    trial t = begin("mla_rope_kv_bwd", f, arith, r, &c, &s, &position);
    const double *dk = drawn(&t, r, f, "dk", rows, D), *dv = drawn(&t, r, f, "dv", rows, VALUE);
    double *dkv = trial_out(&t, "dkv", f->dtype, SHAPE(rows, NOPE + VALUE)),
           *dpos = trial_out(&t, "dk_pos_emb", f->dtype, SHAPE(T, ROTARY));
    for (int64_t i = 0; i < rows; i++) {
        memcpy(dkv + i * (NOPE + VALUE), dk + i * D, NOPE * sizeof *dkv);
        memcpy(dkv + i * (NOPE + VALUE) + NOPE, dv + i * VALUE, VALUE * sizeof *dkv);
    }
    for (int i = 0; i < T; i++) {
        double sum[ROTARY];
        for (int j = 0; j < ROTARY; j++)
            sum[j] = heads_sum(f, dk + (int64_t)i * f->heads * D + NOPE + j, arith, r);
        turned(f, dpos + (int64_t)i * ROTARY, sum, c, s, position[i], true);
    }
    return t;
}

static const int head_counts[] = {1, 3, MOST};
static const assay_dtype dtypes[] = {ASSAY_F32, ASSAY_BF16};

static void passes(trial t, const char *what)
{
    trial_expect_pass(&t, what);
    trial_free(&t);
}

Test(ref_mla, honest_kernels_are_within_their_bounds)
{
    test_rng r = {6};
    for (int n = 0; n < 3; n++)
        for (int d = 0; d < 2; d++)
            for (int mode = 0; mode < N_MODES; mode++)
                for (int products = 0; products < 2; products++) {
                    const form f = {head_counts[n], dtypes[d], mode, HONEST, products != 0};
                    passes(q_trial(&f, false, &r), "q");
                    passes(q_trial(&f, true, &r), "dq");
                    passes(kv_trial(&f, &r), "kv");
                    for (int a = 0; a < N_ARITHS; a++) {
                        const assay_arith arith = arith_case(a);
                        passes(kv_back_trial(&f, &arith, &r), "dkv");
                    }
                }
}

static void fails(trial t, const form *f)
{
    trial_store(&t);
    trial_judge(&t);
    cr_expect(t.n_bad > 0, "%s: mistake %d of %d heads in %s passes", t.op, (int)f->wrong, f->heads,
              assay_dtype_name(f->dtype));
    trial_free(&t);
}

Test(ref_mla, planted_mistakes_are_not)
{
    test_rng r = {7};
    const assay_arith chain = arith_of(ASSAY_ORDER_SEQUENTIAL);
    for (int d = 0; d < 2; d++)
        for (int wrong = HONEST + 1; wrong < N_MISTAKES; wrong++) {
            const form f = {3, dtypes[d], MODE_GAUSSIAN, (mistake)wrong, false},
                       many = {MOST, dtypes[d], MODE_POSITIVE, (mistake)wrong, false};
            if (wrong == STORED_SUMS && d == 0)
                continue; /* F32 is what sums are made in */
            fails(kv_back_trial(&many, &chain, &r), &many);
            if (wrong == FIRST_HEAD_ALONE || wrong == LAST_HEAD_MISSING || wrong == STORED_SUMS)
                continue; /* no sum */
            fails(q_trial(&f, false, &r), &f);
            fails(q_trial(&f, true, &r), &f);
            fails(kv_trial(&f, &r), &f);
        }
}

/* Products that are stored and not declared so. */
Test(ref_mla, an_undeclared_rounding_fails)
{
    test_rng r = {8};
    const form f = {3, ASSAY_BF16, MODE_GAUSSIAN, HONEST, true};
    const assay_arith chain = arith_of(ASSAY_ORDER_SEQUENTIAL);
    trial all[] = {q_trial(&f, false, &r), q_trial(&f, true, &r), kv_trial(&f, &r),
                   kv_back_trial(&f, &chain, &r)};
    for (int i = 0; i < 4; i++) {
        all[i].arith.rounding = 0;
        fails(all[i], &f);
    }
}

/* --- refusals of a replay ----------------------------------------------------------------------------------- */
Test(ref_mla, hostile_calls_are_refused)
{
    test_rng r = {9};
    const form f = {3, ASSAY_F32, MODE_GAUSSIAN, HONEST, false};
    const assay_arith chain = arith_of(ASSAY_ORDER_SEQUENTIAL);
    const assay_declaration declared = assay_declaration_make(chain);
    for (int i = 0; i < 5; i++) {
        trial t = i == 1 ? q_trial(&f, false, &r) : kv_back_trial(&f, &chain, &r);
        static const char *const words[] = {"position", "frequencies", "heads", "dk", "v_head_dim"};
        if (i == 0)
            t.in[2].ivalue[1] = POSITIONS;
        if (i == 1)
            json_object_set_new(t.attrs, "head_dim", json_integer(ROTARY - 1));
        if (i == 2)
            json_object_set_new(t.attrs, "heads", json_integer(0));
        if (i == 3)
            json_object_set_new(t.attrs, "qk_head_dim", json_integer(NOPE + 1));
        if (i == 4)
            json_object_del(t.attrs, "v_head_dim");
        cr_expect(ref_replay(t.op, t.attrs, &declared, t.in, t.n_in, t.out, t.n_out, &t.result) != ASSAY_OK,
                  "call %d was taken", i);
        cr_expect_not_null(strstr(assay_error_message(), words[i]), "%s", assay_error_message());
        trial_free(&t);
    }
}
