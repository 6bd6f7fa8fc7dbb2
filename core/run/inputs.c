/* What a run reads. */
#include "core/run/inputs.h"

#include "core/files/tensorfile.h"

assay_status assay_inputs_weights(const char *folder, const char *load, int64_t draw_weights,
                                  assay_weights_source *source)
{
    const bool named = folder != NULL && folder[0] != '\0';
    const bool loaded = load != NULL && load[0] != '\0';
    bool stored = false;
    if (named)
        ASSAY_TRY(assay_tensorfile_in_folder(folder, &stored));
    ASSAY_CHECK(
        !stored || draw_weights < 0, ASSAY_INVALID_ARGUMENT,
        "--draw-weights %lld: expected a folder that holds a configuration alone, but %s holds weights",
        (long long)draw_weights, folder);
    ASSAY_CHECK(
        stored || loaded || draw_weights >= 0, ASSAY_INVALID_ARGUMENT,
        "%s: expected weights (model.safetensors, or model.safetensors.index.json with its shards), found a "
        "configuration alone; to draw the weights from a seed: --draw-weights SEED",
        named ? folder : "model");
    *source = stored ? ASSAY_WEIGHTS_STORED : loaded ? ASSAY_WEIGHTS_LOADED : ASSAY_WEIGHTS_DRAWN;
    return ASSAY_OK;
}

void assay_not_finite_text(const assay_not_finite *f, const int64_t *shape, int ndim, char *out,
                           size_t capacity)
{
    int64_t index[ASSAY_MAX_DIMS] = {0}, count = 1, rest = f->first;
    char place[ASSAY_MAX_DIMS * 24] = "";
    size_t used = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        index[d] = rest % shape[d];
        rest /= shape[d];
        count *= shape[d];
    }
    for (int d = 0; d < ndim; d++)
        used += (size_t)snprintf(place + used, sizeof place - used, "%s%lld", d > 0 ? "," : "",
                                 (long long)index[d]);
    snprintf(out, capacity,
             "%lld of %lld elements are not finite (%lld NaN, %lld infinite), the first at [%s]",
             (long long)(f->nan + f->infinite), (long long)count, (long long)f->nan, (long long)f->infinite,
             place);
}
