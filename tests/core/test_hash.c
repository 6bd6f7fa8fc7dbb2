/* Hashes over bytes. */
#include "core/base/hash.h"
#include "core/base/sha256.h"
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

/* Digests by the package xxhash of Python, 4.1.0: those that its traces hold. */
Test(core_hash, xxh3_is_that_of_the_trace_package)
{
    unsigned char all[9 * 256];
    char found[ASSAY_HASH_HEX];
    expect_ok(assay_hash_init());
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (unsigned char)i;
    assay_hash_tensor_as(ASSAY_HASH_XXH3, ASSAY_F32, (int64_t[]){1, 2}, 2, "abcdefgh", 8, found);
    cr_expect_str_eq(found, "d7cae735ad599feac3b50a50f134afe7");
    assay_hash_tensor_as(ASSAY_HASH_XXH3, ASSAY_F32, (int64_t[]){1, 576}, 2, all, sizeof all, found);
    cr_expect_str_eq(found, "19d80fbd2f24fcc9b86d4d8db90579ff");
}

Test(core_hash, kinds_have_names)
{
    for (int i = ASSAY_HASH_BLAKE2B; i <= ASSAY_HASH_XXH3; i++) {
        assay_hash_kind kind = ASSAY_HASH_BLAKE2B;
        expect_ok(assay_hash_kind_from_name(assay_hash_kind_name((assay_hash_kind)i), &kind));
        cr_expect_eq((int)kind, i);
    }
    assay_hash_kind kind;
    expect_error(assay_hash_kind_from_name("md5", &kind), ASSAY_UNSUPPORTED,
                 "expected blake2b-128 or xxh3-128, found \"md5\"");
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

/* Every length around the blocks, in one piece and in two. */
Test(core_hash, sha256_by_instructions_is_that_of_libsodium)
{
    static unsigned char bytes[5000];
    if (!assay_sha256_has_instructions())
        cr_skip("this processor has no SHA instructions");
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 167 + (i >> 8));
    expect_ok(assay_hash_init());
    for (size_t n = 0; n < sizeof bytes; n += n < 260 ? 1 : 491) {
        unsigned char expected[32], found[32];
        crypto_hash_sha256(expected, bytes, n);
        for (size_t cut = 0; cut <= n; cut += n / 7 + 1) {
            assay_sha256 h;
            assay_sha256_begin(&h);
            assay_sha256_update(&h, bytes, cut);
            assay_sha256_update(&h, bytes + cut, n - cut);
            assay_sha256_end(&h, found);
            cr_assert_arr_eq(found, expected, sizeof found, "%zu bytes, cut at %zu", n, cut);
        }
    }
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
