/* Laws of `assay check` on what an optimizer read, and on what a recorder says of its trace: the honest run of golden/planted with
 * gradients of a step of an optimizer, or with notes. */
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/files/tensorfile.h"
#include "core/files/tensorwriter.h"
#include "tests/support/parity.h"

#define PLANTED ASSAY_SOURCE_DIR "/golden/planted/"

static int check(const char *dir, bool json, char *text, size_t capacity)
{
    int code = -1;
    FILE *out = tmpfile();
    must(parity_check_run(dir, PLANTED "models/llama", NULL, json, out, &code));
    rewind(out);
    text[fread(text, 1, capacity - 1, out)] = '\0';
    fclose(out);
    return code;
}

static double module_eps;       /* above 0: model.norm holds this one */
static double loss_scale = 1.0; /* a power of two that the losses were multiplied by ... */
static bool scale_recorded;     /* ... by a GradScaler that the recorder saw */
typedef double (*change)(const char *name, int64_t i, double g);

/* `from` times the scale of the losses, which is exact. */
static void write_scaled(assay_trace_writer *w, const assay_trace_tensor *from)
{
    assay_trace_tensor to = *from;
    char *values = malloc(from->bytes + 1);
    const size_t size = from->dtype == ASSAY_BF16 ? 2 : 4;
    cr_assert(from->dtype == ASSAY_BF16 || from->dtype == ASSAY_F32);
    for (size_t k = 0; k < from->bytes / size; k++) {
        unsigned bits = 0; /* the upper half of an F32 is a BF16 */
        float x;
        memcpy((char *)&bits + 4 - size, (const char *)from->data + size * k, size);
        memcpy(&x, &bits, 4);
        x *= (float)loss_scale;
        memcpy(&bits, &x, 4);
        memcpy(values + size * k, (const char *)&bits + 4 - size, size);
    }
    must(assay_trace_write_tensor(w, &to, values));
    free(values);
}

/* The tensors of the honest run, and of each gradient of a parameter what `read` makes of it, rounded as it is stored. */
static void write_run(char dir[256], change read, bool gradients)
{
    assay_trace *t;
    assay_trace_writer *w;
    must(assay_trace_open(&t, PLANTED "honest_llama", true));
    json_t *header = json_copy((json_t *)(uintptr_t)assay_trace_header(t));
    static const char *const own[] = {"format", "version", "world_size", "hash"};
    for (int i = 0; i < 4; i++)
        json_object_del(header, own[i]);
    must(assay_trace_writer_open(&w, fresh_path(dir, "t"), 0, 1, header, false));
    json_decref(header);
    for (int64_t i = 0; i < assay_trace_n_tensors(t, 0); i++) {
        const assay_trace_tensor *from = assay_trace_tensor_at(t, 0, i);
        assay_trace_tensor to = *from;
        if (loss_scale != 1.0 && (from->phase == ASSAY_PHASE_GRAD || from->phase == ASSAY_PHASE_BACKWARD))
            write_scaled(w, from);
        else if (from->phase != ASSAY_PHASE_GRAD || gradients)
            must(assay_trace_write_tensor(w, &to, from->data));
    }
    if (scale_recorded) {
        const float scale = (float)loss_scale;
        assay_trace_tensor by = {.phase = ASSAY_PHASE_OPTIMIZER, .microbatch = -1, .dtype = ASSAY_F32};
        snprintf(by.name, sizeof by.name, "grad_scaler.scale");
        assay_shard_whole(&by.shard, NULL, 0);
        must(assay_trace_write_tensor(w, &by, &scale));
    }
    for (int64_t i = 0; i < assay_trace_n_tensors(t, 0) && read != NULL; i++) {
        const assay_trace_tensor *from = assay_trace_tensor_at(t, 0, i);
        assay_trace_tensor to = *from;
        if (from->phase != ASSAY_PHASE_GRAD)
            continue;
        cr_assert_eq(from->dtype, ASSAY_BF16);
        unsigned short *values = malloc(from->bytes + 1);
        for (size_t k = 0; k < from->bytes / 2; k++) {
            unsigned short stored;
            unsigned bits;
            float x;
            memcpy(&stored, (const char *)from->data + 2 * k, 2);
            bits = (unsigned)stored << 16;
            memcpy(&x, &bits, 4);
            x = (float)read(from->name, (int64_t)k, loss_scale * (double)x);
            memcpy(&bits, &x, 4);
            values[k] = (unsigned short)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
        }
        to.phase = ASSAY_PHASE_OPTIMIZER;
        must(assay_trace_write_tensor(w, &to, values));
        free(values);
    }
    if (module_eps > 0.0) {
        assay_trace_tensor eps = {.phase = ASSAY_PHASE_FORWARD, .microbatch = 0, .dtype = ASSAY_F64};
        snprintf(eps.name, sizeof eps.name, "model.norm.eps");
        assay_shard_whole(&eps.shard, NULL, 0);
        must(assay_trace_write_tensor(w, &eps, &module_eps));
    }
    must(assay_trace_writer_close(w));
    assay_trace_writer_destroy(w);
    assay_trace_close(t);
}

