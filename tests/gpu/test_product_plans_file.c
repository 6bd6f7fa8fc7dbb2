/* The file of plans: what it can choose, and what a file that somebody else wrote cannot do. */
#include "tests/support/gpu_plans.h"

#include <assay_sim.h>

TestSuite(gpu_product_plans_file, .timeout = 60);

/* As the simulator's cuBLASLt numbers its algorithms: data {a mark, index, 0...}, here as the bytes of the file. */
static const char *const aligned = "e705000000000000"
                                   "0000000000000000",
                         *const descending = "e705000000000000"
                                             "0200000000000000";

/* A product of aligned operands [5,32] and [7,32] by the engine; the result's bits are out [35]. */
static void multiply(float *out, bool bias, const char **order)
{
    gpu_ctx ctx;
    op_call c;
    char why[256];
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    call_begin(&c, &ctx, 3);
    put(&c, "x", ASSAY_F32, -1, 1, 2, (int64_t)5, (int64_t)32);
    put(&c, "weight", ASSAY_F32, -1, 1, 2, (int64_t)7, (int64_t)32);
    if (bias)
        put(&c, "bias", ASSAY_F32, 1, 2, 1, (int64_t)7);
    run_op(&c, "linear_fwd", ASSAY_F32);
    cr_expect(admitted(&c, "linear_fwd", why), "%s", why);
    *order = assay_order_name(c.declared.arith.all.order);
    memcpy(out, c.out[0].data, 35 * sizeof *out);
    call_end(&c);
    gpu_ctx_destroy(&ctx);
}

/* The file of a run that timed the product, as text that the caller frees. */
static char *timed(bool bias, char path[512])
{
    float unused[35];
    const char *order;
    char *text = NULL;
    uint64_t bytes;
    multiply(unused, bias, &order);
    cr_assert(plans_file(path), "%s", plans_said());
    cr_assert_eq(assay_read_file(path, 1 << 20, &text, &bytes), ASSAY_OK);
    setenv("ASSAY_PRODUCT_PLANS_TIME", "0", 1);
    return text;
}

static void write_text(const char *path, const char *text)
{
    cr_assert_eq(assay_write_file(path, text, strlen(text)), ASSAY_OK);
}

/* text with the member of that name, up to the next comma, bracket or line, replaced; what stands behind the name is new. */
static char *with_member(const char *text, const char *name, const char *value)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *at = strstr(text, quoted);
    if (at == NULL) {
        snprintf(quoted, sizeof quoted, "\"%s\":", name);
        at = strstr(text, quoted);
    }
    cr_assert_not_null(at, "no member %s in %s", name, text);
    at += strlen(quoted);
    const char *rest = *at == '"' ? strchr(at + 1, '"') + 1 : at + strcspn(at, ",}]\n");
    char *out = malloc(strlen(text) + strlen(value) + 1);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, value, rest);
    return out;
}

static char *naming(const char *text, const char *algorithm)
{
    char hex[160];
    snprintf(hex, sizeof hex, "\"%s%096d\"", algorithm, 0);
    return with_member(text, "algo", hex);
}

/* The plain sums of multiply, by order of k. */
Test(gpu_product_plans_file, a_file_chooses_among_what_is_offered)
{
    float first[35], named[35], again[35];
    const char *order;
    char path[512];
    no_plans();
    multiply(first, false, &order);
    cr_expect_str_eq(order, "sequential");
    plans_begin(true);
    char *text = timed(false, path), *other = naming(text, descending), *same = naming(text, aligned);
    write_text(path, other);
    multiply(named, false, &order);
    cr_expect_str_eq(order, "unknown", "a choice may add in another order, and says so");
    cr_expect(memcmp(first, named, sizeof first) != 0, "k descends: other bits");
    multiply(again, false, &order);
    cr_expect(memcmp(again, named, sizeof first) == 0, "the same file: the same bits");
    write_text(path, same);
    multiply(again, false, &order);
    cr_expect(memcmp(again, first, sizeof first) == 0, "the library's first by name");
    cr_expect_str_empty(plans_said());
    free(other);
    free(same);
    free(text);
    plans_end();
}

