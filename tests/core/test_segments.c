/* Lists of segments, each once. */
#include "core/model/shard.h"
#include <criterion/criterion.h>
#include <stdlib.h>

enum { MANY = 200000 };

/* Lists of one segment that all fell into one chain of 16,384 when the hash had no key: its inverse. */
static assay_segment colliding(int64_t start)
{
    const uint64_t last = 0x94d049bb133111ebu;
    uint64_t inverse = last, h = (0x9e3779b97f4a7c15u + 1) ^ (uint64_t)start;
    for (int i = 0; i < 6; i++)
        inverse *= 2 - last * inverse;
    h *= 0xbf58476d1ce4e5b9u;
    const uint64_t wanted = (uint64_t)start << 32 | (uint64_t)start,
                   length = (wanted * inverse) ^ h ^ h >> 29;
    return (assay_segment){start, (int64_t)length};
}

Test(core_segments, equal_lists_are_one_and_no_file_chooses_what_collides, .timeout = 100)
{
    const assay_segment **seen = malloc(MANY * sizeof *seen);
    assay_shard s;
    cr_assert_not_null(seen);
    for (int i = 0; i < MANY; i++) {
        const assay_segment one = colliding(i);
        assay_shard_set(&s, 0, &one, 1);
        seen[i] = s.segments[0];
    }
    for (int i = 0; i < MANY; i++) {
        const assay_segment one = colliding(i);
        assay_shard_set(&s, 0, &one, 1);
        cr_assert_eq(s.n_segments[0], 1);
        cr_assert_eq(s.segments[0], seen[i], "list %d is there twice", i);
        cr_assert(seen[i]->start == one.start && seen[i]->length == one.length);
    }
    free((void *)seen);
}

Test(core_segments, a_list_is_its_numbers_and_how_many)
{
    const assay_segment three[] = {{0, 1}, {2, 3}, {0, 1}};
    assay_shard s;
    assay_shard_set(&s, 0, three, 1);
    assay_shard_set(&s, 1, three, 2);
    assay_shard_set(&s, 2, three + 2, 1);
    assay_shard_set(&s, 3, three, 0);
    cr_expect_eq(s.segments[0], s.segments[2]);
    cr_expect_neq(s.segments[0], s.segments[1]);
    cr_expect(s.segments[1][1].start == 2 && s.segments[1][1].length == 3);
    cr_expect(s.n_segments[3] == 0 && s.segments[3] != NULL);
}
