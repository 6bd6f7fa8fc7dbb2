/* A tied model whose folder holds a head, too.  The same tensor again says nothing; another one is what transformers unties and
 * computes with, whatever tie_word_embeddings says: a reader that left it out would compute another model. */
#include "core/files/tensorfile.h"
#include "core/model/config.h"

#include <stdio.h>
#include <string.h>

static const char head_name[] = "lm_head.weight", embedding_name[] = "model.embed_tokens.weight";

static bool same_shape(const assay_tensor_info *a, const assay_tensor_info *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d];
    return same;
}

/* Element at which equal types differ; the bytes are mapped and read once. */
static int64_t first_difference(const assay_tensor_info *a, const assay_tensor_info *b)
{
    const size_t width = (size_t)assay_dtype_bytes(a->dtype), step = ((size_t)1 << 20) * width;
    const char *x = a->data, *y = b->data;
    size_t at = 0;
    while (at < a->bytes && memcmp(x + at, y + at, a->bytes - at < step ? a->bytes - at : step) == 0)
        at += step;
    while (at < a->bytes && memcmp(x + at, y + at, width) == 0)
        at += width;
    return at < a->bytes ? (int64_t)(at / width) : -1;
}

assay_status assay_tied_head_check(const assay_tensorfile *f)
{
    static const char way_out[] =
        "with tie_word_embeddings true transformers unties the two and computes with both; expected the same "
        "tensor or none, or tie_word_embeddings false";
    const assay_tensor_info *head = assay_tensorfile_find(f, head_name),
                            *embedding = assay_tensorfile_find(f, embedding_name);
    char difference[128] = "";
    if (head == NULL || embedding == NULL)
        return ASSAY_OK;
    if (head->dtype != embedding->dtype)
        snprintf(difference, sizeof difference, "is %s there and %s here, which are not compared",
                 assay_dtype_name(embedding->dtype), assay_dtype_name(head->dtype));
    else if (assay_dtype_bytes(head->dtype) < 2) /* fp8: a number is an element and its scale */
        snprintf(difference, sizeof difference, "is %s, which is not compared",
                 assay_dtype_name(head->dtype));
    else if (!same_shape(head, embedding))
        snprintf(difference, sizeof difference, "is of another shape");
    else {
        const int64_t i = first_difference(head, embedding);
        if (i < 0)
            return ASSAY_OK;
        snprintf(difference, sizeof difference, "differs, first in element %lld", (long long)i);
    }
    ASSAY_FAIL(ASSAY_MISMATCH, "%s: %s: %s from %s in %s: %s", assay_tensorfile_path_of(f, head), head_name,
               difference, embedding_name, assay_tensorfile_path_of(f, embedding), way_out);
}

assay_status assay_config_check_head(const assay_model_config *c, const char *folder)
{
    bool stored = false;
    assay_tensorfile *f = NULL;
    /* what is wrong with the files is said by who reads weights from them: a configuration may be all that is wanted */
    if (!c->tie_word_embeddings || c->arch == ASSAY_ARCH_MEGATRON ||
        assay_tensorfile_in_folder(folder, &stored) != ASSAY_OK || !stored ||
        assay_tensorfile_open(&f, folder) != ASSAY_OK)
        return ASSAY_OK;
    const assay_status st = assay_tied_head_check(f);
    assay_tensorfile_close(f);
    return st;
}
