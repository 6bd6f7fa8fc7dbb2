/* Case files. */
#include "core/run/inputs.h"
#include "core/run/launch.h"
#include "parity/run/run.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "docs" in /a/b/case.json is /a/b/docs. */
static assay_status resolve(const char *file, const char *path, char out[ASSAY_PATH])
{
    const char *slash = strrchr(file, '/');
    int n;
    if (path[0] == '/' || slash == NULL)
        n = snprintf(out, ASSAY_PATH, "%s", path);
    else
        n = snprintf(out, ASSAY_PATH, "%.*s/%s", (int)(slash - file), file, path);
    ASSAY_CHECK(n > 0 && n < ASSAY_PATH, ASSAY_LIMIT, "%s: path too long: %s", file, path);
    return ASSAY_OK;
}

static assay_status read_model(const json_t *root, parity_case *c)
{
    char what[ASSAY_PATH + 16];
    json_t *model = json_object_get(root, "model");
    if (json_is_string(model))
        return resolve(c->file, json_string_value(model), c->model_dir);
    ASSAY_CHECK(json_is_object(model), ASSAY_FORMAT, "%s: model: expected a folder or a configuration",
                c->file);
    c->model = json_incref(model);
    snprintf(what, sizeof what, "%s: model", c->file);
    return parity_case_members(model, what);
}

static assay_status read_data(const json_t *root, parity_case *c)
{
    static const char *const allowed[] = {"paths",
                                          "steps",
                                          "microbatches",
                                          "micro_batch_size",
                                          "seq_length",
                                          "mask_probability",
                                          "masked_microbatch",
                                          "packing",
                                          "pad_seq_to_mult",
                                          "shifted",
                                          NULL};
    char what[ASSAY_PATH + 16];
    snprintf(what, sizeof what, "%s: data", c->file);
    const json_t *data = json_object_get(root, "data");
    ASSAY_CHECK(json_is_object(data), ASSAY_FORMAT, "%s: expected an object", what);
    ASSAY_TRY(assay_json_only(data, allowed, what));
    const json_t *paths = json_object_get(data, "paths");
    ASSAY_CHECK(json_is_array(paths) && json_array_size(paths) <= PARITY_MAX_DATA_PATHS, ASSAY_FORMAT,
                "%s: paths: expected an array of up to %d files or folders", what, PARITY_MAX_DATA_PATHS);
    for (size_t i = 0; i < json_array_size(paths); i++) {
        const char *p = json_string_value(json_array_get(paths, i));
        ASSAY_CHECK(p != NULL, ASSAY_FORMAT, "%s: paths[%zu]: expected a string", what, i);
        ASSAY_TRY(resolve(c->file, p, c->data_paths[c->n_data_paths++]));
    }
    ASSAY_TRY(assay_json_get_i64(data, "steps", true, 0, 1000000, what, &c->steps));
    ASSAY_TRY(assay_json_get_i64(data, "microbatches", true, 1, 1 << 20, what, &c->microbatches));
    ASSAY_CHECK(c->steps > 0 || c->microbatches == 1, ASSAY_INVALID_ARGUMENT,
                "%s: steps 0 is one batch [b,s] without an optimizer: expected 1 microbatch, found %lld",
                what, (long long)c->microbatches);
    ASSAY_TRY(assay_json_get_i64(data, "micro_batch_size", true, 1, 1 << 20, what, &c->micro_batch_size));
    ASSAY_TRY(assay_json_get_i64(data, "seq_length", true, 2, 1 << 24, what, &c->seq_length));
    c->pad_seq_to_mult = 1;
    ASSAY_TRY(assay_json_get_bool(data, "packing", false, what, &c->packing));
    ASSAY_TRY(assay_json_get_bool(data, "shifted", false, what, &c->shifted));
    ASSAY_TRY(
        assay_json_get_i64(data, "pad_seq_to_mult", false, 1, c->seq_length, what, &c->pad_seq_to_mult));
    ASSAY_CHECK(c->packing || c->pad_seq_to_mult == 1, ASSAY_INVALID_ARGUMENT,
                "%s: pad_seq_to_mult is padding between packed documents, and packing is false", what);
    c->masked_microbatch = -1;
    ASSAY_TRY(assay_json_get_i64(data, "masked_microbatch", false, -1, c->microbatches - 1, what,
                                 &c->masked_microbatch));
    return assay_json_get_double(data, "mask_probability", false, 0.0, 0.99, what, &c->mask_probability);
}

