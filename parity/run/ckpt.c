/* `assay ckpt`: what a checkpoint holds, whether it is whole, where two differ, and the same state in other files. */
#include "core/base/log.h"
#include "core/files/checkpoint.h"
#include "core/files/checkpoint_folder.h"
#include "core/run/options.h"
#include "parity/checks/checkpoint_header.h"
#include "parity/parity.h"
#include "parity/run/ckpt_options.h"
#include "parity/run/ckpt_paddle.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- inspect ------------------------------------------------------------------------------------------------ */
static const char *text_of(const json_t *state, const char *key)
{
    const char *text = json_string_value(json_object_get(state, key));
    return text != NULL ? text : "?";
}

static long long integer_of(const json_t *state, const char *of, const char *key)
{
    const json_t *from = of != NULL ? json_object_get(state, of) : state;
    return (long long)json_integer_value(json_object_get(from, key));
}

static assay_status print_tensor(const assay_checkpoint *c, int64_t i)
{
    assay_checkpoint_stored t;
    ASSAY_TRY(assay_checkpoint_stored_at(c, i, &t));
    printf("%-14s %-5s [", t.kind, assay_dtype_name(t.dtype));
    for (int d = 0; d < t.ndim; d++)
        printf("%s%lld", d > 0 ? "," : "", (long long)t.shape[d]);
    printf("] %.16s %s (%s)\n", t.sha256, t.name, t.file);
    return ASSAY_OK;
}

static assay_status print_kinds(const assay_checkpoint *c)
{
    static const char *const kinds[] = {"model", "master_weights", "optimizer"};
    for (int k = 0; k < 3; k++) {
        int64_t n = 0;
        size_t bytes = 0;
        for (int64_t i = 0; i < assay_checkpoint_stored_count(c); i++) {
            assay_checkpoint_stored t;
            ASSAY_TRY(assay_checkpoint_stored_at(c, i, &t));
            n += strcmp(t.kind, kinds[k]) == 0;
            bytes += strcmp(t.kind, kinds[k]) == 0 ? t.bytes : 0;
        }
        printf("%-14s %lld tensors, %zu bytes\n", kinds[k], (long long)n, bytes);
    }
    return ASSAY_OK;
}

static assay_status inspect(const ckpt_options *o)
{
    assay_checkpoint *c;
    ASSAY_TRY(assay_checkpoint_open(&c, o->paths[1]));
    const json_t *s = assay_checkpoint_header(c);
    printf("step           %lld, %lld samples read\n", integer_of(s, NULL, "step"),
           integer_of(s, "data", "consumed_samples"));
    printf("model          %s\n", text_of(json_object_get(s, "model"), "model_type"));
    printf("saved by       engine %s, layout %s, %lld ranks, precision %s\n", text_of(s, "engine"),
           text_of(s, "layout"), integer_of(s, NULL, "world_size"), text_of(s, "precision"));
    printf("next step      learning rate %.9g\n",
           json_real_value(json_object_get(json_object_get(s, "scheduler"), "learning_rate")));
    assay_status st = print_kinds(c);
    for (int64_t i = 0; i < assay_checkpoint_stored_count(c) && o->tensors && st == ASSAY_OK; i++)
        st = print_tensor(c, i);
    assay_checkpoint_close(c);
    return st;
}

/* --- verify ------------------------------------------------------------------------------------------------- */
static void say_finding(void *user, const char *text)
{
    (void)user;
    printf("wrong: %s\n", text);
}

static void say_extra(void *user, const char *name)
{
    printf("note: %s/%s: the manifest does not name this file: it was not verified\n", (const char *)user,
           name);
}

