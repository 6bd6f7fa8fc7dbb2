/* Checkpoints: any layout reads what any layout wrote, and every layout writes the same bytes; what does not verify is refused. */
#include "core/files/checkpoint_internal.h"
#include "core/files/tensorfile.h"
#include "tests/support/checkpoint.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/assay-ckpt-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void drop_root(void)
{
    cr_assert_eq(assay_remove_tree(root, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

static const char *path_of(const char *name)
{
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

static void in_root(const char *shell)
{
    char command[900];
    snprintf(command, sizeof command, "cd '%s' && %s", root, shell);
    cr_assert_eq(system(command), 0, "%s", command);
}

static assay_checkpoint *opened(const char *dir)
{
    assay_checkpoint *c;
    cr_assert_eq(assay_checkpoint_open(&c, dir), ASSAY_OK, "%s", assay_error_message());
    return c;
}

static void expect_refused(const char *dir, const char *message, const char *what)
{
    assay_checkpoint *c = NULL;
    cr_expect_neq(assay_checkpoint_open(&c, dir), ASSAY_OK, "%s", what);
    cr_expect_not_null(strstr(assay_error_message(), message), "%s: %s", what, assay_error_message());
    cr_expect_null(c);
}

TestSuite(core_checkpoint, .init = make_root, .fini = drop_root);

static void read_in_layout(const assay_checkpoint *c, const assay_checkpoint_content *content, int parts,
                           int rank)
{
    char got[4096], expected[4096];
    for (int64_t i = 0; i < content->spec->n_params; i++)
        for (int f = 0; f < CHECKPOINT_FAMILIES; f++) {
            const assay_param_spec *p = &content->spec->params[i];
            const char *family = checkpoint_family(f, p);
            if (family == NULL)
                continue;
            const assay_dtype dtype = checkpoint_dtype(content, f, p);
            const assay_shard want = checkpoint_piece(p, parts, rank);
            memset(got, 0xff, sizeof got);
            cr_assert_eq(assay_checkpoint_read(c, family, p->name, dtype, &want, got), ASSAY_OK, "%s",
                         assay_error_message());
            checkpoint_fill(content, f, i, &want, expected);
            cr_assert_arr_eq(got, expected, (size_t)(assay_shard_count(&want) * assay_dtype_bytes(dtype)),
                             "%s/%s in %d/%d", family, p->name, rank, parts);
        }
}

/* Five ranks hold nothing of some parameters; both forms of folders, with and without masters of their own. */
Test(core_checkpoint, every_layout_reads_what_every_layout_wrote)
{
    const char *const models[] = {megatron_small, qwen3_small};
    for (int m = 0; m < 4; m++) {
        assay_model_spec *spec = checkpoint_spec(models[m / 2]);
        const assay_checkpoint_content content = checkpoint_content(spec, m % 2 ? ASSAY_BF16 : ASSAY_F32);
        in_root("rm -rf c*");
        for (int a = 1; a <= 5; a++) {
            char name[16], command[200];
            snprintf(name, sizeof name, "c%d", a);
            checkpoint_write(path_of(name), &content, a);
            assay_checkpoint *c = opened(path_of(name));
            cr_expect_eq(json_integer_value(json_object_get(assay_checkpoint_header(c), "step")), 3);
            for (int b = 1; b <= 5; b++)
                for (int r = 0; r < b; r++)
                    read_in_layout(c, &content, b, r);
            assay_checkpoint_close(c);
            snprintf(command, sizeof command,
                     "for f in c1/*.safetensors c1/*.index.json c1/config.json; do cmp $f c%d/${f#c1/} || "
                     "exit 1; done",
                     a);
            in_root(command);
        }
        assay_spec_destroy(spec);
    }
}

Test(core_checkpoint, a_narrowed_piece_is_read_from_the_right_place)
{
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_F32);
    checkpoint_write(path_of("c"), &content, 3);
    assay_checkpoint *c = opened(path_of("c"));
    for (int64_t i = 0; i < spec->n_params; i++) { /* every element by itself */
        const assay_param_spec *p = &spec->params[i];
        for (int64_t row = 0; row < p->shape[0]; row++)
            for (int64_t column = 0; column < (p->ndim > 1 ? p->shape[1] : 1); column++) {
                assay_shard want;
                char got[4], expected[4];
                assay_shard_whole(&want, p->shape, p->ndim);
                cr_assert_eq(assay_shard_narrow(&want, 0, row, 1), ASSAY_OK);
                if (p->ndim > 1)
                    cr_assert_eq(assay_shard_narrow(&want, 1, column, 1), ASSAY_OK);
                cr_assert_eq(assay_checkpoint_read(c, "exp_avg", p->name, ASSAY_F32, &want, got), ASSAY_OK);
                checkpoint_fill(&content, 2, i, &want, expected);
                cr_assert_arr_eq(got, expected, 4, "%s [%lld,%lld]", p->name, (long long)row,
                                 (long long)column);
            }
    }
    assay_checkpoint_close(c);
    assay_spec_destroy(spec);
}

/* What transformers reads: names, shapes and orientation of the model's folder, an index that agrees with the files. */
Test(core_checkpoint, tensors_have_the_names_and_shapes_of_the_model_s_folder)
{
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    content.max_shard_size = 200; /* most tensors alone, none cut */
    checkpoint_write(path_of("c"), &content, 2);
    const char *const kinds[] = {"model", "optimizer", "master_weights"};
    int64_t n = 0;
    for (int k = 0; k < 3; k++) {
        assay_tensorfile *f;
        json_t *index = NULL;
        char name[64];
        int64_t bytes = 0;
        snprintf(name, sizeof name, "c/%s.safetensors.index.json", kinds[k]);
        cr_assert_eq(assay_tensorfile_open(&f, path_of(name)), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(assay_json_load(&index, path_of(name)), ASSAY_OK);
        for (int64_t i = 0; i < assay_tensorfile_count(f); i++)
            bytes += (int64_t)assay_tensorfile_at(f, i)->bytes;
        cr_expect_eq(bytes,
                     json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")));
        n += assay_tensorfile_count(f);
        const assay_tensor_info *t;
        if (k == 0)
            cr_expect_eq(assay_tensorfile_get(f, "model.layers.0.self_attn.k_proj.weight", ASSAY_BF16,
                                              (int64_t[]){8, 6}, 2, &t),
                         ASSAY_OK, "%s", assay_error_message());
        if (k == 1)
            cr_expect_eq(assay_tensorfile_get(f, "model.layers.0.mlp.up_proj.weight/exp_avg_sq", ASSAY_F32,
                                              (int64_t[]){5, 6}, 2, &t),
                         ASSAY_OK, "%s", assay_error_message());
        if (k == 2)
            cr_expect_eq(assay_tensorfile_get(f, "lm_head.weight", ASSAY_F32, (int64_t[]){11, 6}, 2, &t),
                         ASSAY_OK, "%s", assay_error_message());
        assay_tensorfile_close(f);
        json_decref(index);
    }
    assay_checkpoint *c = opened(path_of("c"));
    cr_expect_eq(assay_checkpoint_stored_count(c), n);
    for (int64_t i = 0; i < n; i++) {
        assay_checkpoint_stored s;
        char hash[ASSAY_SHA256_HEX];
        cr_assert_eq(assay_checkpoint_stored_at(c, i, &s), ASSAY_OK);
        assay_sha256_bytes(s.data, s.bytes, hash);
        cr_expect_str_eq(hash, s.sha256, "%s %s", s.kind, s.name);
        cr_expect_eq(access(path_of("c"), F_OK), 0);
    }
    assay_checkpoint_close(c);
    assay_spec_destroy(spec);
}

Test(core_checkpoint, a_checkpoint_without_states_has_no_optimizer_file)
{
    assay_model_spec *spec = checkpoint_spec(megatron_small);
    assay_checkpoint_content content = checkpoint_content(spec, ASSAY_F32);
    assay_shard whole;
    char got[4096];
    content.n_states = 0;
    checkpoint_write(path_of("c"), &content, 2);
    cr_expect_neq(access(path_of("c/optimizer.safetensors.index.json"), F_OK), 0);
    cr_expect_neq(access(path_of("c/master_weights.safetensors.index.json"), F_OK), 0);
    assay_checkpoint *c = opened(path_of("c"));
    const assay_param_spec *p = &spec->params[0];
    assay_shard_whole(&whole, p->shape, p->ndim);
    cr_expect_eq(assay_checkpoint_read(c, "main_param", p->name, ASSAY_F32, &whole, got), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_read(c, "exp_avg", p->name, ASSAY_F32, &whole, got), ASSAY_NOT_FOUND);
    assay_checkpoint_close(c);
    assay_spec_destroy(spec);
}

/* --- writing ------------------------------------------------------------------------------------------------ */
Test(core_checkpoint, an_existing_folder_is_not_overwritten)
{
    assay_checkpoint_writer *w = NULL;
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_F32);
    checkpoint_write(path_of("c"), &content, 1);
    cr_expect_eq(assay_checkpoint_writer_open(&w, path_of("c"), 7, 0, 0, 1, &content),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "exists already"));
    cr_expect_null(w);
    assay_spec_destroy(spec);
}

Test(core_checkpoint, a_rank_that_did_not_finish_or_seal_prevents_publication)
{
    assay_checkpoint_writer *w[2] = {NULL, NULL};
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_F32);
    json_t *state = json_object();
    cr_assert_eq(assay_checkpoint_writer_open(&w[0], path_of("c/"), 7, 0, 0, 2, &content), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_seal(w[0]), ASSAY_INVALID_ARGUMENT);
    checkpoint_add_all(w[0], &content, 0, 2, NULL);
    cr_assert_eq(assay_checkpoint_writer_finish(w[0]), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_publish(w[0], state), ASSAY_INVALID_ARGUMENT);
    cr_expect_eq(assay_checkpoint_seal(w[0]), ASSAY_NOT_FOUND);
    cr_expect_not_null(strstr(assay_error_message(), "rank 1 did not finish"));
    cr_assert_eq(assay_checkpoint_writer_open(&w[1], path_of("c"), 7, 0, 1, 2, &content), ASSAY_OK);
    checkpoint_add_all(w[1], &content, 1, 2, NULL);
    cr_assert_eq(assay_checkpoint_writer_finish(w[1]), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_seal(w[0]), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_publish(w[0], state), ASSAY_NOT_FOUND);
    cr_expect_not_null(strstr(assay_error_message(), "rank 1 did not seal"));
    cr_expect_eq(assay_checkpoint_publish(w[1], state), ASSAY_INVALID_ARGUMENT);
    cr_expect_neq(access(path_of("c"), F_OK), 0);
    json_decref(state);
    checkpoint_destroy_all(w, 2);
    assay_spec_destroy(spec);
}

static void expect_seal(const checkpoint_wrong *wrong, assay_dtype weight, assay_status expected,
                        const char *message)
{
    assay_checkpoint_writer *w[3] = {NULL};
    assay_model_spec *spec = checkpoint_spec(megatron_small);
    const assay_checkpoint_content content = checkpoint_content(spec, weight);
    in_root("rm -rf c*");
    cr_expect_eq(checkpoint_seal_all(w, path_of("c"), 7, 0, &content, 3, wrong), expected, "%s", message);
    cr_expect_not_null(strstr(assay_error_message(), message), "%s", assay_error_message());
    cr_expect_neq(access(path_of("c"), F_OK), 0);
    checkpoint_destroy_all(w, 3);
    assay_spec_destroy(spec);
}

Test(core_checkpoint, an_element_that_no_rank_wrote_is_an_error)
{
    expect_seal(&(checkpoint_wrong){1, -1, "decoder.layers.0.mlp.linear_fc1.weight", "exp_avg"}, ASSAY_BF16,
                ASSAY_FORMAT, "linear_fc1.weight/exp_avg: no rank wrote element 24 of 120");
    expect_seal(&(checkpoint_wrong){0, -1, "decoder.final_layernorm.weight", "main_param"}, ASSAY_BF16,
                ASSAY_FORMAT, "no rank wrote element 0 of 6");
}

Test(core_checkpoint, replicas_that_differ_are_an_error)
{
    expect_seal(&(checkpoint_wrong){-1, 2, "decoder.final_layernorm.weight", "exp_avg_sq"}, ASSAY_BF16,
                ASSAY_MISMATCH, "exp_avg_sq/decoder.final_layernorm.weight: the piece of rank 2");
    expect_seal(&(checkpoint_wrong){-1, 1, "decoder.layers.1.mlp.router.expert_bias", "expert_bias"},
                ASSAY_BF16, ASSAY_MISMATCH, "expert_bias/decoder.layers.1.mlp.router.expert_bias");
}

/* The judge's runs keep them, and nobody reads them. */
Test(core_checkpoint, replicas_that_differ_are_kept_for_the_judge_alone)
{
    assay_checkpoint_writer *w[3] = {NULL};
    assay_model_spec *spec = checkpoint_spec(megatron_small);
    assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    const checkpoint_wrong wrong = {-1, 2, "decoder.final_layernorm.weight", "exp_avg_sq"};
    json_t *state = json_object();
    float got[8];
    assay_shard whole;
    content.keep_differing = true;
    cr_assert_eq(checkpoint_seal_all(w, path_of("c"), 7, 0, &content, 3, &wrong), ASSAY_OK);
    cr_assert_eq(assay_checkpoint_publish(w[0], state), ASSAY_OK, "%s", assay_error_message());
    assay_checkpoint *c = opened(path_of("c"));
    assay_shard_whole(&whole, (int64_t[]){6}, 1);
    cr_expect_eq(assay_checkpoint_read(c, "exp_avg_sq", wrong.param, ASSAY_F32, &whole, got), ASSAY_MISMATCH);
    cr_expect_not_null(strstr(assay_error_message(), "the piece of rank 2 was not"), "%s",
                       assay_error_message());
    cr_expect_eq(assay_checkpoint_read(c, "exp_avg", wrong.param, ASSAY_F32, &whole, got), ASSAY_OK);
    assay_checkpoint_close(c);
    json_decref(state);
    checkpoint_destroy_all(w, 3);
    assay_spec_destroy(spec);
}

Test(core_checkpoint, a_weight_that_is_not_its_master_is_an_error)
{
    expect_seal(&(checkpoint_wrong){-1, 1, "embedding.word_embeddings.weight", "weight"}, ASSAY_F32,
                ASSAY_MISMATCH, "weight/embedding.word_embeddings.weight: the piece of rank 1");
}

Test(core_checkpoint, wrong_pieces_are_named)
{
    assay_checkpoint_writer *w = NULL;
    assay_model_spec *spec = checkpoint_spec(megatron_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    const assay_param_spec *p = &spec->params[0];
    const char data[4096] = {0};
    assay_shard whole, other;
    assay_shard_whole(&whole, p->shape, p->ndim);
    assay_shard_whole(&other, (int64_t[]){12, 6}, 2);
    cr_assert_eq(assay_checkpoint_writer_open(&w, path_of("c"), 7, 0, 0, 1, &content), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_add(w, "velocity", p->name, ASSAY_F32, &whole, data, true),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect_eq(assay_checkpoint_add(w, "exp_avg", "w", ASSAY_F32, &whole, data, true),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect_eq(assay_checkpoint_add(w, "weight", p->name, ASSAY_F32, &whole, data, true),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "expected BF16, found F32"));
    cr_expect_eq(assay_checkpoint_add(w, "exp_avg", p->name, ASSAY_F32, &other, data, true),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "of another shape"));
    assay_checkpoint_writer_destroy(w);
    assay_spec_destroy(spec);
}

/* Lists of pieces lie in a folder that others can write to. */
Test(core_checkpoint, a_list_of_pieces_that_no_rank_wrote_is_refused)
{
    static const struct {
        const char *edit, *message;
    } rows[] = {{"s/^.//", "byte 0: expected a list of pieces"},
                {"s/,/, /", "expected a list of pieces"},
                {"s/.$//", "expected a list of pieces"},
                {"s/$/ /", "expected a list of pieces"},
                {"s/true/null/", "expected a list of pieces"},
                {"s/\\(hash\":\"\\)./\\1/", "expected a list of pieces"},
                {"s/\\(hash\":\"\\)/\\10/", "expected a list of pieces"},
                {"s/family\":0/family\":9/", "family 9, parameter 0: expected at most"},
                {"s/family\":0/family\":-1/", "family -1"},
                {"s/param\":0/param\":99/", "parameter 99: expected at most"},
                {"s/param\":0/param\":99999999999999999999/", "expected a list of pieces"},
                {"s/\\[\\[\\[[0-9]*,/[[[-1,/", "segment [-1, +11) is not inside [0, 11)"},
                {"s/\\[\\[\\[0,[0-9]*/[[[0,999999/", "segment [0, +999999) is not inside"},
                {"s/\\[\\[\\[/[[[0,1],[/", "overlap"},
                {"s/\\[\\[\\[\\([0-9]*\\),/[[[\\1/", "expected a list of pieces"}};
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char shell[200];
        assay_checkpoint_writer *w = NULL;
        in_root("rm -rf c*");
        cr_assert_eq(assay_checkpoint_writer_open(&w, path_of("c"), 7, 0, 0, 1, &content), ASSAY_OK);
        checkpoint_add_all(w, &content, 0, 1, NULL);
        cr_assert_eq(assay_checkpoint_writer_finish(w), ASSAY_OK);
        snprintf(shell, sizeof shell, "sed -i '%s' c.tmp-*/pieces-00000.json", rows[i].edit);
        in_root(shell);
        cr_expect_eq(assay_checkpoint_seal(w), ASSAY_FORMAT, "%s: %s", rows[i].edit, assay_error_message());
        cr_expect_not_null(strstr(assay_error_message(), rows[i].message), "%s: %s", rows[i].edit,
                           assay_error_message());
        assay_checkpoint_writer_destroy(w);
    }
    assay_spec_destroy(spec);
}

/* Two jobs write to one DIR at once: each stages alone; the first to publish wins, the other is told where its own lies. */
Test(core_checkpoint, two_jobs_never_mix)
{
    assay_checkpoint_writer *w[2][2] = {{NULL}};
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_F32);
    for (int job = 0; job < 2; job++)
        cr_assert_eq(
            checkpoint_seal_all(w[job], path_of("c"), (uint64_t)(job + 1), 3 + job, &content, 2, NULL),
            ASSAY_OK, "%s", assay_error_message());
    json_t *first = json_object(), *second = json_object();
    cr_assert_eq(assay_checkpoint_publish(w[1][0], first), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(assay_checkpoint_publish(w[0][0], second), ASSAY_IO);
    cr_expect_not_null(strstr(assay_error_message(), "c.tmp-00000000000001: cannot publish as"), "%s",
                       assay_error_message());
    assay_checkpoint *c = opened(path_of("c"));
    cr_expect_eq(json_integer_value(json_object_get(assay_checkpoint_header(c), "step")), 4);
    assay_checkpoint_close(c);
    json_decref(first);
    json_decref(second);
    for (int job = 0; job < 2; job++)
        checkpoint_destroy_all(w[job], 2);
    assay_spec_destroy(spec);
}

Test(core_checkpoint, a_staging_folder_is_nobody_else_s)
{
    assay_checkpoint_writer *w = NULL, *again = NULL;
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_F32);
    cr_assert_eq(assay_checkpoint_writer_open(&w, path_of("c"), 9, 0, 0, 1, &content), ASSAY_OK);
    cr_expect_eq(assay_checkpoint_writer_open(&again, path_of("c"), 9, 0, 0, 1, &content), ASSAY_IO);
    cr_expect_not_null(strstr(assay_error_message(), "File exists"), "%s", assay_error_message());
    /* A rank whose rank 0 works elsewhere. */
    cr_expect_eq(assay_checkpoint_writer_open(&again, path_of("c"), 10, 0, 1, 2, &content), ASSAY_IO);
    cr_expect_not_null(strstr(assay_error_message(), "the folder that rank 0 made"), "%s",
                       assay_error_message());
    /* An empty folder that appears meanwhile is somebody's. */
    checkpoint_add_all(w, &content, 0, 1, NULL);
    cr_assert_eq(mkdir(path_of("c"), 0700), 0);
    json_t *state = json_object();
    cr_expect_eq(assay_checkpoint_write_alone(w, state), ASSAY_IO);
    cr_expect_not_null(strstr(assay_error_message(), "cannot publish as"), "%s", assay_error_message());
    json_decref(state);
    assay_checkpoint_writer_destroy(w);
    assay_spec_destroy(spec);
}

/* --- reading ------------------------------------------------------------------------------------------------ */
static void write_two(const assay_model_spec *spec)
{
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    in_root("rm -rf a b");
    checkpoint_write(path_of("a"), &content, 2);
    checkpoint_write(path_of("b"), &content, 2);
}

/* Every change to a published checkpoint is found, with the manifest's own text, too. */
Test(core_checkpoint, what_does_not_belong_is_refused)
{
    static const struct {
        const char *shell, *message;
    } rows[] = {
        {"sed -i 's/\"version\": 4/\"version\": 3/' a/manifest.json",
         "version: expected 4, found 3 (pieces of ranks)"},
        {"sed -i 's/\"step\": 3/\"step\": 4/' a/manifest.json", "was changed: it says SHA-256"},
        {"sed -i '/\"sha256\": \"[0-9a-f]*\"$/d' a/manifest.json", "manifest.json"},
        {"sed -i 's/\"step\": 3/\"step\": 4/' a/state.json", "a/state.json: expected SHA-256"},
        {"touch a/model-00002-of-00002.safetensors", "the manifest does not name this file"},
        {"touch a/model-00001-of-00001.safetensors.tmp", "the manifest does not name this file"},
        {"touch a/consolidated.safetensors",
         "a/consolidated.safetensors: the manifest does not name this file"},
        {"touch a/pytorch_model.bin", "a/pytorch_model.bin: the manifest does not name this file"},
        {"touch a/adapter_config.json", "a/adapter_config.json: the manifest does not name this file"},
        {"ln -s nowhere a/model.safetensors", "a/model.safetensors: the manifest does not name this file"},
        {"cp b/state.json a", "a/state.json: expected SHA-256"},
        {"rm a/optimizer-00001-of-00001.safetensors", "optimizer-00001-of-00001.safetensors: listed in the"},
        {"mv a/config.json . && ln -s ../config.json a/config.json", "a/config.json: listed in the manifest: "
                                                                     "expected a regular file"},
        {"truncate -s 10 a/model-00001-of-00001.safetensors", "bytes, found 10"},
        {"rm a/manifest.json", "manifest.json"},
        {"printf x | dd of=a/master_weights-00001-of-00001.safetensors bs=1 conv=notrunc status=none "
         "seek=$(($(stat -c %s a/master_weights-00001-of-00001.safetensors)-1))",
         "master_weights-00001-of-00001.safetensors: expected SHA-256"},
    };
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_two(spec);
        assay_checkpoint_close(opened(path_of("a")));
        in_root(rows[i].shell);
        expect_refused(path_of("a"), rows[i].message, rows[i].shell);
    }
    assay_spec_destroy(spec);
}

