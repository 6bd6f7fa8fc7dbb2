/* A Hugging Face folder from what a training run leaves.  Private to parity/run/. */
#ifndef PARITY_TRAIN_EXPORT_H
#define PARITY_TRAIN_EXPORT_H

#include "core/run/options.h"

/* Makes `dir`, which must not exist: model.safetensors with the masters that the result file `out` holds as weight.NAME, bit for
 * bit; config.json of `model` with their dtype; tokenizer.json from `tokenizer` (a file, or "bytes": none). */
assay_status parity_train_export(const char *dir, const char *out, const char *model, const char *tokenizer);

#endif
