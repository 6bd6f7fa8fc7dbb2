/* Tensors of PaddleNLP's files to the parameters of the model: what is missing, shadowed, unknown or of another shape. */
#include "core/files/paddle_internal.h"

#include <stdlib.h>
#include <string.h>

static assay_paddle_tensor *tensor_of(const assay_paddle *p, int role, int64_t slot)
{
    return &p->tensors[(int64_t)role * p->slots.n + slot];
}

/* "llama.norm.weight/moment1_0" -> its role and the length of the parameter's name. */
static int role_of(const char *key, assay_paddle_files kind, size_t *length)
{
    *length = strlen(key);
    if (kind != ASSAY_PADDLE_FILES_OPTIMIZER)
        return kind == ASSAY_PADDLE_FILES_MODEL ? ASSAY_PADDLE_WEIGHT : ASSAY_PADDLE_MASTER;
    const char *slash = strrchr(key, '/');
    for (int r = ASSAY_PADDLE_MOMENT1; slash != NULL && r < ASSAY_PADDLE_ROLES; r++)
        if (strcmp(slash + 1, assay_paddle_suffixes[r]) == 0) {
            *length = (size_t)(slash - key);
            return r;
        }
    return -1;
}

static bool is_power(int role)
{
    return role == ASSAY_PADDLE_POW1 || role == ASSAY_PADDLE_POW2;
}

static bool equal(const assay_tensor_info *a, const assay_tensor_info *b)
{
    return a->dtype == b->dtype && a->bytes == b->bytes &&
           (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
}

/* --- types and shapes --------------------------------------------------------------------------------------- */
static void shape_text(const int64_t *shape, int ndim, char out[64])
{
    size_t used = 0;
    for (int d = 0; d < ndim && used < 50; d++)
        used += (size_t)snprintf(out + used, 64 - used, "%s%lld", d > 0 ? "," : "", (long long)shape[d]);
    out[used] = '\0';
}

static bool legal_type(const assay_paddle *p, int role, assay_dtype dtype)
{
    if (role == ASSAY_PADDLE_WEIGHT)
        return dtype == ASSAY_F32 || dtype == ASSAY_BF16 || dtype == ASSAY_F16 ||
               (dtype == ASSAY_U16 && p->bf16);
    return dtype == ASSAY_F32;
}

/* Whether the tensor has the slot's shape, but for dimension *dim, which may be a slice's (-1: none is). */
static bool fits(const assay_paddle *p, int role, int64_t slot, const assay_tensor_info *t, bool slices,
                 int *dim)
{
    const assay_paddle_slot *s = &p->slots.slots[slot];
    *dim = -1;
    if (is_power(role))
        return t->count == 1;
    if (t->ndim != s->ndim)
        return false;
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] == s->shape[d])
            continue;
        if (!slices || *dim >= 0 || t->shape[d] > s->shape[d])
            return false;
        *dim = d;
    }
    return true;
}

static bool check_tensor(assay_paddle *p, int role, int64_t slot, const assay_paddle_file *f,
                         const assay_tensor_info *t, int *dim)
{
    char want[64], have[64];
    const assay_paddle_slot *s = &p->slots.slots[slot];
    const bool unmerged = p->facts.unmerged && f->kind != ASSAY_PADDLE_FILES_MODEL;
    if (p->facts.quantized && role >= ASSAY_PADDLE_MOMENT1 && t->dtype != ASSAY_F32)
        return false; /* said once, of all */
    if (!legal_type(p, role, t->dtype)) {
        assay_paddle_say(p, true, "%s: %s: dtype %s, expected %s", f->name, t->name,
                         assay_dtype_name(t->dtype),
                         role != ASSAY_PADDLE_WEIGHT ? "F32"
                         : p->bf16                   ? "U16 or BF16 (config.json: dtype bfloat16), or F32"
                                   : "F32 or F16 (config.json does not say dtype bfloat16)");
        return false;
    }
    if (fits(p, role, slot, t, unmerged, dim))
        return true;
    shape_text(s->shape, is_power(role) ? 0 : s->ndim, want);
    shape_text(t->shape, t->ndim, have);
    assay_paddle_say(p, true, "%s: %s: shape [%s], expected [%s]", f->name, t->name, have,
                     is_power(role) ? "1" : want);
    return false;
}