/* Where there is a bias the library does not offer it: an entry of another epilogue is none, and one that names it is no order. */
Test(gpu_product_plans_file, a_plan_of_another_epilogue)
{
    float first[35], got[35];
    const char *order;
    char path[512];
    no_plans();
    multiply(first, true, &order);
    plans_begin(true);
    char *text = timed(false, path), *other = naming(text, descending),
         *bias = with_member(other, "bias", "1");
    write_text(path, other);
    multiply(got, true, &order);
    cr_expect(memcmp(got, first, sizeof first) == 0, "it is for products without bias");
    cr_expect_str_empty(plans_said());
    write_text(path, bias);
    multiply(got, true, &order);
    cr_expect(memcmp(got, first, sizeof first) == 0);
    cr_expect(strstr(plans_said(), "does not offer the algorithm"), "%s", plans_said());
    cr_expect_eq(assay_sim_reports(), 0, "no byte of the file reaches the library");
    free(bias);
    free(other);
    free(text);
    plans_end();
}

Test(gpu_product_plans_file, what_is_wrong_with_a_file_is_said_and_it_is_not_used)
{
    static const struct {
        const char *member, *value, *says;
    } rows[] = {
        {"format", "\"assay-product-plans-2\"", "format: expected 'assay-product-plans-1'"},
        {"device", "\"NVIDIA H100 80GB HBM3\"", "found NVIDIA H100 80GB HBM3, sm_90"},
        {"sm", "80", "sm_80"},
        {"sm", "-1", "sm"},
        {"cublaslt", "120000", "cuBLASLt 120000"},
        {"plans", "{}", "plans: expected a list"},
        {"m", "0", "m"},
        {"n", "-5", "n"},
        {"k", "9223372036854775808", "too big"},
        {"k", "1e300", "k: expected an integer"},
        {"accumulate", "2", "accumulate"},
        {"bias", "true", "bias: expected an integer"},
        {"align_a", "512", "align_a"},
        {"align_c", "3", "align_c: expected a power of two"},
        {"workspace_bytes", "-1", "workspace_bytes"},
        {"in", "\"F31\"", "plans[0]: in"},
        {"out", "7", "out: expected a string"},
        {"algo", "\"e705\"", "algo: expected 128 hexadecimal digits"},
        {"algo", "null", "algo"},
        {"ms", "-1", "ms"},
        {"ms", "1, \"surprise\": 1", "surprise"},
    };
    float first[35], got[35];
    const char *order;
    char path[512];
    no_plans();
    multiply(first, false, &order);
    plans_begin(true);
    char *text = timed(false, path), *named = naming(text, descending);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *bad = strcmp(rows[i].member, "plans") == 0 ? strdup(named)
                                                         : with_member(named, rows[i].member, rows[i].value);
        if (strcmp(rows[i].member, "plans") == 0) { /* the list is the last member */
            const size_t at = (size_t)(strstr(bad, "\"plans\"") - bad);
            snprintf(bad + at, strlen(bad) - at, "\"plans\": {}}");
        }
        write_text(path, bad);
        cr_assert_eq(ftruncate(plans_stderr, 0), 0);
        lseek(plans_stderr, 0, SEEK_SET);
        multiply(got, false, &order);
        cr_expect_str_eq(order, "sequential", "%s = %s: it is used", rows[i].member, rows[i].value);
        cr_expect(memcmp(got, first, sizeof first) == 0, "%s = %s", rows[i].member, rows[i].value);
        cr_expect(strstr(plans_said(), "plans of products are not used") && strstr(plans_said(), path) &&
                      strstr(plans_said(), rows[i].says),
                  "%s = %s: expected '%s' in: %s", rows[i].member, rows[i].value, rows[i].says, plans_said());
        free(bad);
    }
    free(named);
    free(text);
    plans_end();
}