static void note(void *user, const char *name)
{
    char *all = user;
    snprintf(all + strlen(all), 256 - strlen(all), "%s;", name);
}

/* What users of transformers add to a model: nothing that a reader could take for weights. */
Test(core_checkpoint, a_tokenizer_beside_a_checkpoint_harms_it_not)
{
    char notes[256] = "";
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    write_two(spec);
    in_root("echo {} > a/tokenizer_config.json && echo x > a/README.md && mkdir a/runs");
    assay_checkpoint_close(opened(path_of("a")));
    cr_expect_eq(assay_checkpoint_extras(path_of("a"), note, notes), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(strlen(notes), strlen("tokenizer_config.json;README.md;runs;"), "%s", notes);
    cr_expect(strstr(notes, "tokenizer_config.json;") && strstr(notes, "README.md;") &&
                  strstr(notes, "runs;"),
              "%s", notes);
    notes[0] = '\0';
    cr_expect_eq(assay_checkpoint_extras(path_of("b"), note, notes), ASSAY_OK);
    cr_expect_str_eq(notes, "");
    assay_spec_destroy(spec);
}

/* A manifest that was made anew over a folder that is not one save's, or not this model's. */
static void sign_again(const char *file)
{
    char hash[ASSAY_SHA256_HEX], path[300];
    json_t *manifest = NULL;
    struct stat sb;
    snprintf(path, sizeof path, "%s/a/%s", root, file);
    cr_assert_eq(assay_json_load(&manifest, path_of("a/manifest.json")), ASSAY_OK);
    json_t *files = json_object_get(manifest, "files");
    cr_assert_eq(stat(path, &sb), 0);
    cr_assert_eq(assay_sha256_file(path, hash), ASSAY_OK);
    for (size_t i = 0; i < json_array_size(files); i++) {
        json_t *entry = json_array_get(files, i);
        if (strcmp(json_string_value(json_object_get(entry, "name")), file) != 0)
            continue;
        json_object_set_new(entry, "bytes", json_integer(sb.st_size));
        json_object_set_new(entry, "sha256", json_string(hash));
    }
    cr_assert_eq(assay_checkpoint_manifest_hash(manifest, hash), ASSAY_OK);
    json_object_set_new(manifest, "sha256", json_string(hash));
    cr_assert_eq(assay_json_save(manifest, path_of("a/manifest.json")), ASSAY_OK);
    json_decref(manifest);
}

Test(core_checkpoint, folders_that_are_not_one_save_are_refused)
{
    static const struct {
        const char *file, *shell, *message;
    } rows[] = {
        {"state.json", "cp b/state.json a", "state.json: of another save: expected job"},
        {"state.json", "sed -i 's/\"step\": 3/\"step\": 4/' a/state.json", "state.json: of another save"},
        {"state.json", "sed -i 's/\"vocab_size\": 11/\"vocab_size\": 12/' a/state.json", "expected shape"},
        {"state.json", "sed -i 's/\"num_key_value_heads\": 2/\"num_key_value_heads\": 4/' a/state.json",
         "expected shape"},
        {"state.json", "sed -i 's/\"weight\": \"BF16\"/\"weight\": \"F32\"/' a/state.json",
         "expected dtype F32, found BF16"},
        {"state.json", "sed -i 's/\"exp_avg\"/\"velocity\"/' a/state.json", "velocity"},
        {"state.json", "sed -i '/\"exp_avg\",/d' a/state.json", "has no place in this model"},
        {"model.safetensors.index.json",
         "sed -i 's/\"lm_head.weight\": \"model-/\"lm_head.weight\": \"..\\/model-/' "
         "a/model.safetensors.index.json",
         "expected a plain file name"},
        {"model.safetensors.index.json",
         "sed -i 's/\"lm_head.weight\"/\"lm_head.wait\"/' a/model.safetensors.index.json", "lm_head"},
    };
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_two(spec);
        in_root(rows[i].shell);
        sign_again(rows[i].file);
        expect_refused(path_of("a"), rows[i].message, rows[i].shell);
    }
    assay_spec_destroy(spec);
}

