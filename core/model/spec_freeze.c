/* Which weights are frozen. */
#include "core/model/spec.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

/* Whether the pattern names the parameter; *part: a tensor of the folder that it names while it does not name all of them. */
static bool names(const char *pattern, const assay_param_spec *p, const char **part)
{
    int named = 0;
    *part = NULL;
    if (fnmatch(pattern, p->name, 0) == 0)
        return true;
    for (int k = 0; k < p->n_parts; k++)
        if (fnmatch(pattern, p->parts[k].name, 0) == 0) {
            *part = p->parts[k].name;
            named++;
        }
    return named == p->n_parts;
}

static assay_status apply(assay_model_spec *spec, const char *pattern)
{
    const bool train = pattern[0] == '!';
    int64_t named = 0;
    for (int64_t i = 0; i < spec->n_params; i++) {
        assay_param_spec *p = &spec->params[i];
        const char *part;
        if (!p->trained)
            continue;
        const bool all = names(pattern + (train ? 1 : 0), p, &part);
        ASSAY_CHECK(all || part == NULL, ASSAY_UNSUPPORTED,
                    "freeze '%s': names %s, a part of %s, which is frozen or trained as a whole", pattern,
                    part, p->name);
        if (all) {
            p->frozen = !train;
            named++;
        }
    }
    ASSAY_CHECK(named > 0, ASSAY_INVALID_ARGUMENT,
                "freeze '%s': names no weight of the model, as in 'decoder.layers.0.*'", pattern);
    return ASSAY_OK;
}

assay_status assay_spec_freeze(assay_model_spec *spec, const char *patterns)
{
    char pattern[ASSAY_NAME];
    int64_t left = 0;
    for (const char *at = patterns; *at != '\0';) {
        const size_t n = strcspn(at, ",");
        ASSAY_CHECK(n > 0 && n < sizeof pattern, ASSAY_INVALID_ARGUMENT,
                    "freeze '%s': expected patterns of 1 to %zu characters between commas", patterns,
                    sizeof pattern - 1);
        snprintf(pattern, sizeof pattern, "%.*s", (int)n, at);
        ASSAY_TRY(apply(spec, pattern));
        at += n;
        if (*at == ',') {
            at++;
            ASSAY_CHECK(*at != '\0', ASSAY_INVALID_ARGUMENT,
                        "freeze '%s': expected a pattern behind the last comma", patterns);
        }
    }
    for (int64_t i = 0; i < spec->n_params; i++)
        left += assay_param_needs_grad(&spec->params[i]);
    ASSAY_CHECK(left > 0, ASSAY_INVALID_ARGUMENT, "freeze '%s': leaves no weight to train", patterns);
    return ASSAY_OK;
}
