/* Shared by lora.c, lora_list.c and lora_make.c. */
#ifndef PARITY_LORA_INTERNAL_H
#define PARITY_LORA_INTERNAL_H

#include "core/files/adapter.h"
#include "parity/weights/weights.h"

typedef struct lora {
    const parity_weights_options *o;
    parity_model model;
    assay_adapter adapter;
    parity_made *made;
    int64_t n_made;
    bool untied; /* the model's head and embedding are one, and those of what is made are two */
} lora;

#define LORA_HEAD "lm_head.weight"
#define LORA_EMBEDDING "model.embed_tokens.weight"

/* names end with NULL. */
bool parity_lora_named(const char *const *names, const char *name);
/* Behind its last dot. */
const char *parity_lora_last(const char *module);
/* The tensor below: a tied head is the embedding. */
const assay_tensor_info *parity_lora_base(const lora *l, const char *name);
/* Whether a module's weight [shape] is transformers' Conv1D, [in, out]. */
bool parity_lora_is_conv1d(const lora *l, const assay_lora_module *m, const int64_t *shape);
/* Experts of a module in modules_to_save are two tensors in transformers 5, gate_up_proj [E,2F,H] and down_proj [E,H,F]: the one that holds
 * an expert's `tensor`, of which that is `rows` rows from `first` on, counted over all experts.  NULL: there is none. */
const assay_tensor_info *parity_lora_experts(const lora *l, const char *tensor, int64_t *first,
                                             int64_t *rows);
/* l->made: what is written; what the adapter says of a model is looked at before. */
assay_status parity_lora_list(lora *l);
/* Numbers of a tensor of the adapter; of a merged one (a parity_maker; user: the lora). */
assay_status parity_lora_part(const assay_adapter *a, const assay_tensor_info *t, double **out);
assay_status parity_lora_make(void *user, const parity_made *t, double **out);

#endif