/* config.json says the model that state.json says; else a finding. */
static assay_status verify_config(const char *dir, const assay_checkpoint *c, int64_t *found)
{
    assay_model_config *there = malloc(sizeof *there);
    ASSAY_CHECK(there != NULL, ASSAY_OUT_OF_MEMORY, "%s: config.json", dir);
    if (!parity_config_is(dir, &assay_checkpoint_content_of(c)->spec->config, there)) {
        char text[PARITY_TEXT + 16];
        snprintf(text, sizeof text, "config.json: %.500s", assay_error_message());
        assay_error_clear();
        say_finding(NULL, text);
        (*found)++;
    }
    free(there);
    return ASSAY_OK;
}

static assay_status tell_findings(const char *dir, int64_t found, int *code)
{
    printf("%s: %lld findings\n", dir, (long long)found);
    *code = 1;
    return ASSAY_OK;
}

static assay_status verify(const ckpt_options *o, int *code)
{
    const double begin = assay_monotonic_s();
    int64_t found;
    size_t bytes = 0;
    assay_checkpoint *c;
    const assay_checkpoint_ignore ignore = {o->missing, o->unexpected, o->mismatched};
    ASSAY_TRY(assay_checkpoint_verify_each(o->paths[1], &ignore, say_finding, NULL, &found));
    const double seconds = assay_monotonic_s() - begin;
    if (found == 0)
        ASSAY_TRY(assay_checkpoint_extras(o->paths[1], say_extra, (void *)(uintptr_t)o->paths[1]));
    if (found > 0)
        return tell_findings(o->paths[1], found, code);
    ASSAY_TRY(assay_checkpoint_open_share(&c, o->paths[1], &ignore, ASSAY_CHECKPOINT_HASHED, 1));
    const assay_status st = verify_config(o->paths[1], c, &found);
    if (st != ASSAY_OK || found > 0) {
        assay_checkpoint_close(c);
        return st != ASSAY_OK ? st : tell_findings(o->paths[1], found, code);
    }
    int64_t n = 0;
    for (int64_t i = 0; i < assay_checkpoint_stored_count(c); i++) {
        assay_checkpoint_stored t;
        if (assay_checkpoint_stored_at(c, i, &t) != ASSAY_OK) {
            assay_error_clear();
            continue;
        }
        bytes += t.bytes;
        n++;
    }
    for (size_t i = 0; i < json_array_size(assay_checkpoint_ignored(c)); i++)
        printf("ignored: %s\n", json_string_value(json_array_get(assay_checkpoint_ignored(c), i)));
    assay_checkpoint_close(c);
    printf("%s: whole: %lld tensors of %zu bytes, every file and tensor hashed in %.2f s\n", o->paths[1],
           (long long)n, bytes, seconds);
    return ASSAY_OK;
}

/* --- diff --------------------------------------------------------------------------------------------------- */
static bool find_stored(const assay_checkpoint *c, const assay_checkpoint_stored *wanted,
                        assay_checkpoint_stored *out)
{
    for (int64_t i = 0; i < assay_checkpoint_stored_count(c); i++)
        if (assay_checkpoint_stored_at(c, i, out) == ASSAY_OK && strcmp(out->kind, wanted->kind) == 0 &&
            strcmp(out->name, wanted->name) == 0)
            return true;
    return false;
}

/* Whether the two are one tensor; else a line about it. */
static bool same_tensor(const assay_checkpoint_stored *a, const assay_checkpoint_stored *b)
{
    if (a->dtype != b->dtype || a->ndim != b->ndim || memcmp(a->shape, b->shape, sizeof a->shape) != 0) {
        printf("%s %s: another type or shape\n", a->kind, a->name);
        return false;
    }
    if (strcmp(a->sha256, b->sha256) == 0)
        return true;
    const size_t width = (size_t)assay_dtype_bytes(a->dtype), n = a->bytes / width;
    size_t differ = 0, first = n;
    for (size_t i = 0; i < n; i++)
        if (memcmp((const char *)a->data + i * width, (const char *)b->data + i * width, width) != 0) {
            first = differ == 0 ? i : first;
            differ++;
        }
    printf("%s %s: %zu of %zu elements differ, the first at %zu\n", a->kind, a->name, differ, n, first);
    return false;
}

