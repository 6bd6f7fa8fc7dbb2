/* `assay ckpt lora-merge`: a model with an adapter merged into it.  `assay ckpt lora-save`: an adapter again, in another type. */
#include "parity/weights/lora_internal.h"

#include <stdlib.h>

/* --- verbs -------------------------------------------------------------------------------------------------------- */
static void close_all(lora *l)
{
    parity_model_close(&l->model);
    assay_adapter_close(&l->adapter);
    free(l->made);
}

assay_status parity_lora_merge(const parity_weights_options *o, const char *model, const char *adapter,
                               const char *to)
{
    lora l = {.o = o};
    json_t *config = NULL, *origin = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(parity_model_open(&l.model, model), st, done);
    if (o->dtype == ASSAY_F8_E4M3)
        ASSAY_TRY_GOTO(parity_model_linear(&l.model), st, done);
    ASSAY_TRY_GOTO(assay_adapter_open(&l.adapter, adapter), st, done);
    ASSAY_TRY_GOTO(parity_lora_list(&l), st, done);
    ASSAY_TRY_GOTO(parity_weights_config(o, &l.model, l.made, l.n_made, &config), st, done);
    ASSAY_CHECK_GOTO(!l.untied || json_object_set_new(config, "tie_word_embeddings", json_false()) == 0,
                     ASSAY_OUT_OF_MEMORY, st, done, "%s: configuration", model);
    origin =
        json_pack("{s:s,s:s,s:s}", "made_by", "assay ckpt lora-merge", "model", model, "adapter", adapter);
    const parity_folder f = {.dir = to,
                             .like = model,
                             .word = "model",
                             .config = config,
                             .config_name = "config.json",
                             .origin = origin,
                             .tensors = l.made,
                             .n = l.n_made,
                             .max_shard_size = o->max_shard_size,
                             .make = parity_lora_make,
                             .user = &l};
    st = parity_folder_write(&f);
done:
    json_decref(config);
    json_decref(origin);
    close_all(&l);
    return st;
}

static assay_status make_same(void *user, const parity_made *t, double **out)
{
    const lora *l = user;
    return parity_lora_part(&l->adapter, assay_tensorfile_find(l->adapter.file, t->name), out);
}

/* The name that is written is the one that was read: reading accepts no other. */
static assay_status list_adapter(lora *l)
{
    const int64_t n = assay_tensorfile_count(l->adapter.file);
    l->made = calloc((size_t)n + 1, sizeof *l->made);
    ASSAY_CHECK(l->made != NULL, ASSAY_OUT_OF_MEMORY, "%lld tensors", (long long)n);
    for (; l->n_made < n; l->n_made++) {
        const assay_tensor_info *t = assay_tensorfile_at(l->adapter.file, l->n_made);
        l->made[l->n_made] = parity_made_of(l->o, &l->model, t);
    }
    return ASSAY_OK;
}

assay_status parity_lora_save(const parity_weights_options *o, const char *adapter, const char *to)
{
    lora l = {.o = o};
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(o->dtype != ASSAY_F8_E4M3, ASSAY_INVALID_ARGUMENT,
                "lora-save: adapters are fp64, fp32, bf16 or fp16, not fp8");
    ASSAY_TRY_GOTO(assay_adapter_open(&l.adapter, adapter), st, done);
    ASSAY_TRY_GOTO(list_adapter(&l), st, done);
    const parity_folder f = {.dir = to,
                             .word = "adapter_model",
                             .config = l.adapter.config,
                             .config_name = "adapter_config.json",
                             .tensors = l.made,
                             .n = l.n_made,
                             .max_shard_size = (int64_t)1 << 53,
                             .make = make_same,
                             .user = &l};
    st = parity_folder_write(&f);
done:
    close_all(&l);
    return st;
}