static double same(const char *name, int64_t i, double g)
{
    (void)name, (void)i;
    return g;
}
static double clipped(const char *name, int64_t i, double g)
{
    (void)name, (void)i;
    return 0.03125 * 1.17 * g;
}
static double unscaled(const char *name, int64_t i, double g)
{
    (void)name, (void)i;
    return g / 1024.0;
}
static double unscaled_and_clipped(const char *name, int64_t i, double g)
{
    return clipped(name, i, g) / 1024.0;
}
static double doubled(const char *name, int64_t i, double g)
{
    (void)name, (void)i;
    return 2.0 * g;
}
static double nothing(const char *name, int64_t i, double g)
{
    (void)name, (void)i, (void)g;
    return 0.0;
}
static double no_number(const char *name, int64_t i, double g)
{
    (void)name, (void)i, (void)g;
    return (double)NAN;
}
static double one_by_one(const char *name, int64_t i, double g)
{
    (void)i;
    return g / (double)(1 + strlen(name) % 7);
}
static double one_element(const char *name, int64_t i, double g)
{
    return strcmp(name, "lm_head.weight.grad") == 0 && i == 40 ? 1.02 * g + 1e-3 : g;
}
static double cut(const char *name, int64_t i, double g)
{
    (void)name, (void)i;
    return fmax(-0.03125, fmin(0.03125, g));
}

Test(parity_check_gradients, what_the_optimizer_read_is_judged)
{
    static const struct {
        change read;
        int code;
        const char *word;
    } rows[] = {
        {same, 0, "RIGHT"},
        {clipped, 0, "the optimizer read 0.036"},
        {cut, 0, "cut at +-0.03125"},
        {doubled, 1, "WRONG: the gradients that the optimizer read (rank 0, step 0) are 2 times those"},
        {nothing, 1, "are 0 times those of the backward"},
        {no_number, 1, "are no numbers, and those of the backward are"},
        {one_by_one, 1, "clipped one by one, where the global norm gives one factor for all"},
        {one_element, 1, "1 of 21 parameters differ, the most lm_head.weight.grad in 1 of"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[256], text[16384];
        write_run(dir, rows[i].read, true);
        cr_expect_eq(check(dir, false, text, sizeof text), rows[i].code, "%zu: %s", i, text);
        cr_expect(strstr(text, rows[i].word), "%zu: %s", i, text);
        remove_path(dir);
    }
}

Test(parity_check_gradients, what_a_scaler_multiplied_is_divided_out_and_must_be)
{
    static const struct {
        bool recorded;
        change read;
        int code;
        const char *word;
    } rows[] = {
        {true, unscaled, 0, "RIGHT"},
        {true, unscaled_and_clipped, 0, "note: rank 0, step 0: the optimizer read 3.57"},
        {true, same, 1, "a GradScaler multiplied the losses by 1024, and its unscaling was left out"},
        {false, unscaled, 1, "the loss is scaled 1024 times"},
    };
    loss_scale = 1024.0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[256], text[16384];
        scale_recorded = rows[i].recorded;
        write_run(dir, rows[i].read, true);
        cr_expect_eq(check(dir, false, text, sizeof text), rows[i].code, "%zu: %s", i, text);
        cr_expect(strstr(text, rows[i].word), "%zu: %s", i, text);
        remove_path(dir);
    }
}