/* Lines about the tensors of a; both: those that b has, too, else those that it has not. */
static assay_status diff_side(const assay_checkpoint *a, const assay_checkpoint *b, bool both,
                              const char *without, int64_t *differ)
{
    for (int64_t i = 0; i < assay_checkpoint_stored_count(a); i++) {
        assay_checkpoint_stored x, y;
        ASSAY_TRY(assay_checkpoint_stored_at(a, i, &x));
        const bool found = find_stored(b, &x, &y);
        if (!found)
            printf("%s %s: not in %s\n", x.kind, x.name, without);
        *differ += !found || (both && !same_tensor(&x, &y));
    }
    return ASSAY_OK;
}

static assay_status diff(const ckpt_options *o, int *code)
{
    assay_status st = ASSAY_OK;
    assay_checkpoint *a = NULL, *b = NULL;
    int64_t differ = 0;
    if (assay_paddle_is(o->paths[1]) || assay_paddle_is(o->paths[2]))
        return parity_paddle_diff(o->paths[1], o->paths[2], code);
    ASSAY_TRY_GOTO(assay_checkpoint_open(&a, o->paths[1]), st, done);
    ASSAY_TRY_GOTO(assay_checkpoint_open(&b, o->paths[2]), st, done);
    ASSAY_TRY_GOTO(diff_side(a, b, true, o->paths[2], &differ), st, done);
    ASSAY_TRY_GOTO(diff_side(b, a, false, o->paths[1], &differ), st, done);
    const long long x = integer_of(assay_checkpoint_header(a), NULL, "step");
    const long long y = integer_of(assay_checkpoint_header(b), NULL, "step");
    if (x != y)
        printf("step: %lld and %lld\n", x, y);
    printf("%lld tensors differ of %lld and %lld\n", (long long)differ,
           (long long)assay_checkpoint_stored_count(a), (long long)assay_checkpoint_stored_count(b));
    *code = differ > 0 || x != y ? 1 : 0;
done:
    assay_checkpoint_close(b);
    assay_checkpoint_close(a);
    return st;
}

/* --- model folders ------------------------------------------------------------------------------------------ */
static bool is_checkpoint(const char *dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    return access(path, F_OK) == 0;
}

static assay_status convert(ckpt_options *o)
{
    if (is_checkpoint(o->paths[1]))
        return ckpt_copy(o, true);
    ASSAY_CHECK(strcmp(o->weights, "masters") != 0, ASSAY_INVALID_ARGUMENT,
                "convert: --weights %s: %s is no checkpoint and has no masters", o->weights, o->paths[1]);
    ASSAY_CHECK(!o->paddle, ASSAY_INVALID_ARGUMENT,
                "convert: --form paddle: %s is no checkpoint: states are what makes a folder for PaddleNLP",
                o->paths[1]);
    ASSAY_TRY(parity_weights_convert(&o->tools, o->paths[1], o->paths[2]));
    printf("wrote %s\n", o->paths[2]);
    return ASSAY_OK;
}

static assay_status merge(const ckpt_options *o)
{
    const char *paths[PARITY_MERGED + 1];
    for (int i = 1; i < o->n_paths; i++)
        paths[i - 1] = o->paths[i];
    ASSAY_TRY(parity_merge(&o->tools, paths, o->n_paths - 1));
    printf("wrote %s\n", o->paths[o->n_paths - 1]);
    return ASSAY_OK;
}

static assay_status lora_merge(const ckpt_options *o)
{
    ASSAY_TRY(parity_lora_merge(&o->tools, o->paths[1], o->paths[2], o->paths[3]));
    printf("wrote %s\n", o->paths[3]);
    return ASSAY_OK;
}

static assay_status lora_save(const ckpt_options *o)
{
    ASSAY_TRY(parity_lora_save(&o->tools, o->paths[1], o->paths[2]));
    printf("wrote %s\n", o->paths[2]);
    return ASSAY_OK;
}

