/* Laws of what operations tell a diff: attributes that differ are named before what follows from them, and what is read in place
 * of an output is compared. */
#include "tests/support/parity.h"

/* --- attributes of operations --------------------------------------------------------------------------------- */

/* One run: "x" and the operation that makes "y" of it, with attributes; then "z". */
typedef struct attributed {
    const char *engine, *op, *attrs; /* attrs: JSON */
    float x, y, z;
} attributed;

static void write_attributed(char dir[256], const attributed *r)
{
    const int64_t shape[1] = {1};
    const float values[3] = {r->x, r->y, r->z};
    static const char *const names[3] = {"x", "y", "z"};
    int64_t ids[3];
    assay_trace_writer *w;
    json_t *header = json_pack("{s:s,s:s,s:s}", "engine", r->engine, "layout", "1", "precision", "fp32");
    must(assay_trace_writer_open(&w, fresh_path(dir, "t"), 0, 1, header, false));
    json_decref(header);
    assay_trace_op o = op_of(r->op, "block", ASSAY_PHASE_FORWARD);
    o.attrs = json_loads(r->attrs, 0, NULL);
    cr_assert_not_null(o.attrs);
    for (int i = 0; i < 3; i++) {
        assay_trace_tensor t = tensor_of(names[i], ASSAY_PHASE_FORWARD, ASSAY_F32, 1, shape);
        must(assay_trace_write_tensor(w, &t, &values[i]));
        ids[i] = t.id;
    }
    op_in(&o, "x", ids[0]);
    op_out(&o, "y", ids[1]);
    must(assay_trace_write_op(w, &o));
    must(assay_trace_write_op(w, &o)); /* it runs twice */
    json_decref(o.attrs);
    close_writer(w);
}

static int attributed_text(const attributed *a, const attributed *b, double tolerance, char text[8192])
{
    char left[256], right[256];
    write_attributed(left, a);
    write_attributed(right, b);
    const int code = diff_text(left, right, tolerance, text);
    remove_path(right);
    remove_path(left);
    return code;
}

/* The attribute is the cause of what its operation makes, and of nothing that differs before it. */
Test(parity_diff_operations, an_attribute_that_differs_is_named_before_its_values)
{
    static const char sentence[] =
        "\nWRONG: adamw of block (phase forward, step 0): attribute lr is 0.01 in the "
        "first run, 0.02 in the second; ";
    const attributed a = {"sim", "adamw", "{\"lr\": 0.01, \"beta1\": 0.9}", 1, 2, 3};
    attributed b = {"sim", "adamw", "{\"lr\": 0.02, \"beta1\": 0.9}", 1, 2.5f, 3.5f};
    char text[8192];
    cr_expect_eq(attributed_text(&a, &b, -1.0, text), 1);
    cr_expect(strstr(text, sentence) && strstr(text, "the first tensor that differs is y ("), "%s", text);
    cr_expect(strstr(text,
                     "first attribute that differs: adamw of block (phase forward, step 0): attribute lr is "
                     "0.01 in the first run, 0.02 in the second (and of 1 more operations)\n"),
              "%s", text);
    b.x = 7.0f; /* what it reads differs: no cause, but said */
    cr_expect_eq(attributed_text(&a, &b, -1.0, text), 1);
    cr_expect(strstr(text, "\nWRONG: x (") && strstr(text, "\nfirst attribute that differs: "), "%s", text);
    b = (attributed){"sim", "adamw", "{\"lr\": 0.02, \"beta1\": 0.9}", 1, 2, 3}; /* no value shows it */
    cr_expect_eq(attributed_text(&a, &b, -1.0, text), 1);
    cr_expect(strstr(text, sentence) && strstr(text, "3 tensors that both runs hold agree"), "%s", text);
    b.attrs = "{\"lr\": 0.01, \"beta1\": 0.9, \"eps\": 1e-8}";
    cr_expect_eq(attributed_text(&a, &b, -1.0, text), 1);
    cr_expect(strstr(text, "attribute eps is none in the first run, 1e-08 in the second"), "%s", text);
    cr_expect_eq(attributed_text(&b, &a, -1.0, text), 1);
    cr_expect(strstr(text, "attribute eps is 1e-08 in the first run, none in the second"), "%s", text);
}