/* Every file is one reader's to hash, and all of them look at names and sizes. */
Test(core_checkpoint, readers_share_out_the_hashing)
{
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    static const char *const files[] = {"model-00001-of-00001.safetensors", "config.json", "state.json",
                                        "optimizer-00001-of-00001.safetensors",
                                        "master_weights.safetensors.index.json"};
    const assay_checkpoint_ignore none = {.missing = NULL};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char shell[300];
        int refused = 0;
        write_two(spec);
        snprintf(shell, sizeof shell,
                 "printf ' ' | dd of=a/%s bs=1 conv=notrunc status=none seek=$(($(stat -c %%s a/%s)-1))",
                 files[i], files[i]);
        in_root(shell);
        for (int r = 0; r < 3; r++) {
            assay_checkpoint *c = NULL;
            const assay_status st = assay_checkpoint_open_share(&c, path_of("a"), &none, r, 3);
            refused += st != ASSAY_OK && strstr(assay_error_message(), "expected SHA-256") != NULL;
            assay_checkpoint_close(c);
        }
        cr_expect_eq(refused, 1, "%s: refused by %d", files[i], refused);
    }
    int refused = 0;
    write_two(spec);
    in_root("sed -i 's/\\(norm.weight\": \"\\)[0-9a-f]/\\1x/' a/manifest.json"); /* the hash of a tensor */
    for (int r = 0; r < 3; r++) {
        assay_checkpoint *c = NULL;
        const assay_status st = assay_checkpoint_open_share(&c, path_of("a"), &none, r, 3);
        refused += st != ASSAY_OK && strstr(assay_error_message(), "manifest.json: was changed") != NULL;
        assay_checkpoint_close(c);
    }
    cr_expect_eq(refused, 1, "the manifest: refused by %d", refused);
    assay_checkpoint *known = NULL; /* who knows the files' hashes has them from the manifest */
    cr_expect_eq(assay_checkpoint_open_share(&known, path_of("a"), &none, ASSAY_CHECKPOINT_HASHED, 1),
                 ASSAY_FORMAT);
    cr_expect_not_null(strstr(assay_error_message(), "manifest.json: was changed"));
    assay_spec_destroy(spec);
}

