/* Documents packed in rows: against Hugging Face, against the same documents in rows of their own, in every layout. */
#include "core/files/documents.h"
#include "core/files/tensorwriter.h"
#include "tests/support/ref_golden.h"

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

/* --- Hugging Face ------------------------------------------------------------------------------------------- */

static void open_packed(model_case *c, const char *model)
{
    char batch[ASSAY_PATH];
    snprintf(batch, sizeof batch, "../../packed/%s/batch.safetensors", model);
    open_golden(c, model, batch);
    cr_assert_not_null(c->batches.position_ids);
}

static void check_golden(const char *model)
{
    static const char *const layouts[] = {"1", "tp2,sp", "pp2,dp2", "cp2", "cp3,p2p", "cp2,a2a"};
    char path[ASSAY_PATH], golden[ASSAY_PATH];
    model_case c;
    assay_tensorfile *f;
    open_packed(&c, model);
    snprintf(golden, sizeof golden, "../../packed/%s/golden.safetensors", model);
    require_ok(assay_tensorfile_open(&f, golden_path(path, model, golden)), model);
    for (int i = 0; i < COUNT(layouts); i++) {
        ref_run_result r;
        double worst = 0.0;
        set_layout(&c, layouts[i]);
        require_ok(ref_run(&c.run, c.weights, &r), layouts[i]);
        const ref_named_tensor *logits = ref_result_find(&r, "logits", "logits", 0);
        cr_assert_not_null(logits);
        const double el = compare_golden(f, "logits", logits->data, named_count(logits), 1e-10);
        const double eloss = compare_golden(f, "loss", r.loss, 1, 1e-10);
        const int64_t grads = compare_parts(&c, &r, f, "grad", 0, 1e-10, &worst);
        cr_expect_eq(grads + 2, assay_tensorfile_count(f));
        if (getenv("ASSAY_TEST_VERBOSE"))
            fprintf(stderr, "%-10s %-16s logits %.1e loss %.1e gradients %.1e\n", model, layouts[i], el,
                    eloss, worst);
        ref_run_result_free(&r);
    }
    assay_tensorfile_close(f);
    close_case(&c);
}

Test(ref_packed, golden_llama)
{
    check_golden("llama");
}
Test(ref_packed, golden_qwen2)
{
    check_golden("qwen2");
}
Test(ref_packed, golden_qwen2_moe)
{
    check_golden("qwen2_moe");
}

/* Nothing of it would be seen if documents were one row: the golden is far away then. */
Test(ref_packed, golden_tells_documents_from_a_row)
{
    model_case c;
    ref_run_result packed, row;
    open_packed(&c, "llama");
    require_ok(ref_run(&c.run, c.weights, &packed), "packed");
    free(c.batches.position_ids);
    c.batches.position_ids = NULL;
    require_ok(ref_run(&c.run, c.weights, &row), "row");
    cr_expect_gt(fabs(packed.loss[0] - row.loss[0]), 0.01 * row.loss[0]);
    ref_run_result_free(&packed);
    ref_run_result_free(&row);
    close_case(&c);
}

/* --- rows of their own -------------------------------------------------------------------------------------- */

/* Windows shorter than documents, q/k norm, groups; a dense and a MoE layer. */
static const char *const windowed =
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":24,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,"
    "\"add_qkv_bias\":true,\"qk_layernorm\":true,\"init_method_std\":0.3,\"window\":[0,4,2],"
    "\"layer_is_moe\":[false,true,true],\"num_moe_experts\":4,\"moe_router_topk\":2,"
    "\"moe_ffn_hidden_size\":10}";

/* Rows of drawn documents; the first token of one has no label. */
static void pack(model_case *c, int64_t multiple)
{
    assay_batches *b = &c->batches;
    const int64_t rows = b->steps * b->microbatches * b->b;
    b->position_ids = calloc((size_t)(rows * b->s), sizeof *b->position_ids);
    for (int64_t row = 0; row < rows; row++)
        assay_documents_draw(77, row, b->s, multiple, b->position_ids + row * b->s);
    for (int64_t i = 0; i < rows * b->s; i++)
        if (b->position_ids[i] == 0)
            b->labels[i] = ASSAY_IGNORE_INDEX;
}

