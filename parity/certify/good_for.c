/* What a good certificate is good for, and who judged: the version is that of many builds of the judge. */
#include "parity/certify/certify.h"
#include "parity/certify/shapes.h"

#include <string.h>

bool certify_same_sources(const certify_checked *c)
{
    return strcmp(c->sources, certify_source_hash()) == 0;
}

/* Beyond an element's of the narrowest activations: what a caller has to keep to. */
static int64_t alignment_of(const certify_checked *c)
{
    const json_t *description = json_object_get(json_object_get(c->certificate, "subject"), "description");
    const int64_t bytes = json_integer_value(json_object_get(description, "alignment")),
                  element = strstr(c->dtypes, "BF16") != NULL  ? 2
                            : strstr(c->dtypes, "F32") != NULL ? 4
                                                               : 8;
    return bytes > element ? bytes : 0;
}

void certify_good_for(const certify_checked *c, char *out, size_t capacity)
{
    char symbols[256], attributes[256], other[160] = "", aligned[48] = "";
    const char *most = certify_largest(c->certificate),
               *device =
                   json_string_value(json_object_get(json_object_get(c->certificate, "where"), "device"));
    const int64_t bytes = alignment_of(c);
    certify_shapes_split(c->shapes, assay_op_find(c->operation), symbols, attributes, sizeof symbols);
    if (!certify_same_sources(c))
        snprintf(other, sizeof other,
                 ", judged by other sources of this version (SHA-256 %.16s..., this program's %.16s...)",
                 c->sources, certify_source_hash());
    if (bytes > 0)
        snprintf(aligned, sizeof aligned, ", addresses aligned to %lld bytes", (long long)bytes);
    /* nobody shall read more into "every shape" than was tried */
    snprintf(out, capacity, "%s %.200s%s%.200s%s%s%s, activations %s, %lld seed%s%s%s%.200s%s%s%.100s",
             symbols[0] != '\0' ? "shapes" : "every", symbols[0] != '\0' ? symbols : "shape",
             attributes[0] != '\0' ? ", tried for " : "", attributes, attributes[0] != '\0' ? " alone" : "",
             c->rounds[0] != '\0' ? ", rounds " : "", c->rounds, c->dtypes[0] != '\0' ? c->dtypes : "none",
             (long long)c->seeds, c->seeds == 1 ? "" : "s", other, most != NULL ? ", tried up to " : "",
             most != NULL ? most : "", aligned, device != NULL ? ", on " : "", device != NULL ? device : "");
}
