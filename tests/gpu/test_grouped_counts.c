/* Counts of experts in device memory: the kernels that read them there write what those do that the host checked, and whatever
 * the counts say they stay inside their buffers. */
#include "gpu/execute.h"
#include "gpu/ladder.h"
#include "tests/support/gpu_ops.h"

TestSuite(gpu_counts, .timeout = 120);

enum { OPS = 3, MOST_EXPERTS = 80 };
static int64_t N = 24, K = 16;
static const char *const ops[OPS] = {"grouped_linear_fwd", "grouped_linear_bwd_input",
                                     "grouped_linear_bwd_weight"};

/* Nobody on the host knows the integers. */
static void forget(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    (void)user;
    (void)ctx;
    memset(o->host, 0, sizeof o->host);
}

/* The same numbers whatever the counts are. */
static void give(op_call *c, const char *op, assay_dtype act, const int64_t *counts, int64_t experts,
                 int64_t rows)
{
    const int64_t shape[1] = {experts};
    const bool weight = strcmp(op, ops[2]) == 0;
    new_slot(c, "tokens_per_expert", ASSAY_I64, 1, shape);
    if (experts > 0)
        memcpy(c->in[0].data, counts, (size_t)experts * sizeof *counts);
    if (strcmp(op, ops[0]) != 0)
        put(c, "dy", act, -1, 1, 2, rows, N);
    if (strcmp(op, ops[1]) != 0)
        put(c, "x", act, -1, 1, 2, rows, K);
    if (weight)
        put(c, "dweight_in", ASSAY_F32, -1, 1, 3, experts, N, K);
    else
        put(c, "weight", act, -1, 1, 3, experts, N, K);
}

/* Where operands lie. */
static gpu_place place = GPU_PLACE_ALIGNED;

static assay_status run_with(gpu_ctx *x, const char *op, assay_dtype act, const int64_t *counts,
                             int64_t experts, int64_t rows, bool on_host, gpu_slot *out, int *variant)
{
    op_call c;
    gpu_slot list[ASSAY_MAX_SLOTS];
    int n = 0;
    const gpu_execute_form form = {.place = place, .spoil = on_host ? NULL : forget};
    call_begin(&c, x, 1);
    give(&c, op, act, counts, experts, rows);
    const assay_status st = gpu_execute_as(x, op, c.attrs, act, c.in, c.n_in, &form, list, &n, &c.declared);
    *variant = c.declared.variant;
    if (st == ASSAY_OK) {
        cr_assert_eq(n, 1);
        *out = list[0];
    }
    call_end(&c);
    return st;
}

static bool same_bits(const gpu_slot *a, const gpu_slot *b, int64_t first, int64_t n)
{
    const size_t bytes = (size_t)assay_dtype_bytes(a->dtype);
    return memcmp((char *)a->data + (size_t)first * bytes, (char *)b->data + (size_t)first * bytes,
                  (size_t)n * bytes) == 0;
}

/* Experts that are many, empty, all but one; rows that fill tiles and do not. */
static void counts_of(int which, int64_t *counts, int64_t *experts, int64_t *rows)
{
    static const int64_t sizes[] = {1, 4, 33, MOST_EXPERTS};
    *experts = sizes[which % 4];
    *rows = 0;
    for (int64_t e = 0; e < *experts; e++) {
        const int64_t spread[] = {e % 3 == 1 ? 0 : 5 * e % 7, e == *experts - 1 ? 133 : 0, 64, 0};
        counts[e] = spread[which / 4 % 4];
        *rows += counts[e];
    }
}

Test(gpu_counts, on_the_device_are_those_on_the_host)
{
    static const char *const variants[] = {"linear=k0", "linear=k2"};
    gpu_ctx x;
    open_ctx(&x);
    for (int v = 0; v < 4; v++)
        for (int which = 0; which < 16; which++)
            for (int i = 0; i < OPS; i++) {
                int64_t counts[MOST_EXPERTS], experts, rows;
                gpu_slot device, host;
                int variant, again;
                const assay_dtype act = which % 2 ? ASSAY_BF16 : ASSAY_F32;
                set_variants(&x, variants[v % 2]);
                N = 24 - v / 2, K = 16 - v / 2;
                counts_of(which, counts, &experts, &rows);
                cr_assert_eq(run_with(&x, ops[i], act, counts, experts, rows, false, &device, &variant),
                             ASSAY_OK, "%s", assay_error_message());
                cr_assert_eq(run_with(&x, ops[i], act, counts, experts, rows, true, &host, &again), ASSAY_OK,
                             "%s", assay_error_message());
                cr_expect(variant == 2 * (v % 2) && again == variant, "%s: k%d and k%d", ops[i], variant,
                          again);
                cr_expect(same_bits(&device, &host, 0, slot_count(&host)), "%s %s: counts %d",
                          variants[v % 2], ops[i], which);
                free(device.data);
                free(host.data);
            }
    cr_expect_eq(assay_sim_reports(), 0);
    gpu_ctx_destroy(&x);
}