/* A weight of the folder, one of what is an inner dimension of the MLP less. */
static void write_narrow_folder(char dir[256])
{
    static char narrow[4096];
    char from[256], path[512];
    assay_tensorfile *f;
    assay_tensorwriter *w;
    uint64_t bytes;
    char *text;
    must(assay_read_file(PLANTED "models/llama/config.json", 4000, &text, &bytes));
    const char *at = strstr(text, "\"intermediate_size\": ");
    cr_assert_not_null(at);
    at += strlen("\"intermediate_size\": ");
    char *end;
    const long inner = strtol(at, &end, 10);
    snprintf(narrow, sizeof narrow, "%.*s%ld%s", (int)(at - text), text, inner - 1, end);
    free(text);
    must(assay_mkdir_p(fresh_path(dir, "narrow")));
    snprintf(path, sizeof path, "%s/config.json", dir);
    must(assay_write_file(path, narrow, strlen(narrow)));
    snprintf(from, sizeof from, "%s", PLANTED "models/llama/model.safetensors");
    must(assay_tensorfile_open(&f, from));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    must(assay_tensorwriter_create(&w, path));
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        const bool cut = t->ndim == 2 && (t->shape[0] == inner || t->shape[1] == inner);
        const int64_t shape[2] = {t->shape[0] - (t->shape[0] == inner),
                                  t->ndim == 2 ? t->shape[1] - (t->shape[1] == inner) : 0};
        must(assay_tensorwriter_add_copy(w, t->name, t->dtype, cut ? shape : t->shape, t->ndim, t->data));
    }
    must(assay_tensorwriter_finish(w));
    assay_tensorwriter_destroy(w);
    assay_tensorfile_close(f);
}

/* Another model's folder: the reference's arrays are of its shapes, and what was recorded does not go into them. */
Test(parity_check_gradients, recorded_parameters_of_another_shape)
{
    char dir[256], text[16384];
    int code = -1;
    write_narrow_folder(dir);
    FILE *out = tmpfile();
    must(parity_check_run(PLANTED "honest_llama", dir, NULL, false, out, &code));
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    fclose(out);
    cr_expect_eq(code, 1, "%s", text);
    cr_expect(strstr(text, "mlp.down_proj.weight") != NULL &&
                  strstr(text, "taken for a run that has trained") == NULL,
              "%s", text);
    remove_path(dir);
}

/* Two ranks with the tensors of the honest run, one of them with another norm. */
Test(parity_check_gradients, ranks_that_disagree_in_one_tensor_say_so)
{
    char dir[256], text[16384];
    static float other[1 << 14];
    assay_trace *t;
    must(assay_trace_open(&t, PLANTED "honest_llama", true));
    fresh_path(dir, "t");
    for (int rank = 0; rank < 2; rank++) {
        assay_trace_writer *w;
        json_t *header =
            json_pack("{s:s,s:s,s:s}", "engine", "pytorch", "precision", "bf16", "names", "huggingface");
        must(assay_trace_writer_open(&w, dir, rank, 2, header, false));
        json_decref(header);
        for (int64_t i = 0; i < assay_trace_n_tensors(t, 0); i++) {
            assay_trace_tensor to = *assay_trace_tensor_at(t, 0, i);
            const bool changed = rank == 1 && strcmp(to.name, "model.norm") == 0;
            cr_assert(to.bytes <= sizeof other || !changed);
            must(assay_trace_write_tensor(w, &to, changed ? (const void *)other : to.data));
        }
        must(assay_trace_writer_close(w));
        assay_trace_writer_destroy(w);
    }
    assay_trace_close(t);
    cr_expect_eq(check(dir, false, text, sizeof text), 1, "%s", text);
    cr_expect(strstr(text, "WRONG: the first tensor that differs from the reference is model.norm = ") &&
                  strstr(text, "replicas differ: rank 0 holds"),
              "%s", text);
    remove_path(dir);
}