/* A frozen weight is in model-* alone, and a list in state.json says so: states of it are unexpected, and without the list they
 * are missing. */
Test(core_checkpoint, frozen_weights_have_no_masters_and_no_states)
{
    static const char frozen[] = "decoder.layers.0.mlp.linear_fc2.weight";
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    const assay_param_spec *p = assay_spec_find(spec, frozen);
    cr_assert_not_null(p);
    const int64_t number = p - spec->params;
    checkpoint_write(path_of("all"), &content, 1);
    spec->params[number].frozen = true;
    checkpoint_write(path_of("a"), &content, 2);
    assay_checkpoint *c = opened(path_of("a")), *all = opened(path_of("all"));
    cr_expect_eq(assay_checkpoint_count(all) - assay_checkpoint_count(c), 3);
    cr_expect(assay_checkpoint_has(c, "weight", p));
    cr_expect_not(assay_checkpoint_has(c, "main_param", p));
    cr_expect_not(assay_checkpoint_has(c, "exp_avg_sq", p));
    char got[200], expected[200];
    assay_shard whole;
    assay_shard_whole(&whole, p->shape, p->ndim);
    cr_assert_eq(assay_checkpoint_read(c, "weight", frozen, ASSAY_BF16, &whole, got), ASSAY_OK, "%s",
                 assay_error_message());
    checkpoint_fill(&content, 0, number, &whole, expected);
    cr_expect_arr_eq(got, expected, (size_t)assay_shard_count(&whole) * 2);
    assay_checkpoint_close(c);
    assay_checkpoint_close(all);
    in_root("cp a/state.json kept && sed -i 's/linear_fc2/linear_fc3/' a/state.json");
    sign_again("state.json");
    expect_refused(path_of("a"), "frozen: expected names of weights", "a name that is none");
    in_root("sed 's/\"frozen\"/\"thawed\"/' kept > a/state.json");
    sign_again("state.json");
    expect_refused(path_of("a"), "down_proj.weight", "states that are not there");
    assay_spec_destroy(spec);
}