/* --- placing ------------------------------------------------------------------------------------------------ */
static assay_status append(assay_paddle_tensor *x, const assay_tensor_info *t)
{
    ASSAY_CHECK(x->n < ASSAY_PADDLE_MAX_PIECES, ASSAY_LIMIT, "%s: more than %d slices", t->name,
                ASSAY_PADDLE_MAX_PIECES);
    const assay_tensor_info **more = realloc((void *)x->pieces, (size_t)(x->n + 1) * sizeof *more);
    ASSAY_CHECK(more != NULL, ASSAY_OUT_OF_MEMORY, "%s", t->name);
    x->pieces = more;
    x->pieces[x->n++] = t;
    return ASSAY_OK;
}

static assay_status place(assay_paddle *p, const assay_paddle_file *f, const assay_tensor_info *t)
{
    char name[ASSAY_NAME];
    size_t length;
    bool alias = false;
    int dim = -1;
    const int role = role_of(t->name, f->kind, &length);
    if (role < 0) {
        if (strchr(t->name, '@') == NULL || !p->facts.quantized)
            assay_paddle_say(p, true, "%s: %.160s: a state that AdamW does not have", f->name, t->name);
        return ASSAY_OK;
    }
    int64_t slot = -1;
    if (length < sizeof name) {
        memcpy(name, t->name, length);
        name[length] = '\0';
        slot = assay_paddle_slot_find(&p->slots, name, &alias);
    }
    if (slot < 0) {
        assay_paddle_say(p, true, "%s: %.160s: the model of config.json has no such parameter", f->name,
                         t->name);
        return ASSAY_OK;
    }
    assay_paddle_tensor *x = tensor_of(p, role, slot);
    if (!check_tensor(p, role, slot, f, t, &dim)) {
        x->bad = true;
        return ASSAY_OK;
    }
    if (x->n == 0) {
        x->dim = dim;
        return append(x, t);
    }
    if (dim >= 0) { /* the next rank's slice: files are in the order of their names */
        if (x->dim != dim) {
            assay_paddle_say(p, true, "%s: %s: another slice is cut in another dimension", f->name, t->name);
            x->bad = true;
            return ASSAY_OK;
        }
        return append(x, t);
    }
    if (!equal(x->pieces[0], t)) {
        assay_paddle_say(p, true, "%s: %s: differs from what %s holds", f->name, t->name,
                         alias || strcmp(x->pieces[0]->name, t->name) != 0 ? "its tied name"
                                                                           : "another rank's file");
        x->bad = true;
    }
    return ASSAY_OK;
}

/* --- files against their index ------------------------------------------------------------------------------ */
/* A tensor that the index places elsewhere, or nowhere.  Split parameters have their powers in the files of both ranks. */
static void check_shadowed(assay_paddle *p, const assay_paddle_file *f, const assay_tensor_info *t,
                           const char *place)
{
    const assay_paddle_file *other = assay_paddle_file_named(p, f->kind, place);
    const assay_tensor_info *read =
        other != NULL && other->file != NULL ? assay_tensorfile_find(other->file, t->name) : NULL;
    size_t length;
    if (place == NULL) {
        if (!(p->facts.quantized && strchr(t->name, '@') != NULL))
            assay_paddle_say(p, true, "%s: %.160s: the index does not name it, so PaddleNLP passes it over",
                             f->name, t->name);
    } else if (read == NULL)
        assay_paddle_say(p, true, "%s: %.160s: is here, but the index says it is in %.160s", f->name, t->name,
                         place);
    else if (!is_power(role_of(t->name, f->kind, &length)) || !equal(read, t))
        assay_paddle_say(p, true, "%s: %.160s: shadowed: the index reads the one in %.160s, which %s",
                         f->name, t->name, place, equal(read, t) ? "is equal" : "differs");
}

static assay_status place_file(assay_paddle *p, const assay_paddle_file *f)
{
    const json_t *map = json_object_get(p->index[f->kind], "weight_map");
    for (int64_t i = 0; f->file != NULL && i < assay_tensorfile_count(f->file); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f->file, i);
        const char *there = json_string_value(json_object_get(map, t->name));
        if (map != NULL && (there == NULL || strcmp(there, f->name) != 0))
            check_shadowed(p, f, t, there);
        else
            ASSAY_TRY(place(p, f, t));
    }
    return ASSAY_OK;
}