/* A batch of one microbatch with a row for every document of `b`, behind it tokens that nobody asks for. */
static assay_batches unpacked(const assay_batches *b)
{
    const int64_t tokens = b->b * b->s;
    assay_batches out = {.steps = 1, .microbatches = 1, .s = b->s};
    for (int64_t i = 0; i < tokens; i++)
        out.b += b->position_ids[i] == 0;
    out.input_ids = calloc((size_t)(out.b * b->s), sizeof *out.input_ids);
    out.labels = calloc((size_t)(out.b * b->s), sizeof *out.labels);
    for (int64_t i = 0; i < out.b * b->s; i++)
        out.labels[i] = ASSAY_IGNORE_INDEX;
    for (int64_t i = 0, row = -1; i < tokens; i++) {
        row += b->position_ids[i] == 0;
        out.input_ids[row * b->s + b->position_ids[i]] = b->input_ids[i];
        out.labels[row * b->s + b->position_ids[i]] = b->labels[i];
    }
    return out;
}

static void open_windowed(model_case *c, int64_t rows, int64_t s, int64_t multiple)
{
    open_drawn(c, windowed, 1, 1, rows, s);
    c->batches.training = false;
    pack(c, multiple);
}

Test(ref_packed, a_packed_row_is_its_documents_in_rows_of_their_own)
{
    static const char *const layouts[] = {"1",      "cp2", "cp3,p2p", "cp2,a2a",
                                          "tp2,sp", "pp3", "ep2",     "tp2,sp,cp2,p2p,ep4"};
    for (int64_t multiple = 1; multiple <= 3; multiple++) {
        model_case c;
        ref_run_result apart;
        double largest = 0.0;
        open_windowed(&c, 2, 23, multiple);
        const assay_batches packed = c.batches;
        assay_batches rows = unpacked(&packed);
        cr_assert_geq(rows.b, 8);
        c.run.want_logits = false;
        c.batches = rows;
        require_ok(ref_run(&c.run, c.weights, &apart), "apart");
        c.batches = packed;
        for (int i = 0; i < COUNT(layouts); i++) {
            ref_run_result r;
            set_layout(&c, layouts[i]);
            require_ok(ref_run(&c.run, c.weights, &r), layouts[i]);
            const double worst = compare_results(&r, &apart, 1e-12, layouts[i]);
            largest = worse_of(largest, worst);
            ref_run_result_free(&r);
        }
        if (getenv("ASSAY_TEST_VERBOSE"))
            fprintf(stderr, "multiple %d: %ld documents and tokens of padding, worst %.1e\n", (int)multiple,
                    (long)rows.b, largest);
        ref_run_result_free(&apart);
        free(rows.input_ids);
        free(rows.labels);
        close_case(&c);
    }
}

/* The first law, with everything that counts tokens: auxiliary losses, several steps, rows and microbatches shared out. */
Test(ref_packed, no_layout_changes_a_packed_step)
{
    static const char *const layouts[] = {"dp2",        "dp4,ep2",
                                          "tp2,sp,ep2", "pp3",
                                          "cp2,ep2",    "cp2,a2a,dp4,zero1",
                                          "cp4,p2p",    "tp2,cp2,p2p",
                                          "cp2,pp3",    "tp2,sp,cp2,dp2,ep4,zero3"};
    model_case c;
    ref_run_result whole;
    open_drawn(&c, windowed, 2, 2, 4, 13);
    pack(&c, 2);
    c.options.lr = 1e-3;
    c.options.clip_grad = 0.5;
    c.options.moe_aux_loss_coeff.of[0] = 0.02;
    c.options.moe_z_loss_coeff = 0.003;
    require_ok(ref_run(&c.run, c.weights, &whole), "unsharded");
    for (int i = 0; i < COUNT(layouts); i++)
        expect_layout(&c, &whole, layouts[i]);
    ref_run_result_free(&whole);
    close_case(&c);
}