static void count_finding(void *user, const char *text)
{
    (void)text;
    ++*(int *)user;
}

/* A head under another name in every file: missing and unexpected, until both are named. */
Test(core_checkpoint, keys_are_ignored_where_a_list_names_them)
{
    static const struct {
        const char *missing, *unexpected;
        const char *message; /* NULL: it opens */
    } rows[] = {{NULL, NULL, "lm_head.weight"},
                {"lm_head.*", NULL, "'lm_head.weighx' has no place in this model"},
                {NULL, "lm_head.*", "lm_head.weight"},
                {"lm_head.weight", "lm_head.weight", "has no place in this model"},
                {"lm_head.weight/exp_avg,x", "*", "lm_head.weight"},
                {"model.norm.*,lm_head.weight", "lm_head.weigh?", NULL}};
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    write_two(spec);
    in_root("LC_ALL=C sed -i 's/lm_head.weight/lm_head.weighx/g' a/*.safetensors a/*.index.json");
    static const char *const files[] = {
        "model-00001-of-00001.safetensors",          "model.safetensors.index.json",
        "optimizer-00001-of-00001.safetensors",      "optimizer.safetensors.index.json",
        "master_weights-00001-of-00001.safetensors", "master_weights.safetensors.index.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        sign_again(files[i]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const assay_checkpoint_ignore ignore = {.missing = rows[i].missing, .unexpected = rows[i].unexpected};
        assay_checkpoint *c = NULL;
        int findings = 0;
        int64_t found;
        const assay_status st = assay_checkpoint_open_ignoring(&c, path_of("a"), &ignore);
        cr_expect_eq(st == ASSAY_OK, rows[i].message == NULL, "row %zu: %s", i, assay_error_message());
        if (rows[i].message != NULL)
            cr_expect_not_null(strstr(assay_error_message(), rows[i].message), "%s", assay_error_message());
        cr_assert_eq(assay_checkpoint_verify_each(path_of("a"), &ignore, count_finding, &findings, &found),
                     ASSAY_OK);
        cr_expect_eq(found, rows[i].message != NULL, "row %zu", i);
        cr_expect_eq(findings, (int)found);
        if (c == NULL)
            continue;
        const assay_param_spec *head = assay_spec_find(spec, "output_layer.weight");
        cr_assert_not_null(head);
        cr_expect_eq(json_array_size(assay_checkpoint_ignored(c)), 8, "weight, master and two states, twice");
        cr_expect_not(assay_checkpoint_has(c, "exp_avg", head));
        cr_expect(assay_checkpoint_has(c, "exp_avg", &spec->params[0]));
        assay_shard whole;
        float got[11 * 6];
        assay_shard_whole(&whole, head->shape, head->ndim);
        cr_expect_eq(assay_checkpoint_read(c, "main_param", head->name, ASSAY_F32, &whole, got),
                     ASSAY_NOT_FOUND);
        assay_checkpoint_close(c);
    }
    assay_spec_destroy(spec);
}

