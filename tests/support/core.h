/* Shared by the tests of core/: a status with the message it must carry, and a scratch folder. */
#ifndef ASSAY_TEST_CORE_SUPPORT_H
#define ASSAY_TEST_CORE_SUPPORT_H

#include "core/base/file.h"
#include "core/base/status.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define expect_ok(call)                                                                                      \
    do {                                                                                                     \
        const assay_status expect_st_ = (call);                                                              \
        cr_expect(expect_st_ == ASSAY_OK, "%s: %s: %s", #call, assay_status_name(expect_st_),                \
                  assay_error_message());                                                                    \
    } while (0)

/* The status is `code` and the message contains `text`. */
#define expect_error(call, code, text)                                                                       \
    do {                                                                                                     \
        assay_error_clear();                                                                                 \
        const assay_status expect_st_ = (call);                                                              \
        cr_expect(expect_st_ == (code), "%s: expected %s, found %s: %s", #call, assay_status_name(code),     \
                  assay_status_name(expect_st_), assay_error_message());                                     \
        cr_expect(strstr(assay_error_message(), (text)) != NULL, "%s: expected '%s' in '%s'", #call, (text), \
                  assay_error_message());                                                                    \
    } while (0)

static inline void make_scratch(char out[64])
{
    snprintf(out, 64, "/tmp/assay-core-XXXXXX");
    cr_assert_not_null(mkdtemp(out));
}

static inline void drop_scratch(const char *path)
{
    expect_ok(assay_remove_tree(path, "/tmp"));
}

#endif