static assay_status read_layouts(const json_t *root, parity_case *c)
{
    const json_t *list = json_object_get(root, "layouts");
    ASSAY_CHECK(json_is_array(list) && json_array_size(list) >= 1 &&
                    json_array_size(list) <= PARITY_MAX_LAYOUTS,
                ASSAY_FORMAT, "%s: layouts: expected 1 to %d layouts", c->file, PARITY_MAX_LAYOUTS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        assay_parallel_config p;
        ASSAY_CHECK(text != NULL && strlen(text) < ASSAY_LAYOUT_TEXT, ASSAY_FORMAT,
                    "%s: layouts[%zu]: expected a string like \"tp2,sp\"", c->file, i);
        const assay_status st = assay_layout_parse(text, &p);
        if (st != ASSAY_OK)
            return assay_context(st, "%s: layouts[%zu]", c->file, i);
        for (size_t k = 0; k < i; k++)
            ASSAY_CHECK(!parity_layout_same(c->layouts[k], text), ASSAY_FORMAT,
                        "%s: layouts[%zu]: %s is layouts[%zu], %s, again", c->file, i, text, k,
                        c->layouts[k]);
        snprintf(c->layouts[c->n_layouts++], ASSAY_LAYOUT_TEXT, "%s", text);
    }
    return ASSAY_OK;
}

static assay_status read_precisions(const json_t *root, parity_case *c)
{
    const json_t *list = json_object_get(root, "precision");
    ASSAY_CHECK(json_is_array(list) && json_array_size(list) >= 1 && json_array_size(list) <= 2, ASSAY_FORMAT,
                "%s: precision: expected [\"fp32\"], [\"bf16\"] or both", c->file);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        assay_train_options o = c->options;
        ASSAY_CHECK(text != NULL, ASSAY_FORMAT, "%s: precision[%zu]: expected a string", c->file, i);
        const assay_status st = assay_train_option_set(&o, "precision", text);
        if (st != ASSAY_OK)
            return assay_context(st, "%s: precision[%zu]", c->file, i);
        ASSAY_CHECK(o.precision != ASSAY_PRECISION_FP64, ASSAY_UNSUPPORTED,
                    "%s: precision[%zu]: the engine computes in fp32 or bf16, found fp64", c->file, i);
        ASSAY_CHECK(c->n_precisions == 0 || c->precisions[0] != o.precision, ASSAY_FORMAT,
                    "%s: precision[%zu]: %s again", c->file, i, text);
        c->precisions[c->n_precisions++] = o.precision;
    }
    return ASSAY_OK;
}

/* The engine knows the families; here only what could not be a word of them is refused. */
static assay_status read_variants(const json_t *root, parity_case *c)
{
    const json_t *list = json_object_get(root, "variants");
    if (list == NULL) {
        c->n_variants = 1;
        snprintf(c->variants[0], PARITY_VARIANT_TEXT, "fastest");
        return ASSAY_OK;
    }
    ASSAY_CHECK(json_is_array(list) && json_array_size(list) >= 1 &&
                    json_array_size(list) <= PARITY_MAX_VARIANTS,
                ASSAY_FORMAT, "%s: variants: expected 1 to %d of \"fastest\", \"k0\", \"attention=k0\"",
                c->file, PARITY_MAX_VARIANTS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        ASSAY_CHECK(text != NULL && text[0] != 0 && strlen(text) < PARITY_VARIANT_TEXT &&
                        strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_=,") == strlen(text),
                    ASSAY_FORMAT,
                    "%s: variants[%zu]: expected \"fastest\", \"k0\" or \"attention=k0\", found %s", c->file,
                    i, text != NULL ? text : "(not a string)");
        for (int k = 0; k < c->n_variants; k++)
            ASSAY_CHECK(strcmp(c->variants[k], text) != 0, ASSAY_FORMAT, "%s: variants[%zu]: %s again",
                        c->file, i, text);
        snprintf(c->variants[c->n_variants++], PARITY_VARIANT_TEXT, "%s", text);
    }
    return ASSAY_OK;
}