/* No room for a shard, behind a limit as on a full disk: an error that names the file, and nothing is left. */
Test(core_checkpoint, a_full_disk_is_an_error_and_leaves_nothing)
{
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_F32);
    const struct rlimit most = {.rlim_cur = 4000, .rlim_max = RLIM_INFINITY};
    assay_checkpoint_writer *w = NULL;
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &most), 0);
    const assay_status st = assay_checkpoint_writer_open(&w, path_of("full"), 7, 1, 0, 1, &content);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
    cr_expect_eq(st, ASSAY_IO);
    cr_expect_null(w);
    cr_expect_not_null(strstr(assay_error_message(), "no room for its"), "%s", assay_error_message());
    in_root("test -z \"$(ls)\"");
    assay_spec_destroy(spec);
}

/* Root may write anywhere: an immutable place is a file where a folder should be, and /proc. */
Test(core_checkpoint, a_folder_that_cannot_be_written_is_named)
{
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_F32);
    assay_checkpoint_writer *w = NULL;
    in_root("touch file && mkdir closed && chmod 0555 closed");
    cr_expect_neq(assay_checkpoint_writer_open(&w, path_of("file/c"), 7, 1, 0, 1, &content), ASSAY_OK);
    cr_expect_not_null(strstr(assay_error_message(), "file"), "%s", assay_error_message());
    cr_expect_neq(assay_checkpoint_writer_open(&w, "/proc/c", 7, 1, 0, 1, &content), ASSAY_OK);
    cr_expect_not_null(strstr(assay_error_message(), "/proc/c.tmp-"), "%s", assay_error_message());
    if (geteuid() != 0) {
        cr_expect_eq(assay_checkpoint_writer_open(&w, path_of("closed/c"), 7, 1, 0, 1, &content), ASSAY_IO);
        cr_expect_not_null(strstr(assay_error_message(), "closed/c.tmp-"), "%s", assay_error_message());
    }
    cr_expect_null(w);
    in_root("chmod 0755 closed && test -z \"$(ls closed)\"");
    assay_spec_destroy(spec);
}