/* Counts that no router makes; what is left of them when none is negative and none goes beyond the 70 rows. */
enum { BAD_EXPERTS = 4, BAD_ROWS = 70 };
static const struct {
    const char *what;
    int64_t counts[BAD_EXPERTS], kept[BAD_EXPERTS];
} bad[] = {
    {"too few", {3, 0, 5, 1}, {3, 0, 5, 1}},
    {"too many", {3, 66, 5, 1}, {3, 66, 1, 0}},
    {"far too many", {INT64_MAX, 1, INT64_MAX, INT64_MAX}, {70, 0, 0, 0}},
    {"negative", {-1, 3, INT64_MIN, 67}, {0, 3, 0, 67}},
    {"garbage", {0x5a5a5a5a5a5a5a5a, -0x5a5a5a5a5a5a5a5a, 1, 2}, {70, 0, 0, 0}},
    {"beyond 32 bits", {((int64_t)1 << 32) + 2, 1, 1, 1}, {70, 0, 0, 0}},
    {"none", {0, 0, 0, 0}, {0, 0, 0, 0}},
};
enum { N_BAD = sizeof bad / sizeof *bad };

/* Rows of the experts have their values; a row that nobody has is NaN, and in no gradient. */
static void expect_kept(const char *op, const char *what, const gpu_slot *found, const gpu_slot *kept,
                        int64_t rows)
{
    const int64_t width = slot_count(found) / BAD_ROWS;
    if (strcmp(op, ops[2]) == 0) {
        cr_expect(same_bits(found, kept, 0, slot_count(found)), "%s: %s", op, what);
        return;
    }
    cr_expect(same_bits(found, kept, 0, rows * width), "%s: %s: rows of experts", op, what);
    for (int64_t i = rows * width; i < BAD_ROWS * width; i++)
        cr_expect(isnan(decode(found, i)), "%s: %s: element %lld of nobody's row is %g", op, what,
                  (long long)i, decode(found, i));
}

Test(gpu_counts, that_are_wrong_reach_no_other_memory)
{
    static const char *const variants[] = {"linear=k0", "linear=k2"};
    gpu_ctx x;
    open_ctx(&x);
    for (int w = 0; w < 8; w++)
        for (int b = 0; b < N_BAD; b++)
            for (int i = 0; i < OPS; i++) {
                gpu_slot found, kept, none;
                int variant;
                int64_t rows = 0;
                const int v = w / 2 % 2;
                const assay_dtype act = w % 2 ? ASSAY_BF16 : ASSAY_F32;
                set_variants(&x, variants[v]);
                N = 24 - w / 4, K = 16 - w / 4;
                for (int e = 0; e < BAD_EXPERTS; e++)
                    rows += bad[b].kept[e];
                cr_assert_eq(
                    run_with(&x, ops[i], act, bad[b].counts, BAD_EXPERTS, BAD_ROWS, false, &found, &variant),
                    ASSAY_OK, "%s: %s: %s", ops[i], bad[b].what, assay_error_message());
                cr_expect_eq(variant, 2 * v);
                cr_assert_eq(
                    run_with(&x, ops[i], act, bad[b].kept, BAD_EXPERTS, BAD_ROWS, false, &kept, &variant),
                    ASSAY_OK, "%s", assay_error_message());
                expect_kept(ops[i], bad[b].what, &found, &kept, rows);
                cr_expect_eq(
                    run_with(&x, ops[i], act, bad[b].counts, BAD_EXPERTS, BAD_ROWS, true, &none, &variant),
                    ASSAY_INVALID_ARGUMENT, "%s: %s: known on the host, they are refused", ops[i],
                    bad[b].what);
                free(found.data);
                free(kept.data);
            }
    cr_expect_eq(assay_sim_reports(), 0);
    gpu_ctx_destroy(&x);
}

/* How a call is made: kernels, and where its tensors lie. */
typedef struct way {
    const char *variants;
    int variant; /* that runs */
    gpu_place place;
} way;

static void run_as(gpu_ctx *x, const way *how, int op, assay_dtype act, const int64_t *counts,
                   int64_t experts, int64_t rows, gpu_slot *out)
{
    int variant;
    set_variants(x, how->variants);
    place = how->place;
    cr_assert_eq(run_with(x, ops[op], act, counts, experts, rows, false, out, &variant), ASSAY_OK, "%s",
                 assay_error_message());
    cr_expect_eq(variant, how->variant, "%s %s: k%d", ops[op], how->variants, variant);
}

