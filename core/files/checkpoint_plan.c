/* Which tensor of a checkpoint lies where: a function of the model, the types and the size of a shard. */
#include "core/base/text.h"
#include "core/files/checkpoint_internal.h"
#include "core/model/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_words[ASSAY_STORED_COUNT] = {"model", "optimizer", "master_weights"};

const char *assay_stored_word(assay_stored_kind kind)
{
    return kind_words[kind];
}

/* --- families ----------------------------------------------------------------------------------------------- */
int assay_checkpoint_families(const assay_checkpoint_content *c)
{
    return ASSAY_FAMILY_STATE + c->n_states;
}

int assay_checkpoint_family_of(const assay_checkpoint_content *c, const char *word)
{
    if (strcmp(word, "weight") == 0 || strcmp(word, "expert_bias") == 0)
        return ASSAY_FAMILY_WEIGHT;
    if (strcmp(word, "main_param") == 0)
        return ASSAY_FAMILY_MAIN;
    for (int k = 0; k < c->n_states; k++)
        if (strcmp(word, c->state_names[k]) == 0)
            return ASSAY_FAMILY_STATE + k;
    return -1;
}

const char *assay_checkpoint_family_word(const assay_checkpoint_content *c, int family,
                                         const assay_param_spec *param)
{
    if (family == ASSAY_FAMILY_WEIGHT)
        return param->trained ? "weight" : "expert_bias";
    if (!assay_param_needs_grad(param) ||
        (family == ASSAY_FAMILY_MAIN && c->weights_only && c->weight != c->state))
        return NULL;
    return family == ASSAY_FAMILY_MAIN ? "main_param" : c->state_names[family - ASSAY_FAMILY_STATE];
}

assay_dtype assay_checkpoint_dtype_of(const assay_checkpoint_content *c, int family,
                                      const assay_param_spec *param)
{
    return family == ASSAY_FAMILY_WEIGHT && param->trained ? c->weight : c->state;
}

int assay_checkpoint_stored_family(const assay_checkpoint_content *c, int family)
{
    return family == ASSAY_FAMILY_MAIN && c->weight == c->state ? ASSAY_FAMILY_WEIGHT : family;
}

int64_t assay_checkpoint_find_param(const assay_checkpoint_content *c, const char *name)
{
    const assay_param_spec *p = assay_spec_find(c->spec, name);
    return p != NULL ? p - c->spec->params : -1;
}

int64_t assay_checkpoint_plan_find(const assay_checkpoint_plan *p, int family, int64_t param)
{
    if (assay_checkpoint_family_word(&p->content, family, &p->content.spec->params[param]) == NULL)
        return -1;
    return p->first[(int64_t)assay_checkpoint_stored_family(&p->content, family) * p->content.spec->n_params +
                    param];
}

/* --- tensors ------------------------------------------------------------------------------------------------ */
static assay_stored_kind kind_of(int family)
{
    return family == ASSAY_FAMILY_WEIGHT ? ASSAY_STORED_MODEL
           : family == ASSAY_FAMILY_MAIN ? ASSAY_STORED_MASTERS
                                         : ASSAY_STORED_OPTIMIZER;
}

static assay_status add_tensor(assay_checkpoint_plan *p, int family, int64_t param, int part)
{
    const assay_param_spec *spec = &p->content.spec->params[param];
    const assay_hf_part *h = &spec->parts[part];
    assay_planned_tensor *t = &p->tensors[p->n_tensors++];
    int64_t count;
    *t = (assay_planned_tensor){.kind = kind_of(family), .family = family, .param = param, .part = part};
    t->dtype = assay_checkpoint_dtype_of(&p->content, family, spec);
    ASSAY_CHECK(assay_shape_count(h->shape, h->ndim, &count) &&
                    assay_mul_i64(count, assay_dtype_bytes(t->dtype), &t->bytes) && t->bytes > 0,
                ASSAY_LIMIT, "checkpoint: %s: %lld elements of %s", h->name, (long long)count,
                assay_dtype_name(t->dtype));
    const bool state = family >= ASSAY_FAMILY_STATE;
    size_t n = assay_copy_text(t->name, sizeof t->name, h->name);
    n += assay_copy_text(t->name + n, sizeof t->name - n, state ? "/" : "");
    assay_copy_text(t->name + n, sizeof t->name - n,
                    state ? p->content.state_names[family - ASSAY_FAMILY_STATE] : "");
    return ASSAY_OK;
}

