/* Options of the tools on model folders. */
#include "parity/weights/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const words[PARITY_MERGE_COUNT] = {"linear", "slerp",       "task_arithmetic",
                                                      "ties",   "dare_linear", "dare_ties"};

const char *parity_merge_word(parity_merge_method method)
{
    return words[method];
}

void parity_weights_options_init(parity_weights_options *o)
{
    *o = (parity_weights_options){.t = 0.5, .lambda = 1.0, .normalize = -1, .dtype = ASSAY_DTYPE_COUNT};
}

static assay_status number(const char *name, const char *text, double least, double most, double *out)
{
    char *end;
    const double x = strtod(text, &end);
    ASSAY_CHECK(end != text && *end == '\0' && x >= least && x <= most, ASSAY_INVALID_ARGUMENT,
                "--%s: expected a number from %g to %g, found %.40s", name, least, most, text);
    *out = x;
    return ASSAY_OK;
}

/* "a,b,c" */
static assay_status numbers(const char *name, const char *text, double least, double most,
                            double out[PARITY_MERGED], int *n)
{
    char copy[1024], *at = copy;
    ASSAY_TRY(assay_option_text(name, text, copy, sizeof copy));
    *n = 0;
    for (bool more = true; more;) {
        char *comma = strchr(at, ',');
        more = comma != NULL;
        if (more)
            *comma = '\0';
        ASSAY_CHECK(*n < PARITY_MERGED, ASSAY_LIMIT, "--%s: expected at most %d numbers", name,
                    (int)PARITY_MERGED);
        ASSAY_TRY(number(name, at, least, most, &out[(*n)++]));
        at = more ? comma + 1 : at;
    }
    return ASSAY_OK;
}

static assay_status one_word(const char *name, const char *text, const char *const *of, int n, int *out)
{
    for (*out = 0; *out < n; ++*out)
        if (strcmp(of[*out], text) == 0)
            return ASSAY_OK;
    char all[256];
    size_t used = 0;
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", of[i]);
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "--%s: expected one of %s, found %.40s", name, all, text);
}

static assay_status add_pattern(const char *name, const char *text, parity_patterns *p)
{
    ASSAY_CHECK(p->n < PARITY_PATTERNS, ASSAY_LIMIT, "--%s: given more than %d times", name,
                (int)PARITY_PATTERNS);
    return assay_option_text(name, text, p->text[p->n++], PARITY_MERGE_TEXT);
}

/* "R,C" */
static assay_status block_size(const char *text, int64_t block[2])
{
    char copy[64], *comma;
    ASSAY_TRY(assay_option_text("weight-block-size", text, copy, sizeof copy));
    comma = strchr(copy, ',');
    ASSAY_CHECK(comma != NULL, ASSAY_INVALID_ARGUMENT,
                "--weight-block-size: expected rows,columns as in 128,128, found %.40s", text);
    *comma = '\0';
    ASSAY_TRY(assay_option_count("weight-block-size", copy, 1, PARITY_BLOCK_MOST, &block[0]));
    return assay_option_count("weight-block-size", comma + 1, 1, PARITY_BLOCK_MOST, &block[1]);
}

assay_status parity_weights_option(parity_weights_options *o, const char *name, const char *text, bool *known)
{
    static const char *const types[] = {"fp64", "fp32", "bf16", "fp16", "fp8"}, *const truth[] = {"false",
                                                                                                  "true"};
    static const assay_dtype dtypes[] = {ASSAY_F64, ASSAY_F32, ASSAY_BF16, ASSAY_F16, ASSAY_F8_E4M3};
    static const char *const formats[] = {"float", "ue8m0"};
    static const char *const elections[] = {"total", "frequency"};
    int word = 0;
    int64_t seed;
    *known = true;
    if (strcmp(name, "method") == 0) {
        ASSAY_TRY(one_word(name, text, words, PARITY_MERGE_COUNT, &word));
        o->method = (parity_merge_method)word;
    } else if (strcmp(name, "base") == 0)
        return assay_option_text(name, text, o->base, sizeof o->base);
    else if (strcmp(name, "weight") == 0)
        return numbers(name, text, -1e6, 1e6, o->weight, &o->n_weights);
    else if (strcmp(name, "density") == 0)
        return numbers(name, text, 0.0, 1.0, o->density, &o->n_densities);
    else if (strcmp(name, "t") == 0) {
        o->t_given = true;
        return number(name, text, 0.0, 1.0, &o->t);
    } else if (strcmp(name, "lambda") == 0) {
        o->lambda_given = true;
        return number(name, text, -1e6, 1e6, &o->lambda);
    } else if (strcmp(name, "normalize") == 0)
        return one_word(name, text, truth, 2, &o->normalize);
    else if (strcmp(name, "majority_sign_method") == 0) {
        ASSAY_TRY(one_word("majority-sign-method", text, elections, 2, &word));
        o->election = (ref_merge_election)word;
        o->election_given = true;
    } else if (strcmp(name, "merge_seed") == 0) {
        ASSAY_TRY(assay_option_count("merge-seed", text, 0, INT64_MAX, &seed));
        o->seed = (uint64_t)seed;
        o->seed_given = true;
    } else if (strcmp(name, "include") == 0)
        return add_pattern(name, text, &o->include);
    else if (strcmp(name, "exclude") == 0)
        return add_pattern(name, text, &o->exclude);
    else if (strcmp(name, "dtype") == 0) {
        ASSAY_TRY(one_word(name, text, types, 5, &word));
        o->dtype = dtypes[word];
    } else if (strcmp(name, "weight_block_size") == 0) {
        return block_size(text, o->block);
    } else if (strcmp(name, "scale_fmt") == 0) {
        ASSAY_TRY(one_word("scale-fmt", text, formats, 2, &word));
        snprintf(o->scale_fmt, sizeof o->scale_fmt, "%s", formats[word]);
    } else
        *known = false;
    return ASSAY_OK;
}
