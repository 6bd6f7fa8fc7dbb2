/* The byte-level tokenizer. */
#include "core/files/tokenizer.h"

#include "tests/support/core_files.h"

Test(tokenizer, every_byte_comes_back)
{
    char text[256], back[256];
    int64_t tokens[256];
    size_t bytes = 0;
    for (int i = 0; i < 256; i++)
        text[i] = (char)(uint8_t)i;
    assay_tokenize_bytes(text, sizeof text, tokens);
    for (int i = 0; i < 256; i++)
        cr_expect_eq(tokens[i], i);
    TEST_OK(assay_detokenize_bytes(tokens, 256, back, sizeof back, &bytes));
    cr_expect_eq(bytes, sizeof text);
    cr_expect_eq(memcmp(text, back, sizeof text), 0);
}

Test(tokenizer, end_of_document_has_no_text)
{
    const int64_t tokens[] = {'a', ASSAY_BYTE_EOD, 'b'};
    char out[2];
    size_t bytes = 0;
    TEST_OK(assay_detokenize_bytes(tokens, 3, out, sizeof out, &bytes));
    cr_expect_eq(bytes, 2u);
    cr_expect_eq(memcmp(out, "ab", 2), 0);
}

Test(tokenizer, names_a_token_that_is_no_byte)
{
    const int64_t above[] = {'a', 257}, below[] = {-100};
    char out[4];
    size_t bytes = 0;
    TEST_FAILS(assay_detokenize_bytes(above, 2, out, sizeof out, &bytes), ASSAY_INVALID_ARGUMENT,
               "token 257 at position 1 is not a byte");
    TEST_FAILS(assay_detokenize_bytes(below, 1, out, sizeof out, &bytes), ASSAY_INVALID_ARGUMENT,
               "token -100 at position 0 is not a byte");
}

Test(tokenizer, names_a_buffer_that_is_too_small)
{
    const int64_t tokens[] = {'a', 'b'};
    char out[1];
    size_t bytes = 0;
    TEST_FAILS(assay_detokenize_bytes(tokens, 2, out, sizeof out, &bytes), ASSAY_LIMIT,
               "does not fit in 1 bytes");
}