/* --- the verb ----------------------------------------------------------------------------------------------- */
/* Of a folder of checkpoints the last, of RUN/latest and RUN/best what they name; what is no checkpoint stays as it was given. */
static assay_status resolve(char path[ASSAY_PATH])
{
    char found[ASSAY_PATH];
    const assay_status st = assay_checkpoint_folder_find(path, found, sizeof found);
    if (st == ASSAY_UNSUPPORTED) /* torch_dist */
        return st;
    if (st != ASSAY_OK) {
        assay_error_clear();
        return ASSAY_OK;
    }
    return assay_option_text("path", found, path, ASSAY_PATH);
}

/* Of a folder of PaddleNLP's. */
static assay_status on_paddle(const ckpt_options *o, ckpt_use use, int *code)
{
    ASSAY_CHECK(use != CKPT_RESHARD && !o->paddle, ASSAY_INVALID_ARGUMENT,
                "%s: is a folder of PaddleNLP's: assay ckpt convert it first", o->paths[1]);
    if (use == CKPT_INSPECT)
        return parity_paddle_inspect(o->paths[1], o->tensors);
    if (use == CKPT_VERIFY_PADDLE)
        return parity_paddle_verify(o->paths[1], code);
    return parity_paddle_import(o->paths[1], o->paths[2], o->weights[0] != '\0' ? o->weights : NULL,
                                o->max_shard_size);
}

/* What the verb works on: of verify and convert the kind of folder. */
static ckpt_use use_of(const ckpt_options *o, ckpt_use verb)
{
    const bool paddle = assay_paddle_is(o->paths[1]);
    if (verb == CKPT_VERIFY && paddle)
        return CKPT_VERIFY_PADDLE;
    if (verb != CKPT_CONVERT)
        return verb;
    if (o->paddle)
        return CKPT_EXPORT_PADDLE;
    return paddle ? CKPT_CONVERT_PADDLE : is_checkpoint(o->paths[1]) ? CKPT_CONVERT : CKPT_CONVERT_MODEL;
}

static assay_status dispatch(ckpt_options *o, int *code)
{
    static const struct {
        const char *name;
        ckpt_use use;
        int least, most; /* paths, the verb among them */
    } verbs[] = {{"inspect", CKPT_INSPECT, 2, 2},
                 {"verify", CKPT_VERIFY, 2, 2},
                 {"diff", CKPT_DIFF, 3, 3},
                 {"reshard", CKPT_RESHARD, 3, 3},
                 {"convert", CKPT_CONVERT, 3, 3},
                 {"merge", CKPT_MERGE, 3, PARITY_MERGED + 2},
                 {"lora-merge", CKPT_LORA_MERGE, 4, 4},
                 {"lora-save", CKPT_LORA_SAVE, 3, 3}};
    enum { VERBS = sizeof verbs / sizeof *verbs };
    int v = 0;
    while (v < VERBS && strcmp(verbs[v].name, o->paths[0]) != 0)
        v++;
    const char *found = o->n_paths > 0 ? o->paths[0] : "nothing";
    ASSAY_CHECK(v < VERBS, ASSAY_INVALID_ARGUMENT,
                "expected inspect, verify, diff, reshard, convert, merge, lora-merge or lora-save, found "
                "%.40s",
                found);
    ASSAY_CHECK(o->n_paths >= verbs[v].least && o->n_paths <= verbs[v].most, ASSAY_INVALID_ARGUMENT,
                "%s: expected %d folders%s, found %d", verbs[v].name, verbs[v].least - 1,
                verbs[v].most > verbs[v].least ? " or more" : "", o->n_paths - 1);
    /* What is made is the last path of a verb that makes something. */
    for (int i = 1; i < (verbs[v].use <= CKPT_DIFF ? o->n_paths : o->n_paths - 1); i++)
        ASSAY_TRY(resolve(o->paths[i]));
    if (verbs[v].use > CKPT_DIFF)
        ASSAY_TRY(assay_checkpoint_outside("", o->paths[o->n_paths - 1]));
    if (o->tools.base[0] != '\0')
        ASSAY_TRY(resolve(o->tools.base));
    const ckpt_use use = use_of(o, verbs[v].use);
    ASSAY_TRY(ckpt_options_check(o, use));
    ASSAY_TRY(parity_weights_options_fp8(&o->tools));
    if (use != CKPT_DIFF && verbs[v].use <= CKPT_CONVERT && assay_paddle_is(o->paths[1]))
        return on_paddle(o, use, code);
    switch (verbs[v].use) {
    case CKPT_INSPECT:
        return inspect(o);
    case CKPT_VERIFY:
        return verify(o, code);
    case CKPT_DIFF:
        return diff(o, code);
    case CKPT_RESHARD:
        return ckpt_copy(o, false);
    case CKPT_CONVERT:
        return convert(o);
    case CKPT_MERGE:
        return merge(o);
    case CKPT_LORA_MERGE:
        return lora_merge(o);
    default:
        return lora_save(o);
    }
}

