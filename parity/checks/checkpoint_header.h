/* checkpoint_header.c: what `assay ckpt verify` asks, too. */
#ifndef PARITY_CHECKS_CHECKPOINT_HEADER_H
#define PARITY_CHECKS_CHECKPOINT_HEADER_H

#include "core/model/config_internal.h"
#include "parity/judge/judge.h"

/* Whether DIR/config.json, which is read into *there, is this model; else the error says what differs. */
bool parity_config_is(const char *dir, const assay_model_config *here, assay_model_config *there);

#endif
