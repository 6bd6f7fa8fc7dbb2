/* Who holds what of a layout, for drawings (parity/report/layout_svg.c). */
#ifndef PARITY_DRY_SVG_H
#define PARITY_DRY_SVG_H

#include "parity/dry/dry.h"

enum { DRY_STAGE_WORDS = 160 };
void dry_stage_words(const assay_grid *g, const assay_model_config *c, int stage, char out[DRY_STAGE_WORDS]);
/* out [world]: bytes of parameters, gradients and states; no activations. */
assay_status dry_held(const assay_model_config *c, const assay_model_spec *spec, const assay_grid *g,
                      assay_precision precision, dry_memory *out);
/* The same as "stages" and "ranks" of facts.json; empty where they cannot be counted. */
json_t *dry_held_json(const assay_model_config *c, const assay_model_spec *spec, const assay_grid *g,
                      assay_precision precision);
/* "-": standard output. */
assay_status dry_grid_svg(const assay_grid *g, const char *layout, const char *path);
/* Every rank with the bytes that the dry run counts, activations without recomputation among them. */
assay_status dry_svg(const dry *d, const char *path);

#endif