/* What follows from the data, the layout, or how a sum is kept; and the last bits of what another engine derives. */
Test(parity_diff_operations, attributes_that_may_differ_are_no_difference)
{
    static const struct {
        const char *op, *a, *b, *other_engine;
        double tolerance;
        int code;
    } rows[] = {
        {"adamw", "{\"lr\": 0.01}", "{\"lr\": 0.010000000000000002}", "ref", -1.0, 0},
        {"adamw", "{\"lr\": 0.01}", "{\"lr\": 0.010000000000000002}", "sim", -1.0, 1},
        {"adamw", "{\"lr\": 0.01}", "{\"lr\": 0.0100001}", "ref", -1.0, 1},
        {"adamw", "{\"lr\": 0.01}", "{\"lr\": 0.0100001}", "sim", 1e-3, 0},
        {"adamw", "{\"lr\": 1.0}", "{\"lr\": 1}", "sim", -1.0, 0},
        {"adamw", "{\"step\": 1}", "{\"step\": 2}", "sim", -1.0, 1},
        {"attention_fwd", "{\"scale\": 0.5}", "{\"scale\": 0.25}", "ref", -1.0, 1},
        {"attention_fwd", "{\"heads\": 2}", "{\"heads\": 4}", "sim", -1.0, 0},
        {"attention_fwd", "{\"window\": 0}", "{}", "sim", -1.0, 0},
        {"attention_fwd", "{\"window\": 8}", "{}", "sim", -1.0, 1},
        {"attention_fwd", "{\"p_dtype\": \"F32\"}", "{\"p_dtype\": \"BF16\"}", "sim", -1.0, 1},
        {"attention_fwd", "{\"p_dtype\": \"F32\"}", "{\"p_dtype\": \"BF16\"}", "sim", 1e-3, 0},
        {"attention_fwd", "{\"dropout_p\": 0.1}", "{}", "sim", -1.0, 1},
        {"dropout_fwd", "{\"seed\": 1}", "{\"seed\": 2}", "sim", -1.0, 1},
        {"dropout_fwd", "{\"seed\": 1}", "{\"seed\": 2}", "ref", -1.0, 0},
        {"cross_entropy_bwd", "{\"scale\": 0.5}", "{\"scale\": 0.25}", "sim", -1.0, 1},
        {"cross_entropy_bwd", "{\"scale\": 0.5}", "{\"scale\": 0.25}", "ref", -1.0, 0},
        {"linear_bwd_weight", "{\"accumulate\": true}", "{\"accumulate\": false}", "sim", -1.0, 0},
        {"router_fwd", "{\"norm_topk_prob\": true}", "{\"norm_topk_prob\": false}", "ref", -1.0, 1},
        {"all_to_all", "{\"counts\": [1, 2]}", "{\"counts\": [2, 1]}", "sim", -1.0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const attributed a = {"sim", rows[i].op, rows[i].a, 1, 2, 3};
        const attributed b = {rows[i].other_engine, rows[i].op, rows[i].b, 1, 2, 3};
        char text[8192];
        cr_expect_eq(attributed_text(&a, &b, rows[i].tolerance, text), rows[i].code, "row %zu: %s", i, text);
    }
}

/* --- what stands behind an output under its name -------------------------------------------------------------- */

/* The operation makes y; `later`: what is recorded as y behind it (0: nothing). */
static void write_later(char dir[256], const char *engine, float later)
{
    const int64_t shape[1] = {1};
    const float values[3] = {1, 2, later};
    assay_trace_writer *w;
    json_t *header = json_pack("{s:s,s:s,s:s}", "engine", engine, "layout", "1", "precision", "fp32");
    must(assay_trace_writer_open(&w, fresh_path(dir, "t"), 0, 1, header, false));
    json_decref(header);
    assay_trace_op o = op_of("cast", "block", ASSAY_PHASE_FORWARD);
    for (int i = 0; i < (later != 0.0f ? 3 : 2); i++) {
        assay_trace_tensor t = tensor_of(i == 0 ? "x" : "y", ASSAY_PHASE_FORWARD, ASSAY_F32, 1, shape);
        must(assay_trace_write_tensor(w, &t, &values[i]));
        if (i == 0)
            op_in(&o, "x", t.id);
        if (i == 1) {
            op_out(&o, "y", t.id);
            must(assay_trace_write_op(w, &o));
        }
    }
    close_writer(w);
}

Test(parity_diff_operations, what_is_read_in_place_of_an_output_is_compared)
{
    static const struct {
        const char *engine;
        float a, b;
        int code;
    } rows[] = {
        {"torch", 0, 0, 0}, {"torch", 0, 2, 0}, {"torch", 0, 3, 1}, {"torch", 3, 0, 1},
        {"torch", 3, 3, 0}, {"torch", 3, 4, 1}, {"sim", 0, 3, 0} /* our engines write a tensor once more, and say so by an operation */};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char a[256], b[256], text[8192];
        write_later(a, rows[i].engine, rows[i].a);
        write_later(b, rows[i].engine, rows[i].b);
        cr_expect_eq(diff_text(a, b, -1.0, text), rows[i].code, "row %zu: %s", i, text);
        cr_expect(rows[i].code == 0 || (strstr(text, "\nWRONG: y (") != NULL &&
                                        strstr(text, "it is changed before it is read") != NULL),
                  "row %zu: %s", i, text);
        remove_path(b);
        remove_path(a);
    }
}
