/* A folder of PaddleNLP's, opened: its model, its files, and its parameters as canonical tensors. */
#include "core/files/paddle_internal.h"

#include <stdlib.h>
#include <string.h>

static assay_status read_config(assay_paddle *p)
{
    char path[ASSAY_PADDLE_PATH + 300], dtype[32] = "";
    json_t *root = NULL;
    assay_model_config *config = malloc(sizeof *config);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "%s: model", p->dir);
    ASSAY_TRY_GOTO(assay_paddle_path(p, "config.json", path), st, done);
    ASSAY_TRY_GOTO(assay_json_load(&root, path), st, done);
    ASSAY_TRY_GOTO(assay_json_get_string(root, "dtype", false, path, dtype, sizeof dtype), st, done);
    p->bf16 = strcmp(dtype, "bfloat16") == 0;
    ASSAY_TRY_GOTO(assay_json_get_string(root, "paddlenlp_version", false, path, p->facts.version,
                                         sizeof p->facts.version),
                   st, done);
    ASSAY_TRY_GOTO(assay_paddle_config(root, path, config), st, done);
    st = assay_spec_build(config, &p->spec);
done:
    json_decref(root);
    free(config);
    return st;
}

assay_status assay_paddle_open(assay_paddle **out, const char *dir, assay_paddle_finding sink, void *user)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    ASSAY_CHECK(strlen(dir) < ASSAY_PADDLE_PATH, ASSAY_INVALID_ARGUMENT, "%.64s...: path too long", dir);
    assay_paddle *p = calloc(1, sizeof *p);
    ASSAY_CHECK(p != NULL, ASSAY_OUT_OF_MEMORY, "%s", dir);
    snprintf(p->dir, sizeof p->dir, "%s", dir);
    p->sink = sink;
    p->user = user;
    ASSAY_TRY_GOTO(assay_paddle_find_files(p), st, fail);
    ASSAY_TRY_GOTO(read_config(p), st, fail);
    ASSAY_TRY_GOTO(assay_paddle_place(p), st, fail);
    ASSAY_TRY_GOTO(assay_paddle_read_trainer(p), st, fail);
    *out = p;
    return ASSAY_OK;
fail:
    assay_paddle_close(p);
    return st;
}

void assay_paddle_close(assay_paddle *p)
{
    if (p == NULL)
        return;
    for (int64_t i = 0; p->tensors != NULL && i < p->slots.n * ASSAY_PADDLE_ROLES; i++)
        free((void *)p->tensors[i].pieces);
    free(p->tensors);
    for (int64_t i = 0; i < p->n_files; i++)
        assay_tensorfile_close(p->files[i].file);
    free(p->files);
    for (int64_t i = 0; i < p->n_listing; i++)
        free(p->listing[i]);
    free((void *)p->listing);
    for (int k = 0; k < ASSAY_PADDLE_FILES_COUNT; k++) {
        json_decref(p->index[k]);
        json_decref(p->by_name[k]);
    }
    assay_paddle_slots_free(&p->slots);
    assay_spec_destroy(p->spec);
    free(p);
}

const assay_model_spec *assay_paddle_spec(const assay_paddle *p)
{
    return p->spec;
}

const assay_paddle_facts *assay_paddle_facts_of(const assay_paddle *p)
{
    return &p->facts;
}

/* --- parameters --------------------------------------------------------------------------------------------- */
/* Slots of a parameter stand together: the first, and how many. */
static int64_t slots_of(const assay_paddle *p, int64_t param, int64_t *n)
{
    int64_t first = 0;
    while (first < p->slots.n && p->slots.slots[first].param != param)
        first++;
    for (*n = 0; first + *n < p->slots.n && p->slots.slots[first + *n].param == param;)
        (*n)++;
    return first;
}

/* Masters that lie under the names of the weights. */
static const assay_paddle_tensor *tensor_of(const assay_paddle *p, assay_paddle_role role, int64_t slot)
{
    const int from =
        role == ASSAY_PADDLE_MASTER && p->facts.masters_as_weights ? ASSAY_PADDLE_WEIGHT : (int)role;
    return &p->tensors[from * p->slots.n + slot];
}

assay_dtype assay_paddle_has(const assay_paddle *p, assay_paddle_role role, int64_t param)
{
    int64_t n;
    const int64_t first = slots_of(p, param, &n);
    assay_dtype dtype = ASSAY_DTYPE_COUNT;
    for (int64_t i = first; i < first + n; i++) {
        const assay_paddle_tensor *x = tensor_of(p, role, i);
        if (x->n == 0 || x->bad || (i > first && x->pieces[0]->dtype != dtype))
            return ASSAY_DTYPE_COUNT;
        dtype = x->pieces[0]->dtype;
    }
    return dtype;
}