static void check_index(assay_paddle *p, assay_paddle_files kind)
{
    const char *key;
    json_t *value;
    int64_t said;
    size_t bytes = 0;
    json_t *map = json_object_get(p->index[kind], "weight_map");
    json_object_foreach(map, key, value)
    {
        const assay_paddle_file *f = assay_paddle_file_named(p, kind, json_string_value(value));
        const assay_tensor_info *t =
            f != NULL && f->file != NULL ? assay_tensorfile_find(f->file, key) : NULL;
        bytes += t != NULL ? t->bytes : 0;
        if (f != NULL && f->file != NULL && t == NULL &&
            !(p->facts.quantized && strstr(key, "/moment1_0") != NULL))
            assay_paddle_say(p, true, "%s: %.160s: the index says it is here, it is not", f->name, key);
    }
    const json_t *metadata = json_object_get(p->index[kind], "metadata");
    if (!json_is_object(map) || (p->facts.quantized && kind == ASSAY_PADDLE_FILES_OPTIMIZER))
        return;
    if (assay_json_get_i64(metadata, "total_size", true, 0, INT64_MAX, "metadata", &said) != ASSAY_OK) {
        assay_error_clear();
        assay_paddle_say(p, true, "%s.safetensors.index.json: metadata.total_size: expected an integer",
                         assay_paddle_words[kind]);
    } else if ((size_t)said != bytes &&
               (size_t)said != p->facts.bytes[kind]) /* split parameters: all that lies there */
        assay_paddle_say(p, true,
                         "%s.safetensors.index.json: total_size says %lld bytes, the tensors have %zu",
                         assay_paddle_words[kind], (long long)said, bytes);
}

/* --- what a parameter must have ----------------------------------------------------------------------------- */
/* Slices of all ranks, no fewer. */
static void check_slices(assay_paddle *p, int role, int64_t slot)
{
    assay_paddle_tensor *x = tensor_of(p, role, slot);
    const assay_paddle_slot *s = &p->slots.slots[slot];
    int64_t sum = 0;
    for (int i = 0; x->dim >= 0 && i < x->n; i++)
        sum += x->pieces[i]->shape[x->dim];
    if (x->n > 0 && !x->bad && x->dim >= 0 && sum != s->shape[x->dim]) {
        assay_paddle_say(p, true, "%s: %s: %d slices of %lld in all, expected %lld: a rank's file is missing",
                         assay_paddle_role_name((assay_paddle_role)role), s->name, x->n, (long long)sum,
                         (long long)s->shape[x->dim]);
        x->bad = true;
    }
}

static bool here(const assay_paddle *p, int role, int64_t slot)
{
    const assay_paddle_tensor *x = tensor_of(p, role, slot);
    return x->n > 0 || x->bad;
}

static void check_states(assay_paddle *p, int64_t slot)
{
    const char *name = p->slots.slots[slot].name;
    int found = 0;
    for (int r = ASSAY_PADDLE_MOMENT1; r < ASSAY_PADDLE_ROLES; r++)
        found += here(p, r, slot);
    const bool master = here(p, ASSAY_PADDLE_MASTER, slot);
    const bool any = found > 0 || (master && p->facts.has_masters && !p->facts.masters_as_weights);
    p->facts.trained += any;
    p->facts.without += !any;
    for (int r = ASSAY_PADDLE_MOMENT1; any && r < ASSAY_PADDLE_ROLES; r++)
        if (!here(p, r, slot) && !p->facts.quantized)
            assay_paddle_say(p, true, "%s/%s: missing: the parameter's other states are here%s", name,
                             assay_paddle_suffixes[r],
                             r < ASSAY_PADDLE_POW1 ? "" : " (PaddleNLP begins the power afresh)");
    if (any && !master && p->facts.has_masters && tensor_of(p, ASSAY_PADDLE_WEIGHT, slot)->n > 0 &&
        tensor_of(p, ASSAY_PADDLE_WEIGHT, slot)->pieces[0]->dtype != ASSAY_F32)
        assay_paddle_say(
            p, true, "%s: no master beside its states: PaddleNLP casts one from the rounded weight", name);
}

static void check_slots(assay_paddle *p)
{
    for (int64_t i = 0; i < p->slots.n; i++) {
        for (int r = 0; r < ASSAY_PADDLE_ROLES; r++)
            check_slices(p, r, i);
        if (!here(p, ASSAY_PADDLE_WEIGHT, i) && p->facts.files[ASSAY_PADDLE_FILES_MODEL] > 0)
            assay_paddle_say(p, true, "%s: no weight in model-*: PaddleNLP keeps what was drawn",
                             p->slots.slots[i].name);
        if (p->facts.has_optimizer)
            check_states(p, i);
    }
    if (p->facts.has_optimizer && p->facts.without > 0 && p->facts.trained > 0)
        for (int64_t i = 0; i < p->slots.n; i++) {
            bool any = here(p, ASSAY_PADDLE_MASTER, i) && !p->facts.masters_as_weights;
            for (int r = ASSAY_PADDLE_MOMENT1; r < ASSAY_PADDLE_ROLES; r++)
                any = any || here(p, r, i);
            if (!any)
                assay_paddle_say(p, false,
                                 "%s: no states: it was frozen, or lost them; PaddleNLP begins them afresh",
                                 p->slots.slots[i].name);
        }
}

