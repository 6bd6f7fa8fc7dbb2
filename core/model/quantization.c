/* quantization_config, and where the scales of an fp8 weight lie. */
#include "core/model/quantization.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_BLOCK = 128, MAX_BLOCK = 1 << 20 };

/* A word of the object that must be one of `words` where it is there. */
static assay_status one_of(const json_t *object, const char *key, const char *what, const char *const *words)
{
    char found[64] = "", expected[128] = "";
    ASSAY_TRY(assay_json_get_string(object, key, false, what, found, sizeof found));
    size_t used = 0;
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(found, words[i]) == 0)
            return ASSAY_OK;
        used +=
            (size_t)snprintf(expected + used, sizeof expected - used, "%s%s", i > 0 ? " or " : "", words[i]);
    }
    ASSAY_CHECK(found[0] == '\0', ASSAY_UNSUPPORTED, "%s: %s: expected %s, found %s", what, key, expected,
                found);
    return ASSAY_OK;
}

static assay_status read_block(const json_t *object, const char *what, int64_t block[2])
{
    const json_t *size = json_object_get(object, "weight_block_size");
    block[0] = block[1] = size == NULL ? DEFAULT_BLOCK : 0;
    if (size == NULL || json_is_null(size))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(size) && json_array_size(size) == 2, ASSAY_FORMAT,
                "%s: weight_block_size: expected two numbers", what);
    for (size_t i = 0; i < 2; i++) {
        const json_t *n = json_array_get(size, i);
        ASSAY_CHECK(json_is_integer(n) && json_integer_value(n) >= 1 && json_integer_value(n) <= MAX_BLOCK,
                    ASSAY_FORMAT, "%s: weight_block_size[%zu]: expected an integer from 1 to %d", what, i,
                    (int)MAX_BLOCK);
        block[i] = (int64_t)json_integer_value(n);
    }
    return ASSAY_OK;
}

assay_status assay_quantization_read(const json_t *config, const char *what, assay_quantization *out)
{
    static const char *const known[] = {"quant_method",
                                        "fmt",
                                        "weight_block_size",
                                        "activation_scheme",
                                        "scale_fmt",
                                        "expert_dtype",
                                        "dequantize",
                                        "modules_to_not_convert",
                                        "ignored_layers",
                                        "modules_to_convert",
                                        NULL};
    static const char *const methods[] = {"fp8", NULL}, *const formats[] = {"e4m3", NULL};
    static const char *const schemes[] = {"dynamic", "static", NULL};
    static const char *const scales[] = {"float", "ue8m0", NULL};
    const json_t *object = json_object_get(config, "quantization_config");
    char where[PATH_MAX + 64], method[64], scheme[16] = "dynamic";
    *out = (assay_quantization){0};
    if (object == NULL || json_is_null(object))
        return ASSAY_OK;
    snprintf(where, sizeof where, "%s: quantization_config", what);
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT, "%s: expected an object", where);
    ASSAY_TRY(assay_json_get_string(object, "quant_method", true, where, method, sizeof method));
    ASSAY_TRY(one_of(object, "quant_method", where, methods));
    ASSAY_TRY(assay_json_only(object, known, where));
    ASSAY_TRY(one_of(object, "fmt", where, formats));
    ASSAY_TRY(one_of(object, "activation_scheme", where, schemes));
    ASSAY_TRY(one_of(object, "scale_fmt", where, scales));
    ASSAY_TRY(one_of(object, "expert_dtype", where, methods));
    ASSAY_TRY(assay_json_get_string(object, "activation_scheme", false, where, scheme, sizeof scheme));
    ASSAY_TRY(read_block(object, where, out->block));
    out->fp8 = true;
    out->static_activations = strcmp(scheme, "static") == 0;
    return ASSAY_OK;
}

assay_status assay_quantization_of_folder(const char *folder, assay_quantization *out)
{
    char path[PATH_MAX];
    json_t *config = NULL;
    *out = (assay_quantization){0};
    const int n = snprintf(path, sizeof path, "%s/config.json", folder);
    ASSAY_CHECK(n > 0 && (size_t)n < sizeof path, ASSAY_LIMIT, "%.200s: the path is too long", folder);
    if (access(path, F_OK) != 0)
        return ASSAY_OK;
    ASSAY_TRY(assay_json_load(&config, path));
    const assay_status st = assay_quantization_read(config, path, out);
    json_decref(config);
    return st;
}

/* --- scales ------------------------------------------------------------------------------------------------- */
static const assay_tensor_info *beside(const assay_tensorfile *f, const char *weight, const char *suffix)
{
    char name[1024];
    const int n = snprintf(name, sizeof name, "%s%s", weight, suffix);
    return n > 0 && (size_t)n < sizeof name ? assay_tensorfile_find(f, name) : NULL;
}