int parity_main_ckpt(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"tensors", NULL, "inspect: every tensor with its hash and file"},
        {"ignore_missing_keys", "PATTERN,...", "verify: tensors that may be missing, as in 'lm_head.*'"},
        {"ignore_unexpected_keys", "PATTERN,...", "verify: tensors that may be there beside the model's"},
        {"ignore_mismatched_keys", "PATTERN,...", "verify: tensors of another shape or type"},
        {"max_shard_size", "N", "most bytes of tensors in one file of what is made (default 5 GB)"},
        {"weights", "WHICH",
         "convert: the weights alone, as the products read them (model) or their masters in their place "
         "(masters); default: model, of a PaddleNLP folder all of it"},
        {"form", "FORM", "convert: assay (default), or paddle: all of it as a folder for PaddleNLP"},
        PARITY_WEIGHTS_OPTIONS,
        {NULL, NULL, NULL}};
    ckpt_options o = {.n_paths = 0};
    int code = 0;
    parity_weights_options_init(&o.tools);
    assay_status st = assay_options_parse(
        argc, argv,
        "Works on checkpoints and model folders (docs/CHECKPOINT.md).  inspect, verify, diff and reshard "
        "take "
        "checkpoints; convert, merge and lora-merge take model folders, and a checkpoint is one; lora-merge "
        "and "
        "lora-save take an adapter's folder.  PaddleNLP's folders: docs/PADDLE.md.\vExamples:\n"
        "  assay ckpt inspect RUN/iter_0000100 --tensors\n"
        "  assay ckpt verify RUN/iter_0000100     # exit code 1: it names what is wrong\n"
        "  assay ckpt diff A B                    # exit code 1 where they differ\n"
        "  assay ckpt reshard A B --max-shard-size 1000000000\n"
        "  assay ckpt convert A B                 # weights alone, for transformers\n"
        "  assay ckpt convert FP8 B --dtype bf16  # a model folder in another type\n"
        "  assay ckpt convert MODEL FP8 --dtype fp8 --weight-block-size 128,128\n"
        "  assay ckpt merge A B OUT --weight 0.7,0.3\n"
        "  assay ckpt merge A B OUT --method ties --base BASE --density 0.5\n"
        "  assay ckpt lora-merge MODEL ADAPTER OUT\n"
        "  assay ckpt lora-save ADAPTER OUT --dtype fp16\n",
        "inspect|verify|diff|reshard|convert|merge|lora-merge|lora-save DIR...", NULL, 0, extra, ckpt_option,
        &o);
    if (st == ASSAY_OK)
        st = dispatch(&o, &code);
    if (st != ASSAY_OK) {
        assay_error_print(stderr, "assay ckpt", 0);
        return 2;
    }
    return code;
}