/* What the optimizer's index says of masters, and what lies there. */
static void check_masters(assay_paddle *p)
{
    const json_t *index = p->index[ASSAY_PADDLE_FILES_OPTIMIZER];
    const bool said = json_is_true(json_object_get(index, "master_weights"));
    const bool own = p->facts.files[ASSAY_PADDLE_FILES_MASTERS] > 0;
    p->facts.masters_as_weights = said && !own && p->facts.weight == ASSAY_F32 && p->bf16;
    p->facts.has_masters = own || p->facts.masters_as_weights;
    if (said && !p->facts.has_masters)
        assay_paddle_say(p, true,
                         "master_weights.safetensors.index.json: missing: the optimizer's index says that "
                         "there are masters");
    if (p->facts.has_optimizer && !p->facts.has_masters && !said && p->bf16)
        assay_paddle_say(p, false,
                         "no masters (remove_master_weight): PaddleNLP casts them from the rounded weights, "
                         "16 bits are lost");
    if (own && json_is_object(json_object_get(index, "weight_map")) && !said)
        assay_paddle_say(p, true,
                         "optimizer.safetensors.index.json: does not say master_weights, so PaddleNLP passes "
                         "the masters over");
}

/* The type of model-*: that of most of its tensors; single ones may be kept in F32. */
static void find_weight_type(assay_paddle *p)
{
    int64_t n[ASSAY_DTYPE_COUNT] = {0};
    for (int64_t i = 0; i < p->slots.n; i++) {
        const assay_paddle_tensor *x = tensor_of(p, ASSAY_PADDLE_WEIGHT, i);
        if (x->n > 0)
            n[x->pieces[0]->dtype == ASSAY_U16 ? ASSAY_BF16 : x->pieces[0]->dtype]++;
    }
    p->facts.weight = n[ASSAY_BF16] > 0 ? ASSAY_BF16 : n[ASSAY_F16] > 0 ? ASSAY_F16 : ASSAY_F32;
    if (n[ASSAY_BF16] > 0 && n[ASSAY_F16] > 0)
        assay_paddle_say(p, true, "model: %lld tensors of BF16 and %lld of F16", (long long)n[ASSAY_BF16],
                         (long long)n[ASSAY_F16]);
}

/* Fused names in the index are the only sign of fused weights: config.json does not keep the option. */
static bool index_has(const assay_paddle *p, const char *word)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(p->index[ASSAY_PADDLE_FILES_MODEL], "weight_map"), key,
                        value) if (strstr(key, word) != NULL) return true;
    return false;
}

assay_status assay_paddle_place(assay_paddle *p)
{
    const char *stage =
        json_string_value(json_object_get(p->index[ASSAY_PADDLE_FILES_OPTIMIZER], "ckpt_quant_stage"));
    p->facts.quantized = stage != NULL && strcmp(stage, "O0") != 0;
    ASSAY_TRY(assay_paddle_slots_make(&p->slots, p->spec, index_has(p, ".qkv_proj."),
                                      index_has(p, ".gate_up_fused_proj.")));
    p->tensors = calloc((size_t)(p->slots.n * ASSAY_PADDLE_ROLES) + 1, sizeof *p->tensors);
    ASSAY_CHECK(p->tensors != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld tensors", p->dir, (long long)p->slots.n);
    for (int64_t i = 0; i < p->slots.n * ASSAY_PADDLE_ROLES; i++)
        p->tensors[i].dim = -1;
    for (int64_t i = 0; i < p->n_files; i++)
        ASSAY_TRY(place_file(p, &p->files[i]));
    for (int k = 0; k < ASSAY_PADDLE_FILES_COUNT; k++)
        check_index(p, (assay_paddle_files)k);
    find_weight_type(p);
    check_masters(p);
    if (p->facts.quantized)
        assay_paddle_say(p, false,
                         "optimizer: states are quantized (ckpt_quant_stage %s): lossy when they were saved, "
                         "and not read here",
                         stage);
    check_slots(p);
    return ASSAY_OK;
}