/* Two ways have the same bits at all widths and counts; of many experts at the first widths alone. */
static void expect_same(const int64_t (*widths)[2], size_t n, assay_dtype act, way one, way other)
{
    gpu_ctx x;
    open_ctx(&x);
    for (size_t w = 0; w < n; w++)
        for (int which = 0; which < 12; which++)
            for (int i = 0; i < OPS; i++) {
                int64_t counts[MOST_EXPERTS], experts, rows;
                gpu_slot a, b;
                counts_of(which, counts, &experts, &rows);
                if (w > 0 && experts > 4)
                    continue;
                N = widths[w][0], K = widths[w][1];
                run_as(&x, &one, i, act, counts, experts, rows, &a);
                run_as(&x, &other, i, act, counts, experts, rows, &b);
                cr_expect(same_bits(&a, &b, 0, slot_count(&a)), "%s: N %lld, K %lld, counts %d", ops[i],
                          (long long)N, (long long)K, which);
                free(a.data);
                free(b.data);
            }
    cr_expect_eq(assay_sim_reports(), 0);
    gpu_ctx_destroy(&x);
}

/* In F32 k2 is k0's chain in tiles: the same bits, where widths are multiples of 4 and where they are not, whatever tile a row is in. */
Test(gpu_counts, tiles_have_the_bits_of_one_thread_an_element)
{
    static const int64_t widths[][2] = {{24, 16},  {23, 16},  {24, 15}, {1, 1},
                                        {129, 65}, {128, 64}, {132, 68}};
    expect_same(widths, sizeof widths / sizeof *widths, ASSAY_F32, (way){"linear=k0", 0, GPU_PLACE_ALIGNED},
                (way){"linear=k2", 2, GPU_PLACE_ALIGNED});
}

/* In bf16 k2 takes 16 bytes at a time or one number, as addresses allow: the same bits. */
Test(gpu_counts, one_number_at_a_time_has_the_bits_of_eight)
{
    static const int64_t widths[][2] = {{24, 16}, {8, 8}, {136, 72}, {64, 128}};
    expect_same(widths, sizeof widths / sizeof *widths, ASSAY_BF16, (way){"linear=k2", 2, GPU_PLACE_ALIGNED},
                (way){"linear=k2", 2, GPU_PLACE_ODD});
}

/* cuBLASLt reads sizes on the host: a call without them says so, and is not handed to it. */
Test(gpu_counts, a_library_that_needs_them_on_the_host_is_told)
{
    static float memory[2 * 24 * 16]; /* nothing is launched on it */
    const int64_t counts[2] = {3, 4};
    gpu_ctx x;
    open_ctx(&x);
    for (int i = 0; i < OPS; i++) {
        const gpu_tensor rows_n = gpu_tensor_2d(memory, ASSAY_F32, 7, N),
                         rows_k = gpu_tensor_2d(memory, ASSAY_F32, 7, K);
        const gpu_tensor weight = gpu_tensor_make(memory, ASSAY_F32, 3, (const int64_t[]){2, N, K});
        gpu_operands o = raw_operands(
            ops[i], (const raw_operand[]){RAW_T("y", rows_n),
                                          RAW_T("dy", rows_n),
                                          RAW_T("x", rows_k),
                                          RAW_T("dx", rows_k),
                                          RAW_T("weight", weight),
                                          RAW_T("dweight", weight),
                                          RAW_T("tokens_per_expert", gpu_tensor_1d(memory, ASSAY_I64, 2)),
                                          {.name = NULL}});
        gpu_slot out;
        int variant;
        cr_expect_null(gpu_ladder_misses(&x, &o), "k2 takes it");
        set_variants(&x, "linear=k1");
        const char *slot = gpu_ladder_misses(&x, &o);
        cr_assert(slot && strcmp(slot, "tokens_per_expert") == 0, "%s: k1 was asked for", ops[i]);
        o.host[gpu_operands_index(&o, slot)] = counts;
        cr_expect_null(gpu_ladder_misses(&x, &o));
        set_variants(&x, "linear=k0");
        o.host[gpu_operands_index(&o, slot)] = NULL;
        cr_expect_null(gpu_ladder_misses(&x, &o), "k0 was asked for");
        set_variants(&x, "linear=k1");
        cr_assert_eq(run_with(&x, ops[i], ASSAY_F32, counts, 2, 7, false, &out, &variant), ASSAY_OK);
        cr_expect_eq(variant, 0);
        free(out.data);
        cr_assert_eq(run_with(&x, ops[i], ASSAY_F32, counts, 2, 7, true, &out, &variant), ASSAY_OK);
        cr_expect_eq(variant, 1);
        free(out.data);
        set_variants(&x, "linear=k2");
    }
    gpu_ctx_destroy(&x);
}