Test(parity_check_gradients, a_run_without_gradients_of_parameters_is_not_checked)
{
    char dir[256], text[16384];
    write_run(dir, NULL, false);
    cr_expect_eq(check(dir, false, text, sizeof text), 2, "%s", text);
    cr_expect(strstr(text, "NOT CHECKED") && strstr(text, "no gradient of a parameter is recorded in step 0"),
              "%s", text);
    remove_path(dir);
}

/* bfloat16 does not show it: the operation itself is within its bound. */
Test(parity_check_gradients, an_eps_that_a_module_holds_is_compared)
{
    char dir[256], text[16384];
    module_eps = 1e-5;
    write_run(dir, NULL, true);
    cr_expect_eq(check(dir, false, text, sizeof text), 0, "%s", text);
    remove_path(dir);
    module_eps = 1e-6;
    write_run(dir, NULL, true);
    cr_expect_eq(check(dir, false, text, sizeof text), 1, "%s", text);
    cr_expect(strstr(text,
                     "WRONG: rmsnorm_fwd of model.norm (rank 0, step 0): its module holds eps 1e-06, the "
                     "model's is 1e-05"),
              "%s", text);
    remove_path(dir);
}

/* The end marker of a copy of the honest run, with notes. */
static void end_with(char dir[256], const char *notes)
{
    char path[512], *text;
    uint64_t bytes;
    write_run(dir, NULL, true);
    snprintf(path, sizeof path, "%s/rank-00000.jsonl", dir);
    must(assay_read_file(path, 1 << 24, &text, &bytes));
    char *end = strstr(text, "{\"type\":\"end\"");
    cr_assert_not_null(end);
    *end = '\0';
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fprintf(f, "%s{\"type\":\"end\",\"notes\":%s}\n", text, notes);
    cr_assert_eq(fclose(f), 0);
    free(text);
}

Test(parity_check_gradients, notes_of_the_recorder_are_printed_and_decide)
{
    static const struct {
        const char *notes, *word, *sentence;
        int code, not_judged;
    } rows[] = {
        {"[]", "RIGHT", "RIGHT", 0, 0},
        {"[{\"kind\":\"note\",\"text\":\"a word\"}]", "note: the recorder: a word\n", "RIGHT", 0, 0},
        {"[{\"kind\":\"not_judged\",\"text\":\"Adam: no "
         "operation\"},{\"kind\":\"not_judged\",\"text\":\"Adam: no "
         "operation\"}]",
         "note: not judged: Adam: no operation\n", "allows.  (What was not judged is listed above.)\n", 0, 1},
        {"[{\"kind\":\"incomplete\",\"text\":\"nothing was seen\"}]", "not checked: nothing was seen\n",
         "NOT CHECKED: nothing wrong was found, but not everything could be compared: nothing was seen.", 2,
         0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[256], text[32768];
        end_with(dir, rows[i].notes);
        cr_expect_eq(check(dir, false, text, sizeof text), rows[i].code, "%s", text);
        cr_expect(strstr(text, rows[i].word) && strstr(text, rows[i].sentence), "%s", text);
        check(dir, true, text, sizeof text);
        json_t *root = json_loads(text, 0, NULL);
        cr_expect_eq(json_array_size(json_object_get(root, "not_judged")), (size_t)rows[i].not_judged, "%s",
                     text);
        json_decref(root);
        remove_path(dir);
    }
}