static assay_status read_checks(const json_t *root, parity_case *c)
{
    const json_t *list = json_object_get(root, "checks");
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        c->checks[k] = list == NULL;
    if (list == NULL)
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(list), ASSAY_FORMAT, "%s: checks: expected an array of names", c->file);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        int found = -1;
        for (int k = 0; text != NULL && k < PARITY_CHECK_COUNT; k++)
            if (strcmp(text, parity_check_name((parity_check)k)) == 0)
                found = k;
        ASSAY_CHECK(found >= 0, ASSAY_FORMAT, "%s: checks[%zu]: unknown check %s", c->file, i,
                    text != NULL ? text : "(not a string)");
        c->checks[found] = true;
    }
    return ASSAY_OK;
}

/* "matrix": "full" is a case that costs too much for a run without arguments. */
static assay_status read_matrix(const json_t *root, parity_case *c)
{
    const json_t *word = json_object_get(root, "matrix");
    c->full_matrix = word != NULL;
    ASSAY_CHECK(word == NULL || (json_is_string(word) && strcmp(json_string_value(word), "full") == 0),
                ASSAY_FORMAT, "%s: matrix: expected \"full\", or no such member", c->file);
    return ASSAY_OK;
}

assay_status parity_case_read(const json_t *root, const char *path, parity_case *out)
{
    static const char *const allowed[] = {"name",      "description", "matrix",   "model",  "data", "layouts",
                                          "precision", "training",    "variants", "checks", NULL};
    assay_status st = ASSAY_OK;
    memset(out, 0, sizeof *out);
    assay_train_options_default(&out->options);
    ASSAY_CHECK(strlen(path) < ASSAY_PATH, ASSAY_LIMIT, "case file: path too long");
    snprintf(out->file, sizeof out->file, "%s", path);
    ASSAY_TRY_GOTO(assay_json_only(root, allowed, path), st, done);
    ASSAY_TRY_GOTO(assay_json_get_string(root, "name", true, path, out->name, sizeof out->name), st, done);
    ASSAY_CHECK_GOTO(out->name[0] != 0 &&
                         strspn(out->name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == strlen(out->name),
                     ASSAY_FORMAT, st, done, "%s: name: expected [a-z0-9_-]+, found \"%s\"", path, out->name);
    const json_t *description = json_object_get(root, "description");
    ASSAY_CHECK_GOTO(description == NULL || json_is_string(description), ASSAY_FORMAT, st, done,
                     "%s: description: expected a string", path);
    ASSAY_TRY_GOTO(read_matrix(root, out), st, done);
    ASSAY_TRY_GOTO(read_model(root, out), st, done);
    ASSAY_TRY_GOTO(read_data(root, out), st, done);
    ASSAY_TRY_GOTO(read_layouts(root, out), st, done);
    if (json_object_get(root, "training") != NULL)
        ASSAY_TRY_GOTO(assay_train_options_from_json(&out->options, json_object_get(root, "training"),
                                                     ASSAY_FOR_CASE, path),
                       st, done);
    ASSAY_TRY_GOTO(read_precisions(root, out), st, done);
    ASSAY_TRY_GOTO(read_variants(root, out), st, done);
    ASSAY_TRY_GOTO(read_checks(root, out), st, done);
    if ((st = assay_train_options_check(&out->options)) != ASSAY_OK)
        assay_context(st, "%s: training", path);
done:
    if (st != ASSAY_OK)
        parity_case_free(out);
    return st;
}

assay_status parity_case_load(const char *path, parity_case *out)
{
    json_t *root = NULL;
    memset(out, 0, sizeof *out);
    ASSAY_CHECK(strlen(path) < ASSAY_PATH, ASSAY_LIMIT, "case file: path too long");
    ASSAY_TRY(assay_json_load(&root, path));
    const assay_status st = parity_case_read(root, path, out);
    json_decref(root);
    return st;
}

void parity_case_free(parity_case *c)
{
    json_decref(c->model);
    c->model = NULL;
}

assay_status parity_case_config(const parity_case *c, assay_model_config *config)
{
    char what[ASSAY_PATH + 16];
    snprintf(what, sizeof what, "%s: model", c->file);
    return c->model != NULL ? assay_config_from_json(c->model, what, config)
                            : assay_config_load(c->model_dir, config);
}

/* A config in Megatron-LM's form has training options of its own. */
static assay_status take_config(parity_case *c)
{
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    assay_status st = parity_case_config(c, config);
    if (st == ASSAY_OK)
        st = assay_inputs_take_config(&c->options, config);
    free(config);
    return st;
}

assay_status parity_case_weights(parity_case *c)
{
    assay_weights_source source;
    ASSAY_TRY(take_config(c));
    if (c->model != NULL && c->options.draw_weights < 0) {
        ASSAY_CHECK(
            c->options.seed <= (uint64_t)INT64_MAX, ASSAY_INVALID_ARGUMENT,
            "case %s: seed %llu: draws its weights, too, and must be below 2^63; or name another seed for "
            "them: --draw-weights SEED",
            c->name, (unsigned long long)c->options.seed);
        c->options.draw_weights = (int64_t)c->options.seed;
    }
    const assay_status st = assay_inputs_weights(c->model_dir, NULL, c->options.draw_weights, &source);
    return st == ASSAY_OK || c->name[0] == '\0' ? st : assay_context(st, "case %s", c->name);
}

static bool is_dir(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

assay_status parity_cases_dir(char *out, size_t capacity)
{
    static const char *const beside[] = {"../../../parity/cases", "../../parity/cases",
                                         "../share/assay/parity/cases"};
    const char *env = getenv("ASSAY_CASES");
    char self[ASSAY_PATH];
    if (env != NULL && env[0] != 0) {
        ASSAY_CHECK(is_dir(env), ASSAY_NOT_FOUND, "ASSAY_CASES: expected a folder, found %s", env);
        snprintf(out, capacity, "%s", env);
        return ASSAY_OK;
    }
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ASSAY_CHECK(n > 0, ASSAY_IO, "/proc/self/exe: %s", strerror(errno));
    self[n] = 0;
    *strrchr(self, '/') = 0;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        char path[ASSAY_PATH + 64];
        snprintf(path, sizeof path, "%s/%s", self, beside[i]);
        char *real = is_dir(path) ? realpath(path, NULL) : NULL;
        if (real != NULL) {
            const bool fits = strlen(real) < capacity;
            if (fits)
                snprintf(out, capacity, "%s", real);
            free(real);
            ASSAY_CHECK(fits, ASSAY_LIMIT, "path of the cases is too long");
            return ASSAY_OK;
        }
    }
#ifdef ASSAY_SOURCE_CASES
    /* A build folder outside the source tree. */
    if (is_dir(ASSAY_SOURCE_CASES) && strlen(ASSAY_SOURCE_CASES) < capacity) {
        snprintf(out, capacity, "%s", ASSAY_SOURCE_CASES);
        return ASSAY_OK;
    }
#endif
    ASSAY_FAIL(ASSAY_NOT_FOUND, "no case files beside %s: name one (assay run FILE.json) or set ASSAY_CASES",
               self);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

assay_status parity_cases_list(const char *dir, char ***paths, int *n)
{
    DIR *d = opendir(dir);
    *paths = NULL;
    *n = 0;
    ASSAY_CHECK(d != NULL, ASSAY_IO, "%s: %s", dir, strerror(errno));
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        const size_t length = strlen(e->d_name);
        if (length < 6 || strcmp(e->d_name + length - 5, ".json") != 0 || e->d_name[0] == '.')
            continue;
        char **grown = realloc(*paths, ((size_t)*n + 1) * sizeof *grown);
        char *path = malloc(strlen(dir) + length + 2);
        if (grown != NULL)
            *paths = grown;
        if (grown == NULL || path == NULL) {
            free(path);
            closedir(d);
            ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: list of cases", dir);
        }
        sprintf(path, "%s/%s", dir, e->d_name);
        (*paths)[(*n)++] = path;
    }
    closedir(d);
    if (*n > 0) /* qsort takes no NULL, not even of no elements */
        qsort(*paths, (size_t)*n, sizeof **paths, by_name);
    return ASSAY_OK;
}