static assay_status add_family(assay_checkpoint_plan *p, int family)
{
    const assay_model_spec *spec = p->content.spec;
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *param = &spec->params[i];
        const bool here = assay_checkpoint_family_word(&p->content, family, param) != NULL &&
                          assay_checkpoint_stored_family(&p->content, family) == family;
        p->first[(int64_t)family * spec->n_params + i] = here ? p->n_tensors : -1;
        for (int k = 0; here && k < param->n_parts; k++)
            ASSAY_TRY(add_tensor(p, family, i, k));
    }
    return ASSAY_OK;
}

/* --- shards ------------------------------------------------------------------------------------------------- */
/* In a file, as the safetensors library writes them: wide types first, then by name. */
static int compare_in_file(const void *pa, const void *pb)
{
    const assay_planned_tensor *a = *(assay_planned_tensor *const *)pa,
                               *b = *(assay_planned_tensor *const *)pb;
    return a->dtype != b->dtype ? (a->dtype > b->dtype ? -1 : 1) : strcmp(a->name, b->name);
}

static int compare_names(const void *pa, const void *pb)
{
    const assay_planned_tensor *a = *(assay_planned_tensor *const *)pa,
                               *b = *(assay_planned_tensor *const *)pb;
    return strcmp(a->name, b->name);
}

static assay_status check_names(assay_planned_tensor **list, int64_t n)
{
    qsort(list, (size_t)n, sizeof(assay_planned_tensor *), compare_names);
    for (int64_t i = 1; i < n; i++)
        ASSAY_CHECK(strcmp(list[i - 1]->name, list[i]->name) != 0, ASSAY_INTERNAL,
                    "checkpoint: two tensors are named %s", list[i]->name);
    return ASSAY_OK;
}

static void put_entry(assay_json_text *t, const assay_checkpoint_plan *p, const assay_planned_tensor *x,
                      int64_t at)
{
    const assay_hf_part *h = &p->content.spec->params[x->param].parts[x->part];
    assay_json_text_key(t, x->name);
    assay_json_text_open(t, '{');
    assay_json_text_put_string(t, "dtype", assay_dtype_name(x->dtype));
    assay_json_text_key(t, "shape");
    assay_json_text_integers(t, h->shape, h->ndim);
    assay_json_text_key(t, "data_offsets");
    assay_json_text_integers(t, (int64_t[]){at, at + x->bytes}, 2);
    assay_json_text_close(t, '}');
}

/* The header of the shard whose tensors `in_file` [n] are, and their places. */
static assay_status place(assay_checkpoint_plan *p, assay_planned_shard *shard,
                          assay_planned_tensor **in_file, int64_t n)
{
    assay_json_text text = {0};
    assay_status st = ASSAY_OK;
    int64_t at = 0;
    ASSAY_TRY(check_names(in_file, n));
    qsort(in_file, (size_t)n, sizeof(assay_planned_tensor *), compare_in_file);
    assay_json_text_open(&text, '{');
    assay_json_text_key(&text, "__metadata__"); /* transformers demands it */
    assay_json_text_open(&text, '{');
    assay_json_text_put_string(&text, "format", "pt");
    assay_json_text_close(&text, '}');
    for (int64_t i = 0; i < n; i++) {
        put_entry(&text, p, in_file[i], at);
        at += in_file[i]->bytes;
    }
    assay_json_text_close(&text, '}');
    ASSAY_TRY_GOTO(assay_json_text_end(&text, "checkpoint: header of a shard"), st, done);
    const size_t used = text.n, padded = (used + 7) / 8 * 8;
    shard->header = malloc(padded + 8);
    ASSAY_CHECK_GOTO(shard->header != NULL, ASSAY_OUT_OF_MEMORY, st, done, "checkpoint: %zu bytes", padded);
    for (int i = 0; i < 8; i++)
        shard->header[i] = (char)((uint64_t)padded >> (8 * i) & 0xff);
    memcpy(shard->header + 8, text.text, used);
    memset(shard->header + 8 + used, ' ', padded - used);
    shard->header_bytes = (int64_t)padded + 8;
    shard->bytes = shard->header_bytes + at;
    at = shard->header_bytes;
    for (int64_t i = 0; i < n; i++) {
        in_file[i]->offset = at;
        at += in_file[i]->bytes;
    }
done:
    assay_json_text_free(&text);
    return st;
}

