/* Which decoder layers a virtual pipeline stage holds, written out: Megatron-LM's pipeline_model_parallel_layout.
 *
 * The grammar (docs/LAYOUTS.md 4; commas are cosmetic and dropped first):
 *
 *     layout = item { item }            item = unit | "(" unit { unit } ")" "*" number
 *     unit   = character [ "*" number ] character = "E" | "t" | "m" | "L" | "|"
 *
 * "|" ends a virtual stage, in the order in which they follow each other in the model.  E, the embedding, comes first of
 * all and L, the loss, last of all, each once; t is a decoder layer.  m (multi-token prediction) is refused by name.  A
 * text is data from outside: numbers have at most four digits, stages and layers their limits, and nothing is expanded in
 * memory. */
#ifndef ASSAY_CORE_PIPELINE_LAYOUT_H
#define ASSAY_CORE_PIPELINE_LAYOUT_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

enum { ASSAY_PIPELINE_LAYOUT = 80, ASSAY_MAX_VIRTUAL_STAGES = 1024, ASSAY_MAX_PIPELINE_LAYERS = 65536 };

typedef struct assay_pipeline_layout {
    int stages; /* virtual stages: "|" + 1 */
    int64_t layers;
} assay_pipeline_layout;

/* Checks a text and writes its canonical form: equal texts hold equal layers.  "Etttt|t,t|(t|)*2L" is
 * "Et*4|t*2|(t|)*2L". */
assay_status assay_pipeline_layout_parse(const char *text, char canonical[ASSAY_PIPELINE_LAYOUT],
                                         assay_pipeline_layout *out);
/* Layers [*first, *first + *count) of a virtual stage; of a checked text. */
void assay_pipeline_layout_stage(const char *text, int stage, int64_t *first, int64_t *count);
/* The virtual stage of a layer; of a checked text that has the layer. */
int assay_pipeline_layout_stage_of(const char *text, int64_t layer);

ASSAY_END_DECLS

#endif