/* What Megatron-LM makes of a rank's own tokens is not to be had where it would give the rank other tokens: means over a rank's
 * targets, capacities.  Sums over tokens are the same, whoever has them. */
Test(ref_packed, megatron_semantics_under_cp)
{
    model_case c;
    ref_run_result whole, r;
    open_windowed(&c, 2, 12, 1);
    c.options.semantics = ASSAY_SEMANTICS_MEGATRON;
    c.options.moe_aux_loss_coeff.of[0] = 0.02;
    assay_parallel_config p;
    assay_grid cut;
    require_ok(assay_layout_parse("cp2", &p), "cp2");
    require_ok(assay_grid_make(&p, &cut), "cp2");
    c.run.objective = &cut; /* auxiliary losses weigh by how many tokens a rank has, whichever they are */
    require_ok(ref_run(&c.run, c.weights, &whole), "alone");
    c.run.objective = NULL;
    expect_layout(&c, &whole, "cp2");
    ref_run_result_free(&whole);
    for (int i = 0; i < 2; i++) {
        c.options.calculate_per_token_loss = i == 0;
        c.options.moe_expert_capacity_factor = i == 0 ? 0.5 : 0.0;
        set_layout(&c, "cp2");
        cr_expect_eq(ref_run(&c.run, c.weights, &r), ASSAY_UNSUPPORTED);
        cr_expect(strstr(assay_error_message(), "semantics megatron with documents packed in rows, cp2 and "),
                  "%s", assay_error_message());
        cr_expect(
            strstr(assay_error_message(), i == 0 ? "moe_expert_capacity_factor" : "calculate_per_token_loss"),
            "%s", assay_error_message());
    }
    close_case(&c);
}

/* --- the file forms ----------------------------------------------------------------------------------------- */

/* Megatron-LM's form of the same batch gives the same bits. */
Test(ref_packed, cu_seqlens_mean_what_position_ids_mean)
{
    enum { ROWS = 2, S = 19, TOKENS = ROWS * S };
    const int64_t shape[] = {ROWS, S};
    char path[] = "/tmp/assay_packed_XXXXXX";
    model_case c;
    ref_run_result one, other;
    assay_tensorwriter *w;
    int64_t labels[TOKENS], n = 0;
    int32_t bounds[TOKENS + 1] = {0};
    open_windowed(&c, ROWS, S, 1);
    for (int64_t i = 0; i < TOKENS; i++) {
        labels[i] = i % S + 1 < S ? c.batches.labels[i + 1] : ASSAY_IGNORE_INDEX;
        if (i + 1 == TOKENS || c.batches.position_ids[i + 1] == 0)
            bounds[++n] = (int32_t)(i + 1);
    }
    const int64_t entries = n + 1;
    cr_assert_neq(close(mkstemp(path)), -1);
    require_ok(assay_tensorwriter_create(&w, path), path);
    require_ok(assay_tensorwriter_add_copy(w, "tokens", ASSAY_I64, shape, 2, c.batches.input_ids), path);
    require_ok(assay_tensorwriter_add_copy(w, "labels", ASSAY_I64, shape, 2, labels), path);
    require_ok(assay_tensorwriter_add_copy(w, "cu_seqlens", ASSAY_I32, &entries, 1, bounds), path);
    require_ok(assay_tensorwriter_finish(w), path);
    assay_tensorwriter_destroy(w);
    require_ok(ref_run(&c.run, c.weights, &one), "position_ids");
    const assay_batches drawn = c.batches;
    require_ok(assay_batches_open(&c.batches, path, c.config->vocab_size), path);
    cr_expect_eq(memcmp(c.batches.position_ids, drawn.position_ids, sizeof labels), 0);
    require_ok(ref_run(&c.run, c.weights, &other), "cu_seqlens");
    cr_expect_eq(compare_results(&other, &one, 0.0, "cu_seqlens"), 0.0);
    assay_batches_close(&c.batches);
    c.batches = drawn;
    ref_run_result_free(&one);
    ref_run_result_free(&other);
    unlink(path);
    close_case(&c);
}
