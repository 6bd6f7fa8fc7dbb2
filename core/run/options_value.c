/* Values of a program's own options. */
#include "core/run/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

assay_status assay_option_count(const char *name, const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    ASSAY_CHECK(errno == 0 && end != text && *end == '\0' && n >= least && n <= most, ASSAY_INVALID_ARGUMENT,
                "--%s: expected an integer from %lld to %lld, found %.64s", name, (long long)least,
                (long long)most, text);
    *out = n;
    return ASSAY_OK;
}

assay_status assay_option_text(const char *name, const char *text, char *out, size_t capacity)
{
    ASSAY_CHECK(strlen(text) < capacity, ASSAY_LIMIT, "--%s: longer than %zu bytes", name, capacity - 1);
    memcpy(out, text, strlen(text) + 1);
    return ASSAY_OK;
}

/* DIR/ and DIR are one folder: what is staged beside it must not be in it, and a link with a slash behind it is what it leads to. */
assay_status assay_option_folder(const char *name, const char *text, char *out, size_t capacity)
{
    ASSAY_TRY(assay_option_text(name, text, out, capacity));
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--)
        out[n - 1] = '\0';
    return ASSAY_OK;
}