/* [], [1] or [1,1]. */
static assay_status check_single(const assay_tensor_info *scale)
{
    ASSAY_CHECK(scale->count == 1 && scale->ndim <= 2, ASSAY_MISMATCH,
                "%s: expected one scale of the whole tensor, found %lld", scale->name,
                (long long)scale->count);
    return ASSAY_OK;
}

static assay_status check_grid(const assay_tensor_info *scale, const assay_tensor_info *w,
                               const assay_quantization *q)
{
    ASSAY_CHECK(w->ndim == 2, ASSAY_UNSUPPORTED,
                "%s: blocks of scales of a tensor of %d dimensions, expected 2", w->name, w->ndim);
    const int64_t rows = (w->shape[0] + q->block[0] - 1) / q->block[0];
    const int64_t columns = (w->shape[1] + q->block[1] - 1) / q->block[1];
    ASSAY_CHECK(
        scale->ndim == 2 && scale->shape[0] == rows && scale->shape[1] == columns, ASSAY_MISMATCH,
        "%s: expected [%lld,%lld] scales of a [%lld,%lld] weight in blocks of %lld x %lld, found %lld in "
        "%d dimensions",
        scale->name, (long long)rows, (long long)columns, (long long)w->shape[0], (long long)w->shape[1],
        (long long)q->block[0], (long long)q->block[1], (long long)scale->count, scale->ndim);
    return ASSAY_OK;
}

assay_status assay_block_scales_of(const assay_tensorfile *f, const assay_quantization *q,
                                   const assay_tensor_info *weight, assay_block_scales *out)
{
    const assay_tensor_info *blocks = beside(f, weight->name, "_scale_inv");
    const assay_tensor_info *whole = beside(f, weight->name, "_scale");
    *out = (assay_block_scales){.rows = 1, .columns = 1, .width = 1, .per_row = 1};
    if (weight->dtype != ASSAY_F8_E4M3) {
        ASSAY_CHECK(!q->fp8 || (blocks == NULL && whole == NULL), ASSAY_MISMATCH,
                    "%s: has scales, but is %s and not F8_E4M3", weight->name,
                    assay_dtype_name(weight->dtype));
        return ASSAY_OK;
    }
    ASSAY_CHECK(q->fp8, ASSAY_UNSUPPORTED, "%s: F8_E4M3, but the configuration has no quantization_config",
                weight->name);
    ASSAY_CHECK(blocks != NULL || whole != NULL, ASSAY_NOT_FOUND,
                "%s: F8_E4M3, but there is no tensor '%s_scale_inv' or '%s_scale'", weight->name,
                weight->name, weight->name);
    ASSAY_CHECK(blocks == NULL || whole == NULL, ASSAY_MISMATCH, "%s: has both %s and %s", weight->name,
                blocks ? blocks->name : "", whole ? whole->name : "");
    out->scale = blocks != NULL ? blocks : whole;
    ASSAY_CHECK(out->scale->dtype == ASSAY_F32 || out->scale->dtype == ASSAY_BF16 ||
                    out->scale->dtype == ASSAY_F8_E8M0,
                ASSAY_UNSUPPORTED, "%s: expected F32, BF16 or F8_E8M0, found %s", out->scale->name,
                assay_dtype_name(out->scale->dtype));
    if (whole != NULL || q->block[0] == 0) {
        out->rows = weight->count > 0 ? weight->count : 1;
        return check_single(out->scale);
    }
    ASSAY_TRY(check_grid(blocks, weight, q));
    out->rows = q->block[0];
    out->columns = q->block[1];
    out->width = weight->shape[1] > 0 ? weight->shape[1] : 1;
    out->per_row = blocks->shape[1];
    return ASSAY_OK;
}

bool assay_is_block_scale(const assay_tensorfile *f, const assay_quantization *q, const char *name)
{
    /* What stands behind X of X.weight. */
    static const char *const suffixes[] = {".weight_scale_inv", ".weight_scale", ".input_scale",
                                           ".activation_scale"};
    char weight[1024];
    const size_t length = strlen(name);
    for (int i = 0; i < (q->static_activations ? 4 : 2) && q->fp8; i++) {
        const size_t n = strlen(suffixes[i]);
        if (length <= n || length >= sizeof weight || strcmp(name + length - n, suffixes[i]) != 0)
            continue;
        snprintf(weight, sizeof weight, "%.*s.weight", (int)(length - n), name);
        const assay_tensor_info *t = assay_tensorfile_find(f, weight);
        return t != NULL && t->dtype == ASSAY_F8_E4M3;
    }
    return false;
}
