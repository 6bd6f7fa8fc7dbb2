/* A content that is kept is found again only when every byte, the dtype and the shape are the same. */
#include "core/files/trace_contents.h"

#include "core/base/hash.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 40, COLUMNS = 25, N = ROWS * COLUMNS };

static assay_trace_tensor record(assay_dtype dtype, int64_t rows, int64_t columns)
{
    assay_trace_tensor t = {.dtype = dtype};
    assay_shard_whole(&t.shard, (const int64_t[]){rows, columns}, 2);
    t.bytes = (size_t)(rows * columns) * (size_t)assay_dtype_bits(dtype) / 8;
    return t;
}

static void keep(assay_trace_contents *c, assay_trace_tensor *t, const void *data)
{
    assay_hash_tensor(t->dtype, t->shard.local_shape, t->shard.ndim, data, t->bytes, t->hash);
    cr_assert_eq(assay_trace_contents_keep(c, t, data, "test"), ASSAY_OK);
}

Test(trace_contents, every_byte_counts)
{
    cr_assert_eq(assay_hash_init(), ASSAY_OK);
    assay_trace_contents c = {0};
    static float x[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    assay_trace_tensor t = record(ASSAY_F32, ROWS, COLUMNS), other = t;
    cr_expect(!assay_trace_contents_find(&c, &t, x), "nothing is kept yet");
    keep(&c, &t, x);
    cr_expect(assay_trace_contents_find(&c, &other, x));
    cr_expect_str_eq(other.hash, t.hash);
    unsigned char *bytes = (unsigned char *)x;
    for (size_t i = 0; i < sizeof x; i++) { /* also those that no mark looks at */
        bytes[i] ^= 1;
        cr_expect(!assay_trace_contents_find(&c, &other, x), "byte %zu", i);
        bytes[i] ^= 1;
    }
    cr_expect(assay_trace_contents_find(&c, &other, x));
    assay_trace_contents_free(&c);
}

Test(trace_contents, dtype_and_shape_count)
{
    cr_assert_eq(assay_hash_init(), ASSAY_OK);
    assay_trace_contents c = {0};
    static float x[N];
    assay_trace_tensor t = record(ASSAY_F32, ROWS, COLUMNS), turned = record(ASSAY_F32, COLUMNS, ROWS),
                       integers = record(ASSAY_I32, ROWS, COLUMNS),
                       shorter = record(ASSAY_F32, ROWS, COLUMNS - 1), empty = record(ASSAY_F32, 0, COLUMNS),
                       none = empty;
    keep(&c, &t, x);
    cr_expect(!assay_trace_contents_find(&c, &turned, x));
    cr_expect(!assay_trace_contents_find(&c, &integers, x));
    cr_expect(!assay_trace_contents_find(&c, &shorter, x));
    cr_expect(!assay_trace_contents_find(&c, &none, NULL));
    keep(&c, &empty, NULL);
    cr_expect(assay_trace_contents_find(&c, &none, NULL));
    assay_trace_contents_free(&c);
}

/* More than the tables begin with, in two steps. */
Test(trace_contents, many)
{
    cr_assert_eq(assay_hash_init(), ASSAY_OK);
    assay_trace_contents c = {0};
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 1500; i++) {
            const float x[4] = {(float)i, (float)(i % 7), (float)step, 1.0f};
            assay_trace_tensor t = record(ASSAY_F32, 2, 2);
            cr_assert(!assay_trace_contents_find(&c, &t, x), "%d", i);
            keep(&c, &t, x);
        }
        for (int i = 0; i < 1500; i++) {
            const float x[4] = {(float)i, (float)(i % 7), (float)step, 1.0f};
            assay_trace_tensor t = record(ASSAY_F32, 2, 2), hashed = t;
            assay_hash_tensor(t.dtype, t.shard.local_shape, 2, x, sizeof x, hashed.hash);
            cr_assert(assay_trace_contents_find(&c, &t, x));
            cr_assert_str_eq(t.hash, hashed.hash);
        }
        cr_expect_eq(c.n, 1500);
        assay_trace_contents_drop(&c);
    }
    assay_trace_contents_free(&c);
}
