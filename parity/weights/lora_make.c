/* What an adapter makes of one tensor. */
#include "parity/weights/lora_internal.h"
#include "ref/adapter.h"
#include "ref/weights_read.h"

#include <stdlib.h>
#include <string.h>

bool parity_lora_named(const char *const *names, const char *name)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

const char *parity_lora_last(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot != NULL ? dot + 1 : module;
}

/* The tensor below: a tied head is the embedding. */
const assay_tensor_info *parity_lora_base(const lora *l, const char *name)
{
    const assay_tensor_info *t = assay_tensorfile_find(l->model.file, name);
    return t == NULL && l->untied && strcmp(name, LORA_HEAD) == 0
               ? assay_tensorfile_find(l->model.file, LORA_EMBEDDING)
               : t;
}

assay_status parity_lora_part(const assay_adapter *a, const assay_tensor_info *t, double **out)
{
    const assay_quantization none = {0};
    *out = malloc(((size_t)t->count + 1) * sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", t->name, (long long)t->count);
    const assay_status st = ref_stored_read(a->file, &none, t, *out);
    if (st == ASSAY_OK)
        return ASSAY_OK;
    free(*out);
    *out = NULL;
    return st;
}

/* transformers' Conv1D, whose weights are [in, out].  PEFT asks the module and not fan_in_fan_out, which it turns on or off with a warning: so
 * do we where the class is known, and elsewhere that holds what PEFT wrote. */
bool parity_lora_is_conv1d(const lora *l, const assay_lora_module *m, const int64_t *shape)
{
    static const char *const types[] = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer", NULL};
    static const char *const modules[] = {"c_attn", "c_proj", "c_fc", "q_attn", NULL};
    const char *type = json_string_value(json_object_get(l->model.config, "model_type"));
    if (m->part[ASSAY_LORA_A] == NULL)
        return false;
    if (type != NULL && parity_lora_named(types, type))
        return parity_lora_named(modules, parity_lora_last(m->name));
    return l->adapter.fan_in_fan_out && l->model.spec == NULL &&
           shape[0] == m->part[ASSAY_LORA_A]->shape[1] && shape[1] == m->part[ASSAY_LORA_B]->shape[0];
}

/* w [rows,columns] to [columns,rows] */
static assay_status transpose(double *w, int64_t rows, int64_t columns)
{
    double *copy = malloc(((size_t)(rows * columns) + 1) * sizeof *copy);
    ASSAY_CHECK(copy != NULL, ASSAY_OUT_OF_MEMORY, "%lld elements", (long long)(rows * columns));
    memcpy(copy, w, (size_t)(rows * columns) * sizeof *copy);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            w[c * rows + r] = copy[r * columns + c];
    free(copy);
    return ASSAY_OK;
}

/* w [shape] = w with the low-rank part of m. */
static assay_status add_rows(const lora *l, const assay_lora_module *m, const int64_t shape[2], double *w)
{
    const bool embedding = m->part[ASSAY_LORA_A] == NULL;
    const int64_t count = shape[0] * shape[1];
    double *a = NULL, *b = NULL, *length = NULL, *delta = malloc(((size_t)count + 1) * sizeof *delta);
    int64_t row = -1;
    assay_status st = ASSAY_OK;
    const double scale = ref_lora_scale(m->alpha, m->r, l->adapter.use_rslora);
    ASSAY_CHECK(delta != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", m->name, (long long)count);
    ASSAY_TRY_GOTO(
        parity_lora_part(&l->adapter, m->part[embedding ? ASSAY_LORA_EMBEDDING_A : ASSAY_LORA_A], &a), st,
        done);
    ASSAY_TRY_GOTO(
        parity_lora_part(&l->adapter, m->part[embedding ? ASSAY_LORA_EMBEDDING_B : ASSAY_LORA_B], &b), st,
        done);
    if (embedding)
        ref_lora_delta_embedding(delta, a, b, shape[0], shape[1], m->r, scale);
    else
        ref_lora_delta(delta, a, b, shape[0], shape[1], m->r, scale);
    if (l->adapter.use_dora) {
        ASSAY_TRY_GOTO(parity_lora_part(&l->adapter, m->part[ASSAY_LORA_MAGNITUDE], &length), st, done);
        ref_dora_merge(w, delta, length, shape[0], shape[1], &row);
        ASSAY_CHECK_GOTO(row < 0, ASSAY_MISMATCH, st, done,
                         "%s.weight: row %lld has no length, by which DoRA divides", m->name, (long long)row);
        goto done;
    }
    for (int64_t i = 0; i < count; i++)
        w[i] += delta[i];
done:
    free(a);
    free(b);
    free(length);
    free(delta);
    return st;
}

/* Of a Conv1D its transpose is the matrix that is adapted. */
static assay_status add_low_rank(const lora *l, const assay_lora_module *m, const parity_made *t, double *w)
{
    const int64_t turned[2] = {t->shape[1], t->shape[0]};
    if (!parity_lora_is_conv1d(l, m, t->shape))
        return add_rows(l, m, t->shape, w);
    ASSAY_TRY(transpose(w, t->shape[0], t->shape[1]));
    ASSAY_TRY(add_rows(l, m, turned, w));
    return transpose(w, turned[0], turned[1]);
}

/* --- merging --------------------------------------------------------------------------------------------------------- */
static const assay_lora_module *module_of(const lora *l, const char *tensor)
{
    char module[ASSAY_MODULE_NAME];
    const size_t n = strlen(tensor), m = strlen(".weight");
    if (n <= m || strcmp(tensor + n - m, ".weight") != 0)
        return assay_adapter_find(&l->adapter, tensor);
    if (n - m >= sizeof module)
        return NULL;
    snprintf(module, sizeof module, "%.*s", (int)(n - m), tensor);
    return assay_adapter_find(&l->adapter, module);
}

const assay_tensor_info *parity_lora_experts(const lora *l, const char *tensor, int64_t *first, int64_t *rows)
{
    static const char *const parts[] = {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"};
    static const char experts[] = ".experts.";
    char name[ASSAY_MODULE_NAME];
    const char *at = strstr(tensor, experts);
    char *end = NULL;
    const long long expert = at != NULL ? strtoll(at + sizeof experts - 1, &end, 10) : -1;
    int part = 0;
    while (part < 3 && (end == NULL || strcmp(end, parts[part]) != 0))
        part++;
    if (part == 3 || expert < 0 || at - tensor > ASSAY_MODULE_NAME - 64)
        return NULL;
    snprintf(name, sizeof name, "%.*s.experts.%s", (int)(at - tensor), tensor,
             part == 2 ? "down_proj" : "gate_up_proj");
    const assay_lora_module *m = assay_adapter_find(&l->adapter, name);
    const assay_tensor_info *t = m != NULL ? m->part[ASSAY_LORA_WHOLE] : NULL;
    if (t == NULL || t->ndim != 3 || expert >= t->shape[0] || (part < 2 && t->shape[1] % 2 != 0))
        return NULL;
    *rows = t->shape[1] / (part == 2 ? 1 : 2);
    *first = expert * t->shape[1] + (part == 1 ? *rows : 0);
    return t;
}

static assay_status read_expert(const assay_tensor_info *t, int64_t first, int64_t count, double **out)
{
    *out = malloc(((size_t)count + 1) * sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", t->name, (long long)count);
    for (int64_t i = 0; i < count; i++)
        (*out)[i] = ref_stored_element(t->data, t->dtype, first * t->shape[2] + i);
    return ASSAY_OK;
}

assay_status parity_lora_make(void *user, const parity_made *t, double **out)
{
    const lora *l = user;
    const assay_lora_module *m = module_of(l, t->name);
    int64_t first, rows;
    const assay_tensor_info *experts = parity_lora_experts(l, t->name, &first, &rows);
    if (experts != NULL)
        return read_expert(experts, first, t->count, out);
    if (m != NULL && m->part[ASSAY_LORA_WHOLE] != NULL)
        ASSAY_TRY(parity_lora_part(&l->adapter, m->part[ASSAY_LORA_WHOLE], out));
    else
        ASSAY_TRY(parity_model_read(&l->model, parity_lora_base(l, t->name), out));
    return m != NULL && m->r > 0 ? add_low_rank(l, m, t, *out) : ASSAY_OK;
}