/* Cuts the tensors of a kind, [from, to), into shards. */
static assay_status cut_kind(assay_checkpoint_plan *p, int64_t from, int64_t to, assay_planned_tensor **work)
{
    const int64_t most = p->content.max_shard_size > 0 ? p->content.max_shard_size : ASSAY_CHECKPOINT_SHARD;
    const int64_t first_shard = p->n_shards;
    int64_t bytes = 0, n = 0;
    for (int64_t i = from; i < to; i++) {
        if (i == from || bytes + p->tensors[i].bytes > most) {
            if (n > 0)
                ASSAY_TRY(place(p, &p->shards[p->n_shards - 1], work, n));
            p->shards[p->n_shards++] = (assay_planned_shard){.kind = p->tensors[i].kind};
            bytes = n = 0;
        }
        bytes += p->tensors[i].bytes;
        p->tensors[i].shard = p->n_shards - 1;
        work[n++] = &p->tensors[i];
    }
    if (n > 0)
        ASSAY_TRY(place(p, &p->shards[p->n_shards - 1], work, n));
    for (int64_t i = first_shard; i < p->n_shards; i++)
        snprintf(p->shards[i].file, sizeof p->shards[i].file, "%s-%05lld-of-%05lld.safetensors",
                 assay_stored_word(p->shards[i].kind), (long long)(i - first_shard + 1),
                 (long long)(p->n_shards - first_shard));
    return ASSAY_OK;
}

static int64_t most_tensors(const assay_checkpoint_content *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->spec->n_params; i++)
        n += c->spec->params[i].n_parts;
    return n * assay_checkpoint_families(c);
}

assay_status assay_checkpoint_plan_make(assay_checkpoint_plan *p, const assay_checkpoint_content *content)
{
    assay_status st = ASSAY_OK;
    *p = (assay_checkpoint_plan){.content = *content};
    ASSAY_CHECK(content->n_states >= 0 && content->n_states <= ASSAY_MAX_OPTIMIZER_STATES &&
                    assay_dtype_bytes(content->weight) > 0 && assay_dtype_bytes(content->state) > 0,
                ASSAY_INVALID_ARGUMENT, "checkpoint: content: %d states of %s beside weights of %s",
                content->n_states, assay_dtype_name(content->state), assay_dtype_name(content->weight));
    const size_t most = (size_t)most_tensors(content) + 1;
    const size_t families = (size_t)assay_checkpoint_families(content);
    assay_planned_tensor **work = calloc(most, sizeof(assay_planned_tensor *));
    p->tensors = calloc(most, sizeof *p->tensors);
    p->shards = calloc(most, sizeof *p->shards);
    p->first = calloc(families * (size_t)content->spec->n_params + 1, sizeof *p->first);
    ASSAY_CHECK_GOTO(work && p->tensors && p->shards && p->first, ASSAY_OUT_OF_MEMORY, st, done,
                     "checkpoint: plan of %zu tensors", most);
    for (int f = 0; f < (int)families; f++) /* files in the order of kinds: masters behind states */
        if (f != ASSAY_FAMILY_MAIN)
            ASSAY_TRY_GOTO(add_family(p, f), st, done);
    ASSAY_TRY_GOTO(add_family(p, ASSAY_FAMILY_MAIN), st, done);
    for (int64_t from = 0, to = 0; from < p->n_tensors; from = to) {
        while (to < p->n_tensors && p->tensors[to].kind == p->tensors[from].kind)
            to++;
        ASSAY_TRY_GOTO(cut_kind(p, from, to, work), st, done);
    }
done:
    free((void *)work);
    if (st != ASSAY_OK)
        assay_checkpoint_plan_free(p);
    return st;
}

void assay_checkpoint_plan_free(assay_checkpoint_plan *p)
{
    for (int64_t i = 0; p->shards != NULL && i < p->n_shards; i++)
        free(p->shards[i].header);
    free(p->shards);
    free(p->tensors);
    free(p->first);
    *p = (assay_checkpoint_plan){.n_tensors = 0};
}
