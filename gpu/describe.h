/* Descriptions of values with the model's dimensions: what a call is to make (gpu/value.h), in the shapes of this rank. */
#ifndef GPU_DESCRIBE_H
#define GPU_DESCRIBE_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* This rank's positions: all, or its tp piece of them; those of its cp group. */
gpu_dim gpu_dim_sequence(const gpu_model *m, bool piece);
gpu_dim gpu_dim_gathered(const gpu_model *m);
gpu_dim gpu_dim_batch(const gpu_model *m);
gpu_dim gpu_dim_hidden(const gpu_model *m);
/* This tp rank's piece of each of `blocks` blocks. */
gpu_dim gpu_dim_tp(const gpu_model *m, int64_t global, int blocks);

/* This tp rank's key/value heads; its columns of qkv, [(A+2G)*D]. */
gpu_dim gpu_dim_kv(const gpu_model *m);
gpu_dim gpu_dim_qkv(const gpu_model *m);

/* [S or its piece, B, last] */
gpu_value gpu_tokens(const gpu_model *m, gpu_arena *arena, bool piece, gpu_dim last);
/* [S or its piece, B] */
gpu_value gpu_token_rows(const gpu_model *m, gpu_arena *arena, bool piece);
/* [n], [n, last] (last > 0) meaningful on this rank only. */
gpu_value gpu_local(gpu_arena *arena, int64_t n, int64_t last);
/* The gradient of `forward`, in scratch: "<forward>.grad" with its dimensions. */
gpu_value gpu_grad_of(gpu_model *m, const gpu_value *forward);
/* The description under a name of its own: instance and slot. */
gpu_value gpu_named(gpu_model *m, gpu_value description, const char *at, const char *slot);
/* A gradient of a key or value: with a shared head what this rank's query heads give, a part of the sum over the ranks
 * of tp that hold the same piece. */
gpu_value gpu_partial_kv(const gpu_model *m, gpu_value description);
/* Marks it as a partial sum over `group` when that group has company. */
gpu_value gpu_partial(const gpu_model *m, gpu_value description, assay_group group);

ASSAY_END_DECLS

#endif