static void expect_read(const assay_checkpoint *c, const char *name, assay_dtype dtype, int64_t rows,
                        assay_status expected, const char *message)
{
    float got[256];
    assay_shard want;
    assay_shard_whole(&want, (int64_t[]){rows, 6}, 2);
    cr_expect_eq(assay_checkpoint_read(c, "main_param", name, dtype, &want, got), expected, "%s", name);
    cr_expect_not_null(strstr(assay_error_message(), message), "%s", assay_error_message());
}

Test(core_checkpoint, wrong_requests_are_named)
{
    assay_model_spec *spec = checkpoint_spec(qwen3_small);
    const assay_checkpoint_content content = checkpoint_content(spec, ASSAY_BF16);
    checkpoint_write(path_of("c"), &content, 2);
    assay_checkpoint *c = opened(path_of("c"));
    expect_read(c, "v", ASSAY_F32, 10, ASSAY_NOT_FOUND, "no tensor main_param/v");
    expect_read(c, "output_layer.weight", ASSAY_BF16, 11, ASSAY_MISMATCH, "expected dtype BF16, found F32");
    expect_read(c, "output_layer.weight", ASSAY_F32, 12, ASSAY_MISMATCH,
                "dimension 0: expected 12, found 11");
    assay_checkpoint_close(c);
    assay_spec_destroy(spec);
}