/* Element (row, column), of the canonical orientation, of a joined tensor. */
typedef struct joined {
    const assay_paddle_slot *slot;
    const assay_paddle_tensor *tensor;
    int64_t width;
} joined;

/* Copies a slice into the place that its elements have in dst, the slot's tensor in the canonical orientation. */
static void copy_slice(const joined *j, const assay_tensor_info *t, int64_t before, char *dst)
{
    const assay_paddle_slot *s = j->slot;
    const int dim = j->tensor->dim;
    const int64_t rows = t->shape[0], columns = t->ndim > 1 ? t->shape[1] : 1;
    const int64_t whole_columns = s->ndim > 1 ? s->shape[1] : 1;
    const int64_t cut = dim >= 0 ? t->shape[dim] / s->blocks : 0,
                  whole = dim >= 0 ? s->shape[dim] / s->blocks : 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            int64_t at[2] = {r, c};
            if (dim >= 0) { /* each block is cut by itself */
                const int64_t block = cut > 0 ? at[dim] / cut : 0;
                at[dim] = block * whole + before / s->blocks + at[dim] - block * cut;
            }
            const int64_t to = s->transposed ? at[1] * s->shape[0] + at[0] : at[0] * whole_columns + at[1];
            memcpy(dst + to * j->width, (const char *)t->data + (r * columns + c) * j->width,
                   (size_t)j->width);
        }
}

static assay_status read_slot(const assay_paddle *p, const joined *j, char *dst)
{
    int64_t before = 0;
    for (int i = 0; i < j->tensor->n; i++) {
        const assay_tensor_info *t = j->tensor->pieces[i];
        const int dim = j->tensor->dim;
        ASSAY_CHECK(dim < 0 ||
                        (t->shape[dim] % j->slot->blocks == 0 && j->slot->shape[dim] % j->slot->blocks == 0),
                    ASSAY_MISMATCH, "%s: %s: slices of %lld in two halves", p->dir, t->name,
                    (long long)t->shape[dim]);
        copy_slice(j, t, before, dst);
        before += dim >= 0 ? t->shape[dim] : 0;
    }
    return ASSAY_OK;
}

assay_status assay_paddle_read(const assay_paddle *p, assay_paddle_role role, int64_t param, void *dst)
{
    int64_t n;
    const assay_param_spec *spec = &p->spec->params[param];
    const assay_dtype dtype = assay_paddle_has(p, role, param);
    ASSAY_CHECK(dtype != ASSAY_DTYPE_COUNT && role <= ASSAY_PADDLE_MOMENT2, ASSAY_NOT_FOUND,
                "%s: %s of %s is not there, or not whole", p->dir, assay_paddle_role_name(role), spec->name);
    const int64_t width = assay_dtype_bytes(dtype), first = slots_of(p, param, &n);
    for (int64_t i = first; i < first + n; i++) {
        const joined j = {&p->slots.slots[i], tensor_of(p, role, i), width};
        if (j.slot->part < 0) {
            ASSAY_TRY(read_slot(p, &j, dst));
            continue;
        }
        const assay_hf_part *part = &spec->parts[j.slot->part];
        const int64_t row = assay_hf_part_row_length(part) * width;
        char *own = malloc((size_t)(row * assay_hf_part_rows(part)) + 1);
        ASSAY_CHECK(own != NULL, ASSAY_OUT_OF_MEMORY, "%s: %s", p->dir, part->name);
        const assay_status st = read_slot(p, &j, own);
        for (int k = 0; k < part->n_pieces && st == ASSAY_OK; k++) {
            const assay_hf_piece *piece = &part->pieces[k];
            memcpy((char *)dst + piece->dst * row, own + piece->src * row, (size_t)(piece->rows * row));
        }
        free(own);
        ASSAY_TRY(st);
    }
    return ASSAY_OK;
}

assay_status assay_paddle_powers(const assay_paddle *p, assay_paddle_role role, int64_t param, float *dst,
                                 int64_t capacity, int64_t *n)
{
    const int64_t first = slots_of(p, param, n);
    *n = *n < capacity ? *n : capacity;
    for (int64_t i = 0; i < *n; i++) {
        const assay_paddle_tensor *x = tensor_of(p, role, first + i);
        ASSAY_CHECK(x->n > 0 && !x->bad, ASSAY_NOT_FOUND, "%s: %s/%s is not there", p->dir,
                    p->slots.slots[first + i].name, assay_paddle_suffixes[role]);
        memcpy(&dst[i], x->pieces[0]->data, sizeof dst[i]);
    }
    return ASSAY_OK;
}
