/* A LoRA adapter in PEFT's form: adapter_config.json and adapter_model.safetensors.  Every member of the configuration is used, known to change
 * no merged number, or refused by name. */
#ifndef PARITY_ADAPTER_H
#define PARITY_ADAPTER_H

#include "core/base/json.h"
#include "core/files/tensorfile.h"

enum { PARITY_MODULE = 512, PARITY_ADAPTER_PATH = 1024 };

typedef enum {
    PARITY_LORA_A,
    PARITY_LORA_B,
    PARITY_LORA_EMBEDDING_A,
    PARITY_LORA_EMBEDDING_B,
    PARITY_LORA_MAGNITUDE,
    PARITY_LORA_WHOLE, /* takes the weight's place: modules_to_save, or the embedding below an adapter of it */
    PARITY_LORA_KINDS
} parity_lora_kind;

typedef struct parity_lora_module {
    char name[PARITY_MODULE]; /* model.layers.0.self_attn.q_proj */
    const assay_tensor_info *part[PARITY_LORA_KINDS];
    int64_t r;    /* 0: no low-rank part */
    double scale; /* alpha / r, alpha / sqrt(r) with use_rslora */
} parity_lora_module;

typedef struct parity_adapter {
    char dir[PARITY_ADAPTER_PATH];
    json_t *config;
    assay_tensorfile *file;
    int64_t r;
    double alpha;
    bool use_rslora, use_dora;
    parity_lora_module *modules; /* by name */
    int64_t n;
} parity_adapter;

assay_status parity_adapter_open(parity_adapter *a, const char *dir);
/* Safe on a zeroed object. */
void parity_adapter_close(parity_adapter *a);
/* NULL: the adapter does nothing there. */
const parity_lora_module *parity_adapter_find(const parity_adapter *a, const char *module);
/* Whether target_modules, exclude_modules and layers_to_transform choose a module of the model. */
assay_status parity_adapter_targets(const parity_adapter *a, const char *module, bool *targeted);
/* PEFT's name of a tensor of a module. */
void parity_adapter_name(const parity_lora_module *m, parity_lora_kind kind, char *out, size_t capacity);

/* patterns.c.  Python's regular expressions as far as POSIX has them: others are refused by name.  *matches: of the whole text. */
assay_status parity_regex_match(const char *pattern, const char *text, const char *what, bool *matches);

#endif
