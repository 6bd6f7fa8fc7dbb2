/* A LoRA adapter in PEFT's form: adapter_config.json and adapter_model.safetensors.  Every member of the configuration is used, known to change
 * no merged number, or refused by name. */
#ifndef ASSAY_CORE_ADAPTER_H
#define ASSAY_CORE_ADAPTER_H

#include "core/base/json.h"
#include "core/files/tensorfile.h"

ASSAY_BEGIN_DECLS

enum { ASSAY_MODULE_NAME = 512, ASSAY_ADAPTER_PATH = 1024 };

typedef enum {
    ASSAY_LORA_A,
    ASSAY_LORA_B,
    ASSAY_LORA_EMBEDDING_A,
    ASSAY_LORA_EMBEDDING_B,
    ASSAY_LORA_MAGNITUDE,
    ASSAY_LORA_WHOLE, /* takes the weight's place: modules_to_save, or the embedding below an adapter of it */
    ASSAY_LORA_KINDS
} assay_lora_kind;

typedef struct assay_lora_module {
    char name
        [ASSAY_MODULE_NAME]; /* model.layers.0.self_attn.q_proj; of a tensor that is no weight, its name: ...q_proj.bias */
    const assay_tensor_info *part[ASSAY_LORA_KINDS];
    int64_t r;    /* 0: no low-rank part */
    double alpha; /* the product counts alpha / r times, with use_rslora alpha / sqrt(r) */
} assay_lora_module;

typedef struct assay_adapter {
    char dir[ASSAY_ADAPTER_PATH];
    json_t *config;
    assay_tensorfile *file;
    int64_t r;
    double alpha;
    bool use_rslora, use_dora;
    bool fan_in_fan_out;        /* as the file says it: whether a weight is [in, out] is the model's to say */
    assay_lora_module *modules; /* by name */
    int64_t n;
} assay_adapter;

assay_status assay_adapter_open(assay_adapter *a, const char *dir);
/* Safe on a zeroed object. */
void assay_adapter_close(assay_adapter *a);
/* NULL: the adapter does nothing there. */
const assay_lora_module *assay_adapter_find(const assay_adapter *a, const char *module);
/* Whether target_modules, exclude_modules and layers_to_transform choose a module of the model. */
assay_status assay_adapter_targets(const assay_adapter *a, const char *module, bool *targeted);
ASSAY_END_DECLS

#endif
