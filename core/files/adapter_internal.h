/* Shared by adapter.c and adapter_config.c. */
#ifndef ASSAY_CORE_ADAPTER_INTERNAL_H
#define ASSAY_CORE_ADAPTER_INTERNAL_H

#include "core/files/adapter.h"

/* r, alpha and the switches of a->config; every other member is known or refused. */
assay_status assay_adapter_read_config(assay_adapter *a, const char *what);
/* The value of the first pattern of an object that is the module's name or its end; NULL: none. */
assay_status assay_adapter_pattern(const assay_adapter *a, const char *key, const char *module,
                                   const json_t **out);
/* Whether it is of a module that modules_to_save names, or of one below. */
bool assay_adapter_saves(const assay_adapter *a, const char *tensor);

#endif
