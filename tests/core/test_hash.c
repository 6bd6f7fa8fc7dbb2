/* Hashes over bytes. */
#include "core/base/hash.h"
#include "tests/support/core.h"
#include <sodium.h>
#include <sys/stat.h>

Test(core_hash, init_may_be_called_twice)
{
    expect_ok(assay_hash_init());
    expect_ok(assay_hash_init());
}

Test(core_hash, content_hash_is_blake2b_over_the_documented_bytes)
{
    static const unsigned char text[] = "F32\0"
                                        "\2\0\0\0\0\0\0\0"
                                        "\1\0\0\0\0\0\0\0"
                                        "\2\0\0\0\0\0\0\0"
                                        "abcdefgh";
    unsigned char digest[16];
    char expected[33], found[ASSAY_HASH_HEX];
    expect_ok(assay_hash_init());
    crypto_generichash(digest, sizeof digest, text, sizeof text - 1, NULL, 0);
    sodium_bin2hex(expected, sizeof expected, digest, sizeof digest);
    assay_hash_tensor(ASSAY_F32, (int64_t[]){1, 2}, 2, "abcdefgh", 8, found);
    cr_expect_str_eq(found, expected);
}

Test(core_hash, dtype_shape_and_bytes_each_change_the_hash)
{
    char base[ASSAY_HASH_HEX], other[ASSAY_HASH_HEX];
    expect_ok(assay_hash_init());
    assay_hash_tensor(ASSAY_F32, (int64_t[]){1, 2}, 2, "abcdefgh", 8, base);
    assay_hash_tensor(ASSAY_F32, (int64_t[]){1, 2}, 2, "abcdefgh", 8, other);
    cr_expect_str_eq(base, other);
    assay_hash_tensor(ASSAY_I32, (int64_t[]){1, 2}, 2, "abcdefgh", 8, other);
    cr_expect_str_neq(base, other);
    assay_hash_tensor(ASSAY_F32, (int64_t[]){2, 1}, 2, "abcdefgh", 8, other);
    cr_expect_str_neq(base, other);
    assay_hash_tensor(ASSAY_F32, (int64_t[]){2}, 1, "abcdefgh", 8, other);
    cr_expect_str_neq(base, other);
    assay_hash_tensor(ASSAY_F32, (int64_t[]){1, 2}, 2, "abcdefgi", 8, other);
    cr_expect_str_neq(base, other);
    assay_hash_tensor(ASSAY_F32, (int64_t[]){0}, 1, NULL, 0, other);
    cr_expect_eq(strlen(other), ASSAY_HASH_HEX - 1);
}

Test(core_hash, sha256_known_answers)
{
    char found[ASSAY_SHA256_HEX];
    expect_ok(assay_hash_init());
    assay_sha256_bytes("abc", 3, found);
    cr_expect_str_eq(found, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assay_sha256_bytes("", 0, found);
    cr_expect_str_eq(found, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

Test(core_hash, sha256_of_a_file_equals_that_of_its_bytes)
{
    char root[64], path[128], a[ASSAY_SHA256_HEX], b[ASSAY_SHA256_HEX];
    static char data[70000];
    make_scratch(root);
    snprintf(path, sizeof path, "%s/file", root);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    expect_ok(assay_hash_init());
    expect_ok(assay_write_file(path, data, sizeof data));
    expect_ok(assay_sha256_file(path, a));
    assay_sha256_bytes(data, sizeof data, b);
    cr_expect_str_eq(a, b);
    snprintf(path, sizeof path, "%s/absent", root);
    expect_error(assay_sha256_file(path, a), ASSAY_NOT_FOUND, "absent: cannot open");
    expect_error(assay_sha256_file(root, a), ASSAY_IO, "cannot read");
    drop_scratch(root);
}

Test(core_hash, name_hash_is_fnv1a_64)
{
    cr_expect_eq(assay_name_hash(""), UINT64_C(0xcbf29ce484222325));
    cr_expect_eq(assay_name_hash("a"), UINT64_C(0xaf63dc4c8601ec8c));
    cr_expect_eq(assay_name_hash("foobar"), UINT64_C(0x85944171f73967e8));
}