/* Any byte changed, lost or doubled, and any length: the products are computed, by the library's choice or by one that it offers. */
Test(gpu_product_plans_file, damage_at_any_place)
{
    gpu_product_plans *plans = NULL;
    char path[512];
    plans_begin(true);
    char *text = timed(false, path);
    const size_t n = strlen(text);
    int used = 0, refused = 0;
    for (size_t i = 0; i < n; i++)
        for (int how = 0; how < 4; how++) {
            char *bad = malloc(n + 2);
            size_t bytes = n;
            memcpy(bad, text, n);
            if (how == 0)
                bad[i] = (char)(bad[i] ^ (1 << i % 8));
            else if (how == 1)
                bytes = i;
            else if (how == 2)
                memmove(bad + i, bad + i + 1, n - i - 1), bytes = n - 1;
            else
                memmove(bad + i + 1, bad + i, n - i), bytes = n + 1;
            cr_assert_eq(assay_write_file(path, bad, bytes), ASSAY_OK);
            cr_assert_eq(
                gpu_product_plans_open(&plans, "assay simulated device (compute capability 9.0)", 90),
                ASSAY_OK);
            (void)(gpu_product_plans_in_use(plans) ? used++ : refused++);
            gpu_product_plans_close(plans);
            free(bad);
        }
    cr_expect(used > 0 && refused > 0, "%d used, %d refused", used, refused);
    cr_expect_str_empty(assay_error_message());
    free(text);
    plans_end();
}

/* A folder, a link to nowhere, a file that is too large; an entry twice. */
Test(gpu_product_plans_file, what_is_no_file_of_plans)
{
    float got[35];
    const char *order;
    char path[512];
    plans_begin(true);
    char *text = timed(false, path);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(assay_mkdir_p(path), ASSAY_OK);
    multiply(got, false, &order);
    cr_expect(strstr(plans_said(), "not used"), "%s", plans_said());
    cr_assert_eq(rmdir(path), 0);
    char *twice = malloc(2 * strlen(text) + 2);
    const char *const begin = strchr(strstr(text, "\"plans\""), '{'), *const end = strrchr(text, ']');
    sprintf(twice, "%.*s,%s", (int)(end - text), text, begin);
    write_text(path, twice);
    multiply(got, false, &order);
    cr_expect(strstr(plans_said(), "plans[1]: the same product as an earlier one"), "%s", plans_said());
    FILE *large = fopen(path, "wb");
    cr_assert(large && fseek(large, 9 << 20, SEEK_SET) == 0 && fputc('x', large) == 'x' &&
              fclose(large) == 0);
    multiply(got, false, &order);
    cr_expect(strstr(plans_said(), "8388608"), "%s", plans_said());
    free(twice);
    free(text);
    plans_end();
}

/* A broken file is replaced by the run that times; one that is whole keeps its entries. */
Test(gpu_product_plans_file, a_run_that_times_adds_to_the_file)
{
    float got[35];
    const char *order;
    char path[512];
    uint64_t bytes;
    plans_begin(true);
    char *text = timed(false, path), *named = naming(text, descending), *now = NULL;
    write_text(path, named);
    setenv("ASSAY_PRODUCT_PLANS_TIME", "1", 1);
    multiply(got, true, &order);
    cr_assert_eq(assay_read_file(path, 1 << 20, &now, &bytes), ASSAY_OK);
    cr_expect(strstr(now, descending) && strstr(now, "\"bias\": 1"), "%s", now);
    free(now);
    write_text(path, "{");
    multiply(got, true, &order);
    cr_assert_eq(assay_read_file(path, 1 << 20, &now, &bytes), ASSAY_OK);
    cr_expect(strstr(now, "\"bias\": 1") && !strstr(now, descending), "%s", now);
    free(now);
    free(named);
    free(text);
    plans_end();
}

Test(gpu_product_plans_file, a_folder_whose_name_is_too_long_is_an_error)
{
    gpu_ctx ctx;
    char *folder = calloc(1, 5000);
    memset(folder, 'a', 4999);
    setenv("ASSAY_PRODUCT_PLANS", folder, 1);
    cr_expect_eq(gpu_ctx_init(&ctx, -1, 0), ASSAY_LIMIT);
    cr_expect(strstr(assay_error_message(), "ASSAY_PRODUCT_PLANS"), "%s", assay_error_message());
    no_plans();
    free(folder);
}
